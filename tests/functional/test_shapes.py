import math
from functools import partial

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    Case,
    any_axes,
    assert_close,
    assert_explained,
    battery,
    leaf,
    make,
    one_array,
    one_axis,
    points,
    rngs,
    shapes,
)


def numbers(draw, shape):
    return points(draw(rngs()), shape, -3, 3)


@st.composite
def reshaped(draw):
    shape = draw(shapes())
    new = [*draw(st.permutations(shape)), *[1] * draw(st.integers(0, 1))]
    if draw(st.booleans()):
        new = [math.prod(new[:2]), *new[2:]]
    if new and draw(st.booleans()):
        new[draw(st.integers(0, len(new) - 1))] = -1
    return [numbers(draw, shape)], {"shape": tuple(new)}


@st.composite
def transposed(draw):
    shape = draw(shapes())
    order = draw(st.permutations(range(len(shape))))
    signed = tuple(axis - len(shape) * draw(st.integers(0, 1)) for axis in order)
    return [numbers(draw, shape)], {"axes": draw(st.sampled_from([None, signed]))}


@st.composite
def broadcast(draw):
    target = draw(shapes())
    own = target[draw(st.integers(0, len(target))) :]
    shape = tuple(draw(st.sampled_from([1, n])) for n in own)
    return [numbers(draw, shape)], {"shape": target}


@st.composite
def joined(draw, along_new_axis=False):
    """One to three tensors, of equal shapes except, perhaps, on the axis where they meet."""
    shape = draw(shapes(least=0 if along_new_axis else 1))
    ndim = len(shape) + along_new_axis
    axis = draw(st.integers(-ndim, ndim - 1))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        size = list(shape)
        if not along_new_axis:
            size[axis] = draw(st.integers(1, 3))
        arrays.append(numbers(draw, tuple(size)))
    return arrays, {"axis": axis}


def whole_numbers(shape):
    return hnp.integer_array_indices(
        shape, result_shape=hnp.array_shapes(min_dims=1, max_dims=2, max_side=3)
    )


def mixed(shape):
    return st.just((slice(None, None, 2), [0, 0]) if len(shape) > 1 else ([-1, 0, -1],))


def masks(shape):
    """Of some axes, or of all."""
    return st.integers(1, len(shape)).flatmap(lambda ndim: hnp.arrays(bool, shape[:ndim]))


@st.composite
def taken(draw):
    shape = draw(shapes(least=1))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    indices = st.integers(-shape[axis], shape[axis] - 1)
    return [numbers(draw, shape)], {
        "indices": draw(st.lists(indices, min_size=1, max_size=4)),
        "axis": axis,
    }


def along_axis(x, indices, axis):
    return x[(slice(None),) * (axis % x.ndim) + (indices,)]


def axes_of_length_1(shape):
    """None, one of them, or all, counted from the front or from the back."""
    front = [i for i, n in enumerate(shape) if n == 1]
    back = [i - len(shape) for i in front]
    return st.none() | st.sampled_from([*front, *back, tuple(front), tuple(back)])


def pairs(shape):
    """Two widths for each axis."""
    width = st.integers(0, 2)
    return st.lists(st.tuples(width, width), min_size=len(shape), max_size=len(shape))


@st.composite
def cut(draw):
    """An array, an axis, and the size of each part, or the sizes of all parts."""
    shape = draw(shapes(least=1, side=5))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    first = draw(st.integers(0, shape[axis]))
    return [numbers(draw, shape)], {
        "size": draw(st.sampled_from([1, 2, 7, [first, shape[axis] - first]])),
        "axis": axis,
    }


def every_part(parts):
    """All parts of a split, each with its own weight, joined in the order of the list."""
    return F.concatenate([(i + 1) * part.reshape(-1) for i, part in enumerate(parts)])


def reference_split(x, size, axis):
    ends = np.cumsum(size)[:-1] if isinstance(size, list) else range(size, x.shape[axis], size)
    return np.concatenate(
        [(i + 1) * part.reshape(-1) for i, part in enumerate(np.split(x, ends, axis))]
    )


INDEX = F.index, lambda x, where: x[where]
CASES = [
    Case(
        "flatten",
        F.flatten,
        lambda x, start_axis: x.reshape(*x.shape[: start_axis % max(x.ndim, 1)], -1),
        one_array(start_axis=lambda shape: one_axis(shape) if shape else st.just(0)),
    ),
    Case("squeeze", F.squeeze, np.squeeze, one_array(side=2, axis=axes_of_length_1)),
    Case("flip", F.flip, np.flip, one_array(axis=any_axes)),
    Case("split", lambda x, size, axis: every_part(F.split(x, size, axis)), reference_split, cut()),
    Case(
        "reshape",
        lambda x, shape: F.reshape(x, shape),
        lambda x, shape: np.reshape(x, shape),
        reshaped(),
    ),
    Case("transpose", lambda x, axes: F.transpose(x, axes), np.transpose, transposed()),
    Case("broadcast_to", F.broadcast_to, np.broadcast_to, broadcast()),
    Case(
        "pad",
        F.pad,
        lambda x, widths, value: np.pad(x, widths, constant_values=value) if widths else x,
        one_array(widths=pairs, value=st.sampled_from([0.0, 1.5, -2])),
    ),
    Case(
        "concatenate",
        lambda *xs, axis: F.concatenate(xs, axis),
        lambda *xs, axis: np.concatenate(xs, axis),
        joined(),
    ),
    Case(
        "stack",
        lambda *xs, axis: F.stack(xs, axis),
        lambda *xs, axis: np.stack(xs, axis),
        joined(along_new_axis=True),
    ),
    Case(
        "index:basic",
        *INDEX,
        one_array(least=1, where=partial(hnp.basic_indices, allow_newaxis=True)),
    ),
    Case("index:mixed", *INDEX, one_array(least=1, where=mixed)),
    Case("index:arrays", *INDEX, one_array(least=1, where=whole_numbers)),
    Case("index:mask", *INDEX, one_array(least=1, where=masks)),
    Case("index:along an axis", along_axis, np.take, taken()),
]

test_values, test_gradients, test_dtypes = battery(CASES)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (((1, 1),), [[0, 0, 0], [2, 2, 2]]),
        (((0, 0), (1, 1)), [[0, 2, 0], [0, 0, 0]]),
        (([0, 0], [1, 1]), [[0, 2, 0], [0, 0, 0]]),
        ([[0, 0], [1, 1]], [[2, 2, 2], [2, 2, 2]]),
        ([], [[0, 0, 0], [0, 0, 0]]),
        ((slice(None), []), [[0, 0, 0], [0, 0, 0]]),
        (range(1), [[1, 1, 1], [0, 0, 0]]),
        (np.int64(1), [[0, 0, 0], [1, 1, 1]]),
        ((True, [0, 0]), [[2, 2, 2], [0, 0, 0]]),
        ((None, ..., -1), [[0, 0, 1], [0, 0, 1]]),
    ],
)
def test_indices_of_all_kinds(backend, where, expected):
    """A tuple inside the index is a sequence of indices, as in NumPy; the index may also be
    empty."""
    x = leaf(np.arange(6.0).reshape(2, 3), backend)
    out = x[where]
    assert_close(out, np.arange(6.0).reshape(2, 3)[where])
    assert_close(tp.grad(out.sum(), [x])[0], expected)


def test_numpys_integers_are_integers(backend):
    x, one = make(np.arange(6.0).reshape(1, 6), backend), np.int64(1)
    for out, shape in [
        (F.reshape(x, np.prod((2, 3))), (6,)),
        (x.reshape(np.array([2, 3])), (2, 3)),
        (F.squeeze(x, np.int64(0)), (6,)),
        (F.flatten(x, np.int64(0)), (6,)),
        (F.flip(x, one), (1, 6)),
        (F.split(x, np.int64(4), one)[-1], (1, 2)),
        (F.stack([x, x], one), (1, 2, 6)),
        (F.concatenate([x, x], one), (1, 12)),
    ]:
        assert out.shape == shape


def test_an_index_may_be_a_tensor(backend):
    x = make(np.arange(6.0).reshape(2, 3), backend, requires_grad=True)
    columns = make(np.array([2, 2, 0]), backend)
    assert_close(x[:, columns], [[2, 2, 0], [5, 5, 3]])
    assert_close(tp.grad(x[:, columns].sum(), [x])[0], [[1, 0, 2], [1, 0, 2]])
    assert_close(x[x > 2.5], [3, 4, 5])
    assert_close(tp.grad((x[x > 2.5] ** 2).sum(), [x])[0], [[0, 0, 0], [6, 8, 10]])


def test_to_brings_the_gradient_home(backend):
    x = make(np.array([1.0, 2.0]), backend, requires_grad=True)
    y = F.to(x, "numpy")
    assert x.to(backend).data is x.data
    assert y.backend == "numpy"
    (slope,) = tp.grad(y, [x], np.array([3.0, 4.0]))
    assert slope.backend == backend
    assert_close(slope, [3, 4])
    tp.check_gradients(lambda x: F.to(F.to(x, "numpy") ** 3, backend), x)
    with pytest.raises(tp.BackendError, match="'numpy' or 'cupy'"):
        F.to(x, "tpu")


REFUSED = {
    "reshape to another size": (lambda x: F.reshape(x, (4, 2)), "same number of elements"),
    "reshape with two unknowns": (lambda x: F.reshape(x, (-1, -1)), "one -1"),
    "transpose with an axis twice": (lambda x: F.transpose(x, (0, 0)), "each axis"),
    "transpose with an axis missing": (lambda x: F.transpose(x, (0,)), "each axis"),
    "transpose out of range": (lambda x: F.transpose(x, (0, 2)), "each axis"),
    "broadcast to a shape that does not fit": (lambda x: F.broadcast_to(x, (2, 4)), "(2, 3)"),
    "pad with too few pairs": (lambda x: F.pad(x, [(1, 1)]), "for each axis"),
    "pad with negative widths": (lambda x: F.pad(x, [(0, 0), (-1, 0)]), "for each axis"),
    "pad with numbers": (lambda x: F.pad(x, [1, 1]), "for each axis"),
    "pad with one number": (lambda x: F.pad(x, 1), "for each axis"),
    "concatenate of other shapes": (lambda x: F.concatenate([x, x.T]), "except on the axis"),
    "concatenate out of range": (lambda x: F.concatenate([x, x], axis=2), "(2, 3)"),
    "concatenate of nothing": (lambda x: F.concatenate([]), "at least one"),
    "stack of other shapes": (lambda x: F.stack([x, x.T]), "(2, 3)"),
    "stack out of range": (lambda x: F.stack([x, x], axis=3), "axis"),
    "stack out of range from the back": (lambda x: F.stack([x, x], axis=-4), "axis"),
    "stack of nothing": (lambda x: F.stack([]), "at least one"),
    "flatten from an axis that is not there": (lambda x: F.flatten(x, 2), "between -2 and 1"),
    "squeeze of an axis of length 2": (lambda x: F.squeeze(x, 0), "length 1"),
    "flip of an axis that is not there": (lambda x: F.flip(x, -3), "between -2 and 1"),
    "split into parts of 0": (lambda x: F.split(x, 0), "sizes are positive"),
    "split into more than there is": (lambda x: F.split(x, [2, 2], 1), "adds up to 3"),
    "split into negative parts": (lambda x: F.split(x, [4, -1], 1), "adds up to 3"),
    "index out of range": (lambda x: x[2], "(2, 3)"),
    "index with too many axes": (lambda x: x[0, 0, 0], "(2, 3)"),
    "list out of range": (lambda x: x[:, [0, 3]], "(2, 3)"),
    "list out of range from the back": (lambda x: x[[-3, 0]], "(2, 3)"),
    "array out of range": (lambda x: x[None, ..., np.array([3])], "(2, 3)"),
    "array out of range after a mask": (lambda x: x[np.array([True, False]), [3]], "(2, 3)"),
    "list for an axis that is not there": (lambda x: x[:, :, [0]], "(2, 3)"),
    "list for a number": (lambda x: x.sum()[[0]], "()"),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(backend, call, words):
    assert_explained(tp.ShapeError, lambda: call(make(np.ones((2, 3)), backend)), words)


def test_concatenate_tells_a_wrong_axis_and_takes_the_rows_of_a_tensor():
    assert_explained(
        tp.ShapeError,
        lambda: F.concatenate([tp.ones(2), tp.ones(2)], axis=1),
        "axes are between -1 and 0",
    )
    assert F.concatenate(tp.ones(2, 3)).shape == (6,)


@pytest.mark.parametrize("value", [0.5, -1, 256, math.nan, math.inf])
def test_a_border_that_is_no_element_is_refused(value, backend):
    """0.5 would have become 0."""
    n = make(np.array([1, 2], np.uint8), backend)
    assert_explained(TypeError, lambda: F.pad(n, [(1, 0)], value), "uint8", "float32")


def test_a_border_of_integers_and_masks(backend):
    n = make(np.array([1, 2], np.uint8), backend)
    assert F.pad(n, [(1, 0)], 7.0).tolist() == [7, 1, 2]
    mask = make(np.array([True]), backend)
    assert_explained(TypeError, lambda: F.pad(mask, [(1, 0)], 2), "bool")
    assert F.pad(mask, [(1, 0)]).tolist() == [False, True]
