"""Optimizers and the unit-length constraint on the host: their own rules, applied to blocks of rows that stay in the
cache from the first step to the last, on as many threads as the training has."""

from collections.abc import Callable
from typing import Any

from .. import optim
from ..engine.overrides import override
from ..threads import spread
from .pointwise import blocks

WEIGHTS_AT_ONCE = 2**16  # elements of each array, 256 KB in float32


def _in_blocks(rule: Callable[..., None]) -> None:
    """Let a rule that updates lists of arrays do so block by block: the same bits, as no row depends on another."""
    plain = rule.rule  # type: ignore[attr-defined]

    def update(*arguments: Any) -> None:
        lists = [a for a in arguments if isinstance(a, list)]
        pieces = [
            (i, rows) for i, w in enumerate(lists[0]) for rows in (blocks(w, WEIGHTS_AT_ONCE) if w.ndim else [...])
        ]

        def some(where: slice) -> None:
            for i, rows in pieces[where]:
                plain(*([arrays[i][rows]] for arrays in lists), *arguments[len(lists) :])

        spread(some, len(pieces))

    update.__name__ = plain.__name__
    override(rule, on="numpy")(update)


for _rule in (optim.sgd, optim.rmsprop, optim.adam, optim.unit_rows):
    _in_blocks(_rule)
