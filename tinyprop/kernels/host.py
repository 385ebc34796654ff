"""Faster ways on the host: blocks that stay in the cache from the first step to the last, and fewer
passes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..engine.batch import add_up
from ..functional.activations import ReLU
from ..functional.convolution import (
    Convolution,
    Convolve,
    FilterGradient,
    InputGradient,
    columns,
    filter_matrices,
)
from ..functional.normalization import BatchNorm, WeightNorm, column
from ..functional.normprop import NormalizedReLU
from ..functional.pooling import AveragePool, MaxPool, Spread, lowest
from ..functional.windows import Window, channels_first, channels_last, empty_image
from .pointwise import blocks

COLUMNS_AT_ONCE = 2**19  # elements of im2col and its output, 2 MB in float32
PIXELS_AT_ONCE = 2**18  # elements of images that are rectified
POOLED_AT_ONCE = 2**19  # elements of images that are pooled
ROWS_AT_ONCE = 2**16  # elements of a batch that is normalised
UNKNOWN = 255  # more than any number of an element of a window


def _image_blocks(op: Convolution, x: HostArray) -> list[slice]:
    (o, c, kh, kw), (rows, across) = op.filters, op.window.output(op.image)
    return blocks(x, COLUMNS_AT_ONCE, rows * across * (kh * kw * c + o))


def _blockwise(op: Convolution, x: HostArray, w: HostArray) -> HostArray:
    """The convolution of x with filters w, by blocks of images."""
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    (matrix,), outputs = filter_matrices(w, 1), channels_last(out)
    for images in _image_blocks(op, x):
        np.matmul(
            columns(x[images], op.window, 1)[0], matrix, out=outputs[images].reshape(-1, len(w))
        )
    return out


@override(Convolve.forward, on="numpy")
def blockwise(op: Convolve, x: HostArray, w: HostArray) -> Any:
    return _blockwise(op, x, w) if op.groups == 1 else NotImplemented


@override(InputGradient.forward, on="numpy")
def blockwise_input_gradient(op: InputGradient, g: HostArray, w: HostArray) -> Any:
    """If the output is as large as the input, the gradient is the convolution of g with the filters
    turned around: gathering pixels into rows is cheaper than scattering them, unless g has many
    more channels."""
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


# the places where an element of a kernel is on the image, what it meets
Meeting = tuple[tuple[slice, ...], HostArray]


def _meetings(window: Window, axis: int, x: HostArray) -> list[Meeting]:
    """Those of each element of the kernel along an axis of images (N, H, W, C), 0 for the rows, 1
    for the columns.

    Every stride-th row, or column, is a phase. An element of the kernel meets neighbours of one
    phase at neighbouring places, so that operations on phases have long inner loops; those of
    columns are copied for it."""
    stride, before = window.stride[axis], (slice(None),) * (1 + axis)
    phases = [x[(*before, slice(phase, None, stride))] for phase in range(stride)]
    phases = [np.ascontiguousarray(pixels) for pixels in phases] if axis else phases
    found = []
    for places, pixels in window.along(axis, x.shape[1 + axis]):
        first, phase = divmod(pixels.start, stride)
        neighbors = slice(first, first + places.stop - places.start)
        found.append(((*before, places), phases[phase][(*before, neighbors)]))
    return found


def _reduce(ufunc: np.ufunc, meetings: list[Meeting], nothing: float, out: HostArray) -> HostArray:
    """Combine what each window meets."""
    met = sorted(meetings, key=lambda meeting: meeting[0][-1].start - meeting[0][-1].stop)
    if len(met) > 1 and met[1][1].shape == out.shape:  # start from two that all windows have
        ufunc(met[0][1], met[1][1], out=out)
        met = met[2:]
    else:
        out[...] = nothing
    for places, pixels in met:
        ufunc(out[places], pixels, out=out[places])
    return out


@override(MaxPool.forward, on="numpy")
def max_pool(op: MaxPool, x: HostArray) -> Any:
    """Rows first, then columns. Where a graph is recorded, the number of each window's first
    maximum is saved."""
    (kh, kw), size, (n, c, _, w) = op.window.kernel, op.window.output(x.shape), x.shape
    if kh * kw > UNKNOWN:
        return NotImplemented
    out, numbers = np.empty((n, *size, c), x.dtype), np.empty((n, *size, c), np.uint8)
    for images in blocks(x, POOLED_AT_ONCE):
        rows = _meetings(op.window, 0, np.ascontiguousarray(channels_last(x)[images]))
        top = _reduce(
            np.maximum, rows, lowest(x), np.empty((len(out[images]), size[0], w, c), x.dtype)
        )
        across = _meetings(op.window, 1, top)
        best, number = _reduce(np.maximum, across, lowest(x), out[images]), numbers[images]
        if op.recorded:
            # how many elements, from here on, come before the first maximum
            row = np.zeros(top.shape, np.uint8)
            for places, pixels in rows[-2::-1]:
                row += 1
                row[places] *= (pixels != top[places]).view(np.uint8)
            row *= kw
            number[...] = UNKNOWN
            for j, ((places, tops), (_, before)) in enumerate(
                zip(across, _meetings(op.window, 1, row), strict=True)
            ):
                others = (tops != best[places]).view(np.uint8) * UNKNOWN
                # the first in scan order
                np.minimum(number[places], others | (before + j), out=number[places])
    # NaN equals nothing
    if op.recorded and not (x.dtype.kind == "f" and np.isnan(out.min(initial=0.0))):
        op.cache["numbers"] = numbers
    return channels_first(out)


@override(MaxPool.backward, on="numpy")
def max_pool_gradient(op: MaxPool, g: HostArray, x: HostArray, out: HostArray) -> Any:
    if "numbers" not in op.cache:
        return NotImplemented
    (n, c, h, w), (kh, kw), (sh, sw), (ph, pw) = (
        x.shape,
        op.window.kernel,
        op.window.stride,
        op.window.padding,
    )
    g_x, parts = np.empty((n, h, w, c), g.dtype), blocks(x, POOLED_AT_ONCE)
    image, down, across = (
        np.arange(size) for size in (parts[-1].stop - parts[-1].start, *g.shape[2:])
    )
    corners = ((image[:, None] * h + down * sh - ph)[:, :, None] * w + across * sw - pw)[
        ..., None
    ] * c + np.arange(c)
    # where they are, from the corner on
    elements = ((np.arange(kh)[:, None] * w + np.arange(kw)) * c).reshape(-1)
    for images in parts:
        winners = elements.take(op.cache["numbers"][images])
        winners += corners[: len(winners)]
        values = np.ascontiguousarray(channels_last(g)[images])
        g_x[images] = 0
        np.add.at(g_x[images].reshape(-1), winners.reshape(-1), values.reshape(-1))
    return channels_first(g_x)


@override(AveragePool.forward, on="numpy")
def average_pool(op: AveragePool, x: HostArray) -> Any:
    (n, c, _, w), (rows, across) = x.shape, op.window.output(x.shape)
    out = np.empty((n, rows, across, c), x.dtype)
    for images in blocks(x, POOLED_AT_ONCE):
        met = _meetings(op.window, 0, np.ascontiguousarray(channels_last(x)[images]))
        sums = _reduce(np.add, met, 0.0, np.empty((len(out[images]), rows, w, c), x.dtype))
        part = _reduce(np.add, _meetings(op.window, 1, sums), 0.0, out[images])
        part *= op.factor
    return channels_first(out)


def _scatter(window: Window, axis: int, g: HostArray, out: HostArray) -> HostArray:
    """The transpose of a sum over windows along an axis: each element gets what its windows have,
    phase by phase."""
    stride, before = window.stride[axis], (slice(None),) * (1 + axis)
    along = sorted(
        window.along(axis, out.shape[1 + axis]), key=lambda met: met[0].start - met[0].stop
    )
    for phase in range(stride):
        pixels = out[(*before, slice(phase, None, stride))]
        met = [
            (g[(*before, places)], out[(*before, p)])
            for places, p in along
            if p.start % stride == phase
        ]
        if met and met[0][1].shape == pixels.shape:  # it meets all of them
            pixels[...] = met.pop(0)[0]
        else:
            pixels[...] = 0
        for values, some in met:
            some += values
    return out


@override(Spread.forward, on="numpy")
def spread(op: Spread, g: HostArray) -> Any:
    (n, c, rows, _), (_, _, h, w) = g.shape, op.image
    out = np.empty((n, h, w, c), g.dtype)
    for images in blocks(out, POOLED_AT_ONCE):
        values = np.ascontiguousarray(channels_last(g)[images]) * op.factor
        _scatter(
            op.window,
            0,
            _scatter(op.window, 1, values, np.empty((len(values), rows, w, c), g.dtype)),
            out[images],
        )
    return channels_first(out)


def _row_products(x: HostArray, y: HostArray) -> HostArray:
    """The sum over each row of x * y, without an array of products."""
    return np.einsum("ij,ij->i", x.reshape(len(x), -1), y.reshape(len(y), -1))


@override(WeightNorm.backward, on="numpy")
def weight_norm_gradient(op: WeightNorm, g: HostArray, w: HostArray, scale: HostArray) -> Any:
    length = np.sqrt(_row_products(w, w))
    along, size = _row_products(g, w) / length, scale * op.factor / length
    g_w = g * column(size, w.ndim)
    g_w -= w * column(along * size / length, w.ndim)
    return g_w, along * op.factor


def _along_a_row(values: Any, x: HostArray) -> HostArray:
    """A number, or (C,), as (1, C, 1, W): NumPy is slow where its inner loop is only as long as the
    channels."""
    row = np.empty_like(x[:1, :, :1] if x.ndim == 4 else x[:1])
    row[...] = column(values, x.ndim - 1) if np.ndim(values) else values
    return row


def _per_channel(x: HostArray, *values: Any) -> bool:
    """Whether x is (N, C) or (N, C, H, W), and the values are numbers, or one for each channel, of
    the same dtype."""
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    return x.ndim in (2, 4) and all(v.shape == x.shape[1:2] and v.dtype == x.dtype for v in arrays)


def _gated(g: HostArray, open: HostArray, out: HostArray) -> HostArray:
    """g where the gate is open, 0 elsewhere. A product is much faster than np.where, but infinity
    times 0 is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        np.multiply(g, open, out=out)
        values = out.ravel(order="K")  # in the order of memory: no copy
        if np.isnan(np.dot(values, values)):
            out[...] = np.where(open, g, 0.0)
    return out


@override(ReLU.backward, on="numpy")
def relu_gradient(op: ReLU, g: HostArray, out: HostArray) -> HostArray:
    return _gated(g, out != 0, np.empty_like(g))


@override(NormalizedReLU.forward, on="numpy")
def normalized_relu(op: NormalizedReLU, u: HostArray, beta: Any, c1: Any, c2: Any) -> Any:
    """max(u / c1 + (beta - c2) / c1, -c2 / c1), in one pass over memory."""
    if not _per_channel(u, beta, c1, c2):
        return NotImplemented
    out = u if op.overwrite else np.empty_like(u)
    scale = _number_or_row(1.0 / c1, u)
    added = _along_a_row((beta - c2) / c1, u)
    lowest = _along_a_row(op.lowest(u, c1, c2), u)
    for images in blocks(u, PIXELS_AT_ONCE):
        np.multiply(u[images], scale, out=out[images])
        np.add(out[images], added, out=out[images])
        np.maximum(out[images], lowest, out=out[images])
    return out


@override(NormalizedReLU.backward, on="numpy")
def normalized_relu_gradient(
    op: NormalizedReLU, g: HostArray, c1: Any, c2: Any, out: HostArray
) -> Any:
    if not _per_channel(out, c1, c2) or g.dtype != out.dtype:
        return NotImplemented
    _, _, of_c1, of_c2 = op.parents or (None,) * 4
    constants_learn = of_c1 is not None or of_c2 is not None
    g_u = np.empty_like(g)
    beta_sums, c1_sums, c2_sums = [], [], []
    scale = _number_or_row(1.0 / c1, g)
    lowest = _number_or_row(op.lowest(out, c1, c2), g)  # comparing with a number is faster
    for images in blocks(g, PIXELS_AT_ONCE):
        part = g_u[images]
        if constants_learn:
            np.multiply(g[images], out[images], out=part)
            c1_sums.append(row_sum(_rows(part)))
            c2_sums.append(row_sum(_rows(g[images])))
        _gated(g[images], out[images] != lowest, part)  # NaN passes its gradient, too
        part *= scale
        beta_sums.append(row_sum(_rows(part)))
    return (
        g_u,
        np.sum(beta_sums, axis=0),
        lambda: -np.sum(c1_sums, axis=0) / c1,
        lambda: -np.sum(c2_sums, axis=0) / c1,
    )


def _number_or_row(values: Any, x: HostArray) -> Any:
    return _along_a_row(values, x) if np.ndim(values) else values


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
    shape, g, x, (center, inverse) = (
        channels_last(x).shape,
        _rows(g),
        _rows(x),
        op.cache["statistics"],
    )
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
