"""Normalisation: of weights by their length, of activations by the statistics of a batch."""

from typing import Any

from ..engine.arrays import Array, array_module, from_host
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.guard import check_editable
from ..engine.tensor import Operand, Tensor, as_tensor
from ..random import generator
from .arithmetic import as_float, rsqrt
from .reductions import mean, norm
from .reductions import sum as sum_over


def column(numbers: Any, ndim: int) -> Any:
    """(n,) -> (n, 1, ...) with `ndim` axes: for rows (n, ...), or, with `ndim` - 1 axes, for channels (N, n, ...)"""
    return numbers.reshape(-1, *[1] * (ndim - 1))


class WeightNorm(Op):
    """Rows w[i] of any length to rows of length scale[i] * factor."""

    floating = True

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, w: Array, scale: Array) -> Array:
        rows = w.reshape(len(w), -1)
        length = array_module(w).sqrt((rows * rows).sum(axis=1))
        return w * column(scale * self.factor / length, w.ndim)

    def backward(self, g: Tensor, w: Tensor, scale: Tensor) -> Any:
        within = tuple(range(1, w.ndim))
        length = norm(w, within, keepdims=True)
        unit, size = w / length, column(scale * self.factor, w.ndim)
        along = sum_over(g * unit, within, keepdims=True)
        return lambda: (g - unit * along) * (size / length), lambda: (along * self.factor).reshape(scale.shape)


def weight_norm(weight: Operand, scale: Operand, factor: float = 1.0) -> Tensor:
    """The rows weight[i], whatever their length, at length scale[i] * factor (Salimans and Kingma, 2016).

    >>> F.weight_norm(tp.tensor([[3.0, 4.0]]), tp.tensor([10.0]))
    tensor([[6., 8.]])
    """
    weight, scale = as_tensor(weight, like=scale), as_tensor(scale, like=weight)
    if weight.ndim < 2 or scale.shape != weight.shape[:1]:
        got = f"weight_norm of weight {weight.shape} and scale {scale.shape}"
        raise ShapeError(got, "weight is (rows, ...), scale is (rows,)", f"scale of shape {weight.shape[:1]}")
    return WeightNorm(factor)(weight, scale)


class BatchNorm(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias over all axes but 1; forward also moves the running estimates."""

    def __init__(self, eps: float, momentum: float, running_mean: Array, running_var: Array):
        self.eps, self.momentum, self.running = eps, momentum, (running_mean, running_var)

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
        center = x.mean(axis=axes, keepdims=True)
        var = ((x - center) ** 2).mean(axis=axes, keepdims=True)
        self.move_running(center.reshape(-1), var.reshape(-1), count)
        scale = column(weight, x.ndim - 1) / array_module(x).sqrt(var + self.eps)
        return (x - center) * scale + column(bias, x.ndim - 1)

    def move_running(self, center: Array, var: Array, count: int) -> None:
        for running, now in zip(self.running, (center, var * (count / (count - 1))), strict=True):
            running += self.momentum * (now - running)

    def backward(self, g: Tensor, x: Tensor, weight: Tensor) -> Any:
        axes = (0, *range(2, x.ndim))
        off = x - mean(x, axes, keepdims=True)
        inverse = rsqrt(mean(off * off, axes, keepdims=True) + self.eps)
        normal = off * inverse
        total, along = sum_over(g, axes, keepdims=True), sum_over(g * normal, axes, keepdims=True)
        rest = g - (total + normal * along) * (x.shape[1] / x.size)
        return rest * inverse * column(weight, x.ndim - 1), along.reshape(weight.shape), total.reshape(weight.shape)


def batch_norm(
    x: Operand,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each feature (axis 1) over the batch and all places: Ioffe and Szegedy (2015).

    When training, by the statistics of the batch, which also move the running estimates in place; otherwise by these.

    >>> mean, var = tp.zeros(1), tp.ones(1)
    >>> F.batch_norm([[1.0], [3.0]], mean, var, training=True, eps=0.0), mean
    (tensor([[-1.],
            [ 1.]]), tensor([0.2]))
    """
    if running_mean is None or running_var is None:
        rule = "the running estimates are tensors, which training moves"
        raise ShapeError("batch_norm without running estimates", rule, "tp.zeros(C) and tp.ones(C) for C features")
    x, features = as_float(x), running_mean.size
    if x.ndim < 2 or x.shape[1] != features:
        rule, hint = "axis 1 holds the features", f"(N, {features}) or (N, {features}, H, W)"
        raise ShapeError(f"batch_norm of {features} features of shape {x.shape}", rule, hint)
    xp = array_module(x._data)
    weight = Tensor(xp.ones(features, x.dtype)) if weight is None else weight
    bias = Tensor(xp.zeros(features, x.dtype)) if bias is None else bias
    if not training:
        scale = weight * rsqrt(running_var + eps)
        return x * column(scale, x.ndim - 1) + column(bias - running_mean * scale, x.ndim - 1)
    if x.size // max(features, 1) < 2:
        got, hint = f"batch_norm of a batch of shape {x.shape}", "a larger batch, or NormProp, which needs none"
        raise ShapeError(got, "one value per feature has no spread: its normalised value would be 0/0", hint)
    check_editable(running_mean, "running_mean")
    check_editable(running_var, "running_var")
    return BatchNorm(eps, momentum, running_mean._data, running_var._data)(x, weight, bias)


def dropout(x: Operand, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element is 0 with probability p, and the others are scaled by 1 / (1 - p); x itself unless training.

    >>> F.dropout([1.0, 2.0], training=False)
    tensor([1., 2.])
    """
    if not 0 <= p < 1:
        raise ValueError(explain(f"p={p}", "a probability of dropping is at least 0 and less than 1", "p=0.5"))
    x = as_float(x)
    if not training or p == 0:
        return x
    surviving = generator().random(x.shape, "float32") >= p
    return x * from_host(surviving.astype(x.dtype) / x.dtype.type(1.0 - p), like=x._data)
