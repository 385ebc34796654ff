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
from .evidence import (
    AVERAGED,
    ENDPOINTS,
    LEVEL,
    MEASURES,
    Comparison,
    Gate,
    Measure,
    Rule,
    Verdict,
)
from .figures import Curves
from .record import Record
from .scales import Scale, Settings

SELECTION_SEEDS = 2  # random seeds by which the best of several rates is selected
NORMPROP, BATCHNORM = "NormProp", "BatchNorm"
NOT_IN_THE_PAPER = "not in the paper"  # instead of what the paper says, in a claim of ours
NOT_TESTABLE = "not testable at this scale"
CHANCE = "chance"  # stands for a setting that guesses
CHANCE_ACCURACY = 10.0  # % of the images of ten classes


@dataclass(frozen=True)
class Arm:
    """A setting with its runs, as far as they are finished."""

    config: Config | None  # None if it depends on runs that are not finished
    planned: int  # random seeds
    records: tuple[Record, ...] = ()

    @property
    def survivors(self) -> list[Record]:
        return [record for record in self.records if not record.has_diverged]

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.survivors)

    @property
    def selection_key(self) -> tuple[int, float]:
        """By which the best learning rate is selected, the least first: how many runs diverged,
        then the loss on validation images."""
        losses = [record.validation.loss for record in self.survivors if record.validation]
        loss = statistics.fmean(losses) if losses else math.inf
        return self.diverged, loss

    @property
    def needed_for_selection(self) -> int:
        """How many runs a rate has to have before it is compared with others."""
        return min(SELECTION_SEEDS, self.planned)

    def first(self, n: int) -> "Arm":
        """Only the random seeds 1 to n."""
        records = tuple(record for record in self.records if record.config.seed <= n)
        return replace(self, records=records)

    @property
    def seeds(self) -> set[int]:
        return {record.config.seed for record in self.records}

    def values(self, measure: Measure) -> dict[int, Any]:
        """By random seed: a number, or one for each image."""
        values = {record.config.seed: measure.of(record) for record in self.survivors}
        return evidence.deviations(values) if measure.spread else values

    def estimate(self, measure: Measure) -> Estimate:
        means = [float(np.mean(value)) for value in self.values(measure).values()]
        return Estimate.of(means)

    def curve(self, of: Callable[[Record], Sequence[float]], start: int) -> dict[int, Estimate]:
        """Something that each run has after every epoch, from the epoch `start` on."""
        curves = [of(record) for record in self.survivors]
        by_epoch = zip(*curves, strict=True)  # (runs, epochs) -> (epochs, runs)
        estimates = [Estimate.of(values) for values in by_epoch]
        return dict(enumerate(estimates, start))

    def words(self, measure: Measure) -> str:
        """The level, and how many runs diverged."""
        words = []
        if self.survivors:
            words.append(f"{self.estimate(measure):{measure.form}}")
        if self.diverged:
            words.append(f"{self.diverged} of {len(self.records)} runs diverged")
        return "; ".join(words)


class Claim(NamedTuple):
    """A claim that must hold for each of some pairs of settings, in each measure."""

    text: str
    paper: str
    holds: Rule
    pairs: Mapping[str, tuple[str, str]]  # the names of ours and theirs
    measures: tuple[Measure, ...] = ENDPOINTS
    control: str | None = None  # the setting that has to be on its plateau, if not theirs

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> "Claim":
        """From a registered plan."""
        pairs = {}
        for each in facts.get("each", [""]):
            for label, (ours, theirs) in facts["pairs"].items():
                pairs[label.format(each)] = (ours.format(each), theirs.format(each))
        measures: tuple[Measure, ...] = ENDPOINTS
        if "measures" in facts:
            measures = tuple(MEASURES[name] for name in facts["measures"])
        return cls(
            text=facts["text"],
            paper=facts["paper"].format_map(vars(paper)),
            holds=getattr(Comparison, facts["holds"].replace(" ", "_")),
            pairs=pairs,
            measures=measures,
            control=facts.get("control"),
        )

    @property
    def is_of_the_paper(self) -> bool:
        return self.paper != NOT_IN_THE_PAPER

    @property
    def is_about_the_end(self) -> bool:
        """Whether it is about how good a network is after training."""
        return self.measures == ENDPOINTS

    @property
    def settings(self) -> set[str]:
        names = {name for pair in self.pairs.values() for name in pair}
        return names - {CHANCE}


@dataclass(frozen=True)
class Finding:
    """A claim, and what the runs say about it."""

    claim: Claim
    primary: bool
    # of all finished runs, by the label of a pair: one for each measure
    comparisons: Mapping[str, Sequence[Comparison]]
    looks: Sequence[evidence.Look]  # those that the runs have reached
    runs: int  # random seeds that all settings have
    planned: int
    no_data: Sequence[str]  # names of data sets that are not available
    family: int  # primary claims of the plan
    gates: Mapping[str, Gate]  # by the label of a pair; none if no gate is registered
    supported: Verdict = None

    def judge(self, level: float) -> Verdict:
        if not self.is_testable:
            return None
        return evidence.first_verdict(self.claim.holds, self.looks, level)

    @property
    def level(self) -> float:
        """That of the first claim of a family to be decided."""
        if self.primary:
            return LEVEL / self.family
        return LEVEL

    @property
    def is_testable(self) -> bool:
        """Whether no gate is closed."""
        return all(gate.is_open is not False for gate in self.gates.values())

    @property
    def next_look(self) -> int:
        """After how many runs of each setting the next look is; 0 after the last."""
        still_to_come = evidence.looks(self.planned)[len(self.looks) :]
        return still_to_come[0] if still_to_come else 0

    @property
    def widest(self) -> tuple[str, Comparison]:
        """The comparison with the widest interval, after the label of its pair."""
        labelled = []
        for label, comparisons in self.comparisons.items():
            for comparison in comparisons:
                labelled.append((label, comparison))
        return max(labelled, key=lambda pair: pair[1].width)

    @property
    def verdict(self) -> str:
        if not self.is_testable:
            return NOT_TESTABLE
        return {True: "supported", False: "not supported", None: "undecided"}[self.supported]


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
        return dict(self.scale.registration.experiments[self.name])

    @property
    def columns(self) -> tuple[Measure, ...]:
        """The measures of the table: those of the figure, and of averaged weights where there are
        any."""
        if self.scale.protocol.average:
            return (*self.reported, AVERAGED)
        return self.reported

    def settings(self) -> Settings:
        settings = self.facts["settings"].items()
        return {name: self.scale.config(**changes) for name, changes in settings}

    def before(self, name: str) -> list[str]:
        """The settings whose runs decide what a chosen setting is."""
        start = self.facts.get("chosen", {}).get(name)
        if start is None:
            return []
        return [other for other in self.arms if other.startswith(start)]

    def chosen(self) -> dict[str, Config | None]:
        """Settings at the best of the learning rates that were tried; None as long as it is not
        known."""
        chosen: dict[str, Config | None] = {}
        for name in self.facts.get("chosen", {}):
            tried = [self.arms[other].first(SELECTION_SEEDS) for other in self.before(name)]
            best = min(tried, key=lambda arm: arm.selection_key).config
            all_finished = all(len(arm.records) == arm.needed_for_selection for arm in tried)
            if best is None or not all_finished:
                chosen[name] = None
                continue
            protocol = self.scale.protocol
            chosen[name] = replace(best, epochs=protocol.epochs, validation=protocol.validation)
        return chosen

    def planned(self, name: str) -> int:
        """How many random seeds of a setting are run."""
        most = self.scale.most_seeds
        registered = self.scale.registration.seeds(self.name, name)
        return most if registered is None else min(most, registered)

    def claims(self) -> list[Claim]:
        return [Claim.read(claim) for claim in self.facts.get("claims", ())]

    def unjudged(self) -> list[Finding]:
        """The findings before `decide` has judged them."""
        return [self.finding(claim) for claim in self.claims()]

    def finding(self, claim: Claim) -> Finding:
        arms = [self.arms[name] for name in claim.settings]
        planned = min(arm.planned for arm in arms)
        looks = []
        for n in evidence.looks(planned):
            is_reached = all(len(arm.first(n).records) == n for arm in arms)
            if is_reached:
                by_pair = self.first(n).compared(claim).values()
                looks.append(evidence.Look(n / planned, list(chain(*by_pair))))
        common_seeds = set.intersection(*(arm.seeds for arm in arms))
        data = {arm.config.data for arm in arms if arm.config}
        return Finding(
            claim=claim,
            primary=self.is_primary(claim),
            comparisons=self.compared(claim),
            looks=looks,
            runs=len(common_seeds),
            planned=planned,
            no_data=sorted(data & set(self.scale.registration.facts["not_available"])),
            family=len(self.scale.registration.primary()),
            gates=self.gates(claim),
        )

    def is_primary(self, claim: Claim) -> bool:
        return (self.name, claim.text) in self.scale.registration.primary()

    def gates(self, claim: Claim) -> dict[str, Gate]:
        """Whether the runs of each pair are long enough, by the registered rule."""
        rule = self.scale.registration.gate
        if rule is None or not claim.is_about_the_end:
            return {}
        gates = {}
        for label, (ours, theirs) in claim.pairs.items():
            control = self.arms[claim.control or theirs]
            gates[label] = self.gate(self.arms[ours], self.arms[theirs], control, rule)
        return gates

    def gate(self, ours: Arm, theirs: Arm, control: Arm, rule: Mapping[str, Any]) -> Gate:
        def windows(arm: Arm) -> dict[int, tuple[float, float]]:
            of_seed = {}
            for record in arm.survivors:
                of_seed[record.config.seed] = evidence.window_means(record, rule["window"])
            return of_seed

        our_windows, their_windows = windows(ours), windows(theirs)
        common_seeds = sorted(our_windows.keys() & their_windows.keys())

        def difference(window: int) -> Estimate:
            pairs = [our_windows[i][window] - their_windows[i][window] for i in common_seeds]
            return Estimate.of(pairs)

        drifts = [late - early for early, late in windows(control).values()]
        return Gate(Estimate.of(drifts), difference(1), difference(0), rule["points"])

    def is_decided(self, name: str) -> bool:
        """Whether there are claims about a setting, and all of them are decided."""
        about = [finding.supported for finding in self.findings if name in finding.claim.settings]
        return bool(about) and None not in about

    def first(self, n: int) -> "Experiment":
        """Only the random seeds 1 to n."""
        return replace(self, arms={name: arm.first(n) for name, arm in self.arms.items()})

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        """All pairs, in all measures."""
        compared = {}
        for label, (ours, theirs) in claim.pairs.items():
            compared[label] = [self.compare(ours, theirs, measure) for measure in claim.measures]
        return compared

    def compare(self, ours: str, theirs: str, measure: Measure) -> Comparison:
        arm = self.arms[ours]
        values = arm.values(measure)
        if theirs == CHANCE:
            chance = dict.fromkeys(arm.seeds, CHANCE_ACCURACY)
            return evidence.compared(measure, values, chance, (arm.diverged, 0))
        other = self.arms[theirs]
        diverged = (arm.diverged, other.diverged)
        return evidence.compared(measure, values, other.values(measure), diverged)

    def shown(self) -> dict[str, Arm]:
        """The settings that the table and the figure show."""
        return {name: self.arms[name] for name in self.facts.get("shown", self.arms)}

    def remarks(self) -> str:
        """What a reader must know to read figure and findings."""
        remarks = [self.facts["note"], self.scale.registration.correction(self.name)]
        rates = [self.chosen_rate(name) for name in self.facts.get("chosen", ())]
        if rates:
            remarks.append(f"The chosen rates: {', '.join(rates)}.")
        return " ".join(remark for remark in remarks if remark)

    def chosen_rate(self, name: str) -> str:
        """The chosen rate of a setting, and whether a better one may lie beyond those that were
        tried."""
        method = name.partition(",")[0]
        config = self.arms[name].config
        if config is None:
            return f"none yet for {method}"
        rates = [other.lr for other in map(self.config_of, self.before(name)) if other]
        rate = f"{config.lr:g} for {method}"
        if config.lr == max(rates):
            return f"{rate} (the largest that was tried)"
        if config.lr == min(rates):
            return f"{rate} (the smallest that was tried)"
        return rate

    def config_of(self, name: str) -> Config | None:
        return self.arms[name].config

    def levels(self) -> dict[str, Curves]:
        """The left panels of the figure, by title. A curve at a chosen rate stands for those at the
        rates that were tried."""
        tried: set[str] = set()
        for name in self.chosen():
            if self.arms[name].records:
                tried.update(self.before(name))
        curves = {
            name: arm.curve(Record.accuracies, start=1)
            for name, arm in self.shown().items()
            if name not in tried
        }
        return {"Accuracy, %": curves}

    def pairs(self) -> dict[str, tuple[str, str]]:
        """Of settings whose differences the figure shows."""
        pairs: dict[str, tuple[str, str]] = {}
        for claim in self.claims():
            if claim.is_about_the_end:
                pairs.update(claim.pairs)
        for label, (ours, theirs) in self.facts.get("effects", {}).items():
            pairs[label] = (ours, theirs)
        return pairs

    def differences(self) -> list[dict[str, Comparison]]:
        """The right panels of the figure, one for each measure."""
        pairs = self.pairs()
        panels = []
        for measure in self.reported:
            panel = {}
            for label, (ours, theirs) in pairs.items():
                panel[label] = self.compare(ours, theirs, measure)
            panels.append(panel)
        return panels

    def figure(self) -> Figure:
        return figures.experiment(
            self.levels(), self.differences(), self.x, self.paper, self.caption()
        )

    def described(self) -> str:
        """The figure in words."""
        return figures.described(self.levels(), self.differences(), self.x, self.caption())

    def caption(self) -> str:
        """What the figure is about: data, seeds, bars and band."""
        data = sorted({arm.config.data for arm in self.arms.values() if arm.config})
        shown = self.shown()
        by_epoch = self.x == Experiment.x
        if by_epoch:  # settings without a curve do not count
            shown = {name: shown[name] for curves in self.levels().values() for name in curves}
        counts = [len(arm.records) for arm in shown.values() if arm.records]
        few, many = min(counts, default=0), max(counts, default=0)
        seeds = f"{many} random seed{'s' * (many != 1)}"
        if few != many:
            seeds = f"{few} to {many} random seeds"
        about_the_end = any(
            comparison.measure.margin
            for panel in self.differences()
            for comparison in panel.values()
        )
        differences = f"differences{': test images,' * about_the_end} over pairs of runs"
        if by_epoch:
            curves = [arm.config for arm in shown.values() if arm.config and arm.records]
            validated = any(config.validation for config in curves)
            levels = f"Curves by epoch: {'validation' if validated else 'test'} images"
            if validated and not all(config.validation for config in curves):
                levels += ", or test images of runs without them"
            bars = "Bars: 95 % intervals; curves have them from three seeds on."
            lost = sum(arm.diverged for arm in shown.values())
            if lost:
                seeds += f"; {lost} run{'s' * (lost != 1)} diverged, without a curve"
        else:
            levels = "Accuracies: test images"
            bars = "Bars: 95 % intervals."
        caption = (
            f"{', '.join(data)}, scale {self.scale.name}; {seeds}. "
            f"{levels}; {differences} with the same seed.\n{bars}"
        )
        if about_the_end:
            caption += " Band: differences that do not matter."
        return caption


def decide(experiments: Sequence[Experiment]) -> None:
    """Judge all findings: the primary claims as one family, the others each for itself."""
    for experiment in experiments:
        experiment.findings = experiment.unjudged()

    findings = [finding for experiment in experiments for finding in experiment.findings]
    primary = [finding for finding in findings if finding.primary]
    family = max((finding.family for finding in findings), default=1)
    primary_verdicts = iter(evidence.holm([finding.judge for finding in primary], family))

    for experiment in experiments:
        judged = []
        for finding in experiment.findings:
            supported = next(primary_verdicts) if finding.primary else finding.judge(LEVEL)
            judged.append(replace(finding, supported=supported))
        experiment.findings = judged
