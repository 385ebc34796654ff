"""Maximum and average over sliding windows, by slices: never a loop over pixels, never an index.

A window of k x k is taken apart: along the columns first, then along the rows, so that 2k slices do instead of k * k.
Where a window hangs over the edge, slices end at the edge: nothing is padded.
"""

from typing import Any

from ..engine.arrays import Array, array_module, float32
from ..engine.errors import ShapeError
from ..engine.graph import Op, is_recording
from ..engine.tensor import Operand, Tensor, as_tensor
from ..kernels import device
from .windows import Shape, Window, blocks, channels_first, channels_last

ELEMENTS_AT_ONCE = 2**18  # of the image, 1 MB in float32: all steps on a block then find it in the cache


class Line:
    """The windows along one axis of images (N, H, W, C): 0 for the rows, 1 for the columns."""

    def __init__(self, window: Window, axis: int, size: int):
        before, along = (slice(None),) * (1 + axis), window.along(axis, size)
        self.axis, self.places, self.stride = 1 + axis, window.places(axis, size), window.stride[axis]
        self.meetings = [((*before, places), (*before, pixels)) for places, pixels in along]
        self.whole = [places == slice(0, self.places) for places, _ in along]  # no window has it on the padding

    def reduce(self, ufunc: Any, x: Array, nothing: float) -> Array:
        """Put the elements of each window together: (N, H, W, C) -> the same with `places` on this axis."""
        order = sorted(range(len(self.whole)), key=lambda i: not self.whole[i])
        if sum(self.whole) > 1:  # start from two elements of the kernel that all windows have
            a, b = (x[self.meetings[i][1]] for i in order[:2])
            out, order = ufunc(a, b), order[2:]
        else:
            shape = (*x.shape[: self.axis], self.places, *x.shape[self.axis + 1 :])
            out = array_module(x).full(shape, nothing, x.dtype)
        for i in order:
            places, pixels = self.meetings[i]
            ufunc(out[places], x[pixels], out=out[places])
        return out

    def spread(self, g: Array, out: Array) -> None:
        """Add g to all elements of its window in `out`, which is zero: the transpose of reduce(add)."""
        for i, (places, pixels) in enumerate(self.meetings):
            if i < self.stride:
                out[pixels] = g[places]  # the first to come here
            else:
                out[pixels] += g[places]

    def mark(self, x: Array, which: Array) -> Array:
        """The largest element of each window, and into `which` the number of the first that is as large."""
        xp = array_module(x)
        largest = xp.full(which.shape, _lowest(x), x.dtype)
        for i, (places, _) in reversed([*enumerate(self.meetings)]):
            which[places] = i  # in the end, the first that is not on the padding
        for i, (places, pixels) in enumerate(self.meetings):
            if i == 0:
                largest[places] = x[pixels]
                continue
            larger = xp.multiply(x[pixels] > largest[places], i, dtype=which.dtype)
            xp.maximum(which[places], larger, out=which[places])
            xp.maximum(largest[places], x[pixels], out=largest[places])
        return largest

    def send_back(self, g: Array, which: Array, out: Array) -> None:
        """Add g to the marked element of each window in `out`, which is zero."""
        multiply = array_module(g).multiply
        for i, (places, pixels) in enumerate(self.meetings):
            if i < self.stride:
                multiply(g[places], which[places] == i, out=out[pixels])  # the first to come here
            else:
                out[pixels] += g[places] * (which[places] == i)

    def fetch(self, h: Array, which: Array) -> Array:
        """The marked elements of h: the transpose of send_back."""
        out = array_module(h).zeros(which.shape, h.dtype)
        for i, (places, pixels) in enumerate(self.meetings):
            out[places] += h[pixels] * (which[places] == i)
        return out


class _Pool(Op):
    """A window on images of a shape, as two lines. Columns go first: so the first of equals is that in scan order."""

    def __init__(self, window: Window, image: Shape):
        self.window, self.image = window, image
        self.rows, self.columns = Line(window, 0, image[2]), Line(window, 1, image[3])
        places = self.rows.places, self.columns.places
        self.pooling = device.Pooling((image[2], image[3]), places, window.kernel, window.stride, window.padding)

    def by_blocks(self, function: Any, channels: int, size: tuple[int, int], *arrays: Array) -> Array:
        """function(out, *arrays) on blocks of images (N, H, W, C), as (N, C, *size)."""
        arrays = tuple(channels_last(a) for a in arrays)
        like = arrays[0]
        out = array_module(like).empty((like.shape[0], *size, channels), like.dtype)
        for images in blocks(like, self.image[1] * self.image[2] * self.image[3], ELEMENTS_AT_ONCE):
            function(out[images], *(array_module(a).ascontiguousarray(a[images]) for a in arrays))
        return channels_first(out)


def _lowest(x: Array) -> float:
    """What no element of x is below."""
    return float("-inf") if x.dtype.kind == "f" else array_module(x).iinfo(x.dtype).min if x.dtype.kind == "i" else 0


class MaxPool(_Pool):
    """The largest element of each window."""

    marks: tuple[Array, ...] = ()  # of each line, which element of each window is the largest

    def forward(self, x: Array) -> Array:
        if device.runs(x):
            return device.max_pool(x, self.pooling)
        if is_recording():
            return self.mark(x)
        return self.by_blocks(self.block, x.shape[1], self.window.output(x.shape), x)

    def block(self, out: Array, x: Array) -> None:
        maximum, lowest = array_module(x).maximum, _lowest(x)
        out[...] = self.rows.reduce(maximum, self.columns.reduce(maximum, x, lowest), lowest)

    def mark(self, x: Array) -> Array:
        """The same, and remember where it stood."""
        (n, c, h, _), (rows, columns) = x.shape, self.window.output(x.shape)
        number = "uint8" if max(self.window.kernel) < 256 else "uint32"
        empty = array_module(x).empty
        self.marks = tuple(channels_first(empty((n, height, columns, c), number)) for height in (h, rows))
        return self.by_blocks(self.marked_block, c, (rows, columns), x, *self.marks)

    def marked_block(self, out: Array, x: Array, in_columns: Array, in_rows: Array) -> None:
        out[...] = self.rows.mark(self.columns.mark(x, in_columns), in_rows)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        return Scatter(self, x.data, out.data)(g)


class Scatter(Op):
    """Sends g to where the maximum of each window stood, once, to the first in scan order if there are several."""

    def __init__(self, pool: MaxPool, x: Array, largest: Array):
        self.pool, self.x, self.largest = pool, x, largest

    def forward(self, g: Array) -> Array:
        if device.runs(g, self.x):
            return device.max_pool_gradient(g, self.x, self.largest, self.pool.pooling)
        h, w = self.x.shape[2:]
        return self.pool.by_blocks(self.block, g.shape[1], (h, w), g, *self.pool.marks)

    def block(self, out: Array, g: Array, in_columns: Array, in_rows: Array) -> None:
        across = array_module(g).zeros(in_columns.shape, g.dtype)
        self.pool.rows.send_back(g, in_rows, across)
        out[...] = 0
        self.pool.columns.send_back(across, in_columns, out)

    def backward(self, h: Tensor) -> Any:
        return Gather(self.pool, self.x, self.largest)(h)


class Gather(Scatter):
    """Fetches from h what stands where the maximum of each window stood: the transpose of Scatter."""

    def forward(self, h: Array) -> Array:
        if not self.pool.marks:  # a device has not needed them before
            self.pool.mark(self.x)
        rows, columns = self.largest.shape[2:]
        return self.pool.by_blocks(self.block, h.shape[1], (rows, columns), h, *self.pool.marks)

    def block(self, out: Array, h: Array, in_columns: Array, in_rows: Array) -> None:
        out[...] = self.pool.rows.fetch(self.pool.columns.fetch(h, in_columns), in_rows)

    def backward(self, g: Tensor) -> Any:
        return Scatter(self.pool, self.x, self.largest)(g)


class AveragePool(_Pool):
    """The sum over each window, times a factor."""

    def __init__(self, window: Window, image: Shape, factor: float):
        super().__init__(window, image)
        self.factor = factor

    def forward(self, x: Array) -> Array:
        if device.runs(x):
            return device.average_pool(x, self.factor, self.pooling)
        return self.by_blocks(self.block, x.shape[1], self.window.output(x.shape), x)

    def block(self, out: Array, x: Array) -> None:
        add = array_module(x).add
        array_module(x).multiply(self.rows.reduce(add, self.columns.reduce(add, x, 0.0), 0.0), self.factor, out=out)

    def backward(self, g: Tensor) -> Any:
        return Spread(self.window, self.image, self.factor)(g)


class Spread(AveragePool):
    """Adds g, times the factor, to all elements of its window: the transpose of AveragePool."""

    def forward(self, g: Array) -> Array:
        if device.runs(g):
            return device.average_pool_gradient(g, self.factor, self.pooling)
        return self.by_blocks(self.block, g.shape[1], (self.image[2], self.image[3]), g)

    def block(self, out: Array, g: Array) -> None:
        n, _, columns, c = g.shape
        across = array_module(g).zeros((n, self.image[2], columns, c), g.dtype)
        self.rows.spread(g * self.factor, across)
        out[...] = 0
        self.columns.spread(across, out)

    def backward(self, h: Tensor) -> Any:
        return AveragePool(self.window, self.image, self.factor)(h)


def _window(x: Tensor, kernel: Any, stride: Any, padding: Any) -> Window:
    window = Window.of(kernel, stride, padding)
    if any(p >= k for p, k in zip(window.padding, window.kernel, strict=True)):
        raise ShapeError(
            f"padding {window.padding} for a pooling window of {window.kernel}",
            "padding must be smaller than the window, so that every window holds an element",
            f"padding={min(window.kernel) // 2}",
        )
    window.output(x.shape)
    return window


def max_pool2d(x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """The largest element of each window; the stride is the kernel size unless given.

    A tie passes its gradient once, to the first in scan order.

    >>> F.max_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[3., 2.]]]], dtype=float32)
    """
    x = as_tensor(x)
    return MaxPool(_window(x, kernel_size, stride, padding), x.shape)(x)


def avg_pool2d(
    x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Tensor:
    """The mean of each window; `count_include_pad` says whether the zeros of the border count as elements.

    >>> F.avg_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[2., 1.]]]], dtype=float32)
    """
    x = as_tensor(x)
    x = x if x.dtype.kind == "f" else x.astype(float32)
    window = _window(x, kernel_size, stride, padding)
    if count_include_pad or window.padding == (0, 0):
        return AveragePool(window, x.shape, 1.0 / (window.kernel[0] * window.kernel[1]))(x)
    ones = array_module(x.data).ones((1, 1, *x.shape[2:]), x.dtype)
    return AveragePool(window, x.shape, 1.0)(x) / AveragePool(window, ones.shape, 1.0)(ones)
