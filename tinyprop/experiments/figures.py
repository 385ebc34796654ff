"""The figure of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from ..report.estimate import Estimate
from ..report.plots import GRAY, styled

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
