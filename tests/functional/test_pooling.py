"""Pooling against its definition in nested loops, PyTorch, and its laws, on random geometry."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.functional.test_convolution import both, int_or_pair
from tests.helpers import Case, assert_close, assert_explained, battery, cotangent, make, points, rngs


@st.composite
def pooled(draw, wide_border=False, **options):
    """An image of distinct elements, and a window that has a place on it. PyTorch takes borders of half a window."""
    kernel = draw(int_or_pair(1, 3))
    most = [k - 1 if wide_border else k // 2 for k in both(kernel)]
    padding = draw(st.integers(0, min(most)) | st.tuples(*[st.integers(0, p) for p in most]))
    height, width = (draw(st.integers(max(1, k - 2 * p), 6)) for k, p in zip(both(kernel), both(padding), strict=True))
    shape = draw(st.integers(1, 2)), draw(st.integers(1, 2)), height, width
    stride = draw(st.none() | int_or_pair(1, 3))
    options = {k: draw(v) for k, v in options.items()}
    x = points(draw(rngs()), shape, -3, 3)
    return [x], {"kernel_size": kernel, "stride": stride, "padding": padding, **options}


def windows(x, kernel_size, stride=None, padding=0):
    """For every place of the window: where it is, and the elements (N, C, ...) of the image that it shows."""
    (kh, kw), (ph, pw) = both(kernel_size), both(padding)
    sh, sw = (kh, kw) if stride is None else both(stride)
    h, w = x.shape[2:]
    for i, j in np.ndindex((h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1):
        top, left = i * sh - ph, j * sw - pw
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
        count = kh * kw if count_include_pad else part.shape[2] * part.shape[3]
        return part.sum(axis=(2, 3)) / count

    return assembled(x, [(place, mean(part)) for place, part in windows(x, **window)])


CASES = [
    Case(
        "max_pool2d",
        F.max_pool2d,
        reference_max,
        lambda torch, x, **window: torch.nn.functional.max_pool2d(x, **window),
        pooled(),
    ),
    Case("max_pool2d:wide border", F.max_pool2d, reference_max, None, pooled(wide_border=True)),
    Case(
        "avg_pool2d",
        F.avg_pool2d,
        reference_avg,
        lambda torch, x, **window: torch.nn.functional.avg_pool2d(x, **window),
        pooled(count_include_pad=st.booleans()),
    ),
    Case(
        "avg_pool2d:wide border",
        F.avg_pool2d,
        reference_avg,
        None,
        pooled(wide_border=True, count_include_pad=st.booleans()),
    ),
]

test_values, test_gradients, test_dtypes, test_torch = battery(CASES)


# Ties.


@given(drawn=pooled())
def test_ties_go_to_the_first_in_scan_order_as_in_torch(drawn):
    """After a ReLU many windows hold nothing but zeros."""
    torch = pytest.importorskip("torch")
    (x,), options = drawn
    x = np.round(np.maximum(x, 0))
    ours, theirs = tp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    out, expected = F.max_pool2d(ours, **options), torch.nn.functional.max_pool2d(theirs, **options)
    g = cotangent(out.shape)
    out.backward(g)
    expected.backward(torch.tensor(g))
    assert_close(out, expected.detach().numpy())
    assert_close(ours.grad, theirs.grad.numpy())


@given(drawn=pooled())
def test_a_tie_passes_its_gradient_once_to_the_first(backend, drawn):
    (x,), options = drawn
    x = np.round(np.maximum(x, 0))
    image = make(x, backend, requires_grad=True)
    out = F.max_pool2d(image, **options)
    g = cotangent(out.shape)
    (slope,) = tp.grad(out, [image], make(g, backend), create_graph=True)
    numbered = np.broadcast_to(np.arange(x[0, 0].size).reshape(x.shape[2:]), x.shape)
    expected = np.zeros_like(x)
    for (place, part), (_, names) in zip(windows(x, **options), windows(numbered, **options), strict=True):
        for n, c in np.ndindex(x.shape[:2]):
            winner = names[n, c].reshape(-1)[part[n, c].argmax()]
            expected[n, c].reshape(-1)[winner] += g[(n, c, *place)]
    assert_close(slope, expected)


def test_a_constant_image_has_one_winner_in_each_window(backend):
    x = make(np.zeros((1, 1, 4, 4)), backend, requires_grad=True)
    (slope,) = tp.grad(F.max_pool2d(x, 2).sum(), [x])
    np.testing.assert_array_equal(np.argwhere(slope.numpy()[0, 0]), [[0, 0], [0, 2], [2, 0], [2, 2]])


# Laws.


@given(drawn=pooled())
def test_laws(backend, drawn):
    (array,), options = drawn
    x = make(array, backend)
    largest = F.max_pool2d(x, **options).numpy()
    smallest = -F.max_pool2d(-x, **options).numpy()
    average = F.avg_pool2d(x, **options, count_include_pad=False).numpy()
    assert (smallest <= average + 1e-12).all()
    assert (average <= largest + 1e-12).all()
    assert_close(F.max_pool2d(x + 1, **options), largest + 1)
    assert_close(F.max_pool2d(F.exp(x), **options), np.exp(largest))
    assert_close(F.avg_pool2d(x + 1, **options, count_include_pad=False), average + 1)
    ones = F.avg_pool2d(x * 0 + 1, **options, count_include_pad=False)
    assert_close(ones, np.ones(ones.shape))


@given(drawn=pooled())
def test_an_average_is_a_convolution_with_equal_weights(backend, drawn):
    (array,), options = drawn
    assume(array.shape[1] == 1)
    kernel = both(options["kernel_size"])
    weight = make(np.full((1, 1, *kernel), 1 / (kernel[0] * kernel[1])), backend)
    stride = kernel if options["stride"] is None else options["stride"]
    out = F.conv2d(make(array, backend), weight, stride=stride, padding=options["padding"])
    assert_close(F.avg_pool2d(make(array, backend), **options), out.numpy())


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_a_window_of_one_pixel_changes_nothing(pool, backend, rng):
    x = rng.standard_normal((2, 3, 4, 5))
    assert_close(pool(make(x, backend), 1), x)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_inputs_are_left_alone(pool, backend, rng):
    x = rng.standard_normal((1, 2, 4, 4))
    image = make(x.copy(), backend, requires_grad=True)
    (pool(image, 3, 2, 1) ** 2).sum().backward()
    np.testing.assert_array_equal(image.numpy(), x)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_integer_images(pool, backend):
    pixels = make(np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4), backend)
    expected = [[[[5, 7], [13, 15]]]] if pool is F.max_pool2d else [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert_close(pool(pixels, 2), expected)


X = (1, 1, 4, 4)
REFUSED = {
    "an image without a batch": ((3, 4, 4), {"kernel_size": 2}, "(N, C, H, W)"),
    "a single row": ((4,), {"kernel_size": 2}, "(N, C, H, W)"),
    "a number": ((), {"kernel_size": 2}, "(N, C, H, W)"),
    "a window larger than the image": (X, {"kernel_size": 5}, "(size + 2 padding - kernel) // stride + 1"),
    "a border as wide as the window": (X, {"kernel_size": 2, "padding": 2}, "smaller than the window"),
    "a window of 0": (X, {"kernel_size": 0}, "kernel_size=0"),
    "three sizes": (X, {"kernel_size": (1, 2, 3)}, "kernel_size=(1, 2, 3)"),
    "a stride of 0": (X, {"kernel_size": 2, "stride": 0}, "stride=0"),
    "a negative border": (X, {"kernel_size": 2, "padding": -1}, "padding=-1"),
}


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
@pytest.mark.parametrize(("image", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(pool, backend, image, options, words):
    assert_explained(tp.ShapeError, lambda: pool(make(np.ones(image), backend), **options), words)
