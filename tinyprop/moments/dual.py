"""Dual activations: the moments of a function of two correlated Gaussian numbers.

- Piecewise linear functions: the covariance has the second derivative std1 std2 sum b_i b_j
  phi2(x_i, y_j; r) in the correlation r (Price, 1958), with b the bends of the function, at x and y
  standard deviations from the two means, and phi2 the bivariate density. So it is rho times the
  product of both mean slopes, plus a one-dimensional integral.
- erf: erf(u) = 2 P(W < u) - 1 with W ~ N(0, 1/2), so the covariance is a bivariate probability:
  another such integral.
- sin: a closed form.
- All others: E[s(U) E[s(V) | U]]. The inner expectation is `gaussian`'s, the outer one is
  quadrature.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, as_array, backend_of, float64
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from ..functional.activation import AnyActivation
from ..functional.special import erfc
from .gaussian import Subject, _as_given, _data, _float64_tensors, gaussian, subject_of
from .panels import choose
from .quadrature import FARTHEST, FEATURE, LONGEST, between_kinks, rule
from .rules import TINY

Pair: TypeAlias = tuple[Array, Array]  # of U and V

ANGLE_PANELS = 24
SMALLEST_ANGLE = 1e-9  # contributes less than rounding
ROUNDING = 1e-12  # by which a correlation that was computed may exceed 1
# two quadratures of a function that differ by less, in standard deviations, have converged
AGREE = 1e-11
MOST_HALVINGS = 4
# moves the grid of a bisection, in standard deviations, so that no kink lies on it by chance
ODD = 0.0137


@dataclass(frozen=True)
class Dual:
    """Of s(U) and s(V): the mean of their product, and their covariance.

    >>> tp.moments.dual("identity", 0.5, mean=(1.0, 2.0))
    Dual(product=2.5, covariance=0.5)
    """

    product: Any
    covariance: Any


def dual(
    activation: AnyActivation, rho: Any, mean: Any = 0.0, std: Any = 1.0, **params: Any
) -> Dual:
    """E s(U) s(V) and Cov(s(U), s(V)) for Gaussian U and V of correlation rho, element by element.

    `activation` and its parameters are as in `gaussian`. `mean` and `std` are those of both
    variables, or tuples of U's and V's. Numbers give numbers, arrays give float64 arrays. Tensors
    count as arrays: nothing here is differentiable.

    >>> relu = tp.moments.dual("relu", 0.0)
    >>> round(relu.product, 12), relu.covariance
    (0.159154943092, 0.0)
    >>> round(tp.moments.dual("relu", 1.0).product, 12)
    0.5
    >>> tp.moments.dual("erf", [-0.5, 0.5], mean=(0.0, 1.0), std=2.0).covariance.round(6)
    array([-0.26013,  0.26013])
    """
    record, params = subject_of(activation, params)
    given = {"rho": rho, **params}
    for name, value in (("mean", mean), ("std", std)):
        given[name], given[name + "2"] = (
            value if isinstance(value, tuple) and len(value) == 2 else (value, value)
        )
    given = {name: _data(value) for name, value in given.items()}
    arrays = {name: tensor.data for name, tensor in _float64_tensors(given).items()}
    r, m1, m2, s1, s2 = (arrays.pop(name) for name in ("rho", "mean", "mean2", "std", "std2"))
    xp = array_module(r)
    if not ((abs(r) <= 1.0 + ROUNDING) & (s2 >= 0.0) & xp.isfinite(m2 + s2)).all():
        got = (
            f"correlations from {r.min()} to {r.max()}, standard deviations from "
            f"{min(s1.min(), s2.min())}"
        )
        raise ValueError(
            explain(
                got, "-1 <= rho <= 1, std >= 0, all finite", "rho / (std1 * std2) for a covariance"
            )
        )
    r = xp.clip(r, -1.0, 1.0)
    mean1, mean2 = (gaussian(record, m, s, **arrays).mean for m, s in ((m1, s1), (m2, s2)))
    if record.dual is not None:
        covariance = as_array(_data(record.dual(r, (m1, m2), (s1, s2), **arrays)))
        if covariance.shape != r.shape:
            got = f"a dual of {record.name} of shape {covariance.shape} for correlations {r.shape}"
            raise ShapeError(got, "it has one covariance for each correlation", "dual=None")
    else:
        covariance = xp.zeros_like(r)
        for i in np.ndindex(r.shape):
            own = {name: float(value[i]) for name, value in arrays.items()}
            u, v = ((float(m[i]), float(s[i])) for m, s in ((m1, s1), (m2, s2)))
            covariance[i] = _conditional(record, float(r[i]), u, v, own)
    product = covariance + mean1 * mean2
    return Dual(*(_as_given(Tensor(as_array(x)), given) for x in (product, covariance)))


def erf_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    """A bivariate probability, with W ~ N(0, 1/2) added to U and V."""
    xp = array_module(rho)
    (m1, m2), (s1, s2) = means, stds
    w1, w2 = (xp.sqrt(0.5 + s * s) for s in stds)
    return 4.0 * _over_correlations(m1 / w1, m2 / w2, rho * (s1 / w1) * (s2 / w2), 0)


def sin_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    xp = array_module(rho)
    (m1, m2), (s1, s2) = means, stds
    c, half = rho * s1 * s2, 0.5 * (s1 * s1 + s2 * s2)  # half >= |c|
    unlike, like = (
        xp.exp(xp.maximum(x, 0.0) - half) * xp.sign(x) * -xp.expm1(-abs(x)) for x in (c, -c)
    )
    return 0.5 * (unlike * xp.cos(m1 - m2) - like * xp.cos(m1 + m2))


def piecewise_linear_covariance(
    kinks: Sequence[Any], slopes: Sequence[Any], rho: Array, means: Pair, stds: Pair
) -> Array:
    """`kinks` are the places where the slope changes, `slopes` those before, between and after
    them."""
    xp = array_module(rho)
    sides: list[tuple[Any, list[Array]]] = []
    for m, s in zip(means, stds, strict=True):
        places, slope = [], slopes[0]
        for kink, before, after in zip(kinks, slopes, slopes[1:], strict=False):
            places.append((kink - m) / xp.maximum(s, xp.maximum(abs(kink - m) / FARTHEST, TINY)))
            slope = slope + (after - before) * 0.5 * erfc(math.sqrt(0.5) * places[-1])
        sides.append((slope, places))
    (slope1, places1), (slope2, places2) = sides
    covariance = rho * slope1 * slope2
    for i, x in enumerate(places1):
        for j, y in enumerate(places2):
            bend = (slopes[i + 1] - slopes[i]) * (slopes[j + 1] - slopes[j])
            covariance = covariance + bend * _over_correlations(x, y, rho, 1)
    return stds[0] * stds[1] * covariance


def _over_correlations(x: Array, y: Array, rho: Array, power: int) -> Array:
    """The integral of (rho - r)^power phi2(x, y; r) over r from 0 to rho.

    With |r| = cos t it is that of exp(-d^2 / (2 sin^2 t) - x y / (1 + cos t)) / (2 pi), times a
    power, where d = x - y, over the angles t from arccos |rho| to a right angle. It varies on the
    scale of t, hence panels whose lengths grow with t, from where it is no longer negligible. For a
    negative rho, y changes its sign."""
    xp = array_module(rho)
    nodes, weights = rule(backend_of(rho))
    sign = xp.where(rho < 0, -1.0, 1.0)
    y = sign * y
    first, last = xp.arccos(abs(rho)), 0.5 * math.pi
    start = xp.minimum(xp.maximum(xp.maximum(first, abs(x - y) / 14.0), SMALLEST_ANGLE), last)
    grades = xp.arange(ANGLE_PANELS + 1) / ANGLE_PANELS
    edges = start[..., None] * (last / start[..., None]) ** grades
    # the first panel is empty or negligible
    edges = xp.concatenate([first[..., None], edges], axis=-1)
    lengths = edges[..., 1:, None] - edges[..., :-1, None]
    t = edges[..., :-1, None] + lengths * nodes  # (..., panels, nodes)
    distance, both = (z[..., None, None] for z in (0.5 * (x - y) ** 2, x * y))
    density = xp.exp(-distance / xp.maximum(xp.sin(t) ** 2, TINY) - both / (1.0 + xp.cos(t)))
    half = 0.5 * (t + first[..., None, None]), 0.5 * (t - first[..., None, None])
    gap = 2.0 * xp.sin(half[0]) * xp.sin(half[1])  # |rho| - |r|, without cancellation
    total = (lengths * weights * density * gap**power).sum(axis=(-2, -1)) / (2.0 * math.pi)
    return total if power else sign * total


def found_kinks(
    record: Subject, u: tuple[float, float], v: tuple[float, float], params: dict[str, float]
) -> list[float]:
    """The kinks that bisection finds where U and V are."""
    stds = np.array([u[1], v[1]])
    means = np.array([u[0], v[0]]) + ODD * stds

    def function(points: HostArray) -> HostArray:
        return record.values(points, **params)[None]  # (...) -> (1, ...)

    panels = choose(function, means, stds, (), 1, float(np.finfo(float64).eps))
    return sorted(panels.cuts.tolist())


def _conditional(
    record: Subject,
    rho: float,
    u: tuple[float, float],
    v: tuple[float, float],
    params: dict[str, float],
) -> float:
    """E[(s(U) - mean) (E[s(V) | U] - mean)] over U, in panels that are short where either factor
    bends.

    The first factor bends where the function does. The second bends at the images of the same
    places, on the scale of the function or of the Gaussian that smooths it, whichever is shorter.
    `u` and `v` are mean and std of U and V."""
    (m1, s1), (m2, s2), slope = u, v, rho * v[1]
    one, other = (gaussian(record, mean, std, **params) for mean, std in (u, v))
    if not one.std * other.std * rho:
        return 0.0
    kinks = record.kinks
    if record.moments is None and not kinks:
        kinks = found_kinks(record, u, v, params)
    rest = math.sqrt((1.0 - rho) * (1.0 + rho))
    breaks = [np.arange(-FARTHEST, FARTHEST, LONGEST), np.array([FARTHEST])]
    for shift, unit, smooth in (
        (m1, s1, LONGEST),
        (m2, slope, max(rest / abs(rho), SMALLEST_ANGLE)),
    ):
        scale = min(FEATURE / abs(unit), smooth, LONGEST)
        growth = scale * 2.0 ** np.arange(1 + math.ceil(math.log2(LONGEST / scale)))
        for kink in kinks or [0.0]:
            breaks.append((kink - shift) / unit + np.concatenate([-growth, [0.0], growth]))
    edges = np.unique(np.clip(np.concatenate(breaks), -FARTHEST, FARTHEST))
    nodes, weights = rule("numpy")
    panels, change, before = 8, math.inf, math.nan
    for _ in range(MOST_HALVINGS):
        lengths = np.diff(edges)[:, None]
        z = (edges[:-1, None] + lengths * nodes).ravel()
        density = (lengths * weights).ravel() * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        value = record.values(m1 + s1 * z, **params) - one.mean
        if record.moments is not None:
            given = gaussian(record, m2 + slope * z, rest * s2, **params).mean
        else:  # as many points each time, so that both quadratures converge together
            at, width = Tensor(m2 + slope * z), Tensor(0.0 * z + max(rest * s2, TINY))
            grid = between_kinks(at, width, kinks, panels)
            values = record.values(grid.points(at, width).data, **params)
            given = grid.expectation(Tensor(values)).data
            panels *= 2
        now = float(density @ (value * (given - other.mean)))
        change = abs(now - before) / (one.std * other.std)
        if record.moments is not None or change <= AGREE:
            return now
        before, edges = now, np.sort(np.concatenate([edges, edges[:-1] + 0.5 * lengths[:, 0]]))
    raise ValueError(
        explain(
            (
                f"a function whose covariance still changes by {change:.1e} standard deviations "
                "with "
                f"{len(edges)} panels"
            ),
            "it must be smooth between its kinks",
            "dual(function, rho, kinks=(0.0,)) with the places where it, or its slope, jumps",
        )
    )
