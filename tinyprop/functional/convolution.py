"""Two-dimensional convolution and its gradients, each as one product of matrices (im2col).

Images are (N, C, H, W) outside and channels-last in memory, so that the rows of the matrices are
contiguous. Each of the three products is linear in both of its inputs, and the other two are its
gradients: no order needs further rules."""

from contextlib import AbstractContextManager
from typing import Any

from ..engine.arrays import Array
from ..engine.context import context, current
from ..engine.errors import ShapeError
from ..engine.graph import Op
from ..engine.stand_in import accepts_stand_ins
from ..engine.tensor import Operand, Tensor, as_tensor
from .linear import product
from .shapes import concatenate, split
from .windows import Pair, Shape, Window, channels_first, channels_last


def exact_convolution() -> AbstractContextManager[None]:
    """Convolve by plain matrix products inside the block, without Winograd's rounding; so will the
    gradients.

    >>> with F.exact_convolution():
    ...     y = F.conv2d(tp.tensor([[[[2.0]]]]), [[[[3.0]]]])
    """
    return context(exact_convolution=True)


def columns(x: Array, window: Window) -> Array:
    """(N, C, H, W) -> (N * places, kh * kw * C), one copy"""
    windows = window.unfold(channels_last(x))
    n, rows, across, kh, kw, c = windows.shape
    return windows.reshape(n * rows * across, kh * kw * c)


def filter_matrix(w: Array) -> Array:
    """(O, C, kh, kw) -> (kh * kw * C, O)"""
    o, c, kh, kw = w.shape
    return w.transpose(2, 3, 1, 0).reshape(kh * kw * c, o)


def filter_rows(w: Array) -> Array:
    """(O, C, kh, kw) -> (O, kh * kw * C)"""
    o, c, kh, kw = w.shape
    return w.transpose(0, 2, 3, 1).reshape(o, kh * kw * c)


def output_rows(g: Array) -> Array:
    """(N, O, rows, columns) -> (N * rows * columns, O)"""
    n, o, rows, across = g.shape
    return channels_last(g).reshape(n * rows * across, o)


class Convolution(Op):
    """What the three products share; `exact` tells overrides not to round more than the plain
    product does."""

    masks, wide = False, True

    def __init__(self, window: Window, image: Shape, filters: Shape, exact: bool):
        self.window = window
        self.image = image
        self.filters = filters
        self.exact = exact

    def other(self, kind: type["Convolution"]) -> "Convolution":
        """Another one of the three products, with the same geometry."""
        return kind(self.window, self.image, self.filters, self.exact)


class Convolve(Convolution):
    """x (N, C, H, W) and w (O, C, kh, kw) to (N, O, rows, columns)."""

    def forward(self, x: Array, w: Array) -> Array:
        rows, across = self.window.output(x.shape)
        out = product(columns(x, self.window), filter_matrix(w))  # (N * places, O)
        return channels_first(out.reshape(len(x), rows, across, len(w)))

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        of_x = self.other(InputGradient)
        of_w = self.other(FilterGradient)
        return lambda: of_x(g, w), lambda: of_w(x, g)


class InputGradient(Convolution):
    """The transpose of Convolve with respect to x: g (N, O, rows, columns) and w to (N, C, H,
    W)."""

    def forward(self, g: Array, w: Array) -> Array:
        n, _, rows, across = g.shape
        kh, kw = self.window.kernel
        parts = product(output_rows(g), filter_rows(w))  # (N * places, kh * kw * C)
        elements = parts.reshape(n, rows, across, kh, kw, self.image[1])
        return self.window.scatter(elements, (n, *self.image[1:]))

    def backward(self, h: Tensor, g: Tensor, w: Tensor) -> Any:
        of_g = self.other(Convolve)
        of_w = self.other(FilterGradient)
        return lambda: of_g(h, w), lambda: of_w(h, g)


class FilterGradient(Convolution):
    """The transpose of Convolve with respect to w: x (N, C, H, W) and g to (O, C, kh, kw)."""

    def forward(self, x: Array, g: Array) -> Array:
        o, c, kh, kw = self.filters
        matrix = product(columns(x, self.window).T, output_rows(g))  # (kh * kw * C, O)
        return matrix.reshape(kh, kw, c, o).transpose(3, 2, 0, 1)  # (O, C, kh, kw)

    def backward(self, v: Tensor, x: Tensor, g: Tensor) -> Any:
        of_x = self.other(InputGradient)
        of_g = self.other(Convolve)
        return lambda: of_x(g, v), lambda: of_g(x, v)


@accepts_stand_ins
def conv2d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Slide the filters of `weight` (O, C / groups, kh, kw) over images x (N, C, H, W):
    cross-correlation, as usual.

    In float32, filters of 3x3 to 5x5 with enough channels are computed by Winograd convolution,
    where the range of the data allows it. Each output is then within 1e-5 |window| |filter| of the
    exact one, where |.| is the length as a vector; on ordinary data the error is some 5e-6 of the
    result, instead of 3e-7. The same holds for the gradients. Infinity and NaN reach only the
    outputs whose windows contain them, and a window of zeros gives 0. `exact_convolution` avoids
    this rounding.

    >>> image = tp.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> F.conv2d(image, [[[[1.0, -1.0]]]]).data
    array([[[[-1., -1.]]]], dtype=float32)
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    image, filters = x.shape, weight.shape
    _check_shapes(image, filters, groups)
    window = Window.of(filters[2:], stride, padding, dilation)
    if groups == 1:
        out = Convolve(window, image, filters, current().exact_convolution)(x, weight)
    else:
        out = _in_groups(x, weight, window, groups)
    if bias is None:
        return out
    bias = as_tensor(bias, like=out)
    if bias.shape != filters[:1]:
        got = f"conv2d with weight {filters} and bias {bias.shape}"
        raise ShapeError(got, "there is one bias for each output channel", f"shape {filters[:1]}")
    return out + bias.reshape(-1, 1, 1)


def _in_groups(x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """Each group of the channels of x, convolved with its own filters."""
    exact = current().exact_convolution
    images = split(x, [weight.shape[1]] * groups, axis=1)
    filters = split(weight, [len(weight) // groups] * groups)
    parts = []
    for x_i, w_i in zip(images, filters, strict=True):
        parts.append(Convolve(window, x_i.shape, w_i.shape, exact)(x_i, w_i))
    return concatenate(parts, axis=1)


def _check_shapes(x: Shape, weight: Shape, groups: int) -> None:
    are_images = len(x) == 4 and len(weight) == 4
    channels = groups * weight[1] if len(weight) == 4 else 0
    if are_images and groups >= 1 and x[1] == channels and weight[0] % groups == 0:
        return
    got = f"conv2d of x {x} and weight {weight}"
    if groups != 1:
        got += f" with groups={groups}"
    rule = "x is (N, C, H, W), weight is (O, C / groups, kh, kw)"
    raise ShapeError(got, rule, _shape_hint(x, weight, groups, channels))


def _shape_hint(x: Shape, weight: Shape, groups: int, channels: int) -> str:
    if len(x) == 3 and x[0] == channels:
        return "x[None], with a batch axis"
    if len(x) == 4 and x[3] == channels:
        return "x.transpose(0, 3, 1, 2): these images have their channels last"
    if len(x) != 4 or len(weight) != 4:
        return "four axes each"
    if x[1] == channels:
        return f"a number of filters that {groups} divides"
    return f"in_channels={x[1]} for this layer, or images with {channels} channels"
