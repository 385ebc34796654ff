"""Several elementwise steps in one pass over memory, where a network spends its time."""

from typing import Any

from ..autograd import Op
from ..backend import Array, array_module
from ..tensor import Operand, Tensor


class ShiftedReLU(Op):
    """max(x + bias, 0) - shift, as max(x + (bias - shift), -shift): one temporary, and no pass for the shift."""

    def forward(self, x: Array, bias: Array, shift: Array) -> Array:
        out = x + (bias - shift)
        return array_module(out).maximum(out, -shift, out=out)

    def backward(self, g: Tensor, shift: Tensor, out: Tensor) -> Any:
        passed = g * (out > -shift)
        return passed, passed, lambda: -g


def shifted_relu(x: Operand, bias: Operand, shift: Operand) -> Tensor:
    """max(x + bias, 0) - shift.

    >>> F.shifted_relu([-1.0, 1.0], 0.5, 0.25)
    tensor([-0.25,  1.25])
    """
    return ShiftedReLU()(x, bias, shift)
