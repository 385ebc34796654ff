"""Results for a terminal: statement, verdict, every case, and why."""

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..report.estimate import CONFIDENCE, Estimate
from .claim import (
    APPROXIMATE,
    DOES_NOT_HOLD,
    EMPIRICAL,
    HOLDS,
    IN_EXPECTATION,
    UNSETTLED,
    Case,
    Claim,
    Result,
)

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
INDENT, NARROWEST, GAP = 5, 60, 2
NOT_JUDGED = "* shown, and compared with its measurement; not judged"
COLUMNS = {"the paper": 11, "exact": 11, f"measured, {CONFIDENCE:.0%}": 21}


def number(x: float | None) -> str:
    """Six digits, and 0 for what is 0 except for rounding.

    >>> number(1 / 3), number(1e-16), number(None)
    ('0.333333', '0', '-')
    """
    return "-" if x is None else "0" if abs(x) < 1e-12 else f"{x:.6g}"


def measured(estimate: Estimate | None) -> str:
    return (
        "-" if estimate is None else str(estimate) if estimate.half_width else number(estimate.mean)
    )


def has_color(stream: Any) -> bool:
    """Whether to write in color: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(stream.isatty() and not is_plain)


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


def cells_of(case: Case) -> tuple[str, str, str, str]:
    """What the number is, and the number as the paper has it, exactly, and measured."""
    what = case.what + ("" if case.judged and case.paper is not None else " *")
    said = RELATIONS[case.relation] + number(case.paper)
    return what, said, number(case.exact), measured(case.estimate)


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
        return "".join(map(str.ljust, map(self.plain, values), COLUMNS.values())).rstrip()

    def case(self, case: Case) -> list[str]:
        """What the number is, and the number as the paper has it, exactly, and measured."""
        what, *cells = cells_of(case)
        values = self.numbers(*cells)
        first, *more = textwrap.wrap(
            self.plain(what), (self.room if self.beside else self.width - INDENT) - GAP
        )
        beside, below = [f"{first:<{self.room}}{values}", *more], [first, *more, " " * GAP + values]
        return [" " * INDENT + line for line in (beside if self.beside else below)]

    def row(self, result: Result) -> str:
        """The statement and its verdict, every case, and the reason."""
        mark, code, _ = STYLES[result.verdict]
        room = self.width - INDENT - len(result.verdict) - 4
        first, *more = textwrap.wrap(result.statement, room)
        verdict = self.paint(f"{self.plain(mark)} {result.verdict}", code)
        lines = [f"{self.paint(f'{result.id:<{INDENT}}', '1')}{first:<{room}}  {verdict}"]
        lines += [" " * INDENT + line for line in more]
        lines += [line for case in result.cases for line in self.case(case)]
        lines += self.fill(result.reason, "2")
        if not result.as_expected:
            lines += self.fill(f"expected: {result.expected}", "1;31")
        return "\n".join(lines)

    def table(self, results: Sequence[Result]) -> str:
        head = " " * INDENT + (" " * self.room if self.beside else "") + self.numbers(*COLUMNS)
        note = self.fill(NOT_JUDGED, "2")
        return "\n".join([self.paint(head, "2"), *map(self.row, results), *note])

    def explanation(self, claim: Claim, result: Result) -> str:
        """The row, where the claim is made, and why the truth is what it is."""
        place = f"Section {claim.section}" if claim.family == "normprop" else claim.section
        return "\n".join([self.row(result), "", *self.fill(f"{place}. {claim.derivation}")])

    def summary(self, results: Sequence[Result], seconds: float) -> str:
        """One sentence on all of them."""
        counts = Counter(result.verdict for result in results)
        said = [f"{counts[v]} {STYLES[v][2] if counts[v] > 1 else v}" for v in STYLES if counts[v]]
        others = [result.id for result in results if not result.as_expected]
        end = (
            f"not as expected: {', '.join(others)}"
            if others
            else "every verdict is the expected one"
        )
        text = (
            f"{len(results)} claim{'s' * (len(results) > 1)} in {seconds:.0f} s: "
            f"{', '.join(said)}; {end}."
        )
        return self.paint("\n".join(textwrap.wrap(text, self.width)), "1;31" if others else "1")
