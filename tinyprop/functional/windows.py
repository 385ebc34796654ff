"""The geometry that convolution and pooling share: windows that slide over the last two axes of an image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..engine.arrays import Array, array_module, is_host_array, strided_view
from ..engine.errors import ShapeError

Shape = tuple[int, ...]
Finish = Callable[[Array], Any]  # what is done, in place, to each block of outputs while it is in the cache


def pair(value: Any, name: str, least: int) -> tuple[int, int]:
    """A number, or a pair (rows, columns) of them, as a checked pair."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(isinstance(v, int) and v >= least for v in both):
        raise ShapeError(f"{name}={value!r}", f"it is an integer >= {least}, or a pair of them", f"{name}={least}")
    return both


@dataclass(frozen=True)
class Window:
    """Kernel size, stride and padding, each as (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(cls, kernel: Any, stride: Any, padding: Any) -> "Window":
        kernel = pair(kernel, "kernel_size", 1)
        return cls(kernel, kernel if stride is None else pair(stride, "stride", 1), pair(padding, "padding", 0))

    def places(self, axis: int, size: int) -> int:
        """How many places the window has along an axis of that size; 0 stands for rows, 1 for columns."""
        return (size + 2 * self.padding[axis] - self.kernel[axis]) // self.stride[axis] + 1

    def output(self, image: Shape) -> tuple[int, int]:
        """How many places the window has on an image (..., H, W)."""
        sizes = image[-2:] if len(image) == 4 else (0, 0)
        places = [self.places(axis, size) for axis, size in enumerate(sizes)]
        if len(image) != 4 or min(places) < 1:
            raise ShapeError(
                f"an image of shape {image} under a window of kernel {self.kernel}, stride {self.stride}, "
                f"padding {self.padding}",
                "images are (N, C, H, W), and (size + 2 padding - kernel) // stride + 1 must be at least 1",
                "a smaller kernel or more padding",
            )
        return places[0], places[1]

    def along(self, axis: int, size: int) -> list[tuple[slice, slice]]:
        """For each element of the kernel along an axis of that size, the places of the window where it lies on the
        image, not on the padding, and the pixels that it meets there."""
        kernel, stride, padding = self.kernel[axis], self.stride[axis], self.padding[axis]
        places = self.places(axis, size)
        slices = []
        for shift in range(-padding, kernel - padding):  # place t meets pixel t * stride + shift
            first = max(0, -(shift // stride))
            count = max(0, min(places, (size - 1 - shift) // stride + 1) - first)
            pixel = first * stride + shift if count else 0
            slices.append((slice(first, first + count), slice(pixel, pixel + stride * count, stride)))
        return slices

    def padded(self, x: Array) -> Array:
        """x (N, H, W, C) with a border of zeros."""
        (ph, pw), (n, h, w, c) = self.padding, x.shape
        if not ph and not pw:
            return x
        out = array_module(x).zeros((n, h + 2 * ph, w + 2 * pw, c), x.dtype)
        out[:, ph : ph + h, pw : pw + w] = x
        return out

    def views(self, x: Array) -> Array:
        """A padded image (N, H, W, C) as overlapping windows (N, places, places, kernel, kernel, C), without a copy."""
        n, h, w, c = x.shape
        rows, columns = Window(self.kernel, self.stride, (0, 0)).output((n, c, h, w))
        to_n, to_h, to_w, to_c = x.strides
        (sh, sw) = self.stride
        return strided_view(x, (n, rows, columns, *self.kernel, c), (to_n, sh * to_h, sw * to_w, to_h, to_w, to_c))


def channels_last(x: Array) -> Array:
    """(N, C, H, W) -> (N, H, W, C), a view; contiguous if the memory is laid out channels-last already."""
    return x.transpose(0, 2, 3, 1)


def channels_first(x: Array) -> Array:
    """(N, H, W, C) -> (N, C, H, W), a view: the public face of an image whose memory stays channels-last."""
    return x.transpose(0, 3, 1, 2)


def empty_image(shape: Shape, *like: Array) -> Array:
    """Memory for images (N, C, H, W), channels-last, of the dtype of what is computed from these arrays."""
    n, c, h, w = shape
    xp = array_module(*like)
    return channels_first(xp.empty((n, h, w, c), xp.result_type(*like)))


def blocks(x: Array, each: int, most: int) -> list[slice]:
    """Cut a batch x (N, ...) into equal blocks of about `most` things if an image has `each` of them.

    What is computed between the first and the last step then stays in the cache. A device has other ways to hide
    its memory, and pays for every call: there the batch is one block.
    """
    n = x.shape[0]
    count = max(1, min(n, round(n * each / most))) if is_host_array(x) else 1
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]
