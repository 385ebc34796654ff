"""Pairs of Gaussian vectors that are each divided by their own root mean square."""

import math

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


@pytest.mark.parametrize("scale", [1e-8, 1e4, 1e8])
def test_vectors_of_other_sizes_have_the_same_products(law, scale):
    mean, covariance = law
    size = np.array([1.0, 1.0, 1.0, scale, scale])
    scaled = between_spheres(size * mean, np.outer(size, size) * covariance, 3)
    np.testing.assert_allclose(scaled, between_spheres(mean, covariance, 3), atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_multiples_of_one_number_keep_only_its_sign(shift, rng):
    """u = (shift + z) a, so y = sign(shift + z) a / root mean square of a. Rounding gives u a
    variance of 1e-16 in other directions."""
    a = rng.normal(size=12)
    direction = a / np.sqrt((a * a).mean())
    of_sign = math.erf(shift / math.sqrt(2.0))
    found = on_sphere(shift * a, np.outer(a, a))
    np.testing.assert_allclose(found.mean, of_sign * direction, atol=1e-12)
    expected = (1.0 - of_sign**2) * np.outer(direction, direction)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-12)
    assert found.error < 1e-12

    b = np.concatenate([a[:4], -a[4:]])
    both = np.concatenate([a, b])
    products = between_spheres(shift * both, np.outer(both, both), 12)
    other = b / np.sqrt((b * b).mean())
    np.testing.assert_allclose(products, np.outer(direction, other), atol=1e-9)


@pytest.mark.parametrize("beside", [1e-14, 1e-13])
def test_a_variance_that_rounding_nearly_hides_is_not_exact(beside):
    """y changes its sign over 1e-7 standard deviations: an error of 1e-16 of the small variance is
    one of 1e-9 of the result."""
    covariance = np.diag([1.0, beside, 0.0, 0.0])
    assert on_sphere(np.zeros(4), covariance).error > 1e-9
    passes_at_a_distance = np.array([0.0, 0.0, 0.0, 2.0])
    assert on_sphere(passes_at_a_distance, covariance).error < 1e-9
