"""Faster ways on the host: blocks that stay in the cache from the first step to the last, and fewer passes."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..functional.activations import Tanh
from ..functional.arithmetic import Multiply
from ..functional.convolution import Convolution, Convolve, FilterGradient, InputGradient, columns, filter_matrices
from ..functional.normalization import BatchNorm, WeightNorm, column
from ..functional.pooling import AveragePool, MaxPool, Spread, lowest
from ..threads import add_up
from ..windows import Pair, Window, channels_first, channels_last, empty_image
from .fused import ShiftedReLU
from .pointwise import blocks

COLUMNS_AT_ONCE = 2**19  # elements of im2col and its output, 2 MB in float32
PIXELS_AT_ONCE = 2**18  # elements of images that are rectified
POOLED_AT_ONCE = 2**19  # elements of images that are pooled, in more and smaller steps
ROWS_AT_ONCE = 2**16  # elements of a batch that is normalised


def _image_blocks(op: Convolution, x: HostArray) -> list[slice]:
    (o, c, kh, kw), (rows, across) = op.filters, op.window.output(op.image)
    return blocks(x, COLUMNS_AT_ONCE, rows * across * (kh * kw * c + o))


def _blockwise(op: Convolution, x: HostArray, w: HostArray) -> HostArray:
    """The convolution of x with filters w, by blocks of images."""
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    (matrix,), outputs = filter_matrices(w, 1), channels_last(out)
    for images in _image_blocks(op, x):
        np.matmul(columns(x[images], op.window, 1)[0], matrix, out=outputs[images].reshape(-1, len(w)))
    return out


@override(Convolve.forward, on="numpy")
def blockwise(op: Convolve, x: HostArray, w: HostArray) -> Any:
    return _blockwise(op, x, w) if op.groups == 1 else NotImplemented


@override(InputGradient.forward, on="numpy")
def blockwise_input_gradient(op: InputGradient, g: HostArray, w: HostArray) -> Any:
    """If the output is as large as the input, the gradient is the convolution of g with the filters turned around:
    gathering pixels into rows is cheaper than scattering them, unless g has many more channels."""
    o, c, _, _ = op.filters
    if op.groups != 1:
        return NotImplemented
    if op.window.stride == (1, 1) and g.shape[2:] == op.image[2:] and o <= 4 * c:
        return _blockwise(op, g, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    out = empty_image((len(g), *op.image[1:]), g, w)
    for images in _image_blocks(op, g):
        out[images] = InputGradient.forward(op, g[images], w)
    return out


@override(FilterGradient.forward, on="numpy")
def blockwise_filter_gradient(op: FilterGradient, x: HostArray, g: HostArray) -> Any:
    return sum(FilterGradient.forward(op, x[images], g[images]) for images in _image_blocks(op, x))


class Line:
    """The windows along one axis of images (N, H, W, C), 0 for the rows, 1 for the columns: 2k slices, not k * k.

    Every stride-th row, or column, is a phase. An element of the kernel meets neighbours of one phase at neighbouring
    places, so that operations on phases have long inner loops; those of columns are copied for it.
    """

    def __init__(self, window: Window, axis: int, size: int):
        self.axis, self.stride, self.meetings = 1 + axis, window.stride[axis], []
        self.everywhere = self.along(slice(0, window.places(axis, size)))
        for places, pixels in window.along(axis, size):
            first, phase = divmod(pixels.start, self.stride)
            elements = slice(first, first + places.stop - places.start)  # of the phase
            self.meetings.append((self.along(places), phase, self.along(elements)))

    def along(self, part: slice) -> tuple[slice, ...]:
        return (*[slice(None)] * self.axis, part)

    def outside(self, part: tuple[slice, ...]) -> list[tuple[slice, ...]]:
        return [self.along(slice(0, part[-1].start)), self.along(slice(part[-1].stop, None))]

    def phases(self, x: HostArray) -> list[HostArray]:
        """(N, H, W, C) -> every stride-th row, or a copy of every stride-th column"""
        views = [x[self.along(slice(phase, None, self.stride))] for phase in range(self.stride)]
        return views if self.axis == 1 else [np.ascontiguousarray(view) for view in views]

    def reduce(self, ufunc: np.ufunc, phases: list[HostArray], nothing: float, out: HostArray) -> HostArray:
        """Combine the elements of each window."""
        met = [(places, phases[phase][elements]) for places, phase, elements in self.meetings]
        met.sort(key=lambda pair: pair[0] != self.everywhere)
        if [places for places, _ in met[:2]] == [self.everywhere] * 2:  # start from two that all windows have
            ufunc(met[0][1], met[1][1], out=out)
            met = met[2:]
        else:
            out[...] = nothing
        for places, pixels in met:
            ufunc(out[places], pixels, out=out[places])
        return out

    def meet(self, ufunc: np.ufunc, i: int, phases: list[HostArray], others: HostArray, elsewhere: Any) -> HostArray:
        """ufunc(what element i of the kernel meets, others) at its places; `elsewhere` where it is not on the image."""
        places, phase, elements = self.meetings[i]
        out = np.empty(others.shape, np.asarray(elsewhere).dtype)
        for gap in self.outside(places):
            out[gap] = elsewhere
        ufunc(phases[phase][elements], others[places], out=out[places])
        return out

    def scatter(self, g: HostArray, mask: Callable[[int], HostArray] | None, out: HostArray) -> None:
        """Add g, times the mask of each element, to the elements `out` of its windows."""
        views = [out[self.along(slice(phase, None, self.stride))] for phase in range(self.stride)]
        phases = views if self.axis == 1 else [np.empty(view.shape, out.dtype) for view in views]
        new = set(range(self.stride))  # phases that nothing was added to
        for i, (places, phase, elements) in enumerate(self.meetings):
            part, target = g[places], phases[phase]
            if phase in new:
                new.remove(phase)
                for gap in self.outside(elements):
                    target[gap] = 0
                np.copyto(target[elements], part) if mask is None else np.multiply(part, mask(i), out=target[elements])
            else:
                target[elements] += part if mask is None else part * mask(i)
        for phase, view in enumerate(views):
            if phase in new:
                view[...] = 0
            elif self.axis == 2:
                view[...] = phases[phase]


def _first(worse: list[HostArray], like: HostArray) -> HostArray:
    """How many elements in a row, from the first on, are worse than a later one: the number of the best element."""
    runs = accumulate((flags.view(np.uint8) for flags in worse), np.bitwise_and)
    return reduce(np.add, runs) if worse else np.zeros(like.shape, np.uint8)


def _lines(window: Window, image: tuple[int, ...]) -> tuple[Line, Line]:
    return Line(window, 0, image[2]), Line(window, 1, image[3])


def _by_blocks(function: Callable[..., Any], size: Pair, *arrays: HostArray) -> HostArray:
    """function(out, *arrays) on blocks of images (N, H, W, C), as (N, C, *size)."""
    n, c = arrays[0].shape[:2]
    out = np.empty((n, *size, c), arrays[0].dtype)
    for images in blocks(max(*arrays, out, key=np.size), POOLED_AT_ONCE):
        function(out[images], *(np.ascontiguousarray(channels_last(a)[images]) for a in arrays))
    return channels_first(out)


@override(MaxPool.forward, on="numpy")
def max_pool(op: MaxPool, x: HostArray) -> Any:
    """Where a graph is recorded, the marks remember where each maximum stood: its row, then its column."""
    if max(op.window.kernel) > 127:
        return NotImplemented
    (rows, across), size, low = _lines(op.window, x.shape), op.window.output(x.shape), lowest(x)
    marks: list[tuple[HostArray, HostArray]] = []

    def block(out: HostArray, x: HostArray) -> None:
        pixels = rows.phases(x)
        top = rows.reduce(np.maximum, pixels, low, np.empty((len(x), size[0], *x.shape[2:]), x.dtype))
        tops = across.phases(top)
        across.reduce(np.maximum, tops, low, out)
        if op.recorded:
            row = _first([rows.meet(np.not_equal, i, pixels, top, True) for i in range(len(rows.meetings) - 1)], top)
            # Of several columns with the maximum the one whose row is first wins, then the first one: the scan order.
            numbers, keys = across.phases(row), []
            for j in range(len(across.meetings)):
                others = across.meet(np.not_equal, j, tops, out, True).view(np.uint8) * np.uint8(128)
                keys.append(across.meet(np.add, j, numbers, others, np.uint8(255)))
            least = list(accumulate(keys[::-1], np.minimum))[::-1]  # of each key and those after it
            marks.append((row, _first([a > b for a, b in zip(keys, least[1:], strict=False)], out)))

    out = _by_blocks(block, size, x)
    if op.recorded and not (x.dtype.kind == "f" and np.isnan(out.min(initial=0.0))):  # NaN equals nothing: no marks
        op.cache["marks"] = marks
    return out


@override(MaxPool.backward, on="numpy")
def max_pool_gradient(op: MaxPool, g: HostArray, x: HostArray, out: HostArray) -> Any:
    if "marks" not in op.cache:
        return NotImplemented
    (rows, across), marks = _lines(op.window, x.shape), iter(op.cache["marks"])

    def block(out: HostArray, g: HostArray) -> None:
        row, column = next(marks)
        spread = np.empty(row.shape, g.dtype)
        across.scatter(g, lambda j: column[across.meetings[j][0]] == j, spread)
        rows.scatter(spread, lambda i: row[rows.meetings[i][0]] == i, out)

    return _by_blocks(block, (x.shape[2], x.shape[3]), g)


@override(AveragePool.forward, on="numpy")
def average_pool(op: AveragePool, x: HostArray) -> Any:
    (rows, across), size = _lines(op.window, x.shape), op.window.output(x.shape)

    def block(out: HostArray, x: HostArray) -> None:
        sums = rows.reduce(np.add, rows.phases(x), 0.0, np.empty((len(x), size[0], *x.shape[2:]), x.dtype))
        across.reduce(np.add, across.phases(sums), 0.0, out)
        out *= op.factor

    return _by_blocks(block, size, x)


@override(Spread.forward, on="numpy")
def spread(op: Spread, g: HostArray) -> Any:
    rows, across = _lines(op.window, op.image)

    def block(out: HostArray, g: HostArray) -> None:
        columns = np.empty((*g.shape[:2], *out.shape[2:]), g.dtype)
        across.scatter(g * op.factor, None, columns)
        rows.scatter(columns, None, out)

    return _by_blocks(block, (op.image[2], op.image[3]), g)


def _row_products(x: HostArray, y: HostArray) -> HostArray:
    """The sum over each row of x * y, without an array of products."""
    return np.einsum("ij,ij->i", x.reshape(len(x), -1), y.reshape(len(y), -1))


@override(WeightNorm.forward, on="numpy")
def weight_norm(op: WeightNorm, w: HostArray, scale: HostArray) -> Any:
    return w * column(scale * op.factor / np.sqrt(_row_products(w, w)), w.ndim)


@override(WeightNorm.backward, on="numpy")
def weight_norm_gradient(op: WeightNorm, g: HostArray, w: HostArray, scale: HostArray) -> Any:
    length = np.sqrt(_row_products(w, w))
    along, size = _row_products(g, w) / length, scale * op.factor / length
    g_w = g * column(size, w.ndim)
    g_w -= w * column(along * size / length, w.ndim)
    return g_w, along * op.factor


def _along_a_row(values: Any, x: HostArray) -> HostArray:
    """A number, or (C,), as (1, C, 1, W): NumPy is slow where its inner loop is only as long as the channels."""
    row = np.empty_like(x[:1, :, :1] if x.ndim == 4 else x[:1])
    row[...] = column(values, x.ndim - 1) if isinstance(values, np.ndarray) else values
    return row


def _per_channel(x: HostArray, *values: Any) -> bool:
    """Whether x is (N, C) or (N, C, H, W), and the values are numbers, or one for each channel, of the same dtype."""
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    return x.ndim in (2, 4) and all(v.shape == x.shape[1:2] and v.dtype == x.dtype for v in arrays)


@override(ShiftedReLU.forward, on="numpy")
def shifted_relu(op: ShiftedReLU, x: HostArray, bias: Any, shift: Any) -> Any:
    if not _per_channel(x, bias, shift):
        return NotImplemented
    out = x if op.overwrite else np.empty_like(x)
    added, floor = _along_a_row(bias * op.gain - shift, x), _along_a_row(-shift, x)
    for images in blocks(x, PIXELS_AT_ONCE):
        np.add(x[images], added, out=out[images])
        np.maximum(out[images], floor, out=out[images])
    return out


@override(ShiftedReLU.backward, on="numpy")
def shifted_relu_gradient(op: ShiftedReLU, g: HostArray, shift: Any, out: HostArray) -> Any:
    if not _per_channel(out, shift) or g.dtype != out.dtype:
        return NotImplemented
    passed, sums = np.empty_like(g), []
    floor = _along_a_row(-shift, g) if isinstance(shift, np.ndarray) else -shift  # comparing with a number is faster
    for images in blocks(g, PIXELS_AT_ONCE):
        np.multiply(g[images], out[images] != floor, out=passed[images])  # NaN passes its gradient, too
        sums.append(row_sum(_rows(passed[images])))
    return passed, np.sum(sums, axis=0) * op.gain, lambda: -row_sum(_rows(g))


@override(Multiply.backward, on="numpy")
def multiply_gradient(op: Multiply, g: HostArray, x: Any, y: Any) -> Any:
    return (lambda: g * y, lambda: g * x) if g.ndim else NotImplemented  # without ops, whose checks take longer


@override(Tanh.backward, on="numpy")
def tanh_gradient(op: Tanh, g: HostArray, out: HostArray) -> Any:
    return g * (1.0 - out * out) if g.ndim and g.dtype == out.dtype else NotImplemented  # without a graph of its own


def _rows(x: HostArray) -> HostArray:
    """(N, C, ...) -> (rows, C): a view if the memory is laid out channels-last already"""
    return channels_last(x).reshape(-1, x.shape[1])


def row_sum(x: HostArray) -> HostArray:
    """The sum of all rows, as a product with ones, which rounds less than adding row by row."""
    return np.ones(len(x), x.dtype) @ x


def _block_sum(parts: Iterable[HostArray]) -> HostArray:
    return row_sum(np.stack([row_sum(part) for part in parts]))


@override(BatchNorm.forward, on="numpy")
def batch_norm(op: BatchNorm, x: HostArray, weight: HostArray, bias: HostArray) -> Any:
    rows = _rows(x)
    parts = blocks(rows, ROWS_AT_ONCE)
    center = add_up(_block_sum(rows[part] for part in parts)) / op.count
    var = add_up(_block_sum((rows[part] - center) ** 2 for part in parts)) / op.count
    op.move_running(center, var)
    inverse = 1.0 / np.sqrt(var + op.eps)
    op.cache["statistics"] = center, inverse
    scale, out = inverse * weight, np.empty_like(rows)
    for part in parts:
        np.subtract(rows[part], center, out=out[part])
        out[part] *= scale
        out[part] += bias
    return channels_first(out.reshape(channels_last(x).shape))


@override(BatchNorm.backward, on="numpy")
def batch_norm_gradient(op: BatchNorm, g: HostArray, x: HostArray, weight: HostArray) -> Any:
    if "statistics" not in op.cache:
        return NotImplemented
    shape, g, x, (center, inverse) = channels_last(x).shape, _rows(g), _rows(x), op.cache["statistics"]
    parts = blocks(x, ROWS_AT_ONCE)
    total = _block_sum(g[part] for part in parts)
    along = _block_sum(g[part] * (x[part] - center) for part in parts) * inverse
    offset, slope = add_up(np.stack([total, along])) / op.count
    slope, g_x = inverse * slope, np.empty_like(g)
    for part in parts:
        np.subtract(g[part], offset, out=g_x[part])
        g_x[part] -= (x[part] - center) * slope
        g_x[part] *= inverse * weight
    return channels_first(g_x.reshape(shape)), along, total
