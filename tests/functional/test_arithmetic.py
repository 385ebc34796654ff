import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    FLOATS,
    Case,
    assert_close,
    assert_explained,
    battery,
    broadcasting,
    computed_dtypes,
    leaf,
    make,
    of_table,
    one_array,
    points,
    rngs,
)

ANY = (-3, 3)
NOT_ZERO = (-3, 3, (0,), 0.4)
BOUNDS = st.sampled_from([(-1, 1), (None, 0.5), (-0.5, None), (np.float64(-1), np.float64(0.5))])
BOUNDS_AND_KINKS = (-3, 3, (-1, -0.5, 0.5, 1))

reference_erf = np.vectorize(math.erf, otypes=[float])


@st.composite
def distinct_pairs(draw):
    """Two arrays that broadcast together and have no element in common: no ties."""
    left, right = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)
    ).input_shapes
    both = points(draw(rngs()), (math.prod(left) + math.prod(right),), -3, 3)
    return [both[: math.prod(left)].reshape(left), both[math.prod(left) :].reshape(right)], {}


def conditions():
    """A choice of the left or the right, element by element, that broadcasts with any shape of up
    to three axes."""
    return st.sampled_from([[[True]], [[False]], True]) | st.lists(
        st.booleans(), min_size=1, max_size=1
    )


def choose(x, y, condition):
    return F.where(tp.tensor(np.array(condition), backend=x.backend), x, y)


CASES = [
    of_table("add", np.add),
    of_table("subtract", np.subtract),
    of_table("multiply", np.multiply),
    of_table("divide", np.divide),
    of_table("power", np.power),
    Case(
        "power:number",
        lambda x, n: x**n,
        lambda x, n: x**n,
        one_array(*NOT_ZERO, n=st.integers(-3, 4)),
    ),
    Case(
        "power:of a number",
        lambda x, base: base**x,
        lambda x, base: base**x,
        one_array(base=st.sampled_from([2, 0.5, math.e])),
    ),
    of_table("negative", np.negative),
    of_table("exp", np.exp),
    of_table("expm1", np.expm1),
    of_table("log", np.log),
    of_table("log1p", np.log1p),
    of_table("sqrt", np.sqrt),
    of_table("rsqrt", lambda x: 1 / np.sqrt(x)),
    of_table("square", np.square),
    of_table("sin", np.sin, span=(-7, 7)),
    of_table("cos", np.cos, span=(-7, 7)),
    of_table("erf", reference_erf),
    of_table("abs", np.abs),
    Case("maximum", F.maximum, np.maximum, distinct_pairs()),
    Case("minimum", F.minimum, np.minimum, distinct_pairs()),
    Case(
        "where",
        choose,
        lambda x, y, condition: np.where(condition, x, y),
        broadcasting(ANY, ANY, condition=conditions()),
    ),
    Case(
        "clip",
        lambda x, bounds: F.clip(x, *bounds),
        lambda x, bounds: np.clip(x, *bounds),
        one_array(*BOUNDS_AND_KINKS, bounds=BOUNDS),
    ),
]

test_values, test_gradients, test_dtypes = battery(CASES)

BINARY = {
    "add": F.add,
    "subtract": F.subtract,
    "multiply": F.multiply,
    "divide": F.divide,
    "power": F.power,
}
BINARY |= {"maximum": F.maximum, "minimum": F.minimum}

OTHERS = [2, 0.1, True, np.float64(0.1), np.float32(0.5), np.int64(2), [0.5, 2.0, 3.0]]
OTHERS += [np.array([1, 2, 3], np.int32), np.array([1, 2, 3], np.uint8)]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("swap", [False, True])
def test_numbers_and_lists_never_promote_and_lose_no_digit(name, backend, dtype, other, swap):
    array = np.array([0.3, 1.0, 2.5], dtype)
    x = make(array, backend, requires_grad=True)
    with computed_dtypes() as seen:
        operand = make(other, backend) if isinstance(other, np.ndarray) else other
        out = BINARY[name](operand, x) if swap else BINARY[name](x, operand)
        (slope,) = tp.grad(out, [x], make(np.ones(3, dtype), backend), create_graph=True)
    assert out.dtype == slope.dtype == dtype
    assert seen == {np.dtype(dtype)}
    assert out.backend == backend
    y = np.asarray(other, dtype)
    assert_close(
        out,
        getattr(np, name)(*((y, array) if swap else (array, y))),
        1e-15 if dtype is np.float64 else 1e-6,
    )


def test_astype_passes_the_gradient_back_in_the_old_dtype(backend):
    x = make(np.array([1.0, 2.0], np.float32), backend, requires_grad=True)
    y = F.astype(x, np.float64)
    assert y.dtype == np.float64
    (slope,) = tp.grad(y, [x], make(np.array([0.5, -3.0]), backend))
    assert slope.dtype == np.float32
    assert_close(slope, np.array([0.5, -3.0]))
    tp.check_gradients(lambda x: F.astype(x, np.float64) ** 3, x)
    assert not x.astype(np.int64).requires_grad


# At the kinks: the choices that the docstrings state.


def slope_at(f, backend, *values):
    leaves = [leaf(v, backend) for v in values]
    return [g.item() for g in tp.grad(f(*leaves), leaves)]


@pytest.mark.parametrize(
    ("f", "values", "slopes"),
    [
        (F.maximum, [2.0, 2.0], [0.5, 0.5]),
        (F.minimum, [2.0, 2.0], [0.5, 0.5]),
        (lambda x: F.maximum(x, 0), [0.0], [0.5]),
        (F.abs, [0.0], [0.0]),
        (F.relu, [0.0], [0.0]),
        (F.leaky_relu, [0.0], [0.01]),
        (F.elu, [0.0], [1.0]),
        (F.selu, [0.0], [1.0507009873554805 * 1.6732632423543772]),
        *((F.hardtanh, [x], [0.0]) for x in (1.0, -1.0)),
        *((lambda x: F.hardtanh(x, 0, 6), [x], [float(0 < x < 6)]) for x in (0.0, 0.1, 6.0)),
        *((lambda x: F.clip(x, -1, 1), [x], [float(abs(x) <= 1)]) for x in (1.0, -1.0, 1.01)),
        (lambda x: x**0, [0.0], [0.0]),
        (lambda x: x**1, [0.0], [1.0]),
        (lambda x: x**2, [0.0], [0.0]),
        (F.power, [0.0, 2.0], [0.0, 0.0]),
        (F.power, [0.0, 0.0], [0.0, 0.0]),
        (lambda y: 0**y, [3.0], [0.0]),
    ],
)
def test_slopes_at_the_kinks(f, values, slopes, backend):
    """Those of activations are PyTorch's."""
    assert slope_at(f, backend, *values) == pytest.approx(slopes, rel=1e-15, abs=0)


def test_power_of_a_negative_number(backend):
    """x**y has no slope with respect to y at x < 0: NaN, as in PyTorch, and not a clean 0."""
    x, y = leaf([-2.0, -2.0, 2.0], backend), leaf([2.0, 3.0, 2.0], backend)
    dx, dy = tp.grad((x**y).sum(), [x, y])
    assert_close(dx, [-4, 12, 4])
    np.testing.assert_array_equal(np.isnan(dy.numpy()), [True, True, False])
    assert np.isnan(slope_at(lambda y: (-2) ** y, backend, 3.0))


@pytest.mark.parametrize(
    "f",
    [
        *(F.relu, F.leaky_relu, F.hardtanh, F.elu, F.selu, F.abs, F.max, F.min),
        *(lambda x: F.maximum(x, 0.0), lambda x: F.minimum(0.0, x), lambda x: F.clip(x, -1, 1)),
        *(lambda x: F.prelu(x, 0.25), lambda x: F.where(x < 0, 0.0, x)),
    ],
)
def test_a_nan_never_gets_a_clean_zero_for_a_gradient(f, backend):
    (slope,) = slope_at(f, backend, np.nan)
    assert slope != 0


@pytest.mark.parametrize(
    ("f", "slope", "x"),
    [
        (F.sin, np.cos, [1.5, 1.57, 4.71, 100.0, 1e4]),
        (F.cos, lambda x: -np.sin(x), [3.1, 3.14, 6.28, 100.0, 1e4]),
        (F.elu, np.exp, [-1e-4, -1.0, -10.0, -20.0, -30.0]),
        (F.expm1, np.exp, [-1e-4, -10.0, -30.0, 2.0]),
        (F.log1p, lambda x: 1 / (1 + x), [-0.99, 1e-6, 1.0]),
        (F.rsqrt, lambda x: -0.5 * x**-1.5, [1e-8, 1.0, 1e8]),
    ],
    ids=["sin", "cos", "elu", "expm1", "log1p", "rsqrt"],
)
def test_slopes_keep_their_digits_in_float32(backend, f, slope, x):
    """Also where the function itself has lost them: near -1, elu' = elu + 1 would have none."""
    leaf32 = leaf(x, backend, np.float32)
    (measured,) = tp.grad(f(leaf32).sum(), [leaf32])
    np.testing.assert_allclose(
        measured.numpy(), slope(leaf32.numpy().astype(np.float64)), rtol=3e-6
    )


@pytest.mark.parametrize("f", [*BINARY.values(), lambda x, y: F.where(x > 0, x, y)])
def test_shapes_that_do_not_broadcast_are_explained(f, backend):
    x, y = make(np.ones((2, 3)), backend), make(np.ones((2, 4)), backend)
    assert_explained(tp.ShapeError, lambda: f(x, y), "(2, 3)", "(2, 4)", "counted from the right")


def test_a_negative_power_of_integers_is_not_about_shapes():
    assert_explained(TypeError, lambda: tp.arange(1, 4) ** -1, "float32")
    assert_explained(TypeError, lambda: tp.arange(1, 4) ** tp.arange(-1, 2), "float32")


def test_the_slope_of_a_power_of_zero(backend):
    """With respect to a negative exponent, it is minus infinity, as in PyTorch."""
    for zero in (0.0, leaf([0.0, 0.0], backend)):
        y = leaf([-1.0, 2.0], backend)
        with np.errstate(divide="ignore"):
            (slope,) = tp.grad((zero**y).sum(), [y])
        np.testing.assert_array_equal(slope.numpy(), [-np.inf, 0])


def test_a_condition_is_a_mask():
    """A float one would have made floats of the integers."""
    n = tp.tensor(np.array([2**60 + 1, 3]))
    assert_explained(TypeError, lambda: F.where([1.0, 0.0], n, n), "float32", "condition != 0")
    assert F.where([True, False], n, -n).tolist() == [2**60 + 1, -3]
    assert F.where(n > 5, 1, 2).dtype == F.where([True], [1], [2]).dtype == np.float32
    assert F.where(True, n, 0).tolist() == n.tolist()


@pytest.mark.parametrize("f", [F.clip, F.hardtanh])
@pytest.mark.parametrize("bound", [tp.tensor(0.0), np.zeros(2), [0.0]])
def test_bounds_are_numbers(f, bound):
    """An array of float64 would have made float64 of float32."""
    x = tp.tensor([1.0, 2.0])
    assert_explained(TypeError, lambda: f(x, bound, 1.5), "F.maximum")
    assert f(x, np.float64(0.0), np.float64(1.5)).dtype == np.float32


@pytest.mark.parametrize("dtype", ["complex64", "U5", "datetime64[s]"])
def test_elements_are_floats_integers_or_bools(dtype):
    assert_explained(TypeError, lambda: F.astype([1.0], dtype), "floats, integers or bools")
