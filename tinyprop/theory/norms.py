"""The rules of normalisers of samples: LayerNorm, GroupNorm, RMSNorm.

They take two steps. `centered` subtracts from every value the mean of its group of channels, which
is linear, so means and covariances follow exactly. `divided` divides each group u by its root mean
square, y = u / sqrt(mean(u^2) + eps):

- Inside a group, the moments of y are known for a Gaussian u (moments/sphere.py).
- With any other Gaussian value v, Cov(y, v) = E[dy/du] Cov(u, v) (Stein's lemma), so the mean
  Jacobian E[dy/du] is what becomes of correlations.
- Two groups are both divided. Their covariance is an integral over two norms, which is computed
  where there are few groups; otherwise it is J Cov(u_a, u_b) J^T with the mean Jacobians J, an
  approximation.

Of samples with too many values for that, each group is divided by the root of its expected mean
square: a factor (`expected_factors`).
"""

from dataclasses import dataclass, replace

import numpy as np

from ..engine.arrays import HostArray
from ..moments.sphere import OnSphere, between_spheres, on_sphere
from .field import Correlation, Field, count_pairs, image_size, normalized, safe_std
from .steps import Made, Step, scaled

# Pairs of groups, and the cubes of their sizes, up to which the covariance of two groups is
# computed. Each pair takes 10 ms or more.
MOST_PAIRS = 128
MOST_WORK = 1 << 22


@dataclass(frozen=True)
class Centered(Step):
    """Every value minus the mean of its group of channels, over positions too."""

    groups: int
    std: HostArray  # of each cell, before
    new_std: HostArray  # and after

    def __call__(self, before: Correlation) -> Correlation:
        covariance = before.times(self.std)
        with_mean = _with_mean_of_channel(covariance.rho)
        with_group = group_means(with_mean.T, self.groups).T.astype(before.rho.dtype)
        rest = replace(covariance, rho=covariance.rho - with_group[:, :, None, None])
        return rest.times(1.0 / self.new_std).clipped()


def centered(field: Field, groups: int) -> Made:
    """Every value minus the mean of its group of channels, over positions too.

    With g the mean of the group, Cov(x - g, y - g) = Cov(x, y) - Cov(x, g) - Cov(y, g) + Var g.

    >>> field = Field.of(np.array([1.0, 3.0]), np.array([[4.0, 2.0], [2.0, 4.0]]))
    >>> after, _ = centered(field, 1)
    >>> after.mean, after.variance, after.rho[0, 1, 0, 0]
    (array([-1.,  1.]), array([1., 1.]), np.float64(-1.0))
    """
    covariance = field.covariance()
    with_group = group_means(_with_mean_of_channel(covariance), groups).T
    of_group = group_means(with_group, groups)
    change = of_group - with_group - with_group.T  # (cells, cells)

    count = field.mean.size // len(field.rho)  # values of a cell

    def of_values(x: HostArray) -> HostArray:
        return np.repeat(x, count).reshape(field.mean.shape)

    mean = field.mean - of_values(group_means(field.by_cell(field.mean), groups))
    variance = np.maximum(field.variance + of_values(np.diagonal(change)), 0.0)
    rho, new_std = normalized(covariance + change[:, :, None, None])
    return Field(mean, variance, rho), Centered(groups, field.cell_std, new_std)


def _with_mean_of_channel(covariance: HostArray) -> HostArray:
    """Covariances by offset, averaged over all pairs of positions: (cells, cells)."""
    h, w = image_size(covariance)
    return np.tensordot(covariance, count_pairs(covariance) / (h * w) ** 2, 2)


def group_means(x: HostArray, groups: int) -> HostArray:
    """Each row replaced by the mean over its group of rows.

    >>> group_means(np.array([1.0, 3.0, 6.0, 8.0]), 2)
    array([2., 2., 7., 7.])
    """
    parts = x.reshape(groups, -1, *x.shape[1:])
    rows = parts.shape[1]  # of a group
    return np.repeat(parts.mean(axis=1), rows, axis=0)


def expected_factors(field: Field, groups: int, eps: float) -> HostArray:
    """For each channel, one over the root of the expected mean square of its group."""
    channels = len(field.mean)
    squares = field.variance + field.mean**2
    of_groups = squares.reshape(groups, -1).mean(axis=1)
    return np.repeat((of_groups + eps) ** -0.5, channels // groups)


def divided_by_expectation(field: Field, groups: int, eps: float) -> Made:
    """Each group of channels divided by the root of its expected mean square.

    >>> field = Field.of(np.array([1.0, 3.0]), np.array([[1.0, 0.0], [0.0, 5.0]]))
    >>> after, _ = divided_by_expectation(field, groups=1, eps=0.0)
    >>> after.mean, after.variance
    (array([0.35355339, 1.06066017]), array([0.125, 0.625]))
    """
    return scaled(field, expected_factors(field, groups, eps))


@dataclass(frozen=True)
class Divided(Step):
    """Every sample divided by the root mean square of each group of values: the mean Jacobian
    times the covariance with any other Gaussian value (Stein's lemma)."""

    is_linear = False
    jacobian: HostArray  # (values, values), 0 between groups
    std: HostArray  # of the values before
    new_std: HostArray
    bound: float  # of the error of covariances, relative to the variance

    def __call__(self, before: Correlation) -> Correlation:
        covariance = before.in_full().times(self.std)
        rho = covariance.rho[:, :, 0, 0] @ self.jacobian.T / self.new_std
        return replace(covariance, rho=rho[:, :, None, None]).clipped()


def divided(field: Field, groups: int, eps: float) -> Made:
    """Each group of values of a sample divided by its root mean square.

    Means and covariances inside a group are those of a Gaussian sample. So are covariances of two
    groups if there are few of them (`are_few`), or if one of them varies so little that its norm
    does not matter. Otherwise they are approximations.

    >>> field = Field.of(np.zeros(2), np.eye(2))
    >>> after, _ = divided(field, groups=2, eps=0.0)  # each value by its own size: a sign
    >>> after.variance.round(12)
    array([1., 1.])
    """
    size = field.mean.size
    mean = field.mean.ravel()
    covariance = field.covariance()[:, :, 0, 0]
    new_mean = np.zeros(size)
    jacobian = np.zeros((size, size))
    known: list[tuple[HostArray, OnSphere]] = []  # the places of each group, and its moments
    for group in np.split(np.arange(size), groups):
        square = np.ix_(group, group)
        on = on_sphere(mean[group], covariance[square], eps)
        new_mean[group] = on.mean
        jacobian[square] = on.jacobian
        known.append((group, on))

    after = jacobian @ covariance @ jacobian.T
    for group, on in known:
        after[np.ix_(group, group)] = on.covariance
    if are_few(groups, size):
        wide = [group for group, on in known if not on.is_narrow]
        for i, group in enumerate(wide):
            for other in wide[:i]:
                both = np.concatenate([group, other])
                product = between_spheres(
                    mean[both], covariance[np.ix_(both, both)], len(group), eps
                )
                common = product - np.outer(new_mean[group], new_mean[other])
                after[np.ix_(group, other)] = common
                after[np.ix_(other, group)] = common.T

    result = Field.of(new_mean.reshape(field.mean.shape), after)
    std = np.sqrt(field.variance).ravel()
    new_std = safe_std(result.variance).ravel()
    bound = max(on.error for _, on in known)
    return result, Divided(jacobian, std, new_std, bound)


def are_few(groups: int, size: int) -> bool:
    """Whether the covariances of two groups are computed, which takes up to a second."""
    pairs = groups * (groups - 1) // 2
    return pairs <= MOST_PAIRS and pairs * (size / groups) ** 3 <= MOST_WORK
