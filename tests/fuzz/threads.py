"""Training steps of random networks on 1, 2 and 3 threads, and twice with the same seed: the bits
of losses and weights are the same.

Kernels cut large arrays only. Most cases make blocks smaller, so that small networks will do."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import trained

from .case import Case, Random, bit_difference, chance, choice, integer
from .networks import draw_model, one_line


def across_the_batch(outputs: tp.Tensor, labels: Any) -> tp.Tensor:
    """A loss that parts of a batch do not have."""
    return (outputs - outputs.mean(axis=0)).norm() + F.cross_entropy(outputs, labels)


# how many elements a block has, or how many multiplications are worth cutting
BLOCKS = {
    "host": (
        "COLUMNS_AT_ONCE",
        "PIXELS_AT_ONCE",
        "POOLED_AT_ONCE",
        "ROWS_AT_ONCE",
        "SUMMED_AT_ONCE",
    ),
    "pointwise": ("OUTPUTS_AT_ONCE",),
    "weights": ("WEIGHTS_AT_ONCE", "MULTIPLICATIONS"),
}


@contextmanager
def blocks_divided_by(factor: int) -> Iterator[None]:
    """Inside the block, kernels cut arrays into blocks that are smaller by this factor."""
    with ExitStack() as stack:
        if find_spec("tinyprop.kernels") is not None:
            for module_name, names in BLOCKS.items():
                module = import_module(f"tinyprop.kernels.{module_name}")
                for name in names:
                    smaller = getattr(module, name) // factor
                    stack.enter_context(patch.object(module, name, smaller))
        yield


LOSSES = {
    "cross_entropy": F.cross_entropy,
    "cross_entropy, smoothed": partial(F.cross_entropy, label_smoothing=0.1),
    "cross_entropy, summed": partial(F.cross_entropy, reduction="sum"),
    "a loss across the batch": across_the_batch,
}


def draw(rng: Random) -> Case:
    model = draw_model(rng)
    loss = choice(rng, LOSSES)
    optimizer = choice(rng, [tp.optim.SGD, tp.optim.RMSProp, tp.optim.Adam])
    steps = integer(rng, 1, 3)
    plain = chance(rng, 0.2)
    factor = choice(rng, [1, 64, 256])
    words = f"{steps} steps of {optimizer.__name__} with {loss} on {model.x.shape}, blocks divided "
    words += f"by {factor}{', without overrides' if plain else ''}: {one_line(model.make())}"

    def result(threads: int) -> dict[str, Any]:
        losses, state = trained(
            model.make(),
            model.x,
            model.labels,
            steps,
            lr=0.001,
            optimizer=optimizer,
            loss=LOSSES[loss],
            threads=threads,
        )
        return {"losses": losses, **state}

    def check() -> str | None:
        with blocks_divided_by(factor), tp.plain() if plain else nullcontext():
            return compared()

    def compared() -> str | None:
        one = result(threads=1)
        for threads in (2, 3, 1):
            if complaint := bit_difference(result(threads), one):
                return f"with {threads} threads instead of 1 {complaint}"
        return None

    return Case(words, check)
