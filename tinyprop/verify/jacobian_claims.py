"""Claims on the Jacobian, section 3.4: its expectation, its singular values, and products over
layers."""

import math
from functools import partial

import numpy as np

from .. import Tensor
from .. import functional as F
from ..engine.arrays import Array, HostArray, to_numpy
from ..functional.activation import activations
from ..nn import NormPropConv2d, NormPropLinear, Sequential
from ..theory import Design
from . import closed_forms
from .case import Case, all_ones, computed, is_zero, shown
from .closed_forms import C1, CHI, JACOBIAN_FACTOR, PAPER_GAMMA, jacobian_kernel, product_moments
from .depth_claims import DEPTH, depth_tally
from .ledger import Findings, claim
from .moment_claims import exact_unit, gain
from .monte_carlo import Sampler, Tally, each
from .networks import (
    gaussian,
    jacobian_rows,
    layer_with,
    random_layer,
    singular_values,
    two_units,
    whole_jacobian,
)
from .paper import JACOBIAN_FACTOR as PRINTED_FACTOR
from .paper import MEAN_SQUARE_GAIN as PRINTED

normprop = partial(claim, family="normprop")

ROUNDING = 0.005  # of 1.47 and of 1.21


def kernel_tally(mc: Sampler, rho: float) -> Tally:
    """(J J^T)_11 and (J J^T)_12 over inputs, for a layer of two units of cosine rho."""
    layer = two_units(rho)

    def draw(random: np.random.Generator, count: int) -> HostArray:
        first, second = (
            to_numpy(row.data) for row in jacobian_rows(layer, gaussian(random, count, 2), (0, 1))
        )
        return np.array([(first * first).sum(axis=1), (first * second).sum(axis=1)])

    return mc.tally(f"kernel {rho}", draw, samples=400_000)


@normprop("C12", "3.4", "The diagonal of E[J J^T] is 1.47.", expected="holds")
def diagonal(mc: Sampler) -> Findings:
    """J is the Jacobian of a ReLU layer with unit rows W~_i, and c1 the standard deviation of
    ReLU(Z), Z ~ N(0, 1). Row i of J is W~_i/c1 where unit i is on, which it is half of the time:
    1/(2 c1^2) = pi/(pi - 1), for any row."""
    yield Case("E[J J^T]_ii", PRINTED, CHI, kernel_tally(mc, 0.5).mean(), rounding=ROUNDING)
    return "pi/(pi - 1), for any row"


@normprop("C13", "3.4", "Off the diagonal, E[J J^T] is about 0.", expected="approximate")
def off_diagonal(mc: Sampler) -> Findings:
    """Two units whose rows have the cosine rho are both on with probability (pi - arccos rho)/(2
    pi), and then the product of their rows of the Jacobian J is rho/c1^2, with c1 the standard
    deviation of ReLU(Z), Z ~ N(0, 1): the arc-cosine kernel of degree 0. It vanishes like 0.73 rho:
    small for incoherent rows, but never 0 for all of them."""
    incoherent = 0.1
    for rho in (incoherent, 0.5, -0.9):
        exact, estimate = float(jacobian_kernel(rho)), kernel_tally(mc, rho).mean(1)
        yield Case(
            f"E[J J^T]_ij at cosine {rho:g}",
            0.0,
            exact,
            estimate,
            scale=CHI,
            judged=rho == incoherent,
        )
    return f"of the order of the cosine: {jacobian_kernel(incoherent):.3f} at {incoherent:g}"


@normprop(
    "C14", "3.4", "E[J J^T] is about 1.47 times the identity.", expected="in expectation only"
)
def as_a_matrix(mc: Sampler) -> Findings:
    """W~ has the unit rows of the layer, and c1 is the standard deviation of ReLU(Z), Z ~ N(0, 1).
    For random rows the kernel of C13 is (W~ W~^T + I)/(4 c1^2) and a small rest: the eigenvalues
    fill (1 + lambda)/(4 c1^2), where lambda, the eigenvalues of W~ W~^T, follow the
    Marchenko-Pastur law: 0.73 to 3.67 for a square layer. Their mean is the trace over the number
    of units, which is exact. Only orthogonal rows give a multiple of the identity."""
    width, edge = 32, 320

    def draw(random: np.random.Generator, count: int) -> Array:
        layer = random_layer(random, width, width, gamma=1.0)
        rows = jacobian_rows(layer, gaussian(random, count, width), range(width))
        return sum((row.data**2).sum(axis=1) for row in rows) / width

    def edges(random: np.random.Generator) -> tuple[float, float, float]:
        rows = random.standard_normal((edge, edge))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        values = np.linalg.eigvalsh(jacobian_kernel(np.clip(rows @ rows.T, -1.0, 1.0)))
        return values[0], values[-1], values.std() / CHI

    tally = mc.tally("trace", draw, samples=8_000, cost=width, block=250)
    ends = mc.tally("kernel edges", each(edges), samples=10, cost=10**6, block=1)
    low, high = 1.0 / (4.0 * C1 * C1), 5.0 / (4.0 * C1 * C1)
    scatter = low / CHI  # the Marchenko-Pastur law has variance 1 for a square matrix
    yield Case("mean eigenvalue", PRINTED, CHI, tally.mean(), rounding=ROUNDING, scatter=scatter)
    yield Case(
        "smallest eigenvalue, limit", PRINTED, low, ends.mean(0), finite_size=0.05, judged=False
    )
    yield Case(
        "largest eigenvalue, limit", PRINTED, high, ends.mean(1), finite_size=0.05, judged=False
    )
    yield shown("relative scatter of eigenvalues, limit", scatter, ends.mean(2), finite_size=0.05)
    return f"its trace is; the eigenvalues of a random square layer go from {low:.2f} to {high:.2f}"


def spectrum(random: np.random.Generator, units: int, inputs: int) -> HostArray:
    """All singular values of the Jacobian of one random layer at one random input."""
    layer = random_layer(random, units, inputs, gamma=1.0)
    return singular_values(layer, gaussian(random, inputs))


def conv_spectrum(
    random: np.random.Generator, filters: int, channels: int, pixels: int
) -> HostArray:
    """The same for a 3 x 3 convolution of a square image whose opposite sides are joined."""
    layer, size = NormPropConv2d(channels, filters, 3, gamma=1.0), math.isqrt(pixels)
    layer.weight.data = gaussian(random, *layer.weight.shape).data

    def joined(x: Tensor) -> Tensor:
        x = x.reshape(-1, channels, size, size)
        x = F.concatenate([x[:, :, -1:], x, x[:, :, :1]], axis=2)
        return layer(F.concatenate([x[..., -1:], x, x[..., :1]], axis=3))

    return singular_values(joined, gaussian(random, channels * pixels))


def nonzero(values: HostArray) -> HostArray:
    return values[values > 1e-4 * values[0]]


@normprop(
    "C15",
    "3.4",
    "The singular values of the Jacobian are 1.21.",
    expected="does not hold as stated",
)
def all_singular_values(mc: Sampler) -> Findings:
    """J is the Jacobian of a layer of m units and n inputs, c1 the standard deviation of ReLU(Z), Z
    ~ N(0, 1). At one input half of the units are off, and their rows of J are 0. Given that a unit
    is on, its row w is not isotropic: it points to the side of the input. But w and -w have the
    same w w^T, so the law of w w^T is that of an isotropic row, and singular values do not see the
    signs of rows. So the nonzero ones fill (1/c1) [1 - sqrt(m/2n), 1 + sqrt(m/2n)] by the
    Marchenko-Pastur law. With orthogonal rows they are 0 or 1/c1 = 1.713. 1.21 is the root mean
    square of all."""
    shapes = {
        "square": (320, 320, 1),
        "wide": (192, 384, 1),
        "tall": (384, 192, 1),
        "conv": (16, 16, 16),
    }
    low, high = closed_forms.spectrum_edges(1, 1)
    near, whole = (
        np.linspace(0.9 * PRINTED_FACTOR, 1.1 * PRINTED_FACTOR, 201),
        np.linspace(low, high, 20_001),
    )
    fraction, integral = (
        float(np.trapezoid(closed_forms.spectrum_density(s, 1, 1), s)) for s in (near, whole)
    )

    def draw(random: np.random.Generator, units: int, inputs: int, places: int) -> list[float]:
        values = (
            spectrum(random, units, inputs)
            if places == 1
            else conv_spectrum(random, units, inputs, places)
        )
        some = nonzero(values)
        within = np.mean(abs(some - PRINTED_FACTOR) < 0.1 * PRINTED_FACTOR)
        return [
            some[0],
            some[-1],
            1.0 - len(some) / len(values),
            np.sum(values**2) / (units * places),
            within,
        ]

    for name, (units, inputs, places) in shapes.items():
        drawn = each(partial(draw, units=units, inputs=inputs, places=places))
        tally = mc.tally(f"spectrum {name}", drawn, samples=10, cost=200_000, block=1)
        what, edges = f"largest singular value, {name}", closed_forms.spectrum_edges(units, inputs)
        size, judged = 0.05 if places == 1 else 0.12, name == "square"
        yield Case(what, PRINTED_FACTOR, edges[1], tally.mean(), finite_size=size, judged=judged)
        yield Case(f"mean square over rows, {name}", PRINTED, CHI, tally.mean(3), judged=False)
        if name == "square":
            what = "smallest singular value but 0, square"
            yield Case(what, PRINTED_FACTOR, edges[0], tally.mean(1), finite_size=0.15)
            yield Case("fraction of them that is 0, square", 0.0, 0.5, tally.mean(2))
            what, rms = "root mean square, square", tally.power(0.5, 3)
            yield Case(what, PRINTED_FACTOR, JACOBIAN_FACTOR, rms, rounding=ROUNDING, judged=False)
            what = "fraction of the nonzero ones within 10 % of 1.21, square"
            yield Case(what, 1.0, fraction, tally.mean(4), judged=False)
    random = np.random.default_rng(mc.seed)
    orthogonal = layer_with(np.linalg.qr(random.standard_normal((64, 64)))[0], gamma=1.0)
    turned = Tally.of(nonzero(singular_values(orthogonal, gaussian(random, 64))))
    yield shown("integral of the density of the nonzero ones", 1.0, integral, tolerance=1e-4)
    yield Case("all but 0, orthogonal rows", PRINTED_FACTOR, 1.0 / C1, turned.mean(), judged=False)
    return (
        f"half are 0, the others {low:.2f} to {high:.2f}, {fraction:.0%} within 10 % of 1.21, "
        "the root mean square"
    )


@normprop(
    "C16", "3.4", "A layer multiplies the mean square by 1.47.", expected="in expectation only"
)
def mean_square_gain(mc: Sampler) -> Findings:
    """The squared Frobenius norm of the Jacobian of a layer of m units and n inputs is the number
    of active units over c1^2, with c1 the standard deviation of ReLU(Z), Z ~ N(0, 1): m pi/(pi - 1)
    on average, with a relative standard deviation of 1/sqrt(m). For each input coordinate that is
    1.47 m/n: 1.47 for square layers only."""
    inputs = 64

    def draw(random: np.random.Generator, units: int) -> tuple[float, float]:
        layer = random_layer(random, units, inputs, gamma=1.0)
        gain = float((whole_jacobian(layer, gaussian(random, inputs)) ** 2).sum()) / inputs
        return gain, gain**2

    for units in (64, 128):
        tally = mc.tally(
            f"gain {units}", each(partial(draw, units=units)), samples=400, cost=1000, block=10
        )
        what, exact, scatter = (
            f"gain of {units} x {inputs}",
            CHI * units / inputs,
            1.0 / math.sqrt(units),
        )
        yield Case(
            what,
            PRINTED,
            exact,
            tally.mean(),
            rounding=ROUNDING,
            scatter=scatter,
            judged=units == inputs,
        )
        relative = tally.function(lambda means: math.sqrt(means[1] - means[0] ** 2) / means[0])
        yield shown(f"its relative standard deviation, {units} x {inputs}", scatter, relative)
    return "on average, for square layers; a layer of m units and n inputs has 1.47 m/n"


def product_tally(
    mc: Sampler, width: int, depth: int, gamma: float, samples: int, mode: str = "paper"
) -> Tally:
    """tr G/n, tr G^2/n and (tr G/n)^2 of the product of `depth` Jacobians, G = J J^T."""

    def draw(random: np.random.Generator) -> tuple[float, float, float]:
        network = Sequential(
            *(random_layer(random, width, width, gamma=gamma, mode=mode) for _ in range(depth))
        )
        squares = singular_values(network, gaussian(random, width)) ** 2
        return squares.mean(), (squares**2).mean(), squares.mean() ** 2

    return mc.tally(
        f"product {width} {depth} {gamma:.4f} {mode}",
        each(draw),
        samples,
        cost=1000 * depth,
        block=8,
    )


@normprop(
    "C17",
    "3.4",
    "Gradients neither explode nor vanish in deep networks (gamma = 1).",
    expected="does not hold as stated",
)
def exploding(mc: Sampler) -> Findings:
    """J_1 to J_L are the Jacobians of L square layers of width n. Given that a unit is on, its row
    w points to the side of its input, but the law of w w^T is unchanged, and |J_L .. J_1|^2, a sum
    over w w^T, does not see signs. So gains multiply exactly, at any width: E |J_L .. J_1|^2 / n =
    (pi/(pi - 1))^L."""
    tally = product_tally(mc, 24, DEPTH, 1.0, samples=400)
    yield Case(f"gain of {DEPTH} layers", 1.0, CHI**DEPTH, tally.mean())
    return f"the mean-square gain is 1.467^L: {CHI**DEPTH:.1f} for 9 layers, {CHI**50:.1e} for 50"


@normprop(
    "C18",
    "3.4",
    "Dynamical isometry is approximately achieved.",
    expected="does not hold as stated",
)
def isometry(mc: Sampler) -> Findings:
    """G = J J^T for the Jacobian J of L layers of width n, and chi = pi/(pi - 1) is the mean-square
    gain of one. Isometry would make tr(G^2)/n equal to (tr G/n)^2. But its ratio to chi^(2L) tends
    to 1 + 2L for wide layers, and a recursion in L gives it exactly for every width: the spectrum
    of the product spreads with every layer."""
    estimate = product_tally(mc, 32, 3, 1.0, samples=800).function(lambda means: means[1] * CHI**-6)
    deep = product_moments(64, DEPTH)[0]
    yield Case("E tr(G^2)/n over chi^2L, L = 3", 1.0, product_moments(32, 3)[0], estimate)
    return f"the spread of squared singular values grows like 1 + 2L: {deep:.1f} for 9 layers of 64"


@normprop(
    "C19",
    "4.3",
    "Starting gamma at 1/1.21 makes the Jacobian about 1.",
    expected="in expectation only",
)
def jacobian_factor(mc: Sampler) -> Findings:
    """chi = pi/(pi - 1) is the mean-square gain of a layer at gamma = 1. chi gamma^2 = 1.467/1.21^2
    = 1.0019 for the mean square of a layer; over L layers it is 1.0019^L. Single singular values
    scatter as before: gamma scales them all alike. For another activation, gamma starts at the
    inverse of its own Jacobian factor."""
    width, gain = 32, CHI * PAPER_GAMMA**2
    tally = product_tally(mc, width, 1, PAPER_GAMMA, samples=400)
    deep = product_tally(mc, width, DEPTH, PAPER_GAMMA, samples=200)
    scatter = math.sqrt(product_moments(width, 1)[0] - 1.0)
    measured = tally.function(lambda means: math.sqrt(means[1] / means[0] ** 2 - 1.0))
    rounding = 0.01 / PRINTED_FACTOR  # what the last digit of 1.21 makes of its square
    yield Case("gain of a layer", 1.0, gain, tally.mean(), rounding=rounding, scatter=scatter)
    yield Case(f"gain of {DEPTH} layers", 1.0, gain**DEPTH, deep.mean(), judged=False)
    yield Case(
        "relative standard deviation of squared singular values",
        0.0,
        scatter,
        measured,
        judged=False,
    )
    new, exact = NormPropLinear(2, 1), NormPropLinear(1, 1, mode="exact")
    layers = [NormPropLinear(1, 1, name) for name in activations]
    starts = [layer.gamma.item() * layer.standard.jacobian_factor for layer in layers]
    gamma = computed(new.gamma.item())
    yield Case("gamma of a new layer", PAPER_GAMMA, 1.0 / JACOBIAN_FACTOR, gamma, rounding=ROUNDING)
    yield is_zero("beta of a new layer", new.beta.item())
    yield all_ones("gamma times Jacobian factor", starts)
    yield shown("gamma in exact mode", 1.0, exact.gamma.item())
    yield shown("beta in exact mode", 1.0, exact.beta.item())
    return (
        f"for the mean square, at any depth ({gain**50:.2f} after 50 layers); single values "
        "scatter as before"
    )


@normprop(
    "G2",
    "beyond 4.3",
    "Exact NormProp with beta = gamma keeps the scale forwards and nearly keeps it backwards.",
    expected="holds",
)
def positive_beta(mc: Sampler) -> Findings:
    """At t = beta/gamma, the mean-square gain of ReLU is Phi(t)/Var ReLU(Z + t), with Z ~ N(0, 1)
    and Phi and phi its distribution function and density: 1.467 at 0, 1.120 at 1, 1.018 at 2, as
    the kink matters less. Over 50 layers 1.120 still multiplies to 290 in mean square, a factor of
    17 in size; 1.467 to 2e8. Errors of the variance shrink by (Phi - c2 phi)/Var = 0.77 with each
    layer at t = 1, with c2 the mean of ReLU(Z + t), so a deep network stays put."""
    width, depth, t, layers = 128, 20, 1.0, 5
    density, cdf = math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi), closed_forms.normal_cdf(t)
    mean = t * cdf + density
    variance = (t * t + 1.0) * cdf + t * density - mean * mean
    one, slope = cdf / variance, (cdf - mean * density) / variance
    point = Design("", "relu", 1, centering=1.0, gamma=1.0, beta=t, params={})
    yield Case(
        "gain of a layer, beta = gamma",
        one,
        point.chi,
        gain(mc, "gain at t = 1", exact_unit("relu", 1.0, t)),
    )
    product = product_tally(mc, 48, layers, 1.0, samples=100, mode="exact")
    yield shown(f"gain of {layers} layers", one**layers, product.mean(), finite_size=0.1)
    deep = depth_tally(mc, width, depth, samples=10, gamma=1.0, beta=t, mode="exact")
    yield Case(
        f"E u^2, layer {depth}", 1.0, 1.0, deep.mean(depth - 1), finite_size=0.1, rounding=0.1
    )
    yield shown("factor of an error of the variance", slope, point.variance_slope)
    after = [math.sqrt(layer**50) for layer in (one, CHI)]
    return (
        f"gain {one:.2f} instead of {CHI:.2f}: after 50 layers {after[0]:.0f} times the size, "
        f"not {after[1]:,.0f}"
    )


@normprop(
    "G6",
    "beyond 3.4",
    "The first two spectral moments of a deep Jacobian are exact at every width.",
    expected="holds",
)
def spectral_moments(mc: Sampler) -> Findings:
    """G = J J^T for the Jacobian J of L layers of width n. Given that a unit is on, its row w is
    not isotropic, but the law of w w^T is unchanged, and G does not see the signs of rows. So E
    tr(G^2)/n and E (tr G/n)^2, relative to chi^(2L), chi = pi/(pi - 1), follow a linear recursion.
    One layer gives 2 + (n - 1)/n; wide networks tend to 1 + 2L."""
    width, depth = 16, 4
    tally = product_tally(mc, width, depth, 1.0, samples=800)
    exact, scale = product_moments(width, depth), CHI ** (-2 * depth)
    yield Case(
        "E tr(G^2)/n over chi^2L",
        exact[0],
        exact[0],
        tally.function(lambda means: means[1] * scale),
    )
    yield Case(
        "E (tr G/n)^2 over chi^2L",
        exact[1],
        exact[1],
        tally.function(lambda means: means[2] * scale),
    )
    yield Case("the first, one layer", 2.0 + (width - 1.0) / width, product_moments(width, 1)[0])
    yield Case(
        "the first, width 10^9", 1.0 + 2.0 * depth, product_moments(10**9, depth)[0], rounding=1e-6
    )
    return (
        f"{exact[0]:.3f} for {depth} layers of {width}, against {1 + 2 * depth} at infinite width"
    )
