"""What an experiment is: settings to run, and from the finished runs findings, a figure and a table."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, Self

from matplotlib.figure import Figure

from ..estimate import Estimate
from ..table import Table
from . import evidence
from .evidence import ENDPOINTS, Comparison, Measure, Rule, Verdict
from .figures import Curves, draw
from .record import Record
from .scales import Scale, Setting, Settings

NORMPROP, BATCHNORM = "NormProp", "BatchNorm"
CONTROLS = 24  # planned runs of the settings that many experiments share
CHANCE, CHANCE_ACCURACY = "chance", 10.0  # stands for a setting; % of the images of ten classes
REGISTERED = tomllib.loads(files(__package__).joinpath("preregistration.toml").read_text())


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

    def first(self, n: int) -> "Arm":
        """Only the random seeds 1 to n."""
        return replace(self, records=tuple(record for record in self.records if record.config.seed <= n))

    def values(self, measure: Measure) -> dict[int, float]:
        """By random seed."""
        found = {record.config.seed: measure.of(record) for record in self.survivors}
        return evidence.deviations(found) if measure.spread else found

    def images(self, measure: Measure) -> dict[int, Any]:
        """The same, where possible image by image."""
        by_image = measure.by_image
        return {r.config.seed: by_image(r) for r in self.survivors} if by_image else self.values(measure)

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
    """A claim that must hold for each of some pairs of settings, in each measure."""

    text: str
    paper: str
    holds: Rule
    pairs: Mapping[str, tuple[str, str]]  # the names of ours and theirs
    measures: tuple[Measure, ...] = ENDPOINTS

    @property
    def settings(self) -> set[str]:
        return {name for pair in self.pairs.values() for name in pair} - {CHANCE}


NORMS = {"NormProp minus BatchNorm": (NORMPROP, BATCHNORM)}


@dataclass(frozen=True)
class Finding:
    """A claim beside what we found."""

    claim: Claim
    primary: bool
    found: Mapping[str, Sequence[Comparison]]  # by pair, one for each measure, of all finished runs
    looks: Sequence[evidence.Look]  # those that the runs have reached
    runs: int  # random seeds that all settings have
    planned: int
    supported: Verdict = None

    def judge(self, level: float) -> Verdict:
        return evidence.first_verdict(self.claim.holds, self.looks, level)

    @property
    def next_look(self) -> int:
        """0 after the last."""
        return next((n for n in evidence.looks(self.planned)[len(self.looks) :]), 0)

    @property
    def width(self) -> float:
        """Of the widest interval."""
        return max(comparison.width for comparison in flat(self.found))

    @property
    def verdict(self) -> str:
        if self.supported is not None:
            return "supported" if self.supported else "not supported"
        return f"cannot tell (about {self.needed():,} seeds would)" if self.needed() else "cannot tell"

    def needed(self) -> int:
        """How many random seeds would decide, as the first of the family, if mean and deviation stayed as they are.
        0 if no number would."""
        level = evidence.LEVEL / (len(REGISTERED["primary"]) if self.primary else 1)
        for n in (round(self.planned * 1.1**i) for i in range(80 if self.runs > 1 else 0)):
            if evidence.judged(self.claim.holds, [c.with_seeds(n) for c in flat(self.found)], level) is not None:
                return n
        return 0


def flat(found: Mapping[str, Sequence[Comparison]]) -> list[Comparison]:
    return [comparison for comparisons in found.values() for comparison in comparisons]


class Experiment:
    """The class says what to run; an instance has the runs."""

    name: ClassVar[str]
    section: ClassVar[str]
    title: ClassVar[str]
    note = ""  # what a reader must know to read figure and findings
    reported: tuple[Measure, ...] = ENDPOINTS  # in the table, and in the figure
    x, form = "epoch", "o-"  # of the levels in the figure: what is along the x-axis, and matplotlib's line format
    paper: float | None = None  # the level that the paper reports

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
        """What the runs say, before `decide` has judged it."""
        findings = []
        primary = {claim["claim"] for claim in REGISTERED["primary"] if claim["experiment"] == self.name}
        for claim in self.claims():
            arms = [self.arms[name] for name in claim.settings]
            planned = min(arm.setting.seeds for arm in arms)
            reached = [n for n in evidence.looks(planned) if all(len(arm.first(n).records) == n for arm in arms)]
            looks = [(n / planned, flat(self.first(n).compared(claim))) for n in reached]
            runs = len(set.intersection(*({record.config.seed for record in arm.records} for arm in arms)))
            findings.append(Finding(claim, claim.text in primary, self.compared(claim), looks, runs, planned))
        return findings

    def first(self, n: int) -> Self:
        """Only the random seeds 1 to n."""
        return type(self)(self.scale, {name: arm.first(n) for name, arm in self.arms.items()})

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        """All pairs, in all measures."""
        return {label: [self.compare(*pair, m) for m in claim.measures] for label, pair in claim.pairs.items()}

    def compare(self, ours: str, theirs: str, measure: Measure) -> Comparison:
        arm = self.arms[ours]
        if theirs == CHANCE:
            chance = {record.config.seed: CHANCE_ACCURACY for record in arm.records}
            return evidence.compared(measure, arm.images(measure), chance, (arm.diverged, 0))
        other = self.arms[theirs]
        return evidence.compared(measure, arm.images(measure), other.images(measure), (arm.diverged, other.diverged))

    def shown(self) -> Mapping[str, Arm]:
        """The settings that the table and the figure show."""
        return self.arms

    def table(self) -> Table:
        """What was measured in each setting."""
        rows = [
            [name, f"{len(arm.records)} of {arm.setting.seeds}", *map(arm.words, self.reported)]
            for name, arm in self.shown().items()
        ]
        return Table(["setting", "seeds", *(measure.name for measure in self.reported)], rows)

    def remarks(self) -> str:
        return self.note

    def levels(self) -> dict[str, Curves]:
        """The left panels of the figure, by title."""
        return {"Accuracy, %": {name: arm.curve(Record.accuracies, 1) for name, arm in self.shown().items()}}

    def differences(self) -> list[dict[str, Comparison]]:
        """The right panels of the figure."""
        claims = [claim.pairs for claim in self.claims() if claim.measures == self.reported]
        pairs = {label: pair for pairs in claims for label, pair in pairs.items()}
        return [{label: self.compare(*pair, measure) for label, pair in pairs.items()} for measure in self.reported]

    def figure(self) -> Figure:
        return draw(self.levels(), self.differences(), self.x, self.form, self.paper)


def decide(experiments: Sequence[Experiment]) -> list[list[Finding]]:
    """The findings of each experiment, judged: the primary claims as one family, the others each for itself."""
    every = [experiment.findings() for experiment in experiments]
    family = [finding for findings in every for finding in findings if finding.primary]
    verdicts = iter(evidence.holm([finding.judge for finding in family], len(REGISTERED["primary"])))
    return [
        [replace(f, supported=next(verdicts) if f.primary else f.judge(evidence.LEVEL)) for f in findings]
        for findings in every
    ]
