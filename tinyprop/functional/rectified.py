"""Convolution that is rectified as it goes: the outputs of a few images at a time, while they are in the cache."""

from typing import Any

from .. import device
from ..backend import Array
from ..tensor import Operand, Tensor, as_tensor
from .convolution import Convolution, Convolve, geometry
from .fused import ShiftedReLU
from .windows import channels_first


class RectifiedConvolve(Convolution):
    """max(convolution + bias, 0) - shift."""

    def forward(self, x: Array, w: Array, bias: Array, shift: Array) -> Array:
        self.rectifier = ShiftedReLU(overwrite=True)
        return self.by.convolve(
            x, w, self.window, lambda block: self.rectifier.forward(channels_first(block), bias, shift)
        )

    def backward(self, g: Tensor, x: Tensor, w: Tensor, shift: Tensor, out: Tensor) -> Any:
        passed, *others = self.rectifier.backward(g, shift, out)
        return *self.gradients_of(passed, x, w), *others


def rectified_conv2d(
    x: Operand,
    weight: Operand,
    bias: Operand,
    shift: Operand,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Tensor:
    """shifted_relu(conv2d(x, weight), bias, shift), in fewer passes over memory if both are numbers, or (O, 1, 1).

    >>> image = tp.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> F.rectified_conv2d(image, [[[[1.0, -0.75]]]], 0.0, 0.25).data
    array([[[[-0.25, -0.25]]]], dtype=float32)
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    bias, shift = (v if isinstance(v, (int, float)) else as_tensor(v, like=x) for v in (bias, shift))
    parts = geometry(x, weight, stride, padding)
    for_each_channel = all(
        not isinstance(v, Tensor) or (v.shape == (weight.shape[0], 1, 1) and v.dtype == x.dtype == weight.dtype)
        for v in (bias, shift)
    )
    if device.runs(x.data) or not for_each_channel:  # a device takes the batch in one block
        return ShiftedReLU(overwrite=for_each_channel)(Convolve(*parts)(x, weight), bias, shift)
    return RectifiedConvolve(*parts)(x, weight, bias, shift)
