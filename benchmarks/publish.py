"""RESULTS.md, and the README's table and sentences, from the pieces that `steps`, `layers` and
`programs` have measured.

All pieces must be there, of the same sources on the same machine, and each row needs enough rounds
that other programs did not disturb."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from tinyprop.engine.errors import explain
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

from . import compare, report
from .cases import Case
from .load import MOST
from .measure import LEAST_PUBLISHED, Results, Row
from .report import two_cores

PAPER = "width 1 x 50, NormProp"  # the paper's step
LEAST_OF_PROGRAMS = 3
# the sentences and the table of the README
README_STEPS = re.compile(r"The time of a training step.*?\n\n(\|.*?\n)+", re.DOTALL)
# its paragraph on what two processes gain
README_PROCESSES = re.compile(
    r"Compared with two threads, two processes were.*?(?=\n\n)", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="pieces",
        type=Path,
        default=Path("runs/bench"),
        help="where the pieces are (default runs/bench)",
    )
    parser.add_argument(
        "--into", type=Path, default=Path("."), help="a clone, or its README.md and benchmarks/"
    )


def run(options: argparse.Namespace) -> int:
    refuse_missing(options.pieces)
    sections = {name: compare.read(options.pieces, name) for name in (*compare.CASES, "programs")}
    every = [found for pieces in sections.values() for found in pieces.values()]
    refuse_mixed(every)
    rows = {name: compare.all_rows(pieces) for name, pieces in sections.items()}
    refuse_disturbed(rows["steps"] + rows["layers"], LEAST_PUBLISHED)
    refuse_disturbed(rows["programs"], LEAST_OF_PROGRAMS)
    notes = [note for found in every for note in found.notes]
    for path in write(options.into, every[0], rows, notes):
        print(path)
    return 0


def refuse_missing(folder: Path) -> None:
    missing = compare.missing(folder)
    if missing:
        commands = [
            f"python -m benchmarks {section} --rows {' '.join(names)} --out {folder}"
            for section, names in missing.items()
        ]
        got = f"no results of {', '.join(name for names in missing.values() for name in names)}"
        raise ValueError(explain(got, "every row is published", "; ".join(commands)))


def refuse_mixed(every: Sequence[Results]) -> None:
    """Refuse pieces that were not measured under the same conditions."""
    for part in ("sources", "versions", "machine"):
        kinds = []
        for found in every:
            if getattr(found, part) not in kinds:
                kinds.append(getattr(found, part))
        if len(kinds) > 1:
            got = f"pieces with different {part}: {', '.join(map(str, kinds))}"
            rule = "a table compares what was measured under the same conditions"
            raise ValueError(explain(got, rule, "measure the older pieces again"))


def refuse_disturbed(rows: Sequence[Row], least: int) -> None:
    for row in rows:
        if None in row.others:
            rule = "published is only what other programs did not disturb"
            raise ValueError(explain("a system that does not tell", rule, "Linux"))
        if len(row.quiet) < least:
            got = f"{row.name}: in {report.rounds_cell(row)} rounds other programs were quiet"
            rule = f"at least {least} count, in which they use less than {MOST:.0%} of a core"
            raise ValueError(explain(got, rule, "measure it again on an idle machine"))


def write(
    root: Path, about: Results, rows: dict[str, list[Row]], notes: Sequence[str]
) -> list[Path]:
    """RESULTS.md and the README."""
    tables = [report.table(section, found) for section, found in rows.items()]
    page = root / "benchmarks" / "RESULTS.md"
    readme = root / "README.md"
    text = readme_with(readme.read_text(), readme_text(about, rows), tables[0])
    text = with_processes(text, processes_text(about, rows["steps"]))
    write_whole(page, results_page(about, rows, tables, notes).encode())
    write_whole(readme, text.encode())
    return [page, readme]


def results_page(
    about: Results, rows: dict[str, list[Row]], tables: Sequence[Table], notes: Sequence[str]
) -> str:
    paragraphs = [
        "# Results",
        "Written by `python -m benchmarks publish`. [PROFILE.md](PROFILE.md) says where the time "
        "of a step goes, [SCALING.md](SCALING.md) how it grows, [README.md](README.md) how it is "
        "measured.",
        in_one_sentence(rows["steps"]),
        f"Single layers in which tinyprop is slower than PyTorch: {slower_layers(rows['layers'])}.",
        processes_sentence(rows["steps"]),
        "\n".join(f"- {line}" for line in [*report.where(about), *notes]),
        *(table.markdown() for table in tables),
    ]
    return "\n\n".join(paragraphs) + "\n"


def in_one_sentence(steps: Sequence[Row]) -> str:
    """How tinyprop compares on two cores, in the better of its ways: threads and processes."""
    best = {row.name: best_on_two_cores(row) for row in steps}
    slower = []
    for name, ratio in best.items():
        if ratio is not None and round(ratio, 2) < 1:
            slower.append(f"{name} ({ratio:.2f})")
    paper = best[PAPER]
    speed = report.ratio_cell(paper)
    end = f"slower on {'; '.join(slower)}" if slower else "on no step is it slower"
    return f"On two cores, tinyprop makes {speed} times PyTorch's speed on the paper's step; {end}."


def best_on_two_cores(row: Row) -> float | None:
    ratios = [two_cores(row, way) for way in (report.OURS_ON_TWO, report.OURS_BY_TWO)]
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known, default=None)


def slower_layers(layers: Sequence[Row]) -> str:
    names = []
    for row in layers:
        ratio = report.one_thread(row)
        if ratio is not None and round(ratio, 2) < 1:
            names.append(f"{row.name} ({ratio:.2f})")
    return "; ".join(names) or "none"


def processes_sentence(steps: Sequence[Row]) -> str:
    """When two processes pay, and by how much."""
    words = []
    for row in steps:
        gain = report.gain_of_processes(row)
        if gain is not None:
            words.append(f"{row.name}: {gain:.2f}")
    return (
        "How many times as fast as two threads two processes are (`tinyprop train --processes "
        f"2`): {'; '.join(words) or 'not measured'}."
    )


def on_machine(about: Results) -> str:
    return f"on {about.machine['cores']} cores of an {about.machine['cpu']}"


def readme_text(about: Results, rows: dict[str, list[Row]]) -> str:
    return (
        f"The time of a training step (float32) {on_machine(about)}: the paper's network at some "
        "widths with batches of some images, and two MLPs, against PyTorch at its best (fused "
        f"SGD, both layouts, one or two threads). {in_one_sentence(rows['steps'])} "
        "[RESULTS.md](benchmarks/RESULTS.md) has single layers, and what two processes gain over "
        "two threads. In a clone, `python -m benchmarks steps` measures it on your machine."
    )


def processes_text(about: Results, steps: Sequence[Row]) -> str:
    """For the README: how many times as fast as two threads two processes are."""
    gains: dict[str, list[float]] = {}
    cases = {case.name: case for some in compare.CASES["steps"]().values() for case in some}
    for row in steps:
        gain = report.gain_of_processes(row)
        if gain is not None:
            gains.setdefault(kind_of_step(cases[row.name]), []).append(gain)
    words = [f"{between(found)} times as fast {kind}" for kind, found in gains.items()]
    return (
        f"Compared with two threads, two processes were, {on_machine(about)}: "
        f"{', '.join(words) or 'not measured'}. In a clone, `python -m benchmarks steps` measures "
        "it on yours."
    )


def kind_of_step(case: Case) -> str:
    if not case.convolutional:
        return "in small fully connected networks"
    if case.width == 1:
        return "in the paper's network"
    images = "one image" if case.batch == 1 else "several images"
    return f"in narrow networks with {images}"


def between(numbers: Sequence[float]) -> str:
    """The least and the largest of some numbers.

    >>> between([1.3, 1.51]), between([2.0])
    ('1.3 to 1.5', '2.0')
    """
    ends = dict.fromkeys(f"{number:.1f}" for number in (min(numbers), max(numbers)))
    return " to ".join(ends)


def with_processes(readme: str, text: str) -> str:
    """The README with this paragraph on two processes instead of the one that it has."""
    new = fill(text, 120)
    changed, count = README_PROCESSES.subn(lambda _: new, readme)
    if count != 1:
        raise ValueError(f"README.md has {count} paragraphs on two processes, not one")
    return changed


def readme_with(readme: str, text: str, steps: Table) -> str:
    """The README with this paragraph and table instead of those that it has."""
    table = [line for line in steps.markdown().splitlines() if line.startswith("|")]
    new = "\n".join([fill(text, 120), "", *table, ""])
    changed, count = README_STEPS.subn(lambda _: new, readme)
    if count != 1:
        raise ValueError(f"README.md has {count} tables of training steps, not one")
    return changed
