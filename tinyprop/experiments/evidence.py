"""From runs to verdicts, by the rule of preregistration.toml.

Two settings are compared by the differences of their runs of the same seed, which see the same
images in the same order. One interval of the mean difference answers every question; a difference
below a margin does not matter.

A claim is judged at looks: after 6, 12 and 24 runs of each of its settings, or as many as are
planned. Its verdict is wrong with a probability of at most `level`; O'Brien and Fleming's function
says how much of it may be spent by each look, little at first. The primary claims share one level
by Holm's method: those that are decided leave their share to the others. (For verdicts in both
directions this is proven if claims are independent; the tests simulate it.)"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..report.estimate import Estimate
from .record import Layer, Record
from .scales import table

REGISTERED = table("preregistration.toml")
LEVEL = 1.0 - REGISTERED["rule"]["confidence"]
LOOKS = REGISTERED["rule"]["looks"]
POWER = 0.8  # with which a difference is found

Verdict = bool | None  # None: the runs cannot tell


@dataclass(frozen=True)
class Measure:
    """A number of a run that did not diverge, or a number for each test image, whose mean
    counts."""

    name: str
    unit: str  # of levels
    of: Callable[[Any], Any]  # of a Record
    better: int = -1  # 1 if more is better, -1 if less is
    margin: float = 0.0
    form: str = ".3f"
    # compare distances from the median: which setting varies less between random seeds
    spread: bool = False
    whole: bool = False  # whole numbers

    @property
    def difference_unit(self) -> str:
        return self.unit.replace("%", "points")


MARGINS = {name: endpoint["margin"] for name, endpoint in REGISTERED["endpoints"].items()}
ACCURACY = Measure(
    "test accuracy", "%", lambda r: 100.0 * r.test.image_correct(), 1, MARGINS["accuracy"], ".1f"
)
LOSS = Measure(
    "test loss", "nats", lambda record: record.test.image_losses(), margin=MARGINS["loss"]
)
ENDPOINTS = (ACCURACY, LOSS)


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, over the random seeds that both have."""

    measure: Measure
    difference: Estimate
    diverged: tuple[int, int] = (0, 0)  # runs of ours and of theirs
    survived: tuple[bool, bool] = (True, True)  # whether ours and theirs have runs that did not

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """How much better ours is. Survivors of a setting that sometimes diverges are a biased
        sample, and decide nothing; a setting that never diverged is better than one that always
        did. Whole numbers that are equal for all seeds do not say how others would deviate, and
        decide nothing either."""
        if any(self.diverged) and not all(self.survived):
            never = [
                ran and not lost for ran, lost in zip(self.survived, self.diverged, strict=True)
            ]
            limit = math.inf if never[0] else -math.inf
            return (limit, limit) if any(never) else (-math.inf, math.inf)
        if (
            any(self.diverged)
            or not self.difference.n
            or (self.measure.whole and not self.difference.half_width)
        ):
            return -math.inf, math.inf
        mean, half_width = (
            self.measure.better * self.difference.mean,
            self.difference.half_width_at(1.0 - level),
        )
        return mean - half_width, mean + half_width

    def better(self, level: float = LEVEL) -> Verdict:
        """Whether ours is better; it is not if it is worse, or alike."""
        low, high = self.interval(level)
        return True if low > 0 else False if high < 0 or self.alike(level) else None

    def alike(self, level: float = LEVEL) -> Verdict:
        """Whether the difference is too small to matter: the interval is inside the margins, or
        wholly outside."""
        (low, high), margin = self.interval(level), self.measure.margin
        return (
            True
            if -margin < low and high < margin
            else False
            if low > margin or high < -margin
            else None
        )

    def at_least_as_good(self, level: float = LEVEL) -> Verdict:
        """Whether ours is better, or worse by less than matters (one-sided)."""
        low, high = self.interval(level)
        return (
            True if low > -self.measure.margin else False if high < -self.measure.margin else None
        )

    @property
    def outcome(self) -> str:
        low, high = self.interval()
        return (
            "better"
            if low > 0
            else "worse"
            if high < 0
            else "alike"
            if self.alike()
            else "cannot tell"
        )

    @property
    def width(self) -> float:
        """Of the interval, in margins; without a margin, in differences. 0 if more runs cannot make
        it narrower."""
        scale = self.measure.margin or abs(self.difference.mean)
        fixed, width = any(self.diverged) or not scale, self.difference.half_width
        return 0.0 if fixed else width / scale if self.difference.n > 1 else math.inf

    def detectable(self, level: float) -> float:
        """How far from 0, or from a margin, a true difference must be for as many seeds to find it
        with POWER."""
        found, power = self.difference, statistics.NormalDist().inv_cdf(POWER)
        return found.half_width_at(1.0 - level) + power * found.standard_error

    def __str__(self) -> str:
        lost = (
            [f"{self.diverged[0]} and {self.diverged[1]} runs diverged"]
            if any(self.diverged)
            else []
        )
        outcome = [self.outcome] if lost or self.difference.n > 1 else []
        return self.number + (f" ({'; '.join(outcome + lost)})" if outcome else "")

    @property
    def number(self) -> str:
        form, unit = self.measure.form, f" {self.measure.difference_unit}".rstrip()
        few = ["no pair of runs", f"{self.difference.mean:+{form}}{unit} (one seed)"]
        return (
            few[self.difference.n] if self.difference.n < 2 else f"{self.difference:+{form}}{unit}"
        )


def compared(
    measure: Measure,
    ours: Mapping[int, Any],
    theirs: Mapping[int, Any],
    diverged: tuple[int, int] = (0, 0),
) -> Comparison:
    """From what each random seed gives: a number, or a number for each test image."""
    pairs = [np.asarray(ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    many = len(pairs) > 1 and pairs[0].ndim
    difference = (
        Estimate.crossed(np.stack(pairs))
        if many
        else Estimate.of([float(pair.mean()) for pair in pairs])
    )
    return Comparison(measure, difference, diverged, (bool(ours), bool(theirs)))


# -- verdicts on claims

Rule = Callable[[Comparison, float], Verdict]
# the fraction of the planned runs that are there, and what they say
Look = tuple[float, Sequence[Comparison]]


def judged(rule: Rule, comparisons: Sequence[Comparison], level: float) -> Verdict:
    """Whether a rule holds for all comparisons. As one that fails is enough for a "no", they share
    the level for it."""
    if any(rule(comparison, level / len(comparisons)) is False for comparison in comparisons):
        return False
    return True if all(rule(comparison, level) for comparison in comparisons) else None


def looks(planned: int) -> list[int]:
    """After how many runs of each setting a claim may be decided.

    >>> looks(24), looks(16), looks(4)
    ([6, 12, 24], [6, 12, 16], [4])
    """
    return [*(n for n in LOOKS if n < planned), planned]


def spent(level: float, fraction: float) -> float:
    """How much of the level may be spent by the time that this fraction of the runs is there
    (O'Brien and Fleming).

    >>> [round(spent(0.05, n / 24), 5) for n in LOOKS]
    [9e-05, 0.00557, 0.05]
    """
    normal = statistics.NormalDist()
    return 2.0 * normal.cdf(normal.inv_cdf(level / 2) / math.sqrt(fraction))


def first_verdict(rule: Rule, looks: Sequence[Look], level: float) -> Verdict:
    """That of the first look that decides, each at what may be spent since the look before."""
    before = 0.0
    for fraction, comparisons in looks:
        total = spent(level, fraction)
        verdict = judged(rule, comparisons, total - before)
        if verdict is not None:
            return verdict
        before = total
    return None


def holm(
    judges: Sequence[Callable[[float], Verdict]], family: int, level: float = LEVEL
) -> list[Verdict]:
    """The verdicts on claims of a family, whose judges want a level."""
    verdicts: list[Verdict] = [None] * len(judges)
    while True:
        share = level / max(1, family - sum(verdict is not None for verdict in verdicts))
        found = [
            judge(share) if v is None else v for v, judge in zip(verdicts, judges, strict=True)
        ]
        if found == verdicts:
            return verdicts
        verdicts = found


# -- measures of a run

# the paper's "last 8 layers", and its "lower hidden layers"
HIDDEN, LOWER = range(2, 10), range(2, 6)


def final_mean(layer: Layer) -> float:
    return layer.size[-1]


def movement(layer: Layer) -> float:
    """How far means move in an epoch; the first epoch leaves the random start and does not
    count."""
    return statistics.fmean(layer.moved[2:] or layer.moved)


def averaged(
    name: str, of: Callable[[Layer], float], layers: Iterable[int], but_largest: int = 0
) -> Measure:
    """A number of each layer, averaged over some layers, without the largest few."""

    def average(record: Record) -> float:
        values = sorted(of(record.layers[i - 1]) for i in layers)
        return statistics.fmean(values[: len(values) - but_largest])

    return Measure(name, "", average)


def roughness(losses: Sequence[float]) -> float:
    """The root mean square of a loss curve about a smooth one: a cubic polynomial in the logarithm
    of the step."""
    if len(losses) < 6:
        return 0.0
    steps = np.log(np.arange(len(losses)) + 0.5)
    rest = np.array(losses) - np.polyval(np.polyfit(steps, losses, 3), steps)
    return float(np.sqrt((rest**2).sum() / (len(losses) - 4)))


def deviations(values: Mapping[int, float]) -> dict[int, float]:
    """How far each value is from the median."""
    return {seed: abs(value - statistics.median(values.values())) for seed, value in values.items()}


FINAL_MEAN = averaged("final mean input", final_mean, HIDDEN)
BUT_ONE = averaged("without the largest layer", final_mean, HIDDEN, but_largest=1)
# of several runs
LARGEST_RATE = Measure("largest rate", "octaves", lambda _: math.nan, 1, form=".1f", whole=True)
MOVEMENT = averaged("movement", movement, LOWER)
EARLY = Measure(
    "distance from the median", "%", lambda record: record.accuracies()[0], form=".2f", spread=True
)
ROUGHNESS = Measure("roughness", "nats", lambda record: roughness(record.losses), form=".4f")
MEASURES = {
    m.name: m for m in (*ENDPOINTS, FINAL_MEAN, BUT_ONE, LARGEST_RATE, MOVEMENT, EARLY, ROUGHNESS)
}
