"""Claims on depth, section 3.3: whether normalisation propagates from layer to layer.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn. A formula for infinitely wide networks is measured at two widths, and `limit_of`
extrapolates."""

import json
import math
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from .. import moments, no_grad
from ..engine.arrays import HostArray
from ..report.estimate import Estimate
from .case import Case, beside, claimed
from .closed_forms import (
    C1,
    C2,
    JACOBIAN_FACTOR,
    PAPER_GAMMA,
    depth_recursion,
    fixed_point,
    normal_grid,
    sphere_relu_mean,
)
from .ledger import Findings, claim
from .limits import Limit, limit_of
from .monte_carlo import Sampler, Tally, each
from .networks import gaussian, normprop_layers, random_layers
from .paper import MEAN_INPUTS

normprop = partial(claim, family="normprop")

DEPTH = 9  # of the paper's network
INPUTS = 128  # that a network is measured with


LUCK_OF_U = ("luck in E u^2", "luck in mean^2")
LUCK_OF_RELU = ("luck in E ReLU(u)^2", "luck in E ReLU(u)")
LUCK = (*LUCK_OF_U, *LUCK_OF_RELU)


def luck(x: HostArray, u: HostArray, gamma: float) -> dict[str, float]:
    """How far the weights of a layer are off the average of random directions w, for these inputs x
    and pre-activations u = gamma w.x: 0 on average, for any x.

    Given x, w.x has the mean square |x|^2/n in n dimensions. As w and -w are as likely, ReLU keeps
    half of that; its mean is that of a coordinate on a sphere."""
    width = x.shape[1]
    squares = gamma**2 * np.einsum("nu,nu->n", x, x, dtype=np.float64) / width
    square_of_means = (gamma * x.mean(axis=0, dtype=np.float64)) ** 2
    relu = np.maximum(u, 0.0)
    expected = (
        squares.mean(),
        square_of_means.mean(),
        squares.mean() / 2.0,
        sphere_relu_mean(width) * np.sqrt(squares).mean(),
    )
    found = (
        mean_square(u),
        (u.mean(axis=0, dtype=np.float64) ** 2).mean(),
        mean_square(relu),
        relu.mean(dtype=np.float64),
    )
    return dict(zip(LUCK, np.subtract(found, expected), strict=True))


def mean_square(x: HostArray) -> float:
    return float(np.einsum("nu,nu->", x, x, dtype=np.float64)) / x.size


def layer_by_layer(
    mc: Sampler, width: int, depth: int, networks: int, input_scale: float = 1.0, **settings: Any
) -> Tally:
    """Of the pre-activations u = gamma w.x/|w| in each layer l of random ReLU networks of NormProp:
    "E u^2 l"; "variance l", that of a unit over inputs; and "mean^2 l", the mean square over units
    of their means, without bias. And the `luck` of the weights: in u that of the last layer, in
    ReLU(u) of all layers before it."""

    stack = normprop_layers(width, depth, **settings)
    gamma, _ = stack.affine

    def draw(random: Generator) -> dict[str, float]:
        x = gaussian(random, INPUTS, width) * input_scale
        found = {}
        lucky = dict.fromkeys(LUCK, 0.0)
        for layer, (linear, activation) in enumerate(random_layers(random, stack), start=1):
            with no_grad():
                sums = linear(x)
                after = activation(sums)
            u = sums.numpy()
            mean = u.mean(axis=0, dtype=np.float64)
            square = np.einsum("nu,nu->u", u, u, dtype=np.float64) / INPUTS
            variance = (square - mean**2).mean() * INPUTS / (INPUTS - 1)
            found[f"E u^2 {layer}"] = square.mean()
            found[f"variance {layer}"] = variance
            found[f"mean^2 {layer}"] = (mean**2).mean() - variance / INPUTS
            of_layer = luck(x.numpy(), u, gamma)
            for name in LUCK_OF_RELU if layer < depth else LUCK_OF_U:
                lucky[name] += of_layer[name]
            x = after
        return found | lucky

    watch = partial(Tally.mean, quantity=f"E u^2 {depth}")
    name = f"depth {width} {depth} {input_scale} {sorted(settings.items())}"
    return mc.tally(name, each(draw), networks, cost=depth * width * 20, block=1, watch=watch)


def without_luck(tally: Tally) -> Tally:
    """The same with less chance in it: as the luck of weights is 0 on average, what goes along with
    it can be subtracted."""
    return tally.given(dict.fromkeys(LUCK, 0.0))


def no_luck(tally: Tally) -> Iterator[Case]:
    """That the luck of weights is 0 on average, on which `without_luck` relies."""
    for name in LUCK:
        yield beside(name, exact=0.0, measured=tally.mean(name))


def limit_without_luck(tallies: dict[int, Tally], quantity: str) -> Limit:
    """At infinite width, with less chance in it."""
    return limit_of({width: without_luck(tally) for width, tally in tallies.items()}, quantity)


@normprop(
    "C20",
    "3.3",
    "By induction, every layer's input has mean 0 and variance 1 (gamma = 1).",
    expected="approximate",
)
def induction(mc: Sampler) -> Findings:
    """u are the pre-activations of a layer, and q = E u^2. In an infinitely wide network, the next
    layer has q + (sqrt(q) - 1)^2/(pi - 1). So q = 1 stays 1, but only just: the slope there is 1,
    as for every positively homogeneous activation, and any q above 1 runs away. At width n, q is
    off by a number over n."""
    narrow, wide, short, deep = 128, 384, 4, 20
    as_claimed = {
        narrow: layer_by_layer(mc, narrow, DEPTH, networks=100, gamma=1.0),
        wide: layer_by_layer(mc, wide, DEPTH, networks=40, gamma=1.0),
    }
    at_9 = limit_without_luck(as_claimed, f"E u^2 {DEPTH}")
    yield claimed(f"E u^2, layer {DEPTH}", 1.0, exact=1.0, measured=at_9)
    scale = 1.05**0.5
    shifted = {
        narrow: layer_by_layer(mc, narrow, DEPTH, 100, scale, gamma=1.0),
        wide: layer_by_layer(mc, wide, DEPTH, 40, scale, gamma=1.0),
    }
    yield claimed(
        f"E u^2, layer {DEPTH}, if layer 1 has 1.05",
        1.0,
        exact=depth_recursion(1.0, DEPTH, 1.05)[:, -1].sum(),
        measured=limit_without_luck(shifted, f"E u^2 {DEPTH}"),
    )
    doubled = {
        narrow: layer_by_layer(mc, narrow, short, 80, 2.0, gamma=1.0),
        wide: layer_by_layer(mc, wide, short, 40, 2.0, gamma=1.0),
    }
    yield beside(
        f"E u^2, layer {short}, if layer 1 has 4",
        exact=depth_recursion(1.0, short, 4.0)[:, -1].sum(),
        measured=limit_without_luck(doubled, f"E u^2 {short}"),
    )
    yield from no_luck(as_claimed[narrow])
    finite = layer_by_layer(mc, narrow, deep, networks=60, gamma=1.0)
    at_20 = finite.mean(f"E u^2 {deep}")
    yield beside(f"E u^2, layer {deep} of width {narrow}", measured=at_20)
    at_width = as_claimed[narrow].mean(f"E u^2 {DEPTH}").mean
    return (
        f"roughly, at width {narrow}: {at_width:.2f}, but {at_20.mean:.1f} in layer {deep}, and "
        "it grows on"
    )


@normprop(
    "C21",
    "3.3, 4.3",
    "By induction, every layer's input has mean 0 and variance 1 (gamma = 1/1.21, recommended).",
    expected="does not hold as stated",
)
def induction_as_recommended(mc: Sampler) -> Findings:
    """gamma < 1 shrinks the pre-activations u, but c1 and c2, the standard deviation and the mean
    of ReLU(Z), Z ~ N(0, 1), are those of gamma = 1. So too much is subtracted, and units get means
    of their own. E u^2 settles at 1/4 (for gamma = 1/1.2112), and in the end all of it is means:
    the variance over inputs falls like 1/l^2 with the layer l."""
    tallies = {
        32: layer_by_layer(mc, 32, DEPTH, networks=500, gamma=PAPER_GAMMA),
        128: layer_by_layer(mc, 128, DEPTH, networks=300, gamma=PAPER_GAMMA),
    }
    variance, square_of_means = depth_recursion(PAPER_GAMMA, 50)
    for layer in (DEPTH, 1, 2):
        yield claimed(
            f"Var u, layer {layer}",
            1.0,
            exact=variance[layer - 1],
            measured=limit_without_luck(tallies, f"variance {layer}"),
        )
    mean_square = square_of_means[DEPTH - 1]
    yield claimed(
        f"mean^2 of units, layer {DEPTH}",
        0.0,
        exact=mean_square,
        measured=limit_without_luck(tallies, f"mean^2 {DEPTH}"),
    )
    yield from no_luck(tallies[32])
    yield beside("Var u, layer 50", exact=variance[-1])
    return (
        f"the variance falls to {variance[DEPTH - 1]:.3f}, units keep means of "
        f"{mean_square**0.5:.2f}"
    )


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
    """What arrives at a unit are outputs o = (ReLU(u) - c2)/c1 of the layer below, with c1 and c2
    the standard deviation and the mean of ReLU(Z), Z ~ N(0, 1). With BN it is outputs of ReLU,
    which are never negative, so NormProp's are closer to 0 by construction. `tinyprop reproduce
    covariate-shift` measures both in trained networks. Before training, NormProp's are not 0
    either: a pre-activation u is N(m, v) over inputs, and its mean m is N(0, k) over units, with v
    and k as in C21. The mean size of E o is an integral over m."""

    inputs = 1000

    def draw(random: Generator, width: int) -> dict[str, float]:
        """The mean size of the units' means over inputs, after each layer of an untrained
        network."""
        x = gaussian(random, inputs, width)
        sizes = {}
        network = random_layers(random, normprop_layers(width, DEPTH - 1))
        for number, layer in enumerate(network, start=2):
            with no_grad():
                x = layer(x)
            sizes[f"arriving at {number}"] = abs(x.numpy().mean(axis=0)).mean()
        return sizes | {"arriving": statistics.fmean(sizes.values())}

    tallies = {}
    for width, networks in ((64, 100), (192, 60)):
        watch = partial(Tally.mean, quantity="arriving")
        drawn = each(partial(draw, width=width))
        tallies[width] = mc.tally(f"arriving {width}", drawn, networks, 10**5, 1, watch)
    z, weights = normal_grid()
    v, k = depth_recursion(1.0 / JACOBIAN_FACTOR, DEPTH - 1)[:, :, None]
    means = moments.gaussian("relu", np.sqrt(k) * z, np.sqrt(v)).mean - C2  # (layers, nodes)
    sizes = abs(means) @ weights / C1
    average = float(sizes.mean())

    def too_large(size: float) -> float:
        """A mean over inputs has an error, of variance 1/inputs or less. It adds to the variance of
        a unit's mean, and so at most this to the size of a normal one."""
        return 1.0 / (math.pi * inputs * size)

    yield beside(
        f"mean |E o| arriving at layers 2 to 9, untrained (in print: {MEAN_INPUTS['normprop']})",
        exact=average,
        measured=limit_of(tallies, "arriving"),
        tolerance=too_large(average),
    )
    for layer, exact in ((2, sizes[0]), (DEPTH, sizes[-1])):
        yield beside(
            f"the same, layer {layer}",
            exact=float(exact),
            measured=limit_of(tallies, f"arriving at {layer}"),
            tolerance=too_large(exact),
        )
    return f"{trained_means()}. Before training {average:.2f} is expected, not 0"


@normprop(
    "G4",
    "beyond 3.3",
    "A deep ReLU network of gamma <= 1 settles at sqrt(E u^2) = 1/(1 + tau).",
    expected="holds",
)
def phase_diagram(mc: Sampler) -> Findings:
    """u are the pre-activations, q = E u^2, and c1 is the standard deviation of ReLU(Z), Z ~ N(0,
    1). The next layer has (gamma/c1)^2 (q/2 - sqrt(q)/pi + 1/(2 pi)): a parabola in sqrt(q). Its
    stable fixed point is sqrt(q) = 1/(1 + tau) with tau^2 = (pi - 1)(1/gamma^2 - 1). At gamma =
    1/1.2112, the inverse Jacobian factor, tau is 1, and q is 1/4."""
    depth, gamma = 30, 1.0 / JACOBIAN_FACTOR
    tallies = {
        32: layer_by_layer(mc, 32, depth, networks=70, gamma=gamma),
        128: layer_by_layer(mc, 128, depth, networks=50, gamma=gamma),
    }
    at_end = limit_without_luck(tallies, f"E u^2 {depth}")
    yield beside(f"E u^2, layer {depth}", exact=0.25, measured=at_end)
    for gamma in (1.0 / JACOBIAN_FACTOR, 0.95, 0.9, 0.7):
        settled = float(depth_recursion(gamma, 100)[:, -1].sum())
        yield claimed(f"E u^2, layer 100, gamma = {gamma:.4g}", fixed_point(gamma), exact=settled)
    return "1/4 at the Jacobian factor, and what iterating the recursion gives"
