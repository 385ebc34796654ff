"""Matrix products: vectors, matrices and stacks of them."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import FLOATS, Case, assert_close, assert_explained, battery, make, points, rngs


@st.composite
def factors(draw):
    """Two factors of any shapes that NumPy's matmul takes."""
    drawn = draw(hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=2, max_side=3))
    rng = draw(rngs())
    return [points(rng, shape, -3, 3) for shape in drawn.input_shapes], {}


CASES = [Case("matmul", F.matmul, np.matmul, lambda torch, x, y: x @ y, factors())]

test_values, test_gradients, test_dtypes, test_torch = battery(CASES)


@given(drawn=factors())
def test_the_operator_is_the_function(backend, drawn):
    x, y = (make(a, backend) for a in drawn[0])
    np.testing.assert_array_equal((x @ y).numpy(), F.matmul(x, y).numpy())


@given(rng=rngs(), n=st.integers(1, 4), m=st.integers(1, 4))
def test_laws(backend, rng, n, m):
    x, y = (make(points(rng, s, -3, 3), backend) for s in ((n, m), (m, n)))
    identity = make(np.eye(m), backend)
    assert_close(x @ identity, x.numpy())
    assert_close((x @ y).T, (y.T @ x.T).numpy())
    assert_close((x * x).sum(), np.trace((x @ x.T).numpy()))


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_and_lists_do_not_promote(backend, dtype):
    x = make(np.ones((2, 3), dtype), backend, requires_grad=True)
    counts = make(np.arange(3), backend)
    for out in (x @ counts, counts @ x.T, [[1.0, 2.0]] @ x):
        assert out.dtype == dtype
        assert out.backend == backend
        assert tp.grad(out.sum(), [x])[0].dtype == dtype


def test_lists_lose_no_digits_next_to_float64(backend):
    assert_close(make(np.ones((1, 1)), backend) @ [[0.1]], [[0.1]])


@pytest.mark.parametrize(
    ("left", "right"), [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0,), (0, 2)), ((0,), (2, 0, 3)), ((2, 1, 0), (0,))]
)
def test_empty_factors(backend, left, right):
    x, y = make(np.ones(left), backend, requires_grad=True), make(np.ones(right), backend, requires_grad=True)
    out = x @ y
    assert_close(out, np.ones(left) @ np.ones(right))
    assert [g.shape for g in tp.grad(out.sum(), [x, y])] == [left, right]


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3), (2, 3)), ((3,), (2,)), ((2, 3), (4,)), ((), (3,)), ((3,), ()), ((2, 2, 3), (2, 4, 3))],
)
def test_factors_that_do_not_fit_are_explained(backend, left, right):
    x, y = make(np.ones(left), backend), make(np.ones(right), backend)
    assert_explained(tp.ShapeError, lambda: x @ y, f"matmul of {left} and {right}", "last axis", "transpose")


def test_stacks_that_do_not_broadcast_are_explained(backend):
    x, y = make(np.ones((2, 3, 4)), backend), make(np.ones((3, 4, 5)), backend)
    assert_explained(tp.ShapeError, lambda: x @ y, "(2, 3, 4)", "(3, 4, 5)")
