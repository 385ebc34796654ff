"""Fully connected layers, updates and the unit-length constraint on the host, shared among threads
by rows of the weights or of the samples."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.context import current
from ..engine.overrides import override
from ..engine.sums import total
from ..engine.threads import for_each
from ..functional.linear import Linear, Matmul
from ..functional.normalization import row_lengths
from ..functional.normprop import NormalizedLinear
from ..optim import updates
from .pointwise import blocks

WEIGHTS_AT_ONCE = 2**16  # elements of each array, 256 KB in float32
WORTH_SHARING = 2**18  # elements of all arrays that are updated
MULTIPLICATIONS = 2**22  # of a product that is worth several threads
PIECES = 4  # of such a product


def _for_rows(work: Callable[[int, Any], None], arrays: list[HostArray]) -> None:
    """work(i, rows) on blocks of rows of all arrays[i], which stay in the cache."""
    pieces: list[tuple[int, Any]] = []
    for i, array in enumerate(arrays):
        for rows in blocks(array, WEIGHTS_AT_ONCE) if array.ndim else [...]:
            pieces.append((i, rows))
    for_each(lambda piece: work(*piece), pieces)


def _share_rows(rule: Callable[..., None]) -> None:
    """Let several threads share a rule that updates lists of arrays, by blocks of rows: the same
    bits, as no row depends on another. Where there is little to do, this gains nothing."""
    plain = rule.rule  # type: ignore[attr-defined]

    def update(*arguments: Any) -> Any:
        lists = [argument for argument in arguments if isinstance(argument, list)]
        numbers = arguments[len(lists) :]
        elements = sum(array.size for array in lists[0])
        if elements < WORTH_SHARING or current().thread_limit < 2:
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
_share_rows(updates.unit_rows)


def _product(x: HostArray, y: HostArray) -> HostArray:
    """x @ y. A large product of matrices (N, K) and (K, M) is cut along its longer side, whatever
    the number of threads, because a cut may change the last bits."""
    if x.ndim != 2 or y.ndim != 2:
        return x @ y
    n, m = len(x), y.shape[1]
    if x.size * m < MULTIPLICATIONS:
        return x @ y
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
    return _product(x, y)


@override(Linear.forward, on="numpy")
def linear(op: Linear, x: HostArray, w: HostArray) -> Any:
    return _product(x, w.T)


@override(NormalizedLinear.forward, on="numpy")
def normalized_linear(op: NormalizedLinear, x: HostArray, w: HostArray, gamma: HostArray) -> Any:
    length = row_lengths(w)
    raw = _product(x, w.T)
    if op.recorded:
        op.cache["raw"] = length, raw
    return raw * (gamma / length).astype(w.dtype)


@override(NormalizedLinear.backward, on="numpy")
def normalized_linear_gradient(
    op: NormalizedLinear, g: HostArray, x: HostArray, w: HostArray, gamma: HostArray
) -> Any:
    """With the outputs before they were scaled, gamma's gradient needs no pass over the weights."""
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
