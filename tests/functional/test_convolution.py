import numpy as np
import pytest
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import (
    Case,
    assert_close,
    assert_explained,
    battery,
    both,
    int_or_pair,
    leaf,
    make,
    naive_conv2d,
    points,
    rngs,
)

ONE = st.just(1)


@st.composite
def images_and_filters(draw, bias=False, dilation=ONE, groups=ONE):
    """Images, filters that fit on them with their padding, and the options of conv2d."""
    rng, padding = draw(rngs()), draw(int_or_pair(0, 2))
    options = {
        "stride": draw(int_or_pair(1, 3)),
        "padding": padding,
        "dilation": draw(dilation),
        "groups": draw(groups),
    }
    image = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    room = zip(image, both(padding), both(options["dilation"]), strict=True)
    kernel = [draw(st.integers(1, min(4, (n + 2 * p - 1) // d + 1))) for n, p, d in room]
    n, c, o = (draw(st.integers(1, 3)) for _ in range(3))
    g = options["groups"]
    c, o = (c if g == 1 else 1 + c % 2), (o if g == 1 else 1 + o % 2)
    arrays = [points(rng, (n, c * g, *image), -2, 2), points(rng, (o * g, c, *kernel), -2, 2)]
    if bias:
        arrays.append(points(rng, (o * g,), -2, 2))
    return arrays, options


DILATED = int_or_pair(1, 2)
CASES = [
    Case("conv2d", F.conv2d, naive_conv2d, images_and_filters()),
    Case("conv2d:bias", F.conv2d, naive_conv2d, images_and_filters(bias=True)),
    Case("conv2d:dilation", F.conv2d, naive_conv2d, images_and_filters(dilation=DILATED)),
    Case(
        "conv2d:groups",
        F.conv2d,
        naive_conv2d,
        images_and_filters(bias=True, dilation=DILATED, groups=st.integers(2, 3)),
    ),
]

test_values, test_gradients, test_dtypes = battery(CASES)


def test_any_memory_layout_will_do(backend, rng):
    """Images that come as views, transposed or with a stride, give what their copies give."""
    x, w = rng.standard_normal((2, 3, 9, 8)), rng.standard_normal((4, 3, 2, 3))
    image, kernel = make(x, backend), make(w, backend)
    expected = naive_conv2d(x[:, :, ::2, ::-1], w, padding=1)
    assert_close(F.conv2d(image[:, :, ::2, ::-1], kernel, padding=1), expected)
    channels_last = make(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), backend).transpose(
        0, 3, 1, 2
    )
    assert_close(F.conv2d(channels_last, kernel, padding=1), naive_conv2d(x, w, padding=1))
    tp.check_gradients(lambda x, w: F.conv2d(x[:, :, ::2, ::-1], w, padding=1), image, kernel)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("elements", [bool, "uint8", "int64"])
def test_integers_and_masks_are_numbers(backend, elements, size, rng):
    x, w = rng.integers(0, 2, (2, 1, 9, 9)), rng.integers(0, 200, (1, 1, size, size))
    for kind in ("float32", "int64"):
        out = F.conv2d(make(x.astype(elements), backend), make(w.astype(kind), backend))
        assert out.dtype == kind
        assert_close(out, naive_conv2d(x.astype(float), w.astype(float)), 1e-5)


def test_exact_convolution_keeps_the_digits_beside_a_large_pixel(rng):
    x, w = rng.normal(size=(1, 1, 24, 24)).astype("f"), rng.normal(size=(1, 1, 7, 7)).astype("f")
    x[0, 0, 0, 0] = 1e8
    with F.exact_convolution():
        out = F.conv2d(x, w).numpy()[..., 10:, 10:]
    assert_close(out, naive_conv2d(x.astype(float), w.astype(float))[..., 10:, 10:], 1e-4)


def test_no_images_at_all(backend):
    x, w = leaf(np.ones((0, 2, 5, 5)), backend), leaf(np.ones((4, 2, 3, 3)), backend)
    out = F.conv2d(x, w, padding=1)
    assert out.shape == (0, 4, 5, 5)
    dx, dw = tp.grad(out.sum(), [x, w])
    assert dx.shape == x.shape
    assert not dw.numpy().any()


X, W = (2, 3, 5, 5), (4, 3, 3, 3)
REFUSED = {
    "an image without a batch axis": ((3, 5, 5), W, {}, "x[None], with a batch axis"),
    "channels last": ((2, 5, 5, 3), W, {}, "x.transpose(0, 3, 1, 2)"),
    "filters with three axes": (X, (4, 3, 3), {}, "four axes each"),
    "another number of channels": (
        (2, 4, 5, 5),
        W,
        {},
        "in_channels=4 for this layer, or images with 3 channels",
    ),
    "groups that do not divide the filters": (
        (2, 6, 5, 5),
        (4, 2, 3, 3),
        {"groups": 3},
        "that 3 divides",
    ),
    "no groups": (X, W, {"groups": 0}, "groups=0"),
    "filters larger than the image": ((2, 3, 2, 5), W, {}, "must fit on the padded image"),
    "filters spread beyond the image": (X, W, {"dilation": 3}, "dilation=(3, 3)"),
    "a stride of 0": (X, W, {"stride": 0}, "stride=0"),
    "a stride that is no integer": (X, W, {"stride": 1.5}, "stride=1.5"),
    "a dilation of 0": (X, W, {"dilation": 0}, "dilation=0"),
    "a negative padding": (X, W, {"padding": -1}, "padding=-1"),
    "a padding in words": (X, W, {"padding": "same"}, "'same'"),
    "three strides": (X, W, {"stride": (1, 1, 1)}, "pair"),
    "a bias for other channels": (X, W, {"bias": np.ones(3)}, "(3,)"),
    "one bias for all channels": (X, W, {"bias": np.ones(1)}, "(1,)"),
    "many biases for one channel": (X, (1, 3, 3, 3), {"bias": np.ones(5)}, "(5,)"),
}


@pytest.mark.parametrize(("image", "filters", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(backend, image, filters, options, words):
    x, w = make(np.ones(image), backend), make(np.ones(filters), backend)
    options = {k: make(v, backend) if k == "bias" else v for k, v in options.items()}
    assert_explained(tp.ShapeError, lambda: F.conv2d(x, w, **options), words)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 11])
def test_an_empty_batch(backend, size):
    images, filters = (
        tp.zeros(0, 16, 16, 16, backend=backend),
        tp.ones(17, 16, size, size, backend=backend),
    )
    assert F.conv2d(images, filters).shape == (0, 17, 17 - size, 17 - size)
    assert (
        F.max_pool2d(images, 3, 2, 1).shape == F.avg_pool2d(images, 3, 2, 1).shape == (0, 16, 8, 8)
    )


def test_large_filters_of_float16():
    """A Fourier transform adds up all pixels, which float16 cannot hold."""
    images = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32)).astype(np.float16)
    found = F.conv2d(images, np.full((4, 3, 7, 7), 1 / 147, np.float16)).data
    assert abs(found - 127.5).max() < 30
