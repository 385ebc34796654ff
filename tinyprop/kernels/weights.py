"""Fully connected layers, updates and the unit-length constraint on the host, on as many threads as
the training has: what has more weights than activations is shared out by rows of the weights, not
by samples."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..engine.context import current
from ..engine.threads import for_each
from ..functional.linear import Linear, Matmul
from ..functional.normprop import NormalizedLinear
from ..optim import updates
from .pointwise import blocks

WEIGHTS_AT_ONCE = 2**16  # elements of each array, 256 KB in float32
MULTIPLICATIONS = 2**22  # of a product that is worth several threads


def _spread_blocks(work: Callable[[int, Any], None], arrays: list[HostArray]) -> None:
    """work(i, rows) on blocks of rows of all arrays[i], which stay in the cache."""
    pieces = [
        (i, rows)
        for i, a in enumerate(arrays)
        for rows in (blocks(a, WEIGHTS_AT_ONCE) if a.ndim else [...])
    ]

    def some(where: slice) -> None:
        for i, rows in pieces[where]:
            work(i, rows)

    spread(some, len(pieces)) if sum(a.size for a in arrays) > WEIGHTS_AT_ONCE else some(
        slice(None)
    )


def _in_blocks(rule: Callable[..., None]) -> None:
    """Let a rule that updates lists of arrays do so block by block: the same bits, as no row
    depends on another."""
    plain = rule.rule  # type: ignore[attr-defined]

    def update(*arguments: Any) -> None:
        lists = [a for a in arguments if isinstance(a, list)]
        _spread_blocks(
            lambda i, rows: plain(
                *([arrays[i][rows]] for arrays in lists), *arguments[len(lists) :]
            ),
            lists[0],
        )

    update.__name__ = plain.__name__
    override(rule, on="numpy")(update)


for _rule in (updates.sgd, updates.rmsprop, updates.adam, updates.unit_rows):
    _in_blocks(_rule)


def _product(x: HostArray, y: HostArray) -> HostArray:
    """x @ y; of a large product of matrices (N, K) and (K, M) each thread gets a piece along the
    longer side."""
    if x.ndim != 2 or y.ndim != 2 or allowed() < 2 or x.size * y.shape[1] < MULTIPLICATIONS:
        return x @ y
    out = np.empty((len(x), y.shape[1]), np.result_type(x, y))

    def some(where: slice) -> None:
        if len(x) >= y.shape[1]:
            np.matmul(x[where], y, out=out[where])
        else:
            np.matmul(x, y[:, where], out=out[:, where])

    spread(some, max(out.shape))
    return out


@override(Matmul.forward, on="numpy")
def matmul(op: Matmul, x: HostArray, y: HostArray) -> Any:
    return _product(x, y)


@override(Linear.forward, on="numpy")
def linear(op: Linear, x: HostArray, w: HostArray) -> Any:
    return _product(x, w.T)


@override(NormalizedLinear.forward, on="numpy")
def normalized_linear(op: NormalizedLinear, x: HostArray, w: HostArray, gamma: HostArray) -> Any:
    length = np.sqrt(np.einsum("ij,ij->i", w, w))
    raw = _product(x, w.T)
    if op.recorded:
        op.cache["raw"] = length, raw
    return raw * (gamma / length)


@override(NormalizedLinear.backward, on="numpy")
def normalized_linear_gradient(
    op: NormalizedLinear, g: HostArray, x: HostArray, w: HostArray, gamma: HostArray
) -> Any:
    """With the outputs before they were scaled, gamma's gradient needs no pass over the weights."""
    if "raw" not in op.cache:
        return NotImplemented
    length, raw = op.cache["raw"]
    g_raw = g * (gamma / length)
    g_gamma = np.einsum("ij,ij->j", g, raw) / length
    g_w = _product(g_raw.T, x)
    along = (g_gamma * gamma / length**2)[:, None]

    def project(_: int, rows: slice) -> None:
        g_w[rows] -= w[rows] * along[rows]

    _spread_blocks(project, [w])
    return lambda: _product(g_raw, w), g_w, g_gamma
