"""The page of an experiment: a figure, a paragraph, and the findings, claim by claim."""

from collections.abc import Sequence

from ..table import Table
from .experiment import Experiment, decide

INTRODUCTION = """# The paper's experiments

What the paper claims, what our runs say, and whether they support it. This page is computed from the ledger of finished
runs by `{command}`; no number is written by hand. The scale: {description}. A
verdict is about this scale: what holds for short runs of narrow networks need not hold for long runs of wide ones.

Differences are means over runs of the same random seed, ± half their 95 % interval (Student's t). The test loss is
taken after temperature scaling on validation images. One interval answers every question: *better* or *worse* if it
excludes 0, *alike* if it is within the margins (1 point, 0.03 nats), else *cannot tell*. A claim that one is better is
supported if the interval says so, and not if it says worse or alike. A claim that two are alike is supported if the
interval is within the margins, and not if it is wholly outside. For "at least as good", worse by less than the margin
will do. The survivors of a setting that sometimes diverges are a biased sample and decide nothing; a setting that never
diverged is better than one that always did.
"""
SECTION = """## {e.title} (section {e.section})

![{e.title}]({folder}{e.name}.png)

`tinyprop reproduce {e.name}`, {runs} runs. {paragraph}

{table}
"""


def page(experiments: Sequence[Experiment], command: str, folder: str = "") -> str:
    """`folder` leads from the page to the figures."""
    parts = [INTRODUCTION.format(command=command, description=experiments[0].scale.description)]
    verdicts = []
    for e, findings in zip(experiments, decide(experiments), strict=True):
        rows = [[f.claim.text, f.claim.paper, f.ours, f.verdict] for f in findings]
        table = Table(["claim", "the paper", "ours", "verdict"], rows, align="llll").markdown()
        runs = sum(len(arm.records) for arm in e.arms.values())
        parts.append(SECTION.format(e=e, folder=folder, runs=runs, paragraph=e.paragraph(), table=table))
        verdicts += [f.verdict for f in findings if f.claim.paper != "not in the paper"]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("supported", "not supported", "cannot tell"))
    return "\n".join([*parts, f"Of the paper's claims: {counts}."]) + "\n"
