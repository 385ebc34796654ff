import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import Case, assert_close, assert_explained, battery, leaf, make, points, rngs, shapes


def rows(w):
    return tuple(range(1, w.ndim))


def per_row(values, w):
    return values.reshape(-1, *[1] * (w.ndim - 1))


@st.composite
def weights(draw):
    """Rows of two or more elements, none of which is near 0 in length, and a length for each."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4))
    assume(math.prod(shape[1:]) > 1)
    w = points(rng, shape, 0.3, 2) * rng.choice([-1.0, 1.0], shape)
    return [w, points(rng, shape[:1], -2, 2)], {"factor": draw(st.sampled_from([1.0, 0.5, 1.6]))}


@st.composite
def batches(draw, training=True, affine=True):
    """Features (N, C, ...) that are spread enough, their weights and biases, and running estimates. Two values of a
    feature always become -1 and 1: their gradient is nothing but rounding."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4, side=4))
    x = points(rng, shape, -3, 3)
    assume(not training or (x.size >= 4 * x.shape[1] and x.std(axis=features(x)).min() > 0.1))
    arrays = [x] + ([points(rng, shape[1:2], 0.3, 2), points(rng, shape[1:2], -1, 1)] if affine else [])
    running = {"mean": points(rng, shape[1:2], -1, 1), "var": points(rng, shape[1:2], 0.5, 2)}
    return arrays, {"running": running, "training": training, "eps": draw(st.sampled_from([1e-5, 0.1]))}


def features(x):
    return (0, *range(2, x.ndim))


def batch_norm(x, weight=None, bias=None, *, running, **options):
    """F.batch_norm with running estimates of its own for each call."""
    mean, var = (make(running[k], x.backend, dtype=x.dtype) for k in ("mean", "var"))
    return F.batch_norm(x, mean, var, weight, bias, **options)


def reference_batch_norm(x, weight=1.0, bias=0.0, *, running, training, eps):
    axes = features(x)
    mean, var = (x.mean(axes), x.var(axes)) if training else (running["mean"], running["var"])
    shape = (-1, *[1] * (x.ndim - 2))
    mean, var, weight, bias = (np.broadcast_to(v, x.shape[1:2]).reshape(shape) for v in (mean, var, weight, bias))
    return (x - mean) / np.sqrt(var + eps) * weight + bias


BATCH_NORM = batch_norm, reference_batch_norm
CASES = [
    Case("weight_norm", F.weight_norm,
         lambda w, scale, factor: w * per_row(scale * factor / np.sqrt((w * w).sum(axis=rows(w))), w),
         weights()),
    Case("batch_norm", *BATCH_NORM, batches()),
    Case("batch_norm:no weight", *BATCH_NORM, batches(affine=False)),
    Case("batch_norm:evaluation", *BATCH_NORM, batches(training=False)),
]  # fmt: skip

test_values, test_gradients, test_dtypes = battery(CASES)


@given(drawn=batches())
def test_a_batch_is_normalized_and_the_running_estimates_move_towards_it(backend, drawn):
    """By the momentum, the variance towards the unbiased one, as in PyTorch."""
    (x, *_), options = drawn
    mean, var = (make(options["running"][k], backend) for k in ("mean", "var"))
    y = F.batch_norm(make(x, backend), mean, var, training=True, momentum=0.25, eps=0.0).numpy()
    axes = features(x)
    assert_close(y.mean(axes), np.zeros(x.shape[1]), 1e-11)
    assert_close(y.var(axes), np.ones(x.shape[1]), 1e-11)
    assert_close(mean, 0.75 * options["running"]["mean"] + 0.25 * x.mean(axes))
    assert_close(var, 0.75 * options["running"]["var"] + 0.25 * x.var(axes, ddof=1))


def test_running_estimates_that_a_graph_needs_are_not_moved(backend):
    x, mean, var = leaf(np.arange(6.0).reshape(3, 2), backend), make(np.zeros(2), backend), make(np.ones(2), backend)
    weight = leaf(np.ones(2), backend)
    y = F.batch_norm(x, mean, var, weight)
    call = lambda: F.batch_norm(x, mean, var, weight, training=True)  # noqa: E731
    assert_explained(tp.EditError, call, "running_")
    del y
    call()


@pytest.mark.parametrize("shape", [(2,), (2, 3), (4, 3, 2)])
def test_other_numbers_of_features_are_explained(backend, shape):
    x, two = make(np.zeros(shape), backend), make(np.zeros(2), backend)
    assert_explained(tp.ShapeError, lambda: F.batch_norm(x, two, two), "2 features", str(shape), "(N, 2)")


def test_a_batch_of_one_has_no_spread(backend):
    x, two = make(np.zeros((1, 2)), backend), make(np.zeros(2), backend)
    assert_explained(tp.ShapeError, lambda: F.batch_norm(x, two, two, training=True), "(1, 2)", "a larger batch")


def test_lengths_that_do_not_fit_are_explained(backend):
    w = make(np.ones((3, 2)), backend)
    assert_explained(
        tp.ShapeError, lambda: F.weight_norm(w, make(np.ones(2), backend)), "(3, 2)", "scale of shape (3,)"
    )


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_what_it_says(backend, p):
    """n = 40,000 elements: five standard errors, so that one in 1.7 million such checks would fail by chance."""
    tp.manual_seed(0)
    x = leaf(np.ones(40_000), backend)
    y = F.dropout(x, p)
    values, n = y.numpy(), 40_000
    assert set(np.unique(values).round(6)) == {0.0, round(1 / (1 - p), 6)}
    assert abs((values == 0).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
    (slope,) = tp.grad(y.sum(), [x])
    assert_close(slope, values)


def test_dropout_is_repeated_by_its_seed_and_is_the_same_on_both_backends(backend):
    drawn = []
    for where in (backend, "numpy"):
        tp.manual_seed(3)
        drawn.append(F.dropout(make(np.ones(100), where)).tolist())
    assert drawn[0] == drawn[1]


def test_dropout_does_nothing_in_evaluation_or_with_p_0(backend):
    x = make(np.ones(3), backend)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x
    for p in (1.0, -0.1):
        assert_explained(ValueError, lambda p=p: F.dropout(x, p), f"p={p}")
