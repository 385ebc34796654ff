"""The style of all figures, and those that the commands draw."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from .engine.arrays import HostArray
from .estimate import Estimate
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


styled = matplotlib.rc_context(STYLE)  # a decorator for what draws; it touches no setting outside


def panels(columns: int, width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    """A figure, in inches, that needs no window, and its axes, row by row."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


@styled
def save(figure: Figure, path: Path) -> Path:
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:])
    return path


@styled
def training_curves(history: list[dict[str, float]]) -> Figure:
    """Loss and error after each epoch: on test images, or on validation images in a run that has
    them."""
    figure, (left, right) = panels(2, 8.0, 3.2)
    name = "validation" if "validation_loss" in history[0] else "test"
    epochs = [row["epoch"] for row in history]
    left.plot(
        epochs,
        [row["train_loss"] for row in history],
        "o-",
        markersize=3,
        color=COLORS[0],
        label="training",
    )
    left.plot(
        epochs,
        [row[f"{name}_loss"] for row in history],
        "o-",
        markersize=3,
        color=COLORS[1],
        label=name,
    )
    right.plot(
        epochs, [100 * row[f"{name}_error"] for row in history], "o-", markersize=3, color=COLORS[1]
    )
    for axes in (left, right):
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set(title="Cross-entropy")
    left.legend()
    right.set(title=f"{name.capitalize()} error, %")
    return figure


@styled
def compared_trainings(histories: Mapping[str, list[dict[str, float]]]) -> Figure:
    """Loss, test error and speed of several trainings, epoch by epoch."""
    figure, every = panels(3, 9.6, 3.0)
    titles = {
        "train_loss": "Cross-entropy, training",
        "test_error": "Test error",
        "images_per_second": "Images/s",
    }
    for axes, (column, title) in zip(every, titles.items(), strict=True):
        for color, (name, history) in zip(COLORS, histories.items(), strict=False):
            epochs, values = [row["epoch"] for row in history], [row[column] for row in history]
            axes.plot(epochs, values, "o-", markersize=3, color=color, label=name)
        axes.set(title=title, xlabel="epoch", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    every[0].legend()
    return figure


@styled
def predictions(
    images: HostArray, labels: HostArray, guesses: HostArray, classes: Sequence[str]
) -> Figure:
    """Images (N, C, H, W) with the class that a network gives them; wrong ones in red with the
    right one behind."""
    columns = 8
    rows = -(-len(images) // columns)
    figure, every = panels(columns, columns * 1.05, rows * 1.25, rows)
    for axes in every:
        axes.axis("off")
    for axes, image, label, number in zip(every, images, labels, guesses, strict=False):
        axes.imshow(image.transpose(1, 2, 0), cmap="gray", interpolation="nearest")
        right, guess = classes[label], classes[number]
        title = guess if guess == right else f"{guess}\nnot {right}"
        axes.set_title(
            title, fontsize=8, loc="center", color="black" if guess == right else COLORS[1]
        )
    return figure


@styled
def depth(networks: Mapping[str, Any], shown: Sequence[int]) -> Figure:
    """What tinyprop.depth has measured. Above, spread and gradient by layer: a line for the
    geometric mean over the random seeds, a band from the lowest to the highest. Below, the
    distribution of all pre-activations (light) and of their deviations from the mean of each unit
    (dark)."""
    figure = Figure(figsize=(8.3, 6.0))
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(2, 1, height_ratios=(1, 0.9), hspace=0.06)
    above, below = rows[0].subgridspec(1, 2, wspace=0.08), rows[1].subgridspec(1, len(networks))
    left, right = (figure.add_subplot(above[i]) for i in range(2))
    small = [figure.add_subplot(below[i]) for i in range(len(networks))]
    colors = [COLORS[0], COLORS[2], GRAY, COLORS[1], COLORS[3]]
    # where lines coincide, both are seen
    dashes: list[Any] = ["-", "-", (0, (6, 2)), (0, (4, 2)), (0, (1.2, 1.2))]
    for (name, found), axes, color, dash in zip(
        networks.items(), small, colors, dashes, strict=True
    ):
        layers = np.arange(1, found.spread.shape[1] + 1)
        for curve, values in ((left, found.spread), (right, found.gradient)):
            curve.fill_between(
                layers, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, lw=0
            )
            curve.plot(layers, np.exp(np.log(values).mean(axis=0)), color=color, ls=dash)
        for row, layer in enumerate(shown):
            values = found.values[layer]
            for part, alpha in ((values, 0.3), (values - values.mean(axis=0), 1.0)):
                counts, edges = np.histogram(part, bins=81, range=(-3, 3))
                heights = 0.8 * counts / counts.max() - row
                axes.fill_between(
                    edges[1:], -row, heights, step="pre", color=color, alpha=alpha, lw=0
                )
        axes.set(
            xlim=(-3, 3),
            ylim=(0.9 - len(shown), 1),
            yticks=range(0, -len(shown), -1),
            yticklabels=[],
        )
        axes.set_title(name.replace(", ", "\n"), color=color, fontsize=10)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    small[0].set_yticklabels([f"layer {layer}" for layer in shown], va="bottom")
    small[len(small) // 2].set_xlabel(
        "pre-activations of all units (light), and about the mean of each unit (dark)"
    )
    left.set(title="Standard deviation of a unit over inputs", yscale="log", ylim=(0.05, 1.5))
    right.set(title="Gradient, relative to the last layer", yscale="log", ylim=(0.5, 1e4))
    for axes in (left, right):
        axes.set(xlabel="layer", xticks=[1, *range(5, len(layers) + 1, 5)])
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter("")
    left.set_yticks([0.1, 1.0])
    left.text(layers[-1], 1.1, "exact mode, BatchNorm", ha="right", fontsize=9)
    beyond = math.floor(np.log10(found.gradient).mean(axis=0).max())
    right.text(25.4, 4e3, f"to $10^{{{beyond}}}$ in layer 1", ha="right", fontsize=9, color=color)
    return figure


@styled
def instrument(name: str, curves: Mapping[str, Any]) -> Figure:
    """What one instrument shows of each network, as tinyprop.compare has measured it."""
    figure, (axes,) = panels(1, 5.2, 3.9)
    _by_layer(axes, name, curves)
    axes.legend(fontsize=9)
    return figure


@styled
def comparison(found: Mapping[str, Mapping[str, Any]], heading: str) -> Figure:
    """What all instruments show, on one page."""
    figure, every = panels(2, 9.6, 7.4, 2)
    for axes, (name, curves) in zip(every, found.items(), strict=True):
        _by_layer(axes, name, curves)
    lines = [line for line in every[0].lines if not line.get_label().startswith("_")]
    figure.suptitle(heading, fontsize=10, x=0.01, ha="left")
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=9)
    return figure


def _by_layer(axes: Any, name: str, curves: Mapping[str, Any]) -> None:
    """A line for theory, or a thin one between points where there is none. Where lines coincide,
    all are seen."""
    from .stacks import INSTRUMENTS  # here, as it loads theory/, which other figures do not need

    for i, (label, curve) in enumerate(curves.items()):
        means, errors = [p.mean for p in curve.points], [p.half_width for p in curve.points]
        if curve.theory is None:
            axes.plot(curve.at, means, color=COLORS[i], lw=0.6, label=label)
        else:
            axes.plot(
                curve.layers,
                curve.theory,
                color=COLORS[i],
                lw=3.6 - 0.35 * i,
                alpha=0.6,
                label=label,
            )
        points = axes.errorbar(
            curve.at, means, errors, fmt="o", ms=4, elinewidth=1, capsize=2, color=COLORS[i]
        )
        points[0].set(mec="white", mew=0.4, zorder=3)
    first = next(iter(curves.values())).layers[0]
    axes.set(title=INSTRUMENTS[name], xlabel="layer" if first else "residual block")
    axes.set(yscale="linear" if name == "correlation" else "log")
    axes.xaxis.get_major_locator().set_params(integer=True)


# by name; by epoch, by learning rate, or by the name of a row
Curves = Mapping[str, Mapping[Any, Estimate]]
COLUMNS = 4  # panels side by side
POINTS = {"markersize": 3.5, "capsize": 2.5, "elinewidth": 1}


@styled
def experiment(
    levels: Mapping[str, Curves],
    differences: Sequence[Mapping[str, Any]],
    x: str,
    paper: float | None,
) -> Figure:
    """What the runs of an experiment say, with 95 % intervals over random seeds.

    A panel for each title of levels, all on one scale, with the paper's number if there is one;
    then one for each measure of differences (Comparisons): beside a single panel of levels, or
    below many."""
    left_names, right_names = list(levels), [f"difference {i}" for i in range(len(differences))]
    layout: list[Any] = [left_names + right_names]
    if len(levels) > 1:
        rows = [left_names[i : i + COLUMNS] for i in range(0, len(levels), COLUMNS)]
        layout = [*rows, [name for name in right_names for _ in range(COLUMNS // len(right_names))]]
    figure = Figure(figsize=(11.0, 2.6 * len(layout) + 0.8 * (len(layout) == 1)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    axes_of: dict[Any, Any] = figure.subplot_mosaic(layout)
    left, right = [axes_of[name] for name in left_names], [axes_of[name] for name in right_names]
    for axes, (title, curves) in zip(left, levels.items(), strict=True):
        _levels(axes, curves)
        axes.set(title=title, xlabel=x)
        if paper is not None:
            axes.axhline(
                paper, color=GRAY, linewidth=1, linestyle=":", label=f"the paper: {paper:g}"
            )
    for axes, comparisons in zip(right, differences, strict=True):
        _differences(axes, comparisons)
    if len(left) > 1:
        top = max(axes.get_ylim()[1] for axes in left)
        for axes in left:
            axes.set_ylim(0.0, top)
    named = {place for curves in levels.values() for curve in curves.values() for place in curve}
    for axes in right if named == set(differences[0]) else right[1:]:
        axes.set_yticklabels([])  # as in the panel before
    figure.legend(
        *left[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=COLUMNS + 1,
        fontsize=8,
    )
    return figure


def _levels(axes: Any, curves: Curves) -> None:
    """Curves over epochs, or over learning rates; levels of named rows lie, one below the other."""
    curves = {
        name: curve
        for name, curve in curves.items()
        if any(estimate.n for estimate in curve.values())
    }
    places = list(dict.fromkeys(place for curve in curves.values() for place in curve))
    for i, (name, curve) in enumerate(curves.items()):
        found = list(curve.values())
        means, half = [estimate.mean for estimate in found], _bars(found)
        if isinstance(places[0], str):
            rows = [places.index(place) + 0.2 * i - 0.1 * (len(curves) - 1) for place in curve]
            axes.errorbar(means, rows, xerr=half, fmt="o", label=name, **POINTS)
        else:
            axes.errorbar(list(curve), means, half, fmt="o-", label=name, **POINTS)
    if not places:
        axes.text(0.5, 0.5, "no runs yet", transform=axes.transAxes, ha="center", color=GRAY)
        axes.set(xticks=[], yticks=[])
    elif isinstance(places[0], str):
        _name_rows(axes, places)
    elif isinstance(places[0], float):
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _differences(axes: Any, comparisons: Mapping[str, Any]) -> None:
    """From the top down, over a band of differences that do not matter; predictions are hollow,
    single pairs gray."""
    measure = next(iter(comparisons.values())).measure
    for row, (name, comparison) in enumerate(comparisons.items()):
        found, color = comparison.difference, GRAY if comparison.difference.n == 1 else "black"
        fill = "white" if name.endswith("predicted") else color
        style = {
            "fmt": "o",
            "color": color,
            "markerfacecolor": fill,
            "capsize": 3,
            "elinewidth": 1.2,
        }
        axes.errorbar([found.mean], [row], xerr=_bars([found]), **style)
        if not found.n:
            why = "diverged" if any(comparison.diverged) else "no runs yet"
            axes.text(
                0.02,
                row,
                why,
                transform=axes.get_yaxis_transform(),
                va="center",
                color=GRAY,
                fontsize=8,
            )
    axes.axvspan(-measure.margin, measure.margin, color=GRAY, alpha=0.15, linewidth=0)
    axes.axvline(0.0, color=GRAY, linewidth=1, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _name_rows(axes, list(comparisons))
    side = "right" if measure.better > 0 else "left"
    axes.set(title=f"{measure.name.capitalize()}: difference")
    axes.set_xlabel(f"{measure.difference_unit} (better to the {side})".strip())


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _bars(estimates: Sequence[Estimate]) -> list[float]:
    """Half the intervals; a single value has none."""
    return [estimate.half_width if estimate.n > 1 else 0.0 for estimate in estimates]
