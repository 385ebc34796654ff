"""Functions that consist of lines: found out by looking at them."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.arrays import HostArray

POINTS = 33  # at which each piece is looked at
STRAIGHT = 4e-15  # by which a line may miss a value, relative to the largest one


@dataclass(frozen=True)
class Lines:
    """The places where slope or value jump, the slopes before, between and after them, and how far
    the value jumps at each."""

    kinks: tuple[float, ...]
    slopes: tuple[float, ...]
    jumps: tuple[float, ...]


def as_lines(
    values: Callable[[HostArray], HostArray],
    kinks: Sequence[float],
    low: float,
    high: float,
    count: int = POINTS,
) -> Lines | None:
    """The lines that a function consists of between low and high, if it does at this many points
    of each piece: what lies between these is not seen."""
    kinks = [kink for kink in kinks if low < kink < high]
    breaks = np.array([low, *kinks, high])
    spacing = 0.5 - 0.5 * np.cos(math.pi * (np.arange(count) + 0.5) / count)
    slopes = []
    ends = []  # the value of each piece at its left and at its right end
    for left, right in itertools.pairwise(breaks):
        points = left + (right - left) * spacing
        y = values(points)
        slope = (y[-1] - y[0]) / (points[-1] - points[0])
        misfit = abs(y - y[0] - slope * (points - points[0])).max()
        if not misfit <= STRAIGHT * max(abs(y).max(), abs(slope) * abs(points).max()):
            return None
        slopes.append(float(slope))
        ends.append((y[0] - slope * (points[0] - left), y[0] + slope * (right - points[0])))
    jumps = []
    size = max(abs(end) for pair in ends for end in pair)
    for before, after in itertools.pairwise(ends):
        jump = float(after[0] - before[1])
        jumps.append(jump if abs(jump) > 1e-12 * size else 0.0)
    return Lines(tuple(kinks), tuple(slopes), tuple(jumps))
