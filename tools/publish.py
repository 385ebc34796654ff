"""Publish what the finished runs in figures/runs say: REPRODUCTION.md and its second page,
figures/short-runs.md, all figures, the ledger as one table, and the sentences that the README
quotes.

    tinyprop reproduce all --ledger figures/runs --budget 2h    computes the most useful next runs
    python tools/publish.py                                     publishes all runs that are finished

This is for maintainers, and works in a clone of the repository only. It computes no runs."""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import front  # noqa: E402
import recompute  # noqa: E402

from tinyprop.engine.errors import explain  # noqa: E402
from tinyprop.experiments import experiments_at  # noqa: E402
from tinyprop.experiments.experiment import Experiment  # noqa: E402
from tinyprop.experiments.ledger import Ledger  # noqa: E402
from tinyprop.experiments.scales import SCALES  # noqa: E402
from tinyprop.experiments.study import Study  # noqa: E402
from tinyprop.report import plots  # noqa: E402
from tinyprop.report.files import write_whole  # noqa: E402

COMMAND = "python tools/publish.py"  # what the page says it is computed by
FIGURES = "figures"
LEDGER = "figures/runs"
PAGE = "REPRODUCTION.md"
SECOND_PAGE = "figures/short-runs.md"
TABLE = "figures/runs.csv"
QUOTED = 3  # sentences of the page that the README quotes
README = "README.md"
MARK = "<!-- evidence -->"  # a line of the README before and after what it quotes of the page


def missing_from_clone(root: Path) -> list[str]:
    """What a clone of the repository has and this directory does not."""
    needed = [".git", README, PAGE, LEDGER]
    return [name for name in needed if not (root / name).exists()]


def finished_experiments(root: Path, scale: str) -> list[Experiment]:
    """All experiments of a scale, with the runs of the committed ledger."""
    damaged: list[str] = []
    study = Study(
        chosen=list(experiments_at(SCALES[scale]).values()),
        scale=SCALES[scale],
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


def finished_runs(root: Path) -> front.Evidence:
    return front.Evidence.of(
        finished_experiments(root, "plateau"), finished_experiments(root, "short")
    )


def quoted(report: str, readme: str) -> str:
    """The README with the sentences that are bold at the beginning of the report."""
    bold = " ".join(re.findall(r"^\*\*(.*?\.)\*\*$", report, re.MULTILINE)[:QUOTED])
    return re.sub(f"(?<={MARK}\n).*(?=\n{MARK})", lambda _: bold, readme)


def publish(root: Path) -> list[Path]:
    """Write figures, pages, table and README; returns what was written."""
    evidence = finished_runs(root)
    report = front.page(evidence, COMMAND)
    readme = (root / README).read_text("utf-8")
    figures = {
        "effects": (front.effects(evidence), front.describe_effects(evidence)),
        "paper-scale": (front.paper_scale(evidence), front.describe_paper_scale(evidence)),
    }
    for experiment in evidence.plateau.values():
        if front.has_runs(experiment):
            name = f"plateau/{experiment.name}"
            figures[name] = experiment.figure(), experiment.described()
    for experiment in evidence.short.values():
        figures[experiment.name] = experiment.figure(), experiment.described()

    written = []
    for name, (figure, description) in figures.items():
        written.append(plots.save(figure, root / FIGURES / f"{name}.png", description))
    pages = {
        PAGE: report,
        SECOND_PAGE: front.second_page(evidence, COMMAND),
        TABLE: recompute.table(recompute.read_ledger(root / LEDGER)),
        README: quoted(report, readme),
    }
    for name, text in pages.items():
        write_whole(root / name, text.encode())
    return [*written, *(root / name for name in pages)]


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
