"""The figures of the benchmarks."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tinyprop.report.plots import COLORS, panels, save, styled

from .peers import PEERS


@styled
def roofline(
    title: str,
    peak_flops: float | None,
    bandwidth: float | None,
    points: Mapping[str, tuple[float, float]],
) -> Figure:
    """Points (FLOPs per byte, FLOPs per second) under what a device can do at best; what is unknown
    is not drawn."""
    figure, (axes,) = panels(1, 8.0, 4.4)
    low, high = min(x for x, _ in points.values()) / 2, max(x for x, _ in points.values()) * 2
    if bandwidth:
        top = min(high, peak_flops / bandwidth) if peak_flops else high
        axes.plot([low, top], [bandwidth * low, bandwidth * top], color="grey")
        middle = (low * top) ** 0.5
        beside = (middle, bandwidth * middle)
        axes.annotate(
            f"{bandwidth / 1e9:,.0f} GB/s", beside, (-8, 2), textcoords="offset points", ha="right"
        )
    if peak_flops:
        knee = peak_flops / bandwidth if bandwidth else low
        if knee < high:
            axes.plot([max(low, knee), high], [peak_flops] * 2, color="grey")
        over = (high, peak_flops)
        axes.annotate(
            f"{peak_flops / 1e12:.1f} TFLOP/s", over, (0, 4), textcoords="offset points", ha="right"
        )
    markers = "*osD^vPX"
    for i, (name, point) in enumerate(points.items()):
        size = 13 if i == 0 else 7
        colour = COLORS[(i - 1) % len(COLORS)]
        axes.plot(
            *point, markers[i % len(markers)], ms=size, color=colour, label=name, ls="", zorder=3
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="FLOPs per byte",
        title=f"{title}: FLOPs per second",
    )
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


@styled
def scaling(
    found: Mapping[str, Mapping[float, Mapping[str, Any]]],
    exponents: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
    path: Path,
) -> Path:
    """Time and memory of a step against what is varied, in logarithms: a power of it is a straight
    line."""
    figure, every = panels(len(found), 2.6 * len(found), 5.0, rows=2)
    values = {
        "time of a step (ms)": lambda m: m.median * 1e3,
        "peak memory (MB)": lambda m: (m.peak_memory or math.nan) / 1e6,
    }
    for row, (name, value) in enumerate(values.items()):
        first = every[row * len(found)]
        first.set_ylabel(name)
        for i, (axis, points) in enumerate(found.items()):
            axes = every[row * len(found) + i]
            for j, peer in enumerate(next(iter(points.values()))):
                ys = [value(m[peer]) for m in points.values()]
                axes.plot(
                    list(points), ys, "o-", color=COLORS[j], label=PEERS[peer].title, markersize=4
                )
                slope = f"{exponents[axis, peer][row][0]:.2f}"
                above = {
                    "transform": axes.transAxes,
                    "ha": "right",
                    "fontsize": 9,
                    "color": COLORS[j],
                }
                axes.text(0.82 + 0.18 * j, 1.03, slope if j else f"slopes {slope}", **above)
            if axes is not first:
                axes.sharey(first)
                axes.tick_params(labelleft=False)
            axes.set(xscale="log", yscale="log", xlabel=axis if row else "")
            axes.set_xticks(list(points), [f"{x:g}" for x in points])
            axes.minorticks_off()
            axes.grid(alpha=0.25)
        first.yaxis.set_major_formatter("{x:,g}")
    every[0].legend(fontsize=8, loc="upper left")
    return save(figure, path)
