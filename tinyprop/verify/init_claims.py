"""What other papers say of the start of a network, and of what is done to weights: initialisations
(N09 to N12), WeightNorm (N16 to N18), SELU (N19 to N21) and scaled weight standardisation (N22,
N23)."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from .. import Tensor, grad, moments, tensor
from .. import functional as F
from ..engine.arrays import HostArray
from ..nn import Activation, Linear, Module, ReLU, ScaledWS, Sequential, WeightNorm, init
from ..optim import SGD
from ..theory.wide import Sites
from . import closed_forms
from .claim import Case, Findings, claim, computed, is_zero, shown
from .closed_forms import C1, CHI, correlation_after, normal_cdf, normal_grid
from .moment_claims import NFNETS, output_tally
from .monte_carlo import Sampler, Tally, each
from .networks import (
    batch,
    gaussian,
    network_tally,
    orthogonal_samples,
    probe,
    seeded,
    singular_values,
)

about_init = partial(claim, family="init")


def stack(
    random: np.random.Generator,
    width: int,
    depth: int,
    activation: str,
    start: Callable[..., Module],
) -> Module:
    """Square layers without bias, started by one of `tp.nn.init`, each followed by an
    activation."""
    seeded(random)
    layers = [
        (start(Linear(width, width, bias=False)), Activation(activation)) for _ in range(depth)
    ]
    return Sequential(*sum(layers, ()))


def deep_tally(
    mc: Sampler, width: int, depth: int, activation: str, start: Callable[..., Module]
) -> Tally:
    """Of such a network, for inputs of N(0, 1)."""

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        return stack(random, width, depth, activation, start), gaussian(random, 32, width)

    return network_tally(mc, f"deep {activation}", build, samples=32)


SQUARE = 64  # the width of single layers


def square_tally(mc: Sampler, name: str, start: Callable[..., Module]) -> Tally:
    """Of one such layer with ReLU, for orthogonal samples of mean square 1."""
    x = orthogonal_samples(np.random.default_rng(mc.seed), SQUARE, SQUARE)

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        return stack(random, SQUARE, 1, "relu", start), x

    return network_tally(mc, f"factor {name} {SQUARE}", build, samples=4000, cost=200, block=50)


HALVINGS = 30  # layers


def halvings(
    mc: Sampler, name: str, start: Callable[..., Module], paper: float, relation: str
) -> Case:
    """Of the mean square, by ReLU layers of these weights: one in each, exactly."""
    estimate = square_tally(mc, name, start).function(lambda means: HALVINGS * math.log2(means[1]))
    return Case(
        f"log2 of the mean square after {HALVINGS} layers", paper, -HALVINGS, estimate, relation
    )


@about_init(
    "N09",
    "He et al. (2015), 2.2",
    "Weights of variance 2/n keep the mean square of a ReLU network.",
)
def he_keeps(mc: Sampler) -> Findings:
    """q is the mean square of the n units of a layer. The next layer has q times f = (2/n) sum
    ReLU(z_i)^2, z_i independent N(0, 1), whatever the direction of its input. So f is independent
    from layer to layer, E f = 1 and E f^2 = 1 + 5/n. After L layers, E q = 1, but E q^2 = (1 +
    5/n)^L: most networks have less than 1, and a few much more."""
    depth, tally = 20, square_tally(mc, "he", init.kaiming_normal_)
    second = (1.0 + 5.0 / SQUARE) ** depth
    scatter = math.sqrt(second - 1.0)
    yield Case(
        f"E q after {depth} layers of {SQUARE}", 1.0, 1.0, tally.power(depth, 1), scatter=scatter
    )
    yield shown("E q^2, there", second, tally.power(depth, 2))
    return (
        f"on average; over networks, q scatters by {scatter:.2f} after {depth} layers of {SQUARE}"
    )


@about_init(
    "N10",
    "He et al. (2015), 2.2",
    "Glorot's weights stall deep ReLU networks: 2^-L after L layers.",
)
def glorot_stalls(mc: Sampler) -> Findings:
    """Glorot's weights have variance 1/n in a square layer of width n, so a unit's mean square
    before ReLU is that of the layer's input; ReLU keeps half, as weights w and -w are as likely.
    For any input, so halves multiply."""
    yield halvings(mc, "glorot", lambda linear: linear, -HALVINGS, "equal to")
    return f"{2.0**-HALVINGS:.1e} of it remain after {HALVINGS} layers"


def tanh_recursion(depth: int) -> tuple[float, float]:
    """Mean square, and mean-square gain of gradients, after so many layers of tanh and weights of
    variance 1/n."""
    x = Sites.at([0.0])
    for _ in range(depth):
        x = x.activation("tanh").weights(1.0)
    return x.square, x.gain


@about_init(
    "N11",
    "Glorot and Bengio (2010), 4.2",
    "Normalised initialisation keeps the variance of tanh networks.",
)
def glorot_keeps(mc: Sampler) -> Findings:
    """That is so where tanh is a line, by whose slope 1 the paper derives it. But q = E h^2 of a
    wide layer becomes E tanh(sqrt(q) Z)^2, Z ~ N(0, 1), which is less: about q - 2 q^2 once q is
    small, so q falls like 1/(2L) with the layer L. The gradient's mean square is multiplied by E
    tanh'(sqrt(q) Z)^2 in each layer, and falls likewise."""
    width, depth = 192, 10
    # which starts with Glorot's weights
    tally = deep_tally(mc, width, depth, "tanh", lambda layer: layer)
    square, gain = tanh_recursion(depth)
    yield Case(f"mean square after {depth} layers", 1.0, square, tally.mean(1), finite_size=0.03)
    yield Case(
        f"gain of the gradient over {depth} layers", 1.0, gain, tally.mean(0), finite_size=0.03
    )
    deep = 300
    yield shown(
        f"2 L times the mean square, L = {deep}",
        1.0,
        2.0 * deep * tanh_recursion(deep)[0],
        finite_size=0.02,
    )
    return f"{square:.3f} of it remain after {depth} layers, and {gain:.3f} of the gradient's"


@about_init(
    "N12",
    "Saxe et al. (2014); Pennington et al. (2017)",
    "Orthogonal layers are isometric, but not with ReLU.",
)
def orthogonal_start(mc: Sampler) -> Findings:
    """A product of orthogonal matrices is orthogonal: all singular values are 1. With ReLU and
    weights sqrt(2) times orthogonal, J the Jacobian of L layers of width n and G = J J^T: the sign
    of a row of weights decides whether its unit is on, but not the line that it spans, so which
    units are on are fair coins, independent of these lines. Hence E tr G/n = 1, and E tr G^2/n
    follows a linear recursion, towards 1 + L for wide layers; isometry would have 1. tr G^2 has a
    long tail, so its mean is measured as a median of the means of groups."""
    random = np.random.default_rng(mc.seed)
    values = singular_values(
        stack(random, 64, 9, "identity", init.orthogonal_), gaussian(random, 64)
    )
    farthest = computed(values[abs(values - 1.0).argmax()])
    yield Case("singular value farthest from 1, 9 linear layers", 1.0, 1.0, farthest)
    start = partial(init.orthogonal_, gain=init.gain("relu"))

    def draw(random: np.random.Generator, width: int, depth: int) -> float:
        squares = (
            singular_values(stack(random, width, depth, "relu", start), gaussian(random, width))
            ** 2
        )
        return float((squares**2).mean())

    for width, depth, samples in ((32, 2, 2400), (64, 9, 160)):
        exact = closed_forms.orthogonal_moments(width, depth)[0]
        drawn = each(partial(draw, width=width, depth=depth))
        found = mc.median_of_means(
            f"orthogonal {width} {depth}", drawn, samples, cost=1000 * depth, block=5
        )
        yield Case(
            f"E tr G^2/n, ReLU, {depth} layers of {width}",
            1.0,
            exact,
            found,
            relation="differs from",
        )
    yield shown(
        "the same, 9 layers of 10^9",
        10.0,
        closed_forms.orthogonal_moments(10**9, 9)[0],
        tolerance=1e-6,
    )
    # where tr G is 2 times the number of units that are on
    one = closed_forms.orthogonal_moments(32, 1)
    yield shown("the same, one layer", 2.0, one[0])
    yield shown("E (tr G/n)^2, one layer of 32", 1.0 + 1.0 / 32, one[1])
    deep = closed_forms.orthogonal_moments(64, 9)[0]
    return f"with ReLU the squared singular values spread like 1 + L: {deep:.1f} for 9 layers of 64"


@about_init(
    "N16", "Salimans and Kingma (2016), 2.1", "The gradient by v is orthogonal to v, so |v| grows."
)
def weights_grow(mc: Sampler) -> Findings:
    """A row of weights is w = g v/|v|, with a length g and a vector v that are learnt. The output
    does not depend on |v|, so the gradient by v is orthogonal to v. A step of gradient descent
    of length c |v| makes |v| longer by sqrt(1 + c^2), as in a right triangle; with momentum, that
    is so in the first step only.
    """
    random, rate, layer = (
        np.random.default_rng(mc.seed),
        0.1,
        WeightNorm(Linear(6, 5)).to(dtype="float64"),
    )
    v = layer.layer.weight
    (F.tanh(layer(batch(random, 20, 6))) * batch(random, 20, 5)).sum().backward()
    before, slope = v.numpy().copy(), tensor(v.grad).numpy()
    SGD([v], lr=rate).step()
    old, moved, new = (np.linalg.norm(rows, axis=1) for rows in (before, rate * slope, v.numpy()))
    grown, c = new / old, moved / old
    most = int(c.argmax())
    exact = math.sqrt(1.0 + c[most] ** 2)
    yield is_zero("largest v . gradient of v", abs((before * slope).sum(axis=1)).max())
    yield Case(f"growth of |v| in a step of c = {c[most]:.2f}", exact, exact, computed(grown[most]))
    yield Case("least growth of all rows", 1.0, None, computed(grown.min()), "at least")
    return "Pythagoras: a step orthogonal to v always makes it longer"


@about_init(
    "N17",
    "Salimans and Kingma (2016), 3",
    "Data-dependent initialisation: units have mean 0 and variance 1.",
)
def data_dependent(mc: Sampler) -> Findings:
    """The length g of a row and its bias b are set by one batch: divided by the standard deviation
    that the unit has there, and minus its mean. So it is exact on that batch, for every unit and
    layer. Behind ReLU that is division by c1 |w|, c1 the standard deviation of ReLU(Z), Z ~ N(0,
    1), and w a row: the mean-square gain of the gradient of a wide layer is 1/(2 c1^2) = pi/(pi -
    1), as in NormProp, for the gradient does not see where g and b come from."""
    width, depth, samples = 128, 4, 256

    def draw(random: np.random.Generator) -> list[float]:
        seeded(random)
        layers = [(ReLU(), WeightNorm(Linear(width, width))) for _ in range(depth)]
        net, x = Sequential(*sum(layers, ())), gaussian(random, samples, width)
        out, gain = probe(random, init.data_dependent_(net, x), x)
        return [abs(out.mean(axis=0)).max(), abs(out.var(axis=0) - 1.0).max(), gain]

    tally = mc.tally("data-dependent", each(draw), samples=16, cost=10**5, block=1)
    for i, what in enumerate(("mean of a unit", "variance of a unit minus 1")):
        yield Case(f"largest {what}, layer {depth}", 0.0, 0.0, tally.mean(i), tolerance=1e-4)
    yield shown("gain of the gradient, a layer", CHI, tally.power(1.0 / depth, 2), finite_size=0.04)
    return f"exactly, on that batch. The gradient grows by {CHI:.3f} a layer, as in NormProp"


@about_init(
    "N18", "Salimans and Kingma (2016), 3", "WeightNorm alone does not fix the scale of features."
)
def scale_of_features(mc: Sampler) -> Findings:
    """With rows of length g = 1 and no bias, a unit's pre-activation has the mean square of its
    input, as E (w . x)^2 = |x|^2/n for a random direction w in n dimensions, and ReLU halves it:
    2^-L after L layers, exactly, at any width.
    """
    yield halvings(mc, "weight norm", partial(WeightNorm, scale=1.0), 0.0, "differs from")
    return "each ReLU layer halves the mean square, as with Glorot's weights (N10)"


TAIL, FAR_TAIL = 2.0 * normal_cdf(-1.0) * math.sqrt(math.e), 2.0 * normal_cdf(-2.0) * math.e**2
SELU_ALPHA = math.sqrt(2.0 / math.pi) / (1.0 - TAIL)
SELU_SQUARE = 2.0 * FAR_TAIL + math.pi * TAIL**2 - 2.0 * (2.0 + math.pi) * TAIL + math.pi + 2.0
SELU_LAMBDA = (1.0 - TAIL) * math.sqrt(2.0 * math.pi / SELU_SQUARE)


@about_init(
    "N19",
    "Klambauer et al. (2017), Theorem 1",
    "SELU maps mean 0 and variance 1 to mean 0 and variance 1.",
)
def selu_fixed_point(mc: Sampler) -> Findings:
    """SELU(x) is lambda x for x > 0, and lambda alpha (exp(x) - 1) elsewhere. E SELU(Z) = 0 for Z ~
    N(0, 1) fixes alpha, and E SELU(Z)^2 = 1 then fixes lambda; both have closed forms in e, pi and
    the distribution function of Z."""
    z, weights = normal_grid()
    s = F.selu(tensor(z)).numpy()
    tally = output_tally(mc, "selu", Tally.variance)
    far = F.selu(tensor(np.array([1.0, -50.0]))).numpy()
    yield Case("Var SELU(Z)", 1.0, float(weights @ s**2), tally.variance())
    yield Case("E SELU(Z)", 0.0, float(weights @ s), tally.mean())
    yield Case("lambda", 1.0507, SELU_LAMBDA, computed(far[0]), rounding=5e-5)
    yield Case("alpha", 1.6733, SELU_ALPHA, computed(-far[1] / far[0]), rounding=5e-5)
    return f"for alpha = {SELU_ALPHA:.6f} and lambda = {SELU_LAMBDA:.6f}"


@about_init(
    "N20",
    "Klambauer et al. (2017), Theorem 1",
    "Near that point, errors of the variance shrink by 0.782648.",
)
def selu_slope(mc: Sampler) -> Findings:
    """For weights of sum 0 and length 1, a pre-activation is sqrt(v) Z, Z ~ N(0, 1), v the variance
    of the layer below. Differentiate E s(sqrt(v) Z), s = SELU, by v at 1: E s'(Z) Z/2 = 0.0888,
    what an error of the variance does to the mean. E s^2 gives E s s' Z = 0.7826 for the variance,
    as the mean is 0. The paper prints the first cut off after six digits. The sampled ones are
    differences between v = 1.01 and 0.99, with the same Z."""
    z, weights = normal_grid()
    x = tensor(z, requires_grad=True)
    out = F.selu(x)
    slope, step = grad(out.sum(), x)[0].numpy(), 0.01
    exact = float(weights @ (slope * z)) / 2.0, float(weights @ (out.numpy() * slope * z))

    def draw(random: np.random.Generator, count: int) -> HostArray:
        x = gaussian(random, count)
        up, down = (
            F.selu(math.sqrt(1.0 + d) * x).numpy().astype(np.float64) for d in (step, -step)
        )
        return np.array([up - down, up**2 - down**2]) / (2.0 * step)

    tally = mc.tally("selu slopes", draw, samples=1_000_000)
    for i, (what, printed) in enumerate((("mean", 0.088834), ("variance", 0.782648))):
        yield Case(
            f"slope of the {what}", printed, exact[i], tally.mean(i), rounding=1e-6, tolerance=1e-4
        )
    return "a deviation of the variance falls by a fifth with each layer"


@about_init(
    "N21", "Klambauer et al. (2017), abstract", "With SELU, exploding gradients are impossible."
)
def selu_gradients(mc: Sampler) -> Findings:
    """The signal stays: mean 0 and variance 1 are a stable fixed point (N20). But the mean-square
    gain of the gradient is E SELU'(Z)^2 = 1.0716 for Z ~ N(0, 1) and weights of variance 1/n: above
    1, as for all that is normalised and no line (G3), and its powers have no bound. The theorem
    bounds the variance of the signal, not the gradient."""
    width, depth = 192, 16
    tally = deep_tally(mc, width, depth, "selu", partial(init.kaiming_normal_, nonlinearity="selu"))
    gain = float(moments.gaussian("selu").slope2)
    yield Case("gain of the gradient, 32 layers", 1.0, gain**32)
    yield Case("the same, 100 layers", 1.0, gain**100)
    yield Case(
        f"gain a layer, {depth} layers of {width}",
        1.0,
        gain,
        tally.power(1.0 / depth),
        finite_size=0.01,
    )
    yield shown(f"mean square of the signal, layer {depth}", 1.0, tally.mean(1), finite_size=0.04)
    return (
        f"the signal keeps its scale; the gradient grows to {gain**32:.1f} in 32 layers, "
        f"{gain**100:.0f} in 100"
    )


@about_init("N22", "Brock et al. (2021, ICLR)", "NF-nets scale ReLU by gamma = sqrt(2/(1 - 1/pi)).")
def nf_net_gammas(mc: Sampler) -> Findings:
    """gamma = 1/c1, with c1 the standard deviation of ReLU(Z), Z ~ N(0, 1), gives the output
    variance 1. The constants of the released code, for ReLU and other activations, are 1/c1 of a
    sample, and off by its error: less than 0.1 %."""
    gamma = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))
    yield Case(
        "1/gamma of ReLU",
        1.0 / gamma,
        moments.gaussian("relu").std,
        output_tally(mc, "relu", Tally.std).std(),
    )
    off = {
        name: abs(constant * float(moments.gaussian(name).std) - 1.0)
        for name, constant in NFNETS.items()
    }
    for name in ("relu", "gelu", max(off, key=lambda name: off[name])):
        yield Case(
            f"error of the code's gamma in %, {name}", 0.1, 100.0 * off[name], relation="at most"
        )
    return (
        f"{gamma:.6f}; the released code's are samples, {off['relu']:.2%} off for ReLU, "
        f"{off['gelu']:.2%} for GELU"
    )


@about_init(
    "N23", "Brock et al. (2021, ICLR)", "Scaled weight standardisation gives mean 0 and variance 1."
)
def standardised_weights(mc: Sampler) -> Findings:
    """Each row of weights has the sum 0 and the length 1/c1. Its inputs ReLU(z_i), z_i of N(0, 1),
    have the same mean, which a row of sum 0 removes, and variance c1^2: uncorrelated, they sum up
    to variance 1, for all weights. If each pair z_i, z_j has the correlation rho, then ReLU(z_i)
    and ReLU(z_j) have R(rho), and the variance is 1 - R(rho)."""
    width, rho, exact = 48, 0.5, 1.0 - correlation_after(0.5)
    seeded(np.random.default_rng(mc.seed))
    layer = ScaledWS(Linear(width, 16, bias=False))
    rows = layer.weight.numpy().astype(np.float64)
    yield is_zero("largest sum of a row", abs(rows.sum(axis=1)).max(), tolerance=1e-5)
    yield Case(
        "squared length of a row, times c1^2", 1.0, 1.0, computed((rows[0] ** 2).sum() * C1**2)
    )

    def draw(random: np.random.Generator, count: int) -> HostArray:
        """A unit's output for uncorrelated inputs, and for inputs that have a part in common."""
        z, common = gaussian(random, count, width), gaussian(random, count, 1)
        inputs = z, math.sqrt(rho) * common + math.sqrt(1.0 - rho) * z
        return np.array([layer(F.relu(x)).numpy()[:, 0] for x in inputs])

    tally = mc.tally("standardised", draw, samples=100_000, block=1 << 12, watch=Tally.variance)
    yield Case("mean of a unit, uncorrelated inputs", 0.0, 0.0, tally.mean())
    yield Case("variance of a unit, uncorrelated inputs", 1.0, 1.0, tally.variance())
    yield shown(f"variance of a unit, inputs of correlation {rho:g}", exact, tally.variance(1))
    return (
        f"for every draw of weights and uncorrelated inputs; {exact:.3f} at a correlation of "
        f"{rho:g}"
    )
