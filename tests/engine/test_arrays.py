"""Where arrays live, and what is said when they cannot."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tinyprop as tp


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_nothing_is_printed_or_warned_on_import():
    done = run_python("import tinyprop", TINYPROP_BACKEND="cupy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_tinyprop_does_not_import_cupy():
    done = run_python("import tinyprop, sys; assert 'cupy' not in sys.modules; tinyprop.tensor(1.0) + 1")
    assert done.returncode == 0, done.stderr


def hide_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def cupy_without_a_device(monkeypatch):
    class CUDARuntimeError(Exception):
        pass

    def count():
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), ndarray=type(None)))


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (hide_cupy, ["needs CuPy", "pip install 'tinyprop[cuda13]'"]),
        (cupy_without_a_device, ["needs a CUDA device", "cudaErrorNoDevice", "TINYPROP_BACKEND=numpy"]),
    ],
)
def test_a_missing_backend_is_explained_in_one_sentence(monkeypatch, break_it, words):
    break_it(monkeypatch)
    with pytest.raises(tp.BackendError) as caught:
        tp.use_backend("cupy")
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    monkeypatch.setattr(tp.backend, "_default", None)
    monkeypatch.setenv("TINYPROP_BACKEND", "cupy")
    with pytest.raises(tp.BackendError):
        tp.tensor(1.0)


def test_an_unknown_backend_is_refused():
    with pytest.raises(tp.BackendError, match="no backend 'torch': choose 'numpy' or 'cupy'"):
        tp.use_backend("torch")
    done = run_python("import tinyprop as tp; tp.tensor(1.0)", TINYPROP_BACKEND="abacus")
    assert "no backend 'abacus'" in done.stderr


def test_the_default_says_where_new_tensors_are_made(backend):
    with tp.use_backend(backend):
        assert tp.tensor([1.0]).backend == backend
        assert tp.tensor(np.ones(2)).backend == backend
        assert tp.tensor([1.0], backend="numpy").backend == "numpy"
    assert tp.tensor([1.0]).backend == "numpy"


def test_use_backend_is_undone_when_something_fails(monkeypatch):
    monkeypatch.setattr(tp.backend, "_default", "another")
    with pytest.raises(ArithmeticError), tp.use_backend("numpy"):
        raise ArithmeticError
    assert tp.engine.arrays.default_backend() == "another"


@pytest.mark.cupy
def test_an_array_stays_where_it_is():
    cupy = pytest.importorskip("cupy")
    assert tp.tensor(cupy.ones(2)).backend == "cupy"
    assert tp.tensor(cupy.ones(2), backend="numpy").backend == "numpy"


@pytest.mark.cupy
def test_mixing_backends_is_refused_with_both_names():
    cupy = pytest.importorskip("cupy")
    x, y = tp.tensor(np.ones(2)), tp.tensor(cupy.ones(2))
    for mix in (lambda: x + y, lambda: y * x, lambda: x @ y, lambda: x > y, lambda: tp.functional.stack([x, y])):
        with pytest.raises(tp.BackendError, match=r"NumPy and a CuPy array.*\.to\('cupy'\)"):
            mix()


def test_mixing_is_refused_without_a_device_too(monkeypatch):
    """A stand-in for CuPy: enough of an array to be recognised as one."""

    class DeviceArray:
        dtype, shape = np.dtype(np.float32), (2,)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=DeviceArray))
    with pytest.raises(tp.BackendError, match="Add got a NumPy and a CuPy array together"):
        tp.tensor([1.0, 2.0]) + tp.Tensor(DeviceArray())


def test_seeds_mean_the_same_every_time():
    tp.manual_seed(7)
    first = tp.engine.arrays.generator().standard_normal(3)
    tp.manual_seed(7)
    np.testing.assert_array_equal(tp.engine.arrays.generator().standard_normal(3), first)


def test_scalars_and_integers_never_widen_float32(backend):
    x = tp.tensor(np.ones(3, np.float32), requires_grad=True, backend=backend)
    integers = tp.tensor(np.arange(3), backend=backend)
    for other in (2, 2.5, True, np.float64(2.5), np.int64(2), integers, [1, 2, 3], x > 0):
        for y in (x + other, other * x, x / 2, x**2, x - other):
            assert y.dtype == np.float32, other
        (g,) = tp.grad((x * other).sum(), [x])
        assert g.dtype == np.float32


def test_float32_and_float64_meet_in_float64_and_part_again(backend):
    x = tp.tensor(np.ones(3, np.float32), requires_grad=True, backend=backend)
    y = tp.tensor(np.ones(3), requires_grad=True, backend=backend)
    z = x * y
    assert z.dtype == np.float64
    gx, gy = tp.grad(z.sum(), [x, y])
    assert (gx.dtype, gy.dtype) == (np.float32, np.float64)
