"""The experiments with their finished runs, and which runs are most useful next."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .. import data
from ..engine.errors import DataError, StateError
from ..nn import as_normalizer
from ..parallel.executors import compute_wanted
from ..report.files import locked
from ..train import Config
from .experiment import Arm, Experiment, Finding, decide
from .ledger import Ledger, compute, run_name
from .record import Record
from .scales import IMAGES, Scale

PRIMARY, EXPLORATORY, NO_CLAIM = range(3)  # the kinds of claims that use a run


class Use(NamedTuple):
    """What a run is wanted for. A smaller use comes first."""

    claim: int  # PRIMARY, EXPLORATORY or NO_CLAIM
    next_look: int = 0  # the fewer runs a claim needs for its next look, the sooner
    minus_width: float = 0.0  # the widest interval first


class Priority(NamedTuple):
    """The place of a run in the queue. A smaller priority comes first."""

    not_begun: bool
    use: Use
    seed: int
    cost: float
    name: str  # so that the order is the same everywhere


@dataclass
class Study:
    chosen: Sequence[Callable[..., Experiment]]
    scale: Scale
    ledger: Ledger
    runs: Path  # of unfinished runs
    root: Path | None = None
    backend: str = "numpy"
    most: int | None = None  # random seeds that are computed for each setting
    log: Callable[[str], None] = print
    # by the name of a run, as far as they were looked up
    records: dict[str, Record | None] = field(default_factory=dict)
    available: dict[str, bool] = field(default_factory=dict)  # data sets

    def experiments(self) -> list[Experiment]:
        """With all runs that are finished by now."""
        experiments = [make(self.scale) for make in self.chosen]
        for experiment in experiments:
            self.fill(experiment, experiment.settings())
            # which settings are chosen depends on the runs of those above
            self.fill(experiment, experiment.chosen())
        return experiments

    def fill(self, experiment: Experiment, settings: Mapping[str, Config | None]) -> None:
        """Add these settings, with their finished runs, to an experiment."""
        for name, config in settings.items():
            arm = Arm(config, experiment.planned(name))
            records = []
            for planned_run in self.configs(arm):
                record = self.record(planned_run)
                if record:
                    records.append(record)
            experiment.arms[name] = replace(arm, records=tuple(records))

    def configs(self, arm: Arm) -> list[Config]:
        """Of all planned runs of a setting; none as long as the setting is not known."""
        if arm.config is None:
            return []
        seeds = range(1, arm.planned + 1)
        return [replace(arm.config, seed=seed, backend=self.backend) for seed in seeds]

    def record(self, config: Config) -> Record | None:
        """The record of a run, if it is finished; a damaged one is logged once."""
        name = run_name(config)
        if self.records.get(name):
            return self.records[name]
        if name in self.records:
            record = self.ledger.find(config)
        else:
            record = self.ledger.find(config, self.log)
        self.records[name] = record
        return record

    def wanted(self) -> list[Config]:
        """The runs that are still to be computed, the most useful first.

        What was begun is finished first. Then come the runs up to the next look at claims that are
        not decided, primary claims first, and the widest intervals first among these; then the
        settings that no claim uses."""
        begun = {path.name for path in self.runs.glob("*-seed*")}
        priorities: dict[Config, Priority] = {}
        for config, use in self.uses().items():
            name = run_name(config)
            too_many_seeds = self.most is not None and config.seed > self.most
            if too_many_seeds or self.record(config):
                continue
            priorities[config] = Priority(
                name not in begun, use, config.seed, cost_of(config), name
            )
        computable = filter(self.has_data, priorities)
        return sorted(computable, key=priorities.__getitem__)

    def uses(self) -> dict[Config, Use]:
        """The most urgent use of each run that any claim, or the plan, asks for."""
        experiments = self.experiments()
        decide(experiments)
        uses: dict[Config, Use] = {}

        def want(arm: Arm, seeds: int, use: Use) -> None:
            for config in self.configs(arm)[:seeds]:
                uses[config] = min(uses.get(config, use), use)

        for experiment in experiments:
            without_claims = dict(experiment.arms)
            for finding in experiment.findings:
                for name in needed_settings(experiment, finding):
                    without_claims.pop(name, None)
                    if finding.supported is None:
                        want(experiment.arms[name], finding.next_look, use_for(finding))
            for arm in without_claims.values():
                want(arm, arm.planned, Use(NO_CLAIM))
        return uses

    def compute(self, pool: Executor, jobs: int, seconds: float) -> bool:
        """Compute the runs that are wanted, until time is up; False after Ctrl-C. What was done is
        saved in any case."""
        # workers may have another current directory
        ledger = Ledger(self.ledger.folder.absolute())
        runs = self.runs.absolute()

        def finished(config: Config, to_go: int) -> None:
            if not ledger.find(config):
                got = f"{run_name(config)}, finished but not in {ledger.folder}"
                rule = "workers and the command share the directories of runs and of the ledger"
                raise StateError(got, rule, "a shared file system")
            print(f"{run_name(config)} is finished, {to_go} to go", flush=True)

        with locked(runs):
            work = partial(compute, ledger=ledger, runs=runs, root=self.root)
            return compute_wanted(self.wanted, work, finished, pool, jobs, seconds)

    def has_data(self, config: Config) -> bool:
        """Whether the data set of a run is here, or can be downloaded."""
        name = config.data
        if name not in self.available:
            try:
                self.available[name] = bool(data.found(name, self.root, download=True))
            except DataError as error:
                self.log(f"{name} is skipped: {error.args[0]}")
                self.available[name] = False
        return self.available[name]


def needed_settings(experiment: Experiment, finding: Finding) -> set[str]:
    """The settings of a claim, and those whose runs decide what these are."""
    needed = set(finding.claim.settings)
    for name in finding.claim.settings:
        needed.update(experiment.before(name))
    return needed


def use_for(finding: Finding) -> Use:
    _, widest = finding.widest
    claim = PRIMARY if finding.primary else EXPLORATORY
    return Use(claim, finding.next_look, -widest.width)


def cost_of(config: Config) -> float:
    """About proportional to the time that a run takes."""
    images = config.train_size or IMAGES
    of_width = config.width**1.2
    of_batch = 1.0 + 4.0 / config.batch_size
    has_extra_pass = as_normalizer(config.norm).before is not None  # over each hidden layer
    of_norm = 1.4 if has_extra_pass else 1.0
    return config.epochs * images * of_width * of_batch * of_norm
