"""The experiments with their finished runs, and which runs are most useful next."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import data
from ..errors import DataError
from ..train import Config
from .experiment import Arm, Experiment, decide
from .ledger import Ledger, run_name
from .record import Record
from .scales import IMAGES, PAPER_RUN, Scale

Order = tuple[Any, ...]  # the least comes first


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
    records: dict[str, Record | None] = field(default_factory=dict)  # by the name of a run, as far as they were wanted
    available: dict[str, bool] = field(default_factory=dict)  # data sets

    def experiments(self) -> list[Experiment]:
        """With all runs that are finished by now."""
        found = [make(self.scale) for make in self.chosen]
        for e in found:
            for settings in (e.settings, e.chosen):  # the runs of the first decide what the others are
                for name, config in settings().items():
                    arm = Arm(config, e.planned(name))
                    records = filter(None, map(self.record, self.configs(arm)))
                    e.arms[name] = replace(arm, records=tuple(records))
        return found

    def configs(self, arm: Arm) -> list[Config]:
        base = arm.config
        return [replace(base, seed=seed + 1, backend=self.backend) for seed in range(arm.planned)] if base else []

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

    def order(self, experiments: Sequence[Experiment]) -> dict[Config, Order]:
        """When it is a run's turn.

        First come the runs that claims need up to a look that may decide them, in the order of their cost for each
        claim that they complete: one that is nearly there is finished before another is begun. Then come the settings
        that no claim uses; then further looks at primary claims, the widest interval first; then the rest. A setting
        gets no further runs once all claims that use it are decided.
        """
        needs: list[tuple[Order, set[Config]]] = []

        def want(arms: Iterable[Arm], seeds: int, turn: Order) -> None:
            configs = [c for arm in arms for c in self.configs(arm) if c.seed <= seeds]
            if missing := {config for config in configs if not self.record(config)}:
                needs.append((turn, missing))

        for e, findings in zip(experiments, decide(experiments), strict=True):
            idle = dict(e.arms)
            for f in findings:
                settings = f.claim.settings.union(*map(e.before, f.claim.settings))
                idle = {name: arm for name, arm in idle.items() if name not in settings}
                early = f.runs < f.first_chance
                turn = (0,) if early else (2, f.next_look, -f.widest[1].width) if f.primary else (3,)
                if f.supported is None:
                    want([e.arms[name] for name in settings], f.first_chance if early else f.next_look, turn)
            for arm in idle.values():
                want([arm], arm.planned, (3 if arm.config == replace(PAPER_RUN, norm="batch") else 1,))
        turns: dict[Config, Order] = {}
        for turn, missing in needs:
            completed = sum(other <= missing for _, other in needs)
            price = math.fsum(map(cost_of, missing)) / completed
            for config in missing:
                key = (*turn, price, config.seed, -cost_of(config))
                turns[config] = min(turns.get(config, key), key)
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
