"""What test_overrides.py does not test of the CUDA overrides: many strips, many parameters, what is declined."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.engine.arrays import is_device_array, to_backend, to_numpy
from tinyprop.functional.normalization import BatchNorm, WeightNorm
from tinyprop.functional.pooling import MaxPool
from tinyprop.functional.windows import Window
from tinyprop.kernels import cuda
from tinyprop.kernels.fused import ShiftedReLU

from ..conftest import BACKENDS

pytestmark = [
    pytest.mark.cupy,
    pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator"),
]
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def up(*arrays):
    moved = [to_backend(a, "cupy") if isinstance(a, np.ndarray) else a for a in arrays]
    return moved[0] if len(moved) == 1 else moved


def assert_close(got, expected, dtype):
    assert is_device_array(got)
    assert got.dtype == dtype
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    expected = np.asarray(expected)
    np.testing.assert_allclose(to_numpy(got), expected, tolerance, tolerance * max(1.0, np.abs(expected).max()))


def normal(rng, shape, dtype):
    """Random numbers; images (N, C, H, W) are channels-last in memory, as convolutions leave them."""
    if len(shape) < 4:
        return rng.normal(size=shape).astype(dtype)
    n, c, h, w = shape
    return rng.normal(size=(n, h, w, c)).astype(dtype).transpose(0, 3, 1, 2)


def other_axes(x):
    """All axes but the channels."""
    return (0, *range(2, x.ndim))


def per_channel(numbers, x):
    return numbers.reshape(-1, *[1] * (x.ndim - 2))


@DTYPES
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 130, 6, 6), (70, 5)])
def test_shifted_relu(rng, dtype, several, shape, monkeypatch):
    monkeypatch.setattr(cuda, "MOST_STRIPS", 3)
    x, g = normal(rng, shape, dtype), rng.normal(size=shape).astype(dtype)
    bias = per_channel(normal(rng, shape[1:2], dtype), x)
    shift = per_channel(rng.uniform(0.2, 1, shape[1]).astype(dtype), x) if several else 0.4
    low = -np.asarray(shift, dtype)
    op, out = ShiftedReLU(overwrite=False), np.maximum(x + (bias + low), low)
    got = cuda.shifted_relu(op, *up(x, bias, shift))
    assert_close(got, out, dtype)
    assert len(shape) == 2 or got.transpose(0, 2, 3, 1).flags.c_contiguous
    passed, of_bias, of_shift = cuda.shifted_relu_gradient(op, *up(g, shift, out))
    assert_close(passed, np.where(out > low, g, 0), dtype)
    assert_close(of_bias(), np.where(out > low, g, 0).sum(axis=other_axes(x)).reshape(bias.shape), dtype)
    assert_close(of_shift(), -g, dtype)


def test_shifted_relu_passes_nan_and_overwrites():
    op, x = ShiftedReLU(overwrite=True), up(np.array([[np.nan, np.inf, -np.inf]], "f4"))
    out = cuda.shifted_relu(op, x, 0.0, 0.5)
    np.testing.assert_array_equal(to_numpy(out), [[np.nan, np.inf, -0.5]])
    assert out.data.ptr == x.data.ptr
    g = up(np.array([[1, 2, 3]], "f4"))
    np.testing.assert_array_equal(to_numpy(cuda.shifted_relu_gradient(op, g, 0.5, out)[0]), [[1, 2, 0]])


@DTYPES
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 130, 9, 9), (70, 5), (6, 1)])
def test_batch_norm(rng, dtype, shape, monkeypatch):
    """Far from 0, where a sum of squares would lose its digits."""
    monkeypatch.setattr(cuda, "MOST_STRIPS", 3)
    x, g = 100 + 3 * normal(rng, shape, dtype), 3 * normal(rng, shape, dtype)
    weight, bias, mean_before, var_before = rng.normal(size=(4, shape[1])).astype(dtype)
    axes, count = other_axes(x), x.size // shape[1]
    mean, var = (f(x.astype("f8"), axis=axes, keepdims=True) for f in (np.mean, np.var))
    inverse = 1 / np.sqrt(var + 1e-5)
    unit, slope = (x - mean) * inverse, inverse * per_channel(weight, x)
    op = BatchNorm(1e-5, 0.1, *up(mean_before, var_before))
    assert_close(cuda.batch_norm(op, *up(x, weight, bias)), unit * per_channel(weight, x) + per_channel(bias, x), dtype)
    assert_close(op.running[0], mean_before + 0.1 * (mean.ravel() - mean_before), dtype)
    assert_close(op.running[1], var_before + 0.1 * (var.ravel() * count / (count - 1) - var_before), dtype)
    rest = g - g.mean(axis=axes, keepdims=True) - unit * (g * unit).mean(axis=axes, keepdims=True)
    g_x, g_weight, g_bias = cuda.batch_norm_gradient(op, *up(g, x, weight))
    assert_close(g_x, rest * slope, dtype)
    assert_close(g_weight, (g * unit).sum(axis=axes), dtype)
    assert_close(g_bias, g.sum(axis=axes), dtype)


@DTYPES
@pytest.mark.parametrize("decay", [0.01, 0.0])
@pytest.mark.parametrize("name", ["sgd", "sgd without momentum", "rmsprop", "adam"])
def test_updates_of_more_parameters_than_one_launch_takes(rng, dtype, decay, name):
    """Against the rules of optim.py, which are NumPy formulas."""
    shapes = [(3, 4), (1,), (130, 2), (2, 3, 5, 5)] * (cuda.TABLE // 4 + 1)
    state = [[rng.uniform(0.5, 1, s).astype(dtype) for s in shapes] for _ in range(4 if name == "adam" else 3)]
    state[1][0] = np.asfortranarray(state[1][0])
    numbers = {
        "sgd": (0.1, 0.9, decay),
        "sgd without momentum": (0.1, 0.0, decay),
        "rmsprop": (0.1, 0.99, 1e-8, decay),
        "adam": (0.1, 0.9, 0.999, 1e-8, decay, 3),
    }[name]
    on_device = [[up(a) for a in arrays] for arrays in state]
    assert getattr(cuda, name.split()[0])(*on_device, *numbers) is None
    getattr(tp.optim, name.split()[0])(*state, *numbers)
    for some, others in zip(state, on_device, strict=True):
        for expected, got in zip(some, others, strict=True):
            assert_close(got, expected, dtype)


def test_arrays_that_no_kernel_is_made_for_are_declined():
    f4, f8, f2, empty = (up(np.ones(s, d)) for s, d in (((4, 3), "f4"), ((4, 3), "f8"), ((4, 3), "f2"), ((0, 3), "f4")))
    scale = up(np.ones(4, "f4"))
    for declined in (
        cuda.weight_norm(WeightNorm(1.0), f8, scale),
        cuda.weight_norm(WeightNorm(1.0), f2, f2[:, 0]),
        cuda.weight_norm(WeightNorm(1.0), empty, scale[:0]),
        cuda.shifted_relu(ShiftedReLU(overwrite=False), f4, scale[:1], 0.5),
        cuda.shifted_relu(ShiftedReLU(overwrite=False), f4[0], 0.0, 0.5),
        cuda.shifted_relu(ShiftedReLU(overwrite=False), f4, f4, 0.5),
        cuda.shifted_relu_gradient(ShiftedReLU(overwrite=False), f4, 0.5, f4),
        cuda.max_pool(MaxPool(Window((3, 3), (2, 2), (1, 1))), up(np.ones((1, 1, 5, 5), "f2"))),
        cuda.sgd([f4, f8], [f4, f8], [f4, f8], 0.1, 0.9, 0.0),
        cuda.sgd([f4.T], [f4.T], [f4.T], 0.1, 0.9, 0.0),
        cuda.unit_rows([f4, f8]),
    ):
        assert declined is NotImplemented
