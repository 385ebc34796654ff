"""A figure for two families of claims, and its numbers beside it. This module loads matplotlib."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import moments
from ..engine.arrays import HostArray
from ..estimate import Estimate
from ..files import write_json
from ..plots import GRAY, panels, save, styled
from . import general_claims, jacobian_claims
from .closed_forms import JACOBIAN_FACTOR, fixed_point, spectrum_density, spectrum_edges
from .depth_claims import depth_tally
from .general_claims import exact_unit, gain
from .jacobian_claims import nonzero, spectrum
from .monte_carlo import Sampler, each

BLUE, RED, GREEN, SKY, BLACK = (f"C{i}" for i in (0, 1, 2, 5, 6))  # of the style of all figures


class Drawing:
    """A figure of two panels, and the numbers in it."""

    def __init__(self, width: float = 9.0, height: float = 4.0):
        self.figure, (self.left, self.right) = panels(2, width, height)
        self.data: dict[str, Any] = {}

    def curve(self, axes: Any, name: str, x: Any, y: Any, color: str) -> None:
        axes.plot(x, y, color=color)
        self.data[name] = {"x": [float(a) for a in x], "y": [float(b) for b in y]}

    def points(self, axes: Any, name: str, x: Any, estimates: Sequence[Estimate], color: str) -> None:
        means, errors = [e.mean for e in estimates], [e.half_width for e in estimates]
        axes.errorbar(x, means, errors, fmt="o", markersize=4, elinewidth=1.2, capsize=2, color=color, zorder=3)
        self.data[name] = {"x": [float(a) for a in x], "y": means, "half_width": errors}


@styled
def spectrum_figure(mc: Sampler) -> Drawing:
    """All singular values of a square layer's Jacobian, and the edges for other shapes."""
    drawing, width = Drawing(10.0, 4.1), 384
    left, right = drawing.left, drawing.right
    values = nonzero(spectrum(np.random.default_rng(mc.seed), width, width))
    drawing.data["singular values"] = values.tolist()
    left.hist(values, bins=45, density=True, color=SKY, alpha=0.6)
    inside = np.linspace(*spectrum_edges(1, 1), 300)
    density = spectrum_density(inside, 1, 1)
    drawing.curve(left, "Marchenko-Pastur law", inside, density, BLUE)
    top = max(density) * 1.45
    left.bar([0.0], [top], width=0.06, color=SKY, alpha=0.9)
    left.text(0.07, top * 0.99, "half of them are 0", color=BLUE, va="top", fontsize=9)
    left.axvline(JACOBIAN_FACTOR, color=RED, linewidth=1.6, ymax=0.98)
    note = "1.21: the root mean\nsquare of them all"
    left.text(JACOBIAN_FACTOR + 0.05, top * 0.98, note, color=RED, va="top", fontsize=9)
    left.text(2.2, top * 0.66, "Marchenko-\nPastur law", color=BLUE, fontsize=9)
    left.set(title="Singular values of one layer's Jacobian", xlabel="singular value, square layer", ylim=(0, top))
    left.set_yticks([])
    left.spines["left"].set_visible(False)
    ratios, dense = [0.25, 0.5, 1.0, 1.5, 2.5, 3.5], np.linspace(0.05, 4.0, 200)

    def ends(random: np.random.Generator, ratio: float) -> HostArray:
        return nonzero(spectrum(random, int(192 * ratio), 192))[[-1, 0]]

    draws = {f"edges {ratio}": each(partial(ends, ratio=ratio)) for ratio in ratios}
    tallies = [mc.tally(name, draw, samples=8, cost=10**5, block=1) for name, draw in draws.items()]
    for i, (name, color) in enumerate((("smallest but 0", GREEN), ("largest", BLUE))):
        drawing.curve(right, name, dense, [spectrum_edges(ratio, 1)[i] for ratio in dense], color)
        drawing.points(right, f"{name}, measured", ratios, [tally.mean(i) for tally in tallies], color)
    right.axhline(JACOBIAN_FACTOR, color=RED, linewidth=1, linestyle=":")
    right.text(4.0, JACOBIAN_FACTOR + 0.06, "1.21", color=RED, ha="right", fontsize=9)
    right.text(1.9, 3.75, "largest", color=BLUE, ha="right")
    right.text(3.1, 0.08, "smallest but 0", color=GREEN, fontsize=9)
    right.set(title="The edges, for other shapes", xlabel="units / inputs", ylim=(0, 4.6))
    return drawing


@styled
def beyond_figure(mc: Sampler) -> Drawing:
    """The gain of exact NormProp against beta/gamma, and where deep networks settle against gamma."""
    drawing, t = Drawing(), np.linspace(-1.0, 3.0, 161)
    left, right = drawing.left, drawing.right
    betas, depth, width = [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0], 30, 96
    drawing.curve(left, "gain", t, moments.gaussian("relu", t, 1.0).jacobian_factor ** 2, BLUE)
    few = replace(mc, samples=4000)  # so few that their error bars can be seen
    gains = [gain(few, f"gain {beta}", exact_unit("relu", 1.0, beta)) for beta in betas]
    drawing.points(left, "gain, measured", betas, gains, BLACK)
    left.axhline(1.0, color=GRAY, linewidth=1, linestyle=":")
    left.text(-1.0, 1.02, "1: only a line has it", color=GRAY, fontsize=9)
    for beta, name in ((0.0, "the paper"), (1.0, r"$\beta = \gamma$")):
        y = moments.gaussian("relu", beta, 1.0).jacobian_factor ** 2
        left.plot([beta], [y], "o", color=RED)
        left.text(beta + 0.12, y + 0.03, f"{name}: {y:.3f}", color=RED)
    left.set(title="Mean-square gain of exact NormProp (ReLU)", xlabel=r"$\beta / \gamma$", ylim=(0.9, 2.4))
    gammas, dense = [0.7, 0.8, 0.9, 0.95], np.linspace(0.5, 1.0, 200)
    drawing.curve(right, "settled", dense, [fixed_point(gamma) for gamma in dense], BLUE)
    settled = [depth_tally(mc, width, depth, samples=12, gamma=gamma).mean(depth - 1) for gamma in gammas]
    drawing.points(right, "settled, measured", gammas, settled, BLACK)
    right.plot([1.0 / JACOBIAN_FACTOR], [0.25], "o", color=RED, zorder=4)
    right.text(1.0 / JACOBIAN_FACTOR, 0.31, "Jacobian factor:\n1/4 exactly", color=RED, ha="right")
    right.set(title=r"Where a deep network settles: $E\,u^2$", xlabel=r"$\gamma$", ylim=(0, 1.02))
    note = r"curve: $1/(1+\tau)^2$" + f"\npoints: layer {depth}, width {width}, 95 %"
    right.text(0.5, 0.95, note, color=GRAY, fontsize=8.5, va="top")
    return drawing


FIGURES: dict[str, tuple[str, Callable[[Sampler], Drawing]]] = {  # by module of claims: file name, and function
    jacobian_claims.__name__: ("jacobian-spectrum", spectrum_figure),
    general_claims.__name__: ("beyond", beyond_figure),
}


def draw_figures(modules: Collection[str], mc: Sampler, folder: Path) -> list[Path]:
    """Draw the figures of some modules of claims, each with its numbers beside it."""
    paths = []
    for module, (name, draw) in FIGURES.items():
        if module in modules:
            drawing = draw(mc)
            paths.append(save(drawing.figure, folder / f"{name}.png"))
            write_json(folder / f"{name}.json", {"seed": mc.seed, **drawing.data})
    return paths
