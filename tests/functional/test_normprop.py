"""The paper's equation against NumPy, with each weighted sum and with several activations."""

from functools import partial

import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import Case, assert_close, battery, make, naive_conv2d, rngs

C1, C2 = 0.7, 0.4


@st.composite
def equations(draw, images=False):
    """x, weight, gamma and beta; u keeps away from the kink of ReLU at 0."""
    rng = draw(rngs())
    n, inputs, units = (draw(st.integers(1, 4)) for _ in range(3))
    size = (3, 3) if images else ()
    weight = rng.uniform(0.5, 1.5, (units, inputs, *size))
    x = rng.uniform(0.5, 1.5, (n, inputs, *((4, 5) if images else ())))
    gamma = rng.choice([-1.0, 1.0], units) * rng.uniform(0.5, 1.5, units)
    return (x, weight, gamma, rng.uniform(-0.1, 0.1, units)), {}


def reference(x, weight, gamma, beta):
    axes = tuple(range(1, weight.ndim))
    scale = (gamma / np.sqrt((weight**2).sum(axis=axes))).reshape(-1, *[1] * len(axes))
    filters = weight * scale
    u = naive_conv2d(x, filters, padding=1) if x.ndim == 4 else x @ filters.T
    beta = beta.reshape(-1, *[1] * (x.ndim - 2))
    return (np.maximum(u + beta, 0.0) - C2) / C1


def normprop(x, weight, gamma, beta):
    product = partial(F.conv2d, padding=1) if x.ndim == 4 else F.linear
    return F.normprop(x, weight, gamma, beta, C1, C2, product)


CASES = [
    Case("normprop", normprop, reference, equations()),
    Case("normprop:convolution", normprop, reference, equations(images=True)),
]
test_values, test_gradients, test_dtypes = battery(CASES)


@pytest.mark.parametrize("activation", [F.relu, F.tanh, lambda u: F.relu(u)])
def test_any_activation_and_any_weighted_sum_will_do(backend, activation, rng):
    x, weight, gamma, beta = (
        make(rng.standard_normal(shape), backend) for shape in ((3, 4), (2, 4), (2,), (2,))
    )
    kept = []

    def product(x, weight):
        kept.append(F.linear(x, weight * 2.0))
        return kept[0]

    out = F.normprop(x, weight, gamma, beta, C1, C2, product, activation)
    u = F.linear(x, F.weight_norm(weight, gamma)) * 2.0
    assert_close(kept[0], u.numpy())  # nobody has overwritten it
    assert_close(out, ((activation(u + beta) - C2) / C1).numpy())


def test_constants_may_be_learnt(backend, rng):
    """c1 and c2 with one value for each unit, and gradients of their own."""
    x, weight, gamma, beta, c1, c2 = (
        make(rng.uniform(0.5, 1.5, shape), backend, requires_grad=True)
        for shape in ((3, 4), (2, 4), (2,), (2,), (2,), (2,))
    )
    tp.check_gradients(F.normprop, x, weight, gamma, beta, c1, c2, order=2)
    image, filters = (
        make(rng.uniform(0.5, 1.5, shape), backend) for shape in ((2, 3, 4, 4), (2, 3, 3, 3))
    )
    f = partial(F.normprop, weighted_sum=F.conv2d)
    tp.check_gradients(f, image, filters, gamma, beta, c1, c2)


def test_shapes_that_do_not_fit_are_explained():
    with pytest.raises(tp.ShapeError, match="in_features equal"):
        F.normprop(tp.ones(2, 3), tp.ones(4, 5), tp.ones(4), tp.ones(4), C1, C2)
    with pytest.raises(tp.ShapeError, match="scale of shape"):
        F.normprop(tp.ones(2, 5), tp.ones(4, 5), tp.ones(3), tp.ones(4), C1, C2)


@pytest.mark.parametrize("as_numbers", [True, False])
def test_constants_of_any_sign(backend, as_numbers, rng):
    """A subclass may return its own; plain and default mode agree, also where c1 < 0."""
    shapes = (8, 4), (3, 4), (3,), (3,)
    x, weight, gamma, beta = (
        make(rng.standard_normal(shape), backend, requires_grad=True) for shape in shapes
    )
    c1, c2 = (-0.7, 0.4) if as_numbers else (make([-0.7, 0.5, -2.0], backend), 0.4)
    out = F.normprop(x, weight, gamma, beta, c1, c2)
    u = F.linear(x, F.weight_norm(weight, gamma)) + beta
    expected = (F.relu(u) - c2) / c1
    assert_close(out, expected.numpy())
    leaves = [x, weight, gamma, beta]
    seed = make(rng.standard_normal(out.shape), backend)
    for create_graph in (True, False):  # by the rule, and by an override
        got = tp.grad(out, leaves, seed, create_graph, retain_graph=True)
        right = tp.grad(expected, leaves, seed, retain_graph=True)
        for one, other in zip(got, right, strict=True):
            assert_close(one, other.numpy())
