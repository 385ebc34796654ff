"""Sums, means, maxima, norms and the softmax family: values, laws, extremes, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    FLOATS,
    Case,
    assert_close,
    assert_explained,
    axes,
    battery,
    computed_dtypes,
    cotangent,
    make,
    points,
    rngs,
    shapes,
)

INF = np.inf


@st.composite
def reduced(draw, kinks=(), least=0, **options):
    """An array of distinct elements, the axes to reduce, and whether to keep them."""
    shape = draw(shapes(least=least))
    x = points(draw(rngs()), shape, -3, 3, kinks)
    options = {k: draw(v) for k, v in options.items()}
    return [x], {"axis": draw(axes(len(shape))), "keepdims": draw(st.booleans()), **options}


@st.composite
def spread(draw):
    """An array whose variance has a divisor: two or more elements on every axis, or ddof = 0."""
    shape = draw(shapes(least=1))
    ddof = draw(st.integers(0, 1)) if min(shape) > 1 else 0
    x = points(draw(rngs()), shape, -3, 3)
    return [x], {"axis": draw(axes(len(shape))), "keepdims": draw(st.booleans()), "ddof": ddof}


@st.composite
def along_one_axis(draw):
    shape = draw(shapes(least=1))
    return [points(draw(rngs()), shape, -3, 3)], {"axis": draw(st.integers(-len(shape), len(shape) - 1))}


@st.composite
def classified(draw):
    """Logits (N, C, ...) and labels (N, ...)."""
    shape, rng = draw(shapes(least=2, most=4)), draw(rngs())
    labels = rng.integers(0, shape[1], shape[:1] + shape[2:])
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    return [points(rng, shape, -3, 3)], {"labels": labels, "reduction": reduction}


def reference_logsumexp(x, axis, keepdims=False):
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


def reference_softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


def reference_cross_entropy(x, labels, reduction):
    losses = np.empty(labels.shape)
    for place in np.ndindex(labels.shape):
        logits = x[(place[0], slice(None), *place[1:])]
        losses[place] = -np.log(reference_softmax(logits)[labels[place]])
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


def dims(x, axis):
    return tuple(range(x.ndim)) if axis is None else axis


CASES = [
    Case(
        "sum", F.sum, np.sum, lambda torch, x, axis, keepdims: torch.sum(x, dims(x, axis), keepdim=keepdims), reduced()
    ),
    Case(
        "mean",
        F.mean,
        np.mean,
        lambda torch, x, axis, keepdims: torch.mean(x, dims(x, axis), keepdim=keepdims),
        reduced(),
    ),
    Case(
        "var",
        F.var,
        np.var,
        lambda torch, x, axis, keepdims, ddof: torch.var(x, dims(x, axis), correction=ddof, keepdim=keepdims),
        spread().filter(lambda drawn: drawn[0][0].size > 1),
    ),
    Case(
        "max", F.max, np.max, lambda torch, x, axis, keepdims: torch.amax(x, dims(x, axis), keepdim=keepdims), reduced()
    ),
    Case(
        "logsumexp",
        F.logsumexp,
        reference_logsumexp,
        lambda torch, x, axis, keepdims: torch.logsumexp(x, dims(x, axis), keepdim=keepdims),
        reduced(least=1),
    ),
    Case("softmax", F.softmax, reference_softmax, lambda torch, x, axis: torch.softmax(x, axis), along_one_axis()),
    Case(
        "log_softmax",
        F.log_softmax,
        lambda x, axis: np.log(reference_softmax(x, axis)),
        lambda torch, x, axis: torch.log_softmax(x, axis),
        along_one_axis(),
    ),
    Case(
        "cross_entropy",
        F.cross_entropy,
        reference_cross_entropy,
        lambda torch, x, labels, reduction: torch.nn.functional.cross_entropy(
            x, torch.tensor(labels), reduction=reduction
        ),
        classified(),
    ),
]

test_values, test_gradients, test_dtypes, test_torch = battery(CASES)

REDUCTIONS = {f.__name__: f for f in (F.sum, F.mean, F.var, F.max, F.logsumexp)}


@given(drawn=reduced())
def test_methods_are_the_functions(backend, drawn):
    (x,), options = drawn
    x = make(x, backend)
    for name in ("sum", "mean", "max"):
        assert_close(getattr(x, name)(**options), getattr(F, name)(x, **options).numpy())


@given(drawn=along_one_axis(), shift=st.floats(-100, 100, allow_subnormal=False))
def test_laws(backend, drawn, shift):
    (array,), options = drawn
    x, axis = make(array, backend), options["axis"]
    p = F.softmax(x, axis)
    assert_close(F.sum(p, axis), np.ones(p.numpy().sum(axis=axis).shape))
    assert_close(F.softmax(x + shift, axis), p.numpy(), 1e-11)
    assert_close(F.logsumexp(x + shift, axis), F.logsumexp(x, axis).numpy() + shift)
    assert_close(F.exp(F.log_softmax(x, axis)), p.numpy())
    assert_close(F.var(x, axis), (F.mean(x * x, axis) - F.mean(x, axis) ** 2).numpy(), 1e-11)
    assert (F.logsumexp(x, axis).numpy() >= F.max(x, axis).numpy()).all()


@given(drawn=classified())
def test_gradient_of_cross_entropy_is_softmax_less_one_hot(backend, drawn):
    (array,), options = drawn
    labels = options["labels"]
    x = make(array, backend, requires_grad=True)
    (slope,) = tp.grad(F.cross_entropy(x, labels, "sum"), [x])
    one_hot = np.moveaxis(np.eye(array.shape[1])[labels], -1, 1)
    assert_close(slope, reference_softmax(array, 1) - one_hot)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_several_axes_are_any_axis_of_the_others(name, backend):
    x = points(np.random.default_rng(0), (2, 3, 4), -3, 3)
    together = REDUCTIONS[name](make(x, backend), axis=(0, -1))
    assert_close(together, REDUCTIONS[name](make(x.swapaxes(1, 2).reshape(8, 3), backend), axis=0).numpy())


# Ties and zeros.


def test_equal_maxima_share_the_gradient(backend):
    x = make(np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 2.0]]), backend, requires_grad=True)
    assert_close(tp.grad(F.max(x), [x])[0], [[0, 0.5, 0.5], [0, 0, 0]])
    (rows,) = tp.grad(F.max(x, axis=1), [x], make(np.array([1.0, 2.0]), backend))
    assert_close(rows, [[0, 0.5, 0.5], [1, 0, 1]])


# Extremes, with warnings as errors.


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_family_at_plus_minus_1000(backend, dtype):
    x = make(np.array([[1000, 1000], [-1000, -1000], [1000, -1000]], dtype), backend, requires_grad=True)
    half = np.log(2)
    assert_close(F.softmax(x), [[0.5, 0.5], [0.5, 0.5], [1, 0]], 1e-6)
    assert_close(F.log_softmax(x), [[-half, -half], [-half, -half], [0, -2000]], 1e-6)
    assert_close(F.logsumexp(x, axis=1), [1000 + half, -1000 + half, 1000], 1e-6)
    losses = F.cross_entropy(x, [0, 1, 1], "none")
    assert_close(losses, [half, half, 2000], 1e-6)
    (slope,) = tp.grad(losses, [x], make(np.ones(3, dtype), backend))
    assert_close(slope, [[-0.5, 0.5], [0.5, -0.5], [1, -1]], 1e-6)


def test_log_softmax_keeps_small_digits(backend):
    """The loss of a sure and right answer is exp(-30), not 0, also far from the origin."""
    out = F.log_softmax(make(np.array([1000.0, 970.0]), backend))
    np.testing.assert_allclose(out.numpy()[1], -30, rtol=1e-12)
    np.testing.assert_allclose(F.log_softmax(make(np.array([0.0, -30.0]), backend)).numpy()[0], -np.exp(-30), rtol=1e-2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_classes_ruled_out_by_minus_infinity(backend, dtype):
    x = make(np.array([[0, -INF, 0], [5, -INF, -INF]], dtype), backend, requires_grad=True)
    p = F.softmax(x)
    assert_close(p, [[0.5, 0, 0.5], [1, 0, 0]], 1e-6)
    (slope,) = tp.grad(p, [x], make(cotangent((2, 3), dtype), backend), create_graph=True)
    assert np.isfinite(slope.numpy()).all()
    assert_close(slope.numpy()[:, 1], [0, 0])
    assert_close(F.logsumexp(x, axis=1), [np.log(2), 5], 1e-6)
    (slope,) = tp.grad(F.logsumexp(x, axis=1), [x], make(np.ones(2, dtype), backend))
    assert_close(slope, [[0.5, 0, 0.5], [1, 0, 0]], 1e-6)
    loss = F.cross_entropy(x, [0, 0])
    assert_close(loss, np.log(2) / 2, 1e-6)
    assert np.isfinite(tp.grad(loss, [x])[0].numpy()).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_of_nothing_but_infinities(backend, dtype):
    x = make(np.array([[-INF, -INF], [INF, 0]], dtype), backend)
    assert_close(F.logsumexp(x, axis=1), [-INF, INF])


def test_logsumexp_gradient_of_an_empty_sum_is_zero(backend):
    x = make(np.array([[-INF, -INF], [0.0, 0.0]]), backend, requires_grad=True)
    (slope,) = tp.grad(F.logsumexp(x, axis=1), [x], make(np.ones(2), backend))
    assert_close(slope, [[0, 0], [0.5, 0.5]])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("name", ["sum", "mean", "var"])
def test_reductions_without_elements(name, backend, shape):
    axis = shape.index(3)  # the other axis is empty, so nothing is left
    out = REDUCTIONS[name](make(np.zeros(shape), backend), axis=axis)
    assert out.shape == (0,)


# Labels.


@pytest.mark.parametrize("kind", [list, np.int64, np.int32, np.uint8, "tensor"])
def test_labels_come_as_lists_arrays_or_tensors(backend, kind):
    x = make(np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32), backend, requires_grad=True)
    labels = {list: [2, 0], "tensor": make(np.array([2, 0]), backend)}.get(kind)
    labels = np.array([2, 0], kind) if labels is None else labels
    with computed_dtypes() as seen:
        loss = F.cross_entropy(x, labels)
        tp.grad(loss, [x], create_graph=True)
    assert_close(loss, reference_cross_entropy(x.numpy(), np.array([2, 0]), "mean"), 1e-6)
    assert seen == {np.dtype(np.float32)}


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_out_of_range_are_explained(backend, labels):
    x = make(np.zeros((2, 3)), backend)
    assert_explained(IndexError, lambda: F.cross_entropy(x, labels), "3 classes", "from 0 to 2", "count classes from 0")


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((2, 3), [0]), ((2, 3), [0.0, 1.0]), ((2, 3), [[0, 0, 1], [1, 0, 0]]), ((3,), [0]), ((2, 3, 4), [0, 1])],
)
def test_labels_of_the_wrong_shape_or_type_are_explained(backend, shape, labels):
    x = make(np.zeros(shape), backend)
    assert_explained(tp.ShapeError, lambda: F.cross_entropy(x, labels), str(shape), "(N, C, ...)", "one-hot")


def test_other_reductions_are_explained(backend):
    x = make(np.zeros((2, 3)), backend)
    assert_explained(ValueError, lambda: F.cross_entropy(x, [0, 1], "average"), "'average'", "'mean', 'sum', 'none'")


# Axes.


@pytest.mark.parametrize("name", [*REDUCTIONS, "softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [2, -3])
def test_axes_out_of_range_are_explained(name, backend, axis):
    x = make(np.zeros((2, 3)), backend)
    assert_explained(tp.ShapeError, lambda: getattr(F, name)(x, axis=axis), "(2, 3)", str(axis), "-ndim")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_axis_named_twice_is_explained(name, backend):
    x = make(np.zeros((2, 3)), backend)
    assert_explained(tp.ShapeError, lambda: REDUCTIONS[name](x, axis=(0, 0)), "(2, 3)", "each once")


def test_a_variance_without_a_divisor_is_explained(backend):
    x = make(np.zeros((2, 1)), backend)
    assert_explained(tp.ShapeError, lambda: F.var(x, axis=1, ddof=1), "(2, 1)", "ddof=1")


def test_the_maximum_of_nothing_is_explained(backend):
    assert_explained(tp.ShapeError, lambda: F.max(make(np.zeros((0, 3)), backend), axis=0), "(0, 3)")
