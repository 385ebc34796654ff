"""How the cost of a training step grows: time and memory against batch size, width, depth, threads
and processes.

Every point is measured in processes of its own, tinyprop and PyTorch (channels_last) in turns,
after they have agreed. The exponent of an axis is the slope of a straight line through the
logarithms of all its points. Batch size, width, threads and processes are varied about a NormProp
step of the paper's network at a quarter of its width with 50 images, on all cores; depth is that of
a stack of C(96,3,1,1) on 16x16 images. N processes of ours (`tinyprop train
--processes N`) stand beside N threads of PyTorch. RESULTS.md says how much at other sizes."""

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tinyprop.parallel.launch import mpiexec
from tinyprop.report.arguments import whole_number
from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table

from . import report
from .cases import Case
from .measure import Results, Row, measured, results, started
from .peers import PEERS as TITLES
from .workers import Way

OURS = "tinyprop"
THEIRS = "torch-channels-last"
PEERS = (OURS, THEIRS)
AXES = ["batch size", "width", "depth", "threads", "processes"]
BASE = Case("", width=0.25)
STACK = "C(96,3,1,1)"


@dataclass(frozen=True)
class Point:
    """A case, and the ways in which it is measured: ours, and PyTorch's."""

    case: Case
    ways: tuple[Way, Way]


@dataclass(frozen=True)
class Cost:
    """Of a step."""

    seconds: float
    peak_memory: int | None  # bytes


Axis = dict[float, dict[str, Cost]]  # by what is varied, by peer


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


def axes(threads: int) -> dict[str, dict[float, Point]]:
    """What is varied, each from the paper's network at a quarter of its width with batches of 50,
    or a plain stack."""
    all_cores = on_threads(threads)
    return {
        "batch size": {n: Point(replace(BASE, batch=n), all_cores) for n in (1, 4, 16, 64, 256)},
        "width": {w: Point(replace(BASE, width=w), all_cores) for w in (0.1, 0.2, 0.5, 1.0)},
        "depth": {d: Point(stack(d), all_cores) for d in (2, 4, 8, 16, 32)},
        "threads": {n: Point(BASE, on_threads(n)) for n in range(1, threads + 1)},
        "processes": {n: Point(BASE, by_processes(n)) for n in range(1, threads + 1)},
    }


def on_threads(number: int) -> tuple[Way, Way]:
    return Way(OURS, number), Way(THEIRS, number)


def by_processes(number: int) -> tuple[Way, Way]:
    return Way(OURS, processes=number), Way(THEIRS, number)


def stack(depth: int) -> Case:
    network = "-".join([*[STACK] * depth, "C(10,1,1,0)", "P(16,16,0,avg)"])
    return replace(BASE, width=1.0, image=(3, 16, 16), network=network)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--axes",
        nargs="+",
        choices=AXES,
        default=AXES,
        metavar="AXIS",
        help=f"some of {', '.join(AXES)}; others stay as they are in the directory (default: all)",
    )
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
    data = options.out / "scaling.json"
    found = read(data) if data.exists() else {}
    points = axes(options.threads)
    for axis in options.axes:
        if axis != "processes" or mpiexec() is not None:
            found[axis] = varied(axis, points[axis], options.repeats)
    in_order = {axis: found[axis] for axis in AXES if axis in found}
    for path in write(options.out, in_order):
        print(path)
    return 0


def varied(axis: str, points: dict[float, Point], repeats: int) -> dict[float, Results]:
    """What was measured, by what is varied."""
    found = {}
    for x, point in points.items():
        notes: list[str] = []
        with started(point.ways) as remotes:
            named = replace(point.case, name=f"{axis} {x:g}")
            row = measured(named, remotes, repeats, notes)
        found[x] = results([row], notes)
    return found


def write(out: Path, found: dict[str, dict[float, Results]]) -> list[Path]:
    """Print the tables, and write SCALING.md with its figure and its data."""
    from . import figures

    points = {axis: costs(some) for axis, some in found.items()}
    fits = fitted(points)
    tables = [growth_table(fits), *(level_table(axis, some) for axis, some in points.items())]
    print("\n\n".join(table.text(110) for table in tables))
    every = [one for some in found.values() for one in some.values()]
    rounds = [row for one in every for row in one.rows]
    counted = min(len(row.quiet) for row in rounds)
    lines = ["# How the cost of a step grows", "", __doc__.split("\n\n")[1], ""]
    lines += [f"- {line}" for line in report.where(every[0])]
    lines.append(f"- float32, medians of at least {counted} rounds that count")
    parts = ["\n".join(lines), "![Time and memory of a step](scaling.png)"]
    parts += [table.markdown() for table in tables]
    page = out / "SCALING.md"
    data = out / "scaling.json"
    write_whole(page, ("\n\n".join(parts) + "\n").encode())
    write_json(data, as_json(found))
    figure = figures.scaling(points, fits, out / "scaling.png")
    return [page, data, figure]


def costs(found: dict[float, Results]) -> Axis:
    """The medians, by point and peer."""
    points: Axis = {}
    for x, some in found.items():
        (row,) = some.rows
        points[x] = {way.split(",")[0]: cost(row, way) for way in row.clock}
    return points


def cost(row: Row, way: str) -> Cost:
    return Cost(row.median_clock(way), row.peak_memory.get(way))


def as_json(found: dict[str, dict[float, Results]]) -> dict[str, dict[str, object]]:
    return {
        axis: {f"{x:g}": asdict(some) for x, some in points.items()}
        for axis, points in found.items()
    }


def read(path: Path) -> dict[str, dict[float, Results]]:
    """What `as_json` wrote."""
    found = {}
    for axis, points in json.loads(path.read_text()).items():
        found[axis] = {float(x): Results.of(facts) for x, facts in points.items()}
    return found


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
            time = exponent(xs, [cost.seconds for cost in some.values()])
            memory = exponent(xs, [cost.peak_memory for cost in some.values()])
            fits[axis, peer] = Growth(time, memory)
    return fits


def growth_table(fits: Fits) -> Table:
    rows = []
    for (axis, peer), fit in fits.items():
        rows.append([axis, TITLES[peer].title, str(fit.time), str(fit.memory)])
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
            cells.append(report.milliseconds(row[peer].seconds))
            cells.append(report.megabytes(row[peer].peak_memory))
        cells.append(report.ratio_cell(row[THEIRS].seconds / row[OURS].seconds))
        rows.append(cells)
    header = [axis, "ours ms", "MB", "PyTorch ms", "MB", "time / ours"]
    return Table(header, rows, f"A step by {axis}")
