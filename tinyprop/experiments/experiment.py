"""What an experiment is: settings to run, and from the finished runs findings, a figure and a paragraph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from matplotlib.figure import Figure

from ..estimate import Estimate
from .evidence import ENDPOINTS, Comparison, Measure, Verdict, all_hold, deviations
from .figures import Curves, draw
from .record import Record
from .scales import Scale, Setting, Settings

NORMPROP, BATCHNORM = "NormProp", "BatchNorm"
CONTROLS = 24  # planned runs of the settings that many experiments share
CHANCE, CHANCE_ACCURACY = "chance", 10.0  # stands for a setting; % of the images of ten classes


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
        found = {record.config.seed: measure.of(record) for record in self.survivors}
        return deviations(found) if measure.spread else found

    def estimate(self, measure: Measure) -> Estimate:
        return Estimate.of(list(self.values(measure).values()))

    def curve(self, of: Callable[[Record], Sequence[float]], start: int) -> dict[int, Estimate]:
        """Something that each run has after every epoch, from the epoch `start` on."""
        by_epoch = zip(*map(of, self.survivors), strict=True)
        return dict(enumerate(map(Estimate.of, by_epoch), start))

    def words(self, measure: Measure) -> str:
        if not self.records:
            return "not run"
        lost = f" ({self.diverged} of {len(self.records)} runs diverged)" if self.diverged else ""
        return (f"{self.estimate(measure):{measure.form}}{measure.unit}" if self.survivors else "no number") + lost


class Claim(NamedTuple):
    """A claim that must hold for each of some pairs of settings; every measure has a finding of its own."""

    text: str
    paper: str
    holds: Callable[[Comparison], Verdict]
    pairs: Mapping[str, tuple[str, str]]  # the names of ours and theirs
    measures: tuple[Measure, ...] = ENDPOINTS


NORMS = {"NormProp minus BatchNorm": (NORMPROP, BATCHNORM)}


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
    reported: tuple[Measure, ...] = ENDPOINTS  # in the paragraph, and in the figure
    x, form = "epoch", "o-"  # of the levels in the figure: what is along the x-axis, and matplotlib's line format

    def __init__(self, scale: Scale, arms: Mapping[str, Arm]):
        self.scale, self.arms = scale, arms

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        """NormProp and BatchNorm by the protocol of sections 5.1 to 5.4, which many experiments share."""
        return {NORMPROP: scale.setting(CONTROLS), BATCHNORM: scale.setting(CONTROLS, norm="batch")}

    @classmethod
    def later_settings(cls, scale: Scale, arms: Mapping[str, Arm]) -> Settings:
        """Settings that depend on finished runs."""
        return {}

    def claims(self) -> list[Claim]:
        raise NotImplementedError

    def findings(self) -> list[Finding]:
        findings = []
        for claim in self.claims():
            for measure in claim.measures:
                found = self.compared(claim.pairs, measure)
                ours = "; ".join(f"{label}: {comparison}" for label, comparison in found.items())
                holds = all_hold(map(claim.holds, found.values()))
                findings.append(Finding(f"{claim.text} ({measure.name})", claim.paper, ours, holds))
        return findings

    def compared(self, pairs: Mapping[str, tuple[str, str]], measure: Measure) -> dict[str, Comparison]:
        return {label: self.compare(*pair, measure) for label, pair in pairs.items()}

    def compare(self, ours: str, theirs: str, measure: Measure) -> Comparison:
        arm = self.arms[ours]
        if theirs == CHANCE:
            chance = {record.config.seed: CHANCE_ACCURACY for record in arm.records}
            return Comparison(measure, arm.values(measure), chance, (arm.diverged, 0))
        other = self.arms[theirs]
        return Comparison(measure, arm.values(measure), other.values(measure), (arm.diverged, other.diverged))

    def shown(self) -> Mapping[str, Arm]:
        """The settings that the paragraph and the figure show."""
        return self.arms

    def paragraph(self) -> str:
        def levels(measure: Measure) -> str:
            found = "; ".join(f"{name}: {arm.words(measure)}" for name, arm in self.shown().items())
            return f"{measure.name.capitalize()}: {found}."

        return " ".join([*map(levels, self.reported), self.note])

    def levels(self) -> dict[str, Curves]:
        """The left panels of the figure, by title."""
        return {"Accuracy, %": {name: arm.curve(Record.accuracies, 1) for name, arm in self.shown().items()}}

    def differences(self) -> list[dict[str, Comparison]]:
        """The right panels of the figure."""
        claims = [claim.pairs for claim in self.claims() if claim.measures == self.reported]
        pairs = {label: pair for pairs in claims for label, pair in pairs.items()}
        return [self.compared(pairs, measure) for measure in self.reported]

    def figure(self) -> Figure:
        return draw(self.levels(), self.differences(), self.x, self.form)
