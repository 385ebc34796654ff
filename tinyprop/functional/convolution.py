"""Two-dimensional convolution and its gradients.

Images are (N, C, H, W) to everyone outside and channels-last in memory, so that the rows of the matrices are
contiguous. The product of x and w, its gradient in x and its gradient in w are each linear in both of their
inputs, so each is the derivative of the other two, and gradients of any order need no further rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..engine.arrays import Array, array_module, float32
from ..engine.errors import ShapeError
from ..engine.graph import Op, is_recording
from ..engine.tensor import Operand, Tensor, as_tensor
from . import columns, pointwise, tiles
from .windows import Shape, Window, empty_image

_exact = ContextVar("exact", default=False)


@contextmanager
def exact_convolution() -> Iterator[None]:
    """Convolve by plain matrix products, in this thread; so will the gradients of what is computed here.

    Float32 images with many channels are otherwise convolved in tiles, which is faster, with a rounding error
    of about 5e-6 instead of 3e-7.

    >>> with F.exact_convolution():
    ...     y = F.conv2d(tp.tensor([[[[2.0]]]]), [[[[3.0]]]])
    """
    before = _exact.set(True)
    try:
        yield
    finally:
        _exact.reset(before)


def kernels(window: Window, image: Shape, kernel: Shape, dtype: Any, exact: bool) -> Any:
    """What is fastest for this geometry. Each has convolve, image_gradient and kernel_gradient."""
    if window.kernel == (1, 1):
        return pointwise
    if exact or dtype != float32 or window.stride != (1, 1) or window.kernel not in ((3, 3), (5, 5)):
        return columns
    # Measured: the transforms pay with enough channels, and with outputs that fill the tiles, and not only one or two.
    channels, (rows, across) = min(kernel[:2]), window.output(image)
    filled = rows * across / (-(-rows // 4) * -(-across // 4) * 16)
    pays = channels >= (32 if window.kernel == (3, 3) else 16) and filled > 0.7 and image[0] * rows * across >= 96
    return tiles.Tiles(keep=is_recording()) if pays else columns


class Convolution(Op):
    """What the three products share: a window, the shapes of an image and of the kernels, and who computes them."""

    def __init__(self, window: Window, image: Shape, kernel: Shape, by: Any):
        self.geometry = window, image, kernel, by
        self.window, self.image, self.kernel, self.by = self.geometry

    def room_for_output(self, x: Array, w: Array) -> Array:
        return empty_image((x.shape[0], self.kernel[0], *self.window.output(self.image)), x, w)

    def gradients_of(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        """The gradients in x and in w of <g, convolution of x and w>."""
        by = self.by.for_one_pass() if isinstance(self.by, tiles.Tiles) else self.by
        parts = self.window, self.image, self.kernel, by
        return lambda: ImageGradient(*parts)(g, w), lambda: KernelGradient(*parts)(x, g)


class Convolve(Convolution):
    """x (N, C, H, W) and w (O, C, kh, kw) to (N, O, rows, columns)."""

    def forward(self, x: Array, w: Array) -> Array:
        out = self.room_for_output(x, w)
        self.by.convolve(x, w, self.window, out)
        return out

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        return self.gradients_of(g, x, w)


class ImageGradient(Convolution):
    """The transpose of Convolve in x: g (N, O, rows, columns) and w to (N, C, H, W)."""

    def forward(self, g: Array, w: Array) -> Array:
        out = empty_image(self.image, g, w)
        self.by.image_gradient(g, w, self.window, out)
        return out

    def backward(self, h: Tensor, g: Tensor, w: Tensor) -> Any:
        return lambda: Convolve(*self.geometry)(h, w), lambda: KernelGradient(*self.geometry)(h, g)


class KernelGradient(Convolution):
    """The transpose of Convolve in w: x (N, C, H, W) and g to (O, C, kh, kw)."""

    def forward(self, x: Array, g: Array) -> Array:
        return self.by.kernel_gradient(x, g, self.window, self.kernel)

    def backward(self, v: Tensor, x: Tensor, g: Tensor) -> Any:
        return lambda: ImageGradient(*self.geometry)(g, v), lambda: Convolve(*self.geometry)(x, v)


def conv2d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> Tensor:
    """Slide the kernels of `weight` (O, C, kh, kw) over the images x (N, C, H, W) (cross-correlation, as usual).

    >>> image = tp.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> F.conv2d(image, [[[[1.0, -1.0]]]]).data
    array([[[[-1., -1.]]]], dtype=float32)
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    out = Convolve(*geometry(x, weight, stride, padding))(x, weight)
    if bias is None:
        return out
    bias = as_tensor(bias, like=out)
    if bias.shape != weight.shape[:1]:
        rule = f"there is one bias for each of the {weight.shape[0]} output channels"
        raise ShapeError(f"conv2d with weight {weight.shape} and bias {bias.shape}", rule, f"shape {weight.shape[:1]}")
    return out + bias.reshape(-1, 1, 1)


def geometry(x: Tensor, weight: Tensor, stride: Any, padding: Any) -> tuple[Window, Shape, Shape, Any]:
    """What an op of convolution is made of, checked."""
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"conv2d of x {x.shape} and weight {weight.shape}",
            "x is (N, C, H, W), weight is (O, C, kh, kw), with the same number of channels C",
            "check in_channels of this layer against the one before",
        )
    window = Window.of(weight.shape[2:], stride, padding)
    window.output(x.shape)
    dtype = array_module(x.data).result_type(x.data, weight.data)
    return window, x.shape, weight.shape, kernels(window, x.shape, weight.shape, dtype, _exact.get())
