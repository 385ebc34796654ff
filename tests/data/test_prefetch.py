import sys

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import batches, prefetched


def samples(n=23):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 3, 4, 4)).astype(np.uint8), rng.integers(0, 10, n)


def seen(backend, arrays):
    """What a consumer sees that looks at each batch before it takes the next."""
    pairs = prefetched(batches(arrays, 5, np.random.default_rng(1)), backend)
    return [(tp.Tensor(images).numpy().copy(), labels.copy()) for images, labels in pairs]


def assert_same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize("n", [0, 1, 5, 6, 23])
def test_every_batch_arrives_whole_and_in_order(backend, n):
    assert_same(seen(backend, samples(n)), batches(samples(n), 5, np.random.default_rng(1)))


def test_images_arrive_on_the_device_labels_stay_and_other_shapes_are_handed_on(backend):
    images, labels = next(prefetched(batches(samples(), 5), backend))
    assert tp.Tensor(images).backend == backend
    assert isinstance(labels, np.ndarray)
    pairs = [samples(3), samples(8), (samples(2)[0].astype(np.float32), samples(2)[1])]
    assert_same([(tp.Tensor(a).numpy().copy(), b) for a, b in prefetched(pairs, backend)], pairs)


def test_a_device_without_pinned_memory_gets_plain_copies(backend, monkeypatch):
    def refuse(size):
        raise MemoryError

    if backend == "cupy":
        monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc_pinned_memory", refuse)
    assert_same(seen(backend, samples()), batches(samples(), 5, np.random.default_rng(1)))
