"""Strides by phases, and outputs in strips: for any geometry, and how much they round."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.conftest import needs_overrides
from tinyprop.functional.windows import Window
from tinyprop.kernels import evenness, host, phases, tiles

pytestmark = needs_overrides


def results(x, w, seed=0, **geometry):
    """A convolution and its two gradients."""
    leaves = [tp.tensor(x, requires_grad=True), tp.tensor(w, requires_grad=True)]
    out = F.conv2d(*leaves, **geometry)
    cotangent = np.random.default_rng(seed).standard_normal(out.shape).astype(x.dtype)
    return [t.numpy() for t in (out, *tp.grad(out, leaves, tp.tensor(cotangent)))]


@st.composite
def convolutions(draw):
    n, c, o, h, w = (draw(st.integers(1, most)) for most in (3, 3, 3, 17, 17))
    k, s = draw(st.integers(2, 11)), draw(st.integers(2, 4))
    padding = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    assume(h + 2 * padding[0] >= k and w + 2 * padding[1] >= k)
    return (n, c, h, w), (o, c, k, k), {"stride": s, "padding": padding}


@given(convolutions(), st.integers(0, 9))
def test_any_convolution_by_phases(convolution, seed):
    """Whether they pay or not, where ceil(k / s) is a size of tiles."""
    image, filters, geometry = convolution
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(image).astype("f4"), rng.standard_normal(filters).astype("f4")
    size = -(-filters[2] // geometry["stride"])
    assume(size in tiles.TILES)

    def pays(window, *_):
        return window.stride == (1, 1) and window.kernel == (size, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "pays", pays)
        patch.setattr(tiles, "LEAST_CHANNELS", 1)
        patch.setattr(evenness, "MOST_UNEVEN", 1.0)  # images of one tile have only borders
        entry = {e.function: e for e in tp.overrides()}[phases.phased]
        entry.used = False
        got = results(x, w, **geometry)
        assert entry.used
    with tp.plain():
        expected = results(x.astype("f8"), w.astype("f8"), **geometry)
    for a, b in zip(got, expected, strict=True):
        assert np.linalg.norm(a - b) <= 2e-5 * np.linalg.norm(b) + 1e-5


@pytest.mark.parametrize(
    ("k", "stride", "most"), [(7, 2, 6e-6), (5, 2, 6e-6), (11, 1, 5e-7), (7, 1, 5e-7)]
)
def test_rounding(rng, k, stride, most):
    """Relative to the result, in the Frobenius norm. Large filters at stride 1 are plain."""
    x, w = (rng.standard_normal(shape).astype("f4") for shape in ((8, 32, 24, 24), (32, 32, k, k)))
    geometry = {"stride": stride, "padding": k // 2}
    with tp.plain():
        expected = results(x.astype("f8"), w.astype("f8"), **geometry)
    for a, b in zip(results(x, w, **geometry), expected, strict=True):
        assert np.linalg.norm(a - b) <= most * np.linalg.norm(b)
    with F.exact_convolution():
        for a, b in zip(results(x, w, **geometry), expected, strict=True):
            assert np.linalg.norm(a - b) <= 5e-7 * np.linalg.norm(b)


@st.composite
def few_filters(draw):
    """Convolutions whose outputs are computed in pairs."""
    n, c, o, h = (draw(st.integers(1, most)) for most in (3, 4, 4, 7))
    kh, kw, stride = draw(st.integers(1, 4)), draw(st.integers(2, 5)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    stride = min(stride, kw - 1)
    pairs = draw(st.integers(1, 4))
    w = (2 * pairs - 1) * stride + kw - 2 * padding[1]
    assume(h + 2 * padding[0] >= kh and w >= 1)
    return (n, c, h, w), (o, c, kh, kw), {"stride": (1, stride), "padding": padding}


@given(few_filters(), st.sampled_from([0.5, 1e30, np.inf, -np.inf, np.nan]), st.data())
def test_outputs_in_strips(convolution, value, data):
    """A pixel that is not finite spoils exactly the outputs whose windows have it."""
    image, filters, geometry = convolution
    assert host._strip(Window.of(filters[2:], **geometry), image, filters[0]) is not None
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(image), rng.standard_normal(filters)
    x[tuple(data.draw(st.integers(0, size - 1)) for size in image)] = value
    with np.errstate(all="ignore"):
        got = results(x, w, **geometry)
        with tp.plain():
            expected = results(x, w, **geometry)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        finite = np.isfinite(b)
        scale = np.abs(b[finite]).max(initial=1.0)
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=1e-14 * scale)


def test_many_filters_and_odd_rows_have_no_strips():
    window = Window.of(5, 1, 2)
    assert host._strip(window, (50, 3, 32, 32), 19) == Window.of((5, 6), (1, 2), 2)
    assert host._strip(window, (50, 3, 32, 32), 48) is None, "too many zeros"
    assert host._strip(window, (50, 10, 32, 32), 19) is None, "copies take little of the time"
    assert host._strip(window, (50, 3, 32, 31), 19) is None, "no neighbour for the last output"
    assert host._strip(Window.of(2, 2, 0), (50, 3, 32, 32), 19) is None, "no pixel in common"
    assert host._strip(Window.of(3, 1, 1, 2), (50, 3, 32, 32), 19) is None, "dilated"
