"""Random numbers that are the same on both backends, and as random as they should be."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.conftest import BACKENDS
from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.engine.random import next_key, normals, random_words
from tinyprop.functional.normalization import dropout_mask
from tinyprop.functional.special import erfc


def test_words_are_those_of_philox():
    """By the definition of Salmon et al. (2011), with Python's integers of any length."""
    words, low = [], 2**64 - 1
    for number in (1, 2):  # NumPy's counter begins with 1
        a, b, c, d, k0, k1 = number, 0, 0, 0, 2**64 - 3, 0
        for _ in range(10):
            left, right = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
            a, b, c, d = (right >> 64) ^ b ^ k0, right & low, (left >> 64) ^ d ^ k1, left & low
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & low, (k1 + 0xBB67AE8584CAA73B) & low
        words += [half for word in (a, b, c, d) for half in (word & 0xFFFFFFFF, word >> 32)]
    assert random_words(15, 2**64 - 3).tolist() == words[:15]


def test_normals_are_normal():
    """Against the quantiles of a million: by Kolmogorov and Smirnov, a distance of 0.0025 has
    probability 7e-6. And the farthest of a million is beyond 4, with probability 1 - 3e-28, and
    finite."""
    x = np.sort(normals(np.ones(1), (1000, 1000), key=3).ravel().astype(float))
    below = 0.5 * erfc(-x / 2.0**0.5)
    assert x[-1] > 4
    assert np.isfinite(x).all()
    assert abs(below - (np.arange(10**6) + 0.5) / 10**6).max() < 0.0025


def test_neither_coordinate_tells_the_other():
    """Cosines and sines of the same radii: for a million pairs, correlations of both and of their
    squares are below 5 standard errors with probability 1 - 1e-6."""
    x, y = normals(np.ones(1), (2, 10**6), key=4).astype(float)
    for power in (1, 2):
        assert abs(np.corrcoef(x**power, y**power)[0, 1]) < 5e-3


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
@pytest.mark.parametrize("shape", [(1,), (16,), (17, 31), (129, 16), (0, 3)])
def test_normals_are_the_same_on_both_backends(shape):
    """Up to the rounding of logarithm, sine and cosine."""
    key, like = next_key(), np.ones(1)
    on_device = to_numpy(normals(to_backend(like, "cupy"), shape, key))
    assert (on_device.dtype, on_device.shape) == (np.float32, shape)
    np.testing.assert_allclose(on_device, normals(like, shape, key), rtol=1e-5, atol=2e-6)


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_a_mask_has_the_same_bits_on_both_backends(p):
    x = np.ones((5, 7, 3), "float32")
    key = next_key()
    on_device = dropout_mask(to_backend(x, "cupy"), x.shape, p, key)
    np.testing.assert_array_equal(to_numpy(on_device), dropout_mask(x, x.shape, p, key))


def test_every_call_has_a_mask_of_its_own_and_a_seed_repeats_them(backend):
    x, drawn = tp.ones(64, backend=backend), []
    for _ in range(2):
        tp.manual_seed(3)
        drawn.append([F.dropout(x).tolist() for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_masks_drop_the_fraction_that_they_should():
    """With probability 1 - 6e-7: the fraction of 10^6 is 5 standard deviations off otherwise."""
    x = np.ones(10**6, "float32")
    for p in (0.01, 0.3):
        assert (
            abs((dropout_mask(x, x.shape, p, 5) == 0).mean() - p) < 5 * (p * (1 - p) / 10**6) ** 0.5
        )
