"""Random numbers: Philox's known answers, and masks that are the same bits on both backends."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.functional.normalization import dropout_mask
from tinyprop.random import next_key, philox, random_words

from .conftest import BACKENDS

KNOWN_ANSWERS = [  # kat_vectors of Random123: counter, key, four words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(backend, counter, key, answer):
    low, high = words(key)
    counters = tuple(to_backend(np.array([word], "uint64"), backend) for word in words(counter))
    assert [int(to_numpy(word)[0]) for word in philox(counters, low | high << 32)] == words(answer)


def test_words_are_numbered_by_element(backend):
    like = to_backend(np.zeros(1, "float32"), backend)
    assert to_numpy(random_words((2,), 0, like)).tolist() == words(KNOWN_ANSWERS[0][2])[:2]
    few, many = (to_numpy(random_words(shape, 7, like)) for shape in ((5,), (3, 4)))
    assert few.dtype == "uint32"
    assert many.reshape(-1)[:5].tolist() == few.tolist()


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
        assert abs((dropout_mask(x, x.shape, p, 5) == 0).mean() - p) < 5 * (p * (1 - p) / 10**6) ** 0.5
