"""Results as a page: Markdown, or HTML in one file that needs no other."""

import html
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..report.files import write_whole
from ..report.table import Table
from .report import COLUMNS, STYLES, cells_of, counted, place
from .settling import Result

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff; overflow-wrap: break-word }
h2 { font-size: 1.05rem; margin: 2rem 0 0.2rem }
table { border-collapse: collapse; margin: 0.6rem 0; font-size: 0.9rem }
th, td { border-bottom: 1px solid #ccc; padding: 0.15rem 0.8rem 0.15rem 0; text-align: left }
.verdict { font-weight: 600 } .wrong { color: #a3001b } .quiet { color: #555 }
pre { white-space: pre-wrap; color: #a3001b }
.wide { overflow-x: auto }  /* on a phone, the table scrolls and not the page */
@media (max-width: 30rem) {
  table { font-size: 0.8rem } th, td { padding-right: 0.4rem; line-height: 1.3 } }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #16181b } th, td { border-color: #444 }
  .wrong, pre { color: #ff8a8a } .quiet { color: #aaa } }
"""
NOTE = (
    "Rows with a star are shown, and compared with their measurement; they are not judged. Error "
    "bars cover chance, at 95 %, and what the measurement is known to neglect. The last column has "
    "the smallest error of the exact number that would be noticed: relative to it, or absolute "
    "where it has no %."
)


def write_page(path: Path, results: Sequence[Result]) -> None:
    """Write a report, in the form that the name of the file says."""
    write_whole(path, FORMS[path.suffix](results).encode(errors="replace"))


def title(results: Sequence[Result]) -> str:
    return f"{counted(results)} tinyprop {__version__}."


def rows(result: Result) -> Table:
    return Table(["case", *COLUMNS], [cells_of(case) for case in result.cases], align="lllll")


def outcome(result: Result) -> str:
    mark = STYLES[result.verdict][0]
    unexpected = "" if result.as_expected else f" (expected: {result.expected})"
    return f"{mark} {result.verdict}{unexpected}"


def markdown(results: Sequence[Result]) -> str:
    """The report in Markdown."""
    parts = ["# Claims, settled", title(results), NOTE]
    for result in results:
        parts += [f"## {result.id} {result.statement}"]
        parts += [f"**{outcome(result)}**: {result.reason}"]
        if result.cases:
            parts += [rows(result).markdown()]
        if result.problem:
            parts += ["```text\n" + result.problem + "\n```"]
        parts += [f"{place(result.section)}. {result.derivation}"]
    return "\n\n".join(parts) + "\n"


def page(results: Sequence[Result]) -> str:
    """The report in HTML, with its style inside."""
    parts = []
    for result in results:
        kind = "verdict" if result.as_expected else "verdict wrong"
        parts += [
            f'<h2 id="{html.escape(result.id)}">{html.escape(result.id)} '
            f"{html.escape(result.statement)}</h2>",
            f'<p><span class="{kind}">{html.escape(outcome(result))}</span>: '
            f"{html.escape(result.reason)}</p>",
        ]
        if result.cases:
            parts += [f'<div class="wide">{rows(result).html()}</div>']
        if result.problem:
            parts += [f"<pre>{html.escape(result.problem)}</pre>"]
        text = f"{place(result.section)}. {result.derivation}"
        parts += [f'<p class="quiet">{html.escape(text)}</p>']
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Claims, settled</title><style>{STYLE}</style></head><body>",
            "<h1>Claims, settled</h1>",
            f"<p>{html.escape(title(results))} {NOTE}</p>",
            *parts,
            "</body></html>",
            "",
        ]
    )


FORMS = {".md": markdown, ".html": page}
