"""Strides by phases: for any geometry, and how much they round."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.conftest import needs_overrides
from tinyprop.kernels import evenness, phases, tiles

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
