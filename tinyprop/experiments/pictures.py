"""The pictures of the experiments. Lines are labelled where they end; bars and bands are 95 % intervals over seeds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ..plots import COLOURS, GREY, panels, styled
from .points import Data

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS
LAYERS = [matplotlib.colormaps["viridis"](0.9 * i / 7) for i in range(8)]  # the second layer dark, the last one light
GAP = 0.075  # between labels, as a part of the height of a panel


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Names to the right of the last points (x, y) of lines, moved apart where they would overlap."""
    axes.get_xlim(), axes.get_ylim()  # only now are the limits fitted to the data
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = sorted(ends, key=lambda end: end[1])
    heights = [min(max(to_axes.transform((x, y))[1], 0.0), 1.0) for x, y, _, _ in ends]
    for _ in range(100):
        for i, (low, high) in enumerate(pairwise(heights)):
            push = max(0.0, GAP - (high - low)) / 2
            heights[i], heights[i + 1] = low - push, high + push
    for (_, _, text, colour), height in zip(ends, heights, strict=True):
        axes.text(1.02, height, in_greek(text), color=colour, va="center", fontsize=9, transform=axes.transAxes)


def in_greek(text: str) -> str:
    return text.replace("gamma", r"$\gamma$").replace("beta", r"$\beta$")


def bars(axes: Any, x: Sequence[float], found: Sequence[Data], colour: Any, label: str, **style: Any) -> None:
    """Means with their intervals, joined by a line."""
    means, reach = [item["mean"] for item in found], [item["reach"] or 0.0 for item in found]
    style = {"fmt": "o-", "markersize": 3.5, "capsize": 2.5, "elinewidth": 1.0, **style}
    axes.errorbar(x, means, reach, color=colour, label=label, **style)


Curves = Mapping[str, Data]  # what `recipe.curves` finds of each setting


def learning_curves(every: Sequence[Any], found: Sequence[Curves], colours: Mapping[str, Any], *titles: str) -> None:
    """Accuracy after each epoch, with intervals, of the settings that have a colour; those of which all runs diverged
    are named at the bottom.

    If there are several axes, they have the same scale.
    """
    ends = []
    for axes, curves, title in zip(every, found, titles, strict=True):
        shown = {label: curves[label]["accuracy"] for label in colours if label in curves and curves[label]["accuracy"]}
        for i, (label, points) in enumerate(shown.items()):
            shift = 0.06 * (i - (len(shown) - 1) / 2)  # so that bars do not hide each other
            bars(axes, [epoch + shift for epoch in range(1, len(points) + 1)], points, colours[label], label)
        epochs = max(map(len, shown.values()), default=1)
        ends.append([(epochs, points[-1]["mean"], label, colours[label]) for label, points in shown.items()])
        lost = [label for label in colours if label in curves and label not in shown]
        ends[-1] += [(epochs, 0.0, f"{label}: diverged", colours[label]) for label in lost]
        axes.set(xlabel="epoch", title=title)
        epoch_ticks(axes, epochs)
    share_height(every)
    for axes, some in zip(every, ends, strict=True):
        percent(axes)
        label_ends(axes, some)


def share_height(every: Sequence[Any]) -> None:
    """The same limits for panels side by side, so that what looks larger is larger."""
    limits = [limit for axes in every for limit in axes.get_ylim()]
    for axes in every:
        axes.set_ylim(min(limits), max(limits))


def epoch_ticks(axes: Any, epochs: int) -> None:
    axes.set_xlim(0.7, epochs + 0.3)
    axes.set_xticks(range(1, epochs + 1, -(-epochs // 8)))


def percent(axes: Any) -> None:
    """No accuracy is beyond 0 or 100, though an interval may be."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0))


def against(axes: Any, tried: Mapping[float, Data], colour: Any, label: str) -> None:
    """Final accuracies against a quantity on a logarithmic axis; crosses at the bottom where a run diverged."""
    fine = {x: found["final"] for x, found in tried.items() if found["final"]["runs"]}
    if fine:
        bars(axes, list(fine), list(fine.values()), colour, label)
    lost = [x for x, found in tried.items() if found["diverged"]]
    axes.plot(lost, [0.02] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())
    axes.set_xscale("log")


def final_dots(axes: Any, rows: Sequence[tuple[str, Data | None, Any]], title: str) -> None:
    """A mean with its interval for each row, from the top down; one without runs says so."""
    for i, (label, found, colour) in enumerate(rows):
        if found and found["runs"]:
            reach = [[found["reach"] or 0.0]]
            axes.errorbar(
                [found["mean"]], [i], xerr=reach, fmt="o", color=colour, capsize=3, elinewidth=1.2, label=label
            )
    axes.set_yticks(
        range(len(rows)), [label if found and found["runs"] else f"{label}: none" for label, found, _ in rows]
    )
    axes.set(title=title, ylim=(len(rows) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)


ACCURACY = "Test accuracy, %"


@styled
def data_normalization(data: Data) -> Figure:
    figure, every = panels(2, 8.0, 3.2)
    found, sizes = data["summary"]["curves"], ("50", "100")
    by_size = [{label.partition(",")[0]: c for label, c in found.items() if label.endswith(f" {n}")} for n in sizes]
    titles = [f"{ACCURACY}, batches of {size}" for size in sizes]
    learning_curves(every, by_size, {"global": BLUE, "by batch": RED}, *titles)
    return figure


@styled
def covariate_shift(data: Data) -> Figure:
    names = list(data["summary"]["layers"])
    figure, every = panels(len(names), 9.5, 5.8, rows=2)
    upper, lower = every[: len(names)], every[len(names) :]
    all_ends = []
    for above, below, name in zip(upper, lower, names, strict=True):
        ends = []
        for layer, colour in zip(data["summary"]["layers"][name], LAYERS, strict=False):
            number, means, quantiles = layer["layer"], layer["activated_chosen"], layer["quantiles"]
            above.plot(
                range(1, len(means) + 1), means, color=colour, marker="o", markersize=2.5, label=f"layer {number}"
            )
            ends.append((len(means), means[-1], str(number), colour))
            below.plot([number] * 2, quantiles[::4], color=colour, linewidth=1.2)
            below.plot([number] * 2, quantiles[1:4:2], color=colour, linewidth=5, solid_capstyle="butt")
            below.plot([number], quantiles[2:3], "_", color=BLACK, markersize=9)
        for axes in (above, below):
            axes.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
        epoch_ticks(above, ends[0][0] if ends else 1)
        all_ends.append(ends)
        above.set(title=name if name != "none" else "no normalisation", xlabel="epoch")
        below.set(xlabel="layer", xticks=range(2, 10))
    for row in (upper, lower):
        share_height(row)
    for above, ends in zip(upper, all_ends, strict=True):
        label_ends(above, ends)
    upper[0].set_ylabel("mean input of one unit\nin layers 2 to 9")
    lower[0].set_ylabel("mean inputs of all units,\nlast epoch: 5 to 95 %")
    return figure


@styled
def convergence(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.0, 3.2)
    learning_curves([left], [data["summary"]["curves"]], {"NormProp": BLUE, "BatchNorm": RED}, ACCURACY)
    found = data["summary"]["differences"]
    right.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
    if all(point["runs"] for point in found):
        bars(right, range(1, len(found) + 1), found, BLACK, "difference")
    right.set(xlabel="epoch", title="NormProp less BatchNorm, points")
    epoch_ticks(right, len(found))
    return figure


@styled
def batch_size(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    sizes, found = data["summary"]["sizes"], data["summary"]["curves"]
    colours = dict(zip((f"NormProp, batch {size}" for size in sizes["NormProp"]), COLOURS, strict=False))
    short = {label.removeprefix("NormProp, "): colour for label, colour in colours.items()}
    normprop = {label.removeprefix("NormProp, "): curve for label, curve in found.items()}
    learning_curves([left], [normprop], short, f"{ACCURACY}: NormProp")
    ends = []
    for name, colour in (("NormProp", BLUE), ("BatchNorm", RED)):
        tried = {size: found[f"{name}, batch {size}"] for size in sizes[name]}
        against(right, tried, colour, name)
        ends += [(250, tried[250]["final"]["mean"], name, colour)] if tried[250]["final"]["runs"] else []
    right.set(xlabel="batch size", title="after the last epoch")
    right.set_xticks(sizes["NormProp"], [str(size) for size in sizes["NormProp"]])
    right.set_xticks([], minor=True)
    percent(right)
    label_ends(right, ends)
    return figure


@styled
def results(data: Data) -> Figure:
    sets = data["summary"]["sets"]
    figure, (axes,) = panels(1, 7.6, 1.3 + 0.55 * len(sets))
    for i, (_, found) in enumerate(sets.items()):
        for shift, name, colour in ((-0.14, "NormProp", BLUE), (0.14, "BatchNorm", RED)):
            ours, paper = found["ours"][name], found["paper"] and found["paper"][name]
            if ours["runs"]:
                reach = [[ours["reach"] or 0.0]]
                axes.errorbar([ours["mean"]], [i + shift], xerr=reach, fmt="o", color=colour, capsize=3, label=name)
            if paper:
                axes.plot([paper], [i + shift], "o", color=colour, markerfacecolor="white")
        if not any(found["ours"][name]["runs"] for name in found["ours"]):
            why = "diverged" if any(found["NormProp less BatchNorm"]["diverged"]) else "not run: no data"
            axes.text(0.99, i, why, color=GREY, va="center", ha="right", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(sets)), list(sets))
    axes.set(xlim=(0, None), ylim=(len(sets) - 0.5, -0.5), title="Test error, %")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("filled: ours, with 95 % intervals; hollow: the paper's, at full scale")
    axes.text(1.0, 1.02, "BatchNorm", color=RED, ha="right", va="bottom", transform=axes.transAxes)
    axes.text(0.84, 1.02, "NormProp", color=BLUE, ha="right", va="bottom", transform=axes.transAxes)
    return figure


@styled
def speed(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.0, 2.8)
    measured, summary = data["measured"], data["summary"]
    for i, (name, colour) in enumerate((("NormProp", BLUE), ("BatchNorm", RED))):
        times = [1000.0 * s for s in measured["seconds"][name]]
        left.plot(times, [i] * len(times), "o", color=colour, alpha=0.5, markersize=5, label=name)
        left.plot([1000.0 * summary["median_seconds"][name]] * 2, [i - 0.25, i + 0.25], color=colour)
    left.set(title="One step, ms (bar: median)", ylim=(1.6, -0.6), xlim=(0, None))
    left.set_yticks([0, 1], ["NormProp", "BatchNorm"])
    left.tick_params(axis="y", length=0)
    right.plot(summary["ratios"], range(1, len(summary["ratios"]) + 1), "o", color=BLACK, markersize=4, label="ratio")
    right.axvline(summary["ratio"], color=BLACK, linewidth=1.2)
    right.axvline(summary["paper"], color=GREY, linewidth=1.2, linestyle=":")
    right.set_xlabel(f"median {summary['ratio']:.3f}; dotted: the paper, {summary['paper']:.3f}")
    right.yaxis.get_major_locator().set_params(integer=True)
    right.set(title="NormProp / BatchNorm", ylabel="round")
    return figure


STARTS = {"gamma = 1/1.21": BLUE, "gamma = 1": RED, "exact, beta = 0": ORANGE, "exact, beta = gamma": GREEN}


@styled
def jacobian_factor(data: Data) -> Figure:
    figure, (left, middle, right) = panels(3, 11.5, 3.4)
    for axes, what, title in (
        (left, "std", "Start: std of a unit"),
        (middle, "gradient_std", "Start: std of the gradient"),
    ):
        axes.set_yscale("log")
        ends = []
        for label, colour in STARTS.items():
            style = {"linestyle": (0, (6, 6)) if label == "exact, beta = 0" else "-"}  # it starts where gamma = 1 does
            for run in data["measured"][label]:  # a line for each seed
                layers = range(1, len(run[what]) + 1)
                axes.plot(layers, run[what], color=colour, linewidth=1, label=label, **style)
            ends.append((layers[-1], run[what][-1], label, colour))
        axes.set(title=title, xlabel="layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_minor_formatter("")
        if what == "std":
            label_ends(axes, ends)
    learning_curves([right], [data["summary"]["curves"]], STARTS, ACCURACY)
    return figure


@styled
def optimizers(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    best, found = data["summary"]["best"], data["summary"]["curves"]
    colours = dict(zip(best, (RED, BLUE, GREEN), strict=True))
    shown = {name: found[label] for name, label in best.items()}
    learning_curves([left], [shown], colours, f"{ACCURACY}, best rate")
    for name, colour in colours.items():
        against(right, {rate: found[label] for rate, label in data["summary"]["rates"][name]}, colour, name)
    right.set(xlabel="learning rate (cross: diverged)", title="after the last epoch")
    percent(right)
    return figure


@styled
def dropout(data: Data) -> Figure:
    figure, every = panels(2, 8.6, 3.2)
    found, names = data["summary"]["curves"], ("NormProp", "BatchNorm")
    by_name = [{label.partition(", ")[2]: c for label, c in found.items() if label.startswith(n)} for n in names]
    colours = {"without": BLUE, "with dropout": RED}
    learning_curves(every, by_name, colours, *(f"{ACCURACY}: {name}" for name in names))
    return figure


@styled
def activations(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    colours = dict(zip(data["summary"]["curves"], (BLUE, RED, GREEN, PINK, ORANGE), strict=True))
    learning_curves([left], [data["summary"]["curves"]], colours, ACCURACY)
    rows = [(label, curve["final"], colours[label]) for label, curve in data["summary"]["curves"].items()]
    final_dots(right, rows, "after the last epoch")
    right.set_xlim(max(right.get_xlim()[0], 0.0), min(right.get_xlim()[1], 100.0))
    return figure
