"""The recursion of wide networks, against the same theory written out for each normaliser, with
nested Gauss-Legendre sums in place of duals; and against simulations."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.theory.stacks import COSINES, Stack
from tinyprop.theory.wide import Wide

SAME = 2e-12
NORMS = list(nn.normalizers)
EPS = 1e-5  # of normalisers
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
EDGES = np.linspace(-9.0, 9.0, 11)


def panels(kink):
    """Nodes and weights for N(0, 1), for functions that are smooth but at one place (or many)."""
    kink = np.clip(np.asarray(kink, "float64"), -9.0, 9.0)[..., None]
    edges = np.sort(
        np.concatenate([np.broadcast_to(EDGES, (*kink.shape[:-1], len(EDGES))), kink], -1), -1
    )
    half = 0.5 * np.diff(edges)[..., None]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None]
    z = (middle + half * NODES).reshape(*kink.shape[:-1], -1)
    weights = (half * WEIGHTS).reshape(z.shape) * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return z, weights


@dataclass
class ByHand:
    """A layer gamma N(W A(s(z + beta) - shift)), with |row of W|^2 = square."""

    function: Callable
    slope: Callable
    square: float
    shift: float | None = 0.0  # None for the mean of s
    beta: float = 0.0
    divide: str = ""  # "rms" or "std": N
    eps: float = EPS
    gamma: float = 1.0
    divides_after: bool = False
    start: float = 1.0
    scaled: bool = False
    measured: bool = False

    def layer(self, state):
        """From the mean square of z and its products to those of the next z, and the gain."""
        std = math.sqrt(state[0])
        z, weights = panels(-self.beta / std)
        value = self.function(self.beta + std * z)
        mean = weights @ value
        slope2 = weights @ self.slope(self.beta + std * z) ** 2
        pairs = [self.product(rho, std, z, weights * value) for rho in state[1:] / state[0]]
        products = np.array([weights @ value**2, *pairs])
        shift = mean if self.shift is None else self.shift
        products += shift * (shift - 2.0 * mean)
        square = self.square / (products[0] + EPS) if self.divides_after else self.square
        return square * products, square * slope2

    def product(self, rho, std, z, weighted):
        """E s(U) s(V)."""
        if rho > 1.0 - 1e-12:
            return weighted @ self.function(self.beta + std * z)
        rest = math.sqrt(1.0 - rho * rho)
        inner, weights = panels((-self.beta / std - rho * z) / rest)
        v = self.beta + std * (rho * z[:, None] + rest * inner)
        return weighted @ (weights * self.function(v)).sum(axis=1)

    def normalize(self, state, divide, gamma):
        """The state after N, and what it divides squares by."""
        if not divide:
            return state, 1.0
        if divide == "std":
            state = state - state[1]
        square = (state[0] + self.eps) / gamma**2
        return state / square, square

    def states(self, depth, cosines, residual):
        """Of all layers or blocks, and the gain of each."""
        first = np.append([1.0, 0.0], cosines)
        states, gains = [first], []
        if not residual:
            states[0], _ = self.normalize(self.start * first, self.divide, self.gamma)
        for _ in range(depth - (not residual)):
            state, added = states[-1], 0.0
            square = later = 1.0
            if residual and self.scaled:
                state, square = state / state[0], state[0]
            elif residual:
                state, square = self.normalize(state, self.divide, self.gamma)
            after, gain = self.layer(state)
            if self.measured or not residual:
                after, later = self.normalize(after, self.divide, self.gamma)
            if residual:
                after, added = states[-1] + after, 1.0
            states.append(after)
            gains.append(added + gain / square / later)
        return np.array(states), np.array(gains)


def relu(u):
    return np.maximum(u, 0.0)


def step(u):
    return (u > 0.0).astype("float64")


def tanh_slope(u):
    return 1.0 - np.tanh(u) ** 2


def erf(u):
    return np.vectorize(math.erf)(u)


def erf_slope(u):
    return 2.0 / math.sqrt(math.pi) * np.exp(-u * u)


def selu(u):
    return 1.0507009873554805 * np.where(
        u > 0.0, u, 1.6732632423543772 * np.expm1(np.minimum(u, 0))
    )


def selu_slope(u):
    return 1.0507009873554805 * np.where(
        u > 0.0, 1.0, 1.6732632423543772 * np.exp(np.minimum(u, 0))
    )


FUNCTIONS = {"relu": (relu, step), "tanh": (np.tanh, tanh_slope), "erf": (erf, erf_slope)}


def squashed(name, by):
    """s(t(u / 2)), and its slope."""
    s, s_slope = FUNCTIONS[name]
    t, t_slope = FUNCTIONS[by]
    return (
        lambda u: s(t(0.5 * u)),
        lambda u: 0.5 * s_slope(t(0.5 * u)) * t_slope(0.5 * u),
    )


def expectations(function, slope, beta=0.0):
    """Mean, standard deviation and E s^2 of s(Z + beta), and E s'^2."""
    z, weights = panels(-beta)
    mean = weights @ function(z + beta)
    square = weights @ function(z + beta) ** 2
    return mean, math.sqrt(square - mean**2), square, weights @ slope(z + beta) ** 2


def by_hand(norm, activation):
    """What the papers say of each normaliser, with its own initial weights."""
    both = FUNCTIONS[activation]
    if norm in ("dyt", "derf"):
        both = squashed(activation, "tanh" if norm == "dyt" else "erf")
    if norm == "selu":
        both = selu, selu_slope
    mean, std, square, slope2 = expectations(*both)
    he = 1.0 / square
    jacobian_gamma = float(np.float32(std / math.sqrt(slope2)))
    if norm == "normprop":
        start = jacobian_gamma**2
        return ByHand(*both, start / std**2, mean, start=start, scaled=True)
    if norm == "normprop-measured":
        options = {"divide": "std", "eps": 0.0, "gamma": jacobian_gamma, "measured": True}
        return ByHand(*both, 1.0 / std**2, mean, scaled=True, **options)
    if norm == "normprop-exact":
        beta = 1.0 if activation == "relu" else 0.0
        mean, std, _, _ = expectations(*both, beta)
        return ByHand(*both, 1.0 / std**2, mean, beta, scaled=True)
    if norm == "ws":
        return ByHand(*both, 1.0 / std**2, None, scaled=True)
    if norm == "batch":
        return ByHand(*both, 1.0, divide="std")
    if norm in ("layer", "rms", "group", "instance"):
        return ByHand(*both, he, divide="rms")
    if norm == "layer-after":
        return ByHand(*both, he, None, divides_after=True)
    return ByHand(*both, 1.0 if norm == "none" else he)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("norm", NORMS)
def test_stacks(norm, activation, residual):
    """Every normaliser: mean squares, products of pairs, and gains."""
    theory = Stack(norm, activation, 3, 16, 8, residual).theory
    some = [0, 2, 11, 19, 21]
    states, gains = by_hand(norm, activation).states(3, COSINES[some], residual)
    found = theory.squares[:, [0, 1, *np.add(some, 2)]]
    np.testing.assert_allclose(found, states, rtol=SAME, atol=SAME * states.max())
    np.testing.assert_allclose(theory.gains, gains, rtol=SAME)


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


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "erf"])
def test_propagate_with_random_weights(activation):
    """Two samples of the same length: their mean square and their product, after each layer."""
    tp.manual_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(8, 8, bias=False), nn.Activation(activation)]
    net = nn.Sequential(*layers).to(dtype="float64")
    x = np.array([[1.0, 0.0] * 4, [0.6, 0.8] * 4])
    records = tp.propagate(net, data=x, weights="random")
    sites = Wide.at([0.6], 0.5)
    for layer, record in zip(net, records, strict=True):
        if isinstance(layer, nn.Linear):
            sites = sites.weighted(float((layer.weight.numpy() ** 2).sum() / 8))
        else:
            sites = sites.apply(activation)
        of_mean = 0.5 * (sites.square + sites.products[0])
        assert record.mean[0] ** 2 == pytest.approx(of_mean, rel=SAME)
        assert record.variance[0] == pytest.approx(sites.square - of_mean, rel=SAME)


def test_pointwise_layers_in_a_row_with_random_weights():
    """For samples as for pairs, DyT and ReLU are one function, whose mean is not that of ReLU."""
    tp.manual_seed(0)
    modules = [nn.Linear(8, 8, bias=False), nn.DyT(8, alpha=2.0), nn.ReLU()]
    net = nn.Sequential(*modules).to(dtype="float64")
    x = np.array([[1.0, 0.0] * 4, [0.6, 0.8] * 4])
    record = tp.propagate(net, data=x, weights="random")[2]
    square = float((modules[0].weight.numpy() ** 2).sum() / 8)
    z, weights = panels(0.0)
    values = relu(np.tanh(2.0 * math.sqrt(0.5 * square) * z))
    pairs = Wide.at([0.6], 0.5).weighted(square).scale(2.0).apply("tanh").apply("relu")
    assert pairs.square == pytest.approx(weights @ values**2, rel=1e-12)
    assert pairs.unrelated == pytest.approx((weights @ values) ** 2, rel=1e-9)
    of_mean = 0.5 * (pairs.square + pairs.products[0])
    assert record.mean[0] ** 2 == pytest.approx(of_mean, rel=1e-9)
    assert record.variance[0] == pytest.approx(pairs.square - of_mean, rel=1e-9)


def test_recursions_of_claims():
    """He's ReLU network keeps its mean square, and its cosine follows the arc-cosine kernel; with
    tanh, E tanh^2 is iterated; residual blocks of DyT add to the square and multiply the gain."""
    sites = Wide.at([0.3])
    rho = 0.3
    for _ in range(20):
        sites = sites.apply("relu").weighted(2.0)
        rho = (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / math.pi
        assert sites.square == pytest.approx(1.0, rel=SAME)
        assert sites.gain == pytest.approx(1.0, rel=SAME)
        assert sites.cosines[0] == pytest.approx(rho, rel=SAME)
    square = gain = 1.0
    sites = Wide.at([0.3])
    for _ in range(20):
        m = tp.moments.gaussian("tanh", 0.0, math.sqrt(square))
        square, gain = m.std**2, gain * m.slope2
        sites = sites.apply("tanh").weighted(1.0)
    assert (sites.square, sites.gain) == pytest.approx((square, gain), rel=SAME)
    square = gain = 1.0
    for _ in range(12):
        m = tp.moments.gaussian("tanh", 0.0, 0.5 * math.sqrt(square))
        square, gain = square + m.std**2, gain * (1.0 + 0.25 * m.slope2)
    assert tp.theory.gains.tanh_residual(12) == pytest.approx((square, gain), rel=SAME)


@pytest.mark.parametrize("gamma", [1.0, 1 / 1.21])
def test_the_paper_s_recursion(gamma):
    """The variance of a unit and the square of its mean, with the constants of ReLU."""
    c2 = 1.0 / math.sqrt(2.0 * math.pi)
    c1 = math.sqrt(0.5 - c2 * c2)
    q, k = gamma**2, 0.0
    found = tp.verify.closed_forms.depth_recursion(gamma, 30).T
    for row in found:
        assert row == pytest.approx((q - k, k), rel=SAME, abs=SAME)
        rho = min(1.0, k / q)
        root = math.sqrt(1 - rho * rho)
        kernel = (root + rho * (math.pi - math.acos(rho))) / (2.0 * math.pi)
        center = -2.0 * c2 * c2 * math.sqrt(q) + c2 * c2
        q, k = (gamma / c1) ** 2 * (q / 2 + center), (gamma / c1) ** 2 * (q * kernel + center)


def test_a_record_that_a_forward_calls_keeps_its_kinks():
    """E s(U) s(V) of hardtanh, for a correlation of 0.5, by 400 panels of 16 nodes and the mean of
    a clipped Gaussian."""
    hardtanh = tp.activations["hardtanh"]
    assert hardtanh(Wide.at([0.5])).products[0] == pytest.approx(0.23816916580077063, rel=1e-14)
    prelu = tp.activations["prelu"]
    assert prelu(Wide.at([])).square == pytest.approx(0.5 * (1.0 + 0.25**2), rel=1e-14)


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


def records_of(net, data):
    """Mean and variance of each layer with random weights."""
    records = tp.propagate(net, data=data, weights="random")
    return np.array([(record.mean[0], record.variance[0]) for record in records])


def padded(images, width):
    return np.pad(images, [(0, 0), (0, 0), (width, width), (width, width)])


@pytest.mark.parametrize("count", [7, 115])
def test_images_that_are_enlarged(rng, count):
    """A convolution of one pixel with padding is one without, of padded images: the blocks of 115
    samples are cut for the larger ones, and differ in size."""
    images = rng.standard_normal((count, 3, 2, 2)) + 1.0
    conv = nn.Conv2d(3, 5, 1, padding=2)
    rest = [nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(5, 4, 3, padding=1)]
    rest += [nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(3)]
    plain = nn.Conv2d(3, 5, 1)
    plain.load_state_dict(conv.state_dict())
    found = records_of(nn.Sequential(conv, *rest), images)
    assert found == pytest.approx(records_of(nn.Sequential(plain, *rest), padded(images, 2)))
    assert (found[:, 1] > 0).all()


def test_a_pool_enlarges_images(rng):
    images = rng.standard_normal((470, 3, 2, 2))
    layers = [nn.Conv2d(3, 4, 1), nn.MaxPool2d(2, 1, padding=1), nn.AvgPool2d(2, 1, padding=1)]
    found = records_of(nn.Sequential(*layers), images)
    assert found.shape == (3, 2)
    assert (found[:, 1] > 0).all()


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
