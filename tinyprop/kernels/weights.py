"""Fully connected layers, updates and the unit-length constraint on the host, on as many threads as
the training has: what has more weights than activations is shared out by rows of the weights, not
by samples."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import HostArray
from ..engine.graph import Op
from ..engine.overrides import override
from ..engine.tensor import Tensor
from ..engine.threads import allowed, spread
from ..functional.linear import Linear, Matmul
from ..functional.normalization import WeightNorm
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


class ScaledLinear(Op):
    """x (N, in) @ w.T for rows of w (out, in) at length scale[i] * factor, as the paper writes it:
    the outputs are scaled, which are fewer than the weights."""

    floating = True

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, x: HostArray, w: HostArray, scale: HostArray) -> HostArray:
        length, product = np.sqrt(np.einsum("ij,ij->i", w, w)), _product(x, w.T)
        if self.recorded:
            self.cache["product"] = length, product
        return product * (scale * self.factor / length)

    def backward(self, g: Tensor, x: Tensor, w: Tensor, scale: Tensor) -> Any:
        of_w, of_scale = WeightNorm(self.factor).backward(g.T @ x, w, scale)
        return lambda: g @ F.weight_norm(w, scale, self.factor), of_w, of_scale


@override(ScaledLinear.backward, on="numpy")
def scaled_linear_gradient(
    op: ScaledLinear, g: HostArray, x: HostArray, w: HostArray, scale: HostArray
) -> Any:
    length, product = op.cache["product"]
    g_product, g_scale = (
        g * (scale * op.factor / length),
        np.einsum("ij,ij->j", g, product) * (op.factor / length),
    )
    g_w, along = _product(g_product.T, x), (g_scale * scale / length**2)[:, None]

    def project(_: int, rows: slice) -> None:
        g_w[rows] -= w[rows] * along[rows]

    _spread_blocks(project, [w])
    return lambda: _product(g_product, w), g_w, g_scale
