"""Random weights: what a layer of them makes of the values of one channel."""

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.context import current
from ..engine.tensor import Tensor
from ..functional.windows import Window
from .field import Correlation, Field, safe_std
from .steps import Made, Step

ZERO_SUM = 1e-5  # relative to the sum of absolute values: rows of weights that add up to 0
MOST_COMPARED = 1024  # rows, with each other
CHANCE = 8.0  # what is expected as 1 for random weights of size n varies by 1/sqrt(n) or so


@dataclass(frozen=True)
class RandomWeights:
    """What is kept of the weights of a layer: how large they are."""

    window: Window
    length: float  # mean of |w|^2
    bias_mean: float = 0.0
    bias_variance: float = 0.0
    zero_sum: bool = False  # whether rows add up to 0
    correction: float = (
        1.0  # of the variance, for rows that do, and samples with means of their own
    )

    def levels(self, mean: HostArray) -> HostArray:
        """Means (N, H, W), added up over each window."""
        places = self.window.output((1, 1, *mean.shape[1:]))
        total = np.zeros((len(mean), *places))
        for (i, a), (j, b) in self._elements(mean.shape):
            total[:, i, j] += mean[:, a, b]
        return total

    def _elements(self, shape: tuple[int, ...]) -> Any:
        return product(self.window.along(0, shape[1]), self.window.along(1, shape[2]))

    def covariance(
        self, covariance: HostArray, first_mean: HostArray, second_mean: HostArray
    ) -> HostArray:
        """The covariance matrix of u = w.x + b and v = w.y + b over weights w, from that of x and
        y, and from their means (N, H, W)."""
        shapes = first_mean.shape + second_mean.shape
        square = covariance.reshape(shapes)
        square = square + np.multiply.outer(first_mean, second_mean).astype(covariance.dtype)
        places = self.window.output((1, 1, *first_mean.shape[1:]))
        total = np.zeros((len(first_mean), *places, len(second_mean), *places), square.dtype)
        for (i, a), (j, b) in self._elements(first_mean.shape):
            total[:, i, j, :, i, j] += square[:, a, b, :, a, b]
        size = math.prod(self.window.kernel)
        count = math.prod(total.shape[:3])
        total = total.reshape(count, -1) / size
        if self.zero_sum:  # such rows see deviations from the mean of the patch
            levels = [self.levels(mean).ravel() for mean in (first_mean, second_mean)]
            total = (total - np.outer(*levels) / size**2) * self.correction
        return self.length * total + self.bias_variance

    def __call__(self, field: Field) -> Made:
        matrix = field.covariance()[:, :, 0, 0]
        shape = self.levels(field.mean).shape
        mean = np.full(shape, self.bias_mean)
        result = Field.of(mean, self.covariance(matrix, field.mean, field.mean))
        return result, Drawn(self, field.mean, field.cell_std, safe_std(result.variance).ravel())


@dataclass(frozen=True)
class Drawn(Step):
    """Random weights, which are the same wherever a layer is used again."""

    weights: RandomWeights
    mean: HostArray
    std: HostArray
    new_std: HostArray

    def with_other(self, other: "Drawn", before: Correlation | None) -> Correlation:
        """The correlations of the results for two inputs."""
        covariance = np.zeros((len(self.std), len(other.std)))
        if before is not None:
            covariance = before.rho[:, :, 0, 0] * np.outer(self.std, other.std)
        after = self.weights.covariance(covariance, self.mean, other.mean)
        rho = after / np.outer(self.new_std, other.new_std)
        shape = self.weights.levels(self.mean).shape
        return Correlation(rho[:, :, None, None], shape, shape)


def have_zero_sum(rows: HostArray) -> bool:
    """Whether all rows add up to 0, up to rounding, without being 0."""
    sums = abs(rows.sum(axis=1))
    sizes = abs(rows).sum(axis=1)
    return bool((sizes > 0).all() and (sums <= ZERO_SUM * sizes).all())


def are_like_random(rows: HostArray) -> bool:
    """Whether rows (outputs, inputs) differ by no more than chance from independent ones of mean 0,
    of one length and of many numbers of one size.

    >>> random = np.random.default_rng(0).normal(size=(100, 100))
    >>> are_like_random(random), are_like_random(abs(random)), are_like_random(np.eye(100))
    (True, False, False)
    """
    outputs, inputs = rows.shape
    squares = (rows**2).sum(axis=1)
    if not squares.any():
        return True
    if not squares.all() or not np.isfinite(squares).all():
        return False
    units = rows / np.sqrt(squares)[:, None]
    some = units[:MOST_COMPARED]
    cosines = some @ some.T
    pairs = max(1, len(some) * (len(some) - 1))
    expected_as_one = (
        outputs * (units.mean(axis=0) ** 2).sum(),  # of the mean row
        (units.sum(axis=1) ** 2).mean(),  # of the sum of a row
        inputs * ((cosines**2).sum() - len(some)) / pairs,  # of two rows
        inputs * (units**4).sum(axis=1).mean() / 3.0,  # of Gaussian numbers
        0.5 * inputs * squares.var() / squares.mean() ** 2,  # of lengths
    )
    return bool(max(expected_as_one) <= 1.0 + CHANCE / math.sqrt(min(outputs, inputs)))


def identity(weight: Any) -> object:
    """What tells weights apart: a parameter, or the layer that computes them from its own."""
    is_parameter = isinstance(weight, Tensor) and weight.node is None and weight.requires_grad
    running = current().running
    return weight if is_parameter or not running else running[-1]
