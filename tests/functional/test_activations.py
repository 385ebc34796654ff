import math

import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    FLOATS,
    Case,
    assert_close,
    assert_explained,
    battery,
    make,
    of_table,
    one_array,
    points,
    rngs,
    shapes,
)

ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., 2017
SLOPES = st.sampled_from([0.01, 0.25, 0, -0.5, 2])

phi = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[float])


def reference_elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def reference_prelu(x, a):
    if x.ndim > 2 and a.ndim == 1:
        a = a.reshape(-1, *[1] * (x.ndim - 2))
    return np.where(x > 0, x, a * x)


@st.composite
def prelu_inputs(draw):
    """An input (N, C, ...), and one slope, or one for each channel."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4))
    x = points(rng, shape, -3, 3, (0,))
    return [x, points(rng, draw(st.sampled_from([(1,), shape[1:2]])), -1, 1)], {}


CASES = [
    of_table("relu", lambda x: np.maximum(x, 0)),
    of_table("leaky_relu", lambda x, a: np.where(x > 0, x, a * x), a=SLOPES),
    Case("prelu", F.prelu, reference_prelu, prelu_inputs()),
    of_table("tanh", np.tanh),
    of_table("sigmoid", lambda x: 1 / (1 + np.exp(-x)), span=(-8, 8)),
    of_table("softplus", lambda x: np.log1p(np.exp(x)), span=(-8, 8)),
    of_table("elu", reference_elu, alpha=st.sampled_from([1, 1.0, 0.5, np.float64(2)])),
    of_table("selu", lambda x: SCALE * reference_elu(x, ALPHA)),
    of_table("gelu", lambda x: x * phi(x)),
    of_table("silu", lambda x: x / (1 + np.exp(-x)), span=(-8, 8)),
    Case("hardtanh", F.hardtanh, lambda x: np.clip(x, -1, 1), one_array(kinks=(-1, 1))),
    Case(
        "hardtanh:bounds",
        lambda x: F.hardtanh(x, 0.0, 1.5),
        lambda x: np.clip(x, 0.0, 1.5),
        one_array(kinks=(0, 1.5)),
    ),
]

test_values, test_gradients, test_dtypes = battery(CASES)

# The tails, with warnings as errors.

AT_PLUS_MINUS_1000 = {
    "relu": (0, 1000, 0, 1),
    "leaky_relu": (-10, 1000, 0.01, 1),
    "tanh": (-1, 1, 0, 0),
    "sigmoid": (0, 1, 0, 0),
    "softplus": (0, 1000, 0, 1),
    "elu": (-1, 1000, 0, 1),
    "selu": (-SCALE * ALPHA, SCALE * 1000, 0, SCALE),
    "gelu": (0, 1000, 0, 1),
    "silu": (0, 1000, 0, 1),
    "hardtanh": (-1, 1, 0, 0),
}


@pytest.mark.parametrize("name", AT_PLUS_MINUS_1000)
@pytest.mark.parametrize("dtype", FLOATS)
def test_tails(name, backend, dtype):
    x = make(np.array([-1000, 1000], dtype), backend, requires_grad=True)
    left, right, left_slope, right_slope = AT_PLUS_MINUS_1000[name]
    y = getattr(F, name)(x)
    (slope,) = tp.grad(y, [x], make(np.ones(2, dtype), backend), create_graph=True)
    assert_close(y, [left, right], 1e-6)
    assert_close(slope, [left_slope, right_slope], 1e-6)
    (curvature,) = (
        tp.grad((slope * slope).sum(), [x])
        if slope.requires_grad
        else (make(np.zeros(2), backend),)
    )
    assert_close(curvature, [0, 0])


@pytest.mark.parametrize(
    ("f", "reference"),
    [
        (F.sigmoid, np.exp),
        (F.softplus, np.exp),
        (F.elu, lambda x: x),
        (F.selu, lambda x: SCALE * ALPHA * x),
    ],
    ids=["sigmoid", "softplus", "elu", "selu"],
)
@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_small_results_keep_their_digits(backend, f, reference, dtype, digits):
    """Far left, sigmoid and softplus are exp(x) to rounding; near 0, elu is x."""
    x = np.array([-40, -60, -80] if reference is np.exp else [-1e-20, -1e-13, -2e-13], dtype)
    np.testing.assert_allclose(f(make(x, backend)).numpy(), reference(x.astype(float)), rtol=digits)


def test_a_dead_unit_passes_nothing_on_not_even_infinity(backend):
    x = make([-1.0, 4.0, np.nan], backend, requires_grad=True)
    F.relu(x).backward(make([np.inf, 2.0, 3.0], backend))
    assert x.grad.tolist() == [0.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["tensor", "array", "list"])
def test_prelu_slopes_belong_to_the_channels(backend, kind):
    x = make(-np.ones((1, 2, 2, 2)), backend)
    a = {"tensor": make(np.array([0.5, 2.0]), backend), "list": [0.5, 2.0]}.get(kind)
    out = F.prelu(x, make(np.array([0.5, 2.0]), backend).data if a is None else a)
    assert_close(out[0, :, 0, 1], [-0.5, -2.0])
    assert_close(out[0, :, 1, 0], [-0.5, -2.0])
    assert_explained(tp.ShapeError, lambda: F.prelu(x, make(np.ones(3), backend)), "(1, 2, 2, 2)")


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_slope_of_prelu_at_zero_is_that_of_the_negative_side(backend, create_graph):
    """As in PyTorch."""
    x = make([-1.0, 0.0, -0.0, 1.0], backend, requires_grad=True)
    (g,) = tp.grad(F.prelu(x, make([0.25], backend)).sum(), [x], create_graph=create_graph)
    assert g.tolist() == [0.25, 0.25, 0.25, 1.0]


def test_a_recorded_gradient_of_tanh_has_the_gradients_of_its_formula(backend):
    """1 - t^2, -2 t (1 - t^2) and (6 t^2 - 2) (1 - t^2), for t = tanh(x)."""
    x = make(np.array([-0.7, 0.0, 0.3, 1.2]), backend, requires_grad=True)
    t = np.tanh(x.numpy())
    slope = 1 - t**2
    g = F.tanh(x)
    for expected in (slope, -2 * t * slope, (6 * t**2 - 2) * slope):
        (g,) = tp.grad(g.sum(), [x], create_graph=True)
        assert_close(g, expected)
