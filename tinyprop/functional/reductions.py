"""Sums, means, maxima, and the softmax family."""

import math
from typing import Any

from ..engine.arrays import Array, array_module, from_host, host_array, is_host_array
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op, is_recording
from ..engine.tensor import Axes, Operand, Tensor, as_tensor
from ..kernels import device
from .arithmetic import exp, where
from .shapes import broadcast_to


def _kept_shape(shape: tuple[int, ...], axis: Axes) -> tuple[int, ...]:
    """The shape after a reduction with keepdims=True."""
    if axis is None:
        return (1,) * len(shape)
    axes = {a % len(shape) for a in ((axis,) if isinstance(axis, int) else axis)}
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


class Reduction(Op):
    hint = "axes between -ndim and ndim - 1, each once"

    def __init__(self, axis: Axes, keepdims: bool):
        self.axis, self.keepdims = axis, keepdims

    def expanded(self, t: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A result, or its gradient, with the reduced axes back as axes of length 1."""
        return t if self.keepdims else t.reshape(_kept_shape(shape, self.axis))


class Sum(Reduction):
    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        return x.sum(axis=self.axis, keepdims=self.keepdims)

    def backward(self, g: Tensor) -> Any:
        return broadcast_to(self.expanded(g, self.old_shape), self.old_shape)


class Max(Reduction):
    """Elements that share the maximum share its gradient."""

    def forward(self, x: Array) -> Array:
        return x.max(axis=self.axis, keepdims=self.keepdims)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        best = (x.data == self.expanded(out, x.shape).data).astype(x.dtype)
        return self.expanded(g, x.shape) * (best / best.sum(axis=self.axis, keepdims=True))


class LogSumExp(Reduction):
    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        top = x.max(axis=self.axis, keepdims=True)
        finite = xp.isfinite(top)
        total = xp.exp(x - xp.where(finite, top, 0.0)).sum(axis=self.axis, keepdims=True)
        out = top + xp.where(finite, xp.log(xp.maximum(total, 1.0)), 0.0)  # a total is 1 or more, unless all is -inf
        return out if self.keepdims else out.squeeze(self.axis)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        out = where(out == -math.inf, 0.0, out)  # the share of each in a total of 0 is 0
        return self.expanded(g, x.shape) * exp(x - self.expanded(out, x.shape))


def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over all elements, or over some axes.

    >>> F.sum([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([3., 7.])
    """
    return Sum(axis, keepdims)(x)


def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over all elements, or over some axes.

    >>> F.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([2., 3.])
    """
    x = as_tensor(x)
    total = sum(x, axis, keepdims)
    return total * (total.size / x.size) if x.size else total / 0.0


def var(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance: the sum of squared deviations from the mean, divided by their number less ddof.

    >>> F.var([1.0, 2.0, 3.0, 4.0])
    tensor(1.25)
    """
    x = as_tensor(x)
    deviation = x - mean(x, axis, keepdims=True)
    total = sum(deviation * deviation, axis, keepdims)
    if total.size and x.size <= ddof * total.size:
        raise ShapeError(
            f"var of {x.shape} with axis={axis}, ddof={ddof}",
            "there must be more elements than ddof to divide by",
            "ddof=0, or more elements",
        )
    return total * (total.size / (x.size - ddof * total.size)) if total.size else total


def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element, of all or over some axes; equal ones share the gradient.

    >>> F.max([[1.0, 5.0], [3.0, 2.0]], axis=0)
    tensor([3., 5.])
    """
    return Max(axis, keepdims)(x)


def logsumexp(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow.

    >>> F.logsumexp([1000.0, 1000.0])
    tensor(1000.6932)
    """
    return LogSumExp(axis, keepdims)(x)


def log_softmax(x: Operand, axis: int = -1) -> Tensor:
    """The logarithm of softmax(x), without overflow.

    >>> F.log_softmax([0.0, 1000.0])
    tensor([-1000.,     0.])
    """
    x = as_tensor(x)
    x = x - max(x.detach(), axis, keepdims=True)  # a constant shift changes nothing, and keeps the small digits
    return x - logsumexp(x, axis, keepdims=True)


def softmax(x: Operand, axis: int = -1) -> Tensor:
    """exp(x) scaled to sum to 1 along an axis, without overflow.

    >>> F.softmax([1000.0, 1000.0])
    tensor([0.5, 0.5])
    """
    return exp(log_softmax(x, axis))


def _is_class(labels: Array, x: Tensor) -> Array:
    """labels (N, ...) -> (N, C, ...), true at the class that is the label."""
    classes = array_module(labels).arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2))  # (C, ...)
    return classes == labels[:, None]


class CrossEntropy(Op):
    """-log_softmax(x) at the labels, on a device."""

    def __init__(self, labels: Array):
        self.labels = labels

    def forward(self, x: Array) -> Array:
        return device.cross_entropy(x, self.labels)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        if not is_recording():
            return Tensor(device.cross_entropy_gradient(g.data, x.data, self.labels))
        hot = _is_class(self.labels, x).astype(x.dtype)
        return g[:, None] * (softmax(x, axis=1) * hot.sum(axis=1, keepdims=True) - hot)


def cross_entropy(x: Operand, labels: Any, reduction: str = "mean") -> Tensor:
    """The cross-entropy of logits x, shape (N, C, ...), with integer labels, shape (N, ...).

    `reduction` is "mean", "sum" or "none" over the labels.

    >>> F.cross_entropy([[0.0, 0.0]], [1])
    tensor(0.6931472)
    """
    x = as_tensor(x)
    labels = _checked_labels(x, labels)
    if device.runs(x.data):
        losses = CrossEntropy(labels)(x)
    else:
        losses = -sum(where(_is_class(labels, x), log_softmax(x, axis=1), 0.0), axis=1)
    if reduction == "none":
        return losses
    if reduction in ("mean", "sum"):
        return mean(losses) if reduction == "mean" else sum(losses)
    raise ValueError(explain(f"reduction={reduction!r}", "it is one of 'mean', 'sum', 'none'", "reduction='mean'"))


def _checked_labels(x: Tensor, labels: Any) -> Array:
    """Labels as an array of integers that lives where x does; those that come from the host are checked."""
    labels = labels.data if isinstance(labels, Tensor) else labels
    if isinstance(labels, list):
        labels = host_array(labels)
    if x.ndim < 2 or labels.dtype.kind not in "iu" or labels.shape != x.shape[:1] + x.shape[2:]:
        raise ShapeError(
            f"cross_entropy of logits {x.shape} and labels {labels.shape} of type {labels.dtype}",
            "logits are (N, C, ...), labels are integers of shape (N, ...)",
            "labels as class numbers, not one-hot rows",
        )
    if is_host_array(labels) and labels.size and not (labels.min() >= 0 and labels.max() < x.shape[1]):
        raise IndexError(
            explain(
                f"labels from {labels.min()} to {labels.max()} for {x.shape[1]} classes",
                f"a label is a class number from 0 to {x.shape[1] - 1}",
                "count classes from 0, or give the network more outputs",
            )
        )
    return from_host(labels, like=x.data) if is_host_array(labels) else labels
