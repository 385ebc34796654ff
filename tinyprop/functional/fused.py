"""Several elementwise steps in one pass over memory, where a network spends its time."""

from typing import Any

from ..autograd import Op
from ..backend import Array, array_module
from ..tensor import Operand, Tensor


class ShiftedReLU(Op):
    """max(x + bias, 0) - shift, as max(x + (bias - shift), -shift): no pass for the shift."""

    def __init__(self, overwrite: bool):
        self.overwrite = overwrite

    def forward(self, x: Array, bias: Array, shift: Array) -> Array:
        xp = array_module(x)
        out = xp.add(x, bias - shift, out=x if self.overwrite else None)
        return xp.maximum(out, -shift, out=out)

    def backward(self, g: Tensor, shift: Tensor, out: Tensor) -> Any:
        passed = g * (out > -shift)
        return passed, passed, lambda: -g


def shifted_relu(x: Operand, bias: Operand, shift: Operand, overwrite: bool = False) -> Tensor:
    """max(x + bias, 0) - shift. With `overwrite` the result takes the memory of x, which nobody may need any more.

    >>> F.shifted_relu([-1.0, 1.0], 0.5, 0.25)
    tensor([-0.25,  1.25])
    """
    return ShiftedReLU(overwrite)(x, bias, shift)
