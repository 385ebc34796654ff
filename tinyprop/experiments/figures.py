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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_differences(axes: Any, comparisons: Mapping[str, Comparison]) -> None:
    """From the top down, over a band of differences that do not matter."""
    found, rows = [comparison.difference for comparison in comparisons.values()], range(len(comparisons))
    measure = next(iter(comparisons.values())).measure
    axes.errorbar([d.mean for d in found], rows, xerr=bars(found), fmt="o", color="black", capsize=3, elinewidth=1.2)
    axes.axvspan(-measure.margin, measure.margin, color=GRAY, alpha=0.15, linewidth=0)
    axes.axvline(0.0, color=GRAY, linewidth=1, linestyle=":")
    axes.set_yticks(rows, list(comparisons))
    side = "right" if measure.better > 0 else "left"
    axes.set(title=f"{measure.name.capitalize()}: difference", ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel(f"{measure.unit.replace('%', 'points')} (better to the {side})".strip())


@styled
def draw(levels: Mapping[str, Curves], differences: Sequence[Mapping[str, Comparison]], x: str, form: str) -> Figure:
    """A panel for each title of levels, all on one scale, then one for each measure of differences."""
    count = len(levels) + len(differences)
    rows = 1 if count <= 3 else 2
    columns = -(-count // rows)
    figure, every = panels(columns, 4.2 * columns, 3.8 * rows, rows=rows)
    left = every[: len(levels)]
    for axes, (title, curves) in zip(left, levels.items(), strict=True):
        draw_levels(axes, curves, form)
        axes.set(title=title, xlabel=x)
    low, high = zip(*(axes.get_ylim() for axes in left), strict=True)
    for axes in left:
        axes.set_ylim(max(0.0, min(low)), max(high))  # an interval may extend below 0, but no level does
    left[0].legend(fontsize=8)
    right = every[len(levels) :]
    for axes, comparisons in zip(right, differences, strict=True):
        draw_differences(axes, comparisons)
    for axes in right[1:]:
        axes.set_yticklabels([])  # as in the first
    return figure
