"""The exact values: kernels, spectra, recursions and pooling constants, derived beyond what the
paper prints.

X and Z are standard normal; c2 and c1 are mean and standard deviation of ReLU(Z); o = (ReLU(u) -
c2) / c1."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from .. import moments
from ..engine.arrays import HostArray
from ..moments.hermite import hermite
from ..moments.quadrature import gauss_legendre
from ..theory.wide import Wide
from . import paper

_relu = moments.gaussian("relu")
C1, C2 = _relu.std, _relu.mean
CHI = _relu.jacobian_factor**2  # E s'^2 / c1^2 = pi / (pi - 1): the mean-square gain of a layer
JACOBIAN_FACTOR = _relu.jacobian_factor
PAPER_GAMMA = 1.0 / paper.JACOBIAN_FACTOR  # as the paper rounds it
normal_cdf = NormalDist().cdf


def arc_cosine(rho: float) -> float:
    """E[ReLU(X) ReLU(Y)] for standard normal X, Y of correlation rho: Cho and Saul (2009), degree
    1.

    >>> round(arc_cosine(1.0), 12)
    0.5
    """
    return (math.sqrt(1.0 - rho * rho) + rho * (math.pi - math.acos(rho))) / (2.0 * math.pi)


def correlation_after(rho: float, a: float = 0.0) -> float:
    """The correlation of PReLU(X) and PReLU(Y) of slope a, whose pre-activations X and Y have
    correlation rho.

    >>> abs(correlation_after(0.5) - (arc_cosine(0.5) - C2**2) / C1**2) < 1e-14  # of ReLU
    True
    """
    return float(
        moments.dual("prelu", rho, a=a).covariance / moments.gaussian("prelu", a=a).std ** 2
    )


def jacobian_kernel(rho: Any) -> Any:
    """E[J J^T]_ij for rows of cosine rho: rho times the probability that both units are on, over
    c1^2 (degree 0).

    >>> abs(jacobian_kernel(1.0) - CHI) < 1e-14
    np.True_
    """
    return rho * (math.pi - np.arccos(rho)) / (2.0 * math.pi * C1 * C1)


def spectrum_edges(units: float, inputs: float) -> tuple[float, float]:
    """The smallest and largest nonzero singular value of a layer's Jacobian, in the limit of a
    large layer. Half of the rows w are on. Given that, w points to the side of the input, but w
    w^T, and so the singular values, have the law of random unit rows: J is 1/c1 times units/2 of
    these, and the squares follow the Marchenko-Pastur law."""
    root = math.sqrt(units / (2.0 * inputs))
    return abs(1.0 - root) / C1, (1.0 + root) / C1


def spectrum_density(s: HostArray, units: float, inputs: float) -> HostArray:
    """The density of the nonzero singular values for units <= 2 inputs; it integrates to 1."""
    low, high = spectrum_edges(units, inputs)
    inside = np.clip((high**2 - s * s) * (s * s - low**2), 0.0, None)
    return np.sqrt(inside) * C1**2 / (math.pi * units / (2.0 * inputs) * s)


def product_moments(width: int, depth: int) -> tuple[float, float]:
    """Of G = J_L..J_1 (J_L..J_1)^T, relative to chi^(2L): E tr(G^2)/n and E (tr G/n)^2.

    Exact for square layers of every width: for active rows w, too, w w^T has the law of an
    isotropic row (C17).

    >>> round(product_moments(64, 9)[0], 4)
    24.0548
    """
    n, s, t = float(width), 1.0, 1.0
    for _ in range(depth):
        s, t = (
            2.0 * n / (n + 2.0) * t + (4.0 / (n + 2.0) + (n - 1.0) / n) * s,
            2.0 * (n * t + 2.0 * s) / (n * (n + 2.0)) + (n - 1.0) / n * t,
        )
    return s, t


def depth_recursion(gamma: float, depth: int, input_square: float = 1.0) -> HostArray:
    """Pre-activations of an infinitely wide ReLU network of constants c1, c2 and one gamma: (2,
    depth).

    First the variance of a unit over inputs, then the mean square of the units' means; their sum is
    E u^2.

    >>> depth_recursion(1.0 / 1.21, 9)[:, -1].round(6)
    array([0.065866, 0.185219])
    """
    u = Wide.at([], gamma**2 * input_square)
    found = []
    for _ in range(depth):
        found.append((u.square - u.unrelated, u.unrelated))
        u = u.apply("relu").scale(shift=-C2).weighted((gamma / C1) ** 2)
    return np.array(found).T


def fixed_point(gamma: float) -> float:
    """The E u^2 that a deep ReLU network of this gamma <= 1 settles at: sqrt(q) = 1 / (1 + tau).

    >>> round(fixed_point(1.0 / JACOBIAN_FACTOR), 12)
    0.25
    """
    return 1.0 / (1.0 + math.sqrt((1.0 / gamma**2 - 1.0) / (C2 / C1) ** 2)) ** 2


def normal_grid(kinks: tuple[float, ...] = (-1.0, 0.0, 1.0)) -> tuple[HostArray, HostArray]:
    """Nodes z and weights of expectations over N(0, 1), for functions that are smooth between the
    kinks.

    >>> z, weights = normal_grid()
    >>> round(float(weights @ z**4), 12)
    3.0
    """
    (nodes, weights), edges = gauss_legendre(24), np.unique([*np.arange(-12.0, 12.5, 0.5), *kinks])
    lengths = np.diff(edges)[:, None]
    z = (edges[:-1, None] + lengths * nodes).ravel()
    return z, (lengths * weights).ravel() * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def max_pool(k: int, rho: float) -> tuple[float, float]:
    """Mean and standard deviation of the max of k units o whose pre-activations have correlation
    rho >= 0.

    Their max is ReLU(sqrt(rho) Z + sqrt(1 - rho) M) with M the largest of k: ReLU's moments,
    averaged over M.

    >>> mean, std = max_pool(9, 0.5)
    >>> round(mean, 3), round(std, 3)
    (1.18, 1.296)
    """
    z, weights = normal_grid()
    weights = weights * k * np.array([normal_cdf(x) for x in z]) ** (k - 1)  # of the largest of k
    given = moments.gaussian("relu", math.sqrt(1.0 - rho) * z, math.sqrt(rho))
    mean = float(weights @ given.mean)
    return (mean - C2) / C1, math.sqrt(weights @ (given.std**2 + (given.mean - mean) ** 2)) / C1


def avg_pool_std(k: int, rho: float) -> float:
    """The standard deviation of the average of k units o whose pre-activations have correlation
    rho."""
    return math.sqrt((1.0 + (k - 1) * correlation_after(rho)) / k)


def hermite_degree(function: Callable[[HostArray], HostArray], degrees: int = 100) -> float:
    """The mean degree of a function's Hermite expansion, each degree k >= 1 weighted by its share
    of the variance."""
    shares = hermite(function, np.zeros(()), np.ones(()), degrees) ** 2
    return float(np.arange(1, degrees + 1) @ shares / shares.sum())


def sphere_relu_mean(dimensions: int) -> float:
    """E ReLU(y) for a coordinate y, of mean square 1, of a uniform point on a sphere in so many
    dimensions.

    >>> abs(sphere_relu_mean(10**6) - C2) < 1e-6
    True
    """
    d = float(dimensions)
    return (
        math.sqrt(d / math.pi) / 2.0 * math.exp(math.lgamma(d / 2.0) - math.lgamma((d + 1.0) / 2.0))
    )


def orthogonal_moments(width: int, depth: int) -> tuple[float, float]:
    """E tr(G^2)/n and E (tr G/n)^2 of G = J J^T, J the Jacobian of ReLU layers with sqrt(2) times
    orthogonal weights.

    A layer makes 2 D A D of G, with A = O G O^T for a random rotation O, and D = diag of fair
    coins. Of A, E A_ii A_jj is a and E A_ij^2 is b for i != j, and E A_ii^2 = a + 2 b: exact at
    every width (N12).

    >>> round(orthogonal_moments(64, 9)[0], 9)
    11.822305057
    """
    n, s, t = float(width), 1.0, 1.0
    for _ in range(depth):
        a, b = (
            ((n + 1.0) * n * t - 2.0 * s) / ((n - 1.0) * (n + 2.0)),
            n * (s - t) / ((n - 1.0) * (n + 2.0)),
        )
        s, t = 2.0 * (a + 2.0 * b) + (n - 1.0) * b, (2.0 * (a + 2.0 * b) + (n - 1.0) * a) / n
    return s, t
