"""Convolution that is rectified as it goes: the outputs of a few images at a time, while they are in the cache."""

import math
from collections.abc import Iterator
from typing import Any

from ..engine.arrays import Array
from ..engine.graph import is_recording, parents_of
from ..engine.tensor import Operand, Tensor, as_tensor
from ..kernels import device
from .convolution import Convolution, Convolve, geometry
from .fused import ShiftedReLU
from .tiles import Tiles
from .windows import blocks, channels_last, empty_image

ELEMENTS_AT_ONCE = 2**18  # of the output, 1 MB in float32


class RectifiedConvolve(Convolution):
    """max(convolution + bias, 0) - shift."""

    def forward(self, x: Array, w: Array, bias: Array, shift: Array) -> Array:
        self.rectifier = ShiftedReLU(overwrite=True)
        out = self.room_for_output(x, w)
        bias, shift = (_over_a_row(v, out) for v in (bias, shift))
        self.by.convolve(x, w, self.window, out, lambda block: self.rectifier.forward(block, bias, shift))
        return out

    def backward(self, g: Tensor, x: Tensor, w: Tensor, shift: Tensor, out: Tensor) -> Any:
        if is_recording() or isinstance(self.by, Tiles):  # the products of tiles need all images together
            passed, *others = self.rectifier.backward(g, shift, out)
            return *self.gradients_of(passed, x, w), *others
        number = shift.data if isinstance(shift, Tensor) else shift
        return *self.gradients_by_block(g.data, x.data, w.data, number, out.data), lambda: -g

    def gradients_by_block(self, g: Array, x: Array, w: Array, shift: Array, out: Array) -> Iterator[Tensor | None]:
        """The gradients in x, w and bias; without a graph, again a few images at a time."""
        of_image, of_kernels, of_bias = empty_image(self.image, g, w), [], []
        for_image, for_kernels, *_ = (parent is not None for parent in parents_of(self))
        for images in blocks(g, math.prod(out.shape[1:]), ELEMENTS_AT_ONCE):
            passed = g[images] * (out[images] > -shift)
            of_bias.append(channels_last(passed).sum(axis=(0, 1, 2)))
            if for_image:
                self.by.image_gradient(passed, w, self.window, of_image[images])
            if for_kernels:
                of_kernels.append(self.by.kernel_gradient(x[images], passed, self.window, self.kernel))
        yield Tensor(of_image) if for_image else None
        yield Tensor(sum(of_kernels)) if for_kernels else None
        yield Tensor(sum(of_bias).reshape(-1, 1, 1))


def _over_a_row(v: Any, images: Array) -> Array:
    """A number, or one for each channel, for each pixel of a row: NumPy is slow where it has to repeat them."""
    row = empty_image((1, images.shape[1], 1, images.shape[3]), images)
    row[...] = v
    return row


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
