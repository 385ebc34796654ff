"""Sums over many elements are right, whatever their number, their offset and their layout.

References are computed in float64 from the same float32 values. The bound of every function is
three times the error that PyTorch makes in float32, or 2 units in the last place of the largest
result. Where PyTorch is not installed, the rules on NumPy take its place. They are more exact, and
6 units in the last place are allowed beside them: a mean near 0 is off by 4."""

import importlib.util

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import quick_only
from tinyprop.engine.arrays import array_module, to_backend, to_numpy
from tinyprop.engine.sums import is_finite, total
from tinyprop.engine.threads import thread_limit
from tinyprop.functional.normprop import NormalizedReLU

if importlib.util.find_spec("torch") is not None:
    import torch
    import torch.nn.functional as TF
else:
    torch = TF = None

ULP = 2.0**-23
ULPS = 2 if torch is not None else 6
SPREAD = 0.1
OFFSETS = [0.0, 0.1, 1e3 * SPREAD]
LAYOUTS = ["C order", "transposed", "channels last", "strided", "reversed"]


@pytest.fixture(params=["default", "plain"])
def rules(request):
    """With overrides, and without."""
    if request.param == "default":
        yield request.param
        return
    with tp.plain():
        yield request.param


def laid_out(x, layout):
    """The same values with another layout in memory."""
    xp = array_module(x)
    if layout == "C order":
        return x
    if layout == "transposed":
        return xp.ascontiguousarray(x.T).T
    if layout == "channels last":
        return xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(x, 1, -1)), -1, 1)
    if layout == "strided":
        twice_as_wide = xp.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        twice_as_wide[..., ::2] = x
        return twice_as_wide[..., ::2]
    assert layout == "reversed"
    return xp.ascontiguousarray(x[::-1])[::-1]


def values(shape, offset, seed=0):
    rng = np.random.default_rng(seed)
    return (offset + SPREAD * rng.standard_normal(shape)).astype(np.float32)


def computed(function, arrays, cotangent, dtype, backend="numpy", layout="C order"):
    """The results of a function of tensors, and the gradients of the first of them."""
    leaves = []
    for i, array in enumerate(arrays):
        array = to_backend(array.astype(dtype), backend)
        leaves.append(tp.Tensor(laid_out(array, layout) if i == 0 else array, requires_grad=True))
    results = function(F, *leaves)
    gradients = tp.grad(results[0], leaves, to_backend(cotangent.astype(dtype), backend))
    return [to_numpy(t._data) for t in (*results, *gradients)]


def computed_by_torch(function, arrays, cotangent, dtype):
    leaves = [torch.tensor(array).to(dtype).requires_grad_() for array in arrays]
    results = function(TF, *leaves)
    gradients = torch.autograd.grad(results[0], leaves, torch.tensor(cotangent).to(dtype))
    return [t.detach().numpy() for t in (*results, *gradients)]


def check(function, arrays, backend, layout="C order"):
    """Values and gradients of `function(library, *tensors)`, which gives a tuple of results; the
    library is tinyprop's or PyTorch's."""
    with tp.plain():
        shape = function(F, *(tp.Tensor(array) for array in arrays))[0].shape
        cotangent = values(shape, 1.0, seed=1)
        exact = computed(function, arrays, cotangent, np.float64)
        peer = computed(function, arrays, cotangent, np.float32)
    if torch is not None:
        peer = computed_by_torch(function, arrays, cotangent, torch.float32)
        also_exact = computed_by_torch(function, arrays, cotangent, torch.float64)
        for one, other in zip(exact, also_exact, strict=True):
            np.testing.assert_allclose(one, other, 1e-8, 1e-9 * abs(one).max())
    results = computed(function, arrays, cotangent, np.float32, backend, layout)
    for result, right, of_peer in zip(results, exact, peer, strict=True):
        bound = max(3 * abs(of_peer - right).max(), ULPS * ULP * abs(right).max())
        assert result.dtype == np.float32
        assert result.shape == right.shape
        assert abs(result - right).max() <= bound


def reduction(name, axis):
    def reduce(library, x):
        if library is F:
            return (getattr(F, name)(x, axis),)
        if name in ("var", "std"):
            return (getattr(torch, name)(x, axis, correction=0),)
        return (getattr(torch, name)(x, dim=axis),)

    return reduce


REDUCTIONS = ["sum", "mean", "var", "std", "norm", "logsumexp", "softmax", "log_softmax"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", quick_only(["sum", "var"], REDUCTIONS))
@pytest.mark.usefixtures("rules")
def test_reductions_of_any_layout(name, layout, backend):
    x = values((100_000, 3), OFFSETS[-1])
    check(reduction(name, 0), [x], backend, layout)


SIZES = [
    ((7, 3), 0),
    ((5000, 24), 0),
    ((3, 70_001), 1),
    pytest.param((10**6, 8), 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("shape", "axis"), SIZES)
@pytest.mark.parametrize("offset", quick_only(OFFSETS[-1:], OFFSETS))
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.usefixtures("rules")
def test_reductions_of_any_size(name, offset, shape, axis, backend):
    x = values(shape, offset)
    check(reduction(name, axis), [x], backend)


def constant(like, array):
    """A tensor of PyTorch or of tinyprop, like another one, that needs no gradient."""
    if isinstance(like, tp.Tensor):
        return tp.tensor(array, dtype=like.dtype, backend=like.backend)
    return torch.tensor(array).to(like.dtype)


def batch_norm(library, x, weight, bias):
    mean = constant(x, np.zeros(x.shape[1]))
    var = constant(x, np.zeros(x.shape[1]))
    out = library.batch_norm(x, mean, var, weight, bias, training=True)
    return out, mean, var


def layer_norm(library, x, weight, bias):
    return (library.layer_norm(x, tuple(weight.shape), weight, bias),)


def rms_norm(library, x, weight):
    return (library.rms_norm(x, tuple(weight.shape), weight, eps=1e-5),)


def group_norm(library, x, weight, bias):
    return (library.group_norm(x, 2, weight, bias),)


def weight_norm(library, x, scale):
    if library is F:
        return (F.weight_norm(x, scale),)
    return (torch._weight_norm(x, scale.reshape(-1, *[1] * (x.ndim - 1)), 0),)


def added_bias(library, x, bias):
    return (x + bias,)


def multiplied(library, x, factor):
    return (x * factor,)


def linear(library, x, bias):
    """Products of matrices are added as BLAS does: only the bias is of interest here."""
    weight = constant(x, np.ones((len(bias), x.shape[1])))
    return (library.linear(x, weight, bias),)


def conv2d(library, x, bias):
    weight = constant(x, np.ones((len(bias), x.shape[1], 1, 1)))
    return (library.conv2d(x, weight, bias),)


def normprop(library, x, beta):
    """The equation of the paper after the weighted sum, with c1 = 0.5 and c2 = 1."""
    if isinstance(x, tp.Tensor):
        return (NormalizedReLU()(x, beta, 0.5, 1.0),)
    return ((library.relu(x + beta[:, None, None]) - 1.0) / 0.5,)


def avg_pool2d(library, x):
    return (library.avg_pool2d(x, tuple(x.shape[2:])),)


def overlapping_pool(library, x):
    return (library.avg_pool2d(x, 3, 2, 1),)


def mse_loss(library, x, target):
    return (library.mse_loss(x, target),)


def labels_of(x):
    classes = np.arange(len(x)) % x.shape[1]
    classes[::7] = -100
    return classes if isinstance(x, tp.Tensor) else torch.tensor(classes)


def cross_entropy(library, x):
    return (library.cross_entropy(x, labels_of(x)),)


def nll_loss(library, x):
    return (library.nll_loss(x, labels_of(x)),)


def taken(library, x):
    """A few rows, each of them many times."""
    rows = np.arange(50_000) % len(x)
    return (x[rows if isinstance(x, tp.Tensor) else torch.tensor(rows)],)


# functions, and shapes of their arguments
FUNCTIONS = [
    (batch_norm, [(50_000, 3), (3,), (3,)]),
    (batch_norm, [(40, 16, 30, 30), (16,), (16,)]),
    (layer_norm, [(3, 40_000), (40_000,), (40_000,)]),
    (layer_norm, [(2000, 9), (9,), (9,)]),
    (rms_norm, [(3, 40_000), (40_000,)]),
    (group_norm, [(3, 4, 100, 100), (4,), (4,)]),
    (weight_norm, [(3, 100_000), (3,)]),
    (weight_norm, [(5, 8, 40, 40), (5,)]),
    (added_bias, [(100_000, 3), (3,)]),
    (added_bias, [(100_000, 24), (24,)]),
    (added_bias, [(40, 3, 50, 50), (3, 1, 1)]),
    (multiplied, [(100_000, 3), (1, 3)]),
    (linear, [(100_000, 2), (9,)]),
    (conv2d, [(50, 2, 40, 40), (9,)]),
    (normprop, [(40, 5, 50, 50), (5,)]),
    (avg_pool2d, [(2, 3, 200, 200)]),
    (overlapping_pool, [(20, 3, 50, 50)]),
    (mse_loss, [(50_000, 3), (50_000, 3)]),
    (cross_entropy, [(70_000, 3)]),
    (cross_entropy, [(40, 5000)]),
    (nll_loss, [(70_000, 3)]),
    (taken, [(3, 2)]),
]


def name_of(value):
    return value.__name__ if callable(value) else str(value)


@pytest.mark.parametrize(
    ("offset", "layout"),
    [
        pytest.param(0.0, "C order", marks=pytest.mark.slow),
        pytest.param(0.1, "channels last", marks=pytest.mark.slow),
        pytest.param(OFFSETS[-1], "C order", marks=pytest.mark.slow),
        (OFFSETS[-1], "channels last"),
        pytest.param(OFFSETS[-1], "strided", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("function", "shapes"), FUNCTIONS, ids=name_of)
def test_functions_that_add(function, shapes, offset, layout, backend, rules):
    if (backend, rules, function, offset) == ("cupy", "default", batch_norm, 0.0):
        reason = "a mean of 0.004 spreads is off by 5 units in its last place, 3e-9 of a spread"
        pytest.xfail(reason)
    arrays = [values(shape, 1.0 if i else offset, seed=i) for i, shape in enumerate(shapes)]
    check(function, arrays, backend, layout)


@pytest.mark.usefixtures("rules")
def test_numbers_that_used_to_be_wrong(backend):
    """Row by row in float32, the mean was 120.06 and the variance 0.029, the sum 290,775, and the
    gradient of a bias 0.6 % off."""
    rng = np.random.default_rng(0)
    x = tp.tensor(120.2 + 0.1 * rng.standard_normal((200_000, 3)), "float32", backend=backend)
    np.testing.assert_allclose(F.mean(x, axis=0).numpy(), 120.2, atol=0.001)
    np.testing.assert_allclose(F.var(x, axis=0).numpy(), 0.01, rtol=0.02)
    tenths = tp.tensor(np.full((3_000_000, 3), 0.1, np.float32), backend=backend)
    np.testing.assert_allclose(F.sum(tenths, axis=0).numpy(), 300_000, rtol=1e-6)
    bias = tp.tensor(np.zeros(3, np.float32), requires_grad=True, backend=backend)
    (gradient,) = tp.grad(tenths[:600_000] + bias, [bias], tenths.data[:600_000])
    np.testing.assert_allclose(gradient.numpy(), 60_000, rtol=1e-6)


def half(array, backend, requires_grad=False):
    return tp.tensor(np.asarray(array, np.float16), requires_grad, backend=backend)


@pytest.mark.usefixtures("rules")
def test_float16_is_added_in_float32(backend):
    rng = np.random.default_rng(0)
    ones = half(np.ones((5000, 2)), backend)
    assert F.sum(ones, axis=0).numpy().tolist() == [5000.0, 5000.0]
    bias = half(np.zeros(2), backend, requires_grad=True)
    (gradient,) = tp.grad(ones + bias, [bias], ones.data)
    assert gradient.numpy().tolist() == [5000.0, 5000.0]
    many = half(np.full(100_000, 60_000.0), backend)
    assert F.mean(many).item() == many.numpy()[0]  # their sum is infinite
    assert F.var(half([-100.0, 100.0] * 5000, backend)).item() == 10_000.0
    assert F.std(half([-1000.0, 1000.0] * 5000, backend)).item() == 1000.0  # its square is infinite
    assert F.norm(half([300.0, 400.0], backend)).item() == 500.0
    assert F.logsumexp(half(np.zeros(10_000), backend)).item() == np.float16(np.log(10_000))
    np.testing.assert_array_equal(
        F.softmax(half(np.zeros(5000), backend)).numpy(), np.float16(2e-4)
    )
    row = F.weight_norm(half([[300.0, 400.0]], backend), half([5.0], backend))
    np.testing.assert_allclose(row.numpy(), [[3.0, 4.0]], rtol=2e-3)
    pixels = half(np.full((1, 1, 64, 64), 100.0), backend)
    assert F.avg_pool2d(pixels, 64).item() == 100.0
    taken_often = half([1.0], backend, requires_grad=True)
    (gradient,) = tp.grad(
        taken_often[np.zeros(5000, int)], [taken_often], np.ones(5000, np.float16)
    )
    assert gradient.item() == 5000.0
    x = half(rng.standard_normal((4000, 2)) * 30 + 300, backend)
    normalizer = tp.data.BatchNormalizer((2,))
    normalizer.to(backend)
    np.testing.assert_allclose(normalizer(x).numpy().std(axis=0, dtype="f8"), 1.0, rtol=0.01)


@pytest.mark.usefixtures("rules")
def test_cross_entropy_of_many_float16_rows(backend):
    logits = half(np.zeros((70_000, 2)), backend, requires_grad=True)
    labels = np.zeros(70_000, int)
    for ignored in (0, 1, 35_000):
        labels[:ignored] = -100
        loss = F.cross_entropy(logits, labels)
        assert loss.item() == pytest.approx(np.log(2), rel=1e-3)
        (gradient,) = tp.grad(loss, [logits])
        expected = -0.5 / (70_000 - ignored)
        np.testing.assert_allclose(gradient.numpy()[-1, 0], expected, rtol=0.02)


@pytest.mark.usefixtures("rules")
def test_batch_norm_of_float16(backend):
    rng = np.random.default_rng(0)
    x = half(300 + 30 * rng.standard_normal((5000, 3)), backend, requires_grad=True)
    mean, var = (tp.tensor(np.zeros(3, np.float32), backend=backend) for _ in range(2))
    out = F.batch_norm(x, mean, var, training=True, momentum=1.0)
    assert out.dtype == np.float16
    exact = x.numpy().astype(np.float64)
    right = (exact - exact.mean(axis=0)) / exact.std(axis=0)
    np.testing.assert_allclose(out.numpy(), right, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(mean.numpy(), exact.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(var.numpy(), exact.var(axis=0, ddof=1), rtol=1e-5)
    seed = rng.standard_normal(out.shape).astype(np.float16)
    (gradient,) = tp.grad(out, [x], to_backend(seed, backend))
    wide_x = tp.Tensor(exact, requires_grad=True)
    zeros = [tp.tensor(np.zeros(3)) for _ in range(2)]
    wide_out = F.batch_norm(wide_x, *zeros, training=True)
    (wide_gradient,) = tp.grad(wide_out, [wide_x], seed.astype(np.float64))
    np.testing.assert_allclose(gradient.numpy(), wide_gradient.numpy(), rtol=0.01, atol=1e-4)


def test_integers_and_bools_are_added_exactly(backend):
    large = to_backend(np.array([2**53, 1, -(2**53)]), backend)
    assert int(total(large)) == 1
    mask = to_backend(np.ones((300, 2), bool), backend)
    assert total(mask, 0).tolist() == [300, 300]


@pytest.mark.parametrize("function", [batch_norm, added_bias, conv2d, normprop], ids=name_of)
def test_the_bits_do_not_depend_on_the_number_of_threads(function):
    shapes = dict(FUNCTIONS)[function]
    arrays = [values(shape, 1.0, seed=i) for i, shape in enumerate(shapes)]
    cotangent = values((*shapes[0][:1], *shapes[-1][:1], *shapes[0][2:]), 1.0)
    if function is added_bias:
        cotangent = values(shapes[0], 1.0)
    every = []
    for threads in (1, 2, 3):
        with thread_limit(threads):
            every.append(computed(function, arrays, cotangent, np.float32, layout="channels last"))
    for results in every[1:]:
        for one, other in zip(every[0], results, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_that_are_not_finite_are_seen(dtype, layout):
    """Also where the sum of squares overflows, and between elements that are large or 0."""
    x = laid_out(np.zeros((3, 4, 5, 2), dtype), layout)
    assert is_finite(x)
    x[1] = np.finfo(dtype).max
    assert is_finite(x)
    for value in (np.nan, np.inf, -np.inf):
        x[2, 3, 4, 1] = value
        assert not is_finite(x)


def test_nothing_is_finite():
    assert is_finite(np.zeros((0, 3), "float32"))
