"""The figures of depth, of the comparison of normalisers, and of the demo."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..engine.arrays import HostArray
from ..report.plots import COLORS, GRAY, panels, styled
from ..theory.stacks import INSTRUMENTS
from .depth import factor


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


def describe_trainings(histories: Mapping[str, list[dict[str, float]]]) -> str:
    """The comparison of trainings in words."""
    sentences = ["Three panels, against the epoch: cross-entropy, test error, images in a second."]
    for name, history in histories.items():
        last = history[-1]
        sentences.append(
            f"{name}, epoch {last['epoch']}: loss {last['train_loss']:.3g}, "
            f"test error {last['test_error']:.1%}, {last['images_per_second']:,.0f} images/s."
        )
    return " ".join(sentences)


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


def describe_predictions(labels: HostArray, guesses: HostArray, classes: Sequence[str]) -> str:
    """The predictions in words."""
    wrong = [(classes[i], classes[k]) for i, k in zip(labels, guesses, strict=True) if i != k]
    words = f"{len(labels)} images with the class that a network gives them; {len(wrong)} are wrong"
    mistakes = ", ".join(f"{right} taken for {guess}" for right, guess in wrong)
    return f"{words}: {mistakes}." if wrong else f"{words}."


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


def describe_depth(networks: Mapping[str, Any], shown: Sequence[int]) -> str:
    """The figure of depth in words."""
    layers = next(iter(networks.values())).spread.shape[1]
    sentences = [
        f"Above, two panels over {layers} layers: the standard deviation of a unit over inputs, "
        "and the gradient relative to the last layer."
    ]
    for name, found in networks.items():
        (first, gradient), (last, _) = found.at(1), found.at(layers)
        sentences.append(
            f"{name}: standard deviation {first:.2f} in layer 1 and {last:.2f} in layer {layers}, "
            f"gradient {factor(gradient)} in layer 1."
        )
    places = ", ".join(map(str, shown))
    sentences.append(f"Below, the distributions of the pre-activations in layers {places}.")
    return " ".join(sentences)


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


def describe_comparison(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What instruments show, in words: the gradient of the first layer, all others of the last."""
    sentences = []
    for name, curves in found.items():
        place = 0 if name == "gradient" else -1
        layer = next(iter(curves.values())).at[place]
        values = [f"{label} {curve.points[place].mean:.3g}" for label, curve in curves.items()]
        sentences.append(f"{INSTRUMENTS[name]}. Layer {layer}: {', '.join(values)}.")
    return " ".join(sentences)


def _by_layer(axes: Any, name: str, curves: Mapping[str, Any]) -> None:
    """A line for theory, or a thin one between points where there is none. Where lines coincide,
    all are seen."""
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
