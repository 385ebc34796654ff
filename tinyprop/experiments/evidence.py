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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .. import moments
from ..report.estimate import Estimate
from .record import Layer, Record
from .registration import SHORT

REGISTERED = SHORT.facts  # rule, margins and looks are the same in plateau.toml
LEVEL = 1.0 - REGISTERED["rule"]["confidence"]
LOOKS = REGISTERED["rule"]["looks"]
POWER = 0.8  # the probability of detecting a true difference

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
    "test accuracy",
    "%",
    of=lambda record: 100.0 * record.test.image_correct(),
    better=1,
    margin=MARGINS["accuracy"],
    form=".1f",
)
LOSS = Measure(
    "test loss",
    "nats",
    of=lambda record: record.test.image_losses(),
    margin=MARGINS["loss"],
)
ENDPOINTS = (ACCURACY, LOSS)
# the second column: no endpoint
AVERAGED = replace(
    ACCURACY,
    name="averaged accuracy",
    of=lambda record: 100.0 * record.averaged.image_correct(),
)

Interval = tuple[float, float]
UNDECIDED: Interval = (-math.inf, math.inf)
CERTAINLY_BETTER: Interval = (math.inf, math.inf)
CERTAINLY_WORSE: Interval = (-math.inf, -math.inf)


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, over the random seeds that both have."""

    measure: Measure
    difference: Estimate
    diverged: tuple[int, int] = (0, 0)  # runs of ours and of theirs
    survived: tuple[bool, bool] = (True, True)  # whether ours and theirs have runs that did not

    def interval(self, level: float = LEVEL) -> Interval:
        """How much better ours is."""
        ours_never_diverged = self.survived[0] and not self.diverged[0]
        theirs_never_diverged = self.survived[1] and not self.diverged[1]
        ours_always_diverged = self.diverged[0] and not self.survived[0]
        theirs_always_diverged = self.diverged[1] and not self.survived[1]

        # "a setting that never diverged is better than one that always did"
        if ours_never_diverged and theirs_always_diverged:
            return CERTAINLY_BETTER
        if theirs_never_diverged and ours_always_diverged:
            return CERTAINLY_WORSE
        # "survivors of a setting that sometimes diverges decide nothing": they are a biased sample
        if any(self.diverged):
            return UNDECIDED
        # no random seed that both have
        if self.difference.n == 0:
            return UNDECIDED
        # whole numbers that are equal for all seeds do not say how those of others would deviate
        if self.measure.whole and self.difference.half_width == 0.0:
            return UNDECIDED

        mean = self.measure.better * self.difference.mean
        half_width = self.difference.half_width_at(1.0 - level)
        return mean - half_width, mean + half_width

    def better(self, level: float = LEVEL) -> Verdict:
        """Whether ours is better; it is not if it is worse, or alike."""
        low, high = self.interval(level)
        if low > 0:
            return True
        if high < 0:
            return False
        if self.alike(level):
            return False
        return None

    def alike(self, level: float = LEVEL) -> Verdict:
        """Whether the difference is too small to matter: the interval is inside the margins, or
        wholly outside."""
        low, high = self.interval(level)
        margin = self.measure.margin
        if -margin < low and high < margin:
            return True
        if low > margin or high < -margin:
            return False
        return None

    def at_least_as_good(self, level: float = LEVEL) -> Verdict:
        """Whether ours is better, or worse by less than matters (one-sided)."""
        low, high = self.interval(level)
        margin = self.measure.margin
        if low > -margin:
            return True
        if high < -margin:
            return False
        return None

    @property
    def outcome(self) -> str:
        low, high = self.interval()
        if low > 0:
            return "better"
        if high < 0:
            return "worse"
        if self.alike():
            return "alike"
        return "cannot tell"

    @property
    def width(self) -> float:
        """Of the interval, in margins; without a margin, in differences. 0 if more runs cannot make
        it narrower."""
        if any(self.diverged):
            return 0.0
        scale = self.measure.margin or abs(self.difference.mean)
        if scale == 0.0:
            return 0.0
        if self.difference.n < 2:
            return math.inf
        return self.difference.half_width / scale

    def detectable(self, level: float) -> float:
        """How far from 0, or from a margin, a true difference must be for as many seeds to detect
        it with POWER."""
        quantile = statistics.NormalDist().inv_cdf(POWER)
        half_width = self.difference.half_width_at(1.0 - level)
        return half_width + quantile * self.difference.standard_error

    def __str__(self) -> str:
        ours, theirs = self.diverged
        if any(self.diverged):
            pairs = f"{self.difference.n} pair{'s' * (self.difference.n != 1)}"
            return f"{self.number} ({self.outcome}; {pairs}; {ours} and {theirs} runs diverged)"
        if self.difference.n > 1:
            return f"{self.number} ({self.outcome})"
        return self.number

    @property
    def number(self) -> str:
        form = self.measure.form
        unit = f" {self.measure.difference_unit}".rstrip()
        if self.difference.n == 0:
            return "no pair of runs"
        if self.difference.n == 1:
            return f"{self.difference.mean:+{form}}{unit} (one seed)"
        return f"{self.difference:+{form}}{unit}"


def compared(
    measure: Measure,
    ours: Mapping[int, Any],
    theirs: Mapping[int, Any],
    diverged: tuple[int, int] = (0, 0),
) -> Comparison:
    """From what each random seed gives: a number, or a number for each test image."""
    common_seeds = sorted(ours.keys() & theirs.keys())
    pairs = [np.asarray(ours[seed] - theirs[seed]) for seed in common_seeds]
    has_images = len(pairs) > 1 and pairs[0].ndim == 1
    if has_images:
        difference = Estimate.crossed(np.stack(pairs))  # (seeds, images)
    else:
        difference = Estimate.of([float(pair.mean()) for pair in pairs])
    survived = (bool(ours), bool(theirs))
    return Comparison(measure, difference, diverged, survived)


# -- whether a scale can answer


@dataclass(frozen=True)
class Gate:
    """Whether runs are long enough for a claim about the end of training.

    Late and early are the last and the second last sixth of the epochs before annealing; all are
    accuracies on validation images, in points."""

    drift: Estimate  # late minus early, of the control
    late: Estimate  # ours minus theirs
    early: Estimate
    points: float  # the largest drift of a control on its plateau

    @property
    def is_open(self) -> Verdict:
        """None as long as there are too few runs for an interval."""
        if self.late.n < 2 or self.drift.n < 2:
            return None
        is_on_plateau = abs(self.drift.mean) <= self.points
        is_settled = abs(self.late.mean - self.early.mean) < self.late.half_width
        return is_on_plateau and is_settled

    def __str__(self) -> str:
        return (
            f"control {self.drift:+.1f} points between the windows, "
            f"difference {self.early:+.1f}, then {self.late:+.1f}"
        )


def window_means(record: Record, window: int) -> tuple[float, float]:
    """The mean accuracies over the second last and the last of so many windows of the epochs before
    annealing.

    >>> from types import SimpleNamespace
    >>> config = tp.train.Config(anneal=1)
    >>> run = SimpleNamespace(accuracies=lambda: [*range(1, 13), 0.0], config=config)
    >>> window_means(run, 6)  # of 12 epochs and an annealed one
    (9.5, 11.5)
    """
    before_annealing = len(record.accuracies()) - (record.config.anneal or 0)
    accuracies = record.accuracies()[:before_annealing]
    length = max(1, before_annealing // window)
    early = statistics.fmean(accuracies[-2 * length : -length] or accuracies)
    late = statistics.fmean(accuracies[-length:])
    return early, late


# -- verdicts on claims

Rule = Callable[[Comparison, float], Verdict]


class Look(NamedTuple):
    """The runs of a claim after which it may be decided."""

    fraction: float  # of the planned runs
    comparisons: Sequence[Comparison]


def judged(rule: Rule, comparisons: Sequence[Comparison], level: float) -> Verdict:
    """Whether a rule holds for all comparisons. As one that fails is enough for a "no", they share
    the level for it."""
    share = level / len(comparisons)
    if any(rule(comparison, share) is False for comparison in comparisons):
        return False
    if all(rule(comparison, level) for comparison in comparisons):
        return True
    return None


def looks(planned: int) -> list[int]:
    """After how many runs of each setting a claim may be decided.

    >>> looks(24), looks(16), looks(4)
    ([6, 12, 24], [6, 12, 16], [4])
    """
    before_the_last = [n for n in LOOKS if n < planned]
    return [*before_the_last, planned]


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
    spent_before = 0.0
    for fraction, comparisons in looks:
        spent_now = spent(level, fraction)
        verdict = judged(rule, comparisons, spent_now - spent_before)
        if verdict is not None:
            return verdict
        spent_before = spent_now
    return None


def holm(
    judges: Sequence[Callable[[float], Verdict]], family: int, level: float = LEVEL
) -> list[Verdict]:
    """The verdicts on claims of a family, by Holm's method: the claims that are not decided share
    the level. A judge takes a level and returns a verdict."""
    verdicts: list[Verdict] = [None] * len(judges)
    while True:
        decided = sum(verdict is not None for verdict in verdicts)
        share = level / max(1, family - decided)
        updated = list(verdicts)
        for i, judge in enumerate(judges):
            if verdicts[i] is None:
                updated[i] = judge(share)
        if updated == verdicts:
            return verdicts
        verdicts = updated


# -- measures of a run

HIDDEN = range(2, 10)  # the paper's "last 8 layers"
LOWER = range(2, 6)  # its "lower hidden layers"


def final_mean(layer: Layer) -> float:
    return layer.size[-1]


def movement(layer: Layer) -> float:
    """How far means move in an epoch; the first epoch leaves the random start and does not
    count."""
    return statistics.fmean(layer.moved[2:] or layer.moved)


def unit_of_features(record: Record) -> float:
    """What to multiply the features of a network by to have outputs of the activation, as BatchNorm
    has them: the outputs of NormProp's layers are divided by c1."""
    config = record.config
    if not config.norm.startswith("normprop"):
        return 1.0
    return moments.gaussian(config.activation).std


def averaged(
    name: str,
    of: Callable[[Layer], float],
    layers: Iterable[int],
    but_largest: int = 0,
    unit: Callable[[Record], float] = lambda record: 1.0,
) -> Measure:
    """A number of each layer, averaged over some layers, without the largest few."""

    def average(record: Record) -> float:
        values = sorted(of(record.layers[i - 1]) for i in layers)
        kept = values[: len(values) - but_largest]
        return unit(record) * statistics.fmean(kept)

    return Measure(name, "", average)


def roughness(losses: Sequence[float]) -> float:
    """The root mean square of a loss curve about a smooth one: a cubic polynomial in the logarithm
    of the step."""
    if len(losses) < 6:
        return 0.0
    log_steps = np.log(np.arange(len(losses)) + 0.5)
    cubic = np.polyfit(log_steps, losses, 3)
    residuals = np.array(losses) - np.polyval(cubic, log_steps)
    freedom = len(losses) - 4  # a cubic has 4 coefficients
    return float(np.sqrt((residuals**2).sum() / freedom))


def deviations(values: Mapping[int, float]) -> dict[int, float]:
    """How far each value is from the median."""
    if not values:
        return {}
    median = statistics.median(values.values())
    return {seed: abs(value - median) for seed, value in values.items()}


FINAL_MEAN = averaged("final mean input", final_mean, HIDDEN)
BUT_ONE = averaged("without the largest layer", final_mean, HIDDEN, but_largest=1)
# a number of several runs, one for each learning rate
LARGEST_RATE = Measure(
    "largest rate", "octaves", of=lambda record: math.nan, better=1, form=".1f", whole=True
)
MOVEMENT = averaged("movement", movement, LOWER, unit=unit_of_features)
EARLY = Measure(
    "distance from the median",
    "%",
    of=lambda record: record.accuracies()[0],
    form=".2f",
    spread=True,
)
ROUGHNESS = Measure("roughness", "nats", of=lambda record: roughness(record.losses), form=".4f")
MEASURES = {
    measure.name: measure
    for measure in (
        *ENDPOINTS,
        FINAL_MEAN,
        BUT_ONE,
        LARGEST_RATE,
        MOVEMENT,
        EARLY,
        ROUGHNESS,
    )
}
