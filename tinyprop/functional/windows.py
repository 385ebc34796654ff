"""The geometry that convolution and pooling share: windows that slide over the last two axes of an image."""

from dataclasses import dataclass
from typing import Any

from ..backend import Array, array_module, strided_view
from ..errors import ShapeError


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

    def output(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places the window has on an image (..., H, W)."""
        sizes = image[-2:] if len(image) == 4 else (0, 0)
        places = [
            (size + 2 * p - k) // s + 1
            for size, k, s, p in zip(sizes, self.kernel, self.stride, self.padding, strict=True)
        ]
        if len(image) != 4 or min(places) < 1:
            raise ShapeError(
                f"an image of shape {image} under a window of kernel {self.kernel}, stride {self.stride}, "
                f"padding {self.padding}",
                "images are (N, C, H, W), and (size + 2 padding - kernel) // stride + 1 must be at least 1",
                "a smaller kernel or more padding",
            )
        return places[0], places[1]

    def offsets(self, places: tuple[int, int]) -> list[tuple[slice, slice]]:
        """For each element of the kernel in scan order, the slices of a padded image that it meets."""
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return [
            (slice(i, i + sh * (places[0] - 1) + 1, sh), slice(j, j + sw * (places[1] - 1) + 1, sw))
            for i in range(kh)
            for j in range(kw)
        ]

    def padded(self, x: Array, value: float = 0.0) -> Array:
        """x (N, H, W, C) with a border."""
        (ph, pw), (n, h, w, c) = self.padding, x.shape
        if not ph and not pw:
            return x
        out = array_module(x).full((n, h + 2 * ph, w + 2 * pw, c), value, x.dtype)
        out[:, ph : ph + h, pw : pw + w] = x
        return out

    def without_padding(self, x: Array) -> Array:
        """x (N, H, W, C) less its border, as a view."""
        (ph, pw), (_, h, w, _) = self.padding, x.shape
        return x[:, ph : h - ph, pw : w - pw]

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
