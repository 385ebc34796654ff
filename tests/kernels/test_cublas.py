"""cuBLAS called directly: each thread has a handle and workspaces of its own, for as long as
somebody needs them."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tinyprop.engine.arrays import load_module, to_backend, to_numpy
from tinyprop.functional.linear import product
from tinyprop.kernels import cublas

from ..conftest import needs_overrides, on_a_device

pytestmark = [*on_a_device, needs_overrides]


def test_a_thread_takes_its_workspaces_along_unless_a_graph_needs_them(monkeypatch):
    cupy, alive = load_module("cupy"), weakref.WeakSet()

    class Memory(cupy.cuda.Memory):
        def __init__(self, size):
            super().__init__(size)
            alive.add(self)

    monkeypatch.setattr(cupy.cuda, "Memory", Memory)
    x = to_backend(np.arange(6, dtype="float32").reshape(2, 3), "cupy")

    def work():
        for stream in (cupy.cuda.Stream(), cupy.cuda.Stream()):
            stream.wait_event(cupy.cuda.get_current_stream().record())
            with stream:
                np.testing.assert_array_equal(to_numpy(product(x, x.T)), [[5, 14], [14, 50]])
        return cublas.workspaces()

    with ThreadPoolExecutor(1) as pool:
        needed = pool.submit(work).result()
    assert len(alive) == len(needed) == 2
    needed.pop()
    assert len(alive) == 1
    needed.clear()
    assert not alive
