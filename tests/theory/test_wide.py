"""The recursion of wide networks, against the same theory written out for each normaliser, with
nested Gauss-Legendre sums in place of duals; and against simulations.

The theory in short. Take two inputs a and b, and a layer u = W s(z) with random rows of the squared
length `square`. In a wide layer, each unit of u is Gaussian over W, with

    E u_a u_b = square * E s(z_a) s(z_b),

so these products follow from those of z. The squared gradient grows by square * E s'(z)^2. What the
normalisers do to squares, products and gradients is in `ByHand`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.theory.pointwise import Pointwise
from tinyprop.theory.stacks import COSINES, Stack
from tinyprop.theory.wide import Wide

SAME = 2e-12
NORMS = list(nn.normalizers)
EPS = 1e-5  # of normalisers
EDGE = 9.0  # standard deviations
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
EDGES = np.linspace(-EDGE, EDGE, 11)


def panels(kink):
    """Nodes and weights for N(0, 1), for functions that are smooth but at one place. For many
    places (n,), they are (n, nodes)."""
    kink = np.clip(np.asarray(kink, "float64"), -EDGE, EDGE)[..., None]
    equal = np.broadcast_to(EDGES, (*kink.shape[:-1], len(EDGES)))
    edges = np.sort(np.concatenate([equal, kink], axis=-1), axis=-1)
    half = 0.5 * np.diff(edges)[..., None]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None]
    z = (middle + half * NODES).reshape(*kink.shape[:-1], -1)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return z, (half * WEIGHTS).reshape(z.shape) * density


# Functions, written out


class Function(NamedTuple):
    """A function with a kink at 0 at most, and its slope."""

    value: Callable
    slope: Callable

    def of(self, inner, factor):
        """This function of inner(factor * u), by the chain rule."""
        return Function(
            lambda u: self.value(inner.value(factor * u)),
            lambda u: factor * self.slope(inner.value(factor * u)) * inner.slope(factor * u),
        )


class Expectations(NamedTuple):
    """Of s(Z + beta), and of the square of its slope."""

    mean: float
    std: float
    square: float
    slope2: float


def expectations(function, beta=0.0):
    z, weights = panels(-beta)
    mean = weights @ function.value(z + beta)
    square = weights @ function.value(z + beta) ** 2
    slope2 = weights @ function.slope(z + beta) ** 2
    return Expectations(mean, math.sqrt(square - mean**2), square, slope2)


def relu(u):
    return np.maximum(u, 0.0)


def selu(u):
    return 1.0507009873554805 * np.where(
        u > 0.0, u, 1.6732632423543772 * np.expm1(np.minimum(u, 0))
    )


def selu_slope(u):
    return 1.0507009873554805 * np.where(u > 0.0, 1, 1.6732632423543772 * np.exp(np.minimum(u, 0)))


RELU = Function(relu, lambda u: (u > 0.0).astype("float64"))
TANH = Function(np.tanh, lambda u: 1.0 - np.tanh(u) ** 2)
ERF = Function(np.vectorize(math.erf), lambda u: 2.0 / math.sqrt(math.pi) * np.exp(-u * u))
SELU = Function(selu, selu_slope)
FUNCTIONS = {"relu": RELU, "tanh": TANH, "erf": ERF}


# The theory, written out


@dataclass
class ByHand:
    """A layer gamma N(W A(s(z + beta) - shift)), with rows of W of the squared length `square`.

    N divides by the root mean square over units ("rms"), by the standard deviation over a batch
    ("std"), or by nothing (""). A is the same behind the activation, or nothing.
    """

    function: Function
    square: float
    shift: float | None = 0.0  # None for the mean of s
    beta: float = 0.0
    divide: str = ""
    eps: float = EPS
    gamma: float = 1.0
    divides_after: bool = False  # whether A divides by the root mean square
    start: float = 1.0  # the mean square after the first layer
    scaled: bool = False  # whether residual blocks divide by the std that theory predicts
    measured: bool = False  # whether N is measured on fixed samples

    # A state is an array: the mean square of z, its mean product for two unrelated inputs, and that
    # for pairs of inputs.

    def after_weights(self, state):
        """The state after s and W, and the growth of the squared gradient."""
        std = math.sqrt(state[0])
        z, weights = panels(-self.beta / std)
        value = self.function.value(self.beta + std * z)
        slope = self.function.slope(self.beta + std * z)
        mean = weights @ value
        slope2 = weights @ slope**2

        cosines = state[1:] / state[0]
        products = np.array([self.product(rho, std) for rho in [1.0, *cosines]])
        shift = mean if self.shift is None else self.shift
        products += shift * (shift - 2.0 * mean)  # E (s - shift)(t - shift)
        square = self.square
        if self.divides_after:
            square /= products[0] + EPS
        return square * products, square * slope2

    def product(self, rho, std):
        """E s(U) s(V) for U and V of this correlation."""
        z, weights = panels(-self.beta / std)
        s_of_u = self.function.value(self.beta + std * z)
        if rho > 1.0 - 1e-12:
            return weights @ s_of_u**2
        rest = math.sqrt(1.0 - rho * rho)
        x, inner = panels((-self.beta / std - rho * z) / rest)
        v = self.beta + std * (rho * z[:, None] + rest * x)
        s_of_v = (inner * self.function.value(v)).sum(axis=1)  # E[s(V) | U]
        return (weights * s_of_u) @ s_of_v

    def normalized(self, state):
        """The state after gamma N, and what that divides squares by."""
        if not self.divide:
            return state, 1.0
        if self.divide == "std":  # unrelated inputs say what all inputs of a batch have in common
            state = state - state[1]
        square = (state[0] + self.eps) / self.gamma**2
        return state / square, square

    def plain(self, depth, cosines):
        """The state after each layer, and by how much each one multiplies the squared gradient."""
        first = self.start * np.array([1.0, 0.0, *cosines])
        states = [self.normalized(first)[0]]
        gains = []
        while len(states) < depth:
            after, gain = self.after_weights(states[-1])
            after, square = self.normalized(after)
            states.append(after)
            gains.append(gain / square)
        return np.array(states), np.array(gains)

    def residual(self, depth, cosines):
        """The same for blocks x + f(x): squares, products and gradients of both parts add up."""
        states = [np.array([1.0, 0.0, *cosines])]
        gains = []
        for _ in range(depth):
            x = states[-1]
            if self.scaled:
                entering, before = x / x[0], x[0]
            else:
                entering, before = self.normalized(x)
            branch, gain = self.after_weights(entering)
            after = 1.0
            if self.measured:
                branch, after = self.normalized(branch)
            states.append(x + branch)
            gains.append(1.0 + gain / before / after)
        return np.array(states), np.array(gains)


def by_hand(norm, activation):
    """What the papers say of each normaliser, with its own initial weights."""
    function = FUNCTIONS[activation]
    if norm == "dyt":
        function = function.of(TANH, 0.5)
    if norm == "derf":
        function = function.of(ERF, 0.5)
    if norm == "selu":
        function = SELU
    s = expectations(function)
    unit_variance = 1.0 / s.std**2
    he = 1.0 / s.square
    jacobian_gamma = float(np.float32(s.std / math.sqrt(s.slope2)))
    if norm == "normprop":
        start = jacobian_gamma**2
        return ByHand(function, start * unit_variance, s.mean, start=start, scaled=True)
    if norm == "normprop-measured":
        options = {"divide": "std", "eps": 0.0, "gamma": jacobian_gamma, "measured": True}
        return ByHand(function, unit_variance, s.mean, scaled=True, **options)
    if norm == "normprop-exact":
        beta = 1.0 if activation == "relu" else 0.0
        s = expectations(function, beta)
        return ByHand(function, 1.0 / s.std**2, s.mean, beta, scaled=True)
    if norm == "ws":
        return ByHand(function, unit_variance, None, scaled=True)
    if norm == "batch":
        return ByHand(function, 1.0, divide="std")
    if norm in ("layer", "rms", "group", "instance"):
        return ByHand(function, he, divide="rms")
    if norm == "layer-after":
        return ByHand(function, he, None, divides_after=True)
    return ByHand(function, 1.0 if norm == "none" else he)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("norm", NORMS)
def test_stacks(norm, activation, residual):
    """Every normaliser: mean squares, products of pairs, and gains."""
    theory = Stack(norm, activation, 3, 16, 8, residual).theory
    some = [0, 2, 11, 19, 21]  # of the pairs, which take their time
    expected = by_hand(norm, activation)
    follow = expected.residual if residual else expected.plain
    states, gains = follow(3, COSINES[some])
    square, unrelated, pairs = theory.squares[:, :1], theory.squares[:, 1:2], theory.squares[:, 2:]
    found = np.concatenate([square, unrelated, pairs[:, some]], axis=1)
    np.testing.assert_allclose(found, states, rtol=SAME, atol=SAME * states.max())
    np.testing.assert_allclose(theory.gains, gains, rtol=SAME)


# Strangers


def test_a_stranger_needs_no_declaration():
    """Its forward says all there is to say, whether theory knows its name or not."""

    class Doubled(nn.BatchNorm):
        def forward(self, x):
            return 2.0 * super().forward(x)

    mine = Stack(nn.Normalizer("doubled", before=Doubled, init="glorot"), "tanh", 4, 16, 8, False)
    ours = Stack("batch", "tanh", 4, 16, 8, False, gamma=2.0)
    np.testing.assert_allclose(mine.states, ours.states, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine.predicted("signal"), ours.theory.squares[:, 0] ** 0.5)
    assert mine.predicted("gradient") is None, "the size of its batch matters, and is not known"
    after = nn.Normalizer("after", after=nn.BatchNorm)
    assert Stack(after, "tanh", 4, 16, 8, False).theory is None, "its units differ in variance"


def test_a_stranger_bends_values_before_the_activation():
    """Two functions in a row are one, whoever wrote them: ReLU of 3 clip(u)."""

    class Clipped(nn.Module):
        per_sample = True

        def forward(self, x):
            return 3.0 * tp.functional.clip(x, -0.5, 0.5)

    clipped = nn.Normalizer("clipped", before=lambda channels: Clipped(), init="glorot")
    z, weights = panels(0.5)  # 0 is an edge of panels, too
    positive = 3.0 * np.minimum(relu(z), 0.5)
    theory = Stack(clipped, "relu", 2, 16, 8, False).theory
    assert theory.states[0].square == pytest.approx(2.0 * (weights @ positive**2), rel=1e-12)
    assert not theory.is_of_sums, "slopes are not those of Gaussian values"
    after = nn.ReLU()(Clipped()(Wide.at([]))).weighted(1.0)
    assert after.unrelated == pytest.approx((weights @ positive) ** 2, rel=1e-9)
    assert after.square == pytest.approx(weights @ positive**2, rel=1e-9)


# What a stranger makes of weights


def hooked(change, activation="tanh", width=64, **options):
    """Networks of a normaliser that does this to each layer that it is given."""

    def weights(layer):
        return change(layer) or layer

    entry = nn.Normalizer("hooked", weights=weights, **options)
    return Stack(entry, activation, 4, width, 32, False)


def times(factor):
    def change(layer):
        layer.weight.data[...] *= factor

    return change


def by_size(layer):
    layer.weight.data[...] /= math.sqrt(layer.in_features)


def bias_of_one(layer):
    layer.bias.data[...] = 1.0


def drawn_again(layer):
    layer.weight.data[...] = tp.randn(*layer.weight.shape).data / 8.0


def with_zero_sum(layer):
    layer.weight.data[...] -= layer.weight.data.mean(axis=1, keepdims=True)


class Tripled(nn.Module):
    """Changes the layer that it wraps, and its output."""

    def __init__(self, layer):
        layer.weight.data[...] *= 0.5
        self.layer = layer

    def forward(self, x):
        return 3.0 * self.layer(x)


GAIN = nn.init.gain("tanh")
# lengths of rows, in the first layer and in the others
CHANGES = {
    "half": (times(0.5), 0.5, 0.5 * GAIN),
    "twice": (times(2.0), 2.0, 2.0 * GAIN),
    "by its size": (by_size, 0.125, 0.125 * GAIN),
    "WeightNorm": (lambda layer: nn.WeightNorm(layer, 0.25), 0.25, 0.25),
    "a wrapper": (Tripled, 1.5, 1.5 * GAIN),
}


@pytest.mark.parametrize(("change", "first", "length"), CHANGES.values(), ids=CHANGES)
def test_theory_takes_the_weights_that_a_stranger_leaves(change, first, length):
    theory = hooked(change).theory
    pair = Wide.at([0.3]).weighted(first**2).restarted()
    assert theory.states[0].square == pytest.approx(pair.square, rel=1e-6)
    for state in theory.states[1:]:
        pair = pair.apply("tanh").weighted(length**2)
        assert state.square == pytest.approx(pair.square, rel=1e-6)
    assert math.prod(theory.gains) == pytest.approx(pair.gain, rel=1e-6)


@pytest.mark.parametrize("init", ["glorot", "he", "orthogonal"])
@pytest.mark.parametrize("change", [bias_of_one, drawn_again, with_zero_sum])
def test_theory_of_a_stranger_is_what_its_networks_do(change, init):
    """Within 5 standard errors, and a relative 1/width in each layer."""
    stack = hooked(change, init=init)
    tp.manual_seed(0)
    squares, products = [], []
    for _ in range(30):
        out = stack.network()(tp.randn(32, 64)).numpy()
        gram = out @ out.T / 64
        squares.append(gram.trace() / 32)
        products.append((gram.sum() - gram.trace()) / (32 * 31))
    last = stack.theory.states[-1]
    for found, expected in ((squares, last.square), (products, last.unrelated)):
        error = np.std(found, ddof=1) / math.sqrt(30)
        assert abs(np.mean(found) - expected) < 5 * error + 4 / 64 * last.square
    if change is bias_of_one:
        assert last.has_mean
        assert stack.predicted("spectrum") is None, "it is known for values of mean 0"


def all_equal(layer):
    layer.weight.data[...] = 0.1


def positive(layer):
    layer.weight.data[...] = abs(layer.weight.data)


def of_rank_one(layer):
    layer.weight.data[...] = tp.randn(64, 1).data * tp.randn(1, 64).data


def one_number_in_each_row(layer):
    layer.weight.data[...] = np.eye(64)[np.random.default_rng(len(layer.weight)).permutation(64)]


def of_different_lengths(layer):
    layer.weight.data[: len(layer.weight) // 2] *= 9.0


def always_the_same(layer):
    layer.weight.data[...] = np.random.default_rng(0).standard_normal(layer.weight.shape)


def different_biases(layer):
    layer.bias.data[...] = tp.randn(*layer.bias.shape).data


class Positive(Tripled):
    def forward(self, x):
        return tp.functional.linear(x, abs(self.layer.weight))


UNKNOWN = [
    all_equal,
    positive,
    of_rank_one,
    one_number_in_each_row,
    of_different_lengths,
    always_the_same,
    different_biases,
    Positive,
]


@pytest.mark.parametrize("change", UNKNOWN)
def test_there_is_no_theory_of_weights_that_are_not_random(change):
    stack = hooked(change)
    assert stack.theory is None
    assert stack.predicted("signal") is None
    assert all(part in stack.reason for part in ("got:", "rule:", "try:"))


def test_the_weights_of_a_whole_layer_are_those_of_its_constructor():
    class Small(nn.Module):
        def __init__(self, inputs, outputs, activation):
            self.layer = nn.Linear(inputs, outputs)
            self.layer.weight.data[...] *= 0.5
            self.activation = nn.Activation(activation)

        def forward(self, x):
            return self.activation(self.layer(x))

    def first(init):
        entry = nn.Normalizer("small", layer=Small, init=init)
        return Stack(entry, "identity", 3, 256, 32, False).states[0, 0]

    assert first("glorot") == pytest.approx(0.25, rel=0.03)
    assert first("he") == pytest.approx(1.0, rel=1e-9), "which draws them again"


# Networks of random weights

TWO_SAMPLES = np.array([[1.0, 0.0] * 4, [0.6, 0.8] * 4])  # of mean square 0.5 and cosine 0.6


def row_square(linear):
    """The mean squared length of its rows."""
    weight = linear.weight.numpy()
    return float((weight**2).sum() / len(weight))


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "erf"])
def test_propagate_with_random_weights(activation):
    """Two samples of the same length: their mean square and their product, after each layer."""
    tp.manual_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(8, 8, bias=False), nn.Activation(activation)]
    net = nn.Sequential(*layers).to(dtype="float64")
    records = tp.propagate(net, data=TWO_SAMPLES, weights="random")
    sites = Wide.at([0.6], 0.5)
    for layer, record in zip(net, records, strict=True):
        if isinstance(layer, nn.Linear):
            sites = sites.weighted(row_square(layer))
        else:
            sites = sites.apply(activation)
        of_mean = 0.5 * (sites.square + sites.products[0])
        assert record.mean[0] ** 2 == pytest.approx(of_mean, rel=SAME)
        assert record.variance[0] == pytest.approx(sites.square - of_mean, rel=SAME)


def test_pointwise_layers_in_a_row_with_random_weights():
    """For samples as for pairs, DyT and ReLU are one function, whose mean is not that of ReLU."""
    tp.manual_seed(0)
    linear = nn.Linear(8, 8, bias=False)
    net = nn.Sequential(linear, nn.DyT(8, alpha=2.0), nn.ReLU()).to(dtype="float64")
    record = tp.propagate(net, data=TWO_SAMPLES, weights="random")[2]
    square = row_square(linear)
    z, weights = panels(0.0)
    values = relu(np.tanh(2.0 * math.sqrt(0.5 * square) * z))
    before = Wide.at([0.6], 0.5).weighted(square)
    pairs = before.scale(2.0).apply("tanh").apply("relu")
    assert pairs.square == pytest.approx(weights @ values**2, rel=1e-12)
    assert pairs.unrelated == pytest.approx((weights @ values) ** 2, rel=1e-9)
    of_mean = 0.5 * (pairs.square + pairs.products[0])
    assert record.mean[0] ** 2 == pytest.approx(of_mean, rel=1e-9)
    assert record.variance[0] == pytest.approx(pairs.square - of_mean, rel=1e-9)


def arc_cosine_kernel(rho):
    """2 E relu(U) relu(V) for standard Gaussian U and V of this correlation (Cho, Saul, 2009)."""
    root = math.sqrt(1 - rho * rho)
    return (root + rho * (math.pi - math.acos(rho))) / math.pi


def test_he_s_network_keeps_its_mean_square():
    """With ReLU and He's weights; its cosine follows the arc-cosine kernel."""
    sites = Wide.at([0.3])
    rho = 0.3
    for _ in range(20):
        sites = sites.apply("relu").weighted(2.0)
        rho = arc_cosine_kernel(rho)
        assert sites.square == pytest.approx(1.0, rel=SAME)
        assert sites.gain == pytest.approx(1.0, rel=SAME)
        assert sites.cosines[0] == pytest.approx(rho, rel=SAME)


def test_a_network_of_tanh_iterates_its_mean_square():
    sites = Wide.at([0.3])
    square = 1.0
    gain = 1.0
    for _ in range(20):
        m = tp.moments.gaussian("tanh", 0.0, math.sqrt(square))
        square = m.std**2
        gain *= m.slope2
        sites = sites.apply("tanh").weighted(1.0)
    assert sites.square == pytest.approx(square, rel=SAME)
    assert sites.gain == pytest.approx(gain, rel=SAME)


def test_residual_blocks_of_dyt_add_to_the_square():
    """And multiply the gain by 1 + that of the branch."""
    square = 1.0
    gain = 1.0
    for _ in range(12):
        m = tp.moments.gaussian("tanh", 0.0, 0.5 * math.sqrt(square))
        square += m.std**2
        gain *= 1.0 + 0.25 * m.slope2
    assert tp.theory.gains.tanh_residual(12) == pytest.approx((square, gain), rel=SAME)


@pytest.mark.parametrize("gamma", [1.0, 1 / 1.21])
def test_the_paper_s_recursion(gamma):
    """The variance of a unit and the square of its mean, with the constants of ReLU: from q = E u^2
    and k = (E u)^2 of one layer to those of the next, (gamma / c1)^2 E (relu(u) - c2)^2."""
    c2 = 1.0 / math.sqrt(2.0 * math.pi)
    c1 = math.sqrt(0.5 - c2 * c2)
    q = gamma**2
    k = 0.0
    found = tp.verify.closed_forms.depth_recursion(gamma, 30).T
    for row in found:
        assert row == pytest.approx((q - k, k), rel=SAME, abs=SAME)
        same = 0.5 * q  # E relu(u)^2
        other = 0.5 * q * arc_cosine_kernel(min(1.0, k / q))
        minus_c2 = -2.0 * c2 * (c2 * math.sqrt(q)) + c2 * c2
        q = (gamma / c1) ** 2 * (same + minus_c2)
        k = (gamma / c1) ** 2 * (other + minus_c2)


def test_a_record_that_a_forward_calls_keeps_its_kinks():
    """E s(U) s(V) of hardtanh, for a correlation of 0.5, by 400 panels of 16 nodes and the mean of
    a clipped Gaussian."""
    hardtanh = tp.activations["hardtanh"]
    assert hardtanh(Wide.at([0.5])).products[0] == pytest.approx(0.23816916580077063, rel=1e-14)
    prelu = tp.activations["prelu"]
    assert prelu(Wide.at([])).square == pytest.approx(0.5 * (1.0 + 0.25**2), rel=1e-14)


def test_a_function_that_changes_is_not_remembered():
    """As one with a number that is being learnt: squares grow with that of the factor."""
    factor = [1.0]
    learnt = tp.Activation(lambda u: tp.functional.tanh(u) * factor[0], "learnt")
    in_a_row = tp.Activation(lambda u: tp.functional.relu(u - 0.1) * factor[0], "bent", kinks=[0.1])

    def found():
        pair = Wide.at([0.5])
        once = pair.apply(learnt)
        twice = pair.apply("tanh").apply(in_a_row)
        batch_norm = tp.theory.gains.batch_norm_residual_gain(2, 8, learnt, square=1.0)
        signal = Stack("none", learnt, 2, 64, 16, residual=False).predicted("signal")
        values = [once.square, once.unrelated, twice.square, twice.gain, signal[1] ** 2]
        return np.array([*values, *once.products, *twice.products]), batch_norm

    before, gain = found()
    factor[0] = 2.0
    after, larger_gain = found()
    np.testing.assert_allclose(after, 4.0 * before, rtol=1e-9)
    assert larger_gain > gain


def test_branches_with_something_in_common():
    """E (x + ReLU(x))^2 = 1 + 1/2 + 2 E x ReLU(x) = 5/2; the gain of such a sum is not known, but
    that of independent branches is 1 + E s'^2 v."""
    x = Wide.at([0.3])
    both = x + nn.ReLU()(x)
    assert both.square == pytest.approx(2.5, rel=1e-12)
    assert math.isnan(both.gain)
    independent = x + nn.ReLU()(x).weighted(3.0)
    assert independent.square == pytest.approx(2.5, rel=1e-12)
    assert independent.gain == pytest.approx(2.5, rel=1e-12)
    assert independent.restarted().gain == 1.0
    assert nn.Dropout(0.5)(x).gain == 2.0


def test_a_declaration_serves_where_a_forward_has_no_rule():
    """For given weights, too: as LayerNorm, with its weight and bias."""

    class Standardized(nn.Module):
        per_sample = True
        statistics = nn.Statistics(over="sample")

        def __init__(self):
            self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
            self.bias = tp.tensor([0.5, 0.0, 0.0], requires_grad=True)

        def forward(self, x):
            mean = x.mean(axis=1, keepdims=True)
            square = ((x - mean) ** 2).mean(axis=1, keepdims=True)
            return (x - mean) / tp.functional.sqrt(square) * self.weight + self.bias

    mine = Standardized()
    ours = nn.LayerNorm(3, eps=0.0)
    ours.weight.data[...] = mine.weight.data
    ours.bias.data[...] = mine.bias.data
    law = [0.5, -1.0, 2.0], np.diag([1.0, 4.0, 0.25])
    (found,), (expected,) = tp.propagate(mine, *law), tp.propagate(ours, *law)
    np.testing.assert_allclose(found.mean, expected.mean)
    np.testing.assert_allclose(found.variance, expected.variance)

    class Raw(Standardized):
        statistics = nn.Statistics(over="batch", center=False)

    with pytest.raises(TypeError, match="keeps means"):
        tp.propagate(Raw(), *law)


def test_samples_that_are_fixed_are_no_batch():
    """A measured layer treats each input by itself, so its angles and its spectrum are known; those
    of BatchNorm are not."""
    stacks = [Stack(n, "relu", 3, 16, 8, False) for n in ("normprop-measured", "batch")]
    measured, batch = ([s.predicted(i) for i in ("correlation", "spectrum")] for s in stacks)
    assert measured[0][0] == pytest.approx(0.5)
    assert np.isfinite(measured[1]).any()
    assert batch == [None, None]


# Images


def records_of(net, data):
    """Mean and variance of each layer with random weights."""
    records = tp.propagate(net, data=data, weights="random")
    return np.array([(record.mean[0], record.variance[0]) for record in records])


def padded(images, width):
    border = (width, width)
    return np.pad(images, [(0, 0), (0, 0), border, border])


@pytest.mark.parametrize("count", [7, 115])
def test_images_that_are_enlarged(rng, count):
    """A convolution of one pixel with padding is one without, of padded images: the blocks of 115
    samples are cut for the larger ones, and differ in size."""
    images = rng.standard_normal((count, 3, 2, 2)) + 1.0
    conv = nn.Conv2d(3, 5, 1, padding=2)
    rest = [
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(5, 4, 3, padding=1),
        nn.BatchNorm(4),
        nn.ReLU(),
        nn.MaxPool2d(3),
    ]
    plain = nn.Conv2d(3, 5, 1)
    plain.load_state_dict(conv.state_dict())
    found = records_of(nn.Sequential(conv, *rest), images)
    assert found == pytest.approx(records_of(nn.Sequential(plain, *rest), padded(images, 2)))
    assert (found[:, 1] > 0).all()


def test_a_pool_enlarges_images(rng):
    images = rng.standard_normal((470, 3, 2, 2))
    max_pool = nn.MaxPool2d(2, 1, padding=1)
    avg_pool = nn.AvgPool2d(2, 1, padding=1)
    found = records_of(nn.Sequential(nn.Conv2d(3, 4, 1), max_pool, avg_pool), images)
    assert found.shape == (3, 2)
    assert (found[:, 1] > 0).all()


def test_a_pool_of_zeros():
    net = nn.Sequential(nn.Conv2d(1, 4, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    *_, pooled = tp.propagate(net, data=np.zeros((3, 1, 4, 4)), weights="random")
    assert pooled.mean.item() == pooled.variance.item() == 0.0


def test_branches_whose_inputs_differ_in_size(rng):
    """A shortcut that pools the input, and a branch whose convolution has a stride: both have the
    same blocks of samples, and nothing in common."""

    class Block(nn.Module):
        def __init__(self):
            self.branch = nn.Conv2d(3, 5, 2, stride=2, bias=False)
            self.pool = nn.AvgPool2d(2)
            self.shortcut = nn.Conv2d(3, 5, 1, bias=False)

        def forward(self, x):
            return self.branch(x) + self.shortcut(self.pool(x))

    found = records_of(Block(), rng.standard_normal((256, 3, 8, 8)))
    branch, _, shortcut, total = found[:, 0] ** 2 + found[:, 1]
    assert total == pytest.approx(branch + shortcut)


def test_samples_without_a_partner(rng):
    """Of three images of 1225 positions, one has a block of its own, without pairs."""
    images = rng.standard_normal((3, 2, 35, 35)) + 1.0
    conv = nn.Conv2d(2, 3, 1, bias=False)
    (found,) = records_of(conv, np.repeat(images[:1], 3, axis=0))
    (alone,) = records_of(conv, images[:1])
    assert found == pytest.approx(alone)


def test_images_that_are_too_large():
    images = np.ones((256, 3, 2, 2), "float32")
    with pytest.raises(tp.ShapeError, match="256 samples of images with 40,804 positions"):
        records_of(nn.Conv2d(3, 5, 1, padding=100), images)
    pooled = nn.Sequential(nn.Conv2d(3, 5, 1, padding=22), nn.AvgPool2d(2))
    with pytest.raises(tp.ShapeError, match=r"AvgPool2d of images \(5, 46, 46\)"):
        records_of(pooled, images[:2])


# Stacks


@pytest.mark.parametrize("activation", ["hardtanh", "relu"])
def test_rounding_does_not_move_a_spectrum(activation):
    """The kinks of hardtanh are at 1 standard deviation of the first layer, and near it later."""

    class Rounded(Stack):
        factor = 1.0

        @property
        def states(self):
            return super().states * self.factor

    found = []
    for factor in (1.0 - 1e-13, 1.0, 1.0 + 1e-13):
        stack = Rounded("normprop", activation, 4, 64, 8, False, gamma=1.0)
        object.__setattr__(stack, "factor", factor)
        found.append(stack.largest())
    np.testing.assert_allclose(found, np.broadcast_to(found[1], (3, 4)), rtol=1e-9)


def test_the_factor_of_a_residual_branch():
    alpha, depth = 0.5, 4
    stack = Stack("ws", "relu", depth, 16, 8, True, alpha=alpha)
    expected = 1.0 + alpha**2 * np.arange(depth + 1)
    np.testing.assert_allclose(stack.states[:, 0], expected, rtol=1e-12)
    _, *blocks = stack.network()
    assert [block.alpha for block in blocks] == [alpha] * depth
    assert [block.beta**2 for block in blocks] == pytest.approx(expected[:-1])


def test_a_batch_norm_branch_with_a_factor():
    """In a large batch, its gradient is that of the limit."""
    stack = Stack("batch", "relu", 3, 4096, 10**6, True, init="he", alpha=0.5)
    limits = np.cumprod(stack.theory.gains[::-1])[::-1]
    found = stack.predicted("gradient")
    np.testing.assert_allclose(found[:-1] ** 2, limits, rtol=1e-3)
    whole_branches = Stack("batch", "relu", 3, 64, 64, True, init="he")
    assert limits[0] < 2.0 < np.prod(whole_branches.theory.gains), "the factor is seen"


def test_a_function_does_not_pass_what_it_only_comes_near():
    """tanh is rounded to 1 far away, where hardtanh has a kink that it never sees; but 0.5, it
    passes. A covariance without a kink is a series, thousands of times as fast as one with."""
    tanh = Pointwise(tp.activations["tanh"], {})
    law = np.zeros(1), np.array([10.0])

    def kinks_after_tanh(activation):
        found = Pointwise(activation, {}, inner=tanh).places(*law)
        return found[abs(found) < 100.0]  # others are places that no value reaches

    bent = tp.Activation(lambda u: abs(u - 0.5), "bent", kinks=(0.5,))
    assert len(kinks_after_tanh(tp.activations["hardtanh"])) == 0
    assert kinks_after_tanh(bent) == pytest.approx([math.atanh(0.5)], rel=1e-12)


def test_rows_of_sum_0_keep_the_variance_of_a_pair():
    """What is known of pairs are expectations, which need no correction for a sample's mean."""
    layer = nn.ScaledWS(nn.Linear(50, 50, bias=False), "identity").to(dtype="float64")
    after = layer(Wide.at([0.3], units=50))
    assert (after.square, after.products[0]) == pytest.approx((1.0, 0.3), rel=1e-12)
