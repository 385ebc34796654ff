"""What other papers say of the start of a network, and of what is done to weights: initialisations
(N09 to N12), WeightNorm (N16 to N18), SELU (N19 to N21) and scaled weight standardisation (N22,
N23).

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn. `probe` sends a batch through a network, and a random gradient back: "gain" is
the mean-square gain of the gradient, "square" the mean square of the outputs. A `Stack` describes
random layers. A formula for infinitely wide networks is measured at two widths, and `limit_of`
extrapolates."""

import math
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import Tensor, grad, moments, tensor
from .. import functional as F
from ..engine.arrays import HostArray
from ..nn import Linear, Normalizer, ScaledWS, Sequential, WeightNorm, init
from ..nn.normalizers import AnyNormalizer
from ..optim import SGD
from ..theory.stacks import Stack
from ..theory.wide import Wide
from . import closed_forms
from .case import as_derived, at_least, at_most, beside, claimed, other_than
from .closed_forms import C1, CHI, correlation_after, normal_cdf, normal_grid
from .ledger import Findings, claim
from .limits import limit_of
from .moment_claims import NFNETS
from .monte_carlo import Sampler, Tally, each
from .networks import (
    batch,
    gaussian,
    jacobians,
    orthogonal_samples,
    probe,
    random_layers,
    random_network,
    seeded,
    singular_values,
    whole_jacobian,
)

about_init = partial(claim, family="init")

INPUTS = 32  # that a deep network is measured with


def signals(
    mc: Sampler,
    widths: dict[int, int],
    depth: int,
    activation: str,
    init: str,
    inputs: int = INPUTS,
) -> dict[int, Tally]:
    """What `probe` finds in networks without a normaliser and with these initial weights, for
    inputs of N(0, 1), in this number of networks of each width."""

    def draw(random: Generator, stack: Stack) -> dict[str, float]:
        x = gaussian(random, inputs, stack.width)
        return probe(random, random_layers(random, stack), x)

    tallies = {}
    for width, networks in widths.items():
        stack = Stack("none", activation, depth, width, inputs, residual=False, init=init)
        drawn = each(partial(draw, stack=stack))
        name = f"deep {activation} {depth} {width}"
        tallies[width] = mc.tally(name, drawn, networks, cost=10**5, block=1)
    return tallies


SQUARE = 64  # the width of single layers


def one_layer(mc: Sampler, norm: AnyNormalizer, init: str) -> Tally:
    """What `probe` finds in one layer with ReLU, for orthogonal samples of mean square 1."""
    x = orthogonal_samples(np.random.default_rng(mc.seed), SQUARE, SQUARE)
    stack = Stack(norm, "relu", 1, SQUARE, SQUARE, residual=False, init=init)

    def draw(random: Generator) -> dict[str, float]:
        return probe(random, random_layers(random, stack), x)

    return mc.tally(f"factor {stack.label}", each(draw), samples=5000, cost=200, block=50)


@about_init(
    "N09",
    "He et al. (2015), 2.2",
    "Weights of variance 2/n keep the mean square of a ReLU network.",
    expected="in expectation only",
)
def he_keeps(mc: Sampler) -> Findings:
    """q is the mean square of the n units of a layer. The next layer has q times f = (2/n) sum
    ReLU(z_i)^2, z_i independent N(0, 1), whatever the direction of its input. So f is independent
    from layer to layer, E f = 1 and E f^2 = 1 + 5/n. After L layers, E q = 1, but E q^2 = (1 +
    5/n)^L: most networks have less than 1, and a few much more."""
    depth = 20
    x = orthogonal_samples(np.random.default_rng(mc.seed), SQUARE, SQUARE)
    both = F.concatenate([x, -x])  # as a unit is on in one of them, chance decides less

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        """So many layers, side by side in one of as many times the units."""
        seeded(random)
        layers = init.kaiming_normal_(Linear(SQUARE, SQUARE * count, bias=False))
        out = F.relu(layers(both)).numpy()
        squares = (out * out).reshape(len(both), count, SQUARE).mean(axis=2, dtype=np.float64)
        return {"square": squares.mean(axis=0), "square of squares": (squares**2).mean(axis=0)}

    factor = mc.tally("layers of he", draw, samples=16_000, cost=64, block=64)
    second = (1.0 + 5.0 / SQUARE) ** depth
    scatter = math.sqrt(second - 1.0)
    yield claimed(
        f"E q after {depth} layers of {SQUARE}",
        1.0,
        exact=1.0,
        measured=factor.power(depth, "square"),
        scatter=scatter,
    )
    found = factor.power(depth, "square of squares")
    yield beside("E q^2, there", exact=second, measured=found)
    return (
        f"on average; over networks, q scatters by {scatter:.2f} after {depth} layers of {SQUARE}"
    )


HALVINGS = 30  # layers


@about_init(
    "N10",
    "He et al. (2015), 2.2",
    "Glorot's weights stall deep ReLU networks: 2^-L after L layers.",
    expected="holds",
)
def glorot_stalls(mc: Sampler) -> Findings:
    """In a square layer of width n, Glorot's weights have variance 1/n, so the mean square of a
    unit before ReLU is that of the layer's input. ReLU keeps half of it, as weights w and -w are as
    likely. That is so for any input, so halves multiply."""
    factor = one_layer(mc, "none", "glorot")
    yield claimed(
        f"log2 of the mean square after {HALVINGS} layers",
        -HALVINGS,
        exact=-HALVINGS,
        measured=factor.function(lambda mean: HALVINGS * math.log2(mean["square"])),
    )
    return f"{2.0**-HALVINGS:.1e} of it remain after {HALVINGS} layers"


def tanh_recursion(depth: int) -> tuple[float, float]:
    """Mean square, and mean-square gain of gradients, after so many layers of tanh and weights of
    variance 1/n."""
    x = Wide.at([])
    for _ in range(depth):
        x = x.apply("tanh").weighted(1.0)
    return x.square, x.gain


@about_init(
    "N11",
    "Glorot and Bengio (2010), 4.2",
    "Normalised initialisation keeps the variance of tanh networks.",
    expected="does not hold as stated",
)
def glorot_keeps(mc: Sampler) -> Findings:
    """It would be so if tanh were a line of slope 1, as the paper assumes. But q = E h^2 of a wide
    layer becomes E tanh(sqrt(q) Z)^2, Z ~ N(0, 1), which is less: about q - 2 q^2 once q is small,
    so that q falls like 1/(2L) with the layer L. Each layer multiplies the mean square of the
    gradient by E tanh'(sqrt(q) Z)^2, so it falls, too."""
    depth, far = 10, 300
    tallies = signals(mc, {64: 400, 256: 200}, depth, "tanh", "glorot", 128)
    square, gain = tanh_recursion(depth)
    yield claimed(
        f"mean square after {depth} layers",
        1.0,
        exact=square,
        measured=limit_of(tallies, "square"),
    )
    yield claimed(
        f"gain of the gradient over {depth} layers",
        1.0,
        exact=gain,
        measured=limit_of(tallies, "gain"),
    )
    yield beside(
        f"2 L times the mean square, L = {far}",
        exact=1.0,
        measured=2.0 * far * tanh_recursion(far)[0],
        tolerance=0.02,  # of order log(L)/L
    )
    return f"{square:.3f} of it remain after {depth} layers, and {gain:.3f} of the gradient's"


@about_init(
    "N12",
    "Saxe et al. (2014); Pennington et al. (2017)",
    "Orthogonal layers are isometric, but not with ReLU.",
    expected="holds",
)
def orthogonal_start(mc: Sampler) -> Findings:
    """A product of orthogonal matrices is orthogonal: all singular values are 1. Now with ReLU, and
    weights sqrt(2) times orthogonal. J is the Jacobian of L layers of width n, and G = J J^T. The
    sign of a row of weights decides whether its unit is on, the line that the row spans does not:
    so which units are on are fair coins, independent of these lines. Hence E tr G/n = 1, and E tr
    G^2/n follows a linear recursion, towards 1 + L for wide layers; isometry would have 1. tr G^2
    has a long tail; but where it is large, tr G is large, too, whose mean is known, so that much of
    the chance can be subtracted (`given`)."""
    random = np.random.default_rng(mc.seed)
    linear = Stack("none", "identity", 9, 64, 1, residual=False, init="orthogonal")
    network = random_network(random, linear)
    values = singular_values(whole_jacobian(network, gaussian(random, 64)))
    farthest = values[abs(values - 1.0).argmax()]
    yield claimed(
        "singular value farthest from 1, 9 linear layers", 1.0, exact=1.0, measured=farthest
    )

    def draw(random: Generator, stack: Stack) -> dict[str, float]:
        """tr G/n and tr G^2/n from the first to the last pre-activations, averaged over 16
        inputs."""
        _, *stages = random_network(random, stack)
        width = stack.width
        x = gaussian(random, 8, width)
        found = jacobians(Sequential(*stages), F.concatenate([x, -x]))
        gram = found @ found.transpose(0, 2, 1)
        inputs = len(found)
        return {
            "tr G": (found**2).sum() / (inputs * width),
            "tr G^2": (gram**2).sum() / (inputs * width),
        }

    for width, depth, networks in ((32, 2, 800), (64, 9, 300)):
        stack = Stack("none", "relu", depth + 1, width, 1, residual=False, init="orthogonal")
        drawn = each(partial(draw, stack=stack))
        name = f"orthogonal {width} {depth}"
        tally = mc.tally(name, drawn, networks, cost=1000 * depth, block=5)
        what = f"ReLU, {depth} layers of {width}"
        yield claimed(
            f"E tr G^2/n, {what}",
            other_than(1.0),
            exact=closed_forms.orthogonal_moments(width, depth)[0],
            measured=tally.given({"tr G": 1.0}).mean("tr G^2"),
        )
        yield beside(f"E tr G/n, {what}", exact=1.0, measured=tally.mean("tr G"))
    yield beside(
        "the same, 9 layers of 10^9",
        exact=10.0,
        measured=closed_forms.orthogonal_moments(10**9, 9)[0],
        tolerance=1e-6,
    )
    # where tr G is 2 times the number of units that are on
    first, second = closed_forms.orthogonal_moments(32, 1)
    yield beside("the same, one layer", exact=2.0, measured=first)
    yield beside("E (tr G/n)^2, one layer of 32", exact=1.0 + 1.0 / 32, measured=second)
    nine = closed_forms.orthogonal_moments(64, 9)[0]
    return f"with ReLU the squared singular values spread like 1 + L: {nine:.1f} for 9 layers of 64"


@about_init(
    "N16",
    "Salimans and Kingma (2016), 2.1",
    "The gradient by v is orthogonal to v, so |v| grows.",
    expected="holds",
)
def weights_grow(mc: Sampler) -> Findings:
    """A row of weights is w = g v/|v|, with a length g and a vector v that are learnt. The output
    does not depend on |v|, so the gradient with respect to v is orthogonal to v. A step of gradient
    descent of length c |v| is the other leg of a right triangle: |v| becomes sqrt(1 + c^2) times as
    long. (With momentum, only in the first step.)"""
    random, rate = np.random.default_rng(mc.seed), 0.1
    layer = WeightNorm(Linear(6, 5)).to(dtype="float64")
    v = layer.layer.weight
    loss = (F.tanh(layer(batch(random, 20, 6))) * batch(random, 20, 5)).sum()
    loss.backward()
    before, slope = v.numpy().copy(), tensor(v.grad).numpy()
    SGD([v], lr=rate).step()
    old, step, new = (np.linalg.norm(rows, axis=1) for rows in (before, rate * slope, v.numpy()))
    along = abs((before * slope).sum(axis=1)).max()
    yield claimed("largest v . gradient of v", 0.0, exact=0.0, measured=along)
    row = int((step / old).argmax())
    c = step[row] / old[row]
    longer = math.sqrt(1.0 + c**2)
    what = f"growth of |v| in a step of c = {c:.2f}"
    yield claimed(what, as_derived, exact=longer, measured=new[row] / old[row])
    yield claimed("least growth of all rows", at_least(1.0), measured=(new / old).min())
    return "Pythagoras: a step orthogonal to v always makes it longer"


@about_init(
    "N17",
    "Salimans and Kingma (2016), 3",
    "Data-dependent initialisation: units have mean 0 and variance 1.",
    expected="holds",
)
def data_dependent(mc: Sampler) -> Findings:
    """The length g of a row and its bias b are set by one batch, so that each unit has mean 0 and
    variance 1 there: exactly, in every layer. For inputs from ReLU that divides by c1 |w|, with c1
    the standard deviation of ReLU(Z), Z ~ N(0, 1), and w a row. The gradient does not see where g
    and b come from, so the mean-square gain of a wide layer is 1/(2 c1^2) = pi/(pi - 1), as in
    NormProp."""
    depth = 4

    def draw(random: Generator, width: int) -> dict[str, float]:
        stack = Stack("weight", "relu", depth + 1, width, 2 * width, residual=False)
        _, *stages = random_network(random, stack)
        network = Sequential(*stages)
        x = gaussian(random, 2 * width, width)
        init.data_dependent_(network, x)
        out = network(x).numpy().astype(np.float64)
        return {
            "mean of a unit": abs(out.mean(axis=0)).max(),
            "variance of a unit minus 1": abs(out.var(axis=0) - 1.0).max(),
            "gain": probe(random, network, x)["gain"],
        }

    tallies = {}
    for width, networks in ((48, 60), (192, 30)):
        drawn = each(partial(draw, width=width))
        tallies[width] = mc.tally(f"data-dependent {width}", drawn, networks, 10**5, 1)
    for name in ("mean of a unit", "variance of a unit minus 1"):
        found = tallies[192].mean(name)
        what = f"largest {name}, layer {depth}"
        yield claimed(what, 0.0, exact=0.0, measured=found, tolerance=1e-4)
    gain = limit_of(tallies, "gain", power=1.0 / depth)
    yield beside("gain of the gradient, a layer", exact=CHI, measured=gain)
    return f"exactly, on that batch. The gradient grows by {CHI:.3f} a layer, as in NormProp"


@about_init(
    "N18",
    "Salimans and Kingma (2016), 3",
    "WeightNorm alone does not fix the scale of features.",
    expected="holds",
)
def scale_of_features(mc: Sampler) -> Findings:
    """With rows of length g = 1 and no bias, a pre-activation has the mean square of the layer's
    input: E (w . x)^2 = |x|^2/n for a random direction w in n dimensions. ReLU halves it: 2^-L
    after L layers, exactly, at any width."""
    unit_rows = Normalizer("unit-rows", weights=partial(WeightNorm, scale=1.0), bias=False)
    factor = one_layer(mc, unit_rows, "glorot")
    yield claimed(
        f"log2 of the mean square after {HALVINGS} layers",
        other_than(0.0),
        exact=-HALVINGS,
        measured=factor.function(lambda mean: HALVINGS * math.log2(mean["square"])),
    )
    return "each ReLU layer halves the mean square, as with Glorot's weights (N10)"


# the constants of SELU in closed form; TAIL and FAR_TAIL are 2 E exp(Z) and 2 E exp(2 Z), Z < 0
TAIL, FAR_TAIL = 2.0 * normal_cdf(-1.0) * math.sqrt(math.e), 2.0 * normal_cdf(-2.0) * math.e**2
SELU_ALPHA = math.sqrt(2.0 / math.pi) / (1.0 - TAIL)
SELU_SQUARE = 2.0 * FAR_TAIL + math.pi * TAIL**2 - 2.0 * (2.0 + math.pi) * TAIL + math.pi + 2.0
SELU_LAMBDA = (1.0 - TAIL) * math.sqrt(2.0 * math.pi / SELU_SQUARE)


@about_init(
    "N19",
    "Klambauer et al. (2017), Theorem 1",
    "SELU maps mean 0 and variance 1 to mean 0 and variance 1.",
    expected="holds",
)
def selu_fixed_point(mc: Sampler) -> Findings:
    """SELU(x) is lambda x for x > 0, and lambda alpha (exp(x) - 1) elsewhere. E SELU(Z) = 0 for Z ~
    N(0, 1) fixes alpha, and E SELU(Z)^2 = 1 then fixes lambda; both have closed forms in e, pi and
    the distribution function of Z."""

    def draw(random: Generator, count: int) -> Tensor:
        return F.selu(gaussian(random, count))

    z, weights = normal_grid()  # for expectations over N(0, 1)
    out = F.selu(tensor(z)).numpy()
    found = mc.tally("selu", draw, samples=1_000_000, watch=Tally.variance)
    variance, mean = float(weights @ out**2), float(weights @ out)
    yield claimed("Var SELU(Z)", 1.0, exact=variance, measured=found.variance())
    yield claimed("E SELU(Z)", 0.0, exact=mean, measured=found.mean())
    at_1, far_below = F.selu(tensor(np.array([1.0, -50.0]))).numpy()
    yield claimed("lambda", "1.0507", exact=SELU_LAMBDA, measured=at_1)
    yield claimed("alpha", "1.6733", exact=SELU_ALPHA, measured=-far_below / at_1)
    return f"for alpha = {SELU_ALPHA:.6f} and lambda = {SELU_LAMBDA:.6f}"


@about_init(
    "N20",
    "Klambauer et al. (2017), Theorem 1",
    "Near that point, errors of the variance shrink by 0.782648.",
    expected="holds",
)
def selu_slope(mc: Sampler) -> Findings:
    """For weights of sum 0 and length 1, a pre-activation is sqrt(v) Z, with Z ~ N(0, 1) and v the
    variance of the layer below. The derivative of E s(sqrt(v) Z), s = SELU, with respect to v at 1
    is E s'(Z) Z/2 = 0.0888: what an error of the variance does to the mean. That of E s^2 is E s s'
    Z = 0.7826: what it does to the variance, as the mean is 0. (The paper cuts the first off after
    six digits.) The measured slopes are differences between v = 1.01 and 0.99, with the same Z."""
    z, weights = normal_grid()
    x = tensor(z, requires_grad=True)
    out = F.selu(x)
    slope = grad(out.sum(), x)[0].numpy()
    step = 0.01

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        x = gaussian(random, count)
        up = F.selu(math.sqrt(1.0 + step) * x).numpy().astype(np.float64)
        down = F.selu(math.sqrt(1.0 - step) * x).numpy().astype(np.float64)
        rise = {"mean": up - down, "variance": up**2 - down**2}
        return {name: values / (2.0 * step) for name, values in rise.items()}

    found = mc.tally("selu slopes", draw, samples=4_000_000)
    of_mean = float(weights @ (slope * z)) / 2.0
    of_variance = float(weights @ (out.numpy() * slope * z))
    slopes = (("mean", "0.088834", of_mean), ("variance", "0.782648", of_variance))
    for what, printed, exact in slopes:
        yield claimed(
            f"slope of the {what}",
            printed,
            exact=exact,
            measured=found.mean(what),
            rounding=1e-6,
            tolerance=1e-4,  # of the differences
        )
    return "a deviation of the variance falls by a fifth with each layer"


@about_init(
    "N21",
    "Klambauer et al. (2017), abstract",
    "With SELU, exploding gradients are impossible.",
    expected="does not hold as stated",
)
def selu_gradients(mc: Sampler) -> Findings:
    """The signal stays: mean 0 and variance 1 are a stable fixed point (N20). But for weights of
    variance 1/n, the mean-square gain of the gradient is E SELU'(Z)^2 = 1.0716, Z ~ N(0, 1). That
    is above 1, as for every normalised activation but a line (G3), so it grows with the depth
    without bound. The theorem bounds the variance of the signal, not the gradient."""
    depth = 16
    lecun = partial(init.kaiming_normal_, nonlinearity="selu")
    gain = float(moments.gaussian("selu").slope2)
    x = orthogonal_samples(np.random.default_rng(mc.seed), SQUARE, SQUARE)

    def draw(random: Generator, count: int) -> HostArray:
        """The mean-square slopes of so many layers, side by side in one of as many times the units:
        the gains of wide layers."""
        seeded(random)
        layers = lecun(Linear(SQUARE, SQUARE * count, bias=False))
        u = Tensor(layers(x).data, requires_grad=True)
        (slopes,) = grad(F.selu(u).sum(), u)
        of_units = (slopes.numpy() ** 2).mean(axis=0, dtype=np.float64)
        return of_units.reshape(count, SQUARE).mean(axis=1)

    one = mc.tally("layers of selu", draw, samples=16_000, cost=64, block=64)
    far = 32
    what = "gain of the gradient"
    found = one.power(far)
    yield claimed(f"{what}, {far} layers", 1.0, exact=gain**far, measured=found)
    yield beside("the same, 100 layers", exact=gain**100)
    yield claimed("gain a layer", 1.0, exact=gain, measured=one.mean())
    tallies = signals(mc, {64: 200, 256: 80}, depth, "selu", "lecun")
    yield beside(
        f"{what} of deep networks, {depth} layers",
        exact=gain**depth,
        measured=limit_of(tallies, "gain"),
    )
    what = f"mean square of the signal, layer {depth}"
    yield beside(what, exact=1.0, measured=limit_of(tallies, "square"))
    return (
        f"the signal keeps its scale; the gradient grows to {gain**32:.1f} in 32 layers, "
        f"{gain**100:.0f} in 100"
    )


@about_init(
    "N22",
    "Brock et al. (2021, ICLR)",
    "NF-nets scale ReLU by gamma = sqrt(2/(1 - 1/pi)).",
    expected="holds",
)
def nf_net_gammas(mc: Sampler) -> Findings:
    """With gamma = 1/c1, c1 the standard deviation of ReLU(Z), Z ~ N(0, 1), the output has variance
    1. The constants of the released code, for ReLU and other activations, are 1/c1 of a sample, and
    off by its error: less than 0.1 %."""

    def draw(random: Generator, count: int) -> Tensor:
        return F.relu(gaussian(random, count))

    gamma = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))
    found = mc.tally("1/gamma of relu", draw, samples=1_000_000, watch=Tally.std).std()
    relu = moments.gaussian("relu").std
    yield claimed("1/gamma of ReLU", 1.0 / gamma, exact=relu, measured=found)
    off = {
        name: abs(constant * float(moments.gaussian(name).std) - 1.0)
        for name, constant in NFNETS.items()
    }
    farthest = max(off, key=lambda name: off[name])
    for name in ("relu", "gelu", farthest):
        what = f"error of the code's gamma in %, {name}"
        yield claimed(what, at_most(0.1), exact=100.0 * off[name])
    return (
        f"{gamma:.6f}; the released code's are samples, {off['relu']:.2%} off for ReLU, "
        f"{off['gelu']:.2%} for GELU"
    )


@about_init(
    "N23",
    "Brock et al. (2021, ICLR)",
    "Scaled weight standardisation gives mean 0 and variance 1.",
    expected="holds",
)
def standardised_weights(mc: Sampler) -> Findings:
    """Each row of weights has the sum 0 and the length 1/c1. Its inputs ReLU(z_i), z_i of N(0, 1),
    have the same mean, which a row of sum 0 removes, and variance c1^2: uncorrelated, they sum up
    to variance 1, for all weights. If each pair z_i, z_j has the correlation rho, then ReLU(z_i)
    and ReLU(z_j) have R(rho), and the variance is 1 - R(rho)."""
    width, rho = 48, 0.5
    seeded(np.random.default_rng(mc.seed))
    layer = ScaledWS(Linear(width, 16, bias=False))
    rows = layer.weight.numpy().astype(np.float64)
    sums = abs(rows.sum(axis=1)).max()
    yield claimed("largest sum of a row", 0.0, exact=0.0, measured=sums, tolerance=1e-5)
    length = (rows[0] ** 2).sum() * C1**2
    yield claimed("squared length of a row, times c1^2", 1.0, exact=1.0, measured=length)

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        """A unit's output for uncorrelated inputs, and for inputs that have a part in common."""
        z, common = gaussian(random, count, width), gaussian(random, count, 1)
        correlated = math.sqrt(rho) * common + math.sqrt(1.0 - rho) * z
        return {
            "uncorrelated": layer(F.relu(z)).numpy()[:, 0],
            "correlated": layer(F.relu(correlated)).numpy()[:, 0],
        }

    found = mc.tally("standardised", draw, samples=400_000, block=1 << 12, watch=Tally.variance)
    mean, variance = found.mean("uncorrelated"), found.variance("uncorrelated")
    yield claimed("mean of a unit, uncorrelated inputs", 0.0, exact=0.0, measured=mean)
    yield claimed("variance of a unit, uncorrelated inputs", 1.0, exact=1.0, measured=variance)
    exact = 1.0 - correlation_after(rho)
    yield beside(
        f"variance of a unit, inputs of correlation {rho:g}",
        exact=exact,
        measured=found.variance("correlated"),
    )
    return (
        f"for every draw of weights and uncorrelated inputs; {exact:.3f} at a correlation of "
        f"{rho:g}"
    )
