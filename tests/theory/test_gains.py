"""Gains against their closed forms, against numbers derived elsewhere, and against random layers of
the engine."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.theory import gains

CHI = math.pi / (math.pi - 1)


def relu_batch_norm_gain(batch):
    """The closed form for ReLU, from the angles between two coordinates on the sphere."""
    r = -1 / (batch - 1)
    both_on = 0.25 + math.asin(r) / (2 * math.pi)
    product = (math.sqrt(1 - r * r) + r * (math.pi - math.acos(r))) / (2 * math.pi)
    on = batch / 2 + batch * (batch - 1) * both_on
    length = (1 + (batch - 1) * (2 / math.pi) * (math.sqrt(1 - r * r) + r * math.asin(r))) / 4
    trace = (batch - 1) / 2 - (0.5 - on / batch**2) - (0.5 - length / batch)
    return batch / ((batch - 3) * (batch - 1)) * trace / (0.5 - product)


@pytest.mark.parametrize("size", [4, 5, 8, 32, 1000])
def test_closed_forms(size):
    n = size
    assert gains.batch_norm_gain(n) == pytest.approx(relu_batch_norm_gain(n), rel=1e-11)
    assert gains.batch_norm_gain(n, "identity") == pytest.approx((n - 2) / (n - 3), rel=1e-12)
    assert gains.norm_gain(n, center=False) == pytest.approx(
        (n - 1) ** 2 / (n * (n - 2)), rel=1e-12
    )
    assert gains.norm_gain(n) == pytest.approx((n - 1) * (n - 2) / (n * (n - 3)), rel=1e-12)
    assert gains.norm_gain(3 * n, group=n) == pytest.approx(
        (3 * n - 1) * (n - 2) / (3 * n * (n - 3)), rel=1e-12
    )


def test_published_numbers_and_limits():
    """tanh from an independent derivation (mpmath); BatchNorm's first correction chi (1 +
    1.084838782722 / batch)."""
    numbers = {8: 1.358548125411, 16: 1.246258413855, 64: 1.192264334195}
    assert [gains.batch_norm_gain(b, "tanh") for b in numbers] == pytest.approx(
        list(numbers.values()), abs=1e-11
    )
    assert 1e4 * (gains.batch_norm_gain(10**4) / CHI - 1) == pytest.approx(1.084838782722, abs=1e-3)
    for activation in ("relu", "tanh", "gelu", "elu", "prelu"):
        m = tp.moments.gaussian(activation, **({"a": 0.25} if activation == "prelu" else {}))
        assert gains.batch_norm_gain(10**6, activation) == pytest.approx(
            m.jacobian_factor**2, rel=1e-4
        )
        uncentered = m.slope2 / (m.std**2 + m.mean**2)
        for center in (True, False):
            assert gains.norm_gain(10**6, activation, center=center) == pytest.approx(
                uncentered, rel=1e-4
            )


@pytest.mark.parametrize(
    ("n", "norm", "options"),
    [
        (6, nn.RMSNorm, {"center": False}),
        (8, nn.LayerNorm, {}),
        (16, lambda n: nn.GroupNorm(2, n), {"group": 8}),
    ],
)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_random_layers(n, norm, options, activation):
    """20,000 layers of a few units, each with its own weights and an input of the mean square that
    the gain is for; within 5 standard errors (error probability 1e-6). In smaller groups the error
    would be infinite."""
    random, layers = np.random.default_rng(0), 20_000

    def layer(u):
        return getattr(tp.functional, activation)(norm(n).to(dtype="float64")(u))

    square = (layer(tp.tensor(random.standard_normal((200_000, n)))).numpy() ** 2).mean()
    x = random.standard_normal((layers, n))
    x *= np.sqrt(n * square) / np.linalg.norm(x, axis=1, keepdims=True)
    weights = random.standard_normal((layers, n, n))
    u = tp.tensor(np.einsum("kij,kj->ki", weights, x), requires_grad=True)
    (back,) = tp.grad(layer(u), u, random.standard_normal((layers, n)))
    squares = (np.einsum("kij,ki->kj", weights, back.numpy()) ** 2).sum(axis=1) / n
    error = squares.std() / math.sqrt(layers)
    assert abs(squares.mean() - gains.norm_gain(n, activation, **options)) < 5 * error
    assert error < 0.02 * squares.mean()


def test_residual_networks():
    assert gains.residual_gain(12, 0.2, CHI) == pytest.approx(1.769601305934, abs=1e-12)
    product = math.gamma(10 + 1 + CHI) * math.gamma(1) / (math.gamma(1 + CHI) * math.gamma(10 + 1))
    assert gains.residual_gain(10, 1.0, CHI) == pytest.approx(product, rel=1e-12)
    assert gains.tanh_residual(100, 0.5, "erf") == pytest.approx((72.673901, 1115.691891), rel=1e-8)
    assert gains.tanh_residual(100) == pytest.approx((65.500644, 497.1850915), rel=1e-8)
    whole = gains.batch_norm_residual_gain(20)
    assert gains.batch_norm_residual_gain(20, 10**5) == pytest.approx(whole, rel=1e-3)
    assert gains.batch_norm_residual_gain(20, first=5) * gains.batch_norm_residual_gain(
        5
    ) == pytest.approx(whole)
    assert gains.batch_norm_residual_gain(7, 8, first=7) == 1.0
    # One block, of ReLU, sends back 2 batch / (batch - 3) E tr(D P D) / batch, and the trace is
    # (batch - 2) / 2.
    assert gains.batch_norm_residual_gain(1, 8) == pytest.approx(1 + (8 - 2) / (8 - 3), rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gains.batch_norm_gain(3),
        lambda: gains.batch_norm_residual_gain(5, 3),
        lambda: gains.norm_gain(2, center=False),
        lambda: gains.norm_gain(3),
    ],
)
def test_infinite_gains_are_refused(call):
    assert_explained(ValueError, call, "> ")


@pytest.mark.parametrize("dimensions", [7, 63])
def test_kinks_may_be_anywhere(dimensions, monkeypatch):
    """E s'^2 on the sphere is an integral over one coordinate, and no expectation needs finer
    panels."""
    steps = tp.Activation(lambda u: tp.functional.clip(u, -1.0, 2.0), "steps", kinks=(-1.0, 2.0))
    on = gains._sphere(dimensions, dimensions + 1, steps)
    nodes, weights = np.polynomial.legendre.leggauss(100)

    def area(low, high):
        y = 0.5 * (low + high) + 0.5 * (high - low) * nodes
        return 0.5 * (high - low) * weights @ (1.0 - y * y / dimensions) ** (0.5 * (dimensions - 3))

    radius = math.sqrt(dimensions)
    assert on.dd == pytest.approx(area(-1.0, 2.0) / area(-radius, radius), rel=1e-11)
    monkeypatch.setattr(gains, "PANELS", 2 * gains.PANELS)
    finer = gains._on_sphere.__wrapped__(dimensions, dimensions + 1, steps, key=b"")
    assert on == pytest.approx(finer, rel=1e-11)
