"""Measure cases on engines: first they have to agree, then they take turns."""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from threadpoolctl import threadpool_info
from tqdm import tqdm

from .cases import ENGINES, FAST, Case, plan
from .workers import MAKERS, Worker, is_installed

TOLERANCE = {"step": 1e-4, "inference": 1e-3, "layer": 1e-3}  # tiles round by 1e-6, and a ReLU may then flip


@dataclass(frozen=True)
class Measurement:
    """The times of one engine at one case."""

    section: str
    group: str
    case: str
    engine: str
    batch: int
    seconds: list[float]  # one for each repeat
    peak_memory: int | None = None  # bytes beyond the imports

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

    def of(self, section: str) -> list[Measurement]:
        return [m for m in self.measurements if m.section == section]


def run(
    engines: Sequence[str] | None = None,
    sections: Sequence[str] = ("step",),
    repeats: int = 7,
    threads: int = 1,
    quick: bool = False,
    cases: Sequence[Case] | None = None,
) -> Results:
    """Measure the cases of some sections, or given cases, on the engines that are installed, or on some of them."""
    chosen, notes = choose(engines, quick)
    cases = plan(sections, threads, quick) if cases is None else cases
    names = [name for name in chosen if any(name in case.engines for case in cases)]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    workers = {name: Worker(name, threads) for name in names}
    try:
        versions = started(workers, notes)
        turns = sum(name in case.engines for case in cases for name in workers) * (repeats + 1)
        measurements: list[Measurement] = []
        with tqdm(total=turns, desc="bench", unit="turn", disable=None, leave=False) as bar:
            for _, some in groupby(cases, lambda case: "step" if case.section == "step" else case):
                measurements += measure(list(some), list(workers.values()), repeats, notes, bar)
    finally:
        for worker in workers.values():
            worker.close()
    options = {"repeats": repeats, "threads": threads, "quick": quick, "load_before": load}
    return Results(machine(), options, versions, notes, measurements)


def choose(engines: Sequence[str] | None, quick: bool) -> tuple[list[str], list[str]]:
    """The engines to measure, and notes on those that are left out."""
    notes, chosen = [], []
    for name in engines or ENGINES:
        if not is_installed(name):
            notes.append(f"{MAKERS[name].title}: not installed")
        elif quick and not engines and name not in FAST:
            notes.append(f"{MAKERS[name].title}: left out of a quick run; --engines takes it in")
        else:
            chosen.append(name)
    variants = [name for name in MAKERS if name not in ENGINES and "tinyprop" in chosen]
    return chosen + variants, notes


def started(workers: dict[str, Worker], notes: list[str]) -> dict[str, str]:
    """The versions of the packages, once all are imported; those that cannot be are dismissed with a note."""
    versions = {}
    for name, worker in list(workers.items()):
        try:
            versions[MAKERS[name].package] = worker.version()
        except Exception as error:  # whatever the import of a framework may raise
            notes.append(f"{worker.title}: cannot be imported here: {type(error).__name__}: {error}")
            workers.pop(name).close()
    return versions


def measure(
    cases: list[Case], workers: list[Worker], repeats: int, notes: list[str], bar: Any
) -> Iterator[Measurement]:
    """The times of some cases on the engines that can do them and agree, all in turns with each other."""
    ready = [(case, worker, memory) for case in cases for worker, memory in prepare(case, workers, notes, bar)]
    seconds: list[list[float]] = [[] for _ in ready]
    for turn in range(repeats):
        there_and_back = range(len(ready)) if turn % 2 == 0 else range(len(ready))[::-1]
        for i in there_and_back:  # so nobody always follows the same one
            case, worker, _ = ready[i]
            seconds[i].append(worker.seconds(case))
            bar.update()
    for (case, worker, memory), found in zip(ready, seconds, strict=True):
        yield Measurement(case.section, case.group, case.name, worker.engine, case.batch, found, memory)
    for worker in {worker for _, worker, _ in ready}:
        worker.forget()


def prepare(case: Case, workers: list[Worker], notes: list[str], bar: Any) -> Iterator[tuple[Worker, int | None]]:
    """The engines that can do a case and agree with the first of them; with peak memory if it is their first case."""
    agreed: list[float] = []
    bar.set_postfix_str(f"{case.section}: {case.group} {case.name}")
    for worker in sorted((w for w in workers if w.engine in case.engines), key=lambda w: case.engines.index(w.engine)):
        try:
            values = worker.prepare(case)
        except Exception as error:  # whatever a framework may raise
            notes.append(f"{worker.title}: cannot do {case.section} {case.name}: {type(error).__name__}: {error}")
            continue
        finally:
            bar.update()
        agreed = agreed or values
        if agree(agreed, values, TOLERANCE[case.work]):
            yield worker, worker.peak_memory() if worker.cases == 1 else None  # later, that of an earlier case is in it
        else:
            notes.append(f"{worker.title}: other numbers in {case.section} {case.name}: {values}, not {agreed}")


def agree(expected: list[float], got: list[float], tolerance: float) -> bool:
    """Whether numbers are the same up to rounding.

    >>> agree([2.0, 0.0], [2.0001, 0.0], 1e-3), agree([2.0], [2.1], 1e-3), agree([2.0], [float("nan")], 1e-3)
    (True, False, False)
    """
    pairs = zip(expected, got, strict=False)
    return len(expected) == len(got) and all(abs(a - b) <= tolerance * abs(a) for a, b in pairs)


def machine() -> dict[str, Any]:
    """What the times depend on besides the engines."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    blas = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "blas": ", ".join(f"{b['internal_api']} {b['version']} ({b.get('architecture', '')})" for b in blas),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }
