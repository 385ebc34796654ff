"""The figure of SCALING.md."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyprop.report.plots import COLORS, panels, save, styled

from .peers import PEERS
from .scaling import Axis, Cost, Fits


@styled
def scaling(points: Mapping[str, Axis], fits: Fits, path: Path) -> Path:
    """Time and memory of a step against what is varied, in logarithms: a power of it is a straight
    line."""
    columns = len(points)
    figure, every = panels(columns, 2.6 * columns, 5.0, rows=2)
    times, memories = every[:columns], every[columns:]
    for row in (times, memories):  # before anything is drawn, so that the limits hold for all
        for axes in row[1:]:
            axes.sharey(row[0])
            axes.tick_params(labelleft=False)
    for i, (axis, some) in enumerate(points.items()):
        for j, peer in enumerate(next(iter(some.values()))):
            fit = fits[axis, peer]
            costs = [row[peer] for row in some.values()]
            draw(times[i], list(some), [cost.seconds * 1e3 for cost in costs], peer, j)
            draw(memories[i], list(some), [peak_megabytes(cost) for cost in costs], peer, j)
            write_slope(times[i], fit.time.slope, j)
            write_slope(memories[i], fit.memory.slope, j)
        set_axis(times[i], some)
        set_axis(memories[i], some)
        memories[i].set_xlabel(axis)
    for label, row in (("time of a step (ms)", times), ("peak memory (MB)", memories)):
        row[0].set_ylabel(label)
        row[0].yaxis.set_major_formatter("{x:,g}")
    every[0].legend(fontsize=8, loc="upper left")
    return save(figure, path, described(points, fits))


def described(points: Mapping[str, Axis], fits: Fits) -> str:
    """The figure in words: how time and memory grow."""
    sentences = []
    for axis, some in points.items():
        xs = list(some)
        sentences.append(f"{axis.capitalize()} from {xs[0]:g} to {xs[-1]:g}.")
        for peer, last in some[xs[-1]].items():
            first, fit = some[xs[0]][peer], fits[axis, peer]
            sentences.append(
                f"{PEERS[peer].title}: a step takes {first.seconds * 1e3:.3g} to "
                f"{last.seconds * 1e3:.3g} ms, slope {fit.time.slope:.2f}; its peak memory is "
                f"{peak_megabytes(first):.3g} to {peak_megabytes(last):.3g} MB, slope "
                f"{fit.memory.slope:.2f}."
            )
    return " ".join(sentences)


def peak_megabytes(cost: Cost) -> float:
    return math.nan if cost.peak_memory is None else cost.peak_memory / 1e6


def draw(axes: Any, xs: list[float], ys: list[float], peer: str, number: int) -> None:
    axes.plot(xs, ys, "o-", color=COLORS[number], label=PEERS[peer].title, markersize=4)


def write_slope(axes: Any, slope: float, number: int) -> None:
    """Above the panel, in the color of the peer."""
    text = f"{slope:.2f}" if number else f"slopes {slope:.2f}"
    x = 0.82 + 0.18 * number
    place = {"transform": axes.transAxes, "ha": "right", "fontsize": 9}
    axes.text(x, 1.03, text, color=COLORS[number], **place)


def set_axis(axes: Any, points: Axis) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(points), [f"{x:g}" for x in points])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
