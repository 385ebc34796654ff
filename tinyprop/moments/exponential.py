"""Covariances of ELU and SELU: E[s(U) E[s(V) | U]] with a closed form inside."""

import math
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, from_host, to_numpy
from ..functional.activations import SELU_ALPHA, SELU_SCALE
from ..functional.special import erfc, erfcx
from .bivariate import Pair, density, upper_tail
from .nested import smoothed_covariance

TINY = 1e-150


def relu_mean(mean: HostArray, std: HostArray) -> HostArray:
    std = np.maximum(std, TINY)
    return mean * upper_tail(-mean / std) + std * density(mean / std)


def exponential_mean(mean: HostArray, std: HostArray) -> HostArray:
    """E[exp(U) - 1; U < 0]: exp(mean + std^2 / 2) P(Z > x) without overflow, minus P(U < 0)."""
    std = np.maximum(std, TINY)
    below = mean / std
    x = (below + std) * math.sqrt(0.5)
    right = 0.5 * np.exp(-0.5 * below * below) * erfcx(np.maximum(x, 0.0))
    exponent = np.where(x < 0.0, mean + 0.5 * std * std, 0.0)
    left = 0.5 * np.exp(exponent) * erfc(np.minimum(x, 0.0))
    return np.where(x < 0.0, left, right) - upper_tail(below)


def elu_covariance(rho: Array, means: Pair, stds: Pair, alpha: Any = 1.0) -> Array:
    shape = rho.shape
    alphas = np.broadcast_to(to_numpy(alpha) if hasattr(alpha, "shape") else alpha, shape).ravel()
    r, m1, m2, s1, s2 = (to_numpy(x).ravel() for x in (rho, *means, *stds))
    total = np.empty(r.size)
    for own in np.unique(alphas):
        some = alphas == own

        def value(u: HostArray, own: float = own) -> HostArray:
            return np.where(u > 0.0, u, own * np.expm1(np.minimum(u, 0.0)))

        def smoothed(mean: HostArray, std: HostArray, own: float = own) -> HostArray:
            return relu_mean(mean, std) + own * exponential_mean(mean, std)

        pair = (m1[some], m2[some]), (s1[some], s2[some])
        total[some] = smoothed_covariance(value, smoothed, 0.0, r[some], *pair)
    return from_host(total.reshape(shape), like=rho)


def selu_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    return SELU_SCALE**2 * elu_covariance(rho, means, stds, SELU_ALPHA)
