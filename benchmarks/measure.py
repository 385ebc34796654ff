"""Measure cases in several ways: first these have to agree, then they take turns."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tinyprop.report.environment import machine, sources, versions
from tinyprop.report.files import write_json

from .cases import Case
from .load import Watch, is_quiet
from .workers import Remote, RemoteJob, Seconds, Way

# tiles round by 1e-6, and a ReLU may then flip
TOLERANCE = {"step": 1e-4, "layer": 1e-3}
ROUNDS = 21  # that count
MOST_TRIED = 2  # times as many are tried on a busy machine
LEAST_PUBLISHED = 7  # rounds that count, in a row that may be published


@dataclass(frozen=True)
class Row:
    """The times of a case, by way, one for each round."""

    name: str
    batch: int
    others: list[float | None]  # the fraction of a core that other programs used in each round
    clock: dict[str, list[float]]
    processor: dict[str, list[float]]
    peak_memory: dict[str, int | None] = field(default_factory=dict)  # bytes without the imports

    @property
    def quiet(self) -> list[int]:
        """The rounds that count."""
        return [i for i, others in enumerate(self.others) if is_quiet(others)]

    def median_clock(self, way: str) -> float:
        return self._median(self.clock[way])

    def median_processor(self, way: str) -> float:
        return self._median(self.processor[way])

    def _median(self, seconds: list[float]) -> float:
        """Over the rounds that count; over all of them if none does."""
        return median([seconds[i] for i in self.quiet] or seconds)


@dataclass(frozen=True)
class Results:
    """What a run of a command has measured, and where."""

    machine: dict[str, Any]
    versions: dict[str, str]
    sources: str  # a digest of tinyprop's
    notes: list[str]  # which way could not do a case, and why
    rows: list[Row]

    def write(self, path: Path) -> Path:
        write_json(path, asdict(self))
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Results":
        """From what `write` wrote."""
        return cls(**{**facts, "rows": [Row(**row) for row in facts["rows"]]})


def results(rows: list[Row], notes: Sequence[str] = ()) -> Results:
    return Results(machine(), versions("tinyprop", "torch"), sources(), list(notes), rows)


Remotes = Mapping[Way, Remote | RemoteJob]


@contextmanager
def started(ways: Sequence[Way]) -> Iterator[Remotes]:
    """The processes of some ways."""
    remotes: dict[Way, Remote | RemoteJob] = {}
    try:
        for way in ways:
            remotes[way] = RemoteJob(way) if way.processes > 1 else Remote(way)
        yield remotes
    finally:
        for remote in remotes.values():
            remote.close()


def measured(case: Case, remotes: Remotes, rounds: int, notes: list[str]) -> Row:
    """The times of a case in all ways that can do it and agree with the first of them."""
    agreed: list[float] = []
    turns: dict[str, Callable[[], Seconds]] = {}
    peaks: dict[str, int | None] = {}
    for way, remote in remotes.items():
        try:
            values, peaks[way.name] = remote.call("prepare", case)
        except Exception as error:  # whatever a framework may raise, in its import or later
            notes.append(f"{way.name}: cannot do {case.name}: {type(error).__name__}: {error}")
            continue
        agreed = agreed or values
        if agree(agreed, values, TOLERANCE[case.work]):
            turns[way.name] = _turn(remote, case)
        else:
            notes.append(f"{way.name}: other numbers in {case.name}: {values}, not {agreed}")
    row = in_turns(case.name, turns, rounds, case.batch, peaks)
    for remote in remotes.values():
        remote.call("forget")
    return row


def _turn(remote: Remote | RemoteJob, case: Case) -> Callable[[], Seconds]:
    return lambda: remote.call("seconds", case)


def in_turns(
    name: str,
    turns: Mapping[str, Callable[[], Seconds]],
    rounds: int,
    batch: int = 1,
    peaks: dict[str, int | None] | None = None,
) -> Row:
    """Rounds, in each of which every way has its turn, until so many count, or too many were
    disturbed by other programs."""
    row = Row(name, batch, [], {way: [] for way in turns}, {way: [] for way in turns}, peaks or {})
    names = list(turns)
    while len(row.quiet) < rounds and len(row.others) < MOST_TRIED * rounds:
        watch = Watch()
        for way in names:
            seconds = turns[way]()
            row.clock[way].append(seconds.clock)
            row.processor[way].append(seconds.processor)
        row.others.append(watch.others())
        names.reverse()  # there and back, so that nobody always follows the same one
    return row


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
