"""Measure cases on peers: first they have to agree, then they take turns."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from tqdm import tqdm

from tinyprop.report.environment import machine, versions

from .cases import Case
from .peers import PEERS, is_installed
from .workers import Remote, new_process

# tiles round by 1e-6, and a ReLU may then flip
TOLERANCE = {"step": 1e-4, "inference": 1e-3, "layer": 1e-3}


@dataclass(frozen=True)
class Measurement:
    """The times of one peer at one case."""

    section: str
    case: str
    peer: str
    batch: int
    seconds: list[float]  # one for each repeat
    peak_memory: int | None  # bytes without the imports; of the first case of a peer

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Results:
    """Everything that a run has found out."""

    machine: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str]
    notes: list[str]  # who was left out, and why
    measurements: list[Measurement]


def run(
    cases: Sequence[Case],
    peers: Sequence[str] | None = None,
    repeats: int = 7,
    threads: int = 1,
    quick: bool = False,
    together: bool = False,
) -> Results:
    """Measure the cases on the peers that are installed, or on some of them, each in a process of
    its own, or all `together` in one."""
    chosen, notes = choose(peers, quick)
    names = [name for name in chosen if any(takes_part(name, case) for case in cases)]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    process = new_process() if together else None
    remotes = [Remote(name, threads, process) for name in names]
    measurements: list[Measurement] = []
    turns = sum(takes_part(name, case) for case in cases for name in names) * (repeats + 1)
    try:
        with tqdm(total=turns, desc="benchmarks", unit="turn", disable=None, leave=False) as bar:
            for _, some in groupby(cases, lambda case: "step" if case.section == "step" else case):
                measurements += measure(list(some), remotes, repeats, notes, bar)
    finally:
        for remote in remotes:
            remote.close()
    options = {
        "repeats": repeats,
        "threads": threads,
        "quick": quick,
        "together": together,
        "load_before": load,
    }
    packages = versions(*dict.fromkeys(PEERS[name].package for name in names))
    return Results(machine(), options, packages, notes, measurements)


def choose(peers: Sequence[str] | None, quick: bool) -> tuple[list[str], list[str]]:
    """The peers to measure, and notes on those that are left out."""
    notes, chosen = [], []
    for name in peers or PEERS:
        if not is_installed(name):
            notes.append(f"{PEERS[name].title}: not installed")
        elif quick and not peers and PEERS[name].slow:
            notes.append(f"{PEERS[name].title}: left out of a quick run, unless --peers names it")
        else:
            chosen.append(name)
    return chosen, notes


def takes_part(peer: str, case: Case) -> bool:
    return case.for_all or not PEERS[peer].slow


def measure(
    cases: list[Case], remotes: list[Remote], repeats: int, notes: list[str], bar: Any
) -> Iterator[Measurement]:
    """The times of some cases on the peers that can do them and agree, all in turns with each
    other."""
    ready = [
        (case, remote, memory)
        for case in cases
        for remote, memory in prepare(case, remotes, notes, bar)
    ]
    seconds: list[list[float]] = [[] for _ in ready]
    for turn in range(repeats):
        there_and_back = range(len(ready)) if turn % 2 == 0 else range(len(ready))[::-1]
        for i in there_and_back:  # so nobody always follows the same one
            case, remote, _ = ready[i]
            seconds[i].append(remote.call("seconds", case))
            bar.update()
    for (case, remote, memory), found in zip(ready, seconds, strict=True):
        yield Measurement(case.section, case.name, remote.peer, case.batch, found, memory)
    for remote in {remote for _, remote, _ in ready}:
        remote.call("forget")


def prepare(
    case: Case, remotes: list[Remote], notes: list[str], bar: Any
) -> Iterator[tuple[Remote, int | None]]:
    """The peers that can do a case and agree with the first of them, with their peak memory."""
    agreed: list[float] = []
    bar.set_postfix_str(f"{case.section}: {case.name}")
    for remote in (remote for remote in remotes if takes_part(remote.peer, case)):
        try:
            values, memory = remote.call("prepare", case)
        except Exception as error:  # whatever a framework may raise, in its import or later
            notes.append(
                f"{remote.title}: cannot do {case.section} {case.name}: "
                f"{type(error).__name__}: "
                f"{error}"
            )
            continue
        finally:
            bar.update()
        agreed = agreed or values
        if agree(agreed, values, TOLERANCE[case.work]):
            yield remote, memory
        else:
            notes.append(
                f"{remote.title}: other numbers in {case.section} {case.name}: {values}, not "
                f"{agreed}"
            )


def agree(expected: list[float], got: list[float], tolerance: float) -> bool:
    """Whether numbers are the same up to rounding.

    >>> nan = float("nan")
    >>> agree([2.0, 0.0], [2.0001, 0.0], 1e-3), agree([2.0], [2.1], 1e-3), agree([2.0], [nan], 1e-3)
    (True, False, False)
    """
    pairs = zip(expected, got, strict=False)
    return len(expected) == len(got) and all(abs(a - b) <= tolerance * abs(a) for a, b in pairs)
