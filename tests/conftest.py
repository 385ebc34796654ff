"""Backends and hypothesis profiles for all tests.

A test that takes the `backend` fixture runs on NumPy and, where a device (or the emulator) is
present, on CuPy; `pytest -m cupy` picks the latter. `HYPOTHESIS_PROFILE` says how many examples of
each property are drawn: `check` 5, `test` 20 (the default), `thorough` 500."""

import gc
import os
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import settings

import tinyprop as tp

KERNELS = find_spec("tinyprop.kernels") is not None
PLAIN = not KERNELS or os.environ.get("TINYPROP_PLAIN", "0") not in ("", "0")
needs_kernels = pytest.mark.skipif(not KERNELS, reason="needs tinyprop/kernels/")
needs_overrides = pytest.mark.skipif(
    PLAIN, reason="tests overrides, which are missing, or turned off by TINYPROP_PLAIN=1"
)

settings.register_profile("check", max_examples=5, deadline=None, derandomize=True)
settings.register_profile("test", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.register_profile("device", max_examples=4, deadline=None, derandomize=True)


def _backends():
    yield "numpy"
    try:
        with tp.use_backend("cupy"):
            yield pytest.param("cupy", marks=pytest.mark.cupy)
    except tp.BackendError:
        pass


BACKENDS = list(_backends())
on_a_device = [
    pytest.mark.cupy,
    pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator"),
]
default_profile = "test" if len(BACKENDS) == 1 else "device"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", default_profile))


def pytest_collection_finish():
    """Collected tests live until the end: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _nothing_leaks():
    """A test that changes a default and does not restore it fails here, not three files later."""
    before = tp.engine.arrays.default_backend()
    yield
    assert tp.engine.arrays.default_backend() == before
    assert (tp.tensor(1.0, requires_grad=True) * 1).requires_grad, "no_grad() was left on"


@pytest.fixture(autouse=True)
def _no_races():
    """On the emulator with EMUCUPY_RACES=1, a test fails whose operations on the same memory
    nothing puts in order."""
    if os.environ.get("EMUCUPY_RACES") != "1":
        yield
        return
    import cupy
    import emucupy

    cupy.cuda.Device().synchronize()  # what other tests did is over
    emucupy.reset()
    yield
    assert not emucupy.races()
