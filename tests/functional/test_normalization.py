import math
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    Case,
    assert_close,
    assert_explained,
    battery,
    leaf,
    make,
    points,
    rngs,
    shapes,
)


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
    options = {"factor": draw(st.sampled_from([1.0, 0.5, 1.6]))}
    if draw(st.booleans()):
        assume((w - w.mean(axis=rows(w), keepdims=True)).std(axis=rows(w)).min() > 0.2)
        options["centered"] = True
    return [w, points(rng, shape[:1], -2, 2)], options


@st.composite
def batches(draw, training=True, affine=True):
    """Features (N, C, ...) that are spread enough, their weights and biases, and running estimates.
    Two values of a feature always become -1 and 1: their gradient is nothing but rounding."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4, side=4))
    x = points(rng, shape, -3, 3)
    assume(not training or (x.size >= 4 * x.shape[1] and x.std(axis=features(x)).min() > 0.1))
    arrays = [x] + (
        [points(rng, shape[1:2], 0.3, 2), points(rng, shape[1:2], -1, 1)] if affine else []
    )
    running = {"mean": points(rng, shape[1:2], -1, 1), "var": points(rng, shape[1:2], 0.5, 2)}
    return arrays, {
        "running": running,
        "training": training,
        "eps": draw(st.sampled_from([1e-5, 0.1])),
    }


@st.composite
def samples(draw, groups=False, biases=True):
    """Samples in parts of three values or more, which are normalised together, with weights and
    biases, or none."""
    rng, part = draw(rngs()), (draw(st.integers(3, 4)), *draw(shapes(least=0, most=2)))
    # (N, groups), or axes in front
    outside = draw(shapes(least=2, most=2) if groups else shapes(least=1, most=2))
    values = [points(rng, part, -3, 3) + rng.uniform(-1, 1) for _ in range(math.prod(outside))]
    x, options = np.reshape(values, (*outside, *part)), {"eps": draw(st.sampled_from([1e-5, 0.1]))}
    if groups:
        x, options["over"] = x.reshape(outside[0], -1, *part[1:]), outside[1]
        affine = x.shape[1:2]
    else:
        options["over"] = part
        affine = tuple(draw(st.sampled_from([1, n])) for n in part)  # shared along some axes
    every = [points(rng, affine, 0.3, 2), points(rng, affine, -1, 1)]
    return [x, *(every[: 1 + biases] if draw(st.booleans()) else [])], options


def called(function):
    return lambda x, *affine, over, eps: function(x, over, *affine, eps=eps)


def over_last_axes(x, weight=1.0, bias=0.0, *, over, eps, centered=True):
    axes = tuple(range(-len(over), 0))
    off = x - x.mean(axes, keepdims=True) if centered else x
    return weight * off / np.sqrt((off**2).mean(axes, keepdims=True) + eps) + bias


def over_groups(x, weight=None, bias=None, *, over, eps):
    """One sample and one group after the other."""
    out, size = np.empty_like(x), x.shape[1] // over
    for n, group in np.ndindex(len(x), over):
        part = slice(group * size, (group + 1) * size)
        out[n, part] = (x[n, part] - x[n, part].mean()) / np.sqrt(x[n, part].var() + eps)
    shape = (-1, *[1] * (x.ndim - 2))
    return out * (1.0 if weight is None else weight.reshape(shape)) + (
        0.0 if bias is None else bias.reshape(shape)
    )


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
    mean, var, weight, bias = (
        np.broadcast_to(v, x.shape[1:2]).reshape(shape) for v in (mean, var, weight, bias)
    )
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def reference_weight_norm(w, scale, factor, centered=False):
    w = w - w.mean(axis=rows(w), keepdims=True) if centered else w
    return w * per_row(scale * factor / np.sqrt((w * w).sum(axis=rows(w))), w)


BATCH_NORM = batch_norm, reference_batch_norm
CASES = [
    Case("weight_norm", F.weight_norm, reference_weight_norm, weights()),
    Case("layer_norm", called(F.layer_norm), over_last_axes, samples()),
    Case(
        "rms_norm",
        called(F.rms_norm),
        partial(over_last_axes, centered=False),
        samples(biases=False),
    ),
    Case("group_norm", called(F.group_norm), over_groups, samples(groups=True)),
    Case("batch_norm", *BATCH_NORM, batches()),
    Case("batch_norm:no weight", *BATCH_NORM, batches(affine=False)),
    Case("batch_norm:evaluation", *BATCH_NORM, batches(training=False)),
]

test_values, test_gradients, test_dtypes = battery(CASES)


@given(drawn=batches())
def test_the_running_estimates_move_towards_those_of_the_batch(backend, drawn):
    """By the momentum, the variance towards the unbiased one, as in PyTorch."""
    (x, *_), options = drawn
    mean, var = (make(options["running"][k], backend) for k in ("mean", "var"))
    F.batch_norm(make(x, backend), mean, var, training=True, momentum=0.25)
    axes = features(x)
    assert_close(mean, 0.75 * options["running"]["mean"] + 0.25 * x.mean(axes))
    assert_close(var, 0.75 * options["running"]["var"] + 0.25 * x.var(axes, ddof=1))


def test_running_estimates_that_a_graph_needs_are_not_moved(backend):
    x, mean, var = (
        leaf(np.arange(6.0).reshape(3, 2), backend),
        make(np.zeros(2), backend),
        make(np.ones(2), backend),
    )
    weight = leaf(np.ones(2), backend)
    y = F.batch_norm(x, mean, var, weight)
    call = partial(F.batch_norm, x, mean, var, weight, training=True)
    assert_explained(tp.EditError, call, "running_")
    del y
    call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, w: F.weight_norm(x, w), ["(4, 6)", "scale of shape (4,)"]),
        (
            lambda x, w: F.weight_norm(x[:, :1], x[:, 0], centered=True),
            ["(4, 1)", "no direction", "centered=False"],
        ),
        (lambda x, w: F.batch_norm(x, w, w), ["3 features", "(4, 6)", "(N, 3)"]),
        (lambda x, w: F.batch_norm(w, w, w), ["3 features", "(3,)"]),
        (lambda x, w: F.batch_norm(x.reshape(3, 4, 2), w, w), ["3 features", "(3, 4, 2)"]),
        (lambda x, w: F.batch_norm(x[:1, :3], w, w, training=True), ["(1, 3)", "a larger batch"]),
        (lambda x, w: F.layer_norm(x, 4), ["(4, 6)", "(4,)", "last axes", "(6,)"]),
        (lambda x, w: F.layer_norm(x, (3, 6)), ["(4, 6)", "(3, 6)", "last axes"]),
        (lambda x, w: F.layer_norm(x, ()), ["last axes"]),
        (lambda x, w: F.layer_norm(x, 6, w), ["(4, 6)", "(3,)", "broadcast against x"]),
        (
            lambda x, w: F.layer_norm(x[:1], 6, x),
            ["(1, 6)", "(4, 6)", "broadcast against x", "shape (6,)"],
        ),
        (lambda x, w: F.layer_norm(x[:, :1], 1), ["(4, 1)", "0/0", "rms_norm"]),
        (lambda x, w: F.rms_norm(x[:, :0], 0), ["(4, 0)"]),
        (lambda x, w: F.rms_norm(x, (4, 5)), ["rms_norm of shape (4, 6)", "(4, 5)"]),
        (lambda x, w: F.group_norm(x, 4), ["(4, 6)", "4 groups", "divides"]),
        (lambda x, w: F.group_norm(x, 0), ["0 groups"]),
        (lambda x, w: F.group_norm(x[0], 1), ["(6,)", "axis 1"]),
        (lambda x, w: F.group_norm(x, 6), ["6 groups", "0/0", "fewer groups"]),
        (lambda x, w: F.group_norm(x, 2, w), ["(3,)"]),
    ],
)
def test_shapes_that_do_not_fit_are_explained(backend, call, words):
    x, w = make(np.arange(24.0).reshape(4, 6), backend), make(np.ones(3), backend)
    assert_explained(tp.ShapeError, lambda: call(x, w), *words)


def test_the_root_mean_square_of_one_value_leaves_its_sign(backend):
    assert_close(
        F.rms_norm(make([[-3.0], [2.0]], backend, dtype=np.float64), 1, eps=0.0), [[-1.0], [1.0]]
    )


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_what_it_says(backend, p):
    """n = 40,000 elements: five standard errors, so that one in 1.7 million such checks would fail
    by chance."""
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


@pytest.mark.parametrize(
    "wrong", [{"weight": tp.ones(4)}, {"bias": tp.ones(4)}, {"running_var": tp.ones(4)}]
)
def test_batch_norm_checks_before_it_moves_the_running_estimates(wrong):
    running = tp.zeros(3)
    settings = {"running_var": tp.ones(3), "training": True} | wrong
    assert_explained(
        tp.ShapeError, lambda: F.batch_norm(tp.randn(4, 3) + 5, running, **settings), *wrong
    )
    assert not running.data.any()
