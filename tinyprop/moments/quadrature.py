"""Integrals against the Gaussian density, by Gauss-Legendre panels whose error stays at rounding.

A panel of `POINTS` nodes integrates a function to rounding if no singularity comes closer to it, in
the complex plane, than about its own length, and if the Gaussian falls by less than exp(-44) along
it. The rest is a matter of choosing the panels. All nodes are in units of the standard deviation: u
= mean + std * z."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from .. import functional as F
from ..engine.arrays import Array, HostArray, array_module, backend_of, float64, to_backend
from ..engine.errors import explain
from ..engine.graph import Op
from ..engine.tensor import Tensor
from ..functional.linear import product

POINTS = 26  # nodes in a panel
# in standard deviations: exp(-37^2 / 2) is 1e-297, the last that leaves room for a small factor
FARTHEST = 37.0
NEGLIGIBLE = 44.0  # exp(-44) is below rounding, with room for a large factor
LONGEST = 5.0  # the length of a panel along which the density is smooth, in standard deviations
# a standard deviation, relative to 1 + |mean|, below which every function is taken as a line
NARROW = 1e-6
# the length of a panel next to the origin, where activations bend: tanh has its poles at +-i pi/2
FEATURE = 2.5


@cache
def gauss_legendre(points: int) -> tuple[HostArray, HostArray]:
    """Nodes and weights on [0, 1] that integrate polynomials of degree 2 * points - 1 exactly."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1.0) / 2.0, weights / 2.0


@cache
def rule(backend: str) -> tuple[Array, Array]:
    """The nodes and weights of one panel, on [0, 1]."""
    nodes, weights = gauss_legendre(POINTS)
    return to_backend(nodes, backend), to_backend(weights, backend)


class Mills(Op):
    """The integral of u^n/n! exp(-x u - u^2/2) over u > 0, for x >= 0: with n = 0, Mills' ratio
    Phi(-x) / phi(x).

    It is a sum of positive terms on one panel, so it is accurate relative to its value, however
    small."""

    def __init__(self, n: int):
        self.n = n

    def forward(self, x: Array) -> Array:
        nodes, weights = rule(backend_of(x))
        xp = array_module(x)
        # there the exponent is -NEGLIGIBLE
        end = 2.0 * NEGLIGIBLE / (x + xp.sqrt(x * x + 2.0 * NEGLIGIBLE))
        u = end[..., None] * nodes
        terms = xp.exp(-(x[..., None] + 0.5 * u) * u) * u**self.n
        return end * product(terms, weights) / math.factorial(self.n)

    def backward(self, g: Tensor, x: Tensor) -> Tensor:
        return -(self.n + 1) * g * Mills(self.n + 1)(x)


class Grid:
    """Nodes and weights of a Gaussian expectation, for each element of a mean and a standard
    deviation.

    `starts` and `lengths` of the panels have one axis more than these. Nodes may be tensors: then
    they move with the mean and the standard deviation, which second derivatives need where a
    function has a kink."""

    def __init__(self, starts: Tensor, lengths: Tensor):
        nodes, weights = rule(starts.backend)
        self.lengths = lengths
        self.z = _inner(starts) + _inner(lengths) * nodes  # (..., panels, nodes)
        self.weights = (
            _inner(lengths) * (weights / math.sqrt(2.0 * math.pi)) * F.exp(-0.5 * self.z * self.z)
        )

    def points(self, mean: Tensor, std: Tensor) -> Tensor:
        return outer(mean) + outer(std) * self.z

    def expectation(self, values: Tensor) -> Tensor:
        return (self.weights * values).sum(axis=(-2, -1))

    def shift_and_std(self, deviations: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of values minus a constant near them, and their standard deviation."""
        shift = self.expectation(deviations)
        deviations = deviations - outer(shift)
        return shift, root(self.expectation(deviations * deviations))


def not_too_narrow(mean: Tensor, std: Tensor) -> Tensor:
    """A standard deviation to integrate with, wide enough for the values to differ by more than
    their rounding.

    Between 0 and this one, the standard deviation of a function's values grows in proportion.
    """
    return F.maximum(std, NARROW * (1.0 + abs(mean.data)))


def around_origin(mean: Array, std: Array) -> tuple[float, Array, Array]:
    """Panels for a function that bends near 0 only: how far to look, the panels' starts from the
    origin, lengths.

    On both sides of the origin the panels double in length, from `FEATURE` in u up to `LONGEST` in
    z: so their number grows only with the logarithm of the standard deviation. They go `NEGLIGIBLE`
    beyond where the mass is, which is as far from the mean as a function that decays like
    exp(-u^2/2), or slower, can move it."""
    xp = array_module(mean)
    distance = abs(mean) / std
    shift = xp.minimum(distance, 2.0 * std * (1.0 + abs(mean)))
    half_width, widest = (float(x.max()) if x.size else 1.0 for x in (shift, std))
    # seen here for the first time if they live on a device
    if not math.isfinite(half_width + widest):
        got = (
            f"{mean.size} means and standard deviations on {backend_of(mean)}, some infinite, "
            "NaN or negative"
        )
        raise ValueError(explain(got, "all are finite, and std >= 0", "std=abs(...)"))
    half_width = min(half_width + math.sqrt(2.0 * NEGLIGIBLE), FARTHEST)
    doublings = max(0, math.ceil(math.log2(widest * LONGEST / FEATURE)))
    count = math.ceil(2.0 * half_width / LONGEST) + doublings
    growth = FEATURE * 2.0 ** xp.arange(count, dtype=float64)
    lengths = xp.minimum(growth / std[..., None], LONGEST)  # (..., panels of one side)
    ends = xp.cumsum(lengths, axis=-1)
    return (
        half_width,
        xp.concatenate([-ends, ends - lengths], axis=-1),
        xp.concatenate([lengths, lengths], axis=-1),
    )


def between_kinks(mean: Tensor, std: Tensor, kinks: Sequence[float], panels: int) -> Grid:
    """A grid over all numbers, with so many equal panels between any two kinks."""
    edge = 0.0 * mean + FARTHEST
    breaks = [
        -edge,
        *(F.clip((kink - mean) / std, -FARTHEST, FARTHEST) for kink in sorted(kinks)),
        edge,
    ]
    fractions = array_module(mean.data).arange(panels) / panels
    starts, lengths = [], []
    for left, right in pairwise(breaks):
        width = right - left
        starts.append(left.reshape(*mean.shape, 1) + width.reshape(*mean.shape, 1) * fractions)
        lengths.append(width.reshape(*mean.shape, 1) * (0.0 * fractions + 1.0 / panels))
    return Grid(F.concatenate(starts, axis=-1), F.concatenate(lengths, axis=-1))


def root(x: Tensor) -> Tensor:
    """The square root of x >= 0, which rounding may have made negative; its slope at 0 is taken as
    0."""
    is_zero = x <= 0
    return F.where(is_zero, 0.0, F.sqrt(F.where(is_zero, 1.0, x)))


def outer(x: Tensor) -> Tensor:
    """(...) -> (..., 1, 1), to go with panels and nodes."""
    return x.reshape(*x.shape, 1, 1)


def _inner(x: Tensor) -> Tensor:
    """(..., panels) -> (..., panels, 1), to go with nodes."""
    return x.reshape(*x.shape, 1)
