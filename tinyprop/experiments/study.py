"""The experiments with their finished runs, and which runs are most useful next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import data
from ..errors import DataError
from ..train import Config
from .experiment import Arm, Experiment, decide
from .ledger import Ledger, run_name
from .record import Record
from .scales import IMAGES, Scale, Setting, Settings, Turn


@dataclass
class Study:
    chosen: Sequence[type[Experiment]]
    scale: Scale
    ledger: Ledger
    runs: Path  # of unfinished runs
    root: Path | None = None
    backend: str = "numpy"
    most: int | None = None  # random seeds that are computed for each setting
    say: Callable[[str], None] = print
    records: dict[str, Record | None] = field(default_factory=dict)  # by the name of a run, as far as they were wanted
    available: dict[str, bool] = field(default_factory=dict)  # data sets

    def experiments(self) -> list[Experiment]:
        """With all runs that are finished by now."""
        found = []
        for experiment in self.chosen:
            arms = self.arms(experiment.settings(self.scale))
            found.append(experiment(self.scale, arms | self.arms(experiment.later_settings(self.scale, arms))))
        return found

    def arms(self, settings: Settings) -> dict[str, Arm]:
        found = {name: map(self.record, self.configs(setting)) for name, setting in settings.items()}
        return {name: Arm(settings[name], tuple(filter(None, records))) for name, records in found.items()}

    def configs(self, setting: Setting) -> list[Config]:
        return [replace(setting.config, seed=seed + 1, backend=self.backend) for seed in range(setting.seeds)]

    def record(self, config: Config) -> Record | None:
        name = run_name(config)
        if not self.records.get(name):
            complain = (lambda line: None) if name in self.records else self.say  # once
            self.records[name] = self.ledger.find(config, complain)
        return self.records[name]

    def wanted(self) -> list[Config]:
        """The runs that are still to be computed, the most useful first. What was begun is finished first."""
        order = self.order(self.experiments())
        left = [c for c in order if (self.most is None or c.seed <= self.most) and not self.record(c)]
        begun = {path.name for path in self.runs.glob("*-seed*")}
        return sorted(filter(self.has_data, left), key=lambda c: (run_name(c) not in begun, order[c], run_name(c)))

    def order(self, experiments: Sequence[Experiment]) -> dict[Config, tuple[Any, ...]]:
        """When it is a run's turn. An undecided claim needs the runs up to its next look. The first look at primary
        claims comes first, seed by seed; at later ones, the widest interval does. Exploratory runs follow, cheap ones
        first. Where all claims that use a setting are decided, it gets no further runs.
        """
        turns: dict[Config, tuple[Any, ...]] = {}

        def want(setting: Setting, seeds: int, turn: Turn, *urgency: float) -> None:
            for config in self.configs(setting)[:seeds] if setting.turn != Turn.NOT_YET else ():
                cost = (cost_of(config), config.seed) if turn == Turn.EXPLORATORY else (config.seed, -cost_of(config))
                key = (turn, *urgency, *cost)
                turns[config] = min(turns.get(config, key), key)

        for experiment, findings in zip(experiments, decide(experiments), strict=True):
            for name in experiment.arms.keys() - {name for finding in findings for name in finding.claim.settings}:
                setting = experiment.arms[name].setting
                want(setting, setting.seeds, setting.turn)
            for finding in (f for f in findings if f.supported is None):
                for setting in (experiment.arms[name].setting for name in finding.claim.settings):
                    if finding.primary and finding.looks:
                        want(setting, finding.next_look, Turn.LATER_LOOKS, finding.next_look, -finding.width)
                    else:
                        turn = Turn.FIRST_LOOK if finding.primary else setting.turn
                        want(setting, finding.next_look, turn)
        return turns

    def has_data(self, config: Config) -> bool:
        """Whether a data set is here, or can be downloaded."""
        if config.data not in self.available:
            try:
                self.available[config.data] = bool(data.found(config.data, self.root, download=True))
            except DataError as error:
                self.say(f"{config.data} is skipped: {error.args[0]}")
                self.available[config.data] = False
        return self.available[config.data]


def cost_of(config: Config) -> float:
    """About proportional to the time that a run takes."""
    return config.epochs * (config.train_size or IMAGES) * config.width**1.2 * (1.0 + 4.0 / config.batch_size)
