"""Normalisation by the statistics of a mini-batch, the baseline: Ioffe and Szegedy (2015)."""

from collections.abc import Iterable
from typing import Any

from .. import functional as F
from ..engine.arrays import Array, array_module, check_editable
from ..engine.errors import ShapeError
from ..engine.graph import Op, is_recording
from ..engine.tensor import Tensor
from ..functional.windows import Shape, blocks
from ..kernels import device
from .layers import parameter
from .module import Module

ELEMENTS_AT_ONCE = 2**16  # of a batch that is normalised: what is done to them finds them in the cache


class BatchNormalize(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias by the statistics of a batch.

    Running estimates of mean and variance, arrays, are moved by `momentum` towards those of the batch.
    """

    def __init__(self, eps: float, momentum: float, running_mean: Array, running_var: Array):
        self.eps, self.momentum, self.running = eps, momentum, (running_mean, running_var)

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        if device.runs(x, weight, bias):
            out, self.statistics = device.batch_norm(x, weight, bias, self.eps, self.momentum, self.running)
            return out
        xp, rows = array_module(x), _rows(x)
        parts, count = blocks(rows, rows.shape[1], ELEMENTS_AT_ONCE), len(rows)
        mean = _sum(rows[part] for part in parts) / count
        var = _sum((rows[part] - mean) ** 2 for part in parts) / count
        for running, now in zip(self.running, (mean, var * (count / (count - 1))), strict=True):
            running += self.momentum * (now - running)
        inverse = 1.0 / xp.sqrt(var + self.eps)
        self.statistics = mean, inverse
        scale, out = inverse * weight, xp.empty_like(rows)
        for part in parts:
            xp.subtract(rows[part], mean, out=out[part])
            out[part] *= scale
            out[part] += bias
        return _image(out, x.shape)

    def backward(self, g: Tensor, x: Tensor, weight: Tensor) -> Any:
        if not is_recording():
            return tuple(map(Tensor, self.gradient(g.data, x.data, weight.data)))
        axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
        off = x - F.sum(x, axes, keepdims=True) * (1.0 / count)
        inverse = (F.sum(off * off, axes, keepdims=True) * (1.0 / count) + self.eps) ** -0.5
        normal = off * inverse
        total, along = F.sum(g, axes, keepdims=True), F.sum(g * normal, axes, keepdims=True)
        each = inverse * weight.reshape(-1, *[1] * (x.ndim - 2))
        g_x = (g - (total + normal * along) * (1.0 / count)) * each
        return g_x, along.reshape(weight.shape), total.reshape(weight.shape)

    def gradient(self, g: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
        """The same on arrays, in fewer passes over memory."""
        if device.runs(g, x, weight):
            return device.batch_norm_gradient(g, x, weight, self.statistics)
        xp, shape, g, x, (mean, inverse) = array_module(x), x.shape, _rows(g), _rows(x), self.statistics
        parts, count = blocks(x, x.shape[1], ELEMENTS_AT_ONCE), len(x)
        total = _sum(g[part] for part in parts)
        along = _sum(g[part] * (x[part] - mean) for part in parts) * inverse
        each = inverse * weight
        slope, offset, g_x = inverse * along / count, total / count, xp.empty_like(g)
        for part in parts:
            xp.subtract(g[part], offset, out=g_x[part])
            g_x[part] -= (x[part] - mean) * slope
            g_x[part] *= each
        return _image(g_x, shape), along, total


def _sum(parts: Iterable[Array]) -> Array:
    """The sum over all rows of some matrices."""
    sums = [_sum_of_rows(part) for part in parts]
    return _sum_of_rows(array_module(*sums).stack(sums))


def _sum_of_rows(x: Array) -> Array:
    """As a product with ones, which rounds less than adding row by row."""
    return array_module(x).ones(len(x), x.dtype) @ x


def _rows(x: Array) -> Array:
    """(N, C, ...) -> (rows, C): a view if the memory is laid out channels-last already"""
    return x.transpose(0, *range(2, x.ndim), 1).reshape(-1, x.shape[1])


def _image(rows: Array, shape: Shape) -> Array:
    """The inverse of _rows: (rows, C) -> (N, C, ...), a view"""
    return rows.reshape(shape[0], *shape[2:], shape[1]).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


class BatchNorm(Module):
    """Normalise each feature (axis 1) over the batch, and over places if there are any: Ioffe and Szegedy (2015).

    When training, by the statistics of the mini-batch; otherwise by a running estimate of them.

    >>> tp.nn.BatchNorm(1, eps=0.0)(tp.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]], requires_grad=True)
    """

    whole_batch = True

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        self.eps, self.momentum = eps, momentum
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)
        self.running_mean = parameter(0.0, num_features).detach()
        self.running_var = parameter(1.0, num_features).detach()

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.weight.size:
            raise ShapeError(
                f"BatchNorm({self.weight.size}) of shape {x.shape}",
                "axis 1 holds the features",
                f"(N, {self.weight.size}) or (N, {self.weight.size}, H, W)",
            )
        shape = (-1, *[1] * (x.ndim - 2))  # (C,) -> (C, 1, 1)
        if not self.training:
            scale = self.weight / F.sqrt(self.running_var + self.eps)
            return x * scale.reshape(shape) + (self.bias - self.running_mean * scale).reshape(shape)
        if x.size // x.shape[1] < 2:
            raise ShapeError(
                f"BatchNorm of a batch of shape {x.shape}",
                "one value per feature has no spread: its normalised value would be 0/0",
                "a larger batch, or NormProp, which needs none",
            )
        for name, running in (("running_mean", self.running_mean), ("running_var", self.running_var)):
            check_editable(running.data, name)
        op = BatchNormalize(self.eps, self.momentum, self.running_mean.data, self.running_var.data)
        return op(x, self.weight, self.bias)
