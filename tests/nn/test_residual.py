"""Residual blocks: what they compute, and the variance they keep count of."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained
from tinyprop import nn


def test_a_block_adds_its_branch(backend, rng):
    branch, shortcut = (nn.Linear(4, 4).to(dtype=np.float64).to(backend) for _ in range(2))
    h = tp.tensor(rng.normal(size=(3, 4)), backend=backend)
    assert_close(nn.Residual(branch)(h), (h + branch(h)).numpy())
    assert_close(nn.Residual(branch, 0.3, 2.0)(h), (h + 0.3 * branch(h / 2.0)).numpy())
    block = nn.Residual(branch, 0.3, 2.0, shortcut)
    assert_close(block(h), (shortcut(h / 2.0) + 0.3 * branch(h / 2.0)).numpy())
    assert [n for n, _ in block.named_children()] == ["branch", "shortcut"]
    assert_close(nn.Scale(0.25)(h), 0.25 * h.numpy())
    assert (
        repr(nn.Residual(nn.ReLU(), beta=2.0))
        == "Residual(\n  alpha=1.0, beta=2.0\n  (branch): ReLU()\n)"
    )
    assert_explained(
        ValueError, lambda: nn.Residual(branch, beta=0.0), "beta=0.0", "standard deviation"
    )


def test_the_count_of_the_variance():
    """1 + l alpha^2 along a chain; 1 + alpha^2 behind a transition."""
    beta = 1.0
    for i in range(12):
        block = nn.Residual(nn.Identity(), alpha=0.2, beta=beta)
        assert block.variance == pytest.approx(1 + (i + 1) * 0.04, abs=1e-12)
        beta = math.sqrt(block.variance)
    assert nn.Residual(nn.Identity(), 0.2, beta, shortcut=nn.Identity()).variance == pytest.approx(
        1.04
    )
