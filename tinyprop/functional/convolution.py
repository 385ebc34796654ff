"""Two-dimensional convolution, and its gradients, as matrix products.

Images are (N, C, H, W) to everyone outside and channels-last in memory, so that the rows of the matrices are
contiguous. The product of x and w, its gradient in x and its gradient in w are each linear in both of their
inputs, so each is the derivative of the other two, and gradients of any order need no further rule.
"""

from typing import Any

from ..autograd import Op
from ..backend import Array, array_module
from ..errors import ShapeError
from ..tensor import Operand, Tensor, as_tensor
from .windows import Window, channels_first, channels_last

Shape = tuple[int, ...]


class Convolve(Op):
    """x (N, C, H, W) and w (O, C, kh, kw) to (N, O, rows, columns)."""

    def __init__(self, window: Window):
        self.window = window

    def forward(self, x: Array, w: Array) -> Array:
        self.shapes = x.shape, w.shape
        return product(x, w, self.window)

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        image, kernel = self.shapes
        return lambda: ImageGradient(self.window, image)(g, w), lambda: KernelGradient(self.window, kernel)(x, g)


class ImageGradient(Op):
    """The transpose of Convolve in x: g (N, O, rows, columns) and w to (N, C, H, W)."""

    def __init__(self, window: Window, image: Shape):
        self.window, self.image = window, image

    def forward(self, g: Array, w: Array) -> Array:
        self.kernel = w.shape
        return product_with_image(g, w, self.window, self.image)

    def backward(self, h: Tensor, g: Tensor, w: Tensor) -> Any:
        return lambda: Convolve(self.window)(h, w), lambda: KernelGradient(self.window, self.kernel)(h, g)


class KernelGradient(Op):
    """The transpose of Convolve in w: x (N, C, H, W) and g to (O, C, kh, kw)."""

    def __init__(self, window: Window, kernel: Shape):
        self.window, self.kernel = window, kernel

    def forward(self, x: Array, g: Array) -> Array:
        self.image = x.shape
        return product_with_kernel(x, g, self.window, self.kernel)

    def backward(self, v: Tensor, x: Tensor, g: Tensor) -> Any:
        return lambda: ImageGradient(self.window, self.image)(g, v), lambda: Convolve(self.window)(x, v)


def _rows(x: Array, window: Window) -> Array:
    """x (N, C, H, W) -> (N * places, kh * kw * C): a row for each place of the window. One copy; none for 1x1."""
    views = window.views(window.padded(channels_last(x)))
    n, rows, columns, kh, kw, c = views.shape
    return views.reshape(n * rows * columns, kh * kw * c)


def _matrix(w: Array) -> Array:
    """w (O, C, kh, kw) -> (kh * kw * C, O)"""
    return w.transpose(2, 3, 1, 0).reshape(-1, w.shape[0])


def product(x: Array, w: Array, window: Window) -> Array:
    rows = _rows(x, window) @ _matrix(w)  # (N * places, O)
    return channels_first(rows.reshape(x.shape[0], *window.output(x.shape), w.shape[0]))


def product_with_image(g: Array, w: Array, window: Window, image: Shape) -> Array:
    n, c, height, width = image
    places, (kh, kw), (ph, pw) = window.output(image), window.kernel, window.padding
    rows = channels_last(g).reshape(-1, w.shape[0]) @ _matrix(w).T  # (N * places, kh * kw * C)
    if (kh, kw) == window.stride == (1, 1) and (ph, pw) == (0, 0):
        return channels_first(rows.reshape(n, height, width, c))
    parts = rows.reshape(n, *places, kh * kw, c)
    out = array_module(g).zeros((n, height + 2 * ph, width + 2 * pw, c), g.dtype)
    for i, (down, across) in enumerate(window.offsets(places)):
        out[:, down, across] += parts[:, :, :, i]
    return channels_first(window.without_padding(out))


def product_with_kernel(x: Array, g: Array, window: Window, kernel: Shape) -> Array:
    o, c, kh, kw = kernel
    matrix = _rows(x, window).T @ channels_last(g).reshape(-1, o)  # (kh * kw * C, O)
    return matrix.reshape(kh, kw, c, o).transpose(3, 2, 0, 1)


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
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"conv2d of x {x.shape} and weight {weight.shape}",
            "x is (N, C, H, W), weight is (O, C, kh, kw), with the same number of channels C",
            "check in_channels of this layer against the one before",
        )
    window = Window.of(weight.shape[2:], stride, padding)
    window.output(x.shape)
    out = Convolve(window)(x, weight)
    if bias is None:
        return out
    bias = as_tensor(bias, like=out)
    if bias.shape != weight.shape[:1]:
        rule = f"there is one bias for each of the {weight.shape[0]} output channels"
        raise ShapeError(f"conv2d with weight {weight.shape} and bias {bias.shape}", rule, f"shape {weight.shape[:1]}")
    return out + bias.reshape(-1, 1, 1)
