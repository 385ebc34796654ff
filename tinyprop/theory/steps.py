"""The rules of simple layers: factors, dropout, flattening, and sums of branches.

A rule takes a `Field`, what is known of the values before a layer, and returns two things:

- the field after the layer;
- a `Step`, which says what the layer does to correlations with the values of any *other* layer. It
  is needed where branches are added: see origin.py.

For example, u = f x + t has the mean f E x + t and the variance f^2 Var x. Its correlations are
those of x, with the other sign where f < 0.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import explain
from .field import Correlation, Field, image_size, normalized, per_channel, products, safe_std


class Step:
    """What a layer does to the correlations of other values (rows) with its own (columns)."""

    is_linear = True  # or independent noise: then it holds whatever the other layer is

    def __call__(self, before: Correlation) -> Correlation:
        raise NotImplementedError


Made = tuple[Field, Step]


@dataclass(frozen=True)
class Factors(Step):
    """Every correlation times a factor of the value."""

    factors: HostArray

    def __call__(self, before: Correlation) -> Correlation:
        return before.times(self.factors)


class Flat(Step):
    """Images become vectors."""

    def __call__(self, before: Correlation) -> Correlation:
        return before.as_vectors()


class Opaque(Step):
    """A maximum, of which propagate does not know what it has in common with other layers."""

    is_linear = False

    def __call__(self, before: Correlation) -> Correlation:
        got = "MaxPool2d in a branch whose result is added to another"
        rule = "propagate does not know what it has in common with its input"
        raise TypeError(explain(got, rule, "pool in front of the block"))


def scaled(field: Field, factor: Any, shift: Any = 0.0) -> Made:
    """factor * x + shift; both have the shape of the mean, or one value per channel.

    >>> field = Field.of(np.array([1.0, 2.0]), np.array([[4.0, 3.0], [3.0, 9.0]]))
    >>> after, _ = scaled(field, -2.0, 1.0)
    >>> after.mean, after.variance
    (array([-1., -3.]), array([16., 36.]))
    """
    factor = field.per_value(factor)
    shift = field.per_value(shift)
    signs = np.sign(factor)
    rho = field.rho
    if (signs != 1.0).any():
        rho = rho * products(field.by_cell(signs), rho)
    result = Field(factor * field.mean + shift, factor**2 * field.variance, rho)
    return result, Factors(signs)


def dropped(field: Field, p: float) -> Made:
    """With dropout: each value is multiplied by 0 or, with the probability 1 - p, by 1 / (1 - p).

    The mean stays, and p / (1 - p) E x^2 is added to the variance. This noise is independent, so
    covariances stay, and correlations are divided by what both standard deviations grow by.
    """
    noise = p / (1.0 - p) * (field.variance + field.mean**2)
    variance = field.variance + noise
    share = field.by_cell(np.sqrt(field.variance / safe_std(variance) ** 2))
    rho = field.rho * products(share, field.rho)
    each = np.arange(len(rho))
    h, w = image_size(rho)
    rho[each, each, h - 1, w - 1] = 1.0  # a value with itself
    return Field(field.mean, variance, rho), Factors(share)


def flat(field: Field) -> Made:
    """As a vector."""
    rho = field.with_itself().in_full().rho
    result = Field(field.mean.ravel(), field.variance.ravel(), rho)
    return result, Flat()


# Sums


@dataclass(frozen=True)
class Added(Step):
    """The sum of several layers: unlike other steps, it takes a correlation with each of them, or
    None for 0."""

    stds: tuple[HostArray, ...]  # of the cells of each
    new_std: HostArray  # of each cell of the sum
    bound: float  # of the error of what they have in common
    growth: float  # by how much the sum multiplies such errors

    def of(self, parts: "list[Correlation | None]") -> Correlation | None:
        """The correlations of other values with the sum: covariances add up."""
        covariances = []
        for part, std in zip(parts, self.stds, strict=True):
            if part is not None:
                covariances.append(part.times(std))
        if not covariances:
            return None
        if not all(part.whole for part in covariances):
            covariances = [part.by_offset() for part in covariances]
        total = covariances[0]
        for part in covariances[1:]:
            total = replace(total, rho=total.rho + part.rho)
        return total.times(1.0 / self.new_std)


def added(first: Field, second: Field, common: Correlation | None) -> tuple[Field, Added]:
    """The sum of two fields with these correlations; None stands for 0.

    >>> one = Field.of(np.array([1.0]), np.array([[4.0]]))
    >>> total, _ = added(one, one, Correlation(np.full((1, 1, 1, 1), 0.5), (1,), (1,)))
    >>> total.mean, total.variance
    (array([2.]), array([12.]))
    """
    if first.whole and second.whole and (common is None or common.whole):
        result, new_std = _added_whole(first, second, common)
    else:
        first = first.with_offsets()
        second = second.with_offsets()
        common = None if common is None else common.by_offset()
        result, new_std = _added_by_offset(first, second, common)
    bound = 0.0 if common is None else common.bound
    largest = (np.sqrt(first.variance) + np.sqrt(second.variance)) ** 2
    growth = float((largest / safe_std(result.variance) ** 2).max(initial=1.0))
    stds = first.cell_std, second.cell_std
    return result, Added(stds, new_std.ravel(), bound, growth)


def _added_whole(
    first: Field, second: Field, common: Correlation | None
) -> tuple[Field, HostArray]:
    """The sum, and the standard deviations to divide its covariances by."""
    covariance = first.covariance() + second.covariance()
    if common is not None:
        cross = _cross_covariance(first, second, common)
        covariance = covariance + cross.rho + cross.rho.swapaxes(0, 1)
    matrix = covariance[:, :, 0, 0]
    np.fill_diagonal(matrix, np.maximum(matrix.diagonal(), 0.0))  # against rounding
    result = Field.of(first.mean + second.mean, matrix)
    return result, safe_std(result.variance)


def _added_by_offset(
    first: Field, second: Field, common: Correlation | None
) -> tuple[Field, HostArray]:
    """The same for correlations by offset."""
    mean = first.mean + second.mean
    variance = first.variance + second.variance
    covariance = first.covariance() + second.covariance()
    if common is not None:
        cross = _cross_covariance(first, second, common)
        covariance = covariance + cross.rho + cross.flipped().rho
        h, w = image_size(common.rho)
        at_one_place = np.diagonal(common.rho[:, :, h - 1, w - 1])
        of_values = per_channel(at_one_place, mean.ndim)
        variance = variance + 2.0 * np.sqrt(first.variance * second.variance) * of_values
    rho, new_std = normalized(covariance)
    return Field(mean, np.maximum(variance, 0.0), rho), new_std


def _cross_covariance(first: Field, second: Field, common: Correlation) -> Correlation:
    """Covariances of the cells of two fields, from their correlations."""
    stds = np.outer(first.cell_std, second.cell_std).astype(common.rho.dtype)
    return replace(common, rho=common.rho * stds[:, :, None, None])
