"""Tables of what was measured, for a terminal and for Markdown."""

from collections.abc import Sequence

from tinyprop.report.table import Table

from .measure import Results, Row
from .peers import TORCH
from .workers import Way

OURS = Way("tinyprop").name
OURS_ON_TWO = Way("tinyprop", threads=2).name
OURS_BY_TWO = Way("tinyprop", processes=2).name
ON_ONE = [Way(peer).name for peer in TORCH]
ON_TWO = [Way(peer, threads=2).name for peer in TORCH]
NONE = "-"


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
    return NONE if size is None else f"{size / 1e6:,.0f}"


def one_thread(row: Row) -> float | None:
    """PyTorch's processor time in the better of its layouts divided by ours, on one thread."""
    theirs = [row.median_processor(way) for way in ON_ONE if way in row.processor]
    if not theirs or OURS not in row.processor:
        return None
    return min(theirs) / row.median_processor(OURS)


def two_cores(row: Row, ours: str = OURS_ON_TWO) -> float | None:
    """PyTorch's time in the best of its layouts and numbers of threads divided by one of ours."""
    theirs = [row.median_clock(way) for way in ON_ONE + ON_TWO if way in row.clock]
    if not theirs or ours not in row.clock:
        return None
    return min(theirs) / row.median_clock(ours)


def gain_of_processes(row: Row) -> float | None:
    """Our time on two threads divided by that on two processes."""
    if OURS_BY_TWO not in row.clock or OURS_ON_TWO not in row.clock:
        return None
    return row.median_clock(OURS_ON_TWO) / row.median_clock(OURS_BY_TWO)


def ratio_cell(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}"


def rounds_cell(row: Row) -> str:
    return f"{len(row.quiet)} of {len(row.others)}"


def table(section: str, rows: Sequence[Row]) -> Table:
    return {"steps": step_table, "layers": layer_table, "programs": program_table}[section](rows)


def step_table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        line = [row.name, _processor(row, OURS), ratio_cell(one_thread(row))]
        for way in (OURS_ON_TWO, OURS_BY_TWO):
            line += [_clock(row, way), ratio_cell(two_cores(row, way))]
        cells.append([*line, rounds_cell(row)])
    header = ["step", "1 thread, ms", "PyTorch / ours", "2 threads, ms", "PyTorch / ours"]
    header += ["2 processes, ms", "PyTorch / ours", "rounds"]
    note = (
        "Medians. On one thread, times of the processor, divided into PyTorch's in the better of "
        "its layouts. On two cores, times of the clock, divided into PyTorch's in the best of its "
        "layouts on one or two threads. Above 1, tinyprop is faster. The last column has the "
        "rounds that count, and how many were tried."
    )
    return Table(header, cells, "Training steps", note)


def layer_table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        theirs = [_processor(row, way) for way in ON_ONE]
        cells.append(
            [
                row.name,
                _processor(row, OURS),
                *theirs,
                ratio_cell(one_thread(row)),
                rounds_cell(row),
            ]
        )
    header = ["layer", "tinyprop, ms", "PyTorch NCHW, ms", "channels_last, ms", "PyTorch / ours"]
    note = (
        "Forward and backward on one thread, times of the processor, medians. C(...) are "
        "convolutions with NormProp and ReLU."
    )
    return Table([*header, "rounds"], cells, "Single layers", note)


def program_table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        for way in row.clock:
            times = [_clock(row, way), _processor(row, way)]
            cells.append([f"{row.name} ({way})", *times, rounds_cell(row)])
    header = ["program", "ms of the clock", "of the processor", "rounds"]
    return Table(header, cells, "Whole programs", "A new Python each time; medians.")


def _clock(row: Row, way: str) -> str:
    return milliseconds(row.median_clock(way)) if way in row.clock else NONE


def _processor(row: Row, way: str) -> str:
    return milliseconds(row.median_processor(way)) if way in row.processor else NONE


def where(found: Results) -> list[str]:
    """The machine, and the versions."""
    machine = found.machine
    versions = [f"{name} {version}" for name, version in found.versions.items()]
    versions += [f"numpy {machine['numpy']}", f"Python {machine['python']}"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores; {machine['blas']}; {machine['system']}",
        ", ".join(versions),
    ]
