"""Hermite polynomials, and the coefficients of a function at a fixed cost.

With h_k = He_k / sqrt(k!), of which E h_k(Z)^2 = 1, a function of U = m + std Z is the sum of a_k
h_k(Z), where a_k = E[s(U) h_k(Z)]. Three places need these coefficients, and differ in what they
know of the function and in how long they may take:

- here: any function, with kinks that are known, on a fixed number of nodes: a dozen degrees for
  layers that are treated as Gaussian anyway;
- many.py: the units of a layer, to rounding, with panels that are halved until nothing changes;
- series.py: smooth functions without kinks, to rounding, as many terms as a correlation needs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from .quadrature import gauss_legendre

EDGE = 8.0  # standard deviations, beyond which 1e-15 of the mass lies
PANELS = 16  # between both edges, besides those that kinks cut
NODES = 8  # of a panel
# where most activations have their kinks
USUAL_KINKS = (-1.0, 0.0, 1.0)


def polynomials(z: HostArray, start: HostArray) -> Iterator[HostArray]:
    """h_1(z), h_2(z), ... without end, each times the array `start`.

    >>> [h.tolist() for h in islice(polynomials(np.array([2.0]), np.ones(1)), 2)]
    [[2.0], [2.1213203435596424]]
    """
    before = np.zeros_like(start)
    here = start
    k = 0
    while True:
        k += 1
        before, here = here, (z * here - math.sqrt(k - 1.0) * before) / math.sqrt(k)
        yield here


def coefficients(
    function: Callable[[HostArray], Any],
    mean: HostArray,
    std: HostArray,
    degrees: int,
    kinks: Sequence[float] = (),
) -> HostArray:
    """The coefficients a_k of each U = mean + std Z, for k = 1, ..., degrees, in front.

    The function may have kinks at -1, 0 and 1, and at others that are given.

    >>> a = coefficients(lambda u: u**2, np.array(0.0), np.array(1.0), 3)
    >>> a.round(12) + 0.0  # u^2 = 1 + sqrt(2) h_2(u)
    array([0.        , 1.41421356, 0.        ])
    """
    mean = mean[..., None]
    std = std[..., None]
    places = sorted({*USUAL_KINKS, *kinks})
    cuts = [np.clip((k - mean) / np.maximum(std, 1e-12), -EDGE, EDGE) for k in places]
    equal = np.linspace(-EDGE, EDGE, PANELS + 1)
    edges = np.broadcast_to(equal, (*mean.shape[:-1], len(equal)))
    edges = np.sort(np.concatenate([edges, *cuts], axis=-1), axis=-1)

    nodes, weights = gauss_legendre(NODES)
    lengths = np.diff(edges)[..., None]
    # (..., panels, nodes) -> (..., points)
    z = (edges[..., :-1, None] + lengths * nodes).reshape(*mean.shape[:-1], -1)
    density = (lengths * weights).reshape(z.shape) * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    values = density * function(mean + std * z)
    every = islice(polynomials(z, np.ones_like(z)), degrees)
    return np.array([(values * h).sum(axis=-1) for h in every])
