"""Convolution against its definition in nested loops, PyTorch, and its laws, on random geometry."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import FLOATS, Case, assert_close, assert_explained, battery, cotangent, make, points, rngs


def int_or_pair(least, most):
    number = st.integers(least, most)
    return number | st.tuples(number, number)


def both(value):
    return value if isinstance(value, tuple) else (value, value)


@st.composite
def geometry(draw, size=5):
    """The sizes of an image and of a kernel that fits into it with its padding; stride and padding."""
    height, width = draw(st.integers(1, size)), draw(st.integers(1, size))
    padding = draw(int_or_pair(0, 2))
    kernel = [draw(st.integers(1, min(4, n + 2 * p))) for n, p in zip((height, width), both(padding), strict=True)]
    return (height, width), tuple(kernel), draw(int_or_pair(1, 3)), padding


@st.composite
def images_and_kernels(draw, bias=False):
    rng, (image, kernel, stride, padding) = draw(rngs()), draw(geometry())
    n, c, o = (draw(st.integers(1, 3)) for _ in range(3))
    arrays = [points(rng, (n, c, *image), -2, 2), points(rng, (o, c, *kernel), -2, 2)]
    if bias:
        arrays.append(points(rng, (o,), -2, 2))
    return arrays, {"stride": stride, "padding": padding}


def reference_conv2d(x, weight, bias=None, stride=1, padding=0):
    """The definition: out[n, o, i, j] = bias[o] + sum of x[n, c, i sh + d - ph, j sw + r - pw] weight[o, c, d, r]."""
    (sh, sw), (ph, pw) = both(stride), both(padding)
    (n, c, h, w), (o, _, kh, kw) = x.shape, weight.shape
    rows, columns = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1
    out = np.zeros((n, o, rows, columns)) if bias is None else np.tile(bias[:, None, None], (n, 1, rows, columns))
    for i, j, down, right in np.ndindex(rows, columns, kh, kw):
        row, column = i * sh + down - ph, j * sw + right - pw
        if 0 <= row < h and 0 <= column < w:
            for a, b, d in np.ndindex(n, o, c):
                out[a, b, i, j] += x[a, d, row, column] * weight[b, d, down, right]
    return out


def torch_conv2d(torch, *arrays, stride, padding):
    return torch.nn.functional.conv2d(*arrays, stride=stride, padding=padding)


@st.composite
def rectified_layers(draw):
    """An image, kernels, and for each channel a shift, and the bias that keeps sums farthest away from the kink."""
    (x, w), options = draw(images_and_kernels())
    sums, biases = reference_conv2d(x, w, **options), np.linspace(-2, 2, 41)
    distances = np.abs(sums[..., None] + biases).min(axis=(0, 2, 3))  # (O, biases)
    assume(distances.max(axis=1).min() > 0.01)
    bias, shift = biases[distances.argmax(axis=1)], points(draw(rngs()), (len(w),), 0.2, 1)
    return [x, w, bias[:, None, None], shift[:, None, None]], options


def reference_rectified(x, weight, bias, shift, **options):
    return np.maximum(reference_conv2d(x, weight, **options) + bias, 0) - shift


def torch_rectified(torch, x, weight, bias, shift, **options):
    return torch.relu(torch.nn.functional.conv2d(x, weight, **options) + bias) - shift


CASES = [
    Case("conv2d", F.conv2d, reference_conv2d, torch_conv2d, images_and_kernels()),
    Case("conv2d:bias", F.conv2d, reference_conv2d, torch_conv2d, images_and_kernels(bias=True)),
    Case("rectified_conv2d", F.rectified_conv2d, reference_rectified, torch_rectified, rectified_layers()),
]

test_values, test_gradients, test_dtypes, test_torch = battery(CASES)


@given(drawn=images_and_kernels())
def test_both_gradients_are_transposes(backend, drawn):
    """<conv(x, w), g> = <x, gradient in x> = <w, gradient in w>, for convolution is linear in each."""
    (x, w), options = drawn
    out, leaves = CASES[0].run([x, w], options, backend)
    g = cotangent(out.shape)
    in_x, in_w = tp.grad(out, leaves, make(g, backend))
    product = (out.numpy() * g).sum()
    assert_close((x * in_x.numpy()).sum(), product, 1e-11)
    assert_close((w * in_w.numpy()).sum(), product, 1e-11)


@given(drawn=images_and_kernels())
def test_laws(backend, drawn):
    (x, w), options = drawn
    image, kernel = make(x, backend), make(w, backend)
    out = F.conv2d(image, kernel, **options).numpy()
    assert_close(F.conv2d(2 * image, kernel, **options), 2 * out)
    assert_close(F.conv2d(image, kernel + 1, **options), out + F.conv2d(image, kernel * 0 + 1, **options).numpy())
    # Padding is a border of zeros.
    (ph, pw), stride = both(options["padding"]), options["stride"]
    bordered = F.pad(image, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    assert_close(F.conv2d(bordered, kernel, stride=stride), out)
    # Transposed images and kernels give transposed results.
    turned = {key: both(value)[::-1] for key, value in options.items()}
    across = F.conv2d(image.transpose(0, 1, 3, 2), kernel.transpose(0, 1, 3, 2), **turned)
    assert_close(across, out.swapaxes(2, 3))


@given(drawn=images_and_kernels())
def test_a_kernel_of_one_pixel_is_a_matrix_product(backend, drawn):
    (x, w), _ = drawn
    pixel = make(w[:, :, :1, :1], backend)
    out = F.conv2d(make(x, backend), pixel)
    assert_close(out, np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]))


def test_a_kernel_as_large_as_the_image_is_a_dot_product(backend, rng):
    x, w = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((6, 3, 4, 5))
    out = F.conv2d(make(x, backend), make(w, backend))
    assert_close(out, (x.reshape(2, -1) @ w.reshape(6, -1).T).reshape(2, 6, 1, 1))


def test_any_memory_layout_will_do(backend, rng):
    """Images that come as views, transposed or with a stride, give what their copies give."""
    x, w = rng.standard_normal((2, 3, 9, 8)), rng.standard_normal((4, 3, 2, 3))
    image, kernel = make(x, backend), make(w, backend)
    expected = reference_conv2d(x[:, :, ::2, ::-1], w, padding=1)
    assert_close(F.conv2d(image[:, :, ::2, ::-1], kernel, padding=1), expected)
    channels_last = make(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), backend).transpose(0, 3, 1, 2)
    assert_close(F.conv2d(channels_last, kernel, padding=1), reference_conv2d(x, w, padding=1))
    tp.check_gradients(lambda x, w: F.conv2d(x[:, :, ::2, ::-1], w, padding=1), image, kernel)


def test_inputs_are_left_alone(backend, rng):
    x, w = rng.standard_normal((1, 2, 4, 4)), rng.standard_normal((3, 2, 3, 3))
    image, kernel = make(x.copy(), backend, requires_grad=True), make(w.copy(), backend, requires_grad=True)
    (F.conv2d(image, kernel, padding=1) ** 2).sum().backward()
    np.testing.assert_array_equal(image.numpy(), x)
    np.testing.assert_array_equal(kernel.numpy(), w)


@pytest.mark.parametrize("dtype", FLOATS)
def test_integer_images_and_lists_do_not_promote(backend, dtype):
    pixels = make(np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4), backend)
    w = make(np.ones((1, 1, 2, 2), dtype), backend, requires_grad=True)
    for out in (F.conv2d(pixels, w), F.conv2d(pixels, w, [0.5]), F.conv2d([[[[1.0, 2.0], [3.0, 4.0]]]], w)):
        assert out.dtype == dtype
        assert out.backend == backend
        assert tp.grad(out.sum(), [w])[0].dtype == dtype


X, W = (2, 3, 5, 5), (4, 3, 3, 3)
REFUSED = {
    "an image without a batch": ((3, 5, 5), W, {}, "(N, C, H, W)"),
    "a kernel with three axes": (X, (4, 3, 3), {}, "(O, C, kh, kw)"),
    "another number of channels": ((2, 4, 5, 5), W, {}, "same number of channels"),
    "a kernel larger than the image": ((2, 3, 2, 5), W, {}, "(size + 2 padding - kernel) // stride + 1"),
    "a stride of 0": (X, W, {"stride": 0}, "stride=0"),
    "a stride that is no integer": (X, W, {"stride": 1.5}, "stride=1.5"),
    "a negative padding": (X, W, {"padding": -1}, "padding=-1"),
    "a padding in words": (X, W, {"padding": "same"}, "'same'"),
    "three strides": (X, W, {"stride": (1, 1, 1)}, "pair"),
    "a bias for other channels": (X, W, {"bias": np.ones(3)}, "(3,)"),
    "one bias for all channels": (X, W, {"bias": np.ones(1)}, "(1,)"),
    "many biases for one channel": (X, (1, 3, 3, 3), {"bias": np.ones(5)}, "(5,)"),
}


@pytest.mark.parametrize(("image", "kernel", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(backend, image, kernel, options, words):
    x, w = make(np.ones(image), backend), make(np.ones(kernel), backend)
    options = {k: make(v, backend) if k == "bias" else v for k, v in options.items()}
    assert_explained(tp.ShapeError, lambda: F.conv2d(x, w, **options), words)


def test_rectified_convolution_of_nothing_and_of_other_shapes(backend, rng):
    """No image at all, a bias of another dtype, and one for each image: as if the steps were taken one by one."""
    w = make(rng.standard_normal((3, 2, 1, 1)).astype(np.float32), backend)
    x = make(rng.standard_normal((4, 2, 5, 5)).astype(np.float32), backend)
    assert F.rectified_conv2d(x[:0], w, 0.0, 0.5).shape == (0, 3, 5, 5)
    for bias in (rng.standard_normal((3, 1, 1)), rng.standard_normal((4, 3, 1, 1)).astype(np.float32)):
        expected = F.shifted_relu(F.conv2d(x, w), make(bias, backend), 0.5)
        got = F.rectified_conv2d(x, w, make(bias, backend), 0.5)
        assert got.dtype == expected.dtype
        assert_close(got, expected.numpy(), 1e-5)
    wide = make(rng.standard_normal((3, 2, 1, 1)), backend)
    got = F.rectified_conv2d(x, wide, 0.1, 0.3)
    assert_close(got, np.maximum(F.conv2d(x, wide).numpy() + 0.1, 0) - 0.3, 1e-12)
