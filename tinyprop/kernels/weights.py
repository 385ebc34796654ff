"""Fully connected layers, weight normalisation and updates on the host. Large ones are shared among
threads by rows of the weights or of the samples.

Times are as in host.py; "two threads" are milliseconds of the clock."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.arrays import HostArray, float32, float64
from ..engine.context import current
from ..engine.overrides import override
from ..engine.sums import FEW, total
from ..engine.threads import for_each
from ..functional.linear import Affine, Linear, Matmul
from ..functional.normalization import WeightNorm, per_channel, row_lengths
from ..functional.normprop import NormalizedLinear
from ..optim import updates
from .pointwise import blocks
from .products import ones

WEIGHTS_AT_ONCE = 2**16  # elements of each array, 256 KB in float32
WORTH_SHARING = 2**18  # elements of all arrays that are updated
MULTIPLICATIONS = 2**22  # of a product that is worth several threads
PIECES = 4  # of such a product
GROUP = 128  # products that are added in float32


def _for_rows(work: Callable[[int, Any], None], arrays: list[HostArray]) -> None:
    """work(i, rows) on blocks of rows of all arrays[i], which stay in the cache."""
    pieces: list[tuple[int, Any]] = []
    for i, array in enumerate(arrays):
        for rows in blocks(array, WEIGHTS_AT_ONCE) if array.ndim else [...]:
            pieces.append((i, rows))
    for_each(lambda piece: work(*piece), pieces)


def _share_rows(rule: Callable[..., None]) -> None:
    """Let several threads share a rule that updates lists of arrays, by blocks of rows: the same
    bits, as no row depends on another. Where there is little to do, this gains nothing. On two
    threads, a step of an MLP 784-1024-1024-10 on 128 samples takes 0.93 of its time with SGD, 0.85
    with RMSProp and Adam."""
    plain = rule.rule  # type: ignore[attr-defined]

    def update(*arguments: Any) -> Any:
        if current().thread_limit < 2:
            return NotImplemented
        lists = [argument for argument in arguments if isinstance(argument, list)]
        numbers = arguments[len(lists) :]
        elements = sum(array.size for array in lists[0])
        if elements < WORTH_SHARING:
            return NotImplemented

        def update_rows(i: int, rows: Any) -> None:
            block = [[arrays[i][rows]] for arrays in lists]
            plain(*block, *numbers)

        _for_rows(update_rows, lists[0])
        return None

    update.__name__ = plain.__name__
    override(rule, on="numpy")(update)


_share_rows(updates.sgd)
_share_rows(updates.rmsprop)
_share_rows(updates.adam)


def _product(x: HostArray, y: HostArray) -> HostArray:
    """x @ y. Of two matrices, `dot` gives the same a microsecond sooner. A large product of (N, K)
    and (K, M) is cut along its longer side, whatever the number of threads, because a cut may
    change the last bits."""
    if x.ndim != 2 or y.ndim != 2:
        return x @ y
    n, m = len(x), y.shape[1]
    if x.size * m < MULTIPLICATIONS:
        return x.dot(y)
    out = np.empty((n, m), np.result_type(x, y))

    def some_rows(rows: slice) -> None:
        np.matmul(x[rows], y, out=out[rows])

    def some_columns(columns: slice) -> None:
        np.matmul(x, y[:, columns], out=out[:, columns])

    if n >= m:
        for_each(some_rows, _equal_slices(n, PIECES))
    else:
        for_each(some_columns, _equal_slices(m, PIECES))
    return out


def _equal_slices(size: int, count: int) -> list[slice]:
    return [slice(size * i // count, size * (i + 1) // count) for i in range(count)]


@override(Matmul.forward, on="numpy")
def matmul(op: Matmul, x: HostArray, y: HostArray) -> Any:
    """x @ y, on several threads if it is large: a step of relu(x @ w) @ v on 128 samples, with 784,
    1024 and 10 units, takes 0.8 of its time on two threads."""
    return _product(x, y)


@override(Linear.forward, on="numpy")
def linear(op: Linear, x: HostArray, w: HostArray) -> Any:
    """x @ w.T, on several threads if it is large: as `matmul`."""
    return _product(x, w.T)


@override(Linear.backward, on="numpy")
def linear_gradients(op: Linear, g: HostArray, x: HostArray, w: HostArray) -> Any:
    """g @ w and g.T @ x, without ops in between: a small step spends its time in Python. One of
    784-100-10 on 50 samples without biases takes 0.94 of it."""
    return lambda: _product(g, w), lambda: _product(g.T, x)


@override(Affine.forward, on="numpy")
def affine(op: Affine, x: HostArray, w: HostArray, bias: Any) -> Any:
    """x @ w.T + bias, the bias added in place, and on several threads if it is large: as
    `matmul`."""
    if not _is_row_of(bias, w):
        return NotImplemented
    out = _product(x, w.T)
    out += bias
    return out


@override(Affine.backward, on="numpy")
def affine_gradients(op: Affine, g: HostArray, x: HostArray, w: HostArray) -> Any:
    """g @ w, g.T @ x and the sum of g over the samples, without ops in between: 26 > 13 us for 50
    samples of 100 to 10 features."""
    bias = op.parents[2] if op.parents else None
    if bias is not None and bias.shape != g.shape[1:]:
        return NotImplemented
    return lambda: _product(g, w), lambda: _product(g.T, x), lambda: row_sum(g)


def _is_row_of(bias: Any, w: HostArray) -> bool:
    """Whether there is one for each row of w, of the same dtype."""
    is_array = isinstance(bias, np.ndarray)
    return is_array and bias.shape == w.shape[:1] and bias.dtype == w.dtype


def row_sum(g: HostArray) -> HostArray:
    """g.sum(axis=0). A few rows are added by a product, in a third of the time."""
    if g.dtype.itemsize >= 4 and len(g) <= FEW:
        return ones(len(g), g.dtype).dot(g)
    return total(g, 0)


@override(NormalizedLinear.forward, on="numpy")
def normalized_linear(op: NormalizedLinear, x: HostArray, w: HostArray, gamma: HostArray) -> Any:
    """x @ w.T * (gamma / length). The lengths and the products are kept for the gradient."""
    length = row_lengths(w)
    raw = _product(x, w.T)
    if op.recorded:
        op.cache["raw"] = length, raw
    return raw * (gamma / length).astype(w.dtype)


@override(NormalizedLinear.backward, on="numpy")
def normalized_linear_gradient(
    op: NormalizedLinear, g: HostArray, x: HostArray, w: HostArray, gamma: HostArray
) -> Any:
    """g_raw @ w, g_raw.T @ x - w * along and g_gamma, with g_raw = g * (gamma / length), g_gamma =
    (g * raw).sum(0) / length and along = g_gamma * gamma / length^2. With `raw`, the outputs before
    they were scaled, this needs no pass over the weights. 0.39 > 0.13 ms for 50 samples of 784 to
    100 features."""
    if "raw" not in op.cache:
        return NotImplemented
    length, raw = op.cache["raw"]
    g_raw = g * (gamma / length).astype(g.dtype)
    g_gamma = total(g * raw, 0, dtype=length.dtype) / length
    g_w = _product(g_raw.T, x)
    along = (g_gamma * gamma / length**2).astype(w.dtype)[:, None]

    def project(_: int, rows: slice) -> None:
        g_w[rows] -= w[rows] * along[rows]

    _for_rows(project, [w])
    return lambda: _product(g_raw, w), g_w, g_gamma.astype(g.dtype)


@override(row_lengths, on="numpy")
def row_lengths_by_groups(w: HostArray) -> Any:
    """np.sqrt((w * w).sum(1)) with sums in float64, without an array of squares: a step of an MLP
    784-100-10 with NormProp on 50 samples takes 0.93 of its time."""
    if w.dtype != float32:
        return NotImplemented
    return np.sqrt(_row_products(w, w))


def _row_products(x: HostArray, y: HostArray) -> HostArray:
    """(x * y).sum(axis=1) for rows of any shape, without an array of products: float32 is added in
    groups, and the groups in float64."""
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    y = y.reshape(x.shape)
    rows, columns = x.shape
    count = columns // GROUP
    end = count * GROUP
    rest = np.vecdot(x[:, end:], y[:, end:])
    if not count:
        return rest.astype(float64)
    groups = rows, count, GROUP
    sums = np.vecdot(x[:, :end].reshape(groups), y[:, :end].reshape(groups))
    return sums.sum(axis=1, dtype=float64) + rest


@override(WeightNorm.forward, on="numpy")
def weight_norm(op: WeightNorm, w: HostArray, scale: HostArray) -> Any:
    """w * (scale * factor / length) for each row. The lengths are kept for the gradient."""
    if w.dtype.itemsize < 4 or scale.dtype != w.dtype:
        return NotImplemented
    length = row_lengths(w)
    times = scale * op.factor / length
    if op.recorded:
        op.cache["lengths"] = length, times
    return w * per_channel(times.astype(w.dtype), w.ndim)


@override(WeightNorm.backward, on="numpy")
def weight_norm_gradient(op: WeightNorm, g: HostArray, w: HostArray, scale: HostArray) -> Any:
    """(g - unit * along) * (scale * factor / length) and along * factor, with unit = w / length and
    along = (g * unit).sum(axis=1). 0.23 > 0.08 ms for 64 filters of 32x5x5."""
    if "lengths" not in op.cache:
        return NotImplemented
    length, times = op.cache["lengths"]
    along = _row_products(g, w) / length
    g_w = g * per_channel(times.astype(g.dtype), w.ndim)
    g_w -= w * per_channel((along * times / length).astype(g.dtype), w.ndim)
    return g_w, (along * op.factor).astype(g.dtype)
