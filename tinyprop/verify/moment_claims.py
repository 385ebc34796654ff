"""Claims on the moments of activations: Remarks 1 and 2, other activations, what ReLU does to correlations."""

import math
from collections.abc import Callable

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.tensor import tensor
from ..nn import NormPropLinear
from ..nn.layers import ACTIVATIONS
from .claim import Case, Evidence, claims_of, evidence
from .closed_forms import C1, C2, PAPER_GAMMA, correlation_after_relu, normal_grid
from .monte_carlo import Draw, Estimate, Sampler, Tally
from .networks import gaussian, layer_with, rows_at_cosine

claim = claims_of("moments")

NFNETS = {  # 1/c1 as sampled by Brock et al. (2021)
    "relu": 1.7139588594436646, "leaky_relu": 1.70590341091156, "elu": 1.2716004848480225,
    "selu": 1.0008515119552612, "gelu": 1.7015043497085571, "silu": 1.7881293296813965,
    "sigmoid": 4.803835391998291, "softplus": 1.9203323125839233, "tanh": 1.5939117670059204,
}  # fmt: skip


def relu_tally(mc: Sampler, watch: Callable[[Tally], Estimate]) -> Tally:
    return mc.tally("relu", lambda random, n: F.relu(gaussian(random, n)).data, samples=4_000_000, watch=watch)


@claim("C01", "3.2, Remark 1", "max(0, X) of a standard normal X has mean 1/sqrt(2 pi).")
def relu_mean(mc: Sampler) -> Evidence:
    """Half of the mass is at 0, the other half is |X|: E max(0, X) = E|X| / 2 = sqrt(2/pi) / 2."""
    exact = moments.gaussian("relu").mean
    case = Case("E max(0, X)", 1.0 / math.sqrt(2.0 * math.pi), exact, relu_tally(mc, Tally.mean).mean())
    return evidence("half of the mean of |X|", case)


@claim("C02", "3.2, Remark 1", "max(0, X) of a standard normal X has variance (1 - 1/pi)/2.")
def relu_variance(mc: Sampler) -> Evidence:
    """E max(0, X)^2 = E X^2 / 2 = 1/2; less the squared mean 1/(2 pi)."""
    exact = moments.gaussian("relu").std ** 2
    case = Case("Var max(0, X)", (1.0 - 1.0 / math.pi) / 2.0, exact, relu_tally(mc, Tally.variance).variance())
    return evidence("1/2 less the squared mean", case)


def prelu_tally(mc: Sampler, a: float, watch: Callable[[Tally], Estimate]) -> Tally:
    return mc.tally(f"prelu {a}", lambda random, n: F.prelu(gaussian(random, n), a).data, 1_000_000, watch=watch)


@claim("C03", "4.6, Remark 2", "PReLU_a(X) has mean (1 - a)/sqrt(2 pi).")
def prelu_mean(mc: Sampler) -> Evidence:
    """The negative half contributes -a E|X| / 2, for any real a; the proof's sign(a) is not needed."""
    cases = [
        Case(
            f"mean at a = {a:g}",
            (1.0 - a) / math.sqrt(2.0 * math.pi),
            moments.gaussian("prelu", a=a).mean,
            prelu_tally(mc, a, Tally.mean).mean(),
        )
        for a in (-2.0, 0.25, 3.0)
    ]
    return evidence("for every real a, also below 0 and above 1", *cases)


@claim("C04", "4.6, Remark 2", "PReLU_a(X) has variance ((1 + a^2) - (1 - a)^2/pi)/2.")
def prelu_variance(mc: Sampler) -> Evidence:
    """E PReLU^2 = (1 + a^2)/2, less the squared mean (1 - a)^2/(2 pi)."""
    cases = [
        Case(
            f"variance at a = {a:g}",
            ((1.0 + a * a) - (1.0 - a) ** 2 / math.pi) / 2.0,
            moments.gaussian("prelu", a=a).std ** 2,
            prelu_tally(mc, a, Tally.variance).variance(),
        )
        for a in (-2.0, -1.0, 0.25, 3.0)
    ]
    return evidence("for every real a", *cases)


@claim("C45", "Appendix A", "|X| of a standard normal X has mean sqrt(2/pi) and variance 1 - 2/pi.")
def half_normal(mc: Sampler) -> Evidence:
    """2 times the integral of x phi(x) over x > 0 is 2 phi(0) = sqrt(2/pi); and E X^2 = 1."""
    exact = moments.gaussian("abs")
    tally = mc.tally("abs", lambda random, count: F.abs(gaussian(random, count)).data, samples=1_000_000)
    return evidence(
        "the half-normal facts that both remarks rest on",
        Case("E |X|", math.sqrt(2.0 / math.pi), exact.mean, tally.mean()),
        Case("Var |X|", 1.0 - 2.0 / math.pi, exact.std**2, tally.variance()),
    )


@claim("C22", "3.2", "If the pre-activations are roughly uncorrelated, so are the outputs of ReLU.")
def correlations_shrink(mc: Sampler) -> Evidence:
    """Cov(ReLU X, ReLU Y) = k(rho) - 1/(2 pi) with the arc-cosine kernel k of degree 1. Over c1^2 this is R(rho).
    R(0) = 0, R'(0) = 1/(4 c1^2) = 0.733 and R is convex: so |R(rho)| < |rho| for 0 < |rho| < 1.
    """
    cases = []
    for rho in (0.5, 0.1, 0.9, -0.9):
        layer = layer_with(rows_at_cosine(rho), gamma=1.0)
        exact = correlation_after_relu(rho)

        def draw(random: np.random.Generator, count: int, layer: NormPropLinear = layer) -> object:
            out = layer(gaussian(random, count, 2)).data
            return out[:, 0] * out[:, 1]

        estimate = mc.tally(f"correlation {rho}", draw, samples=400_000).mean()
        towards_0 = "at most" if rho > 0 else "at least"
        cases.append(Case(f"correlation after ReLU of {rho:g}", rho, exact, estimate, towards_0, scale=1.0))
    slope = 1.0 / (4.0 * C1 * C1)
    return evidence(f"small correlations shrink by {slope:.3f} with each layer", *cases)


@claim("C30", "4.6", "(s(u) - c2)/c1 normalises the output of any activation s.")
def any_activation(mc: Sampler) -> Evidence:
    """c2 and c1 are the mean and the standard deviation of s(u) for u ~ N(0, 1), whatever s is. With gamma or beta away
    from 1 and 0, u is no longer N(0, 1), and the constants no longer fit: see G1.
    """
    z, weights = normal_grid()
    cases = []
    for name in sorted(ACTIVATIONS, key=lambda name: name != "tanh"):
        layer = layer_with([[1.0]], activation=name, gamma=1.0)
        tally = mc.tally(f"layer {name}", unit_output(layer), samples=200_000, watch=Tally.variance)
        out = _in_float64(layer, z)
        cases.append(Case(f"Var o, {name}", 1.0, float(weights @ out**2), tally.variance()))
        cases.append(Case(f"E o, {name}", 0.0, float(weights @ out), tally.mean()))
    shrunk = float(weights @ _in_float64(layer_with([[1.0]], gamma=PAPER_GAMMA), z) ** 2)
    aside = Case("E o^2, ReLU at gamma = 1/1.21", 1.0, shrunk, judged=False)
    return evidence(f"at gamma = 1, beta = 0 only: ReLU at 1/1.21 has E o^2 = {shrunk:.3f}", *cases, aside)


def unit_output(layer: NormPropLinear) -> Draw:
    """Draws the output of a layer of one unit and one standard normal input."""
    return lambda random, count: layer(gaussian(random, count, 1)).data[:, 0]


def _in_float64(layer: NormPropLinear, z: np.ndarray) -> np.ndarray:
    return layer.to(dtype="float64")(tensor(z[:, None])).numpy()[:, 0]


@claim("C31", "4.6", "For other activations, c1 and c2 can be had by simulation.")
def by_simulation(mc: Sampler) -> Evidence:
    """A mean of N samples has the standard error c1/sqrt(N): a simulation is right, and slow. With 10,000 samples it is
    0.006 for ReLU, with 24 quadrature nodes on a few panels it is rounding. NFNets ship the sampled 1/c1 = 1.71396.
    """
    exact = moments.gaussian("tanh")
    tally = mc.tally("tanh", lambda random, count: F.tanh(gaussian(random, count)).data, 1_000_000, watch=Tally.std)
    off = NFNETS["relu"] * C1 - 1.0
    return evidence(
        f"to c1/sqrt(N); quadrature is exact. NFNets' sampled 1/c1 of ReLU is {off:.3%} off",
        Case("c1 of tanh", exact.std, exact.std, tally.std()),
        Case("c2 of tanh", exact.mean, exact.mean, tally.mean()),
        Case("1/c1 of ReLU, from NFNets", NFNETS["relu"], 1.0 / C1, judged=False),
    )


def unit_variance(random: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """Samples of variance 1 that are not Gaussian."""
    if kind == "uniform":
        return random.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape)
    if kind == "rademacher":
        return random.choice([-1.0, 1.0], shape)
    return random.laplace(0.0, math.sqrt(0.5), shape)


ONE_HOT = {"uniform": math.sqrt(3.0) / 4.0, "rademacher": 0.5, "laplace": math.sqrt(0.5) / 2.0}
EXCESS = {"uniform": -1.2, "laplace": 3.0}  # excess kurtosis


@claim("C37", "3.1", "Data and pre-activations are Gaussian, so ReLU's mean is 1/sqrt(2 pi).")
def not_gaussian(mc: Sampler) -> Evidence:
    """A filter that looks at one pixel passes that pixel's law on: E max(0, x) = E|x|/2. A dense filter of n
    weights sums it away: to leading order E = c2 (1 - kurtosis / (8 (n + 2))), the central limit theorem at work.
    """
    inputs, cases = 27, []
    for kind, exact in ONE_HOT.items():
        layer = layer_with([[1.0]], gamma=1.0)

        def one(random: np.random.Generator, count: int, kind: str = kind, f: NormPropLinear = layer) -> object:
            x = tensor(unit_variance(random, kind, count, 1).astype(np.float32))
            return C1 * f(x).data[:, 0] + C2

        estimate = mc.tally(f"one-hot {kind}", one, samples=400_000).mean()
        cases.append(Case(f"one pixel, {kind}", C2, exact, estimate, judged=kind != "rademacher"))
    for kind, kurtosis in EXCESS.items():

        def dense(random: np.random.Generator, count: int, kind: str = kind) -> object:
            layer = layer_with(random.standard_normal((64, inputs)), gamma=1.0)
            x = tensor(unit_variance(random, kind, count, inputs).astype(np.float32))
            return C1 * layer(x).data.mean(axis=1) + C2

        tally = mc.tally(f"dense {kind}", dense, samples=40_000, block=64)
        exact = C2 * (1.0 - kurtosis / (8.0 * (inputs + 2.0)))
        cases.append(Case(f"{inputs} pixels, {kind}", C2, exact, tally.mean(), finite_size=0.005))
    one, many = ((case.exact or 0.0) / C2 - 1.0 for case in (cases[0], cases[3]))
    return evidence(f"{one:.1%} off for a filter of one uniform pixel, {many:.1%} for one of {inputs}", *cases)
