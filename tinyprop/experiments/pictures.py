"""The pictures of the experiments. Lines are labelled where they end; bars and bands are 95 % intervals over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ..plots import COLOURS, GREY, panels, styled
from .points import Data

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS
LAYERS = [matplotlib.colormaps["viridis"](0.9 * i / 7) for i in range(8)]  # the second layer dark, the last one light
GAP = 0.075  # between labels, as a part of the height of a panel


def reaches(found: Sequence[Data]) -> list[float]:
    return [item["reach"] or 0.0 for item in found]


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Names to the right of the last points (x, y) of lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    heights: list[float] = []
    for _, y, _, _ in sorted(ends, key=lambda end: end[1]):
        height = (y - low) / (high - low)
        heights.append(max(height, heights[-1] + GAP) if heights else height)
    down = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for (_, _, text, colour), height in zip(sorted(ends, key=lambda end: end[1]), heights, strict=True):
        axes.text(1.02, height - down, text, color=colour, va="center", fontsize=9, transform=axes.transAxes)


def learning_curves(axes: Any, found: Mapping[str, Data], colours: Mapping[str, Any], title: str) -> None:
    """Accuracy after each epoch, with intervals; names are the keys of `colours`, the others are not drawn."""
    ends = []
    for i, (label, colour) in enumerate(colours.items()):
        points = found[label]["accuracy"] if label in found else []
        if not points:
            continue
        means = [point["mean"] for point in points]
        epochs = [e + 0.04 * (i - (len(colours) - 1) / 2) for e in range(1, len(points) + 1)]  # so that bars are seen
        axes.errorbar(
            epochs, means, reaches(points), color=colour, marker="o", markersize=3, capsize=2, elinewidth=1, label=label
        )
        ends.append((epochs[-1], means[-1], label, colour))
    axes.set(xlabel="epoch", title=title)
    epoch_ticks(axes)
    label_ends(axes, ends)


def epoch_ticks(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)


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
    figure, every = panels(2, 8.0, 3.2, sharey=True)
    for axes, size in zip(every, (50, 100), strict=True):
        colours = {f"global, batch {size}": BLUE, f"batch, batch {size}": RED}
        learning_curves(axes, data["summary"]["curves"], colours, f"{ACCURACY}, batches of {size}")
    return figure


@styled
def covariate_shift(data: Data) -> Figure:
    names = list(data["summary"]["layers"])
    figure, every = panels(len(names), 9.5, 5.8, rows=2)
    for axes, below, name in zip(every, every[len(names) :], names, strict=False):
        layers = data["summary"]["layers"][name]
        for layer, colour in zip(layers, LAYERS, strict=True):
            shown = layer["activated_chosen"]
            axes.plot(range(1, len(shown) + 1), shown, color=colour, marker="o", markersize=2.5)
            middle, inner, outer = layer["quantiles"][2], layer["quantiles"][1:4:2], layer["quantiles"][::4]
            below.plot([layer["layer"]] * 2, outer, color=colour, linewidth=1.2)
            below.plot([layer["layer"]] * 2, inner, color=colour, linewidth=5, solid_capstyle="butt")
            below.plot([layer["layer"]], [middle], "_", color=BLACK, markersize=9)
        if layers:
            ends = [
                (0.0, layer["activated_chosen"][-1], f"{layer['layer']}", c)
                for layer, c in zip(layers, LAYERS, strict=True)
            ]
            label_ends(axes, ends)
        axes.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
        below.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
        axes.set(title=name, xlabel="epoch")
        epoch_ticks(axes)
        below.set(xlabel="layer", xticks=range(2, 10))
    every[0].set_ylabel("mean input of one unit\nin layers 2 to 9")
    every[len(names)].set_ylabel("mean inputs of all units,\nlast epoch: 5 to 95 %")
    return figure


@styled
def convergence(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.0, 3.2)
    learning_curves(left, data["summary"]["curves"], {"NormProp": BLUE, "BatchNorm": RED}, ACCURACY)
    found = data["summary"]["differences"]
    right.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
    means = [point["mean"] for point in found]
    if all(mean is not None for mean in means):
        right.errorbar(range(1, len(found) + 1), means, reaches(found), fmt="o-", color=BLACK, markersize=3, capsize=2)
    right.set(xlabel="epoch", title="NormProp less BatchNorm, points")
    epoch_ticks(right)
    return figure


@styled
def batch_size(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    sizes = data["summary"]["sizes"]
    colours = dict(zip((f"batch {size}" for size in sizes["NormProp"]), COLOURS, strict=False))
    found = {label.removeprefix("NormProp, "): curve for label, curve in data["summary"]["curves"].items()}
    learning_curves(left, found, colours, f"{ACCURACY}: NormProp")
    for name, colour in (("NormProp", BLUE), ("BatchNorm", RED)):
        shown = [(size, data["summary"]["curves"][f"{name}, batch {size}"]["final"]) for size in sizes[name]]
        shown = [(size, item) for size, item in shown if item["runs"]]
        means, errors = [item["mean"] for _, item in shown], reaches([item for _, item in shown])
        right.errorbar(
            [size for size, _ in shown], means, errors, fmt="o-", color=colour, markersize=4, capsize=3, label=name
        )
        if shown:
            right.annotate(
                name, (shown[-1][0], means[-1]), xytext=(6, 0), textcoords="offset points", color=colour, va="center"
            )
    right.set(xscale="log", xlabel="batch size", title="after the last epoch")
    right.set_xticks(sizes["NormProp"], [str(size) for size in sizes["NormProp"]])
    right.set_xticks([], minor=True)
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
            axes.text(
                0.99, i, "not run: no data", color=GREY, va="center", ha="right", transform=axes.get_yaxis_transform()
            )
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
    top = right.get_xaxis_transform()
    right.text(summary["ratio"], 1.0, " median", transform=top, va="top", fontsize=9)
    right.text(summary["paper"], 0.0, " the paper", transform=top, va="bottom", color=GREY, fontsize=9)
    right.set(title="NormProp / BatchNorm", ylabel="round")
    return figure


GAMMAS = {"γ = 1/1.21": BLUE, "γ = 1": RED, "exact, β = 0": ORANGE, "exact, β = γ": GREEN}


@styled
def jacobian_factor(data: Data) -> Figure:
    figure, (left, middle, right) = panels(3, 11.5, 3.4)
    for axes, what, title in (
        (left, "std", "At the start: output, std"),
        (middle, "gradient_std", "At the start: gradient, std"),
    ):
        axes.set_yscale("log")
        for label, found in data["measured"].items():
            style = {"linestyle": "--"} if label == "exact, β = 0" else {}  # it starts where γ = 1 does
            axes.plot(range(1, len(found[what]) + 1), found[what], color=GAMMAS[label], label=label, **style)
        axes.set(title=title, xlabel="layer")
    learning_curves(right, data["summary"]["curves"], GAMMAS, ACCURACY)
    return figure


@styled
def optimizers(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    best = data["summary"]["best"]
    colours = dict(zip(best, (RED, BLUE, GREEN), strict=True))
    found = {name: data["summary"]["curves"][label] for name, label in best.items() if label}
    learning_curves(left, found, colours, f"{ACCURACY}, best rate")
    for name, colour in colours.items():
        tried = [(rate, data["summary"]["curves"][label]["final"]) for rate, label in data["summary"]["rates"][name]]
        tried = [(rate, item) for rate, item in tried if item["runs"]]
        means, errors = [item["mean"] for _, item in tried], reaches([item for _, item in tried])
        right.errorbar(
            [rate for rate, _ in tried], means, errors, fmt="o-", color=colour, markersize=4, capsize=3, label=name
        )
    right.set(xscale="log", xlabel="learning rate", title="after the last epoch")
    return figure


@styled
def dropout(data: Data) -> Figure:
    figure, every = panels(2, 8.6, 3.2, sharey=True)
    for axes, name in zip(every, ("NormProp", "BatchNorm"), strict=True):
        found = {
            label.removeprefix(f"{name}, "): curve
            for label, curve in data["summary"]["curves"].items()
            if label.startswith(name)
        }
        learning_curves(axes, found, {"without": BLUE, "with dropout": RED}, f"{ACCURACY}: {name}")
    return figure


@styled
def activations(data: Data) -> Figure:
    figure, (left, right) = panels(2, 8.6, 3.4)
    colours = dict(zip(data["summary"]["curves"], (BLUE, RED, GREEN, PINK, ORANGE), strict=True))
    learning_curves(left, data["summary"]["curves"], colours, ACCURACY)
    rows = [(label, curve["final"], colours[label]) for label, curve in data["summary"]["curves"].items()]
    final_dots(right, rows, "after the last epoch")
    return figure
