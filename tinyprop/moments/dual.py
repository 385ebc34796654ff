"""Dual activations: the moments of a function of two correlated Gaussian numbers.

- A closed form, if the record of the activation has one (bivariate.py): functions of lines, erf,
  sin, gelu; and a user's function that turns out to consist of lines.
- A smooth function: Mehler's series (series.py).
- All others: E[s(U) E[s(V) | U]], by quadrature between their kinks (nested.py).
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, as_array, from_host, to_numpy
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation
from .bivariate import lines_covariance, lines_mean, lines_std
from .gaussian import Subject, _as_given, _data, _float64_tensors, gaussian, subject_of
from .lines import Lines, as_lines
from .nested import (
    FEWEST_HALVINGS,
    MOST_HALVINGS,
    Law,
    Values,
    found_bends,
    found_kinks,
    nested_covariance,
    sees,
)
from .panels import BULK, CHECKS, alike
from .quadrature import FARTHEST
from .series import resolve, smooth_covariance

ROUNDING = 1e-12  # by which a correlation that was computed may exceed 1
# Grids and lines whose mean and std differ by more from those of `gaussian`, in units of std, have
# missed something. Where a function is saturated, its std is rounding beside its values: this
# fraction of their root mean square is taken instead.
MISSED = 1e-9
SATURATED = 1e-6
MOST_BENDS = 110  # of a function: a nested integral of more takes seconds


@dataclass(frozen=True)
class Dual:
    """Of s(U) and s(V): the mean of their product, and their covariance.

    >>> tp.moments.dual("identity", 0.5, mean=(1.0, 2.0))
    Dual(product=2.5, covariance=0.5)
    """

    product: Any
    covariance: Any


def dual(
    activation: AnyActivation | Subject,
    rho: Any,
    mean: Any = 0.0,
    std: Any = 1.0,
    **params: Any,
) -> Dual:
    """E s(U) s(V) and Cov(s(U), s(V)) for Gaussian U and V of correlation rho, element by element.

    `activation` and its parameters are as in `gaussian`. `mean` and `std` are those of both
    variables, or tuples of U's and V's. Numbers give numbers, arrays give float64 arrays. Tensors
    count as arrays: nothing here is differentiable.

    Functions of lines (ours and yours, with kinks and jumps anywhere), erf, sin and gelu have
    closed forms. Smooth functions have a series, which is as long as it must be. Other functions
    take a nested integral for each value, which is much slower.

    >>> relu = tp.moments.dual("relu", 0.0)
    >>> round(relu.product, 12), relu.covariance
    (0.159154943092, 0.0)
    >>> round(tp.moments.dual("relu", 1.0).product, 12)
    0.5
    >>> tp.moments.dual("erf", [-0.5, 0.5], mean=(0.0, 1.0), std=2.0).covariance.round(6)
    array([-0.26013,  0.26013])
    """
    subject, params = subject_of(activation, params)
    given = {"rho": rho, **params}
    for name, value in (("mean", mean), ("std", std)):
        is_pair = isinstance(value, tuple) and len(value) == 2
        given[name], given[name + "2"] = value if is_pair else (value, value)
    given = {name: _data(value) for name, value in given.items()}
    arrays = {name: tensor.data for name, tensor in _float64_tensors(given).items()}
    r = arrays.pop("rho")
    means = arrays.pop("mean"), arrays.pop("mean2")
    stds = arrays.pop("std"), arrays.pop("std2")
    _check(r, means, stds)
    xp = array_module(r)
    r = xp.clip(r, -1.0, 1.0)
    pairs = Pairs.of(r, means, stds, arrays)
    if subject.dual is not None:
        covariance = closed_covariance(subject, r, means, stds, arrays)
        out_mean = pairs.moments(subject).mean
    else:
        out_mean = np.empty(len(pairs.mean))
        found = np.empty(r.size)
        for group in pairs.groups():
            out_mean[group.units], found[group.members] = _of_group(subject, group)
        covariance = from_host(found.reshape(r.shape), like=r)
    product_of_means = out_mean[pairs.first] * out_mean[pairs.second]
    product = covariance + from_host(product_of_means.reshape(r.shape), like=r)
    return Dual(_result(product, given), _result(covariance, given))


def _of_group(subject: Subject, group: "Group") -> tuple[HostArray, HostArray]:
    """E s(U) of each unit and Cov(s(U), s(V)) of each pair, for a function without a dual."""
    own: dict[str, Any] = {name: float(x) for name, x in group.params.items()}
    values = partial(subject.values, **own)
    if subject.kinks:
        lines = _lines(values, list(subject.kinks), group)
        if lines is not None and _is_straight(values, lines, group):
            return _of_lines(values, lines, group)
    try:
        moments = gaussian(subject, group.mean, group.std, **own)
    except ValueError:
        # the std of a function that is nearly constant, such as a step far away, may be beyond
        # quadrature; lines have closed forms
        lines = _lines(values, _kinks(values, subject, group), group)
        if lines is None or not _is_straight(values, lines, group):
            raise
        return _of_lines(values, lines, group)
    return moments.mean, _covariance(values, subject, group, moments)


def _of_lines(values: Values, lines: Lines, group: "Group") -> tuple[HostArray, HostArray]:
    """Both for a function of lines."""
    every_pair = np.arange(len(group.rho))
    mean = lines_mean(values, lines, group.mean, group.std)
    return mean, _covariance_of_lines(lines, group, every_pair)


def closed_covariance(
    subject: Activation | Subject,
    rho: Array,
    means: tuple[Array, Array],
    stds: tuple[Array, Array],
    params: dict[str, Any],
) -> Array:
    """By the closed form of an activation that has one."""
    assert subject.dual is not None
    covariance = as_array(_data(subject.dual(rho, means, stds, **params)))
    if covariance.shape != rho.shape:
        got = f"a dual of {subject.name} of shape {covariance.shape} for correlations {rho.shape}"
        raise ShapeError(got, "it has one covariance for each correlation", "dual=None")
    return covariance


def _result(x: Array, given: dict[str, Any]) -> Any:
    return _as_given(Tensor(as_array(x)), given)


def _check(rho: Array, means: tuple[Array, Array], stds: tuple[Array, Array]) -> None:
    xp = array_module(rho)
    fits = (abs(rho) <= 1.0 + ROUNDING) & (stds[1] >= 0.0) & xp.isfinite(means[1] + stds[1])
    if fits.all():
        return
    smallest = min(stds[0].min(), stds[1].min())
    got = f"correlations from {rho.min()} to {rho.max()}, standard deviations from {smallest}"
    rule = "-1 <= rho <= 1, std >= 0, all finite"
    raise ValueError(explain(got, rule, "rho / (std1 * std2) for a covariance"))


@dataclass(frozen=True)
class Pairs:
    """Pairs of Gaussian numbers, on the host: each of them is a unit with a mean and a std, and
    units that are the same are counted once."""

    rho: HostArray  # (pairs,)
    first: HostArray  # (pairs,): numbers of units
    second: HostArray
    mean: HostArray  # (units,)
    std: HostArray
    params: dict[str, HostArray]  # (units,)

    @classmethod
    def of(
        cls,
        rho: Array,
        means: tuple[Array, Array],
        stds: tuple[Array, Array],
        params: dict[str, Array],
    ) -> "Pairs":
        columns = [_both(*means), _both(*stds), *(_both(value, value) for value in params.values())]
        rows, numbers = _distinct(np.stack(columns, axis=1))
        first, second = numbers.reshape(2, -1)
        own = dict(zip(params, rows.T[2:], strict=True))
        return cls(to_numpy(rho).ravel(), first, second, rows[:, 0], rows[:, 1], own)

    def moments(self, subject: Subject) -> Any:
        return gaussian(subject, self.mean, self.std, **self.params)

    def groups(self) -> "list[Group]":
        """Pairs whose function has the same parameters."""
        if not self.params:
            everything = np.arange(len(self.mean))
            members = np.arange(len(self.rho))
            return [Group({}, everything, members, *self._parts(everything, members))]
        rows, numbers = _distinct(np.stack(list(self.params.values()), axis=1))
        found = []
        for i, row in enumerate(rows):
            units = np.flatnonzero(numbers == i)
            members = np.flatnonzero(numbers[self.first] == i)
            params = dict(zip(self.params, row, strict=True))
            found.append(Group(params, units, members, *self._parts(units, members)))
        return found

    def _parts(self, units: HostArray, members: HostArray) -> tuple[HostArray, ...]:
        place = np.zeros(len(self.mean), int)
        place[units] = np.arange(len(units))
        first, second = place[self.first[members]], place[self.second[members]]
        return self.rho[members], first, second, self.mean[units], self.std[units]


@dataclass(frozen=True)
class Group:
    """Pairs of units with the same function."""

    params: dict[str, Any]
    units: HostArray  # their numbers among all
    members: HostArray  # the numbers of the pairs
    rho: HostArray
    first: HostArray
    second: HostArray
    mean: HostArray
    std: HostArray

    def of_pairs(self, members: HostArray) -> "Group":
        """Some of the pairs, and their units."""
        both = np.concatenate([self.first[members], self.second[members]])
        used, numbers = np.unique(both, return_inverse=True)
        first, second = numbers.reshape(2, -1)
        return Group(
            self.params,
            self.units[used],
            self.members[members],
            self.rho[members],
            first,
            second,
            self.mean[used],
            self.std[used],
        )


def _both(first: Array, second: Array) -> HostArray:
    return np.concatenate([to_numpy(first).ravel(), to_numpy(second).ravel()])


def _distinct(rows: HostArray) -> tuple[HostArray, HostArray]:
    """Rows that differ, and which of them each row is."""
    if len(rows) and (rows == rows[0]).all():
        return rows[:1], np.zeros(len(rows), int)
    found, numbers = np.unique(rows, axis=0, return_inverse=True)
    return found, numbers.ravel()


def _covariance(values: Values, subject: Subject, group: Group, moments: Any) -> HostArray:
    """Of a function without a closed form of its own, for each pair."""
    kinks = list(subject.kinks)
    found = np.full(len(group.rho), np.nan)
    if not kinks:
        units = resolve(values, group.mean, group.std)
        # a grid that has missed something is no better than none
        of_mean = abs(units.out_mean - moments.mean)
        of_std = abs(np.sqrt(units.variance) - moments.std)
        allowed = missed(moments.std, np.sqrt(units.square))
        is_seen = (np.maximum(of_mean, of_std) <= allowed) & (allowed > 0.0)
        units = replace(units, frequency=np.where(is_seen, units.frequency, np.nan))
        found = smooth_covariance(units, group.first, group.second, group.rho)
    is_fixed = group.std == 0.0
    found[is_fixed[group.first] | is_fixed[group.second]] = 0.0
    (rest,) = np.nonzero(np.isnan(found))
    if not len(rest):
        return found
    some = group.of_pairs(rest)
    kinks = _kinks(values, subject, some)
    lines = _lines(values, kinks, some)
    used = np.unique([group.first[rest], group.second[rest]])
    if lines is not None and _have_moments(values, lines, group, moments, used):
        found[rest] = _covariance_of_lines(lines, group, rest)
        return found
    for i in rest:
        pair = [int(group.first[i]), int(group.second[i])]
        laws = [(float(group.mean[j]), float(group.std[j])) for j in pair]
        outputs = [(float(moments.mean[j]), float(moments.std[j])) for j in pair]
        rho = float(group.rho[i])
        if not rho or not outputs[0][1] * outputs[1][1]:
            found[i] = 0.0
            continue
        tolerances = _allowed(moments)[pair].tolist()
        bends, halvings = _bends(values, kinks, rho, laws, outputs, tolerances)
        found[i] = nested_covariance(values, kinks, bends, halvings, rho, laws, outputs)
    return found


def missed(std: HostArray, root: HostArray) -> HostArray:
    """By how much mean and std may differ from those that are known: std, and root mean square."""
    return MISSED * np.maximum(std, SATURATED * root)


def _have_moments(
    values: Values, lines: Lines, group: Group, moments: Any, used: HostArray
) -> bool:
    """Whether lines have the mean and std of the function of these units, so that nothing lies
    between the points at which it was looked at."""
    mean, std = group.mean[used], group.std[used]
    of_mean = abs(lines_mean(values, lines, mean, std) - moments.mean[used])
    out_std = lines_std(lines.kinks, lines.slopes, mean, std, lines.jumps)
    of_std = abs(out_std - moments.std[used])
    return bool((np.maximum(of_mean, of_std) <= _allowed(moments)[used]).all())


def _allowed(moments: Any) -> HostArray:
    """By how much others' mean and std may differ from these."""
    allowed: HostArray = missed(moments.std, np.hypot(moments.mean, moments.std))
    return allowed + moments.error * moments.std


def _bends(
    values: Values,
    kinks: list[float],
    rho: float,
    laws: list[Law],
    moments: list[tuple[float, float]],
    tolerances: list[float],
) -> tuple[list[float], int]:
    """Places that nested integrals need, besides kinks, to see all of the function, and how many
    halvings: no places, or the ends of the short panels that bisection finds."""

    def see_all(bends: list[float], halvings: int) -> bool:
        units = zip(laws, moments, tolerances, strict=True)
        return all(sees(values, kinks, bends, halvings, *unit) for unit in units)

    if see_all([], FEWEST_HALVINGS):
        return [], FEWEST_HALVINGS
    bends = found_bends(values, kinks, laws)
    is_fast = len(bends) <= MOST_BENDS or abs(rho) == 1.0  # which has no inner integrals
    for places in ([bends] if is_fast else []) + [[]]:
        for halvings in range(FEWEST_HALVINGS, MOST_HALVINGS + 1):
            if see_all(places, halvings):
                return places, halvings
    (mean, std), (mean2, std2) = laws
    got = (
        f"a function of which a grid misses a part, for N({mean:.6g}, {std:.6g}^2) and "
        f"N({mean2:.6g}, {std2:.6g}^2)"
    )
    rule = f"a grid must have the mean and std of gaussian, to {MISSED} standard deviations"
    hint = "dual(function, rho, kinks=(0.0,)) with the places where it, or its slope, jumps"
    raise ValueError(explain(got, rule, hint))


def _kinks(values: Values, subject: Subject, group: Group) -> list[float]:
    """Those that are known, or that a search shows."""
    if subject.moments is None and not subject.kinks:
        return found_kinks(values, group.mean, group.std)
    return list(subject.kinks)


def _covariance_of_lines(lines: Lines, group: Group, members: HostArray) -> HostArray:
    first, second = group.first[members], group.second[members]
    means = group.mean[first], group.mean[second]
    stds = group.std[first], group.std[second]
    rho = group.rho[members]
    return lines_covariance(lines.kinks, lines.slopes, rho, means, stds, lines.jumps)


def _is_straight(values: Values, lines: Lines, group: Group) -> bool:
    """Whether a function is straight between its kinks at as many points as `gaussian` looks at."""
    varies = group.std > 0.0
    mean, std = group.mean[varies], group.std[varies]
    for _, members in alike(mean, std, np.zeros(len(std), bool)):
        low = float((mean - BULK * std)[members].min())
        high = float((mean + BULK * std)[members].max())
        count = math.ceil(CHECKS * (high - low) / float(std[members].min()))
        with np.errstate(all="ignore"):
            if as_lines(values, lines.kinks, low, high, count) is None:
                return False
    return True


def _lines(values: Values, kinks: list[float], group: Group) -> Lines | None:
    low = float((group.mean - FARTHEST * group.std).min())
    high = float((group.mean + FARTHEST * group.std).max())
    if not low < high:
        return None
    with np.errstate(all="ignore"):
        return as_lines(values, kinks, low, high)
