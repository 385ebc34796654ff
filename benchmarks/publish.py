"""Everything that is told about speed on a CPU, measured on an idle machine and written where it is
told.

RESULTS.md has the comparisons, PROFILE.md the ops of a step, SCALING.md how its cost grows,
RANKS.md a step on two processes, and the README the step."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

from tinyprop.report.arguments import whole_number
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

from . import measure, overhead, profile, ranks, report, scaling
from .cases import SECTIONS, plan
from .load import load_average, require_idle
from .measure import Results
from .peers import PEERS, is_installed

FAST = [name for name in PEERS if name == "tinyprop" or name in report.TORCH]
SLOW = [name for name in PEERS if name not in FAST]
SLOW_REPEATS = 3
SCALING_REPEATS = 5
SMALL_OPS_REPEATS = 41
# the paragraph and the table of the README
README_STEPS = re.compile(
    r"The time of a training step of the paper's network.*?\n\n(\|.*?\n)+", re.DOTALL
)


@dataclass(frozen=True)
class Comparisons:
    """What RESULTS.md tells."""

    together: Results  # every section, tinyprop and PyTorch in one process
    one_thread: Results  # steps, in one process on one thread
    apart: Results  # steps, each peer in a process of its own
    small_ops: Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=9, help="times for each row (default 9)"
    )
    parser.add_argument(
        "--into", type=Path, default=Path("."), help="a clone, or its README.md and benchmarks/"
    )


def run(options: argparse.Namespace) -> int:
    load = load_average()
    require_idle(load)
    threads = os.cpu_count() or 1
    pages = options.into / "benchmarks"
    write_results(options.into, compared(options.repeats, threads), load)
    spent = profile.measured()
    text = profile.page(spent, profile.STEPS, profile.IMAGES, load)
    write_whole(pages / "PROFILE.md", f"{text}\n".encode())
    scaling.write(pages, SCALING_REPEATS, threads, load)
    if ranks.mpiexec().exists():
        ranks.write(pages, ranks.REPEATS, load)
    return 0


def compared(repeats: int, threads: int) -> Comparisons:
    every = plan(list(SECTIONS), threads)
    steps = plan(["step"], threads)
    together = measure.run(every, FAST, repeats, threads, together=True)
    one_thread = measure.run(plan(["step"], 1), FAST, repeats, 1, together=True)
    apart = measure.run(steps, FAST, repeats, threads)
    small_ops = overhead.table(SMALL_OPS_REPEATS)
    others = [peer for peer in SLOW if is_installed(peer)]
    if others:
        repeats = min(repeats, SLOW_REPEATS)
        slow = measure.run(steps, ["tinyprop", *others], repeats, threads)
        apart = joined(apart, slow, others, repeats)
    return Comparisons(together, one_thread, apart, small_ops)


def joined(results: Results, slow: Results, peers: Sequence[str], repeats: int) -> Results:
    """The results with those of slow peers, which were measured with fewer repeats."""
    titles = ", ".join(PEERS[peer].title for peer in peers)
    return replace(
        results,
        measurements=results.measurements + [m for m in slow.measurements if m.peer in peers],
        versions=results.versions | slow.versions,
        notes=[*results.notes, *slow.notes, f"{titles}: {repeats} repeats"],
    )


def write_results(root: Path, found: Comparisons, load: float | None) -> None:
    """RESULTS.md, and the README's paragraph and table of steps.

    `load` is that before the first run: later ones find the load of those before."""
    apart = replace(found.apart, options=found.apart.options | {"load_before": load})
    steps, *_ = report.tables(apart)
    slower = "; ".join(report.slower(found.together)) or "none"
    page = results_page(replace(found, apart=apart), slower)
    readme = readme_with(root / "README.md", readme_text(apart, slower, load), steps)
    write_whole(root / "benchmarks" / "RESULTS.md", page.encode())
    write_whole(root / "README.md", readme.encode())


def results_page(found: Comparisons, slower: str) -> str:
    apart, *_ = report.tables(found.apart)
    together, *sections = report.tables(found.together)
    one_thread, *_ = report.tables(found.one_thread)
    alike = "The same, all in one process"
    tables = [
        replace(apart, title=f"{apart.title}, each peer in a process of its own"),
        replace(together, title=alike, note=""),
        replace(one_thread, title=f"{alike}, on one thread", note=""),
        *sections,
        found.small_ops,
    ]
    paragraphs = [
        "# Results",
        "Written by `python -m benchmarks publish`. [PROFILE.md](PROFILE.md) says where the time "
        "of a step goes, [SCALING.md](SCALING.md) how it grows.",
        "tinyprop against PyTorch and, in the first table, other frameworks that are installed: "
        "the same networks, weights, data and results, on the same threads. Times are of the "
        "clock, except those of small ops. Ratios are the other's time divided by tinyprop's: "
        "above 1, tinyprop is faster. Only for small ops it is the reverse.",
        "In the first table each peer has a process of its own; in all others tinyprop and "
        "PyTorch take turns in one. Every peer has the C library keep the memory that it frees "
        "(`tp.train.keep_freed_memory()`).",
        "tinyprop is slower than PyTorch, in the better of its layouts, in these rows, with the "
        f"last column of their table: {slower}.",
        "\n".join(f"- {line}" for line in report.about(found.apart)),
        *(table.markdown() for table in tables),
    ]
    return "\n\n".join(paragraphs) + "\n"


def readme_text(apart: Results, slower: str, load: float | None) -> str:
    machine = f"{apart.machine['cores']} cores of an {apart.machine['cpu']}"
    load_before = "" if load is None else f", load before {load:.2f}"
    return (
        "The time of a training step of the paper's network (50 images, float32) on "
        f"{machine}{load_before}; the columns `/ ours` are times divided by tinyprop's, NP/BN is "
        "NormProp's time divided by BatchNorm's. Of the steps, layers and networks that "
        "[RESULTS.md](benchmarks/RESULTS.md) compares in one process, tinyprop is slower than "
        f"PyTorch in these (PyTorch's time / ours): {slower}. In a clone, `python -m benchmarks` "
        "measures it on your machine."
    )


def readme_with(path: Path, text: str, steps: Table) -> str:
    """The README with this paragraph and table instead of those that it has."""
    rows = [line for line in steps.markdown().splitlines() if line.startswith("|")]
    new = "\n".join([fill(text, 120), "", *rows, ""])
    readme, count = README_STEPS.subn(lambda _: new, path.read_text())
    if count != 1:
        raise ValueError(f"README.md has {count} tables of training steps, not one")
    return readme
