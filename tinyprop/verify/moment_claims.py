"""Claims on the moments of activations: Remarks 1 and 2, other activations, what ReLU does to
correlations."""

import math
from functools import partial

import numpy as np

from .. import Tensor, grad, moments, tensor
from .. import functional as F
from ..engine.arrays import Array, HostArray
from ..functional.activation import activations
from ..nn import ELU, LeakyReLU, NormPropLinear
from ..report.estimate import Estimate
from .case import Case, all_ones, is_zero, shown
from .closed_forms import (
    C1,
    C2,
    CHI,
    PAPER_GAMMA,
    correlation_after,
    hermite_degree,
    normal_cdf,
    normal_grid,
)
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, Watch
from .networks import difference_ratio, first_unit, gaussian, jacobian_rows, layer_with, two_units

normprop = partial(claim, family="normprop")

ELU_TAIL = math.exp(0.5) * normal_cdf(-1.0)  # E exp(Z) over Z < 0
ELU_SLOPE = 0.5 + math.exp(2.0) * normal_cdf(-2.0)  # E ELU'(Z)^2
# mean, std
SETTINGS = ((0.0, 1.0), (0.7, 1.0), (-1.0, 0.3), (-2.0, 2.0), (0.4, 0.05), (-5.0, 1.0), (3.0, 0.5))
KINKS = {"kinks": (-1.0, 0.0, 1.0)}

NFNETS = {  # 1/c1 as sampled by Brock et al. (2021)
    "relu": 1.7139588594436646,
    "leaky_relu": 1.70590341091156,
    "elu": 1.2716004848480225,
    "selu": 1.0008515119552612,
    "gelu": 1.7015043497085571,
    "silu": 1.7881293296813965,
    "sigmoid": 4.803835391998291,
    "softplus": 1.9203323125839233,
    "tanh": 1.5939117670059204,
}


def output_tally(
    mc: Sampler, name: str, watch: Watch, *a: float, samples: int = 1_000_000
) -> Tally:
    """The outputs of an activation, with slope a if it is PReLU, for standard normal inputs."""
    s, key = getattr(F, name), " ".join([name, *map(str, a)])
    return mc.tally(key, lambda random, n: s(gaussian(random, n), *a).data, samples, watch=watch)


@normprop(
    "C01",
    "3.2, Remark 1",
    "max(0, X) of a standard normal X has mean 1/sqrt(2 pi).",
    expected="holds",
)
def relu_mean(mc: Sampler) -> Findings:
    """Half of the mass is at 0, the other half is |X|: E max(0, X) = E|X| / 2 = sqrt(2/pi) / 2."""
    estimate = output_tally(mc, "relu", Tally.mean, samples=4_000_000).mean()
    yield Case(
        "E max(0, X)", 1.0 / math.sqrt(2.0 * math.pi), moments.gaussian("relu").mean, estimate
    )
    return "half of the mean of |X|"


@normprop(
    "C02",
    "3.2, Remark 1",
    "max(0, X) of a standard normal X has variance (1 - 1/pi)/2.",
    expected="holds",
)
def relu_variance(mc: Sampler) -> Findings:
    """E max(0, X)^2 = E X^2 / 2 = 1/2, minus the squared mean, 1/(2 pi)."""
    estimate = output_tally(mc, "relu", Tally.variance, samples=4_000_000).variance()
    yield Case(
        "Var max(0, X)", (1.0 - 1.0 / math.pi) / 2.0, moments.gaussian("relu").std ** 2, estimate
    )
    return "1/2 minus the squared mean"


@normprop("C03", "4.6, Remark 2", "PReLU_a(X) has mean (1 - a)/sqrt(2 pi).", expected="holds")
def prelu_mean(mc: Sampler) -> Findings:
    """PReLU_a(x) is x for x > 0 and a x elsewhere. The negative half adds -a E|X|/2, for any a."""
    for a in (-2.0, 0.25, 3.0):
        estimate, exact = (
            output_tally(mc, "prelu", Tally.mean, a).mean(),
            moments.gaussian("prelu", a=a).mean,
        )
        yield Case(f"mean at a = {a:g}", (1.0 - a) / math.sqrt(2.0 * math.pi), exact, estimate)
    return "for every real a, also below 0 and above 1"


@normprop(
    "C04",
    "4.6, Remark 2",
    "PReLU_a(X) has variance ((1 + a^2) - (1 - a)^2/pi)/2.",
    expected="holds",
)
def prelu_variance(mc: Sampler) -> Findings:
    """PReLU_a(x) is x for x > 0 and a x elsewhere, so its mean square is (1 + a^2)/2: minus the
    squared mean of C03."""
    for a in (-2.0, -1.0, 0.25, 3.0):
        tally, exact = (
            output_tally(mc, "prelu", Tally.variance, a),
            moments.gaussian("prelu", a=a).std ** 2,
        )
        yield Case(
            f"variance at a = {a:g}",
            ((1.0 + a * a) - (1.0 - a) ** 2 / math.pi) / 2.0,
            exact,
            tally.variance(),
        )
    return "for every real a"


@normprop(
    "C45",
    "Appendix A",
    "|X| of a standard normal X has mean sqrt(2/pi) and variance 1 - 2/pi.",
    expected="holds",
)
def half_normal(mc: Sampler) -> Findings:
    """With phi the density of N(0, 1), E|X| = 2 times the integral of x phi(x) over x > 0 = 2
    phi(0); and E X^2 = 1."""
    exact = moments.gaussian("abs")
    tally = output_tally(mc, "abs", Tally.mean)
    yield Case("E |X|", math.sqrt(2.0 / math.pi), exact.mean, tally.mean())
    yield Case("Var |X|", 1.0 - 2.0 / math.pi, exact.std**2, tally.variance())
    return "the half-normal facts that both remarks rest on"


@normprop(
    "C22",
    "3.2",
    "If the pre-activations are roughly uncorrelated, so are the outputs of ReLU.",
    expected="holds",
)
def correlations_shrink(mc: Sampler) -> Findings:
    """For standard normal X, Y of correlation rho, Cov(ReLU X, ReLU Y) = k(rho) - 1/(2 pi), where k
    is the arc-cosine kernel of degree 1, E[ReLU X ReLU Y]. Divided by c1^2, the variance of ReLU X,
    this is R(rho), the correlation of the outputs. R(0) = 0, R'(0) = 1/(4 c1^2) = 0.733 and R is
    convex: so |R(rho)| < |rho| for 0 < |rho| < 1."""
    for rho in (0.5, 0.1, 0.9, -0.9):
        what, towards_0 = f"correlation after ReLU of {rho:g}", "at most" if rho > 0 else "at least"
        yield Case(
            what,
            rho,
            correlation_after(rho),
            product_tally(mc, rho, 0.0).mean(),
            towards_0,
            scale=1.0,
        )
    for a in (0.25, -1.0):
        what, exact = f"correlation after PReLU of 0.5, a = {a:g}", correlation_after(0.5, a)
        yield shown(what, exact, product_tally(mc, 0.5, a).mean())
    slope, step = 1.0 / (4.0 * C1 * C1), 1e-4
    yield shown(
        "slope of R at 0",
        slope,
        (correlation_after(step) - correlation_after(-step)) / (2.0 * step),
    )
    return f"small correlations shrink by {slope:.3f} with each layer"


def product_tally(mc: Sampler, rho: float, a: float) -> Tally:
    """Products of the outputs of two normalised PReLU units, whose pre-activations have correlation
    rho."""
    layer = two_units(rho, activation="prelu")
    layer.activation_parameters["a"].data[...] = a
    return mc.tally(
        f"correlation {rho} {a}",
        lambda random, n: layer(gaussian(random, n, 2)).data.prod(1),
        200_000,
    )


def with_slopes(layer: NormPropLinear, z: HostArray) -> tuple[HostArray, HostArray]:
    """The outputs of a layer of one unit and one input in float64, and the engine's slopes
    there."""
    x = tensor(z[:, None], requires_grad=True)
    out = layer.to(dtype="float64")(x)
    return out.numpy()[:, 0], grad(out.sum(), x)[0].numpy()[:, 0]


CLOSED = {  # c1^2 and E s'^2 of some activations s
    "hardtanh": (
        1.0 - 2.0 * math.exp(-0.5) / math.sqrt(2.0 * math.pi),
        2.0 * normal_cdf(1.0) - 1.0,
    ),
    "sin": ((1.0 - math.exp(-2.0)) / 2.0, (1.0 + math.exp(-2.0)) / 2.0),
    "erf": (2.0 / math.pi * math.asin(2.0 / 3.0), 4.0 / (math.pi * math.sqrt(5.0))),
    "gelu": (
        1 / 3 + (2.0 / math.sqrt(3.0) - 1.0) / (4.0 * math.pi),
        1 / 3 + 2.0 / (3.0 * math.sqrt(3.0) * math.pi),
    ),
    "elu": (ELU_SLOPE - 2.0 * ELU_TAIL + 0.5 - (C2 + ELU_TAIL - 0.5) ** 2, ELU_SLOPE),
}


@normprop(
    "C30", "4.6", "(s(u) - c2)/c1 normalises the output of any activation s.", expected="holds"
)
def any_activation(mc: Sampler) -> Findings:
    """c2 and c1 are the mean and standard deviation of s(u), u ~ N(0, 1). They do not fit gamma u +
    beta: see G1."""
    z, weights = normal_grid()
    means, gains, slopes, random = [], [], [], np.random.default_rng(mc.seed)
    for name in sorted(activations, key=lambda name: name != "tanh"):
        layer = layer_with([[1.0]], activation=name, gamma=1.0)
        tally = mc.tally(f"layer {name}", first_unit(layer), samples=100_000, watch=Tally.variance)
        out, slope = with_slopes(layer, z)
        yield Case(f"Var o, {name}", 1.0, float(weights @ out**2), tally.variance())
        means.append(float(weights @ out))
        gains.append(float(weights @ slope**2) / layer.standard.jacobian_factor**2)
        u = tensor(random.standard_normal((50, 1)), requires_grad=True)
        slopes.append(difference_ratio(partial(layer.activate, u), [u], random))
    found = {name: moments.gaussian(name) for name in CLOSED}
    closed = [
        x
        for name, (c, d) in CLOSED.items()
        for x in (found[name].std ** 2 / c, found[name].slope2 / d)
    ]
    shrunk = float(weights @ with_slopes(layer_with([[1.0]], gamma=PAPER_GAMMA), z)[0] ** 2)
    # E (ReLU(gamma Z) - c2)^2 = gamma^2/2 - 2 gamma c2^2 + c2^2
    expected = (PAPER_GAMMA**2 / 2.0 - 2.0 * PAPER_GAMMA * C2**2 + C2**2) / C1**2
    yield is_zero("E o, the farthest from 0 of all activations", max(means, key=abs))
    yield all_ones("E o'^2 / squared Jacobian factor", gains)
    yield all_ones("slope of s / difference quotient", slopes, tolerance=1e-5)
    yield all_ones(f"c1^2, E s'^2 of {', '.join(CLOSED)} / closed form", closed)
    yield shown("E o^2, ReLU at gamma = 1/1.21", expected, shrunk)
    yield shown("nn.LeakyReLU() of -1", -0.01, LeakyReLU()(tensor(-1.0)).item())
    yield shown("nn.ELU() of -1", math.exp(-1.0) - 1.0, ELU()(tensor(-1.0)).item())
    return f"at gamma = 1, beta = 0 only: ReLU at 1/1.21 has E o^2 = {shrunk:.3f}"


@normprop(
    "C31", "4.6", "For other activations, c1 and c2 can be had by simulation.", expected="holds"
)
def by_simulation(mc: Sampler) -> Findings:
    """c2 and c1 are the mean and the standard deviation of s(Z) for the activation s and Z ~ N(0,
    1). A mean of N samples has the standard error c1/sqrt(N): a simulation is right, and slow. With
    10,000 samples the error is 0.006 for ReLU, with 24 quadrature nodes on a few panels it is
    rounding. NFNets ship the sampled 1/c1 = 1.71396."""
    exact = moments.gaussian("tanh")
    tally = output_tally(mc, "tanh", Tally.std, samples=400_000)
    n = max(1000, mc.samples or 200_000)
    found = moments.simulate("relu", samples=n, seed=mc.seed)
    fourth = 1.5 - 5.0 * C2**2 - 3.0 * C2**4  # E (ReLU(Z) - c2)^4
    scatter = math.sqrt(fourth - C1**4) / (2.0 * C1)
    by_value, settings = [], [tensor(np.array(column)) for column in zip(*SETTINGS, strict=True)]
    for name, activation in activations.items():
        if not activation.parameters:
            called = moments.gaussian(activation.function, *settings, **KINKS)
            named = moments.gaussian(name, *settings)
            for field in ("mean", "std", "slope2", "jacobian_factor"):
                a, b = getattr(named, field), getattr(called, field)
                by_value += (1.0 + (b.numpy() - a.numpy()) / (1.0 + abs(a.numpy()))).tolist()
    off = NFNETS["relu"] * C1 - 1.0
    nfnets = [constant * moments.gaussian(name).std for name, constant in NFNETS.items()]
    yield Case("c1 of tanh", exact.std, exact.std, tally.std())
    yield Case("c2 of tanh", exact.mean, exact.mean, tally.mean())
    yield Case(
        "c1 of ReLU by tp.moments.simulate",
        C1,
        C1,
        Estimate.from_error(found.std, found.std_error, n),
    )
    yield Case(
        "c2 of ReLU by tp.moments.simulate",
        C2,
        C2,
        Estimate.from_error(found.mean, found.mean_error, n),
    )
    yield shown(
        "standard error of that c2, times sqrt(N)", C1, found.mean_error * n**0.5, finite_size=0.1
    )
    yield shown(
        "standard error of that c1, times sqrt(N)",
        scatter,
        found.std_error * n**0.5,
        finite_size=0.2,
    )
    yield shown("1/c1 of ReLU, from NFNets", 1.0 / C1, NFNETS["relu"], finite_size=0.001)
    yield all_ones("1/c1 from NFNets, times c1", nfnets, tolerance=0.0015)
    yield all_ones("moments by value / by name, all activations", by_value)
    return f"to c1/sqrt(N); quadrature is exact. NFNets' sampled 1/c1 of ReLU is {off:.3%} off"


PIXELS = {  # of variance 1: E max(0, x) of one, and the cumulants of order 4 and 6
    "uniform": (math.sqrt(3.0) / 4.0, -1.2, 48.0 / 7.0),
    "rademacher": (0.5, -2.0, 16.0),
    "laplace": (math.sqrt(0.5) / 2.0, 3.0, 30.0),
}


def pixels(random: np.random.Generator, kind: str, *shape: int) -> Tensor:
    method, *arguments = {
        "uniform": ("uniform", -math.sqrt(3.0), math.sqrt(3.0)),
        "rademacher": ("choice", [-1.0, 1.0]),
        "laplace": ("laplace", 0.0, math.sqrt(0.5)),
    }[kind]
    return tensor(getattr(random, str(method))(*arguments, shape).astype(np.float32))


@normprop(
    "C37",
    "3.1",
    "Data and pre-activations are Gaussian, so ReLU's mean is 1/sqrt(2 pi).",
    expected="approximate",
)
def not_gaussian(mc: Sampler) -> Findings:
    """A filter of one pixel x passes its law on: E max(0, x) = E|x|/2. A dense filter of n weights
    in a random direction averages it out: with c2 = 1/sqrt(2 pi), and k4 and k6 the cumulants of a
    pixel, Edgeworth's expansion is c2 (1 - k4/(8 (n + 2)) + k6/(16 (n + 2)(n + 4)) - 5 k4^2 (9n +
    96)/(384 (n + 2)(n + 4)(n + 6))) + O(1/n^3)."""
    n, unit, means = 27, layer_with([[1.0]], gamma=1.0), {}

    def one(random: np.random.Generator, count: int, kind: str) -> Array:
        return C1 * unit(pixels(random, kind, count, 1)).data[:, 0] + C2

    def dense(random: np.random.Generator, count: int, kind: str) -> Array:
        layer, x = (
            layer_with(random.standard_normal((64, n)), gamma=1.0),
            pixels(random, kind, count, n),
        )
        outputs = (layer(x).data + layer(-x).data).mean(axis=1) / 2.0
        # the length of x scatters most
        return C1 * outputs + C2 - C2 / 2.0 * ((x.data**2).mean(axis=1) - 1.0)

    for kind, (exact, _, _) in PIXELS.items():
        estimate = mc.tally(f"one-hot {kind}", partial(one, kind=kind), samples=200_000).mean()
        yield Case(f"one pixel, {kind}", C2, exact, estimate, judged=kind != "rademacher")
    for kind, (_, k4, k6) in PIXELS.items():
        tally = mc.tally(f"dense {kind}", partial(dense, kind=kind), samples=40_000, block=64)
        second = k6 / (16.0 * (n + 2.0) * (n + 4.0))
        second -= 5.0 * k4**2 * (9.0 * n + 96.0) / (384.0 * (n + 2.0) * (n + 4.0) * (n + 6.0))
        means[kind] = C2 * (1.0 - k4 / (8.0 * (n + 2.0)) + second)
        yield Case(f"{n} pixels, {kind}", C2, means[kind], tally.mean(), finite_size=0.001)
    off = PIXELS["uniform"][0] / C2 - 1.0, means["uniform"] / C2 - 1.0
    return f"{off[0]:.1%} off for a filter of one uniform pixel, {off[1]:.1%} for one of {n}"


def exact_unit(activation: str, gamma: float, beta: float) -> NormPropLinear:
    return layer_with([[1.0]], beta, activation=activation, gamma=gamma, mode="exact")


def gain(mc: Sampler, name: str, layer: NormPropLinear) -> Estimate:
    """The mean square of the slope of a layer of one unit and one input, by the engine's backward
    pass."""

    def draw(random: np.random.Generator, count: int) -> Array:
        (slopes,) = jacobian_rows(layer, gaussian(random, count, 1), [0])
        return slopes.data[:, 0] ** 2

    return mc.tally(name, draw, samples=200_000).mean()


def _at_settings(activation: str, random: np.random.Generator) -> tuple[list[list[float]], float]:
    """c2, c1, E s'^2 at SETTINGS over their quadrature, and an exact layer's slope over the
    difference quotient."""
    layer = exact_unit(activation, 1.0, 0.3).to(dtype="float64")
    ratios: list[list[float]] = [[], [], []]
    for mean, std in SETTINGS:
        z, weights = normal_grid(tuple((kink - mean) / std for kink in (-1.0, 0.0, 1.0)))
        u = tensor(mean + std * z, requires_grad=True)
        s = layer.activate(u)
        (slope,) = grad(s.sum(), u)
        center = float(weights @ s.numpy())
        direct = (
            center,
            math.sqrt(weights @ (s.numpy() - center) ** 2),
            weights @ slope.numpy() ** 2,
        )
        found = moments.gaussian(activation, mean, std)
        for i, (a, b) in enumerate(zip((found.mean, found.std, found.slope2), direct, strict=True)):
            ratios[i].append(1.0 + (a - b) / (abs(b) + (i == 0)))  # a mean may be 0
    x = tensor(random.standard_normal((40, 1)), requires_grad=True)
    return ratios, difference_ratio(lambda: layer(x), [x, *layer.parameters()], random)


@normprop(
    "G1",
    "beyond 4.6",
    "With c1 and c2 of N(beta, gamma^2), the output is normalised for every gamma and beta.",
    expected="holds",
)
def exact_normprop(mc: Sampler) -> Findings:
    """gamma u + beta is N(beta, gamma^2) if u is N(0, 1): take the activation's mean c2 and
    standard deviation c1 for that, and differentiate them. ReLU's output o depends on beta/gamma
    only: gamma do/dgamma + beta do/dbeta = 0."""
    for activation, gamma, beta in (
        ("relu", 0.7, 0.5),
        ("relu", 1.5, -0.5),
        ("tanh", 2.0, 1.0),
        ("gelu", 0.5, -1.0),
    ):
        name, layer = (
            f"{activation}, gamma {gamma:g}, beta {beta:g}",
            exact_unit(activation, gamma, beta),
        )
        tally = mc.tally(f"exact {name}", first_unit(layer), samples=400_000, watch=Tally.variance)
        z, weights = normal_grid((-beta / gamma,))
        out, _ = with_slopes(layer, z)
        yield Case(f"Var o, {name}", 1.0, float(weights @ out**2), tally.variance())
        yield Case(f"E o, {name}", 0.0, float(weights @ out), tally.mean())
    unit = exact_unit("relu", 0.7, 0.5).to(dtype="float64")
    slopes = grad(unit(tensor(np.array([[0.3], [1.2]]))).sum(), [unit.gamma, unit.beta])
    redundant = sum(
        float((p * slope).item()) for p, slope in zip((unit.gamma, unit.beta), slopes, strict=True)
    )
    yield is_zero("gamma do/dgamma + beta do/dbeta, ReLU", redundant)
    moved, slopes = zip(
        *(_at_settings(name, np.random.default_rng(mc.seed)) for name in activations), strict=True
    )
    for i, what in enumerate(("c2", "c1", "E s'^2")):
        yield all_ones(
            f"{what} / quadrature, all activations", [x for found in moved for x in found[i]]
        )
    yield all_ones("slope of a layer / difference quotient", slopes, tolerance=1e-5)
    least = exact_unit("relu", 2.0, -20.0).constants()[0].item() / (2.0 * C1)
    yield shown("c1 of a unit that is never on / its c1 at beta = 0: the floor", 0.1, least)
    return "mean 0 and variance 1 at any gamma and beta; for ReLU only beta/gamma matters"


@normprop(
    "G3",
    "beyond 3.4",
    "No free lunch: a normalised nonlinear output has a mean-square gain above 1.",
    expected="holds",
)
def no_free_lunch(mc: Sampler) -> Findings:
    """Expand the output o in normalised Hermite polynomials of degree k with coefficients a_k: Var
    o is the sum of a_k^2 over k >= 1, and E o'^2 that of k a_k^2. So the gain E o'^2/Var o is the
    mean Hermite degree: at least 1, and 1 only for a line (Gaussian Poincare inequality; no jumps).
    No gamma, beta, c1, c2 keeps the scale both ways."""
    for name, function in {"tanh": np.tanh, "sin": np.sin}.items():
        estimate = gain(mc, f"gain of {name}", layer_with([[1.0]], activation=name, gamma=1.0))
        degree, exact = hermite_degree(function), moments.gaussian(name).jacobian_factor ** 2
        yield Case(f"gain of {name}, and its mean Hermite degree", degree, exact, estimate)
    random = np.random.default_rng(mc.seed)
    gamma, beta = np.exp(random.normal(size=50)), random.normal(size=50)
    gains = [moments.gaussian(name, beta, gamma).jacobian_factor ** 2 for name in activations]
    yield Case("least gain of all activations", 1.0, float(np.min(gains)), relation="at least")
    yield Case(
        "gain of sin, and coth 1",
        1.0 / math.tanh(1.0),
        moments.gaussian("sin").jacobian_factor ** 2,
    )
    return (
        f"{moments.gaussian('tanh').jacobian_factor ** 2:.3f} for tanh, {CHI:.3f} for ReLU, 1 "
        "only for a line"
    )
