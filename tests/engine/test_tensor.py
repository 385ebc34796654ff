"""What a tensor is made of, shows and refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinyprop as tp


def test_numbers_and_lists_become_float32():
    for data in (1, 1.0, True, [1, 2], [[1.0], [2.0]], (1, 2)):
        assert tp.tensor(data).dtype == np.float32
    assert tp.tensor([1, 2], dtype=np.float64).dtype == np.float64
    assert tp.tensor([1, 2], dtype=int).dtype == int


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_arrays_keep_their_dtype_and_are_not_copied(dtype):
    array = np.zeros((2, 3), dtype)
    t = tp.tensor(array)
    assert t.data is array
    assert (t.dtype, t.shape, t.ndim, t.size, t.backend) == (dtype, (2, 3), 2, 6, "numpy")


def test_a_tensor_of_a_tensor_shares_the_array_and_forgets_the_history():
    x = tp.tensor([1.0], requires_grad=True)
    y = x * 2.0
    for z in (tp.tensor(y), y.detach()):
        assert z.data is y.data
        assert not z.requires_grad


@pytest.mark.parametrize("data", ["text", [[1.0], [1.0, 2.0]], [object()], np.array(["a"]), np.array([1j]), {}])
def test_what_is_not_numbers_is_refused(data):
    with pytest.raises((ValueError, TypeError), match=r"(?s)got:.*rule:.*try:"):
        tp.tensor(data)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_integers_have_no_gradients(dtype):
    with pytest.raises(TypeError, match=r"(?s)requires_grad=True with elements of type.*rule:.*try:"):
        tp.tensor(np.ones(2, dtype), requires_grad=True)


def test_data_may_be_set_to_an_array_of_the_same_shape(backend):
    t = tp.tensor(np.zeros(2), requires_grad=True, backend=backend)
    t.data = t.data + 1.0
    assert t.numpy().tolist() == [1.0, 1.0]
    for wrong in (t.data.reshape(1, 2), [1.0, 2.0], 3.0):
        with pytest.raises(tp.ShapeError, match=r"(?s)data set to.*rule:.*\(2,\).*try:"):
            t.data = wrong
    with pytest.raises(TypeError, match="only floating-point"):
        t.data = t.data.astype(int)


def test_item_and_truth():
    assert tp.tensor([[2.5]]).item() == float(tp.tensor(2.5)) == 2.5
    assert tp.tensor(1.0) > 0
    assert not tp.tensor(0.0)
    for wrong in (lambda t: t.item(), bool, float):
        with pytest.raises(tp.ShapeError, match=r"(?s)item\(\) of shape \(2,\).*rule:.*try:"):
            wrong(tp.tensor([1.0, 2.0]))


def test_length_and_iteration():
    t = tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert len(t) == 2
    rows = list(t)
    assert [r.numpy().tolist() for r in rows] == [[1.0, 2.0], [3.0, 4.0]]
    rows[1].sum().backward()
    assert t.grad.numpy().tolist() == [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(TypeError, match="0-d"):
        len(tp.tensor(1.0))


def test_assignment_into_a_tensor_is_refused():
    with pytest.raises(TypeError, match=r"(?s)assignment.*rule:.*try:.*where"):
        tp.tensor([1.0, 2.0])[0] = 3.0


def test_repr():
    assert repr(tp.tensor([1.0, 2.5])) == "tensor([1. , 2.5])"
    assert repr(tp.tensor(1.0, requires_grad=True)) == "tensor(1., requires_grad=True)"
    assert repr(tp.tensor(np.ones(1))) == "tensor([1.], dtype=float64)"
    assert len(repr(tp.tensor(np.zeros((1000, 1000))))) < 2000


def test_the_two_directions_of_numpy(backend):
    """array op tensor is a tensor, with its gradient; numpy.asarray(tensor) works on the host only."""
    array = np.array([1.0, 2.0])
    x = tp.tensor(array + 1.0, requires_grad=True, backend=backend)
    array = tp.tensor(array, backend=backend).data
    for y in (array + x, array - x, array * x, array / x, array**x):
        assert isinstance(y, tp.Tensor)
        assert y.requires_grad
    if backend == "numpy":
        np.testing.assert_array_equal(np.asarray(x), [2.0, 3.0])
    else:
        with pytest.raises(TypeError, match=r"(?s)CuPy tensor.*t\.numpy\(\)"):
            np.asarray(x)


@given(st.data())
def test_operators_are_numpys(backend, data):
    number = st.floats(0.5, 4.0, width=32)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3))
    a, b = (data.draw(hnp.arrays(np.float64, s, elements=number)) for s in shapes.input_shapes)
    x, y = (tp.tensor(v, backend=backend) for v in (a, b))
    for ours, theirs in [
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x**y, a**b), (-x, -a), (abs(-x), a),
        (x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b), (x == y, a == b), (x != y, a != b),
        (2 + x, 2 + a), (2 - x, 2 - a), (2 * x, 2 * a), (2 / x, 2 / a), (2**x, 2**a), (x + 2, a + 2), (x**2, a**2),
    ]:  # fmt: skip
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-14)
        assert ours.shape == np.shape(theirs)


def test_comparisons_have_no_gradient_and_tensors_are_hashable():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    assert not (x == x).requires_grad
    assert len({x, x, tp.tensor([1.0, 2.0])}) == 2


def test_there_and_back_between_backends(backend):
    x = tp.tensor(np.array([1.0, 2.0], np.float32), requires_grad=True)
    y = (x * 2.0).to(backend)
    assert y.backend == backend
    (y * y).sum().backward()
    assert x.grad.backend == "numpy"
    assert x.grad.numpy().tolist() == [8.0, 16.0]
    assert y.to(backend).data is y.data


def test_methods_are_the_functions():
    x = tp.tensor(np.arange(6.0).reshape(2, 3))
    assert x.sum(axis=0).shape == (3,)
    assert x.mean(axis=1, keepdims=True).shape == (2, 1)
    assert x.max().item() == 5.0
    assert x.reshape(3, 2).shape == x.reshape((3, -1)).shape == x.T.shape == x.transpose(1, 0).shape == (3, 2)
    assert x.transpose((1, 0)).shape == x.transpose().shape == (3, 2)
    assert x.astype(np.float32).dtype == np.float32
