"""The moments of a Gaussian vector that is divided by its root mean square."""

import math
from dataclasses import dataclass

import numpy as np

from ..engine.arrays import HostArray

STEP = 0.2  # of ln t; the error of the trapezoidal rule falls like exp(-pi^2 / STEP)
LAST = 80.0  # of |ln t|: exp(-80 / 2) is below rounding


@dataclass(frozen=True)
class OnSphere:
    """Of y = u / sqrt(mean(u^2) + eps): mean, covariance, and the mean of dy / du."""

    mean: HostArray  # (n,)
    covariance: HostArray  # (n, n)
    jacobian: HostArray  # (n, n)


def on_sphere(mean: HostArray, covariance: HostArray, eps: float = 0.0) -> OnSphere:
    """For u ~ N(mean, covariance).

    1 / r is the integral of exp(-t r) over t > 0, and 1 / sqrt(r) that of exp(-t r) / sqrt(pi t).
    Under the weight exp(-t |u|^2), u is Gaussian again. In the basis of the eigenvectors of the
    covariance, with its eigenvalues l, the mean v and M = 1 / (1 + 2 t l), its mean is M v and its
    variances are l M; the weight itself has the mean sqrt(prod M) exp(-t sum(M v^2)). All
    integrals are sums over ln t.

    >>> found = on_sphere(np.zeros(4), np.diag([1.0, 1.0, 1.0, 1.0]))
    >>> found.covariance.diagonal().round(12), found.mean
    (array([1., 1., 1., 1.]), array([0., 0., 0., 0.]))
    """
    n = len(mean)
    total = float(covariance.trace() + mean @ mean + n * eps)
    if total <= 0.0:
        return OnSphere(np.zeros(n), np.zeros((n, n)), np.zeros((n, n)))
    values, vectors = np.linalg.eigh(covariance)
    lam = np.maximum(values, 0.0) / total
    v = vectors.T @ mean / math.sqrt(total)
    s = np.arange(-LAST, LAST + STEP, STEP)
    t = np.exp(s)[:, None]  # in units of 1 / total
    m = 1.0 / (1.0 + 2.0 * t * lam)  # (nodes, n)
    logs = 0.5 * np.log(m).sum(axis=1) - t[:, 0] * ((m * v * v).sum(axis=1) + n * eps / total)
    # dt = t ds; and dt / sqrt(t)
    full = STEP * np.exp(logs + s)
    half = STEP * np.exp(logs + 0.5 * s) / math.sqrt(math.pi)
    moved = m * v
    square = n * (np.diag(full @ (lam * m)) + (moved.T * full) @ moved)
    out_mean = math.sqrt(n) * (half @ moved)
    bent = (moved.T * (2.0 * t[:, 0] * half)) @ moved
    slope = math.sqrt(n / total) * (np.diag(half @ m) - bent)
    rest = square - np.outer(out_mean, out_mean)
    return OnSphere(vectors @ out_mean, vectors @ rest @ vectors.T, vectors @ slope @ vectors.T)
