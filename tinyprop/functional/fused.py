"""Several elementwise steps in one pass over memory, where a network spends its time."""

from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.graph import Op, is_recording
from ..engine.tensor import Operand, Tensor
from ..kernels import device
from .arithmetic import sqrt
from .reductions import sum as sum_of


class ShiftedReLU(Op):
    """max(x + bias, 0) - shift, as max(x + (bias - shift), -shift): no pass for the shift."""

    def __init__(self, overwrite: bool):
        self.overwrite = overwrite

    def forward(self, x: Array, bias: Array, shift: Array) -> Array:
        self.bias_shape = getattr(bias, "shape", ())
        self.on_device = device.runs(x) and device.is_per_channel(bias, x) and device.is_per_channel(shift, x)
        if self.on_device:
            return device.shifted_relu(x, bias, shift, self.overwrite)
        xp = array_module(x)
        out = xp.add(x, bias - shift, out=x if self.overwrite else None)
        return xp.maximum(out, -shift, out=out)

    def backward(self, g: Tensor, shift: Tensor, out: Tensor) -> Any:
        if self.on_device and self.bias_shape and not is_recording():
            number = shift.data if isinstance(shift, Tensor) else shift
            passed, sums = map(Tensor, device.shifted_relu_gradient(g.data, out.data, number))
            return passed, lambda: sums.reshape(self.bias_shape), lambda: -g
        passed = g * (out > -shift)
        return passed, passed, lambda: -g


def shifted_relu(x: Operand, bias: Operand, shift: Operand, overwrite: bool = False) -> Tensor:
    """max(x + bias, 0) - shift. With `overwrite` the result takes the memory of x, which nobody may need any more.

    >>> F.shifted_relu([-1.0, 1.0], 0.5, 0.25)
    tensor([-0.25,  1.25])
    """
    return ShiftedReLU(overwrite)(x, bias, shift)


class ScaledRows(Op):
    """Rows w[i] of any length to rows of length scale[i] * factor."""

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, w: Array, scale: Array) -> Array:
        if device.runs(w, scale):
            return device.scaled_rows(w, scale, self.factor)
        return w * _per_row(scale * self.factor / _length_of_rows(w), w)

    def backward(self, g: Tensor, w: Tensor, scale: Tensor) -> Any:
        if not is_recording():
            return tuple(map(Tensor, self.gradient(g.data, w.data, scale.data)))
        in_rows = tuple(range(1, w.ndim))
        length = sqrt(sum_of(w * w, in_rows, keepdims=True))
        unit, each = w / length, (scale * self.factor).reshape(length.shape)
        along = sum_of(g * unit, in_rows, keepdims=True)
        return lambda: (g - unit * along) * (each / length), lambda: (along * self.factor).reshape(scale.shape)

    def gradient(self, g: Array, w: Array, scale: Array) -> tuple[Array, Array]:
        """The same on arrays, in fewer passes over memory."""
        if device.runs(g, w, scale):
            return device.scaled_rows_gradient(g, w, scale, self.factor)
        length = _length_of_rows(w)
        along, each = _product_of_rows(g, w) / length, scale * self.factor / length
        g_w = g * _per_row(each, w)
        g_w -= w * _per_row(along * each / length, w)
        return g_w, along * self.factor


def _product_of_rows(x: Array, y: Array) -> Array:
    return array_module(x).einsum("ij,ij->i", x.reshape(len(x), -1), y.reshape(len(y), -1))


def _length_of_rows(w: Array) -> Array:
    return array_module(w).sqrt(_product_of_rows(w, w))


def _per_row(numbers: Array, w: Array) -> Array:
    """(rows,) -> (rows, 1, ...), ready to multiply w"""
    return numbers.reshape(-1, *[1] * (w.ndim - 1))


def scaled_rows(w: Tensor, scale: Tensor, divisor: Operand = 1.0) -> Tensor:
    """The rows w[i], whatever their length, at length scale[i] / divisor, or divisor[i].

    >>> F.scaled_rows(tp.tensor([[3.0, 4.0]]), tp.tensor([10.0]))
    tensor([[6., 8.]])
    """
    if isinstance(divisor, (int, float)):
        return ScaledRows(1.0 / divisor)(w, scale)
    return ScaledRows(1.0)(w, scale / divisor)
