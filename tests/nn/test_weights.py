"""WeightNorm and scaled weight standardisation, and the laws they obey: test_layers.py has what
they compute."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained
from tinyprop import nn

WRAPPED = {
    "linear": (lambda **options: nn.Linear(6, 3, **options), (4, 6)),
    "convolution": (lambda **options: nn.Conv2d(2, 3, 2, **options), (4, 2, 3, 3)),
}
kinds = pytest.mark.parametrize("kind", WRAPPED)


def wrapped(kind, wrapper, rng, backend="numpy"):
    make, shape = WRAPPED[kind]
    layer = wrapper(make()).to(dtype=np.float64)
    layer.scale.data[...] = rng.uniform(0.5, 2, 3)
    layer.layer.bias.data[...] = rng.normal(size=3)
    return layer.to(backend), rng.normal(size=shape)


@kinds
def test_by_default_the_layer_computes_what_it_did(kind, backend, rng):
    make, shape = WRAPPED[kind]
    layer, x = (
        make().to(backend),
        tp.tensor(rng.normal(size=shape).astype(np.float32), backend=backend),
    )
    before = layer(x).numpy()
    norm = nn.WeightNorm(layer)
    assert_close(norm(x), before, 1e-6)
    assert norm.scale.backend == backend
    assert norm.bias is layer.bias
    assert_close(
        np.sqrt((nn.WeightNorm(layer, scale=2.0).weight.numpy() ** 2).reshape(3, -1).sum(1)),
        [2.0] * 3,
        1e-6,
    )


@kinds
def test_standardized_rows_have_sum_0_and_length_1_over_c1(kind, rng):
    layer, _ = wrapped(kind, nn.ScaledWS, rng)
    rows, exact = layer.weight.numpy().reshape(3, -1), math.sqrt(2 / (1 - 1 / math.pi))
    assert exact == pytest.approx(1.712858550450, abs=5e-13)
    assert abs(rows.sum(axis=1)).max() < 1e-12
    assert_close(np.sqrt((rows**2).sum(axis=1)), layer.scale.numpy() * exact)
    for activation, factor in (
        ("identity", 1.0),
        ("gelu", 1.700926243363),
        ("tanh", 1.592537419723),
    ):
        assert nn.ScaledWS(nn.Linear(3, 2), activation).factor == pytest.approx(factor, abs=1e-12)


@kinds
def test_data_dependent_initialization(kind, backend, rng):
    """On that batch each unit has mean 0 and variance 1, exactly, whatever scale and bias were."""
    layer, x = wrapped(kind, nn.WeightNorm, rng, backend)
    direction = layer.layer.weight.numpy().copy()
    out = layer.initialize(tp.tensor(x, backend=backend))
    assert_close(out, layer(tp.tensor(x, backend=backend)).numpy())
    axes = (0,) if kind == "linear" else (0, 2, 3)
    assert_close(out.numpy().mean(axis=axes) + 1, np.ones(3), 1e-11)
    assert_close(out.numpy().var(axis=axes), np.ones(3), 1e-11)
    np.testing.assert_array_equal(layer.layer.weight.numpy(), direction)


def test_what_cannot_be_wrapped_or_initialized_is_explained():
    assert_explained(TypeError, lambda: nn.WeightNorm(nn.ReLU()), "WeightNorm of a ReLU", "Linear")
    assert_explained(
        TypeError, lambda: nn.ScaledWS(nn.NormPropLinear(2, 2)), "ScaledWS of a NormPropLinear"
    )
    assert_explained(ValueError, lambda: nn.ScaledWS(nn.Linear(2, 2), "step"), "'step'")
    x = tp.ones(3, 2)
    layer = nn.WeightNorm(nn.Linear(2, 2, bias=False))
    assert_explained(ValueError, lambda: layer.initialize(x), "without a bias")
    # in some of which rounding makes three equal numbers differ from their mean
    for _ in range(20):
        layer = nn.WeightNorm(nn.Linear(2, 2))
        assert_explained(
            ValueError, lambda layer=layer: layer.initialize(x), "(3, 2)", "larger batch"
        )
    assert_explained(
        tp.ShapeError, lambda: nn.ScaledWS(nn.Linear(1, 2))(tp.ones(3, 1)), "no direction"
    )
