from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    Case,
    assert_close,
    assert_explained,
    battery,
    both,
    cotangent,
    int_or_pair,
    leaf,
    make,
    points,
    rngs,
)


@st.composite
def pooled(draw, wide_border=False, **options):
    """An image of distinct elements, and a window that fits on it. PyTorch takes borders of up to
    half a window."""
    kernel = draw(int_or_pair(1, 3))
    most = [k - 1 if wide_border else k // 2 for k in both(kernel)]
    padding = draw(st.integers(0, min(most)) | st.tuples(*[st.integers(0, p) for p in most]))
    least = [max(1, k - 2 * p) for k, p in zip(both(kernel), both(padding), strict=True)]
    shape = (
        *(draw(st.integers(1, 2)) for _ in range(2)),
        *(draw(st.integers(n, max(n, 6))) for n in least),
    )
    stride = draw(st.none() | int_or_pair(1, 3))
    window = {"kernel_size": kernel, "stride": stride, "padding": padding}
    return [points(draw(rngs()), shape, -3, 3)], window | {k: draw(v) for k, v in options.items()}


def windows(x, kernel_size, stride=None, padding=0, ceil_mode=False):
    """For every place of the window: the place, and the elements (N, C, ...) of the image under
    it."""
    (kh, kw), (ph, pw) = both(kernel_size), both(padding)
    (sh, sw), (h, w) = (kh, kw) if stride is None else both(stride), x.shape[2:]

    def starts(size, padding, extent, stride):
        """A window ends on the padded image; with ceil_mode the last one may hang over, if it
        starts on the image."""
        last = size + padding - extent
        return range(
            -padding, 1 + (min(last + stride - 1, size - 1) if ceil_mode else last), stride
        )

    for i, top in enumerate(starts(h, ph, kh, sh)):
        for j, left in enumerate(starts(w, pw, kw, sw)):
            yield (i, j), x[:, :, max(top, 0) : top + kh, max(left, 0) : left + kw]


def assembled(x, places):
    shape = tuple(1 + np.max([place for place, _ in places], axis=0))
    out = np.empty((*x.shape[:2], *shape))
    for (i, j), value in places:
        out[:, :, i, j] = value
    return out


def reference_max(x, **window):
    return assembled(x, [(place, part.max(axis=(2, 3))) for place, part in windows(x, **window)])


def reference_avg(x, count_include_pad, **window):
    kh, kw = both(window["kernel_size"])

    def mean(part):
        return part.sum(axis=(2, 3)) / (
            kh * kw if count_include_pad else part.shape[2] * part.shape[3]
        )

    return assembled(x, [(place, mean(part)) for place, part in windows(x, **window)])


EITHER = st.booleans()
MAX, AVG = (F.max_pool2d, reference_max), (F.avg_pool2d, reference_avg)
CASES = [
    Case("max_pool2d", *MAX, pooled()),
    Case("max_pool2d:ceil_mode", *MAX, pooled(ceil_mode=st.just(True))),
    Case("max_pool2d:wide border", *MAX, pooled(wide_border=True, ceil_mode=EITHER)),
    Case("avg_pool2d", *AVG, pooled(count_include_pad=EITHER)),
    Case("avg_pool2d:wide border", *AVG, pooled(wide_border=True, count_include_pad=EITHER)),
]

test_values, test_gradients, test_dtypes = battery(CASES)


@given(drawn=pooled(), nans=st.booleans(), rng=rngs())
def test_a_tie_passes_its_gradient_once_to_the_first(backend, drawn, nans, rng):
    """After a ReLU many windows hold nothing but zeros. NaN counts as the largest; PyTorch takes
    the last one."""
    (x,), options = drawn
    x = np.round(np.maximum(x, 0))
    if nans:
        x[rng.random(x.shape) < 0.2] = np.nan
    image = leaf(x, backend)
    out = F.max_pool2d(image, **options)
    g = cotangent(out.shape)
    numbered = np.broadcast_to(np.arange(x[0, 0].size).reshape(x.shape[2:]), x.shape)
    expected = np.zeros_like(x)
    for (place, part), (_, names) in zip(
        windows(x, **options), windows(numbered, **options), strict=True
    ):
        for n, c in np.ndindex(x.shape[:2]):
            # NumPy's argmax finds the first NaN, too
            winner = names[n, c].reshape(-1)[part[n, c].argmax()]
            expected[n, c].reshape(-1)[winner] += g[(n, c, *place)]
    for create_graph in (True, False):
        (slope,) = tp.grad(
            out, [image], make(g, backend), create_graph=create_graph, retain_graph=True
        )
        assert_close(slope, expected)


def test_minus_infinity_in_the_image_is_not_mistaken_for_the_border(backend):
    x = leaf(np.full((1, 1, 2, 2), -np.inf), backend)
    (slope,) = tp.grad(F.max_pool2d(x, 2, padding=1).sum(), [x])
    assert_close(slope, np.ones((1, 1, 2, 2)))


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_integer_images(pool, backend):
    pixels = make(np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4), backend)
    expected = [[[[5, 7], [13, 15]]]] if pool is F.max_pool2d else [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert_close(pool(pixels, 2), expected)


X = (1, 1, 4, 4)
REFUSED = {
    "an image without a batch axis": ((3, 4, 4), {"kernel_size": 2}, "x[None], with a batch axis"),
    "a single row": ((4,), {"kernel_size": 2}, "(N, C, H, W)"),
    "a number": ((), {"kernel_size": 2}, "(N, C, H, W)"),
    "a window larger than the image": (X, {"kernel_size": 5}, "must fit on the padded image"),
    "a border as wide as the window": (
        X,
        {"kernel_size": 2, "padding": 2},
        "every window must hold an element",
    ),
    "a window of 0": (X, {"kernel_size": 0}, "kernel_size=0"),
    "three sizes": (X, {"kernel_size": (1, 2, 3)}, "kernel_size=(1, 2, 3)"),
    "a stride of 0": (X, {"kernel_size": 2, "stride": 0}, "stride=0"),
    "a negative border": (X, {"kernel_size": 2, "padding": -1}, "padding=-1"),
}


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
@pytest.mark.parametrize(("image", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(pool, backend, image, options, words):
    assert_explained(tp.ShapeError, lambda: pool(make(np.ones(image), backend), **options), words)


@pytest.mark.parametrize("rules", [tp.plain, nullcontext], ids=["plain", "default"])
def test_the_average_of_a_constant_is_the_constant(backend, rules):
    """By the rule and by what overrides it; each pixel passes on a 9th for each of its windows."""
    x = make(np.full((2, 3, 6, 6), 0.7, np.float32), backend, requires_grad=True)
    with rules():
        out = F.avg_pool2d(x, 3)
        (g,) = tp.grad(out.sum(), [x])
    np.testing.assert_allclose(out.numpy(), 0.7, rtol=1e-6)
    np.testing.assert_allclose(g.numpy(), 1 / 9, rtol=1e-6)


def test_one_window_beside_the_corner():
    """There is one window, as large as the image, and only a corner of the image is in it."""
    x = tp.tensor([[[[8.0, 1.0], [2.0, 3.0]]]], requires_grad=True)
    for count_include_pad, expected in ((False, 8.0), (True, 2.0)):
        mean = F.avg_pool2d(x, 2, stride=3, padding=1, count_include_pad=count_include_pad)
        (slope,) = tp.grad(mean.sum(), [x])
        assert mean.tolist() == [[[[expected]]]]
        assert slope.tolist() == [[[[expected / 8.0, 0.0], [0.0, 0.0]]]]
