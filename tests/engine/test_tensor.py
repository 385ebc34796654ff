"""What a tensor is made of, shows and refuses."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, leaf, make

# -- made of numbers and arrays


def test_numbers_and_lists_become_float32():
    for data in (1, 1.0, True, [1, 2], [[1.0], [2.0]], (1, 2)):
        assert tp.tensor(data).dtype == np.float32
    assert tp.tensor([1, 2], dtype=np.float64).dtype == np.float64
    assert tp.tensor([1, 2], dtype=int).dtype == int


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_arrays_keep_their_dtype_and_are_copied(dtype):
    array = np.zeros((2, 3), dtype)
    t = tp.tensor(array)
    array[...] = 1
    assert not t.data.any()
    assert (t.dtype, t.shape, t.ndim, t.size, t.backend) == (dtype, (2, 3), 2, 6, "numpy")


def test_from_numpy_shares_the_memory_of_an_array():
    array = np.zeros(3)
    t = tp.from_numpy(array, requires_grad=True)
    array[0] = 5.0
    assert t.tolist() == [5.0, 0.0, 0.0]
    assert t.data is array
    assert_explained(TypeError, lambda: tp.from_numpy([1.0]), "from_numpy of a list", "tp.tensor(...), which copies")


@pytest.mark.parametrize("make_tensor", [tp.tensor, lambda t: tp.tensor(t.numpy()), lambda t: tp.tensor([1.0]) * t])
def test_tensors_of_pytorch_are_copied(make_tensor):
    torch = pytest.importorskip("torch")
    theirs = torch.ones(3)
    ours = make_tensor(theirs)
    theirs[0] = 5.0
    assert ours.tolist() == [1.0, 1.0, 1.0]


def test_a_copy_of_a_tensor(backend):
    x = make(np.ones(2), backend)
    y = tp.tensor(x, requires_grad=True)
    x.data[0] = 5.0
    assert y.tolist() == [1.0, 1.0]
    assert y.backend == backend


def test_detach_shares_the_array_and_forgets_the_history():
    y = leaf([1.0]) * 2.0
    assert y.detach().data is y.data
    assert not y.detach().requires_grad


@pytest.mark.parametrize("data", ["text", [[1.0], [1.0, 2.0]], [object()], np.array(["a"]), np.array([1j]), {}, None])
def test_what_is_not_numbers_is_refused(data):
    assert_explained((ValueError, TypeError), lambda: tp.tensor(data))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_integers_have_no_gradients(dtype):
    call = lambda: tp.tensor(np.ones(2, dtype), requires_grad=True)  # noqa: E731
    assert_explained(TypeError, call, "requires_grad=True with elements of type")


def test_data_may_be_set_to_an_array_of_the_same_shape(backend):
    t = leaf(np.zeros(2), backend)
    t.data = t.data + 1.0
    assert t.tolist() == [1.0, 1.0]
    for wrong in (t.data.reshape(1, 2), [1.0, 2.0], 3.0):
        with pytest.raises(tp.ShapeError, match=r"(?s)data set to.*rule:.*\(2,\).*try:"):
            t.data = wrong
    with pytest.raises(TypeError, match="only floating-point"):
        t.data = t.data.astype(int)


# -- no gradient is lost on the way to NumPy


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: np.concatenate([t, t]),
        lambda t: np.stack([t, t]),
        lambda t: np.asarray(t),
        lambda t: np.array([t[0], t[1]]),
        lambda t: tp.tensor([t, t]),
        lambda t: tp.tensor([t[0], 1.0]),
        lambda t: tp.tensor(t),
        lambda t: t * [t[0], 2.0],
    ],
)
def test_an_implicit_conversion_of_a_tensor_that_requires_a_gradient_is_refused(convert):
    assert_explained(TypeError, lambda: convert(leaf([1.0, 2.0])), "would lose the gradient")
    convert(tp.tensor([1.0, 2.0]))  # without a gradient there is nothing to lose


def test_numpy_and_tolist_and_item_are_explicit_and_allowed(backend):
    x = leaf([1.0, 2.0], backend)
    assert x.numpy().tolist() == x.tolist() == [x[0].item(), float(x[1])] == [1.0, 2.0]


def test_array_op_tensor_is_a_tensor_with_its_gradient(backend):
    x = leaf([2.0, 3.0], backend)
    array = make(np.array([1.0, 2.0]), backend).data
    for y in (array + x, array - x, array * x, array / x, array**x):
        assert isinstance(y, tp.Tensor)
        assert y.requires_grad


@pytest.mark.cupy
def test_nothing_leaves_the_device_unasked():
    cupy = pytest.importorskip("cupy")
    assert_explained(TypeError, lambda: np.asarray(tp.tensor(cupy.ones(2))), "leaves the device", "t.numpy()")


# -- as a number, as text, as a sequence


def test_item_and_truth():
    assert tp.tensor([[2.5]]).item() == float(tp.tensor(2.5)) == 2.5
    assert tp.tensor(1.0) > 0
    assert not tp.tensor(0.0)
    for wrong in (lambda t: t.item(), bool, float, lambda t: f"{t:.3f}"):
        assert_explained(tp.ShapeError, lambda wrong=wrong: wrong(tp.tensor([1.0, 2.0])), "item() of shape (2,)")


def test_format(backend):
    loss = make([1.23456], backend, requires_grad=True)
    assert f"{loss:.3f}" == f"{loss.sum():.3f}" == "1.235"
    assert f"{make(np.array(7), backend):03d}" == "007"
    assert f"{tp.tensor([1.0])}" == "tensor([1.])"


def test_repr():
    assert repr(tp.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(tp.tensor(1.0, requires_grad=True)) == "tensor(1., requires_grad=True)"
    assert repr(tp.tensor(np.ones(1))) == "tensor([1.], dtype=float64)"
    assert len(repr(tp.tensor(np.zeros((1000, 1000))))) < 2000


def test_length_and_iteration():
    t = leaf([[1.0, 2.0], [3.0, 4.0]])
    assert len(t) == 2
    rows = list(t)
    assert [r.tolist() for r in rows] == [[1.0, 2.0], [3.0, 4.0]]
    rows[1].sum().backward()
    assert t.grad.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert_explained(TypeError, lambda: len(tp.tensor(1.0)), "0-d")


def test_assignment_into_a_tensor_is_refused():
    with pytest.raises(TypeError, match=r"(?s)assignment.*rule:.*try:.*where"):
        tp.tensor([1.0, 2.0])[0] = 3.0


# -- operators and methods


@given(st.data())
def test_operators_are_numpys(backend, data):
    number = st.floats(0.5, 4.0, width=32)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3))
    a, b = (data.draw(hnp.arrays(np.float64, s, elements=number)) for s in shapes.input_shapes)
    x, y = (make(v, backend) for v in (a, b))
    for ours, theirs in [
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x**y, a**b), (-x, -a), (abs(-x), a),
        (x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b), (x == y, a == b), (x != y, a != b),
        (2 + x, 2 + a), (2 - x, 2 - a), (2 * x, 2 * a), (2 / x, 2 / a), (2**x, 2**a), (x + 2, a + 2), (x**2, a**2),
    ]:  # fmt: skip
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-14)
        assert ours.shape == np.shape(theirs)


def test_masks_are_combined(backend):
    a, b = np.array([True, True, False]), np.array([True, False, False])
    x, y = make(a, backend), make(b, backend)
    for ours, theirs in [
        (x & y, a & b), (x | y, a | b), (x ^ y, a ^ b), (~x, ~a), (True & x, a), (y.data | x, a | b), (x ^ True, ~a),
    ]:  # fmt: skip
        assert ours.dtype == bool
        assert ours.tolist() == theirs.tolist()
    t = make(np.array([1.0, 5.0, 9.0]), backend)
    assert t[(t > 2) & ~(t > 7)].tolist() == [5.0]
    assert_explained(TypeError, lambda: t & x, "bitwise_and of float64, bool", "(x > 0) & (y > 0)")


def test_comparisons_have_no_gradient_and_tensors_are_hashable():
    x = leaf([1.0, 2.0])
    assert not (x == x).requires_grad
    assert len({x, x, tp.tensor([1.0, 2.0])}) == 2


def test_there_and_back_between_backends(backend):
    x = leaf([1.0, 2.0], dtype=np.float32)
    y = (x * 2.0).to(backend)
    assert y.backend == backend
    (y * y).sum().backward()
    assert x.grad.backend == "numpy"
    assert x.grad.tolist() == [8.0, 16.0]
    assert y.to(backend).data is y.data


METHODS = [
    "sum", "mean", "var", "std", "max", "min", "argmax", "norm", "exp", "log", "sqrt", "tanh", "relu", "abs", "clip",
    "flatten", "squeeze", "astype", "to",
]  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function(name):
    assert getattr(tp.Tensor, name) is getattr(F, name)


def test_methods_that_take_numbers_or_a_tuple(backend):
    x = make(np.arange(6.0).reshape(2, 3), backend)
    for shape in (x.reshape(3, 2), x.reshape((3, -1)), x.T, x.transpose(), x.transpose(1, 0), x.transpose((1, 0))):
        assert shape.shape == (3, 2)
    assert x.reshape(6).shape == x.reshape(np.int64(6)).shape == x.flatten().transpose(0).shape == (6,)


@pytest.mark.parametrize("name", [n for n in F.__all__ if n != "exact_convolution"])
def test_help_shows_a_name_a_signature_and_an_explanation(name):
    function = getattr(F, name)
    assert inspect.isfunction(function)
    assert function.__name__ == name
    assert function.__module__.startswith("tinyprop.functional")
    parameters = inspect.signature(function).parameters
    assert parameters
    assert not {"args", "kwargs", "inputs"} & set(parameters)
    assert len(function.__doc__.splitlines()[0]) > 2
