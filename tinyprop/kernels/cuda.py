"""CUDA kernels as overrides on CuPy: several passes over memory in one, and many small launches in one.

The kernels are the `__global__` functions in the `.cu` files beside this one, compiled when they are first used.
Images are (N, C, H, W) outside and channels-last in memory, so that neighboring threads, which take neighboring
channels, read neighboring elements. Sums are taken in a fixed order, never by atomic additions: the same run gives the
same bits. Each docstring gives the NumPy formula that the override equals; other arrays than these are declined.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from .. import optim
from ..engine.arrays import Array, array_module, host_array, is_device_array, load_module
from ..engine.overrides import override
from ..functional.losses import CrossEntropy
from ..functional.normalization import BatchNorm, WeightNorm
from ..functional.pooling import AveragePool, MaxPool, Spread
from ..functional.windows import Pair, Shape, Window
from .fused import ShiftedReLU

Arrays = Sequence[Array]

THREADS = 128  # in a block
TABLE = 64  # parameters that one launch updates: their addresses are an argument of the kernel, at most 4 KB
LEAST_STRIP = 64  # rows that one thread adds up
MOST_STRIPS = 65_535  # what CUDA allows along the second axis of a grid
OPTIONS = (f"-DTHREADS={THREADS}", f"-DTABLE={TABLE}")
INTEGERS = dict(zip("bhilq", ("char", "short", "int", "long long", "long long"), strict=True))
TYPES = {"f": "float", "d": "double"}
TYPES |= {char: f"signed {name}" for char, name in INTEGERS.items()}
TYPES |= {char.upper(): f"unsigned {name}" for char, name in INTEGERS.items()}


@cache
def _kernel(kernel: str, types: str, options: tuple[str, ...]) -> Any:
    """Compile "file.name" for these types, given by their characters in NumPy."""
    file, name = kernel.split(".")
    name += f"<{', '.join(TYPES[char] for char in types)}>" if types else ""
    code = Path(__file__).with_name(f"{file}.cu").read_text()
    module = load_module("cupy").RawModule(code=code, options=(*OPTIONS, *options), name_expressions=(name,))
    return module.get_function(name)


def _launch(kernel: str, types: str, blocks: tuple[int, ...], *arguments: Any, options: tuple[str, ...] = ()) -> None:
    """Run "file.name". Integers are passed as long long, floats as the first type, None as a null pointer."""
    passed = tuple(host_array(a, types[0])[()] if isinstance(a, float) else a for a in arguments)
    _kernel(kernel, types, options)(blocks, (THREADS,), passed)


def supported(*arrays: Any) -> bool:
    """Whether these are arrays on a device, not empty, and all float32 or all float64."""
    if not all(is_device_array(a) and a.size for a in arrays):
        return False
    return arrays[0].dtype.char in "fd" and len({a.dtype for a in arrays}) == 1


def _blocks(threads: int) -> tuple[int]:
    return (-(-threads // THREADS),)


def _strips(x: Array) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The blocks that go over the columns of x (..., columns) in strips, and rows, columns and rows of a strip."""
    rows, columns = x.size // x.shape[-1], x.shape[-1]
    strip = max(LEAST_STRIP, -(-rows // MOST_STRIPS))
    return (*_blocks(columns), -(-rows // strip)), (rows, columns, strip)


def _struct(numbers: Sequence[int], kind: str = "int64") -> Any:
    """Addresses and numbers as a C struct, which is passed by value: nothing is copied to the device."""
    packed = host_array(numbers, kind)
    return packed.view(f"V{packed.nbytes}")[0]


def _contiguous(x: Array) -> Array:
    return array_module(x).ascontiguousarray(x)


def _channels_last(x: Array) -> Array:
    """(N, C, ...) -> (N, ..., C), contiguous: a view if the memory is channels-last already"""
    return _contiguous(x.transpose(0, *range(2, x.ndim), 1))


def _channels_first(x: Array) -> Array:
    """(N, ..., C) -> (N, C, ...), a view"""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def _empty(shape: Shape, like: Array) -> Array:
    return array_module(like).empty(shape, like.dtype)


# -- the end of a NormProp layer


def _is_per_channel(value: Any, x: Array) -> bool:
    """Whether this is a number, or an array (C, 1, ...) with one for each channel of x (N, C, ...)."""
    shape = (x.shape[1], *[1] * (x.ndim - 2)) if x.ndim >= 2 else None
    return shape is not None and (not hasattr(value, "shape") or (value.shape == shape and supported(value, x)))


def _numbers(value: Any) -> tuple[Array | None, float]:
    """What is passed for it: an array, or none, and a number for all channels."""
    return (_contiguous(value.reshape(-1)), 0.0) if hasattr(value, "shape") else (None, float(value))


@override(ShiftedReLU.forward, on="cupy")
def shifted_relu(op: ShiftedReLU, x: Array, bias: Any, shift: Any) -> Array:
    """maximum(x + (bias - shift), -shift)"""
    if not (supported(x) and _is_per_channel(bias, x) and _is_per_channel(shift, x)):
        return NotImplemented
    last = _channels_last(x)
    out = last if op.overwrite else _empty(last.shape, x)
    arguments = last, *_numbers(bias), *_numbers(shift), out, x.size, x.shape[1]
    _launch("channels.shifted_relu", x.dtype.char, _blocks(x.size), *arguments)
    op.cache["bias shape"] = getattr(bias, "shape", ())
    return _channels_first(out)


@override(ShiftedReLU.backward, on="cupy")
def shifted_relu_gradient(op: ShiftedReLU, g: Array, shift: Any, out: Array) -> Any:
    """passed = where(out <= -shift, 0, g), passed.sum(all axes but 1), and -g"""
    if "bias shape" not in op.cache or not supported(g, out):
        return NotImplemented
    last, shape = _channels_last(g), op.cache["bias shape"]
    blocks, size = _strips(last)
    passed, sums = _empty(last.shape, g), _empty((blocks[1], size[1]), g)
    arguments = last, _channels_last(out), *_numbers(shift), passed, sums, *size
    _launch("channels.shifted_relu_gradient", g.dtype.char, blocks, *arguments)
    return _channels_first(passed), lambda: sums.sum(axis=0).reshape(shape), lambda: -g


# -- weights of a given length


@override(WeightNorm.forward, on="cupy")
def weight_norm(op: WeightNorm, w: Array, scale: Array) -> Array:
    """w * (scale * factor / length), with the length of each row w[i]"""
    if not supported(w, scale):
        return NotImplemented
    out, columns = _empty(w.shape, w), w.size // len(w)
    arguments = _contiguous(w), _contiguous(scale), float(op.factor), out, columns
    _launch("rows.weight_norm", w.dtype.char, (len(w),), *arguments)
    return out


@override(WeightNorm.backward, on="cupy")
def weight_norm_gradient(op: WeightNorm, g: Array, w: Array, scale: Array) -> Any:
    """(g - unit * along) * (scale * factor / length), and along * factor,
    with unit = w / length and along = (g * unit).sum(each row)"""
    if not supported(g, w, scale):
        return NotImplemented
    g_w, g_scale, columns = _empty(w.shape, w), _empty(scale.shape, w), w.size // len(w)
    arguments = _contiguous(g), _contiguous(w), _contiguous(scale), float(op.factor), g_w, g_scale, columns
    _launch("rows.weight_norm_gradient", w.dtype.char, (len(w),), *arguments)
    return g_w, g_scale


# -- normalization by the statistics of a batch


def _statistics(op: BatchNorm, last: Array, running: Sequence[Array | None]) -> Array:
    """mean and 1 / sqrt(var + eps) of x (..., C), as (2, C); moves the running estimates unless they are None"""
    blocks, size = _strips(last)
    moments, statistics = _empty((2, blocks[1], size[1]), last), _empty((2, size[1]), last)
    _launch("channels.strip_moments", last.dtype.char, blocks, last, moments, *size)
    arguments = moments, statistics, float(op.eps), float(op.momentum), *running, *size, blocks[1]
    _launch("rows.batch_statistics", last.dtype.char, (size[1],), *arguments)
    return statistics


@override(BatchNorm.forward, on="cupy")
def batch_norm(op: BatchNorm, x: Array, weight: Array, bias: Array) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias over all axes but 1; and
    running += momentum * (now - running) for the mean and the unbiased variance"""
    if not supported(x, weight, bias, *op.running) or not all(a.flags.c_contiguous for a in op.running):
        return NotImplemented
    last, out = _channels_last(x), _empty((len(x), *x.shape[2:], x.shape[1]), x)
    op.cache["statistics"] = _statistics(op, last, op.running)
    arguments = last, op.cache["statistics"], _contiguous(weight), _contiguous(bias), out, x.size, x.shape[1]
    _launch("channels.batch_norm", x.dtype.char, _blocks(x.size), *arguments)
    return _channels_first(out)


@override(BatchNorm.backward, on="cupy")
def batch_norm_gradient(op: BatchNorm, g: Array, x: Array, weight: Array) -> Any:
    """(g - mean(g) - normal * mean(g * normal)) / sqrt(var + eps) * weight, sum(g * normal), and sum(g)
    with normal = (x - mean) / sqrt(var + eps), over all axes but 1"""
    if not supported(g, x, weight):
        return NotImplemented
    g, x = _channels_last(g), _channels_last(x)
    statistics = op.cache["statistics"] if "statistics" in op.cache else _statistics(op, x, (None, None))
    blocks, size = _strips(g)
    strips, g_x = _empty((2, blocks[1], size[1]), g), _empty(g.shape, g)
    _launch("channels.batch_norm_sums", g.dtype.char, blocks, g, x, statistics, strips, *size)
    sums = strips.sum(axis=1)
    arguments = g, x, statistics, _contiguous(weight), sums, g_x, g.size, size[1]
    _launch("channels.batch_norm_gradient", g.dtype.char, _blocks(g.size), *arguments)
    return _channels_first(g_x), sums[1], sums[0]


# -- cross-entropy


@override(CrossEntropy.forward, on="cupy")
def cross_entropy(op: CrossEntropy, x: Array) -> Array:
    """-log_softmax(x, axis=1) at the labels, and 0 where a label is no class"""
    if not supported(x):
        return NotImplemented
    labels, losses = _contiguous(op.labels), _empty(op.labels.shape, x)
    arguments = _channels_last(x), labels, losses, losses.size, x.shape[1]
    _launch("loss.cross_entropy", x.dtype.char + labels.dtype.char, _blocks(losses.size), *arguments)
    return losses


@override(CrossEntropy.backward, on="cupy")
def cross_entropy_gradient(op: CrossEntropy, g: Array, x: Array) -> Array:
    """g * (softmax(x, axis=1) - (classes == labels)), and 0 where a label is no class"""
    if not supported(g, x):
        return NotImplemented
    labels, g_x = _contiguous(op.labels), _empty((*op.labels.shape, x.shape[1]), x)
    arguments = _contiguous(g), _channels_last(x), labels, g_x, labels.size, x.shape[1]
    _launch("loss.cross_entropy_gradient", x.dtype.char + labels.dtype.char, _blocks(labels.size), *arguments)
    return _channels_first(g_x)


# -- pooling


def _pool(kernel: str, window: Window, image: Shape, size: Pair, arrays: Arrays, *numbers: float, **more: int) -> Array:
    """Run a kernel on arrays (N, C, ...), for windows on images of this shape; the result is (N, C, *size)."""
    if window.dilation != (1, 1) or not supported(*arrays):
        return NotImplemented
    n, channels, *_ = arrays[0].shape
    out = _empty((n, *size, channels), arrays[0])
    shape = *image[2:], *window.output(image), channels, *window.kernel, *window.stride, *window.padding
    arguments = *map(_channels_last, arrays), *numbers, out, _struct(shape, "int32"), out.size, *more.values()
    _launch(kernel, out.dtype.char, _blocks(out.size), *arguments)
    return _channels_first(out)


@override(MaxPool.forward, on="cupy")
def max_pool(op: MaxPool, x: Array) -> Array:
    """the largest element of each window; NaN counts as the largest"""
    return _pool("pools.max_pool", op.window, x.shape, op.window.output(x.shape), [x])


@override(MaxPool.backward, on="cupy")
def max_pool_gradient(op: MaxPool, g: Array, x: Array, out: Array) -> Array:
    """g of each window to the first of its elements, in scan order, that is the largest"""
    return _pool("pools.max_pool_gradient", op.window, x.shape, x.shape[2:], [g, x, out])


@override(AveragePool.forward, on="cupy")
def average_pool(op: AveragePool, x: Array) -> Array:
    """factor * the sum of each window"""
    size = op.window.output(x.shape)
    return _pool("pools.average_pool", op.window, x.shape, size, [x], float(op.factor), transposed=0)


@override(Spread.forward, on="cupy")
def spread(op: Spread, g: Array) -> Array:
    """factor * g of each window, added to all of its elements"""
    size = op.image[2], op.image[3]
    return _pool("pools.average_pool", op.window, op.image, size, [g], float(op.factor), transposed=1)


# -- all parameters in one launch


def _for_all(kernel: str, threads: int, like: Array, rows: list[tuple[int, ...]], *numbers: float) -> None:
    """Run a kernel over tables of rows (address, ..., size), in blocks of so many threads for each unit of size."""
    for start in range(0, len(rows), TABLE):
        part = rows[start : start + TABLE]
        ends = [*accumulate(row[-1] for row in part)]
        table = [number for row, end in zip(part, ends, strict=True) for number in (*row[:-1], end)]
        table += [0] * (len(part[0]) * (TABLE - len(part)))
        _launch(kernel, like.dtype.char, (-(-ends[-1] // threads),), _struct(table), len(part), *map(float, numbers))


def _update(w: Arrays, g: Arrays, means: Arrays, squares: Arrays, *numbers: float) -> Any:
    """One step of an optimizer that keeps means, squares, or both: see update.cu."""
    edited = *w, *means, *squares
    if not edited or not supported(*edited, *g) or not all(a.flags.c_contiguous for a in edited):
        return NotImplemented
    g = [_contiguous(a) for a in g]  # kept alive until the kernels are launched
    none = [None] * len(w)
    every = zip(w, g, means or none, squares or none, strict=True)
    rows = [(*(0 if a is None else a.data.ptr for a in arrays), arrays[0].size) for arrays in every]
    _for_all("update.update", THREADS, w[0], rows, *numbers)
    return None


@override(optim.sgd, on="cupy")
def sgd(
    parameters: Arrays, gradients: Arrays, velocities: Arrays, lr: float, momentum: float, weight_decay: float
) -> Any:
    """v = momentum * v + g + weight_decay * w;  w -= lr * v"""
    means = velocities if momentum else []
    return _update(parameters, gradients, means, [], lr, weight_decay, momentum, 1, 0, 0, 1, 0)


@override(optim.rmsprop, on="cupy")
def rmsprop(
    parameters: Arrays, gradients: Arrays, squares: Arrays, lr: float, alpha: float, eps: float, weight_decay: float
) -> Any:
    """g += weight_decay * w;  s = alpha * s + (1 - alpha) * g * g;  w -= lr * g / (sqrt(s) + eps)"""
    return _update(parameters, gradients, [], squares, lr, weight_decay, 0, 1, alpha, 1 - alpha, 1, eps)


@override(optim.adam, on="cupy")
def adam(
    parameters: Arrays, gradients: Arrays, means: Arrays, squares: Arrays,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int,
) -> Any:  # fmt: skip
    """g += weight_decay * w;  m = beta1 * m + (1 - beta1) * g;  s = beta2 * s + (1 - beta2) * g * g;
    w -= lr * m / (1 - beta1**step) / (sqrt(s / (1 - beta2**step)) + eps)"""
    size, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
    numbers = size, weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, root, eps
    return _update(parameters, gradients, means, squares, *numbers)


@override(optim.unit_rows, on="cupy")
def unit_rows(weights: Arrays) -> Any:
    """w /= the length of each row w[i], for each w"""
    if not weights or not supported(*weights) or not all(w.flags.c_contiguous for w in weights):
        return NotImplemented
    _for_all("rows.unit_rows", 1, weights[0], [(w.data.ptr, w.size // len(w), len(w)) for w in weights])
    return None


# -- tiles of images


def map_tiles(
    matrix: tuple[str, ...],
    images: Array,
    points: Array,
    down: int,
    across: int,
    step: int,
    first: Pair,
    back: bool,
) -> None:
    """points of a tile = matrix @ tile @ matrix.T, or back: tile = matrix @ (points of the tile) @ matrix.T

    images (N, H, W, C) have tiles (down, across), `step` pixels apart; points are (size * size, tiles, C).
    """
    (n, h, w, c), size = images.shape, math.isqrt(len(points))
    to_n, to_h, to_w, to_c = (stride // images.itemsize for stride in images.strides)
    to_point, to_tile, to_channel = (stride // points.itemsize for stride in points.strides)
    strides = down * across * to_tile, across * to_tile, to_tile, to_channel, size * to_point, to_point
    ends = [(images, _struct((to_n, step * to_h, step * to_w, to_c, to_h, to_w, step, *first, h, w))),
            (points, _struct((*strides, 0, 0, 0, size, size)))]  # fmt: skip
    source, target = reversed(ends) if back else ends
    arguments = *source, *target, down, across, c, n * down * across * c
    _launch("tiles.map_tiles", images.dtype.char, _blocks(arguments[-1]), *arguments, options=matrix)


# -- measuring


def hold(seconds: float, clock: int) -> None:
    """Keep a device whose clock has so many kHz busy, so that the host gets ahead of it."""
    _launch("hold.hold", "", (1,), int(1e3 * clock * seconds))
