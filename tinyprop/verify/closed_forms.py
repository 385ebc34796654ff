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
from ..moments.hermite import coefficients
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
    angle = math.acos(rho)
    return (math.sin(angle) + (math.pi - angle) * rho) / (2.0 * math.pi)


def correlation_after(rho: float, a: float = 0.0) -> float:
    """The correlation of PReLU(X) and PReLU(Y) of slope a, whose pre-activations X and Y have
    correlation rho.

    >>> abs(correlation_after(0.5) - (arc_cosine(0.5) - C2**2) / C1**2) < 1e-14  # of ReLU
    True
    """
    covariance = moments.dual("prelu", rho, a=a).covariance
    variance = moments.gaussian("prelu", a=a).std ** 2
    return float(covariance / variance)


def jacobian_kernel(rho: Any) -> Any:
    """E[J J^T]_ij for rows of cosine rho: rho times the probability that both units are on, over
    c1^2 (degree 0).

    >>> abs(jacobian_kernel(1.0) - CHI) < 1e-14
    np.True_
    """
    both_on = (math.pi - np.arccos(rho)) / (2.0 * math.pi)
    return rho * both_on / C1**2


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
    square = s * s
    inside = (high**2 - square) * (square - low**2)
    ratio = units / (2.0 * inputs)  # of the units that are on
    return C1**2 * np.sqrt(np.maximum(inside, 0.0)) / (math.pi * ratio * s)


def product_moments(width: int, depth: int) -> tuple[float, float]:
    """Of G = J_L..J_1 (J_L..J_1)^T, relative to chi^(2L): E tr(G^2)/n and E (tr G/n)^2.

    Exact for square layers of every width: for active rows w, too, w w^T has the law of an
    isotropic row (C17).

    >>> round(product_moments(64, 9)[0], 4)
    24.0548
    """
    n = float(width)
    s = t = 1.0
    for _ in range(depth):
        # of a row w of length 1: E (w^T G w)^2
        of_a_row = (n * t + 2.0 * s) / (n + 2.0)
        # pairs of rows are independent, and both are on half as often as one
        pairs = (n - 1.0) / n
        s, t = 2.0 * of_a_row + pairs * s, 2.0 * of_a_row / n + pairs * t
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
    tau = math.sqrt(1.0 / gamma**2 - 1.0) * C1 / C2
    return 1.0 / (1.0 + tau) ** 2


def normal_grid(kinks: tuple[float, ...] = (-1.0, 0.0, 1.0)) -> tuple[HostArray, HostArray]:
    """Nodes z and weights of expectations over N(0, 1), for functions that are smooth between the
    kinks.

    >>> z, weights = normal_grid()
    >>> round(float(weights @ z**4), 12)
    3.0
    """
    nodes, weights = gauss_legendre(24)
    edges = np.unique([*np.arange(-12.0, 12.5, 0.5), *kinks])
    lengths = np.diff(edges)[:, None]
    z = (edges[:-1, None] + lengths * nodes).ravel()  # (panels, nodes) -> (panels*nodes,)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return z, (lengths * weights).ravel() * density


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
    below = np.array([normal_cdf(x) for x in z])
    of_largest = weights * k * below ** (k - 1)
    given = moments.gaussian("relu", math.sqrt(1.0 - rho) * z, math.sqrt(rho))
    mean = float(of_largest @ given.mean)
    variance = of_largest @ (given.std**2 + (given.mean - mean) ** 2)
    return (mean - C2) / C1, math.sqrt(variance) / C1


def avg_pool_std(k: int, rho: float) -> float:
    """The standard deviation of the average of k units o whose pre-activations have correlation
    rho."""
    others = (k - 1) * correlation_after(rho)
    return math.sqrt((1.0 + others) / k)


def hermite_degree(function: Callable[[HostArray], HostArray], degrees: int = 100) -> float:
    """The mean degree of a function's Hermite expansion, each degree k >= 1 weighted by its share
    of the variance."""
    shares = coefficients(function, np.zeros(()), np.ones(()), degrees) ** 2
    degree = np.arange(1, degrees + 1)
    return float(degree @ shares / shares.sum())


def sphere_relu_mean(dimensions: int) -> float:
    """E ReLU(y) for a coordinate y, of mean square 1, of a uniform point on a sphere in so many
    dimensions.

    >>> abs(sphere_relu_mean(10**6) - C2) < 1e-6
    True
    """
    d = float(dimensions)
    log_ratio = math.lgamma(d / 2.0) - math.lgamma((d + 1.0) / 2.0)
    mean_size = math.sqrt(d / math.pi) * math.exp(log_ratio)
    return mean_size / 2.0


def orthogonal_moments(width: int, depth: int) -> tuple[float, float]:
    """E tr(G^2)/n and E (tr G/n)^2 of G = J J^T, J the Jacobian of ReLU layers with sqrt(2) times
    orthogonal weights.

    A layer makes 2 D A D of G, with A = O G O^T for a random rotation O, and D = diag of fair
    coins. Of A, E A_ii A_jj is a and E A_ij^2 is b for i != j, and E A_ii^2 = a + 2 b: exact at
    every width (N12).

    >>> round(orthogonal_moments(64, 9)[0], 9)
    11.822305057
    """
    n = float(width)
    s = t = 1.0
    for _ in range(depth):
        scale = (n - 1.0) * (n + 2.0)
        a = ((n + 1.0) * n * t - 2.0 * s) / scale
        b = n * (s - t) / scale
        on_diagonal = 2.0 * (a + 2.0 * b)
        s = on_diagonal + (n - 1.0) * b
        t = (on_diagonal + (n - 1.0) * a) / n
    return s, t
