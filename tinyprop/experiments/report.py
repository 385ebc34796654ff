"""The report: what is decided, where NormProp loses, each experiment, and how the plan was
followed."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..report.estimate import Estimate
from ..report.table import Table
from ..train import Config
from .evidence import ENDPOINTS, LEVEL, POWER, Comparison, Measure
from .experiment import BATCHNORM, NOT_TESTABLE, Arm, Experiment, Finding, decide
from .record import Record
from .registration import Registration, text

VERDICTS = ("supported", "not supported", "undecided")


def page(experiments: Sequence[Experiment], command: str, folder: str = "") -> str:
    """The whole report; `folder` leads from the page to the figures."""
    decide(experiments)
    scale = experiments[0].scale
    arms = distinct(experiments)
    findings = [finding for experiment in experiments for finding in experiment.findings]
    primary = [finding for finding in findings if finding.primary]
    others = [f for f in findings if not f.primary and f.claim.is_of_the_paper]
    own = [f for f in findings if not f.claim.is_of_the_paper]
    return text("report.md").format(
        command=command,
        description=scale.description,
        runs=runs_of(arms.values()),
        of_primary=counted(primary),
        of_others=counted(others),
        level=100.0 * LEVEL,
        power=100.0 * POWER,
        primary=summary("primary claim", primary, scale.name),
        exploratory=summary("exploratory claim", others, scale.name),
        own=summary("question of our own", own, scale.name),
        losses=listed(losses(experiments)) or "Nowhere so far.",
        sections="\n".join(section(experiment, folder) for experiment in experiments),
        short=reasons(experiments, arms),
        versions=versions(arms.values()),
        pooled=listed(pooled(list(arms.values()))),
        **registered(scale.registration),
    )


def registered(registration: Registration) -> dict[str, Any]:
    """What the report says about the registered plan."""
    facts = registration.facts
    rule = []
    for name, words in facts["rule"].items():
        rule.append(f"{name.replace('_', ' ')}: {words}")
    if registration.gate is not None:
        rule.append(f"gate: {registration.gate['statement']}")
    margins = []
    for measure in ENDPOINTS:
        margins.append(f"{measure.name} ± {measure.margin:g}, in {measure.difference_unit}")
    partly = []
    for name, what in facts["partly_available"].items():
        partly.append(f"Of {name}, we have {what}.")
    added = []
    for addition in facts.get("added", {}).values():
        added.append(f"Added on {addition['on']}, when {addition['when']}: {addition['what']}.")
    return {
        "registered": facts["registered"],
        "file": f"tinyprop/experiments/{registration.names[0]}",
        "rule": listed(rule),
        "margins": "; ".join(margins),
        "not_available": ", ".join(facts["not_available"]),
        "partly": listed(partly),
        "added": listed(added),
    }


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


# -- the section of an experiment


def section(experiment: Experiment, folder: str, with_claims: bool = True) -> str:
    parts = [level_table(experiment), waiting(experiment), difference_table(experiment)]
    if with_claims:
        parts.append(claim_table(experiment))
    return text("section.md").format(
        e=experiment,
        scale="" if experiment.scale.name == "short" else f" --scale {experiment.scale.name}",
        folder=folder,
        place=place(experiment.facts["section"]),
        runs=runs_of(distinct([experiment]).values()),
        remarks=experiment.remarks(),
        levels="\n\n".join(part for part in parts if part),
    )


def place(section: str) -> str:
    """Where the paper has it.

    >>> place("5.3, footnote"), place("4, 5"), place("beyond the paper")
    ('section 5.3, footnote', 'sections 4 and 5', 'beyond the paper')
    """
    numbers = [word for word in section.split(", ") if word[:1].isdigit()]
    if len(numbers) > 1:
        return f"sections {' and '.join(numbers)}"
    return f"section {section}" if numbers else section


def level_table(experiment: Experiment) -> str:
    """The settings that were run."""
    header = ["setting", "seeds"]
    for measure in experiment.columns:
        header.append(f"{measure.name}, {measure.unit}".rstrip(", "))
    rows = []
    for name, arm in experiment.shown().items():
        if arm.records:
            seeds = f"{len(arm.records)} of {arm.planned}"
            levels = [arm.words(measure) for measure in experiment.columns]
            rows.append([name, seeds, *levels])
    return Table(header, rows).markdown() if rows else ""


def waiting(experiment: Experiment) -> str:
    """The settings that were not run."""
    names = [name for name, arm in experiment.shown().items() if not arm.records]
    return f"Not run: {'; '.join(names)}." if names else ""


def difference_table(experiment: Experiment) -> str:
    """The differences that the figure shows, unless the claims list all of them."""
    panels = experiment.differences()
    first = panels[0]
    rows = []
    for label, comparison in first.items():
        if comparison.difference.n:
            rows.append([label, *(panel[label].number for panel in panels)])
    of_claims = {label for finding in experiment.findings for label in finding.claim.pairs}
    claims_list_all = first.keys() <= of_claims
    if claims_list_all or not rows:
        return ""
    measures = [next(iter(panel.values())).measure for panel in panels]
    header = ["difference", *(measure.name for measure in measures)]
    return Table(header, rows).markdown()


def claim_table(experiment: Experiment) -> str:
    if not experiment.findings:
        return ""
    header = ["claim", "the paper", "ours", "seeds", f"at {experiment.scale.name} scale"]
    rows = [claim_row(finding) for finding in experiment.findings]
    return Table(header, rows, align="lllll").markdown()


def claim_row(finding: Finding) -> list[str]:
    claim = finding.claim.text
    if finding.primary:
        claim = f"**Primary:** {claim}"
    ours = []
    for label, comparisons in finding.comparisons.items():
        ran = [str(c) for c in comparisons if c.difference.n or any(c.diverged)]
        if ran:
            ours.append(f"{label}: {', '.join(ran)}")
    return [
        claim,
        finding.claim.paper,
        "<br>".join(ours) or "not run",
        f"{finding.runs} of {finding.planned}",
        finding.verdict,
    ]


# -- the summary


def counted(findings: Iterable[Finding]) -> str:
    """How many claims of the paper are decided, and how."""
    verdicts = []
    for finding in findings:
        if finding.claim.is_of_the_paper:
            verdicts.append(finding.verdict)
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS]
    if NOT_TESTABLE in verdicts:
        counts.append(f"{verdicts.count(NOT_TESTABLE)} {NOT_TESTABLE}")
    return ", ".join(counts)


def summary(kind: str, findings: Sequence[Finding], scale: str) -> str:
    if not findings:
        return ""
    header = [kind, "seeds so far", f"at {scale} scale", "where we cannot tell"]
    rows = []
    for finding in findings:
        seeds = f"{finding.runs} of {finding.planned}"
        rows.append([finding.claim.text, seeds, finding.verdict, undecided(finding)])
    return Table(header, rows, align="llll").markdown()


def undecided(finding: Finding) -> str:
    """Why a claim is not decided: the widest interval, and which difference as many seeds would
    detect."""
    if finding.supported is not None:
        return ""
    if not finding.is_testable:
        closed = [f"{label}: {g}" for label, g in finding.gates.items() if g.is_open is False]
        return "; ".join(closed)
    if finding.no_data:
        return f"data that are not available here: {', '.join(finding.no_data)}"
    label, widest = finding.widest
    seeds = widest.difference.n
    has_interval = seeds > 1 and widest.difference.half_width > 0.0
    if not has_interval:
        return f"{label}: {widest}"
    measure = widest.measure
    detectable = f"{widest.detectable(finding.level):{measure.form}}"
    difference = f"{detectable} {measure.difference_unit}".rstrip()
    return f"{label}: {widest}; {seeds} seeds find {difference}"


def losses(experiments: Sequence[Experiment]) -> Iterable[str]:
    """All comparisons of NormProp with BatchNorm that NormProp loses, or has lost so far."""
    lines: dict[object, str] = {}  # by the runs, as experiments share some
    for experiment in experiments:
        for (ours, theirs), label, measure in compared_pairs(experiment):
            if BATCHNORM not in theirs:
                continue
            comparison = experiment.compare(ours, theirs, measure)
            if not is_lost(comparison):
                continue
            runs = (measure.name, experiment.arms[ours].config, experiment.arms[theirs].config)
            title = experiment.facts["title"]
            lines.setdefault(runs, f"{title}, {label}, {measure.name}: {comparison}")
    return lines.values()


def compared_pairs(experiment: Experiment) -> Iterable[tuple[tuple[str, str], str, Measure]]:
    """A pair of settings, its label and a measure: all of the claims, then those of the figure."""
    for finding in experiment.findings:
        for label, pair in finding.claim.pairs.items():
            for measure in finding.claim.measures:
                yield pair, label, measure
    for label, pair in experiment.pairs().items():
        for measure in experiment.reported:
            yield pair, label, measure


def is_lost(comparison: Comparison) -> bool:
    """By the interval, or in the only pair of runs so far."""
    if comparison.outcome == "worse":
        return True
    if comparison.difference.n == 1:
        return comparison.measure.better * comparison.difference.mean < 0
    return False


# -- how the plan was followed


def distinct(experiments: Iterable[Experiment]) -> dict[Config | str, Arm]:
    """All settings, as several experiments share some; with the most runs that any plans."""
    arms: dict[Config | str, Arm] = {}
    for experiment in experiments:
        for name, arm in experiment.arms.items():
            key = arm.config or name
            known = arms.get(key)
            if known is None or arm.planned > known.planned:
                arms[key] = arm
    return arms


def reasons(experiments: Sequence[Experiment], arms: Mapping[Config | str, Arm]) -> dict[str, int]:
    """How many settings have fewer runs than planned, by the reason."""
    open_settings: set[Config | str] = set()
    for experiment in experiments:
        for name, arm in experiment.arms.items():
            if not experiment.is_decided(name):
                open_settings.add(arm.config or name)
    short = {key for key, arm in arms.items() if len(arm.records) < arm.planned}
    no_data: set[Config | str] = set()
    not_available = experiments[0].scale.registration.facts["not_available"]
    for key in short:
        if isinstance(key, Config) and key.data in not_available:
            no_data.add(key)
    return {
        "decided": len(short - open_settings),
        "no_data": len(no_data),
        "unfinished": len((short & open_settings) - no_data),
    }


def runs_of(arms: Iterable[Arm]) -> str:
    finished = 0
    planned = 0
    for arm in arms:
        finished += len(arm.records)
        planned += arm.planned
    return f"{finished} of {planned}"


def versions(arms: Iterable[Arm]) -> str:
    counts = Counter(version(record) for arm in arms for record in arm.records)
    lines = [f"{name}: {count} runs" for name, count in sorted(counts.items())]
    return "; ".join(lines) or "none"


def version(record: Record) -> str:
    return ", ".join(f"{name} {number}" for name, number in record.versions.items())


def pooled(arms: Sequence[Arm]) -> list[str]:
    return [f"Pooling, {measure.name}: {pooling(arms, measure)}" for measure in ENDPOINTS]


def pooling(arms: Iterable[Arm], measure: Measure) -> str:
    """Whether runs of a setting by other versions, or with other overrides, give the same as most
    of its runs."""
    differences = []
    other_runs = 0
    for arm in arms:
        usual, others = values_by_version(arm, measure)
        if others:
            differences.append(statistics.fmean(others) - statistics.fmean(usual))
            other_runs += len(others)
    if not other_runs:
        return "all runs of each setting are of one version, with the same overrides."
    comparison = Comparison(measure, Estimate.of(differences))
    conclusions = {
        True: "they may be pooled",
        False: "they should not be pooled",
        None: "whether they may be pooled is open",
    }
    conclusion = conclusions[comparison.alike()]
    return (
        f"{other_runs} runs are of another version, or have other overrides, than most of their "
        f"setting: {comparison}, averaged over settings; {conclusion}."
    )


def values_by_version(arm: Arm, measure: Measure) -> tuple[list[float], list[float]]:
    """Those of the version with most runs, and those of all others."""
    groups: dict[str, list[float]] = {}
    for record in arm.survivors:
        group = groups.setdefault(f"{version(record)}, {record.overrides}", [])
        group.append(float(np.mean(measure.of(record))))
    if not groups:
        return [], []
    usual, *rest = sorted(groups.values(), key=len, reverse=True)
    others = [value for values in rest for value in values]
    return usual, others
