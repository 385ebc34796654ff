"""Cases, and the rule that turns them into a verdict.

The rule. A claim is settled by cases: a number as the claim has it, as it is exactly, and as it was
measured.
1. Where a measurement contradicts the exact number (at odds of a million to one), or a claim
   cannot be computed, nothing is settled: UNSETTLED.
2. A claim without a case that a calculation can judge is EMPIRICAL: only training can settle it.
3. The error of a case is what lies between the claimed number and the truth, beyond the rounding in
   print and the error bar, relative to the number. If the worst error is above CLOSE, the claim
   DOES_NOT_HOLD; above EQUAL, it is APPROXIMATE.
4. What is right on average, but scatters by more than SCATTER from one draw, unit or singular value
   to the next, holds IN_EXPECTATION only. Everything else HOLDS.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..report.estimate import Estimate

HOLDS = "holds"
IN_EXPECTATION = "in expectation only"
APPROXIMATE = "approximate"
DOES_NOT_HOLD = "does not hold as stated"
EMPIRICAL = "empirical"
UNSETTLED = "unsettled"
VERDICTS = (HOLDS, IN_EXPECTATION, APPROXIMATE, DOES_NOT_HOLD, EMPIRICAL, UNSETTLED)

EQUAL = 1e-9
CLOSE = 0.25
SCATTER = 0.05
SURE = 1.0 - 1e-6  # of a contradiction


@dataclass(frozen=True)
class Case:
    """One number that a claim fixes.

    >>> tp.verify.Case("E max(0, X)", claimed=0.4, exact=0.3989, rounding=0.05).error
    0.0
    """

    what: str
    claimed: float | None  # None: no number that the claim says; shown, and not judged
    exact: float | None = None
    estimate: Estimate | None = None
    # what the claim says of the number: equal to, at most, at least, differs from
    relation: str = "equal to"
    rounding: float = 0.0  # half a unit of the last digit that is printed
    # what an error is relative to: the claimed number, or 1 if that is 0
    scale: float | None = None
    scatter: float = 0.0  # relative standard deviation of single ones about the mean
    # the exact number is a limit: how far, relatively, a finite network may be from it
    finite_size: float = 0.0
    tolerance: float = 0.0  # absolute error of the computation: float32, difference quotients
    judged: bool = True  # or only shown, and compared with its measurement

    @property
    def truth(self) -> float:
        """The exact number; the measured one where there is none, or only that of an infinite
        network."""
        if self.exact is not None and (not self.finite_size or self.estimate is None):
            return self.exact
        assert self.estimate is not None, f"{self.what}: neither exact nor measured"
        return self.estimate.mean

    @property
    def unit(self) -> float:
        return self.scale or abs(self.claimed or 0.0) or 1.0

    @property
    def error(self) -> float:
        """How far the claim is from the truth, relatively."""
        if self.claimed is None:
            return 0.0
        beyond = self.rounding
        if self.estimate is not None and self.truth == self.estimate.mean:
            beyond += self.estimate.half_width_at(SURE)
        distance = self.truth - self.claimed
        if math.isnan(distance):
            return math.inf
        if self.relation == "differs from":
            return 0.0 if abs(distance) - beyond > SCATTER * self.unit else 1.0
        off = {"equal to": abs(distance), "at most": distance, "at least": -distance}[self.relation]
        return max(0.0, off - beyond) / self.unit

    @property
    def contradicted(self) -> bool:
        """Whether the measurement excludes the exact number."""
        if self.exact is None or self.estimate is None:
            return False
        # that of float32
        rounding = 1e-6 * max(abs(self.exact), abs(self.estimate.mean)) + EQUAL * self.unit
        allowed = (
            self.estimate.half_width_at(SURE)
            + self.finite_size * abs(self.exact)
            + self.tolerance
            + rounding
        )
        return not abs(self.estimate.mean - self.exact) <= allowed

    def to_json(self) -> dict[str, Any]:
        found = self.estimate
        return {
            **{name: getattr(self, name) for name in ("what", "relation", "claimed", "exact")},
            "estimate": found and found.mean,
            "standard_error": found and found.standard_error,
            "samples": found and found.n,
            "judged": self.judged and self.claimed is not None,
        }


@dataclass(frozen=True)
class Said:
    """What a claim says of a number, other than that it is equal to one."""

    relation: str
    value: float


def at_most(value: float) -> Said:
    """For `claimed`: the number is not above this one.

    >>> tp.verify.claimed("a loss", tp.verify.at_most(0.5), exact=0.4).error
    0.0
    """
    return Said("at most", value)


def at_least(value: float) -> Said:
    """For `claimed`: the number is not below this one.

    >>> tp.verify.claimed("a gain", tp.verify.at_least(1.0), exact=0.9).error.__round__(9)
    0.1
    """
    return Said("at least", value)


def other_than(value: float) -> Said:
    """For `claimed`: the number is clearly another one.

    >>> tp.verify.claimed("a change", tp.verify.other_than(0.0), exact=2.0).error
    0.0
    """
    return Said("differs from", value)


def claimed(
    what: str,
    value: float | str | Said,
    *,
    exact: float | None = None,
    measured: Estimate | float | None = None,
    rounding: float = 0.0,
    tolerance: float = 0.0,
    scale: float | None = None,
    scatter: float = 0.0,
) -> Case:
    """A number that the claim says, which is judged.

    The value is a number, a number as it is printed ("1.47", which is rounded to two digits), or
    `at_most`, `at_least` or `other_than` a number. What was measured is an Estimate, or a number
    that was computed without chance, up to a `tolerance`. `scatter` is the relative standard
    deviation of single ones about the mean; `scale`, what an error is relative to.

    >>> tp.verify.claimed("E[J J^T]_ii", "1.47", exact=1.466942).error
    0.0
    """
    relation = "equal to"
    if isinstance(value, Said):
        relation, value = value.relation, value.value
    if isinstance(value, str):
        decimals = len(value.partition(".")[2])
        rounding = rounding or 0.5 * 10.0**-decimals
        value = float(value)
    return Case(
        what,
        value,
        exact,
        as_estimate(measured),
        relation,
        rounding,
        scale,
        scatter,
        tolerance=tolerance,
    )


def beside(
    what: str,
    *,
    exact: float | None = None,
    measured: Estimate | float | None = None,
    tolerance: float = 0.0,
) -> Case:
    """A number beside the claim: shown, and compared with its measurement, but not judged.

    >>> tp.verify.beside("gain of 50 layers", exact=2.1e8).judged
    False
    """
    return Case(what, None, exact, as_estimate(measured), tolerance=tolerance, judged=False)


def as_estimate(found: Estimate | float | None) -> Estimate | None:
    if found is None or isinstance(found, Estimate):
        return found
    return computed(found)


def computed(value: float) -> Estimate:
    """What the engine computes where nothing is left to chance."""
    return Estimate(float(value), 0.0, 1)


def shown(
    what: str,
    exact: float,
    found: Estimate | float,
    finite_size: float = 0.0,
    tolerance: float = 0.0,
) -> Case:
    """A number that the paper does not print: not judged, but compared with what was measured or
    computed."""
    found = found if isinstance(found, Estimate) else computed(found)
    return Case(what, None, exact, found, finite_size=finite_size, tolerance=tolerance)


def all_ones(what: str, ratios: Sequence[float], tolerance: float = 0.0) -> Case:
    """Ratios that are all 1, if both sides are right: the one farthest from it (or NaN) is
    shown."""
    worst = max(ratios, key=lambda ratio: abs(ratio - 1.0) if ratio == ratio else math.inf)
    return shown(f"{what}, farthest from 1", 1.0, worst, tolerance=tolerance)


def is_zero(what: str, value: float, tolerance: float = 0.0) -> Case:
    """A number that a claim says is 0, as the engine computes it."""
    return Case(what, 0.0, 0.0, computed(value), tolerance=tolerance)


def is_not_zero(what: str, value: float) -> Case:
    return Case(what, 0.0, None, computed(value), relation="differs from")


def judge(cases: tuple[Case, ...]) -> str:
    """The verdict, by the rule above.

    >>> judge((Case("a mean", claimed=1.21, exact=1.2112, rounding=0.005, scatter=0.4),))
    'in expectation only'
    """
    judged = [case for case in cases if case.judged and case.claimed is not None]
    if any(case.contradicted for case in cases):
        return UNSETTLED
    if not judged:
        return EMPIRICAL
    worst = max(case.error for case in judged)
    if worst > CLOSE:
        return DOES_NOT_HOLD
    if worst > EQUAL:
        return APPROXIMATE
    return IN_EXPECTATION if any(case.scatter > SCATTER for case in judged) else HOLDS
