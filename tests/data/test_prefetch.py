import sys

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import batches, prefetch, prefetched

from ..conftest import BACKENDS


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


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
def test_uploads_wait_for_whoever_used_their_memory():
    """In epoch 2 the slots get memory that the last steps of epoch 1 may still read; and an epoch
    may end early. This fails with EMUCUPY_RACES=1 only (see conftest.py)."""
    arrays = samples()
    for _ in range(2):
        for images, _ in prefetched(batches(arrays, 5), "cupy"):
            last = images * 2
    for images, _ in prefetched(batches(arrays, 5), "cupy"):
        last = images * 2
        break
    del images
    for _ in range(3):
        last = last + last[:1]
    assert last.size


class OtherDevices:
    """As much of CuPy as uploads need, with two devices: a stream may only be used while its device
    is the current."""

    def __init__(self):
        self.cuda = self.runtime = self
        self.current = 0
        self.CUDARuntimeError = RuntimeError

    def Device(self):
        return Chosen(self, self.current)

    def Stream(self, non_blocking):
        return OtherStream(self)

    def get_current_stream(self):
        return OtherStream(self)

    def alloc_pinned_memory(self, size):
        return bytearray(size)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype).view(Settable)


class Settable(np.ndarray):
    def set(self, values, stream):
        stream.check()
        self[...] = values


class Chosen:
    def __init__(self, module, number):
        self.module, self.number = module, number

    def __enter__(self):
        self.before, self.module.current = self.module.current, self.number

    def __exit__(self, *error):
        self.module.current = self.before


class OtherStream:
    def __init__(self, module):
        self.module, self.device, self.done = module, module.current, False

    def check(self):
        assert self.module.current == self.device, "a stream of another device"

    def record(self):
        self.check()
        return self

    def wait_event(self, event):
        self.check()

    def synchronize(self):
        pass


def test_uploads_stay_on_their_device_and_leave_the_current_one_alone(monkeypatch):
    there = OtherDevices()
    seen = []
    monkeypatch.setattr(prefetch, "load_module", lambda name: there)
    there.current = 1
    for images, _ in prefetched(batches(samples(), 5), "cupy"):
        seen.append((len(images), there.current))
        there.current = len(seen) % 2  # whoever takes the batches may change it
    assert seen == [(5, 1), (5, 1), (5, 0), (5, 1), (3, 0)]
