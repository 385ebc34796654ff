"""Covariances of ELU and SELU: E[s(U) E[s(V) | U]] with a closed form inside."""

import math
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, from_host, to_numpy
from ..functional.activations import SELU_ALPHA, SELU_SCALE
from ..functional.special import erfcx
from .bivariate import Pair
from .nested import smoothed_covariance

TINY = 1e-150  # a standard deviation of 0 is taken as this in denominators
FAR = 1e3  # standard deviations: the density is 0 long before


def elu_mean(mean: HostArray, std: HostArray, alpha: float) -> HostArray:
    """E elu(U): the mean of U where it is positive, and alpha times that of exp(U) - 1 where it is
    negative, which is exp(mean + std^2 / 2) P(Z > x + std) without overflow, minus P(U < 0)."""
    x = np.clip(mean / np.maximum(std, TINY), -FAR, FAR)
    bell = np.exp(-0.5 * x * x)
    tail = 0.5 * bell * erfcx(abs(x) * math.sqrt(0.5))  # P(Z > |x|)
    above = np.where(x > 0.0, 1.0 - tail, tail)
    below = np.where(x > 0.0, tail, 1.0 - tail)
    line = mean * above + std * (bell / math.sqrt(2.0 * math.pi))
    shifted = (x + std) * math.sqrt(0.5)
    right = 0.5 * bell * erfcx(abs(shifted))
    exponent = np.where(shifted < 0.0, mean + 0.5 * std * std, 0.0)
    exponential = np.where(shifted < 0.0, np.exp(exponent) - right, right)
    return line + alpha * (exponential - below)


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
            return elu_mean(mean, std, own)

        pair = (m1[some], m2[some]), (s1[some], s2[some])
        total[some] = smoothed_covariance(value, smoothed, 0.0, r[some], *pair)
    return from_host(total.reshape(shape), like=rho)


def selu_covariance(rho: Array, means: Pair, stds: Pair) -> Array:
    return SELU_SCALE**2 * elu_covariance(rho, means, stds, SELU_ALPHA)
