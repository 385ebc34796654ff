"""Every picture, drawn from plain data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .engine.arrays import HostArray

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]  # Okabe and Ito
GREY = "#777777"
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


def panels(columns: int, width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    """A figure, in inches, that needs no window, and its axes, row by row."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


@styled
def save(figure: Figure, path: Path) -> Path:
    """Write the picture aside, then put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    figure.savefig(aside, format=path.suffix[1:])
    aside.replace(path)
    return path


@styled
def training_curves(history: list[dict[str, float]]) -> Figure:
    """Loss and test error after each epoch."""
    figure, (left, right) = panels(2, 8.0, 3.2)
    epochs = [row["epoch"] for row in history]
    left.plot(epochs, [row["train_loss"] for row in history], "o-", markersize=3, color=COLOURS[0], label="training")
    left.plot(epochs, [row["test_loss"] for row in history], "o-", markersize=3, color=COLOURS[1], label="test")
    right.plot(epochs, [100 * row["test_error"] for row in history], "o-", markersize=3, color=COLOURS[1])
    for axes in (left, right):
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set(title="Cross-entropy")
    left.legend()
    right.set(title="Test error, %")
    return figure


@styled
def predictions(images: HostArray, labels: HostArray, guesses: HostArray, classes: Sequence[str]) -> Figure:
    """Images (N, C, H, W) with the class that a network gives them; wrong ones in red with the right one behind."""
    columns = 8
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(columns * 1.05, rows * 1.25))
    FigureCanvasAgg(figure)
    for i, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.axis("off")
        if i < len(images):
            axes.imshow(images[i].transpose(1, 2, 0), cmap="gray", interpolation="nearest")
            right, guess = classes[labels[i]], classes[guesses[i]]
            title = guess if guess == right else f"{guess}\nnot {right}"
            axes.set_title(title, fontsize=8, loc="center", color="black" if guess == right else COLOURS[1])
    return figure


@styled
def ridges(columns: Mapping[str, Mapping[str, HostArray]], xlabel: str) -> Figure:
    """In each column, one above the other, how values are distributed, each scaled to its height, and their spread."""
    figure, every = panels(len(columns), 3.0 * len(columns), 3.8)
    colours = [GREY, COLOURS[1], COLOURS[0], *COLOURS[2:]]
    for axes, (title, rows), colour in zip(every, columns.items(), colours, strict=False):
        for i, values in enumerate(rows.values()):
            counts, edges = np.histogram(values, bins=100, range=(-4, 4))
            axes.fill_between(edges[1:], -i, -i + 0.85 * counts / counts.max(), step="pre", color=colour, lw=0)
            axes.text(4, 0.1 - i, f"std {values.std():.2f}", ha="right", color=colour, fontsize=9)
        axes.set(title=title, xlim=(-4, 4), yticks=[-i for i in range(len(rows))], yticklabels=[])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    every[0].set_yticklabels(list(rows))
    every[len(columns) // 2].set_xlabel(xlabel)
    return figure
