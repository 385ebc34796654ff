"""What users train, tinyprop beside PyTorch: training steps, single layers, and whole programs.

Every row is measured by itself and written to a file of its own, so that a long comparison can be
made piece by piece; `publish` puts the pieces together."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from tinyprop.parallel.launch import mpiexec
from tinyprop.report.arguments import whole_number

from . import report
from .cases import Case, layers, steps
from .measure import ROUNDS, Results, Row, in_turns, measured, results, started
from .peers import PEERS, TORCH, is_installed
from .workers import Seconds, Way

PROGRAMS = {  # by row: what each way runs
    "import": {
        "tinyprop": ["-c", "import tinyprop"],
        "torch": ["-c", "import torch"],
        "numpy": ["-c", "import numpy"],
    },
    "verify": {"tinyprop": ["-m", "tinyprop", "verify"]},
}
PROGRAM_ROUNDS = {"import": ROUNDS, "verify": 3}
CASES: dict[str, Callable[[], dict[str, list[Case]]]] = {"steps": steps, "layers": layers}


def rows_of(section: str) -> list[str]:
    """The rows that can be asked for.

    >>> rows_of("programs")
    ['import', 'verify']
    """
    return list(PROGRAMS if section == "programs" else CASES[section]())


def add_arguments(parser: argparse.ArgumentParser, section: str) -> None:
    names = rows_of(section)
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=names,
        default=names,
        metavar="ROW",
        help=f"some of {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--rounds", type=whole_number(1), help=f"that count (default {ROUNDS}, of verify 3)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="directory (default runs/bench)"
    )


def run(options: argparse.Namespace) -> int:
    made = compared_programs if options.section == "programs" else compared_cases
    for name, found in made(options):
        path = found.write(options.out / f"{options.section}-{name}.json")
        tqdm.write(report.table(options.section, found.rows).text(110))
        for note in found.notes:
            tqdm.write(note)
        tqdm.write(f"{path}\n")
    return 0


def compared_cases(options: argparse.Namespace) -> Iterator[tuple[str, Results]]:
    """What each row of steps or layers has found."""
    cases = CASES[options.section]()
    chosen = [(name, cases[name]) for name in options.rows]
    with started(ways(options.section)) as remotes:
        for name, some in tqdm(chosen, desc=options.section, disable=None, leave=False):
            notes: list[str] = []
            rows = [measured(case, remotes, options.rounds or ROUNDS, notes) for case in some]
            yield name, results(rows, notes)


def ways(section: str) -> list[Way]:
    """Layers on one thread; steps on one and on two, and on two processes where there is MPI."""
    peers = ["tinyprop", *(peer for peer in TORCH if is_installed(peer))]
    found = [Way(peer) for peer in peers]
    if section == "layers":
        return found
    found += [Way(peer, threads=2) for peer in peers]
    if mpiexec() is not None:
        found.append(Way("tinyprop", processes=2))
    return found


def compared_programs(options: argparse.Namespace) -> Iterator[tuple[str, Results]]:
    for name in options.rows:
        turns = {}
        for way, words in PROGRAMS[name].items():
            if way not in PEERS or is_installed(way):
                turns[way] = program(words)
        rounds = options.rounds or PROGRAM_ROUNDS[name]
        row = in_turns(name, turns, rounds)
        yield name, results([row])


def program(words: list[str]) -> Callable[[], Seconds]:
    """How long a new Python takes."""

    def turn() -> Seconds:
        before = os.times()
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        clock = time.perf_counter() - start
        after = os.times()
        user = after.children_user - before.children_user
        system = after.children_system - before.children_system
        return Seconds(clock, user + system)

    return turn


def missing(folder: Path) -> dict[str, list[str]]:
    """The rows that have no file in this folder, by section."""
    found = {}
    for section in (*CASES, "programs"):
        absent = [
            name for name in rows_of(section) if not (folder / f"{section}-{name}.json").exists()
        ]
        if absent:
            found[section] = absent
    return found


def read(folder: Path, section: str) -> dict[str, Results]:
    """The results of every row of a section."""
    return {name: Results.read(folder / f"{section}-{name}.json") for name in rows_of(section)}


def all_rows(pieces: dict[str, Results]) -> list[Row]:
    return [row for found in pieces.values() for row in found.rows]
