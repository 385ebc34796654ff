"""NormProp layers, and BatchNorm with ReLU, in fewer passes over memory."""

from typing import Any

from .. import functional as F
from ..engine.arrays import Array, array_module
from ..engine.context import current
from ..engine.graph import Op
from ..engine.overrides import override
from ..engine.tensor import Tensor
from ..functional.normalization import BatchNorm, batch_op, column
from ..nn.layers import Activation
from ..nn.module import Sequential, in_turn, is_observing
from ..nn.normprop import NormProp, equation
from ..nn.statistics import BatchNorm as BatchNormLayer
from .weights import ScaledLinear

HOMOGENEOUS = ("relu", "prelu", "leaky_relu", "abs", "identity")  # s(c x) = c s(x) for c > 0


class ShiftedReLU(Op):
    """max(x + gain * bias, 0) - shift, computed as max(x + (gain * bias - shift), -shift): the
    shift takes no pass of its own. Both are numbers, or have one for each channel of x (N, C,
    ...)."""

    def __init__(self, overwrite: bool, gain: float = 1.0):
        self.overwrite, self.gain = overwrite, gain

    def forward(self, x: Array, bias: Array, shift: Array) -> Array:
        xp, shift = array_module(x), _beside(shift, x)
        out = xp.add(x, _beside(bias, x) * self.gain - shift, out=x if self.overwrite else None)
        return xp.maximum(out, -shift, out=out)

    def backward(self, g: Tensor, shift: Tensor, out: Tensor) -> Any:
        # NaN passes the gradient on, as in F.relu
        passed = F.where(out <= -_beside(shift, out), 0.0, g)
        rest = (0, *range(2, g.ndim))
        return passed, lambda: F.sum(passed, rest) * self.gain, lambda: -F.sum(g, rest)


def _beside(values: Any, x: Any) -> Any:
    return column(values, x.ndim - 1) if hasattr(values, "shape") else values


@override(equation)
def folded_equation(x: Tensor, layer: NormProp, c1: Any, c2: Any) -> Any:
    """Fold 1/c1 into weights and bias, if it passes through the activation: no pass over the
    outputs for it."""
    if layer.activation not in HOMOGENEOUS:
        return NotImplemented
    scale, beta, gain = layer.gamma, layer.beta, 1.0
    if isinstance(c1, Tensor):
        scale, beta = scale / c1, beta / c1
    else:
        gain = 1.0 / c1  # which the kernels apply
    weight = layer.weight
    if (
        weight.backend == "numpy"
        and weight.ndim == x.ndim == 2
        and len(x) < x.shape[1] == weight.shape[1]
    ):
        u = ScaledLinear(gain)(x, weight, scale)  # there are fewer outputs to scale than weights
    else:
        u = layer.weighted_sum(x, F.weight_norm(weight, scale, gain))
    if layer.activation == "relu" and u.ndim == weight.ndim:  # else units are not on axis 1
        return ShiftedReLU(overwrite=True, gain=gain)(u, beta, c2 / c1)  # no op has saved u
    return layer.activate(u + layer.per_unit(beta) * gain) - layer.per_unit(c2 / c1)


class BatchNormReLU(BatchNorm):
    """BatchNorm, and max(., 0) of it."""

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        return array_module(x).maximum(super().forward(x, weight, bias), 0.0)

    def backward(self, g: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> Any:  # type: ignore[override]
        return super().backward(F.where(out == 0, 0.0, g), x, weight)


@override(in_turn, on="cupy")
def rectified_batches(x: Tensor, layers: Sequential) -> Any:
    """One op for a BatchNorm that trains and the ReLU behind it."""
    if is_observing() or current().visit:
        return NotImplemented
    every, i = list(layers), 0
    while i < len(every):
        a, b = every[i], every[i + 1] if i + 1 < len(every) else None
        rectified = isinstance(b, Activation) and b.function == "relu"
        if (
            type(a) is BatchNormLayer
            and a.training
            and rectified
            and x.shape[1:2] == (a.num_features,)
        ):
            op = batch_op(BatchNormReLU, x, a.running_mean, a.running_var, a.momentum, a.eps)
            x, i = op(x, a.weight, a.bias), i + 2
        else:
            x, i = a(x), i + 1
    return x
