"""Measure cases on peers: first they have to agree, then they take turns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from tqdm import tqdm

from tinyprop.report.environment import machine, versions

from .cases import Case
from .load import load_average
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
    notes: list[str]  # which peer could not do a case, and why
    measurements: list[Measurement]


@dataclass(frozen=True)
class Job:
    """A case that a peer is ready to be timed at."""

    case: Case
    remote: Remote
    peak_memory: int | None


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
    options = {
        "repeats": repeats,
        "threads": threads,
        "quick": quick,
        "together": together,
        "load_before": load_average(),
    }
    names = []
    for name in choose(peers, quick):
        if any(takes_part(name, case) for case in cases):
            names.append(name)
    process = new_process() if together else None
    remotes = [Remote(name, threads, process) for name in names]
    notes: list[str] = []
    measurements: list[Measurement] = []
    pairs = sum(takes_part(name, case) for case in cases for name in names)
    turns = pairs * (1 + repeats)  # one to prepare
    try:
        with tqdm(total=turns, desc="benchmarks", unit="turn", disable=None, leave=False) as bar:
            for _, some in groupby(cases, in_the_same_turns):
                measurements += measure(list(some), remotes, repeats, notes, bar)
    finally:
        for remote in remotes:
            remote.close()
    packages = versions(*dict.fromkeys(PEERS[name].package for name in names))
    return Results(machine(), options, packages, notes, measurements)


def choose(peers: Sequence[str] | None, quick: bool) -> list[str]:
    """The peers to measure: all that are installed, without the slow ones in a quick run, or those
    that were asked for."""
    if peers is None:
        slow = [name for name in PEERS if PEERS[name].slow] if quick else []
        return [name for name in PEERS if is_installed(name) and name not in slow]
    for name in peers:
        if not is_installed(name):
            raise ValueError(f"{name} is not installed: pip install {PEERS[name].package}")
    return list(peers)


def takes_part(peer: str, case: Case) -> bool:
    return case.for_all or not PEERS[peer].slow


def in_the_same_turns(case: Case) -> Any:
    """NormProp and BatchNorm steps are compared with each other; every other case stands alone."""
    return "step" if case.section == "step" else case


def measure(
    cases: Iterable[Case], remotes: Sequence[Remote], repeats: int, notes: list[str], bar: Any
) -> Iterator[Measurement]:
    """The times of some cases on the peers that can do them and agree, all in turns with each
    other."""
    jobs: list[Job] = []
    for case in cases:
        jobs += prepare(case, remotes, notes, bar)
    seconds: list[list[float]] = [[] for _ in jobs]
    for turn in range(repeats):
        order = range(len(jobs))
        if turn % 2:  # there and back, so that nobody always follows the same one
            order = order[::-1]
        for i in order:
            seconds[i].append(jobs[i].remote.call("seconds", jobs[i].case))
            bar.update()
    for job, times in zip(jobs, seconds, strict=True):
        case = job.case
        peer = job.remote.peer
        yield Measurement(case.section, case.name, peer, case.batch, times, job.peak_memory)
    for remote in {job.remote for job in jobs}:
        remote.call("forget")


def prepare(case: Case, remotes: Iterable[Remote], notes: list[str], bar: Any) -> Iterator[Job]:
    """The peers that can do a case and agree with the first of them."""
    agreed: list[float] = []
    bar.set_postfix_str(f"{case.section}: {case.name}")
    for remote in remotes:
        if not takes_part(remote.peer, case):
            continue
        try:
            values, peak_memory = remote.call("prepare", case)
        except Exception as error:  # whatever a framework may raise, in its import or later
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{remote.title}: cannot do {case.section} {case.name}: {reason}")
            continue
        finally:
            bar.update()
        agreed = agreed or values
        if agree(agreed, values, TOLERANCE[case.work]):
            yield Job(case, remote, peak_memory)
        else:
            different = f"{values}, not {agreed}"
            notes.append(
                f"{remote.title}: other numbers in {case.section} {case.name}: {different}"
            )


def agree(expected: list[float], got: list[float], tolerance: float) -> bool:
    """Whether numbers are the same up to rounding.

    >>> nan = float("nan")
    >>> agree([2.0, 0.0], [2.0001, 0.0], 1e-3), agree([2.0], [2.1], 1e-3), agree([2.0], [nan], 1e-3)
    (True, False, False)
    """
    if len(expected) != len(got):
        return False
    pairs = zip(expected, got, strict=True)
    return all(abs(a - b) <= tolerance * abs(a) for a, b in pairs)
