"""Tables for a terminal, for Markdown and for a notebook."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

GAP = "  "
NARROWEST = 20  # columns that a wrapped cell is given at least


@dataclass(frozen=True)
class Table:
    """Rows of text under a header.

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
    >>> Table(["layer", "units"], [["<b>", "3"]]).html().count("&lt;b&gt;")
    1
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    align: str = ""  # "l" or "r" for each column; by default "lrrr...", for names and numbers

    def aligned(self) -> str:
        return self.align or "l" + "r" * (len(self.header) - 1)

    def text(self, width: int = 100) -> str:
        """Aligned columns; if they are wider than `width`, the widest column is wrapped."""
        sizes = self._column_widths(width)
        lines = []
        for row in (self.header, *self.rows):
            lines += self._lines(row, sizes)
        if self.title:
            rule = "-" * min(width, max(map(len, lines)))
            lines = [self.title, rule, *lines]
        if self.note:
            lines.append(textwrap.fill(self.note, width))
        return "\n".join(lines)

    def _column_widths(self, width: int) -> list[int]:
        columns = zip(self.header, *self.rows, strict=True)
        sizes = [max(map(len, column)) for column in columns]
        widest = sizes.index(max(sizes))
        gaps = len(GAP) * (len(sizes) - 1)
        others = sum(sizes) - sizes[widest] + gaps
        sizes[widest] = min(sizes[widest], max(NARROWEST, width - others))
        return sizes

    def _lines(self, row: Sequence[str], sizes: Sequence[int]) -> list[str]:
        """A row; several lines, if some of its cells are wrapped."""
        cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        lines = []
        for parts in zip_longest(*cells, fillvalue=""):
            padded = []
            for part, size, side in zip(parts, sizes, self.aligned(), strict=True):
                padded.append(part.rjust(size) if side == "r" else part.ljust(size))
            lines.append(GAP.join(padded).rstrip())
        return lines

    def markdown(self) -> str:
        rule = ["---:" if side == "r" else "---" for side in self.aligned()]
        lines = []
        for row in (self.header, rule, *self.rows):
            cells = [cell.replace("|", "\\|") for cell in row]
            lines.append("| " + " | ".join(cells) + " |")
        if self.title:
            lines = [f"## {self.title}", "", *lines]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)

    def html(self) -> str:
        """For a notebook: an HTML table, in which all texts are escaped."""
        styles = [f"text-align: {'right' if side == 'r' else 'left'}" for side in self.aligned()]
        parts = []
        if self.title:
            parts.append(element("caption", self.title))
        head = [element("th", cell, style) for cell, style in zip(self.header, styles, strict=True)]
        parts.append(f"<thead><tr>{''.join(head)}</tr></thead>")
        parts.append("<tbody>")
        for row in self.rows:
            cells = [element("td", cell, style) for cell, style in zip(row, styles, strict=True)]
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append("</tbody>")
        table = f"<table>{''.join(parts)}</table>"
        return table + element("p", self.note) if self.note else table

    def _repr_html_(self) -> str:
        return self.html()


def element(tag: str, text: str, style: str = "") -> str:
    """An HTML element with this text, which is escaped.

    >>> element("b", "<script>")
    '<b>&lt;script&gt;</b>'
    """
    from html import escape  # few need it

    attribute = f' style="{escape(style)}"' if style else ""
    return f"<{tag}{attribute}>{escape(text)}</{tag}>"


class Tabular:
    """What a notebook shows as a table. Subclasses define `table`."""

    def table(self) -> Table:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.table().html()
