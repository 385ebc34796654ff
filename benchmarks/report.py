"""Tables of what was measured, for a terminal and for Markdown, and the files of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table
from tinyprop.verify.paper import EPOCH_SECONDS

from .cases import QUICK_WIDTH
from .measure import Measurement, Results
from .peers import PEERS

TITLES = {
    "layers": "Each layer by itself: forward and backward, 25 images, one thread (ms)",
    "inference": "Inference of a batch (ms)",
    "networks": "Steps of other networks; unusual convolutions, 25 images, one thread (ms)",
}
Row = dict[str, Measurement]  # of one case, by peer


def milliseconds(seconds: float) -> str:
    """Three significant digits, or all before the point.

    >>> milliseconds(0.31416), milliseconds(0.0012345)
    ('314', '1.23')
    """
    ms = seconds * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def spread(seconds: Sequence[float]) -> str:
    return f"{milliseconds(min(seconds))}-{milliseconds(max(seconds))}"


def megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.0f}"


def by_case(measurements: Iterable[Measurement], section: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for m in measurements:
        if m.section == section:
            found.setdefault(m.case, {})[m.peer] = m
    return found


def slowdown(row: Row, *peers: str) -> str:
    """The time of the fastest of these peers divided by tinyprop's."""
    found = [row[peer].median for peer in peers if peer in row]
    return f"{min(found) / row['tinyprop'].median:.2f}" if found and "tinyprop" in row else "-"


def behind(results: Results) -> list[str]:
    """The cases in which PyTorch, at its best, is faster than tinyprop, and by how much."""
    torch = [peer for peer in PEERS if PEERS[peer].package == "torch"]
    ratios = {
        f"the {case} step" if section == "step" else case: slowdown(row, *torch)
        for section in dict.fromkeys(m.section for m in results.measurements)
        for case, row in by_case(results.measurements, section).items()
    }
    return [f"{case} ({ratio})" for case, ratio in ratios.items() if ratio.startswith("0")]


def tables(results: Results) -> list[Table]:
    """A table for each section that was measured."""
    steps = by_case(results.measurements, "step")
    others = {title: by_case(results.measurements, section) for section, title in TITLES.items()}
    return [step_table(steps)] * bool(steps) + [
        comparison(title, rows) for title, rows in others.items() if rows
    ]


def step_table(
    steps: dict[str, Row], title: str = "A training step of the paper's network"
) -> Table:
    normprop, batch = steps.get("NormProp", {}), steps.get("BatchNorm", {})
    rows = []
    for peer, m in normprop.items():
        cells = [
            milliseconds(m.median),
            spread(m.seconds),
            f"{m.batch / m.median:,.0f}",
            megabytes(m.peak_memory),
        ]
        rows.append([PEERS[peer].title, *cells, slowdown(normprop, peer)])
        other = batch.get(peer)
        rows[-1] += [milliseconds(other.median), slowdown(batch, peer)] if other else ["-", "-"]
        rows[-1].append(f"{m.median / other.median:.2f}" if other else "-")
    remarks = [
        f"{PEERS[peer].title}: {PEERS[peer].remark}." for peer in normprop if PEERS[peer].remark
    ]
    paper = EPOCH_SECONDS["normprop"], EPOCH_SECONDS["batch"]
    note = (
        "Forward, backward, SGD with momentum and weight decay, unit-length constraint; medians. "
        "The columns `/ ours` "
        "are times divided by tinyprop's, NormProp by NormProp and BatchNorm by BatchNorm. Peak "
        "memory is the highest "
        "resident memory of the peer's own process in NormProp steps minus what it held after "
        "its imports. NP/BN is "
        "the time with NormProp divided by that with BatchNorm; the paper's section 5.6 has "
        f"{paper[0]:g} s against "
        f"{paper[1]:g} s for an epoch on a GPU, {paper[0] / paper[1]:.3f}."
    )
    header = [
        "peer",
        "NormProp ms",
        "least-most",
        "images/s",
        "peak MB",
        "/ ours",
        "BatchNorm ms",
        "/ ours",
        "NP/BN",
    ]
    return Table(header, rows, title, " ".join([note, *remarks]))


def comparison(title: str, cases: dict[str, Row]) -> Table:
    """A row for each case, a column for each peer, and the ratio that matters."""
    peers = [peer for peer in PEERS if any(peer in row for row in cases.values())]
    torch = [peer for peer in peers if PEERS[peer].package == "torch"]
    rows = [
        [
            name,
            *(milliseconds(row[p].median) if p in row else "-" for p in peers),
            slowdown(row, *torch),
        ]
        for name, row in cases.items()
    ]
    note = (
        "The last column is the time of PyTorch's better layout divided by tinyprop's: above 1, "
        "tinyprop is faster."
    )
    return Table(["case", *(PEERS[p].title for p in peers), "best / ours"], rows, title, note)


def about(results: Results) -> list[str]:
    """Where and how it was measured."""
    machine, options = results.machine, results.options
    load = options["load_before"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores; {machine['blas']}; {machine['system']}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items())
        + f", numpy {machine['numpy']}, Python {machine['python']}",
        f"float32, {options['threads']} threads, {options['repeats']} repeats, peers in turns, "
        + ("all in one process" if options["together"] else "a process for each")
        + ("" if load is None else f"; load of the machine before: {load:.2f}"),
        *([f"a quick run: VGG-like at width {QUICK_WIDTH}"] if options["quick"] else []),
        *results.notes,
    ]


def write_page(
    out: Path, name: str, title: str, about: Sequence[str], tables: Sequence[Table], results: Any
) -> list[Path]:
    """Everything that was measured as JSON, and the tables as Markdown."""
    head = "\n".join([f"# {title}", "", *(f"- {line}" for line in about)])
    page = "\n\n".join([head, *(table.markdown() for table in tables)]) + "\n"
    write_json(out / f"{name}.json", asdict(results))
    write_whole(out / f"{name}.md", page.encode())
    return [out / f"{name}.json", out / f"{name}.md"]
