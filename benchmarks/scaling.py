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
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tinyprop.report.arguments import whole_number
from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table

from . import measure, report
from .cases import Case
from .measure import Measurement, Results

PEERS = ["tinyprop", "torch-channels-last"]
BASE = Case("scaling", "", width=0.25)
STACK = "C(96,3,1,1)"


def axes(threads: int) -> dict[str, dict[float, Case]]:
    """What is varied, each from the paper's network at a quarter of its width with batches of 50,
    or a plain stack."""
    base = replace(BASE, threads=threads)
    return {
        "batch size": {n: replace(base, batch=n) for n in (1, 4, 16, 64, 256)},
        "width": {w: replace(base, width=w) for w in (0.1, 0.2, 0.5, 1.0)},
        "depth": {
            d: replace(
                base,
                width=1.0,
                image=(3, 16, 16),
                network="-".join([STACK] * d + ["C(10,1,1,0)", "P(16,16,0,avg)"]),
            )
            for d in (2, 4, 8, 16, 32)
        },
        "threads": {n: replace(base, threads=n) for n in range(1, threads + 1)},
    }


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
    parser.set_defaults(load=None)  # what `publish` found before its first run
    parser.add_argument(
        "--dry-run", action="store_true", help="two points for each axis, to see that it works"
    )


def run(options: argparse.Namespace) -> int:
    from . import figures

    points: dict[str, dict[float, Results]] = {}
    for axis, cases in axes(options.threads).items():
        named = {x: replace(case, name=f"{axis} {x:g}") for x, case in cases.items()}
        named = dict(list(named.items())[:2]) if options.dry_run else named
        points[axis] = {
            x: measure.run([case], PEERS, options.repeats, case.threads)
            for x, case in named.items()
        }
    found = {
        axis: {x: {m.peer: m for m in results.measurements} for x, results in some.items()}
        for axis, some in points.items()
    }
    last, fits = points["batch size"][1], fitted(found)
    if options.load is not None:
        last = replace(last, options=last.options | {"load_before": options.load})
    about = [
        *report.about(last)[:2],
        f"float32, medians of {options.repeats}; {report.about(last)[2].split('; ')[-1]}",
    ]
    tables = [growth(fits), *(levels(axis, some) for axis, some in found.items())]
    print("\n\n".join(table.text(110) for table in tables))
    head = "\n".join(
        [
            "# How the cost of a step grows",
            "",
            __doc__.split("\n\n")[1].strip(),
            "",
            *(f"- {a}" for a in about),
        ]
    )
    page = "\n\n".join(
        [head, "![Time and memory of a step](scaling.png)", *(table.markdown() for table in tables)]
    )
    write_whole(options.out / "SCALING.md", f"{page}\n".encode())
    write_json(
        options.out / "scaling.json",
        {a: {f"{x:g}": asdict(r) for x, r in p.items()} for a, p in points.items()},
    )
    print(
        options.out / "SCALING.md",
        figures.scaling(found, fits, options.out / "scaling.png"),
        sep="\n",
    )
    return 0


Axis = dict[float, dict[str, Measurement]]  # by what is varied, by peer


def exponent(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[float, float]:
    """The slope of log y over log x, and its standard error.

    >>> exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0])
    (2.0, 0.0)
    """
    known = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if y]
    if len(known) < 2:
        return math.nan, math.nan
    u, v = np.array(known).T
    u = u - u.mean()
    slope = float(u @ v / (u @ u))
    rest = v - v.mean() - slope * u
    error = math.sqrt(float(rest @ rest) / (len(u) - 2) / float(u @ u)) if len(u) > 2 else math.nan
    return round(slope, 12), round(error, 12)


def fitted(found: dict[str, Axis]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """The exponents of time and of memory, by axis and peer."""
    fits = {}
    for axis, points in found.items():
        for peer in PEERS:
            some = {x: m[peer] for x, m in points.items() if peer in m}
            measured = [m.median for m in some.values()], [m.peak_memory for m in some.values()]
            fits[axis, peer] = [exponent(list(some), values) for values in measured]
    return fits


def growth(fits: dict[tuple[str, str], list[tuple[float, float]]]) -> Table:
    rows = [
        [
            axis,
            measure.PEERS[peer].title,
            *(f"{slope:.2f}" + f" ± {e:.2f}" * (not math.isnan(e)) for slope, e in fit),
        ]
        for (axis, peer), fit in fits.items()
    ]
    note = (
        "The slope of the logarithm of time, or of peak memory, over that of what is varied, ± "
        "its standard error."
    )
    return Table(["axis", "peer", "exponent of time", "of memory"], rows, "Exponents", note, "llrr")


def levels(axis: str, points: Axis) -> Table:
    rows = []
    for x, by_peer in points.items():
        cells = [
            cell
            for peer in PEERS
            for cell in (
                report.milliseconds(by_peer[peer].median),
                report.megabytes(by_peer[peer].peak_memory),
            )
        ]
        rows.append([f"{x:g}", *cells, report.slowdown(by_peer, PEERS[1])])
    header = [axis, "ours ms", "MB", "PyTorch ms", "MB", "time / ours"]
    return Table(header, rows, f"A step by {axis}")
