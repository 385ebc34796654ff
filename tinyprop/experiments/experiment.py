"""What an experiment is: settings to run, and from the finished runs findings, a figure and a
table."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..report.estimate import Estimate
from ..train import Config
from ..verify import paper
from . import evidence, figures
from .evidence import ENDPOINTS, LEVEL, MEASURES, REGISTERED, Comparison, Measure, Rule, Verdict
from .figures import Curves
from .record import Record
from .scales import Scale, Settings, table

TABLE = table("experiments.toml")
NORMPROP, BATCHNORM = "NormProp", "BatchNorm"
CHANCE, CHANCE_ACCURACY = "chance", 10.0  # stands for a setting; % of the images of ten classes


@dataclass(frozen=True)
class Arm:
    """A setting with its runs, as far as they are finished."""

    config: Config | None  # None if it depends on runs that are not finished
    planned: int  # random seeds
    records: tuple[Record, ...] = ()

    @property
    def survivors(self) -> list[Record]:
        return [record for record in self.records if not record.diverged]

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.survivors)

    @property
    def badness(self) -> tuple[int, float]:
        """The least is the best learning rate: runs that diverged, then the loss on validation
        images."""
        losses = [record.validation.loss for record in self.survivors if record.validation]
        return self.diverged, statistics.fmean(losses) if losses else math.inf

    def first(self, n: int) -> "Arm":
        """Only the random seeds 1 to n."""
        return replace(
            self, records=tuple(record for record in self.records if record.config.seed <= n)
        )

    def values(self, measure: Measure) -> dict[int, Any]:
        """By random seed: a number, or one for each image."""
        found = {record.config.seed: measure.of(record) for record in self.survivors}
        return evidence.deviations(found) if measure.spread else found

    def estimate(self, measure: Measure) -> Estimate:
        return Estimate.of([float(np.mean(value)) for value in self.values(measure).values()])

    def curve(self, of: Callable[[Record], Sequence[float]], start: int) -> dict[int, Estimate]:
        """Something that each run has after every epoch, from the epoch `start` on."""
        by_epoch = zip(*map(of, self.survivors), strict=True)
        return dict(enumerate(map(Estimate.of, by_epoch), start))

    def words(self, measure: Measure) -> str:
        lost = [f"{self.diverged} of {len(self.records)} runs diverged"] if self.diverged else []
        number = [f"{self.estimate(measure):{measure.form}}"] if self.survivors else []
        return "; ".join(number + lost)


class Claim(NamedTuple):
    """A claim that must hold for each of some pairs of settings, in each measure."""

    text: str
    paper: str
    holds: Rule
    pairs: Mapping[str, tuple[str, str]]  # the names of ours and theirs
    measures: tuple[Measure, ...] = ENDPOINTS

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "Claim":
        """From experiments.toml."""
        pairs = {
            label.format(each): (ours.format(each), theirs.format(each))
            for each in facts.get("each", [""])
            for label, (ours, theirs) in facts["pairs"].items()
        }
        measures = (
            tuple(MEASURES[name] for name in facts["measures"])
            if "measures" in facts
            else ENDPOINTS
        )
        holds = getattr(Comparison, facts["holds"].replace(" ", "_"))
        return cls(facts["text"], facts["paper"].format_map(vars(paper)), holds, pairs, measures)

    @property
    def settings(self) -> set[str]:
        return {name for pair in self.pairs.values() for name in pair} - {CHANCE}


@dataclass(frozen=True)
class Finding:
    """A claim beside what we found."""

    claim: Claim
    primary: bool
    found: Mapping[str, Sequence[Comparison]]  # by pair, one for each measure, of all finished runs
    looks: Sequence[evidence.Look]  # those that the runs have reached
    runs: int  # random seeds that all settings have
    planned: int
    no_data: Sequence[str]  # names of data sets that are not available
    supported: Verdict = None

    def judge(self, level: float) -> Verdict:
        return evidence.first_verdict(self.claim.holds, self.looks, level)

    @property
    def level(self) -> float:
        """That of the first claim of a family to be decided."""
        return LEVEL / (len(REGISTERED["primary"]) if self.primary else 1)

    @property
    def next_look(self) -> int:
        """0 after the last."""
        return next(iter(evidence.looks(self.planned)[len(self.looks) :]), 0)

    @property
    def widest(self) -> tuple[str, Comparison]:
        """The comparison with the widest interval, and the name of its pair."""
        return max(
            ((label, c) for label, found in self.found.items() for c in found),
            key=lambda pair: pair[1].width,
        )

    @property
    def verdict(self) -> str:
        return {True: "supported", False: "not supported", None: "cannot tell"}[self.supported]


@dataclass
class Experiment:
    """Words, settings and claims are those of experiments.toml; a subclass has what is not data."""

    name: str
    scale: Scale
    arms: dict[str, Arm] = field(default_factory=dict)  # the settings with their runs
    # what the runs say, once `decide` has judged it
    findings: list[Finding] = field(default_factory=list)

    reported: ClassVar[tuple[Measure, ...]] = ENDPOINTS  # in the table, and in the figure
    x: ClassVar[str] = "epoch"  # what is along the x-axis of the levels in the figure
    paper: ClassVar[float | None] = None  # the level that the paper reports

    @property
    def facts(self) -> Mapping[str, Any]:
        return TABLE[self.name]

    def settings(self) -> Settings:
        return {
            name: self.scale.config(**changes) for name, changes in self.facts["settings"].items()
        }

    def before(self, name: str) -> list[str]:
        """The settings whose runs decide what a chosen setting is."""
        start = self.facts.get("chosen", {}).get(name)
        return [other for other in self.arms if start and other.startswith(start)]

    def chosen(self) -> dict[str, Config | None]:
        """Settings at the best of the learning rates that were tried; None as long as it is not
        known."""
        found: dict[str, Config | None] = {}
        for name in self.facts.get("chosen", {}):
            tried = [self.arms[other] for other in self.before(name)]
            best = min(tried, key=lambda arm: arm.badness).config
            finished = best and all(len(arm.records) == arm.planned for arm in tried)
            changes = {of: getattr(best, of) for of in ("lr", "optimizer", "momentum")}
            found[name] = self.scale.config(**changes) if finished else None
        return found

    def planned(self, name: str) -> int:
        """How many random seeds of a setting are run."""
        return min(
            self.scale.most_seeds, REGISTERED["planned"][self.name].get(name, self.scale.most_seeds)
        )

    def claims(self) -> list[Claim]:
        return [Claim.read(claim) for claim in self.facts.get("claims", ())]

    def unjudged(self) -> list[Finding]:
        findings = []
        primary = {
            claim["claim"] for claim in REGISTERED["primary"] if claim["experiment"] == self.name
        }
        for claim in self.claims():
            arms = [self.arms[name] for name in claim.settings]
            planned = min(arm.planned for arm in arms)
            reached = [
                n
                for n in evidence.looks(planned)
                if all(len(arm.first(n).records) == n for arm in arms)
            ]
            looks = [
                (n / planned, [*chain(*self.first(n).compared(claim).values())]) for n in reached
            ]
            runs = len(
                set.intersection(*({record.config.seed for record in arm.records} for arm in arms))
            )
            no_data = sorted(
                {arm.config.data for arm in arms if arm.config} & set(REGISTERED["not_available"])
            )
            findings.append(
                Finding(
                    claim,
                    claim.text in primary,
                    self.compared(claim),
                    looks,
                    runs,
                    planned,
                    no_data,
                )
            )
        return findings

    def is_decided(self, name: str) -> bool:
        """Whether there are claims about a setting, and all of them are decided."""
        about = [finding.supported for finding in self.findings if name in finding.claim.settings]
        return None not in about and bool(about)

    def first(self, n: int) -> "Experiment":
        """Only the random seeds 1 to n."""
        return replace(self, arms={name: arm.first(n) for name, arm in self.arms.items()})

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        """All pairs, in all measures."""
        return {
            label: [self.compare(*pair, m) for m in claim.measures]
            for label, pair in claim.pairs.items()
        }

    def compare(self, ours: str, theirs: str, measure: Measure) -> Comparison:
        arm, other = self.arms[ours], None if theirs == CHANCE else self.arms[theirs]
        chance = {record.config.seed: CHANCE_ACCURACY for record in arm.records}
        values, diverged = (other.values(measure), other.diverged) if other else (chance, 0)
        return evidence.compared(measure, arm.values(measure), values, (arm.diverged, diverged))

    def shown(self) -> dict[str, Arm]:
        """The settings that the table and the figure show."""
        return {name: self.arms[name] for name in self.facts.get("shown", self.arms)}

    def remarks(self) -> str:
        """What a reader must know to read figure and findings."""
        chosen = {
            name.partition(",")[0]: self.arms[name].config for name in self.facts.get("chosen", ())
        }
        rates = [
            f"{config.lr:g} for {name}" if config else f"none yet for {name}"
            for name, config in chosen.items()
        ]
        return self.facts["note"] + (f" The chosen rates: {', '.join(rates)}." if rates else "")

    def levels(self) -> dict[str, Curves]:
        """The left panels of the figure, by title."""
        return {
            "Accuracy, %": {
                name: arm.curve(Record.accuracies, 1) for name, arm in self.shown().items()
            }
        }

    def pairs(self) -> dict[str, tuple[str, str]]:
        """Of settings whose differences the figure shows."""
        claims = [claim.pairs for claim in self.claims() if claim.measures == self.reported]
        return {label: pair for pairs in claims for label, pair in pairs.items()}

    def differences(self) -> list[dict[str, Comparison]]:
        """The right panels of the figure, one for each measure."""
        pairs = self.pairs().items()
        return [
            {label: self.compare(*pair, measure) for label, pair in pairs}
            for measure in self.reported
        ]

    def figure(self) -> Figure:
        return figures.experiment(self.levels(), self.differences(), self.x, self.paper)


def decide(experiments: Sequence[Experiment]) -> None:
    """Judge all findings: the primary claims as one family, the others each for itself."""
    for e in experiments:
        e.findings = e.unjudged()
    family = [finding for e in experiments for finding in e.findings if finding.primary]
    verdicts = iter(
        evidence.holm([finding.judge for finding in family], len(REGISTERED["primary"]))
    )
    for e in experiments:
        e.findings = [
            replace(f, supported=next(verdicts) if f.primary else f.judge(LEVEL))
            for f in e.findings
        ]
