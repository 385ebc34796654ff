"""The moments of a Gaussian vector that is divided by its root mean square.

Let u be a Gaussian vector of n numbers, and y = u / sqrt(mean(u^2) + eps) = sqrt(n) u / sqrt(r),
with r = |u|^2 + n eps. Division is replaced by an integral over exponentials:

    1 / r       = integral of exp(-t r) over t > 0,
    1 / sqrt(r) = integral of exp(-t r) / sqrt(pi t) over t > 0.

Under the weight exp(-t |u|^2), a Gaussian stays one. In the basis of the eigenvectors of its
covariance, with the eigenvalues l and the mean v, let M = 1 / (1 + 2 t l). Then

    E exp(-t |u|^2) = w, with log w = 1/2 sum(log M) - t sum(M v^2),

and under the weight, the mean of u is M v and its variances are M l. So

    E y       = sqrt(n) times the integral of exp(-t n eps) w M v / sqrt(pi t),
    E y y^T   = n times the integral of exp(-t n eps) w (diag(M l) + M v (M v)^T),
    E dy / du = the derivative of E y in the mean v.

The integrals are sums over equal steps of ln t, by the trapezoidal rule.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..engine.arrays import HostArray

# Integrals over one norm
STEP = 0.2  # of ln t; the error of the trapezoidal rule falls like exp(-pi^2 / STEP)
LAST = 80.0  # of |ln t|: exp(-80 / 2) is below rounding
# Integrals over two norms, where ln t = pi/2 sinh(x): fewer nodes
FINE = 0.0625  # of x
WIDEST = 4.375  # of |x|, which is ln t = 62
NEGLIGIBLE = 1e-14  # of the covariance, in units of its largest eigenvalue
TINY = 1e-300  # a mean square of 0 is taken as this in denominators
ROUNDED = 1e-15  # of the largest eigenvalue, for each value: smaller ones are rounding
# A vector whose variance is less than this, in units of its squared mean, is divided as a linear
# function would: there, that is as good as what rounding leaves of E y y^T - E y E y^T.
NARROW = 1e-7
ROUNDING = 2e-14  # of the mean square of y


@dataclass(frozen=True)
class OnSphere:
    """Of y = u / sqrt(mean(u^2) + eps): mean, covariance, and the mean of dy / du."""

    mean: HostArray  # (n,)
    covariance: HostArray  # (n, n)
    jacobian: HostArray  # (n, n)
    error: float = 0.0  # of the covariance, relative to its trace
    is_narrow: bool = False  # whether u varies so little that y is a linear function of it


def on_sphere(mean: HostArray, covariance: HostArray, eps: float = 0.0) -> OnSphere:
    """For u ~ N(mean, covariance).

    >>> found = on_sphere(np.zeros(4), np.diag([1.0, 1.0, 1.0, 1.0]))
    >>> found.covariance.diagonal().round(12), found.mean
    (array([1., 1., 1., 1.]), array([0., 0., 0., 0.]))
    """
    n = len(mean)
    variance = max(float(covariance.trace()), 0.0)
    square_of_mean = float(mean @ mean)
    total = float(covariance.trace() + mean @ mean + n * eps)  # E r
    if total <= 0.0:
        nothing = np.zeros((n, n))
        return OnSphere(np.zeros(n), nothing, nothing)

    # in the basis of the eigenvectors, in units of the root of `total`; t in units of 1 / total
    values, vectors = np.linalg.eigh(covariance)
    lam = _above_rounding(values) / total
    v = vectors.T @ mean / math.sqrt(total)
    log_t = np.arange(-LAST, LAST + STEP, STEP)
    t = np.exp(log_t)
    m = _shrinkage(t, lam)  # (nodes, n)
    log_weights = _log_weights(m, v, t, n * eps / total)
    # dt = t d(ln t)
    for_inverse = STEP * np.exp(log_weights + log_t)
    for_root = STEP * np.exp(log_weights + 0.5 * log_t) / math.sqrt(math.pi)

    means = m * v
    new_mean = math.sqrt(n) * (for_root @ means)
    through_weights = (means.T * (2.0 * t * for_root)) @ means
    slope = math.sqrt(n / total) * (np.diag(for_root @ m) - through_weights)
    jacobian = vectors @ slope @ vectors.T
    if variance < NARROW * square_of_mean:
        as_line = jacobian @ covariance @ jacobian.T
        error = 4.0 * variance / total
        return OnSphere(vectors @ new_mean, as_line, jacobian, error, is_narrow=True)

    of_variances = np.diag(for_inverse @ (lam * m))
    of_means = (means.T * for_inverse) @ means
    rest = n * (of_variances + of_means) - np.outer(new_mean, new_mean)
    relative = n / max(float(rest.trace()), TINY) if square_of_mean else 1.0
    error = relative * (ROUNDING + _sensitivity(lam, v, n * eps / total))
    return OnSphere(vectors @ new_mean, vectors @ rest @ vectors.T, jacobian, error)


def _above_rounding(values: HostArray) -> HostArray:
    """Eigenvalues of covariances (..., n), in ascending order, with 0 for those that are rounding.

    What u varies by in its smallest direction counts with its root: where all values are multiples
    of one number, an eigenvalue of 1e-16 in the place of 0 would move covariances by 1e-8.

    >>> _above_rounding(np.array([-1e-17, 3e-16, 1e-9, 1.0])).tolist()
    [0.0, 0.0, 1e-09, 1.0]
    """
    floor = ROUNDED * values.shape[-1] * values[..., -1:]
    return np.where(values > floor, values, 0.0)


def _sensitivity(lam: HostArray, v: HostArray, shift: float) -> float:
    """By how much rounding of the covariance may move that of y, relative to its trace.

    It matters where u varies in one direction and passes near 0. There, y changes its sign, over a
    distance that the rest of |u|^2 decides, and an error d of that changes the result by d over its
    root."""
    along = float(lam[-1])
    if along == 0.0:
        return 0.0
    beside = float(lam[:-1].sum() + (v[:-1] ** 2).sum()) + shift
    rounding = ROUNDED * len(lam)
    if beside <= rounding * along:
        return 0.0  # it is 0, but for rounding
    passes_zero = math.exp(-0.5 * float(v[-1]) ** 2 / along)
    return passes_zero * rounding / math.sqrt(beside / along)


def _shrinkage(t: HostArray, lam: HostArray) -> HostArray:
    """M = 1 / (1 + 2 t l), for each node and each variance l (..., n): (..., nodes, n)."""
    return 1.0 / (1.0 + 2.0 * t[:, None] * lam[..., None, :])


def _log_weights(m: HostArray, v: HostArray, t: HostArray, shift: float | HostArray) -> HostArray:
    """The log of exp(-t shift) w: (..., nodes), for M (..., nodes, n) and means v of its last
    axis."""
    exponent = (m * v * v).sum(axis=-1) + shift
    return 0.5 * np.log(m).sum(axis=-1) - t * exponent


def between_spheres(
    mean: HostArray, covariance: HostArray, first: int, eps: float = 0.0
) -> HostArray:
    """E[y_a y_b^T] for u ~ N(mean, covariance) whose first values, u_a, and the others, u_b, are
    each divided by a root mean square of their own.

    Under the weight exp(-t |u_a|^2), u is Gaussian again. There, E[u_a y_b^T] = E[u_a] E[y_b]^T +
    Cov(u_a, u_b) E[dy_b / du_b]^T (Stein's lemma), and both expectations of y_b are integrals like
    those of `on_sphere`. So the products are sums over ln t of sums over another one.

    >>> between_spheres(np.zeros(4), np.kron(np.ones((2, 2)), np.eye(2)), 2).round(9)
    array([[1., 0.],
           [0., 1.]])
    """
    counts = first, len(mean) - first
    squares = covariance.diagonal() + mean * mean + eps
    totals = float(squares[:first].sum()), float(squares[first:].sum())
    if min(totals) <= 0.0:
        return np.zeros(counts)
    # each vector in units of its own, so that rounding of the larger one does not hide the other
    unit = np.repeat(np.sqrt(totals), counts)
    mean = mean / unit
    sources = Sources.of(mean, covariance / np.outer(unit, unit))
    shifts = counts[0] * eps / totals[0], counts[1] * eps / totals[1]

    # one basis for u_a and one for z, in which u_a = A z has a diagonal A
    left, sizes, right = np.linalg.svd(sources.factor[:first])
    size_of_z = _padded(sizes, len(right))
    size_of_u = _padded(sizes, first)
    x = np.arange(-WIDEST, WIDEST + FINE, FINE)
    log_t = 0.5 * math.pi * np.sinh(x)
    t = np.exp(log_t)
    step = FINE * 0.5 * math.pi * np.cosh(x)
    half = step * np.exp(0.5 * log_t) / math.sqrt(math.pi)  # dt / sqrt(pi t)
    m = _shrinkage(t, size_of_z**2)  # (nodes, k): the variances of z
    v = left.T @ mean[:first]
    log_weights = _log_weights(_shrinkage(t, size_of_u**2), v, t, shifts[0])
    weights = half * np.exp(log_weights)

    # under each weight, z and u
    factor = sources.factor @ right.T
    pull = factor[:first].T @ sources.offset[:first]
    z = m * (right @ sources.start - 2.0 * t[:, None] * pull)
    means = sources.offset + z @ factor.T  # (nodes, n)
    roots = factor[first:] * np.sqrt(m)[:, None]  # (nodes, n_b, k)
    y_mean, jacobian = _mean_and_jacobian(means[:, first:], roots, shifts[1], half, t)

    common = (factor[:first] * m[:, None]) @ factor[first:].T  # (nodes, n_a, n_b)
    products = means[:, :first, None] * y_mean[:, None]
    products += common @ jacobian.swapaxes(1, 2)
    total: HostArray = np.tensordot(weights, products, 1)
    return total * math.sqrt(counts[0])


@dataclass(frozen=True)
class Sources:
    """u = offset + factor z with independent z ~ N(start, 1): so nothing cancels where some of u
    determine the others."""

    offset: HostArray  # (n,)
    factor: HostArray  # (n, k)
    start: HostArray  # (k,)

    @classmethod
    def of(cls, mean: HostArray, covariance: HostArray) -> "Sources":
        """One source for each eigenvalue that is not negligible."""
        values, vectors = np.linalg.eigh(covariance)
        keep = values > NEGLIGIBLE * values[-1]
        size = np.sqrt(values[keep])
        factor = vectors[:, keep] * size
        start = (vectors[:, keep].T @ mean) / size
        return cls(mean - factor @ start, factor, start)


def _padded(x: HostArray, count: int) -> HostArray:
    """With zeros at the end."""
    padded = np.zeros(count)
    padded[: len(x)] = x
    return padded


def _mean_and_jacobian(
    means: HostArray, roots: HostArray, shift: float, half: HostArray, t: HostArray
) -> tuple[HostArray, HostArray]:
    """Those of y = sqrt(n) u / sqrt(|u|^2 + shift) for each u ~ N(mean, root root^T), as in
    `on_sphere`."""
    n = means.shape[1]
    covariances = roots @ roots.swapaxes(1, 2)
    variance = np.trace(covariances, axis1=1, axis2=2)
    square_of_mean = (means * means).sum(axis=1)
    totals = np.maximum(variance + square_of_mean + shift, TINY)
    values, vectors = np.linalg.eigh(covariances)
    to_axes = vectors.swapaxes(1, 2)
    lam = _above_rounding(values) / totals[:, None]
    v = _each(to_axes, means) / np.sqrt(totals)[:, None]
    m = _shrinkage(t, lam)  # (each, nodes, n)
    log_weights = _log_weights(m, v[:, None], t, (shift / totals)[:, None])
    weights = half * np.exp(log_weights)  # (each, nodes)

    moved = m * v[:, None]
    new_mean = math.sqrt(n) * (weights[:, None] @ moved)[:, 0]
    through_weights = moved.swapaxes(1, 2) * (2.0 * t * weights)[:, None]
    slope = -(through_weights @ moved)
    diagonal = np.arange(n)
    slope[:, diagonal, diagonal] += (weights[:, None] @ m)[:, 0]
    slope *= np.sqrt(n / totals)[:, None, None]
    return _each(vectors, new_mean), vectors @ slope @ to_axes


def _each(matrices: HostArray, vectors: HostArray) -> HostArray:
    """Each matrix times its vector."""
    return (matrices @ vectors[:, :, None])[:, :, 0]
