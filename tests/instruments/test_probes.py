"""Singular values against full decompositions, correlations against the C-map."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.instruments import correlations, probes, spectra


def conv_net():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5)
    )


def batch_net():
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm(7), nn.GELU(), nn.Linear(7, 4))


@pytest.mark.parametrize(("make", "shape"), [(conv_net, (2, 2, 4, 4)), (batch_net, (5, 6))])
def test_spectra_are_those_of_the_jacobians(make, shape, backend, rng):
    """Also of a batch whose samples depend on each other; and the model, with its running
    estimates, stays as it is."""
    tp.manual_seed(0)
    net = make().to(backend, "float64")
    x = tp.tensor(rng.normal(size=shape), backend=backend)
    before = net.state_dict()
    found, start, so_far = spectra(net, x), x, []
    assert [record.layer for record in found] == [
        f"{i} {type(layer).__name__}" for i, layer in enumerate(net)
    ]
    assert all((value == before[name]).all() for name, value in net.state_dict().items())
    for layer, record in zip(net, found, strict=True):
        so_far.append(layer)
        for f, at, values in (
            (layer, x, record.own),
            (nn.Sequential(*so_far), start, record.product),
        ):
            jacobian = tp.jacobian(f, at).numpy().reshape(-1, at.size)
            np.testing.assert_allclose(values, np.linalg.svd(jacobian, compute_uv=False), atol=1e-6)
        assert record.exact
        x = layer(x).detach()


@pytest.mark.parametrize(("make", "shape"), [(conv_net, (2, 2, 4, 4)), (batch_net, (5, 6))])
def test_large_jacobians_are_sampled(make, shape, backend, rng, monkeypatch):
    """From below, and to 2 % also where many singular values are nearly equal, as those of a tanh
    are."""
    tp.manual_seed(0)
    net, x = make().to(backend, "float64"), tp.tensor(rng.normal(size=shape), backend=backend)
    exact = spectra(net, x)
    monkeypatch.setattr(probes, "SMALL", 1)
    for known, found in zip(exact, spectra(net, x, largest=2), strict=True):
        assert not found.exact
        assert found.own.shape == found.product.shape == (2,)
        for values, largest in ((found.own, known.own), (found.product, known.product)):
            np.testing.assert_allclose(values, largest[:2], rtol=0.02)
            assert (values <= largest[:2] * (1 + 1e-9)).all(), "never too large"


def test_few_directions_are_found_once(monkeypatch):
    """Singular values that are all the same, and a rank below the number that is asked for."""
    monkeypatch.setattr(probes, "SMALL", 1)
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data[...] = np.diag([0.0, 0.0, 0.0, 2.0])
    same, low = spectra(nn.Sequential(nn.Identity(), layer), tp.ones(1, 4), largest=3)
    np.testing.assert_allclose(same.own, 1.0, rtol=1e-6)
    np.testing.assert_allclose(low.own, [2.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("degrees", [0.0, 90.0, 135.0])
def test_pairs_have_the_angle_and_the_length(degrees, backend, rng):
    x = tp.tensor(3.0 * rng.normal(size=(4, 2, 3, 3)), backend=backend)
    seen = []

    class Look(nn.Module):
        def forward(self, x):
            seen.append(x.numpy().reshape(2, 4, -1))
            return x

    cosines = correlations(nn.Sequential(Look()), x, degrees)[0].cosines
    np.testing.assert_allclose(cosines, math.cos(math.radians(degrees)), atol=1e-12)
    ((one, two),) = seen
    np.testing.assert_allclose(one, x.numpy().reshape(4, -1))
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), np.linalg.norm(one, axis=1))


def test_refusals():
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    assert_explained(ValueError, lambda: spectra(net, tp.ones(1, 3)), "dropout")
    assert len(spectra(net.eval(), tp.ones(1, 3))) == 2
    assert_explained(ValueError, lambda: correlations(net, tp.zeros(1, 3)), "direction")
    assert_explained(ValueError, lambda: correlations(net, tp.ones(2, 1)), "direction")


def test_samples_are_separate_where_batch_norm_has_fixed_statistics():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm(6), nn.Tanh())
    net(tp.randn(20, 6))
    x = tp.randn(1, 6)
    assert not probes.samples_are_separate(net)
    assert probes.samples_are_separate(net.eval())
    matrix = tp.jacobian(lambda v: net(v.reshape(1, 6)).reshape(6), x.reshape(6)).data
    np.testing.assert_allclose(
        spectra(net, x)[-1].product, np.linalg.svd(matrix, compute_uv=False), rtol=1e-4
    )


def test_a_network_with_a_forward_of_its_own(rng):
    """Each layer by itself, and everything up to its output, whichever way it got there."""
    block, x = nn.Residual(nn.Linear(4, 4, bias=False)), tp.randn(1, 4)
    branch, whole = spectra(block, x)
    weight = block.branch.weight.numpy()
    for found, matrix in (
        (branch.own, weight),
        (branch.product, weight),
        (whole.own, np.eye(4) + weight),
        (whole.product, np.eye(4) + weight),
    ):
        np.testing.assert_allclose(found, np.linalg.svd(matrix, compute_uv=False), rtol=1e-5)
    names = ["branch Linear", "Residual"]
    assert [c.layer for c in correlations(block, x)] == [branch.layer, whole.layer] == names


class Attend(nn.Module):
    """A stranger's network: a layer that is used twice, one with two inputs, called by keyword, and
    one that looks across the batch."""

    class Mix(nn.Module):
        def forward(self, first, second):
            return first * 2.0 + second

    class Center(nn.Module):
        def forward(self, x):
            return x - x.mean(axis=0, keepdims=True)

    def __init__(self):
        self.linear = nn.Linear(3, 3, bias=False)
        self.mix, self.center = self.Mix(), self.Center()

    def forward(self, x):
        h = self.linear(self.linear(x))
        return self.center(self.mix(second=x, first=h))


def test_spectra_of_a_stranger_who_looks_across_the_batch():
    net, x = Attend().to(dtype="float64"), tp.randn(4, 3, dtype="float64")
    found = spectra(net, x)
    names = ["linear Linear", "linear Linear", "mix Mix", "center Center"]
    assert [record.layer for record in found] == names
    w = net.linear.weight.numpy()
    each = {  # of one sample
        "once": w,
        "twice": w @ w,
        "mixed": 2.0 * w @ w + np.eye(3),
    }
    center = np.kron(np.eye(4) - 0.25, np.eye(3))
    products = [np.kron(np.eye(4), matrix) for matrix in each.values()]
    products.append(center @ products[-1])
    owns = [products[0], products[0], np.eye(12), center]  # of Mix: with respect to `second`
    for record, own, product in zip(found, owns, products, strict=True):
        for values, matrix in ((record.own, own), (record.product, product)):
            expected = np.linalg.svd(matrix, compute_uv=False)
            np.testing.assert_allclose(values, expected, atol=1e-12)


def test_pairs_of_integers_have_the_angle_that_was_asked_for():
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 4)).astype(np.uint8)
    (found,) = correlations(nn.Sequential(nn.Flatten()), tp.tensor(images), degrees=60.0)
    np.testing.assert_allclose(found.cosines, 0.5, atol=1e-6)
