"""The figure of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from ..report.estimate import Estimate
from ..report.plots import COLORS, GRAY, styled

# by name; by epoch, by learning rate, or by the name of a row
Curves = Mapping[str, Mapping[Any, Estimate]]
COLUMNS = 4  # panels side by side
ENOUGH = 3  # random seeds; the interval of two is 12.7 standard errors and hides every curve
POINTS = {"markersize": 3.5, "capsize": 2.5, "elinewidth": 1}


@styled
def experiment(
    levels: Mapping[str, Curves],
    differences: Sequence[Mapping[str, Any]],
    x: str,
    paper: float | None,
    caption: str,
) -> Figure:
    """What the runs of an experiment say, with 95 % intervals over random seeds.

    A panel for each title of levels, all on one scale, with the paper's number if there is one;
    then one for each measure of differences (Comparisons): beside a single panel of levels, or
    below many."""
    level_names = list(levels)
    difference_names = [f"difference {i}" for i in range(len(differences))]
    layout = _layout(level_names, difference_names)
    height = 3.6 if len(layout) == 1 else 2.6 * len(layout)
    figure = Figure(figsize=(11.0, height))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    mosaic: dict[Any, Any] = figure.subplot_mosaic(layout)
    level_axes = [mosaic[name] for name in level_names]
    difference_axes = [mosaic[name] for name in difference_names]

    for axes, (title, curves) in zip(level_axes, levels.items(), strict=True):
        _levels(axes, curves)
        axes.set(title=title, xlabel=x)
        if paper is not None:
            label = f"the paper: {paper:g}"
            axes.axhline(paper, color=GRAY, linewidth=1, linestyle=":", label=label)
    if len(level_axes) > 1:
        _share_height(level_axes)

    for axes, comparisons in zip(difference_axes, differences, strict=True):
        _differences(axes, comparisons)
    # rows that have their names in the panel before need them only once
    rows_of_levels = {
        row for curves in levels.values() for curve in curves.values() for row in curve
    }
    levels_have_the_names = rows_of_levels == set(differences[0])
    unnamed = difference_axes if levels_have_the_names else difference_axes[1:]
    for axes in unnamed:
        axes.set_yticklabels([])

    handles, labels = level_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=COLUMNS + 1, fontsize=8)
    figure.supxlabel(caption, fontsize=8, color=GRAY)
    return figure


def described(
    levels: Mapping[str, Curves], differences: Sequence[Mapping[str, Any]], x: str, caption: str
) -> str:
    """The figure in words."""
    sentences = []
    for title, curves in levels.items():
        words = [_curve_in_words(name, curve, x) for name, curve in curves.items()]
        sentences.append(f"{title}: {'; '.join(filter(None, words)) or 'no runs yet'}.")
    for comparisons in differences:
        words = [f"{name} {c.number}" for name, c in comparisons.items() if c.difference.n]
        measure = next(iter(comparisons.values())).measure
        title = f"{measure.name.capitalize()}, differences"
        sentences.append(f"{title}: {'; '.join(words) or 'no runs yet'}.")
    what_data, _, _ = caption.partition("\n")
    return " ".join([*sentences, what_data])


def _curve_in_words(name: str, curve: Mapping[Any, Estimate], x: str) -> str:
    """The values of named rows; of a curve, the first one and the last one."""
    values = {place: f"{e.mean:.3g}" for place, e in curve.items() if e.n}
    if not values:
        return ""
    first, *_, last = [*values, *values]  # the same one, if there is only one
    if isinstance(first, str):
        return f"{name} {', '.join(f'{value} ({row})' for row, value in values.items())}"
    unit, _, _ = x.partition(" (")  # a remark
    return f"{name} from {values[first]} at {unit} {first:g} to {values[last]} at {last:g}"


def _layout(level_names: list[str], difference_names: list[str]) -> list[Any]:
    """The panels of a mosaic, row by row."""
    if len(level_names) == 1:
        return [level_names + difference_names]
    rows = []
    for start in range(0, len(level_names), COLUMNS):
        rows.append(level_names[start : start + COLUMNS])
    columns_each = COLUMNS // len(difference_names)
    last_row = []
    for name in difference_names:
        last_row += [name] * columns_each
    return [*rows, last_row]


def _share_height(panels: Sequence[Any]) -> None:
    """One scale, from 0, for all panels."""
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0.0, top)


def _levels(axes: Any, curves: Curves) -> None:
    """Curves over epochs, or over learning rates; levels of named rows lie, one below the other."""
    drawn = {}
    for name, curve in curves.items():
        has_runs = any(estimate.n for estimate in curve.values())
        if has_runs:
            drawn[name] = curve
    if not drawn:
        axes.text(0.5, 0.5, "no runs yet", transform=axes.transAxes, ha="center", color=GRAY)
        axes.set(xticks=[], yticks=[])
        return

    places = list(dict.fromkeys(place for curve in drawn.values() for place in curve))
    by_row = isinstance(places[0], str)
    by_rate = isinstance(places[0], float)
    for i, (name, curve) in enumerate(drawn.items()):
        means = [estimate.mean for estimate in curve.values()]
        half_widths = _bars(list(curve.values()))
        if by_row:
            shift = 0.2 * i - 0.1 * (len(drawn) - 1)  # curves beside each other in a row
            rows = [places.index(place) + shift for place in curve]
            axes.errorbar(means, rows, xerr=half_widths, fmt="o", label=name, **POINTS)
        else:
            is_second_round = i >= len(COLORS)  # a color that is there already
            line = "s--" if is_second_round else "o-"
            enough = [estimate.n >= ENOUGH for estimate in curve.values()]
            bars = np.where(enough, half_widths, 0.0)
            axes.errorbar(list(curve), means, bars, fmt=line, label=name, **POINTS)

    if by_row:
        _name_rows(axes, places)
    elif by_rate:
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _differences(axes: Any, comparisons: Mapping[str, Any]) -> None:
    """From the top down, over a band of differences that do not matter; predictions are hollow,
    single pairs gray."""
    for row, (name, comparison) in enumerate(comparisons.items()):
        difference = comparison.difference
        color = GRAY if difference.n == 1 else "black"
        fill = "white" if name.endswith("predicted") else color
        axes.errorbar(
            [difference.mean],
            [row],
            xerr=_bars([difference]),
            fmt="o",
            color=color,
            markerfacecolor=fill,
            capsize=3,
            elinewidth=1.2,
        )
        if difference.n == 0:
            why = "diverged" if any(comparison.diverged) else "no runs yet"
            left_edge = axes.get_yaxis_transform()  # x in widths of the panel, y in rows
            axes.text(0.02, row, why, transform=left_edge, va="center", color=GRAY, fontsize=8)

    measure = next(iter(comparisons.values())).measure
    axes.axvspan(-measure.margin, measure.margin, color=GRAY, alpha=0.15, linewidth=0)
    axes.axvline(0.0, color=GRAY, linewidth=1, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _name_rows(axes, list(comparisons))
    side = "right" if measure.better > 0 else "left"
    axes.set(title=f"{measure.name.capitalize()}: difference")
    direction = f"better to the {side}"
    unit = measure.difference_unit
    axes.set_xlabel(f"{unit} ({direction})" if unit else direction)


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _bars(estimates: Sequence[Estimate]) -> list[float]:
    """The half-widths of the intervals; a single value has none."""
    return [estimate.half_width if estimate.n > 1 else 0.0 for estimate in estimates]
