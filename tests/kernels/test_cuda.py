"""What test_overrides.py does not test of the CUDA overrides: NaN, memory, what is declined."""

import numpy as np

from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.functional.normalization import WeightNorm
from tinyprop.functional.normprop import NormalizedReLU
from tinyprop.functional.pooling import MaxPool
from tinyprop.functional.windows import Window
from tinyprop.kernels import cuda

from ..conftest import on_a_device

pytestmark = on_a_device


def up(*arrays):
    moved = [to_backend(a, "cupy") if isinstance(a, np.ndarray) else a for a in arrays]
    return moved[0] if len(moved) == 1 else moved


def test_a_normalized_relu_passes_nan_and_overwrites():
    op, u = NormalizedReLU(overwrite=True), up(np.array([[np.nan, np.inf, -np.inf]], "f4"))
    out = cuda.normalized_relu(op, u, 0.0, 2.0, 1.0)
    np.testing.assert_array_equal(to_numpy(out), [[np.nan, np.inf, -0.5]])
    assert out.data.ptr == u.data.ptr
    g = up(np.array([[2, 4, 6]], "f4"))
    found = cuda.normalized_relu_gradient(op, g, 2.0, 1.0, out)[0]
    np.testing.assert_array_equal(to_numpy(found), [[1, 2, 0]])


def test_arrays_that_no_kernel_is_made_for_are_declined():
    f4, f8, f2, empty = (
        up(np.ones(s, d))
        for s, d in (((4, 3), "f4"), ((4, 3), "f8"), ((4, 3), "f2"), ((0, 3), "f4"))
    )
    scale = up(np.ones(4, "f4"))
    for declined in (
        cuda.weight_norm(WeightNorm(1.0), f8, scale),
        cuda.weight_norm(WeightNorm(1.0), f2, f2[:, 0]),
        cuda.weight_norm(WeightNorm(1.0), empty, scale[:0]),
        cuda.normalized_relu(NormalizedReLU(), f4, scale[:1], 0.5, 0.5),
        cuda.normalized_relu(NormalizedReLU(), f4[0], 0.0, 0.5, 0.5),
        cuda.normalized_relu(NormalizedReLU(), f4, f4, 0.5, 0.5),
        cuda.max_pool(MaxPool(Window((3, 3), (2, 2), (1, 1))), up(np.ones((1, 1, 5, 5), "f2"))),
        cuda.sgd([f4, f8], [f4, f8], [f4, f8], 0.1, 0.9, 0.0),
        cuda.sgd([f4.T], [f4.T], [f4.T], 0.1, 0.9, 0.0),
        cuda.unit_rows([f4, f8]),
    ):
        assert declined is NotImplemented
