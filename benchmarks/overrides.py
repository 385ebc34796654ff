"""What a training step costs without each override of `kernels/`.

Each override that the step uses is taken out of the table, and then the next one asked, or the
rule, computes its part. Steps with all overrides and steps without one take turns, and each pair
gives a ratio. The first row takes out nothing: its ratios show what chance does."""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from tqdm import tqdm

from tinyprop.engine import overrides
from tinyprop.engine.overrides import Override
from tinyprop.engine.threads import cores
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table
from tinyprop.train import keep_freed_memory

from .cases import NORMS, Case
from .peers.tinyprop import Tinyprop
from .report import milliseconds
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
    parser.add_argument("--width", type=float, default=1.0, help="of the network (default 1)")
    parser.add_argument("--batch", type=whole_number(1), default=50, help="images (default 50)")
    parser.add_argument(
        "--norm", choices=NORMS, default="normprop", help="normaliser (default normprop)"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=cores(),
        help=f"default {cores()}; with 1, a busy machine does less harm",
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), default=7, help="pairs for each row (default 7)"
    )


def run(options: argparse.Namespace) -> int:
    keep_freed_memory()
    case = Case(NORMS[options.norm], norm=options.norm, width=options.width, batch=options.batch)
    print(table(case, options.threads, options.repeats).text(110))
    return 0


def table(case: Case, threads: int, repeats: int) -> Table:
    work, _ = Tinyprop(threads).job(case)
    used = used_by(work)
    timer = Timer(work, enough_calls(work), one_thread=threads == 1)
    groups: Groups = {NOTHING: [], **used}
    pairs: dict[str, list[Pair]] = {name: [] for name in groups}
    turns = [(turn, name) for turn in range(repeats) for name in groups]
    for turn, name in tqdm(turns, desc="overrides", unit="pair", disable=None, leave=False):
        pairs[name].append(timer.pair(groups[name], without_first=turn % 2 == 1))
    rows = [row(name, groups[name], pairs[name]) for name in groups]
    header = ["without", "which computes", "with all, ms", "without, ms", "ratio", "least-most"]
    title = f"A {case.name} step without each override: width {case.width:g}, {case.batch} images"
    unused = [name for name in grouped() if name not in used]
    note = f"{timer}; medians of {repeats} pairs. Not used: {', '.join(unused) or 'none'}."
    return Table(header, rows, title, note, "llrrrr")


@dataclass(frozen=True)
class Timer:
    work: Work
    calls: int
    one_thread: bool

    def __str__(self) -> str:
        if self.one_thread:
            return "Times of the processor, on one thread"
        return "Times of the clock, on several threads"

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


def row(name: str, entries: list[Override], pairs: list[Pair]) -> list[str]:
    rules = dict.fromkeys(entry.rule.__qualname__ for entry in entries)
    ratios = [pair.without / pair.whole for pair in pairs]
    return [
        name,
        ", ".join(rules) or "-",
        milliseconds(median(pair.whole for pair in pairs)),
        milliseconds(median(pair.without for pair in pairs)),
        f"{median(ratios):.3f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
    ]
