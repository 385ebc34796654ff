"""NormProp layers in fewer passes over memory."""

from typing import Any

from .. import functional as F
from ..engine.arrays import Array, array_module
from ..engine.graph import Op
from ..engine.overrides import override
from ..engine.tensor import Tensor
from ..nn.normalization import NormProp, equation

HOMOGENEOUS = ("relu", "prelu", "leaky_relu", "abs", "identity")  # s(c x) = c s(x) for c > 0


class ShiftedReLU(Op):
    """max(x + bias, 0) - shift, computed as max(x + (bias - shift), -shift): the shift takes no pass of its own."""

    def __init__(self, overwrite: bool):
        self.overwrite = overwrite

    def forward(self, x: Array, bias: Array, shift: Array) -> Array:
        xp = array_module(x)
        out = xp.add(x, bias - shift, out=x if self.overwrite else None)
        return xp.maximum(out, -shift, out=out)

    def backward(self, g: Tensor, shift: Tensor, out: Tensor) -> Any:
        passed = F.where(out <= -shift, 0.0, g)  # NaN passes the gradient on, as in F.relu
        return passed, passed, lambda: -g


@override(equation)
def folded_equation(x: Tensor, layer: NormProp, c1: Any, c2: Any) -> Any:
    """Fold 1/c1 into weights and bias, if it passes through the activation: no pass over the outputs for it."""
    if layer.activation not in HOMOGENEOUS:
        return NotImplemented
    scale = (layer.gamma / c1,) if isinstance(c1, Tensor) else (layer.gamma, 1.0 / c1)
    u = layer.weighted_sum(x, F.weight_norm(layer.weight, *scale))
    bias, shift = layer.per_unit(layer.beta / c1), layer.per_unit(c2 / c1)
    if layer.activation == "relu":
        return ShiftedReLU(overwrite=True)(u, bias, shift)  # no op has saved u
    return layer.activate(u + bias) - shift
