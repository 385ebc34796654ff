"""Normalisers of activations: against PyTorch's, and the laws they obey."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained
from tinyprop import functional as F
from tinyprop import nn


def randomized(layer, rng, dtype=np.float64):
    """Every parameter away from its start."""
    layer.to(dtype=dtype)
    for p in layer.parameters():
        p.data[...] += rng.uniform(-0.3, 0.3, p.shape)
    return layer


def squash(torch, function, *names):
    """Published as a formula."""

    class Squash(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Parameter(torch.zeros(4 if name in ("weight", "bias") else 1)))

        def forward(self, x):
            weight, bias = (p[:, None, None] for p in (self.weight, self.bias))
            return weight * function(self.alpha * x + getattr(self, "shift", 0.0)) + bias

    return Squash()


PAIRS = {
    "LayerNorm": (lambda: nn.LayerNorm((4, 2, 5)), lambda t: t.nn.LayerNorm((4, 2, 5))),
    "LayerNorm, shared": (lambda: nn.LayerNorm((4, None, None)), lambda t: t.nn.GroupNorm(1, 4)),
    "LayerNorm, last axis": (lambda: nn.LayerNorm(5), lambda t: t.nn.LayerNorm(5)),
    "RMSNorm": (lambda: nn.RMSNorm((2, 5)), lambda t: t.nn.RMSNorm((2, 5), eps=1e-5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda t: t.nn.GroupNorm(2, 4)),
    "InstanceNorm": (lambda: nn.GroupNorm(4, 4), lambda t: t.nn.InstanceNorm2d(4, affine=True)),
    "BatchNorm": (lambda: nn.BatchNorm(4), lambda t: t.nn.BatchNorm2d(4)),
    "DyT": (lambda: nn.DyT(4), lambda t: squash(t, t.tanh, "alpha", "weight", "bias")),
    "Derf": (lambda: nn.Derf(4), lambda t: squash(t, t.erf, "alpha", "weight", "bias", "shift")),
}


@pytest.mark.slow  # to import PyTorch takes seconds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_values_and_two_gradients_are_pytorchs(name, dtype, rng):
    torch = pytest.importorskip("torch")
    make_ours, make_theirs = PAIRS[name]
    ours, theirs = randomized(make_ours(), rng, dtype), make_theirs(torch).to(getattr(torch, dtype))
    names = [n for n, _ in ours.named_parameters()]
    assert sorted(names) == sorted(n for n, _ in theirs.named_parameters())
    for n, p in ours.named_parameters():
        theirs.get_parameter(n).data[...] = torch.tensor(p.numpy().reshape(theirs.get_parameter(n).shape).copy())
    x, v, u = (rng.normal(size=(3, 4, 2, 5)).astype(dtype) * 2 + 0.5 for _ in range(3))
    found = []
    for lib, layer, variable in ((tp, ours, tp.tensor), (torch.autograd, theirs, torch.tensor)):
        leaves = [variable(x, requires_grad=True), *(dict(layer.named_parameters())[n] for n in names)]
        out = layer(leaves[0])
        first = lib.grad((out * variable(v)).sum(), leaves, create_graph=True)
        second = lib.grad((first[0] * variable(u)).sum(), leaves[:2])
        found.append([out.detach(), *(g.detach() for g in first), *(g.detach() for g in second)])
    for a, b in zip(*found, strict=True):
        assert a.numpy().dtype == dtype
        assert_close(a.numpy().reshape(b.shape), b.numpy(), 2e-5 if dtype == "float32" else 1e-11)
    if name == "BatchNorm":
        for n in ("running_mean", "running_var"):
            assert_close(getattr(ours, n), getattr(theirs, n).numpy(), 1e-5)
        assert_close(ours.eval()(tp.tensor(x)), theirs.eval()(torch.tensor(x)).detach().numpy(), 1e-5)


@pytest.mark.parametrize(("mean", "error"), [(0, 3e-6), (10, 3e-5), (1000, 3e-3)])
def test_few_digits_are_lost_far_from_zero(mean, error, rng):
    x = (rng.standard_normal((64, 8, 16, 16)) + mean).astype(np.float32)
    for layer, axes in ((nn.BatchNorm(8), (0, 2, 3)), (nn.GroupNorm(8, 8), (2, 3)), (nn.LayerNorm(16), (3,))):
        exact = x.astype(np.float64)
        exact = (exact - exact.mean(axes, keepdims=True)) / np.sqrt(exact.var(axes, keepdims=True) + 1e-5)
        assert abs(layer(tp.tensor(x)).numpy() - exact).max() < error


EVERY = {name: pair[0] for name, pair in PAIRS.items()}


@pytest.mark.parametrize("name", EVERY)
def test_only_batch_statistics_tie_the_samples_of_a_batch(name, backend, rng):
    """The others give a sample the same output whatever else is in the batch, in training as in evaluation."""
    layer, x = randomized(EVERY[name](), rng).to(backend), rng.normal(size=(6, 4, 2, 5))
    whole, alone = (layer(tp.tensor(v, backend=backend)).numpy() for v in (x, x[:2]))
    assert (abs(whole[:2] - alone).max() > 1e-3) == layer.sums_over_batch == (name == "BatchNorm")
    if not layer.sums_over_batch:
        assert_close(alone, whole[:2], 1e-12)
        assert_close(layer.eval()(tp.tensor(x, backend=backend)), whole, 1e-12)
        assert not list(layer.buffers())


def test_what_does_not_fit_is_explained():
    images = tp.ones(2, 3, 4, 4)
    for layer in (nn.LayerNorm((4, None, None)), nn.RMSNorm(5), nn.GroupNorm(2, 3), nn.LayerNorm((2, 3, 4, 4, 4))):
        assert_explained(tp.ShapeError, lambda layer=layer: layer(images), "(2, 3, 4, 4)")
    assert_explained(tp.ShapeError, lambda: nn.GroupNorm(3, 3)(tp.ones(2, 3, 1, 1)), "0/0")  # InstanceNorm of 1x1 maps


@pytest.mark.parametrize("kind", [nn.DyT, nn.Derf])
def test_squashing(kind, backend, rng):
    """As published, at the start and for other parameters."""
    layer, x = kind(3).to(dtype=np.float64), rng.normal(size=(2, 3, 4, 1))
    function = np.tanh if kind is nn.DyT else lambda u: F.erf(tp.tensor(u)).numpy()
    assert_close(layer(tp.tensor(x)), function(0.5 * x))
    assert [n for n, _ in layer.named_parameters()] == ["alpha", "weight", "bias", *["shift"] * (kind is nn.Derf)]
    randomized(layer, rng)
    alpha, weight, bias, *shift = (p.numpy() for p in layer.parameters())
    expected = weight[:, None, None] * function(alpha * x + sum(shift)) + bias[:, None, None]
    assert_close(layer.to(backend)(tp.tensor(x, backend=backend)), expected)
    assert kind(3, alpha=0.8).alpha.tolist() == pytest.approx([0.8])
