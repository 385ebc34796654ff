"""Updates of optimisers on the host, a block of elements at a time: what a block needs stays in the cache."""

from collections.abc import Callable, Iterator
from typing import Any

from ..engine.arrays import Array
from ..engine.overrides import override
from ..optim import adam, rmsprop, sgd

BLOCK = 1 << 15  # elements


def blocks(w: Array, g: Array, *memory: Array) -> Iterator[list[Array]]:
    """Arrays of one shape cut into flat pieces in the order of w's memory; those of w and of memory are views."""
    order = sorted(range(w.ndim), key=lambda axis: -w.strides[axis])
    arrays = [a.transpose(order) for a in (w, g, *memory)]
    if not all(a.flags.c_contiguous for a in (arrays[0], *arrays[2:])):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, w.size, BLOCK):
        yield [a[start : start + BLOCK] for a in flat]


def in_blocks(update: Callable[..., None], count: int) -> None:
    """Register an update, of which the first `count` arguments are lists of arrays, block by block."""
    rule = update.rule  # type: ignore[attr-defined]

    def blocked(*arguments: Any) -> None:
        for arrays in zip(*arguments[:count], strict=True):
            for block in blocks(*arrays):
                rule(*([piece] for piece in block), *arguments[count:])

    blocked.__name__ = f"blocked_{update.__name__}"
    override(update, on="numpy")(blocked)


in_blocks(sgd, 3)
in_blocks(rmsprop, 3)
in_blocks(adam, 4)
