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

from .engine.arrays import HostArray
from .files import whole_file

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
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:])
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
def depth(networks: Mapping[str, Any], shown: Sequence[int]) -> Figure:
    """What tinyprop.depth has measured. Above, spread and gradient by layer: a line for the geometric mean over the
    random seeds, a band from the lowest to the highest. Below, the distribution of all pre-activations (light) and of
    their deviations from the mean of each unit (dark).
    """
    figure = Figure(figsize=(8.3, 6.0))
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(2, 1, height_ratios=(1, 0.9), hspace=0.06)
    above, below = rows[0].subgridspec(1, 2, wspace=0.08), rows[1].subgridspec(1, len(networks))
    left, right = (figure.add_subplot(above[i]) for i in range(2))
    small = [figure.add_subplot(below[i]) for i in range(len(networks))]
    colors = [COLOURS[0], COLOURS[2], GREY, COLOURS[1], COLOURS[3]]
    dashes: list[Any] = ["-", "-", (0, (6, 2)), (0, (4, 2)), (0, (1.2, 1.2))]  # where lines coincide, both are seen
    for (name, found), axes, color, dash in zip(networks.items(), small, colors, dashes, strict=True):
        layers = np.arange(1, found.spread.shape[1] + 1)
        for curve, values in ((left, found.spread), (right, found.gradient)):
            curve.fill_between(layers, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, lw=0)
            curve.plot(layers, np.exp(np.log(values).mean(axis=0)), color=color, ls=dash)
        for row, layer in enumerate(shown):
            values = found.values[layer]
            for part, alpha in ((values, 0.3), (values - values.mean(axis=0), 1.0)):
                counts, edges = np.histogram(part, bins=81, range=(-3, 3))
                heights = 0.8 * counts / counts.max() - row
                axes.fill_between(edges[1:], -row, heights, step="pre", color=color, alpha=alpha, lw=0)
        axes.set(xlim=(-3, 3), ylim=(0.9 - len(shown), 1), yticks=range(0, -len(shown), -1), yticklabels=[])
        axes.set_title(name.replace(", ", "\n"), color=color, fontsize=10)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    small[0].set_yticklabels([f"layer {layer}" for layer in shown], va="bottom")
    small[len(small) // 2].set_xlabel("pre-activations of all units (light), and about the mean of each unit (dark)")
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
def step_times(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Bars of each engine's time, peak memory, and ratio of NormProp to BatchNorm, where known."""
    shown = [
        ("ms", "Step, ms", "{:.0f}"),
        ("megabytes", "Peak memory, MB", "{:.0f}"),
        ("ratio", "NormProp / BatchNorm", "{:.2f}"),
    ]
    shown = [column for column in shown if any(row[column[0]] is not None for row in rows)]
    figure, every = panels(len(shown), 1.6 + 2.6 * len(shown), 0.9 + 0.36 * len(rows))
    for axes, (key, title, form) in zip(every, shown, strict=True):
        values = [row[key] or 0.0 for row in rows]
        bars = axes.barh(range(len(rows)), values, color=[COLOURS[i % len(COLOURS)] for i in range(len(rows))])
        axes.bar_label(bars, ["" if row[key] is None else form.format(row[key]) for row in rows], padding=3)
        axes.set(title=title, xlim=(0, 1.2 * max(values)), yticks=range(len(rows)), yticklabels=[])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
    every[0].set_yticklabels([row["engine"] for row in rows])
    return figure


@styled
def grouped_bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> Figure:
    """For each group a bar of each series that it has."""
    series = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    figure, (axes,) = panels(1, 8.0, 1.0 + 0.17 * sum(len(bars) + 1 for bars in groups.values()))
    places: dict[str, list[tuple[float, float]]] = {name: [] for name in series}  # where a bar is, and how long
    middles, top = [], 0.0
    for bars in groups.values():
        middles.append(top + (len(bars) - 1) / 2)
        for name in sorted(bars, key=series.index):
            places[name].append((top, bars[name]))
            top += 1.0
        top += 1.0  # a gap
    for name, found in places.items():
        drawn = axes.barh(*zip(*found, strict=True), height=1.0, label=name)
        axes.bar_label(drawn, [f"{v:.0f}" if v >= 100 else f"{v:.2g}" for _, v in found], padding=2, fontsize=7)
    axes.set(title=title, yticks=middles, yticklabels=list(groups))
    axes.invert_yaxis()
    axes.margins(x=0.06, y=0.01)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@styled
def throughput(rates: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Figure:
    """Images per second against each size that was changed, a line for each engine."""
    figure, every = panels(len(rates), 3.0 * len(rates) + 0.5, 3.2)
    for axes, (size, lines) in zip(every, rates.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        ticks = sorted({x for points in lines.values() for x, _ in points})
        axes.set(xscale="log", xlabel=size, ylim=(0, None))
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
        axes.set_xticks([], minor=True)
    every[0].set(title="Images per second")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(rates))
    return figure


@styled
def roofline(
    title: str, peak_flops: float | None, bandwidth: float | None, points: Mapping[str, tuple[float, float]]
) -> Figure:
    """Points (FLOPs per byte, FLOPs per second) under what a device can do at best; what is unknown is not drawn."""
    figure, (axes,) = panels(1, 8.0, 4.4)
    low, high = min(x for x, _ in points.values()) / 2, max(x for x, _ in points.values()) * 2
    if bandwidth:
        top = min(high, peak_flops / bandwidth) if peak_flops else high
        axes.plot([low, top], [bandwidth * low, bandwidth * top], color="grey")
        middle = (low * top) ** 0.5
        beside = (middle, bandwidth * middle)
        axes.annotate(f"{bandwidth / 1e9:,.0f} GB/s", beside, (-8, 2), textcoords="offset points", ha="right")
    if peak_flops:
        knee = peak_flops / bandwidth if bandwidth else low
        if knee < high:
            axes.plot([max(low, knee), high], [peak_flops] * 2, color="grey")
        over = (high, peak_flops)
        axes.annotate(f"{peak_flops / 1e12:.1f} TFLOP/s", over, (0, 4), textcoords="offset points", ha="right")
    markers = "*osD^vPX"
    for i, (name, point) in enumerate(points.items()):
        size = 13 if i == 0 else 7
        colour = COLOURS[(i - 1) % len(COLOURS)]
        axes.plot(*point, markers[i % len(markers)], ms=size, color=colour, label=name, ls="", zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOPs per byte", title=f"{title}: FLOPs per second")
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
