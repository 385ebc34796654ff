"""Fused kernels on a CUDA device: several passes over memory in one, and many small launches in one.

The array decides: where `runs(x)` holds, a function here stands in for the NumPy formula that its docstring gives.
Images come and go as (N, C, H, W), channels-last in memory; `cuda.py` and `cuda_images.py` have the sources.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ..engine.arrays import Array, HostArray, array_module, host_array, is_device_array, load_module
from . import cuda, cuda_images

LEAST_STRIP = 64  # rows that one thread adds up
MOST_STRIPS = 65_535  # what CUDA allows along the second axis of a grid


def runs(*arrays: Any) -> bool:
    """Whether these are arrays on a device, not empty, and of a type that the kernels are made for."""
    return all(is_device_array(a) and a.dtype.char in "fd" and a.size for a in arrays)


@cache
def _elementwise(kernel: cuda.Elementwise) -> Any:
    name, inputs, outputs, code = kernel
    return load_module("cupy").ElementwiseKernel(inputs, outputs, code, f"tinyprop_{name}")


@cache
def _raw(source: str, name: str, dtype: str) -> Any:
    full = f"tinyprop_{name}_{dtype}"
    return load_module("cupy").RawKernel(cuda.complete(source, full, dtype), full)


def _launch(source: str, name: str, dtype: Any, blocks: tuple[int, ...], *arguments: Any) -> None:
    _raw(source, name, str(dtype))(blocks, (cuda.THREADS,), arguments)


def _number(value: float, dtype: Any) -> Any:
    """A Python number as an argument of a kernel."""
    return host_array(value, dtype)[()]


def _blocks(threads: int) -> tuple[int]:
    return (-(-threads // cuda.THREADS),)


def _channels_last(x: Array) -> Array:
    """(N, C, ...) -> (N, ..., C), contiguous: a view if the memory is laid out like this already."""
    return array_module(x).ascontiguousarray(x.transpose(0, *range(2, x.ndim), 1))


def _channels_first(x: Array) -> Array:
    """(N, ..., C) -> (N, C, ...), a view."""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


# -- the end of a NormProp layer


def is_per_channel(value: Any, x: Array) -> bool:
    """Whether this is a number, or an array (C, 1, ...) of one for each channel of x (N, C, ...)."""
    if not hasattr(value, "shape") or x.ndim < 2:
        return x.ndim >= 2
    return value.shape == (x.shape[1], *[1] * (x.ndim - 2)) and value.dtype == x.dtype


def _flat(value: Any, dtype: Any) -> Any:
    return value.reshape(-1) if hasattr(value, "shape") else _number(value, dtype)


def shifted_relu(x: Array, bias: Any, shift: Any, overwrite: bool = False) -> Array:
    """maximum(x + (bias - shift), -shift)"""
    last = _channels_last(x)
    out = last if overwrite else array_module(x).empty_like(last)
    _elementwise(cuda.SHIFTED_RELU)(last, _flat(bias, x.dtype), _flat(shift, x.dtype), out)
    return _channels_first(out)


def shifted_relu_gradient(g: Array, out: Array, shift: Any) -> tuple[Array, Array]:
    """passed = g * (out > -shift), and passed.sum(all axes but 1)"""
    xp, g, out = array_module(g), _channels_last(g), _channels_last(out)
    blocks, size = _strips(g)
    passed, sums = xp.empty_like(g), xp.empty((blocks[1], g.shape[-1]), g.dtype)
    several = hasattr(shift, "shape")
    shifts = (shift.reshape(-1), _number(0, g.dtype)) if several else (_number(0, "int64"), _number(shift, g.dtype))
    _launch(cuda.GATE, "gate", g.dtype, blocks, g, out, *shifts, passed, sums, *size)
    return _channels_first(passed), sums.sum(axis=0)


def _strips(x: Array) -> tuple[tuple[int, int], tuple[Any, Any, Any]]:
    """The blocks that go over the columns of x (..., columns) in strips, and rows, columns and rows of a strip."""
    rows, columns = x.size // x.shape[-1], x.shape[-1]
    strip = max(LEAST_STRIP, -(-rows // MOST_STRIPS))
    size = _number(rows, "int64"), _number(columns, "int32"), _number(strip, "int32")
    return (*_blocks(columns), -(-rows // strip)), size


# -- weights of a given length


def scaled_rows(w: Array, scale: Array, factor: float) -> Array:
    """w * (scale * factor / length), with the length of each row w[i] and one scale for each"""
    w = array_module(w).ascontiguousarray(w)
    out = array_module(w).empty_like(w)
    arguments = w, scale, _number(factor, w.dtype), out, _number(w.size // len(w), "int64")
    _launch(cuda.SCALED_ROWS, "scaled_rows", w.dtype, (len(w),), *arguments)
    return out


def scaled_rows_gradient(g: Array, w: Array, scale: Array, factor: float) -> tuple[Array, Array]:
    """with unit = w / length and along = (g * unit).sum(each row):
    (g - unit * along) * (scale * factor / length), and along * factor"""
    xp = array_module(w)
    g, w = xp.ascontiguousarray(g), xp.ascontiguousarray(w)
    g_w, g_scale = xp.empty_like(w), xp.empty_like(scale)
    arguments = g, w, scale, _number(factor, w.dtype), g_w, g_scale, _number(w.size // len(w), "int64")
    _launch(cuda.SCALED_ROWS_GRADIENT, "scaled_rows_gradient", w.dtype, (len(w),), *arguments)
    return g_w, g_scale


# -- normalisation by the statistics of a batch


def batch_norm(
    x: Array, weight: Array, bias: Array, eps: float, momentum: float, running: tuple[Array, Array]
) -> tuple[Array, Array]:
    """(x - mean) / sqrt(var + eps) * weight + bias over all axes but 1, and (mean, 1 / sqrt(var + eps));
    for both running estimates: running += momentum * (now - running), of the unbiased variance"""
    xp, last = array_module(x), _channels_last(x)
    columns, (blocks, size) = x.shape[1], _strips(last)
    moments, statistics = xp.empty((2, blocks[1], columns), x.dtype), xp.empty((2, columns), x.dtype)
    _launch(cuda.STRIP_MOMENTS, "strip_moments", x.dtype, blocks, last, moments, *size)
    numbers, strips = (_number(eps, x.dtype), _number(momentum, x.dtype)), _number(blocks[1], "int32")
    arguments = moments, statistics, *numbers, *running, *size, strips
    _launch(cuda.BATCH_STATISTICS, "batch_statistics", x.dtype, (columns,), *arguments)
    out = xp.empty_like(last)
    _elementwise(cuda.BATCH_NORM)(last, *statistics, weight, bias, out)
    return _channels_first(out), statistics


def batch_norm_gradient(g: Array, x: Array, weight: Array, statistics: Array) -> tuple[Array, Array, Array]:
    """with normal = (x - mean) / sqrt(var + eps), and sums over all axes but 1:
    (g - mean(g) - normal * mean(g * normal)) / sqrt(var + eps) * weight, sum(g * normal), and sum(g)"""
    xp, g, x = array_module(g), _channels_last(g), _channels_last(x)
    blocks, size = _strips(g)
    sums = xp.empty((2, blocks[1], g.shape[-1]), g.dtype)
    _launch(cuda.BATCH_NORM_SUMS, "batch_norm_sums", g.dtype, blocks, g, x, statistics, sums, *size)
    total, along = sums.sum(axis=1)
    g_x, rows = xp.empty_like(g), _number(g.size // g.shape[-1], g.dtype)
    _elementwise(cuda.BATCH_NORM_GRADIENT)(g, x, *statistics, weight, total, along, rows, g_x)
    return _channels_first(g_x), along, total


# -- all parameters in one launch


def _struct(numbers: Sequence[int]) -> Any:
    """Addresses and numbers as a C struct that travels with the launch: nothing is copied to the device."""
    packed = host_array(numbers, "int64")
    return packed.view(f"V{packed.nbytes}")[0]


def _table(rows: Sequence[tuple[int, ...]]) -> Any:
    missing = (0,) * len(rows[0]) * (cuda.TABLE - len(rows))
    return _struct([number for row in rows for number in row] + [*missing])


def updates(*arrays: Array) -> bool:
    """Whether parameters like these, and what an optimiser remembers of them, can be updated by address."""
    return runs(*arrays) and all(a.flags.c_contiguous for a in arrays)


Due = Sequence[tuple[Array, Array, Array]]  # for each parameter: itself, its gradient, what is remembered of it


def _update(source: str, name: str, due: Due, *numbers: float) -> None:
    due = [(w, array_module(g).ascontiguousarray(g), memory) for w, g, memory in due]
    dtype = due[0][0].dtype
    values = [_number(v, dtype) for v in numbers]
    for start in range(0, len(due), cuda.TABLE):
        rows, end = [], 0
        for w, g, memory in due[start : start + cuda.TABLE]:
            end += w.size
            rows.append((w.data.ptr, memory.data.ptr, g.data.ptr, end))
        _launch(source, name, dtype, _blocks(end), _table(rows), _number(len(rows), "int32"), *values)


def sgd(due: Due, lr: float, momentum: float, decay: float) -> None:
    """for each w, g, memory, all of one dtype: memory = momentum * memory + g + decay * w; w -= lr * memory"""
    _update(cuda.SGD, "sgd", due, lr, decay, momentum)


def rmsprop(due: Due, lr: float, alpha: float, eps: float, decay: float) -> None:
    """for each w, g, memory, all of one dtype: g += decay * w; memory = alpha * memory + (1 - alpha) * g * g;
    w -= lr * g / (sqrt(memory) + eps)"""
    _update(cuda.RMSPROP, "rmsprop", due, lr, decay, alpha, 1 - alpha, eps)


def unit_rows(weights: Sequence[Array]) -> None:
    """for each w, all of one dtype: w /= the length of each row w[i]"""
    for start in range(0, len(weights), cuda.TABLE):
        rows, end = [], 0
        for w in weights[start : start + cuda.TABLE]:
            end += len(w)
            rows.append((w.data.ptr, w.size // len(w), end))
        _launch(cuda.UNIT_ROWS, "unit_rows", weights[0].dtype, (end,), _table(rows))


# -- cross-entropy


def _class_rows(x: Array) -> Array:
    """(N, C, ...) -> (N * ..., C)"""
    return _channels_last(x).reshape(-1, x.shape[1])


def cross_entropy(x: Array, labels: Array) -> Array:
    """-log_softmax(x, axis=1) at the labels"""
    rows = _class_rows(x)
    losses = array_module(x).empty(rows.shape[0], x.dtype)
    _elementwise(cuda.CROSS_ENTROPY)(rows, labels.reshape(-1), rows.shape[1], losses)
    return losses.reshape(labels.shape)


def cross_entropy_gradient(g: Array, x: Array, labels: Array) -> Array:
    """g * (softmax(x, axis=1) - (classes == labels))"""
    rows = _class_rows(x)
    out = array_module(x).empty_like(rows)
    _elementwise(cuda.CROSS_ENTROPY_GRADIENT)(g.reshape(-1), rows, labels.reshape(-1), rows.shape[1], out)
    return _channels_first(out.reshape(*labels.shape, x.shape[1]))


# -- pooling


class Pooling(NamedTuple):
    """A window on images of a size (rows, columns), and the places it has there."""

    size: tuple[int, int]
    places: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def numbers(self, channels: int) -> tuple[int, ...]:
        return (*self.size, *self.places, channels, *self.kernel, *self.stride, *self.padding)


def _pool(kernel: cuda.Elementwise, size: tuple[int, int], images: Sequence[Array], *numbers: Any) -> Array:
    images = [_channels_last(a) for a in images]
    n, *_, channels = images[0].shape
    out = array_module(images[0]).empty((n, *size, channels), images[0].dtype)
    _elementwise(kernel)(*images, *numbers, out)
    return _channels_first(out)


def max_pool(x: Array, p: Pooling) -> Array:
    """the largest element of each window"""
    return _pool(cuda_images.MAX_POOL, p.places, [x], *p.numbers(x.shape[1]))


def max_pool_gradient(g: Array, x: Array, largest: Array, p: Pooling) -> Array:
    """g of each window to the first of its elements, in scan order, that is the largest"""
    return _pool(cuda_images.MAX_POOL_GRADIENT, p.size, [g, x, largest], *p.numbers(x.shape[1]))


def average_pool(x: Array, factor: float, p: Pooling) -> Array:
    """the sum of each window, times the factor"""
    return _pool(cuda_images.AVERAGE_POOL, p.places, [x], _number(factor, x.dtype), *p.numbers(x.shape[1]))


def average_pool_gradient(g: Array, factor: float, p: Pooling) -> Array:
    """g of each window, times the factor, added to all of its elements"""
    numbers = p.numbers(g.shape[1])
    return _pool(cuda_images.AVERAGE_POOL_GRADIENT, p.size, [g], _number(factor, g.dtype), *numbers)


# -- tiles of images


class Patches(NamedTuple):
    """Squares in an array, one for each tile (image, down, across) and channel; they start `step` apart on a grid.

    Strides are in elements. Elements beyond the rows and columns of the grid are 0 when read, and never written.
    """

    array: Array
    strides: tuple[int, ...]  # to the next image, tile down, tile across, channel, row and column of the square
    step: int
    first: tuple[int, int]
    grid: tuple[int, int]

    @classmethod
    def of_images(cls, x: Array, step: int, first: tuple[int, int] = (0, 0)) -> "Patches":
        """x (N, H, W, C)"""
        to_n, to_h, to_w, to_c = _strides(x)
        return cls(x, (to_n, step * to_h, step * to_w, to_c, to_h, to_w), step, first, x.shape[1:3])

    @classmethod
    def of_values(cls, values: Array, down: int, across: int, size: int) -> "Patches":
        """values (size * size points, N * down * across tiles, C)"""
        to_point, to_tile, to_c = _strides(values)
        strides = (down * across * to_tile, across * to_tile, to_tile, to_c, size * to_point, to_point)
        return cls(values, strides, 0, (0, 0), (size, size))

    @classmethod
    def of_kernels(cls, w: Array) -> "Patches":
        """w (A, B, k, k), with a tile for each A and a channel for each B"""
        to_a, to_b, to_h, to_w = _strides(w)
        return cls(w, (to_a, 0, 0, to_b, to_h, to_w), 0, (0, 0), w.shape[2:])

    def struct(self) -> Any:
        return _struct((*self.strides, self.step, *self.first, *self.grid))


def _strides(x: Array) -> list[int]:
    return [s // x.itemsize for s in x.strides]


def map_tiles(matrix: HostArray, source: Patches, target: Patches, tiles: tuple[int, int, int, int]) -> None:
    """target patch = matrix @ source patch @ matrix.T, for all tiles (images, down, across, channels)"""
    images, down, across, channels = tiles
    threads = images * down * across * channels
    sizes = [_number(v, "uint32") for v in (down, across, channels, threads)]
    arguments = source.array, target.array, source.struct(), target.struct(), *sizes
    name = f"map_tiles_{matrix.shape[1]}_to_{matrix.shape[0]}"
    _launch(
        cuda_images.map_tiles(tuple(map(tuple, matrix.tolist()))),
        name,
        source.array.dtype,
        _blocks(threads),
        *arguments,
    )


# -- measuring


def hold(seconds: float, clock: int) -> None:
    """Keep a device, whose clock has so many kHz, from what is ordered next: so the host gets ahead of it."""
    cycles = _number(int(1e3 * clock * seconds), "int64")
    _raw(cuda.HOLD, "hold", "float32")((1,), (1,), (cycles,))
