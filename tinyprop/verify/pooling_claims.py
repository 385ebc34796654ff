"""Claims on convolutional networks: pooling, padding, and the paper's architecture."""

import math
from collections.abc import Callable

import numpy as np

from ..engine.arrays import Array, HostArray
from ..engine.graph import no_grad
from ..nn import NIN, AvgPool2d, MaxPool2d, Module, NormPropConv2d, build
from .claim import Case, Evidence, claims_of, computed, evidence
from .closed_forms import C1, C2, avg_pool_std, max_pool
from .monte_carlo import Estimate, Sampler, Tally
from .networks import gaussian

claim = claims_of("pooling")

WINDOW = 9
CORRELATIONS = (0.9, 0.5, 0.99)


def one_filter() -> NormPropConv2d:
    """A NormProp layer that passes a map through ReLU and normalises it."""
    layer = NormPropConv2d(1, 1, 1, gamma=1.0)
    layer.weight.data[...] = 1.0
    return layer


def pooled_tally(mc: Sampler, pool: Module, rho: float, watch: Callable[[Tally], Estimate] = Tally.mean) -> Tally:
    """3 x 3 pools of normalised units whose pre-activations have correlation rho."""
    layer = one_filter()

    def draw(random: np.random.Generator, count: int) -> Array:
        own, common = gaussian(random, count, 1, 3, 3), gaussian(random, count, 1, 1, 1)
        with no_grad():
            return pool(layer(own * math.sqrt(1.0 - rho) + common * math.sqrt(rho))).data.reshape(-1)

    name = f"{type(pool).__name__} {rho}"
    return mc.tally(name, draw, samples=60_000, cost=WINDOW + 1, block=4096, watch=watch)


@claim("C23", "3.2", "Max-pooling does not affect the statistics significantly, as the pooled units are correlated.")
def max_pooling(mc: Sampler) -> Evidence:
    """With correlation rho, the max of k units is ReLU(sqrt(rho) Z + sqrt(1 - rho) M), M the largest of k normals: its
    moments are an integral over M. For small 1 - rho the mean shifts by 1.27 sqrt(1 - rho) for k = 9: a square root,
    so that even rho = 0.99 shifts it by 0.13 standard deviations.
    """
    cases = []
    for rho in CORRELATIONS:
        tally = pooled_tally(mc, MaxPool2d(3), rho)
        mean, std = max_pool(WINDOW, rho)
        cases.append(Case(f"mean after max-pooling, rho = {rho:g}", 0.0, mean, tally.mean()))
        cases.append(Case(f"std after max-pooling, rho = {rho:g}", 1.0, std, tally.std()))
    shift, _ = max_pool(WINDOW, 0.0)
    reason = f"the mean shifts by {cases[0].exact:.2f} sd at rho = 0.9 (independent units: {shift:.2f})"
    return evidence(reason, *cases)


@claim("C24", "3.2", "Average-pooling does not affect the statistics significantly.")
def average_pooling(mc: Sampler) -> Evidence:
    """The mean stays. The variance of an average of k units is (1 + (k - 1) R(rho))/k with R the correlation after
    ReLU.
    """
    cases = []
    for rho in sorted(CORRELATIONS):
        tally = pooled_tally(mc, AvgPool2d(3), rho, Tally.std)
        cases.append(Case(f"std after average-pooling, rho = {rho:g}", 1.0, avg_pool_std(WINDOW, rho), tally.std()))
        cases.append(Case(f"mean after average-pooling, rho = {rho:g}", 0.0, 0.0, tally.mean()))
    reason = f"the mean stays, the deviation falls to {cases[0].exact:.2f} at rho = 0.5, {cases[2].exact:.2f} at 0.9"
    return evidence(reason, *cases)


@claim("C25", "3.2", "If the pooled units were independent, mean and standard deviation would be different.")
def independent_units(mc: Sampler) -> Evidence:
    """The max of 9 independent units is ReLU of the largest of 9 normals."""
    tally = pooled_tally(mc, MaxPool2d(3), 0.0)
    mean, std = max_pool(WINDOW, 0.0)
    raw = tally.function(lambda means: C1 * means[0] + C2)
    return evidence(
        f"the max of 9 has mean {C1 * mean + C2:.3f} and deviation {C1 * std:.3f} instead of {C2:.3f} and {C1:.3f}",
        Case("E max of 9 rectified", C2, C1 * mean + C2, raw, "differs"),
        Case("std of the max, in c1", 1.0, std, tally.std(), judged=False),
    )


@claim("C40", "5", "The nine-layer architecture fits together for images of 32 x 32.")
def architecture(mc: Sampler) -> Evidence:
    """A window of k with stride s and padding p turns L into (L + 2p - k)/s + 1, rounded down."""
    network = build(NIN, width=0.05)
    sizes, x = [], gaussian(np.random.default_rng(mc.seed), 1, 3, 32, 32)
    with no_grad():
        for layer in network:
            x = layer(x)
            sizes.append(x.shape[-1])
    *maps, classes = sizes
    return evidence(
        f"sizes {', '.join(map(str, maps))}",
        Case("size of the last map", 1.0, 1.0, computed(maps[-1])),
        Case("classes", 10.0, 10.0, computed(classes)),
    )


@claim("C41", "3.3, 5", "In the nine-layer architecture, the input of the last layer is canonical.")
def padded_border(mc: Sampler) -> Evidence:
    """C(192,1,1,2) pads 4 x 4 to 8 x 8. A 1 x 1 filter sees only zeros in the 48 new pixels, which become the constant
    ReLU(0) - c2 over c1 = -0.683: the mean over the map is 48/64 of that.
    """
    inside, side, padding = 4, 8, 2
    new = 1.0 - inside**2 / side**2
    mean = -new * C2 / C1
    layer = NormPropConv2d(16, 4, 1, padding=padding, gamma=1.0)
    layer.weight.data = gaussian(np.random.default_rng(mc.seed), *layer.weight.shape).data

    def draw(random: np.random.Generator, count: int) -> HostArray:
        with no_grad():
            out = layer(gaussian(random, count, 16, inside, inside)).numpy()
        return np.array([out.mean(axis=(1, 2, 3)), (out**2).mean(axis=(1, 2, 3))])

    tally = mc.tally("border", draw, samples=4_000, cost=256, block=100)
    return evidence(
        f"{new:.0%} of it is the constant {-C2 / C1:.3f} that padding makes",
        Case("mean over the map", 0.0, mean, tally.mean(0)),
        Case("second moment over the map", 1.0, 1.0 - new + new * (C2 / C1) ** 2, tally.mean(1)),
    )
