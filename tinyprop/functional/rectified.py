"""Convolution that is rectified as it goes: the outputs of a few images at a time, while they are in the cache."""

from typing import Any

from .. import device
from ..backend import Array
from ..tensor import Operand, Tensor, as_tensor
from .convolution import Convolution, Convolve, ImageGradient, KernelGradient, geometry
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
        return (
            lambda: ImageGradient(*self.geometry)(passed, w),
            lambda: KernelGradient(*self.geometry)(x, passed),
            *others,
        )


def rectified_conv2d(
    x: Operand,
    weight: Operand,
    bias: Operand,
    shift: Operand,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Tensor:
    """shifted_relu(conv2d(x, weight), bias, shift) with fewer passes over memory; bias and shift broadcast to images.

    >>> image = tp.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> F.rectified_conv2d(image, [[[[1.0, -0.75]]]], 0.0, 0.25).data
    array([[[[-0.25, -0.25]]]], dtype=float32)
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    parts = geometry(x, weight, stride, padding)
    if device.runs(x.data):  # which takes the batch in one block
        return ShiftedReLU(overwrite=True)(Convolve(*parts)(x, weight), bias, shift)
    return RectifiedConvolve(*parts)(x, weight, bias, shift)
