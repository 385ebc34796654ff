"""Covariances of smooth functions of Gaussian numbers, to rounding, by Mehler's formula.

It is for pairs of numbers with any mean and std (`dual`). The units of a layer, with the same
function and all pairs of them, are in many.py; a dozen terms at a fixed cost in hermite.py.

With a_k = E[s(m + std Z) h_k(Z)], h_k = He_k / sqrt(k!), the covariance of s(U) and s(V) is the sum
of a_k b_k rho^k over k >= 1. The squares of all a_k add up to the variance, so what is known of the
variance bounds what a series of K terms leaves out: |rho|^(K + 1) sqrt(T1 T2), with T the variance
minus the squares so far.

The coefficients of a smooth function are computed by the trapezoidal rule, whose error falls
exponentially once its step resolves the function: a step is fine enough if half of it changes
nothing. Where a series is too long, for wide Gaussians and correlations near 1, the trapezoidal
rule in two dimensions takes its place: smoothing in one and a mean over the other; next to 1, sum
and difference.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from ..engine.arrays import HostArray
from .hermite import polynomials

Values: TypeAlias = Callable[[HostArray], HostArray]  # a function of each number

EDGE = 12.6  # standard deviations: the square root of the density is 6e-18 there
FARTHEST = 9.0  # where the density itself is
SPECTRUM = 9.0  # beyond this frequency, that of the density is below rounding
COARSEST = 16.0  # frequency 2 pi / step of the first grid that is tried
FINEST = 4096.0
SAME = 1e-14  # two sums that differ by less, in units of the second moment, have converged
TERMS = 24  # of the shortest series
MOST_TERMS = 96
NEAREST = 1e-4  # to 1: correlations for which two functions are smoothed by their noise
LEFT_OUT = 1e-15  # of a covariance, in units of both second moments
MOST_POINTS = 1 << 22  # values of a function that are held at a time


@dataclass(frozen=True)
class Units:
    """A smooth function of some Gaussian numbers: their moments, and the frequency 2 pi / step of a
    grid that resolves it (nan where none does)."""

    values: Values
    mean: HostArray
    std: HostArray
    frequency: HostArray
    out_mean: HostArray
    square: HostArray  # E s^2
    variance: HostArray


def resolve(values: Values, mean: HostArray, std: HostArray) -> Units:
    """Halve the step of the trapezoidal rule until mean and variance stay the same."""
    count = len(mean)
    frequency = np.full(count, np.nan)
    out_mean = np.zeros(count)
    square = np.zeros(count)
    variance = np.zeros(count)
    todo = np.arange(count)
    before = None
    trial = COARSEST
    while len(todo) and trial <= FINEST:
        now = _moments(values, mean[todo], std[todo], trial)
        if before is not None:
            change = np.maximum(abs(now[0] - before[0]) * np.sqrt(now[1]), abs(now[2] - before[2]))
            good = (change <= SAME * now[1]) & now[3]
            done = todo[good]
            frequency[done] = trial / 2.0
            out_mean[done], square[done], variance[done] = now[0][good], now[1][good], now[2][good]
            hopeless = ~now[3]
            todo = todo[~(good | hopeless)]
            keep = ~(good | hopeless)
            now = tuple(part[keep] for part in now)
        before = now
        trial *= 2.0
    return Units(values, mean, std, frequency, out_mean, square, variance)


def _moments(
    values: Values, mean: HostArray, std: HostArray, frequency: float
) -> tuple[HostArray, ...]:
    """E s, E s^2, Var s, and whether the function is finite and small enough at both ends."""
    z, root = grid(frequency)
    weights = root * root
    parts = []
    block = max(1, MOST_POINTS // len(z))
    for start in range(0, len(mean), block):
        some = slice(start, start + block)
        with np.errstate(all="ignore"):
            y = values(mean[some, None] + std[some, None] * z)
            out_mean = y @ weights
            rest = y - out_mean[:, None]
            variance = (rest * rest) @ weights
            square = variance + out_mean * out_mean
            ends = np.maximum(abs(y[:, 0] * root[0]), abs(y[:, -1] * root[-1]))
            fits = np.isfinite(square) & (ends <= 1e-15 * np.sqrt(square))
        parts.append((out_mean, square, variance, fits))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def grid(frequency: float, edge: float = EDGE) -> tuple[HostArray, HostArray]:
    """Nodes of the trapezoidal rule for N(0, 1), and the square roots of their weights."""
    step = 2.0 * math.pi / frequency
    last = math.ceil(edge / step)
    z = step * np.arange(-last, last + 1)
    root = np.exp(-0.25 * z * z) * math.sqrt(step / math.sqrt(2.0 * math.pi))
    return z, root


class Series:
    """The coefficients of some units, of which more are computed as they are needed."""

    def __init__(self, units: Units, which: HostArray):
        self.units = units
        self.which = which
        frequency = float(units.frequency[which].max()) + SPECTRUM + math.sqrt(MOST_TERMS)
        self.z, root = grid(frequency)
        self.deviations = np.empty((len(which), len(self.z)))
        block = max(1, MOST_POINTS // len(self.z))
        for start in range(0, len(which), block):
            some = which[start : start + block]
            values = units.values(units.mean[some, None] + units.std[some, None] * self.z)
            values = (values - units.out_mean[some, None]) * root
            self.deviations[start : start + block] = values
        self.functions = polynomials(self.z, root)
        self.coefficients = np.empty((0, len(which)))  # a_1, a_2, ... in front

    def extend(self, terms: int) -> None:
        """Compute coefficients up to this one."""
        following = np.stack(list(islice(self.functions, terms - len(self.coefficients))))
        self.coefficients = np.concatenate([self.coefficients, following @ self.deviations.T])

    def left_out(self) -> HostArray:
        """What the coefficients so far leave of each variance; at least its rounding."""
        known = (self.coefficients**2).sum(axis=0)
        rounding = 4e-16 * self.units.square[self.which]
        return np.maximum(self.units.variance[self.which] - known, rounding)


def smooth_covariance(
    units: Units, first: HostArray, second: HostArray, rho: HostArray
) -> HostArray:
    """Cov(s(U), s(V)) for pairs of units, by their numbers, with these correlations; nan where a
    unit is not resolved."""
    total = np.full(len(rho), np.nan)
    todo = np.flatnonzero(np.isfinite(units.frequency[first] + units.frequency[second]))
    if not len(todo):
        return total
    used, numbers = np.unique(np.concatenate([first[todo], second[todo]]), return_inverse=True)
    left, right = numbers.reshape(2, -1)
    series = Series(units, used)
    scale = np.sqrt(units.square[used])
    terms = TERMS
    while len(todo) and terms <= MOST_TERMS:
        series.extend(terms)
        rest = np.sqrt(series.left_out()) / scale
        with np.errstate(under="ignore"):
            missing = abs(rho[todo]) ** (terms + 1) * rest[left] * rest[right]
        good = missing <= LEFT_OUT
        total[todo[good]] = mehler(series.coefficients, left[good], right[good], rho[todo[good]])
        todo, left, right = todo[~good], left[~good], right[~good]
        terms *= 2
    is_near_one = 1.0 - abs(rho[todo]) < NEAREST
    for i in todo[is_near_one]:
        total[i] = _by_two_grids(units, int(first[i]), int(second[i]), float(rho[i]))
    todo = todo[~is_near_one]
    _, pairs = np.unique(first[todo] * len(units.mean) + second[todo], return_inverse=True)
    levels = np.floor(np.log(1.0 - abs(rho[todo])) / math.log(4.0))
    for pair, level in sorted(set(zip(pairs.tolist(), levels.tolist(), strict=True))):
        some = todo[(pairs == pair) & (levels == level)]
        i, j = int(first[some[0]]), int(second[some[0]])
        total[some] = _by_smoothing(units, i, j, rho[some])
    return total


def mehler(a: HostArray, left: HostArray, right: HostArray, rho: HostArray) -> HostArray:
    """The sum of a_k b_k rho^k for pairs of columns of `a`, by Horner's rule."""
    total = np.zeros(len(rho))
    for row in a[::-1]:
        total = (total + row[left] * row[right]) * rho
    return total


def _by_smoothing(units: Units, i: int, j: int, rho: HostArray) -> HostArray:
    """For one pair of units and correlations whose distances from 1 (or -1) are much the same.

    With size = |rho|, U and V have a common part sqrt(size) W and noise of their own, so E s(U)s(V)
    is the mean over W of the product of both functions, each smoothed by its noise. On a lattice,
    smoothing is a matrix product for all correlations at once. The smoothed functions vary slowly,
    so few places W are enough."""
    size = abs(rho)
    noise = np.sqrt(1.0 - size)
    common = np.sqrt(size)
    frequency = max(units.frequency[i], units.frequency[j]) + SPECTRUM / noise.min()
    step = 2.0 * math.pi / frequency
    # of the product of both functions with the density of W
    spectrum = SPECTRUM * math.sqrt(2.0 * size.max() / noise.min() ** 2 + 1.0)
    stride = max(1, math.floor(frequency / spectrum * common.min()))
    reach = math.ceil(FARTHEST * noise.max() / step)
    last = math.ceil(FARTHEST * common.max() / (stride * step))
    y = step * np.arange(-reach, reach + 1)[:, None]
    kernels = np.exp(-0.5 * (y / noise) ** 2) * (step / (noise * math.sqrt(2.0 * math.pi)))
    edge = reach + last * stride
    z = step * np.arange(-edge, edge + 1)

    def smoothed(unit: int) -> HostArray:  # (places, correlations)
        values = units.values(units.mean[unit] + units.std[unit] * z) - units.out_mean[unit]
        windows = np.lib.stride_tricks.sliding_window_view(values, 2 * reach + 1)[::stride]
        return np.ascontiguousarray(windows) @ kernels

    u = smoothed(i)
    v = u if i == j else smoothed(j)
    v = np.where(rho < 0.0, v[::-1], v)
    spacing = stride * step / common
    places = np.arange(-last, last + 1)[:, None] * spacing
    density = np.exp(-0.5 * places * places) * (spacing / math.sqrt(2.0 * math.pi))
    total: HostArray = (u * v * density).sum(axis=0)
    return total


def _by_two_grids(units: Units, i: int, j: int, rho: float) -> float:
    """The trapezoidal rule for the sum and the difference of U and V, in units of their
    deviations, which are independent: U = m1 + s1 (a p + b q), V = m2 + s2 (a p - b q)."""
    a = math.sqrt(0.5 * (1.0 + rho))
    b = math.sqrt(0.5 * (1.0 - rho))
    # that of a square, too
    enough = float(max(units.frequency[i], units.frequency[j]))
    p, root_p = grid(a * enough + 2.0 * SPECTRUM, FARTHEST)
    q, root_q = grid(b * enough + 2.0 * SPECTRUM, FARTHEST)
    total = 0.0
    block = max(1, MOST_POINTS // len(p))
    for start in range(0, len(q), block):
        some = slice(start, start + block)
        sums = a * p[:, None]
        differences = b * q[some]
        u = units.values(units.mean[i] + units.std[i] * (sums + differences))
        v = units.values(units.mean[j] + units.std[j] * (sums - differences))
        products = (u - units.out_mean[i]) * (v - units.out_mean[j])
        total += float(root_p**2 @ products @ root_q[some] ** 2)
    return total
