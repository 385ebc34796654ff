"""Claims on depth, section 3.3: whether normalisation propagates from layer to layer."""

import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import moments, no_grad
from ..engine.arrays import HostArray
from ..report.estimate import Estimate
from .case import Case, shown
from .closed_forms import (
    C1,
    C2,
    JACOBIAN_FACTOR,
    PAPER_GAMMA,
    depth_recursion,
    fixed_point,
    normal_grid,
)
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, each
from .networks import gaussian, layer_with, random_layer
from .paper import MEAN_INPUTS

normprop = partial(claim, family="normprop")

DEPTH = 9  # of the paper's network
INPUTS = 128


def depth_tally(mc: Sampler, width: int, depth: int, samples: int, **settings: Any) -> Tally:
    """Of the pre-activations u of each layer of random networks: E u^2, then the variances of units
    over inputs, then the mean squares of their means, without bias. A layer of the same weights
    without activation shows u."""
    name = f"depth {width} {depth} {sorted(settings.items())}"
    input_scale = settings.pop("input_scale", 1.0)

    def draw(random: np.random.Generator) -> HostArray:
        x, found = gaussian(random, INPUTS, width) * input_scale, []
        with no_grad():
            for _ in range(depth):
                layer = random_layer(random, width, width, **settings)
                linear = layer_with(
                    layer.weight.numpy(), activation="identity", gamma=layer.gamma.numpy()
                )
                u = linear(x).numpy().astype(np.float64)
                variance = u.var(axis=0, ddof=1).mean()
                found.append(
                    [(u * u).mean(), variance, (u.mean(axis=0) ** 2).mean() - variance / INPUTS]
                )
                x = layer(x)
        return np.array(found).T.ravel()

    watch = partial(Tally.mean, quantity=depth - 1)
    return mc.tally(name, each(draw), samples, cost=depth * width * 20, block=1, watch=watch)


@normprop(
    "C20",
    "3.3",
    "By induction, every layer's input has mean 0 and variance 1 (gamma = 1).",
    expected="approximate",
)
def induction(mc: Sampler) -> Findings:
    """With u the pre-activations, an infinitely wide network takes q = E u^2 to q + (sqrt(q) -
    1)^2/(pi - 1) in the next layer: 1 is a fixed point of slope 1, as for every positively
    homogeneous activation; any q above runs away."""
    width, deep, drift = 128, 20, 4
    tally = depth_tally(mc, width, deep, samples=60, gamma=1.0)
    at_9, at_20 = tally.mean(DEPTH - 1), tally.mean(deep - 1)
    yield Case(f"E u^2, layer {DEPTH}", 1.0, 1.0, at_9, finite_size=0.5)
    drifted = depth_recursion(1.0, DEPTH, 1.05)[:, -1].sum()
    yield Case(f"E u^2, layer {DEPTH}, if layer 1 has 1.05", 1.0, drifted)
    drifted = depth_recursion(1.0, drift, 4.0)[:, -1].sum()
    doubled = depth_tally(mc, 2 * width, drift, samples=24, gamma=1.0, input_scale=2.0).mean(
        drift - 1
    )
    yield shown(f"E u^2, layer {drift}, if layer 1 has 4", drifted, doubled, finite_size=0.1)
    yield Case(f"E u^2, layer {deep}", 1.0, None, at_20, judged=False)
    return (
        f"roughly, at width {width}: {at_9.mean:.2f}, but {at_20.mean:.1f} in layer {deep}, and "
        "it grows on"
    )


@normprop(
    "C21",
    "3.3, 4.3",
    "By induction, every layer's input has mean 0 and variance 1 (gamma = 1/1.21, recommended).",
    expected="does not hold as stated",
)
def induction_as_recommended(mc: Sampler) -> Findings:
    """gamma < 1 shrinks the pre-activations u, but c1 and c2, the standard deviation and mean of
    ReLU(Z) for Z ~ N(0, 1), are those of gamma = 1. So too much is subtracted, units get means of
    their own, and E u^2 settles at 1/4 (for gamma = 1/1.2112), all of it means: the variance over
    inputs falls like 1/l^2 with the layer l."""
    tally, exact = (
        depth_tally(mc, 256, DEPTH, samples=12, gamma=PAPER_GAMMA),
        depth_recursion(PAPER_GAMMA, 50),
    )
    for layer in (DEPTH, 1, 2):
        estimate = tally.mean(DEPTH + layer - 1)
        yield Case(f"Var u, layer {layer}", 1.0, exact[0, layer - 1], estimate, finite_size=0.15)
    k = exact[1, DEPTH - 1]
    yield Case(
        f"mean^2 of units, layer {DEPTH}", 0.0, k, tally.mean(3 * DEPTH - 1), finite_size=0.25
    )
    yield Case("Var u, layer 50", 1.0, exact[0, -1], judged=False)
    return f"the variance falls to {exact[0, 8]:.3f}, units keep means of {k**0.5:.2f}"


LEDGER_OF_RUNS = Path(__file__).parents[2] / "figures/runs"  # in a clone of the repository


def trained_means(folder: Path = LEDGER_OF_RUNS) -> str:
    """What finished runs, where there are any, say about the mean inputs of section 5.2: those of
    the setting with most pairs of a NormProp and a BatchNorm run; of several, the longest."""
    final: dict[str, dict[str, dict[int, float]]] = {}  # by setting, by norm, by random seed
    epochs: dict[str, int] = {}
    for path in sorted(folder.glob("cifar10-*.json")):
        run = json.loads(path.read_bytes())
        config = run["config"]
        if run["diverged"] or config["norm"] not in MEAN_INPUTS:
            continue
        seed, norm = config.pop("seed"), config.pop("norm")
        given = {name: value for name, value in config.items() if value is not None}
        setting = json.dumps(given, sort_keys=True)
        sizes = [layer["size"][-1] for layer in run["layers"][1:DEPTH]]
        final.setdefault(setting, {}).setdefault(norm, {})[seed] = statistics.fmean(sizes)
        epochs[setting] = config["epochs"]

    def pairs(setting: str) -> list[int]:
        by_norm = final[setting]
        return sorted(by_norm.get("normprop", {}).keys() & by_norm.get("batch", {}).keys())

    unknown = "tinyprop reproduce covariate-shift measures it"
    if not final:
        return unknown
    setting = max(final, key=lambda s: (len(pairs(s)), epochs[s]))
    if len(pairs(setting)) < 2:
        return unknown
    ours, theirs = final[setting]["normprop"], final[setting]["batch"]
    difference = Estimate.of([ours[seed] - theirs[seed] for seed in pairs(setting)])
    return (
        f"in {difference.n} pairs of runs of {epochs[setting]} epochs, NormProp minus BN is "
        f"{difference:+.3f}"
    )


@normprop(
    "C38",
    "5.2",
    "Hidden mean inputs converge closer to 0 for NormProp (0.19 on average) than for BN (0.33).",
    expected="empirical",
)
def hidden_means(mc: Sampler) -> Findings:
    """The input of a unit is what arrives from the layer below: its output o = (ReLU(u) - c2)/c1,
    with c1 and c2 the standard deviation and mean of ReLU(Z), Z ~ N(0, 1). `tinyprop reproduce
    covariate-shift` measures it in trained networks. BN's inputs are outputs of ReLU, which are not
    negative, so NormProp's are closer to 0 by construction. Before training it is not 0 either: a
    unit's pre-activation u is N(m, v) over inputs, and its mean m is N(0, k) over units, with v and
    k from C21, so the mean size of E o follows by an integral over m."""
    width, layers = 160, DEPTH - 1

    def draw(random: np.random.Generator) -> list[float]:
        """The mean size of the units' means over inputs, after each layer of an untrained
        network."""
        outputs = [gaussian(random, 1000, width)]
        with no_grad():
            for _ in range(layers):
                outputs.append(random_layer(random, width, width)(outputs[-1]))
        return [abs(x.numpy().mean(axis=0)).mean() for x in outputs[1:]]

    watch = partial(Tally.mean, quantity=layers - 1)
    tally = mc.tally(f"arriving {width}", each(draw), samples=12, cost=10**5, block=1, watch=watch)
    (z, weights), (v, k) = normal_grid(), depth_recursion(1.0 / JACOBIAN_FACTOR, layers)[:, :, None]
    sizes = abs(moments.gaussian("relu", np.sqrt(k) * z, np.sqrt(v)).mean - C2) @ weights / C1
    average, estimate = float(sizes.mean()), tally.function(lambda means: float(means.mean()))
    what, printed = "mean |E o| arriving at layers 2 to 9, untrained", MEAN_INPUTS["normprop"]
    yield Case(what, printed, average, estimate, finite_size=0.1, judged=False)
    yield shown("the same, layer 2", float(sizes[0]), tally.mean(0), finite_size=0.1)
    yield shown("the same, layer 9", float(sizes[-1]), tally.mean(layers - 1), finite_size=0.15)
    return f"{trained_means()}. Before training {average:.2f} is expected, not 0"


@normprop(
    "G4",
    "beyond 3.3",
    "A deep ReLU network of gamma <= 1 settles at sqrt(E u^2) = 1/(1 + tau).",
    expected="holds",
)
def phase_diagram(mc: Sampler) -> Findings:
    """With u the pre-activations, q = E u^2 goes to (gamma/c1)^2 (q/2 - sqrt(q)/pi + 1/(2 pi)) in
    the next layer, with c1 the standard deviation of ReLU(Z), Z ~ N(0, 1): a parabola in sqrt(q).
    Its stable fixed point is sqrt(q) = 1/(1 + tau) with tau^2 = (pi - 1)(1/gamma^2 - 1). At gamma =
    1/1.2112, the inverse Jacobian factor, tau is 1, and q is 1/4."""
    width, depth = 128, 30
    at_end = depth_tally(mc, width, depth, samples=10, gamma=1.0 / JACOBIAN_FACTOR).mean(depth - 1)
    yield Case(
        f"E u^2, layer {depth} of width {width}", 0.25, 0.25, at_end, finite_size=0.1, judged=False
    )
    for gamma in (1.0 / JACOBIAN_FACTOR, 0.95, 0.9, 0.7):
        settled = float(depth_recursion(gamma, 400)[:, -1].sum())
        yield Case(f"E u^2, layer 400, gamma = {gamma:.4g}", fixed_point(gamma), settled)
    return "1/4 at the Jacobian factor, and what iterating the recursion gives"
