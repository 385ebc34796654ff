"""A figure for two groups of claims, and its numbers beside it. This module loads matplotlib."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import moments
from ..report.estimate import Estimate
from ..report.files import write_json
from ..report.plots import COLORS, GRAY, panels, save, styled
from .closed_forms import JACOBIAN_FACTOR, fixed_point, spectrum_density, spectrum_edges
from .depth_claims import layer_by_layer
from .jacobian_claims import nonzero, spectrum
from .moment_claims import exact_unit, gain
from .monte_carlo import Sampler, each

BLUE, RED, GREEN, *_, SKY, BLACK = COLORS


class Drawing:
    """A figure of two panels, and the numbers in it."""

    def __init__(self) -> None:
        self.figure, (self.left, self.right) = panels(2, 10.0, 4.1)
        self.data: dict[str, Any] = {}

    def add(self, axes: Any, name: str, x: Any, y: Any, color: str) -> None:
        """A curve, or points with error bars if y are estimates."""
        x = [float(a) for a in x]
        if not isinstance(y[0], Estimate):
            values = [float(a) for a in y]
            axes.plot(x, values, color=color, label=name)
            self.data[name] = {"x": x, "y": values}
            return
        means = [estimate.mean for estimate in y]
        half_widths = [estimate.half_width for estimate in y]
        style = {"fmt": "o", "markersize": 4, "elinewidth": 1.2, "capsize": 2, "zorder": 3}
        axes.errorbar(x, means, half_widths, color=color, label=name, **style)
        self.data[name] = {"x": x, "y": means, "half_width": half_widths}

    def described(self) -> str:
        """What the panels show, in words."""
        sentences = [f"Two panels. {self.left.get_title('left')}; {self.right.get_title('left')}."]
        for name, data in self.data.items():
            if isinstance(data, list):
                sentences.append(f"{len(data)} {name}, {min(data):.3g} to {max(data):.3g}.")
            else:
                x, y = data["x"], data["y"]
                sentences.append(f"{name}: {y[0]:.3g} at {x[0]:.3g} to {y[-1]:.3g} at {x[-1]:.3g}.")
        return " ".join(sentences)


@styled
def spectrum_figure(mc: Sampler) -> Drawing:
    """All singular values of a square layer's Jacobian, and the edges for other shapes."""
    drawing = Drawing()
    draw_spectrum(drawing, mc, width=384)
    draw_edges(drawing, mc)
    return drawing


def draw_spectrum(drawing: Drawing, mc: Sampler, width: int) -> None:
    axes = drawing.left
    values = nonzero(spectrum(np.random.default_rng(mc.seed), width, width))
    drawing.data["singular values"] = values.tolist()
    label = "one layer, without the half that is 0"
    axes.hist(values, bins=45, density=True, color=SKY, alpha=0.6, label=label)
    inside = np.linspace(*spectrum_edges(1, 1), 300)
    drawing.add(axes, "Marchenko-Pastur law", inside, spectrum_density(inside, 1, 1), BLUE)
    label = "1.21, the root mean square of all"
    axes.axvline(JACOBIAN_FACTOR, color=RED, linewidth=1.6, label=label)
    axes.set(
        title="Singular values of one layer's Jacobian",
        xlabel="singular value, square layer",
        ylim=(0, 1),
    )


def draw_edges(drawing: Drawing, mc: Sampler) -> None:
    """The smallest and the largest nonzero singular value against units / inputs."""
    axes = drawing.right
    ratios = [0.25, 0.5, 1.0, 1.5, 2.5, 3.5]
    dense = np.linspace(0.05, 4.0, 200)

    def ends(random: np.random.Generator, ratio: float) -> dict[str, float]:
        values = nonzero(spectrum(random, int(192 * ratio), 192))
        return {"smallest nonzero": values[-1], "largest": values[0]}

    tallies = []
    for ratio in ratios:
        drawn = each(partial(ends, ratio=ratio))
        tallies.append(mc.tally(f"edges {ratio}", drawn, samples=8, cost=10**5, block=1))
    for i, (name, color) in enumerate((("smallest nonzero", GREEN), ("largest", BLUE))):
        exact = [spectrum_edges(ratio, 1)[i] for ratio in dense]
        measured = [tally.mean(name) for tally in tallies]
        drawing.add(axes, name, dense, exact, color)
        drawing.add(axes, f"{name}, measured", ratios, measured, color)
    axes.axhline(JACOBIAN_FACTOR, color=RED, linewidth=1, linestyle=":", label="1.21")
    axes.set(title="The edges, for other shapes", xlabel="units / inputs", ylim=(0, 6))


@styled
def beyond_figure(mc: Sampler) -> Drawing:
    """The gain of exact NormProp against beta/gamma, and where deep networks settle against
    gamma."""
    drawing = Drawing()
    draw_gains(drawing, mc)
    draw_fixed_points(drawing, mc, depth=30, width=96)
    return drawing


def draw_gains(drawing: Drawing, mc: Sampler) -> None:
    axes = drawing.left
    t = np.linspace(-1.0, 3.0, 161)
    drawing.add(axes, "exact", t, moments.gaussian("relu", t, 1.0).jacobian_factor ** 2, BLUE)
    few = replace(mc, samples=4000)  # so few that their error bars can be seen
    betas = [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
    gains = [gain(few, f"gain {beta}", exact_unit("relu", 1.0, beta)) for beta in betas]
    drawing.add(axes, "measured, 95 %", betas, gains, BLACK)
    for beta, name in ((0.0, r"$\beta = 0$, the paper"), (1.0, r"$\beta = \gamma$")):
        y = moments.gaussian("relu", beta, 1.0).jacobian_factor ** 2
        axes.plot([beta], [y], "o", color=RED)
        axes.text(beta + 0.12, y + 0.03, f"{name}: {y:.3f}", color=RED)
    axes.axhline(1.0, color=GRAY, linewidth=1, linestyle=":", label="1: only a line has it")
    axes.set(
        title="Mean-square gain of exact NormProp (ReLU)",
        xlabel=r"$\beta / \gamma$",
        ylim=(0.9, 2.4),
    )


def draw_fixed_points(drawing: Drawing, mc: Sampler, depth: int, width: int) -> None:
    axes = drawing.right
    dense = np.linspace(0.5, 1.0, 200)
    drawing.add(axes, r"$1/(1+\tau)^2$", dense, [fixed_point(gamma) for gamma in dense], BLUE)
    gammas = [0.7, 0.8, 0.9, 0.95]
    settled = []
    for gamma in gammas:
        tally = layer_by_layer(mc, width, depth, networks=12, gamma=gamma)
        settled.append(tally.mean(f"E u^2 {depth}"))
    drawing.add(axes, f"layer {depth}, width {width}, 95 %", gammas, settled, BLACK)
    label = "Jacobian factor: 1/4 exactly"
    axes.plot([1.0 / JACOBIAN_FACTOR], [0.25], "o", color=RED, zorder=4, label=label)
    axes.set(title=r"Where a deep network settles: $E\,u^2$", xlabel=r"$\gamma$", ylim=(0, 1.02))


FIGURES = {  # and the claims that they belong to
    "jacobian-spectrum": (spectrum_figure, {f"C{i}" for i in range(12, 20)}),
    "beyond": (beyond_figure, {f"G{i}" for i in range(1, 7)}),
}


@styled
def draw_figures(ids: Collection[str], mc: Sampler, folder: Path) -> list[Path]:
    """Draw the figures of some claims, each with its numbers beside it."""
    paths = []
    for name, (draw, its_claims) in FIGURES.items():
        if its_claims & set(ids):
            drawing = draw(mc)
            drawing.left.legend()
            drawing.right.legend()
            path = folder / f"{name}.png"
            paths.append(save(drawing.figure, path, drawing.described()))
            write_json(folder / f"{name}.json", {"seed": mc.seed, **drawing.data})
    return paths
