import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    FLOATS,
    Case,
    any_axes,
    assert_close,
    assert_explained,
    battery,
    cotangent,
    leaf,
    make,
    one_array,
    one_axis,
    points,
    rngs,
    shapes,
)

INF = np.inf


def reduced(**domain):
    """An array of distinct elements, the axes to reduce, and whether to keep them."""
    return one_array(**domain, axis=any_axes, keepdims=st.booleans())


@st.composite
def spread(draw):
    """An array whose variance has a divisor: two or more elements on every axis, or ddof = 0."""
    shape = draw(shapes(least=1))
    ddof = draw(st.integers(0, 1)) if min(shape) > 1 else 0
    x = points(draw(rngs()), shape, -3, 3)
    return [x], {"axis": draw(any_axes(shape)), "keepdims": draw(st.booleans()), "ddof": ddof}


def reference_logsumexp(x, axis, keepdims=False):
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


def reference_softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


def reference_norm(x, axis, keepdims):
    return np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))


ALONG_ONE_AXIS = one_array(least=1, axis=one_axis)
NOT_ALONE = spread().filter(lambda drawn: drawn[0][0].size > 1)
APART = NOT_ALONE.filter(
    lambda drawn: np.std(*drawn[0], axis=drawn[1]["axis"]).min() > 0.1
)  # the slope at 0 is infinite
CASES = [
    Case("sum", F.sum, np.sum, reduced()),
    Case("mean", F.mean, np.mean, reduced()),
    Case("var", F.var, np.var, NOT_ALONE),
    Case("std", F.std, np.std, APART),
    Case("max", F.max, np.max, reduced()),
    Case("min", F.min, np.min, reduced()),
    Case("norm", F.norm, reference_norm, reduced(kinks=(0,), gap=0.3)),
    Case("logsumexp", F.logsumexp, reference_logsumexp, reduced(least=1)),
    Case("softmax", F.softmax, reference_softmax, ALONG_ONE_AXIS),
    Case(
        "log_softmax",
        F.log_softmax,
        lambda x, axis: np.log(reference_softmax(x, axis)),
        ALONG_ONE_AXIS,
    ),
]

test_values, test_gradients, test_dtypes = battery(CASES)

REDUCTIONS = {
    f.__name__: f for f in (F.sum, F.mean, F.var, F.std, F.max, F.min, F.norm, F.logsumexp)
}
EVERY = [*REDUCTIONS.values(), F.softmax, F.log_softmax]


@given(drawn=ALONG_ONE_AXIS, keepdims=st.booleans())
def test_argmax_is_numpys_and_has_no_gradient(backend, drawn, keepdims):
    (x,), options = drawn
    x = np.round(x)  # with ties: the first one wins
    for axis in (options["axis"], None):
        out = F.argmax(leaf(x, backend), axis, keepdims)
        np.testing.assert_array_equal(out.numpy(), np.argmax(x, axis, keepdims=keepdims))
        assert out.dtype == np.int64
        assert not out.requires_grad


def test_equal_maxima_share_the_gradient(backend):
    x = leaf([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]], backend)
    assert_close(tp.grad(F.min(-x), [x])[0], [[0, -0.5, -0.5], [0, 0, 0]])
    assert_close(tp.grad(F.max(x), [x])[0], [[0, 0.5, 0.5], [0, 0, 0]])
    (rows,) = tp.grad(F.max(x, axis=1), [x], make(np.array([1.0, 2.0]), backend))
    assert_close(rows, [[0, 0.5, 0.5], [1, 0, 1]])


@pytest.mark.parametrize("name", ["norm", "std"])
def test_the_slope_at_zero_is_zero(name, backend):
    """Not NaN, which a square root at 0 would give."""
    x = leaf([[0.0, 0.0], [3.0, 5.0]], backend)
    (slope,) = tp.grad(getattr(F, name)(x, axis=1).sum(), [x])
    assert_close(slope[0], [0, 0])
    assert slope.numpy()[1].all()


# Extremes, with warnings as errors.


def test_the_mean_of_float16_does_not_overflow(backend):
    x = leaf(np.full(100_000, 60.0), backend, np.float16)
    assert (x.mean().item(), x.var().item(), x.mean().dtype) == (60.0, 0.0, np.float16)
    (slope,) = tp.grad(x.mean(), [x])
    np.testing.assert_allclose(slope.numpy(), 1e-5, rtol=0.01)


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_family_at_plus_minus_1000(backend, dtype):
    x = make(
        np.array([[1000, 1000], [-1000, -1000], [1000, -1000]], dtype), backend, requires_grad=True
    )
    half = np.log(2)
    assert_close(F.softmax(x), [[0.5, 0.5], [0.5, 0.5], [1, 0]], 1e-6)
    assert_close(F.log_softmax(x), [[-half, -half], [-half, -half], [0, -2000]], 1e-6)
    assert_close(F.logsumexp(x, axis=1), [1000 + half, -1000 + half, 1000], 1e-6)


def test_log_softmax_keeps_small_digits(backend):
    """The loss of a sure and right answer is exp(-30), not 0, also far from the origin."""
    out = F.log_softmax(make(np.array([1000.0, 970.0]), backend))
    np.testing.assert_allclose(out.numpy()[1], -30, rtol=1e-12)
    np.testing.assert_allclose(
        F.log_softmax(make(np.array([0.0, -30.0]), backend)).numpy()[0], -np.exp(-30), rtol=1e-2
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities(backend, dtype):
    x = make(np.array([[0, -INF, 0], [5, -INF, -INF]], dtype), backend, requires_grad=True)
    p = F.softmax(x)
    assert_close(p, [[0.5, 0, 0.5], [1, 0, 0]], 1e-6)
    (slope,) = tp.grad(p, [x], make(cotangent((2, 3), dtype), backend), create_graph=True)
    assert np.isfinite(slope.numpy()).all()
    assert_close(slope.numpy()[:, 1], [0, 0])
    assert_close(F.logsumexp(x, axis=1), [np.log(2), 5], 1e-6)
    (slope,) = tp.grad(F.logsumexp(x, axis=1), [x], make(np.ones(2, dtype), backend))
    assert_close(slope, [[0.5, 0, 0.5], [1, 0, 0]], 1e-6)
    nothing = leaf([[-INF, -INF], [INF, 0], [0, 0]], backend, dtype)
    assert_close(F.logsumexp(nothing, axis=1), [-INF, INF, np.log(2)], 1e-6)
    (slope,) = tp.grad(F.logsumexp(nothing[::2], axis=1).sum(), [nothing])
    assert_close(slope, [[0, 0], [0, 0], [0.5, 0.5]], 1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("name", ["sum", "mean", "var"])
def test_reductions_without_elements(name, backend, shape):
    axis = shape.index(3)  # the other axis is empty, so nothing is left
    out = REDUCTIONS[name](make(np.zeros(shape), backend), axis=axis)
    assert out.shape == (0,)


@pytest.mark.parametrize("name", [*REDUCTIONS, "argmax", "softmax", "log_softmax"])
def test_an_axis_may_be_a_numpy_integer_and_a_number_has_one_axis(name, backend):
    """Forward and backward: as in NumPy, a 0-d tensor may be reduced along axis 0 or -1."""
    f, x = getattr(F, name), leaf([[1.0, 2.0], [5.0, 4.0]], backend)
    for axis in (np.int64(1), np.array(-1)):
        out = f(x, axis=axis)
        assert_close(out, f(x, axis=1).numpy())
        if out.requires_grad:
            expected = tp.grad(f(x, axis=1), [x], make(np.ones(out.shape), backend))[0].numpy()
            assert_close(tp.grad(out, [x], make(np.ones(out.shape), backend))[0], expected)
    for axis in (0, -1, None):
        number = (
            f(x[0, 1], axis)
            if name in ("softmax", "log_softmax") and axis is not None
            else f(x[0, 1])
        )
        assert number.shape == ()
        assert name == "argmax" or tp.grad(number, [x])[0].shape == (2, 2)
    assert_explained(tp.ShapeError, lambda: f(x[0, 0], axis=1), "()", "axis=1")


@pytest.mark.parametrize(
    ("f", "shape", "options", "words"),
    [
        *(
            (f, (2, 3), {"axis": a}, [f"axis={a}", "between -2 and 1"])
            for f in EVERY
            for a in (2, -3)
        ),
        *((f, (2, 3), {"axis": (0, 0)}, ["each given once"]) for f in REDUCTIONS.values()),
        *((f, (0, 3), {"axis": 0}, [f.__name__]) for f in (F.max, F.min, F.argmax, F.logsumexp)),
        (F.var, (2, 1), {"axis": 1, "ddof": 1}, ["ddof=1"]),
    ],
)
def test_refusals_are_explained(f, shape, options, words, backend):
    assert_explained(
        tp.ShapeError, lambda: f(make(np.zeros(shape), backend), **options), str(shape), *words
    )


def test_an_empty_batch_has_as_many_results(backend):
    x = tp.zeros(0, 3, backend=backend)
    assert (
        F.argmax(x, axis=1).shape == F.max(x, axis=1).shape == F.logsumexp(x, axis=1).shape == (0,)
    )
    assert_explained(tp.ShapeError, lambda: F.max(x, axis=0), "an element to take")
