"""Tables for a terminal and for Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

GAP = "  "
NARROWEST = 20  # columns that a wrapped cell is given at least


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. The first column is aligned to the left, the others by `align`:
    "l" or "r" each.

    >>> table = Table(["network", "error"], [["NormProp", "9.11"], ["BatchNorm", "9.41"]])
    >>> print(table.text())
    network    error
    NormProp    9.11
    BatchNorm   9.41
    >>> print(table.markdown())
    | network | error |
    | --- | ---: |
    | NormProp | 9.11 |
    | BatchNorm | 9.41 |
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    align: str = ""  # for instance "lrrl"; by default numbers, to the right

    def aligned(self) -> str:
        return self.align or "l" + "r" * (len(self.header) - 1)

    def text(self, width: int = 100) -> str:
        """Aligned columns; if they are wider than `width`, the widest column is wrapped."""
        sizes = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        widest = sizes.index(max(sizes))
        others = sum(sizes) - sizes[widest] + len(GAP) * (len(sizes) - 1)
        sizes[widest] = min(sizes[widest], max(NARROWEST, width - others))
        lines = [line for row in (self.header, *self.rows) for line in self._lines(row, sizes)]
        title = [self.title, "-" * min(width, max(map(len, lines)))] if self.title else []
        note = [textwrap.fill(self.note, width)] if self.note else []
        return "\n".join([*title, *lines, *note])

    def _lines(self, row: Sequence[str], sizes: Sequence[int]) -> list[str]:
        cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        lines = []
        for parts in zip_longest(*cells, fillvalue=""):
            placed = zip(parts, sizes, self.aligned(), strict=True)
            lines.append(
                GAP.join(
                    part.rjust(size) if side == "r" else part.ljust(size)
                    for part, size, side in placed
                )
            )
        return [line.rstrip() for line in lines]

    def markdown(self) -> str:
        rule = ["---:" if side == "r" else "---" for side in self.aligned()]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
        title = [f"## {self.title}", ""] if self.title else []
        note = ["", self.note] if self.note else []
        return "\n".join([*title, *lines, *note])
