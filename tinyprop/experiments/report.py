"""The report: what is decided, where NormProp loses, each experiment, and how the plan was
followed."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..report.estimate import Estimate
from ..report.table import Table
from ..train import Config
from .evidence import ENDPOINTS, LEVEL, POWER, REGISTERED, Comparison, Measure
from .experiment import BATCHNORM, Arm, Experiment, Finding, decide
from .record import Record
from .scales import text


def page(experiments: Sequence[Experiment], command: str, folder: str = "") -> str:
    """`folder` leads from the page to the figures."""
    decide(experiments)
    arms, scale = distinct(experiments), experiments[0].scale
    primary, others = (
        [f for e in experiments for f in e.findings if f.primary == which]
        for which in (True, False)
    )
    return text("report.md").format(
        command=command,
        description=scale.description,
        runs=runs_of(arms.values()),
        of_primary=counted(primary),
        of_others=counted(others),
        registered=REGISTERED["registered"],
        rule=listed(
            f"{name.replace('_', ' ')}: {words}" for name, words in REGISTERED["rule"].items()
        ),
        margins="; ".join(f"{m.name} ± {m.margin:g}, in {m.difference_unit}" for m in ENDPOINTS),
        level=100.0 * LEVEL,
        power=100.0 * POWER,
        primary=summary("primary", primary, scale.name),
        exploratory=summary("exploratory", others, scale.name),
        losses=listed(losses(experiments)) or "Nowhere so far.",
        sections="\n".join(section(e, folder) for e in experiments),
        short=reasons(experiments, arms),
        not_available=", ".join(REGISTERED["not_available"]),
        partly=listed(
            f"Of {name}, we have {what}." for name, what in REGISTERED["partly_available"].items()
        ),
        added=listed(
            f"Added on {a['on']}, when {a['when']}: {a['what']}."
            for a in REGISTERED["added"].values()
        ),
        versions=versions(arms.values()),
        pooled=listed(
            f"Pooling, {measure.name}: {pooling(arms.values(), measure)}" for measure in ENDPOINTS
        ),
    )


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def section(e: Experiment, folder: str) -> str:
    header = [
        "setting",
        "seeds",
        *(f"{measure.name}, {measure.unit}".rstrip(", ") for measure in e.reported),
    ]
    ran = {name: arm for name, arm in e.shown().items() if arm.records}
    rows = [
        [name, f"{len(arm.records)} of {arm.planned}", *map(arm.words, e.reported)]
        for name, arm in ran.items()
    ]
    levels = [Table(header, rows).markdown()] if ran else []
    waiting = "; ".join(name for name in e.shown() if name not in ran)
    levels += [f"Not run: {waiting}."] if waiting else []
    panels = e.differences()
    rows = [
        [label, *(panel[label].number for panel in panels)]
        for label, c in panels[0].items()
        if c.difference.n
    ]
    # claims do not list all
    if rows and panels[0].keys() - {label for f in e.findings for label in f.claim.pairs}:
        names = [next(iter(panel.values())).measure.name for panel in panels]
        levels.append(Table([e.facts["differences"], *names], rows).markdown())
    header = ["claim", "the paper", "ours", "seeds", f"at {e.scale.name} scale"]
    levels += (
        [Table(header, [claim_row(f) for f in e.findings], align="lllll").markdown()]
        if e.findings
        else []
    )
    facts = {
        "runs": runs_of(e.arms.values()),
        "remarks": e.remarks(),
        "levels": "\n\n".join(levels),
    }
    return text("section.md").format(e=e, folder=folder, **facts)


def claim_row(f: Finding) -> list[str]:
    some = {
        label: [c for c in found if c.difference.n or any(c.diverged)]
        for label, found in f.found.items()
    }
    ours = [f"{label}: {', '.join(map(str, found))}" for label, found in some.items() if found]
    claim = f"**Primary:** {f.claim.text}" if f.primary else f.claim.text
    return [
        claim,
        f.claim.paper,
        "<br>".join(ours) or "not run",
        f"{f.runs} of {f.planned}",
        f.verdict,
    ]


def counted(findings: Iterable[Finding]) -> str:
    some = [finding.supported for finding in findings if finding.claim.paper != "not in the paper"]
    return (
        f"{some.count(True)} supported, {some.count(False)} not supported, {some.count(None)} "
        "undecided"
    )


def summary(kind: str, findings: Sequence[Finding], scale: str) -> str:
    header = [f"{kind} claim", "seeds so far", f"at {scale} scale", "where we cannot tell"]
    rows = [[f.claim.text, f"{f.runs} of {f.planned}", f.verdict, undecided(f)] for f in findings]
    return Table(header, rows, align="llll").markdown()


def undecided(f: Finding) -> str:
    """Why a claim is not decided: the widest interval, and what as many seeds would find."""
    label, widest = f.widest
    if f.supported is not None:
        return ""
    if f.no_data:
        return f"data that are not available here: {', '.join(f.no_data)}"
    if widest.difference.n < 2 or not widest.difference.half_width:
        return f"{label}: {widest}"
    measure = widest.measure
    detectable = f"{widest.detectable(f.level):{measure.form}}"
    found = f"{detectable} {measure.difference_unit}".rstrip()
    return f"{label}: {widest}; {widest.difference.n} seeds find {found}"


def losses(experiments: Sequence[Experiment]) -> Iterable[str]:
    """All comparisons of NormProp with BatchNorm that NormProp loses, or has lost so far."""
    lost: dict[object, str] = {}  # each once, though experiments share runs
    for e in experiments:
        for pairs, measures in [
            *((f.claim.pairs, f.claim.measures) for f in e.findings),
            (e.pairs(), e.reported),
        ]:
            for label, (ours, theirs) in pairs.items():
                for measure in measures if BATCHNORM in theirs else ():
                    c = e.compare(ours, theirs, measure)
                    if c.outcome == "worse" or (
                        c.difference.n == 1 and measure.better * c.difference.mean < 0
                    ):
                        runs = (measure.name, e.arms[ours].config, e.arms[theirs].config)
                        lost.setdefault(runs, f"{e.facts['title']}, {label}, {measure.name}: {c}")
    return lost.values()


def distinct(experiments: Iterable[Experiment]) -> dict[Config | str, Arm]:
    """All settings, as several experiments share some; with the most runs that any plans."""
    arms: dict[Config | str, Arm] = {}
    for name, arm in (item for e in experiments for item in e.arms.items()):
        key = arm.config or name
        arms[key] = max(arms.get(key, arm), arm, key=lambda arm: arm.planned)
    return arms


def reasons(experiments: Sequence[Experiment], arms: Mapping[Config | str, Arm]) -> dict[str, int]:
    """How many settings have fewer runs than planned, by the reason."""
    undecided = {
        arm.config or name
        for e in experiments
        for name, arm in e.arms.items()
        if not e.is_decided(name)
    }
    short = {key for key, arm in arms.items() if len(arm.records) < arm.planned}
    no_data = {
        key for key in short if isinstance(key, Config) and key.data in REGISTERED["not_available"]
    }
    return {
        "decided": len(short - undecided),
        "no_data": len(no_data),
        "unfinished": len(short & undecided - no_data),
    }


def versions(arms: Iterable[Arm]) -> str:
    counts = Counter(version(record) for arm in arms for record in arm.records)
    return "; ".join(f"{name}: {count} runs" for name, count in sorted(counts.items())) or "none"


def runs_of(arms: Iterable[Arm]) -> str:
    pairs = [(len(arm.records), arm.planned) for arm in arms]
    return f"{sum(runs for runs, _ in pairs)} of {sum(planned for _, planned in pairs)}"


def version(record: Record) -> str:
    return ", ".join(f"{name} {number}" for name, number in record.versions.items())


def pooling(arms: Iterable[Arm], measure: Measure) -> str:
    """Whether runs of a setting by other versions, or with other overrides, give the same as most
    of its runs."""
    differences, others = [], 0
    for arm in arms:
        groups: dict[str, list[float]] = {}
        for record in arm.survivors:
            groups.setdefault(f"{version(record)}, {record.overrides}", []).append(
                float(np.mean(measure.of(record)))
            )
        usual, *rest = sorted(groups.values(), key=len, reverse=True) or [[]]
        if other := [value for values in rest for value in values]:
            differences.append(statistics.fmean(other) - statistics.fmean(usual))
            others += len(other)
    if not others:
        return "all runs of each setting are of one version, with the same overrides."
    found = Comparison(measure, Estimate.of(differences))
    may = {
        True: "they may be pooled",
        False: "they should not be pooled",
        None: "whether they may be pooled is open",
    }
    runs = (
        f"{others} runs are of another version, or have other overrides, than most of their setting"
    )
    return f"{runs}: {found}, averaged over settings; {may[found.alike()]}."
