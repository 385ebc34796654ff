"""The first page of the reproduction: effects first, with their scale."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tinyprop.experiments import report
from tinyprop.experiments.evidence import ACCURACY, AVERAGED, ENDPOINTS, LEVEL, Comparison
from tinyprop.experiments.experiment import (
    BATCHNORM,
    NORMPROP,
    NOT_TESTABLE,
    Experiment,
    Finding,
    decide,
)
from tinyprop.experiments.kinds import LongRun
from tinyprop.report.estimate import Estimate
from tinyprop.report.plots import GRAY, styled
from tinyprop.report.table import Table
from tinyprop.verify import paper

NO_RUN = "no run yet"
PRINTED = paper.ACCURACY_AFTER_30_EPOCHS
COLORS = {"supported": "tab:green", "not supported": "tab:red", "undecided": "tab:blue"}
METHODS = (NORMPROP, BATCHNORM)
AT_CHOSEN_RATES = "NormProp ends at least as good as BN, both at their chosen rates."


@dataclass
class Evidence:
    """The experiments of both scales, with their runs, judged."""

    plateau: Mapping[str, Experiment]
    short: Mapping[str, Experiment]

    @classmethod
    def of(cls, plateau: Sequence[Experiment], short: Sequence[Experiment]) -> "Evidence":
        decide(plateau)
        decide(short)
        return cls({e.name: e for e in plateau}, {e.name: e for e in short})

    def findings(self) -> list[Finding]:
        return [f for experiment in self.plateau.values() for f in experiment.findings]

    def in_short_runs(self, text: str) -> Finding | None:
        """The same claim about short runs, if they have it."""
        for experiment in self.short.values():
            for finding in experiment.findings:
                if finding.claim.text == text:
                    return finding
        return None

    def long_runs(self) -> dict[str, LongRun]:
        """By method, the run at the paper's scale; one without averaging, if there is no other."""
        runs = {}
        for method in METHODS:
            arms = [self.plateau["paper-scale"].arms[method]]
            arms.append(self.short["scale"].arms[f"{method}, the paper's scale"])
            records = [record for arm in arms for record in arm.survivors]
            if records:
                runs[method] = LongRun.of(records[0])
        return runs

    def long_curves(self) -> dict[str, list[float]]:
        curves = {}
        for method in METHODS:
            arms = [self.plateau["paper-scale"].arms[method]]
            arms.append(self.short["scale"].arms[f"{method}, the paper's scale"])
            records = [record for arm in arms for record in arm.survivors]
            if records:
                curves[method] = records[0].accuracies()
        return curves


# -- the sentences


def headline(evidence: Evidence) -> str:
    """Bold sentences, which the README quotes."""
    sentences = [trained_to_the_end(evidence), papers_scale(evidence), in_short_runs(evidence)]
    bold = [f"**{sentence}**" for sentence in sentences]
    return "\n\n".join([*bold, what_was_tried(evidence)])


def what_was_tried(evidence: Evidence) -> str:
    """The effects of other readings of the paper, largest first."""
    effects = []
    for choice in choices(evidence):
        if choice.accuracy.difference.n:
            effects.append((-choice.accuracy.difference.mean, choice))
    effects.sort(key=lambda pair: pair[0])
    words = []
    for _, choice in effects:
        words.append(
            f"{choice.name} {choice.accuracy.number} ({choice.accuracy.difference.n} seeds)"
        )
    tried = "; ".join(words) or NO_RUN
    return f"What was tried to come closer to the paper, on small images: {tried}."


def main_finding(experiments: Mapping[str, Experiment]) -> Finding:
    (finding,) = [
        finding for finding in experiments["convergence"].findings if finding.claim.is_about_the_end
    ]
    return finding


def compared(finding: Finding) -> str:
    """Both endpoints of the first pair, and over how many seeds."""
    (comparisons,) = finding.comparisons.values()
    n = comparisons[0].difference.n
    numbers = " and ".join(comparison.number for comparison in comparisons)
    return f"{numbers} of test loss ({n} random seeds)" if n > 1 else numbers


def trained_to_the_end(evidence: Evidence) -> str:
    scale = "Trained for 32 epochs on small images (CIFAR-10 at 16x16, a quarter of the width)"
    finding = main_finding(evidence.plateau)
    if not finding.runs:
        return f"{scale}: {NO_RUN}."
    verdict = f'"{finding.claim.text[:-1]}" is {finding.verdict}'
    if not finding.is_testable:
        verdict += ", as the runs had not settled"
    sentence = f"{scale}, NormProp minus BatchNorm is {compared(finding)}: {verdict}"
    (chosen,) = [f for f in evidence.findings() if f.claim.text == AT_CHOSEN_RATES]
    if chosen.runs:
        sentence += f". At a rate chosen for each it is {compared(chosen)}: {chosen.verdict}"
    return f"{sentence}."


def papers_scale(evidence: Evidence) -> str:
    runs = evidence.long_runs()
    words = []
    for method in METHODS:
        run = runs.get(method)
        if run is None:
            words.append(f"{method}: {NO_RUN}")
            continue
        parts = [
            f"{run.last:.1f} % after {run.last_epoch} epochs",
            f"{run.best:.1f} % in the epoch that is best on test images",
        ]
        if run.averaged is not None:
            parts.append(f"{run.averaged:.1f} % with averaged weights")
        if run.annealed is not None:
            parts.append(f"{run.annealed:.1f} % annealed")
        words.append(f"{method} classifies {', '.join(parts)}")
    sentence = f"At the paper's scale (one seed), {'; '.join(words)}"
    ours = runs.get(NORMPROP)
    if ours is None:
        return f"{sentence}; the paper has {PRINTED} %."
    most = max(value for value in (ours.last, ours.best, ours.averaged, ours.annealed) if value)
    return f"{sentence}; the paper has {PRINTED} %, {PRINTED - most:.1f} points above our best."


def in_short_runs(evidence: Evidence) -> str:
    finding = main_finding(evidence.short)
    scale = "In short runs (5 epochs, 1,000 steps)"
    if not finding.runs:
        return f"{scale}: {NO_RUN}."
    return f"{scale}, NormProp minus BatchNorm is {compared(finding)}."


# -- tables


def claims(findings: Sequence[Finding]) -> str:
    if not findings:
        return "None."
    header = ["claim", "the paper", "ours", "seeds", "verdict"]
    rows = []
    for finding in findings:
        claim, *rest = report.claim_row(finding)
        row = [claim.removeprefix("**Primary:** "), *rest]
        if not finding.runs:
            row[2] = NO_RUN
        elif not finding.is_testable:
            row[2] += f"<br>not settled: {report.undecided(finding)}"
        rows.append(row)
    return Table(header, rows, align="lllll").markdown()


class Choice(NamedTuple):
    """Another reading of the paper, and what it changes."""

    name: str
    accuracy: Comparison
    loss: Comparison | None = None


def choices(evidence: Evidence) -> list[Choice]:
    experiment = evidence.plateau["open-choices"]
    found = []
    for name, pair in experiment.pairs().items():
        accuracy, loss = (experiment.compare(*pair, measure) for measure in ENDPOINTS)
        found.append(Choice(name, accuracy, loss))
    control = evidence.plateau["convergence"].arms[NORMPROP]
    for name, of in ENDS.items():
        values = [of(record) for record in control.survivors]
        found.append(Choice(name, Comparison(ACCURACY, Estimate.of(values))))
    return found


def open_choices(evidence: Evidence) -> str:
    """Each reading of the text minus ours; then what the end of a run does, from the controls."""
    header = ["instead of our reading", "test accuracy", "test loss", "seeds"]
    rows = []
    for choice in choices(evidence):
        seeds = str(choice.accuracy.difference.n)
        loss = effect(choice.loss) if choice.loss else ""
        rows.append([choice.name, effect(choice.accuracy), loss, seeds])
    note = (
        "NormProp on small images, against the registered reading. The last rows compare moments "
        "of the same runs; those on validation images choose and judge by the same images."
    )
    return f"{note}\n\n{Table(header, rows, align='llll').markdown()}"


def effect(comparison: Comparison) -> str:
    return comparison.number if comparison.difference.n else NO_RUN


def averaged_minus_annealed(record: Any) -> float:
    return float(AVERAGED.of(record).mean() - ACCURACY.of(record).mean())


def annealed_minus_before(record: Any) -> float:
    run = LongRun.of(record)
    return (run.annealed or math.nan) - run.last


def best_minus_last(record: Any) -> float:
    run = LongRun.of(record)
    return run.best - run.last


ENDS: dict[str, Callable[[Any], float]] = {
    "averaged weights instead of annealed ones (test images)": averaged_minus_annealed,
    "annealed weights instead of epoch 30 (validation images)": annealed_minus_before,
    "the best epoch instead of epoch 30 (validation images)": best_minus_last,
}


def page(evidence: Evidence, command: str) -> str:
    experiments = list(evidence.plateau.values())
    findings = evidence.findings()
    primary = [f for f in findings if f.primary]
    others = [f for f in findings if not f.primary and f.claim.is_of_the_paper]
    own = [f for f in findings if not f.claim.is_of_the_paper]
    arms = report.distinct(experiments)
    begun = [e for e in experiments if has_runs(e)]
    sections = [report.section(e, "figures/plateau/", with_claims=False) for e in begun]
    template = Path(__file__).with_name("front.md").read_text("utf-8")
    scale = experiments[0].scale
    return template.format(
        headline=headline(evidence),
        command=command,
        description=scale.description,
        data_norm=scale.protocol.data_norm,
        drift=scale.registration.facts["gate"]["points"],
        runs=report.runs_of(arms.values()),
        level=100.0 * LEVEL,
        primary=claims(primary),
        exploratory=claims(others),
        own=claims(own),
        open_choices=open_choices(evidence),
        sections="\n".join(sections),
        short=report.reasons(experiments, arms),
        versions=report.versions(arms.values()),
        pooled=report.listed(report.pooled(list(arms.values()))),
        **report.registered(scale.registration),
    )


def has_runs(experiment: Experiment) -> bool:
    return any(arm.records for arm in experiment.arms.values())


def second_page(evidence: Evidence, command: str) -> str:
    """The rule of the first page, then the report of the short runs, with rule and additions."""
    short = list(evidence.short.values())
    scale = next(iter(evidence.plateau.values())).scale
    rule = report.registered(scale.registration)["rule"]
    measures = report.listed(
        f"{name}: {what}" for name, what in scale.registration.facts["measures"].items()
    )
    seen = " ".join(scale.registration.facts["seen_before"].split())
    text = report.page(short, command).partition("\n")[2].replace("\n## ", "\n### ")
    return (
        "# The rule, the measures and the short runs\n\n"
        f"## The rule of the scale plateau\n\n{rule}\n\n"
        f"The measures:\n\n{measures}\n\n"
        f"Seen before it was registered: {seen}\n\n"
        f"## The short runs\n{text}"
    )


# -- figures


def rows_of_effects(evidence: Evidence) -> list[tuple[str, Finding, str]]:
    """Each comparison of a claim about performance: its name, its finding, the label of its
    pair."""
    rows = []
    for finding in evidence.findings():
        if finding.claim.is_about_the_end:
            rows += [(name_of(label, finding), finding, label) for label in finding.comparisons]
    return rows


def describe_effects(evidence: Evidence) -> str:
    """The figure of effects in words."""
    sentences = ["Differences over pairs of runs with the same seed, 32 epochs."]
    for name, finding, label in rows_of_effects(evidence):
        found = [effect(of_measure(finding, label, measure)) for measure in ENDPOINTS]
        sentences.append(f"{name}: {' and '.join(dict.fromkeys(found))}; {finding.verdict}.")
    return " ".join(sentences)


@styled
def effects(evidence: Evidence) -> Figure:
    """Each comparison of a claim about performance, in margins, over the short runs' one."""
    rows = rows_of_effects(evidence)
    figure = Figure(figsize=(11.0, 1.6 + 0.34 * len(rows)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, len(ENDPOINTS), sharey=True)
    for axes, measure in zip(panels, ENDPOINTS, strict=True):
        axes.axvspan(-1.0, 1.0, color=GRAY, alpha=0.15, linewidth=0)
        axes.axvline(0.0, color=GRAY, linewidth=1, linestyle=":")
        for place, (_, finding, label) in enumerate(rows):
            short = evidence.in_short_runs(finding.claim.text)
            if short is not None:
                found = of_same_pair(finding, label, short, measure)
                draw_effect(axes, place + 0.25, found, GRAY, "D", hollow=True)
            found = of_measure(finding, label, measure)
            hollow = finding.verdict == NOT_TESTABLE
            color = COLORS.get(finding.verdict, "black")
            if not draw_effect(axes, place, found, color, "o", hollow):
                of_panel = axes.get_yaxis_transform()  # x in widths of the panel
                style = {"va": "center", "ha": "right", "color": GRAY, "size": 8}
                axes.text(0.99, place - 0.12, NO_RUN, transform=of_panel, **style)
        unit = measure.difference_unit
        if measure.margin == 1.0:
            unit = unit.removesuffix("s")
        axes.set_title(f"{measure.name.capitalize()} (margin: {measure.margin:g} {unit})")
        axes.set_xlabel("margins; better to the right")
        widest = max(map(abs, axes.get_xlim()))
        axes.set_xlim(-widest, widest)
    panels[0].set_yticks(range(len(rows)), [name for name, _, _ in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    marks = [Line2D([], [], marker="o", ls="", color=c, label=v) for v, c in COLORS.items()]
    hollow_mark = {"marker": "o", "ls": "", "color": "black", "markerfacecolor": "white"}
    marks.append(Line2D([], [], label=NOT_TESTABLE, **hollow_mark))
    short_mark = {"marker": "D", "ls": "", "color": GRAY, "markerfacecolor": "white"}
    marks.append(Line2D([], [], label="the same in short runs", **short_mark))
    title = (
        "CIFAR at 16x16, 32 epochs: differences over pairs of runs with the same seed. "
        "Bars: 95 % intervals. Band: differences that do not matter."
    )
    figure.legend(handles=marks, loc="outside upper center", ncols=5, fontsize=8, title=title)
    return figure


def name_of(label: str, finding: Finding) -> str:
    (comparison, *_) = finding.comparisons[label]
    seeds = comparison.difference.n
    star = "" if finding.primary else " (exploratory)"
    return f"{label}{star}, {seeds} seed{'s' * (seeds != 1)}" if seeds else f"{label}{star}"


def of_measure(finding: Finding, label: str, measure: Any) -> Comparison:
    (found,) = [c for c in finding.comparisons[label] if c.measure == measure]
    return found


def of_same_pair(finding: Finding, label: str, short: Finding, measure: Any) -> Comparison | None:
    """The comparison in short runs, where pairs have other labels but the same order."""
    if len(short.comparisons) != len(finding.comparisons):
        return None
    place = list(finding.comparisons).index(label)
    comparisons = list(short.comparisons.values())[place]
    return next((c for c in comparisons if c.measure == measure), None)


def draw_effect(
    axes: Any, place: float, found: Comparison | None, color: str, marker: str, hollow: bool
) -> bool:
    """Whether there was anything to draw."""
    if found is None or found.difference.n == 0:
        return False
    margin = found.measure.margin
    mean = found.measure.better * found.difference.mean / margin
    half_width = found.difference.half_width / margin if found.difference.n > 1 else 0.0
    axes.errorbar(
        [mean],
        [place],
        xerr=[half_width],
        fmt=marker,
        color=color,
        markerfacecolor="white" if hollow else color,
        markersize=4 if marker == "D" else 6,
        capsize=2.5,
        elinewidth=1.2,
    )
    return True


@styled
def paper_scale(evidence: Evidence) -> Figure:
    """Accuracies on test images at the paper's scale, with the paper's best."""
    figure = Figure(figsize=(11.0, 3.4))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    runs = evidence.long_runs()
    for method, curve in evidence.long_curves().items():
        (line,) = axes.plot(range(1, len(curve) + 1), curve, "o-", markersize=3, label=method)
        averaged = runs[method].averaged
        if averaged is not None:
            label = f"{method}, averaged weights: {averaged:.1f}"
            axes.plot([len(curve)], [averaged], "*", color=line.get_color(), ms=11, label=label)
    missing = [method for method in METHODS if method not in runs]
    if missing:
        words = f"{' and '.join(missing)}: {NO_RUN}"
        axes.text(0.5, 0.1, words, transform=axes.transAxes, ha="center", color=GRAY)
    axes.axhline(PRINTED, color=GRAY, linestyle="--", label=f"the paper's best: {PRINTED}")
    axes.set(xlabel="epoch", ylabel="test accuracy, %")
    axes.set_title("CIFAR-10, full width, 45,000 images, rate halved every 10 epochs; one seed")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def describe_paper_scale(evidence: Evidence) -> str:
    """The figure of the paper's scale in words."""
    words = [f"{name}: {curve}." for name, curve in curves_in_words(evidence).items()]
    return f"Test accuracy against the epoch. {' '.join(words)} {papers_scale(evidence)}"


def curves_in_words(evidence: Evidence) -> dict[str, str]:
    found = {}
    for method, curve in evidence.long_curves().items():
        found[method] = f"from {curve[0]:.1f} % to {curve[-1]:.1f} % in epoch {len(curve)}"
    return found
