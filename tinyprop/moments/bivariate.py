"""Covariances of functions of two correlated Gaussian numbers U and V, in closed form.

All of them lead to integrals of the bivariate density phi2 over its correlation:

- A function of lines has the covariance rho times the product of both mean slopes, plus, for each
  two bends, the integral of (rho - r) phi2(x, y; r) (Price, 1958), with x and y their distances
  from the means in standard deviations. A jump takes one power of (rho - r) less than a bend.
- erf(u) = 2 P(W < u) - 1 with W ~ N(0, 1/2), so its covariance is that of two jumps.
- gelu(u) = u P(W < u) with W ~ N(0, 1): moments of a Gaussian pair, cut off at a corner.

They are sums of terms of one sign wherever that is possible, so they keep their digits where units
are nearly dead.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ..engine.arrays import Array, array_module, backend_of
from ..functional.special import erfc
from .quadrature import FARTHEST, rule

Pair: TypeAlias = tuple[Array, Array]  # of U and V

TINY = 1e-150  # a standard deviation of 0 is taken as this in denominators
SMALLEST_ANGLE = 1e-9  # contributes less than rounding
# Panels for angles, and the correlations and distances up to which so few are enough.
TIERS = [(1, 0.925, 8.0), (3, 0.9991, math.inf), (5, 0.9999, math.inf), (24, 1.0, math.inf)]
CHUNK = 1 << 13  # integrals that are computed at a time


def lines_covariance(
    kinks: Sequence[Any],
    slopes: Sequence[Any],
    rho: Array,
    means: Pair,
    stds: Pair,
    jumps: Sequence[Any] = (),
    other: tuple[Sequence[Any], Sequence[Any], Sequence[Any]] | None = None,
) -> Array:
    """Of a function of lines: its slopes before, between and after the kinks, and how far it jumps
    at each of them. V may have a function of its own, `other`: kinks, slopes and jumps."""
    xp = array_module(rho)
    jumps = jumps or [0.0] * len(kinks)
    functions = [(kinks, slopes, jumps)] * 2
    if other is not None:
        functions[1] = other
    slope_of = []  # E s'(U), E s'(V), without jumps
    places_of = []  # the kinks, in standard deviations from the mean
    bends_of = []
    for m, s, (own_kinks, own_slopes, _) in zip(means, stds, functions, strict=True):
        places = []
        bends = []
        slope = own_slopes[0]
        for i, kink in enumerate(own_kinks):
            distance = kink - m
            floor = xp.maximum(abs(distance) / FARTHEST, TINY)
            place = distance / xp.maximum(s, floor)
            bend = own_slopes[i + 1] - own_slopes[i]
            places.append(place)
            bends.append(bend)
            slope = slope + bend * upper_tail(place)
        slope_of.append(slope)
        places_of.append(places)
        bends_of.append(bends)
    s1, s2 = stds
    (_, first_slopes, first_jumps), (_, second_slopes, second_jumps) = functions
    covariance = rho * (s1 * slope_of[0]) * (s2 * slope_of[1])
    covariance = covariance + s1 * s2 * _both_bend(places_of, bends_of, rho)
    for i, x in enumerate(places_of[0]):
        for j, y in enumerate(places_of[1]):
            jumped = first_jumps[i] * second_jumps[j]
            if _is_nonzero(jumped):
                covariance = covariance + jumped * over_correlations(x, y, rho, 0)
    for i, x in enumerate(places_of[0]):
        if _is_nonzero(first_jumps[i]):
            common = _jump_with_lines(x, places_of[1], second_slopes, rho)
            covariance = covariance + first_jumps[i] * s2 * common
    for j, y in enumerate(places_of[1]):
        if _is_nonzero(second_jumps[j]):
            common = _jump_with_lines(y, places_of[0], first_slopes, rho)
            covariance = covariance + second_jumps[j] * s1 * common
    varies = (s1 > 0.0) & (s2 > 0.0)
    return xp.where(varies, covariance, 0.0)


def _both_bend(places: Sequence[Any], bends: Sequence[Any], rho: Array) -> Any:
    """Cov((X - x)_+, (Y - y)_+) without its linear part, of standard X and Y, summed over the bends
    x of the first function and y of the second."""
    xp = array_module(rho)
    products = []
    corners = []
    for x, bend in zip(places[0], bends[0], strict=True):
        for y, other_bend in zip(places[1], bends[1], strict=True):
            product = bend * other_bend
            if _is_nonzero(product):
                products.append(product)
                corners.append(xp.broadcast_arrays(x, y, rho)[:2])
    if not corners:
        return 0.0
    x, y = (xp.stack(column) for column in zip(*corners, strict=True))  # (corners, ...)
    integrals = over_correlations(x, y, rho, 1)
    return sum(product * each for product, each in zip(products, integrals, strict=True))


def lines_mean(values: Any, lines: Any, mean: Array, std: Array) -> Array:
    """E s(U) of a function of lines, whose `values` say where the first line is."""
    xp = array_module(mean)
    start = xp.min(mean - FARTHEST * std)
    if len(lines.kinks):
        start = min(start, lines.kinks[0]) - 1.0
    total = values(xp.asarray([start]))[0] + lines.slopes[0] * (mean - start)
    for i, kink in enumerate(lines.kinks):
        distance = kink - mean
        wide = xp.maximum(std, xp.maximum(abs(distance) / FARTHEST, TINY))
        place = distance / wide
        ramp = wide * (density(place) - place * upper_tail(place))
        bend = lines.slopes[i + 1] - lines.slopes[i]
        total = total + bend * ramp + lines.jumps[i] * upper_tail(place)
    return xp.where(std > 0.0, total, values(mean))


def lines_std(
    kinks: Sequence[Any], slopes: Sequence[Any], mean: Array, std: Array, jumps: Sequence[Any]
) -> Array:
    """The standard deviation of s(U), of a function of lines."""
    xp = array_module(mean)
    variance = lines_covariance(kinks, slopes, xp.ones_like(mean), (mean, mean), (std, std), jumps)
    return xp.sqrt(xp.maximum(variance, 0.0))


def _jump_with_lines(x: Array, places: Sequence[Array], slopes: Sequence[Any], rho: Array) -> Array:
    """Cov(1(X > x), p(Y)) of standard X and Y, for a function p of lines with bends at `places`: a
    line, whose covariance is rho phi(x) times its slope, and a ramp for each bend."""
    total = rho * density(x) * slopes[0]
    for i, y in enumerate(places):
        bend = slopes[i + 1] - slopes[i]
        if _is_nonzero(bend):
            total = total + bend * _jump_with_ramp(x, y, rho)
    return total


def _jump_with_ramp(x: Array, y: Array, rho: Array) -> Array:
    """Cov(1(X > x), (Y - y)_+)."""
    xp = array_module(rho)
    rest = xp.sqrt((1.0 - rho) * (1.0 + rho))
    safe = xp.maximum(rest, TINY)
    # E[Y; X > x, Y > y] = phi(y) P(X > x | y) + rho phi(x) P(Y > y | x)
    at_y = density(y) * upper_tail((x - rho * y) / safe)
    at_x = density(x) * upper_tail((y - rho * x) / safe)
    both = upper_tail(x) * upper_tail(y) + over_correlations(x, y, rho, 0)
    ramp = density(y) - y * upper_tail(y)
    return at_y + rho * at_x - y * both - upper_tail(x) * ramp


def erf_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    """W ~ N(0, 1/2) is added to U and V."""
    xp = array_module(rho)
    (m1, m2), (s1, s2) = means, stds
    w1 = xp.sqrt(0.5 + s1 * s1)
    w2 = xp.sqrt(0.5 + s2 * s2)
    return 4.0 * over_correlations(m1 / w1, m2 / w2, rho * (s1 / w1) * (s2 / w2), 0)


def sin_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    xp = array_module(rho)
    (m1, m2), (s1, s2) = means, stds
    c = rho * s1 * s2
    half = 0.5 * (s1 * s1 + s2 * s2)  # half >= |c|

    def damped(x: Array) -> Array:
        """exp(-half) (exp(x) - 1), without overflow."""
        return xp.exp(xp.maximum(x, 0.0) - half) * xp.sign(x) * -xp.expm1(-abs(x))

    return 0.5 * (damped(c) * xp.cos(m1 - m2) - damped(-c) * xp.cos(m1 + m2))


def gelu_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    """E[U V 1(U > N1) 1(V > N2)] - E E with N1, N2 ~ N(0, 1): U and V are regressed on the
    standardised X = U - N1 and Y = V - N2, whose moments where X > h and Y > k are known."""
    xp = array_module(rho)
    (m1, m2), (s1, s2) = means, stds
    a = xp.sqrt(1.0 + s1 * s1)
    b = xp.sqrt(1.0 + s2 * s2)
    c = rho * s1 * s2
    r = c / (a * b)
    h = -m1 / a
    k = -m2 / b
    rest = (1.0 - r) * (1.0 + r)  # at least 1 / (a b)^2
    # U = m1 + p1 X + p2 Y + noise, V = m2 + q1 X + q2 Y + noise
    ux, uy = s1 * s1 / a, c / b
    vx, vy = c / a, s2 * s2 / b
    p1, p2 = (ux - r * uy) / rest, (uy - r * ux) / rest
    q1, q2 = (vx - r * vy) / rest, (vy - r * vx) / rest
    noise = c - (p1 * vx + p2 * vy)
    root = xp.sqrt(rest)
    at_h = density(h) * upper_tail((k - r * h) / root)
    at_k = density(k) * upper_tail((h - r * k) / root)
    corner = density(h) * density((k - r * h) / root) * root  # (1 - r^2) phi2(h, k)
    both = upper_tail(h) * upper_tail(k) + over_correlations(h, k, r, 0)
    x = at_h + r * at_k
    y = at_k + r * at_h
    xx = both + h * at_h + r * r * k * at_k + r * corner
    yy = both + k * at_k + r * r * h * at_h + r * corner
    xy = r * both + r * h * at_h + r * k * at_k + corner
    product = (
        (m1 * m2 + noise) * both
        + m1 * (q1 * x + q2 * y)
        + m2 * (p1 * x + p2 * y)
        + p1 * q1 * xx
        + (p1 * q2 + p2 * q1) * xy
        + p2 * q2 * yy
    )
    mean1 = m1 * upper_tail(h) + ux * density(h)
    mean2 = m2 * upper_tail(k) + vy * density(k)
    return product - mean1 * mean2


def over_correlations(x: Array, y: Array, rho: Array, power: int) -> Array:
    """The integral of (rho - r)^power phi2(x, y; r) over r from 0 to rho, element by element."""
    xp = array_module(rho)
    x, y, rho = xp.broadcast_arrays(x, y, rho)
    flat_x, flat_y, flat_rho = x.ravel(), y.ravel(), rho.ravel()
    farthest = xp.maximum(abs(flat_x), abs(flat_y))
    total = xp.zeros(flat_rho.shape)
    at_origin = (flat_x == 0.0) & (flat_y == 0.0)
    total[at_origin] = _at_origin(flat_rho[at_origin], power)
    todo = (flat_rho != 0.0) & ~at_origin
    for panels, strongest, distance in TIERS:
        fits = todo & (abs(flat_rho) <= strongest) & (farthest <= distance)
        todo = todo & ~fits
        (which,) = xp.nonzero(fits)
        for start in range(0, len(which), CHUNK):
            some = which[start : start + CHUNK]
            total[some] = _over_angles(flat_x[some], flat_y[some], flat_rho[some], power, panels)
    return total.reshape(rho.shape)


def _at_origin(rho: Array, power: int) -> Array:
    """`over_correlations` for x = y = 0: arcsin(rho), and the arc-cosine kernel of Cho and Saul
    (2009)."""
    xp = array_module(rho)
    angle = xp.arcsin(rho)
    if power == 0:
        return angle / (2.0 * math.pi)
    root = xp.sqrt((1.0 - rho) * (1.0 + rho))
    return (rho * angle - rho * rho / (1.0 + root)) / (2.0 * math.pi)


def _over_angles(x: Array, y: Array, rho: Array, power: int, panels: int) -> Array:
    """With |r| = cos t, the integral of exp(-d^2 / (2 sin^2 t) - x y / (1 + cos t)) / (2 pi), times
    a power, where d = x - y, over the angles t from arccos |rho| to a right angle.

    It varies on the scale of t, hence panels whose lengths grow with t, from where it is no longer
    negligible. For a negative rho, y changes its sign."""
    xp = array_module(rho)
    nodes, weights = rule(backend_of(rho))
    sign = xp.where(rho < 0, -1.0, 1.0)
    y = sign * y
    first = xp.arccos(abs(rho))
    last = 0.5 * math.pi
    visible = xp.maximum(first, abs(x - y) / 14.0)
    start = xp.clip(visible, SMALLEST_ANGLE, last)
    grades = xp.arange(panels + 1) / panels
    edges = start[:, None] * (last / start[:, None]) ** grades
    if panels > 1:  # the first panel is empty or negligible
        edges = xp.concatenate([first[:, None], edges], axis=1)
    else:
        edges[:, 0] = first
    lengths = edges[:, 1:, None] - edges[:, :-1, None]
    t = edges[:, :-1, None] + lengths * nodes  # (elements, panels, nodes)
    distance = (0.5 * (x - y) ** 2)[:, None, None]
    both = (x * y)[:, None, None]
    sine = xp.sin(t)
    values = xp.exp(-distance / xp.maximum(sine * sine, TINY) - both / (1.0 + xp.cos(t)))
    if power:
        begin = first[:, None, None]
        # |rho| - |r|, without cancellation
        gap = 2.0 * xp.sin(0.5 * (t + begin)) * xp.sin(0.5 * (t - begin))
        values = values * gap**power
    total = (lengths * weights * values).sum(axis=(1, 2)) / (2.0 * math.pi)
    return total if power else sign * total


def upper_tail(x: Array) -> Array:
    """P(Z > x) of Z ~ N(0, 1)."""
    return 0.5 * erfc(math.sqrt(0.5) * x)


def density(x: Array) -> Array:
    xp = array_module(x)
    return xp.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def _is_nonzero(x: Any) -> bool:
    return bool((abs(x) > 0.0).any()) if hasattr(x, "any") else x != 0.0
