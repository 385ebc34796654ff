"""Tables of what was measured, for a terminal and for Markdown, and the files of a run."""

import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .. import plots
from ..files import write_whole
from .cases import ENGINES, QUICK_WIDTH
from .runner import Measurement, Results
from .workers import MAKERS

PAPER = 84 / 96  # seconds per epoch of NormProp and of BatchNorm in the paper's section 5.6, on a GPU


@dataclass(frozen=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def text(self, width: int = 80) -> str:
        """Aligned columns: the first to the left, numbers to the right."""
        lines = [self.header, *self.rows]
        sizes = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        shown = ["  ".join([line[0].ljust(sizes[0]), *map(str.rjust, line[1:], sizes[1:])]).rstrip() for line in lines]
        note = [textwrap.fill(self.note, width)] if self.note else []
        return "\n".join([self.title, "-" * min(width, max(map(len, shown))), *shown, *note])

    def markdown(self) -> str:
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"## {self.title}\n\n{table}\n" + (f"\n{self.note}\n" if self.note else "")


def milliseconds(seconds: float) -> str:
    """Three digits that count.

    >>> milliseconds(0.31416), milliseconds(0.0012345)
    ('314', '1.23')
    """
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def images_per_second(m: Measurement) -> str:
    return f"{m.batch / m.median:,.0f}"


def megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.0f}"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def by_case(measurements: Iterable[Measurement]) -> dict[str, dict[str, Measurement]]:
    """Measurements by case, and by engine within it."""
    found: dict[str, dict[str, Measurement]] = {}
    for m in measurements:
        found.setdefault(f"{m.group} {m.case}".strip(), {})[m.engine] = m
    return found


def slowdown(row: dict[str, Measurement], engine: str) -> float | None:
    """How many times as long as tinyprop an engine takes."""
    return row[engine].median / row["tinyprop"].median if {"tinyprop", engine} <= row.keys() else None


def best_torch(row: dict[str, Measurement]) -> float | None:
    """How many times as long as tinyprop the better layout of PyTorch takes."""
    found = [s for e in ("torch", "torch-channels-last") if (s := slowdown(row, e)) is not None]
    return min(found, default=None)


def tables(results: Results) -> list[Table]:
    """A table for each section that was measured, and one more for NormProp against BatchNorm."""
    made = []
    row = by_case(results.of("step"))
    if "NormProp" in row:
        made.append(step_table(row["NormProp"]))
    if {"NormProp", "BatchNorm"} <= row.keys():
        made.append(batch_norm_table(row["NormProp"], row["BatchNorm"]))
    titles = {
        "layers": "Each layer by itself: forward and backward, 25 images, one thread (ms)",
        "scaling": "The NormProp step at other sizes (ms)",
        "inference": "Inference of a batch (ms)",
        "networks": "Steps of other networks; convolutions of odd geometry, 25 images, one thread (ms)",
    }
    return made + [comparison(title, results.of(s)) for s, title in titles.items() if results.of(s)]


def step_table(row: dict[str, Measurement]) -> Table:
    rows = []
    for engine, m in row.items():
        spread = f"{milliseconds(min(m.seconds))}-{milliseconds(max(m.seconds))}"
        cells = [milliseconds(m.median), spread, images_per_second(m), megabytes(m.peak_memory)]
        rows.append([MAKERS[engine].title, *cells, times(slowdown(row, engine))])
    remarks = [f"{MAKERS[e].title}: {MAKERS[e].remark}." for e in row if MAKERS[e].remark]
    note = (
        "Forward, backward, SGD with momentum and weight decay, unit-length constraint. Median of the repeats; the "
        "last column is the time divided by tinyprop's. Peak memory is the highest resident memory of the engine's "
        "own process less what it held after its imports: weights, optimiser, graph and work space. "
    )
    header = ["engine", "ms", "least-most", "images/s", "peak MB", "x tinyprop"]
    return Table("A training step of the paper's network with NormProp", header, rows, note + " ".join(remarks))


def batch_norm_table(normprop: dict[str, Measurement], batch: dict[str, Measurement]) -> Table:
    rows = [
        [MAKERS[e].title, milliseconds(m.median), milliseconds(batch[e].median), times(m.median / batch[e].median)]
        for e, m in normprop.items()
        if e in batch
    ]
    note = f"The paper's section 5.6 has 84 s against 96 s for an epoch on a GPU: {PAPER:.3f}."
    return Table("NormProp against BatchNorm", ["engine", "NormProp ms", "BatchNorm ms", "ratio"], rows, note)


def comparison(title: str, measurements: list[Measurement]) -> Table:
    """A row for each case, a column for each engine, and the ratio that matters."""
    cases = by_case(measurements)
    engines = [e for e in MAKERS if any(e in row for row in cases.values())]
    rows = [
        [name, *(milliseconds(row[e].median) if e in row else "-" for e in engines), times(best_torch(row))]
        for name, row in cases.items()
    ]
    note = "The last column is the time of PyTorch's better layout divided by tinyprop's: above 1, tinyprop is faster."
    used = [f"{MAKERS[e].title}: {MAKERS[e].remark}." for e in engines if e not in ENGINES]
    return Table(title, ["case", *(short(e) for e in engines), "best/ours"], rows, " ".join([note, *used]))


def short(engine: str) -> str:
    """A title that fits above a column."""
    return {"torch": "NCHW", "torch-channels-last": "ch_last"}.get(
        engine, MAKERS[engine].title.replace("tinyprop ", "")
    )


def about(results: Results) -> list[str]:
    """Where and how it was measured."""
    machine, options = results.machine, results.options
    load = options["load_before"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores; {machine['blas']}; {machine['system']}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items())
        + f", numpy {machine['numpy']}, Python {machine['python']}",
        f"float32, {options['threads']} threads, {options['repeats']} repeats, engines in turns, a process for each"
        + ("" if load is None else f"; load of the machine before: {load:.2f}"),
        *([f"a quick run: scaling and VGG-like at width {QUICK_WIDTH}"] if options["quick"] else []),
        *results.notes,
    ]


def as_markdown(results: Results) -> str:
    lines = "\n".join(f"- {line}" for line in about(results))
    return f"# Benchmarks\n\n{lines}\n\n" + "\n".join(table.markdown() for table in tables(results))


def write(results: Results, out: Path) -> list[Path]:
    """Every measured time as JSON, the tables as Markdown, and pictures."""
    write_whole(out / "bench.json", json.dumps(asdict(results), indent=1).encode())
    write_whole(out / "bench.md", as_markdown(results).encode())
    paths = [out / "bench.json", out / "bench.md"]
    for name, figure in pictures(results):
        paths += [plots.save(figure, out / f"{name}.{kind}") for kind in ("png", "svg")]
    return paths


def pictures(results: Results) -> Iterator[tuple[str, Figure]]:
    steps = by_case(results.of("step"))
    if "NormProp" in steps:
        yield "step", plots.step_times(step_rows(steps))
    if layers := by_case(results.of("layers")):
        times = {case: {MAKERS[e].title: m.median * 1e3 for e, m in row.items()} for case, row in layers.items()}
        yield "layers", plots.grouped_bars("Forward and backward of a layer, ms", times)
    if scaling := results.of("scaling"):
        yield "scaling", plots.throughput(rates_of(scaling))
    others = by_case([replace(m, case=f"inference {m.case}") for m in results.of("inference")] + results.of("networks"))
    if relative := {case: relative_times(row) for case, row in others.items() if "tinyprop" in row}:
        yield "networks", plots.grouped_bars("Time divided by tinyprop's: above 1, tinyprop is faster", relative)


def relative_times(row: dict[str, Measurement]) -> dict[str, float]:
    """Variants of tinyprop come last, so that an engine has the same colour in every picture."""
    order = sorted(row, key=lambda e: e not in ENGINES)
    return {MAKERS[e].title: row[e].median / row["tinyprop"].median for e in order}


def step_rows(steps: dict[str, dict[str, Measurement]]) -> list[dict[str, Any]]:
    """For each engine its time, its peak memory, and its time with NormProp over that with BatchNorm, if known."""
    batch = steps.get("BatchNorm", {})
    return [
        {
            "engine": MAKERS[e].title,
            "ms": m.median * 1e3,
            "megabytes": None if m.peak_memory is None else m.peak_memory / 1e6,
            "ratio": m.median / batch[e].median if e in batch else None,
        }
        for e, m in steps["NormProp"].items()
    ]


def rates_of(measurements: list[Measurement]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """For each size that was changed, and each engine, its values and the images per second there."""
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for m in measurements:
        lines = rates.setdefault(m.group, {}).setdefault(MAKERS[m.engine].title, [])
        lines.append((float(m.case), m.batch / m.median))
    return rates
