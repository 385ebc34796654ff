"""Functions of many Gaussian numbers: their Hermite series, and the covariances of all pairs.

A layer has a function of each of its units, and each two units have a correlation. For most pairs
Mehler's series is short (`series.py` has the formula): it is computed for all of them at once.
Closed forms, and longer series, are for pairs that correlate strongly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from ..engine.arrays import HostArray, to_numpy
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from .bivariate import lines_covariance, lines_std
from .dual import closed_covariance, dual, missed
from .hermite import polynomials
from .lines import as_lines
from .quadrature import FARTHEST, gauss_legendre

EDGE = 12.6  # standard deviations: the square root of the density is 6e-18 there
PANEL = gauss_legendre(16)  # nodes and weights
STEPS = 4  # of the trapezoidal rule, for the length of a panel
# Panels between -EDGE and EDGE, in standard deviations. The first resolves 64 Hermite functions.
LENGTHS = (0.8, 0.4, 0.2, 0.1, 0.05, 0.025)
SAME = 1e-13  # two sums that differ by less, in units of the second moment, have converged
SHORT = (16, 32, 64)  # terms of a series for all pairs, each twice as many as before
LONG = 512  # of one that is computed for single pairs
LONG_LENGTH = 0.4  # the longest panels that resolve so many Hermite functions
TAIL = 8  # coefficients that tell how fast a series falls
FEW = 0.05  # of all pairs: so many may be left for other ways
FEW_PAIRS = 64  # for which a formula is faster than a series
LEFT_OUT = 1e-13  # of a covariance, in units of both standard deviations
CACHED = 1 << 14  # pairs that are treated at a time
# How many pairs are computed in ways that are slow: about a second's worth. If there are more, they
# keep a series that is too short for them, and its bound.
MOST_CLOSED = 1 << 17
MOST_LONG = 1 << 16
MOST_SMOOTH = 1 << 8
MOST_NESTED = 16


@dataclass(frozen=True)
class ManyUnits:
    """A function of each of n Gaussian numbers."""

    function: Callable[[HostArray, HostArray], HostArray]  # of points (n, points), and `numbers`
    numbers: HostArray  # (n,): by which the function knows units
    kinks: HostArray  # (n, kinks): places where the function or its slope jumps
    mean: HostArray  # (n,)
    std: HostArray
    # the function, if it is that of a record, and its parameters: numbers, or one for each unit
    activation: Activation | None = None
    params: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.mean)

    def take(self, which: HostArray) -> "ManyUnits":
        """Some of the units."""
        params = {name: x[which] if np.ndim(x) else x for name, x in self.params.items()}
        return replace(
            self,
            numbers=self.numbers[which],
            kinks=self.kinks[which],
            mean=self.mean[which],
            std=self.std[which],
            params=params,
        )

    @cached_property
    def sums(self) -> "Sums":
        """By panels that are halved until mean and variance stay the same."""
        before = self._sums(LENGTHS[0])
        for length in LENGTHS[1:]:
            now = self._sums(length)
            change = abs(now.variance - before.variance) + abs(now.mean - before.mean) * now.root
            found = replace(now, error=change / np.maximum(now.root**2, 1e-300))
            if (found.error <= SAME).all():
                return replace(found, length=2.0 * length)
            before = now
        return found

    def _sums(self, length: float) -> "Sums":
        _, weights, y = self._points(length)
        mean = (weights * y).sum(axis=1)
        rest = y - mean[:, None]
        variance = (weights * rest * rest).sum(axis=1)
        root = np.sqrt(variance + mean * mean)
        return Sums(mean, variance, root, length, np.full(len(self), np.inf))

    def _points(self, length: float) -> tuple[HostArray, HostArray, HostArray]:
        """Nodes z, their weights for N(0, 1), and the function at mean + std z: (n, points), or (1,
        points) for the first two if all units have the same."""
        if self.kinks.shape[1]:
            z, weights = self._between_kinks(length)
        else:
            # the trapezoidal rule, whose error falls exponentially
            step = length / STEPS
            last = math.ceil(EDGE / step)
            z = step * np.arange(-last, last + 1)[None]
            weights = np.full(z.shape, step)
        weights = weights * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        u = self.mean[:, None] + self.std[:, None] * z
        with np.errstate(all="ignore"):
            y = self.function(u, self.numbers)
        return z, weights, y

    def _between_kinks(self, length: float) -> tuple[HostArray, HostArray]:
        """Gauss-Legendre nodes and weights, of panels that end at the kinks of each unit."""
        count = math.ceil(2.0 * EDGE / length)
        std = np.maximum(self.std, 1e-300)[:, None]
        places = np.clip((self.kinks - self.mean[:, None]) / std, -EDGE, EDGE)
        edges = np.broadcast_to(np.linspace(-EDGE, EDGE, count + 1), (len(self), count + 1))
        edges = np.sort(np.concatenate([edges, places], axis=1), axis=1)
        nodes, weights = PANEL
        lengths = np.diff(edges)[:, :, None]
        # (n, panels, nodes) -> (n, points)
        z = (edges[:, :-1, None] + lengths * nodes).reshape(len(edges), -1)
        return z, (lengths * weights).reshape(z.shape)

    def coefficients(self, terms: int) -> HostArray:
        """E[s(U) h_k(Z)] for k = 1, ..., terms, in front."""
        length = self.sums.length
        if terms > SHORT[-1]:
            length = min(length, LONG_LENGTH)
        z, weights, y = self._points(length)
        y = weights * (y - self.sums.mean[:, None])
        if len(z) == 1:
            return _hermite_table(z.tobytes(), terms) @ y.T
        every = islice(polynomials(z, np.ones_like(z)), terms)
        return np.stack([np.einsum("np,np->n", y, h) for h in every])

    @cached_property
    def short_series(self) -> HostArray:
        return self.coefficients(SHORT[-1])

    @cached_property
    def is_common(self) -> bool:
        """Whether all units have the same function, by its record."""
        return self.activation is not None and not any(np.ndim(x) for x in self.params.values())

    @cached_property
    def is_centered(self) -> bool:
        """Whether all units have their mean at the only kink, 0."""
        return self.kinks.shape[1] == 1 and not self.kinks.any() and not self.mean.any()

    @property
    def has_formula(self) -> bool:
        """Whether covariances have a formula. (The closed form of elu has integrals in it.)"""
        is_smooth = self.kinks.shape[1] == 0
        return self.lines is not None or (is_smooth and self.has_closed_form)

    @property
    def has_closed_form(self) -> bool:
        """Whether the record of all units has a dual of its own."""
        return self.is_common and self.activation is not None and self.activation.dual is not None

    @cached_property
    def lines(self) -> "LinesOfUnits | None":
        """The lines that the functions consist of, with slopes and jumps of each unit, if they
        do."""
        if self.activation is None or not len(self):
            return None
        low = float((self.mean - FARTHEST * self.std).min())
        high = float((self.mean + FARTHEST * self.std).max())
        kinks = self.activation.kinks
        # around the kinks, so that all units have the same number of them
        span = max(high - low, 1.0)
        low = min([low, *kinks]) - span
        high = max([high, *kinks]) + span
        if self.is_common:
            rows = np.array([[0.0, *self.params.values()]])
            which = np.zeros(len(self), int)
        else:
            columns = [np.zeros(len(self)), *self.params.values()]
            table = np.stack([np.broadcast_to(x, len(self)) for x in columns], axis=1)
            rows, which = np.unique(table, axis=0, return_inverse=True)
        each = []
        for row in rows:
            own = dict(zip(self.params, row[1:], strict=True))
            values = partial(_call, self.activation, own)
            lines = as_lines(values, kinks, low, high)
            if lines is None:
                return None
            each.append(lines)
        which = which.ravel()
        slopes = np.array([lines.slopes for lines in each])[which].T
        jumps = np.array([lines.jumps for lines in each])[which].T
        return LinesOfUnits(kinks, tuple(slopes), tuple(jumps))


@dataclass(frozen=True)
class LinesOfUnits:
    """Functions of lines with the same kinks, and slopes and jumps (units,) of each unit."""

    kinks: tuple[float, ...]
    slopes: tuple[HostArray, ...]
    jumps: tuple[HostArray, ...]

    def of_units(self, which: HostArray) -> tuple[Any, Any, Any]:
        """Kinks, slopes and jumps of some units."""
        slopes = [slope[which] for slope in self.slopes]
        jumps = [jump[which] for jump in self.jumps]
        return self.kinks, slopes, jumps


@dataclass(frozen=True)
class Sums:
    """Moments of the functions of some units, and the panels that they were computed with."""

    mean: HostArray
    variance: HostArray
    root: HostArray  # of the mean square
    length: float
    error: HostArray  # relative to the mean square


@lru_cache(maxsize=16)
def _hermite_table(points: bytes, terms: int) -> HostArray:
    """The first Hermite polynomials (terms, points): layers have them at the same points."""
    z = np.frombuffer(points)
    table = np.stack(list(islice(polynomials(z, np.ones_like(z)), terms)))
    table.flags.writeable = False
    return table


def _call(activation: Any, params: dict[str, Any], u: HostArray) -> HostArray:
    return np.asarray(to_numpy(activation(Tensor(u), **params).data), "float64")


def covariances(
    first: ManyUnits, second: ManyUnits, rho: HostArray, variances: tuple[HostArray, HostArray]
) -> tuple[HostArray, float]:
    """The covariance of each two units with these correlations (n, m), and a bound of the error of
    the worst, in units of both standard deviations. `variances` are those of the functions."""
    is_same = first is second
    found = Covariances(first, second, np.clip(rho, -1.0, 1.0), variances)
    found.by_short_series(is_same)
    if is_same:
        each = np.arange(len(first))
        found.covariance[each, each] = variances[0]
        found.missing[each, each] = 0.0
    found.finish(is_same)
    return found.covariance, float(found.missing.max(initial=0.0))


def of_pairs(unit: ManyUnits, rho: HostArray, variance: float) -> tuple[HostArray, float]:
    """The covariance of a function of one unit at two Gaussian numbers, for pairs of these with
    such correlations (m,), and a bound as above. The function has this variance."""
    if not len(rho):
        return rho, 0.0
    variances = np.array([variance])
    found = Covariances(unit, unit, np.clip(rho, -1.0, 1.0)[None], (variances, variances))
    needs_no_series = unit.has_formula or (unit.has_closed_form and _are_strong(rho))
    if len(rho) > FEW_PAIRS or not needs_no_series:
        found.by_short_series(is_same=False)
    found.finish(is_same=False)
    return found.covariance[0], float(found.missing.max(initial=0.0))


def _are_strong(rho: HostArray) -> bool:
    """Whether the last powers of a short series matter for all correlations, so that only functions
    without kinks have such a series."""
    return bool((abs(rho) ** SHORT[-1] > LEFT_OUT).all())


class Covariances:
    """Covariances as far as they are known, and what may be missing of each."""

    def __init__(
        self,
        first: ManyUnits,
        second: ManyUnits,
        rho: HostArray,
        variances: tuple[HostArray, HostArray],
    ):
        self.first = first
        self.second = second
        self.rho = rho
        self.stds = [np.sqrt(np.maximum(variance, 0.0)) for variance in variances]
        self.covariance = np.zeros(rho.shape)
        self.missing = np.full(rho.shape, np.inf)

    def by_short_series(self, is_same: bool) -> None:
        """Of all pairs, with as many terms as most of them need."""
        a = self.first.short_series
        b = self.second.short_series
        size = abs(self.rho)
        power = ((size**2) ** 2) ** 2
        power *= power  # to the first of SHORT
        unresolved = np.add.outer(*self._unresolved())
        for terms in SHORT:
            if terms > SHORT[0]:
                power *= power
            rest1 = _left_out(self.first, a[:terms], self.stds[0])
            is_alike = self.first is self.second
            rest2 = rest1 if is_alike else _left_out(self.second, b[:terms], self.stds[1])
            missing = np.outer(rest1, rest2) * power * size + unresolved
            if (missing > LEFT_OUT).mean() <= FEW:
                break
        self.missing = missing
        self.covariance = mehler_matrix(a[:terms], b[:terms], self.rho, is_same)

    def finish(self, is_same: bool) -> None:
        """Pairs of which too much is missing, by closed forms and longer series."""
        todo = self.missing > LEFT_OUT
        if is_same:
            todo = np.triu(todo)
        i, j = np.nonzero(todo)
        if not len(i):
            return
        covariance, missing = self._pairs(i, j)
        self.covariance[i, j] = covariance
        self.missing[i, j] = missing
        if is_same:
            self.covariance[j, i] = covariance
            self.missing[j, i] = missing

    def _pairs(self, i: HostArray, j: HostArray) -> tuple[HostArray, HostArray]:
        """The covariances of single pairs, and what is missing of them: by the first of these ways
        that there are not too many pairs for."""
        pairs = self._chosen(i, j)
        nothing = np.zeros(len(i))
        if self._have_lines(len(i)):
            return self._by_lines(pairs), nothing
        activation = self._common_activation()
        has_closed_form = activation is not None and activation.dual is not None
        if has_closed_form and len(i) <= MOST_CLOSED:
            return self._by_closed_form(activation, pairs), nothing
        if len(i) > MOST_LONG:
            return self.covariance[i, j], self.missing[i, j]
        covariance, missing = self._long_series(pairs)
        (rest,) = np.nonzero(missing > LEFT_OUT)
        most = MOST_NESTED if self.first.kinks.shape[1] else MOST_SMOOTH
        if activation is not None and 0 < len(rest) <= most:
            exactly = self._by_dual(activation, pairs.take(rest))
            if exactly is not None:
                covariance[rest] = exactly
                missing[rest] = 0.0
        return covariance, missing

    def _chosen(self, i: HostArray, j: HostArray) -> "ChosenPairs":
        """The pairs of row i and column j."""
        rho = self.rho[i, j]
        if len(self.second) == 1:  # all columns are like it
            j = np.zeros_like(j)
        means = self.first.mean[i], self.second.mean[j]
        stds = self.first.std[i], self.second.std[j]
        return ChosenPairs(i, j, rho, means, stds)

    def _have_lines(self, count: int) -> bool:
        """Whether both functions consist of lines, and their formula is fast enough for this
        number of pairs."""
        if not all(self._are_lines):
            return False
        are_centered = self.first.is_centered and self.second.is_centered
        return are_centered or count <= MOST_CLOSED

    @cached_property
    def _are_lines(self) -> list[bool]:
        """Whether each of both functions consists of lines that have its standard deviation."""
        found = []
        for units, std in zip((self.first, self.second), self.stds, strict=True):
            if units.lines is None:
                found.append(False)
                continue
            kinks, slopes, jumps = units.lines.of_units(np.arange(len(units)))
            difference = abs(lines_std(kinks, slopes, units.mean, units.std, jumps) - std)
            found.append(bool((difference <= missed(std, units.sums.root)).all()))
        return found

    def _by_lines(self, pairs: "ChosenPairs") -> HostArray:
        """By the formula for functions of lines, each with slopes and jumps of its own."""
        assert self.first.lines is not None
        assert self.second.lines is not None
        kinks, slopes, jumps = self.first.lines.of_units(pairs.i)
        other = self.second.lines.of_units(pairs.j)
        return lines_covariance(kinks, slopes, pairs.rho, pairs.means, pairs.stds, jumps, other)

    def _by_closed_form(self, activation: Any, pairs: "ChosenPairs") -> HostArray:
        """By the record's own dual."""
        own = {**activation.parameters, **self.first.params}
        arrays = {name: np.full(len(pairs.rho), value) for name, value in own.items()}
        return closed_covariance(activation, pairs.rho, pairs.means, pairs.stds, arrays)

    def _by_dual(self, activation: Any, pairs: "ChosenPairs") -> HostArray | None:
        """One by one, each to rounding; None if that is refused, as for a function that is too
        steep: then the series keeps its bound."""
        try:
            found = dual(activation, pairs.rho, pairs.means, pairs.stds, **self.first.params)
        except ValueError:
            return None
        covariance: HostArray = found.covariance
        return covariance

    def _common_activation(self) -> Activation | None:
        """The record of the function of all units, if they have the same."""
        first = self.first
        second = self.second
        if not (first.is_common and second.is_common) or first.params != second.params:
            return None
        return first.activation if first.activation == second.activation else None

    def _long_series(self, pairs: "ChosenPairs") -> tuple[HostArray, HostArray]:
        """By `LONG` terms, and what these leave out."""
        mine, left = np.unique(pairs.i, return_inverse=True)
        theirs, right = np.unique(pairs.j, return_inverse=True)
        a, rest1 = _long_coefficients(self.first, mine, self.stds[0])
        is_same = self.first is self.second and np.array_equal(mine, theirs)
        b, rest2 = (a, rest1) if is_same else _long_coefficients(self.second, theirs, self.stds[1])
        total = np.empty(len(pairs.rho))
        block = CACHED // LONG
        for start in range(0, len(total), block):
            some = slice(start, start + block)
            powers = np.cumprod(np.repeat(pairs.rho[None, some], LONG, axis=0), axis=0)
            total[some] = (a[:, left[some]] * b[:, right[some]] * powers).sum(axis=0)
        missing = rest1[left] * rest2[right] * abs(pairs.rho) ** (LONG + 1)
        errors = self._unresolved()
        return total, missing + errors[0][pairs.i] + errors[1][pairs.j]

    def _unresolved(self) -> tuple[HostArray, HostArray]:
        """The errors of coefficients where panels are too long for a function, or miss a part of
        it, in units of its standard deviation: however weak a correlation is, the first term has
        them."""
        errors = []
        for units, std in zip((self.first, self.second), self.stds, strict=True):
            sums = units.sums
            error = np.where(sums.error > SAME, sums.error * sums.root, 0.0)
            difference = abs(np.sqrt(sums.variance) - std)
            part = np.sqrt(abs(sums.variance - std**2))
            is_missed = difference > missed(std, sums.root)
            error = np.maximum(error, np.where(is_missed, part, 0.0))
            errors.append(np.where(std > 0.0, error / np.maximum(std, 1e-150), 0.0))
        return errors[0], errors[1]


@dataclass(frozen=True)
class ChosenPairs:
    """Pairs of units i and j, and the means and deviations of both."""

    i: HostArray
    j: HostArray
    rho: HostArray
    means: tuple[HostArray, HostArray]
    stds: tuple[HostArray, HostArray]

    def take(self, which: HostArray) -> "ChosenPairs":
        """Some of the pairs."""
        means = self.means[0][which], self.means[1][which]
        stds = self.stds[0][which], self.stds[1][which]
        return ChosenPairs(self.i[which], self.j[which], self.rho[which], means, stds)


def mehler_matrix(a: HostArray, b: HostArray, rho: HostArray, is_same: bool) -> HostArray:
    """The sum of a_k b_k^T rho^k, by Horner's rule, in blocks of rows that stay in the cache. If
    rows and columns are the same, one half is that of the other. One row is summed up at once."""
    if len(rho) == 1:
        powers = np.cumprod(np.repeat(rho, len(a), axis=0), axis=0)
        return np.einsum("ki,kj,kj->ij", a, b, powers)
    total = np.empty(rho.shape)
    block = max(1, CACHED // max(1, rho.shape[1]))
    for start in range(0, len(rho), block):
        rows = slice(start, start + block)
        columns = slice(start if is_same else 0, None)
        correlation = np.ascontiguousarray(rho[rows, columns])
        here = np.zeros_like(correlation)
        product = np.empty_like(correlation)
        for own, others in zip(a[::-1, rows], b[::-1, columns], strict=True):
            np.multiply(own[:, None], others, out=product)
            here += product
            here *= correlation
        total[rows, columns] = here
        if is_same:
            total[columns, rows] = here.T
    return total


def _long_coefficients(
    units: ManyUnits, which: HostArray, std: HostArray
) -> tuple[HostArray, HostArray]:
    """Those of some units, and what they leave out."""
    some = units if len(which) == len(units) else units.take(which)
    found = some.coefficients(LONG)
    return found, _left_out(some, found, std[which])


def _left_out(units: ManyUnits, coefficients: HostArray, std: HostArray) -> HostArray:
    """The root of what a series leaves of each variance, in units of the standard deviation; at
    least the error of its coefficients. Functions that do not vary need no series."""
    variance = std**2
    squares = coefficients**2
    error = (units.sums.error + 4e-16) * units.sums.root**2
    rest = np.maximum(variance - squares.sum(axis=0), error)
    # where rounding hides what is left, the last coefficients tell how fast they fall
    last = TAIL**2 * squares[-TAIL:].max(axis=0)
    is_resolved = units.sums.error <= SAME
    rest = np.where((rest <= 100.0 * error) & is_resolved, np.minimum(rest, last), rest)
    return np.sqrt(np.where(variance > 0.0, rest / np.maximum(variance, 1e-300), 0.0))
