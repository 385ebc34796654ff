"""What test_overrides.py does not test of the CUDA overrides: NaN, memory, what is declined."""

import numpy as np

from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.functional.activations import ReLU
from tinyprop.functional.normalization import BatchNorm, WeightNorm
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


def test_the_gradient_of_a_relu_passes_where_its_output_is_nan():
    out, g = up(np.array([0, 2, np.nan], "f4"), np.array([3, 4, 5], "f4"))
    np.testing.assert_array_equal(to_numpy(cuda.relu_gradient(ReLU(), g, out)), [0, 4, 5])


def test_memory_that_packs_are_not_aligned_to_is_read_by_single_elements(rng):
    """A view that starts with the second element of its memory."""
    values = rng.standard_normal((40, 8)).astype("f4")
    x = up(np.append(values[0, 0], values))[1:].reshape(values.shape)
    aligned = up(values)
    assert cuda._strips(aligned).width == cuda.PACK
    assert cuda._strips(x).width == 1
    ones, zeros, g = up(np.ones(8, "f4"), np.zeros(8, "f4"), np.ones((40, 8), "f4"))

    def results(x):
        op = BatchNorm((0,), 1e-5, 40, 0.1, zeros.copy(), ones.copy())
        op.recorded = True
        out = cuda.batch_norm(op, x, ones, zeros)
        return [out, *op.running, *cuda.batch_norm_gradient(op, g * aligned, x, ones)]

    for one, other in zip(results(x), results(aligned), strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-5, atol=1e-5)


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
