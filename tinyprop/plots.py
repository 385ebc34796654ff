"""Every picture, drawn from plain data."""

from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .backend import HostArray

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]  # Okabe and Ito
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS),
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


styled = matplotlib.rc_context(STYLE)  # a decorator for what draws; it touches no setting outside


def panels(columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure, in inches, that needs no window, and its axes side by side."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


@styled
def save(figure: Figure, path: Path) -> Path:
    """Write the picture aside, then put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    figure.savefig(aside, format=path.suffix[1:])
    aside.replace(path)
    return path


@styled
def decision_map(
    points: HostArray, labels: HostArray, classes: HostArray, extent: float, losses: list[float]
) -> Figure:
    """Points over the class that a network gives to each place of a square, beside the loss of its training."""
    figure, (left, right) = panels(2, 8.0, 3.8)
    several = int(labels.max()) + 1
    left.imshow(
        classes,
        origin="lower",
        extent=(-extent, extent, -extent, extent),
        cmap=ListedColormap(COLOURS[:several]),
        alpha=0.3,
        interpolation="nearest",
    )
    for k in range(several):
        left.plot(*points[labels == k].T, "o", color=COLOURS[k], markersize=3, markeredgewidth=0)
    left.set(xticks=[], yticks=[], title="What the network has learnt")
    right.semilogy(losses)
    right.set(xlabel="step", title="Cross-entropy")
    return figure
