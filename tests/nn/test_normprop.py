"""NormProp layers against their equations, the laws they obey, and BatchNorm."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained, naive_conv2d
from tinyprop import nn
from tinyprop.functional.normprop import NormalizedReLU

MODES = ["paper", "exact"]
ACTIVATIONS = ["relu", "prelu", "tanh"]


def reference(layer, x):
    """(1/c1) [s(gamma w.x / |w| + beta) - c2], in float64; test_moments.py tests the moments c1 and
    c2."""
    w, gamma, beta = (p.numpy().astype(np.float64) for p in (layer.weight, layer.gamma, layer.beta))
    a = layer.a.numpy().astype(np.float64) if layer.activation.name == "prelu" else None
    mean, std = (beta, abs(gamma)) if layer.mode == "exact" else (0 * beta, 1.0)
    moments = tp.moments.gaussian(layer.activation, mean, std, **({} if a is None else {"a": a}))
    length = np.sqrt((w**2).reshape(len(w), -1).sum(axis=1))
    u = x @ w.T if w.ndim == 2 else naive_conv2d(x, w, None, layer.stride, layer.padding)
    shape = (-1,) + (1,) * (w.ndim - 2)
    length, gamma, beta, c1, c2, a = (
        np.reshape(v, shape)
        for v in (length, gamma, beta, moments.std, moments.mean, 0 * beta if a is None else a)
    )
    u = gamma * u / length + beta
    return (
        (np.tanh(u) if layer.activation.name == "tanh" else np.where(u > 0, u, a * u)) - c2
    ) / c1


def randomized(layer, rng, backend="numpy"):
    """Every parameter away from its start, in float64."""
    layer.to(dtype=np.float64)
    layer.gamma.data[...] = rng.uniform(0.5, 1.5, layer.gamma.shape) * rng.choice(
        [-1, 1], layer.gamma.shape
    )
    layer.beta.data[...] = rng.uniform(-0.7, 0.7, layer.beta.shape)
    layer.weight.data[...] = rng.normal(size=layer.weight.shape)
    if layer.activation.name == "prelu":
        layer.a.data[...] = rng.uniform(-0.5, 1.5, layer.a.shape)
    return layer.to(backend)


def draw_layer(data, rng, activation, mode):
    """A layer of random geometry and an input for it."""
    if data.draw(st.booleans(), label="convolutional"):
        k, stride, padding = (
            data.draw(s) for s in (st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
        )
        c, o, n, size = (data.draw(st.integers(1, 3)) for _ in range(4))
        size += k
        layer = nn.NormPropConv2d(c, o, k, stride, padding, activation, mode=mode)
        return layer, rng.normal(size=(n, c, size, size + 1))
    n, fan_in, units = (data.draw(st.integers(1, 5)) for _ in range(3))
    return nn.NormPropLinear(fan_in + 1, units, activation, mode=mode), rng.normal(
        size=(n, fan_in + 1)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@given(data=st.data())
def test_forward_equals_the_equation(backend, activation, mode, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    layer, x = draw_layer(data, rng, activation, mode)
    randomized(layer, rng)
    expected = reference(layer, x)
    out = layer.to(backend)(tp.tensor(x, backend=backend)).numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("activation", "convolutional"),
    [
        ("relu", False),
        ("prelu", False),
        ("tanh", False),
        pytest.param("prelu", True, marks=pytest.mark.slow),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in ("gelu", "elu", "identity")
        ),
    ],
)
def test_gradients_to_second_order(activation, mode, convolutional, rng):
    """With respect to the input and every parameter; no pre-activation is at a kink."""
    if convolutional:
        layer, x = (
            nn.NormPropConv2d(2, 2, 2, 2, 1, activation, mode=mode),
            rng.normal(size=(1, 2, 3, 2)),
        )
    else:
        layer, x = nn.NormPropLinear(3, 2, activation, mode=mode), rng.normal(size=(2, 3))
    randomized(layer, rng)
    tp.check_gradients(layer, x, tolerance=1e-5)


@pytest.mark.parametrize("mode", ["paper", "exact"])
@pytest.mark.parametrize("activation", ["relu", "prelu", "leaky_relu", "abs", "identity", "tanh"])
def test_a_linear_layer_takes_any_axes_in_front(backend, activation, mode, rng):
    """Axis 1 is no axis of units then, even if it is as long."""
    with tp.use_backend(backend):
        layer = nn.NormPropLinear(3, 4, activation, mode=mode)
        layer.beta.data[...] = tp.arange(4.0).data
        x = tp.tensor(rng.normal(size=(2, 4, 3)).astype("f"))
        g = tp.tensor(rng.normal(size=(2, 4, 4)).astype("f"))
        out, flat = layer(x), layer(x.reshape(8, 3)).reshape(2, 4, 4)
        np.testing.assert_allclose(out.numpy(), flat.numpy(), rtol=1e-5, atol=1e-6)
        wanted = list(layer.parameters())
        for one, other in zip(tp.grad(out, wanted, g), tp.grad(flat, wanted, g), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
        assert layer(x[0, 0]).shape == (4,)


def test_a_normalized_relu_passes_the_gradient_of_nan_on():
    u = tp.tensor([[-1.0, 2.0, np.nan]], requires_grad=True)
    out = NormalizedReLU()(u, 0.5, 0.5, 0.25)
    np.testing.assert_array_equal(out.numpy(), [[-0.5, 4.5, np.nan]])
    out.backward(np.array([[np.inf, 1.0, 1.0]], np.float32))
    assert u.grad.tolist() == [[0.0, 2.0, 2.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_unit_that_is_off_has_no_gradient_whatever_its_constants_round_to(dtype, rng):
    """The rule and its override tell from the result whether the ReLU was on."""
    for c1, c2 in rng.uniform(0.1, 3.0, (100, 2)).tolist():
        for plain in (tp.plain(), nullcontext()):
            u = tp.tensor(np.full((2, 3), -1.0, dtype), requires_grad=True)
            with plain:
                out = NormalizedReLU()(u, 0.5, c1, c2)
            (by_rule,) = tp.grad(out.sum(), [u], create_graph=True, retain_graph=True)
            (by_override,) = tp.grad(out.sum(), [u])
            assert not by_rule.data.any()
            assert not by_override.data.any()


@pytest.mark.parametrize(
    ("activation", "mode", "gamma", "beta"),
    [
        ("relu", "paper", 1 / 1.211173896236, 0.0),
        ("tanh", "paper", 1 / 1.0852682766506, 0.0),
        ("identity", "paper", 1.0, 0.0),
        ("relu", "exact", 1.0, 1.0),
        ("tanh", "exact", 1.0, 0.0),
    ],
)
def test_gamma_and_beta_start_where_networks_train(activation, mode, gamma, beta):
    """One over the Jacobian factor; in exact mode 1, and rectifiers are shifted."""
    layer = nn.NormPropLinear(3, 2, activation, mode=mode)
    np.testing.assert_allclose(
        [layer.gamma.numpy(), layer.beta.numpy()], [[gamma] * 2, [beta] * 2], rtol=1e-6
    )


def test_gamma_may_be_any_number_or_array():
    assert nn.NormPropLinear(3, 2, gamma=1.0).gamma.numpy().tolist() == [1.0, 1.0]
    assert nn.NormPropLinear(3, 2, gamma=[0.5, 2.0]).gamma.numpy().tolist() == [0.5, 2.0]
    assert_explained(
        tp.ShapeError, lambda: nn.NormPropLinear(3, 2, gamma=[1.0, 2.0, 3.0]), "(3,)", "(2,)"
    )
    for wrong in ({"gamma": "large"}, {"mode": "fast"}, {"activation": "step"}):
        assert_explained(
            ValueError, lambda wrong=wrong: nn.NormPropLinear(3, 2, **wrong), *wrong.values()
        )


def test_weights_start_as_glorots():
    w = nn.NormPropConv2d(20, 30, 5).weight.numpy()
    bound = math.sqrt(6 / ((20 + 30) * 25))
    assert 0.99 * bound < np.abs(w).max() <= bound
    assert abs(w.std() / (bound / math.sqrt(3)) - 1) < 0.02


@pytest.mark.parametrize("activation", ["relu", "prelu", "tanh", "hardtanh", "sigmoid"])
@pytest.mark.parametrize("beta", [-3.0, -8.0, -50.0])
def test_a_dying_unit_is_not_amplified_in_exact_mode(activation, beta, rng):
    """The gain 1/c1 is at most ten times what it is at beta = 0, gradients stay finite, the mean
    stays 0."""
    tp.manual_seed(0)
    layer = nn.NormPropLinear(4, 3, activation, gamma=1.0, mode="exact")
    if activation == "prelu":
        layer.a.data[...] = 0.0
    layer.beta.data[...] = 0.0
    at_zero = np.abs(
        np.diff(layer(tp.tensor(np.eye(4, dtype=np.float32) * 1e-3)).numpy(), axis=0)
    ).max()
    c1_at_zero, _ = layer.constants()
    layer.beta.data[...] = beta
    c1, _ = layer.constants()
    assert (c1.numpy() >= 0.0999 * c1_at_zero.numpy()).all()
    assert at_zero > 0
    out = layer(tp.tensor(rng.normal(size=(100, 4)).astype(np.float32)))
    out.backward(rng.normal(size=out.shape).astype(np.float32))
    assert np.abs(out.numpy()).max() < 100
    assert all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_an_activation_without_a_jacobian_factor_needs_a_gamma():
    """The mean square of the slope of a square root is infinite."""

    def root(u):
        return tp.functional.sqrt(tp.functional.maximum(u, 0.0))

    assert_explained(
        ValueError, lambda: nn.NormPropLinear(3, 2, activation=root), "jacobian", "gamma=1.0"
    )
    layer = nn.NormPropLinear(3, 2, activation=root, gamma=1.0)
    assert np.isfinite(layer(tp.randn(5, 3)).numpy()).all()
