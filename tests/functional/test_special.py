"""erf and its relatives against mpmath, at rounding, from the smallest numbers to infinity."""

import math

import mpmath
import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import FLOATS
from tinyprop.functional import special

ROUNDING = {np.float32: 2**-23, np.float64: 2**-52}
# of the normal numbers; a GPU may flush smaller ones to 0
SMALLEST = {np.float32: 2**-126, np.float64: 2**-1022}

every_dtype = pytest.mark.parametrize("dtype", FLOATS)


def apply(f, values, dtype, backend):
    out = f(tp.tensor(np.asarray(values, dtype), backend=backend).data)
    out = tp.engine.arrays.to_numpy(out)
    assert out.dtype == dtype
    return out


def erfcx(x):
    return mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x)


def assert_accurate(f, reference, values, dtype, backend, units):
    """Each value right to so many units in the last place, or below the smallest normal number."""
    values = np.asarray(values, dtype)
    with mpmath.workdps(40):
        exact = np.array([float(reference(mpmath.mpf(float(v)))) for v in values])
    actual = apply(f, values, dtype, backend).astype(float)
    off = abs(actual - exact)
    allowed = units * ROUNDING[dtype] * abs(exact) + SMALLEST[dtype]
    worst = (off / allowed).argmax()
    assert (off <= allowed).all(), f"at {values[worst]}: {actual[worst]} instead of {exact[worst]}"


SMALL = np.geomspace(1e-30, 1, 101)


@every_dtype
@pytest.mark.parametrize(
    ("name", "x", "units"),
    [
        ("erf", np.concatenate([np.linspace(-7, 7, 401), SMALL, -SMALL]), 4),
        ("erfc", np.linspace(-7, 3, 401), 16),
        ("erfc", np.linspace(3, 9, 101), 200),  # exp(-x^2) multiplies the rounding of x^2 by x^2
        ("erfcx", np.concatenate([np.linspace(0, 12, 601), np.geomspace(1e-20, 1e15, 101)]), 8),
    ],
)
def test_values(name, x, units, dtype, backend):
    # CUDA's own: 5 digits show that it is the right function
    if name == "erfcx" and backend == "cupy":
        units = 1e-5 / ROUNDING[dtype]
    reference = erfcx if name == "erfcx" else getattr(mpmath, name)
    assert_accurate(getattr(special, name), reference, x, dtype, backend, units)


@every_dtype
def test_far_out(dtype, backend):
    """No overflow on the way, no NaN at infinity: with warnings as errors."""
    largest = float(np.finfo(dtype).max)
    x = np.array([30, 1e4, largest / 4, largest, math.inf])
    np.testing.assert_array_equal(apply(special.erf, x, dtype, backend), 1)
    np.testing.assert_array_equal(apply(special.erf, -x, dtype, backend), -1)
    np.testing.assert_array_equal(apply(special.erfc, x, dtype, backend), 0)
    np.testing.assert_array_equal(apply(special.erfc, -x, dtype, backend), 2)
    out = apply(special.erfcx, x, dtype, backend)
    np.testing.assert_allclose(out, 1 / x / math.sqrt(math.pi), rtol=1e-3, atol=SMALLEST[dtype])
    assert out[-1] == 0


@every_dtype
def test_values_at_zero_and_nan_and_shapes(dtype, backend):
    assert apply(special.erf, [0.0], dtype, backend)[0] == 0
    assert apply(special.erfc, [0.0], dtype, backend)[0] == 1
    np.testing.assert_allclose(
        apply(special.erfcx, [0.0], dtype, backend), 1, rtol=4 * ROUNDING[dtype]
    )
    for f in (special.erf, special.erfc, special.erfcx):
        assert np.isnan(apply(f, [math.nan], dtype, backend)).all()
        for shape in [(), (0,), (2, 3)]:
            assert apply(f, np.ones(shape), dtype, backend).shape == shape
