"""Covariances of all pairs of many units, against duals of single pairs."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.moments.many import MOST_CLOSED, covariances
from tinyprop.theory.pointwise import Pointwise


def units(name, rng, count, scale=1.0):
    mean = rng.normal(size=count)
    variance = (scale * rng.uniform(0.3, 2.0, size=count)) ** 2
    return Pointwise(tp.activations[name], {}).units(mean, variance)


def correlations(rng, count, dimensions):
    x = rng.normal(size=(count, dimensions))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


@pytest.mark.parametrize("name", [name for name in tp.activations if name != "prelu"])
@pytest.mark.parametrize("dimensions", [2, 20])
def test_they_are_those_of_single_pairs(name, dimensions, rng):
    """In two dimensions, many correlations are near 1."""
    some = units(name, rng, 12)
    rho = correlations(rng, 12, dimensions)
    variance = tp.moments.gaussian(name, some.mean, some.std).std ** 2
    found, bound = covariances(some, some, rho, (variance, variance))
    i, j = np.triu_indices(12, 1)
    means = some.mean[i], some.mean[j]
    stds = some.std[i], some.std[j]
    expected = tp.moments.dual(name, rho[i, j], means, stds).covariance
    scale = np.sqrt(variance[i] * variance[j])
    assert bound <= 1e-12
    assert (abs(found[i, j] - expected) <= 2e-13 * scale).all()
    np.testing.assert_array_equal(found[i, j], found[j, i])


def test_two_functions(rng):
    """Of erf and the identity, whose covariance is Stein's: rho s1 s2 E erf'."""
    first = units("erf", rng, 5)
    second = units("identity", rng, 7)
    rho = rng.uniform(-1.0, 1.0, size=(5, 7))
    variances = tp.moments.gaussian("erf", first.mean, first.std).std ** 2, second.std**2
    found, bound = covariances(first, second, rho, variances)
    width = 1.0 + 2.0 * first.std**2
    slope = 2.0 / np.sqrt(np.pi * width) * np.exp(-(first.mean**2) / width)
    expected = rho * np.outer(slope * first.std, second.std)
    assert bound < 1e-12
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("slope", [1e2, 1e3, 1e4])
@pytest.mark.parametrize("weak", [0.0, 1e-3, 0.47])
def test_a_function_that_is_too_steep_for_its_panels(slope, weak):
    """As the tanh of pixels from 0 to 255: the error of the first coefficient does not fall with
    the powers of a weak correlation. U = slope * u, so tanh(slope * u) is tanh of a wide number."""
    steep = tp.Activation(lambda u: tp.functional.tanh(u * slope), "steep")
    mean = np.array([0.3, -0.2])
    std = np.array([1.0, 1.1])
    some = Pointwise(steep, {}).units(mean, std**2)
    variance = some.sums.variance
    rho = np.array([[1.0, weak], [weak, 1.0]])
    found, bound = covariances(some, some, rho, (variance, variance))
    expected = tp.moments.dual("tanh", weak, tuple(slope * mean), tuple(slope * std)).covariance
    difference = abs(found[0, 1] - expected)
    assert difference <= max(bound, 1e-9) * np.sqrt(variance.prod())


def test_a_function_without_a_slope_at_its_kink():
    """The dual of sqrt |u| is refused, so the series stays, with a bound."""
    root = tp.Activation(lambda u: tp.functional.sqrt(tp.functional.abs(u)), "root", kinks=[0.0])
    some = Pointwise(root, {}).units(np.array([0.0, 0.1]), np.array([1.0, 2.0]))
    variance = some.sums.variance
    rho = np.array([[1.0, 0.9999], [0.9999, 1.0]])
    _, bound = covariances(some, some, rho, (variance, variance))
    assert 1e-9 < bound < 0.1


def test_what_is_left_out_is_bounded(rng, monkeypatch):
    """If there are too many pairs for the slow ways, the bound says what may be missing."""
    monkeypatch.setattr("tinyprop.moments.many.MOST_CLOSED", 0)
    monkeypatch.setattr("tinyprop.moments.many.MOST_LONG", 0)
    some = units("relu", rng, 12)
    rho = correlations(rng, 12, 2)
    variance = tp.moments.gaussian("relu", some.mean, some.std).std ** 2
    found, bound = covariances(some, some, rho, (variance, variance))
    monkeypatch.setattr("tinyprop.moments.many.MOST_CLOSED", MOST_CLOSED)
    exact, _ = covariances(some, some, rho, (variance, variance))
    worst = (abs(found - exact) / np.sqrt(np.outer(variance, variance))).max()
    assert 1e-9 < worst <= bound


@pytest.mark.parametrize(("rho", "expected"), [(0.5, 0.130502721391), (0.95, 0.299675787134)])
def test_a_spike_that_panels_miss(rho, expected):
    """A function that looks like lines, and whose coefficients look as if they had converged."""

    def spiked(u):
        spike = tp.functional.exp(-0.5 * ((u + 1.2345) / 0.002) ** 2)
        return tp.functional.relu(u) + 30.0 * spike

    activation = tp.Activation(spiked, kinks=[0.0])
    some = Pointwise(activation, {}).units(np.zeros(2), np.ones(2))
    variance = np.full(2, tp.moments.gaussian(activation).std ** 2)
    found, _ = covariances(some, some, np.array([[1.0, rho], [rho, 1.0]]), (variance, variance))
    assert found[0, 1] == pytest.approx(expected, rel=1e-10)
