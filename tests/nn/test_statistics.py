"""Normalisers of activations, and the laws they obey: test_layers.py has what they compute."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained
from tests.nn.test_layers import LAYERS
from tinyprop import functional as F
from tinyprop import nn


def randomized(layer, rng):
    """Every parameter away from its start, in float64."""
    layer.to(dtype=np.float64)
    for p in layer.parameters():
        p.data[...] += rng.uniform(-0.3, 0.3, p.shape)
    return layer


EVERY = [
    "LayerNorm",
    "LayerNorm, shared",
    "LayerNorm, last axis",
    "RMSNorm",
    "GroupNorm",
    "InstanceNorm",
    "BatchNorm",
    "DyT",
    "Derf",
]


def test_batch_norm_moves_its_estimates_and_evaluates_with_them(rng):
    layer, x = randomized(nn.BatchNorm(4), rng), tp.tensor(rng.normal(size=(3, 4, 2, 5)))
    mean, var = tp.zeros(4, dtype=np.float64), tp.ones(4, dtype=np.float64)
    layer(x)
    F.batch_norm(x, mean, var, training=True)
    assert_close(layer.running_mean, mean.numpy())
    assert_close(layer.running_var, var.numpy())
    assert_close(layer.eval()(x), F.batch_norm(x, mean, var, layer.weight, layer.bias).numpy())


@pytest.mark.parametrize(("mean", "error"), [(0, 3e-6), (10, 3e-5), (1000, 3e-3)])
def test_few_digits_are_lost_far_from_zero(mean, error, rng):
    x = (rng.standard_normal((64, 8, 16, 16)) + mean).astype(np.float32)
    for layer, axes in (
        (nn.BatchNorm(8), (0, 2, 3)),
        (nn.GroupNorm(8, 8), (2, 3)),
        (nn.LayerNorm(16), (3,)),
    ):
        exact = x.astype(np.float64)
        exact = (exact - exact.mean(axes, keepdims=True)) / np.sqrt(
            exact.var(axes, keepdims=True) + 1e-5
        )
        assert abs(layer(tp.tensor(x)).numpy() - exact).max() < error


@pytest.mark.parametrize("name", EVERY)
def test_only_batch_statistics_tie_the_samples_of_a_batch(name, backend, rng):
    """The others give a sample the same output whatever else is in the batch, in training as in
    evaluation."""
    layer, x = randomized(LAYERS[name][0](), rng).to(backend), rng.normal(size=(6, 4, 5, 6))
    whole, alone = (layer(tp.tensor(v, backend=backend)).numpy() for v in (x, x[:2]))
    assert (abs(whole[:2] - alone).max() > 1e-3) == layer.sums_over_batch == (name == "BatchNorm")
    if not layer.sums_over_batch:
        assert_close(alone, whole[:2], 1e-12)
        assert_close(layer.eval()(tp.tensor(x, backend=backend)), whole, 1e-12)
        assert not list(layer.buffers())


def test_what_does_not_fit_is_explained():
    images = tp.ones(2, 3, 4, 4)
    for layer in (
        nn.LayerNorm((4, None, None)),
        nn.RMSNorm(5),
        nn.GroupNorm(2, 3),
        nn.LayerNorm((2, 3, 4, 4, 4)),
    ):
        assert_explained(tp.ShapeError, lambda layer=layer: layer(images), "(2, 3, 4, 4)")
    # InstanceNorm of 1x1 maps
    assert_explained(tp.ShapeError, lambda: nn.GroupNorm(3, 3)(tp.ones(2, 3, 1, 1)), "0/0")


@pytest.mark.parametrize(("kind", "function"), [(nn.DyT, F.tanh), (nn.Derf, F.erf)])
def test_squashing_starts_as_published(kind, function, rng):
    layer, x = kind(3), tp.tensor(rng.normal(size=(2, 3, 4, 1)).astype(np.float32))
    assert_close(layer(x), function(0.5 * x).numpy(), 1e-6)
    assert kind(3, alpha=0.8).alpha.tolist() == pytest.approx([0.8])
