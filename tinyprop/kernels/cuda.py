"""CUDA kernels as overrides on CuPy: several passes over memory in one, and many small launches in
one.

The kernels are in the `.cu` files beside this one, compiled when they are first used. Images are
channels-last in memory, so that neighboring threads read neighboring elements. Sums are taken in a
fixed order, never by atomic additions: the same run gives the same bits. Each override computes
what its rule does, and declines what it cannot."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..engine.arrays import Array, array_module, is_device_array, load_module
from ..engine.graph import Op
from ..engine.overrides import override
from ..engine.random import normals
from ..engine.threads import shares_batch
from ..functional.activations import ReLU
from ..functional.arithmetic import Elementwise
from ..functional.linear import product
from ..functional.losses import CrossEntropy
from ..functional.normalization import BatchNorm, WeightNorm, dropout_mask
from ..functional.normprop import NormalizedLinear, NormalizedReLU
from ..functional.pooling import AveragePool, MaxPool, Spread
from ..functional.windows import Pair, Shape, Window, channels_first, channels_last
from ..optim import updates

Arrays = Sequence[Array]

THREADS = 128  # in a block
# arrays that one launch updates: their addresses are an argument of the kernel, at most 4 KB
TABLE = 64
EACH = 4  # elements that a thread updates
LOADS = 8  # that a thread has in flight
PACK = 4  # columns that a thread reads at once
# threads of a multiprocessor that keep its memory busy, with so many loads of a pack each
RESIDENT = 512
CHANGING = 8  # numbers of an update that may change from step to step
SIZES = {
    "THREADS": THREADS,
    "BLOCKS": RESIDENT // THREADS,
    "TABLE": TABLE,
    "EACH": EACH,
    "LOADS": LOADS,
}
OPTIONS = tuple(f"-D{name}={value}" for name, value in SIZES.items())

# the Mailbox of a step that is recorded, or replayed
changing: ContextVar[Any] = ContextVar("changing", default=None)


@contextmanager
def posting_to(mailbox: Any) -> Iterator[None]:
    """Inside the block, kernels leave the numbers that change from step to step in this mailbox."""
    before = changing.set(mailbox)
    try:
        yield
    finally:
        changing.reset(before)


@cache
def _cupy() -> Any:
    return load_module("cupy")


@cache
def _kernel(kernel: str, dtype: str, options: tuple[str, ...]) -> Any:
    """Compile "file.name" for elements of this type."""
    from pathlib import Path  # here, as it takes longer to import than all of kernels/

    file, name = kernel.split(".")
    name += "<float>" if dtype == "f" else "<double>"
    code = Path(__file__).with_name(f"{file}.cu").read_text()
    module = _cupy().RawModule(code=code, options=(*OPTIONS, *options), name_expressions=(name,))
    return module.get_function(name)


def _launch(
    kernel: str,
    dtype: Any,
    grid: int | tuple[int, ...],
    *arguments: Any,
    options: tuple[str, ...] = (),
) -> None:
    """Run "file.name" on a grid of blocks, or on this number of threads. Integers become long long,
    None a null pointer. A number that the kernel takes as an element must be one:
    `dtype.type(0.5)`, since a float is a double."""
    blocks = grid if isinstance(grid, tuple) else (-(-grid // THREADS),)
    _kernel(kernel, dtype.char, options)(blocks, (THREADS,), arguments)


def supported(*arrays: Any) -> bool:
    """Whether these are arrays on a device, not empty, and all float32 or all float64."""
    if not is_device_array(arrays[0]) or arrays[0].dtype.char not in "fd":
        return False
    kind, dtype = type(arrays[0]), arrays[0].dtype
    for a in arrays:
        if type(a) is not kind or a.dtype is not dtype or not a.size:
            return False
    return True


@lru_cache(1024)
def _struct(kind: str, *numbers: float) -> Any:
    """Numbers as a C struct, which is passed by value: nothing is copied to the device."""
    return np.void(np.array(numbers, kind).tobytes())


def _empty(shape: Shape, like: Array) -> Array:
    return _cupy().ndarray(shape, like.dtype)


def _contiguous(x: Array) -> Array:
    return x if x.flags.c_contiguous else _cupy().ascontiguousarray(x)


def _channels_last(x: Array) -> Array:
    return _contiguous(channels_last(x))  # a view if the memory is channels-last already


@cache
def _multiprocessors(device: int) -> int:
    return _cupy().cuda.Device(device).attributes["MultiProcessorCount"]


def _strip(x: Array) -> int:
    """The rows of a strip, which are read LOADS at a time: as few as keep all multiprocessors
    busy."""
    return LOADS * -(-x.size // (LOADS * PACK * RESIDENT * _multiprocessors(x.data.device_id)))


def _by_strip(kernel: str, x: Array, *arguments: Any, sums: int = 0) -> Any:
    """Run a kernel with a thread for each strip and pack of x (N, ..., C); its sums are (sums,
    strips, C)."""
    columns, strip = x.shape[-1], _strip(x)
    strips = -(-x.size // (columns * strip))
    results = [_empty((sums, strips, columns), x)] if sums else []
    odd = [a for a in (x, *arguments) if type(a) is type(x) and a.data.ptr % (PACK * x.itemsize)]
    width = 1 if odd or columns % PACK else PACK
    matrix = _struct("int64", x.size // columns, columns // width, strip)
    threads, options = strips * columns // width, (f"-DWIDTH={width}",)
    _launch(kernel, x.dtype, threads, x, *arguments, *results, matrix, options=options)
    return results[0] if results else None


def _totals(sums: Array) -> Array:
    """sums.sum(axis=1), of what `_by_strip` returns: (sums, strips, C) -> (sums, C)"""
    count, strips, columns = sums.shape
    out = _empty((count, columns), sums)
    _launch(
        "rows.totals",
        sums.dtype,
        (count * columns,),
        sums,
        out,
        strips,
        columns,
    )
    return out


def _per_channel(value: Any, x: Array) -> tuple[Array | None, float] | None:
    """What is passed for a number (no array, and the number), or for an array (C,) with one value
    for each channel of x (itself, and 1); None for others."""
    element = x.dtype.type
    if x.ndim < 2:
        return None
    if not hasattr(value, "shape"):
        return None, element(value)
    if value.shape == x.shape[1:2] and supported(value, x):
        return _contiguous(value), element(1)
    return None


def _each_per_channel(x: Array, *values: Any) -> list[Any] | None:
    """The arguments for several numbers or arrays (C,); None if one of them is neither."""
    arguments: list[Any] = []
    for value in values:
        passed = _per_channel(value, x)
        if passed is None:
            return None
        arguments += passed
    return arguments


@override(NormalizedReLU.forward, on="cupy")
def normalized_relu(op: NormalizedReLU, u: Array, beta: Any, c1: Any, c2: Any) -> Array:
    """max(u / c1 + (beta - c2) / c1, -c2 / c1)"""
    if not supported(u):
        return NotImplemented
    numbers = _each_per_channel(u, beta, c1, c2)
    if numbers is None:
        return NotImplemented
    last = _channels_last(u)
    out = last if op.overwrite else _empty(last.shape, u)
    _by_strip("channels.normalized_relu", last, *numbers, out)
    return channels_first(out)


@override(NormalizedReLU.backward, on="cupy")
def normalized_relu_gradient(op: NormalizedReLU, g: Array, c1: Any, c2: Any, out: Array) -> Any:
    if not supported(g, out):
        return NotImplemented
    numbers = _each_per_channel(out, c1, c2)
    if numbers is None:
        return NotImplemented
    last, last_out = _channels_last(g), _channels_last(out)
    g_u = _empty(last.shape, g)
    arguments = (last_out, *numbers, g_u)
    sums = _by_strip("channels.normalized_relu_gradient", last, *arguments, sums=1)
    rest = tuple(range(g.ndim - 1))
    return (
        channels_first(g_u),
        lambda: _totals(sums)[0],
        lambda: (last * last_out).sum(axis=rest) / -c1,
        lambda: last.sum(axis=rest) / -c1,
    )


@override(WeightNorm.forward, on="cupy")
def weight_norm(op: WeightNorm, w: Array, scale: Array) -> Array:
    if not supported(w, scale) or scale.shape != w.shape[:1]:
        return NotImplemented
    out = _empty(w.shape, w)
    arguments = _contiguous(w), _contiguous(scale), w.dtype.type(op.factor), out, w.size // len(w)
    _launch("rows.weight_norm", w.dtype, (len(w),), *arguments)
    return out


@override(WeightNorm.backward, on="cupy")
def weight_norm_gradient(op: WeightNorm, g: Array, w: Array, scale: Array) -> Any:
    if not supported(g, w, scale) or scale.shape != w.shape[:1]:
        return NotImplemented
    g_w, g_scale, columns = _empty(w.shape, w), _empty(scale.shape, w), w.size // len(w)
    arguments = (
        _contiguous(g),
        _contiguous(w),
        _contiguous(scale),
        w.dtype.type(op.factor),
        g_w,
        g_scale,
        columns,
    )
    _launch("rows.weight_norm_gradient", w.dtype, (len(w),), *arguments)
    return g_w, g_scale


@override(NormalizedLinear.forward, on="cupy")
def normalized_linear(op: NormalizedLinear, x: Array, w: Array, gamma: Array) -> Any:
    """x @ (gamma w / |w|).T: the normalized weights are kept for the gradient."""
    weight = weight_norm(WeightNorm(1.0), w, gamma)
    if weight is NotImplemented:
        return NotImplemented
    if op.recorded:
        op.cache["weight"] = weight
    return product(x, weight.T)


@override(NormalizedLinear.backward, on="cupy")
def normalized_linear_gradient(
    op: NormalizedLinear, g: Array, x: Array, w: Array, gamma: Array
) -> Any:
    weight = op.cache.get("weight")
    if weight is None or not supported(g, x, w, gamma):
        return NotImplemented
    g_weight = product(g.T, x)
    g_w, g_gamma = weight_norm_gradient(WeightNorm(1.0), g_weight, w, gamma)
    return lambda: product(g, weight), g_w, g_gamma


@override(updates.unit_rows, on="cupy")
def unit_rows(weights: Arrays) -> Any:
    if not supported(*weights) or not all(w.flags.c_contiguous for w in weights):
        return NotImplemented
    for w in weights:
        _launch(
            "rows.weight_norm", w.dtype, (len(w),), w, None, w.dtype.type(1), w, w.size // len(w)
        )


@override(BatchNorm.forward, on="cupy")
def batch_norm(op: BatchNorm, x: Array, weight: Array, bias: Array) -> Array:
    numbers = weight, bias, *op.running
    if shares_batch() or not supported(x, *numbers):
        return NotImplemented
    if any(a.shape != x.shape[1:2] or not a.flags.c_contiguous for a in numbers):
        return NotImplemented
    last, statistics, columns = _channels_last(x), _empty((4, x.shape[1]), x), x.shape[1]
    sums, element = _by_strip("channels.strip_moments", last, sums=2), x.dtype.type
    arguments = sums, weight, bias, statistics, *op.running, element(op.eps), element(op.momentum)
    _launch(
        "rows.batch_statistics",
        x.dtype,
        (columns,),
        *arguments,
        x.size // columns,
        columns,
        _strip(last),
    )
    op.cache["statistics"] = statistics
    out = _empty(last.shape, x)
    _by_strip("channels.batch_norm", last, statistics, out)
    return channels_first(out)


@override(BatchNorm.backward, on="cupy")
def batch_norm_gradient(op: BatchNorm, g: Array, x: Array, weight: Array) -> Any:
    if "statistics" not in op.cache or not supported(g, x, weight):
        return NotImplemented
    arguments = _channels_last(g), _channels_last(x), op.cache["statistics"]
    sums, g_x = (
        _totals(_by_strip("channels.batch_norm_sums", *arguments, sums=2)),
        _empty(arguments[0].shape, g),
    )
    _by_strip("channels.batch_norm_gradient", *arguments, sums, g_x)
    return channels_first(g_x), sums[1], sums[0]


@cache
def _relu_gradient() -> Any:
    """A kernel that CuPy compiles; where the ReLU was off, its output is 0. NaN passes g."""
    code = "g_x = out == T(0) ? T(0) : g"
    return _cupy().ElementwiseKernel("T g, T out", "T g_x", code, "relu_gradient")


@override(ReLU.backward, on="cupy")
def relu_gradient(op: ReLU, g: Array, out: Array) -> Array:
    """One launch instead of two, which compare and select."""
    if out.ndim != 4:
        return _relu_gradient()(g, out)
    return channels_first(_relu_gradient()(channels_last(g), channels_last(out)))


def in_memory_order(op: Elementwise, *arrays: Any) -> Any:
    """Compute with images whose memory is channels-last as (N, H, W, C): CuPy would write (N, C, H,
    W)."""
    shaped = [a for a in arrays if hasattr(a, "ndim")]
    last = any(a.ndim == 4 and a.strides[1] == a.itemsize < a.strides[3] for a in shaped)
    if not last or any(a.ndim > 4 for a in shaped):
        return NotImplemented
    views = (channels_last(a[(None,) * (4 - a.ndim)]) if hasattr(a, "ndim") else a for a in arrays)
    return channels_first(type(op).forward(op, *views))


def _every(kind: type[Elementwise]) -> set[Any]:
    """The rules of all elementwise functions."""
    return {kind.forward}.union(*(_every(below) for below in kind.__subclasses__())) - {Op.forward}


for _rule in sorted(_every(Elementwise), key=lambda rule: rule.__qualname__):
    override(_rule, on="cupy")(in_memory_order)


@override(dropout_mask, on="cupy")
def mask(x: Array, shape: Shape, p: float, key: int) -> Array:
    if not supported(x):
        return NotImplemented
    out, box = _empty(shape, x), changing.get()
    live = None if box is None else box.keep_key(key, x.dtype)
    numbers = np.uint64(key), live, round(p * 2**32), x.dtype.type(1.0 / (1.0 - p))
    _launch("random.dropout_mask", x.dtype, -(-out.size // 8), out, *numbers, out.size)
    return out


@override(normals, on="cupy")
def normals_on_device(like: Array, shape: Shape, key: int) -> Array:
    if not (size := math.prod(shape)):
        return NotImplemented
    half, dtype = -(-size // 16) * 8, np.dtype("float32")
    out = _cupy().ndarray(2 * half, dtype)
    _launch("random.normals", dtype, half // 8, out, np.uint64(key), half)
    return out[:size].reshape(shape)


@override(CrossEntropy.forward, on="cupy")
def cross_entropy(op: CrossEntropy, x: Array, g: Array | None = None) -> Array:
    """The losses, or with g the gradient."""
    if not supported(x):
        return NotImplemented
    labels = _contiguous(op.labels.astype("int64", copy=False))
    out = _empty(labels.shape if g is None else (*labels.shape, x.shape[1]), x)
    _launch(
        "loss.cross_entropy",
        x.dtype,
        labels.size,
        _channels_last(x),
        labels,
        g,
        out,
        labels.size,
        x.shape[1],
    )
    return out if g is None else channels_first(out)


@override(CrossEntropy.backward, on="cupy")
def cross_entropy_gradient(op: CrossEntropy, g: Array, x: Array) -> Array:
    return cross_entropy(op, x, _contiguous(g)) if supported(g, x) else NotImplemented


def _pool(
    kernel: str,
    op: MaxPool | AveragePool,
    image: Shape,
    size: Pair,
    factor: float,
    x: Array,
    won: Any,
) -> Array:
    """Run a kernel for windows on images of this shape; x is (N, C, ...), the result is (N, C,
    *size)."""
    if not supported(x):
        return NotImplemented
    out, window = _empty((len(x), *size, x.shape[1]), x), op.window
    shape = (
        *image[2:],
        *window.output(image),
        x.shape[1],
        *window.kernel,
        *window.stride,
        *window.padding,
    )
    arguments = (
        _channels_last(x),
        won,
        out,
        _struct("int32", *shape),
        out.size,
        x.dtype.type(factor),
    )
    _launch(kernel, x.dtype, out.size, *arguments)
    return channels_first(out)


@override(MaxPool.forward, on="cupy")
def max_pool(op: MaxPool, x: Array) -> Array:
    """Where a graph is recorded, `won` remembers the pixel that won each window."""
    size = op.window.output(x.shape)
    if op.recorded and supported(x):
        op.cache["won"] = array_module(x).empty((len(x), *size, x.shape[1]), "int64")
    return _pool("pools.pool", op, x.shape, size, 0, x, op.cache.get("won"))


@override(MaxPool.backward, on="cupy")
def max_pool_gradient(op: MaxPool, g: Array, x: Array, out: Array) -> Array:
    if "won" not in op.cache:
        return NotImplemented
    return _pool("pools.unpool", op, x.shape, x.shape[2:], 1, g, op.cache["won"])


@override(AveragePool.forward, on="cupy")
def average_pool(op: AveragePool, x: Array) -> Array:
    return _pool("pools.pool", op, x.shape, op.window.output(x.shape), op.factor, x, None)


@override(Spread.forward, on="cupy")
def spread(op: Spread, g: Array) -> Array:
    return _pool("pools.unpool", op, op.image, (op.image[2], op.image[3]), op.factor, g, None)


def _update(w: Arrays, g: Arrays, means: Arrays, squares: Arrays, *numbers: float) -> Any:
    """The step of an optimizer that keeps running means, squares, or both (update.cu has the
    formula)."""
    box = changing.get()
    if box is not None and box.replaying:
        box.keep(numbers)
        return None
    edited = *w, *means, *squares
    if not w or not supported(*edited, *g) or not all(a.flags.c_contiguous for a in edited):
        return NotImplemented
    dtype, g = w[0].dtype, [_contiguous(a) for a in g]
    given, live = _struct(dtype.char, *numbers), None if box is None else box.keep(numbers)
    addresses = [[a.data.ptr for a in arrays] or [0] * len(w) for arrays in (w, g, means, squares)]
    sizes = np.array([a.size for a in w])
    rows = np.array([*addresses, sizes, -(-sizes // (THREADS * EACH))], "int64").T
    for start in range(0, len(rows), TABLE):
        table = np.zeros((TABLE, 6), "int64")
        table[: len(rows) - start] = rows[start : start + TABLE]
        table[:, -1] = table[:, -1].cumsum()  # where the blocks of each row end
        _launch(
            "update.update", dtype, (int(table[-1, -1]),), np.void(table.tobytes()), given, live
        )


@override(updates.sgd, on="cupy")
def sgd(w: Arrays, g: Arrays, velocities: Arrays, lr: float, momentum: float, decay: float) -> Any:
    return _update(w, g, velocities if momentum else (), (), lr, decay, momentum, 1, 0, 0, 1, 0)


@override(updates.rmsprop, on="cupy")
def rmsprop(
    w: Arrays, g: Arrays, squares: Arrays, lr: float, alpha: float, eps: float, decay: float
) -> Any:
    return _update(w, g, (), squares, lr, decay, 0, 1, alpha, 1 - alpha, 1, eps)


@override(updates.adam, on="cupy")
def adam(
    w: Arrays,
    g: Arrays,
    means: Arrays,
    squares: Arrays,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> Any:
    size, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
    return _update(w, g, means, squares, size, decay, beta1, 1 - beta1, beta2, 1 - beta2, root, eps)


def map_tiles(
    matrix: tuple[str, ...], images: Array, tiles: Window, points: Array, back: bool
) -> None:
    """points = matrix @ tile @ matrix.T for each tile of images (N, H, W, C), or back; points
    (points, tiles, C) are contiguous, and `matrix` defines a matrix for the compiler."""
    (n, h, w, c), strides = images.shape, (stride // images.itemsize for stride in images.strides)
    shape = *strides, h, w, c, *tiles.output((n, c, h, w)), tiles.stride[0], *tiles.padding
    threads, ends = points.size // len(points), (points, images) if back else (images, points)
    options = *matrix, f"-DBACK={back:d}"
    _launch(
        "tiles.map_tiles",
        images.dtype,
        threads,
        *ends,
        _struct("int64", *shape),
        threads,
        options=options,
    )
