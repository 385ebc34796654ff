"""The largest singular value of the Jacobian of a wide network of random weights.

Let the Jacobian be a product of random matrices W and diagonal ones D = diag s'(z), of width n.
Their singular values follow from *free probability*, which does for large random matrices what
independence does for numbers: as W and D are asymptotically free, the S-transforms of W W^T and
D^2, functions of m > 0, multiply along the network.

- That of W W^T is 1 / (1 + m) for a Gaussian W, and 1 for an orthogonal one, in units of the mean
  square of its rows.
- That of D^2 is (1 + m) / m psi^-1(m), with psi(t) = E t d^2 / (1 - t d^2).

Let S be the product. In the limit of a large width, the square of the largest singular value is the
minimum over m of z(m) = (1 + m) / (m S(m)) (`log_z` below is its logarithm on a grid).

For a finite width, the last of n values is not at that edge. There, the density of the squares ends
as (A / pi) sqrt(z - x), with A = sqrt(2 / z'') / z, and the last of n values is, on average,
TRACY_WIDOM (n A)^(-2/3) away from its end. With f'' the second derivative of log z, that is a
fraction of TRACY_WIDOM (f'' / (2 n^2))^(1/3).
"""

import math

import numpy as np

from ..engine.arrays import HostArray
from ..engine.backward import grad
from ..engine.tensor import Tensor
from ..functional.activation import Activation

EDGE = 9.0  # standard deviations
CELLS = 1000  # between -EDGE and EDGE, for slopes
TRACY_WIDOM = -1.2065335745820  # the mean of their law for real matrices
LARGEST_SHIFT = 0.3  # relative, of the edge; beyond it the first order is not worth showing
M = np.geomspace(1e-4, 1e4, 800)
LOG_M = np.log(M)
SHARES = -np.expm1(-np.geomspace(1e-5, 35.0, 400))  # of the largest t that psi has a value for
AROUND = 10  # points of the grid on each side of the minimum, for its curvature


def largest_singular_values(
    squares: HostArray,
    factors: HostArray,
    function: Activation,
    mean: float,
    width: int,
    is_orthogonal: bool,
) -> HostArray:
    """That of the Jacobian of the first layer, the first two, and so on; nan where the layers are
    too narrow for the shift from the edge to be small.

    z has the mean square `squares` in each layer. Between two layers is function(z + mean), and the
    squared gradient grows by `factors`.

    >>> linear = tp.activations["identity"]
    >>> largest_singular_values(np.ones(2), np.ones(1), linear, 0.0, 10**9, False).round(3)
    array([2.   , 2.598])
    """
    of_weights = np.zeros_like(M) if is_orthogonal else np.log1p(M)  # -log S
    log_z = [np.log1p(M) - LOG_M + of_weights + math.log(squares[0])]
    known: dict[bytes, HostArray] = {}  # many layers of a rectifier have the same slopes
    for square, factor in zip(squares, factors, strict=False):
        d2, weights = squared_slopes(function, mean, math.sqrt(square))
        key = d2.tobytes() + weights.tobytes()
        if key not in known:
            known[key] = _minus_log_s(d2, weights) - math.log(weights @ d2)
        log_z.append(log_z[-1] + known[key] + of_weights + math.log(factor))
    return _edges(np.array(log_z), width)


def squared_slopes(function: Activation, mean: float, std: float) -> tuple[HostArray, HostArray]:
    """Values of s'(z + mean)^2, and their probabilities.

    The values are those in the middle of equal cells, which are cut at kinks, so that rounding does
    not decide on which side of one a value is.
    """
    kinks = (np.array(function.kinks) - mean) / std
    edges = np.linspace(-EDGE, EDGE, CELLS + 1)
    edges = np.sort(np.concatenate([edges, np.clip(kinks, -EDGE, EDGE)]))
    z = 0.5 * (edges[1:] + edges[:-1])
    weights = np.exp(-0.5 * z * z) * np.diff(edges)
    u = Tensor(mean + std * z, requires_grad=True)
    (slope,) = grad(function(u).sum(), u)
    return slope.data**2, weights / weights.sum()


def _minus_log_s(d2: HostArray, weights: HostArray) -> HostArray:
    """-log S of D^2, at each M."""
    slopes, which = np.unique(d2, return_inverse=True)  # rectifiers have only two
    t = SHARES / slopes[-1]
    t_d2 = np.outer(t, slopes)
    psi = t_d2 / (1.0 - t_d2) @ np.bincount(which, weights)
    log_inverse = np.interp(LOG_M, np.log(psi), np.log(t))
    return np.log(M / (1.0 + M)) - log_inverse


def _edges(log_z: HostArray, width: int) -> HostArray:
    """The largest singular values, from the minimum of each log z (layers, grid)."""
    best = log_z.argmin(axis=1)
    center = np.clip(best, AROUND, len(M) - AROUND - 1)
    near = center[:, None] + np.arange(-AROUND, AROUND + 1)
    # m^2 f'' / 2, as f' = 0: by a parabola in log m, whose steps are equal, so one fit does for all
    nearby = np.take_along_axis(log_z, near, axis=1).T
    bend = np.polyfit(LOG_M[: len(nearby)], nearby, 2)[0]
    bend = np.maximum(bend, 0.0)  # none at an end, where the density has an atom
    shift = TRACY_WIDOM * np.cbrt(bend / (M[best] * width) ** 2)
    shift[abs(shift) > LARGEST_SHIFT] = np.nan
    return np.exp(0.5 * (log_z.min(axis=1) + np.log1p(shift)))
