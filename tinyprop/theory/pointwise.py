"""The rules of activations: functions of each value by itself.

**Mean and variance** of s(U), for a Gaussian U, come from `tinyprop.moments`.

**Covariances.** Let U = m + d Z with a standard Gaussian Z. The Hermite polynomials h_k, scaled
such that E h_k(Z)^2 = 1, are a basis of functions of Z: s(U) = sum of a_k h_k(Z), with a_k = E s(U)
h_k(Z). For two Gaussian numbers of correlation rho, E h_k(Z1) h_l(Z2) is rho^k if k = l, and
otherwise 0. So, with b_k the coefficients of another function t(V),

    Cov(s(U), t(V)) = sum of a_k b_k rho^k over k >= 1        (Mehler's formula).

The squares of a_1, a_2, ... add up to the variance of s(U). So, divided by the standard deviation,
they add up to 1, and the formula gives the correlation of s(U) and t(V). It is summed in two ways:

- to rounding, by moments/many.py, where a record is to be exact;
- by its first `DEGREES` terms, whose cost is fixed, elsewhere.

V itself, as any other Gaussian value, has the coefficient b_1 only. So what becomes of its
correlation with U is a factor, a_1 (Stein's lemma).

**Functions in a row**, such as DyT and ReLU, are one function of the values in front of the first,
because what the first leaves is not Gaussian. The second has its kinks where the first one passes
them: `_crossings` looks for these places.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .. import moments
from ..engine.arrays import HostArray, to_numpy
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..moments.hermite import coefficients
from ..moments.many import ManyUnits, covariances
from .field import Correlation, Field, per_cell, per_channel, safe_std
from .steps import Made, Step

DEGREES = 12  # of Hermite polynomials, where covariances are not needed to rounding
BLOCK = 1024  # units whose moments are computed at a time
ROUNDING = 4e-16
PROBES = np.linspace(-8.0, 8.0, 65)  # standard deviations, within which functions are finite

# The search for the places where one function passes the kink of another
FAR = 13.0  # standard deviations within which kinks matter
GRID_POINTS = 521  # a twentieth of a standard deviation apart
BISECTIONS = 60
SAME_KINK = 12  # digits of two places that are the same kink, found for two units


@dataclass(frozen=True)
class Bent(Step):
    """An activation: its first Hermite coefficient times the correlation with any other Gaussian
    value (Stein's lemma). Two activations have all coefficients in common."""

    is_linear = False
    std: HostArray  # of the cells
    first_degrees: HostArray | None = None  # of the coefficients, if they are computed without:
    units: ManyUnits | None = None  # with which all covariances are known to rounding
    bound: float = math.inf  # of the error of all covariances, in units of both deviations

    @cached_property
    def coefficients(self) -> HostArray:
        """(degrees, cells), whose squares add up to 1."""
        if self.first_degrees is not None:
            return self.first_degrees
        assert self.units is not None
        return self.units.short_series / safe_std(self.std**2)

    def __call__(self, before: Correlation) -> Correlation:
        return before.times(self.coefficients[0])

    def with_other(self, other: "Bent", before: Correlation) -> Correlation:
        """The correlations of this activation (rows) with another, from those of their inputs."""
        if self.units is not None and other.units is not None and before.whole:
            return self._to_rounding(other, before)
        rows, columns = before.rho.shape[:2]
        a = self._of_cells(rows).astype(before.rho.dtype)
        b = other._of_cells(columns).astype(before.rho.dtype)
        rho = np.zeros_like(before.rho)
        power = np.ones_like(before.rho)
        for own, others in zip(a[:DEGREES], b[:DEGREES], strict=True):
            power = power * before.rho
            rho += np.outer(own, others)[:, :, None, None] * power
        return replace(before, rho=rho, bound=math.inf)

    def _to_rounding(self, other: "Bent", before: Correlation) -> Correlation:
        """With as many terms as are needed, or a closed form."""
        assert self.units is not None
        assert other.units is not None
        inputs = before.rho[:, :, 0, 0].astype("float64")
        variances = self.std**2, other.std**2
        covariance, bound = covariances(self.units, other.units, inputs, variances)
        rho = covariance / np.outer(safe_std(variances[0]), safe_std(variances[1]))
        return replace(before, rho=rho[:, :, None, None], bound=bound)

    def _of_cells(self, count: int) -> HostArray:
        """The coefficients of each cell, for this many cells."""
        return np.stack([per_cell(row, count) for row in self.coefficients])


class ValueMoments(NamedTuple):
    """The moments of a function of each value."""

    mean: HostArray
    variance: HostArray
    error: float  # of the worst, relative to its second moment


@dataclass(frozen=True)
class Pointwise:
    """The function factor * s(u) + shift of every value.

    Its numbers, which are the parameters of s, the factor and the shift, are the same for all
    values, or there is one for each channel. With `inner`, u is in turn that function of the value.

    >>> relu = Pointwise(tp.activations["relu"], {}, factor=2.0)
    >>> relu.of_array(np.array([-1.0, 3.0]))
    array([0., 6.])
    >>> Pointwise(tp.activations["abs"], {}, inner=relu.scaled(1.0, -1.0)).of_array(np.array([0.0]))
    array([1.])
    """

    activation: Activation
    params: dict[str, Any]
    factor: Any = 1.0
    shift: Any = 0.0
    inner: "Pointwise | None" = None

    # Its numbers

    def __hash__(self) -> int:
        """Of a function whose numbers are the same for all channels."""
        params = tuple(self.params.items())
        return hash((self.activation, params, self.factor, self.shift, self.inner))

    def each(self, change: Callable[[Any], Any]) -> "Pointwise":
        """With all numbers changed."""
        params = {name: change(x) for name, x in self.params.items()}
        inner = None if self.inner is None else self.inner.each(change)
        return Pointwise(self.activation, params, change(self.factor), change(self.shift), inner)

    def equals(self, other: "Pointwise") -> bool:
        """Whether it is the same function, up to factor and shift."""
        if self.activation != other.activation or self.params.keys() != other.params.keys():
            return False
        for name, x in self.params.items():
            if not np.array_equal(x, other.params[name]):
                return False
        if self.inner is None or other.inner is None:
            return self.inner is other.inner
        is_scaled_alike = np.array_equal(self.inner.factor, other.inner.factor)
        is_shifted_alike = np.array_equal(self.inner.shift, other.inner.shift)
        return is_scaled_alike and is_shifted_alike and self.inner.equals(other.inner)

    def scaled(self, factor: Any, shift: Any) -> "Pointwise":
        """factor * this + shift."""
        moved = factor * np.asarray(self.shift) + shift
        return replace(self, factor=factor * np.asarray(self.factor), shift=moved)

    @property
    def unscaled(self) -> "Pointwise":
        """Without its factor and shift."""
        return replace(self, factor=1.0, shift=0.0)

    @property
    def differs(self) -> bool:
        """Whether it is another function for each channel."""
        numbers = [self.factor, self.shift, *self.params.values()]
        if any(np.ndim(x) for x in numbers):
            return True
        return self.inner is not None and self.inner.differs

    def of_channel(self, k: int) -> "Pointwise":
        """The function of one channel."""
        return self.each(lambda x: x[k] if np.size(x) > 1 else x)

    # Its values

    def of_tensor(self, u: Tensor) -> Tensor:
        """Of values whose function is the same."""
        if self.inner is not None:
            u = self.inner.of_tensor(u)
        return self.activation(u, **self.params) * self.factor + self.shift

    def of_array(self, u: HostArray) -> HostArray:
        """Of values to which all numbers of the function broadcast."""
        if self.inner is not None:
            u = self.inner.of_array(u)
        values = to_numpy(self.activation(Tensor(u), **self.params).data)
        return np.asarray(self.factor * values + self.shift)

    def value(self, u: HostArray) -> HostArray:
        """Of values (C, ...)."""
        return self.each(lambda x: per_channel(x, u.ndim)).of_array(u)

    def key(self, mean: float, std: float) -> bytes:
        """What a cache knows it by besides its record: its values near a mean. A function may
        depend on something that changes, such as a number that is being learnt. One that has
        closed moments does not."""
        if self.inner is None and self.activation.moments is not None:
            return b""
        return self.of_array(mean + std * PROBES).tobytes()

    # Its moments

    def moments(self, mean: HostArray, variance: HostArray) -> ValueMoments:
        """Mean and variance of its values."""
        if self.inner is None:
            found = self._moments_of_activation(mean, variance)
        else:
            found = self._moments_of_units(mean, variance)
        factor = per_channel(self.factor, mean.ndim)
        shift = per_channel(self.shift, mean.ndim)
        return ValueMoments(factor * found.mean + shift, factor**2 * found.variance, found.error)

    def _moments_of_activation(self, mean: HostArray, variance: HostArray) -> ValueMoments:
        """Without factor and shift, by the record's own moments."""
        params = {name: per_channel(x, mean.ndim) for name, x in self.params.items()}
        known = moments.gaussian(self.activation, mean, np.sqrt(variance), **params)
        is_closed = self.activation.moments is not None
        error = 0.0 if is_closed else float(np.max(known.error, initial=0.0))
        return ValueMoments(known.mean, known.std**2, error)

    def _moments_of_units(self, mean: HostArray, variance: HostArray) -> ValueMoments:
        """Without factor and shift, by quadrature for each value."""
        units = self.units(mean, variance)
        parts = []
        for start in range(0, len(units), BLOCK):
            some = np.arange(start, min(start + BLOCK, len(units)))
            parts.append(units.take(some).sums)
        found_mean = np.concatenate([part.mean for part in parts])
        found_variance = np.concatenate([part.variance for part in parts])
        error = np.concatenate([part.error for part in parts]).max()
        shape = mean.shape
        return ValueMoments(found_mean.reshape(shape), found_variance.reshape(shape), float(error))

    def units(self, mean: HostArray, variance: HostArray) -> ManyUnits:
        """Without factor and shift, as a function of each value by itself."""
        shape = mean.shape

        def of_values(x: Any) -> Any:
            """One number if all are equal, and otherwise one for each value."""
            numbers = np.ravel(x)
            if (numbers == numbers[0]).all():
                return float(numbers[0])
            return np.broadcast_to(per_channel(x, len(shape)), shape).ravel()

        by_value = self.unscaled.each(of_values)

        def function(u: HostArray, which: HostArray) -> HostArray:
            return by_value.of_units(which).of_array(u)

        mean = mean.ravel()
        std = np.sqrt(variance).ravel()
        kinks = by_value.places(mean, std)
        record = by_value.record(mean, std, kinks)
        params = by_value.params if self.inner is None else {}
        return ManyUnits(function, np.arange(len(mean)), kinks, mean, std, record, params)

    def of_units(self, which: HostArray) -> "Pointwise":
        """A function with one number for each unit, for points (units, points) of some of them."""
        return self.each(lambda x: x[which, None] if np.ndim(x) else x)

    def record(self, mean: HostArray, std: HostArray, places: HostArray) -> Activation | None:
        """As one activation, with those places as its kinks that Gaussian values meet; None for
        functions in a row that differ between values."""
        if self.inner is None:
            return self.activation
        if self.differs:
            return None
        is_met = abs(places - mean[:, None]) < 0.999 * FAR * std[:, None]
        is_zero = abs(places) < ROUNDING * std[:, None]
        met = np.where(is_zero, 0.0, places)[is_met]
        _, first = np.unique(met.round(SAME_KINK), return_index=True)
        return Activation(self.of_tensor, "composed", kinks=met[first])

    # Its kinks

    @property
    def kinks(self) -> tuple[float, ...]:
        """Of the function that comes first."""
        return self.activation.kinks if self.inner is None else self.inner.kinks

    def places(self, mean: HostArray, std: HostArray) -> HostArray:
        """Where the function or its slope jumps, of each value (values, places): its kinks, and
        where the inner function reaches them."""
        if self.inner is None:
            own = np.asarray(self.activation.kinks)
            return np.broadcast_to(own, (len(mean), len(own)))
        found = [self.inner.places(mean, std)]
        for kink in self.activation.kinks:
            found.append(_crossings(self.inner, kink, mean, std))
        return np.concatenate(found, axis=1)

    # As a rule

    def __call__(self, field: Field, precise: bool = False) -> Made:
        """The field of its values, without factor and shift: with their covariances to rounding,
        or, which is faster, by the first degrees of Mehler's series."""
        found = self.unscaled.moments(field.mean, field.variance)
        if precise and field.whole:
            step = self._whole_series(field, found.variance)
        else:
            step = self.unscaled._first_degrees(field)
        correlation = step.with_other(step, field.with_itself())
        result = Field(found.mean, found.variance, correlation.rho)
        return result, replace(step, bound=correlation.bound + found.error)

    def _first_degrees(self, field: Field) -> Bent:
        """The first degrees of the Hermite series. What they leave of the variance is given to the
        last two, an odd one and an even one."""
        mean = field.mean
        variance = field.variance
        if not field.whole:  # cells are channels
            mean = mean.mean(axis=(1, 2))
            variance = variance.mean(axis=(1, 2))
        a = coefficients(self.value, mean, np.sqrt(variance), DEGREES, self.kinks)
        full = self.moments(mean, variance).variance
        missing = np.maximum(full - (a**2).sum(axis=0), 0.0)
        last = (a[-2:] ** 2).sum(axis=0)
        growth = np.sqrt(1.0 + missing / np.maximum(last, 1e-300))
        a[-2:] *= np.where(last > 0, growth, 1.0)
        shares = a / safe_std((a**2).sum(axis=0))
        return Bent(np.sqrt(full).ravel(), shares.reshape(DEGREES, -1))

    def _whole_series(self, field: Field, variance: HostArray) -> Bent:
        """With all that is needed for covariances to rounding."""
        units = self.units(field.mean, field.variance)
        return Bent(np.sqrt(variance).ravel(), units=units)


def _crossings(function: Pointwise, value: float, mean: HostArray, std: HostArray) -> HostArray:
    """Where a function passes a value, for each of the units, as far as a grid shows.

    The result is (units, most crossings of one), filled up with places that are far away. A
    function that only comes near the value, as tanh to 1, does not pass it, although it is rounded
    to 1: there has to be a point on the grid where it is above, and one where it is below.
    """
    z = np.linspace(-FAR, FAR, GRID_POINTS)
    every_unit = np.arange(len(mean))

    def excess(u: HostArray, which: HostArray) -> HostArray:
        return function.of_units(which).of_array(u) - value

    on_grid = excess(mean[:, None] + std[:, None] * z, every_unit)
    goes_above = np.any(on_grid > 0.0, axis=1)
    goes_below = np.any(on_grid < 0.0, axis=1)
    passes = goes_above & goes_below
    is_above = on_grid >= 0.0
    changes = is_above[:, 1:] != is_above[:, :-1]
    unit, left = np.nonzero(changes & passes[:, None])

    # bisection of all intervals at once
    low = mean[unit] + std[unit] * z[left]
    high = mean[unit] + std[unit] * z[left + 1]
    was_above = is_above[unit, left]
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        is_left = (excess(middle[:, None], unit)[:, 0] >= 0.0) == was_above
        low = np.where(is_left, middle, low)
        high = np.where(is_left, high, middle)

    counts = np.bincount(unit, minlength=len(mean))
    far_away = mean - FAR * std
    found = np.repeat(far_away[:, None], counts.max(initial=0), axis=1)
    first = np.cumsum(counts) - counts  # the number of each unit's first crossing
    position = np.arange(len(unit)) - np.repeat(first, counts)
    found[unit, position] = 0.5 * (low + high)
    return found
