"""The kernels of convolution against the definition and each other, and ties in pooling."""

import threading
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.functional import columns, convolution, pointwise, rectified, tiles
from tinyprop.functional.convolution import Convolve, ImageGradient, KernelGradient, kernels
from tinyprop.functional.windows import Window

NIN = [  # C, H, O, kernel, padding of the paper's convolutions that may go in tiles
    (96, 16, 192, 5, 2),
    (192, 8, 192, 5, 0),
]


def naive(x, w, stride, padding):
    """The definition of convolution, with a loop over the places."""
    (sh, sw), (ph, pw) = stride, padding
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    kh, kw = w.shape[2:]
    rows, columns = (x.shape[2] - kh) // sh + 1, (x.shape[3] - kw) // sw + 1
    out = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, :, i * sh : i * sh + kh, j * sw : j * sw + kw]
            out[:, :, i, j] = np.einsum("nchw,ochw->no", patch, w)
    return out


def naive_gradients(x, w, g, stride, padding):
    """Of <g, naive(x, w)>, which is linear in each: the gradient is what the unit vectors give."""
    (sh, sw), (ph, pw) = stride, padding
    padded = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    dx, dw = np.zeros_like(padded), np.zeros_like(w)
    kh, kw = w.shape[2:]
    for i in range(g.shape[2]):
        for j in range(g.shape[3]):
            here = (..., slice(i * sh, i * sh + kh), slice(j * sw, j * sw + kw))
            dx[here] += np.einsum("no,ochw->nchw", g[:, :, i, j], w)
            dw += np.einsum("no,nchw->ochw", g[:, :, i, j], padded[here])
    return dx[:, :, ph : ph + x.shape[2], pw : pw + x.shape[3]], dw


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def leaf(array, backend, last=False):
    """A leaf on the backend; with channels-last memory if asked."""
    if last:
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return tp.tensor(array, requires_grad=True, backend=backend)


@st.composite
def geometries(draw):
    """Kernels (their module), and shapes, stride and padding that they can do, whether they are the fastest or not."""
    path = draw(st.sampled_from([pointwise, tiles, columns]))
    few, edge = st.integers(1, 3), st.integers(0, 6)
    n, c, o, h, w = (draw(st.integers(1, most)) for most in (3, 4, 4, 11, 11))
    if path is tiles:
        k = draw(st.sampled_from([3, 5]))
        kernel, stride = (k, k), (1, 1)
    else:
        kernel = (1, 1) if path is pointwise else draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
        stride = draw(st.tuples(few, few))
    padding = draw(st.tuples(edge, edge))
    assume(h + 2 * padding[0] >= kernel[0] and w + 2 * padding[1] >= kernel[1])
    return path, (n, c, h, w), (o, c, *kernel), stride, padding


@given(geometry=geometries(), last=st.booleans(), seed=st.integers(0, 9))
def test_every_kernel_computes_the_definition(backend, geometry, last, seed):
    path, image, kernel, stride, padding = geometry
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(image).astype("f4"), rng.standard_normal(kernel).astype("f4")
    b = rng.standard_normal(kernel[0]).astype("f4")
    tx, tw, tb = leaf(x, backend, last), leaf(w, backend), leaf(b, backend)
    by = tiles.Tiles(keep=last) if path is tiles else path
    with mock.patch.object(convolution, "kernels", return_value=by):
        y = F.conv2d(tx, tw, tb, stride, padding)
        g = rng.standard_normal(y.shape).astype("f4")
        y.backward(tp.tensor(g, backend=backend))
    expected = naive(*(a.astype("f8") for a in (x, w)), stride, padding) + b.reshape(-1, 1, 1)
    dx, dw = naive_gradients(*(a.astype("f8") for a in (x, w, g)), stride, padding)
    for got, want in [(y, expected), (tx.grad, dx), (tw.grad, dw), (tb.grad, g.sum(axis=(0, 2, 3), dtype="f8"))]:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got.numpy(), want, atol=2e-5 * max(1.0, np.abs(want).max()), rtol=0)


def test_geometry_chooses_the_kernels():
    f4, f8 = np.dtype("f4"), np.dtype("f8")

    def chosen(n, c, h, o, k, stride=1, padding=0, dtype=f4, exact=False):
        return kernels(Window.of(k, stride, padding), (n, c, h, h), (o, c, k, k), dtype, exact)

    assert chosen(25, 192, 32, 160, 1) is chosen(25, 192, 32, 160, 1, 2, 1, f8, True) is pointwise
    for c, h, o, k, padding in NIN:
        assert isinstance(chosen(13, c, h, o, k, 1, padding), tiles.Tiles)
        assert chosen(13, c, h, o, k, 1, padding, exact=True) is columns
        assert chosen(13, c, h, o, k, 1, padding, dtype=f8) is columns
        assert chosen(13, c, h, o, k, 2, padding) is columns
        assert chosen(1, c, 8, o, k) is columns, "a single tile does not pay for the transform of the kernels"
    assert chosen(25, 3, 32, 192, 5, 1, 2) is columns, "three channels do not pay for the transform of the image"
    assert chosen(25, 64, 9, 64, 3, 1, 1) is columns, "nor do tiles that are mostly empty"


@pytest.mark.parametrize(("c", "h", "o", "k", "padding"), [*NIN, (64, 15, 64, 3, 1), (32, 10, 48, 3, 0)])
def test_tiles_are_accurate_to_one_in_hundred_thousand(backend, rng, c, h, o, k, padding):
    n = 12 if backend == "numpy" else 1
    window = Window((k, k), (1, 1), (padding, padding))
    x, w = rng.standard_normal((n, c, h, h)), rng.standard_normal((o, c, k, k))
    g = rng.standard_normal((n, o, *window.output(x.shape)))

    def three_products(by, dtype, backend):
        on_x, on_w, on_g = (tp.tensor(a.astype("f4").astype(dtype), backend=backend) for a in (x, w, g))
        parts = window, x.shape, w.shape, by
        return Convolve(*parts)(on_x, on_w), ImageGradient(*parts)(on_g, on_w), KernelGradient(*parts)(on_x, on_g)

    got = three_products(tiles.Tiles(keep=True), "f4", backend)
    for a, b in zip(got, three_products(columns, "f8", "numpy"), strict=True):
        assert a.dtype == np.float32
        assert relative(a.numpy(), b.numpy()) < 1e-5


@pytest.mark.parametrize(
    ("c", "h", "o", "k", "padding"), [(3, 8, 16, 5, 2), (24, 8, 16, 1, 0), (24, 8, 16, 1, 2), NIN[0]]
)
@pytest.mark.parametrize("last", [False, True])
def test_every_block_is_rectified_once(backend, rng, monkeypatch, c, h, o, k, padding, last):
    """By each of the kernels, with blocks of an image or two, forwards and backwards; also where not all is wanted."""
    for module in (pointwise, columns, rectified):
        monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 1.5 * o * h * h)
    monkeypatch.setattr(tiles, "TILES_AT_ONCE", 4)
    x, w = rng.standard_normal((7, c, h, h)).astype("f4"), rng.standard_normal((o, c, k, k)).astype("f4") / k
    bias, shift = (rng.standard_normal((o, 1, 1)).astype("f4") for _ in range(2))
    x, w, bias, shift = (leaf(a, backend, last and a is x) for a in (x, w, bias, shift))
    expected = F.relu(F.conv2d(x, w, None, 1, padding) + bias) - shift
    got = F.rectified_conv2d(x, w, bias, shift, 1, padding)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-4)
    g = tp.tensor(rng.standard_normal(got.shape).astype("f4"), backend=backend)
    inputs = x, w, bias, shift
    wanted = tp.grad(expected, inputs, g)
    for some in ([0, 1, 2, 3], [1, 2], [0]):
        got = F.rectified_conv2d(*(t if i in some else t.detach() for i, t in enumerate(inputs)), 1, padding)
        for i, gradient in zip(some, tp.grad(got, [inputs[i] for i in some], g), strict=True):
            assert relative(gradient.numpy(), wanted[i].numpy()) < 1e-4


@pytest.mark.parametrize("k", [3, 5])
def test_matrices_of_a_tile_convolve_exactly(rng, k):
    step, points = tiles.TILES[k]
    read, weigh, write = tiles.one_axis(step, points)
    pixels, kernel = rng.standard_normal(len(points) + 1), rng.standard_normal(k)
    outputs = write @ ((read @ pixels) * (weigh @ kernel))
    np.testing.assert_allclose(outputs, np.correlate(pixels, kernel, "valid"), atol=1e-13)


@pytest.mark.parametrize(("path", "shape", "kernel", "stride", "padding"), [
    (pointwise, (2, 3, 4, 3), (2, 3, 1, 1), 1, 0),
    (pointwise, (1, 2, 5, 4), (3, 2, 1, 1), 2, 1),
    (columns, (2, 2, 5, 4), (3, 2, 3, 3), 1, 1),
    (columns, (1, 2, 6, 5), (2, 2, 3, 2), 2, (0, 1)),
    (columns, (1, 16, 5, 5), (16, 16, 5, 5), 1, 2),
])  # fmt: skip
def test_second_order_in_float64(backend, rng, path, shape, kernel, stride, padding):
    x, w = (tp.tensor(rng.standard_normal(s), backend=backend) for s in (shape, kernel))
    b = tp.tensor(rng.standard_normal(kernel[0]), backend=backend)
    window = Window.of(kernel[2:], stride, padding)
    assert kernels(window, shape, kernel, x.dtype, exact=False) is path
    tp.check_gradients(lambda x, w, b: F.conv2d(x, w, b, stride, padding), x, w, b)


def first_and_second_order(x, w, u, v, padding):
    """y, the gradients of <u, y>, and the gradients of a function of these gradients."""
    y = F.conv2d(x, w, None, 1, padding)
    first = tp.grad(y, [x, w], u, create_graph=True)
    both = (first[0] * v[0]).sum() + (first[1] * v[1]).sum()
    return [y, *first, *tp.grad(both, [x, w, u])]


@pytest.mark.parametrize(("k", "padding"), [(3, 1), (5, 2), (5, 0)])
def test_tiles_agree_with_exact_convolution_to_second_order(backend, rng, k, padding):
    shapes = (6, 32, 8, 8), (34, 32, k, k), (6, 34, *[8 + 2 * padding - k + 1] * 2)
    x, w, u = (leaf(rng.standard_normal(s).astype("f4"), backend) for s in shapes)
    v = [tp.tensor(rng.standard_normal(s).astype("f4"), backend=backend) for s in shapes[:2]]
    in_tiles = first_and_second_order(x, w, u, v, padding)
    with F.exact_convolution():
        exact = first_and_second_order(x, w, u, v, padding)
    for a, b in zip(in_tiles, exact, strict=True):
        assert 0 < relative(a.numpy(), b.numpy()) < 1e-4, "equal results would mean that one path computed both"


def test_exact_convolution_holds_for_later_gradients_and_in_its_thread_only(backend, rng):
    x, w = (tp.tensor(rng.standard_normal(s).astype("f4"), backend=backend) for s in [(2, 32, 8, 8), (32, 32, 3, 3)])

    def gradient(y, wrt):
        return tp.grad(y, [wrt], y.detach())[0].numpy()

    wrt = tp.tensor(x, requires_grad=True)
    with F.exact_convolution():
        y = F.conv2d(wrt, w, padding=1)
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(F.conv2d(x, w, padding=1).numpy()))
        thread.start()
        thread.join()
        inside = gradient(F.conv2d(wrt, w, padding=1), wrt)
    np.testing.assert_array_equal(gradient(y, wrt), inside)
    np.testing.assert_array_equal(elsewhere[0], F.conv2d(x, w, padding=1).numpy())
    assert (elsewhere[0] != y.numpy()).any()


def test_a_batch_in_blocks_is_each_image_for_itself(backend, rng):
    x = tp.tensor(rng.standard_normal((5, 16, 20, 20)).astype("f4"), backend=backend)
    w = tp.tensor(rng.standard_normal((16, 16, 5, 5)).astype("f4"), backend=backend)
    together = F.conv2d(x, w, padding=2).numpy()
    for i in range(5):
        np.testing.assert_allclose(F.conv2d(x[i : i + 1], w, padding=2).numpy(), together[i : i + 1], atol=1e-3)


def naive_max_pool(x, g, kernel, stride, padding):
    """Maxima, and g sent to the first of them in scan order."""
    out, dx = np.full(g.shape, -np.inf), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(g.shape):
        best = None
        for a in range(i * stride[0] - padding[0], i * stride[0] - padding[0] + kernel[0]):
            for b in range(j * stride[1] - padding[1], j * stride[1] - padding[1] + kernel[1]):
                inside = 0 <= a < x.shape[2] and 0 <= b < x.shape[3]
                if inside and x[n, c, a, b] > out[n, c, i, j]:
                    out[n, c, i, j], best = x[n, c, a, b], (n, c, a, b)
        dx[best] += g[n, c, i, j]
    return out, dx


@st.composite
def pools(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = tuple(draw(st.integers(0, k - 1)) for k in kernel)
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 8), st.integers(1, 8)))
    assume(all(n + 2 * p >= k for n, p, k in zip(shape[2:], padding, kernel, strict=True)))
    return shape, kernel, stride, padding


@given(geometry=pools(), last=st.booleans(), seed=st.integers(0, 9))
def test_tied_maxima_pass_their_gradient_once_to_the_first(backend, geometry, last, seed):
    shape, kernel, stride, padding = geometry
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.integers(-3, 3, shape), 0).astype("f4")  # as after ReLU: many zeros
    tx = leaf(x, backend, last)
    y = F.max_pool2d(tx, kernel, stride, padding)
    g = rng.standard_normal(y.shape).astype("f4")
    y.backward(tp.tensor(g, backend=backend))
    out, dx = naive_max_pool(x, g, kernel, stride, padding)
    np.testing.assert_array_equal(y.numpy(), out)
    np.testing.assert_allclose(tx.grad.numpy(), dx, atol=1e-5)


@given(geometry=pools(), seed=st.integers(0, 9))
def test_the_gradient_of_a_tied_maximum_is_transposed_exactly(backend, geometry, seed):
    """<v, scatter(g)> == <gather(v), g>, and second order goes through gather."""
    shape, kernel, stride, padding = geometry
    rng = np.random.default_rng(seed)
    x = leaf(np.maximum(rng.integers(-3, 3, shape), 0).astype("f8"), backend)
    y = F.max_pool2d(x, kernel, stride, padding)
    g = leaf(rng.standard_normal(y.shape), backend)
    v = tp.tensor(rng.standard_normal(shape), backend=backend)
    (scattered,) = tp.grad(y, [x], g, create_graph=True)
    (gathered,) = tp.grad((scattered * v).sum(), [g], create_graph=True)
    np.testing.assert_allclose((gathered * g).sum().item(), (scattered * v).sum().item(), atol=1e-9)


@given(geometry=pools(), seed=st.integers(0, 9))
def test_pools_agree_with_torch(geometry, seed):
    torch = pytest.importorskip("torch")
    shape, kernel, stride, padding = geometry
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))  # torch allows no more
    assume(all(n + 2 * p >= k for n, p, k in zip(shape[2:], padding, kernel, strict=True)))
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.integers(-3, 3, shape), 0).astype("f4")
    for ours, theirs in [
        (F.max_pool2d, torch.nn.functional.max_pool2d),
        (F.avg_pool2d, torch.nn.functional.avg_pool2d),
        (lambda *a: F.avg_pool2d(*a, False), lambda *a: torch.nn.functional.avg_pool2d(*a, count_include_pad=False)),
    ]:
        tx, rx = leaf(x, "numpy"), torch.tensor(x, requires_grad=True)
        y, r = ours(tx, kernel, stride, padding), theirs(rx, kernel, stride, padding)
        g = rng.standard_normal(y.shape).astype("f4")
        y.backward(g)
        r.backward(torch.tensor(g))
        np.testing.assert_allclose(y.numpy(), r.detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(tx.grad.numpy(), rx.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1])
def test_average_pool_to_second_order(backend, rng, padding):
    x = tp.tensor(rng.standard_normal((2, 3, 5, 4)), backend=backend)
    tp.check_gradients(lambda x: F.avg_pool2d(x, 3, 2, padding), x)
    tp.check_gradients(lambda x: F.avg_pool2d(x, 3, 1, padding, count_include_pad=False), x)
    tp.check_gradients(lambda x: F.max_pool2d(x, 3, 2, padding), x)


def test_results_stay_channels_last_in_memory(backend, rng):
    x = leaf(rng.standard_normal((2, 16, 8, 8)).astype("f4"), backend, last=True)
    for k in (1, 2, 3, 5):
        w = tp.tensor(rng.standard_normal((16, 16, k, k)).astype("f4"), backend=backend)
        y = F.conv2d(x, w, padding=k // 2)
        for image in (y, F.max_pool2d(y, 3, 2, 1), F.avg_pool2d(y, 3, 2, 1), tp.grad(y, [x], y.detach())[0]):
            assert image.data.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("k", [1, 2, 3])
def test_an_empty_batch_is_a_batch(backend, k):
    x = leaf(np.zeros((0, 16, 8, 8), "f4"), backend)
    w = leaf(np.ones((16, 16, k, k), "f4"), backend)
    y = F.max_pool2d(F.conv2d(x, w), 2)
    y.backward(tp.tensor(np.zeros(y.shape, "f4"), backend=backend))
    assert x.grad.shape == x.shape
    assert not w.grad.numpy().any()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_integers_are_pooled_without_infinity(backend, dtype):
    x = np.arange(9).reshape(1, 1, 3, 3).astype(dtype)
    for kernel, padding in [(1, 0), (3, 2), (2, 1)]:
        y = F.max_pool2d(tp.tensor(x, backend=backend), kernel, 1, padding)
        assert y.dtype == x.dtype
        assert y.numpy()[0, 0, -1, -1] == x.max()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_mixed_precision_is_that_of_the_finer_and_gradients_are_that_of_their_input(backend, rng, k):
    x, w = rng.standard_normal((2, 32, 8, 8)), rng.standard_normal((32, 32, k, k))
    for dtypes in (("f4", "f8"), ("f8", "f4")):
        tx, tw = (leaf(a.astype(d), backend) for a, d in zip((x, w), dtypes, strict=True))
        y = F.conv2d(tx, tw)
        y.backward(y.detach())
        assert [t.dtype.name for t in (y, tx.grad, tw.grad)] == ["float64", tx.dtype.name, tw.dtype.name]
        np.testing.assert_allclose(y.numpy(), naive(x, w, (1, 1), (0, 0)), atol=1e-4)


def test_a_seed_that_was_changed_is_read_again(backend, rng):
    """Transforms of the output's gradient are kept for one backward pass, not for the next."""
    x, w = (rng.standard_normal(s).astype("f4") for s in ((4, 32, 8, 8), (32, 32, 3, 3)))
    x, w = (tp.tensor(a, backend=backend, requires_grad=True) for a in (x, w))
    y = F.conv2d(x, w, padding=1)
    seed = tp.tensor(np.ones(y.shape, "f4"), backend=backend)
    for first in ([x, w], [x]):
        tp.grad(y, first, seed, retain_graph=True)
        (before,) = tp.grad(y, [w], seed, retain_graph=True)
        seed.data *= 2
        (after,) = tp.grad(y, [w], seed, retain_graph=True)
        np.testing.assert_allclose(after.numpy(), 2 * before.numpy(), rtol=1e-5, atol=1e-4)
