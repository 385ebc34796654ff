"""Every fused kernel against the NumPy formula that it stands in for."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop.kernels import cuda, device
from tinyprop.nn.batchnorm import BatchNormalize

from .conftest import BACKENDS

pytestmark = [
    pytest.mark.cupy,
    pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator"),
]
DTYPES = ["float32", "float64"]


def up(array):
    return tp.engine.arrays.to_backend(array, "cupy")


def down(array):
    return tp.engine.arrays.to_numpy(array)


def close(got, expected):
    assert tp.engine.arrays.is_device_array(got)
    assert got.dtype == expected.dtype
    tolerance = 2e-5 if expected.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(down(got), expected, rtol=tolerance, atol=tolerance)


def image(rng, shape, dtype):
    """(N, C, H, W), channels-last in memory as convolutions leave it."""
    n, c, h, w = shape
    return rng.normal(size=(n, h, w, c)).astype(dtype).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 130, 6, 6), (70, 5)])
def test_shifted_relu(rng, dtype, several, shape, monkeypatch):
    monkeypatch.setattr(device, "MOST_STRIPS", 3)
    x = image(rng, shape, dtype) if len(shape) == 4 else rng.normal(size=shape).astype(dtype)
    g = rng.normal(size=shape).astype(dtype)
    per_channel = (shape[1], *[1] * (len(shape) - 2))
    bias = rng.normal(size=per_channel).astype(dtype)
    shift = rng.uniform(0.2, 1, size=per_channel).astype(dtype) if several else 0.4
    out = np.maximum(x + (bias - shift), -np.asarray(shift, dtype))
    on_device = device.shifted_relu(up(x), up(bias), up(shift) if several else shift)
    close(on_device, out)
    passed, sums = device.shifted_relu_gradient(up(g), up(out), up(shift) if several else shift)
    expected = g * (out > -np.asarray(shift, dtype))
    close(passed, expected)
    close(sums, expected.sum(axis=(0, *range(2, len(shape)))))
    assert len(shape) == 2 or on_device.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize(("shape", "bias"), [((6,), (6,)), ((), ()), ((2, 3, 4), (4,)), ((0, 3), (3,)), ((2, 0), (0,))])
def test_shapes_that_no_kernel_is_made_for_go_the_other_way(shape, bias):
    x, b = (tp.tensor(np.ones(s, np.float32), backend="cupy", requires_grad=True) for s in (shape, bias))
    F.shifted_relu(x, b, 0.5).sum().backward()
    assert (x.grad.numpy() == 1).all()
    assert (b.grad.numpy() == x.size / max(1, b.size)).all()


def test_an_empty_batch_passes():
    x = tp.tensor(np.ones((0, 3, 4, 4), np.float32), backend="cupy", requires_grad=True)
    out = F.avg_pool2d(F.max_pool2d(x, 2), 2)
    F.cross_entropy(out.reshape(0, 3), np.zeros(0, np.int64), "sum").backward()
    assert x.grad.shape == x.shape


def test_shifted_relu_keeps_nan():
    out = down(device.shifted_relu(up(np.array([[np.nan, np.inf, -np.inf]], np.float32)), 0.0, 0.5))
    np.testing.assert_array_equal(out, [[np.nan, np.inf, -0.5]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (5, 300), (4, 3, 5, 5)])
def test_scaled_rows(rng, dtype, shape):
    w, g = rng.normal(size=(2, *shape)).astype(dtype)
    g = np.asfortranarray(g)  # as a convolution may leave it
    scale, factor = rng.normal(size=shape[0]).astype(dtype), 1.7
    rows, spread = tuple(range(1, len(shape))), (-1, *[1] * (len(shape) - 1))
    length = np.sqrt((w * w).sum(axis=rows)).reshape(spread)
    each = (scale * np.asarray(factor, dtype)).reshape(spread)
    unit = w / length
    along = (g * unit).sum(axis=rows).reshape(spread)
    close(device.scaled_rows(up(w), up(scale), factor), w * (each / length))
    g_w, g_scale = device.scaled_rows_gradient(up(g), up(w), up(scale), factor)
    close(g_w, (g - unit * along) * (each / length))
    close(g_scale, along.reshape(-1) * np.asarray(factor, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.01), (0.9, 0.0), (0.0, 0.01)])
def test_sgd_over_more_parameters_than_one_launch_takes(rng, dtype, momentum, decay):
    shapes = [(3, 4), (1,), (130, 2), (2, 3, 5, 5)] * (cuda.TABLE // 4 + 1)
    due = [[rng.normal(size=s).astype(dtype) for _ in range(3)] for s in shapes]
    due[0][1] = np.asfortranarray(due[0][1])
    on_device = [[up(a) for a in arrays] for arrays in due]
    device.sgd(on_device, 0.1, momentum, decay)
    for (w, g, memory), (new_w, _, new_memory) in zip(due, on_device, strict=True):
        step = momentum * memory + g + decay * w
        close(new_w, (w - 0.1 * step).astype(dtype))
        close(new_memory, step.astype(dtype) if momentum else memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decay", [0.01, 0.0])
def test_rmsprop_over_more_parameters_than_one_launch_takes(rng, dtype, decay):
    due = [
        [rng.normal(size=s).astype(dtype) for _ in range(2)] for s in [(3, 4), (1,), (130, 2)] * (cuda.TABLE // 3 + 1)
    ]
    due = [(w, g, rng.uniform(0.5, 1, w.shape).astype(dtype)) for w, g in due]
    on_device = [[up(a) for a in arrays] for arrays in due]
    device.rmsprop(on_device, 0.1, 0.99, 1e-8, decay)
    for (w, g, memory), (new_w, _, new_memory) in zip(due, on_device, strict=True):
        g = g + decay * w
        mean = 0.99 * memory + 0.01 * g * g
        close(new_w, (w - 0.1 * g / (np.sqrt(mean) + 1e-8)).astype(dtype))
        close(new_memory, mean.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 130, 9, 9), (70, 5), (6, 1)])
def test_batch_norm(rng, dtype, shape, monkeypatch):
    """Far from 0, where a sum of squares would have lost its digits."""
    monkeypatch.setattr(device, "MOST_STRIPS", 3)
    channels, axes, count = shape[1], (0, *range(2, len(shape))), np.prod(shape) // shape[1]
    spread = (1, -1, *[1] * (len(shape) - 2))
    x, g = 3 * rng.normal(size=(2, *shape)).astype(dtype)
    x += 100
    weight, bias, mean_before, var_before = rng.normal(size=(4, channels)).astype(dtype)
    exact = x.astype("float64")
    mean, var = exact.mean(axis=axes, keepdims=True), exact.var(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(var + 1e-5)
    normal, each = (exact - mean) * inverse, (inverse * weight.reshape(spread))
    running = up(mean_before), up(var_before)
    out, statistics = device.batch_norm(up(x), up(weight), up(bias), 1e-5, 0.1, running)
    g_x, g_weight, g_bias = device.batch_norm_gradient(up(g), up(x), up(weight), statistics)
    centred = g - g.mean(axis=axes, keepdims=True) - normal * (g * normal).mean(axis=axes, keepdims=True)
    for got, expected in [
        (out, normal * weight.reshape(spread) + bias.reshape(spread)),
        (running[0], mean_before + 0.1 * (mean.ravel() - mean_before)),
        (running[1], var_before + 0.1 * (var.ravel() * count / (count - 1) - var_before)),
        (g_x, centred * each),
        (g_weight, (g * normal).sum(axis=axes)),
        (g_bias, g.sum(axis=axes)),
    ]:
        assert got.dtype == dtype
        assert abs(down(got) - expected).max() <= (2e-5 if dtype == "float32" else 1e-12) * max(1, abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_rows(rng, dtype):
    weights = [rng.normal(size=s).astype(dtype) for s in [(3, 4), (1, 1), (5, 300), (4, 3, 5, 5)] * 17]
    on_device = [up(w) for w in weights]
    device.unit_rows(on_device)
    for w, got in zip(weights, on_device, strict=True):
        close(got, w / np.sqrt((w * w).sum(axis=tuple(range(1, w.ndim)), keepdims=True)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 10), (3, 1), (2, 5, 3, 2)])
@pytest.mark.parametrize("kind", ["int64", "uint8", "int32"])
def test_cross_entropy(rng, dtype, shape, kind):
    x = 30 * rng.normal(size=shape).astype(dtype)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:])).astype(kind)
    g = rng.normal(size=labels.shape).astype(dtype)
    hot = np.moveaxis(np.eye(shape[1], dtype=dtype)[labels], -1, 1)
    shifted = x - x.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    close(device.cross_entropy(up(x), up(labels)), -(log_softmax * hot).sum(axis=1))
    gradient = device.cross_entropy_gradient(up(g), up(x), up(labels))
    close(gradient, g[:, None] * (np.exp(log_softmax) - hot))


def test_a_label_that_is_no_class_costs_nothing(rng):
    """As in the NumPy formula; labels that come from the host are refused before."""
    x, labels = up(rng.normal(size=(3, 4))), up(np.array([-1, 4, 1]))
    assert (down(device.cross_entropy(x, labels))[:2] == 0).all()
    assert (down(device.cross_entropy_gradient(up(np.ones(3)), x, labels))[:2] == 0).all()


WINDOWS = [((3, 3), (2, 2), (1, 1)), ((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 3), (1, 0)), ((2, 2), (3, 3), (0, 1))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
def test_pooling(rng, dtype, window):
    """Few different values: there are ties, which go to the first."""
    x = rng.integers(0, 4, size=(2, 7, 8, 5)).astype(dtype).transpose(0, 3, 1, 2)
    for pool in (F.max_pool2d, F.avg_pool2d):
        results = []
        for backend in ("numpy", "cupy"):
            t = tp.tensor(x, backend=backend, requires_grad=True)
            out = pool(t, *window)
            out.backward(tp.tensor(np.random.default_rng(1).normal(size=out.shape).astype(dtype), backend=backend))
            results.append((out, t.grad))
        for expected, got in zip(*results, strict=True):
            close(got.data, expected.numpy())


def test_pooling_lets_nan_win():
    x = up(np.array([[[[1.0, np.nan, 2.0, 3.0]]]], np.float32))
    np.testing.assert_array_equal(tp.functional.max_pool2d(tp.Tensor(x), (1, 2)).numpy(), [[[[np.nan, 3.0]]]])


@pytest.mark.parametrize(("padding", "size", "k"), [(2, (8, 8), 5), (0, (8, 9), 5), (1, (7, 6), 3), (4, (5, 8), 3)])
def test_tiles(rng, padding, size, k):
    """The transforms of convolution and its gradients, through the module that uses them."""
    from tinyprop.functional.convolution import Convolve, ImageGradient, KernelGradient
    from tinyprop.functional.tiles import Tiles
    from tinyprop.functional.windows import Window

    window = Window((k, k), (1, 1), (padding, padding))
    x, w = image(rng, (3, 5, *size), "float32"), rng.normal(size=(4, 5, k, k)).astype("float32")
    g = image(rng, (3, 4, *window.output(x.shape)), "float32")
    there, here = Tiles(keep=True), Tiles(keep=True)
    for product, arrays in [(Convolve, (x, w)), (ImageGradient, (g, w)), (KernelGradient, (x, g))]:
        expected = product(window, x.shape, w.shape, here).forward(*arrays)
        got = down(product(window, x.shape, w.shape, there).forward(*map(up, arrays)))
        assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()


LABELS = np.array([0, 2, 1, 1])
BOTH_WAYS = {  # ops whose gradient is a kernel, or, if it is to have a gradient itself, a formula
    "shifted_relu": (lambda x, w: F.shifted_relu(x, w, 0.4), (4, 3, 2, 2), (3, 1, 1)),
    "scaled_rows": (F.scaled_rows, (4, 3, 2, 2), (4,)),
    "cross_entropy": (lambda x, w: F.cross_entropy(x * w, LABELS, "sum"), (4, 3), (3,)),
    "batch_norm": (
        lambda x, w: BatchNormalize(1e-5, 0.1, up(np.zeros(3)), up(np.ones(3)))(x, w, w),
        (4, 3, 2, 2),
        (3,),
    ),
}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_gradient_with_a_graph_is_the_gradient_without(name, rng):
    function, *shapes = BOTH_WAYS[name]
    inputs = [tp.tensor(rng.normal(size=s), requires_grad=True, backend="cupy") for s in shapes]
    cotangent = tp.tensor(rng.normal(size=function(*inputs).shape), requires_grad=True, backend="cupy")
    with_graph, without = (tp.grad(function(*inputs), inputs, cotangent, create_graph=graph) for graph in (True, False))
    for a, b in zip(with_graph, without, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)
    assert all(g.requires_grad for g in with_graph)
