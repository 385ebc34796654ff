"""Results for a terminal: statement, verdict, every case, and why."""

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..report.estimate import CONFIDENCE, Estimate
from .case import (
    APPROXIMATE,
    AS_DERIVED,
    DOES_NOT_HOLD,
    EMPIRICAL,
    HOLDS,
    IN_EXPECTATION,
    NEGLIGIBLE,
    UNSETTLED,
    Case,
)
from .ledger import Claim
from .settling import Result

STYLES = {  # a mark, for those who see no color, an ANSI color, and the plural
    HOLDS: ("✓", "32", "hold"),
    IN_EXPECTATION: ("µ", "36", IN_EXPECTATION),
    APPROXIMATE: ("≈", "33", APPROXIMATE),
    DOES_NOT_HOLD: ("✗", "31", "do not hold as stated"),
    EMPIRICAL: ("…", "35", EMPIRICAL),
    UNSETTLED: ("!", "1;31", UNSETTLED),
}
RELATIONS = {"equal to": "", "at most": "≤ ", "at least": "≥ ", "differs from": "≠ "}
ASCII = {
    "✓": "+",
    "µ": "m",
    "≈": "~",
    "✗": "x",
    "…": "?",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
}
NOTE = (
    "* shown, and compared with its measurement; not judged. ±: chance, at 95 %, and what the "
    "measurement neglects. notices: the smallest error of the exact number, relative to it "
    "(without %: absolute), that would be noticed"
)
FINEST = 1e-5  # error that is printed as a number
LARGE = 10.0  # the number is nearly 0: an error relative to it says little
INDENT, NARROWEST, GAP = 5, 60, 2
COLUMNS = {"claimed": 10, "exact": 12, f"measured, {CONFIDENCE:.0%}": 23, "notices": 8}


def number(x: float | None) -> str:
    """Six digits, and 0 for what is 0 except for rounding.

    >>> number(1 / 3), number(1e-16), number(None)
    ('0.333333', '0', '-')
    """
    if x is None:
        return "-"
    return "0" if abs(x) < NEGLIGIBLE else f"{x:.6g}"


def measured(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return str(estimate) if estimate.half_width else number(estimate.mean)


def has_color(stream: Any) -> bool:
    """Whether to write in color: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(stream.isatty() and not is_plain)


def power(case: Case) -> str:
    """The smallest error of the exact number that the case would notice: relative, in %, or
    absolute for what is 0 or nearly so.

    >>> power(Case("a", 1.0, 1.0, Estimate(1.001, 0.004, 10**6))), power(Case("a", 1.0, 1.5))
    ('1.1 %', '-')
    >>> power(Case("a", 0.0, 1e-6, Estimate(0.001, 0.004, 10**6)))
    '0.01'
    """
    if case.power is None or case.exact is None:
        return "-"
    if abs(case.exact) <= NEGLIGIBLE:
        return f"{case.power:.1g}"
    if case.power > LARGE:
        return f"{case.power * abs(case.exact):.1g}"
    if case.power < FINEST:
        return f"<{100.0 * FINEST:g} %"
    percent = 100.0 * case.power
    return f"{percent:.0f} %" if percent >= 99.0 else f"{percent:.2g} %"


def can_show(encoding: str | None) -> bool:
    """Whether a terminal of this encoding has all the marks.

    >>> can_show("utf-8"), can_show("latin-1"), can_show(None)
    (True, False, False)
    """
    try:
        "".join(ASCII).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def cells_of(case: Case) -> tuple[str, str, str, str, str]:
    """What the number is; the number as it is claimed, exactly, and measured; and what error of the
    exact one would be noticed."""
    what = " ".join(case.what.split()) + ("" if case.is_judged else " *")
    return what, said(case), number(case.exact), measured(case.interval), power(case)


def said(case: Case) -> str:
    """What the claim says of the number.

    >>> said(Case("a loss", 0.5, relation="at most")), said(Case("a loss", None))
    ('≤ 0.5', '-')
    """
    if case.relation == AS_DERIVED:
        return AS_DERIVED
    return RELATIONS[case.relation] + number(case.claimed)


def place(section: str) -> str:
    """Where a claim is made: a section of the paper, or another paper.

    >>> place("3.2, Remark 1"), place("beyond 3.4"), place("Ba et al. (2016), Table 1")
    ('Section 3.2, Remark 1', 'Beyond section 3.4', 'Ba et al. (2016), Table 1')
    """
    if section.startswith("beyond "):
        return section.replace("beyond", "Beyond section", 1)
    return f"Section {section}" if section[:1].isdigit() else section


def counted(results: Sequence[Result], seconds: float | None = None) -> str:
    """How many there are of each verdict, and whether they are as expected."""
    counts = Counter(result.verdict for result in results)
    said = []
    for verdict, (_, _, plural) in STYLES.items():
        if counts[verdict]:
            said.append(f"{counts[verdict]} {plural if counts[verdict] > 1 else verdict}")
    others = [result.id for result in results if not result.as_expected]
    end = "every verdict is the expected one"
    if others:
        end = f"not as expected: {', '.join(others)}"
    claims = f"{len(results)} claim{'s' * (len(results) != 1)}"
    duration = "" if seconds is None else f" in {seconds:.0f} s"
    return f"{claims}{duration}: {', '.join(said)}; {end}."


class Report:
    """Lines that fit a terminal of some width, in color or without, in Unicode or ASCII."""

    def __init__(self, width: int = 100, color: bool = False, ascii: bool = False):
        self.width, self.color, self.ascii = max(width, NARROWEST), color, ascii
        self.room = self.width - INDENT - sum(COLUMNS.values())  # for what a case is about
        self.beside = self.room >= 24  # the numbers stand beside it, not below

    def plain(self, text: str) -> str:
        return "".join(ASCII.get(mark, mark) for mark in text) if self.ascii else text

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text

    def fill(self, text: str, code: str = "") -> list[str]:
        lines = textwrap.wrap(self.plain(text), self.width - INDENT)
        return [" " * INDENT + (self.paint(line, code) if code else line) for line in lines]

    def numbers(self, *values: str) -> str:
        columns = zip(map(self.plain, values), COLUMNS.values(), strict=True)
        return "".join(f"{value:<{width - 1}} " for value, width in columns).rstrip()

    def case(self, case: Case) -> list[str]:
        """What the number is, and the number as it is claimed, exactly, and measured; and what
        error of the exact one would be noticed."""
        what, *cells = cells_of(case)
        values = self.numbers(*cells)
        room = self.room if self.beside else self.width - INDENT
        first, *more = textwrap.wrap(self.plain(what), room - GAP)
        if self.beside:
            lines = [f"{first:<{self.room}}{values}", *more]
        else:
            lines = [first, *more, " " * GAP + values]
        return [" " * INDENT + line for line in lines]

    def head(self, id: str, statement: str, verdict: str) -> list[str]:
        """The statement, and a verdict beside its first line."""
        mark, code, _ = STYLES[verdict]
        name = f"{id} ".ljust(INDENT)
        room = self.width - max(INDENT, len(name)) - len(verdict) - 4
        first, *more = textwrap.wrap(self.plain(statement), room) or ["-"]
        painted = self.paint(f"{self.plain(mark)} {verdict}", code)
        lines = [f"{self.paint(name, '1')}{first:<{room}}  {painted}"]
        return lines + [" " * INDENT + line for line in more]

    def row(self, result: Result, rows: bool = True) -> str:
        """The statement and its verdict, the reason, and every case if they are wanted."""
        lines = self.head(result.id, result.statement, result.verdict)
        if rows:
            lines += [line for case in result.cases for line in self.case(case)]
        lines += self.fill(result.reason, "2")
        for line in result.problem.splitlines():
            lines += self.fill(line, "31")
        if not result.as_expected:
            lines += self.fill(f"expected: {result.expected}", "1;31")
        return "\n".join(lines)

    def table(self, results: Sequence[Result], rows: bool = True) -> str:
        """All results; with rows, under the names of the columns."""
        lines = [self.row(result, rows) for result in results]
        if not rows:
            return "\n".join(lines)
        head = " " * INDENT + (" " * self.room if self.beside else "") + self.numbers(*COLUMNS)
        note = self.fill(NOTE, "2")
        return "\n".join([self.paint(head, "2"), *lines, *note])

    def list(self, claims: Sequence[Claim]) -> str:
        """Statements and expected verdicts, by family."""
        lines = []
        for family in dict.fromkeys(claim.family for claim in claims):
            lines += [self.paint(family, "1")]
            for claim in claims:
                if claim.family == family:
                    verdict = UNSETTLED if claim.problem else claim.expected
                    lines += self.head(claim.id, claim.statement, verdict)
        return "\n".join(lines)

    def explanation(self, result: Result) -> str:
        """The row, where the claim is made, and why the truth is what it is."""
        text = f"{place(result.section)}. {result.derivation}"
        return "\n".join([self.row(result), "", *self.fill(text)])

    def summary(self, results: Sequence[Result], seconds: float) -> str:
        """One sentence on all of them."""
        text = counted(results, seconds)
        wrong = not all(result.as_expected for result in results)
        lines = "\n".join(textwrap.wrap(text, self.width))
        return self.paint(lines, "1;31" if wrong else "1")
