"""An examination as one HTML page that needs no other file, for screens of any size, light or
dark."""

import math
from collections.abc import Callable, Sequence
from html import escape

from .examine import Examination, shown

WIDTH, HEIGHT = 640, 230
LEFT, RIGHT, TOP, BOTTOM = 72, 14, 14, 34

STYLE = """
.tp-examine { color-scheme: light dark; --page: #fcfcfa; --card: #fff; --ink: #1d2430;
  --soft: #5b6472; --rule: #d9dde3; --theory: #0072b2; --measured: #d55e00; --good: #00795a;
  --bad: #b3261e; --wash: #fdf0ee; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
@media (prefers-color-scheme: dark) { .tp-examine { --page: #14171c; --card: #1b1f26;
  --ink: #e6e9ee; --soft: #a0a9b6; --rule: #343b46; --theory: #56b4e9; --measured: #f0894a;
  --good: #4cc9a0; --bad: #ff8a80; --wash: #33211f; } }
.tp-examine * { box-sizing: border-box; }
.tp-examine h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.tp-examine h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
.tp-examine p { margin: .3rem 0; max-width: 46rem; }
.tp-examine .soft { color: var(--soft); font-size: .92rem; }
.tp-examine .verdict { font-weight: 600; margin: 1rem 0 .6rem; }
.tp-examine .verdict.good { color: var(--good); }
.tp-examine .verdict.bad { color: var(--bad); }
.tp-examine .fault, .tp-examine figure { background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; padding: .8rem 1rem; margin: 0; min-width: 0; }
.tp-examine .fault { border-left: 5px solid var(--bad); background: var(--wash);
  margin-bottom: .7rem; }
.tp-examine .fault h2 { margin: 0 0 .2rem; }
.tp-examine .where { font-family: ui-monospace, Consolas, monospace; font-size: .88rem;
  font-weight: 400; overflow-wrap: anywhere; }
.tp-examine .charts { display: grid; gap: .8rem; margin: 1.2rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.tp-examine figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .3rem; }
.tp-examine svg { display: block; width: 100%; height: auto; }
.tp-examine svg text { fill: var(--soft); font-size: 15px; font-family: inherit; }
.tp-examine .grid { stroke: var(--rule); }
.tp-examine .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.tp-examine .of-theory { stroke: var(--theory); stroke-dasharray: 6 4; }
.tp-examine .of-network { stroke: var(--measured); }
.tp-examine .dot { fill: var(--measured); }
.tp-examine .mark { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 2 3; }
.tp-examine .key { display: inline-flex; align-items: center; gap: .4rem; margin-right: 1.2rem; }
.tp-examine .key svg { width: 28px; height: 10px; }
.tp-examine .scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 10px;
  background: var(--card); }
.tp-examine table { border-collapse: collapse; width: 100%; margin: 0; color: var(--ink);
  font-size: .88rem; font-variant-numeric: tabular-nums; }
.tp-examine th, .tp-examine td { padding: .35rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); background: var(--card); }
.tp-examine tr:last-child td { border-bottom: 0; }
.tp-examine th { font-weight: 600; }
.tp-examine th:first-child, .tp-examine td:first-child { text-align: left; position: sticky;
  left: 0; }
.tp-examine td.theory { color: var(--theory); }
.tp-examine tr.faulty td { background: var(--wash); }
.tp-examine .tag { color: var(--bad); font-size: .8rem; margin-left: .5rem; }
@media (max-width: 520px) { .tp-examine td:first-child { min-width: 7.5rem; white-space: normal;
  overflow-wrap: break-word; } .tp-examine .tag { display: block; margin-left: 0; }
  .tp-examine svg text { font-size: 20px; } }
"""

NOTE = (
    "Of weighted sums where a layer has weights, of its output elsewhere. mean: of each unit, as "
    "root mean square over units. variance: over inputs and positions, mean over units. "
    "correlation: of two different inputs; at 1, the network no longer tells inputs apart. "
    "gradient: root mean square. dead: units whose output is the same for every input. saturated: "
    "values where a bounded activation is flat. theory: from the weights and the moments of the "
    "input, with later layers as Gaussian."
)


def page(found: Examination) -> str:
    """The whole page."""
    title = escape(f"{found.name}: signals and gradients")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n"
        "html { color-scheme: light dark; } body { margin: 0; }\n"
        "main.tp-examine { min-height: 100vh; padding: 1.5rem clamp(.8rem, 4vw, 3rem); }\n"
        f"main.tp-examine > * {{ max-width: 76rem; margin-inline: auto; }}\n{STYLE}</style>\n"
        f'</head>\n<body>\n<main class="tp-examine">\n<div>\n{body(found)}\n</div>\n</main>\n'
        "</body>\n</html>\n"
    )


def fragment(found: Examination) -> str:
    """For a notebook."""
    return f'<div class="tp-examine"><style>{STYLE}</style>{body(found)}</div>'


def body(found: Examination) -> str:
    shape = " x ".join(map(str, found.inputs[1:]))
    calls = (
        f"{len(found.layers)} calls of layers, measured with {found.inputs[0]} inputs of {shape}"
    )
    kind = "bad" if found.faults else "good"
    parts = [
        f"<h1>{escape(found.name)}</h1>",
        f'<p class="soft">{escape(calls)}</p>',
        f'<p class="verdict {kind}">{escape(found.verdict)}</p>',
    ]
    for fault in found.faults:
        parts.append(
            f'<section class="fault"><h2>{escape(fault.kind)} '
            f'<span class="where">at {escape(fault.layer)}</span></h2>'
            f"<p>{escape(fault.sentence)}</p><p><b>What to do:</b> {escape(fault.remedy)}</p>"
            "</section>"
        )
    parts += [f"<p>{escape(remark)}</p>" for remark in found.remarks]
    parts.append(charts(found))
    parts.append(f'<div class="scroll">{table(found)}</div>')
    parts.append(f'<p class="soft">{escape(NOTE)}</p>')
    return "\n".join(parts)


def charts(found: Examination) -> str:
    keys = [
        '<span class="key"><svg viewBox="0 0 28 10" aria-hidden="true">'
        f'<line class="line {kind}" x1="0" y1="5" x2="28" y2="5"/></svg>{name}</span>'
        for kind, name in (("of-network", "measured"), ("of-theory", "theory"))
    ]
    figures = [
        chart(found, "variance", "Variance", is_log=True),
        chart(found, "mean", "Mean of units", is_log=False),
        chart(found, "correlation", "Correlation of two inputs", is_log=False),
        chart(found, "gradient", "Gradient", is_log=True),
    ]
    shown_figures = "".join(figure for figure in figures if figure)
    return f'<p class="soft">{"".join(keys)}</p><div class="charts">{shown_figures}</div>'


def chart(found: Examination, field: str, title: str, is_log: bool) -> str:
    """One quantity over the layers; nothing if it was not measured."""
    measured = [usable(getattr(layer.measured, field), is_log) for layer in found.layers]
    predicted = [usable(getattr(layer.predicted, field, None), is_log) for layer in found.layers]
    values = [value for value in (*measured, *predicted) if value is not None]
    if not any(value is not None for value in measured):
        return ""
    scale = Scale(values, is_log, len(found.layers))
    parts = scale.grid()
    faulty = {fault.layer for fault in found.faults}
    for i, layer in enumerate(found.layers):
        if layer.layer in faulty:
            x = scale.x(i)
            parts.append(
                f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            )
    parts.append(lines(predicted, scale, "of-theory"))
    parts.append(lines(measured, scale, "of-network"))
    for i, value in enumerate(measured):
        if value is not None:
            layer = found.layers[i]
            said = f"{layer.layer}: {shown(getattr(layer.measured, field))}"
            parts.append(
                f'<circle class="dot" cx="{scale.x(i):.1f}" cy="{scale.y(value):.1f}" r="3.6">'
                f"<title>{escape(said)}</title></circle>"
            )
    name = escape(title)
    axis = f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">layer</text>'
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{name}, layer by layer">{"".join(parts)}{axis}</svg></figure>'
    )


def usable(value: float | None, is_log: bool) -> float | None:
    """A value that can be drawn."""
    if value is None or not math.isfinite(value):
        return None
    if is_log:
        return math.log10(value) if value > 1e-30 else None
    return value


def lines(values: Sequence[float | None], scale: "Scale", kind: str) -> str:
    """A line through the values, with gaps where there are none."""
    parts = []
    points: list[str] = []
    for i, value in enumerate((*values, None)):
        if value is not None:
            points.append(f"{scale.x(i):.1f},{scale.y(value):.1f}")
            continue
        if len(points) > 1:
            parts.append(f'<polyline class="line {kind}" points="{" ".join(points)}"/>')
        points = []
    return "".join(parts)


class Scale:
    """Where values are drawn."""

    def __init__(self, values: Sequence[float], is_log: bool, count: int):
        low, high = min(values), max(values)
        least = 1.0 if is_log else 0.1
        if high - low < least:
            middle = 0.5 * (low + high)
            low, high = middle - 0.5 * least, middle + 0.5 * least
        if not is_log and min(values) >= 0.0 and low < 0.4 * high:
            low = 0.0
        margin = 0.06 * (high - low)
        self.low = low if low == 0.0 else low - margin
        self.high = high + margin
        self.is_log = is_log
        self.count = count

    def x(self, number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (number + 0.5) / self.count

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def ticks(self) -> list[float]:
        step = nice_step((self.high - self.low) / 4.0)
        if self.is_log:
            step = max(1.0, round(step))
        first = math.ceil(self.low / step)
        found = []
        while first * step <= self.high:
            found.append(first * step)
            first += 1
        return found

    def grid(self) -> list[str]:
        parts = []
        label: Callable[[float], str] = tenths if self.is_log else (lambda value: f"{value:.3g}")
        for tick in self.ticks():
            y = self.y(tick)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{LEFT - 7}" y="{y + 5:.1f}" text-anchor="end">{label(tick)}</text>'
            )
        return parts


def tenths(exponent: float) -> str:
    """A power of ten, as 0.01 or 1e-6."""
    return f"{10.0**exponent:.3g}"


def nice_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least this.

    >>> nice_step(0.3), nice_step(7.0)
    (0.5, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(step))
    for factor in (1.0, 2.0, 5.0):
        if factor * power >= step:
            return factor * power
    return 10.0 * power


def table(found: Examination) -> str:
    """The table of the examination, in which layers with a fault are marked."""
    plain = found.table()
    kinds = {fault.layer: fault.kind for fault in found.faults}
    head = "".join(f"<th>{escape(cell)}</th>" for cell in plain.header)
    rows = []
    for row in plain.rows:
        name, *cells = row
        tag = kinds.get(name)
        said = f'<span class="tag">{escape(tag)}</span>' if tag else ""
        kind = ' class="faulty"' if tag else ""
        shown_cells = []
        for title, cell in zip(plain.header[1:], cells, strict=True):
            attribute = ' class="theory"' if title == "theory" else ""
            shown_cells.append(f"<td{attribute}>{escape(cell)}</td>")
        rows.append(f"<tr{kind}><td>{escape(name)}{said}</td>{''.join(shown_cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
