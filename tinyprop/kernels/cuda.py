"""CUDA kernels as overrides on CuPy: one pass over memory instead of several, and one launch
instead of many small ones.

The kernels are in the `.cu` files beside this one, compiled when they are first used. Images are
channels-last in memory, so that neighboring threads read neighboring elements. Sums are taken in a
fixed order, never by atomic additions: the same run gives the same bits. Each override computes
what its rule does, and declines what it cannot."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..engine.arrays import Array, array_module, is_device_array, load_module
from ..engine.batch import shares_batch
from ..engine.graph import Op
from ..engine.overrides import override
from ..engine.random import normals
from ..engine.sums import FEW, total
from ..functional.activations import ReLU
from ..functional.arithmetic import Elementwise
from ..functional.linear import product
from ..functional.losses import CrossEntropy
from ..functional.normalization import BatchNorm, WeightNorm, dropout_mask
from ..functional.normprop import NormalizedLinear, NormalizedReLU
from ..functional.pooling import AveragePool, MaxPool, Spread
from ..functional.windows import Pair, Shape, Window, channels_first, channels_last
from ..optim import updates
from .evenness import LEAST, MOST, MOST_ENERGY, MOST_SQUARE, STEP, Compared

Arrays = Sequence[Array]

THREADS = 128  # in a block
# arrays that one launch updates: their addresses are an argument of the kernel, at most 4 KB
TABLE = 64
EACH = 4  # elements that a thread updates
LOADS = 8  # loads that a thread has in flight
PACK = 4  # columns that a thread reads at once
ACROSS = 8  # packs that a block reads from a row: 128 bytes of float32
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
LIMITS = {
    "STEP": STEP,
    "MOST_ENERGY": MOST_ENERGY,
    "MOST_SQUARE": MOST_SQUARE,
    "LEAST": LEAST,
    "MOST": MOST,
}
OPTIONS = tuple(f"-D{name}={value}" for name, value in (SIZES | LIMITS).items())

# the Mailbox of a step that is recorded or replayed (graphs.py); otherwise None
_mailbox: ContextVar[Any] = ContextVar("mailbox", default=None)


@contextmanager
def staging_in(mailbox: Any) -> Iterator[None]:
    """Inside the block, numbers that change from step to step are staged in this mailbox."""
    before = _mailbox.set(mailbox)
    try:
        yield
    finally:
        _mailbox.reset(before)


@cache
def _cupy() -> Any:
    return load_module("cupy")


@cache
def _kernel(kernel: str, dtype: str, options: tuple[str, ...]) -> Any:
    """Compile "file.name" for elements of this type."""
    from pathlib import Path  # here, as it takes longer to import than all of kernels/

    file, name = kernel.split(".")
    element = "float" if dtype == "f" else "double"
    instance = f"{name}<{element}>"
    code = Path(__file__).with_name(f"{file}.cu").read_text()
    every_option = (*OPTIONS, *options)
    module = _cupy().RawModule(code=code, options=every_option, name_expressions=(instance,))
    return module.get_function(instance)


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
    first = arrays[0]
    if not is_device_array(first) or first.dtype.char not in "fd":
        return False
    kind, dtype = type(first), first.dtype
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


def _all_contiguous(arrays: Arrays) -> bool:
    return all(a.flags.c_contiguous for a in arrays)


def _channels_last(x: Array) -> Array:
    return _contiguous(channels_last(x))  # a view if the memory is channels-last already


@cache
def _multiprocessors(device: int) -> int:
    return _cupy().cuda.Device(device).attributes["MultiProcessorCount"]


@cache
def _total() -> Any:
    """A kernel that CuPy compiles: its own sum of float32 has threads that add thousands of
    elements one after the other."""
    return _cupy().ReductionKernel(
        "float32 x, float64 divisor",
        "float32 y",
        "x",
        "a + b",
        "y = a / divisor",
        "0",
        "total",
        reduce_type="double",
    )


@override(total, on="cupy")
def total_in_one_launch(
    x: Array, axes: Any = None, keepdims: bool = False, dtype: Any = None, divisor: Any = None
) -> Any:
    """The rule takes one launch to add, one to divide and one to round."""
    # not `dtype in (None, ...)`: numpy.dtype("float64") == None is true
    keeps_dtype = dtype is None or dtype == x.dtype
    stays_float32 = x.dtype.char == "f" and keeps_dtype
    known_divisor = divisor is None or isinstance(divisor, int)
    if not (stays_float32 and known_divisor and x.size) or axes == ():
        return NotImplemented
    number = 1.0 if divisor is None else float(divisor)
    return _total()(x, number, axis=axes, keepdims=keepdims)


@dataclass
class Strips:
    """How the threads of a kernel in channels.cu share a matrix, and in how many parts a block adds
    up its columns."""

    width: int  # of a pack
    parts: int
    blocks: int
    matrix: Any  # the struct Matrix


def _strips(*arrays: Array) -> Strips:
    """For arrays like the first one (N, ..., C); the others may have one value for each channel.
    Strips are as short as keeps all multiprocessors busy, and are read LOADS rows at a time."""
    x = arrays[0]
    columns = x.shape[-1]
    rows = x.size // columns
    aligned = not any(a.data.ptr % (PACK * a.itemsize) for a in arrays)
    width = PACK if aligned and columns % PACK == 0 else 1
    packs = columns // width
    busy = LOADS * PACK * RESIDENT * _multiprocessors(x.data.device_id)
    strip = LOADS * -(-x.size // busy)  # rows
    across = min(ACROSS, 1 << (packs - 1).bit_length())
    parts = -(-rows // (THREADS // across * strip))
    groups = -(-packs // across)
    matrix = _struct("int64", rows, packs, strip, across)
    return Strips(width, parts, parts * groups, matrix)


def _launch_strips(kernel: str, strips: Strips, *arguments: Any) -> None:
    options = (f"-DWIDTH={strips.width}",)
    grid = (strips.blocks,)
    _launch(kernel, arguments[0].dtype, grid, *arguments, strips.matrix, options=options)


def _sum_of_parts(sums: Array) -> Array:
    """(parts, C) -> (C,)"""
    parts, columns = sums.shape
    out = _empty((columns,), sums)
    _launch("rows.totals", sums.dtype, (columns,), sums, out, parts, columns)
    return out


@dataclass
class PerChannel:
    """A number, or an array (C,) with a value for each channel, as a kernel takes it: the array or
    None, and a factor, which without an array is the number."""

    array: Array | None
    factor: Any


def _per_channel(value: Any, x: Array) -> PerChannel | None:
    """For x (N, C, ...); None if the value is neither."""
    element = x.dtype.type
    if not hasattr(value, "shape"):
        return PerChannel(None, element(value))
    if value.shape == x.shape[1:2] and supported(value, x):
        return PerChannel(_contiguous(value), element(1))
    return None


def _per_channel_arguments(x: Array, *values: Any) -> list[Any] | None:
    """The arguments for several numbers or arrays (C,); None if one of them is neither."""
    if x.ndim < 2:
        return None
    arguments: list[Any] = []
    for value in values:
        passed = _per_channel(value, x)
        if passed is None:
            return None
        arguments += [passed.array, passed.factor]
    return arguments


@override(NormalizedReLU.forward, on="cupy")
def normalized_relu(op: NormalizedReLU, u: Array, beta: Any, c1: Any, c2: Any) -> Array:
    """max(u / c1 + (beta - c2) / c1, -c2 / c1)"""
    if not supported(u):
        return NotImplemented
    numbers = _per_channel_arguments(u, beta, c1, c2)
    if numbers is None:
        return NotImplemented
    last = _channels_last(u)
    out = last if op.overwrite else _empty(last.shape, u)
    _launch_strips("channels.normalized_relu", _strips(last, out), last, *numbers, out)
    return channels_first(out)


@override(NormalizedReLU.backward, on="cupy")
def normalized_relu_gradient(op: NormalizedReLU, g: Array, c1: Any, c2: Any, out: Array) -> Any:
    if not supported(g, out):
        return NotImplemented
    numbers = _per_channel_arguments(out, c1, c2)
    if numbers is None:
        return NotImplemented
    last = _channels_last(g)
    last_out = _channels_last(out)
    strips = _strips(last, last_out)
    g_u = _empty(last.shape, g)
    sums = _empty((strips.parts, g.shape[1]), g)
    arguments = (last, last_out, *numbers, g_u, sums)
    _launch_strips("channels.normalized_relu_gradient", strips, *arguments)
    rest = tuple(range(g.ndim - 1))
    return (
        channels_first(g_u),
        lambda: _sum_of_parts(sums),
        lambda: total(last * last_out, rest) / -c1,
        lambda: total(last, rest) / -c1,
    )


def _normalize_rows(w: Array, scale: Array | None, factor: float, out: Array) -> None:
    """out[i] = w[i] * scale[i] * factor / |w[i]|; without a scale it is 1."""
    rows = len(w)
    arguments = (w, scale, w.dtype.type(factor), out, w.size // rows)
    _launch("rows.weight_norm", w.dtype, (rows,), *arguments)


@override(WeightNorm.forward, on="cupy")
def weight_norm(op: WeightNorm, w: Array, scale: Array) -> Array:
    if not supported(w, scale) or scale.shape != w.shape[:1]:
        return NotImplemented
    out = _empty(w.shape, w)
    _normalize_rows(_contiguous(w), _contiguous(scale), op.factor, out)
    return out


@override(WeightNorm.backward, on="cupy")
def weight_norm_gradient(op: WeightNorm, g: Array, w: Array, scale: Array) -> Any:
    if not supported(g, w, scale) or scale.shape != w.shape[:1]:
        return NotImplemented
    rows = len(w)
    g_w = _empty(w.shape, w)
    g_scale = _empty(scale.shape, w)
    given = (_contiguous(g), _contiguous(w), _contiguous(scale), w.dtype.type(op.factor))
    _launch("rows.weight_norm_gradient", w.dtype, (rows,), *given, g_w, g_scale, w.size // rows)
    return g_w, g_scale


@override(NormalizedLinear.forward, on="cupy")
def normalized_linear(op: NormalizedLinear, x: Array, w: Array, gamma: Array) -> Any:
    """x @ (gamma w / |w|).T; the normalized weights are kept for the gradient."""
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
    if not supported(*weights) or not _all_contiguous(weights):
        return NotImplemented
    for w in weights:
        _normalize_rows(w, None, 1.0, out=w)


@override(BatchNorm.forward, on="cupy")
def batch_norm(op: BatchNorm, x: Array, weight: Array, bias: Array) -> Array:
    """Two launches: the moments of parts of the batch, and the rest. The mean and 1 / sqrt(var +
    eps) are kept for the gradient."""
    per_channel = (weight, bias, *op.running)
    if shares_batch() or not supported(x, *per_channel) or not _all_contiguous(per_channel):
        return NotImplemented
    channels = x.shape[1:2]
    if any(a.shape != channels for a in per_channel):
        return NotImplemented
    last = _channels_last(x)
    strips = _strips(last)
    moments = _empty((3, strips.parts, *channels), x)
    _launch_strips("channels.part_moments", strips, last, moments)
    statistics = _empty((2, *channels), x)
    out = _empty(last.shape, x)
    element = x.dtype.type
    arguments = (weight, bias, statistics, *op.running, element(op.eps), element(op.momentum), out)
    _launch_strips("channels.batch_norm", strips, last, moments, *arguments)
    op.cache["statistics"] = statistics
    return channels_first(out)


@override(BatchNorm.backward, on="cupy")
def batch_norm_gradient(op: BatchNorm, g: Array, x: Array, weight: Array) -> Any:
    if "statistics" not in op.cache or not supported(g, x, weight):
        return NotImplemented
    statistics = op.cache["statistics"]
    last = _channels_last(g)
    last_x = _channels_last(x)
    strips = _strips(last, last_x)
    sums = _empty((2, strips.parts, g.shape[1]), g)
    _launch_strips("channels.batch_norm_sums", strips, last, last_x, statistics, sums)
    totals = _empty((2, g.shape[1]), g)
    g_x = _empty(last.shape, g)
    arguments = (statistics, _contiguous(weight), sums, totals, g_x)
    _launch_strips("channels.batch_norm_gradient", strips, last, last_x, *arguments)
    g_bias, g_weight = totals
    return channels_first(g_x), g_weight, g_bias


@cache
def _relu_gradient() -> Any:
    """A kernel that CuPy compiles. Where the ReLU was off, its output is 0; NaN passes g."""
    code = "g_x = out == T(0) ? T(0) : g"
    return _cupy().ElementwiseKernel("T g, T out", "T g_x", code, "relu_gradient")


@override(ReLU.backward, on="cupy")
def relu_gradient(op: ReLU, g: Array, out: Array) -> Array:
    """One launch; the rule takes one to compare and one to select."""
    if out.ndim != 4:
        return _relu_gradient()(g, out)
    return channels_first(_relu_gradient()(channels_last(g), channels_last(out)))


def _is_channels_last(x: Array) -> bool:
    return x.ndim == 4 and x.strides[1] == x.itemsize < x.strides[3]


def in_memory_order(op: Elementwise, *arrays: Any) -> Any:
    """Compute with images whose memory is channels-last as (N, H, W, C): CuPy would write (N, C, H,
    W)."""
    shaped = [a for a in arrays if hasattr(a, "ndim")]
    if not any(_is_channels_last(a) for a in shaped) or any(a.ndim > 4 for a in shaped):
        return NotImplemented
    views = []
    for a in arrays:
        if hasattr(a, "ndim"):
            a = channels_last(a[(None,) * (4 - a.ndim)])  # as it broadcasts against (N, C, H, W)
        views.append(a)
    return channels_first(type(op).forward(op, *views))


def _forward_rules(kind: type[Elementwise]) -> set[Any]:
    """Those of an elementwise op and of all ops derived from it."""
    rules = {kind.forward}
    for derived in kind.__subclasses__():
        rules |= _forward_rules(derived)
    return rules - {Op.forward}


for _rule in sorted(_forward_rules(Elementwise), key=lambda rule: rule.__qualname__):
    override(_rule, on="cupy")(in_memory_order)


@override(dropout_mask, on="cupy")
def mask(x: Array, shape: Shape, p: float, key: int) -> Array:
    if not supported(x):
        return NotImplemented
    out = _empty(shape, x)
    mailbox = _mailbox.get()
    live_key = None if mailbox is None else mailbox.stage_key(key, x.dtype)
    dropped = round(p * 2**32)
    survives = x.dtype.type(1.0 / (1.0 - p))
    threads = -(-out.size // 8)
    arguments = (out, np.uint64(key), live_key, dropped, survives, out.size)
    _launch("random.dropout_mask", x.dtype, threads, *arguments)
    return out


@override(normals, on="cupy")
def normals_on_device(like: Array, shape: Shape, key: int) -> Array:
    size = math.prod(shape)
    if size == 0:
        return NotImplemented
    dtype = np.dtype("float32")
    half = -(-size // 16) * 8
    out = _cupy().ndarray(2 * half, dtype)
    _launch("random.normals", dtype, half // 8, out, np.uint64(key), half)
    return out[:size].reshape(shape)


def _cross_entropy(op: CrossEntropy, x: Array, g: Array | None, out: Array) -> None:
    """Write the losses or, with g, the gradient (N, ..., C)."""
    labels = _contiguous(op.labels.astype("int64", copy=False))
    arguments = (_channels_last(x), labels, g, out, labels.size, x.shape[1])
    _launch("loss.cross_entropy", x.dtype, labels.size, *arguments)


@override(CrossEntropy.forward, on="cupy")
def cross_entropy(op: CrossEntropy, x: Array) -> Array:
    if not supported(x):
        return NotImplemented
    losses = _empty(op.labels.shape, x)
    _cross_entropy(op, x, None, losses)
    return losses


@override(CrossEntropy.backward, on="cupy")
def cross_entropy_gradient(op: CrossEntropy, g: Array, x: Array) -> Array:
    if not supported(g, x):
        return NotImplemented
    g_x = _empty((*op.labels.shape, x.shape[1]), x)
    _cross_entropy(op, x, _contiguous(g), g_x)
    return channels_first(g_x)


def _pool(
    kernel: str, window: Window, image: Shape, size: Pair, factor: float, x: Array, argmax: Any
) -> Array:
    """Run a kernel for windows on images of this shape; x is (N, C, ...), the result is (N, C,
    *size)."""
    channels = x.shape[1]
    out = _empty((len(x), *size, channels), x)
    places = window.output(image)
    height, width = image[2:]
    sizes = (height, width, *places, channels)
    shape = _struct("int32", *sizes, *window.kernel, *window.stride, *window.padding)
    arguments = (_channels_last(x), argmax, out, shape, out.size, x.dtype.type(factor))
    _launch(kernel, x.dtype, out.size, *arguments)
    return channels_first(out)


@override(MaxPool.forward, on="cupy")
def max_pool(op: MaxPool, x: Array) -> Array:
    """Where a graph is recorded, `argmax` remembers the largest pixel of each window."""
    if not supported(x):
        return NotImplemented
    size = op.window.output(x.shape)
    if op.recorded:
        op.cache["argmax"] = array_module(x).empty((len(x), *size, x.shape[1]), "int64")
    return _pool("pools.pool", op.window, x.shape, size, 0, x, op.cache.get("argmax"))


@override(MaxPool.backward, on="cupy")
def max_pool_gradient(op: MaxPool, g: Array, x: Array, out: Array) -> Array:
    argmax = op.cache.get("argmax")
    if argmax is None or not supported(g):
        return NotImplemented
    height, width = x.shape[2:]
    return _pool("pools.unpool", op.window, x.shape, (height, width), 1, g, argmax)


@override(AveragePool.forward, on="cupy")
def average_pool(op: AveragePool, x: Array) -> Array:
    if not supported(x) or math.prod(op.window.kernel) > FEW:
        return NotImplemented
    size = op.window.output(x.shape)
    return _pool("pools.pool", op.window, x.shape, size, op.factor, x, None)


@override(Spread.forward, on="cupy")
def spread(op: Spread, g: Array) -> Array:
    if not supported(g) or math.prod(op.window.kernel) > FEW:
        return NotImplemented
    height, width = op.image[2:]
    return _pool("pools.unpool", op.window, op.image, (height, width), op.factor, g, None)


def _update(w: Arrays, g: Arrays, means: Arrays, squares: Arrays, *numbers: float) -> Any:
    """The step of an optimizer that keeps running means, squares, or both (update.cu has the
    formula)."""
    mailbox = _mailbox.get()
    if mailbox is not None and mailbox.replaying:
        mailbox.stage(numbers)
        return None
    edited = (*w, *means, *squares)
    if not w or not supported(*edited, *g) or not _all_contiguous(edited):
        return NotImplemented
    dtype = w[0].dtype
    given = _struct(dtype.char, *numbers)
    live = None if mailbox is None else mailbox.stage(numbers)
    g = [_contiguous(a) for a in g]
    rows = _table_rows(w, g, means, squares)
    for start in range(0, len(rows), TABLE):
        table = np.zeros((TABLE, rows.shape[1]), "int64")
        part = rows[start : start + TABLE]
        table[: len(part)] = part
        table[:, -1] = table[:, -1].cumsum()  # where the blocks of each row end
        blocks = int(table[-1, -1])
        _launch("update.update", dtype, (blocks,), np.void(table.tobytes()), given, live)


def _table_rows(w: Arrays, g: Arrays, means: Arrays, squares: Arrays) -> Any:
    """A row for each parameter: four addresses, its size, and its number of blocks."""
    addresses = []
    for arrays in (w, g, means, squares):
        addresses.append([a.data.ptr for a in arrays] or [0] * len(w))
    sizes = np.array([a.size for a in w])
    blocks = -(-sizes // (THREADS * EACH))
    return np.array([*addresses, sizes, blocks], "int64").T


@override(updates.sgd, on="cupy")
def sgd(w: Arrays, g: Arrays, velocities: Arrays, lr: float, momentum: float, decay: float) -> Any:
    means = velocities if momentum else ()
    return _update(w, g, means, (), lr, decay, momentum, 1, 0, 0, 1, 0)


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
    rate = lr / (1 - beta1**step)
    root = math.sqrt(1 - beta2**step)
    return _update(w, g, means, squares, rate, decay, beta1, 1 - beta1, beta2, 1 - beta2, root, eps)


def map_tiles(
    matrix: tuple[str, ...],
    images: Array,
    tiles: Window,
    points: Array,
    back: bool,
    uneven: Array | None = None,
) -> None:
    """points = matrix @ tile @ matrix.T for each tile of images (N, H, W, C), or back; points
    (points, tiles, C) are contiguous, and `matrix` defines a matrix for the compiler. The points of
    uneven tiles are 0."""
    n, h, w, c = images.shape
    strides = [stride // images.itemsize for stride in images.strides]
    places = tiles.output((n, c, h, w))
    shape = _struct("int64", *strides, h, w, c, *places, tiles.stride[0], *tiles.padding)
    source, target = (points, images) if back else (images, points)
    threads = points.size // len(points)
    options = (*matrix, f"-DBACK={back:d}")
    arguments = (source, target, uneven, shape, threads)
    _launch("tiles.map_tiles", images.dtype, threads, *arguments, options=options)


@cache
def _energies() -> Any:
    """A kernel that CuPy compiles: the sum of squares."""
    return _cupy().ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "energies")


def uneven_tiles(
    images: Array, tiles: Window, compared: Sequence[Compared], w: Array | None
) -> Array:
    """As in evenness.py, but always an array, and each tile is compared with its own windows. If
    filters w (O, C, k, k) are given and not even, no tile is."""
    n, height, width, c = images.shape
    places = tiles.output((n, c, height, width))
    range_of_w = None if w is None else _filter_range(w)
    filters, weights = (0, 0) if w is None else (len(w), w.size)
    out = _cupy().ndarray((n, *places), bool)
    energies = _energies()(images, axis=3)
    for i, (windows, results_places, results, _) in enumerate(compared):
        numbers = [height, width, *results_places, *places, filters, weights]
        for window in (tiles, windows, results):
            numbers += [window.kernel[0], window.stride[0], *window.padding]
        arguments = (
            energies,
            range_of_w,
            out,
            _struct("int64", *numbers),
            np.bool_(i > 0),
            out.size,
        )
        _launch("uneven.uneven_tiles", images.dtype, out.size, *arguments)
    return out


def _filter_range(w: Array) -> Array:
    """The largest square and the sum of squares of each filter w (O, C, k, k): (2, O)"""
    out = _empty((2, len(w)), w)
    geometry = _geometry(Window(w.shape[2:], (1, 1), (0, 0)), w[:1], w, None)
    _launch("uneven.filter_range", w.dtype, (len(w),), w, out, geometry)
    return out


def convolve_uneven(
    x: Array, w: Array, window: Window, uneven: Array, out: Array, meets_padding: bool
) -> None:
    """Write the outputs of uneven tiles, by the definition of convolution. In a gradient, weights
    do not meet the padding."""
    blocks = out.size // len(w)
    geometry = _geometry(window, x, w, out)
    arguments = (x, w, uneven, out, geometry, np.bool_(meets_padding))
    _launch("uneven.convolve_uneven", x.dtype, (blocks,), *arguments)


def add_filter_gradient(
    x: Array, g: Array, window: Window, uneven_x: Array, uneven_g: Array, out: Array
) -> None:
    """Add what the outputs of tiles contribute that are uneven in x or in g; out (O, C, k, k) is
    contiguous."""
    geometry = _geometry(window, x, out, g)
    arguments = (x, g, uneven_x, uneven_g, out, geometry)
    _launch("uneven.add_filter_gradient", x.dtype, out.size, *arguments)


def _geometry(window: Window, x: Array, w: Array, out: Array | None) -> Any:
    """The struct Geometry of a convolution of x with w."""
    n, c, height, width = x.shape
    rows, columns = window.output(x.shape)
    numbers = [n, height, width, c, len(w), window.kernel[0], *window.padding]
    numbers += [rows, columns, -(-rows // STEP), -(-columns // STEP)]
    for array in (x, w, x if out is None else out):
        numbers += [stride // array.itemsize for stride in array.strides]
    return _struct("int64", *numbers)
