"""Publish what the finished runs in figures/runs say: REPRODUCTION.md, the figures of the paper's
experiments, and the sentences that the README quotes.

    tinyprop reproduce all --ledger figures/runs --budget 2h    computes the most useful next runs
    python tools/publish.py                                     publishes all runs that are finished

This is for maintainers, and works in a clone of the repository only. It computes no runs."""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tinyprop.engine.errors import explain  # noqa: E402
from tinyprop.experiments import EXPERIMENTS  # noqa: E402
from tinyprop.experiments.evidence import REGISTERED  # noqa: E402
from tinyprop.experiments.experiment import Experiment  # noqa: E402
from tinyprop.experiments.ledger import Ledger  # noqa: E402
from tinyprop.experiments.report import page  # noqa: E402
from tinyprop.experiments.scales import SCALES  # noqa: E402
from tinyprop.experiments.study import Study  # noqa: E402
from tinyprop.report import plots  # noqa: E402
from tinyprop.report.files import write_whole  # noqa: E402

COMMAND = "python tools/publish.py"  # what the page says it is computed by
FIGURES = "figures"
LEDGER = "figures/runs"
PAGE = "REPRODUCTION.md"
README = "README.md"
MARK = "<!-- evidence -->"  # a line of the README before and after what it quotes of the page


def missing_from_clone(root: Path) -> list[str]:
    """What a clone of the repository has and this directory does not."""
    needed = [".git", README, PAGE, LEDGER]
    return [name for name in needed if not (root / name).exists()]


def finished_experiments(root: Path) -> list[Experiment]:
    """All experiments at the registered scale, with the runs of the committed ledger."""
    damaged: list[str] = []
    study = Study(
        chosen=list(EXPERIMENTS.values()),
        scale=SCALES[REGISTERED["scale"]],
        ledger=Ledger(root / LEDGER),
        runs=root / "runs/reproduce",
        log=damaged.append,
    )
    experiments = study.experiments()
    if damaged:
        rule = "a page is published from whole records only"
        hint = f"delete them, then tinyprop reproduce all --ledger {LEDGER}, which computes them"
        raise ValueError(explain("; ".join(damaged), rule, hint))
    return experiments


def published_page(experiments: list[Experiment]) -> str:
    return page(experiments, COMMAND, f"{FIGURES}/")


def quoted(report: str, readme: str) -> str:
    """The README with the sentences that are bold in the report."""
    bold = " ".join(re.findall(r"\*\*(.*?\.)\*\*", report))
    return re.sub(f"(?<={MARK}\n).*(?=\n{MARK})", bold, readme)


def publish(root: Path) -> list[Path]:
    """Write figures, page and README; returns what was written."""
    experiments = finished_experiments(root)
    report = published_page(experiments)
    readme = (root / README).read_text("utf-8")

    written = []
    for experiment in experiments:
        figure = experiment.figure()
        written.append(plots.save(figure, root / FIGURES / f"{experiment.name}.png"))
    write_whole(root / PAGE, report.encode())
    write_whole(root / README, quoted(report, readme).encode())
    return [*written, root / PAGE, root / README]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    missing = missing_from_clone(ROOT)
    if missing:
        got = f"{ROOT}, without {', '.join(missing)}"
        rule = "only a clone of the repository has a page to publish"
        hint = "tools/publish.py of a clone; tinyprop reproduce writes a report of your own runs"
        sys.exit(explain(got, rule, hint))
    try:
        for path in publish(ROOT):
            print(path.relative_to(ROOT))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
