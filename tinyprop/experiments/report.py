"""The report: what is decided, where NormProp loses, each experiment, and how the plan was followed."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..estimate import Estimate
from ..table import Table
from ..train import Config
from .evidence import ENDPOINTS, LEVEL, POWER, REGISTERED, Comparison, Measure
from .experiment import BATCHNORM, Arm, Experiment, Finding, decide
from .record import Record

MARK = "<!-- evidence -->"  # a line of the README before and after what it quotes of the report
INTRODUCTION = """# The paper's experiments

What the paper claims, what our runs say, and whether they support it. This page is computed from the ledger of finished
runs by `{command}`; no number is written by hand. A verdict is about our scale: {description}.
What holds for short runs of narrow networks need not hold for long runs of wide ones.

**{brief}**

The rule was registered on {registered}, before the runs (`tinyprop/experiments/preregistration.toml`):

{rule}
- margins: {margins}

Differences are means over pairs of runs with the same random seed, ± half their 95 % interval. A claim that one setting
is better is not supported if it is worse or alike. A claim that two are alike is not supported if the interval lies
wholly outside the margins. "At least as good" allows for a loss within the margin. The probability of any wrong verdict
on primary claims is at most {level:g} %, so they need clearer differences than the intervals shown here, and at early
looks much clearer ones. Section 5.6, the time of training, is not judged: our runs share their machine with other work.
"""
SECTION = """## {e.title} (section {e.section})

![{e.title}]({folder}{e.name}.png)

`tinyprop reproduce {e.name}`: {runs} planned runs. {remarks}

{levels}
"""


def page(experiments: Sequence[Experiment], command: str, folder: str = "") -> str:
    """`folder` leads from the page to the figures."""
    judged, scale = decide(experiments), experiments[0].scale
    findings = [finding for found in judged for finding in found]
    introduction = INTRODUCTION.format(
        command=command,
        description=scale.description,
        brief=in_brief(experiments, findings),
        registered=REGISTERED["registered"],
        rule="\n".join(f"- {name.replace('_', ' ')}: {text}" for name, text in REGISTERED["rule"].items()),
        margins="; ".join(f"{m.name} ± {m.margin:g}, in {m.difference_unit}" for m in ENDPOINTS),
        level=100.0 * LEVEL,
    )
    parts = [introduction, summary(findings, scale.name), losses(experiments, judged)]
    for e, found in zip(experiments, judged, strict=True):
        waiting = [name for name, arm in e.shown().items() if not arm.records]
        levels = [e.table().markdown()] if len(waiting) < len(e.shown()) else []
        levels += [f"Not run: {'; '.join(waiting)}."] if waiting else []
        facts = {"runs": runs_of(e.arms.values()), "remarks": e.remarks(), "levels": "\n\n".join(levels)}
        parts.append(SECTION.format(e=e, folder=folder, **facts))
        if found:
            parts.append(claims(found, scale.name))
    return "\n".join([*parts, followed(experiments, judged)])


def quoted(report: str, readme: str) -> str:
    """The README with the line of the report that says how far we are."""
    (brief,) = re.findall(r"^\*\*(.*)\*\*$", report, re.M)
    return re.sub(f"(?<={MARK}\n).*(?=\n{MARK})", brief, readme)


def claims(findings: Sequence[Finding], scale: str) -> str:
    def row(f: Finding) -> list[str]:
        found = {
            label: [c for c in comparisons if c.difference.n or any(c.diverged)]
            for label, comparisons in f.found.items()
        }
        ours = [f"{label}: {', '.join(map(str, some))}" for label, some in found.items() if some]
        text = f"**Primary:** {f.claim.text}" if f.primary else f.claim.text
        return [text, f.claim.paper, "<br>".join(ours) or "not run", f"{f.runs} of {f.planned}", f.verdict]

    header = ["claim", "the paper", "ours", "seeds", f"at {scale} scale"]
    return Table(header, [row(f) for f in findings], align="lllll").markdown() + "\n"


def in_brief(experiments: Sequence[Experiment], findings: Sequence[Finding]) -> str:
    """One line, which the README repeats."""

    def counted(primary: bool) -> str:
        some = [f.supported for f in findings if f.primary == primary and f.claim.paper != "not in the paper"]
        return f"{some.count(True)} supported, {some.count(False)} not supported, {some.count(None)} undecided"

    runs = runs_of(distinct(experiments).values())
    return f"So far {runs} planned runs are finished. Primary claims: {counted(True)}. Other claims: {counted(False)}."


def summary(findings: Sequence[Finding], scale: str) -> str:
    rows = [[f.claim.text, f"{f.runs} of {f.planned}", f.verdict, still_needed(f)] for f in findings if f.primary]
    header = ["primary claim", "seeds so far", f"at {scale} scale", "what it takes to decide"]
    return f"""## Summary

{Table(header, rows, align="llll").markdown()}

Where we cannot tell, the last column has the widest interval, how far from 0 or from a margin a difference must be for
the planned seeds to find it with a probability of {100 * POWER:g} %, given the deviations seen so far and the level of
the first claim of the family, and how many seeds would decide if means and deviations stayed as they are. More seeds do
not reduce the part of an interval that comes from the choice of test images.
"""


def still_needed(finding: Finding) -> str:
    label, widest = finding.widest
    if finding.supported is not None or widest.difference.n < 2:
        return ""
    power = (
        f"{widest.detectable(finding.planned, finding.level):{widest.measure.form}} {widest.measure.difference_unit}"
    )
    seeds = f"about {needed:,}" if (needed := finding.needed()) else "no number of"
    return f"{label}: {widest}; {finding.planned} seeds find {power.rstrip()}; {seeds} seeds would decide"


def losses(experiments: Sequence[Experiment], judged: Sequence[Sequence[Finding]]) -> str:
    """All comparisons of NormProp with BatchNorm that NormProp loses, or has lost so far."""
    lost: dict[object, str] = {}  # each once, though experiments share runs
    for e, findings in zip(experiments, judged, strict=True):
        for f in findings:
            for label, (ours, theirs) in f.claim.pairs.items():
                for c in f.found[label] if BATCHNORM in theirs else ():
                    if c.outcome == "worse" or (c.difference.n == 1 and c.measure.better * c.difference.mean < 0):
                        runs = (c.measure.name, e.arms[ours].config, e.arms[theirs].config)
                        lost.setdefault(runs, f"- {e.title}, {label}, {c.measure.name}: {c}")
    lines = "\n".join(lost.values()) or "Nowhere so far."
    return f"""## Where NormProp loses to BatchNorm

Every comparison that NormProp loses by its {100 * (1 - LEVEL):g} % interval, or in the only pair of runs so far:

{lines}
"""


def distinct(experiments: Iterable[Experiment]) -> dict[Config | str, Arm]:
    """All settings, as several experiments share some; with the most runs that any plans."""
    arms: dict[Config | str, Arm] = {}
    for name, arm in (item for e in experiments for item in e.arms.items()):
        key = arm.config or name
        arms[key] = max(arms.get(key, arm), arm, key=lambda arm: arm.planned)
    return arms


def followed(experiments: Sequence[Experiment], judged: Sequence[Sequence[Finding]]) -> str:
    """How the pre-registration was followed, and whether the runs may be pooled."""
    arms, undecided = distinct(experiments), set()
    for e, findings in zip(experiments, judged, strict=True):
        for name, arm in e.arms.items():
            about = [f.supported for f in findings if name in f.claim.settings]
            undecided |= {arm.config or name} if None in about or not about else set()
    short = {key for key, arm in arms.items() if len(arm.records) < arm.planned}
    missing = {key for key in short if isinstance(key, Config) and key.data in REGISTERED["not_available"]}
    versions = Counter(version(record) for arm in arms.values() for record in arm.records)
    lines = [
        f"{runs_of(arms.values())} planned runs are finished.",
        f"Settings with fewer runs than planned: {len(short - undecided)} because all claims about them are decided, "
        f"{len(missing)} because there are no data ({', '.join(REGISTERED['not_available'])}), "
        f"{len(short & undecided - missing)} because they are not finished yet.",
        *[f"Of {name}, we have {what}." for name, what in REGISTERED["partly_available"].items()],
        *[f"Added on {a['on']}, when {a['when']}: {a['what']}." for a in REGISTERED["added"].values()],
        "Versions: " + ("; ".join(f"{name}: {count} runs" for name, count in sorted(versions.items())) or "none") + ".",
        *[f"Pooling, {measure.name}: {pooling(arms.values(), measure)}" for measure in ENDPOINTS],
    ]
    return "## How the plan was followed\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def runs_of(arms: Iterable[Arm]) -> str:
    pairs = [(len(arm.records), arm.planned) for arm in arms]
    return f"{sum(runs for runs, _ in pairs)} of {sum(planned for _, planned in pairs)}"


def version(record: Record) -> str:
    return ", ".join(f"{name} {number}" for name, number in record.versions.items())


def pooling(arms: Iterable[Arm], measure: Measure) -> str:
    """Whether runs of a setting by other versions, or with other overrides, give the same as most of its runs."""
    differences, others = [], 0
    for arm in arms:
        groups: dict[str, list[float]] = {}
        for record in arm.survivors:
            groups.setdefault(f"{version(record)}, {record.overrides}", []).append(float(np.mean(measure.of(record))))
        usual, *rest = sorted(groups.values(), key=len, reverse=True) or [[]]
        if other := [value for values in rest for value in values]:
            differences.append(statistics.fmean(other) - statistics.fmean(usual))
            others += len(other)
    if not others:
        return "all runs of each setting are of one version, with the same overrides."
    found = Comparison(measure, Estimate.of(differences))
    may = {True: "they may be pooled", False: "they should not be pooled", None: "whether they may be pooled is open"}
    runs = f"{others} runs are of another version, or have other overrides, than most of their setting"
    return f"{runs}: {found}, averaged over settings; {may[found.alike()]}."
