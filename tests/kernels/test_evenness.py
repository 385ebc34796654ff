"""Tiles are used where the range of the data allows it: outliers, infinity and NaN go no further
than by the plain product."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.engine.threads import thread_limit
from tinyprop.functional.windows import Window, channels_last
from tinyprop.kernels import evenness, tiles

from ..conftest import needs_overrides

pytestmark = [needs_overrides, pytest.mark.usefixtures("tiles_for_few_outputs")]

BOUND = 1e-5  # of |window| |filter|, as the docstring of conv2d says
GEOMETRIES = [(3, 1, 1), (4, 1, 1), (5, 1, 2), (5, 1, 0), (3, 2, 1), (4, 2, 1), (5, 2, 2)]


def arrays(rng, k, stride, padding, n=2, channels=32, places=12):
    """x, w and g of a convolution with this number of places down and across."""
    size = (places - 1) * stride + k - 2 * padding
    shapes = (n, channels, size, size), (channels, channels, k, k), (n, channels, places, places)
    return [rng.standard_normal(shape).astype("f4") for shape in shapes]


def results(x, w, g, stride, padding, backend="numpy"):
    """The convolution of arrays, and its gradients with respect to x and w."""
    x, w, g = (tp.tensor(a, backend=backend) for a in (x, w, g))
    leaves = [x.detach(), w.detach()]
    for leaf in leaves:
        leaf.requires_grad = True
    y = F.conv2d(*leaves, stride=stride, padding=padding)
    return [t.numpy() for t in (y, *tp.grad(y, leaves, g))]


def plain_results(x, w, g, stride, padding):
    with tp.plain(), np.errstate(all="ignore"):
        return results(x, w, g, stride, padding)


def scales(x, w, g, stride, padding):
    """|window| |filter| of every result; outside the window of a result nothing counts."""
    x, w, g = (a.astype("f8") ** 2 for a in (x, w, g))
    y, g_x, _ = plain_results(x, np.ones_like(w), g, stride, padding)
    _, _, met = plain_results(x, np.ones_like(w), np.ones_like(g), stride, padding)
    of_outputs = y * w.sum(axis=(1, 2, 3))[:, None, None]
    of_pixels = g_x * w.sum(axis=(0, 2, 3))[:, None, None]
    of_weights = met * g.sum(axis=(0, 2, 3))[:, None, None, None]
    return [np.sqrt(a) for a in (of_outputs, of_pixels, of_weights)]


def assert_within(got, exact, bounds):
    """Equal where one is not finite, and within the bounds elsewhere."""
    for a, b, bound in zip(got, exact, bounds, strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        finite = np.isfinite(b)
        error = np.abs(a[finite] - b[finite])
        assert (error <= bound[finite]).all(), f"{(error / bound[finite]).max():.3g} of the bound"


def outliers():
    magnitudes = st.floats(0, 30).map(lambda digits: 10.0**digits)
    return st.one_of(magnitudes, st.sampled_from([np.inf, -np.inf, np.nan, 0.0]))


@given(
    geometry=st.sampled_from(GEOMETRIES),
    where=st.integers(0, 2),
    position=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 4),
    value=outliers(),
)
def test_an_outlier_goes_no_further_than_by_the_plain_product(
    backend, geometry, where, position, value
):
    """In x, w or g: forward, and both gradients."""
    k, stride, padding = geometry
    given_arrays = arrays(np.random.default_rng(0), k, stride, padding)
    outlying = given_arrays[where]
    outlying[tuple(int(p * size) for p, size in zip(position, outlying.shape, strict=True))] = value
    with np.errstate(all="ignore"):
        got = results(*given_arrays, stride, padding, backend)
        exact = plain_results(*(a.astype("f8") for a in given_arrays), stride, padding)
        ordinary = [np.where(np.isfinite(a), a, 0.0) for a in given_arrays]
        bounds = [BOUND * scale for scale in scales(*ordinary, stride, padding)]
    assert_within(got, exact, bounds)


def test_a_large_pixel_leaves_its_neighbors_alone(backend, rng):
    """It spoiled them by 186."""
    x, w, g = arrays(rng, 3, 1, 1)
    x[0, 0, 5, 5] = 1e8
    got, _, _ = results(x, w, g, 1, 1, backend)
    exact, _, _ = plain_results(*(a.astype("f8") for a in (x, w, g)), 1, 1)
    error = np.abs(got - exact)
    error[0, :, 4:7, 4:7] = 0.0  # the outputs that see it
    assert error.max() < 1e-3


@pytest.mark.parametrize("digits", range(1, 13))
def test_outliers_of_every_size(backend, rng, digits):
    """One in x and one in g, in different images: also those that are just small enough."""
    x, w, g = arrays(rng, 5, 1, 2)
    x[0, 3, 4, 7] = g[1, 2, 6, 5] = 10.0**digits
    got = results(x, w, g, 1, 2, backend)
    exact = plain_results(*(a.astype("f8") for a in (x, w, g)), 1, 2)
    assert_within(got, exact, [BOUND * scale for scale in scales(x, w, g, 1, 2)])


def test_numbers_whose_squares_underflow(backend, rng):
    x, w, g = arrays(rng, 5, 1, 2)
    x *= np.float32(1e-30)
    g *= np.float32(1e-30)
    x[0, 3, 4, 7] = g[1, 2, 6, 5] = 1e-24
    got, of_x, _ = results(x, w, g, 1, 2, backend)
    exact, exact_of_x, _ = plain_results(*(a.astype("f8") for a in (x, w, g)), 1, 2)
    of_outputs, of_pixels, _ = scales(x, w, g, 1, 2)
    assert_within((got, of_x), (exact, exact_of_x), (BOUND * of_outputs, BOUND * of_pixels))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinity_reaches_the_windows_that_contain_it(backend, rng, value):
    """It reached 2,048 outputs."""
    x, w, g = arrays(rng, 3, 1, 1)
    x[0, 0, 5, 5] = value
    with np.errstate(all="ignore"):
        got, of_x, of_w = results(x, w, g, 1, 1, backend)
    assert (~np.isfinite(got)).sum() == 9 * 32
    assert np.isfinite(of_x).all()
    assert not np.isfinite(of_w[:, 0]).any()
    assert np.isfinite(of_w[:, 1:]).all()


def test_a_corner_meets_only_some_weights(backend, rng):
    """By the rule: the corner pixel of a padded image never meets the last row of a filter, but the
    padding meets an infinite g."""
    x, w, g = arrays(rng, 3, 1, 1)
    x[0, 0, 0, 0] = np.inf
    with np.errstate(all="ignore"):
        _, _, of_w = results(x, w, g, 1, 1, backend)
    spoiled = np.zeros((3, 3), bool)
    spoiled[:2, :2] = True
    for of_filter in of_w[:, 0]:
        np.testing.assert_array_equal(~np.isfinite(of_filter), spoiled)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_large_weight_that_meets_zeros_does_no_harm(backend, rng, geometry):
    """Relative to the sum of |x| |w| over the window."""
    k, stride, padding = geometry
    x, w, g = arrays(rng, k, stride, padding)
    x, g = np.maximum(x, 0), np.maximum(g, 0)
    w[3, 2, 1, 1] = 1e8
    got = results(x, w, g, stride, padding, backend)
    exact = plain_results(*(a.astype("f8") for a in (x, w, g)), stride, padding)
    sums = plain_results(*(np.abs(a).astype("f8") for a in (x, w, g)), stride, padding)
    assert_within(got, exact, [BOUND * s for s in sums])


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_an_infinite_weight_spoils_what_it_meets(backend, rng, geometry, value):
    """Forward it meets the padding, which is zeros; the gradient of a pixel at the edge does not
    meet weights that hang over."""
    k, stride, padding = geometry
    x, w, g = arrays(rng, k, stride, padding)
    w[3, 2, 0, 1] = value
    with np.errstate(all="ignore"):
        got = results(x, w, g, stride, padding, backend)
    for a, b in zip(got, plain_results(x, w, g, stride, padding), strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_window_of_zeros_gives_zero(backend, rng, geometry):
    k, stride, padding = geometry
    x, w, g = arrays(rng, k, stride, padding)
    x[:, :, 6:] = 0
    g[:, :, :, 7:] = 0
    got = results(x, w, g, stride, padding, backend)
    for a, b in zip(got, plain_results(x, w, g, stride, padding), strict=True):
        np.testing.assert_array_equal(a == 0, b == 0)


@pytest.mark.parametrize("k", [3, 4, 5])
def test_the_error_stays_within_the_bound_up_to_the_largest_contrast(backend, rng, k):
    """Tiles that are just even enough: one half of the image is small, and no tile is declined."""
    x, w, g = arrays(rng, k, 1, k // 2, places=16)
    for image in (x, g):
        image[..., image.shape[3] // 2 :] *= 0.1
    tiling = tiles.tiling_of(Window((k, k), (1, 1), (k // 2, k // 2)), x.shape)
    for name, image in (("input", x), ("output.T", g)):
        uneven = tiling.uneven(name, channels_last(to_backend(image, backend)))
        assert uneven is None or not to_numpy(uneven).any()
    got = results(x, w, g, 1, k // 2, backend)
    exact = plain_results(*(a.astype("f8") for a in (x, w, g)), 1, k // 2)
    assert_within(got, exact, [BOUND * s for s in scales(x, w, g, 1, k // 2)])


@given(
    k=st.sampled_from([3, 4, 5]),
    padding=st.integers(0, 2),
    size=st.tuples(st.integers(5, 14), st.integers(5, 14)),
    pixels=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(-5, 17)), max_size=6),
)
def test_tiles_are_even_if_every_window_has_enough_of_their_energy(
    backend, k, padding, size, pixels
):
    """Against loops over the definition."""
    h, w = size
    image = np.random.default_rng(0).standard_normal((1, h, w, 2)).astype("f4")
    for down, across, exponent in pixels:
        image[0, int(down * (h - 1)), int(across * (w - 1)), 0] = 10.0**exponent
    window = Window((k, k), (1, 1), (padding, padding))
    tiling = tiles.tiling_of(window, (1, 2, h, w))
    got = tiling.uneven("input", to_backend(image, backend))
    down, across = tiling.windows["input"].output((1, 2, h, w))
    got = np.zeros((1, down, across), bool) if got is None else to_numpy(got)
    energy = np.pad((image[0].astype("f8") ** 2).sum(axis=-1), ((padding, 99), (padding, 99)))
    rows, columns = window.output((1, 2, h, w))
    for i in range(down):
        for j in range(across):
            tile = energy[4 * i : 4 * i + tiling.size, 4 * j : 4 * j + tiling.size].sum()
            windows = [
                energy[a : a + k, b : b + k].sum()
                for a in range(4 * i, min(4 * i + 4, rows))
                for b in range(4 * j, min(4 * j + 4, columns))
            ]
            largest = min(evenness.MOST_ENERGY * min(windows), evenness.MOST)
            if not 0.999 < tile / largest < 1.001:  # rounding decides there
                assert got[0, i, j] == (tile > largest)


def test_ordinary_data_is_even(rng):
    """Rectified Gaussians, and the gradient that a max pool passes on."""
    x = tp.tensor(np.maximum(rng.standard_normal((50, 24, 16, 16)), 0).astype("f4"))
    x.requires_grad = True
    g = tp.grad(F.max_pool2d(x, 3, 2, 1).sum(), [x])[0].numpy()
    tiling = tiles.tiling_of(Window((5, 5), (1, 1), (2, 2)), x.shape)
    assert tiling.uneven("input", channels_last(x.data)) is None
    assert tiling.uneven("output.T", channels_last(g)) is None
    w = rng.standard_normal((48, 24, 5, 5)).astype("f4")
    assert evenness.has_even_filters(w)
    assert evenness.has_even_filters(0 * w)
    for value in (100.0, 1e30, np.inf, np.nan):
        w[3, 2, 1, 0] = value
        assert not evenness.has_even_filters(w)


def half_large(a):
    """In most tiles, a few pixels are far larger than the others."""
    a = a.copy()
    a[..., ::4, ::4] *= 1e6
    return a


@pytest.mark.parametrize(("k", "stride", "padding"), [(3, 1, 1), (5, 1, 2), (5, 2, 2)])
@pytest.mark.parametrize("large", ["x", "g", "w", "xg", "xw", "wg"])
def test_forward_and_backward_decide_for_themselves(rng, k, stride, padding, large):
    """Tiles forward and the plain product backward, and the other way round."""
    x, w, g = arrays(rng, k, stride, padding)
    x = half_large(x) if "x" in large else x
    g = half_large(g) if "g" in large else g
    if "w" in large:
        w[0, 0, 0, 0] = 1e6
    with mock.patch.object(evenness, "run", side_effect=evenness.run) as plain:
        got = results(x, w, g, stride, padding)
    # phases only take the gradients of what they have computed themselves
    if stride == 1:
        kinds = [call.args[0].__qualname__.split(".")[0] for call in plain.call_args_list]
        assert ("InputGradient" in kinds) == ("g" in large or "w" in large)
        assert ("FilterGradient" in kinds) == ("x" in large or "g" in large)
    exact = plain_results(*(a.astype("f8") for a in (x, w, g)), stride, padding)
    assert_within(got, exact, [BOUND * s for s in scales(x, w, g, stride, padding)])


@pytest.mark.parametrize(("k", "stride", "padding"), [(3, 1, 1), (5, 2, 2)])
def test_outliers_give_the_same_bits_on_any_number_of_threads(rng, k, stride, padding):
    x, w, g = arrays(rng, k, stride, padding, n=9)
    x[::2, 0, 3, 4] = 1e8
    g[1::4, 1, 7, 2] = 1e8
    one, *others = [], [], []
    for found, threads in zip((one, *others), (1, 2, 3), strict=True):
        with thread_limit(threads):
            found += results(x, w, g, stride, padding)
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
