"""Winograd convolution against plain convolution, which other tests hold against the definition."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.engine.arrays import to_backend, to_numpy
from tinyprop.functional.convolution import Convolve, FilterGradient, InputGradient
from tinyprop.functional.windows import Window, channels_last
from tinyprop.kernels import tiles

from ..conftest import needs_overrides

NIN = [  # C, H, O, kernel, padding of the paper's convolutions that are done in tiles
    (96, 16, 192, 5, 2),
    (192, 8, 192, 5, 0),
]


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def products(window, x, w, g, backend="numpy"):
    """Convolution and its gradients with respect to x and w, of arrays, by whatever computes them
    on this backend."""
    geometry = window, x.shape, w.shape, False
    pairs = (Convolve, x, w), (InputGradient, g, w), (FilterGradient, x, g)
    return [
        op(*geometry)(*(tp.tensor(a, backend=backend) for a in arrays)).numpy()
        for op, *arrays in pairs
    ]


@st.composite
def geometries(draw):
    k = draw(st.sampled_from([3, 4, 5]))
    n, c, o, h, w = (draw(st.integers(1, most)) for most in (3, 4, 4, 11, 11))
    padding = draw(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)))
    assume(h + 2 * padding[0] >= k and w + 2 * padding[1] >= k)
    return Window((k, k), (1, 1), padding), (n, c, h, w), (o, c, k, k)


@given(geometry=geometries(), last=st.booleans(), seed=st.integers(0, 9))
def test_tiles_compute_convolution_whether_they_pay_or_not(backend, geometry, last, seed):
    """In blocks of one or two images, channels-last in memory or not, with a graph and without."""
    window, image, filters = geometry
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(image).astype("f4"), rng.standard_normal(filters).astype("f4")
    g = rng.standard_normal((image[0], filters[0], *window.output(image))).astype("f4")
    if last:
        x, g = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, g))
    with tp.plain():
        expected = products(window, *(a.astype("f8") for a in (x, w, g)))
    with (
        mock.patch.object(tiles, "pays", return_value=True),
        mock.patch.object(tiles, "TILES_AT_ONCE", 4),
        mock.patch.object(tiles, "ELEMENTS_AT_ONCE", 4),
    ):
        got = products(window, x, w, g, backend)
        tx, tw = (tp.tensor(a, backend=backend, requires_grad=True) for a in (x, w))
        y = Convolve(window, image, filters, False)(tx, tw)
        recorded = [y, *tp.grad(y, [tx, tw], tp.tensor(g, backend=backend))]
    for a, b, c in zip(got, recorded, expected, strict=True):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_allclose(a, c, atol=2e-5 * max(1.0, np.abs(c).max()), rtol=0)
        np.testing.assert_allclose(b.numpy(), c, atol=2e-5 * max(1.0, np.abs(c).max()), rtol=0)


@pytest.mark.parametrize(
    ("c", "h", "o", "k", "padding"), [*NIN, (64, 15, 64, 3, 1), (32, 10, 48, 3, 0)]
)
def test_tiles_are_accurate_to_one_in_hundred_thousand(backend, rng, c, h, o, k, padding):
    n, window = (12 if backend == "numpy" else 2), Window((k, k), (1, 1), (padding, padding))
    x, w = (
        rng.standard_normal((n, c, h, h)).astype("f4"),
        rng.standard_normal((o, c, k, k)).astype("f4"),
    )
    g = rng.standard_normal((n, o, *window.output(x.shape))).astype("f4")
    with tp.plain():
        exact = products(window, *(a.astype("f8") for a in (x, w, g)))
    with mock.patch.object(tiles, "pays", return_value=True):
        for a, b in zip(products(window, x, w, g, backend), exact, strict=True):
            assert relative(a, b) < 1e-5


def test_tiles_are_used_where_they_pay():
    def pays(n, c, h, o, k, stride=1, padding=0, dilation=1):
        return tiles.pays(Window.of(k, stride, padding, dilation), (n, c, h, h), (o, c, k, k))

    for c, h, o, k, padding in NIN:
        assert pays(13, c, h, o, k, 1, padding)
        assert not pays(13, c, h, o, k, 2, padding)
        assert not pays(13, c, 2 * h, o, k, 1, padding, 2)
    assert not pays(1, 48, 8, 48, 5), "few tiles do not pay for the transform of the filters"
    assert pays(50, 10, 16, 19, 5, 1, 2), "ten channels do"
    assert not pays(1, 10, 16, 19, 5, 1, 2), "but not on one image"
    assert pays(50, 12, 16, 24, 3, 1, 1)
    assert not pays(50, 8, 16, 24, 3, 1, 1)
    assert not pays(25, 192, 32, 160, 1)
    assert not pays(25, 3, 32, 192, 5, 1, 2), (
        "three channels do not pay for the transform of the image"
    )
    assert not pays(25, 64, 9, 64, 3, 1, 1), "nor do tiles that are mostly empty"


@pytest.mark.usefixtures("tiles_for_few_outputs")
def test_what_must_not_round_more_is_declined(rng):
    x, w = (rng.standard_normal(s).astype("f4") for s in ((6, 32, 8, 8), (32, 32, 3, 3)))

    def declines(x, w, exact=False):
        op = Convolve(Window((3, 3), (1, 1), (1, 1)), x.shape, w.shape, exact)
        return tiles.convolve(op, x, w) is NotImplemented

    assert not declines(x, w)
    assert declines(x, w, exact=True)
    assert declines(x.astype("f8"), w)
    assert declines(x, w.astype("f8"))


def first_and_second_order(x, w, u, v, padding):
    """y, the gradients of <u, y>, and the gradients of a function of these gradients."""
    y = F.conv2d(x, w, None, 1, padding)
    first = tp.grad(y, [x, w], u, create_graph=True)
    both = (first[0] * v[0]).sum() + (first[1] * v[1]).sum()
    return [y, *first, *tp.grad(both, [x, w, u])]


@pytest.mark.usefixtures("tiles_for_few_outputs")
@needs_overrides
@pytest.mark.parametrize(("k", "padding"), [(3, 1), (5, 2), (5, 0)])
def test_tiles_agree_with_exact_convolution_to_second_order(backend, rng, k, padding):
    shapes = (6, 32, 8, 8), (34, 32, k, k), (6, 34, *[8 + 2 * padding - k + 1] * 2)
    x, w, u = (
        tp.tensor(rng.standard_normal(s).astype("f4"), requires_grad=True, backend=backend)
        for s in shapes
    )
    v = [tp.tensor(rng.standard_normal(s).astype("f4"), backend=backend) for s in shapes[:2]]
    in_tiles = first_and_second_order(x, w, u, v, padding)
    with F.exact_convolution():
        exact = first_and_second_order(x, w, u, v, padding)
    for a, b in zip(in_tiles, exact, strict=True):
        assert 0 < relative(a.numpy(), b.numpy()) < 1e-4, (
            "equal results would mean that one algorithm computed both"
        )


@pytest.mark.usefixtures("tiles_for_few_outputs")
@pytest.mark.parametrize("wanted", [[0], [1], [1, 0]])
def test_g_is_transformed_once_for_each_pass(backend, rng, wanted):
    """In whatever order the gradients are asked for; g may change before the next pass."""
    x, w = (
        to_backend(rng.standard_normal(s).astype("f4"), backend)
        for s in ((4, 32, 8, 8), (32, 32, 3, 3))
    )
    op = Convolve(Window((3, 3), (1, 1), (1, 1)), x.shape, w.shape, False)
    op.recorded = True
    op.parents = tuple("a parent" if i in wanted else None for i in range(2))
    g = tiles.convolve(op, x, w)
    expected = tiles.input_gradient(op, g, w), tiles.filter_gradient(op, x, g)
    with mock.patch.object(
        tiles.Tiling, "to_points", autospec=True, side_effect=tiles.Tiling.to_points
    ) as transform:
        gradients = tiles.convolve_gradients(op, g, x, w)
        for i in wanted:
            np.testing.assert_allclose(to_numpy(gradients[i]()), to_numpy(expected[i]), atol=1e-3)
    names = [call.args[1] for call in transform.call_args_list]
    assert "input" not in names or backend == "cupy", "forward keeps the input transform"
    assert names.count("output.T") <= len(tiles.Tiling(op.window, x.shape).blocks(channels_last(g)))
    doubled = [f() for f in tiles.convolve_gradients(op, g * 2, x, w)]
    for a, b in zip(doubled, expected, strict=True):
        np.testing.assert_allclose(to_numpy(a), 2 * to_numpy(b), rtol=1e-4, atol=1e-2)


@pytest.mark.usefixtures("tiles_for_few_outputs")
def test_results_stay_channels_last_in_memory(backend, rng):
    x = tp.tensor(
        rng.standard_normal((4, 16, 8, 8)).astype("f4"), requires_grad=True, backend=backend
    )
    y = F.conv2d(
        x, tp.tensor(rng.standard_normal((16, 16, 5, 5)).astype("f4"), backend=backend), padding=2
    )
    for image in (y, tp.grad(y, [x], y.detach())[0]):
        assert image.data.transpose(0, 2, 3, 1).flags.c_contiguous
