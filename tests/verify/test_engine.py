"""What claims take for granted of the engine: slopes against difference quotients, closed forms
against quadrature, new layers as the papers start them. Each was once a row of a claim."""

import math

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import quick_only
from tinyprop.functional.activation import activations
from tinyprop.nn import NIN, NormPropLinear, build
from tinyprop.nn.signals import signals
from tinyprop.testing.points import points
from tinyprop.verify import Sampler, Tally, each
from tinyprop.verify.closed_forms import C1, C2, JACOBIAN_FACTOR, normal_cdf, normal_grid
from tinyprop.verify.moment_claims import NFNETS, exact_unit
from tinyprop.verify.networks import batch, gaussian, largest_difference, one_unit, seeded

# mean, std
SETTINGS = ((0.0, 1.0), (0.7, 1.0), (-1.0, 0.3), (-2.0, 2.0), (0.4, 0.05), (-5.0, 1.0), (3.0, 0.5))


def test_new_layers_start_as_section_4_3_says():
    new = NormPropLinear(2, 1)
    assert new.gamma.item() == pytest.approx(1.0 / JACOBIAN_FACTOR, rel=1e-6)
    assert abs(new.gamma.item() - 1.0 / 1.21) < 0.005
    assert new.beta.item() == 0.0
    for name in activations:
        layer = NormPropLinear(1, 1, name)
        assert layer.gamma.item() * layer.standard.jacobian_factor == pytest.approx(1.0, rel=1e-6)
    exact = NormPropLinear(1, 1, mode="exact")
    assert (exact.gamma.item(), exact.beta.item()) == (1.0, 1.0)


def test_new_weights_are_those_of_glorot_and_bengio():
    """Uniform of variance 2/(inputs + outputs), to 6 standard errors."""
    tp.manual_seed(0)
    variance = Tally.of(tp.nn.Linear(150, 250).weight.numpy().ravel()).variance()
    assert abs(variance.mean - 2.0 / 400) < 6 * variance.standard_error


@pytest.mark.parametrize("name", list(activations))
def test_slopes_of_activations(name, rng):
    layer = one_unit(activation=name, gamma=1.0).to(dtype="float64")
    z, weights = normal_grid()
    x = tp.tensor(z[:, None], requires_grad=True)
    slopes = tp.grad(layer(x).sum(), x)[0].numpy()[:, 0]
    expected = layer.standard.jacobian_factor**2
    assert float(weights @ slopes**2) == pytest.approx(expected, rel=1e-6)
    u = points(rng, (50, 1), kinks=activations[name].kinks)
    tp.check_gradients(layer.activate, u, order=1)


ELU_TAIL = math.exp(0.5) * normal_cdf(-1.0)  # E exp(Z) over Z < 0
ELU_SLOPE = 0.5 + math.exp(2.0) * normal_cdf(-2.0)  # E ELU'(Z)^2
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


@pytest.mark.parametrize("name", CLOSED)
def test_moments_of_activations_in_closed_form(name):
    found = tp.moments.gaussian(name)
    variance, slope2 = CLOSED[name]
    assert (found.std**2, found.slope2) == pytest.approx((variance, slope2), rel=1e-9)


def test_layers_of_activations_have_their_defaults():
    assert tp.nn.LeakyReLU()(tp.tensor(-1.0)).item() == pytest.approx(-0.01)
    assert tp.nn.ELU()(tp.tensor(-1.0)).item() == pytest.approx(math.exp(-1.0) - 1.0)


def test_a_simulation_states_its_own_error():
    """c1/sqrt(N) for the mean; for the deviation by the fourth moment."""
    n = 200_000
    found = tp.moments.simulate("relu", samples=n, seed=0)
    fourth = 1.5 - 5.0 * C2**2 - 3.0 * C2**4  # E (ReLU(Z) - c2)^4
    assert found.mean_error * n**0.5 == pytest.approx(C1, rel=0.02)
    expected = math.sqrt(fourth - C1**4) / (2.0 * C1)
    assert found.std_error * n**0.5 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", NFNETS)
def test_the_sampled_constants_of_nf_nets(name):
    assert NFNETS[name] * tp.moments.gaussian(name).std == pytest.approx(1.0, abs=0.0015)


@pytest.mark.parametrize("name", [n for n, s in activations.items() if not s.parameters])
def test_moments_by_value_are_those_by_name(name):
    mean, std = (tp.tensor(np.array(column)) for column in zip(*SETTINGS, strict=True))
    function = activations[name].function
    by_value = tp.moments.gaussian(function, mean, std, kinks=(-1.0, 0.0, 1.0))
    by_name = tp.moments.gaussian(name, mean, std)
    for field in ("mean", "std", "slope2", "jacobian_factor"):
        found, expected = (getattr(m, field).numpy() for m in (by_value, by_name))
        assert (abs(found - expected) <= 1e-6 * (1.0 + abs(expected))).all(), field


def test_batch_norm_is_its_definition(rng):
    """In training by the batch's statistics; after one step by running ones."""
    eps, momentum, layer = 1e-5, 0.1, tp.nn.BatchNorm(3).to(dtype="float64")
    x = 2.0 * batch(rng, 5, 3, 2, 2) + 1.0
    mean, variance = x.mean(axis=(0, 2, 3), keepdims=True), x.var(axis=(0, 2, 3), keepdims=True)
    assert largest_difference(layer(x), (x - mean) / (variance + eps) ** 0.5) < 1e-9
    running = 1.0 - momentum + momentum * variance * (20 / 19)
    evaluated = (x - momentum * mean) / (running + eps) ** 0.5
    assert largest_difference(layer.eval()(x), evaluated) < 1e-9


@pytest.mark.parametrize("width", [1.0, 0.5])
def test_the_papers_network_has_the_weights_of_its_layers(width):
    c = [3, *(width * filters for filters in (192, 160, 96, 192, 192, 192, 192, 192)), 10]
    sizes = (5, 1, 1, 5, 1, 1, 5, 1, 1)
    network = build(NIN) if width == 1.0 else build(NIN, width=width)
    found = sum(p.size for p in network.parameters() if p.ndim == 4)
    assert found == sum(a * b * k * k for a, b, k in zip(c, c[1:], sizes, strict=False))
    assert abs(list(network.parameters())[-1].numpy()).max() == 0.0


@pytest.mark.parametrize("size", [5, 7])  # by Winograd tiles, and by Fourier transforms
def test_convolutions_against_the_sum_that_defines_them(size, rng):
    x, w = rng.standard_normal((4, 16, 9, 9)), rng.standard_normal((16, 16, size, size))
    side = size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (side, side), (side, side)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", views, w, optimize=True)
    images, filters = tp.tensor(x.astype(np.float32)), tp.tensor(w.astype(np.float32))
    out = F.conv2d(images, filters, padding=side).numpy()
    assert abs(out - expected).max() / (4.0 * size) < 1e-5


SMALL = "C(6,5,1,2)-C(5,1,1,0)-P(3,2,1,max)-C(4,3,2,1)-P(3,2,1,avg)-C(3,1,1,1)-P(3,3,0,avg)"
NETWORKS = (
    ("normprop", "relu"),
    ("normprop-exact", "prelu"),
    ("normprop-exact", "gelu"),
    ("batch", "relu"),
    ("none", "prelu"),
)


class Loss(tp.nn.Module):
    def __init__(self, network, labels):
        self.network = network
        self.labels = labels

    def forward(self, x):
        return F.cross_entropy(self.network(x), self.labels)


@pytest.mark.parametrize("kind", quick_only(NETWORKS[::3], NETWORKS), ids="-".join)
def test_the_slope_of_a_networks_loss(kind, rng):
    norm, activation = kind
    network = build(SMALL, norm=norm, activation=activation)
    for parameter in network.parameters():
        parameter.data += (
            0.1 * tp.tensor(rng.standard_normal(parameter.shape), dtype="float32").data
        )
    loss = Loss(network, rng.integers(0, 3, 4))
    tp.check_gradients(loss, rng.standard_normal((4, 3, 8, 8)), order=1)


@pytest.mark.parametrize("norm", ["normprop", "batch"])
def test_gradients_in_float32_are_those_in_float64(norm, rng):
    """Of the paper's network, by overrides and without; rounding moves some units across a kink."""
    seeded(rng)
    network = build(NIN, norm=norm, width=0.1)
    images, labels = gaussian(rng, 32, 3, 32, 32), rng.integers(0, 10, 32)
    fast = tp.grad(F.cross_entropy(network(images), labels), list(network.parameters()))
    with tp.plain():
        network, images = network.to(dtype="float64"), images.astype("float64")
        slow = tp.grad(F.cross_entropy(network(images), labels), list(network.parameters()))
    a, b = (np.concatenate([g.numpy().ravel() for g in found]) for found in (fast, slow))
    assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(b)


@pytest.mark.parametrize("name", list(activations))
def test_exact_layers_take_the_moments_of_their_settings(name, rng):
    layer = exact_unit(name, 1.0, 0.3).to(dtype="float64")
    for mean, std in SETTINGS:
        z, weights = normal_grid(tuple((kink - mean) / std for kink in (-1.0, 0.0, 1.0)))
        u = tp.tensor(mean + std * z, requires_grad=True)
        s = layer.activate(u)
        slope = tp.grad(s.sum(), u)[0].numpy()
        center = float(weights @ s.numpy())
        deviation = math.sqrt(weights @ (s.numpy() - center) ** 2)
        found = tp.moments.gaussian(name, mean, std)
        assert found.mean == pytest.approx(center, rel=1e-6, abs=1e-6)
        assert found.std == pytest.approx(deviation, rel=1e-6)
        assert found.slope2 == pytest.approx(float(weights @ slope**2), rel=1e-6)
    kinks = [kink - 0.3 for kink in activations[name].kinks]
    tp.check_gradients(layer, points(rng, (40, 1), kinks=kinks), order=1)


def test_a_unit_that_is_never_on_has_a_floor():
    c1 = exact_unit("relu", 2.0, -20.0).constants()[0].item()
    assert c1 == pytest.approx(0.1 * 2.0 * C1, rel=1e-6)


def test_an_nf_net_of_the_shorthand_keeps_count_of_the_variance():
    """alpha = 1/2: mean squares after two blocks, after one with more channels, and where they are
    scaled for the next convolution; 24 networks, to 6 standard errors and 1 %."""
    blocks = "R(C(128,1,1,0)-C(128,1,1,0))-R(C(128,1,1,0))-R(C(256,1,2,0))"
    spec = f"C(128,1,1,0)-{blocks}-C(10,1,1,0)-P(2,2,0,avg)"

    def draw(random):
        seeded(random)
        net = build(spec, in_channels=128, norm="ws", alpha=0.5)
        found = signals(net, gaussian(random, 64, 128, 4, 4))[1:5]
        return [signal.std**2 + signal.mean**2 for signal in found]

    tally = Sampler().tally("built", each(draw), samples=24, cost=10**5, block=1)
    for i, expected in enumerate((1.25, 1.5, 1.25, 1.0)):
        found = tally.mean(i)
        assert abs(found.mean - expected) < 6 * found.standard_error + 0.01 * expected
