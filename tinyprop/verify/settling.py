"""Settling claims: here, or side by side in other processes. A bad claim does not stop others."""

import traceback
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass
from functools import partial
from inspect import isgenerator
from pathlib import Path
from typing import Any

from ..engine.arrays import default_backend, use_backend
from ..engine.errors import explain, parts_of
from ..engine.random import generator, manual_seed, numpy_generator
from ..engine.threads import blas_threads
from ..parallel.executors import should_stop
from ..report.estimate import Estimate
from ..report.table import Table, Tabular
from .case import UNSETTLED, Case, fault_of, judge
from .ledger import Claim, Reference, chosen
from .monte_carlo import Sampler, padding_ignored

MOST_CASES = 10_000


@dataclass(frozen=True)
class Result(Tabular):
    """A settled claim, which a notebook shows as a table of its cases.

    >>> (result,) = tp.verify.run(["C06"])
    >>> print(result.id, result.verdict, "-", result.reason)
    C06 holds - one Newton step from 0 lands on them
    """

    id: str
    statement: str
    section: str
    verdict: str
    reason: str
    cases: tuple[Case, ...]
    expected: str
    derivation: str = ""
    problem: str = ""  # why it was not settled, in three parts

    @property
    def exact(self) -> float | None:
        """Of the first case; `cases` has them all."""
        return self.cases[0].exact if self.cases else None

    @property
    def estimate(self) -> Estimate | None:
        return self.cases[0].estimate if self.cases else None

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.expected

    def __str__(self) -> str:
        return f"{self.id} {self.statement} {self.verdict}: {self.reason}"

    def table(self) -> Table:
        from .report import COLUMNS, NOTE, cells_of  # it is made for results

        rows = [cells_of(case) for case in self.cases]
        notes = [f"{self.verdict}: {self.reason}."]
        if not self.as_expected:
            notes.append(f"Expected: {self.expected}.")
        notes.append(f"{NOTE}.")
        title = f"{self.id}. {self.statement}"
        return Table(["", *COLUMNS], rows, title, " ".join(notes))

    def to_json(self) -> dict[str, Any]:
        names = "id statement section verdict expected reason derivation problem"
        named = {name: getattr(self, name) for name in names.split()}
        return {**named, "cases": [case.to_json() for case in self.cases]}


class Results(list[Result], Tabular):
    """Settled claims, which a notebook shows as a table."""

    def table(self) -> Table:
        header = ["claim", "statement", "verdict", "reason"]
        rows = [(result.id, result.statement, result.verdict, result.reason) for result in self]
        return Table(header, rows, align="llll")


def run(
    which: Collection[str | Path | Claim] | None = None,
    samples: int | None = None,
    seed: int = 0,
    backend: str | None = None,
    executor: Executor | None = None,
    until: float | None = None,
    threads: int | None = None,
    progress: Callable[[str, float], None] = lambda id, fraction: None,
    family: str | None = None,
) -> Results:
    """Settle claims: some of these, by id, by the file that has them, or themselves; or those of a
    family: see `claims`.

    `samples` is the number of plain samples for each estimate; a random network counts for many, by
    its cost, and a few are always drawn. `until` is a standard error to reach instead. The answer
    depends on the seed only, not on the number of threads, nor on the `executor` of
    concurrent.futures that settles the claims side by side, if one is given. `progress` is called
    with the claim at work and the fraction of its samples that is done.

    A claim that raises an error, or is bad in another way, is unsettled; its `problem` says why.

    >>> (result,) = tp.verify.run(["C1"], samples=10_000)
    >>> result.verdict, round(result.exact, 6), result.estimate.n
    ('holds', 0.398942, 10000)
    """
    backend = backend or default_backend()
    picked = chosen(which, family)
    # a GPU takes one thread
    threads = threads if backend == "numpy" and executor is None else 1
    Sampler(samples, until)  # refuses wrong numbers before anything is computed
    settle = partial(
        settled, samples=samples, until=until, seed=seed, backend=backend, threads=threads
    )
    if executor is None:
        return Results(settle(claim, progress=progress) for claim in picked)
    results = Results()
    for result in executor.map(settle, [Reference.to(claim) for claim in picked]):
        progress(result.id, 1.0)
        results.append(result)
    return results


def go_on_if_wanted(id: str, fraction: float) -> None:
    """The progress of a claim that another process settles."""
    if should_stop():
        raise CancelledError(f"{id} was stopped")


def settled(
    wanted: Claim | Reference,
    samples: int | None,
    until: float | None,
    seed: int,
    backend: str,
    threads: int | None,
    progress: Callable[[str, float], None] = go_on_if_wanted,
) -> Result:
    """A settled claim: one piece of work, for any process."""
    before = generator().bit_generator.state
    sampler = Sampler(samples, until, seed, threads, partial(progress, wanted.id))
    try:
        # the same bits whatever the cores, and whoever else computes
        with use_backend(backend), blas_threads(1), padding_ignored():
            sampler.progress(0.0)
            manual_seed(seed)  # so that no claim depends on those before it
            found = measured(wanted, sampler)
    finally:  # the generator of weights and masks goes on as if nothing had been drawn from it
        manual_seed(0)
        generator().bit_generator.state = before
    return Result(
        wanted.id,
        wanted.statement,
        wanted.section,
        UNSETTLED if found.problem else judge(found.cases),
        found.reason,
        found.cases,
        wanted.expected,
        wanted.derivation,
        found.problem,
    )


@dataclass(frozen=True)
class Measured:
    """What the function of a claim yielded and returned, or the problem with it."""

    cases: tuple[Case, ...]
    reason: str
    problem: str = ""


def measured(wanted: Claim | Reference, sampler: Sampler) -> Measured:
    if isinstance(wanted, Reference):
        try:
            wanted = wanted.find()
        except (FileNotFoundError, ImportError, ValueError) as error:
            return Measured((), "its file cannot be loaded", str(error))
    if wanted.problem:
        return Measured((), "it cannot be settled", wanted.problem)
    before = numpy_generator()
    try:
        cases, reason = collected(wanted.measure(sampler))
    except CancelledError:
        raise
    except (Exception, SystemExit) as error:
        return Measured((), "it raises an error", raised(wanted, error))
    problem = problem_with(wanted, cases, reason)
    if not problem and numpy_generator() != before:
        problem = drawn_elsewhere(wanted)
    if problem:
        return Measured((), "it is not a claim", problem)
    return Measured(tuple(cases), " ".join(reason.split()))


def collected(findings: Any) -> tuple[list[Any], Any]:
    """What a generator yields, and what it returns; nothing of what is no generator. One that does
    not end is left alone after MOST_CASES."""
    cases: list[Any] = []
    while isgenerator(findings) and len(cases) <= MOST_CASES:
        try:
            cases.append(next(findings))
        except StopIteration as end:
            return cases, end.value
    return cases, None


def no_cases(claim: Claim) -> str:
    got = f"claim {claim.id}, {claim.place}, which yields no case"
    rule = "the function of a claim yields each number that the claim fixes"
    return explain(got, rule, "yield tp.verify.claimed('E max(0, X)', 0.4, exact=0.3989)")


def drawn_elsewhere(claim: Claim) -> str:
    got = f"claim {claim.id}, {claim.place}, which draws from the generator of a whole process"
    rule = "the seed of the run decides all random numbers, on any number of threads"
    hint = "random.random(count) in draw(random, count), instead of np.random.random(count)"
    return explain(got, rule, hint)


def raised(claim: Claim, error: Exception | SystemExit) -> str:
    """What to say of an error in the function of a claim."""
    parts = parts_of(error)
    if parts is not None:
        got, rule, hint = parts
        return explain(f"claim {claim.id}, {claim.place}: {got}", rule, hint)
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).resolve() == claim.file]
    line = f", line {inside[-1].lineno}: {inside[-1].line}" if inside else ""
    text = " ".join(str(error).split())
    got = f"claim {claim.id}, {claim.place}, which raises {type(error).__name__}: {text}"
    rule = "the function of a claim takes a Sampler, yields its cases, and returns the reason"
    return explain(got, rule, f"correct {claim.file.name}{line}")


def problem_with(claim: Claim, cases: list[Case], reason: Any) -> str:
    """What is wrong with what a claim yielded and returned."""
    if not cases:
        return no_cases(claim)
    if len(cases) > MOST_CASES:
        got = f"claim {claim.id}, {claim.place}, which yields more than {MOST_CASES:,} cases"
        rule = "the function of a claim ends, and a stranger reads its cases"
        return explain(got, rule, "one case for many numbers: the one that is farthest off")
    for case in cases:
        if not isinstance(case, Case):
            got = f"claim {claim.id}, {claim.place}, which yields a {type(case).__name__}"
            rule = "the function of a claim yields cases"
            return explain(got, rule, "yield tp.verify.claimed(...), or tp.verify.beside(...)")
        fault = fault_of(case)
        if fault is not None:
            got, rule, hint = fault
            return explain(f"claim {claim.id}, {claim.place}: {got}", rule, hint)
    if not isinstance(reason, str) or not reason.strip():
        got = f"claim {claim.id}, {claim.place}, which returns {reason!r}"
        rule = "the function of a claim returns the reason of its verdict, a sentence"
        return explain(got, rule, "return 'half of the mean of |X|'")
    return ""
