"""The command line: see the docstring of the package."""

import argparse
import sys
from pathlib import Path

import tinyprop as tp
from tinyprop.report.table import Table

from .kinds import KINDS, Kind
from .runner import Finding, Tally, available, check, draw, run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="compare random programs with a second way"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--kind", action="append", choices=list(KINDS), help="only this one; may be repeated"
    )
    parser.add_argument("--case", type=int, metavar="SEED", help="check one case of the kind")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the counts to this file"
    )
    options = parser.parse_args()
    if options.case is not None and len(options.kind or []) != 1:
        parser.error("--case needs one --kind")
    return options


def main() -> int:
    options = arguments()
    wanted = [KINDS[name] for name in options.kind or KINDS]
    kinds = available(wanted)
    for kind in wanted:
        if kind not in kinds:
            print(f"{kind.name}: skipped, because PyTorch is not installed", flush=True)
    if options.case is not None:
        return check_one(kinds, options.case)

    def tell(finding: Finding) -> None:
        print(finding, flush=True)

    tallies = run(kinds, options.seconds, options.seed, tell)
    print(table(tallies).text(width=120))
    if options.markdown is not None:
        write(options.markdown, tallies, options.seconds, options.seed)
    return int(any(tally.disagreements for tally in tallies.values()))


def check_one(kinds: list[Kind], seed: int) -> int:
    for kind in kinds:
        print(draw(kind, seed).words)
        finding = check(kind, seed)
        print("agrees" if finding is None else finding.complaint)
        return int(finding is not None)
    return 0


def table(tallies: dict[str, Tally]) -> Table:
    """The counts of each kind, and of all."""
    rows = []
    for name, tally in tallies.items():
        rows.append([name, KINDS[name].what, f"{tally.cases:,}", f"{tally.disagreements:,}"])
    cases = sum(tally.cases for tally in tallies.values())
    disagreements = sum(tally.disagreements for tally in tallies.values())
    rows.append(["all", "", f"{cases:,}", f"{disagreements:,}"])
    return Table(["kind", "what is compared", "cases", "disagreements"], rows, align="llrr")


PAGE = """\
# Fuzzing

`{command}` drew random programs for {seconds:g} s and computed each in two ways:
with tinyprop {version}, and with PyTorch, by simulation, by another quadrature, or with tinyprop
again in a way that must give the same bits. [Architecture](architecture.md#fuzzing) describes it.
The same command with `--markdown docs/fuzzing.md` writes this page.

{table}
"""


def write(path: Path, tallies: dict[str, Tally], seconds: float, seed: int) -> None:
    """The page with the counts."""
    page = PAGE.format(
        command=f"python -m tests.fuzz --seconds {seconds:g} --seed {seed}",
        seconds=seconds,
        version=tp.__version__,
        table=table(tallies).markdown(),
    )
    path.write_text(page)


if __name__ == "__main__":
    sys.exit(main())
