"""Hermite series of activations, and the largest of several Gaussian variables."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from .quadrature import gauss_legendre

SAMPLES = 512  # quasi-random ones, for a maximum


def hermite(
    function: Callable[[HostArray], Any],
    mean: HostArray,
    std: HostArray,
    degrees: int,
    kinks: Sequence[float] = (),
) -> HostArray:
    """The coefficients a_k = E[s(U) He_k(Z)] / sqrt(k!) of U = mean + std Z, for k = 1, ...,
    degrees, in front.

    Cov(s(U), s(V)) = sum a_k b_k rho^k over all k (Mehler), so their squares add up to the variance
    of s(U). The function may have kinks at -1, 0 and 1, where those of most activations are, and at
    others that are given."""
    std = std[..., None]
    places = sorted({-1.0, 0.0, 1.0, *kinks})
    ends = [np.clip((k - mean[..., None]) / np.maximum(std, 1e-12), -8.0, 8.0) for k in places]
    edges = np.broadcast_to(np.linspace(-8.0, 8.0, 17), (*mean.shape, 17))
    edges = np.sort(np.concatenate([edges, *ends], axis=-1), axis=-1)
    nodes, weights = gauss_legendre(8)
    lengths = np.diff(edges)[..., None]
    z = (edges[..., :-1, None] + lengths * nodes).reshape(*mean.shape, -1)
    density = (lengths * weights).reshape(z.shape) * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    values = density * function(mean[..., None] + std * z)
    before, here, found = np.zeros_like(z), np.ones_like(z), []
    for k in range(1, degrees + 1):
        before, here = here, (z * here - math.sqrt(k - 1.0) * before) / math.sqrt(k)
        found.append((values * here).sum(axis=-1))
    return np.array(found)


@cache
def normal_points(dimensions: int) -> HostArray:
    """Samples of N(0, I) from an additive recurrence, with exactly its mean and covariance."""
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    uniform = (0.5 + np.outer(np.arange(1, SAMPLES // 2 + 1), steps)) % 1.0
    z = np.vectorize(NormalDist().inv_cdf)(np.clip(uniform, 1e-9, 1.0 - 1e-9))
    z = np.concatenate([z, -z])
    return np.linalg.solve(np.linalg.cholesky(z.T @ z / SAMPLES), z.T).T


def largest(
    function: Callable[[HostArray], Any], mean: HostArray, std: HostArray, rho: HostArray
) -> tuple[HostArray, HostArray, HostArray]:
    """Mean and variance (n,) of max_k s(U_k), and how often each U_k is the largest (k,): of n
    groups of k variables with mean and std (n, k) and correlations (k, k). A mean of -inf marks a
    variable that is not there."""
    values, vectors = np.linalg.eigh(rho)
    y = (normal_points(len(rho)) * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # (samples, k)
    best = np.full((len(mean), SAMPLES), -np.inf)
    largest, winner = best.copy(), np.zeros(best.shape, int)
    for k in range(len(rho)):
        u = mean[:, k, None] + std[:, k, None] * y[:, k]
        value = np.where(np.isinf(u), -np.inf, function(np.where(np.isinf(u), 0.0, u)))
        # where s is constant, the largest U
        wins = (value > largest) | ((value == largest) & (u > best))
        best, largest, winner = (
            np.where(wins, u, best),
            np.where(wins, value, largest),
            np.where(wins, k, winner),
        )
    return (
        largest.mean(axis=1),
        largest.var(axis=1),
        np.bincount(winner.ravel(), minlength=len(rho)) / winner.size,
    )
