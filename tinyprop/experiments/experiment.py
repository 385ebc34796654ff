"""What an experiment is: settings to run, and from the finished runs findings, a figure and a paragraph."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from matplotlib.figure import Figure

from ..estimate import Estimate
from .drawing import learning_curves, with_differences
from .evidence import ACCURACY, ENDPOINTS, LOSS, Comparison, Measure, Verdict, all_hold
from .record import Record
from .scales import Scale, Setting

NORMPROP, BATCHNORM = "NormProp", "BatchNorm"
CONTROLS = 24  # planned runs of NormProp and BatchNorm, which many experiments share


Settings = dict[Hashable, Setting]  # by the role in the experiment


def controls(scale: Scale) -> Settings:
    """NormProp and BatchNorm by the protocol of sections 5.1 to 5.4."""
    return {NORMPROP: scale.setting(NORMPROP, CONTROLS), BATCHNORM: scale.setting(BATCHNORM, CONTROLS, norm="batch")}


@dataclass(frozen=True)
class Arm:
    """A setting with its runs, as far as they are finished."""

    setting: Setting
    records: tuple[Record, ...] = ()

    @property
    def survivors(self) -> list[Record]:
        return [record for record in self.records if not record.diverged]

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.survivors)

    def values(self, measure: Measure) -> dict[int, float]:
        """By random seed."""
        return {record.config.seed: measure.of(record) for record in self.survivors}

    def estimate(self, measure: Measure) -> Estimate:
        return Estimate.of(list(self.values(measure).values()))

    def accuracies(self) -> list[tuple[float, ...]]:
        """After each epoch, those of all survivors, in %."""
        return list(zip(*(record.accuracies() for record in self.survivors), strict=True))

    def words(self, measure: Measure = ACCURACY) -> str:
        if not self.records:
            return "not run"
        lost = f" ({self.diverged} of {len(self.records)} runs diverged)" if self.diverged else ""
        return (f"{self.estimate(measure):{measure.form}}" if self.survivors else "no number") + lost


class Pair(NamedTuple):
    """The roles of two settings that are compared."""

    label: str
    ours: Hashable
    theirs: Hashable


class Claim(NamedTuple):
    """A claim of the paper that must hold for each of some pairs, both in accuracy and in loss."""

    text: str
    paper: str
    holds: Callable[[Comparison], Verdict]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Finding:
    """A claim beside what we found."""

    claim: str
    paper: str
    ours: str
    supported: Verdict

    @property
    def verdict(self) -> str:
        return {True: "supported", False: "not supported", None: "cannot tell"}[self.supported]


class Experiment:
    """The class says what to run; an instance has the runs."""

    name: ClassVar[str]
    section: ClassVar[str]
    title: ClassVar[str]
    note = ""  # what a reader must know to read figure and findings

    def __init__(self, scale: Scale, arms: Mapping[Hashable, Arm], measured: Any = None):
        self.scale, self.arms, self.measured = scale, arms, measured

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {}

    @classmethod
    def later_settings(cls, scale: Scale, arms: Mapping[Hashable, Arm]) -> Settings:
        """Settings that depend on finished runs."""
        return {}

    @classmethod
    def measure(cls, scale: Scale) -> Any:
        """What is measured without training, as plain data."""

    def claims(self) -> list[Claim]:
        return []

    def findings(self) -> list[Finding]:
        findings = []
        for claim in self.claims():
            for measure in ENDPOINTS:
                found = {pair.label: self.compare(pair, measure) for pair in claim.pairs}
                ours = "; ".join(f"{label}: {comparison}" for label, comparison in found.items())
                holds = all_hold(map(claim.holds, found.values()))
                findings.append(Finding(f"{claim.text} ({measure.name})", claim.paper, ours, holds))
        return findings

    def compare(self, pair: Pair, measure: Measure = ACCURACY) -> Comparison:
        ours, theirs = self.arms[pair.ours], self.arms[pair.theirs]
        return Comparison(measure, ours.values(measure), theirs.values(measure), (ours.diverged, theirs.diverged))

    def beyond_chance(self, claim: str, paper: str, roles: Iterable[Hashable]) -> Finding:
        """Whether every run of some settings gets more right than the tenth that chance does."""
        arms = [self.arms[role] for role in roles]
        words = "; ".join(f"{arm.setting.label}: {arm.words()} %" for arm in arms)
        fixed = [Comparison(ACCURACY, arm.values(ACCURACY), dict.fromkeys(arm.values(ACCURACY), 10.0)) for arm in arms]
        trained = all_hold(comparison.better() for comparison in fixed)
        return Finding(claim, paper, words, False if any(arm.diverged for arm in arms) else trained)

    def shown(self) -> list[Arm]:
        """The settings that the paragraph and the learning curves show."""
        return list(self.arms.values())

    def paragraph(self) -> str:
        levels = "; ".join(f"{arm.setting.label}: {arm.words()} %, {arm.words(LOSS)} nats" for arm in self.shown())
        return f"Test accuracy and loss: {levels}. {self.note}"

    def figure(self) -> Figure:
        pairs = [pair for claim in self.claims() for pair in claim.pairs]
        rows = [{pair.label: self.compare(pair, measure) for pair in pairs} for measure in ENDPOINTS]
        return with_differences(self.left_panel, rows)

    def left_panel(self, axes: Any) -> None:
        curves = {arm.setting.label: list(map(Estimate.of, arm.accuracies())) for arm in self.shown() if arm.records}
        learning_curves(axes, curves)
