"""Every override equals its rule: the table is walked, and each entry runs in a case and is held
against `tp.plain()`.

An override without a case fails here, and so does a case that its override declines.
"""

import gc
import weakref
from functools import partial

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop.engine.arrays import array_module, is_array, to_backend, to_numpy
from tinyprop.engine.random import normals
from tinyprop.engine.threads import thread_limit
from tinyprop.functional.linear import product
from tinyprop.functional.losses import CrossEntropy
from tinyprop.functional.normalization import dropout_mask
from tinyprop.functional.normprop import NormalizedLinear, NormalizedReLU
from tinyprop.functional.pooling import MaxPool
from tinyprop.functional.windows import Window, channels_first, channels_last
from tinyprop.kernels import cuda, host, pointwise, products, weights
from tinyprop.optim import updates

from ..conftest import BACKENDS, needs_overrides

pytestmark = [needs_overrides, pytest.mark.usefixtures("tiles_for_few_outputs")]
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Few small images and weights are cut into several blocks and spread over threads, as many
    large ones are."""
    names = (
        "COLUMNS_AT_ONCE PIXELS_AT_ONCE POOLED_AT_ONCE AVERAGED_AT_ONCE ROWS_AT_ONCE "
        "SUMMED_AT_ONCE LONG_ROW"
    )
    for name in names.split():
        monkeypatch.setattr(host, name, 300)
    monkeypatch.setattr(host, "WORTH_A_PRODUCT", 300)
    monkeypatch.setattr(host, "WORTH_ROWS", 0)
    monkeypatch.setattr(pointwise, "OUTPUTS_AT_ONCE", 100)
    monkeypatch.setattr(products, "MULTIPLICATIONS", 100)
    monkeypatch.setattr(weights, "WEIGHTS_AT_ONCE", 30)
    monkeypatch.setattr(weights, "MULTIPLICATIONS", 30)
    monkeypatch.setattr(weights, "WORTH_SHARING", 0)
    monkeypatch.setattr(cuda, "RESIDENT", 64)  # strips of different lengths, several parts
    with thread_limit(2):
        yield


def random_arrays(shapes, dtype, backend):
    rng = np.random.default_rng(0)
    return [to_backend(rng.standard_normal(shape).astype(dtype), backend) for shape in shapes]


def differentiated(function, *shapes):
    """A program that gives a function's value, and its gradients: all at once, recorded or not, and
    one by one."""

    def program(backend, dtype):
        *arrays, seed = random_arrays([*shapes, (10**5,)], dtype, backend)

        def results(wanted, create_graph):
            leaves = [tp.tensor(a, requires_grad=i in wanted) for i, a in enumerate(arrays)]
            out = function(*leaves)
            cotangent = tp.tensor(seed[: out.size].reshape(out.shape))
            return [out, *tp.grad(out, [leaves[i] for i in wanted], cotangent, create_graph)]

        every = range(len(arrays))
        asked = [
            (every, False),
            (every, True),
            *(([i], recorded) for i in every for recorded in (False, True)),
        ]
        return [x for wanted, recorded in asked for x in results(wanted, recorded)]

    return program


def batch_norms(x, weight, bias):
    """A BatchNorm, and another one with a ReLU behind it; the running estimates are results,
    too."""
    results = []
    for behind in ([], [tp.nn.ReLU()]):
        normalizer = tp.nn.BatchNorm(x.shape[1]).to(x.backend).to(dtype=x.dtype)
        normalizer.weight, normalizer.bias = weight, bias
        out = tp.nn.Sequential(normalizer, *behind)(x)
        results += [out.reshape(-1), normalizer.running_mean, normalizer.running_var]
    return F.concatenate(results)


def every_elementwise(x, y):
    """All elementwise functions, of images whose memory is channels-last."""
    x, y = (Reordered()(a) for a in (x, y))
    parts = [
        x + y,
        x - y,
        x * y,
        x / (y * y + 1.0),
        abs(x) ** 2.5,
        -x,
        F.exp(x),
        F.erf(y),
        F.maximum(x, y),
    ]
    parts += [
        F.where(x > y, x, y),
        F.clip(x, -0.5, 0.5),
        F.relu(x),
        F.prelu(x, y[0, :, 0, 0]),
        F.sigmoid(x),
    ]
    parts += [F.softplus(y), F.hardtanh(x), F.minimum(x, 0.3)]
    return F.stack(parts)


class Reordered(tp.Op):
    """The same images, channels-last in memory."""

    def forward(self, x):
        return channels_first(array_module(x).ascontiguousarray(channels_last(x)))

    def backward(self, g):
        return g


def labelled(x, first=-1):
    """The losses for random labels, of which -1 is no class."""
    labels = np.random.default_rng(1).integers(first, x.shape[1], (len(x), *x.shape[2:]))
    return CrossEntropy(to_backend(labels, x.backend), all_are_classes=first >= 0)(x)


def updated(update, lists, *numbers):
    """A program that gives all arrays that an optimiser's update has changed."""

    def program(backend, dtype):
        # more than one launch takes
        shapes = [(3, 4), (1,), (130, 2), (2, 3, 5, 5)] * (cuda.TABLE // 4 + 1)
        every = [
            [abs(a) + 0.5 for a in random_arrays(shapes, dtype, backend)] for _ in range(lists)
        ]
        update(*every, *numbers)
        return [a for arrays in every for a in arrays]

    return program


def drawn(shape):
    return lambda backend, dtype: [
        normals(*random_arrays([(1,)], dtype, backend), shape, 2**64 - 3)
    ]


def masked(shape, p):
    return lambda backend, dtype: [
        dropout_mask(*random_arrays([shape], dtype, backend), shape, p, 2**64 - 3)
    ]


IMAGE, FILTERS = (3, 4, 7, 6), (5, 4, 3, 2)
TILED = (4, 32, 8, 8), (33, 32, 3, 3)
POINTWISE = (6, 5, 7, 8), (4, 5, 1, 1)
SEVERAL_PARTS = (3, 32, 9, 9)  # a sum over images in two parts, on the emulator's device
PER_CHANNEL = (4,)

CONVOLUTION = [
    differentiated(partial(F.conv2d, stride=s, padding=p), IMAGE, FILTERS)
    for s, p in ((1, 1), ((2, 1), 0))
]
# as large as the input
CONVOLUTION += [differentiated(partial(F.conv2d, padding=1), (3, 4, 7, 6), (5, 4, 3, 3))]
TILES = [
    differentiated(partial(F.conv2d, padding=p), *shapes)
    for p, shapes in ((1, TILED), (2, (TILED[0], (32, 32, 5, 5))))
]
PHASES = [
    differentiated(partial(F.conv2d, stride=s, padding=p), (2, 32, *size), (32, 32, k, k))
    for k, s, p, size in ((7, 2, 3, (19, 21)), (5, 2, 2, (23, 24)), (6, 2, 0, (28, 29)))
]
ONE_BY_ONE = [
    differentiated(partial(F.conv2d, stride=s, padding=p), *POINTWISE)
    for s, p in ((1, 0), ((2, 3), (1, 0)))
]
MAXIMA = [
    differentiated(lambda x, o=o: F.max_pool2d(x, 3, 2, 1, **o), IMAGE)
    for o in ({}, {"ceil_mode": True})
]
AVERAGES = [
    differentiated(lambda x: F.avg_pool2d(x, (3, 2), 2, 1), IMAGE),
    differentiated(lambda x: F.avg_pool2d(x, 2, 3), IMAGE),  # some pixels are in no window
    differentiated(lambda x: F.avg_pool2d(x, (7, 6)), IMAGE),
    differentiated(lambda x: F.avg_pool2d(Reordered()(x), (7, 6)), IMAGE),
    differentiated(lambda x: F.avg_pool2d(x, 3, 2, 1), (3, 5, 21, 18)),  # several bands
]
NUMBERS = 0.7, 0.4  # c1 and c2
RECTIFIED = [
    differentiated(lambda u, b: NormalizedReLU()(u, b, *NUMBERS), SEVERAL_PARTS, (32,)),
    differentiated(lambda u, b: NormalizedReLU()(u, b, *NUMBERS), IMAGE, PER_CHANNEL),
    differentiated(lambda u, b: NormalizedReLU()(u, b, *NUMBERS), (3, 130, 6, 6), (130,)),
    differentiated(
        lambda u, b: NormalizedReLU(overwrite=True)(u * 2, b, *NUMBERS), IMAGE, PER_CHANNEL
    ),
    differentiated(
        lambda u, b, c1, c2: NormalizedReLU()(u, b, c1 * c1 + 0.5, c2), IMAGE, *[PER_CHANNEL] * 3
    ),
    differentiated(
        lambda u, b, c1, c2: NormalizedReLU()(u, b, c1 * c1 + 0.5, c2), (70, 5), *[(5,)] * 3
    ),
]
PRODUCTS = [
    differentiated(F.matmul, *shapes)
    for shapes in (((9, 4), (4, 5)), ((4, 6), (6, 9)), ((3, 4, 5), (5, 6)))
]
SHAPES = (4, 3), (3, 300), (4, 3, 2, 2)
ROWS = [differentiated(lambda w, s: F.weight_norm(w, s, 1.3), shape, shape[:1]) for shape in SHAPES]
FEATURES = SEVERAL_PARTS, IMAGE, (9, 4), (3, 130, 6, 6), (6, 1), (6, 32, 10, 10)
BATCH = [differentiated(batch_norms, shape, shape[1:2], shape[1:2]) for shape in FEATURES]
BATCH += [differentiated(lambda x, w, b: batch_norms(100 + 3 * x, w, b), IMAGE, (4,), (4,))]
STACKS = [
    differentiated(F.matmul, *shapes)
    for shapes in (((6, 4), (4, 3)), ((2, 1, 4), (2, 4, 3)), ((5, 1), (1, 1)))
]
STACKS += [
    differentiated(lambda x: tp.Tensor(product(x.data, x.data[0, 0])) + 0.0 * x.sum(), (3, 2, 4))
]
STACKS += [
    differentiated(lambda x, y: F.matmul(x.T[:, ::2], y.transpose(1, 0)[1:-1]), (6, 4), (3, 5))
]
LOSS = [differentiated(labelled, shape) for shape in ((6, 4), (3, 4, 2, 5))]
ONLY_CLASSES = [
    differentiated(lambda x: labelled(x, first=0), (n, c)) for n, c in ((6, 4), (3, 100))
]
SCALED = [
    differentiated(lambda x, w, s: NormalizedLinear()(x, w, s), (n, 6), (9, 6), (9,))
    for n in (4, 12)
]

UNBIASED = [differentiated(F.linear, (n, 6), (8, 6)) for n in (4, 12)]
BIASED = [differentiated(F.linear, (n, 6), (8, 6), (8,)) for n in (4, 12, 100)]
BIASED += [differentiated(F.linear, (2, 3, 6), (8, 6), (8,))]

SUMS = [
    differentiated(lambda x: F.sum(x, axis=0), (200, 9)),
    differentiated(lambda x: F.mean(Reordered()(x), axis=(0, 2, 3), keepdims=True), (5, 9, 4, 6)),
    differentiated(lambda x: F.mean(x, axis=(-2, 0)), (30, 4, 9)),
]

# The programs that make an override run, by its name.
CASES = {
    **dict.fromkeys(["pointwise.pointwise", "pointwise.pointwise_gradients"], ONE_BY_ONE),
    **dict.fromkeys(
        [
            "tiles.convolve",
            "tiles.convolve_gradients",
            "tiles.input_gradient",
            "tiles.filter_gradient",
        ],
        TILES,
    ),
    **dict.fromkeys(["phases.phased", "phases.phased_gradients"], PHASES),
    **dict.fromkeys(
        ["host.blockwise", "host.blockwise_input_gradient", "host.blockwise_filter_gradient"],
        CONVOLUTION,
    ),
    **{
        f"{module}.{name}{gradient}": cases
        for module in ("host", "cuda")
        for name, cases in [
            ("max_pool", MAXIMA),
            ("normalized_relu", RECTIFIED),
            ("batch_norm", BATCH),
        ]
        for gradient in ("", "_gradient")
    },
    "weights.row_lengths_by_groups": ROWS,
    **dict.fromkeys(["host.total_of_rows", "cuda.total_in_one_launch"], SUMS),
    "cuda.mask": [
        masked(shape, p) for shape, p in (((3, 5, 2), 0.3), ((7,), 0.999), ((4, 130), 0.5))
    ],
    "cuda.normals_on_device": [drawn(shape) for shape in ((3, 5), (64, 130))],
    "cuda.in_memory_order": [differentiated(every_elementwise, (3, 4, 5, 6), (3, 4, 5, 6))],
    **dict.fromkeys(
        ["host.average_pool", "host.average_pool_gradient", "cuda.average_pool", "cuda.spread"],
        AVERAGES,
    ),
    "cublas.cublas_product": STACKS,
    "weights.matmul": PRODUCTS,
    **dict.fromkeys(["weights.linear", "weights.linear_gradients"], UNBIASED),
    **dict.fromkeys(["weights.affine", "weights.affine_gradients"], BIASED),
    **{
        f"{module}.{name}{gradient}": cases
        for module in ("weights", "cuda")
        for name, cases in [("normalized_linear", SCALED), ("weight_norm", ROWS)]
        for gradient in ("", "_gradient")
    },
    "host.relu_gradient": [
        differentiated(F.relu, IMAGE),
        differentiated(F.relu, (host.WORTH_GATING // 100, 10, 11)),
    ],
    "cuda.relu_gradient": [
        differentiated(F.relu, IMAGE),
        differentiated(lambda x: F.relu(Reordered()(x)), IMAGE),
        differentiated(F.relu, (5, 3)),
    ],
    **{
        f"{module}.cross_entropy{gradient}": cases
        for module, cases in (("losses", ONLY_CLASSES), ("cuda", LOSS))
        for gradient in ("", "_gradient")
    },
    "losses.mean_gradient": [differentiated(F.mean, (3, 4)), differentiated(F.mean, ())],
    **{
        f"{module}.{name}": cases
        for module in ("weights", "cuda")
        for name, cases in {
            "sgd": [
                updated(updates.sgd, 3, 0.1, momentum, decay)
                for momentum in (0.9, 0.0)
                for decay in (0.01, 0.0)
            ],
            "rmsprop": [
                updated(updates.rmsprop, 3, 0.1, 0.99, 1e-8, decay) for decay in (0.01, 0.0)
            ],
            "adam": [
                updated(updates.adam, 4, 0.1, 0.9, 0.999, 1e-8, decay, 3) for decay in (0.01, 0.0)
            ],
        }.items()
    },
    "cuda.unit_rows": [updated(lambda w: updates.unit_rows([a.reshape(len(a), -1) for a in w]), 1)],
}
# Winograd convolution rounds more, so float64 is computed plainly; sums of float64 need no wider
# type; random numbers are float32
FLOAT32_ONLY = (
    "tiles.",
    "phases.",
    "cuda.normals_on_device",
    "host.total_of_rows",
    "weights.row_lengths_by_groups",
    "cuda.total_in_one_launch",
)


def name_of(entry):
    return f"{entry.function.__module__.rpartition('.')[2]}.{entry.function.__name__}"


PRESENT = [getattr(b, "values", [b])[0] for b in BACKENDS]
EVERY = [
    pytest.param(
        entry,
        dtype,
        id=f"{name_of(entry)} on {entry.backend}, {dtype}",
        marks=[pytest.mark.cupy][: entry.backend == "cupy"],
    )
    for entry in tp.overrides()
    for dtype in TOLERANCE
    if entry.backend in PRESENT
    and not (dtype == "float64" and name_of(entry).startswith(FLOAT32_ONLY))
]


def on_host(results):
    return [to_numpy(r._data if isinstance(r, tp.Tensor) else r) for r in results]


def disagreement(program, backend, dtype):
    """How far the overrides are from the rules, relative to the largest number; 0 at best."""
    got = on_host(program(backend, dtype))
    with tp.plain():
        expected = on_host(program(backend, dtype))
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype) == (b.shape, np.dtype(dtype))
    return max(
        abs(a - b).max() / max(1.0, abs(b).max()) for a, b in zip(got, expected, strict=True)
    )


def test_every_override_has_a_case_and_every_case_an_override():
    assert CASES.keys() == {name_of(entry) for entry in tp.overrides()}


@pytest.mark.parametrize(("entry", "dtype"), EVERY)
def test_an_override_equals_its_rule(entry, dtype, monkeypatch):
    for program in CASES.get(name_of(entry), ()):
        monkeypatch.setattr(entry, "used", False)
        assert disagreement(program, entry.backend, dtype) <= TOLERANCE[dtype]
        assert entry.used, f"{entry} declined"


def put_outlier(value, which):
    """What replaces `random_arrays`: one element of one array, or of the cotangent, is an
    outlier."""
    plain_arrays = random_arrays

    def arrays_with_outlier(shapes, dtype, backend):
        arrays = plain_arrays(shapes, dtype, "numpy")
        chosen = arrays[min(which, len(arrays) - 1)].reshape(-1)
        chosen[min(7, chosen.size - 1)] = value
        return [to_backend(a, backend) for a in arrays]

    return arrays_with_outlier


# an entry for each list of cases: forward and backward have the same. test_evenness.py has tiles.
ONE_OF_EACH = {
    (id(CASES[name_of(e.values[0])]), e.values[0].backend): e
    for e in EVERY
    if e.values[1] == "float32" and not name_of(e.values[0]).startswith(("tiles.", "phases."))
}


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e8, 1e-30, np.inf, np.nan, -0.0])
@pytest.mark.parametrize(("entry", "dtype"), ONE_OF_EACH.values())
def test_an_outlier_goes_as_far_as_by_the_rule(entry, dtype, value, monkeypatch):
    """The same results are not finite, and the others agree up to rounding. In the first two
    arrays, or in the cotangent: beside c2 = 1e8, rounding decides whether a ReLU was off."""
    programs = [p for p in CASES[name_of(entry)] if p.__qualname__.startswith("differentiated")]
    if name_of(entry).startswith("pointwise."):
        programs = programs[:1]  # with padding, im2col multiplies infinite weights by 0
    for program in programs:
        for which in (0, 1, 99):
            with monkeypatch.context() as patch, np.errstate(all="ignore"):
                patch.setitem(globals(), "random_arrays", put_outlier(value, which))
                got = on_host(program(entry.backend, dtype))
                with tp.plain():
                    expected = on_host(program(entry.backend, dtype))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
                finite = np.isfinite(b)
                largest = np.abs(b[finite]).max(initial=1.0)
                np.testing.assert_allclose(a[finite], b[finite], rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adam"])
def test_threads_share_an_update_and_change_no_bits(name, monkeypatch):
    """One thread does it by the rule."""
    (entry,) = [e for e in tp.overrides() if name_of(e) == f"weights.{name}"]
    for program in CASES[f"weights.{name}"]:
        results = []
        for threads in (1, 2, 3):
            monkeypatch.setattr(entry, "used", False)
            with thread_limit(threads):
                results.append(program("numpy", "float32"))
            assert entry.used == (threads > 1)
        for one, two, three in zip(*results, strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, three)


def test_the_number_of_the_first_maximum():
    """The example in the docstrings of `_first_rows` and `_first_maxima`, and others."""
    windows = {
        1: [[1, 5, 2], [4, 5, 3], [4, 0, 3]],
        0: [[7, 7, 7], [7, 7, 7], [7, 7, 7]],
        5: [[1, 1, 1], [1, 1, 9], [9, 9, 9]],
        8: [[-3, -3, -3], [-3, -3, -3], [-3, -3, -2]],
    }
    for number, window in windows.items():
        op = MaxPool(Window((3, 3), (3, 3), (0, 0)))
        op.recorded = True
        host.max_pool(op, np.array([[window]], np.float32))
        assert op.cache["numbers"].item() == number


@pytest.mark.parametrize(
    ("kernel", "is_taken"), [((15, 17), True), ((16, 16), False), ((1, 257), False)]
)
def test_max_pooling_numbers_at_most_255_elements(kernel, is_taken, rng, monkeypatch):
    """In a byte, which needs one number for "unknown". Every element of the window wins once."""
    (entry,) = [e for e in tp.overrides() if name_of(e) == "host.max_pool"]
    monkeypatch.setattr(entry, "used", False)
    kh, kw = kernel
    count = kh * kw
    images = rng.standard_normal((count, 1, kh, kw)).astype("f4")
    images.reshape(count, count)[np.arange(count), np.arange(count)] = 9.0
    x = tp.tensor(images, requires_grad=True)
    (g,) = tp.grad(F.max_pool2d(x, kernel).sum(), [x])
    assert entry.used == is_taken
    np.testing.assert_array_equal(g.numpy().reshape(count, count), np.eye(count))


def arrays_in(value):
    """All arrays in nested lists, tuples and dicts."""
    if is_array(value):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(part)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (partial(F.conv2d, padding=1), TILED),
        (partial(F.conv2d, stride=2), POINTWISE),
        (partial(F.conv2d, stride=2, padding=3), ((2, 32, 19, 21), (32, 32, 7, 7))),
        (F.conv2d, (IMAGE, FILTERS)),
        (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
        (lambda u, b: NormalizedReLU()(u, b, *NUMBERS), (IMAGE, PER_CHANNEL)),
        (
            lambda x, w, b: F.batch_norm(x, w.detach() * 1, w.detach() * 1, w, b, True),
            (IMAGE, (4,), (4,)),
        ),
    ],
    ids=["tiles", "1x1", "phases", "plain", "max_pool", "normalized_relu", "batch_norm"],
)
def test_a_freed_op_holds_nothing(backend, function, shapes):
    leaves = [tp.tensor(a, requires_grad=True) for a in random_arrays(shapes, "float32", backend)]
    out = function(*leaves)
    op = out.node
    own = {id(x._data) for x in leaves}
    held = [a for a in arrays_in([op.cache, op.saved_arrays()]) if id(a) not in own]
    # CuPy's arrays take no weak references
    watched = [weakref.ref(a) for a in held if isinstance(a, np.ndarray)]
    tp.grad(out, leaves, tp.tensor(out.data * 0 + 1))
    del held, out
    gc.collect()
    assert not [ref for ref in watched if ref() is not None]
    assert "cache" not in vars(op)
    assert not list(arrays_in(op.saved_arrays()))
    assert op.parents is None
