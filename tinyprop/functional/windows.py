"""The geometry of convolution and pooling: windows that slide over the last two axes of an
image."""

from dataclasses import dataclass
from functools import cache
from operator import index as as_int
from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.errors import ShapeError

Shape = tuple[int, ...]
Pair = tuple[int, int]


def pair(value: Any, name: str, least: int) -> Pair:
    """A number, or a pair (rows, columns) of them, as a checked pair."""
    try:
        first, second = map(as_int, value if isinstance(value, (tuple, list)) else (value, value))
        if first >= least and second >= least:
            return first, second
    except (TypeError, ValueError):
        pass
    raise ShapeError(
        f"{name}={value!r}", f"it is an integer >= {least}, or a pair of them", f"{name}={least}"
    )


@dataclass(frozen=True)
class Window:
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
        kernel = pair(kernel, "kernel_size", 1)
        stride = kernel if stride is None else pair(stride, "stride", 1)
        return cls(
            kernel, stride, pair(padding, "padding", 0), pair(dilation, "dilation", 1), bool(ceil)
        )

    def extent(self, axis: int) -> int:
        """How many pixels the window spans along an axis; 0 stands for rows, 1 for columns."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def places(self, axis: int, size: int) -> int:
        """How many places the window has along an axis of that size."""
        stride, padding = self.stride[axis], self.padding[axis]
        room = size + 2 * padding - self.extent(axis)
        if not self.ceil:
            return room // stride + 1
        places = -(-room // stride) + 1
        return places - 1 if (places - 1) * stride >= size + padding else places

    def output(self, image: Shape) -> Pair:
        """How many places the window has on an image (N, C, H, W), down and across."""
        if len(image) != 4:
            hint = "x[None], with a batch axis" if len(image) == 3 else "x.reshape(N, C, H, W)"
            raise ShapeError(f"an image of shape {image}", "images are (N, C, H, W)", hint)
        rows, columns = self.places(0, image[2]), self.places(1, image[3])
        if rows < 1 or columns < 1:
            got = f"an image of shape {image} under {self}"
            raise ShapeError(
                got, "the window must fit on the padded image", "a smaller kernel or more padding"
            )
        return rows, columns

    def along(self, axis: int, size: int) -> list[tuple[slice, slice]]:
        """For each element of the kernel along an axis of that size, the places of the window where
        this element lies on the image, not on the padding, and the pixels that it meets there."""
        places, stride = self.places(axis, size), self.stride[axis]
        slices = []
        for i in range(self.kernel[axis]):
            # place t meets pixel t * stride + shift
            shift = i * self.dilation[axis] - self.padding[axis]
            first = max(0, -(shift // stride))
            count = max(0, min(places, (size - 1 - shift) // stride + 1) - first)
            pixel = first * stride + shift if count else 0
            slices.append(
                (slice(first, first + count), slice(pixel, pixel + stride * count, stride))
            )
        return slices

    def padded(self, x: Array, value: float = 0.0) -> Array:
        """x (N, H, W, C) with a border, wide enough for every window."""
        (ph, pw), (n, h, w, c) = self.padding, x.shape
        height, width = (
            max(
                size + 2 * self.padding[i],
                (self.places(i, size) - 1) * self.stride[i] + self.extent(i),
            )
            for i, size in enumerate((h, w))
        )
        if (height, width) == (h, w):
            return x
        xp, shape = array_module(x), (n, height, width, c)
        out = xp.full(shape, value, x.dtype) if value else xp.zeros(shape, x.dtype)
        out[:, ph : ph + h, pw : pw + w] = x
        return out

    def views(self, x: Array) -> Array:
        """Padded images (N, H, W, C) as overlapping windows (N, places, places, kernel, kernel, C),
        without a copy."""
        n, h, w, c = x.shape
        rows, columns = ((s - self.extent(i)) // self.stride[i] + 1 for i, s in enumerate((h, w)))
        to_n, to_h, to_w, to_c = x.strides
        (sh, sw), (dh, dw) = self.stride, self.dilation
        strides = (to_n, sh * to_h, sw * to_w, dh * to_h, dw * to_w, to_c)
        as_strided = array_module(x).lib.stride_tricks.as_strided
        return as_strided(x, (n, rows, columns, *self.kernel, c), strides)

    def scatter(self, elements: Array, image: Shape) -> Array:
        """The transpose of `padded` and `views`: windows (N, places, places, kernel, kernel, C),
        added up to images of this shape (N, C, H, W) where they overlap."""
        n, c, h, w = image
        out = array_module(elements).zeros((n, h, w, c), elements.dtype)
        for i, (rows, pixel_rows) in enumerate(self.along(0, h)):
            for j, (columns, pixel_columns) in enumerate(self.along(1, w)):
                out[:, pixel_rows, pixel_columns] += elements[:, rows, columns, i, j]
        return channels_first(out)


def channels_last(x: Array) -> Array:
    """(N, C, ...) -> (N, ..., C), a view; contiguous if the memory is laid out channels-last
    already."""
    return x.transpose(_axes(x.ndim, True))


def channels_first(x: Array) -> Array:
    """(N, ..., C) -> (N, C, ...), a view: how images look outside, while their memory stays
    channels-last."""
    return x.transpose(_axes(x.ndim, False))


@cache
def _axes(ndim: int, last: bool) -> Shape:
    return (0, *range(2, ndim), 1) if last else (0, ndim - 1, *range(1, ndim - 1))


def empty_image(shape: Shape, *like: Array) -> Array:
    """Memory for images (N, C, H, W), channels-last, of the dtype of what is computed from these
    arrays."""
    (n, c, h, w), xp, dtype = shape, array_module(*like), like[0].dtype
    if any(a.dtype != dtype for a in like):
        dtype = xp.result_type(*like)
    return channels_first(xp.empty((n, h, w, c), dtype))
