"""Maximum and average over sliding windows."""

from functools import lru_cache
from typing import Any

from ..engine.arrays import Array, array_module, from_host
from ..engine.errors import ShapeError
from ..engine.graph import Op
from ..engine.stand_in import accepts_stand_ins
from ..engine.sums import total, wide
from ..engine.tensor import Operand, Tensor, as_tensor
from .arithmetic import as_float
from .shapes import Put
from .windows import Shape, Window, channels_first, channels_last, placement


def lowest(x: Array) -> float:
    """What no element of x is below."""
    if x.dtype.kind == "f":
        return float("-inf")
    if x.dtype.kind == "i":
        return int(array_module(x).iinfo(x.dtype).min)
    return 0  # bools and unsigned integers


class MaxPool(Op):
    """The largest element of each window; NaN counts as the largest."""

    def __init__(self, window: Window):
        self.window = window

    def windows(self, x: Array, border: float) -> Array:
        """(N, C, H, W) -> (N, rows, columns, kernel elements, C)"""
        windows = self.window.unfold(channels_last(x), border)
        n, rows, columns, kh, kw, c = windows.shape
        return windows.reshape(n, rows, columns, kh * kw, c)

    def forward(self, x: Array) -> Array:
        return channels_first(self.windows(x, lowest(x)).max(axis=3))

    def winners(self, x: Array, out: Array) -> Array:
        """For each window the position, in x.reshape(-1), of its largest element: the first one in
        scan order."""
        xp = array_module(x)
        n, c, h, w = x.shape
        elements = self.windows(x, lowest(x))
        # their numbers, and -1 on the padding
        pixels = self.windows(xp.arange(h * w).reshape(1, 1, h, w), -1)
        is_largest = elements == channels_last(out)[:, :, :, None]
        is_nan = elements != elements
        candidates = (is_largest | is_nan) & (pixels >= 0)
        winner = xp.where(candidates, pixels, h * w).min(axis=3)  # (N, rows, columns, C)
        first_pixels = xp.arange(n * c).reshape(n, c, 1, 1) * (h * w)  # of each channel
        return first_pixels + channels_first(winner)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        return Put((self.winners(x._data, out._data),), (x.size,))(g).reshape(x.shape)


class AveragePool(Op):
    """The sum over each window, times a factor."""

    def __init__(self, window: Window, image: Shape, factor: float):
        self.window, self.image, self.factor = window, image, factor

    def forward(self, x: Array) -> Array:
        windows = self.window.unfold(channels_last(x))  # (N, rows, columns, kh, kw, C)
        sums = total(windows, (3, 4), dtype=wide(x.dtype))
        return channels_first((sums * self.factor).astype(x.dtype, copy=False))

    def backward(self, g: Tensor) -> Any:
        return Spread(self.window, self.image, self.factor)(g)


class Spread(AveragePool):
    """Adds g, times the factor, to all elements of its window: the transpose of AveragePool."""

    def forward(self, g: Array) -> Array:
        n, c, rows, columns = g.shape
        values = channels_last(g * self.factor)[:, :, :, None, None]  # (N, rows, columns, 1, 1, C)
        shape = n, rows, columns, *self.window.kernel, c
        elements = array_module(g).broadcast_to(values, shape)
        return self.window.scatter(elements, (n, *self.image[1:]))

    def backward(self, h: Tensor) -> Any:
        return AveragePool(self.window, self.image, self.factor)(h)


def _window(x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool = False) -> Window:
    """The window of a pool, if it can be placed on x."""
    window = Window.of(kernel, stride, padding, ceil=ceil)
    _check_windows(window, x.shape)
    return window


@lru_cache(1024)
def _check_windows(window: Window, image: Shape) -> None:
    """Refuse windows that do not fit on an image, or that hold nothing of it."""
    window.output(image)
    _, _, h, w = image
    fewest = min(_counts(window, 0, h) + _counts(window, 1, w))
    if fewest < 1:
        got = f"padding {window.padding} for a pooling window of {window.kernel} on {image}"
        raise ShapeError(got, "every window must hold an element of the image", "less padding")


@lru_cache(1024)
def _counts(window: Window, axis: int, size: int) -> tuple[int, ...]:
    """How many pixels of the image each place of the window covers along an axis."""
    counts = []
    for place in range(placement(window, axis, size).places):
        start = place * window.stride[axis] - window.padding[axis]
        stop = start + window.kernel[axis]
        counts.append(min(stop, size) - max(start, 0))
    return tuple(counts)


@accepts_stand_ins
def max_pool2d(
    x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
) -> Tensor:
    """The largest element of each window; of equal ones the first in scan order gets the gradient.

    >>> F.max_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[3., 2.]]]], dtype=float32)
    """
    x = as_tensor(x)
    return MaxPool(_window(x, kernel_size, stride, padding, ceil_mode))(x)


@accepts_stand_ins
def avg_pool2d(
    x: Operand,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window; `count_include_pad` says whether the zeros of the border count as
    elements.

    >>> F.avg_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[2., 1.]]]], dtype=float32)
    """
    x = as_float(x)
    window = _window(x, kernel_size, stride, padding)
    if count_include_pad:
        kh, kw = window.kernel
        return AveragePool(window, x.shape, 1.0 / (kh * kw))(x)
    down = _counts(window, 0, x.shape[2])
    across = _counts(window, 1, x.shape[3])
    all_equal = len(set(down)) == len(set(across)) == 1
    if all_equal:
        return AveragePool(window, x.shape, 1.0 / (down[0] * across[0]))(x)
    counts = [[float(a * b) for b in across] for a in down]  # (rows, columns)
    return AveragePool(window, x.shape, 1.0)(x) / from_host(counts, x._data, x.dtype)
