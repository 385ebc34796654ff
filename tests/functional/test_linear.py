import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import Case, assert_close, assert_explained, battery, make, points, rngs


@st.composite
def factors(draw):
    """Two factors of any shapes that NumPy's matmul takes."""
    drawn = draw(
        hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=2, max_side=3)
    )
    rng = draw(rngs())
    return [points(rng, shape, -3, 3) for shape in drawn.input_shapes], {}


@st.composite
def layers(draw):
    """x (..., in), weight (out, in) and bias (out,)."""
    shape, units = (
        draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3)),
        draw(st.integers(1, 3)),
    )
    rng = draw(rngs())
    return [points(rng, s, -3, 3) for s in (shape, (units, shape[-1]), (units,))], {}


CASES = [
    Case("matmul", F.matmul, np.matmul, factors()),
    Case("linear", F.linear, lambda x, weight, bias: x @ weight.T + bias, layers()),
]

test_values, test_gradients, test_dtypes = battery(CASES)


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0,), (0, 2)), ((0,), (2, 0, 3)), ((2, 1, 0), (0,))],
)
def test_empty_factors(backend, left, right):
    x, y = (
        make(np.ones(left), backend, requires_grad=True),
        make(np.ones(right), backend, requires_grad=True),
    )
    out = x @ y
    assert_close(out, np.ones(left) @ np.ones(right))
    assert [g.shape for g in tp.grad(out.sum(), [x, y])] == [left, right]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (2, 3)),
        ((3,), (2,)),
        ((2, 3), (4,)),
        ((), (3,)),
        ((3,), ()),
        ((2, 2, 3), (2, 4, 3)),
    ],
)
def test_factors_that_do_not_fit_are_explained(backend, left, right):
    x, y = make(np.ones(left), backend), make(np.ones(right), backend)
    assert_explained(
        tp.ShapeError, lambda: x @ y, f"matmul of {left} and {right}", "last axis", "transpose"
    )
    stacks = make(np.ones((2, 3, 4)), backend), make(np.ones((3, 4, 5)), backend)
    assert_explained(tp.ShapeError, lambda: stacks[0] @ stacks[1], "(2, 3, 4)", "(3, 4, 5)")


def test_the_gradient_of_weights_is_laid_out_as_they_are(backend, rng):
    x, weight = (
        make(rng.standard_normal(s), backend, requires_grad=True) for s in ((4, 3), (2, 3))
    )
    gradients = tp.grad(F.linear(x, weight).sum(), [x, weight])
    assert all(g.data.flags.c_contiguous for g in gradients)


@pytest.mark.parametrize(("x", "weight"), [((2, 3), (3, 2)), ((), (2, 3)), ((2, 3), (3,))])
def test_weights_that_do_not_fit_are_explained(backend, x, weight):
    images = make(np.ones((2, 3, 4, 4)), backend)
    assert_explained(
        tp.ShapeError,
        lambda: F.linear(images, make(np.ones((5, 48)), backend)),
        "Flatten() before this",
    )
    x, weight = make(np.ones(x), backend), make(np.ones(weight), backend)
    got = f"linear of x {x.shape} and weight {weight.shape}"
    assert_explained(tp.ShapeError, lambda: F.linear(x, weight), got, "(out, in)", "in_features")


def test_a_bias_does_not_make_the_output_larger():
    for shape in ((3, 1), (5, 3)):
        assert_explained(
            tp.ShapeError,
            lambda s=shape: F.linear(tp.ones(1, 2), tp.ones(3, 2), tp.zeros(s)),
            "(3,)",
        )


@pytest.mark.parametrize("rows", [(4,), (2, 4)])
@pytest.mark.parametrize("shape", [(2,), (), (1,), (1, 1), (4, 1), (4, 2)])
def test_a_bias_may_be_broadcast(backend, rows, shape):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((*rows, 3), (2, 3), shape, (*rows, 2))]
    x, weight, bias, g = (make(a, backend, requires_grad=True) for a in arrays)
    out = F.linear(x, weight, bias)
    assert_close(out, arrays[0] @ arrays[1].T + arrays[2])
    slow = F.matmul(x, weight.T) + bias
    found = tp.grad(out, [x, weight, bias], g)
    for one, other in zip(found, tp.grad(slow, [x, weight, bias], g), strict=True):
        assert one.shape == other.shape
        assert_close(one, other.numpy())


def test_a_bias_is_never_spread_over_the_flattened_rows():
    """(2, 4, 3) is computed as 8 rows; a bias of 8 rows must not fit."""
    with pytest.raises(tp.ShapeError):
        F.linear(tp.ones(2, 4, 3), tp.ones(5, 3), tp.zeros(8, 5))
