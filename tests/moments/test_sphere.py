"""Pairs of Gaussian vectors that are each divided by their own root mean square."""

import numpy as np
import pytest

from tinyprop.moments.sphere import between_spheres, on_sphere


@pytest.fixture
def law(rng):
    """A mean, and a covariance of 3 values and then 2 far larger ones."""
    mix = rng.normal(size=(5, 5)) * np.array([1.0, 1.0, 1.0, 9.0, 9.0])[:, None]
    mean = np.array([0.7, -0.4, 1.1, 5.0, -8.0])
    return mean, mix @ mix.T


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_vectors_that_are_independent_have_the_product_of_their_means(law, eps):
    mean, covariance = law
    covariance[:3, 3:] = covariance[3:, :3] = 0.0
    a = on_sphere(mean[:3], covariance[:3, :3], eps)
    b = on_sphere(mean[3:], covariance[3:, 3:], eps)
    products = between_spheres(mean, covariance, 3, eps)
    np.testing.assert_allclose(products, np.outer(a.mean, b.mean), atol=1e-9)


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_either_vector_may_come_first(law, eps):
    """The first one is integrated over, the other one by Stein's lemma."""
    mean, covariance = law
    swapped = [3, 4, 0, 1, 2]
    one = between_spheres(mean, covariance, 3, eps)
    other = between_spheres(mean[swapped], covariance[np.ix_(swapped, swapped)], 2, eps)
    np.testing.assert_allclose(one, other.T, atol=1e-9)


def test_products_are_those_of_a_simulation(law, rng):
    mean, covariance = law
    u = rng.multivariate_normal(mean, covariance, 200_000)
    a, b = u[:, :3], u[:, 3:]
    a = a / np.sqrt((a * a).mean(axis=1, keepdims=True))
    b = b / np.sqrt((b * b).mean(axis=1, keepdims=True))
    products = a[:, :, None] * b[:, None]
    error = products.std(axis=0) / np.sqrt(len(u))
    z = (between_spheres(mean, covariance, 3) - products.mean(axis=0)) / error
    assert abs(z).max() < 4.5  # of 6 numbers: once in 25,000 times
