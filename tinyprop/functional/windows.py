"""The geometry of convolution and pooling: windows that slide over the last two axes of an
image."""

from dataclasses import dataclass
from functools import cache, lru_cache
from operator import index as as_int
from typing import Any, NamedTuple

from ..engine.arrays import Array, array_module, strided_view
from ..engine.errors import ShapeError
from ..engine.sums import wide

Shape = tuple[int, ...]
Pair = tuple[int, int]


def pair(value: Any, name: str, least: int) -> Pair:
    """A number, or a pair (rows, columns) of them, as a checked pair."""
    given = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = map(as_int, given)
        if first >= least and second >= least:
            return first, second
    except (TypeError, ValueError):
        pass
    raise ShapeError(
        f"{name}={value!r}", f"it is an integer >= {least}, or a pair of them", f"{name}={least}"
    )


class Window(NamedTuple):
    """Kernel size, stride, padding and dilation, each as (rows, columns). With `ceil`, the last
    window may hang over the edge of the padded image, as long as it starts inside it."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)
    ceil: bool = False

    @classmethod
    def of(
        cls, kernel: Any, stride: Any, padding: Any, dilation: Any = 1, ceil: bool = False
    ) -> "Window":
        """A window from numbers or pairs, which are checked; the stride is the kernel size unless
        it is given."""
        kernel = pair(kernel, "kernel_size", 1)
        stride = kernel if stride is None else pair(stride, "stride", 1)
        padding = pair(padding, "padding", 0)
        dilation = pair(dilation, "dilation", 1)
        return cls(kernel, stride, padding, dilation, bool(ceil))

    def extent(self, axis: int) -> int:
        """How many pixels the window spans along an axis; 0 stands for rows, 1 for columns."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def output(self, image: Shape) -> Pair:
        """How many places the window has on an image (N, C, H, W), down and across."""
        if len(image) != 4:
            hint = "x[None], with a batch axis" if len(image) == 3 else "x.reshape(N, C, H, W)"
            raise ShapeError(f"an image of shape {image}", "images are (N, C, H, W)", hint)
        rows = placement(self, 0, image[2]).places
        columns = placement(self, 1, image[3]).places
        if rows < 1 or columns < 1:
            got = f"an image of shape {image} under {self}"
            raise ShapeError(
                got, "the window must fit on the padded image", "a smaller kernel or more padding"
            )
        return rows, columns

    def along(self, axis: int, size: int) -> tuple["Offset", ...]:
        """For each element of the kernel along an axis of that size, the places of the window where
        this element lies on the image, not on the padding, and the pixels that it meets there."""
        return placement(self, axis, size).offsets

    def unfold(self, x: Array, border: float = 0.0) -> Array:
        """Images (N, H, W, C) as overlapping windows (N, rows, columns, kh, kw, C): strided views
        of the images, or of a padded copy of them."""
        n, h, w, c = x.shape
        down = placement(self, 0, h)
        across = placement(self, 1, w)
        if (down.padded, across.padded) != (h, w):
            x = self._padded(x, (n, down.padded, across.padded, c), border)
        to_n, to_h, to_w, to_c = x.strides
        (sh, sw), (dh, dw) = self.stride, self.dilation
        shape = (n, down.places, across.places, *self.kernel, c)
        strides = (to_n, sh * to_h, sw * to_w, dh * to_h, dw * to_w, to_c)
        return strided_view(x, shape, strides)

    def _padded(self, x: Array, shape: Shape, border: float) -> Array:
        """Images (N, H, W, C) with a border, as an array of that shape."""
        xp = array_module(x)
        (ph, pw), (_, h, w, _) = self.padding, x.shape
        # zeros come from the operating system without being written
        out = xp.full(shape, border, x.dtype) if border else xp.zeros(shape, x.dtype)
        out[:, ph : ph + h, pw : pw + w] = x
        return out

    def scatter(self, elements: Array, image: Shape) -> Array:
        """The transpose of `unfold`: windows (N, rows, columns, kh, kw, C), added up to images of
        this shape (N, C, H, W) where they overlap."""
        n, c, h, w = image
        kh, kw = self.kernel
        dtype = wide(elements.dtype, terms=kh * kw)
        out = array_module(elements).zeros((n, h, w, c), dtype)
        for i, (rows, pixel_rows) in enumerate(self.along(0, h)):
            for j, (columns, pixel_columns) in enumerate(self.along(1, w)):
                out[:, pixel_rows, pixel_columns] += elements[:, rows, columns, i, j]
        return channels_first(out.astype(elements.dtype, copy=False))


# the places where an element of the kernel lies on the image, and the pixels that it meets there
Offset = tuple[slice, slice]


@dataclass(frozen=True)
class Placement:
    """A window placed along one axis of an image."""

    places: int  # how many there are
    padded: int  # the length of the axis with a border that is wide enough for every place
    offsets: tuple[Offset, ...]  # one for each element of the kernel


@lru_cache(4096)
def placement(window: Window, axis: int, size: int) -> Placement:
    """The window along an axis of that size: 0 stands for rows, 1 for columns. It is computed once
    and remembered."""
    places = _places(window, axis, size)
    last_start = (places - 1) * window.stride[axis]
    padded = max(size + 2 * window.padding[axis], last_start + window.extent(axis))
    offsets = [_offset(window, axis, size, i, places) for i in range(window.kernel[axis])]
    return Placement(places, padded, tuple(offsets))


def _places(window: Window, axis: int, size: int) -> int:
    """How many places the window has along an axis of that size."""
    stride, padding = window.stride[axis], window.padding[axis]
    room = size + 2 * padding - window.extent(axis)
    if not window.ceil:
        return room // stride + 1
    places = -(-room // stride) + 1
    starts_inside = (places - 1) * stride < size + padding
    return places if starts_inside else places - 1


def _offset(window: Window, axis: int, size: int, i: int, places: int) -> Offset:
    """Where element i of the kernel along an axis of that size lies on the image."""
    stride = window.stride[axis]
    shift = i * window.dilation[axis] - window.padding[axis]  # place t meets t * stride + shift
    first = max(0, -(shift // stride))
    stop = min(places, (size - 1 - shift) // stride + 1)
    if stop <= first:
        return slice(first, first), slice(0, 0, stride)
    pixel = first * stride + shift
    return slice(first, stop), slice(pixel, pixel + stride * (stop - first), stride)


def channels_last(x: Array) -> Array:
    """(N, C, ...) -> (N, ..., C), a view; contiguous if the memory is laid out channels-last
    already."""
    return x.transpose(_channels_last_axes(x.ndim))


def channels_first(x: Array) -> Array:
    """(N, ..., C) -> (N, C, ...), a view: how images look outside, while their memory stays
    channels-last."""
    return x.transpose(_channels_first_axes(x.ndim))


@cache
def _channels_last_axes(ndim: int) -> Shape:
    return 0, *range(2, ndim), 1


@cache
def _channels_first_axes(ndim: int) -> Shape:
    return 0, ndim - 1, *range(1, ndim - 1)


def empty_image(shape: Shape, x: Array, y: Array) -> Array:
    """Memory for images (N, C, H, W), channels-last, of the dtype of what is computed from these
    two arrays."""
    n, c, h, w = shape
    xp = array_module(x, y)
    dtype = x.dtype if x.dtype == y.dtype else xp.result_type(x, y)
    return channels_first(xp.empty((n, h, w, c), dtype))
