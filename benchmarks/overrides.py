"""What a training step costs without each override of `kernels/`.

Each override that a program uses is taken out of the table, and then the next one asked, or the
rule, computes its part. Steps with all overrides and steps without one take turns, and each pair
gives a ratio. Where nothing is taken out, ratios show what chance does."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from tinyprop.engine import overrides
from tinyprop.engine.overrides import Override
from tinyprop.report.arguments import whole_number
from tinyprop.report.environment import machine, versions
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table
from tinyprop.train import keep_freed_memory

from .report import NONE
from .trained import Program, programs
from .workers import Work, enough_calls, timed

NOTHING = "(nothing)"
Groups = dict[str, list[Override]]  # by name: one function may override several rules


@dataclass(frozen=True)
class Pair:
    """Seconds of a step with all overrides, and of one without some, measured next to each
    other."""

    whole: float
    without: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [program.name for program in programs()]
    parser.add_argument(
        "--programs",
        nargs="+",
        choices=names,
        default=names,
        metavar="PROGRAM",
        help=f"some of {'; '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), default=7, help="pairs for each ratio (default 7)"
    )
    parser.add_argument("--out", type=Path, help="a directory for OVERRIDES.md (default: none)")


def run(options: argparse.Namespace) -> int:
    keep_freed_memory()
    chosen = [program for program in programs() if program.name in options.programs]
    with threadpool_limits(1, user_api="blas"):
        found = table(chosen, options.repeats)
    print(found.text(140))
    if options.out is not None:
        write_whole(options.out / "OVERRIDES.md", page(found).encode())
    return 0


def page(found: Table) -> str:
    """OVERRIDES.md."""
    here = machine()
    return f"""# What a step costs without each override

Written by `python -m benchmarks overrides` with tinyprop {versions("tinyprop")["tinyprop"]}, on
{here["cpu"]}, {here["cores"]} cores; {here["blas"]}. [README.md](README.md) says how.

{found.markdown()}
"""


def table(chosen: list[Program], repeats: int) -> Table:
    ratios = []
    for program in tqdm(chosen, desc="overrides", unit="program", disable=None, leave=False):
        work = program.start()
        timer = Timer(work, enough_calls(work), one_thread=program.threads == 1)
        ratios.append(ratios_without(timer, used_by(work), repeats))
    groups = {NOTHING: [], **grouped()}
    numbers = [str(number) for number, _ in enumerate(chosen, start=1)]
    rows = [row(name, group, ratios) for name, group in groups.items()]
    note = (
        f"The time of a step without an override divided by that with all, median of {repeats} "
        "pairs; - where it is not used. Times are of the processor, or of the clock on two "
        f"threads. The steps: {legend(chosen)}."
    )
    header = ["without", "which computes", *numbers]
    return Table(header, rows, "Steps without each override", note, "ll" + "r" * len(chosen))


def legend(chosen: list[Program]) -> str:
    words = []
    for number, program in enumerate(chosen, start=1):
        threads = f", {program.threads} threads" if program.threads > 1 else ""
        words.append(f"{number}: {program.name}{threads}")
    return "; ".join(words)


def ratios_without(timer: "Timer", used: Groups, repeats: int) -> dict[str, float]:
    """By override: how many times as long a step takes without it."""
    groups: Groups = {NOTHING: [], **used}
    pairs: dict[str, list[Pair]] = {name: [] for name in groups}
    for turn in range(repeats):
        for name, entries in groups.items():
            pairs[name].append(timer.pair(entries, without_first=turn % 2 == 1))
    return {
        name: median(pair.without / pair.whole for pair in some) for name, some in pairs.items()
    }


@dataclass(frozen=True)
class Timer:
    work: Work
    calls: int
    one_thread: bool

    def seconds(self) -> float:
        found = timed(self.work, self.calls)
        return found.processor if self.one_thread else found.clock

    def pair(self, entries: list[Override], without_first: bool) -> Pair:
        """Two neighbours in time; which of them comes first alternates."""
        if without_first:
            with without(entries):
                less = self.seconds()
            return Pair(self.seconds(), less)
        whole = self.seconds()
        with without(entries):
            return Pair(whole, self.seconds())


def name_of(entry: Override) -> str:
    """For instance "host.max_pool"."""
    module = entry.function.__module__.rpartition(".")[2]
    return f"{module}.{entry.function.__name__}"


def grouped() -> Groups:
    """The overrides for NumPy, by name."""
    groups: Groups = {}
    for entry in overrides.overrides():
        if entry.backend == "numpy":
            groups.setdefault(name_of(entry), []).append(entry)
    return groups


def used_by(work: Work) -> Groups:
    """The overrides that the work uses, without those of their names that it does not."""
    entries = overrides.overrides()
    before = [entry.used for entry in entries]
    for entry in entries:
        entry.used = False
    work()
    groups: Groups = {}
    for name, group in grouped().items():
        used = [entry for entry in group if entry.used]
        if used:
            groups[name] = used
    for entry, used_before in zip(entries, before, strict=True):
        entry.used = entry.used or used_before
    return groups


@contextmanager
def without(entries: Iterable[Override]) -> Iterator[None]:
    """Inside the block the table does not have these overrides."""
    removed = list(entries)
    kept = []  # lists of the table, and what they had
    for rules in overrides.table.values():
        for registered in rules.values():
            kept.append((registered, list(registered)))
            registered[:] = [entry for entry in registered if entry not in removed]
    try:
        yield
    finally:
        for registered, before in kept:
            registered[:] = before


def row(name: str, entries: list[Override], ratios: Sequence[dict[str, float]]) -> list[str]:
    rules = dict.fromkeys(entry.rule.__qualname__ for entry in entries)
    cells = [f"{some[name]:.2f}" if name in some else NONE for some in ratios]
    return [name, ", ".join(rules) or NONE, *cells]
