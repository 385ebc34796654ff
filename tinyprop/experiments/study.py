"""The experiments with their finished runs, and which runs are most useful next."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import data
from ..engine.errors import DataError, StateError
from ..parallel.executors import compute_wanted
from ..report.files import locked
from ..train import Config
from .experiment import Arm, Experiment, decide
from .ledger import Ledger, compute, run_name
from .record import Record
from .scales import IMAGES, Scale


@dataclass
class Study:
    chosen: Sequence[Callable[..., Experiment]]
    scale: Scale
    ledger: Ledger
    runs: Path  # of unfinished runs
    root: Path | None = None
    backend: str = "numpy"
    most: int | None = None  # random seeds that are computed for each setting
    say: Callable[[str], None] = print
    # by the name of a run, as far as they were wanted
    records: dict[str, Record | None] = field(default_factory=dict)
    available: dict[str, bool] = field(default_factory=dict)  # data sets

    def experiments(self) -> list[Experiment]:
        """With all runs that are finished by now."""
        found = [make(self.scale) for make in self.chosen]
        for e in found:
            # the runs of the first decide what the others are
            for settings in (e.settings, e.chosen):
                for name, config in settings().items():
                    arm = Arm(config, e.planned(name))
                    records = filter(None, map(self.record, self.configs(arm)))
                    e.arms[name] = replace(arm, records=tuple(records))
        return found

    def configs(self, arm: Arm) -> list[Config]:
        base = arm.config
        return (
            [replace(base, seed=seed + 1, backend=self.backend) for seed in range(arm.planned)]
            if base
            else []
        )

    def record(self, config: Config) -> Record | None:
        name = run_name(config)
        if not self.records.get(name):
            complain = (lambda line: None) if name in self.records else self.say  # once
            self.records[name] = self.ledger.find(config, complain)
        return self.records[name]

    def wanted(self) -> list[Config]:
        """The runs that are still to be computed, the most useful first.

        What was begun is finished first. Then come the runs up to the next look at claims that are
        not decided, primary claims first, and the widest intervals first among these; then the
        settings that no claim uses."""
        experiments, turns = self.experiments(), dict[Config, tuple[Any, ...]]()

        def want(arm: Arm, seeds: int, turn: tuple[Any, ...]) -> None:
            for config in self.configs(arm)[:seeds]:
                turns[config] = min(turns.get(config, turn), turn)

        decide(experiments)
        for e in experiments:
            idle = dict(e.arms)
            for f in e.findings:
                for name in f.claim.settings.union(*map(e.before, f.claim.settings)):
                    idle.pop(name, None)
                    if f.supported is None:
                        want(
                            e.arms[name],
                            f.next_look,
                            (not f.primary, f.next_look, -f.widest[1].width),
                        )
            for arm in idle.values():
                want(arm, arm.planned, (2,))
        begun = {path.name for path in self.runs.glob("*-seed*")}
        left = [
            c for c in turns if (self.most is None or c.seed <= self.most) and not self.record(c)
        ]
        usefulness = {
            c: (run_name(c) not in begun, turns[c], c.seed, cost_of(c), run_name(c)) for c in left
        }
        return sorted(filter(self.has_data, left), key=usefulness.__getitem__)

    def compute(self, pool: Executor, jobs: int, seconds: float) -> bool:
        """The runs that are wanted, until time is up; False after Ctrl-C. What was done is saved in
        any case."""
        # workers may be elsewhere
        ledger, runs = Ledger(self.ledger.folder.absolute()), self.runs.absolute()

        def finished(config: Config, to_go: int) -> None:
            if not ledger.find(config):
                rule = "workers and the command share the directories of runs and of the ledger"
                got = f"{run_name(config)}, finished but not in {ledger.folder}"
                raise StateError(got, rule, "a shared file system")
            print(f"{run_name(config)} is finished, {to_go} to go", flush=True)

        with locked(runs):
            work = partial(compute, ledger=ledger, runs=runs, root=self.root)
            return compute_wanted(self.wanted, work, finished, pool, jobs, seconds)

    def has_data(self, config: Config) -> bool:
        """Whether a data set is here, or can be downloaded."""
        if config.data not in self.available:
            try:
                self.available[config.data] = bool(
                    data.found(config.data, self.root, download=True)
                )
            except DataError as error:
                self.say(f"{config.data} is skipped: {error.args[0]}")
                self.available[config.data] = False
        return self.available[config.data]


def cost_of(config: Config) -> float:
    """About proportional to the time that a run takes."""
    of_norm = 1.4 if config.norm == "batch" else 1.0
    return (
        config.epochs
        * (config.train_size or IMAGES)
        * config.width**1.2
        * (1.0 + 4.0 / config.batch_size)
        * of_norm
    )
