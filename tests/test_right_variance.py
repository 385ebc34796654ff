"""The layer of tools/right_variance.py: what it divides by, and what its gradient passes
through."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from right_variance import RULES, RightVariance, Training, page


@pytest.fixture
def layer():
    return RightVariance(2, 5, 3, 1, 1, gamma=1.0)


def test_with_uncorrelated_patches_it_is_the_papers_layer(layer, rng):
    paper = tp.nn.NormPropConv2d(2, 5, 3, 1, 1, gamma=1.0)
    paper.weight.data[...] = layer.weight.data
    x = tp.tensor(rng.normal(size=(4, 2, 6, 6)).astype("float32"))
    np.testing.assert_allclose(layer(x).numpy(), paper(x).numpy(), atol=1e-5)


def test_on_the_images_that_were_measured_mean_and_variance_are_right(layer, rng):
    """For any weights and correlations, with padding; exactly, so that nothing is left to
    chance."""
    x = rng.gamma(1.0, size=(120, 2, 6, 6)).astype("float32").cumsum(axis=3)
    layer.measure(x)
    layer.gamma.data[...], layer.beta.data[...] = 1.5, -0.3
    for factor in (1.0, 7.0):  # only the direction of the weights matters
        layer.weight.data[...] *= factor
        u = layer.pre_activation(tp.tensor(x)).numpy()
        np.testing.assert_allclose(u.mean(axis=(0, 2, 3)), -0.3, atol=1e-3)
        np.testing.assert_allclose(u.var(axis=(0, 2, 3)), 1.5**2, rtol=1e-3)


def test_the_gradient_is_orthogonal_to_the_weights(layer, rng):
    x = rng.gamma(1.0, size=(20, 2, 6, 6)).astype("float32")
    layer.measure(x)
    (gradient,) = tp.grad((layer(tp.tensor(x)) ** 3).mean(), layer.weight)
    rows = (gradient.numpy() * layer.weight.numpy()).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(
        rows / np.linalg.norm(gradient.numpy().reshape(5, -1), axis=1), 0.0, atol=1e-4
    )


def test_the_page_says_who_diverged():
    steps = dict.fromkeys(RULES, 3) | {"batch": 1}
    runs = [
        Training(rule, 0.1, seed, [2.0] * n, [1.0], None)
        for rule, n in steps.items()
        for seed in (0, 1)
    ]
    text = page(runs, 3, "shapes")
    assert "| C measured once, gamma = 1 | 0.1 | 2 of 2 | 2.00 | 2.00, 2.00 |" in text
    assert "| BatchNorm | 0.1 | 0 of 2 | - | (step 2), (step 2) |" in text
