"""The gallery of all experiments whose data are in a folder, and the comparison with the paper, claim by claim."""

import json
from pathlib import Path

from . import EXPERIMENTS
from .points import Data

SCALES = {
    "tiny": "tiny scale: a check that everything runs, on drawn shapes; its numbers mean nothing",
    "laptop": "laptop scale: a quarter of the paper's width, 10,000 training and 2,000 test images, at most 5 epochs",
    "paper": "paper scale: the paper's full protocol",
}


def read_all(folder: Path) -> dict[str, Data]:
    """The data of the experiments that are in a folder, in the usual order."""
    paths = {name: folder / f"{name}.json" for name in EXPERIMENTS}
    return {name: json.loads(path.read_bytes()) for name, path in paths.items() if path.exists()}


def command(data: Data) -> str:
    scale = "" if data["scale"] == "laptop" else f" --scale {data['scale']}"
    return f"tinyprop reproduce {data['experiment']}{scale}"


def gallery(folder: Path) -> str:
    """A page with the picture, the command and the paragraph of each experiment."""
    parts = ["# The experiments", "", "Made by `tinyprop reproduce`: pictures and words from the data beside them."]
    for name, data in read_all(folder).items():
        experiment = EXPERIMENTS[name]
        seeds = f"{len(data['seeds'])} seeds; " if data["points"] else ""
        parts += [
            f"\n## {experiment.title}",
            f"\n![{experiment.title}]({name}.png)",
            f"\n`{command(data)}` (section {experiment.section} of the paper; {seeds}{SCALES[data['scale']]}; "
            f"[data]({name}.json))",
            f"\n{experiment.tell(data)}",
        ]
    return "\n".join(parts) + "\n"


INTRODUCTION = """# What we find of the paper's experiments

Claim by claim: what the paper says, what our runs say, and whether they support it. This page is made from the data in
`{folder}/` by `tinyprop reproduce all --report {report}`; no number is written by hand. Differences are means over runs
of the same seed with 95 % intervals (Student's t), ± half their width. There are two kinds of claims.

- One is better, lower, faster than the other, or than a stated number: *supported* if the whole interval is on the
  right side of 0, or of that number, *not supported* if it is on the wrong side.
- Both are alike, or something stays as it is: *supported* if the whole interval is within the limits that the claim
  states, *not supported* if it is wholly outside. So a difference that is clear but too small to matter does not
  refute it, and more runs can only bring an answer nearer.

Otherwise our runs *cannot tell*. Runs that diverged have no number; how many did is said. As those that are left are
chosen, a comparison that lost any run *cannot tell*, unless all runs of one side diverged and none of the other.

Scales: {scales}. Absolute accuracies at a reduced scale are far below the paper's, and what holds for short trainings
of narrow networks need not hold for long ones of wide networks.
"""


def comparison(folder: Path, report: Path) -> str:
    found = read_all(folder)
    scales = "; ".join(SCALES[name] for name in dict.fromkeys(data["scale"] for data in found.values()))
    parts = [INTRODUCTION.format(folder=folder.name, report=report.name, scales=scales)]
    for name, data in found.items():
        experiment = EXPERIMENTS[name]
        parts += [
            f"\n## {experiment.title} (section {experiment.section})",
            f"\n`{command(data)}`, [picture and words]({folder.name}/README.md)",
            "\n| claim | the paper | ours | verdict |\n|---|---|---|---|",
        ]
        parts[-1] += "".join(f"\n| {f.claim} | {f.paper} | {f.ours} | {f.verdict} |" for f in experiment.findings(data))
    every = [f for name, data in found.items() for f in EXPERIMENTS[name].findings(data)]
    counts = [f.verdict for f in every if f.paper != "not in the paper"]
    words = ", ".join(f"{counts.count(verdict)} {verdict}" for verdict in ("supported", "not supported", "cannot tell"))
    return "\n".join([*parts, f"\nOf the claims that are in the paper: {words}."]) + "\n"
