"""Two-dimensional convolution and its gradients, as one product of matrices for each group
(im2col).

Images are (N, C, H, W) outside and channels-last in memory, so that the rows of the matrices are
contiguous. Each of the three products is linear in both of its inputs, and the other two are its
gradients: no order needs further rules."""

from contextlib import AbstractContextManager
from typing import Any

from ..engine.arrays import Array
from ..engine.context import context, current
from ..engine.errors import ShapeError
from ..engine.graph import Op
from ..engine.tensor import Operand, Tensor, as_tensor
from .linear import product
from .windows import Pair, Shape, Window, channels_first, channels_last


def exact_convolution() -> AbstractContextManager[None]:
    """Convolve by plain matrix products inside the block, without Winograd's rounding; so will the
    gradients.

    >>> with F.exact_convolution():
    ...     y = F.conv2d(tp.tensor([[[[2.0]]]]), [[[[3.0]]]])
    """
    return context(exact_convolution=True)


def columns(x: Array, window: Window, groups: int) -> Array:
    """(N, C, H, W) -> (groups, N * places, kh * kw * C / groups), one copy"""
    views = window.views(window.padded(channels_last(x)))
    n, rows, across, kh, kw, c = views.shape
    grouped = views.reshape(n, rows, across, kh, kw, groups, c // groups)
    return grouped.transpose(5, 0, 1, 2, 3, 4, 6).reshape(
        groups, n * rows * across, kh * kw * c // groups
    )


def filter_matrices(w: Array, groups: int) -> Array:
    """(O, C / groups, kh, kw) -> (groups, kh * kw * C / groups, O / groups)"""
    o, c, kh, kw = w.shape
    return (
        w.reshape(groups, o // groups, c, kh, kw)
        .transpose(0, 3, 4, 2, 1)
        .reshape(groups, kh * kw * c, o // groups)
    )


def output_rows(g: Array, groups: int) -> Array:
    """(N, O, rows, columns) -> (groups, N * rows * columns, O / groups)"""
    n, o, rows, across = g.shape
    return channels_last(g).reshape(n * rows * across, groups, o // groups).transpose(1, 0, 2)


class Convolution(Op):
    """What the three products share; `exact` tells overrides not to round more than the plain
    product does."""

    def __init__(self, window: Window, groups: int, image: Shape, filters: Shape, exact: bool):
        self.geometry = window, groups, image, filters, exact
        self.window, self.groups, self.image, self.filters, self.exact = self.geometry


class Convolve(Convolution):
    """x (N, C, H, W) and w (O, C / groups, kh, kw) to (N, O, rows, columns)."""

    def forward(self, x: Array, w: Array) -> Array:
        rows, across = self.window.output(x.shape)
        unfolded = columns(x, self.window, self.groups)
        out = product(unfolded, filter_matrices(w, self.groups))  # (groups, N * places, O / groups)
        return channels_first(out.transpose(1, 0, 2).reshape(len(x), rows, across, w.shape[0]))

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        return lambda: InputGradient(*self.geometry)(g, w), lambda: FilterGradient(*self.geometry)(
            x, g
        )


class InputGradient(Convolution):
    """The transpose of Convolve with respect to x: g (N, O, rows, columns) and w to (N, C, H,
    W)."""

    def forward(self, g: Array, w: Array) -> Array:
        (n, _, rows, across), c, (kh, kw) = g.shape, self.image[1], self.window.kernel
        parts = product(
            output_rows(g, self.groups), filter_matrices(w, self.groups).transpose(0, 2, 1)
        )
        parts = parts.reshape(self.groups, n, rows, across, kh, kw, c // self.groups)
        parts = parts.transpose(1, 2, 3, 4, 5, 0, 6).reshape(n, rows, across, kh, kw, c)
        return self.window.scatter(parts, (n, *self.image[1:]))

    def backward(self, h: Tensor, g: Tensor, w: Tensor) -> Any:
        return lambda: Convolve(*self.geometry)(h, w), lambda: FilterGradient(*self.geometry)(h, g)


class FilterGradient(Convolution):
    """The transpose of Convolve with respect to w: x (N, C, H, W) and g to (O, C / groups, kh,
    kw)."""

    def forward(self, x: Array, g: Array) -> Array:
        o, c, kh, kw = self.filters
        unfolded = columns(x, self.window, self.groups)
        found = product(unfolded.transpose(0, 2, 1), output_rows(g, self.groups))
        return (
            found.reshape(self.groups, kh, kw, c, o // self.groups)
            .transpose(0, 4, 3, 1, 2)
            .reshape(o, c, kh, kw)
        )

    def backward(self, v: Tensor, x: Tensor, g: Tensor) -> Any:
        return lambda: InputGradient(*self.geometry)(g, v), lambda: Convolve(*self.geometry)(x, v)


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

    >>> image = tp.tensor([[[[1.0, 2.0, 3.0]]]])
    >>> F.conv2d(image, [[[[1.0, -1.0]]]]).data
    array([[[[-1., -1.]]]], dtype=float32)
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    _check_shapes(x.shape, weight.shape, groups)
    window = Window.of(weight.shape[2:], stride, padding, dilation)
    window.output(x.shape)
    out = Convolve(window, groups, x.shape, weight.shape, current().exact_convolution)(x, weight)
    if bias is None:
        return out
    bias = as_tensor(bias, like=out)
    if bias.shape != weight.shape[:1]:
        got = f"conv2d with weight {weight.shape} and bias {bias.shape}"
        raise ShapeError(
            got, "there is one bias for each output channel", f"shape {weight.shape[:1]}"
        )
    return out + bias.reshape(-1, 1, 1)


def _check_shapes(x: Shape, weight: Shape, groups: int) -> None:
    channels, images = (
        groups * weight[1] if len(weight) == 4 else 0,
        len(x) == 4 and len(weight) == 4,
    )
    if images and groups >= 1 and x[1] == channels and weight[0] % groups == 0:
        return
    hint = (
        f"in_channels={x[1]} for this layer, or images with {channels} channels"
        if images
        else "four axes each"
    )
    if len(x) == 3 and x[0] == channels:
        hint = "x[None], with a batch axis"
    elif len(x) == 4 and x[3] == channels:
        hint = "x.transpose(0, 3, 1, 2): these images have their channels last"
    elif images and x[1] == channels:
        hint = f"a number of filters that {groups} divides"
    got = f"conv2d of x {x} and weight {weight}" + (f" with groups={groups}" if groups != 1 else "")
    raise ShapeError(got, "x is (N, C, H, W), weight is (O, C / groups, kh, kw)", hint)
