"""Sums, means, maxima, and the softmax family."""

import math
from operator import index as as_int
from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.errors import ShapeError
from ..engine.graph import Op
from ..engine.tensor import Axes, Operand, Tensor, as_tensor
from .arithmetic import as_float, exp, sqrt, where
from .shapes import broadcast_to

Shape = tuple[int, ...]


class Reduction(Op):
    """A function of all elements along some axes, or along all of them."""

    def __init__(self, axis: Axes, keepdims: bool):
        self.axis, self.keepdims = axis, keepdims

    def axes(self, shape: Shape) -> Shape:
        """The axes counted from the front, checked. As in NumPy, a 0-d tensor may be reduced along axis 0 or -1."""
        ndim = len(shape) or 1
        if self.axis is None:
            return tuple(range(len(shape)))
        given = [as_int(a) for a in (self.axis if isinstance(self.axis, (tuple, list)) else (self.axis,))]
        axes = {a % ndim for a in given}
        if len(axes) < len(given) or any(not -ndim <= a < ndim for a in given):
            raise ShapeError(
                f"{type(self).__name__.lower()} of shape {shape} with axis={self.axis}",
                f"axes are between {-ndim} and {ndim - 1}, each given once",
                "axis=0, or axis=-1 for the last",
            )
        return tuple(sorted(axes)) if shape else ()

    def expanded(self, t: Tensor, shape: Shape) -> Tensor:
        """A result for an input of that shape, or its gradient, with the reduced axes back as axes of length 1."""
        axes = self.axes(shape)
        return t if self.keepdims else t.reshape(tuple(1 if i in axes else n for i, n in enumerate(shape)))


class Sum(Reduction):
    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        return x.sum(axis=self.axes(x.shape), keepdims=self.keepdims)

    def backward(self, g: Tensor) -> Any:
        return broadcast_to(self.expanded(g, self.old_shape), self.old_shape)


class Mean(Reduction):
    floating = True

    def forward(self, x: Array) -> Array:
        self.old_shape, axes = x.shape, self.axes(x.shape)
        self.count = math.prod(x.shape[axis] for axis in axes)
        return x.mean(axis=axes, keepdims=self.keepdims) if self.count else x.sum(axis=axes, keepdims=self.keepdims) / 0

    def backward(self, g: Tensor) -> Any:
        share = g * (1.0 / self.count) if self.count else g  # float16 has no number as large as some counts
        return broadcast_to(self.expanded(share, self.old_shape), self.old_shape)


class Max(Reduction):
    """Elements that share the maximum share its gradient; NaN counts as the maximum."""

    def forward(self, x: Array) -> Array:
        return x.max(axis=self.axes(x.shape), keepdims=self.keepdims)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        top = self.expanded(out, x.shape)._data
        best = ((x._data == top) | ((x._data != x._data) & (top != top))).astype(x.dtype)
        return self.expanded(g, x.shape) * (best / best.sum(axis=self.axes(x.shape), keepdims=True))


class Min(Max):
    """Elements that share the minimum share its gradient; NaN counts as the minimum."""

    def forward(self, x: Array) -> Array:
        return x.min(axis=self.axes(x.shape), keepdims=self.keepdims)


class Norm(Reduction):
    """The slope at 0 is taken as 0."""

    floating = True

    def forward(self, x: Array) -> Array:
        return array_module(x).sqrt((x * x).sum(axis=self.axes(x.shape), keepdims=self.keepdims))

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        length = self.expanded(where(out == 0, 1.0, out), x.shape)
        return self.expanded(g, x.shape) * (x / length)


class LogSumExp(Reduction):
    floating = True

    def forward(self, x: Array) -> Array:
        xp, axes = array_module(x), self.axes(x.shape)
        top = x.max(axis=axes, keepdims=True)
        finite = xp.isfinite(top)
        total = xp.exp(x - xp.where(finite, top, 0.0)).sum(axis=axes, keepdims=True)
        out = top + xp.where(finite, xp.log(xp.maximum(total, 1.0)), 0.0)  # total >= 1 unless all are -inf
        return out if self.keepdims else out.squeeze(axes)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        out = where(out == -math.inf, 0.0, out)  # the fraction of each element in a total of 0 is 0
        return self.expanded(g, x.shape) * exp(x - self.expanded(out, x.shape))


def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over all elements, or along some axes.

    >>> F.sum([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([3., 7.])
    """
    return Sum(axis, keepdims)(x)


def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over all elements, or along some axes.

    >>> F.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([2., 3.])
    """
    return Mean(axis, keepdims)(x)


def var(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance: the sum of squared deviations from the mean, divided by their number minus ddof.

    >>> F.var([1.0, 2.0, 3.0, 4.0])
    tensor(1.25)
    """
    x = as_tensor(x)
    deviation = x - mean(x, axis, keepdims=True)
    out = mean(deviation * deviation, axis, keepdims)
    count = x.size // out.size if out.size else 0
    if out.size and count <= ddof:
        raise ShapeError(
            f"var of {count} elements with ddof={ddof}, shape {x.shape}, axis={axis}",
            "there must be more elements than ddof",
            "ddof=0, or more elements",
        )
    return out * (count / (count - ddof)) if ddof and out.size else out


def std(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The standard deviation: the square root of `var`. Its slope at 0 is taken as 0.

    >>> F.std([1.0, 3.0])
    tensor(1.)
    """
    variance = var(x, axis, keepdims, ddof)
    return where(variance == 0, 0.0, sqrt(where(variance == 0, 1.0, variance)))


def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element, of all or along some axes; equal ones share the gradient.

    >>> F.max([[1.0, 5.0], [3.0, 2.0]], axis=0)
    tensor([3., 5.])
    """
    return Max(axis, keepdims)(_not_empty("max", x))


def min(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element, of all or along some axes; equal ones share the gradient.

    >>> F.min([[1.0, 5.0], [3.0, 2.0]], axis=0)
    tensor([1., 2.])
    """
    return Min(axis, keepdims)(_not_empty("min", x))


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the largest element (the first of equal ones), of all or along an axis; it has no gradient.

    >>> F.argmax([[1.0, 5.0], [3.0, 2.0]], axis=1)
    tensor([1, 0], dtype=int64)
    """
    array = _not_empty("argmax", x)._data
    axes = Reduction(None if axis is None else as_int(axis), keepdims).axes(array.shape)
    if axis is None or not axes:
        return Tensor(array.reshape(-1).argmax(axis=0).reshape((1,) * array.ndim if keepdims else ()))
    out = array.argmax(axis=axes[0])
    return Tensor(array_module(out).expand_dims(out, axes[0]) if keepdims else out.reshape(out.shape))


def norm(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The Euclidean length sqrt(sum(x^2)), of all elements or along some axes. Its slope at 0 is taken as 0.

    >>> F.norm([3.0, 4.0])
    tensor(5.)
    """
    return Norm(axis, keepdims)(x)


def logsumexp(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow.

    >>> F.logsumexp([1000.0, 1000.0])
    tensor(1000.6932)
    """
    return LogSumExp(axis, keepdims)(_not_empty("logsumexp", x))


def log_softmax(x: Operand, axis: int = -1) -> Tensor:
    """The logarithm of softmax(x), without overflow.

    >>> F.log_softmax([0.0, 1000.0])
    tensor([-1000.,     0.])
    """
    x = as_float(x)
    x = x - max(x.detach(), axis, keepdims=True) if x.size else x  # a constant shift cancels, and keeps small digits
    return x - logsumexp(x, axis, keepdims=True) if x.size else x


def softmax(x: Operand, axis: int = -1) -> Tensor:
    """exp(x) scaled to sum to 1 along an axis, without overflow.

    >>> F.softmax([1000.0, 1000.0])
    tensor([0.5, 0.5])
    """
    return exp(log_softmax(x, axis))


def _not_empty(name: str, x: Operand) -> Tensor:
    x = as_tensor(x)
    if not x.size:
        raise ShapeError(f"{name} of shape {x.shape}", "there must be an element to take", "a tensor with elements")
    return x
