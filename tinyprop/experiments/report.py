"""The report: what was decided, where NormProp loses, each experiment, and how the plan was followed."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from ..estimate import Estimate
from ..table import Table
from ..train import Config
from .evidence import ENDPOINTS, Comparison, Measure
from .experiment import BATCHNORM, REGISTERED, Arm, Experiment, Finding, decide
from .record import Record

INTRODUCTION = """# The paper's experiments

What the paper claims, what our runs say, and whether they support it. This page is computed from the ledger of finished
runs by `{command}`; no number is written by hand. A verdict is about our scale: {description}.
What holds for short runs of narrow networks need not hold for long runs of wide ones.

The rule was registered on {registered}, before the runs (`tinyprop/experiments/preregistration.toml`). Differences are
means over runs of the same random seed, ± half their {confidence:g} % interval: for accuracy and loss that of a
bootstrap crossed over random seeds and test images, for the rest Student's t over random seeds. The test loss is that
after temperature scaling on validation images. One interval answers every question: *better* or *worse* if it excludes
0, *alike* if it is within the margins ({margins}), else *cannot tell*. A claim that one is better is
supported if the interval says so, and not if it says worse or alike. A claim that two are alike is supported if the
interval is within the margins, and not if it is wholly outside. For "at least as good", worse by less than the margin
will do. A claim about performance holds if it holds for accuracy and loss, and fails if it fails for either. The
survivors of a setting that sometimes diverges are a biased sample and decide nothing; a setting that never diverged is
better than one that always did.

The {family} primary claims are judged as one family (Holm), at looks after {looks} runs of each setting (O'Brien and
Fleming), so that the probability of any wrong verdict among them is at most {level:g} %. Every other claim is
exploratory, and judged for itself. A verdict needs a clearer difference than the intervals shown, at the first looks a
much clearer one. Where we cannot tell, we say how many random seeds would decide if mean and deviation stayed as they
are.
"""
SECTION = """## {e.title} (section {e.section})

![{e.title}]({folder}{e.name}.png)

`tinyprop reproduce {e.name}`, {runs} planned runs. {remarks}

{levels}
"""


def page(experiments: Sequence[Experiment], command: str, folder: str = "") -> str:
    """`folder` leads from the page to the figures."""
    judged, rule, scale = decide(experiments), REGISTERED["rule"], experiments[0].scale
    introduction = INTRODUCTION.format(
        command=command, description=scale.description, registered=REGISTERED["registered"],
        family=len(REGISTERED["primary"]), looks=", ".join(map(str, rule["looks"])),
        confidence=100.0 * rule["confidence"], level=100.0 * (1.0 - rule["confidence"]),
        margins=", ".join(f"{m.margin:g} in {m.difference_unit}" for m in ENDPOINTS),
    )  # fmt: skip
    findings = [finding for found in judged for finding in found]
    parts = [introduction, summary(findings, scale.name), losses(experiments, judged)]
    for e, found in zip(experiments, judged, strict=True):
        facts = {"runs": runs_of(e.arms.values()), "remarks": e.remarks(), "levels": e.table().markdown()}
        parts.append(SECTION.format(e=e, folder=folder, **facts))
        if found:
            parts.append(claims(found, scale.name))
    return "\n".join([*parts, followed(experiments, judged)])


def claims(findings: Sequence[Finding], scale: str) -> str:
    def row(f: Finding) -> list[str]:
        ours = "; ".join(f"{label}: {', '.join(map(str, found))}" for label, found in f.found.items())
        text = f"**Primary:** {f.claim.text}" if f.primary else f.claim.text
        return [text, f.claim.paper, ours, f"{f.runs} of {f.planned}", f.verdict]

    header = ["claim", "the paper", "ours", "seeds", f"at {scale} scale"]
    return Table(header, [row(f) for f in findings], align="lllll").markdown() + "\n"


def summary(findings: Sequence[Finding], scale: str) -> str:
    def counted(some: Iterable[Finding]) -> str:
        counts = Counter(finding.supported for finding in some)
        return f"{counts[True]} supported, {counts[False]} not supported, {counts[None]} cannot tell"

    primary = [f for f in findings if f.primary]
    other = [f for f in findings if not f.primary and f.claim.paper != "not in the paper"]
    rows = [[f.claim.text, f"{f.runs} of {f.planned}", f.verdict] for f in primary]
    return f"""## Summary

Of the primary claims: {counted(primary)}. Of the paper's other claims: {counted(other)}.

{Table(["primary claim", "seeds so far", f"at {scale} scale"], rows, align="lll").markdown()}
"""


def losses(experiments: Sequence[Experiment], judged: Sequence[Sequence[Finding]]) -> str:
    """All comparisons of NormProp with BatchNorm that NormProp loses."""
    lost = [
        f"- {e.title}, {label}, {comparison.measure.name}: {comparison}"
        for e, findings in zip(experiments, judged, strict=True)
        for finding in findings
        for label, comparisons in finding.found.items()
        for comparison in comparisons
        if BATCHNORM in finding.claim.pairs.get(label, ("", ""))[1] and comparison.outcome == "worse"
    ]
    return "## Where NormProp loses to BatchNorm\n\n" + ("\n".join(lost) or "Nowhere so far.") + "\n"


def followed(experiments: Sequence[Experiment], judged: Sequence[Sequence[Finding]]) -> str:
    """How the pre-registration was followed, and whether the runs may be pooled."""
    arms: dict[Config, Arm] = {}  # several experiments share some
    undecided = set()
    for e, findings in zip(experiments, judged, strict=True):
        for name, arm in e.arms.items():
            config, about = arm.setting.config, [f.supported for f in findings if name in f.claim.settings]
            arms[config] = max(arms.get(config, arm), arm, key=lambda arm: arm.setting.seeds)
            undecided |= {config} if None in about or not about else set()
    short = {config for config, arm in arms.items() if len(arm.records) < arm.setting.seeds}
    missing = {config for config in short if config.data in REGISTERED["not_available"]}
    versions = Counter(version(record) for arm in arms.values() for record in arm.records)
    lines = [
        f"{runs_of(arms.values())} planned runs are finished.",
        f"Settings with fewer runs than planned: {len(short - undecided)}, as all claims about them are decided; "
        f"{len(missing)}, as there are no data ({', '.join(REGISTERED['not_available'])}); "
        f"{len(short & undecided - missing)} that are not finished yet.",
        *[f"Of {name}, we have {what}." for name, what in REGISTERED["partly_available"].items()],
        *[f"Added on {a['on']}, when {a['when']}: {a['what']}." for a in REGISTERED["added"].values()],
        "Versions: " + ("; ".join(f"{name}: {count} runs" for name, count in sorted(versions.items())) or "none") + ".",
        *[f"Pooling, {measure.name}: {pooling(list(arms.values()), measure)}" for measure in ENDPOINTS],
    ]
    return "## How the plan was followed\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def runs_of(arms: Iterable[Arm]) -> str:
    pairs = [(len(arm.records), arm.setting.seeds) for arm in arms]
    return f"{sum(runs for runs, _ in pairs)} of {sum(planned for _, planned in pairs)}"


def version(record: Record) -> str:
    return ", ".join(f"{name} {number}" for name, number in record.versions.items())


def pooling(arms: Iterable[Arm], measure: Measure) -> str:
    """Whether runs of a setting by other versions, or with other overrides, give the same as most of its runs."""
    differences, others = [], 0
    for arm in arms:
        groups: dict[str, list[float]] = {}
        for record in arm.survivors:
            groups.setdefault(f"{version(record)}, {record.overrides}", []).append(measure.of(record))
        usual, *rest = sorted(groups.values(), key=len, reverse=True) or [[]]
        if other := [value for values in rest for value in values]:
            differences.append(statistics.fmean(other) - statistics.fmean(usual))
            others += len(other)
    if not others:
        return "every setting was run by one version, with the same overrides."
    found = Comparison(measure, Estimate.of(differences))
    may = {True: "they may be pooled", False: "they should not be pooled", None: "whether they may be pooled is open"}
    runs = f"{others} runs by another version, or with other overrides, than most of their setting"
    return f"{runs}: {found}, averaged over settings; {may[found.alike()]}."
