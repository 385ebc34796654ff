"""Settle every claim with fresh seeds: do verdicts change, how often do the printed intervals
contain the exact number, and which errors would be noticed?

    # all claims, about 40 minutes on an idle core
    python tools/intervals.py --seeds 20 --out tools/INTERVALS.md
    # some of them
    python tools/intervals.py --seeds 3 --first 100 C20 N27

What counts was written down before the run that is published, and is simple: every row with an
exact number and an error bar, whether it is judged or only shown, of every claim and every seed. An
error bar covers chance at 95 % and, on top of it, what the measurement is known to neglect, such as
the next order of an extrapolation (`Case.interval`). A number that is computed without chance is
printed without ±, makes no such statement, and is not counted.

Of all intervals, 93 to 97 % should contain the exact number. Intervals in which chance is nearly
everything are counted by themselves, too, so that wide ones cannot make up for wrong ones: of
these, 93 to 97 % as well. (Rows of one claim share their samples, so the counts are not
independent.) The exit status is 1 if a verdict changes, or if either fraction is outside.

Finished claims are kept in --data, so a stopped run resumes where it left off."""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tinyprop as tp  # noqa: E402
from tinyprop.report.estimate import CONFIDENCE, student_quantile  # noqa: E402
from tinyprop.report.table import Table  # noqa: E402

LOWEST, HIGHEST = 0.93, 0.97
NEARLY = 0.9  # of an error bar
POWER = 0.05  # what every judged case should notice
FEW = 0.8  # a row that is listed by itself contains the exact number less often

Row = dict[str, Any]  # a case of a claim, as in the JSON of `tinyprop verify`, with its seed


@dataclass(frozen=True)
class Count:
    """How many intervals there are, and how many contain the exact number.

    >>> Count.of([{"exact": 1.0, "estimate": 1.1, "half_width": 0.2}]).fraction
    1.0
    """

    intervals: int
    containing: int

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Count":
        hits = [contains(row) for row in rows if is_counted(row)]
        return cls(len(hits), sum(hits))

    @property
    def fraction(self) -> float:
        return self.containing / self.intervals if self.intervals else 1.0

    @property
    def is_honest(self) -> bool:
        return LOWEST <= self.fraction <= HIGHEST


def is_counted(row: Row) -> bool:
    """Whether a row has an exact number and an error bar."""
    has_exact = row["exact"] is not None
    return has_exact and row["estimate"] is not None and row["half_width"] > 0.0


def contains(row: Row) -> bool:
    return bool(abs(row["estimate"] - row["exact"]) <= row["half_width"])


def is_of_chance(row: Row) -> bool:
    """Whether chance is nearly all of the error bar."""
    if not is_counted(row):
        return False
    of_chance = row["standard_error"] * student_quantile(CONFIDENCE, row["samples"] - 1)
    return bool(of_chance >= NEARLY * row["half_width"])


def collected(ids: list[str], seeds: range, data: Path) -> list[dict[str, Any]]:
    """The result of each claim for each seed, as JSON: those in the file, and then the others."""
    from tqdm.auto import tqdm

    done = {}
    if data.exists():
        for line in data.read_text().splitlines():
            result = json.loads(line)
            done[result["seed"], result["id"]] = result
    data.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(seed, id) for seed in seeds for id in ids]
    with data.open("a") as file:
        for seed, id in tqdm([key for key in wanted if key not in done], disable=None):
            (result,) = tp.verify.run([id], seed=seed)
            done[seed, id] = {"seed": seed, **result.to_json()}
            print(json.dumps(done[seed, id]), file=file, flush=True)
    return [done[key] for key in wanted]


def report(results: list[dict[str, Any]]) -> tuple[str, bool]:
    """A page on these results, and whether all is as it should be."""
    rows = [
        {"id": result["id"], "seed": result["seed"], **case}
        for result in results
        for case in result["cases"]
    ]
    changed = [
        f"{result['id']} (seed {result['seed']}: {result['verdict']})"
        for result in results
        if result["verdict"] != result["expected"]
    ]
    of_chance = [row for row in rows if is_of_chance(row)]
    others = [row for row in rows if is_counted(row) and not is_of_chance(row)]
    counts = {
        "all": Count.of(rows),
        f"chance is more than {NEARLY:.0%} of the error bar": Count.of(of_chance),
        "what is neglected is more": Count.of(others),
    }
    table = Table(
        ["intervals", "number", "contain the exact number", "fraction"],
        [
            (name, str(count.intervals), str(count.containing), f"{count.fraction:.1%}")
            for name, count in counts.items()
        ],
        align="lrrr",
    )
    seeds = sorted({result["seed"] for result in results})
    ids = {result["id"] for result in results}
    head = (
        f"{len(ids)} claims, {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), tinyprop "
        f"{tp.__version__}. Verdicts that changed: {', '.join(changed) or 'none'}."
    )
    parts = [
        "# Intervals\n\n`python tools/intervals.py --help` says what counts.",
        head,
        table.markdown(),
        "Rows whose intervals contain it least often:\n\n" + lowest(rows),
        "The smallest error that a judged case notices, in the seed in which that is largest:\n\n"
        + power(rows),
    ]
    is_right = not changed and counts["all"].is_honest and Count.of(of_chance).is_honest
    return "\n\n".join(parts) + "\n", is_right


def by_case(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["id"], row["what"]), []).append(row)
    return cases


def lowest(rows: list[Row]) -> str:
    """The rows that contain the exact number less often than FEW."""
    found = []
    for (id, what), same in by_case(rows).items():
        count = Count.of(same)
        if count.fraction < FEW:
            found.append((id, what, f"{count.containing} of {count.intervals}"))
    if not found:
        return f"none below {FEW:.0%}."
    return Table(["claim", "row", "contain it"], found, align="lll").markdown()


def power(rows: list[Row]) -> str:
    """The judged cases that do not notice POWER with some seed."""
    judged = [row for row in rows if row["judged"] and row["notices"] is not None]
    found = []
    for (id, what), same in by_case(judged).items():
        worst = max(row["notices"] for row in same)
        is_absolute = any(abs(row["exact"]) <= 1e-12 for row in same)
        if worst > POWER and not is_absolute:
            usual = sorted(row["notices"] for row in same)[len(same) // 2]
            found.append((id, what, f"{usual:.1%}", f"{worst:.1%}"))
    if not found:
        return f"at most {POWER:.0%} in every case."
    return Table(["claim", "case", "median", "largest"], found, align="llrr").markdown()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="ids (default: all)")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--first", type=int, default=2000, metavar="S", help="first seed (%(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("runs/intervals.jsonl"), help="(%(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the page to a file, too")
    options = parser.parse_args()
    ids = options.claims or [claim.id for claim in tp.verify.claims("all")]
    seeds = range(options.first, options.first + options.seeds)
    text, is_right = report(collected(ids, seeds, options.data))
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
