"""Everything that is told about speed on a CPU, measured on an idle machine and written where it is
told.

RESULTS.md has the comparisons, PROFILE.md the ops of a step, SCALING.md how its cost grows, and the
README the step."""

import argparse
import os
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from tinyprop.report.arguments import whole_number
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

from . import measure, overhead, profile, report, scaling
from .cases import SECTIONS, Case, plan
from .measure import Results
from .peers import PEERS, is_installed

FAST = [name for name in PEERS if name == "tinyprop" or PEERS[name].package == "torch"]
SLOW = [name for name in PEERS if name not in FAST]
SLOW_REPEATS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=9, help="times for each row (default 9)"
    )
    parser.add_argument(
        "--into", type=Path, default=Path("."), help="a clone, or its README.md and benchmarks/"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny networks, to see that it works"
    )


def run(options: argparse.Namespace) -> int:
    threads, repeats, dry, pages = (
        os.cpu_count() or 1,
        options.repeats,
        options.dry_run,
        options.into / "benchmarks",
    )
    small = {"batch": 4, "width": 0.05} if dry else {}

    def cases(threads: int, *sections: str) -> list[Case]:
        return [replace(case, **small) for case in plan(sections or list(SECTIONS), threads)]

    together = measure.run(cases(threads), FAST, repeats, threads, together=True)
    alone = measure.run(cases(1, "step"), FAST, repeats, 1, together=True)
    apart = measure.run(cases(threads, "step"), FAST, repeats, threads)
    ops = overhead.table(1 if dry else 41)
    write_results(options.into, together, alone, apart, ops)
    load = together.options["load_before"]
    sizes = (
        {"steps": 1, "images": 2, "width": 0.05}
        if dry
        else {"steps": 15, "images": 25, "width": 1.0}
    )
    write_whole(
        pages / "PROFILE.md", f"{profile.measured(Namespace(**sizes, load=load))}\n".encode()
    )
    scaling.run(
        Namespace(repeats=1 if dry else 5, threads=threads, out=pages, dry_run=dry, load=load)
    )
    others = [peer for peer in SLOW if is_installed(peer)]
    if not others:
        return 0
    repeats = min(repeats, SLOW_REPEATS)
    slow = measure.run(cases(threads, "step"), ["tinyprop", *others], repeats, threads)
    every = replace(
        apart,
        measurements=apart.measurements + [m for m in slow.measurements if m.peer != "tinyprop"],
        versions=apart.versions | slow.versions,
        notes=[
            *apart.notes,
            *slow.notes,
            f"{', '.join(PEERS[peer].title for peer in others)}: {repeats} repeats",
        ],
    )
    write_results(options.into, together, alone, every, ops)
    return 0


def write_results(
    root: Path, together: Results, alone: Results, apart: Results, ops: Table
) -> None:
    """RESULTS.md, and the README's paragraph and table of steps."""
    steps = report.step_table(report.by_case(apart.measurements, "step"))
    # of the first run: later ones find the load of those before
    load = together.options["load_before"]
    apart = replace(apart, options=apart.options | {"load_before": load})
    tables = [
        replace(steps, title=f"{steps.title}, each peer in a process of its own"),
        replace(report.tables(together)[0], title="The same, all in one process", note=""),
        replace(
            report.tables(alone)[0], title="The same, all in one process, on one thread", note=""
        ),
        *report.tables(together)[1:],
        ops,
    ]
    behind = "; ".join(report.behind(together)) or "nothing"
    missing = [
        f"{PEERS[peer].title}: not installed, so not measured"
        for peer in SLOW
        if not is_installed(peer)
    ]
    head = [
        "# Results",
        "Written by `python -m benchmarks publish`. [PROFILE.md](PROFILE.md) says where the time "
        "of a step goes, "
        "[SCALING.md](SCALING.md) how it grows.",
        "tinyprop against PyTorch and, in the first table, other frameworks that are installed: "
        "the same networks, "
        "weights, data and results, on the same threads. Times are of the clock, except those of "
        "small ops. Ratios are "
        "the other's time divided by tinyprop's: above 1, tinyprop is faster. Only for small ops "
        "it is the reverse.",
        "In the first table each peer has a process of its own; in all others tinyprop and "
        "PyTorch take turns in one. "
        "Every peer has the C library keep the memory that it frees "
        "(`tp.train.keep_freed_memory()`).",
        f"Slower than in PyTorch, at its best, are, with the last column of their table: {behind}.",
        "\n".join(f"- {line}" for line in [*report.about(apart), *missing]),
    ]
    page = "\n\n".join([*head, *(table.markdown() for table in tables)])
    write_whole(root / "benchmarks" / "RESULTS.md", f"{page}\n".encode())

    machine = f"{apart.machine['cores']} cores of an {apart.machine['cpu']}"
    text = (
        f"The time of a training step of the paper's network (50 images, float32) on {machine}"
        f"{'' if load is None else f', load before {load:.2f}'}; the columns `/ ours` are times "
        "divided by tinyprop's, "
        "NP/BN is NormProp's time divided by BatchNorm's. Of the steps, layers and networks that "
        "[RESULTS.md](benchmarks/RESULTS.md) compares in one process, these are slower than in "
        f"PyTorch: {behind}. In "
        "a clone, `python -m benchmarks` measures it on your machine."
    )
    rows = [line for line in tables[0].markdown().splitlines() if line.startswith("|")]
    old = re.compile(r"The time of a training step of the paper's network.*?\n\n(\|.*?\n)+", re.S)
    readme, count = old.subn(
        lambda _: "\n".join([fill(text, 120), "", *rows, ""]), (root / "README.md").read_text()
    )
    if count != 1:
        raise ValueError(f"README.md has {count} tables of training steps, not one")
    write_whole(root / "README.md", readme.encode())
