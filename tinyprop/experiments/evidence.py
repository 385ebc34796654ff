"""From runs to verdicts: intervals over random seeds, and what they say about a claim.

Two settings are compared by the differences of their runs of the same seed, which see the same images in the same
order. One 95 % interval (Student's t) of the mean answers every question; a difference below a margin does not matter.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..estimate import Estimate
from .record import Record

Verdict = bool | None  # None: the runs cannot tell


@dataclass(frozen=True)
class Measure:
    """A number of a run that did not diverge."""

    name: str
    unit: str  # of levels; differences of % are points
    of: Callable[[Record], float]
    better: int = -1  # 1 if more is better, -1 if less is
    margin: float = 0.0
    form: str = ".3f"
    spread: bool = False  # compare distances from the median: which setting varies less between random seeds


ACCURACY = Measure("test accuracy", " %", lambda record: record.accuracy, better=1, margin=1.0, form=".1f")
LOSS = Measure("test loss", " nats", lambda record: record.loss, margin=0.03)
ENDPOINTS = (ACCURACY, LOSS)


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, over the random seeds that both have."""

    measure: Measure
    ours: Mapping[int, float]  # by random seed
    theirs: Mapping[int, float]
    diverged: tuple[int, int] = (0, 0)  # runs of ours and of theirs

    @property
    def difference(self) -> Estimate:
        seeds = sorted(self.ours.keys() & self.theirs.keys())
        return Estimate.of([self.ours[seed] - self.theirs[seed] for seed in seeds])

    @property
    def interval(self) -> tuple[float, float]:
        """How much better ours is. Survivors of a setting that sometimes diverges are a biased sample, and decide
        nothing; a setting that never diverged is better than one that always did."""
        if self.diverged[1] and self.ours and not self.theirs and not self.diverged[0]:
            return math.inf, math.inf
        if self.diverged[0] and self.theirs and not self.ours and not self.diverged[1]:
            return -math.inf, -math.inf
        if any(self.diverged) or not self.difference.n:
            return -math.inf, math.inf
        mean, half_width = self.measure.better * self.difference.mean, self.difference.half_width
        return mean - half_width, mean + half_width

    def better(self) -> Verdict:
        """Whether ours is better; it is not if it is worse, or alike."""
        low, high = self.interval
        return True if low > 0 else False if high < 0 or self.alike() else None

    def alike(self) -> Verdict:
        """Whether the difference is too small to matter: the interval is inside the margins, or wholly outside."""
        (low, high), margin = self.interval, self.measure.margin
        return True if -margin < low and high < margin else False if low > margin or high < -margin else None

    def at_least_as_good(self) -> Verdict:
        """Whether ours is better, or worse by less than matters (one-sided)."""
        low, high = self.interval
        return True if low > -self.measure.margin else False if high < -self.measure.margin else None

    @property
    def outcome(self) -> str:
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "alike" if self.alike() else "cannot tell"

    def __str__(self) -> str:
        unit = self.measure.unit.replace("%", "points")
        text = f"{self.difference:+{self.measure.form}}{unit}" if self.difference.n else "no pair of runs"
        lost = f"; {self.diverged[0]} and {self.diverged[1]} runs diverged" if any(self.diverged) else ""
        return f"{text} ({self.outcome}{lost})"


def all_hold(verdicts: Iterable[Verdict]) -> Verdict:
    """Whether all of some claims hold: not if one does not, unknown if one of the others is unknown.

    >>> all_hold([True, True]), all_hold([True, None]), all_hold([None, False])
    (True, None, False)
    """
    found = set(verdicts)
    return False if False in found else None if None in found else True


def deviations(values: Mapping[int, float]) -> dict[int, float]:
    """How far each value is from the median."""
    return {seed: abs(value - statistics.median(values.values())) for seed, value in values.items()}


def roughness(losses: Sequence[float]) -> float:
    """The root mean square of a loss curve about a smooth one: a cubic polynomial in the logarithm of the step."""
    if len(losses) < 6:
        return 0.0
    steps = np.log(np.arange(len(losses)) + 0.5)
    rest = np.array(losses) - np.polyval(np.polyfit(steps, losses, 3), steps)
    return float(np.sqrt((rest**2).sum() / (len(losses) - 4)))
