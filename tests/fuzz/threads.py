"""Training steps of random networks on 1, 2 and 3 threads, and twice with the same seed: the bits
of losses and weights are the same."""

from functools import partial
from typing import Any

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import trained

from .case import Case, Random, bit_difference, chance, choice, integer
from .networks import draw_model, one_line


def across_the_batch(outputs: tp.Tensor, labels: Any) -> tp.Tensor:
    """A loss that parts of a batch do not have."""
    return (outputs - outputs.mean(axis=0)).norm() + F.cross_entropy(outputs, labels)


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
    words = f"{steps} steps of {optimizer.__name__} with {loss} on {model.x.shape}"
    words += f"{', without overrides' if plain else ''}: {one_line(model.make())}"

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
        if plain:
            with tp.plain():
                return compared()
        return compared()

    def compared() -> str | None:
        one = result(threads=1)
        for threads in (2, 3, 1):
            if complaint := bit_difference(result(threads), one):
                return f"with {threads} threads instead of 1 {complaint}"
        return None

    return Case(words, check)
