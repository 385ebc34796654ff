"""The style of all figures."""

from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from .files import whole_file

# Okabe and Ito
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
GRAY = "#777777"
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.dpi": 160,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
# where formats keep a description; others have no place for one
DESCRIPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
styled = matplotlib.rc_context(STYLE)  # a decorator for what draws; it touches no setting outside


def panels(columns: int, width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    """A figure, in inches, that needs no window, and its axes, row by row."""
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False)  # (rows, columns)
    return figure, axes.ravel()


@styled
def save(figure: Figure, path: Path, description: str) -> Path:
    """Write a figure, and into its file what it shows in words, with its numbers: from there, a
    page takes them for those who cannot see the figure."""
    key = DESCRIPTION.get(path.suffix)
    metadata = {key: description} if key else None
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], metadata=metadata)
    return path
