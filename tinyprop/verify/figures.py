"""One picture for each family of claims, to be put into a lecture."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..plots import COLOURS, GREY, panels, save, styled
from . import figure_data
from .figure_data import Data
from .monte_carlo import Sampler

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLOURS


def dots(axes: Any, data: Data, colour: str, **style: Any) -> None:
    """Measured points with their error bars."""
    style = {"fmt": "o", "markersize": 4, "elinewidth": 1.2, "capsize": 2, "color": colour, "zorder": 3, **style}
    axes.errorbar(data["x"], data["y"], data["error"], **style)


def line(axes: Any, data: Data, colour: str, **style: Any) -> None:
    axes.plot(data["x"], data["y"], color=colour, **style)


def label(axes: Any, x: float, y: float, text: str, colour: str, **style: Any) -> None:
    axes.text(x, y, text, color=colour, **style)


@styled
def moments_figure(data: Data) -> Figure:
    figure, (left, middle, right) = panels(3, 10.5, 3.6)
    line(left, data["mean"], BLUE)
    dots(left, data["measured mean"], BLACK)
    left.set(title="Mean $c_2(a)$", xlabel="slope $a$ of PReLU")
    label(left, 2.2, 1.15, "curve: exact\npoints: 1000 samples, 99 %", GREY, ha="right", va="top", fontsize=8.5)
    line(middle, data["std"], BLUE)
    dots(middle, data["measured std"], BLACK)
    middle.set(title="Standard deviation $c_1(a)$", xlabel="slope $a$ of PReLU", ylim=(0, None))
    line(right, data["factor"], RED)
    right.set(title="Jacobian factor", xlabel="slope $a$ of PReLU", ylim=(0.9, 1.75))
    for a, text, shift, align in (
        (-1.0, "$|x|$", 0.02, "center"),
        (0.0, "ReLU 1.2112", 0.02, "left"),
        (1.0, "identity 1", -0.06, "center"),
    ):
        at = min(range(len(data["factor"]["x"])), key=lambda i: abs(data["factor"]["x"][i] - a))
        y = data["factor"]["y"][at]
        right.plot([a], [y], "o", color=BLACK, markersize=4)
        label(right, a + (0.08 if align == "left" else 0.0), y + shift, text, BLACK, ha=align, fontsize=9)
    return figure


@styled
def constants_figure(data: Data) -> Figure:
    figure, (axes,) = panels(1, 7.0, 3.8)
    off = [100.0 * (sampled / exact - 1.0) for sampled, exact in zip(data["sampled"], data["exact"], strict=True)]
    order = sorted(range(len(off)), key=lambda i: off[i])
    axes.axvline(0.0, color=BLACK, linewidth=1)
    for row, i in enumerate(order):
        relu = data["names"][i] == "relu"
        axes.plot([0.0, off[i]], [row, row], color=RED if relu else BLUE, linewidth=1.5)
        axes.plot([off[i]], [row], "o", color=RED if relu else BLUE)
        if relu:
            text = f"  {data['sampled'][i]:.6f} sampled, {data['exact'][i]:.6f} exact"
            label(axes, off[i], row, text, RED, va="center", fontsize=9)
    axes.set_yticks(range(len(order)), [data["names"][i] for i in order])
    axes.set(title="NFNets sampled their gains $1/c_1$: how far off they are", xlabel="relative error, %")
    axes.set_xlim(-0.005, 0.13)
    return figure


@styled
def correlations_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 9.0, 4.2)
    names = {
        "0.0": ("ReLU", BLUE, (-0.8, -0.27)),
        "0.25": ("PReLU, $a = 1/4$", GREEN, (-0.28, -0.5)),
        "-1.0": ("$|x|$", RED, (-0.86, 0.42)),
    }
    left.plot([-1, 1], [-1, 1], color=GREY, linewidth=1, linestyle=":")
    for a, (name, colour, place) in names.items():
        line(left, data["maps"][a], colour)
        dots(left, data["measured maps"][a], colour)
        label(left, *place, name, colour)
    label(left, -0.82, -0.97, "unchanged", GREY, fontsize=9)
    left.set(title="Correlation after the activation", xlabel=r"correlation $\rho$ before", ylim=(-1.05, 1.05))
    line(right, data["kernel"], BLUE)
    dots(right, data["measured kernel"], BLACK)
    right.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
    label(right, -0.98, 0.04, "the paper: about 0", GREY, fontsize=9)
    right.plot([1.0], data["kernel"]["y"][-1:], "o", color=RED, zorder=4)
    label(right, 0.93, data["kernel"]["y"][-1], "diagonal: 1.47", RED, ha="right", va="center")
    right.set(title=r"$E[JJ^T]_{ij}$, arc-cosine kernel", xlabel=r"cosine $\rho$ of two rows")
    for axes in (left, right):
        axes.set_xticks([-1.0, -0.5, 0.0, 0.5, 1.0])
    return figure


@styled
def canonical_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 9.0, 3.9)
    line(left, data["error"], BLUE)
    dots(left, data["measured error"], BLACK)
    left.set_xscale("log")
    left.axvline(1.0, color=GREY, linewidth=1, linestyle=":")
    label(left, 0.93, 0.03, "square layer", GREY, rotation=90, va="bottom", ha="right", fontsize=9)
    left.set(title="Part of the covariance off the diagonal", xlabel="units / inputs", ylim=(0, 1))
    label(left, 0.034, 0.9, r"random rows: $\sqrt{(m-1)/(n+m-1)}$", BLUE, fontsize=9)
    dots(right, data["slack"], BLUE, linestyle="-")
    right.plot(data["simplex"]["x"], data["simplex"]["y"], "s-", color=GREEN, markersize=4)
    right.set_xscale("log")
    right.set(title="Canonical bound / error", xlabel="units / inputs", ylim=(0, None))
    label(right, 0.25, 3.55, "random rows", BLUE, ha="right")
    label(right, 0.034, 0.55, "simplex (and any two rows): equality", GREEN, fontsize=9)
    return figure


@styled
def spectrum_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 10.0, 4.1)
    left.hist(data["values"], bins=45, density=True, color=SKY, alpha=0.6)
    line(left, data["density"], BLUE)
    top = max(data["density"]["y"]) * 1.45
    left.bar([0.0], [top], width=0.06, color=SKY, alpha=0.9)
    label(left, 0.07, top * 0.99, "half of them are 0", BLUE, va="top", fontsize=9)
    left.axvline(data["rms"], color=RED, linewidth=1.6, ymax=0.98)
    label(left, data["rms"] + 0.05, top * 0.98, "1.21: the root mean\nsquare of them all", RED, va="top", fontsize=9)
    label(left, 2.2, top * 0.66, "Marchenko and\nPastur", BLUE, fontsize=9)
    left.set(
        title="Singular values of one layer's Jacobian", xlabel="singular value, square layer", yticks=[], ylim=(0, top)
    )
    left.spines["left"].set_visible(False)
    for name, colour in (("high", BLUE), ("low", GREEN)):
        line(right, data[name], colour)
        dots(right, data[f"measured {name}"], colour)
    dots(right, data["conv"], ORANGE, fmt="D", markersize=5)
    right.axhline(data["rms"], color=RED, linewidth=1, linestyle=":")
    label(right, 4.0, data["rms"] + 0.06, "1.21", RED, ha="right", fontsize=9)
    label(right, 1.9, 3.75, "largest", BLUE, ha="right")
    label(right, 3.1, 0.08, "smallest but 0", GREEN, fontsize=9)
    label(right, 2.0, 2.75, "diamonds: 3 x 3 convolutions", ORANGE, fontsize=9)
    right.set(title="The edges, for other shapes", xlabel="units / inputs", ylim=(0, 4.6))
    return figure


@styled
def depth_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 10.0, 4.2)
    colours = dict(zip(data["exact"], (RED, BLUE, GREEN), strict=True))
    for name, colour in colours.items():
        for axes, what in ((left, "variance"), (right, "mean square")):
            exact = {"x": data["layers"], "y": data["exact"][name][what]}
            line(axes, exact, colour, linewidth=1.2)
            dots(axes, data["measured"][name][what], colour, markersize=3, elinewidth=0.9, capsize=0)
    left.set_yscale("log")
    left.set(title="Variance of a unit over inputs", xlabel="layer", ylim=(8e-3, 10))
    last = data["layers"][-1]
    for axes in (left, right):
        axes.set_xticks([1, *range(5, last + 1, 5)])
    label(left, last - 4, 3.2, r"$\gamma = 1$: runs away", RED, ha="right")
    label(left, last, 0.62, r"exact, $\beta = \gamma$: stays", GREEN, ha="right")
    label(left, last, 0.04, r"$\gamma = 1/1.21$: dies", BLUE, ha="right")
    right.set(title="Mean square of the units' means", xlabel="layer", ylim=(-0.05, 0.45))
    label(right, last, 0.29, r"$\gamma = 1/1.21$: all that is left", BLUE, ha="right")
    label(
        right,
        0.5,
        0.43,
        f"lines: infinite width\npoints: 12 networks of width {data['width']}, 99 %",
        GREY,
        fontsize=8.5,
        va="top",
    )
    return figure


@styled
def pooling_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 9.0, 4.0)
    colours = {"max": BLUE, "avg": RED}
    for axes, what in ((left, "mean"), (right, "std")):
        for kind, colour in colours.items():
            line(axes, data[what][kind], colour)
            dots(axes, data[f"measured {what}"][kind], colour)
        axes.axhline(0.0 if what == "mean" else 1.0, color=GREY, linewidth=1, linestyle=":")
        axes.set(xlabel=r"correlation $\rho$ of the 9 pooled units")
    left.set(title="Mean after 3 x 3 pooling of normalised units")
    right.set(title="Standard deviation", ylim=(0, 1.5))
    label(left, 0.55, 1.2, "max", BLUE)
    label(left, 0.55, 0.06, "average", RED)
    label(right, 0.55, 1.4, "max", BLUE)
    label(right, 0.5, 0.58, "average", RED)
    label(right, 0.35, 1.02, "as the paper has it", GREY, fontsize=9)
    return figure


@styled
def training_figure(data: Data) -> Figure:
    figure, (axes,) = panels(1, 6.4, 3.9)
    line(axes, data["kurtosis"], BLUE)
    dots(axes, data["measured"], BLACK)
    axes.axhline(3.0, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    label(axes, 2.0, 3.05, "global normalisation of Gaussian data: 3", GREY, fontsize=9)
    label(axes, 16.0, 2.4, r"$3\,(B-1)/(B+1)$", BLUE)
    label(axes, 2.2, 0.93, r"two samples become $-1$ and $1$", BLACK, fontsize=9, va="top")
    axes.set(title="Fourth moment of batch-normalised data", xlabel="batch size $B$", ylim=(0.7, 3.3))
    sizes = [2, 4, 8, 16, 32, 64, 128]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    return figure


@styled
def beyond_figure(data: Data) -> Figure:
    figure, (left, right) = panels(2, 9.0, 4.0)
    line(left, data["gain"], BLUE)
    dots(left, data["measured gain"], BLACK)
    left.axhline(1.0, color=GREY, linewidth=1, linestyle=":")
    label(left, -1.0, 1.02, "1: only a line has it", GREY, fontsize=9)
    for t, name in ((0.0, "the paper: 1.467"), (1.0, r"$\beta = \gamma$: 1.120")):
        y = min(zip(data["gain"]["x"], data["gain"]["y"], strict=True), key=lambda xy: abs(xy[0] - t))[1]
        left.plot([t], [y], "o", color=RED)
        label(left, t + 0.12, y + 0.03, name, RED)
    left.set(title="Mean-square gain of exact NormProp (ReLU)", xlabel=r"$\beta / \gamma$", ylim=(0.9, 2.4))
    line(right, data["settled"], BLUE)
    dots(right, data["measured"], BLACK)
    right.plot([data["factor"]], [0.25], "o", color=RED, zorder=4)
    label(right, data["factor"], 0.31, "Jacobian factor:\n1/4 exactly", RED, ha="right")
    right.set(title=r"Where a deep network settles: $E\,u^2$", xlabel=r"$\gamma$", ylim=(0, 1.02))
    label(
        right,
        0.5,
        0.95,
        r"curve: $1/(1+\tau)^2$" + f"\npoints: layer 30, width {data['width']}, 99 %",
        GREY,
        fontsize=8.5,
        va="top",
    )
    return figure


PICTURES: dict[str, tuple[str, Callable[[Sampler], Data], Callable[[Data], Figure]]] = {
    "moments": ("moments", figure_data.moments_data, moments_figure),
    "nfnets-constants": ("moments", figure_data.constants_data, constants_figure),
    "correlations": ("moments jacobian", figure_data.correlations_data, correlations_figure),
    "canonical-bound": ("canonical", figure_data.canonical_data, canonical_figure),
    "jacobian-spectrum": ("jacobian", figure_data.spectrum_data, spectrum_figure),
    "depth": ("depth", figure_data.depth_data, depth_figure),
    "pooling": ("pooling", figure_data.pooling_data, pooling_figure),
    "batch-normalisation": ("training", figure_data.training_data, training_figure),
    "beyond": ("beyond", figure_data.beyond_data, beyond_figure),
}


def draw_families(families: Collection[str], mc: Sampler, folder: Path) -> list[Path]:
    """Draw the pictures of some families, each with its numbers beside it."""
    paths = []
    for name, (belongs_to, measure, draw) in PICTURES.items():
        if set(belongs_to.split()) & set(families):
            data = measure(mc)
            paths.append(save(draw(data), folder / f"{name}.png"))
            (folder / f"{name}.json").write_text(json.dumps({"seed": mc.seed, **data}) + "\n", encoding="utf-8")
    return paths
