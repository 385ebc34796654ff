"""Sums, means, maxima, and the softmax family."""

import math
from collections.abc import Callable
from operator import index as as_int
from typing import Any

from ..engine.arrays import Array, array_module, is_array
from ..engine.errors import ShapeError
from ..engine.graph import Op, named
from ..engine.sums import at_least_float32, total, wide
from ..engine.tensor import Axes, Operand, Tensor, as_tensor
from .arithmetic import as_float, exp, sqrt, square, where
from .shapes import broadcast_to, normalize_axes
from .windows import Shape


class Reduction(Op):
    """A function of all elements along some axes, or along all of them."""

    of_nothing = True  # whether it is defined where there are no elements

    def __init__(self, axis: Axes, keepdims: bool):
        self.axis, self.keepdims = axis, keepdims

    def axes(self, shape: Shape) -> Shape:
        """The axes counted from the front, checked. As in NumPy, a 0-d tensor may be reduced along
        axis 0 or -1."""
        got = f"{type(self).__name__.lower()} of shape {shape}"
        axes = normalize_axes(self.axis, len(shape) or 1, f"{got} with axis={self.axis}")
        if not self.of_nothing and shape and 0 in (shape[i] for i in axes):
            raise ShapeError(got, "there must be an element to take", "a tensor with elements")
        return tuple(axes) if shape else ()

    def expanded(self, t: Tensor, shape: Shape) -> Tensor:
        """A result for an input of that shape, or its gradient, with the reduced axes back as axes
        of length 1."""
        if self.keepdims:
            return t
        axes = self.axes(shape)
        return t.reshape(tuple(1 if i in axes else n for i, n in enumerate(shape)))

    def reduced_size(self, shape: Shape) -> int:
        """How many elements of an input of that shape each result is made of."""
        return math.prod(shape[axis] for axis in self.axes(shape))


class Sum(Reduction):
    """The sum over all elements, or along some axes.

    >>> F.sum([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([3., 7.])
    """

    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        return total(x, self.axes(x.shape), self.keepdims)

    def backward(self, g: Tensor) -> Any:
        return broadcast_to(self.expanded(g, self.old_shape), self.old_shape)


class Mean(Sum):
    """The mean over all elements, or along some axes.

    >>> F.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([2., 3.])
    """

    floating = True

    def __init__(self, axis: Axes, keepdims: bool, count: Any = None):
        super().__init__(axis, keepdims)
        self.count = count  # what the sum is divided by: the number of elements unless given

    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        self.divisor = self.reduced_size(x.shape) if self.count is None else self.count
        return total(x, self.axes(x.shape), self.keepdims, divisor=self.divisor)

    def backward(self, g: Tensor) -> Any:
        if not math.prod(self.old_shape):
            return super().backward(g)
        factor: Any = 1.0 / self.divisor  # some counts are too large for float16
        if is_array(factor):
            factor = factor.astype(g.dtype)
        return super().backward(g * factor)


class Variance(Reduction):
    """The sum of squared deviations from the mean, divided by the number of elements minus
    ddof."""

    floating = True

    def __init__(self, axis: Axes, keepdims: bool, ddof: int):
        super().__init__(axis, keepdims)
        self.ddof = ddof

    def forward(self, x: Array) -> Array:
        axes = self.axes(x.shape)
        count = self.reduced_size(x.shape)
        _, var = moments(x, axes, count)
        if self.ddof:
            var = var * (count / (count - self.ddof))
        var = var.astype(x.dtype)
        return var if self.keepdims else var.squeeze(axes)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        deviation = x - mean(x, self.axis, keepdims=True)
        slope = self.expanded(g, x.shape) * (2.0 / (self.reduced_size(x.shape) - self.ddof))
        return slope * deviation


def moments(
    x: Array, axes: Shape, count: int, over_all: Callable[[Array], Array] = lambda sums: sums
) -> tuple[Array, Array]:
    """The mean and the variance along some axes, which stay as axes of length 1, in the type in
    which x is added. `count` is the number of elements, and `over_all` completes a sum if x is a
    part of them.

    Squares are taken of x - near, with `near` the mean as an element of x would be rounded: their
    mean is the variance plus (mean - near)^2."""
    x = at_least_float32(x)
    dtype = wide(x.dtype)
    center = over_all(total(x, axes, True, dtype)) / count
    near = center.astype(x.dtype)
    deviation = x - near
    mean_square = over_all(total(deviation * deviation, axes, True, dtype)) / count
    var = mean_square - (center - near) ** 2
    return center, array_module(x).maximum(var, 0.0)  # because of rounding


class Max(Reduction):
    """The largest element, of all or along some axes; equal ones share the gradient. NaN counts as
    the largest.

    >>> F.max([[1.0, 5.0], [3.0, 2.0]], axis=0)
    tensor([3., 5.])
    """

    of_nothing = False

    def forward(self, x: Array) -> Array:
        return x.max(axis=self.axes(x.shape), keepdims=self.keepdims)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        top = self.expanded(out, x.shape)._data
        both_nan = (x._data != x._data) & (top != top)
        is_top = (x._data == top) | both_nan
        fraction = is_top / total(is_top, self.axes(x.shape), keepdims=True)
        return self.expanded(g, x.shape) * fraction.astype(x.dtype)


class Min(Max):
    """The smallest element, of all or along some axes; equal ones share the gradient. NaN counts as
    the smallest.

    >>> F.min([[1.0, 5.0], [3.0, 2.0]], axis=0)
    tensor([1., 2.])
    """

    def forward(self, x: Array) -> Array:
        return x.min(axis=self.axes(x.shape), keepdims=self.keepdims)


class ArgMax(Max):
    def forward(self, x: Array) -> Array:
        self.axes(x.shape)
        return x.argmax(axis=self.axis, keepdims=self.keepdims)


class LogSumExp(Reduction):
    """log(sum(exp(x))), without overflow.

    >>> F.logsumexp([1000.0, 1000.0])
    tensor(1000.6932)
    """

    floating, of_nothing = True, False

    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        axes = self.axes(x.shape)
        top = x.max(axis=axes, keepdims=True)
        finite = xp.isfinite(top)
        terms = xp.exp(x - xp.where(finite, top, 0.0))
        sums = total(terms, axes, True, wide(x.dtype))
        # at least 1 unless all are -inf
        rest = xp.where(finite, xp.log(xp.maximum(sums, 1.0)), 0.0)
        out = (top + rest).astype(x.dtype)
        return out if self.keepdims else out.squeeze(axes)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        out = where(out == -math.inf, 0.0, out)  # the fraction of each element in a total of 0 is 0
        return self.expanded(g, x.shape) * exp(x - self.expanded(out, x.shape))


class Softmax(Reduction):
    """exp(x), divided by its sum along an axis."""

    floating = True

    def __init__(self, axis: Axes):
        super().__init__(axis, keepdims=True)

    def forward(self, x: Array) -> Array:
        axes = self.axes(x.shape)
        y = at_least_float32(x)
        terms = array_module(x).exp(y - y.max(axis=axes, keepdims=True))
        return (terms / total(terms, axes, True)).astype(x.dtype, copy=False)

    def backward(self, g: Tensor, out: Tensor) -> Any:
        along = sum(g * out, self.axis, keepdims=True)
        return out * (g - along)


def _function(op: type[Reduction]) -> Callable[..., Tensor]:
    def reduce(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return op(axis, keepdims)(x)

    return named(reduce, op)


sum = _function(Sum)
mean = _function(Mean)
max = _function(Max)
min = _function(Min)
logsumexp = _function(LogSumExp)


def var(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance: the sum of squared deviations from the mean, divided by their number minus
    ddof.

    >>> F.var([1.0, 2.0, 3.0, 4.0])
    tensor(1.25)
    """
    x = as_float(x)
    reduction = Variance(axis, keepdims, ddof)
    count = reduction.reduced_size(x.shape)
    if not count:
        return mean(x, axis, keepdims)
    if count <= ddof:
        got = f"var of {count} elements with ddof={ddof}, shape {x.shape}, axis={axis}"
        raise ShapeError(got, "there must be more elements than ddof", "ddof=0, or more elements")
    return reduction(x)


def std(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The standard deviation: the square root of `var`. Its slope at 0 is taken as 0.

    >>> F.std([1.0, 3.0])
    tensor(1.)
    """
    x = as_float(x)
    root = _root(var(at_least_float32(x), axis, keepdims, ddof))
    return root if root.dtype == x.dtype else root.astype(x.dtype)


def norm(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The Euclidean length sqrt(sum(x^2)), of all elements or along some axes. Its slope at 0 is
    taken as 0.

    >>> F.norm([3.0, 4.0])
    tensor(5.)
    """
    x = as_float(x)
    length = _root(sum(square(at_least_float32(x)), axis, keepdims))
    return length if length.dtype == x.dtype else length.astype(x.dtype)


def _root(x: Tensor) -> Tensor:
    """The square root; its slope at 0, which is infinite, is taken as 0."""
    return where(x == 0, 0.0, sqrt(where(x == 0, 1.0, x)))


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the largest element (the first of equal ones), of all or along an axis; it
    has no gradient.

    >>> F.argmax([[1.0, 5.0], [3.0, 2.0]], axis=1)
    tensor([1, 0], dtype=int64)
    """
    axis = None if axis is None else as_int(axis)
    return ArgMax(axis, keepdims)(as_tensor(x).detach())


def log_softmax(x: Operand, axis: Axes = -1) -> Tensor:
    """The logarithm of softmax(x), without overflow.

    >>> F.log_softmax([0.0, 1000.0])
    tensor([-1000.,     0.])
    """
    x = as_float(x)
    if not x.size:
        return x
    # a constant shift cancels, and keeps small digits
    shifted = x - max(x.detach(), axis, keepdims=True)
    return shifted - logsumexp(shifted, axis, keepdims=True)


def softmax(x: Operand, axis: Axes = -1) -> Tensor:
    """exp(x) scaled to sum to 1 along an axis, or several, without overflow.

    >>> F.softmax([1000.0, 1000.0])
    tensor([0.5, 0.5])
    """
    x = as_float(x)
    return Softmax(axis)(x) if x.size else x
