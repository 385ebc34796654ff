"""Tables of what was measured, for a terminal and for Markdown, and the files of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table
from tinyprop.verify.paper import EPOCH_SECONDS

from .cases import QUICK_WIDTH
from .load import load_words
from .measure import Measurement, Results
from .peers import PEERS

TITLES = {
    "layers": "Each layer by itself: forward and backward, 25 images, one thread (ms)",
    "inference": "Inference of a batch (ms)",
    "networks": "Steps of other networks; unusual convolutions, 25 images, one thread (ms)",
}
TORCH = [name for name, peer in PEERS.items() if peer.package == "torch"]
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
    rows: dict[str, Row] = {}
    for m in measurements:
        if m.section == section:
            rows.setdefault(m.case, {})[m.peer] = m
    return rows


def ratio(row: Row, *peers: str) -> float | None:
    """The time of the fastest of these peers divided by tinyprop's."""
    times = [row[peer].median for peer in peers if peer in row]
    if not times or "tinyprop" not in row:
        return None
    return min(times) / row["tinyprop"].median


def ratio_cell(row: Row, *peers: str) -> str:
    number = ratio(row, *peers)
    return "-" if number is None else f"{number:.2f}"


def slower(results: Results) -> list[str]:
    """The cases in which PyTorch, at its best, is faster than tinyprop, with the ratios of the
    tables."""
    names = []
    for section in dict.fromkeys(m.section for m in results.measurements):
        for case, row in by_case(results.measurements, section).items():
            number = ratio(row, *TORCH)
            if number is None or round(number, 2) >= 1:
                continue
            name = f"the {case} step" if section == "step" else case
            names.append(f"{name} ({number:.2f})")
    return names


def tables(results: Results) -> list[Table]:
    """A table for each section that was measured."""
    found = []
    steps = by_case(results.measurements, "step")
    if steps:
        found.append(step_table(steps))
    for section, title in TITLES.items():
        cases = by_case(results.measurements, section)
        if cases:
            found.append(comparison(title, cases))
    return found


def step_table(steps: dict[str, Row]) -> Table:
    """A row for each peer that has done the NormProp step."""
    normprop = steps.get("NormProp", {})
    batch = steps.get("BatchNorm", {})
    rows = []
    for peer, m in normprop.items():
        row = [
            PEERS[peer].title,
            milliseconds(m.median),
            spread(m.seconds),
            f"{m.batch / m.median:,.0f}",
            megabytes(m.peak_memory),
            ratio_cell(normprop, peer),
        ]
        if peer in batch:
            other = batch[peer].median
            row += [milliseconds(other), ratio_cell(batch, peer), f"{m.median / other:.2f}"]
        else:
            row += ["-", "-", "-"]
        rows.append(row)
    header = "peer, NormProp ms, least-most, images/s, peak MB, / ours, BatchNorm ms, / ours, NP/BN"
    title = "A training step of the paper's network"
    return Table(header.split(", "), rows, title, step_note(normprop))


def step_note(peers: Iterable[str]) -> str:
    normprop = EPOCH_SECONDS["normprop"]
    batch = EPOCH_SECONDS["batch"]
    sentences = [
        "Forward, backward, SGD with momentum and weight decay, unit-length constraint; medians.",
        "The columns `/ ours` are times divided by tinyprop's, NormProp by NormProp and BatchNorm "
        "by BatchNorm.",
        "Peak memory is the highest resident memory of the peer's own process in NormProp steps "
        "minus what it held after its imports.",
        "NP/BN is the time with NormProp divided by that with BatchNorm; the paper's section 5.6 "
        f"has {normprop:g} s against {batch:g} s for an epoch on a GPU, {normprop / batch:.3f}.",
    ]
    for peer in peers:
        if PEERS[peer].remark:
            sentences.append(f"{PEERS[peer].title}: {PEERS[peer].remark}.")
    return " ".join(sentences)


def comparison(title: str, cases: dict[str, Row]) -> Table:
    """A row for each case, a column for each peer, and how PyTorch's best compares with ours."""
    peers = [peer for peer in PEERS if any(peer in row for row in cases.values())]
    rows = []
    for name, row in cases.items():
        times = [milliseconds(row[peer].median) if peer in row else "-" for peer in peers]
        rows.append([name, *times, ratio_cell(row, *TORCH)])
    header = ["case", *(PEERS[peer].title for peer in peers), "best / ours"]
    note = (
        "The last column is the time of PyTorch's better layout divided by tinyprop's: above 1, "
        "tinyprop is faster."
    )
    return Table(header, rows, title, note)


def about(results: Results) -> list[str]:
    """Where and how it was measured."""
    return [*where(results), how(results), *results.notes]


def where(results: Results) -> list[str]:
    """The machine, and the versions."""
    machine = results.machine
    versions = [f"{name} {version}" for name, version in results.versions.items()]
    versions += [f"numpy {machine['numpy']}", f"Python {machine['python']}"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores; {machine['blas']}; {machine['system']}",
        ", ".join(versions),
    ]


def how(results: Results) -> str:
    options = results.options
    words = ["float32", f"{options['threads']} threads", f"{options['repeats']} repeats"]
    words.append("peers in turns")
    words.append("all in one process" if options["together"] else "a process for each")
    if options["quick"]:
        words.append(f"a quick run: VGG-like at width {QUICK_WIDTH}")
    return ", ".join(words) + load_words(options["load_before"])


def write_page(out: Path, results: Results) -> list[Path]:
    """Everything that was measured as JSON, and the tables as Markdown."""
    lines = ["# Benchmarks", ""]
    lines += [f"- {line}" for line in about(results)]
    parts = ["\n".join(lines)]
    parts += [table.markdown() for table in tables(results)]
    data = out / "bench.json"
    page = out / "bench.md"
    write_json(data, asdict(results))
    write_whole(page, ("\n\n".join(parts) + "\n").encode())
    return [data, page]
