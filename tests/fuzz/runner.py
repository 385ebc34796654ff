"""Draws cases, checks them, and counts."""

import time
import tomllib
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import tinyprop as tp

from .case import Case
from .kinds import KINDS, Kind

FOUND = Path(__file__).with_name("found.toml")


@dataclass(frozen=True)
class Finding:
    """A case on which two ways disagree."""

    kind: str
    seed: int
    words: str  # the program
    complaint: str  # what differs, with both numbers

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --kind {self.kind} --case {self.seed}"
        return f"{again}\n  {self.words}\n  {self.complaint}"


def draw(kind: Kind, seed: int) -> Case:
    """The case of this kind with this number."""
    return kind.draw(np.random.default_rng([zlib.crc32(kind.name.encode()), seed]))


def check(kind: Kind, seed: int) -> Finding | None:
    """What is wrong with a case, if anything. An exception is wrong, too."""
    words = "while the case was drawn"
    with quietly():
        tp.manual_seed(seed)
        try:
            case = draw(kind, seed)
            words = case.words
            complaint = case.check()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}, line {where.lineno}"
            complaint = f"{type(error).__name__} in {place}: {error}"
    return Finding(kind.name, seed, words, complaint) if complaint else None


@contextmanager
def quietly() -> Iterator[None]:
    """Infinities and NaN are compared, so nobody need be warned of them."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def seeds(seed: int) -> Iterator[int]:
    """Numbers of cases, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        yield int(rng.integers(2**32))


def known_cases(kind: Kind) -> list[int]:
    """The numbers of cases that were once wrong."""
    entries = tomllib.loads(FOUND.read_text()).get(kind.name, [])
    return [entry["seed"] for entry in entries]


def available(kinds: Iterable[Kind]) -> list[Kind]:
    """Those that can be compared here: some need PyTorch."""
    has_torch = find_spec("torch") is not None
    return [kind for kind in kinds if has_torch or not kind.needs_torch]


@dataclass
class Tally:
    """What became of the cases of one kind."""

    cases: int = 0
    disagreements: int = 0
    seconds: float = 0.0


def run(
    kinds: list[Kind], seconds: float, seed: int, tell: Callable[[Finding], None]
) -> dict[str, Tally]:
    """Check cases for this many seconds: the known ones first, then new ones, with equal time for
    each kind."""
    tallies = {kind.name: Tally() for kind in kinds}
    streams = {kind.name: _numbers(kind, seed) for kind in kinds}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        name = min(tallies, key=lambda name: tallies[name].seconds)
        tally = tallies[name]
        start = time.perf_counter()
        finding = check(KINDS[name], next(streams[name]))
        if tally.cases > 0:  # the first one also loads libraries
            tally.seconds += time.perf_counter() - start
        tally.cases += 1
        if finding is not None:
            tally.disagreements += 1
            tell(finding)
    return tallies


def _numbers(kind: Kind, seed: int) -> Iterator[int]:
    yield from known_cases(kind)
    yield from seeds(seed)
