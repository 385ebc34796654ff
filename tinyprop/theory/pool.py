"""The rule of max pooling: the largest of several Gaussian values, from samples.

There is no formula for the largest of more than a few correlated values. So each window of each
channel has `SAMPLES` quasi-random ones, always the same: points that fill a cube evenly
(`normal_points`), bent into a Gaussian with the correlations of the window.

They also say how often each value of a window is the largest. With any other Gaussian value v,
Cov(max, v) is the sum of Cov(u_k, v) P(u_k is the largest), by Stein's lemma: the mean gradient of
a maximum is how often each value is the largest. So, for correlations, a maximum is a convolution
with these fractions, and two maxima are taken to correlate as two such convolutions do.
"""

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from ..engine.arrays import HostArray
from ..functional.windows import Window
from .field import Field
from .linear import Linear, kernel_offsets, patches
from .pointwise import Pointwise
from .steps import scaled

SAMPLES = 512


def max_pool(field: Field, function: Pointwise, window: Window) -> Field:
    """The largest of function(u) in each window."""
    channels, height, width = field.mean.shape
    kernel_size = math.prod(window.kernel)
    # (positions, C * kh * kw) -> (positions, C, patch)
    places = patches(window, field.mean.shape).reshape(-1, channels, kernel_size)
    mean = np.append(field.mean, -np.inf)[places]  # the padding, -1, finds the last
    std = np.append(np.sqrt(field.variance), 0.0)[places]
    rho = field.with_offsets().rho
    taps = kernel_offsets(window, height, width)
    fractions = np.zeros((channels, channels, kernel_size))  # 0 between two channels
    new_mean = np.zeros((channels, len(mean)))
    new_variance = np.zeros((channels, len(mean)))
    for k in range(channels):
        own = function.of_channel(k)
        patch_rho = rho[k, k][taps].astype("float64")
        found = largest(own.value, mean[:, k], std[:, k], patch_rho)
        new_mean[k] = found.mean
        new_variance[k] = found.variance
        fractions[k, k] = found.fractions
    shape = channels, *window.output((1, *field.mean.shape))
    activated, _ = function(field)
    activated, _ = scaled(activated, function.factor, function.shift)
    as_filters = fractions.reshape(channels, channels, *window.kernel)
    rho, _ = Linear(as_filters, window=window).correlations(activated, shape)
    return Field(new_mean.reshape(shape), new_variance.reshape(shape), rho)


class Largest(NamedTuple):
    """The moments of a maximum (n,), and how often each value is the largest (k,)."""

    mean: HostArray
    variance: HostArray
    fractions: HostArray


def largest(
    function: Callable[[HostArray], Any], mean: HostArray, std: HostArray, rho: HostArray
) -> Largest:
    """The largest s(U_k) in each of n groups of k variables with mean and std (n, k) and
    correlations (k, k). A mean of -inf marks a variable that is not there.

    >>> two = np.ones((1, 2))
    >>> found = largest(lambda u: u, 0.0 * two, two, np.eye(2))
    >>> abs(found.mean - math.pi**-0.5) < 0.01, found.fractions.sum()
    (array([ True]), np.float64(1.0))
    """
    values, vectors = np.linalg.eigh(rho)
    along_axes = normal_points(len(rho)) * np.sqrt(np.maximum(values, 0.0))
    y = along_axes @ vectors.T  # (samples, k)
    shape = len(mean), SAMPLES
    best_u = np.full(shape, -np.inf)
    best = np.full(shape, -np.inf)
    winner = np.zeros(shape, int)
    for k in range(len(rho)):
        u = mean[:, k, None] + std[:, k, None] * y[:, k]
        is_there = ~np.isinf(u)
        finite_u = np.where(is_there, u, 0.0)
        value = np.where(is_there, function(finite_u), -np.inf)
        # where s is constant, the largest U wins
        wins = (value > best) | ((value == best) & (u > best_u))
        best_u = np.where(wins, u, best_u)
        best = np.where(wins, value, best)
        winner = np.where(wins, k, winner)
    counts = np.bincount(winner.ravel(), minlength=len(rho))
    return Largest(best.mean(axis=1), best.var(axis=1), counts / winner.size)


@cache
def normal_points(dimensions: int) -> HostArray:
    """Samples of N(0, I) from an additive recurrence, with exactly its mean and covariance.

    Point i of the recurrence has the coordinates i r^-1, i r^-2, ... modulo 1, with r the positive
    root of r^(dimensions + 1) = r + 1, the golden ratio in one dimension. Each point has its
    mirror image, so the mean is 0.

    >>> points = normal_points(3)
    >>> np.allclose(points.T @ points / len(points), np.eye(3), atol=1e-12)
    True
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    count = np.arange(1, SAMPLES // 2 + 1)
    uniform = (0.5 + np.outer(count, steps)) % 1.0
    inside = np.clip(uniform, 1e-9, 1.0 - 1e-9)
    z = np.vectorize(NormalDist().inv_cdf)(inside)
    z = np.concatenate([z, -z])
    cholesky = np.linalg.cholesky(z.T @ z / SAMPLES)
    return np.linalg.solve(cholesky, z.T).T
