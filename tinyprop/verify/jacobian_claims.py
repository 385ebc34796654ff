"""Claims on the Jacobian, section 3.4: its expectation, its singular values, and products over
layers.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn. Where a formula is for infinitely large layers, it is measured in two sizes, and
`infinite_width` or `limit_of` extrapolates."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import Tensor, no_grad
from .. import functional as F
from ..engine.arrays import HostArray
from ..nn import NormPropConv2d
from ..theory import Design
from . import closed_forms
from .case import Case, as_derived, beside, claimed
from .closed_forms import (
    C1,
    C2,
    CHI,
    JACOBIAN_FACTOR,
    PAPER_GAMMA,
    jacobian_kernel,
    product_moments,
)
from .depth_claims import (
    DEPTH,
    layer_by_layer,
    limit_without_luck,
)
from .ledger import Findings, claim
from .limits import Limit, infinite_width, limit_of
from .moment_claims import exact_unit, gain
from .monte_carlo import Sampler, Tally, each
from .networks import (
    gaussian,
    jacobian_rows,
    jacobians,
    layer_with,
    normprop_layers,
    random_layer,
    random_layers,
    singular_values,
    two_units,
    whole_jacobian,
)
from .paper import JACOBIAN_FACTOR as PRINTED_FACTOR

normprop = partial(claim, family="normprop")


def products_of_rows(mc: Sampler, rho: float) -> Tally:
    """(J J^T)_11 and (J J^T)_12 over inputs, for a layer of two units of cosine rho."""
    layer = two_units(rho)

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        rows = jacobian_rows(layer, gaussian(random, count, 2), (0, 1))
        first, second = (row.numpy() for row in rows)  # (count, inputs) each
        return {"11": (first * first).sum(axis=1), "12": (first * second).sum(axis=1)}

    return mc.tally(f"kernel {rho}", draw, samples=1_000_000)


@normprop("C12", "3.4", "The diagonal of E[J J^T] is 1.47.", expected="holds")
def diagonal(mc: Sampler) -> Findings:
    """J is the Jacobian of a ReLU layer with unit rows W~_i, and c1 the standard deviation of
    ReLU(Z), Z ~ N(0, 1). Row i of J is W~_i/c1 for inputs that turn unit i on, which are half of
    all, and 0 for the others. So its mean square length is 1/(2 c1^2) = pi/(pi - 1), for any row.
    """
    found = products_of_rows(mc, 0.3).mean("11")
    yield claimed("E[J J^T]_ii", "1.47", exact=CHI, measured=found)
    return "pi/(pi - 1), for any row"


@normprop("C13", "3.4", "Off the diagonal, E[J J^T] is about 0.", expected="approximate")
def off_diagonal(mc: Sampler) -> Findings:
    """Two units whose rows have the cosine rho are both on with probability (pi - arccos rho)/(2
    pi), and then the product of their rows of the Jacobian J is rho/c1^2, with c1 the standard
    deviation of ReLU(Z), Z ~ N(0, 1): the arc-cosine kernel of degree 0. For small rho it is about
    0.73 rho: small for rows that are nearly orthogonal, but not 0."""
    incoherent = 0.1
    exact = float(jacobian_kernel(incoherent))
    yield claimed(
        f"E[J J^T]_ij at cosine {incoherent:g}",
        0.0,
        exact=exact,
        measured=products_of_rows(mc, incoherent).mean("12"),
        scale=CHI,
    )
    for rho in (0.5, -0.9):
        found = products_of_rows(mc, rho).mean("12")
        yield beside(
            f"E[J J^T]_ij at cosine {rho:g}", exact=float(jacobian_kernel(rho)), measured=found
        )
    return f"of the order of the cosine: {exact:.3f} at {incoherent:g}"


def edge_of_spectrum(tallies: dict[int, Tally], name: str) -> Limit:
    """The limit of an edge: at size n it is off by a number over n^(2/3) (Tracy and Widom), and by
    at most 2/n of itself, which is neglected."""
    by_size = {n: tally.mean(name) for n, tally in tallies.items()}
    return infinite_width(by_size, order=2.0 / 3.0, neglected=2.0 / max(tallies))


@normprop(
    "C14", "3.4", "E[J J^T] is about 1.47 times the identity.", expected="in expectation only"
)
def as_a_matrix(mc: Sampler) -> Findings:
    """W~ has the unit rows of the layer, and c1 is the standard deviation of ReLU(Z), Z ~ N(0, 1).
    For random rows the kernel of C13 is (W~ W~^T + I)/(4 c1^2) and a small rest: the eigenvalues
    fill (1 + lambda)/(4 c1^2), where lambda, the eigenvalues of W~ W~^T, follow the
    Marchenko-Pastur law: 0.73 to 3.67 for a square layer. Their mean is the trace over the number
    of units, which is exact. Only orthogonal rows give a multiple of the identity."""
    width = 32

    def trace(random: Generator, count: int) -> HostArray:
        layer = random_layer(random, width, width, gamma=1.0)
        found = jacobians(layer, gaussian(random, count, width))
        return (found**2).sum(axis=(1, 2)) / width

    def spectrum(random: Generator, n: int) -> dict[str, float]:
        """Of the kernel of C13, for n random unit rows."""
        rows = random.standard_normal((n, n))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        values = np.linalg.eigvalsh(jacobian_kernel(np.clip(rows @ rows.T, -1.0, 1.0)))
        return {"smallest": values[0], "largest": values[-1], "scatter": values.std() / CHI}

    tally = mc.tally("trace", trace, samples=16_000, cost=width, block=250)
    low, high = 1.0 / (4.0 * C1 * C1), 5.0 / (4.0 * C1 * C1)
    scatter = low / CHI  # the Marchenko-Pastur law has variance 1 for a square matrix
    yield claimed("mean eigenvalue", "1.47", exact=CHI, measured=tally.mean(), scatter=scatter)
    sizes = {}
    for n, matrices in ((80, 120), (320, 30)):
        drawn = each(partial(spectrum, n=n))
        sizes[n] = mc.tally(f"kernel {n}", drawn, matrices, cost=10**5, block=1)
    for name, limit in (("smallest", low), ("largest", high)):
        found = edge_of_spectrum(sizes, name)
        yield beside(f"{name} eigenvalue, limit", exact=limit, measured=found)
    yield beside(
        "relative scatter of eigenvalues, limit",
        exact=scatter,
        measured=limit_of(sizes, "scatter"),
    )
    return f"its trace is; the eigenvalues of a random square layer go from {low:.2f} to {high:.2f}"


def nonzero(values: HostArray) -> HostArray:
    return values[values > 1e-4 * values[0]]


def spectrum(random: Generator, units: int, inputs: int) -> HostArray:
    """All singular values of the Jacobian of one random layer at one random input."""
    layer = random_layer(random, units, inputs, gamma=1.0)
    return singular_values(whole_jacobian(layer, gaussian(random, inputs)))


def at_opposite_inputs(random: Generator, units: int, inputs: int) -> list[HostArray]:
    """Those of one layer at an input and at its opposite: then each unit is on in one of them, so
    that chance decides less."""
    layer = random_layer(random, units, inputs, gamma=1.0)
    x = gaussian(random, 1, inputs)
    both = jacobians(layer, F.concatenate([x, -x]))
    return [singular_values(jacobian) for jacobian in both]


def of_convolution(random: Generator, channels: int, size: int) -> list[HostArray]:
    """The same for a 3 x 3 convolution of a square image whose opposite sides are joined."""
    layer = NormPropConv2d(channels, channels, 3, gamma=1.0)
    layer.weight.data = gaussian(random, *layer.weight.shape).data

    def joined(x: Tensor) -> Tensor:
        x = F.concatenate([x[:, :, -1:], x, x[:, :, :1]], axis=2)
        return layer(F.concatenate([x[..., -1:], x, x[..., :1]], axis=3))

    x = gaussian(random, 1, channels, size, size)
    both = jacobians(joined, F.concatenate([x, -x]))
    return [singular_values(jacobian) for jacobian in both]


def summary(both: list[HostArray], rows: int) -> dict[str, float]:
    """Averaged over the two inputs."""
    found: dict[str, list[float]] = {}
    for values in both:
        some = nonzero(values)
        near = abs(some - PRINTED_FACTOR) < 0.1 * PRINTED_FACTOR
        one = {
            "largest": some[0],
            "smallest": some[-1],
            "zero": 1.0 - len(some) / len(values),
            "mean square": np.sum(values**2) / rows,
            "near": np.mean(near),
        }
        for name, value in one.items():
            found.setdefault(name, []).append(float(value))
    return {name: sum(values) / 2.0 for name, values in found.items()}


def spectra(
    mc: Sampler, units: float, inputs: float, small: int = 100, large: int = 30
) -> dict[int, Tally]:
    """Of layers of this shape in two sizes: `small` layers of size 80, and `large` of size 320."""

    def draw(random: Generator, n: int) -> dict[str, float]:
        rows = int(units * n)
        return summary(at_opposite_inputs(random, rows, int(inputs * n)), rows)

    tallies = {}
    for n, number in ((80, small), (320, large)):
        drawn = each(partial(draw, n=n))
        tallies[n] = mc.tally(f"spectrum {units} {inputs} {n}", drawn, number, 200_000, 1)
    return tallies


def area(low: float, high: float, nodes: int) -> float:
    """Under the density of the nonzero singular values of a large square layer."""
    s = np.linspace(low, high, nodes)
    return float(np.trapezoid(closed_forms.spectrum_density(s, 1, 1), s))


def of_a_convolution(mc: Sampler) -> Iterator[Case]:
    """The mean square of the same layer with shared weights, and its largest singular value."""
    channels, size = 16, 4

    def draw(random: Generator) -> dict[str, float]:
        return summary(of_convolution(random, channels, size), channels * size * size)

    found = mc.tally("spectrum conv", each(draw), samples=10, cost=200_000, block=1)
    yield beside("mean square over rows, conv", exact=CHI, measured=found.mean("mean square"))
    _, high = closed_forms.spectrum_edges(1, 1)
    yield beside(
        f"largest singular value, conv of {channels} channels",
        exact=high,
        measured=found.mean("largest"),
        tolerance=0.12 * high,  # 3 x 3 patches overlap
    )


def with_orthogonal_rows(mc: Sampler) -> Case:
    random = np.random.default_rng(mc.seed)
    layer = layer_with(np.linalg.qr(random.standard_normal((64, 64)))[0], gamma=1.0)
    values = nonzero(singular_values(whole_jacobian(layer, gaussian(random, 64))))
    return beside("all but 0, orthogonal rows", exact=1.0 / C1, measured=Tally.of(values).mean())


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

    low, high = closed_forms.spectrum_edges(1, 1)
    square = spectra(mc, 1, 1, small=600, large=200)
    yield claimed(
        "largest singular value, square",
        PRINTED_FACTOR,
        exact=high,
        measured=edge_of_spectrum(square, "largest"),
    )
    yield claimed(
        "smallest singular value but 0, square",
        PRINTED_FACTOR,
        exact=low,
        measured=edge_of_spectrum(square, "smallest"),
    )
    large = square[320]
    yield claimed("fraction of them that is 0, square", 0.0, exact=0.5, measured=large.mean("zero"))
    yield beside("mean square over rows, square", exact=CHI, measured=large.mean("mean square"))
    rms = large.power(0.5, "mean square")
    yield beside("root mean square, square", exact=JACOBIAN_FACTOR, measured=rms)
    fraction = area(0.9 * PRINTED_FACTOR, 1.1 * PRINTED_FACTOR, nodes=201)
    what = "fraction of the nonzero ones within 10 % of 1.21, square"
    yield beside(what, exact=fraction, measured=large.mean("near"))
    yield beside(
        "integral of the density of the nonzero ones",
        exact=1.0,
        measured=area(low, high, nodes=20_001),
        tolerance=1e-4,
    )
    for name, units, inputs in (("wide", 0.5, 1.0), ("tall", 1.0, 0.5)):
        _, largest = closed_forms.spectrum_edges(units, inputs)
        found = edge_of_spectrum(spectra(mc, units, inputs), "largest")
        yield beside(f"largest singular value, {name}", exact=largest, measured=found)
    yield from of_a_convolution(mc)
    yield with_orthogonal_rows(mc)
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

    def draw(random: Generator, units: int) -> dict[str, float]:
        layer = random_layer(random, units, inputs, gamma=1.0)
        x = gaussian(random, 1, inputs)
        both = (jacobians(layer, F.concatenate([x, -x])) ** 2).sum(axis=(1, 2)) / inputs
        # at opposite inputs, each unit is on once
        return {"gain": both.mean(), "of one": both[0], "its square": both[0] ** 2}

    def relative_deviation(mean: dict[str, float]) -> float:
        return math.sqrt(mean["its square"] - mean["of one"] ** 2) / mean["of one"]

    for units in (64, 128):
        drawn = each(partial(draw, units=units))
        tally = mc.tally(f"gain {units}", drawn, samples=500, cost=1000, block=10)
        exact, scatter = CHI * units / inputs, 1.0 / math.sqrt(units)
        found = tally.mean("gain")
        what = f"gain of {units} x {inputs}"
        if units == inputs:
            yield claimed(what, "1.47", exact=exact, measured=found, scatter=scatter)
        else:
            yield beside(what, exact=exact, measured=found)
        yield beside(
            f"its relative standard deviation, {units} x {inputs}",
            exact=scatter,
            measured=tally.function(relative_deviation),
        )
    return "on average, for square layers; a layer of m units and n inputs has 1.47 m/n"


def products(
    mc: Sampler, width: int, depth: int, gamma: float, networks: int, mode: str = "paper"
) -> Tally:
    """Of G = J J^T, J the Jacobian of `depth` square layers: tr G/n, tr G^2/n and (tr G/n)^2, each
    averaged over 16 inputs of a network."""

    stack = normprop_layers(width, depth, mode, gamma)

    def draw(random: Generator) -> dict[str, float]:
        x = gaussian(random, 8, width)
        both = F.concatenate([x, -x])
        found = jacobians(random_layers(random, stack), both)  # (16, width, width)
        gram = found @ found.transpose(0, 2, 1)
        traces = (found**2).sum(axis=(1, 2)) / width
        squares = (gram**2).sum(axis=(1, 2)) / width
        return {
            "tr G": traces.mean(),
            "tr G^2": squares.mean(),
            "(tr G)^2": (traces**2).mean(),
        }

    name = f"product {width} {depth} {gamma:.4f} {mode}"
    return mc.tally(name, each(draw), networks, cost=1000 * depth, block=8)


@normprop(
    "C17",
    "3.4",
    "Gradients neither explode nor vanish in deep networks (gamma = 1).",
    expected="does not hold as stated",
)
def exploding(mc: Sampler) -> Findings:
    """J_1 to J_L are the Jacobians of L square layers of width n. If a unit is on, its row w points
    to the side of its input. But w and -w have the same w w^T, and |J_L .. J_1|^2 is a sum over w
    w^T, which does not see the sign. So gains multiply exactly, at any width: E |J_L .. J_1|^2 / n
    = (pi/(pi - 1))^L."""
    width = 64
    stack = normprop_layers(width, DEPTH, gamma=1.0)
    off = -C2 / C1 + 1e-6  # above this output, a unit is on

    def draw(random: Generator) -> dict[str, float]:
        """Averaged over 8 inputs of a network."""
        network = random_layers(random, stack)
        x = gaussian(random, 4, width)
        x = F.concatenate([x, -x])
        gain = (jacobians(network, x) ** 2).sum() / (len(x) * width)
        lucky = 0.0
        with no_grad():
            for layer in network:
                x = layer(x)
                lucky += (x.numpy() > off).mean() - 0.5
        return {"gain": gain, "luck": lucky}

    tally = mc.tally("deep gain", each(draw), samples=450, cost=20_000, block=4)
    # as w and -w are as likely, half of the units are on
    found = tally.given({"luck": 0.0}).mean("gain")
    yield claimed(f"gain of {DEPTH} layers", 1.0, exact=CHI**DEPTH, measured=found)
    yield beside(
        f"fraction of units that are on, minus 1/2, summed over {DEPTH} layers",
        exact=0.0,
        measured=tally.mean("luck"),
    )
    return f"the mean-square gain is 1.467^L: {CHI**DEPTH:.1f} for 9 layers, {CHI**50:.1e} for 50"


@normprop(
    "C18",
    "3.4",
    "Dynamical isometry is approximately achieved.",
    expected="does not hold as stated",
)
def isometry(mc: Sampler) -> Findings:
    """G = J J^T for the Jacobian J of L layers of width n, and chi = pi/(pi - 1) is the mean-square
    gain of one. With isometry, tr(G^2)/n would be (tr G/n)^2. But relative to chi^(2L) it tends to
    1 + 2L for wide layers, and a recursion in L gives it exactly for every width: the spectrum of
    the product spreads with every layer."""
    tally = products(mc, 32, 3, 1.0, networks=400)
    better = tally.given({"tr G": CHI**3})  # by C17
    yield claimed(
        "E tr(G^2)/n over chi^2L, L = 3",
        1.0,
        exact=product_moments(32, 3)[0],
        measured=better.function(lambda mean: mean["tr G^2"] * CHI**-6),
    )
    yield beside("E tr G/n, L = 3", exact=CHI**3, measured=tally.mean("tr G"))
    nine = product_moments(64, DEPTH)[0]
    return f"the spread of squared singular values grows like 1 + 2L: {nine:.1f} for 9 layers of 64"


@normprop(
    "C19",
    "4.3",
    "Starting gamma at 1/1.21 makes the Jacobian about 1.",
    expected="in expectation only",
)
def jacobian_factor(mc: Sampler) -> Findings:
    """chi = pi/(pi - 1) is the mean-square gain of a layer at gamma = 1, and gamma^2 multiplies it:
    1.467/1.21^2 = 1.0019 for one layer, 1.0019^L for L. Single singular values scatter as before,
    as gamma scales all alike. For another activation, gamma starts at the inverse of its own
    Jacobian factor."""
    width, gain = 32, CHI * PAPER_GAMMA**2
    one = products(mc, width, 1, PAPER_GAMMA, networks=200)
    scatter = math.sqrt(product_moments(width, 1)[0] - 1.0)
    yield claimed(
        "gain of a layer",
        1.0,
        exact=gain,
        measured=one.mean("tr G"),
        rounding=0.01 / PRINTED_FACTOR,  # what the last digit of 1.21 makes of its square
        scatter=scatter,
    )
    nine = products(mc, width, DEPTH, PAPER_GAMMA, networks=300)
    yield beside(f"gain of {DEPTH} layers", exact=gain**DEPTH, measured=nine.mean("tr G"))
    yield beside(
        "relative standard deviation of squared singular values",
        exact=scatter,
        measured=one.function(lambda mean: math.sqrt(mean["tr G^2"] / mean["tr G"] ** 2 - 1.0)),
    )
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
    """With Z ~ N(0, 1), and Phi and phi its distribution function and density, ReLU has the
    mean-square gain Phi(t)/Var ReLU(Z + t) at t = beta/gamma: 1.467 at 0, 1.120 at 1, 1.018 at 2,
    as the kink matters less and less. Over 50 layers 1.120 still multiplies to 290 in mean square,
    a factor of 17 in size; 1.467 to 2e8. At t = 1, each layer shrinks errors of the variance by
    (Phi - c2 phi)/Var = 0.77, with c2 the mean of ReLU(Z + t): a deep network stays put."""
    t, layers, depth = 1.0, 5, 20
    density = math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    probability = closed_forms.normal_cdf(t)
    mean = t * probability + density
    variance = (t * t + 1.0) * probability + t * density - mean * mean
    one = probability / variance
    point = Design("", "relu", 1, centering=1.0, gamma=1.0, beta=t, params={})
    yield claimed(
        "gain of a layer, beta = gamma",
        one,
        exact=point.chi,
        measured=gain(mc, "gain at t = 1", exact_unit("relu", 1.0, t)),
    )
    tallies = {
        16: products(mc, 16, layers, 1.0, networks=60, mode="exact"),
        64: products(mc, 64, layers, 1.0, networks=40, mode="exact"),
    }
    found = limit_of(tallies, "tr G")
    yield beside(f"gain of {layers} layers", exact=one**layers, measured=found)
    signal = {
        32: layer_by_layer(mc, 32, depth, networks=90, gamma=1.0, beta=t, mode="exact"),
        128: layer_by_layer(mc, 128, depth, networks=60, gamma=1.0, beta=t, mode="exact"),
    }
    at_end = limit_without_luck(signal, f"E u^2 {depth}")
    yield claimed(f"E u^2, layer {depth}", 1.0, exact=1.0, measured=at_end)
    slope = (probability - mean * density) / variance
    what = "factor of an error of the variance"
    yield beside(what, exact=slope, measured=point.variance_slope)
    after, before = math.sqrt(one**50), math.sqrt(CHI**50)
    return (
        f"gain {one:.2f} instead of {CHI:.2f}: after 50 layers {after:.0f} times the size, "
        f"not {before:,.0f}"
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
    tally = products(mc, width, depth, 1.0, networks=2000)
    better = tally.given({"tr G": CHI**depth})  # by C17
    exact, scale = product_moments(width, depth), CHI ** (-2 * depth)
    yield claimed(
        "E tr(G^2)/n over chi^2L",
        as_derived,
        exact=exact[0],
        measured=better.function(lambda mean: mean["tr G^2"] * scale),
    )
    yield claimed(
        "E (tr G/n)^2 over chi^2L",
        as_derived,
        exact=exact[1],
        measured=better.function(lambda mean: mean["(tr G)^2"] * scale),
    )
    of_gain = tally.function(lambda mean: mean["tr G"] * CHI**-depth)
    yield beside("E tr G/n over chi^L", exact=1.0, measured=of_gain)
    one_layer = product_moments(width, 1)[0]
    yield claimed("the first, one layer", 2.0 + (width - 1.0) / width, exact=one_layer)
    wide = product_moments(10**9, depth)[0]
    yield claimed("the first, width 10^9", 1.0 + 2.0 * depth, exact=wide, rounding=1e-6)
    return (
        f"{exact[0]:.3f} for {depth} layers of {width}, against {1 + 2 * depth} at infinite width"
    )
