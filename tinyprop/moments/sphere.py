"""The moments of a Gaussian vector that is divided by its root mean square."""

import math
from dataclasses import dataclass

import numpy as np

from ..engine.arrays import HostArray

FINE = 0.0625  # of x where ln t = pi/2 sinh(x), for integrals over two such numbers
WIDEST = 4.375  # of |x|, which is ln t = 62
NEGLIGIBLE = 1e-14  # of the covariance, in units of its largest eigenvalue
STEP = 0.2  # of ln t; the error of the trapezoidal rule falls like exp(-pi^2 / STEP)
TINY = 1e-300  # a mean square of 0 is taken as this in denominators
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


def between_spheres(
    mean: HostArray, covariance: HostArray, first: int, eps: float = 0.0
) -> HostArray:
    """E[y_a y_b^T] for u ~ N(mean, covariance) whose first values and the others are each divided
    by a root mean square of their own.

    Under the weight exp(-t |u_a|^2), u is Gaussian again. There, E[u_a y_b^T] follows from the mean
    of y_b and its mean Jacobian (Stein's lemma), which are integrals like those of `on_sphere`. So
    the products are sums over ln t of sums over another one.

    u = offset + A z with independent z: so nothing cancels where u_a determines u_b.

    >>> between_spheres(np.zeros(4), np.kron(np.ones((2, 2)), np.eye(2)), 2).round(9)
    array([[1., 0.],
           [0., 1.]])
    """
    counts = first, len(mean) - first
    squares = covariance.diagonal() + mean * mean + eps
    totals = float(squares[:first].sum()), float(squares[first:].sum())
    if min(totals) <= 0.0:
        return np.zeros(counts)
    values, vectors = np.linalg.eigh(covariance)
    keep = values > NEGLIGIBLE * values[-1]
    factor = vectors[:, keep] * np.sqrt(values[keep])  # (n, k)
    start = (vectors[:, keep].T @ mean) / np.sqrt(values[keep])  # (k,)
    offset = mean - factor @ start
    # one basis for u_a and one for z, in which A is diagonal
    left, sizes, right = np.linalg.svd(factor[:first] / math.sqrt(totals[0]))
    bent = np.zeros(len(right))
    bent[: len(sizes)] = sizes
    flat = np.zeros(first)
    flat[: len(sizes)] = sizes
    x = np.arange(-WIDEST, WIDEST + FINE, FINE)
    log = 0.5 * math.pi * np.sinh(x)
    t = np.exp(log)[:, None]  # in units of 1 / total
    half = FINE * 0.5 * math.pi * np.cosh(x) * np.exp(0.5 * log) / math.sqrt(math.pi)
    m = 1.0 / (1.0 + 2.0 * t * bent**2)  # (nodes, k): the variances of z
    of_u = 1.0 / (1.0 + 2.0 * t * flat**2)
    v = left.T @ mean[:first] / math.sqrt(totals[0])
    logs = 0.5 * np.log(of_u).sum(axis=1)
    logs -= t[:, 0] * ((of_u * v * v).sum(axis=1) + counts[0] * eps / totals[0])
    weights = half * np.exp(logs)
    # z in the basis of `right`
    factor = factor @ right.T
    pull = factor[:first].T @ offset[:first] / totals[0]
    z = m * (right @ start - 2.0 * t * pull)
    means = offset + z @ factor.T  # (nodes, n)
    roots = factor[first:] * np.sqrt(m)[:, None]  # (nodes, n_b, k)
    y_mean, jacobian = _mean_and_jacobian(means[:, first:], roots, counts[1] * eps, half, t[:, 0])
    common = (factor[:first] * m[:, None]) @ factor[first:].T  # (nodes, n_a, n_b)
    products = means[:, :first, None] * y_mean[:, None]
    products += common @ jacobian.swapaxes(1, 2)
    total: HostArray = np.tensordot(weights, products, 1)
    return total * math.sqrt(counts[0] / totals[0])


def _mean_and_jacobian(
    means: HostArray, roots: HostArray, shift: float, half: HostArray, t: HostArray
) -> tuple[HostArray, HostArray]:
    """Those of y = sqrt(n) u / sqrt(|u|^2 + shift) for each u ~ N(mean, root root^T), as in
    `on_sphere`."""
    n = means.shape[1]
    matrices = roots @ roots.swapaxes(1, 2)
    totals = np.trace(matrices, axis1=1, axis2=2) + (means * means).sum(axis=1) + shift
    totals = np.maximum(totals, TINY)
    values, vectors = np.linalg.eigh(matrices)
    lam = np.maximum(values, 0.0) / totals[:, None]
    v = (vectors.swapaxes(1, 2) @ means[:, :, None])[:, :, 0] / np.sqrt(totals)[:, None]
    m = 1.0 / (1.0 + 2.0 * t[:, None] * lam[:, None])  # (each, nodes, n)
    moved = m * v[:, None]
    logs = 0.5 * np.log(m).sum(axis=2)
    logs -= t * ((moved * v[:, None]).sum(axis=2) + (shift / totals)[:, None])
    weights = half * np.exp(logs)  # (each, nodes)
    out_mean = math.sqrt(n) * (weights[:, None] @ moved)[:, 0]
    bent = (moved.swapaxes(1, 2) * (2.0 * t * weights)[:, None]) @ moved
    slope = -bent
    each = np.arange(n)
    slope[:, each, each] += (weights[:, None] @ m)[:, 0]
    slope *= np.sqrt(n / totals)[:, None, None]
    back = vectors.swapaxes(1, 2)
    return (vectors @ out_mean[:, :, None])[:, :, 0], vectors @ slope @ back
