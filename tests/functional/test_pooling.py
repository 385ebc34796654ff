"""Pooling against its definition in nested loops, PyTorch, and its laws, on random geometry."""

import numpy as np
import pytest
from hypothesis import assume, given
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

ONE = st.just(1)


@st.composite
def pooled(draw, wide_border=False, dilation=ONE, **options):
    """An image of distinct elements, and a window that fits on it. PyTorch takes borders of up to half a window."""
    kernel, dilation = draw(int_or_pair(1, 3)), both(draw(dilation))
    most = [k - 1 if wide_border else k // 2 for k in both(kernel)]
    padding = draw(st.integers(0, min(most)) | st.tuples(*[st.integers(0, p) for p in most]))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(both(kernel), dilation, both(padding), strict=True)]
    height, width = (draw(st.integers(n, max(n, 6))) for n in least)
    shape = draw(st.integers(1, 2)), draw(st.integers(1, 2)), height, width
    options = {k: draw(v) for k, v in options.items()} | ({"dilation": dilation} if dilation != (1, 1) else {})
    stride = draw(st.none() | int_or_pair(1, 3))
    window = zip(both(kernel), both(kernel if stride is None else stride), both(padding), dilation, strict=True)
    for n, (k, s, p, d) in zip((height, width), window, strict=True):  # every window holds an element
        starts = range(-p, n + p - d * (k - 1), s)
        assume(all(any(0 <= start + d * i < n for i in range(k)) for start in starts))
    return [points(draw(rngs()), shape, -3, 3)], {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        **options,
    }


def windows(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    """For every place of the window: the place, the elements (N, C, ...) of the image under it, and how many elements
    of the padded image it covers."""
    (kh, kw), (ph, pw), (dh, dw) = both(kernel_size), both(padding), both(dilation)
    (sh, sw), (h, w) = (kh, kw) if stride is None else both(stride), x.shape[2:]

    def starts(size, padding, reach, stride):
        """A window ends on the padded image; with ceil_mode the last one may hang over, if it starts on the image."""
        last = size + padding - reach
        return range(-padding, 1 + (min(last + stride - 1, size - 1) if ceil_mode else last), stride)

    for i, top in enumerate(starts(h, ph, dh * (kh - 1) + 1, sh)):
        for j, left in enumerate(starts(w, pw, dw * (kw - 1) + 1, sw)):
            rows, columns = top + dh * np.arange(kh), left + dw * np.arange(kw)
            covered = (rows < h + ph).sum() * (columns < w + pw).sum()
            rows, columns = rows[(rows >= 0) & (rows < h)], columns[(columns >= 0) & (columns < w)]
            yield (i, j), x[:, :, rows[:, None], columns], covered


def assembled(x, places):
    shape = tuple(1 + np.max([place for place, _ in places], axis=0))
    out = np.empty((*x.shape[:2], *shape))
    for (i, j), value in places:
        out[:, :, i, j] = value
    return out


def reference_max(x, **window):
    return assembled(x, [(place, part.max(axis=(2, 3))) for place, part, _ in windows(x, **window)])


def reference_avg(x, count_include_pad, **window):
    def mean(part, covered):
        return part.sum(axis=(2, 3)) / (covered if count_include_pad else part.shape[2] * part.shape[3])

    return assembled(x, [(place, mean(part, covered)) for place, part, covered in windows(x, **window)])


def torch_max(torch, x, **window):
    return torch.nn.functional.max_pool2d(x, **window)


def torch_avg(torch, x, **window):
    return torch.nn.functional.avg_pool2d(x, **window)


EITHER = st.booleans()
CASES = [
    Case("max_pool2d", F.max_pool2d, reference_max, torch_max, pooled()),
    Case("max_pool2d:ceil_mode", F.max_pool2d, reference_max, torch_max, pooled(ceil_mode=st.just(True))),
    Case("max_pool2d:dilation", F.max_pool2d, reference_max, torch_max,
         pooled(dilation=int_or_pair(1, 2), ceil_mode=EITHER)),
    Case("max_pool2d:wide border", F.max_pool2d, reference_max, None, pooled(wide_border=True, ceil_mode=EITHER)),
    Case("avg_pool2d", F.avg_pool2d, reference_avg, torch_avg, pooled(count_include_pad=EITHER)),
    Case("avg_pool2d:ceil_mode", F.avg_pool2d, reference_avg, torch_avg,
         pooled(ceil_mode=st.just(True), count_include_pad=EITHER)),
    Case("avg_pool2d:wide border", F.avg_pool2d, reference_avg, None,
         pooled(wide_border=True, ceil_mode=EITHER, count_include_pad=EITHER)),
]  # fmt: skip

test_values, test_gradients, test_dtypes, test_torch = battery(CASES)


# Ties.


@given(drawn=pooled(), nans=st.booleans(), rng=rngs())
def test_a_tie_passes_its_gradient_once_to_the_first(backend, drawn, nans, rng):
    """After a ReLU many windows hold nothing but zeros. NaN counts as the largest; PyTorch takes the last one."""
    (x,), options = drawn
    x = np.round(np.maximum(x, 0))
    if nans:
        x[rng.random(x.shape) < 0.2] = np.nan
    image = leaf(x, backend)
    out = F.max_pool2d(image, **options)
    g = cotangent(out.shape)
    numbered = np.broadcast_to(np.arange(x[0, 0].size).reshape(x.shape[2:]), x.shape)
    expected = np.zeros_like(x)
    for (place, part, _), (_, names, _) in zip(windows(x, **options), windows(numbered, **options), strict=True):
        for n, c in np.ndindex(x.shape[:2]):
            winner = names[n, c].reshape(-1)[part[n, c].argmax()]  # NumPy's argmax finds the first NaN, too
            expected[n, c].reshape(-1)[winner] += g[(n, c, *place)]
    for create_graph in (True, False):
        (slope,) = tp.grad(out, [image], make(g, backend), create_graph=create_graph, retain_graph=True)
        assert_close(slope, expected)


def test_minus_infinity_in_the_image_is_not_mistaken_for_the_border(backend):
    x = leaf(np.full((1, 1, 2, 2), -np.inf), backend)
    (slope,) = tp.grad(F.max_pool2d(x, 2, padding=1).sum(), [x])
    assert_close(slope, np.ones((1, 1, 2, 2)))


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_inputs_are_left_alone(pool, backend, rng):
    x = rng.standard_normal((1, 2, 4, 4))
    image = leaf(x, backend)
    (pool(image, 3, 2, 1) ** 2).sum().backward()
    np.testing.assert_array_equal(image.numpy(), x)


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
    "a border as wide as the window": (X, {"kernel_size": 2, "padding": 2}, "every window must hold an element"),
    "a window of 0": (X, {"kernel_size": 0}, "kernel_size=0"),
    "three sizes": (X, {"kernel_size": (1, 2, 3)}, "kernel_size=(1, 2, 3)"),
    "a stride of 0": (X, {"kernel_size": 2, "stride": 0}, "stride=0"),
    "a negative border": (X, {"kernel_size": 2, "padding": -1}, "padding=-1"),
}


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
@pytest.mark.parametrize(("image", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(pool, backend, image, options, words):
    assert_explained(tp.ShapeError, lambda: pool(make(np.ones(image), backend), **options), words)
