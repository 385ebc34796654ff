"""How the cost of a training step grows: time and memory against batch size, width, depth and
threads.

Every point is measured in processes of its own, tinyprop and PyTorch (channels_last) in turns,
after they have agreed. The exponent of an axis is the slope of a straight line through the
logarithms of all its points. Batch size, width and threads are varied about a NormProp step of the
paper's network at a quarter of its width with 50 images, on all cores; depth is that of a stack of
C(96,3,1,1) on 16x16 images."""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tinyprop.report.arguments import whole_number
from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table

from . import measure, report
from .cases import Case
from .load import load_average, load_words
from .measure import Measurement, Results
from .peers import PEERS as TITLED

PEERS = ["tinyprop", "torch-channels-last"]
BASE = Case("scaling", "", width=0.25)
STACK = "C(96,3,1,1)"
Axis = dict[float, dict[str, Measurement]]  # by what is varied, by peer


@dataclass(frozen=True)
class Fit:
    """The slope of log y over log x, and its standard error, NaN where the points do not tell."""

    slope: float
    error: float

    def __str__(self) -> str:
        return (
            f"{self.slope:.2f}"
            if math.isnan(self.error)
            else f"{self.slope:.2f} ± {self.error:.2f}"
        )


@dataclass(frozen=True)
class Growth:
    """How time and peak memory of a peer grow along an axis."""

    time: Fit
    memory: Fit


Fits = dict[tuple[str, str], Growth]  # by axis and peer


def axes(threads: int) -> dict[str, dict[float, Case]]:
    """What is varied, each from the paper's network at a quarter of its width with batches of 50,
    or a plain stack."""
    base = replace(BASE, threads=threads)
    return {
        "batch size": {n: replace(base, batch=n) for n in (1, 4, 16, 64, 256)},
        "width": {w: replace(base, width=w) for w in (0.1, 0.2, 0.5, 1.0)},
        "depth": {d: stack(base, d) for d in (2, 4, 8, 16, 32)},
        "threads": {n: replace(base, threads=n) for n in range(1, threads + 1)},
    }


def stack(base: Case, depth: int) -> Case:
    network = "-".join([*[STACK] * depth, "C(10,1,1,0)", "P(16,16,0,avg)"])
    return replace(base, width=1.0, image=(3, 16, 16), network=network)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--repeats", type=whole_number(1), default=7, help="times for each point (default 7)"
    )
    parser.add_argument(
        "--threads", type=whole_number(1), default=cores, help=f"at most (default {cores})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/scaling"), help="directory (default runs/scaling)"
    )


def run(options: argparse.Namespace) -> int:
    for path in write(options.out, options.repeats, options.threads, load_average()):
        print(path)
    return 0


def write(out: Path, repeats: int, threads: int, load: float | None) -> list[Path]:
    """Measure, print the tables, and write SCALING.md with its figure and its data."""
    from . import figures

    results = measured(repeats, threads)
    points = {axis: by_point(some) for axis, some in results.items()}
    fits = fitted(points)
    tables = [growth_table(fits), *(level_table(axis, some) for axis, some in points.items())]
    print("\n\n".join(table.text(110) for table in tables))
    first = next(iter(results["batch size"].values()))
    lines = ["# How the cost of a step grows", "", __doc__.split("\n\n")[1], ""]
    lines += [f"- {line}" for line in report.where(first)]
    lines.append(f"- float32, medians of {repeats}{load_words(load)}")
    parts = ["\n".join(lines), "![Time and memory of a step](scaling.png)"]
    parts += [table.markdown() for table in tables]
    page = out / "SCALING.md"
    data = out / "scaling.json"
    write_whole(page, ("\n\n".join(parts) + "\n").encode())
    write_json(data, as_json(results))
    figure = figures.scaling(points, fits, out / "scaling.png")
    return [page, data, figure]


def measured(repeats: int, threads: int) -> dict[str, dict[float, Results]]:
    """By axis, by what is varied."""
    found: dict[str, dict[float, Results]] = {}
    for axis, cases in axes(threads).items():
        found[axis] = {}
        for x, case in cases.items():
            named = replace(case, name=f"{axis} {x:g}")
            found[axis][x] = measure.run([named], PEERS, repeats, case.threads)
    return found


def by_point(results: dict[float, Results]) -> Axis:
    return {x: {m.peer: m for m in some.measurements} for x, some in results.items()}


def as_json(results: dict[str, dict[float, Results]]) -> dict[str, dict[str, object]]:
    return {
        axis: {f"{x:g}": asdict(some) for x, some in points.items()}
        for axis, points in results.items()
    }


def exponent(xs: Sequence[float], ys: Sequence[float | None]) -> Fit:
    """The slope of a straight line through the logarithms.

    >>> exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0])
    Fit(slope=2.0, error=0.0)
    """
    known = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if y]
    number = len(known)
    if number < 2:
        return Fit(math.nan, math.nan)
    u, v = np.array(known).T
    u = u - u.mean()
    v = v - v.mean()
    slope = float(u @ v / (u @ u))
    if number == 2:
        return Fit(round(slope, 12), math.nan)
    residuals = v - slope * u
    variance = float(residuals @ residuals) / (number - 2)
    error = math.sqrt(variance / float(u @ u))
    return Fit(round(slope, 12), round(error, 12))


def fitted(points: dict[str, Axis]) -> Fits:
    fits = {}
    for axis, by_x in points.items():
        for peer in PEERS:
            some = {x: row[peer] for x, row in by_x.items() if peer in row}
            xs = list(some)
            time = exponent(xs, [m.median for m in some.values()])
            memory = exponent(xs, [m.peak_memory for m in some.values()])
            fits[axis, peer] = Growth(time, memory)
    return fits


def growth_table(fits: Fits) -> Table:
    rows = []
    for (axis, peer), fit in fits.items():
        rows.append([axis, TITLED[peer].title, str(fit.time), str(fit.memory)])
    note = (
        "The slope of the logarithm of time, or of peak memory, over that of what is varied, ± "
        "its standard error."
    )
    return Table(["axis", "peer", "exponent of time", "of memory"], rows, "Exponents", note, "llrr")


def level_table(axis: str, points: Axis) -> Table:
    rows = []
    for x, row in points.items():
        cells = [f"{x:g}"]
        for peer in PEERS:
            cells.append(report.milliseconds(row[peer].median))
            cells.append(report.megabytes(row[peer].peak_memory))
        cells.append(report.ratio_cell(row, "torch-channels-last"))
        rows.append(cells)
    header = [axis, "ours ms", "MB", "PyTorch ms", "MB", "time / ours"]
    return Table(header, rows, f"A step by {axis}")
