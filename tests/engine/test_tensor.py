import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, leaf, make


def test_numbers_and_lists_become_float32():
    for data in (1, 1.0, [1, 2], [[1.0], [2.0]], (1, 2)):
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
    assert_explained(
        TypeError,
        lambda: tp.from_numpy([1.0]),
        "from_numpy of a list",
        "tp.tensor(...), which copies",
    )


@pytest.mark.slow  # to import PyTorch takes seconds
@pytest.mark.parametrize(
    "make_tensor", [tp.tensor, lambda t: tp.tensor(t.numpy()), lambda t: tp.tensor([1.0]) * t]
)
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


@pytest.mark.parametrize(
    "data", ["text", [[1.0], [1.0, 2.0]], [object()], np.array(["a"]), np.array([1j]), {}, None]
)
def test_what_is_not_numbers_is_refused(data):
    assert_explained((ValueError, TypeError), lambda: tp.tensor(data))


def test_data_may_be_set_to_an_array_of_the_same_shape(backend):
    t = leaf(np.zeros(2), backend)
    t.data = t.data + 1.0
    assert t.tolist() == [1.0, 1.0]
    for wrong in (t.data.reshape(1, 2), [1.0, 2.0], 3.0):
        with pytest.raises(tp.ShapeError, match=r"(?s)data set to.*rule:.*\(2,\).*try:"):
            t.data = wrong
    with pytest.raises(TypeError, match="only floating-point"):
        t.data = t.data.astype(int)


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
    assert (x * 2).detach().data is not x.data is x.detach().data
    assert not x.detach().requires_grad
    assert not (x == x).requires_grad
    assert len({x, x, tp.tensor([1.0, 2.0])}) == 2  # hashed by identity
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
    assert_explained(
        TypeError, lambda: np.asarray(tp.tensor(cupy.ones(2))), "leaves the device", "t.numpy()"
    )


def test_item_and_truth():
    assert tp.tensor([[2.5]]).item() == float(tp.tensor(2.5)) == 2.5
    assert tp.tensor(1.0) > 0
    assert not tp.tensor(0.0)
    for wrong in (lambda t: t.item(), bool, float, lambda t: f"{t:.3f}"):
        assert_explained(
            tp.ShapeError, lambda wrong=wrong: wrong(tp.tensor([1.0, 2.0])), "item() of shape (2,)"
        )


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
    assert_explained(
        TypeError, lambda: t.__setitem__(0, 3.0), "an assignment into a tensor", "where"
    )


@given(st.data())
def test_operators_are_numpys(backend, data):
    number = st.floats(0.5, 4.0, width=32)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3))
    a, b = (data.draw(hnp.arrays(np.float64, s, elements=number)) for s in shapes.input_shapes)
    x, y = (make(v, backend) for v in (a, b))
    for ours, theirs in [
        (x + y, a + b),
        (x - y, a - b),
        (x * y, a * b),
        (x / y, a / b),
        (x**y, a**b),
        (-x, -a),
        (abs(-x), a),
        (x < y, a < b),
        (x <= y, a <= b),
        (x > y, a > b),
        (x >= y, a >= b),
        (x == y, a == b),
        (x != y, a != b),
        (2 + x, 2 + a),
        (2 - x, 2 - a),
        (2 * x, 2 * a),
        (2 / x, 2 / a),
        (2**x, 2**a),
        (x + 2, a + 2),
        (x**2, a**2),
    ]:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-14)
        assert ours.shape == np.shape(theirs)


def test_masks_are_combined(backend):
    a, b = np.array([True, True, False]), np.array([True, False, False])
    x, y = make(a, backend), make(b, backend)
    for ours, theirs in [
        (x & y, a & b),
        (x | y, a | b),
        (x ^ y, a ^ b),
        (~x, ~a),
        (True & x, a),
        (y.data | x, a | b),
        (x ^ True, ~a),
    ]:
        assert ours.dtype == bool
        assert ours.tolist() == theirs.tolist()
    t = make(np.array([1.0, 5.0, 9.0]), backend)
    assert t[(t > 2) & ~(t > 7)].tolist() == [5.0]
    assert_explained(TypeError, lambda: t & x, "bitwise_and of float64, bool", "(x > 0) & (y > 0)")


def test_methods_are_the_functions():
    """A method of Tensor that functional has, too, is that function, with a real name and
    signature."""
    shared = {name for name in vars(tp.Tensor) if name in F.__all__}
    assert shared >= {"sum", "argmax", "relu", "reshape", "astype", "to"}
    assert all(getattr(tp.Tensor, name) is getattr(F, name) for name in shared)
    for name in F.__all__:
        parameters = inspect.signature(getattr(F, name)).parameters
        assert getattr(F, name).__name__ == name
        assert not {"args", "kwargs", "inputs"} & set(parameters)


def test_methods_that_take_numbers_or_a_tuple(backend):
    x = make(np.arange(6.0).reshape(2, 3), backend)
    for shape in (
        x.reshape(3, 2),
        x.reshape((3, -1)),
        x.T,
        x.transpose(),
        x.transpose(1, 0),
        x.transpose((1, 0)),
    ):
        assert shape.shape == (3, 2)
    assert (
        x.reshape(6).shape == x.reshape(np.int64(6)).shape == x.flatten().transpose(0).shape == (6,)
    )
