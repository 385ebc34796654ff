"""Parts of figures. Lines are labelled where they end; bars are 95 % intervals over random seeds."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from ..estimate import Estimate
from ..plots import COLOURS, GREY, panels, styled
from .evidence import Comparison

BLUE, RED, GREEN, *_, BLACK = COLOURS
GAP = 0.075  # between labels, as a fraction of the height of a panel


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
    below = min([0.0, *heights])  # no name hangs below the panel
    for (_, _, text, color), height in zip(ends, heights, strict=True):
        axes.text(1.02, height - below, text, color=color, va="center", fontsize=9, transform=axes.transAxes)


def with_bars(axes: Any, x: Sequence[float], y: Sequence[Estimate], color: Any, form: str = "o-") -> None:
    """Means with their intervals; a single value has none."""
    bars = [estimate.half_width if estimate.n > 1 else 0.0 for estimate in y]
    means = [estimate.mean for estimate in y]
    axes.errorbar(x, means, bars, color=color, fmt=form, markersize=3.5, capsize=2.5, elinewidth=1.0)


def across(axes: Any, estimate: Estimate, y: float, color: Any = BLACK) -> None:
    """A mean with its interval, horizontally."""
    bar = [[estimate.half_width if estimate.n > 1 else 0.0]]
    axes.errorbar([estimate.mean], [y], xerr=bar, fmt="o", color=color, capsize=3, elinewidth=1.2)


def learning_curves(axes: Any, curves: Mapping[str, Sequence[Estimate]]) -> None:
    """Accuracy after each epoch; a setting of which every run diverged has no curve."""
    ends = []
    for i, ((label, curve), color) in enumerate(zip(curves.items(), COLOURS, strict=False)):
        shift = 0.06 * (i - (len(curves) - 1) / 2)  # so that bars do not hide each other
        if curve:
            with_bars(axes, [epoch + shift for epoch in range(1, len(curve) + 1)], curve, color)
            ends.append((len(curve), curve[-1].mean, label, color))
        else:
            ends.append((1, 0.0, f"{label}: diverged", color))
    epochs = max(map(len, curves.values()), default=0) or 1
    axes.set(xlabel="epoch", title="Accuracy by epoch, %", xlim=(0.7, epochs + 0.3))
    axes.set_xticks(range(1, epochs + 1, -(-epochs // 8)))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0))  # an interval may reach beyond, but no accuracy does
    label_ends(axes, ends)


@styled
def with_differences(left: Callable[[Any], None], rows: Sequence[Mapping[str, Comparison]]) -> Figure:
    """A panel of its own, and the differences in both endpoints: from the top down, over a band of those that do not
    matter."""
    figure, every = panels(3, 12.0, max(3.2, 1.4 + 0.45 * len(rows[0])))
    left(every[0])
    for axes, comparisons in zip(every[1:], rows, strict=True):
        for i, comparison in enumerate(comparisons.values()):
            measure = comparison.measure
            across(axes, comparison.difference, i)
            if not comparison.difference.n:
                why = "diverged" if any(comparison.diverged) else "not run"
                axes.text(0.0, i, why, color=GREY, ha="center", va="center")
        axes.axvspan(-measure.margin, measure.margin, color=GREY, alpha=0.15, linewidth=0)
        axes.axvline(0.0, color=GREY, linewidth=1, linestyle=":")
        side = "right" if measure.better > 0 else "left"
        axes.set(
            title=f"{measure.name.capitalize()}: difference", xlabel=f"{measure.unit.strip()}; better to the {side}"
        )
        axes.set_yticks(range(len(comparisons)), list(comparisons) if axes is every[1] else [])
        axes.set_ylim(len(comparisons) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
    return figure
