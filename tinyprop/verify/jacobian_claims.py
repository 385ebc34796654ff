"""Claims on the Jacobian, section 3.4: its expectation, its singular values, and products over layers."""

import math

import numpy as np

from .. import functional as F
from ..engine.arrays import Array, HostArray, to_numpy
from ..engine.tensor import Tensor
from ..nn import NormPropConv2d
from .claim import Case, Evidence, claims_of, evidence
from .closed_forms import (
    C1,
    CHI,
    JACOBIAN_FACTOR,
    PAPER_GAMMA,
    jacobian_kernel,
    kernel_matrix,
    product_moments,
    spectrum_edges,
)
from .monte_carlo import Estimate, Sampler, Tally
from .networks import (
    gaussian,
    jacobian_rows,
    layer_with,
    random_layer,
    random_network,
    rows_at_cosine,
    singular_values,
    whole_jacobian,
)

claim = claims_of("jacobian")

PRINTED, ROUNDING = 1.47, 0.005
DEPTH = 9  # of the paper's network


def kernel_tally(mc: Sampler, rho: float) -> Tally:
    """(J J^T)_11 and (J J^T)_12 over inputs, for a layer of two units of cosine rho."""
    layer = layer_with(rows_at_cosine(rho), gamma=1.0)

    def draw(random: np.random.Generator, count: int) -> HostArray:
        first, second = (to_numpy(row.data) for row in jacobian_rows(layer, gaussian(random, count, 2), (0, 1)))
        return np.array([(first * first).sum(axis=1), (first * second).sum(axis=1)])

    return mc.tally(f"kernel {rho}", draw, samples=400_000)


@claim("C12", "3.4", "The diagonal of E[J J^T] is 1.47.")
def diagonal(mc: Sampler) -> Evidence:
    """Row i of J is W~_i/c1 where unit i is on, which it is half of the time: 1/(2 c1^2) = pi/(pi - 1), for any row."""
    case = Case("E[J J^T]_ii", PRINTED, CHI, kernel_tally(mc, 0.5).mean(), rounding=ROUNDING)
    return evidence("pi/(pi - 1), for any row", case)


@claim("C13", "3.4", "Off the diagonal, E[J J^T] is about 0.")
def off_diagonal(mc: Sampler) -> Evidence:
    """Both units are on with probability (pi - arccos rho)/(2 pi), and then the rows' product is rho/c1^2: the
    arc-cosine kernel of degree 0. It vanishes like 0.73 rho: small for incoherent rows, but never 0 for all of them.
    """
    incoherent, cases = 0.1, []
    for rho in (0.5, incoherent, -0.9):
        what, estimate = f"E[J J^T]_ij at cosine {rho:g}", kernel_tally(mc, rho).mean(1)
        cases.append(Case(what, 0.0, jacobian_kernel(rho), estimate, scale=CHI, judged=rho == incoherent))
    return evidence(f"of the order of the cosine: {cases[1].exact:.3f} at 0.1", *cases)


@claim("C14", "3.4", "E[J J^T] is about 1.47 times the identity.")
def as_a_matrix(mc: Sampler) -> Evidence:
    """For random rows the kernel of C13 is (W~ W~^T + I)/(4 c1^2) and a small rest: the eigenvalues fill
    (1 + lambda)/(4 c1^2) with lambda from Marchenko and Pastur, 0.73 to 3.67 for a square layer. Their mean is the
    trace, which is exact. Only orthogonal rows give a multiple of the identity.
    """
    width, edge = 32, 512

    def draw(random: np.random.Generator, count: int) -> Array:
        layer = random_layer(random, width, width, gamma=1.0)
        rows = jacobian_rows(layer, gaussian(random, count, width), range(width))
        return sum((row.data**2).sum(axis=1) for row in rows) / width

    def edges(random: np.random.Generator, count: int) -> HostArray:
        rows = random.standard_normal((edge, edge))
        values = np.linalg.eigvalsh(kernel_matrix(rows / np.linalg.norm(rows, axis=1, keepdims=True)))
        return np.array([[values[0]], [values[-1]]])

    tally = mc.tally("trace", draw, samples=8_000, cost=width, block=250)
    ends = mc.tally("kernel edges", edges, samples=4, cost=10**6, block=1)
    scatter = 1.0 / (4.0 * C1 * C1) / CHI  # Marchenko and Pastur's law has variance 1 for a square matrix
    low, high = 1.0 / (4.0 * C1 * C1), 5.0 / (4.0 * C1 * C1)
    return evidence(
        f"its trace is; the eigenvalues of a random square layer go from {low:.2f} to {high:.2f}",
        Case("mean eigenvalue", PRINTED, CHI, tally.mean(), rounding=ROUNDING, scatter=scatter),
        Case("smallest eigenvalue, limit", 1.47, low, ends.mean(0), finite_size=0.05, judged=False),
        Case("largest eigenvalue, limit", 1.47, high, ends.mean(1), finite_size=0.05, judged=False),
    )


def spectrum(random: np.random.Generator, units: int, inputs: int) -> HostArray:
    """All singular values of the Jacobian of one random layer at one random input."""
    layer = random_layer(random, units, inputs, gamma=1.0)
    return singular_values(whole_jacobian(layer, gaussian(random, inputs)))


def conv_spectrum(random: np.random.Generator, channels: int, filters: int, size: int) -> HostArray:
    """The same for a 3 x 3 convolution of a square image whose opposite sides are joined."""
    layer = NormPropConv2d(channels, filters, 3, gamma=1.0)
    layer.weight.data = gaussian(random, *layer.weight.shape).data

    def joined(x: Tensor) -> Tensor:
        x = x.reshape(-1, channels, size, size)
        x = F.concatenate([x[:, :, -1:], x, x[:, :, :1]], axis=2)
        return layer(F.concatenate([x[..., -1:], x, x[..., :1]], axis=3))

    return singular_values(whole_jacobian(joined, gaussian(random, channels * size * size)))


def nonzero(values: HostArray) -> HostArray:
    return values[values > 1e-4 * values[0]]


@claim("C15", "3.4", "The singular values of the Jacobian are 1.21.")
def all_singular_values(mc: Sampler) -> Evidence:
    """At one input half of the units are off, and their rows are 0. The other rows are random unit vectors over c1,
    also given that they are on, so the nonzero singular values fill (1/c1) [1 - sqrt(m/2n), 1 + sqrt(m/2n)], after
    Marchenko and Pastur. With orthogonal rows they are 0 or 1/c1 = 1.713. None is near 1.21: that is their root
    mean square.
    """
    shapes = {"square": (384, 384), "wide": (256, 512), "tall": (512, 256), "conv": (16, 16)}
    cases = []
    for name, (units, inputs) in shapes.items():

        def draw(random: np.random.Generator, count: int, name: str = name) -> HostArray:
            units, inputs = shapes[name]
            values = conv_spectrum(random, inputs, units, 5) if name == "conv" else spectrum(random, units, inputs)
            some = nonzero(values)
            outputs = units * 25 if name == "conv" else units
            return np.array([[some[0]], [some[-1]], [1.0 - len(some) / len(values)], [np.sum(values**2) / outputs]])

        tally = mc.tally(f"spectrum {name}", draw, samples=8, cost=200_000, block=1)
        low, high = spectrum_edges(units, inputs)
        square, size = name == "square", 0.05 if name != "conv" else 0.1
        cases.append(Case(f"largest singular value, {name}", 1.21, high, tally.mean(), finite_size=size, judged=square))
        cases.append(Case(f"mean square over rows, {name}", 1.47, CHI, tally.mean(3), judged=False))
        if square:
            cases.append(Case("smallest singular value but 0, square", 1.21, low, tally.mean(1), finite_size=0.15))
            cases.append(Case("part of them that is 0, square", 0.0, 0.5, tally.mean(2)))
            rms = tally.function(lambda means: math.sqrt(means[3]))
            cases.append(Case("root mean square, square", 1.21, JACOBIAN_FACTOR, rms, rounding=0.005, judged=False))
    random = np.random.default_rng(mc.seed)
    orthogonal = layer_with(np.linalg.qr(random.standard_normal((64, 64)))[0], gamma=1.0)
    turned = Tally.of(nonzero(singular_values(whole_jacobian(orthogonal, gaussian(random, 64)))))
    cases.append(Case("all but 0, orthogonal rows", 1.21, 1.0 / C1, turned.mean(), judged=False))
    low, high = spectrum_edges(1, 1)
    return evidence(f"half are 0, the others go from {low:.2f} to {high:.2f}; 1.21 is their root mean square", *cases)


@claim("C16", "3.4", "A layer multiplies the mean square by 1.47.")
def mean_square_gain(mc: Sampler) -> Evidence:
    """The squared Frobenius norm of J is the number of active units over c1^2: m pi/(pi - 1) on average, with a
    relative standard deviation of 1/sqrt(m). For each input coordinate that is 1.47 m/n: 1.47 for square layers
    only.
    """
    cases = []
    for units, inputs in ((64, 64), (128, 64)):

        def draw(random: np.random.Generator, count: int, shape: tuple[int, int] = (units, inputs)) -> HostArray:
            gains = []
            for _ in range(count):
                layer = random_layer(random, *shape, gamma=1.0)
                gains.append(float((whole_jacobian(layer, gaussian(random, shape[1])) ** 2).sum()) / shape[1])
            return np.array(gains)

        tally = mc.tally(f"gain {units}", draw, samples=400, cost=1000, block=10)
        what, exact, square = f"gain of {units} x {inputs}", CHI * units / inputs, units == inputs
        scatter = 1.0 / math.sqrt(units)
        case = Case(what, PRINTED, exact, tally.mean(), rounding=ROUNDING, scatter=scatter, judged=square)
        cases.append(case)
    return evidence("on average, for square layers; a layer of m units and n inputs has 1.47 m/n", *cases)


def product_tally(mc: Sampler, width: int, depth: int, gamma: float, samples: int) -> Tally:
    """tr G/n, tr G^2/n and (tr G/n)^2 of the product of `depth` Jacobians, G = J J^T."""

    def draw(random: np.random.Generator, count: int) -> HostArray:
        found = []
        for _ in range(count):
            network = random_network(random, width, depth, gamma=gamma)
            squares = singular_values(whole_jacobian(network, gaussian(random, width))) ** 2
            found.append([squares.mean(), (squares**2).mean(), squares.mean() ** 2])
        return np.array(found).T

    return mc.tally(f"product {width} {depth} {gamma:.4f}", draw, samples, cost=1000 * depth, block=8)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(factor * estimate.value, factor * estimate.standard_error, estimate.samples)


@claim("C17", "3.4", "Gradients neither explode nor vanish in deep networks (gamma = 1).")
def exploding(mc: Sampler) -> Evidence:
    """Given which units are on, their rows are still independent and isotropic. So gains multiply exactly, at any
    width: E |J_L .. J_1|^2 / n = (pi/(pi - 1))^L.
    """
    tally = product_tally(mc, 32, DEPTH, 1.0, samples=600)
    fifty = CHI**50
    return evidence(
        f"the mean-square gain is 1.467^L: {CHI**DEPTH:.1f} for 9 layers, {fifty:.1e} for 50",
        Case(f"gain of {DEPTH} layers", 1.0, CHI**DEPTH, tally.mean()),
        Case("gain of 50 layers", 1.0, fifty, judged=False),
    )


@claim("C18", "3.4", "Dynamical isometry is approximately achieved.")
def isometry(mc: Sampler) -> Evidence:
    """Isometry would make tr(G^2)/n equal to (tr G/n)^2. But its ratio to chi^(2L) tends to 1 + 2L for wide layers,
    and a recursion in L gives it exactly for every width: the spectrum of the product spreads with every layer.
    """
    width = 32
    tally = product_tally(mc, width, 3, 1.0, samples=1500)
    estimate = scaled(tally.mean(1), CHI**-6)
    deep = product_moments(64, DEPTH).second
    return evidence(
        f"the spread of squared singular values grows like 1 + 2L: {deep:.1f} for 9 layers of 64",
        Case("E tr(G^2)/n over chi^2L, L = 3", 1.0, product_moments(width, 3).second, estimate),
        Case("the same, 9 layers of 64", 1.0, deep, judged=False),
    )


@claim("C19", "4.3", "Starting gamma at 1/1.21 makes the Jacobian about 1.")
def jacobian_factor(mc: Sampler) -> Evidence:
    """chi gamma^2 = 1.467/1.21^2 = 1.0019 for the mean square of a layer; over L layers it is 1.0019^L. Single singular
    values scatter as before: gamma scales them all alike.
    """
    width = 32
    gain = CHI * PAPER_GAMMA**2
    tally = product_tally(mc, width, 1, PAPER_GAMMA, samples=600)
    deep = product_tally(mc, width, DEPTH, PAPER_GAMMA, samples=300)
    scatter = math.sqrt(product_moments(width, 1).second - 1.0)
    rounding = 0.01 / 1.21  # what the last digit of 1.21 makes of its square
    return evidence(
        f"for the mean square, at any depth ({gain**50:.2f} after 50 layers); single values scatter as before",
        Case("gain of a layer", 1.0, gain, tally.mean(), rounding=rounding, scatter=scatter),
        Case(f"gain of {DEPTH} layers", 1.0, gain**DEPTH, deep.mean(), judged=False),
    )
