"""The figure of an experiment: levels and differences, with 95 % intervals over random seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..estimate import Estimate
from ..plots import GRAY, panels, styled
from .evidence import Comparison

Curves = Mapping[str, Mapping[Any, Estimate]]  # by name, and by number or text along the x-axis


def bars(estimates: Sequence[Estimate]) -> list[float]:
    """Half the intervals; a single value has none."""
    return [estimate.half_width if estimate.n > 1 else 0.0 for estimate in estimates]


def draw_levels(axes: Any, curves: Curves, form: str) -> None:
    for name, curve in curves.items():
        found = list(curve.values())
        means = [estimate.mean for estimate in found]
        axes.errorbar(list(curve), means, bars(found), fmt=form, label=name, markersize=3.5, capsize=2.5, elinewidth=1)
    places = [place for curve in curves.values() for place in curve]
    if not any(isinstance(place, str) for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    elif max(map(len, places)) > 8:
        for label in axes.get_xticklabels():
            label.set(rotation=30, rotation_mode="anchor", ha="right", fontsize=8)


def draw_differences(axes: Any, comparisons: Mapping[str, Comparison]) -> None:
    """From the top down, over a band of differences that do not matter; predictions are hollow."""
    measure = next(iter(comparisons.values())).measure
    for row, (name, comparison) in enumerate(comparisons.items()):
        found, fill = comparison.difference, "white" if name.endswith("predicted") else "black"
        style = {"fmt": "o", "color": "black", "markerfacecolor": fill, "capsize": 3, "elinewidth": 1.2}
        axes.errorbar([found.mean], [row], xerr=bars([found]), **style)
    axes.axvspan(-measure.margin, measure.margin, color=GRAY, alpha=0.15, linewidth=0)
    axes.axvline(0.0, color=GRAY, linewidth=1, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_yticks(range(len(comparisons)), list(comparisons))
    side = "right" if measure.better > 0 else "left"
    axes.set(title=f"{measure.name.capitalize()}: difference", ylim=(len(comparisons) - 0.5, -0.5))
    axes.set_xlabel(f"{measure.difference_unit} (better to the {side})".strip())


@styled
def draw(
    levels: Mapping[str, Curves],
    differences: Sequence[Mapping[str, Comparison]],
    x: str,
    form: str,
    paper: float | None,
) -> Figure:
    """A panel for each title of levels, all on one scale, with the paper's number if there is one; then one for each
    measure of differences."""
    count = len(levels) + len(differences)
    columns = count if count <= 3 else 4
    rows = -(-count // columns)
    figure, every = panels(columns, 4.2 * columns, 3.8 * rows, rows=rows)
    left, right = every[: len(levels)], every[len(levels) : count]
    for axes in every[count:]:
        axes.axis("off")
    for axes, (title, curves) in zip(left, levels.items(), strict=True):
        draw_levels(axes, curves, form)
        axes.set(title=title, xlabel=x)
        if paper is not None:
            axes.axhline(paper, color=GRAY, linewidth=1, linestyle=":", label=f"the paper: {paper:g}")
    low, high = zip(*(axes.get_ylim() for axes in left), strict=True)
    for axes in left:
        axes.set_ylim(max(0.0, min(low)), max(high))  # an interval may extend below 0, but no level does
    left[0].legend(fontsize=8)
    for axes, comparisons in zip(right, differences, strict=True):
        draw_differences(axes, comparisons)
    for axes in right[1:]:
        axes.set_yticklabels([])  # as in the first
    return figure
