import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    FLOATS,
    Case,
    assert_close,
    assert_explained,
    battery,
    computed_dtypes,
    draw_options,
    leaf,
    make,
    points,
    rngs,
    shapes,
)

REDUCTION = st.sampled_from(["mean", "sum", "none"])


@st.composite
def classified(draw, ignored=None, **options):
    """Logits (N, C, ...) and labels (N, ...), of which some are the ignored one (maybe a class),
    but not the first."""
    shape, rng = draw(shapes(least=2, most=4)), draw(rngs())
    labels = rng.integers(0, shape[1], shape[:1] + shape[2:])
    if ignored is not None:
        assume(shape[1] > 1)
        labels.reshape(-1)[0], labels.reshape(-1)[1:][rng.random(labels.size - 1) < 0.4] = (
            1,
            ignored,
        )
        options["ignore_index"] = ignored
    options |= {"labels": labels, "reduction": REDUCTION}
    return [points(rng, shape, -3, 3)], draw_options(draw, options)


@st.composite
def targets(draw):
    shape, rng = draw(shapes()), draw(rngs())
    return [points(rng, shape, -3, 3), points(rng, shape, -3, 3)], {"reduction": draw(REDUCTION)}


def reduced(losses, reduction, count):
    return {"mean": losses.sum() / count, "sum": losses.sum(), "none": losses}[reduction]


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def reference_nll(x, labels, reduction, ignore_index=-100):
    losses = np.zeros(labels.shape)
    for place in np.ndindex(labels.shape):
        if labels[place] != ignore_index:
            losses[place] = -x[(place[0], labels[place], *place[1:])]
    return reduced(losses, reduction, (labels != ignore_index).sum())


def reference_cross_entropy(x, labels, reduction, label_smoothing=0.0, ignore_index=-100):
    """With smoothing s, the target is (1 - s) one_hot + s / C."""
    log_p = np.log(softmax(x))
    smooth = (1 - label_smoothing) * log_p + label_smoothing * log_p.mean(axis=1, keepdims=True)
    return reference_nll(smooth, labels, reduction, ignore_index)


CROSS_ENTROPY = F.cross_entropy, reference_cross_entropy
SMOOTHING = st.sampled_from([0.1, 0.5, 1.0])
CASES = [
    Case("cross_entropy", *CROSS_ENTROPY, classified()),
    Case("cross_entropy:ignore_index", *CROSS_ENTROPY, classified(ignored=-100)),
    Case(
        "cross_entropy:label_smoothing",
        *CROSS_ENTROPY,
        classified(ignored=0, label_smoothing=SMOOTHING),
    ),
    Case("nll_loss", F.nll_loss, reference_nll, classified()),
    Case("nll_loss:ignore_index", F.nll_loss, reference_nll, classified(ignored=0)),
    Case(
        "mse_loss",
        F.mse_loss,
        lambda x, y, reduction: reduced((x - y) ** 2, reduction, x.size),
        targets(),
    ),
]

test_values, test_gradients, test_dtypes = battery(CASES)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logits_of_plus_minus_1000(backend, dtype):
    x = leaf([[1000, 1000], [-1000, -1000], [1000, -1000]], backend, dtype)
    losses = F.cross_entropy(x, [0, 1, 1], "none")
    assert_close(losses, [np.log(2), np.log(2), 2000], 1e-6)
    (slope,) = tp.grad(losses, [x], make(np.ones(3, dtype), backend))
    assert_close(slope, [[-0.5, 0.5], [0.5, -0.5], [1, -1]], 1e-6)


def test_differences_of_unsigned_integers_do_not_wrap_around(backend):
    x, y = (make(np.array(v, np.uint8), backend) for v in ([3, 200], [5, 100]))
    assert F.mse_loss(x, y, "none").tolist() == [4.0, 10000.0]


@pytest.mark.parametrize("kind", [list, np.int64, np.int32, np.uint8, "tensor"])
def test_labels_come_as_lists_arrays_or_tensors(backend, kind):
    x = leaf([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], backend, np.float32)
    labels = {list: [2, 0], "tensor": make(np.array([2, 0]), backend)}.get(kind)
    labels = np.array([2, 0], kind) if labels is None else labels
    with computed_dtypes() as seen:
        loss = F.cross_entropy(x, labels)
        tp.grad(loss, [x], create_graph=True)
    assert_close(loss, reference_cross_entropy(x.numpy(), np.array([2, 0]), "mean"), 1e-6)
    assert seen == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("shape", "labels", "hint"),
    [
        ((2, 3), [0], "labels of shape (2,)"),
        ((2, 3), [0.0, 1.0], "labels.astype('int64')"),
        ((2, 3), [[0, 0, 1], [1, 0, 0]], "labels.argmax(axis=1): class numbers, not one-hot rows"),
        ((3,), 0, "logits[None] and [label], with a batch axis"),
        ((2, 3, 1, 1), [0, 1], "Flatten() at the end of the network"),
        ((2, 3, 4), [0, 1], "labels of shape (2, 4)"),
    ],
)
def test_labels_of_the_wrong_shape_or_type_are_explained(backend, shape, labels, hint):
    x = make(np.zeros(shape), backend)
    got = f"cross_entropy of logits {shape} and labels {np.shape(labels)}"
    assert_explained(tp.ShapeError, lambda: F.cross_entropy(x, labels), got, "(N, C, ...)", hint)


def test_other_options_are_explained(backend):
    x = make(np.zeros((2, 3)), backend)
    for labels in ([0, 3], [-1, 0]):
        for f in (F.cross_entropy, F.nll_loss):
            words = "3 classes", "from 0 to 2", "count classes from 0"
            assert_explained(IndexError, lambda f=f, labels=labels: f(x, labels), *words)
    assert_explained(
        ValueError,
        lambda: F.cross_entropy(x, [0, 1], "average"),
        "'average'",
        "'mean', 'sum' or 'none'",
    )
    assert_explained(
        ValueError, lambda: F.cross_entropy(x, [0, 1], label_smoothing=2), "label_smoothing=2"
    )


def test_a_target_that_would_be_broadcast_is_refused(backend):
    x, y = make(np.zeros((4, 1)), backend), make(np.zeros(4), backend)
    assert_explained(
        tp.ShapeError, lambda: F.mse_loss(x, y), "(4, 1) and (4,)", "nearly always a mistake"
    )
