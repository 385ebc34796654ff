"""Results as a table for a terminal, and as JSON."""

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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
from .monte_carlo import CONFIDENCE, Estimate

STYLES = {  # a mark, for those who see no colour, and an ANSI colour
    HOLDS: ("✓", "32"),
    IN_EXPECTATION: ("µ", "36"),
    APPROXIMATE: ("≈", "33"),
    DOES_NOT_HOLD: ("✗", "31"),
    EMPIRICAL: ("…", "35"),
    UNSETTLED: ("!", "1;31"),
}
SUMMARY = {
    HOLDS: "hold",
    IN_EXPECTATION: "in expectation only",
    APPROXIMATE: "approximate",
    DOES_NOT_HOLD: "do not hold as stated",
    EMPIRICAL: "left to training",
    UNSETTLED: "unsettled",
}
INDENT, NARROWEST = 5, 60
COLUMNS = {"paper": 10, "exact": 11, f"measured, {CONFIDENCE:.0%}": 20}  # and the reason, in what is left


def number(x: float | None) -> str:
    """Six digits, and 0 for what is 0 but for rounding.

    >>> number(1 / 3), number(1e-16), number(None)
    ('0.333333', '0', '-')
    """
    return "-" if x is None else "0" if abs(x) < 1e-12 else f"{x:.6g}"


def measured(estimate: Estimate | None) -> str:
    """An estimate with half the width of its interval, to the digits that this leaves.

    >>> measured(Estimate(1.23456, 0.01, 1000))
    '1.235 ± 0.026'
    """
    if estimate is None:
        return "-"
    reach = estimate.interval()[1] - estimate.value
    if not reach:
        return number(estimate.value)
    digits = max(0, -int(f"{reach:.1e}".split("e")[1]) + 1)
    return f"{estimate.value:.{digits}f} ± {reach:.{digits}f}" if digits < 8 else f"{estimate.value:.6g} ± {reach:.0e}"


class Table:
    """Lines that fit a terminal of some width, in colour or without."""

    def __init__(self, width: int = 100, colour: bool = False):
        self.width, self.colour = max(width, NARROWEST), colour
        self.numbers = INDENT + sum(COLUMNS.values())  # the width that they take
        self.beside = self.width - self.numbers >= 30  # the reason has room beside the numbers, not only below

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def verdict(self, verdict: str) -> str:
        mark, code = STYLES[verdict]
        return self.paint(f"{mark} {verdict}", code)

    def header(self) -> str:
        names = "".join(f"{name:<{width}}" for name, width in COLUMNS.items())
        return self.paint(f"{'':{INDENT}}{names}{'of what, and why' if self.beside else ''}".rstrip(), "2")

    def row(self, result: Result) -> str:
        """The statement and its verdict; below, the numbers and the reason."""
        room = self.width - INDENT - len(result.verdict) - 4
        first, *more = textwrap.wrap(result.statement, room)
        gap = " " * (room - len(first) + 2)
        lines = [f"{self.paint(f'{result.id:<{INDENT}}', '1')}{first}{gap}{self.verdict(result.verdict)}"]
        lines += [" " * INDENT + line for line in more]
        values = (number(result.paper), number(result.exact), measured(result.cases[0].estimate))
        numbers = "".join(f"{text:<{width}}" for text, width in zip(values, COLUMNS.values(), strict=True))
        left = self.numbers if self.beside else INDENT
        reason = textwrap.wrap(f"{result.cases[0].what}: {result.reason}", self.width - left)
        if self.beside:
            lines.append(" " * INDENT + numbers + self.paint(reason.pop(0), "2"))
        else:
            lines.append(" " * INDENT + numbers.rstrip())
        lines += [" " * left + self.paint(line, "2") for line in reason]
        if not result.as_expected:
            lines.append(" " * INDENT + self.paint(f"expected: {result.expected}", "1;31"))
        return "\n".join(lines)

    def whole(self, results: Sequence[Result]) -> str:
        return "\n".join([self.header(), *map(self.row, results)])

    def summary(self, results: Sequence[Result], seconds: float) -> str:
        """One sentence on all of them."""
        counts = Counter(result.verdict for result in results)
        parts = ", ".join(f"{counts[verdict]} {said}" for verdict, said in SUMMARY.items() if counts[verdict])
        others = [result.id for result in results if not result.as_expected]
        end = f"not as expected: {', '.join(others)}" if others else "every verdict is the expected one"
        text = f"{len(results)} claims in {seconds:.0f} s: {parts}; {end}."
        return self.paint("\n".join(textwrap.wrap(text, self.width)), "1;31" if others else "1")

    def explanation(self, claim: Claim, result: Result) -> str:
        """The statement, why the truth is what it is, and every case."""
        lines = [self.row(result), ""]
        lines += [
            " " * INDENT + line for line in textwrap.wrap(" ".join(claim.derivation.split()), self.width - INDENT)
        ]
        lines += ["", self.paint(f"{'':{INDENT}}section {claim.section}", "2")]
        lines += [self._case(case) for case in result.cases]
        return "\n".join(lines)

    def _case(self, case: Case) -> str:
        numbers = f"said {number(case.paper)}, exact {number(case.exact)}, measured {measured(case.estimate)}"
        if case.relation != "equal":
            numbers = numbers.replace("said ", f"said: {case.relation} ".replace("differs", "other than"))
        text = f"- {case.what}: {numbers}{'' if case.judged else ' (not judged)'}"
        return "\n".join(textwrap.wrap(text, self.width, initial_indent=" " * INDENT, subsequent_indent=" " * 7))


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write aside, then put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps([result.to_json() for result in results], indent=1) + "\n", encoding="utf-8")
    aside.replace(path)
