"""BatchNorm, the baseline."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import functional as F
from tinyprop import nn


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5, 2)])
def test_batchnorm_equals_pytorchs(shape, rng):
    torch = pytest.importorskip("torch")
    ours = nn.BatchNorm(4).to(dtype=np.float64)
    theirs = (torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d)(4, dtype=torch.float64)
    for p, q in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        p.data[...] = rng.normal(size=4)
        q.data = torch.tensor(p.numpy().copy())
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        x = rng.normal(size=shape) * 3 + 1
        xo, xt = tp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        yo, yt = ours(xo), theirs(xt)
        cotangent = rng.normal(size=shape)
        yo.backward(cotangent)
        yt.backward(torch.tensor(cotangent))
        np.testing.assert_allclose(yo.numpy(), yt.detach().numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(xo.grad.numpy(), xt.grad.numpy(), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(ours.running_mean.numpy(), theirs.running_mean.numpy(), rtol=1e-12)
        np.testing.assert_allclose(ours.running_var.numpy(), theirs.running_var.numpy(), rtol=1e-12)


def test_batchnorm_normalises_its_batch(backend, rng):
    x = tp.tensor(rng.normal(3, 5, size=(16, 2, 4, 4)).astype(np.float32), backend=backend)
    out = nn.BatchNorm(2).to(backend)(x).numpy()
    np.testing.assert_allclose(out.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(axis=(0, 2, 3)), 1, atol=1e-4)


def test_batchnorm_refuses_a_batch_without_spread_but_only_that():
    with pytest.raises(tp.ShapeError, match=r"(?s)\(1, 3\).*rule:.*0/0.*try:"):
        nn.BatchNorm(3)(tp.tensor(np.ones((1, 3), np.float32)))
    nn.BatchNorm(3)(tp.tensor(np.ones((1, 3, 2, 2), np.float32)))  # places give a spread: the paper's C33
    nn.BatchNorm(3).eval()(tp.tensor(np.ones((1, 3), np.float32)))
    with pytest.raises(tp.ShapeError, match=r"(?s)3 features of shape \(2, 4\).*rule:.*try:"):
        nn.BatchNorm(3)(tp.tensor(np.ones((2, 4), np.float32)))


@pytest.mark.parametrize("shape", [(4, 2), (2, 2, 1, 3)])
def test_batchnorm_gradients_of_gradients(backend, shape, rng):
    layer = nn.BatchNorm(2).to(backend, np.float64)
    x = tp.tensor(rng.normal(size=shape), backend=backend)
    tp.check_gradients(lambda x: F.tanh(layer(x)), x, tolerance=1e-5)
    tp.check_gradients(lambda w: _with(layer, w)(x), tp.tensor(rng.normal(size=2), backend=backend), tolerance=1e-5)


def _with(layer, weight):
    """The layer with another weight, as a function."""
    other = nn.BatchNorm(layer.weight.size).to(layer.weight.backend, layer.weight.dtype)
    other.weight = weight
    return other


def test_the_backends_agree(backend, rng):
    """Outputs, all gradients and the running estimates, in training and after it."""
    x, g = rng.normal(1, 2, size=(2, 6, 3, 4, 5)).astype(np.float32)
    results = []
    for place in ("numpy", backend):
        layer = nn.BatchNorm(3).to(place)
        leaf = tp.tensor(x.copy(), requires_grad=True, backend=place)
        out = layer(leaf)
        out.backward(tp.tensor(g.copy(), backend=place))
        found = [out, leaf.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]
        results.append([t.numpy() for t in [*found, layer.eval()(leaf)]])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mean", "error"), [(0, 3e-6), (10, 3e-5), (1000, 3e-3)])
def test_few_digits_are_lost_far_from_zero(mean, error, rng):
    x = (rng.standard_normal((64, 8, 16, 16)) + mean).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean((0, 2, 3), keepdims=True)) / np.sqrt(exact.var((0, 2, 3), keepdims=True) + 1e-5)
    assert abs(nn.BatchNorm(8)(tp.tensor(x)).numpy() - exact).max() < error


def test_estimates_that_a_graph_needs_are_not_moved(rng):
    layer = nn.BatchNorm(2)
    x = tp.tensor(rng.standard_normal((4, 2)).astype(np.float32), requires_grad=True)
    needed = layer.eval()(x)
    with pytest.raises(tp.EditError, match=r"(?s)running_mean.*rule:.*try:"):
        layer.train()(x)
    del needed
    layer(x)
