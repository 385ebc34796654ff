"""Faster ways on the host: blocks that stay in the cache from the first step to the last, and fewer
passes.

Each docstring says what a kernel computes, and what it gains: the processor's milliseconds of the
rule > of the kernel, on one thread. What a whole step gains is in benchmarks/OVERRIDES.md."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..engine.arrays import HostArray, as_int_tuple, float32, float64
from ..engine.batch import add_up
from ..engine.overrides import override
from ..engine.sums import FEW, is_finite, total
from ..engine.threads import for_each, map_each
from ..functional.activations import ReLU
from ..functional.convolution import (
    Convolution,
    Convolve,
    FilterGradient,
    InputGradient,
    columns,
    filter_matrix,
)
from ..functional.normalization import BatchNorm
from ..functional.normprop import NormalizedReLU
from ..functional.pooling import AveragePool, MaxPool, lowest
from ..functional.windows import Pair, Shape, Window, channels_first, channels_last, empty_image
from .evenness import membership
from .pointwise import blocks, pairwise_sum
from .products import filled, ones, times_matrix, transposed_times

COLUMNS_AT_ONCE = 2**19  # elements of im2col and its output, 2 MB in float32
STRIP_FILTERS = 32  # at most: more multiply too many zeros
STRIP_CHANNELS = 8  # at most, of images: with more, copies take little of the time
PIXELS_AT_ONCE = 2**18  # elements of images that are rectified
POOLED_AT_ONCE = 2**19  # elements of images whose maxima are taken
AVERAGED_AT_ONCE = 2**18  # elements of images that are averaged
BAND = 4  # rows of a matrix that averages: more multiply more zeros
WORTH_GATING = 2**12  # elements of a gradient that is multiplied by a mask
WORTH_ROWS = 2**15  # elements that are rectified along long rows
ROWS_AT_ONCE = 2**17  # elements of a batch that is normalised
LONG_ROW = 2**13  # elements of a row, about
WORTH_A_PRODUCT = 2**12  # elements of a matrix whose rows are added by a product with ones
SUMMED_AT_ONCE = 2**18  # elements of such a matrix
GROUP = 128  # rows that are added by one product
FEWEST_COLUMNS = 8  # that make it faster
UNKNOWN = 255  # more than any number of an element of a window


def _image_blocks(op: Convolution, x: HostArray) -> list[slice]:
    o, c, kh, kw = op.filters
    rows, across = op.window.output(op.image)
    return blocks(x, COLUMNS_AT_ONCE, rows * across * (kh * kw * c + o))


def _strip(window: Window, image: Shape, filters: int) -> Window | None:
    """The window on the pixels of two neighbouring outputs, if there are few channels: one copy of
    kw + 1 columns of pixels instead of two of kw, and a wider product. For 19 filters of 5x5 on 50
    images of 3x32x32, 7.2 > 6.2 ms with the gradient."""
    kh, kw = window.kernel
    sh, sw = window.stride
    _, across = window.output(image)
    are_few = filters <= STRIP_FILTERS and image[1] <= STRIP_CHANNELS
    overlap = window.dilation == (1, 1) and sw < kw
    if not are_few or not overlap or across % 2:
        return None
    return window._replace(kernel=(kh, kw + sw), stride=(sh, 2 * sw))


def _strip_matrix(w: HostArray, step: int) -> HostArray:
    """The filters (O, C, kh, kw) of two outputs that are `step` pixels apart, with zeros for the
    pixels that only the other one has: (kh * (kw + step) * C, 2 * O)"""
    o, c, kh, kw = w.shape
    both = np.zeros((kh, kw + step, c, 2, o), w.dtype)
    filters = w.transpose(2, 3, 1, 0)
    both[:, :kw, :, 0] = filters
    both[:, step:, :, 1] = filters
    return both.reshape(kh * (kw + step) * c, 2 * o)


def _from_strip_matrix(matrix: HostArray, filters: Shape, step: int) -> HostArray:
    """The transpose of `_strip_matrix`: (kh * (kw + step) * C, 2 * O) -> (O, C, kh, kw)"""
    o, c, kh, kw = filters
    both = matrix.reshape(kh, kw + step, c, 2, o)
    return (both[:, :kw, :, 0] + both[:, step:, :, 1]).transpose(3, 2, 0, 1)


def _blockwise(op: Convolution, x: HostArray, w: HostArray) -> HostArray:
    """The convolution of x with filters w, by blocks of images."""
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    window = _strip(op.window, x.shape, len(w))
    if window is not None and _all_finite(x):
        matrix = _strip_matrix(w, op.window.stride[1])
    else:
        window = op.window
        matrix = filter_matrix(w)

    def convolve(images: slice) -> None:
        rows = columns(x[images], window)
        outputs = channels_last(out[images]).reshape(len(rows), matrix.shape[1])  # a view
        times_matrix(rows, matrix, out=outputs)

    for_each(convolve, _image_blocks(op, x))
    return out


@override(Convolve.forward, on="numpy")
def blockwise(op: Convolve, x: HostArray, w: HostArray) -> Any:
    """columns(x) @ filter_matrix(w), by blocks of images. 1.05 > 0.72 ms for 16 filters of 3x3 on
    16 images of 16x32x32."""
    return _blockwise(op, x, w)


@override(InputGradient.forward, on="numpy")
def blockwise_input_gradient(op: InputGradient, g: HostArray, w: HostArray) -> Any:
    """If the output is as large as the input, the gradient is the convolution of g with the filters
    turned around: gathering pixels into rows is cheaper than scattering them, unless g has many
    more channels. Otherwise the rule, by blocks. 2.6 > 0.8 ms for 16 filters of 3x3 on 16 images of
    16x32x32."""
    o, c, _, _ = op.filters
    same_size = op.window.stride == (1, 1) and g.shape[2:] == op.image[2:]
    # an infinite weight would meet the padding of g, and infinity times 0 is NaN
    if same_size and o <= 4 * c and np.isfinite(w).all():
        return _blockwise(op, g, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    out = empty_image((len(g), *op.image[1:]), g, w)

    def scatter(images: slice) -> None:
        out[images] = InputGradient.forward(op, g[images], w)

    for_each(scatter, _image_blocks(op, g))
    return out


@override(FilterGradient.forward, on="numpy")
def blockwise_filter_gradient(op: FilterGradient, x: HostArray, g: HostArray) -> Any:
    """columns(x).T @ g, by blocks of images, in strips if there are few channels. 1.5 > 0.8 ms for
    16 filters of 3x3 on 16 images of 16x32x32."""
    o, c, kh, kw = op.filters
    strip = _strip(op.window, op.image, o)
    window = strip or op.window
    together = 1 if strip is None else 2  # outputs in a row of the product

    def of_block(images: slice) -> HostArray:
        rows = columns(x[images], window)
        outputs = channels_last(g[images]).reshape(len(rows), together * o)
        return transposed_times(rows, outputs)

    matrix = pairwise_sum(map_each(of_block, _image_blocks(op, x)))
    if strip is not None:
        g_w = _from_strip_matrix(matrix, op.filters, op.window.stride[1])
    else:
        g_w = matrix.reshape(kh, kw, c, o).transpose(3, 2, 0, 1)
    return np.ascontiguousarray(g_w)  # as weights are: passes over both are then fast


# an index of the places where an element of a kernel is on the image, and the pixels there
KernelOffset = tuple[tuple[slice, ...], HostArray]


def _kernel_offsets(window: Window, axis: int, x: HostArray) -> list[KernelOffset]:
    """Those of each element of the kernel along an axis of images (N, H, W, C), 0 for the rows, 1
    for the columns.

    Every stride-th row, or column, is a phase. An element of the kernel meets neighbours of one
    phase at neighbouring places, so that operations on phases have long inner loops; those of
    columns are copied for it."""
    stride = window.stride[axis]
    before = (slice(None),) * (1 + axis)
    phases = [x[(*before, slice(phase, None, stride))] for phase in range(stride)]
    if axis == 1:
        phases = [np.ascontiguousarray(pixels) for pixels in phases]
    offsets = []
    for places, pixels in window.along(axis, x.shape[1 + axis]):
        first, phase = divmod(pixels.start, stride)
        count = places.stop - places.start
        neighbors = phases[phase][(*before, slice(first, first + count))]
        offsets.append(((*before, places), neighbors))
    return offsets


def _maxima(offsets: list[KernelOffset], out: HostArray) -> HostArray:
    """The largest of what each window meets."""
    most_places_first = sorted(offsets, key=_minus_count)
    if len(offsets) > 1 and most_places_first[1][1].shape == out.shape:
        # start from two that all windows have
        (_, first), (_, second), *rest = most_places_first
        np.maximum(first, second, out=out)
    else:
        rest = most_places_first
        out[...] = lowest(out)
    for places, pixels in rest:
        np.maximum(out[places], pixels, out=out[places])
    return out


def _minus_count(offset: KernelOffset) -> int:
    places = offset[0][-1]
    return int(places.start - places.stop)


@override(MaxPool.forward, on="numpy")
def max_pool(op: MaxPool, x: HostArray) -> Any:
    """The maximum of each window: of rows first, then of columns. Where a graph is recorded, the
    number of each window's first maximum is saved. 2.6 > 0.7 ms for windows of 3x3 on 16 images of
    40x32x32."""
    kh, kw = op.window.kernel
    if kh * kw > UNKNOWN:
        return NotImplemented
    n, c, _, w = x.shape
    rows, across = op.window.output(x.shape)
    out = np.empty((n, rows, across, c), x.dtype)
    numbers = np.empty(out.shape, np.uint8) if op.recorded else None

    def pool(images: slice) -> bool:
        """Whether no maximum is NaN, which equals nothing."""
        pixels = np.ascontiguousarray(channels_last(x)[images])
        in_rows = _kernel_offsets(op.window, 0, pixels)
        tops = np.empty((len(pixels), rows, w, c), x.dtype)
        _maxima(in_rows, tops)
        in_columns = _kernel_offsets(op.window, 1, tops)
        best = _maxima(in_columns, out[images])
        if numbers is not None:
            first_rows = _first_rows(in_rows, tops)
            _first_maxima(op.window, first_rows, in_columns, best, numbers[images])
        return x.dtype.kind != "f" or not np.isnan(best.min(initial=0.0))

    are_numbers = map_each(pool, blocks(x, POOLED_AT_ONCE))
    if numbers is not None and all(are_numbers):
        op.cache["numbers"] = numbers
    return channels_first(out)


def _first_rows(in_rows: list[KernelOffset], tops: HostArray) -> HostArray:
    """For each column of each window, the row of its first maximum: the distance from the first row
    to it. From the last row up, the distance is 0 at a maximum, and otherwise 1 more than below.

        window    maximal?    distance, row by row
        1 5 2     . x .       1 0 1    the result
        4 5 3     x x x       0 0 0
        4 0 3     x . x       0 0 0    the last row counts as 0
    """
    distance = np.zeros(tops.shape, np.uint8)
    for places, pixels in reversed(in_rows[:-1]):
        distance += 1
        is_below = pixels != tops[places]
        distance[places] *= is_below.view(np.uint8)
    return distance


def _first_maxima(
    window: Window,
    first_rows: HostArray,
    in_columns: list[KernelOffset],
    best: HostArray,
    numbers: HostArray,
) -> None:
    """For each window, the number of its first maximum in scan order, row * kw + column. It is the
    least of the numbers of the columns that have the window's maximum.

    In the example above the columns have the maxima 4 5 3 in the rows 1 0 1. Only the second has 5,
    so the number is 0 * 3 + 1 = 1."""
    kw = window.kernel[1]
    numbers[...] = UNKNOWN
    row_numbers = _kernel_offsets(window, 1, first_rows * np.uint8(kw))
    for j, (places, tops) in enumerate(in_columns):
        _, row_number = row_numbers[j]
        is_below = (tops != best[places]).view(np.uint8)
        # UNKNOWN has all bits set, so that it stays what it is
        candidates = is_below * np.uint8(UNKNOWN) | (row_number + np.uint8(j))
        np.minimum(numbers[places], candidates, out=numbers[places])


@override(MaxPool.backward, on="numpy")
def max_pool_gradient(op: MaxPool, g: HostArray, x: HostArray, out: HostArray) -> Any:
    """g added where each window has its first maximum: np.add.at(zeros, winners, g). 6.2 > 0.4 ms
    for windows of 3x3 on 16 images of 40x32x32."""
    if "numbers" not in op.cache:
        return NotImplemented
    n, c, h, w = x.shape
    parts = blocks(x, POOLED_AT_ONCE)
    largest = max(part.stop - part.start for part in parts)
    corners = _corners(op.window, (largest, c, h, w), g.shape[2:])
    elements = _elements(op.window, (w * c, c))
    g_x = np.empty((n, h, w, c), g.dtype)

    def scatter(images: slice) -> None:
        winners = elements.take(op.cache["numbers"][images])
        winners += corners[: len(winners)]
        values = np.ascontiguousarray(channels_last(g)[images])
        g_x[images] = 0
        np.add.at(g_x[images].reshape(-1), winners.reshape(-1), values.reshape(-1))

    for_each(scatter, parts)
    return channels_first(g_x)


def _corners(window: Window, image: Shape, places: Shape) -> HostArray:
    """Where the first element of each window is in images (N, H, W, C).reshape(-1): (N, rows,
    columns, C). On the padding it may be negative, which np.ravel_multi_index refuses."""
    n, c, h, w = image
    first = np.arange(n) * h  # rows of pixels before each image
    down = np.arange(places[0]) * window.stride[0] - window.padding[0]
    across = np.arange(places[1]) * window.stride[1] - window.padding[1]
    row = first[:, None] + down  # (N, rows)
    pixel = row[:, :, None] * w + across  # (N, rows, columns)
    return pixel[..., None] * c + np.arange(c)


def _elements(window: Window, strides: Pair) -> HostArray:
    """Where each element of a window is, from its first one on: (kh * kw,)"""
    kh, kw = window.kernel
    to_row, to_column = strides
    return (np.arange(kh)[:, None] * to_row + np.arange(kw) * to_column).reshape(-1)


def _adds_few(window: Window, x: HostArray) -> bool:
    """Whether windows may be added row by row, and the rows one after the other: the rule is exact
    for larger ones, and for float16."""
    return x.dtype.itemsize >= 4 and max(window.kernel) <= FEW


class Band(NamedTuple):
    """A few neighbouring rows of a matrix that is zero elsewhere."""

    rows: slice
    columns: slice
    matrix: HostArray


class PoolMatrices(NamedTuple):
    """The averages over all windows of an image are down @ x @ across.T for each channel; `across`
    is (columns, W), 1 where a window has a pixel and 0 elsewhere."""

    down: list[Band]  # of (rows, H): the factor where a window has a pixel, 0 elsewhere
    down_transposed: list[Band]
    across: HostArray
    one_window: bool  # on the whole image


@lru_cache(256)
def _pool_matrices(window: Window, image: Shape, factor: float, dtype: Any) -> PoolMatrices:
    _, _, h, w = image
    rows, columns = window.output(image)
    down = membership(window, 0, h, rows).T
    across = membership(window, 1, w, columns).T
    one_window = (rows, columns) == (1, 1) and bool(down.all() and across.all())
    down = down.astype(dtype) * factor
    return PoolMatrices(_bands(down), _bands(down.T), across.astype(dtype), one_window)


def _bands(matrix: HostArray) -> list[Band]:
    """A matrix in bands of few rows, each with the columns from its first one that is not zero to
    its last one."""
    bands = []
    for first in range(0, len(matrix), BAND):
        rows = slice(first, min(first + BAND, len(matrix)))
        used = np.flatnonzero(matrix[rows].any(axis=0))
        columns = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
        bands.append(Band(rows, columns, np.ascontiguousarray(matrix[rows, columns])))
    return bands


def _multiply(bands: list[Band], x: HostArray, out: HostArray) -> None:
    """matrix @ x for each of some x (N, columns, K) -> out (N, rows, K)"""
    for band in bands:
        np.matmul(band.matrix, x[:, band.columns], out=out[:, band.rows])


@override(AveragePool.forward, on="numpy")
def average_pool(op: AveragePool, x: HostArray) -> Any:
    """down @ x @ across.T for each channel: two products, the first one in bands. One window on the
    whole image is one product with a vector. With the gradient, 0.91 > 0.18 ms for 16 images of
    16x16 with 48 channels; 0.25 > 0.03 ms for one window on each of 25 images of 8x8."""
    if not _adds_few(op.window, x):
        return NotImplemented
    n, c, h, w = x.shape
    down, _, across, one_window = _pool_matrices(op.window, op.image, op.factor, x.dtype)
    pixels = np.ascontiguousarray(channels_last(x))
    if one_window and h * w <= FEW:
        means = np.matmul(filled(h * w, op.factor, x.dtype), pixels.reshape(n, h * w, c))
        return means.reshape(n, c, 1, 1)
    rows, columns = op.window.output(op.image)
    out = np.empty((n, rows, columns, c), x.dtype)

    def pool(images: slice) -> None:
        some = pixels[images].reshape(-1, h, w * c)
        of_rows = np.empty((len(some), rows, w * c), x.dtype)
        _multiply(down, some, of_rows)
        np.matmul(across, of_rows.reshape(-1, rows, w, c), out=out[images])

    with np.errstate(invalid="ignore", over="ignore"):
        for_each(pool, blocks(x, AVERAGED_AT_ONCE))
    # infinity times 0 is NaN, beyond the windows that have it: the rule knows better
    return channels_first(out) if is_finite(out) else NotImplemented


@override(AveragePool.backward, on="numpy")
def average_pool_gradient(op: AveragePool, g: HostArray) -> Any:
    """down.T @ g @ across for each channel: two products. Every pixel of one window on the whole
    image gets the same. 0.37 > 0.08 ms for windows of 3x3 on 50 images of 19x16x16."""
    if not _adds_few(op.window, g):
        return NotImplemented
    n, c, rows, _ = g.shape
    _, _, h, w = op.image
    _, down_transposed, across, one_window = _pool_matrices(op.window, op.image, op.factor, g.dtype)
    values = np.ascontiguousarray(channels_last(g))
    if one_window:
        values = values * g.dtype.type(op.factor)
        return channels_first(values.reshape(n, 1, c).repeat(h * w, axis=1).reshape(n, h, w, c))
    if not is_finite(values):  # infinity times 0 is NaN
        return NotImplemented
    out = np.empty((n, h, w, c), g.dtype)

    def spread(images: slice) -> None:
        wide = np.matmul(across.T, values[images])  # (N, rows, W, C)
        some = out[images].reshape(-1, h, w * c)
        _multiply(down_transposed, wide.reshape(-1, rows, w * c), some)

    for_each(spread, blocks(out, AVERAGED_AT_ONCE))
    return channels_first(out)


def _fit(x: HostArray, *values: Any) -> bool:
    """Whether x is (N, C) or (N, C, H, W), with elements, and the values are numbers, or one for
    each channel, of the same dtype."""
    if x.ndim not in (2, 4) or not x.size:
        return False
    for value in values:
        if not isinstance(value, np.ndarray):
            continue
        if value.shape != x.shape[1:2] or value.dtype != x.dtype:
            return False
    return True


@np.errstate(over="ignore", invalid="ignore")
def _all_finite(x: HostArray) -> bool:
    """Whether all elements are finite, and their squares: then no product with 0 is NaN."""
    values = x.ravel(order="K")  # in the order of memory: no copy
    return math.isfinite(values.dot(values))


@np.errstate(invalid="ignore")
def _gate(g: HostArray, is_open: HostArray, out: HostArray) -> None:
    """g where the gate is open, 0 elsewhere. A product is much faster than np.where, but infinity
    times 0 is NaN."""
    np.multiply(g, is_open, out=out)
    if not _all_finite(out):
        out[...] = np.where(is_open, g, 0.0)


@override(ReLU.backward, on="numpy")
def relu_gradient(op: ReLU, g: HostArray, out: HostArray) -> HostArray:
    """np.where(out != 0, g, 0), for many elements mostly as a product. 3.1 > 0.3 ms for 16 images
    of 48x32x32."""
    if g.size < WORTH_GATING:
        return np.where(out != 0, g, 0.0)
    g_x = np.empty_like(g)

    def gate(images: slice) -> None:
        _gate(g[images], out[images] != 0, g_x[images])

    for_each(gate, blocks(g, PIXELS_AT_ONCE))
    return g_x


@override(NormalizedReLU.forward, on="numpy")
def normalized_relu(op: NormalizedReLU, u: HostArray, beta: Any, c1: Any, c2: Any) -> Any:
    """max(u / c1 + (beta - c2) / c1, -c2 / c1), in one pass over memory: 0.9 > 0.2 ms for 50 images
    of 19x32x32. A few elements are left to the rule, which makes no rows: 9 us instead of 18 for 20
    samples of 16 units."""
    if u.size < WORTH_ROWS:
        return NotImplemented
    if not _fit(u, beta, c1, c2) or not _is_positive(c1):  # a negative one turns max into min
        return NotImplemented
    c = u.shape[1]
    rows = _long_rows(u)
    out = rows if op.overwrite else np.empty_like(rows)
    scale = _number_or_row(1.0 / c1, rows, c)
    added_row = _tiled((beta - c2) / c1, rows, c)
    off_row = _tiled(op.when_off(u, c1, c2), rows, c)

    def rectify(block: slice) -> None:
        part = out[block]
        np.multiply(rows[block], scale, out=part)
        part += added_row
        np.maximum(part, off_row, out=part)

    for_each(rectify, blocks(rows, PIXELS_AT_ONCE))
    return channels_first(out.reshape(channels_last(u).shape))


def _is_positive(values: Any) -> bool:
    """Whether a number is, or all elements of an array are."""
    positive = values > 0
    return bool(positive.all()) if isinstance(positive, np.ndarray) else bool(positive)


@override(NormalizedReLU.backward, on="numpy")
def normalized_relu_gradient(
    op: NormalizedReLU, g: HostArray, c1: Any, c2: Any, out: HostArray
) -> Any:
    """where(out == off, 0, g) / c1 and its sum over all but the channels, by blocks. The sums also
    tell whether a product with 0 has met infinity. 5.2 > 0.45 ms for 50 images of 19x32x32."""
    if not _fit(out, c1, c2) or g.dtype != out.dtype or g.dtype.itemsize < 4:
        return NotImplemented
    _, _, c1_node, c2_node = op.parents or (None,) * 4
    constants_learn = c1_node is not None or c2_node is not None
    c = g.shape[1]
    shape = channels_last(g).shape
    g, out = _long_rows(g), _long_rows(out)
    g_u = np.empty_like(g)
    scale = _number_or_row(1.0 / c1, g, c)
    off = _number_or_row(op.when_off(out, c1, c2), g, c)  # comparing with a number is faster

    def differentiate(block: slice) -> HostArray:
        """The sums for beta, and for c1 and c2 if they learn."""
        part = g_u[block]
        sums = []
        if constants_learn:
            np.multiply(g[block], out[block], out=part)
            sums = [_wide_sum(_group_sums(part), c), _wide_sum(_group_sums(g[block]), c)]
        is_on = out[block] != off  # NaN passes its gradient, too
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(g[block], is_on, out=part)
            part *= scale
            of_beta = _wide_sum(_group_sums(part), c)
        if not np.isfinite(of_beta).all():
            part[...] = np.where(is_on, g[block], 0.0)
            part *= scale
            of_beta = _wide_sum(_group_sums(part), c)
        return np.array([of_beta, *sums])

    sums = pairwise_sum(map_each(differentiate, blocks(g, PIXELS_AT_ONCE)))
    of_beta, *of_constants = sums.astype(g.dtype)
    g_u = channels_first(g_u.reshape(shape))
    if not constants_learn:
        return g_u, of_beta, None, None
    of_c1, of_c2 = of_constants
    return g_u, of_beta, -of_c1 / c1, -of_c2 / c1


def _number_or_row(values: Any, rows: HostArray, channels: int) -> Any:
    """A number as it is; one value for each channel as a long row."""
    return _tiled(values, rows, channels) if getattr(values, "ndim", 0) else values


def _long_rows(x: HostArray) -> HostArray:
    """(N, C, ...) -> (rows, pixels * C), some pixels of an image in each row: a view if the memory
    is laid out channels-last already. NumPy is slow where its inner loop is only as long as the
    channels."""
    c = x.shape[1]
    pixels = math.prod(x.shape[2:])
    while pixels * c > LONG_ROW and pixels % 2 == 0:
        pixels //= 2
    return channels_last(x).reshape(-1, pixels * c)


def _group_sums(x: HostArray) -> HostArray:
    """The sums of groups of rows, each by a product with ones, which is fast: (groups, C). A few
    numbers are left to `_wide_sum`, which adds them in float64."""
    if x.size < WORTH_A_PRODUCT:
        return x
    rows, columns = x.shape
    if rows <= GROUP:
        return np.matmul(ones(rows, x.dtype), x)[None]
    count, rest = divmod(rows, GROUP)
    end = count * GROUP
    sums = np.empty((count + 1, columns), x.dtype)
    np.matmul(ones(GROUP, x.dtype), x[:end].reshape(count, GROUP, columns), out=sums[:count])
    np.matmul(ones(rest, x.dtype), x[end:], out=sums[count])
    return sums


def _wide_sum(sums: HostArray, channels: int) -> HostArray:
    """The sums (groups, pixels * C) of long rows, added up to (C,) in float64."""
    wide = sums.astype(float64).reshape(-1, channels)
    return np.matmul(ones(len(wide), float64), wide)


@override(total, on="numpy")
def total_of_rows(
    x: HostArray, axes: Any = None, keepdims: bool = False, dtype: Any = None, divisor: Any = None
) -> Any:
    """x.sum(axes) in float64, where the axes that stay come last in memory, as for the gradient of
    a bias: a step of width 0.25 with biases and 16 images takes 0.94 of its time."""
    if x.dtype != float32 or x.size < WORTH_A_PRODUCT or axes is None:
        return NotImplemented
    if dtype is not None and dtype != x.dtype:  # groups of rows are added in float32
        return NotImplemented
    summed = sorted(axis % x.ndim for axis in as_int_tuple(axes))
    kept = [axis for axis in range(x.ndim) if axis not in summed]
    rows = x.transpose(*summed, *kept)
    kept_shape = rows.shape[len(summed) :]
    columns = math.prod(kept_shape)
    if columns < FEWEST_COLUMNS or not rows.flags.c_contiguous:
        return NotImplemented
    matrix = rows.reshape(-1, columns)
    groups = map_each(lambda part: _group_sums(matrix[part]), blocks(matrix, SUMMED_AT_ONCE))
    sums = _wide_sum(np.concatenate(groups), columns)
    if divisor is not None:
        sums /= divisor
    shape = kept_shape
    if keepdims:
        shape = tuple(1 if axis in summed else n for axis, n in enumerate(x.shape))
    return sums.reshape(shape).astype(x.dtype)


@override(BatchNorm.forward, on="numpy")
def batch_norm(op: BatchNorm, x: HostArray, weight: HostArray, bias: HostArray) -> Any:
    """(x - mean) * (weight / sqrt(var + eps)) + bias, by blocks of long rows: forward and gradient
    of 50 images of 32x32 with 19 channels take half of the time, 6.6 > 3.2 ms. The variance is the
    mean of squares about the mean."""
    if x.dtype.itemsize < 4 or not x.dtype == weight.dtype == bias.dtype:
        return NotImplemented
    c = x.shape[1]
    rows = _long_rows(x)
    parts = blocks(rows, ROWS_AT_ONCE)

    def sums_of(part: slice) -> HostArray:
        return _group_sums(rows[part])

    def squares_of(part: slice) -> HostArray:
        deviation = rows[part] - center_row
        deviation *= deviation
        return _group_sums(deviation)

    mean = add_up(_block_sum(sums_of, parts, c)) / op.count
    center = mean.astype(x.dtype)
    center_row = _tiled(center, rows, c)
    squares = add_up(_block_sum(squares_of, parts, c)) / op.count
    var = np.maximum(squares - (mean - center) ** 2, 0.0)
    op.move_running(mean, var)
    inverse = (1.0 / np.sqrt(var + op.eps)).astype(x.dtype)
    op.cache["statistics"] = center, mean - center, inverse
    scale_row = _tiled(inverse * weight, rows, c)
    bias_row = _tiled(bias, rows, c)
    out = np.empty_like(rows)

    def normalize(part: slice) -> None:
        np.subtract(rows[part], center_row, out=out[part])
        out[part] *= scale_row
        out[part] += bias_row

    for_each(normalize, parts)
    return channels_first(out.reshape(channels_last(x).shape))


def _block_sum(
    sums_of: Callable[[slice], HostArray], parts: list[slice], channels: int
) -> HostArray:
    """The sums (groups, pixels * C) of all parts, added up to (C,) in float64."""
    return _wide_sum(np.concatenate(map_each(sums_of, parts)), channels)


def _tiled(values: Any, rows: HostArray, channels: int) -> HostArray:
    """A number, or one value for each channel, as a long row: (C,) -> (pixels * C,)"""
    row = np.empty((rows.shape[1] // channels, channels), rows.dtype)
    row[...] = values
    return row.reshape(-1)


@override(BatchNorm.backward, on="numpy")
def batch_norm_gradient(op: BatchNorm, g: HostArray, x: HostArray, weight: HostArray) -> Any:
    """scale * (g - mean(g) - normal * mean(g * normal)), with normal = (x - mean) / sqrt(var + eps)
    and scale = weight / sqrt(var + eps); and the sums of g * normal and of g. 2.3 > 0.9 ms for 16
    images of 48x32x32."""
    if "statistics" not in op.cache:
        return NotImplemented
    center, rest, inverse = op.cache["statistics"]
    c = x.shape[1]
    shape = channels_last(x).shape
    g, x = _long_rows(g), _long_rows(x)
    parts = blocks(x, ROWS_AT_ONCE)
    center_row = _tiled(center, x, c)

    def sums_of(part: slice) -> HostArray:
        """Of g, and of g * (x - center)."""
        product = x[part] - center_row
        product *= g[part]
        return np.stack([_group_sums(g[part]), _group_sums(product)])

    sums = np.concatenate(map_each(sums_of, parts), axis=1)
    total_g = _wide_sum(sums[0], c)
    about_center = _wide_sum(sums[1], c)
    along = (about_center - rest * total_g) * inverse
    offset, mean_along = (add_up(np.stack([total_g, along])) / op.count).astype(g.dtype)
    scale = inverse * weight
    scale_row = _tiled(scale, x, c)
    slope_row = _tiled(-scale * inverse * mean_along, x, c)
    shift_row = _tiled(-scale * offset, x, c)
    g_x = np.empty_like(g)

    def differentiate(part: slice) -> None:
        of_x = g_x[part]
        np.subtract(x[part], center_row, out=of_x)
        of_x *= slope_row
        of_x += g[part] * scale_row
        of_x += shift_row

    for_each(differentiate, parts)
    return channels_first(g_x.reshape(shape)), along.astype(g.dtype), total_g.astype(g.dtype)
