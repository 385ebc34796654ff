import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.conftest import BACKENDS
from tests.helpers import FLOATS, assert_explained, computed_dtypes, leaf, make, run_python
from tinyprop.engine.arrays import promote_operands
from tinyprop.engine.random import generator


def test_an_import_prints_nothing_warns_of_nothing_and_does_not_import_cupy():
    done = run_python(
        "import tinyprop, sys; assert 'cupy' not in sys.modules", TINYPROP_BACKEND="cupy"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def hide_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def cupy_without_a_device(monkeypatch):
    class CUDARuntimeError(Exception):
        pass

    def count():
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError)
    monkeypatch.setitem(
        sys.modules,
        "cupy",
        SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), ndarray=type(None)),
    )


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (hide_cupy, ["CuPy backend is not available", "import of cupy", "`tinyprop info`"]),
        (
            cupy_without_a_device,
            ["CuPy backend is not available", "cudaErrorNoDevice", "`tinyprop info`"],
        ),
    ],
)
def test_a_missing_backend_is_explained_in_one_sentence(monkeypatch, break_it, words):
    break_it(monkeypatch)
    with pytest.raises(tp.BackendError) as caught:
        tp.use_backend("cupy")
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    monkeypatch.setattr(tp.engine.arrays, "_default", None)
    monkeypatch.setenv("TINYPROP_BACKEND", "cupy")
    with pytest.raises(tp.BackendError):
        tp.tensor(1.0)


def test_an_unknown_backend_is_refused():
    with pytest.raises(tp.BackendError, match="no backend 'torch': choose 'numpy' or 'cupy'"):
        tp.use_backend("torch")
    done = run_python("import tinyprop as tp; tp.tensor(1.0)", TINYPROP_BACKEND="abacus")
    assert "no backend 'abacus'" in done.stderr


def test_the_default_says_where_new_tensors_are_made(backend, monkeypatch):
    with tp.use_backend(backend):
        assert tp.tensor([1.0]).backend == backend
        assert tp.tensor(np.ones(2)).backend == backend
        assert tp.tensor([1.0], backend="numpy").backend == "numpy"
    assert tp.tensor([1.0]).backend == "numpy"
    monkeypatch.setattr(tp.engine.arrays, "_default", "another")
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
    for mix in (
        lambda: x + y,
        lambda: y * x,
        lambda: x @ y,
        lambda: x > y,
        lambda: tp.functional.stack([x, y]),
    ):
        with pytest.raises(tp.BackendError, match=r"NumPy and a CuPy array.*\.to\('cupy'\)"):
            mix()


def test_mixing_is_refused_without_a_device_too(monkeypatch):
    """A stand-in for CuPy: enough of an array to be recognised as one."""

    class DeviceArray:
        dtype, shape = np.dtype(np.float32), (2,)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=DeviceArray))
    with pytest.raises(tp.BackendError, match="Add got a NumPy and a CuPy array together"):
        tp.tensor([1.0, 2.0]) + tp.Tensor(DeviceArray())


def test_a_seed_is_that_of_the_calling_thread():
    tp.manual_seed(7)
    expected = [generator().random(), generator().random()]
    tp.manual_seed(7)
    first, second = generator().random(), []
    thread = threading.Thread(target=lambda: (tp.manual_seed(3), generator().random(100)))
    thread.start()
    thread.join()
    second = generator().random()
    assert [first, second] == expected


# One dtype policy: floats keep theirs, integers and bools become float32 in a floating-point
# function, numbers never promote.


def test_float32_and_float64_meet_in_float64_and_part_again(backend):
    x, y = leaf(np.ones(3), backend, np.float32), leaf(np.ones(3), backend)
    z = x * y
    assert z.dtype == np.float64
    gx, gy = tp.grad(z.sum(), [x, y])
    assert (gx.dtype, gy.dtype) == (np.float32, np.float64)


BESIDE_FLOATS = [
    lambda x, n: x @ n,
    lambda x, n: n @ x.T,
    lambda x, n: [[1.0, 2.0]] @ x,
    lambda x, n: F.concatenate([x, n, [[0.5, 0.5]]]),
    lambda x, n: F.stack([n, x]),
    lambda x, n: F.stack([n, x, [[0.1, 0.1], [0.1, 0.1]]]),
    lambda x, n: F.stack([x, [[0.5, 0.5], [0.5, 0.5]]]),
    lambda x, n: F.conv2d(n[None, None], x[None, None]),
    lambda x, n: F.conv2d(n[None, None], x[None, None], [0.5]),
    lambda x, n: F.conv2d([[[[1.0, 2.0], [3.0, 4.0]]]], x[None, None]),
]
SLOPES = 0.25, np.float64(0.25), 1, np.int64(1)
BESIDE_FLOATS += [
    partial(lambda f, a, x, n: f(x, a), f, a)
    for f in (F.prelu, F.leaky_relu, F.elu)
    for a in SLOPES
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("call", BESIDE_FLOATS)
def test_integers_lists_and_numbers_beside_floats_never_promote(backend, call, dtype):
    x, n = (
        leaf([[-1.0, 2.0], [3.0, -4.0]], backend, dtype),
        make(np.eye(2, dtype=np.uint8), backend),
    )
    with computed_dtypes() as seen:
        out = call(x, n)
        (slope,) = tp.grad(out.sum(), [x], create_graph=True)
    assert seen == {out.dtype, slope.dtype} == {np.dtype(dtype)}
    assert out.backend == backend


FLOATING = [
    F.exp,
    F.expm1,
    F.log1p,
    F.sqrt,
    F.rsqrt,
    F.sin,
    F.cos,
    F.erf,
    F.tanh,
    F.sigmoid,
    F.softplus,
    F.relu,
    F.hardtanh,
    F.elu,
    F.selu,
    F.gelu,
    F.silu,
    F.leaky_relu,
    F.mean,
    F.var,
    F.std,
    F.norm,
    F.logsumexp,
    F.softmax,
    F.log_softmax,
]
FLOATING = {f.__name__: f for f in FLOATING}
FLOATING |= {
    "x / 2": lambda x: x / 2,
    "x ** 0.5": lambda x: x**0.5,
    "x + 0.5": lambda x: x + 0.5,
    "where": lambda x: F.where(x > 0, x, 0.5),
    "clip": lambda x: F.clip(x, 0.5, 2),
    "maximum": lambda x: F.maximum(x, 0.5),
    "prelu": lambda x: F.prelu(x, x[:1]),
    "dropout": lambda x: F.dropout(x, 0.25),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x.reshape(1, -1), [1]),
    "weight_norm": lambda x: F.weight_norm(x.reshape(1, -1), x[:1]),
    "batch_norm": lambda x: F.batch_norm(x.reshape(-1, 1), tp.zeros(1), tp.ones(1), training=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x.reshape(1, 1, 1, -1), 1),
}


@pytest.mark.parametrize("elements", [np.int64, np.uint8, bool])
@pytest.mark.parametrize("name", FLOATING)
def test_integers_and_bools_become_float32_in_a_floating_point_function(name, elements):
    assert (
        FLOATING[name](tp.tensor(np.array([1, 1, 0, 1], elements) + np.array(1, elements))).dtype
        == np.float32
    )


def test_integers_stay_integers_where_nothing_is_divided():
    n = tp.tensor(np.arange(4))
    for out in (
        n + 1,
        n * n,
        -n,
        abs(n),
        n**2,
        n.sum(),
        n.max(),
        F.maximum(n, 2),
        F.clip(n, 1, 2),
        n @ n,
        n[::2],
    ):
        assert out.dtype == np.int64


def test_a_list_beside_integers_keeps_integers():
    n = tp.tensor(np.array([16777217, 2]))  # float32 has no 16777217
    assert (n == [16777217, 2]).tolist() == [True, True]
    assert (n * [1, 2]).dtype == np.int64
    assert (n[1:] * [0.5]).dtype == (tp.tensor([1.0, 2.0]) * [1, 2]).dtype == np.float32


def integers(*values, dtype="int64"):
    return tp.tensor(np.array(values, dtype))


SECOND = 1_700_000_000  # a time stamp: float32 has only every 128th of them


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.mean(integers(SECOND, SECOND + 10)),
        lambda: F.var(integers(100000001, 100000002, 100000003)),
        lambda: F.mse_loss(integers(16777217), integers(16777216)),
        lambda: F.mse_loss(tp.tensor([1.0]), integers(16777217)),
        lambda: F.norm(integers(SECOND)),
        lambda: integers(SECOND) / 10,
        lambda: integers(SECOND) * 0.5,
        lambda: integers(SECOND) + tp.tensor([1.0]),
        lambda: integers(-SECOND) - tp.tensor([1.0]),
        lambda: integers(SECOND, dtype="uint64") + tp.tensor([1.0]),
        lambda: integers(2049) + tp.tensor(np.ones(1, "float16")),
        lambda: F.maximum(integers(SECOND), tp.tensor([1.0])),
        lambda: F.stack([integers(SECOND), tp.tensor([1.0])]),
        lambda: F.concatenate([integers(SECOND), [0.5]]),
        lambda: F.where([True], integers(SECOND), 0.5),
        lambda: F.clip(integers(SECOND), 0.5, None),
        lambda: F.linear(integers(SECOND).reshape(1, 1), tp.tensor([[1.0]])),
        lambda: tp.tensor([SECOND]),
        lambda: F.exp([SECOND]),
        lambda: F.add(tp.tensor([1.0]), [SECOND]),
    ],
)
def test_integers_that_a_float_would_round_are_refused(compute):
    assert_explained(TypeError, compute, "all integers only up to")


def test_integers_become_exact_floats():
    """As many as float32 has, or, where float64 is asked for, as many as float64 has."""
    assert F.mean(integers(2**24, -(2**24))).tolist() == 0
    assert F.mean(integers(SECOND, SECOND + 10).astype("float64")).tolist() == SECOND + 5
    assert F.mse_loss(integers(3, 1, dtype="uint8"), integers(5, 1, dtype="uint8")).tolist() == 2
    wide = integers(SECOND + 1) * tp.tensor(np.ones(1))
    assert (wide.tolist(), wide.dtype) == ([SECOND + 1], np.float64)
    assert_explained(TypeError, lambda: integers(2**53 + 1) * tp.tensor(np.ones(1)), "minimum")


def test_integers_and_floats_are_compared_exactly():
    assert (integers(16777217) == tp.tensor([16777216.0])).tolist() == [False]
    assert (integers(16777217) == 16777216.0).tolist() == [False]
    assert (tp.tensor([16777216.0]) < integers(16777217)).tolist() == [True]
    assert (integers(3) < 3.5).tolist() == (integers(3) < [3.5]).tolist() == [True]
    assert_explained(TypeError, lambda: integers(2**53 + 1) == 2.0**53, "float64")


def test_integers_without_a_common_type_are_refused():
    """NumPy would make float64 of them."""
    n = integers(1, dtype="uint64")
    assert_explained(TypeError, lambda: n + integers(1), "uint64 and int64", "no integer type")
    assert (n.astype("uint32") + integers(-1)).tolist() == [0]


def test_a_number_beyond_small_integers_is_explained():
    assert_explained(OverflowError, lambda: integers(1, dtype="uint8") + 300, "uint8", "int64")


def test_sums_and_products_of_small_integers_are_wide():
    """Four times 200 is not 32."""
    n = integers(200, 200, 200, 200, dtype="uint8")
    ones = integers(1, 1, 1, 1, dtype="uint8")
    image, kernel = n.reshape(1, 1, 2, 2), ones.reshape(1, 1, 2, 2)
    for total in (
        n.sum(),
        n @ ones,
        F.linear(n.reshape(1, 4), ones.reshape(1, 4)),
        F.conv2d(image, kernel),
    ):
        assert (total.item(), total.dtype) == (800, np.int64)


# -- masks


def test_bools_are_masks():
    mask = tp.tensor([True, False])
    assert mask.dtype == bool
    assert tp.tensor([5.0, 6.0])[mask].tolist() == [5]
    assert tp.tensor(True).dtype == F.add([True], [False]).dtype == bool
    assert tp.tensor([True, 2]).dtype == np.float32
    assert_explained(TypeError, lambda: tp.tensor([True], requires_grad=True), "float32")


def test_masks_and_integers_that_need_no_promotion_are_not_copied():
    for array in (np.array([True, False]), np.array([1, 2]), np.array([1, 2], np.uint8)):
        assert np.shares_memory(tp.from_numpy(array).reshape(2, 1).numpy(), array)


def test_arithmetic_of_masks():
    """As in PyTorch: + is or, * is and. With a number, a mask is 0 and 1."""
    mask = tp.tensor([True, True, False])
    other = tp.tensor([True, False, False])
    assert (mask + other).tolist() == (mask | other).tolist()
    assert (mask * other).tolist() == (mask & other).tolist()
    for count, expected in ((mask.sum(), 2), (1 - mask, [0, 0, 1]), (mask**2, [1, 1, 0])):
        assert (count.tolist(), count.dtype) == (expected, np.int64)
    for fraction, expected in ((mask / 2, [0.5, 0.5, 0]), (mask * 0.5, [0.5, 0.5, 0])):
        assert (fraction.tolist(), fraction.dtype) == (expected, np.float32)
    for refused in (lambda: mask - other, lambda: -mask, lambda: mask @ other, lambda: abs(mask)):
        assert_explained(TypeError, refused, "masks", "~, &, | and ^")


def test_masks_stay_masks_beside_floats():
    mask, single, double = np.array([True]), np.ones(1, np.float32), np.ones(1)
    for floating, expected in ((False, bool), (True, np.float64)):
        (first, *_), _ = promote_operands("where", [mask, single, double], floating)
        assert first.dtype == expected


def test_numbers_alone_become_float32():
    for out in (F.add(1, 2), F.add(1, 2.0), F.add(np.float64(1.0), np.int64(2)), F.exp(1)):
        assert (out.dtype, out.shape) == (np.float32, ())


def test_a_number_before_integers_does_not_promote():
    n = tp.tensor(np.array([1, 2], np.uint8))
    for out in (2 + n, F.add(2, n), F.add(np.int64(2), n)):
        assert out.dtype == np.uint8
        assert out.tolist() == [3, 4]


@pytest.mark.parametrize("other", [None, "text", {}, object(), [None]])
@pytest.mark.parametrize("operator", ["__add__", "__rmul__", "__truediv__", "__pow__", "__lt__"])
def test_what_is_no_number_is_refused(operator, other):
    with pytest.raises(
        TypeError, match=r"(?s)got:.*rule: a tensor holds floats, integers or bools.*try:"
    ):
        getattr(tp.tensor([1.0]), operator)(other)


def test_a_matrix_is_multiplied_element_by_element():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)
    for product in (tp.tensor(matrix) * tp.tensor(matrix), tp.tensor(np.asarray(matrix)) * matrix):
        assert product.tolist() == [[1.0, 4.0], [9.0, 16.0]]


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
def test_arrays_of_two_devices_are_refused_in_one_sentence():
    import cupy

    class There(cupy.ndarray):
        """An array that says that it is on device 1: here is only one."""

        @property
        def data(self):
            return SimpleNamespace(device_id=1)

    here, there = cupy.ones(3, "f4"), cupy.ones(3, "f4").view(There)
    for x, y in ((here, there), (there, there), (there, here)):
        with pytest.raises(
            tp.BackendError, match=r"^Add got an array of device 1, not the current one: .*\.$"
        ):
            tp.Tensor(x) + tp.Tensor(y)
    with pytest.raises(tp.BackendError, match="Multiply got an array of device 1, "):
        tp.Tensor(there) * 2.0
    assert (tp.Tensor(here) + tp.Tensor(here)).tolist() == [2, 2, 2]


def test_complex_numbers_are_refused():
    x = leaf([1.0, 2.0], "numpy")
    assert_explained(TypeError, lambda: x * np.array([1j, 2.0]), "complex128", "x.real")


def test_integers_that_were_told_to_require_a_gradient_get_none():
    n = tp.arange(1, 4)
    n.requires_grad = True
    assert_explained(TypeError, lambda: (n * n).backward(np.full(3, 0.5)), "floating-point")
