"""Every claim of the table of functions, tried on the function itself."""

import importlib
import inspect
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.functional.calls import arranged, call, numbers
from tests.helpers import assert_close, assert_explained

ROWS = [row for row in F.functions.values() if row.form != "context"]
COMPUTING = [row for row in ROWS if not row.random]
DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"]
TOLERANCE = {"float16": 0.01, "float32": 1e-5, "float64": 1e-12}
# two numbers that are neighbours as integers, and equal as float32
LARGE = [2**24, 2**24 + 1]

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_computing_row = pytest.mark.parametrize("row", COMPUTING, ids=lambda row: row.name)


def result_or_refusal(compute):
    """The result, or None and the message if it is refused in three parts."""
    try:
        return compute(), ""
    except (TypeError, ValueError) as error:
        parts = [line.partition(":")[0] for line in str(error).splitlines()]
        if parts != ["got", "rule", "try"]:
            raise
        return None, str(error)


def test_every_public_function_has_a_row():
    assert set(F.functions) == set(F.__all__)
    for name, row in F.functions.items():
        assert row.function is getattr(F, name)


@every_row
def test_names_of_parameters_are_those_of_the_function(row):
    parameters = inspect.signature(row.function).parameters
    assert set(row.shapes) <= set(parameters)
    assert set(row.renamed) <= set(parameters)
    assert bool(row.axes) == ("axis" in parameters)
    named_kinks = {kink for kink in row.kinks if isinstance(kink, str)}
    assert named_kinks - {"ties", "all zero"} <= set(parameters)


@every_row
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(row, dtype, backend):
    """The result has the dtype of the row, and the value that float64 has; or it is refused."""
    operands = numbers(row, dtype)
    expected = row.dtypes.result(np.dtype(dtype))
    if expected is None:
        assert_explained(TypeError, lambda: operands(backend=backend))
        return
    tp.manual_seed(0)
    out = operands(backend=backend)
    assert str(out.dtype) == ("float32" if expected == "chosen" else expected)
    assert out.backend == backend
    tp.manual_seed(0)
    exact = operands(dtype="float64", backend=backend).numpy().astype(out.dtype)
    assert_close(out.numpy().astype(float), exact.astype(float), TOLERANCE.get(str(out.dtype), 0))


def large(row, dtype):
    return call(row, lambda operand, shape: np.resize(np.array(LARGE[::-1], dtype), shape))


@every_row
@pytest.mark.parametrize("dtype", ["int64", "uint32"])
def test_large_integers_are_exact_or_refused(row, dtype, backend):
    """No function rounds integers to float32: they stay integers, or they are refused."""
    operands = large(row, dtype)
    if row.dtypes.i == "float32":
        assert_explained(TypeError, lambda: operands(backend=backend), str(2**24), "float64")
    elif row.dtypes.i != "chosen":
        out = operands(backend=backend)
        assert out.dtype.kind in "iu"
        if row.form in ("shape", "join"):
            assert set(out.numpy().flat) <= {0, *LARGE}


@every_computing_row
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_small_integers_take_the_dtype_of_floats_beside_them(row, dtype, backend):
    operands = numbers(row, "int64")
    if len(operands.arrays) < 2:
        return
    first, *others = operands.arrays
    out = operands(first, *[x.astype(dtype) for x in others], backend=backend)
    # a function of floats makes float32 of integers first
    expected = {dtype, "float32"} if dtype == "float16" else {dtype}
    assert str(out.dtype) in expected


@every_computing_row
@pytest.mark.parametrize(
    ("first", "second"), [("float32", "float64"), ("float64", "float32"), ("float16", "float32")]
)
def test_of_two_floats_the_wider_one_wins(row, first, second, backend):
    operands = numbers(row, "float16")
    if len(operands.arrays) < 2:
        return
    arrays = [x.astype(first if i == 0 else second) for i, x in enumerate(operands.arrays)]
    with tp.plain():
        rule = operands(*arrays, backend=backend)
    out = operands(*arrays, backend=backend)
    wider = max(first, second, key=lambda name: np.dtype(name).itemsize)
    assert str(out.dtype) == str(rule.dtype) == wider
    assert_close(out, rule.numpy(), max(TOLERANCE[first], TOLERANCE[second]))


@every_computing_row
def test_large_integers_beside_floats_are_exact_or_refused(row, backend):
    operands = large(row, "int64")
    if len(operands.arrays) < 2:
        return
    first, *others = operands.arrays
    floats = [np.ones(x.shape, "float32") for x in others]
    assert_explained(TypeError, lambda: operands(first, *floats, backend=backend), "16777217")
    floats = [np.ones(x.shape, "float64") for x in others]
    out, refusal = result_or_refusal(lambda: operands(first, *floats, backend=backend))
    if out is None:  # a function of floats makes float32 of integers first
        assert "16777217" in refusal
    else:
        assert_close(out, operands(first.astype("float64"), *floats, backend=backend).numpy())


@every_computing_row
def test_masks_beside_floats_are_0_and_1(row, backend):
    operands = numbers(row, "bool")
    if len(operands.arrays) < 2:
        return
    first, *others = operands.arrays
    floats = [x.astype("float32") + 1 for x in others]
    out = operands(first, *floats, backend=backend)
    assert out.dtype == np.float32
    assert_close(out, operands(first.astype("float32"), *floats, backend=backend).numpy(), 1e-5)


@every_computing_row
def test_lists_are_float32(row):
    """Integers in lists, too, unless a tensor of integers stands beside them."""
    operands = numbers(row, "int64")
    if row.name in ("batch_norm", "to"):
        return  # running estimates are tensors; a list is on no backend
    out = operands.of([x.tolist() for x in operands.arrays])
    expected = operands(dtype="float32")
    assert out.dtype == expected.dtype
    assert_close(out, expected.numpy(), 1e-6)


@every_row
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_are_a_result_or_a_refusal(row):
    """In place of every tensor, and in place of the first one; they never make float64."""
    operands = numbers(row, "float32")
    if row.name in ("batch_norm", "to"):
        return
    others = [tp.tensor(x) for x in operands.arrays[1:]]
    for number in (2, 2.0, True, np.float64(2), np.int64(2)):
        for given in ([number] * len(operands.arrays), [number, *others]):
            out, _ = result_or_refusal(partial(operands.of, given))
            assert out is None or out.dtype != np.float64, given


@every_row
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean of nothing is 0/0
def test_no_elements_are_a_result_or_a_refusal(row, dtype, backend):
    operands = call(row, lambda operand, shape: np.zeros((0, *shape[1:]), dtype))
    if "labels" in operands.settings:
        operands.settings["labels"] = np.zeros(0, int)
    result_or_refusal(lambda: operands(backend=backend))


@every_row
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradient(row, dtype, backend):
    """A gradient of the dtype of its operand, or none at all."""
    operands = numbers(row, dtype)
    leaves = [tp.tensor(x, requires_grad=True, backend=backend) for x in operands.arrays]
    if row.name == "batch_norm":  # statistics are moved in place, and have no gradient
        leaves[1:3] = [x.detach() for x in leaves[1:3]]
    out = operands.of(leaves)
    assert out.requires_grad == row.gradient
    if row.gradient:
        wanted = [x for x in leaves if x.requires_grad]
        gradients = tp.grad(out.sum(), wanted)
        assert [g.dtype for g in gradients] == [np.dtype(dtype)] * len(wanted)


@every_row
def test_only_random_functions_are_random(row, backend):
    operands = numbers(row, "float32")
    first, second = operands(backend=backend).numpy(), operands(backend=backend).numpy()
    assert row.random == (first.tobytes() != second.tobytes())


# -- axes and samples


@pytest.mark.parametrize("row", [row for row in ROWS if row.axes], ids=lambda row: row.name)
def test_axes(row, backend):
    operands = numbers(row, "float32")
    if row.name == "squeeze":
        operands.arrays = [np.ones((1, 1, 3), "float32")]
    forms = {"None": [None], "int": [0, 1, -1 if row.name != "squeeze" else -2], "tuple": [(0, 1)]}
    for form, axes in forms.items():
        for axis in axes:
            if form in row.axes:
                operands(backend=backend, axis=axis)
            else:
                with pytest.raises((TypeError, ValueError)):
                    operands(backend=backend, axis=axis)
    assert_explained(tp.ShapeError, lambda: operands(backend=backend, axis=7))


def treats_samples_alone(operands, **settings):
    """Whether each sample of the result comes from the same sample of the operands alone."""
    row, arrays = operands.row, operands.arrays
    n = len(arrays[0])
    is_batch = [letters.startswith(("N", "...")) for letters in row.shapes.values()]
    if row.form == "join":
        is_batch *= 2
    if not any(is_batch):
        return True
    try:
        together = operands(**settings).numpy()
    except tp.ShapeError:
        return False
    if together.ndim == 0 or len(together) != n:
        return False
    for i in range(n):
        one = [
            x[i : i + 1] if batch else x.copy() for x, batch in zip(arrays, is_batch, strict=True)
        ]
        labels = operands.settings.get("labels")
        chosen = {} if labels is None else {"labels": labels[i : i + 1]}
        try:
            alone = operands(*one, **settings | chosen).numpy()
        except tp.ShapeError:
            return False
        if alone.shape[1:] != together.shape[1:] or not np.allclose(alone[0], together[i]):
            return False
    return True


@every_computing_row
def test_across_batch(row):
    operands = numbers(row, "float64")
    outcomes = {
        "no": [({}, True)],
        "yes": [({}, False)],
        "axis": [({"axis": 0}, False), ({"axis": 1}, True)],
        "training": [({"training": True}, False), ({"training": False}, True)],
        "reduction": [({"reduction": "mean"}, False), ({"reduction": "none"}, True)],
    }
    for settings, alone in outcomes[row.across_batch]:
        assert treats_samples_alone(operands, **settings) == alone, settings


# -- kinks


ELEMENTWISE = [row for row in ROWS if row.form == "elementwise" and row.name != "astype"]


def value_and_slope(row, x, operand=0):
    """The value where this operand is x and others are 0.7, and the slope with respect to x."""
    operands = numbers(row, "float64")
    tensors = [tp.tensor(np.full(1, 0.7)) for _ in operands.arrays]
    tensors[operand] = tp.tensor(np.full((1, 1), x), requires_grad=True)
    out = operands.of(tensors)
    return out.item(), tp.grad(out.sum(), [tensors[operand]])[0].item()


def slope(row, x):
    return value_and_slope(row, x)[1]


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_domains(row):
    """Inside the domain the function and its slope are finite, and at its edge one of them is
    not."""
    for operand in range(len(row.shapes)):
        if row.name == "prelu" and operand == 1:
            continue  # one slope for each channel
        domain = row.domain(operand)
        for x in (-1.3, -0.9, 0.1, 1.3):
            assert np.isfinite(value_and_slope(row, x, operand)).all() or x not in domain
        for edge in {domain.low, domain.hole} - {None, -np.inf}:
            assert not np.isfinite(value_and_slope(row, edge, operand)).all()
            assert edge not in domain
    assert np.isfinite(value_and_slope(row, 0.0)).all() == (0.0 in row.domain(0))


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
def test_kinks_of_elementwise_functions(row):
    """The slope jumps at the kinks of the row, and nowhere else on a fine grid."""
    kinks = set()
    for kink in row.kinks:
        kinks.add(0.7 if kink == "ties" else numbers(row, "float64").settings.get(kink, kink))
    if row.name == "where":
        return  # x > y is the condition of the sample
    for x in np.arange(-2, 2.5, 0.05).round(2):
        if x - 1e-6 not in row.domains[0]:
            continue
        jump = abs(slope(row, x + 1e-6) - slope(row, x - 1e-6))
        assert (jump > 0.1) == (x in kinks), f"the slope jumps by {jump} at {x}"


@pytest.mark.parametrize("name", ["max", "min", "max_pool2d"])
def test_slopes_jump_where_two_elements_are_equal(name):
    row = F.functions[name]
    assert row.kinks == ("ties",)
    slopes = []
    for difference in (-1e-6, 1e-6):
        x = tp.tensor(np.array([[[[1.0, 1.0 + difference]] * 2]]), requires_grad=True)
        settings = {"kernel_size": 2} if name == "max_pool2d" else {}
        slopes.append(tp.grad(row.function(x, **settings).sum(), [x])[0].numpy().ravel()[0])
    assert slopes[0] != slopes[1]


@pytest.mark.parametrize("name", ["norm", "std"])
def test_slopes_jump_where_all_is_zero(name):
    row = F.functions[name]
    assert row.kinks == ("all zero",)
    slopes = []
    for x in (-1e-6, 1e-6):
        leaf = tp.tensor(np.array([x, 0.0]), requires_grad=True)
        slopes.append(tp.grad(row.function(leaf), [leaf])[0].numpy()[0])
    assert abs(slopes[0] - slopes[1]) > 0.5


# -- PyTorch


def counterpart(path):
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(counterpart(module), name)


def for_torch(torch, row, settings):
    """Our settings under PyTorch's names."""
    theirs = {row.renamed.get(name, name): value for name, value in settings.items()}
    if row.name == "pad":
        theirs["pad"] = [n for pair in reversed(settings["widths"]) for n in pair]
    if row.name == "astype":
        theirs["dtype"] = getattr(torch, settings["dtype"])
    if "target" in theirs:
        theirs["target"] = torch.tensor(theirs["target"])
    return theirs


DEFAULTS = {  # what PyTorch needs to be told
    "flip": {"axis": (0, 1)},
    "log_softmax": {"axis": -1},
    "logsumexp": {"axis": (0, 1)},
    "max": {"axis": (0, 1)},
    "min": {"axis": (0, 1)},
    "rms_norm": {"eps": 1e-5},
    "softmax": {"axis": -1},
    "std": {"ddof": 0},
    "transpose": {"axes": (1, 0)},
    "var": {"ddof": 0},
}


@pytest.mark.parametrize(
    "row", [row for row in COMPUTING if row.torch and row.name != "to"], ids=lambda row: row.name
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counterpart(row, dtype):
    """Values and gradients are those of PyTorch's function of that name."""
    torch = pytest.importorskip("torch")
    operands = numbers(row, dtype)
    defaults = DEFAULTS.get(row.name, {})
    theirs = [torch.tensor(x, requires_grad=True) for x in operands.arrays]
    ours = [tp.tensor(x, requires_grad=True) for x in operands.arrays]
    if row.name == "batch_norm":  # statistics are moved in place, and have no gradient
        theirs[1:3] = [x.detach() for x in theirs[1:3]]
        ours[1:3] = [x.detach() for x in ours[1:3]]
    positional, named = arranged(row, theirs)
    settings = for_torch(torch, row, operands.settings | defaults)
    want = counterpart(row.torch)(*positional, **named, **settings)
    if row.name == "split":
        want = torch.cat(want, -1)
    out = operands.of(ours, **defaults)
    assert str(want.dtype) == f"torch.{out.dtype}"
    assert_close(out.detach(), want.detach().numpy(), TOLERANCE[dtype])
    if row.gradient:
        v = np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype)
        ours = [x for x in ours if x.requires_grad]
        theirs = [x for x in theirs if x.requires_grad]
        wanted = torch.autograd.grad(want, theirs, torch.tensor(v))
        for g, w in zip(tp.grad(out, ours, tp.tensor(v)), wanted, strict=True):
            assert_close(g, w.numpy(), 10 * TOLERANCE[dtype])


def test_functions_without_a_counterpart_say_why():
    for row in F.functions.values():
        assert row.torch or row.note, row.name


# -- the page of the documentation


def test_the_page_has_a_line_for_every_function(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    lines = importlib.import_module("functions").table().splitlines()
    table = [line.split(" | ") for line in lines if line.startswith("| `")]
    assert [line[0] for line in table] == [f"| `{name}`" for name in sorted(F.__all__)]
    assert {len(line) for line in table} == {9}
    (log,) = (line for line in table if line[0] == "| `log`")
    assert all(row.dtypes.i == row.dtypes.u for row in F.functions.values())  # one column
    assert log[1:6] == ["`torch.log`", "float32", "float32", "x > 0", ""]
