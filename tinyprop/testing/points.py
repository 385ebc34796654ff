"""Numbers at which gradients can be checked."""

import math
from collections.abc import Iterable

import numpy as np

from ..engine.arrays import HostArray


def points(
    random: "np.random.Generator",
    shape: tuple[int, ...],
    low: float = -3.0,
    high: float = 3.0,
    kinks: Iterable[float] = (),
    gap: float = 0.05,
) -> HostArray:
    """Distinct numbers from low to high, half a cell of an even grid or more apart, so that no two
    are nearly tied, and none nearer than gap to a kink.

    >>> from tinyprop.testing.points import points
    >>> x = points(np.random.default_rng(0), (2, 5), low=-1.0, high=1.0, kinks=(0.0,))
    >>> bool((abs(x) >= 0.05).all())
    True
    """
    size = math.prod(shape)
    cells = (np.arange(size) + random.uniform(0.25, 0.75, size)) / max(size, 1)
    x = random.permutation(low + (high - low) * cells)
    for kink in kinks:
        away = x - kink
        near = abs(away) < 2 * gap
        # moved outwards, in order: 0..2 gap -> gap..2 gap
        outwards = np.where(away < 0, -1, 1) * (gap + abs(away) / 2)
        x = np.where(near, kink + outwards, x)
    return x.reshape(shape)
