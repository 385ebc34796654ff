"""The experiments with their finished runs, and which runs are most useful next."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tqdm.auto import tqdm

from .. import data
from ..engine.errors import DataError, StateError
from ..nn import as_normalizer
from ..parallel.executors import compute_wanted
from ..report.files import locked
from ..train import Config
from .experiment import Arm, Experiment, Finding, decide
from .ledger import Ledger, canonical, compute, run_name
from .record import Record
from .scales import IMAGES, Scale

SECONDS_PER_COST = 0.013  # of `cost_of`, on one core of 2026
PRIMARY, EXPLORATORY, NO_CLAIM = range(3)  # the kinds of claims that use a run


class Use(NamedTuple):
    """What a run is wanted for. A smaller use comes first."""

    order: int  # of the experiment, where the plan has an order
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
    pause_file: Path | None = None  # runs wait while it exists
    most: int | None = None  # random seeds that are computed for each setting
    log: Callable[[str], None] = print
    # by the name of a run, as far as they were looked up
    records: dict[str, Record | None] = field(default_factory=dict)
    available: dict[str, bool] = field(default_factory=dict)  # data sets
    missing: dict[str, str] = field(default_factory=dict)  # why data sets are not available
    computed: set[str] = field(default_factory=set)  # runs that this command has finished

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
            order = self.scale.registration.order(experiment.name)
            others = dict(experiment.arms)  # settings of which all planned runs are wanted
            is_completed = experiment.facts.get("complete", False)
            for finding in experiment.findings:
                use = use_for(finding, order)
                for name, seeds in needed_settings(experiment, finding).items():
                    if not is_completed:
                        others.pop(name, None)
                    if finding.supported is None:
                        want(experiment.arms[name], seeds, use)
            for arm in others.values():
                want(arm, arm.planned, Use(order, NO_CLAIM))
        return uses

    def names(self) -> dict[Config, str]:
        """What a reader calls the settings: experiment and setting, without the random seed."""
        names: dict[Config, str] = {}
        for experiment in self.experiments():
            for setting, arm in experiment.arms.items():
                if arm.config is not None:
                    names.setdefault(arm.config, f"{experiment.name}: {setting}")
        return names

    def name(self, config: Config) -> str:
        """What a reader calls a run."""
        setting = replace(config, seed=0, backend="numpy")
        return f"{self.names().get(setting, config.data)}, seed {config.seed}"

    def seconds(self, configs: Sequence[Config]) -> list[float]:
        """About how long each of these runs takes: as long as runs of its setting that this command
        has finished; else as long as other finished runs, of its setting or of its size, times what
        this command's runs took of such an estimate; else what one core did in 2026."""
        here = self.median_seconds(computed_here=True)
        elsewhere = self.median_seconds(computed_here=False)
        rates = [seconds / cost_of(setting) for setting, seconds in elsewhere.items()]
        rate = statistics.median(rates) if rates else SECONDS_PER_COST

        def by_others(setting: Config) -> float:
            return elsewhere.get(setting, rate * cost_of(setting))

        paces = [seconds / by_others(setting) for setting, seconds in here.items()]
        pace = statistics.median(paces) if paces else 1.0
        settings = [replace(canonical(config), seed=0) for config in configs]
        return [here.get(setting, pace * by_others(setting)) for setting in settings]

    def median_seconds(self, computed_here: bool) -> dict[Config, float]:
        """Of the finished runs of each setting, by this command or by others."""
        times: dict[Config, list[float]] = {}
        for name, record in self.records.items():
            is_wanted = (name in self.computed) == computed_here
            if is_wanted and record and record.seconds and not record.diverged:
                setting = replace(canonical(record.config), seed=0)
                times.setdefault(setting, []).append(record.seconds)
        return {setting: statistics.median(seconds) for setting, seconds in times.items()}

    def plan(self, jobs: int) -> str:
        """What is to be computed, and how long that takes."""
        wanted = self.wanted()
        names = self.names()
        runs: dict[str, int] = {}
        hours: dict[str, float] = {}
        for config, seconds in zip(wanted, self.seconds(wanted), strict=True):
            setting = replace(config, seed=0, backend="numpy")
            experiment = names[setting].partition(":")[0]
            runs[experiment] = runs.get(experiment, 0) + 1
            hours[experiment] = hours.get(experiment, 0.0) + seconds / 3600.0
        lines = [
            f"{len(wanted)} runs to compute, {jobs} at a time, "
            f"in about {in_hours(sum(hours.values()) / jobs)}:"
        ]
        for experiment, number in runs.items():
            lines.append(f"  {experiment:20}{number:4} runs  {in_hours(hours[experiment])}")
        lines.append("Claims that stay open may ask for more. Ctrl-C saves; the command resumes.")
        return "\n".join(lines)

    def compute(self, pool: Executor, jobs: int, seconds: float) -> bool:
        """Compute the runs that are wanted, until time is up; False after Ctrl-C. What was done is
        saved in any case."""
        # workers may have another current directory
        ledger = Ledger(self.ledger.folder.absolute())
        runs = self.runs.absolute()

        def say(line: str) -> None:
            if bar.disable:
                print(line, flush=True)
            else:
                bar.write(line)

        def finished(config: Config, to_go: int) -> None:
            record = ledger.find(config)
            if record is None:
                got = f"{run_name(config)}, finished but not in {ledger.folder}"
                rule = "workers and the command share the directories of runs and of the ledger"
                raise StateError(got, rule, "a shared file system")
            self.records[run_name(config)] = record
            self.computed.add(run_name(config))
            bar.total = bar.n + 1 + to_go
            hours = sum(self.seconds(self.wanted())) / jobs / 3600.0
            bar.set_postfix_str(f"about {in_hours(hours)} left", refresh=False)
            bar.update()
            say(f"{self.name(config)} is finished, {to_go} to go")

        def stopping() -> None:
            say("stopping: running experiments save their state")

        work = partial(
            compute,
            ledger=ledger,
            runs=runs,
            root=self.root,
            registration=self.scale.registration.digest,
            pause_file=self.pause_file.absolute() if self.pause_file else None,
        )
        form = "{desc}{percentage:3.0f}% |{bar}| {n_fmt} of {total_fmt} runs{postfix}"
        with (
            locked(runs),
            tqdm(total=len(self.wanted()), disable=None, leave=False, bar_format=form) as bar,
        ):
            return compute_wanted(self.wanted, work, finished, pool, jobs, seconds, stopping)

    def has_data(self, config: Config) -> bool:
        """Whether the data set of a run is here, or can be downloaded."""
        name = config.data
        if name not in self.available:
            try:
                self.available[name] = bool(data.found(name, self.root, download=True))
            except DataError as error:
                self.log(f"{name} is skipped: {error.args[0]}")
                self.missing[name] = str(error)
                self.available[name] = False
        return self.available[name]


def needed_settings(experiment: Experiment, finding: Finding) -> dict[str, int]:
    """How many runs of the settings of a claim are needed up to its next look, and of those that
    decide what these settings are."""
    needed: dict[str, int] = {}
    for name in finding.claim.settings:
        for tried in experiment.before(name):
            needed[tried] = experiment.arms[tried].needed_for_selection
    return needed | dict.fromkeys(finding.claim.settings, finding.next_look)


def use_for(finding: Finding, order: int) -> Use:
    _, widest = finding.widest
    claim = PRIMARY if finding.primary else EXPLORATORY
    return Use(order, claim, finding.next_look, -widest.width)


def in_hours(hours: float) -> str:
    """A time for people.

    >>> in_hours(0.01), in_hours(0.5), in_hours(12.34)
    ('1 min', '30 min', '12.3 h')
    """
    if hours < 1.0:
        return f"{math.ceil(60.0 * hours)} min"
    return f"{hours:.1f} h"


def cost_of(config: Config) -> float:
    """About proportional to the time that a run takes."""
    images = config.train_size or IMAGES
    of_width = config.width_used**1.2
    of_batch = 1.0 + 4.0 / config.batch_size
    normalizer = as_normalizer(config.norm)
    of_norm = 1.4 if normalizer.before is not None else 1.0  # a pass more over each hidden layer
    of_pixels = 1.0 / config.shrink**2
    return config.epochs * images * of_width * of_batch * of_norm * of_pixels
