"""Thin products in stacks equal one product, for any number of rows and any layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyprop.kernels import products
from tinyprop.kernels.products import times_matrix, transposed_times

sizes = st.integers(1, 9)


@pytest.fixture(autouse=True)
def _small_stacks(monkeypatch):
    """Few rows are cut into stacks, as many are."""
    monkeypatch.setattr(products, "MULTIPLICATIONS", 100)
    monkeypatch.setattr(products, "MOST_ROWS", 16)


def matrices(shape, layout, seed):
    """A matrix of this shape, whose memory is in order, transposed, or has gaps."""
    random = np.random.default_rng(seed)
    rows, columns = shape
    if layout == "transposed":
        return random.standard_normal((columns, rows)).T
    if layout == "gaps":
        return random.standard_normal((2 * rows, 3 * columns))[::2, ::3]
    return random.standard_normal(shape)


layouts = st.sampled_from(["in order", "transposed", "gaps"])


@given(st.integers(0, 200), sizes, sizes, layouts, layouts, st.booleans())
def test_rows_times_a_small_matrix(rows, inner, columns, of_x, of_matrix, into):
    x = matrices((rows, inner), of_x, 0)
    matrix = matrices((inner, columns), of_matrix, 1)
    out = np.full((rows, columns), np.nan) if into else None
    got = times_matrix(x, matrix, out)
    assert out is None or got is out
    np.testing.assert_allclose(got, x @ matrix, rtol=0, atol=1e-13)


@given(st.integers(0, 200), sizes, sizes, layouts, layouts)
def test_a_transposed_matrix_times_rows(rows, inner, columns, of_x, of_y):
    x = matrices((rows, inner), of_x, 0)
    y = matrices((rows, columns), of_y, 1)
    np.testing.assert_allclose(transposed_times(x, y), x.T @ y, rtol=0, atol=1e-12)


def test_what_is_thin():
    """Stacks hold as many rows as BLAS multiplies without packing them, a power of two."""
    assert products._rows_at_once(np.empty((50, 3)), 2) == 16
    assert products._rows_at_once(np.empty((50, 7)), 3) == 4
    assert not products._rows_at_once(np.empty((4, 5)), 5), "small enough as it is"
    assert not products._rows_at_once(np.empty((10**3, 101)), 100), "a large matrix is packed"
    assert not products._rows_at_once(np.empty((10**3, 0)), 5), "nothing to multiply"


def test_a_sum_over_a_million_rows_keeps_its_digits(monkeypatch):
    """The products of the stack are added in float64."""
    monkeypatch.undo()
    x = np.full((10**6, 2), 0.1, np.float32)
    expected = 10**6 * float(x[0, 0]) ** 2
    np.testing.assert_allclose(transposed_times(x, x), expected, rtol=1e-6)
