"""Covariances as nested integrals: E[s(U) E[s(V) | U]], for functions with kinks.

The outer integral is over U in panels that are short where either factor bends. The first factor
bends where the function does. The second bends at the images of the same places, on the scale of
the function or of the Gaussian that smooths it, whichever is shorter. The inner integral is a
closed form, if there is one, or quadrature of the same kind.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ..engine.arrays import HostArray, float64
from ..engine.errors import explain
from .panels import alike, choose
from .quadrature import FEATURE, gauss_legendre

Values: TypeAlias = Callable[[HostArray], HostArray]  # a function of each number
# E s(V) for the means (pairs, nodes) and standard deviations (pairs, 1) of V
Smoothed: TypeAlias = Callable[[HostArray, HostArray], HostArray]
Law: TypeAlias = tuple[float, float]  # mean and std of a Gaussian number

NODES = 16  # of a panel
GROWTH = 3.0  # each panel next to a kink is so much longer than the one before
NEAR = 9.5  # standard deviations, for functions that grow little
FAR = 37.0  # for others
LITTLE = 1e3  # standard deviations, beside the square root of the density
LONGEST = 3.0  # standard deviations, of a panel
SHARPEST = 1e-9  # standard deviations: shorter features contribute less than rounding
# two quadratures of a function that differ by less, in standard deviations, have converged
AGREE = 1e-11
FEWEST_HALVINGS = 2  # the first that there is another quadrature to compare with
MOST_HALVINGS = 4
MOST_POINTS = 1 << 21  # values of a function that are held at a time
CACHED = 1 << 13  # those of which all intermediate results stay in the cache
# moves the grid of a bisection, in standard deviations, so that no kink lies on it by chance
ODD = 0.0137
SHORT = 0.6  # of the longest panel: one that is shorter was cut
SAME_KINK = 1e-6  # standard deviations between two sights of one kink, at most


def smoothed_covariance(
    values: Values,
    smoothed: Smoothed,
    kink: float,
    rho: HostArray,
    means: tuple[HostArray, HostArray],
    stds: tuple[HostArray, HostArray],
) -> HostArray:
    """Of a function with one kink that grows no faster than a line, and whose expectation is known
    in closed form; for arrays (pairs,)."""
    total = np.zeros(len(rho))
    todo = np.flatnonzero((rho != 0.0) & (stds[0] > 0.0) & (stds[1] > 0.0))
    out_mean1 = smoothed(means[0], stds[0])
    out_mean2 = smoothed(means[1], stds[1])
    doublings = _growths(rho, *stds)
    for count in np.unique(doublings[todo]):
        members = todo[doublings[todo] == count]
        block = max(1, CACHED // (NODES * 4 * (int(count) + 4)))
        for start in range(0, len(members), block):
            some = members[start : start + block]
            m1, m2, s1, s2 = (x[some, None] for x in (*means, *stds))
            r = rho[some, None]
            edges = _outer_edges(r, m1, s1, m2, s2, [kink], NEAR, int(count))
            z, weights = gaussian_panels(edges)
            slope = r * s2
            rest = s2 * np.sqrt((1.0 - r) * (1.0 + r))
            first = values(m1 + s1 * z) - out_mean1[some, None]
            second = smoothed(m2 + slope * z, rest) - out_mean2[some, None]
            total[some] = (weights * first * second).sum(axis=1)
    return total


def nested_covariance(
    values: Values,
    kinks: Sequence[float],
    bends: Sequence[float],
    fewest: int,
    rho: float,
    laws: Sequence[Law],
    moments: Sequence[tuple[float, float]],
) -> float:
    """Of any function with these kinks. `laws` are mean and std of U and V, `moments` those of the
    function of each; none of these deviations, nor rho, is 0. Panels end at `bends`, too, between
    which the function is a polynomial. They are halved until the result stays the same, at least
    until `fewest`, with which they see all of the function."""
    (mean1, std1), (mean2, std2) = moments
    (m1, s1), (m2, s2) = laws
    places = list(kinks) or [0.0]
    count = int(_growths(np.array([rho]), np.array([s1]), np.array([s2]))[0])
    first_law = np.array([[m1]]), np.array([[s1]])
    second_law = np.array([[m2]]), np.array([[s2]])
    end = max(_end(values, law, known) for law, known in zip(laws, moments, strict=True))
    edges = _outer_edges(np.array([[rho]]), *first_law, *second_law, places, end, count)[0]
    slope = rho * s2
    bent = np.array(bends)
    edges = _with_edges(edges, (bent - m1) / s1, end)
    edges = _with_edges(edges, (bent - m2) / slope, end)
    rest = s2 * math.sqrt((1.0 - rho) * (1.0 + rho))
    before = math.nan
    change = math.inf
    for halvings in range(1, MOST_HALVINGS + 1):
        z, weights = gaussian_panels(edges[None])
        keep = weights[0] > 0.0
        z, weights = z[0, keep], weights[0, keep]
        first = values(m1 + s1 * z) - mean1
        at = m2 + slope * z
        second = _expectations(values, places, bends, at, rest, end, halvings) - mean2
        now = float(weights @ (first * second))
        change = abs(now - before) / (std1 * std2)
        if change <= AGREE and halvings >= fewest:
            return now
        before = now
        edges = halved(edges)
    got = (
        f"a function whose covariance still changes by {change:.1e} standard deviations with "
        f"{len(edges)} panels"
    )
    hint = "dual(function, rho, kinks=(0.0,)) with the places where it, or its slope, jumps"
    raise ValueError(explain(got, "it must be smooth between its kinks", hint))


def sees(
    values: Values,
    kinks: Sequence[float],
    bends: Sequence[float],
    halvings: int,
    law: Law,
    moments: tuple[float, float],
    tolerance: float,
) -> bool:
    """Whether the panels of a nested integral have these moments of the function."""
    mean, std = law
    out_mean, out_std = moments

    def deviations(points: HostArray) -> HostArray:
        return values(points) - out_mean

    def squares(points: HostArray) -> HostArray:
        return deviations(points) ** 2

    end = _end(values, law, moments)
    places = list(kinks) or [0.0]
    middle = np.array([mean])
    found = [
        float(_expectations(function, places, bends, middle, std, end, halvings)[0])
        for function in (deviations, squares)
    ]
    of_std = abs(math.sqrt(found[1]) - out_std)
    return max(abs(found[0]), of_std) <= tolerance


def _end(values: Values, law: Law, moments: tuple[float, float]) -> float:
    """How far panels go, in standard deviations."""
    return NEAR if _grows_little(values, law, moments) else FAR


def _with_edges(edges: HostArray, more: HostArray, end: float) -> HostArray:
    return np.sort(np.concatenate([edges, more[abs(more) < end]]))


def _grows_little(values: Values, law: tuple[float, float], moments: tuple[float, float]) -> bool:
    """Whether a function's values beyond NEAR are nothing beside the density there."""
    mean, std = law
    out_mean, out_std = moments
    z = np.linspace(NEAR, FAR, 100)
    with np.errstate(all="ignore"):
        ends = np.stack([values(mean - std * z), values(mean + std * z)])
        grown = abs(ends - out_mean) * np.exp(-0.25 * (z * z - NEAR * NEAR))
        return bool((grown <= LITTLE * out_std).all())


def found_kinks(values: Values, mean: HostArray, std: HostArray) -> list[float]:
    """The kinks that bisection finds where Gaussian numbers with these moments are. Those of a
    similar mean and std are searched together, the narrowest first, which see them best."""

    def function(points: HostArray) -> HostArray:
        return values(points)[None]  # (...) -> (1, ...)

    resolution = float(np.finfo(float64).eps)
    found: list[float] = []
    cells = alike(mean, std, np.zeros(len(std), bool))
    for _, members in cells:  # in the order of their std
        at = mean[members]
        width = std[members]
        panels = choose(function, at + ODD * width, width, (), 1, resolution)
        apart = SAME_KINK * float(width.min())
        found += [x for x in panels.cuts.tolist() if all(abs(x - y) > apart for y in found)]
    return sorted(found)


def found_bends(values: Values, kinks: Sequence[float], laws: Sequence[Law]) -> list[float]:
    """The ends of the panels that bisection has cut to see all of a function of Gaussian numbers
    with these laws: between them, it is a polynomial."""

    def function(points: HostArray) -> HostArray:
        return values(points)[None]  # (...) -> (1, ...)

    resolution = float(np.finfo(float64).eps)
    found: set[float] = set()
    for mean, std in set(laws):
        panels = choose(function, np.array([mean]), np.array([std]), kinks, 1, resolution)
        is_short = panels.lengths < SHORT * panels.lengths.max()
        found.update(panels.starts[is_short].tolist())
        found.update((panels.starts + panels.lengths)[is_short].tolist())
    return sorted(found)


def gaussian_panels(edges: HostArray) -> tuple[HostArray, HostArray]:
    """Nodes and weights for N(0, 1), in panels between edges: (..., edges) -> (..., nodes)."""
    nodes, weights = gauss_legendre(NODES)
    lengths = np.diff(edges)[..., None]
    z = edges[..., :-1, None] + lengths * nodes
    weight = lengths * weights * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    shape = (*edges.shape[:-1], -1)
    return z.reshape(shape), weight.reshape(shape)


def halved(edges: HostArray) -> HostArray:
    """With an edge in the middle of each panel."""
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])
    return np.sort(np.concatenate([edges, middle], axis=-1), axis=-1)


def _sharpness(rho: HostArray, s1: HostArray, s2: HostArray) -> tuple[HostArray, HostArray]:
    """The scale, in standard deviations of U, on which each of the two factors bends."""
    own = np.minimum(FEATURE / s1, LONGEST)
    slope = np.maximum(abs(rho) * s2, 1e-300)
    rest = np.sqrt((1.0 - rho) * (1.0 + rho)) / np.maximum(abs(rho), 1e-300)
    image = np.minimum(np.minimum(FEATURE / slope, rest), LONGEST)
    return np.maximum(own, SHARPEST), np.maximum(image, SHARPEST)


def _growths(rho: HostArray, s1: HostArray, s2: HostArray) -> HostArray:
    """How often panels grow until they are as long as others."""
    with np.errstate(divide="ignore"):
        shortest = np.minimum(*_sharpness(rho, s1, s2))
    return np.ceil(np.log(LONGEST / shortest) / math.log(GROWTH)).astype(int)


def _outer_edges(
    rho: HostArray,
    m1: HostArray,
    s1: HostArray,
    m2: HostArray,
    s2: HostArray,
    kinks: Sequence[float],
    end: float,
    growths: int,
) -> HostArray:
    """The edges of panels for U: (pairs, 1) -> (pairs, edges)."""
    own, image = _sharpness(rho, s1, s2)
    steps = _steps(growths)
    base = np.linspace(-end, end, 1 + math.ceil(2.0 * end / LONGEST))
    parts = [np.broadcast_to(base, (len(rho), len(base)))]
    for kink in kinks:
        parts.append((kink - m1) / s1 + own * steps)
        parts.append((kink - m2) / (rho * s2) + image * steps)
    return np.sort(np.clip(np.concatenate(parts, axis=1), -end, end), axis=1)


def _steps(growths: int) -> HostArray:
    """Distances of edges from a kink, on both sides of it."""
    away = GROWTH ** np.arange(growths + 1.0)
    return np.concatenate([-away[::-1], [0.0], away])


def _expectations(
    values: Values,
    kinks: Sequence[float],
    bends: Sequence[float],
    mean: HostArray,
    std: float,
    end: float,
    halvings: int,
) -> HostArray:
    """E s(mean + std Z), for each mean."""
    if std == 0.0:
        return values(mean)
    scale = max(min(FEATURE / std, LONGEST), SHARPEST)
    growths = math.ceil(math.log(LONGEST / scale) / math.log(GROWTH))
    base = np.linspace(-end, end, 1 + math.ceil(2.0 * end / LONGEST))
    found = np.empty(len(mean))
    panels = len(base) + len(kinks) * (2 * growths + 3) + len(bends)
    panels *= 2 ** (halvings - 1)
    block = max(1, MOST_POINTS // (NODES * panels))
    for start in range(0, len(mean), block):
        at = mean[start : start + block, None]
        parts = [np.broadcast_to(base, (len(at), len(base)))]
        for kink in kinks:
            parts.append((kink - at) / std + scale * _steps(growths))
        parts.append((np.array(bends) - at) / std)
        edges = np.sort(np.clip(np.concatenate(parts, axis=1), -end, end), axis=1)
        for _ in range(halvings - 1):
            edges = halved(edges)
        z, weights = gaussian_panels(edges)
        points = at + std * z
        # beyond, the density is 0 in float64, and the function may overflow
        points = np.where(weights > 0.0, points, at)
        found[start : start + block] = (weights * values(points)).sum(axis=1)
    return found
