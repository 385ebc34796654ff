"""Claims on the moments of activations: Remarks 1 and 2, other activations, what ReLU does to
correlations.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn."""

import math
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import Tensor, grad, moments, tensor
from .. import functional as F
from ..engine.arrays import HostArray
from ..functional.activation import activations
from ..nn import NormPropLinear
from ..report.estimate import Estimate
from .case import as_derived, at_least, at_most, beside, claimed
from .closed_forms import (
    C1,
    C2,
    CHI,
    PAPER_GAMMA,
    correlation_after,
    hermite_degree,
    normal_grid,
)
from .ledger import Findings, claim
from .monte_carlo import Draw, Sampler, Tally
from .networks import gaussian, jacobian_rows, layer_with, one_unit, two_units

normprop = partial(claim, family="normprop")


@normprop(
    "C01",
    "3.2, Remark 1",
    "max(0, X) of a standard normal X has mean 1/sqrt(2 pi).",
    expected="holds",
)
def relu_mean(mc: Sampler) -> Findings:
    """Half of the mass is at 0, the other half is |X|: E max(0, X) = E|X| / 2 = sqrt(2/pi) / 2."""

    def draw(random: Generator, count: int) -> Tensor:
        return F.relu(gaussian(random, count))

    found = mc.tally("relu", draw, samples=4_000_000)
    yield claimed(
        "E max(0, X)",
        1.0 / math.sqrt(2.0 * math.pi),
        exact=moments.gaussian("relu").mean,
        measured=found.mean(),
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

    def draw(random: Generator, count: int) -> Tensor:
        return F.relu(gaussian(random, count))

    found = mc.tally("variance of relu", draw, samples=4_000_000, watch=Tally.variance)
    yield claimed(
        "Var max(0, X)",
        (1.0 - 1.0 / math.pi) / 2.0,
        exact=moments.gaussian("relu").std ** 2,
        measured=found.variance(),
    )
    return "1/2 minus the squared mean"


def prelu_of_normals(a: float) -> Draw:
    """Draws PReLU_a(X) for a standard normal X."""
    return lambda random, count: F.prelu(gaussian(random, count), a)


@normprop("C03", "4.6, Remark 2", "PReLU_a(X) has mean (1 - a)/sqrt(2 pi).", expected="holds")
def prelu_mean(mc: Sampler) -> Findings:
    """PReLU_a(x) is x for x > 0 and a x elsewhere. The negative half adds -a E|X|/2, for any a."""
    for a in (-2.0, 0.25, 3.0):
        found = mc.tally(f"prelu {a}", prelu_of_normals(a), samples=4_000_000)
        yield claimed(
            f"mean at a = {a:g}",
            (1.0 - a) / math.sqrt(2.0 * math.pi),
            exact=moments.gaussian("prelu", a=a).mean,
            measured=found.mean(),
        )
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
        draw = prelu_of_normals(a)
        name = f"variance of prelu {a}"
        found = mc.tally(name, draw, samples=2_000_000, watch=Tally.variance)
        yield claimed(
            f"variance at a = {a:g}",
            ((1.0 + a * a) - (1.0 - a) ** 2 / math.pi) / 2.0,
            exact=moments.gaussian("prelu", a=a).std ** 2,
            measured=found.variance(),
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

    def draw(random: Generator, count: int) -> Tensor:
        return abs(gaussian(random, count))

    exact = moments.gaussian("abs")
    found = mc.tally("abs", draw, samples=2_000_000)
    yield claimed("E |X|", math.sqrt(2.0 / math.pi), exact=exact.mean, measured=found.mean())
    yield claimed("Var |X|", 1.0 - 2.0 / math.pi, exact=exact.std**2, measured=found.variance())
    return "the half-normal facts that both remarks rest on"


def correlation_of_units(mc: Sampler, rho: float, a: float) -> Estimate:
    """The mean product of the outputs of two normalised PReLU units, of mean 0 and variance 1,
    whose pre-activations have correlation rho."""
    layer = two_units(rho, activation="prelu")
    layer.activation_parameters["a"].data[...] = a

    def draw(random: Generator, count: int) -> HostArray:
        out = layer(gaussian(random, count, 2)).numpy()
        return out[:, 0] * out[:, 1]

    return mc.tally(f"correlation {rho} {a}", draw, samples=4_000_000).mean()


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
        yield claimed(
            f"correlation after ReLU of {rho:g}",
            at_most(rho) if rho > 0.0 else at_least(rho),
            exact=correlation_after(rho),
            measured=correlation_of_units(mc, rho, 0.0),
            scale=1.0,
        )
    for a in (0.25, -1.0):
        yield beside(
            f"correlation after PReLU of 0.5, a = {a:g}",
            exact=correlation_after(0.5, a),
            measured=correlation_of_units(mc, 0.5, a),
        )
    slope, step = 1.0 / (4.0 * C1 * C1), 1e-4
    rise = correlation_after(step) - correlation_after(-step)
    yield beside("slope of R at 0", exact=slope, measured=rise / (2.0 * step))
    return f"small correlations shrink by {slope:.3f} with each layer"


def on_grid(layer: NormPropLinear, z: HostArray) -> HostArray:
    """The outputs of a layer of one unit and one input, in float64."""
    return layer.to(dtype="float64")(tensor(z[:, None])).numpy()[:, 0]


@normprop(
    "C30", "4.6", "(s(u) - c2)/c1 normalises the output of any activation s.", expected="holds"
)
def any_activation(mc: Sampler) -> Findings:
    """c2 and c1 are the mean and the standard deviation of s(u), u ~ N(0, 1): what is left has mean
    0 and variance 1. For gamma u + beta they are others: see G1."""
    z, weights = normal_grid()  # for expectations over N(0, 1), to 15 digits
    means = []
    for name in sorted(activations, key=lambda name: name != "tanh"):
        layer = one_unit(activation=name, gamma=1.0)

        def draw(random: Generator, count: int, layer: NormPropLinear = layer) -> Tensor:
            return layer(gaussian(random, count, 1))[:, 0]

        found = mc.tally(f"layer {name}", draw, samples=2_000_000, watch=Tally.variance)
        out = on_grid(layer, z)
        means.append(float(weights @ out))
        exact = float(weights @ out**2)
        yield claimed(f"Var o, {name}", 1.0, exact=exact, measured=found.variance())
    yield claimed(
        "E o, the farthest from 0 of all activations", 0.0, exact=0.0, measured=max(means, key=abs)
    )
    # E (ReLU(gamma Z) - c2)^2 = gamma^2/2 - 2 gamma c2^2 + c2^2
    expected = (PAPER_GAMMA**2 / 2.0 - 2.0 * PAPER_GAMMA * C2**2 + C2**2) / C1**2
    shrunk = float(weights @ on_grid(one_unit(gamma=PAPER_GAMMA), z) ** 2)
    yield beside("E o^2, ReLU at gamma = 1/1.21", exact=expected, measured=shrunk)
    return f"at gamma = 1, beta = 0 only: ReLU at 1/1.21 has E o^2 = {shrunk:.3f}"


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


@normprop(
    "C31",
    "4.6",
    "For other activations, c1 and c2 can be had by simulation.",
    expected="holds",
)
def by_simulation(mc: Sampler) -> Findings:
    """c2 and c1 are the mean and the standard deviation of s(Z) for the activation s and Z ~ N(0,
    1). A mean of N samples has the standard error c1/sqrt(N), so a simulation finds them, slowly:
    with 10,000 samples the error is 0.006 for ReLU, while 24 quadrature nodes on a few panels are
    exact but for rounding. NFNets ship the sampled 1/c1 = 1.71396."""

    def draw(random: Generator, count: int) -> Tensor:
        return F.tanh(gaussian(random, count))

    exact = moments.gaussian("tanh")
    found = mc.tally("tanh", draw, samples=1_000_000, watch=Tally.std)
    yield claimed("c1 of tanh", as_derived, exact=exact.std, measured=found.std())
    yield claimed("c2 of tanh", as_derived, exact=exact.mean, measured=found.mean())
    n = max(1000, mc.samples or 1_000_000)
    relu = moments.simulate("relu", samples=n, seed=mc.seed)
    yield claimed(
        "c1 of ReLU by tp.moments.simulate",
        as_derived,
        exact=C1,
        measured=Estimate.from_error(relu.std, relu.std_error, n),
    )
    yield claimed(
        "c2 of ReLU by tp.moments.simulate",
        as_derived,
        exact=C2,
        measured=Estimate.from_error(relu.mean, relu.mean_error, n),
    )
    off = NFNETS["relu"] * C1 - 1.0
    return f"to c1/sqrt(N); quadrature is exact. NFNets' sampled 1/c1 of ReLU is {off:.3%} off"


PIXELS = {  # of variance 1: E max(0, x) of one, and the cumulants of order 4 and 6
    "uniform": (math.sqrt(3.0) / 4.0, -1.2, 48.0 / 7.0),
    "rademacher": (0.5, -2.0, 16.0),
    "laplace": (math.sqrt(0.5) / 2.0, 3.0, 30.0),
}


def pixels(random: Generator, kind: str, *shape: int) -> Tensor:
    if kind == "uniform":
        values = random.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape)
    elif kind == "rademacher":
        values = random.choice([-1.0, 1.0], shape)
    else:
        values = random.laplace(0.0, math.sqrt(0.5), shape)
    return tensor(values.astype(np.float32))


def edgeworth(n: int, k4: float, k6: float) -> float:
    """E max(0, u) of u, n pixels of these cumulants weighted by a random direction."""
    first = k4 / (8.0 * (n + 2.0))
    second = k6 / (16.0 * (n + 2.0) * (n + 4.0))
    square = 5.0 * k4**2 * (9.0 * n + 96.0) / (384.0 * (n + 2.0) * (n + 4.0) * (n + 6.0))
    return C2 * (1.0 - first + second - square)


@normprop(
    "C37",
    "3.1",
    "Data and pre-activations are Gaussian, so ReLU's mean is 1/sqrt(2 pi).",
    expected="approximate",
)
def not_gaussian(mc: Sampler) -> Findings:
    """A filter of a single weight passes on the distribution of its pixel x: E max(0, x) = E|x|/2.
    A filter of n weights in a random direction averages it out. With c2 = 1/sqrt(2 pi), and k4 and
    k6 the cumulants of a pixel, Edgeworth's expansion is c2 (1 - k4/(8 (n + 2)) + k6/(16 (n + 2)(n
    + 4)) - 5 k4^2 (9n + 96)/(384 (n + 2)(n + 4)(n + 6))) + O(1/n^3)."""
    n = 27
    unit = one_unit(gamma=1.0)

    def one_pixel(random: Generator, count: int, kind: str) -> HostArray:
        return C1 * unit(pixels(random, kind, count, 1)).numpy()[:, 0] + C2

    def many_pixels(random: Generator, count: int, kind: str) -> HostArray:
        """Averaged over 64 filters, and over x and -x. The length of x scatters most: what it adds,
        which is 0 on average, is subtracted."""
        layer = layer_with(random.standard_normal((64, n)), gamma=1.0)
        x = pixels(random, kind, count, n)
        both = (layer(x).numpy() + layer(-x).numpy()) / 2.0
        length = (x.numpy() ** 2).mean(axis=1) - 1.0
        return C1 * both.mean(axis=1) + C2 - C2 / 2.0 * length

    for kind, (exact, _, _) in PIXELS.items():
        draw = partial(one_pixel, kind=kind)
        found = mc.tally(f"one pixel {kind}", draw, samples=1_000_000).mean()
        what = f"one pixel, {kind}"
        if kind == "rademacher":  # no filter of an image sees a single pixel of two values
            yield beside(what, exact=exact, measured=found)
        else:
            yield claimed(what, C2, exact=exact, measured=found)
    means = {}
    for kind, (_, k4, k6) in PIXELS.items():
        means[kind] = edgeworth(n, k4, k6)
        draw = partial(many_pixels, kind=kind)
        found = mc.tally(f"dense {kind}", draw, samples=40_000, block=64).mean()
        yield claimed(
            f"{n} pixels, {kind}",
            C2,
            exact=means[kind],
            measured=found,
            tolerance=0.001 * C2,  # the next order of the expansion
        )
    one = PIXELS["uniform"][0] / C2 - 1.0
    many = means["uniform"] / C2 - 1.0
    return f"{one:.1%} off for a filter of one uniform pixel, {many:.1%} for one of {n}"


def exact_unit(activation: str, gamma: float, beta: float) -> NormPropLinear:
    """A layer of one unit that normalises exactly: by the moments of N(beta, gamma^2)."""
    return one_unit(beta=beta, activation=activation, gamma=gamma, mode="exact")


def gain(mc: Sampler, name: str, layer: NormPropLinear) -> Estimate:
    """The mean square of the slope of a layer of one unit and one input, by the engine's backward
    pass."""

    def draw(random: Generator, count: int) -> HostArray:
        (slopes,) = jacobian_rows(layer, gaussian(random, count, 1), [0])
        return slopes.numpy()[:, 0] ** 2

    return mc.tally(name, draw, samples=1_000_000).mean()


@normprop(
    "G1",
    "beyond 4.6",
    "With c1 and c2 of N(beta, gamma^2), the output is normalised for every gamma and beta.",
    expected="holds",
)
def exact_normprop(mc: Sampler) -> Findings:
    """If u is N(0, 1), then gamma u + beta is N(beta, gamma^2). Take the mean c2 and the standard
    deviation c1 of the activation there, and differentiate them, too. ReLU's output o depends on
    beta/gamma only: gamma do/dgamma + beta do/dbeta = 0."""
    settings = (
        ("relu", 0.7, 0.5),
        ("relu", 1.5, -0.5),
        ("tanh", 2.0, 1.0),
        ("gelu", 0.5, -1.0),
    )
    for activation, gamma, beta in settings:
        name = f"{activation}, gamma {gamma:g}, beta {beta:g}"
        layer = exact_unit(activation, gamma, beta)

        def draw(random: Generator, count: int, layer: NormPropLinear = layer) -> Tensor:
            return layer(gaussian(random, count, 1))[:, 0]

        found = mc.tally(f"exact {name}", draw, samples=2_000_000, watch=Tally.variance)
        z, weights = normal_grid((-beta / gamma,))
        out = on_grid(layer, z)
        yield claimed(
            f"Var o, {name}", 1.0, exact=float(weights @ out**2), measured=found.variance()
        )
        yield claimed(f"E o, {name}", 0.0, exact=float(weights @ out), measured=found.mean())
    unit = exact_unit("relu", 0.7, 0.5).to(dtype="float64")
    total = unit(tensor(np.array([[0.3], [1.2]]))).sum()
    of_gamma, of_beta = grad(total, [unit.gamma, unit.beta])
    turned = (unit.gamma * of_gamma + unit.beta * of_beta).item()
    yield claimed("gamma do/dgamma + beta do/dbeta, ReLU", 0.0, exact=0.0, measured=turned)
    return "mean 0 and variance 1 at any gamma and beta; for ReLU only beta/gamma matters"


@normprop(
    "G3",
    "beyond 3.4",
    "No free lunch: a normalised nonlinear output has a mean-square gain above 1.",
    expected="holds",
)
def no_free_lunch(mc: Sampler) -> Findings:
    """Expand the output o in normalised Hermite polynomials of degree k, with coefficients a_k: Var
    o is the sum of a_k^2 over k >= 1, and E o'^2 that of k a_k^2. So the gain E o'^2/Var o is the
    mean Hermite degree: at least 1, and 1 only for a line (the Gaussian Poincare inequality; o has
    no jumps). No gamma, beta, c1 and c2 keep the scale both ways."""
    for name, function in {"tanh": np.tanh, "sin": np.sin}.items():
        yield claimed(
            f"gain of {name}, and its mean Hermite degree",
            hermite_degree(function),
            exact=moments.gaussian(name).jacobian_factor ** 2,
            measured=gain(mc, f"gain of {name}", one_unit(activation=name, gamma=1.0)),
        )
    random = np.random.default_rng(mc.seed)
    gamma, beta = np.exp(random.normal(size=50)), random.normal(size=50)
    gains = [moments.gaussian(name, beta, gamma).jacobian_factor ** 2 for name in activations]
    least = float(np.min(gains))
    yield claimed("least gain of all activations", at_least(1.0), exact=least)
    yield claimed(
        "gain of sin, and coth 1",
        1.0 / math.tanh(1.0),
        exact=moments.gaussian("sin").jacobian_factor ** 2,
    )
    tanh = moments.gaussian("tanh").jacobian_factor ** 2
    return f"{tanh:.3f} for tanh, {CHI:.3f} for ReLU, 1 only for a line"
