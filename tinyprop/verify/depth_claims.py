"""Claims on depth, section 3.3: whether normalisation propagates from layer to layer."""

import math
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from .claim import Case, Evidence, claims_of, evidence
from .closed_forms import C1, C2, PAPER_GAMMA, depth_recursion
from .monte_carlo import Sampler, Tally
from .networks import preactivation_statistics

claim = claims_of("depth")

DEPTH = 9  # of the paper's network
INPUTS = 128


def depth_tally(mc: Sampler, width: int, depth: int, samples: int, **settings: Any) -> Tally:
    """Over networks: E u^2 of each layer, then the variances of units, then the mean squares of their means."""

    def draw(random: np.random.Generator, count: int) -> HostArray:
        found = [preactivation_statistics(random, width, depth, INPUTS, **settings).ravel() for _ in range(count)]
        return np.array(found).T

    name = f"depth {width} {depth} {sorted(settings.items())}"
    return mc.tally(name, draw, samples, cost=depth * width * 20, block=1, watch=lambda t: t.mean(depth - 1))


def drifted(square: float, depth: int) -> float:
    """E u^2 of a layer of an infinitely wide network of gamma = 1 whose first layer has this one."""
    for _ in range(depth - 1):
        square += (C2 / C1) ** 2 * (math.sqrt(square) - 1.0) ** 2
    return square


@claim("C20", "3.3", "By induction, every layer's input has mean 0 and variance 1 (gamma = 1).")
def induction(mc: Sampler) -> Evidence:
    """In an infinitely wide network q = E u^2 goes to q + (sqrt(q) - 1)^2/(pi - 1): 1 is a fixed point of slope
    exactly 1, as for every positively homogeneous activation. Nothing pulls a chance error back, and any q above 1
    runs away.
    """
    width, deep = 128, 20
    tally = depth_tally(mc, width, deep, samples=60, gamma=1.0)
    at_9, at_20 = tally.mean(DEPTH - 1), tally.mean(deep - 1)
    return evidence(
        f"roughly, at width {width}: {at_9.value:.2f}, but {at_20.value:.1f} in layer {deep}, and it grows on",
        Case(f"E u^2, layer {DEPTH}", 1.0, 1.0, at_9, finite_size=0.5),
        Case(f"E u^2, layer {DEPTH}, if layer 1 has 1.05", 1.0, drifted(1.05, DEPTH)),
        Case(f"E u^2, layer {deep}", 1.0, 1.0, at_20, finite_size=10.0, judged=False),
    )


@claim(
    "C21", "3.3, 4.3", "By induction, every layer's input has mean 0 and variance 1 (gamma = 1/1.21, as recommended)."
)
def induction_as_recommended(mc: Sampler) -> Evidence:
    """gamma < 1 shrinks u, but c1 and c2 are those of gamma = 1. So too much is subtracted, units get means of
    their own, and E u^2 settles at 1/4 (for gamma = 1/1.2112), all of it means: the variance over inputs dies like
    1/l^2.
    """
    width = 256
    tally = depth_tally(mc, width, DEPTH, samples=12, gamma=PAPER_GAMMA)
    exact = depth_recursion(PAPER_GAMMA, 50)
    cases = [
        Case(f"Var u, layer {layer}", 1.0, exact[0, layer - 1], tally.mean(DEPTH + layer - 1), finite_size=0.15)
        for layer in (DEPTH, 1, 2)
    ]
    k = exact[1, DEPTH - 1]
    means = Case(f"mean^2 of units, layer {DEPTH}", 0.0, k, tally.mean(3 * DEPTH - 1), finite_size=0.25)
    deep = Case("Var u, layer 50", 1.0, exact[0, -1], judged=False)
    return evidence(f"the variance falls to {exact[0, 8]:.3f}, units keep means of {k**0.5:.2f}", *cases, means, deep)


@claim("C38", "5.2", "Hidden means converge closer to 0 for NormProp (0.19 on average) than for BN (0.33).")
def hidden_means(mc: Sampler) -> Evidence:
    """These are means of trained networks: `tinyprop reproduce covariate-shift` measures them. At the start they are
    not 0 either: units of layers 2 to 9 have Gaussian means of variance k (C21), of mean size sqrt(2 k/pi).
    """
    sizes = np.sqrt(2.0 * depth_recursion(PAPER_GAMMA, DEPTH)[1, 1:] / np.pi)
    average = float(sizes.mean())
    return evidence(
        f"tinyprop reproduce covariate-shift measures it. Before training {average:.2f} is expected, not 0",
        Case("mean |E u|, layers 2 to 9, untrained", 0.19, average, judged=False),
    )
