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
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ..engine.errors import explain
from ..report.estimate import CONFIDENCE, Estimate
from .limits import Limit

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
ROUNDING = 1e-6  # relative: of float32
NEGLIGIBLE = 1e-12  # what is 0 except for rounding


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
    # what the claim says of the number: equal to, at most, at least, differs from, as derived
    relation: str = "equal to"
    rounding: float = 0.0  # half a unit of the last digit that is printed
    # what an error is relative to: the claimed number, or 1 if that is 0
    scale: float | None = None
    scatter: float = 0.0  # relative standard deviation of single ones about the mean
    # absolute error of the computation: float32, difference quotients, what a limit neglects
    tolerance: float = 0.0
    judged: bool = True  # or only shown, and compared with its measurement

    @property
    def is_judged(self) -> bool:
        return self.judged and self.claimed is not None

    @property
    def truth(self) -> float:
        """The exact number; the measured one where there is none."""
        if self.exact is not None:
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
        if self.exact is None and self.estimate is not None:
            beyond += self.estimate.half_width_at(SURE)
        distance = self.truth - self.claimed
        if math.isnan(distance):
            return math.inf
        if self.relation == "differs from":
            return 0.0 if abs(distance) - beyond > SCATTER * self.unit else 1.0
        off = abs(distance)
        if self.relation == "at most":
            off = distance
        if self.relation == "at least":
            off = -distance
        return max(0.0, off - beyond) / self.unit

    def half_width_at(self, confidence: float) -> float:
        """How far the measurement may be from the exact number: by chance, with this confidence, by
        what it neglects, and by rounding."""
        assert self.estimate is not None
        size = max(abs(self.exact or 0.0), abs(self.estimate.mean))
        rounding = ROUNDING * size + EQUAL * self.unit
        return self.estimate.half_width_at(confidence) + self.tolerance + rounding

    @property
    def interval(self) -> Estimate | None:
        """What is printed: the measurement, with an error bar that covers chance at 95 % and, on
        top of it, what the measurement neglects. A number that was computed without chance has
        none.

        >>> found = tp.verify.Estimate.from_error(1.01, 0.001, 10**6)
        >>> print(tp.verify.beside("a limit", measured=found, tolerance=0.01).interval)
        1.010 ± 0.012
        """
        if self.estimate is None or not self.estimate.half_width:
            return self.estimate
        return replace(self.estimate, half_width=self.half_width_at(CONFIDENCE))

    @property
    def allowed(self) -> float:
        """How far the measurement may be from the exact number before it contradicts it."""
        return self.half_width_at(SURE)

    @property
    def contradicted(self) -> bool:
        """Whether the measurement excludes the exact number."""
        if self.exact is None or self.estimate is None:
            return False
        return not abs(self.estimate.mean - self.exact) <= self.allowed

    @property
    def power(self) -> float | None:
        """The smallest error of the exact number, in either direction, that this case would notice:
        relative to the number, or absolute if it is 0. By its measurement, or if it has none, by
        what is claimed. None if nothing would notice an error.

        >>> found = tp.verify.Estimate(1.001, 0.004, 10**6)
        >>> round(tp.verify.claimed("a mean", 1.0, exact=1.0, measured=found).power, 3)
        0.011
        """
        if self.exact is None:
            return None
        unit = abs(self.exact) if abs(self.exact) > NEGLIGIBLE else 1.0
        if self.estimate is not None:
            # a wrong number is allowed a little more for rounding, as that is relative to it
            return 1.00001 * (self.allowed + abs(self.estimate.mean - self.exact)) / unit
        is_compared = self.claimed is not None and self.judged and self.relation == "equal to"
        if not is_compared or self.error > EQUAL:
            return None
        distance = abs(self.exact - (self.claimed or 0.0))
        return 1.00001 * (self.rounding + EQUAL * self.unit + distance) / unit

    def to_json(self) -> dict[str, Any]:
        found = self.interval
        chance = self.estimate
        is_derived = self.relation == AS_DERIVED
        return {
            "what": self.what,
            "relation": self.relation,
            "claimed": None if is_derived else self.claimed,
            "exact": self.exact,
            "estimate": found and found.mean,
            "half_width": found and found.half_width,
            "standard_error": chance and chance.standard_error,
            "samples": found and found.n,
            "judged": self.is_judged,
            "notices": self.power,
        }


@dataclass(frozen=True)
class Said:
    """What a claim says of a number, other than that it is equal to one."""

    relation: str
    value: float | None


AS_DERIVED = "as derived"
KNOWN_RELATIONS = ("equal to", "at most", "at least", "differs from", AS_DERIVED)
# for `claimed`: the paper says a law, and prints no number; the exact number is what it makes here
as_derived = Said(AS_DERIVED, None)


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
    measured: Estimate | Limit | float | None = None,
    rounding: float = 0.0,
    tolerance: float = 0.0,
    scale: float | None = None,
    scatter: float = 0.0,
) -> Case:
    """A number that the claim says, which is judged.

    The value is a number, a number as it is printed ("1.47", which is rounded to two digits), or
    `at_most`, `at_least` or `other_than` a number. Where the claim says a law and prints no number,
    it is `as_derived`: the exact number is what the law makes here, and its measurement judges it.
    What was measured is an Estimate, or a number that was computed without chance, up to a
    `tolerance`. `scatter` is the relative standard deviation of single ones about the mean;
    `scale`, what an error is relative to.

    >>> tp.verify.claimed("E[J J^T]_ii", "1.47", exact=1.466942).error
    0.0
    """
    relation = "equal to"
    if isinstance(value, Said):
        relation = value.relation
    number = as_number(what, value, exact)
    if number is None:
        got = f"claimed({what!r}, as_derived) without an exact number"
        raise ValueError(explain(got, "the claim is judged by that number", "exact=0.3989"))
    if isinstance(value, str):
        rounding = rounding or half_a_unit(value)
    estimate, neglected = as_estimate(what, measured)
    return Case(
        what,
        number,
        None if exact is None else as_float(what, "exact", exact),
        estimate,
        relation,
        as_float(what, "rounding", rounding),
        None if scale is None else as_float(what, "scale", scale),
        as_float(what, "scatter", scatter),
        tolerance=as_float(what, "tolerance", tolerance) + neglected,
    )


def half_a_unit(printed: str) -> float:
    """Half a unit of the last digit of a number in print.

    >>> half_a_unit("1.47"), half_a_unit("12"), half_a_unit("1.5e-3")
    (0.005, 0.5, 5e-05)
    """
    exponent = Decimal(printed).as_tuple().exponent
    return 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0  # not so of "nan"


def as_number(what: str, value: float | str | Said, exact: float | None) -> float | None:
    """What is claimed, as a number."""
    if not isinstance(value, Said):
        return as_float(what, "value", value)
    number = exact if value.relation == AS_DERIVED else value.value
    return None if number is None else as_float(what, "value", number)


def as_float(what: str, name: str, value: Any) -> float:
    """A number of a case, which NumPy or an op may have computed.

    >>> as_float("a mean", "exact", tp.tensor([1.0, 3.0]).mean())
    2.0
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        shape = getattr(value, "shape", None)
        given = repr(value) if shape is None else f"a {type(value).__name__} of shape {shape}"
        got = f"the case {what!r} with {name}: {given}"
        rule = (
            "the numbers of a case are single numbers; claimed may be one in print, such as '1.47'"
        )
        raise ValueError(explain(got, rule, "a case for each number")) from None


def beside(
    what: str,
    *,
    exact: float | None = None,
    measured: Estimate | Limit | float | None = None,
    tolerance: float = 0.0,
) -> Case:
    """A number beside the claim: shown, and compared with its measurement, but not judged.

    >>> tp.verify.beside("gain of 50 layers", exact=2.1e8).judged
    False
    """
    estimate, neglected = as_estimate(what, measured)
    number = None if exact is None else as_float(what, "exact", exact)
    neglected += as_float(what, "tolerance", tolerance)
    return Case(what, None, number, estimate, tolerance=neglected, judged=False)


def as_estimate(what: str, found: Estimate | Limit | float | None) -> tuple[Estimate | None, float]:
    """What was measured, and what it neglects."""
    if isinstance(found, Limit):
        return found.estimate, found.neglected
    if found is None or isinstance(found, Estimate):
        return found, 0.0
    return Estimate(as_float(what, "measured", found), 0.0, 1), 0.0


def fault_of(case: Case) -> tuple[str, str, str] | None:
    """What is wrong with a case that somebody has made, in three parts.

    >>> got, rule, hint = fault_of(claimed("a mean", 1.0, exact=1.0, tolerance=-0.1))
    >>> print(got)
    'a mean', tolerance is -0.1
    """
    if not isinstance(case.what, str) or not case.what.strip():
        rule = "a case says in words what its number is"
        return f"a case named {case.what!r}", rule, "tp.verify.claimed('E max(0, X)', ...)"
    if case.relation not in KNOWN_RELATIONS:
        rule = f"a relation is one of: {', '.join(KNOWN_RELATIONS)}"
        return f"{case.what!r}, relation is {case.relation!r}", rule, "tp.verify.at_most(0.4)"
    if not isinstance(case.estimate, Estimate | None):
        got = f"{case.what!r}, its estimate is a {type(case.estimate).__name__}"
        return got, "what was measured is an Estimate", "tp.verify.claimed(..., measured=0.4)"
    is_empty = case.exact is None and case.estimate is None
    if is_empty and (case.is_judged or case.claimed is None):
        rule = "a case has an exact number, a measured one, or both"
        return f"{case.what!r}, without either", rule, "exact=0.3989, or measured=..."
    return fault_of_numbers(case)


def fault_of_numbers(case: Case) -> tuple[str, str, str] | None:
    lengths: dict[str, Any] = {
        "rounding": case.rounding,
        "scatter": case.scatter,
        "tolerance": case.tolerance,
        "scale": case.scale,
    }
    numbers = {"claimed": case.claimed, "exact": case.exact}
    if case.estimate is not None:
        numbers["measured"] = case.estimate.mean
        lengths["its error bar"] = case.estimate.half_width
    for name, value in {**numbers, **lengths}.items():
        if value is None:
            continue
        got = f"{case.what!r}, {name} is {value!r}"
        if not isinstance(value, float | int):
            return got, "the numbers of a case are Python's", "tp.verify.claimed(...), or float(x)"
        if not math.isfinite(value):
            hint = "look for 0/0, for an overflow, and for an error bar of one sample"
            return got, "the numbers of a case are finite", hint
        if name in lengths and value < 0:
            return (
                got,
                "it is 0 or more",
                f"{name}={-value!r}" if name in vars(case) else "its size",
            )
    return None


def judge(cases: tuple[Case, ...]) -> str:
    """The verdict, by the rule above.

    >>> judge((Case("a mean", claimed=1.21, exact=1.2112, rounding=0.005, scatter=0.4),))
    'in expectation only'
    """
    judged = [case for case in cases if case.is_judged]
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
