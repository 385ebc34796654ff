import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained

MADE = {
    "zeros": tp.zeros,
    "ones": tp.ones,
    "randn": tp.randn,
    "rand": tp.rand,
    "full": lambda *s, **o: tp.full(s, 7.0, **o),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (np.int64(2), 3)])
def test_shapes_and_options(name, backend, shape):
    t = MADE[name](*shape, requires_grad=True, dtype=np.float64, backend=backend)
    assert (t.shape, t.dtype, t.backend, t.requires_grad) == (shape, np.float64, backend, True)
    with tp.use_backend(backend):
        assert MADE[name](2).backend == backend
    assert name == "full" or MADE[name](shape).shape == MADE[name](list(shape)).shape == shape
    t = MADE[name](*shape)
    assert (t.shape, t.dtype, t.backend, t.requires_grad) == (shape, np.float32, "numpy", False)


def test_values():
    assert (tp.zeros(2).tolist(), tp.ones(2).tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert tp.full(2, 7.5).tolist() == tp.full((2,), 7.5).tolist() == [7.5, 7.5]
    assert tp.full((2,), 7, dtype=int).dtype == int


def test_arange_has_integers_for_integers(backend):
    for dtype, *every in (
        (np.int64, (3,), (1, 7, 2), (np.int64(3),)),
        (np.float32, (np.float32(3),), (0, 1, 0.25)),
    ):
        for bounds in every:
            t = tp.arange(*bounds, backend=backend)
            assert t.dtype == dtype
            np.testing.assert_array_equal(t.numpy(), np.arange(*bounds))


def test_a_range_does_not_add_up_rounded_steps(backend):
    exact = np.arange(1000.0, 1001.0, 0.01)
    np.testing.assert_array_equal(
        tp.arange(1000.0, 1001.0, 0.01, backend=backend).numpy(), exact.astype("float32")
    )


def test_random_numbers_follow_the_seed_and_their_distribution(backend):
    """n = 100,000: five standard errors for each moment, so that a check fails by chance once in
    1.7 million times."""
    n = 100_000
    for f, mean, var, fourth in ((tp.randn, 0.0, 1.0, 3.0), (tp.rand, 0.5, 1 / 12, 1 / 80)):
        tp.manual_seed(1)
        x = f(n, backend=backend, dtype=np.float64).numpy()
        assert abs(x.mean() - mean) < 5 * math.sqrt(var / n)
        assert abs(x.var() - var) < 5 * math.sqrt((fourth - var**2) / n)
        tp.manual_seed(1)
        np.testing.assert_array_equal(f(n, dtype=np.float64).numpy(), x)
    assert 0 <= x.min() < x.max() < 1


def test_integers_have_no_gradients():
    for make in (lambda **o: tp.zeros(2, dtype=int, **o), lambda **o: tp.arange(3, **o)):
        assert_explained(
            TypeError,
            lambda f=make: f(requires_grad=True),
            "requires_grad=True with elements of type int",
        )


def test_uniform_numbers_are_below_one():
    tp.manual_seed(0)
    # float64 numbers above 1 - 2^-12 would be rounded to 1
    assert tp.rand(100_000, dtype="float16").data.max() < 1


@pytest.mark.parametrize("make", [tp.rand, tp.randn])
def test_random_integers_are_refused(make):
    assert_explained(TypeError, lambda: make(3, dtype="int64"), "floats")
