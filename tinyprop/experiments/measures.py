"""What is measured in a run, by name, besides the two endpoints."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .evidence import ENDPOINTS, Measure
from .record import Layer, Record

HIDDEN, LOWER = range(2, 10), range(2, 6)  # the paper's "last 8 layers", and its "lower hidden layers"


def final_mean(layer: Layer) -> float:
    return layer.size[-1]


def movement(layer: Layer) -> float:
    """How far means move in an epoch; the first epoch leaves the random start and does not count."""
    return statistics.fmean(layer.moved[2:] or layer.moved)


def averaged(name: str, of: Callable[[Layer], float], layers: Iterable[int], but_largest: int = 0) -> Measure:
    """A number of each layer, averaged over some layers, without the largest few."""

    def average(record: Record) -> float:
        values = sorted(of(record.layers[i - 1]) for i in layers)
        return statistics.fmean(values[: len(values) - but_largest])

    return Measure(name, "", average)


def roughness(losses: Sequence[float]) -> float:
    """The root mean square of a loss curve about a smooth one: a cubic polynomial in the logarithm of the step."""
    if len(losses) < 6:
        return 0.0
    steps = np.log(np.arange(len(losses)) + 0.5)
    rest = np.array(losses) - np.polyval(np.polyfit(steps, losses, 3), steps)
    return float(np.sqrt((rest**2).sum() / (len(losses) - 4)))


FINAL_MEAN = averaged("final mean input", final_mean, HIDDEN)
BUT_ONE = averaged("without the largest layer", final_mean, HIDDEN, but_largest=1)
LARGEST_RATE = Measure("largest rate", "octaves", lambda record: math.nan, better=1, form=".1f")  # of several runs

MEASURES = {
    measure.name: measure
    for measure in (
        *ENDPOINTS,
        FINAL_MEAN,
        BUT_ONE,
        LARGEST_RATE,
        averaged("movement", movement, LOWER),
        Measure("distance from the median", "%", lambda r: r.accuracies()[0], form=".2f", spread=True),
        Measure("roughness", "nats", lambda record: roughness(record.losses), form=".4f"),
    )
}
