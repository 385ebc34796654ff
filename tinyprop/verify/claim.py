"""Claims, what is found about them, and the rule that turns numbers into a verdict.

The rule. A claim is settled by cases: a number as the paper has it, as it is exactly, and as it was
measured.
1. Where a measurement contradicts the exact number (at odds of a million to one), nothing is
   settled: UNSETTLED.
2. A claim without a case that a calculation can judge is EMPIRICAL: only training can settle it.
3. The error of a case is what lies between the paper's number and the truth, beyond the rounding in
   print and the error bar, relative to the number. If the worst error is above CLOSE, the claim
   DOES_NOT_HOLD; above EQUAL, it is APPROXIMATE.
4. What is right on average, but scatters by more than SCATTER from one draw, unit or singular value
   to the next, holds IN_EXPECTATION only. Everything else HOLDS.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..report.estimate import Estimate
from ..report.table import Table, Tabular
from .monte_carlo import Sampler, padding_ignored

HOLDS = "holds"
IN_EXPECTATION = "in expectation only"
APPROXIMATE = "approximate"
DOES_NOT_HOLD = "does not hold as stated"
EMPIRICAL = "empirical"
UNSETTLED = "unsettled"

EQUAL = 1e-9
CLOSE = 0.25
SCATTER = 0.05
SURE = 1.0 - 1e-6  # of a contradiction


@dataclass(frozen=True)
class Case:
    """One number that a claim fixes.

    >>> tp.verify.Case("E max(0, X)", paper=0.4, exact=0.3989, rounding=0.05).error
    0.0
    """

    what: str
    paper: float | None  # None: a number that the paper does not print, shown but not judged
    exact: float | None = None
    estimate: Estimate | None = None
    # what the paper says of the number: equal to, at most, at least, differs from
    relation: str = "equal to"
    rounding: float = 0.0  # half a unit of the last digit that the paper prints
    # what an error is relative to: the paper's number, or 1 if that is 0
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
        return self.scale or abs(self.paper or 0.0) or 1.0

    @property
    def error(self) -> float:
        """How far the paper's statement is from the truth, relatively."""
        if self.paper is None:
            return 0.0
        beyond = self.rounding
        if self.estimate is not None and self.truth == self.estimate.mean:
            beyond += self.estimate.half_width_at(SURE)
        distance = self.truth - self.paper
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
            **{name: getattr(self, name) for name in ("what", "relation", "paper", "exact")},
            "estimate": found and found.mean,
            "standard_error": found and found.standard_error,
            "samples": found and found.n,
            "judged": self.judged and self.paper is not None,
        }


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


# cases, the first of which gives the result its numbers; the reason
Findings: TypeAlias = Generator[Case, None, str]
Measure: TypeAlias = Callable[[Sampler], Findings]


def judge(cases: tuple[Case, ...]) -> str:
    """The verdict, by the rule above.

    >>> judge((Case("a mean", paper=1.21, exact=1.2112, rounding=0.005, scatter=0.4),))
    'in expectation only'
    """
    judged = [case for case in cases if case.judged and case.paper is not None]
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


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper (G1 to G6: one that goes beyond it; N01 to N30: of another paper on
    normalisation), and the function that settles it.

    >>> claim = tp.verify.claims()[0]
    >>> claim.id, claim.section
    ('C01', '3.2, Remark 1')
    """

    id: str
    section: str  # of the paper, or another paper with its section
    statement: str
    measure: Measure
    family: str = "normprop"

    @property
    def derivation(self) -> str:
        """Why the exact value is what it is, in a few sentences."""
        return " ".join((self.measure.__doc__ or "").split())

    def settle(self, sampler: Sampler, expected: str) -> "Result":
        reason = ""

        def measured() -> Iterator[Case]:
            nonlocal reason
            reason = yield from self.measure(sampler)

        with padding_ignored():
            cases = tuple(measured())
        return Result(self.id, self.statement, self.section, judge(cases), reason, cases, expected)


@dataclass(frozen=True)
class Result(Tabular):
    """A settled claim, which a notebook shows as a table of its cases.

    >>> (result,) = tp.verify.run(["C06"])
    >>> print(result.id, result.verdict, "-", result.reason)
    C06 holds - one Newton step from 0 lands on them
    """

    id: str
    statement: str
    section: str
    verdict: str
    reason: str
    cases: tuple[Case, ...]
    expected: str

    @property
    def exact(self) -> float | None:
        """Of the first case; `cases` has them all."""
        return self.cases[0].exact

    @property
    def estimate(self) -> Estimate | None:
        return self.cases[0].estimate

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.expected

    def __str__(self) -> str:
        return f"{self.id} {self.statement} {self.verdict}: {self.reason}"

    def table(self) -> Table:
        from .report import COLUMNS, NOT_JUDGED, cells_of  # it is made for results

        rows = [cells_of(case) for case in self.cases]
        notes = [f"{self.verdict}: {self.reason}."]
        if not self.as_expected:
            notes.append(f"Expected: {self.expected}.")
        if any(what.endswith(" *") for what, *_ in rows):
            notes.append(f"{NOT_JUDGED}.")
        title = f"{self.id}. {self.statement}"
        return Table(["", *COLUMNS], rows, title, " ".join(notes))

    def to_json(self) -> dict[str, Any]:
        named = {
            name: getattr(self, name)
            for name in ("id", "statement", "section", "verdict", "expected", "reason")
        }
        return {**named, "cases": [case.to_json() for case in self.cases]}


class Results(list[Result], Tabular):
    """Settled claims, which a notebook shows as a table."""

    def table(self) -> Table:
        header = ["claim", "statement", "verdict", "reason"]
        rows = [(result.id, result.statement, result.verdict, result.reason) for result in self]
        return Table(header, rows, align="llll")


LEDGER: dict[str, Claim] = {}


def claim(
    id: str, section: str, statement: str, family: str = "normprop"
) -> Callable[[Measure], Claim]:
    """A decorator that enters a function into the ledger: @claim("C01", "3.2", "The
    statement.")."""

    def enter(measure: Measure) -> Claim:
        LEDGER[id] = Claim(id, section, statement, measure, family)
        return LEDGER[id]

    return enter
