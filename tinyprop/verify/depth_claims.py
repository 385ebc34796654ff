"""Claims on depth, section 3.3: whether normalisation propagates from layer to layer."""

import math
from typing import Any

import numpy as np

from .. import moments
from ..engine.arrays import HostArray
from ..engine.graph import no_grad
from ..paper import MEAN_INPUTS
from .claim import Case, Evidence, claims_of, evidence, shown
from .closed_forms import C1, C2, PAPER_GAMMA, depth_recursion, normal_grid
from .monte_carlo import Sampler, Tally
from .networks import gaussian, preactivation_statistics, random_layer

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
    """With u the pre-activations of a layer, an infinitely wide network takes q = E u^2 to q + (sqrt(q) - 1)^2/(pi - 1)
    in the next layer: 1 is a fixed point of slope exactly 1, as for every positively homogeneous activation. Nothing
    pulls a chance error back, and any q above 1 runs away.
    """
    width, deep, drift = 128, 20, 4
    tally = depth_tally(mc, width, deep, samples=60, gamma=1.0)
    doubled = depth_tally(mc, 2 * width, drift, samples=24, gamma=1.0, input_scale=2.0)
    at_9, at_20 = tally.mean(DEPTH - 1), tally.mean(deep - 1)
    return evidence(
        f"roughly, at width {width}: {at_9.mean:.2f}, but {at_20.mean:.1f} in layer {deep}, and it grows on",
        Case(f"E u^2, layer {DEPTH}", 1.0, 1.0, at_9, finite_size=0.5),
        Case(f"E u^2, layer {DEPTH}, if layer 1 has 1.05", 1.0, drifted(1.05, DEPTH)),
        shown(f"E u^2, layer {drift}, if layer 1 has 4", drifted(4.0, drift), doubled.mean(drift - 1), finite_size=0.1),
        Case(f"E u^2, layer {deep}", 1.0, None, at_20, judged=False),
    )


@claim(
    "C21", "3.3, 4.3", "By induction, every layer's input has mean 0 and variance 1 (gamma = 1/1.21, as recommended)."
)
def induction_as_recommended(mc: Sampler) -> Evidence:
    """gamma < 1 shrinks the pre-activations u, but c1 and c2, the standard deviation and mean of ReLU(Z) for Z ~ N(0,
    1), are those of gamma = 1. So too much is subtracted, units get means of their own, and E u^2 settles at 1/4 (for
    gamma = 1/1.2112), all of it means: the variance over inputs falls like 1/l^2 with the layer l.
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


def arriving_tally(mc: Sampler, width: int, layers: int) -> Tally:
    """The mean size of the units' means over inputs, after each layer of untrained networks."""

    def draw(random: np.random.Generator, count: int) -> HostArray:
        found = np.empty((layers, count))
        with no_grad():
            for i in range(count):
                x = gaussian(random, 1000, width)
                for layer in range(layers):
                    x = random_layer(random, width, width)(x)
                    found[layer, i] = abs(x.numpy().mean(axis=0)).mean()
        return found

    return mc.tally(f"arriving {width}", draw, samples=12, cost=10**5, block=1, watch=lambda t: t.mean(layers - 1))


@claim("C38", "5.2", "Hidden mean inputs converge closer to 0 for NormProp (0.19 on average) than for BN (0.33).")
def hidden_means(mc: Sampler) -> Evidence:
    """The input of a unit is what arrives from the layer below: its output o = (ReLU(u) - c2)/c1, with c1 and c2 the
    standard deviation and mean of ReLU(Z), Z ~ N(0, 1). `tinyprop reproduce covariate-shift` measures it in trained
    networks. Before training it is not 0 either: a unit's pre-activation u is N(m, v) over inputs, and its mean m is
    N(0, k) over units, with v and k from C21, so the mean size of E o follows by an integral over m.
    """
    layers = DEPTH - 1
    z, weights = normal_grid()
    sizes = []
    for v, k in depth_recursion(1.0 / moments.gaussian("relu").jacobian_factor, layers).T:
        sizes.append(float(weights @ abs(moments.gaussian("relu", math.sqrt(k) * z, math.sqrt(v)).mean - C2)) / C1)
    tally = arriving_tally(mc, 160, layers)
    average = sum(sizes) / layers
    estimate = tally.function(lambda means: float(means.mean()))
    printed = MEAN_INPUTS["normprop"]
    return evidence(
        f"tinyprop reproduce covariate-shift measures it. Before training {average:.2f} is expected, not 0",
        Case(
            "mean |E o| arriving at layers 2 to 9, untrained", printed, average, estimate, finite_size=0.1, judged=False
        ),
        shown("the same, layer 2", sizes[0], tally.mean(0), finite_size=0.1),
        shown("the same, layer 9", sizes[-1], tally.mean(layers - 1), finite_size=0.15),
    )
