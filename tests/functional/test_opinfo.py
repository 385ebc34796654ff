"""PyTorch's own test samples (its OpInfo database), run through tinyprop.

Every function of ours that PyTorch also has is called with PyTorch's sample inputs: in `make full`
with all of its reference inputs, elsewhere with its ordinary ones, at most 20 for each function and
dtype. For each sample we compare

    values, shapes and dtypes    float32, float64, float16, int64 and bool
    first gradients              float32 and float64, with random cotangents v:  d<v, f(x)>/dx
    second gradients             the same, with random directions u:  d<u, d<v, f(x)>/dx> / d(x, v)

A sample is left out if an input holds NaN, infinity or a complex number; if it is large (each large
one repeats a smaller one); if `NOT_OURS` says that tinyprop has no such feature; or if tinyprop
refuses it with a three-part error and `MAY_REFUSE` allows that. Second gradients are left out if a
function in `KINKS` has a 0 among its inputs, and where PyTorch's first gradient is not finite (the
slope of sqrt at 0, or of x**y with respect to y at x < 0). There our first gradient must not be
finite either: a clean number would be wrong. All other kinks and ties are compared.

Everything else fails.
"""

import importlib.util
import inspect
import operator
import random
import sys
import unittest
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import FULL, sampled

pytestmark = pytest.mark.slow

WITH_GRADIENTS = ["float32", "float64"]
VALUES_ONLY = ["float16", "int64", "bool"]
# ten times that for second gradients
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-11}
# elements: this leaves out three samples of about a million for each elementwise function
LARGE = 20_000

# -- how to call tinyprop: torch name -> (tinyprop name, call);
# a call takes our function, then PyTorch's arguments


def axes(dim):
    """PyTorch's dim as an axis: a list is a tuple, and an empty one means all axes."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


def at(dim, index, ndim):
    """An index into one axis and everything along the others."""
    return (slice(None),) * (dim % max(ndim, 1)) + (index,)


def number(bound):
    """A bound as a number: OpInfo has only tensors, so take the first element."""
    return bound if bound is None else bound.reshape(-1)[0].item()


def same(f, x, *args, **kwargs):
    return f(x, *args, **kwargs)


def scaled(f, x, y, alpha=1):
    return f(x, y if alpha == 1 else y * alpha)


def reflected(f, x, y, alpha=1):
    return f(y, x if alpha == 1 else x * alpha)


def reduction(f, x, dim=None, keepdim=False, *, dtype=None):
    return f(x if dtype is None else x.astype(dtype), axis=axes(dim), keepdims=keepdim)


def rms_norm(f, x, normalized_shape, weight=None, eps=None):
    """PyTorch's eps is the machine epsilon of the dtype."""
    return f(x, normalized_shape, weight, np.finfo(x.dtype).eps if eps is None else eps)


def deviation(f, x, dim=None, unbiased=True, keepdim=False, *, correction=None):
    """PyTorch has two ways to give ddof, which is 1 by default, and var(x, unbiased) beside var(x,
    dim)."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    return f(
        x,
        axis=axes(dim),
        keepdims=keepdim,
        ddof=int(unbiased) if correction is None else correction,
    )


def swapped(f, x, dim0, dim1):
    order = [*range(x.ndim)] or [0]
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return f(x, order[: x.ndim])


def padded(f, x, pad, mode="constant", value=None):
    """PyTorch lists (before, after) from the last axis backwards."""
    pairs = [*zip(pad[::2], pad[1::2], strict=True)]
    return f(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1], 0.0 if value is None else value)


def max_pool(f, x, return_indices, dilation=1, **options):
    return f(x, **options)


def avg_pool(
    f,
    x,
    size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    padding = padding[0] if padding in [(0,), (1,), (2,)] else padding
    return f(x, size, stride or None, padding, count_include_pad=count_include_pad)


def cross_entropy(f, x, labels, weight=None, **options):
    """OpInfo has no label smoothing, and we have no class weights: put the one in place of the
    other."""
    return f(x, labels, label_smoothing=0.0 if weight is None else 0.1, **options)


def called_the_same():
    """Elementwise functions that take only tensors, here and in PyTorch, from the table."""
    found = {}
    for row in F.functions.values():
        only_tensors = [*row.shapes] == [*inspect.signature(row.function).parameters]
        if row.form == "elementwise" and only_tensors:
            found[row.torch.removeprefix("torch.")] = (row.name, same)
    del found["div"]  # which has variants
    return found


CALLS = {
    # arithmetic
    **called_the_same(),
    "add": ("add", scaled),
    "sub": ("subtract", scaled),
    "div:no_rounding_mode": ("divide", same),
    "reciprocal": ("divide", lambda f, x: f(1.0, x)),
    "__radd__": ("operator.add", reflected),
    "rsub": ("operator.sub", reflected),
    "__rmul__": ("operator.mul", reflected),
    "__rdiv__": ("operator.truediv", reflected),
    "__rpow__": ("operator.pow", reflected),
    "where": ("where", lambda f, x, condition, y: f(condition, x, y)),  # OpInfo puts x first
    "clamp": ("clip", lambda f, x, min=None, max=None: f(x, number(min), number(max))),
    # comparisons, masks and dtypes
    **{name: (f"operator.{name}", same) for name in ["eq", "ne", "lt", "le", "gt", "ge"]},
    **{
        f"bitwise_{k}": (f"operator.{v}", same)
        for k, v in {"and": "and_", "or": "or_", "not": "invert"}.items()
    },
    "half": ("astype", lambda f, x, **_: f(x, "float16")),
    "float": ("astype", lambda f, x, **_: f(x, "float32")),
    "double": ("astype", lambda f, x, **_: f(x, "float64")),
    "long": ("astype", lambda f, x, **_: f(x, "int64")),
    "bool": ("astype", lambda f, x, **_: f(x, "bool")),
    # reductions
    **{name: (name, reduction) for name in ["sum", "mean", "argmax", "logsumexp"]},
    **dict.fromkeys(["amax", "max:reduction_no_dim", "max:reduction_with_dim"], ("max", reduction)),
    **dict.fromkeys(["amin", "min:reduction_no_dim", "min:reduction_with_dim"], ("min", reduction)),
    **{name: (name[:3], deviation) for name in ["var", "var:unbiased", "std", "std:unbiased"]},
    "norm": (
        "norm",
        lambda f, x, p="fro", dim=None, keepdim=False, **dtype: reduction(
            f, x, dim, keepdim, **dtype
        ),
    ),
    **{
        name: (
            name.partition(":")[0],
            lambda f, x, dim, dtype=None: f(x.astype(dtype or x.dtype), axis=dim),
        )
        for name in ["softmax", "softmax:with_dtype", "log_softmax", "log_softmax:with_dtype"]
    },
    # matrix products
    **dict.fromkeys(["matmul", "mm", "bmm", "mv", "dot"], ("matmul", same)),
    "__rmatmul__": ("operator.matmul", reflected),
    # shapes
    "reshape": ("reshape", same),
    "flatten": ("flatten", lambda f, x, start_dim=0, end_dim=-1: f(x, start_dim)),
    **{
        name: ("squeeze", lambda f, x, dim=None: f(x, axis=dim))
        for name in ["squeeze", "squeeze:multiple"]
    },
    "unsqueeze": ("operator.getitem", lambda f, x, dim: f(x, at(dim, None, x.ndim + 1))),
    "transpose": ("transpose", swapped),
    "permute": ("transpose", lambda f, x, dims: f(x, dims)),
    "T": ("transpose", same),
    "broadcast_to": ("broadcast_to", same),
    "nn.functional.pad:constant": ("pad", padded),
    **{
        k: (v, lambda f, xs, dim=0: f(xs, axis=dim))
        for k, v in {"cat": "concatenate", "stack": "stack"}.items()
    },
    **{
        name: ("split", lambda f, x, size, dim=0: f(x, size, axis=dim))
        for name in ["split", "split_with_sizes"]
    },
    "flip": ("flip", lambda f, x, dims: f(x, axis=dims)),
    "__getitem__": ("operator.getitem", same),
    "select": ("operator.getitem", lambda f, x, dim, index: f(x, at(dim, index, x.ndim))),
    "unbind": (
        "operator.getitem",
        lambda f, x, dim=0: [f(x, at(dim, i, x.ndim)) for i in range(x.shape[dim])],
    ),
    "take": ("operator.getitem", lambda f, x, index: f(x.reshape(-1), index)),
    "index_select": ("operator.getitem", lambda f, x, dim, index: f(x, at(dim, index, x.ndim))),
    # activations
    "nn.functional.elu": ("elu", same),
    "nn.functional.prelu": ("prelu", lambda f, x, weight: f(x, weight)),
    "nn.functional.leaky_relu": (
        "leaky_relu",
        lambda f, x, negative_slope=0.01: f(x, negative_slope),
    ),
    **{
        f"nn.functional.{name}": (name, lambda f, x, **_: f(x))
        for name in ["gelu", "softplus", "hardtanh"]
    },
    # images, losses, normalizers
    "nn.functional.max_pool2d": ("max_pool2d", max_pool),
    "nn.functional.avg_pool2d": ("avg_pool2d", avg_pool),
    "nn.functional.cross_entropy": ("cross_entropy", cross_entropy),
    "nn.functional.nll_loss": (
        "nll_loss",
        lambda f, x, labels, weight=None, **options: f(x, labels, **options),
    ),
    **{f"nn.functional.{name}": (name, same) for name in ["linear", "conv2d", "mse_loss"]},
    "nn.functional.batch_norm": ("batch_norm", same),
    "nn.functional.layer_norm": ("layer_norm", same),
    "nn.functional.rms_norm": ("rms_norm", rms_norm),
    "nn.functional.group_norm": ("group_norm", same),
}

# What PyTorch computes from a sample where its own call has no counterpart: `nn` is
# torch.nn.functional.
INSTEAD = {
    "max:reduction_with_dim": lambda nn, x, *args: x.max(*args).values,
    "min:reduction_with_dim": lambda nn, x, *args: x.min(*args).values,
    "clamp": lambda nn, x, min=None, max=None: x.clamp(number(min), number(max)),
    "nn.functional.gelu": lambda nn, x, **_: nn.gelu(x),
    # PyTorch's is linear above a threshold
    "nn.functional.softplus": lambda nn, x, **_: -nn.logsigmoid(-x),
    "nn.functional.hardtanh": lambda nn, x, **_: nn.hardtanh(x),
    "nn.functional.max_pool2d": lambda nn, *args, **kwargs: max_pool(
        nn.max_pool2d, *args, **kwargs
    ),
    "nn.functional.avg_pool2d": lambda nn, *args: avg_pool(nn.avg_pool2d, *args),
    "nn.functional.cross_entropy": lambda nn, *args, **kwargs: cross_entropy(
        nn.cross_entropy, *args, **kwargs
    ),
    "nn.functional.nll_loss": lambda nn, x, labels, weight=None, **options: nn.nll_loss(
        x, labels, **options
    ),
}

# -- what is left out, and why: predicates on the arguments, under the names that the calls above
# give them


def kind(x):
    return x.dtype.kind if isinstance(x, tp.Tensor) else np.asarray(x).dtype.kind


INTEGERS = ("integers become float32", lambda s: kind(s.x) != "f")
NOT_OURS = {
    **{
        f"bitwise_{name}": [("only masks", lambda s: kind(s.x) == "i")]
        for name in ["and", "or", "not"]
    },
    "square": [("the square of a mask", lambda s: kind(s.x) == "b")],
    "where": [
        (
            "two numbers make float32",
            lambda s: not any(isinstance(v, tp.Tensor) for v in (s.x, s.y)),
        )
    ],
    "flatten": [("an end axis", lambda s: s.end_dim not in (-1, s.x.ndim - 1))],
    "norm": [("only the Euclidean norm", lambda s: s.p not in (2, "fro", None))],
    **{f"nn.functional.{name}": [INTEGERS] for name in ["relu", "hardtanh", "avg_pool2d"]},
    "nn.functional.rms_norm": [("squares beyond float16", lambda s: s.x.dtype == np.float16)],
    "nn.functional.conv2d": [
        ("padding in words", lambda s: isinstance(s.kwargs.get("padding"), str))
    ],
}
NO_AXES = ("an axis of a 0-d tensor", lambda s: s.x.ndim == 0)
NO_ELEMENTS = ("no elements", lambda s: s.x.size == 0)
LONG_AXIS = (
    "not of length 1",
    lambda s: s.x.ndim == 0 or any(s.x.shape[axis] != 1 for axis in np.atleast_1d(s.dim)),
)
NO_BATCH = ("images without a batch axis", lambda s: s.x.ndim == 3)
NO_ROWS = ("logits without a batch axis", lambda s: s.x.ndim == 1)
MAY_REFUSE = {
    **{name: [NO_AXES] for name, (_, call) in CALLS.items() if call is reduction},
    **{name: [NO_AXES] for name in ["softmax", "log_softmax", "index_select", "norm"]},
    **{name: [LONG_AXIS] for name in ["squeeze", "squeeze:multiple"]},
    "logsumexp": [NO_AXES, NO_ELEMENTS],
    **{name: [NO_ELEMENTS] for name, (_, call) in CALLS.items() if call is deviation},
    "pow": [
        (
            "integer to a negative power",
            lambda s: kind(s.x) == "i" and (np.asarray(s.args[0]) < 0).any(),
        )
    ],
    "__rpow__": [
        ("integer to a negative power", lambda s: kind(s.y) == "i" and (np.asarray(s.x) < 0).any())
    ],
    "nn.functional.pad:constant": [
        ("negative padding", lambda s: min(s.pad) < 0),
        ("a border that is no bool", lambda s: kind(s.x) == "b" and s.value not in (None, 0, 1)),
    ],
    "cat": [("an empty vector among matrices", lambda s: len({x.ndim for x in s.xs}) > 1)],
    **{f"nn.functional.{name}": [NO_BATCH] for name in ["conv2d", "max_pool2d", "avg_pool2d"]},
    "nn.functional.layer_norm": [("one value", lambda s: np.prod(s.args[0]) < 2)],
    "nn.functional.batch_norm": [
        ("no channels or statistics", lambda s: s.x.ndim < 2 or s.args[0] is None)
    ],
    "nn.functional.nll_loss": [NO_ROWS],
    "nn.functional.cross_entropy": [
        NO_ROWS,
        ("probabilities as labels", lambda s: kind(s.labels) == "f"),
    ],
}
# At 0, the second derivatives of these jump, and PyTorch takes the other side; those of x**y hold
# log 0.
KINKS = {"nn.functional.elu", "nn.functional.selu", "nn.functional.prelu", "pow", "__rpow__"}


@cache
def database():
    """PyTorch's OpInfo by name, "name:variant" for variants."""
    with pytest.MonkeyPatch.context() as patch:
        # a package for PyTorch's own tests: no sample needs it
        if importlib.util.find_spec("expecttest") is None:
            patch.setitem(sys.modules, "expecttest", SimpleNamespace(TestCase=unittest.TestCase))
        from torch.testing._internal.common_methods_invocations import op_db
    return {f"{op.name}:{op.variant_test_name}".rstrip(":"): op for op in reversed(op_db)}


def samples(torch, op, dtype):
    """PyTorch's samples as (args, kwargs), the same ones every time."""
    differentiable = op.supports_autograd and str(dtype)[6:] in WITH_GRADIENTS
    inputs = op.reference_inputs if FULL else op.sample_inputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        try:
            found = list(inputs("cpu", dtype, requires_grad=differentiable))
        except ValueError:  # PyTorch asks for the gradient of a mask here
            found = list(inputs("cpu", dtype, requires_grad=False))
    for sample in [((s.input, *s.args), s.kwargs) for s in sampled(found, 20)]:
        leaves = torch.utils._pytree.tree_leaves(sample)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        for x in tensors if differentiable and not any(x.requires_grad for x in tensors) else []:
            x.requires_grad_(x.is_floating_point())
        finite = all(x.isfinite().all() for x in tensors) and not any(
            isinstance(x, complex) for x in leaves
        )
        if tensors and finite and sum(x.numel() for x in tensors) <= LARGE:
            yield sample


def translated(torch, sample, tensor, dtype=lambda x: x):
    """The sample with `tensor` applied to its tensors and `dtype` to its dtypes."""

    def one(x):
        return (
            tensor(x)
            if isinstance(x, torch.Tensor)
            else dtype(x)
            if isinstance(x, torch.dtype)
            else x
        )

    return torch.utils._pytree.tree_map(one, sample)


def computed(torch, call, sample, grad, variable):
    """Values, first and second gradients, by name. `grad` and `variable` (of an array) are
    PyTorch's or ours."""
    result = call(*sample[0], **sample[1])
    outs = [*result] if isinstance(result, (list, tuple)) else [result]
    found = {f"value {i}": out for i, out in enumerate(outs)}
    outs = [out for out in outs if out.requires_grad]
    if not outs:
        return found

    def gradients(ys, xs, weights):
        total = sum((y * w).sum() for y, w in zip(ys, weights, strict=True))
        pairs = zip(grad(total, xs, create_graph=True, allow_unused=True), xs, strict=True)
        return [x.detach() * 0.0 if g is None else g for g, x in pairs]

    leaves = [
        x for x in torch.utils._pytree.tree_leaves(sample) if getattr(x, "requires_grad", False)
    ]
    rng = np.random.default_rng(0)  # numbers that are exact in every dtype, and never 0
    v, u = (
        [variable(rng.integers(-99, 99, x.shape) / 32 + 1 / 64, dtype=x.dtype) for x in xs]
        for xs in (outs, leaves)
    )
    first = gradients(outs, leaves, v)
    second = gradients(first, [*leaves, *v], u)
    found |= {f"gradient {i}": g for i, g in enumerate(first)}
    return found | {f"second gradient {i}": g for i, g in enumerate(second)}


def torch_computes(torch, name, sample, dtype=None):
    """In the dtype of the sample, or all in float64."""

    def tensor(x):
        return (
            x.detach()
            .to(dtype if x.is_floating_point() else None, copy=True)
            .requires_grad_(x.requires_grad)
        )

    call = partial(INSTEAD[name], torch.nn.functional) if name in INSTEAD else database()[name].op
    variable = partial(torch.tensor, requires_grad=True)
    found = computed(torch, call, translated(torch, sample, tensor), torch.autograd.grad, variable)
    return {what: x.numpy(force=True) for what, x in found.items()}


def agree(got, want, what, elementwise):
    """Which elements agree: to the tolerance where they are finite. Gradients that are not may be
    NaN or inf."""
    finite = np.isfinite(want)
    tolerance = TOLERANCE.get(str(got.dtype), 0.0) * (10 if "second" in what else 1)
    # the terms of a sum may be large and cancel
    scale = 0.05 if elementwise else abs(want[finite]).max(initial=1.0)
    with np.errstate(all="ignore"):
        close = abs(np.subtract(got, want, dtype=float)) <= tolerance * (abs(want) + scale)
        same = (
            (got == want) | (np.isnan(got) & np.isnan(want))
            if "value" in what
            else ~np.isfinite(got)
        )
    return np.where(finite, close, same)


def singular(want, shape):
    """Where a first gradient is not finite: element by element if all have this shape, or anywhere
    at all."""
    found = [~np.isfinite(x) for what, x in want.items() if what.startswith("gradient")]
    return (
        np.any(found, axis=0)
        if all(x.shape == shape for x in found)
        else any(x.any() for x in found)
    )


def disagreement(torch, name, got, sample, at_kink):
    """The first way in which these results differ from PyTorch's, or None."""
    want, is_ufunc = (
        torch_computes(torch, name, sample),
        "UfuncInfo" in type(database()[name]).__name__,
    )
    if got.keys() != want.keys():
        return f"{[*got]}, PyTorch {[*want]}"
    for what, a in got.items():
        b = want[what]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{what}: {a.dtype}{[*a.shape]}, PyTorch {b.dtype}{[*b.shape]}"
        elementwise = is_ufunc and a.shape == got["value 0"].shape and "second" not in what
        ok = agree(a, b, what, elementwise) | (
            "second" in what and (at_kink or singular(want, a.shape))
        )
        # PyTorch may be the less exact of the two
        if not ok.all() and a.dtype in (np.float16, np.float32):
            exact = torch_computes(torch, name, sample, torch.float64)[what]
            ok = ok | agree(a, exact.astype(a.dtype), what, elementwise)
        if not ok.all():
            i = np.argmin(ok)
            return (
                f"{what}: {a.flat[i]}, PyTorch {b.flat[i]} at element {i}; {(~ok).sum()} of "
                f"{ok.size} differ"
            )


def verdict(torch, name, f, sample):
    """Why the sample is left out, or None, and in what tinyprop is wrong, or None."""

    def ours(x):  # a copy with the same memory layout
        return tp.tensor(np.array(x.detach().numpy(), order="K"), requires_grad=x.requires_grad)

    mine = translated(torch, sample, ours, lambda dtype: str(dtype)[6:])
    bound = inspect.signature(CALLS[name][1]).bind(f, *mine[0], **mine[1])
    bound.apply_defaults()
    s = SimpleNamespace(**bound.arguments)
    for why in [why for why, applies in NOT_OURS.get(name, []) if applies(s)]:
        return why, None
    try:
        with np.errstate(all="ignore"):
            got = computed(
                torch,
                partial(CALLS[name][1], f),
                mine,
                tp.grad,
                partial(tp.tensor, requires_grad=True),
            )
    except Exception as error:
        if [line.partition(":")[0] for line in str(error).splitlines()] != ["got", "rule", "try"]:
            return None, f"bare {type(error).__name__}: {error}"
        for why in [why for why, applies in MAY_REFUSE.get(name, []) if applies(s)]:
            return why, None
        return None, f"refused: {error}"
    got = {what: x.numpy() for what, x in got.items()}
    inputs = [x for x in torch.utils._pytree.tree_leaves(mine) if isinstance(x, tp.Tensor)]
    at_kink = name in KINKS and any((x.data == 0).any() for x in inputs)
    return None, disagreement(torch, name, got, sample, at_kink)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("name", CALLS)
def test_opinfo(name):
    torch = pytest.importorskip("torch")
    module, _, ours = CALLS[name][0].rpartition(".")
    f = getattr(operator if module else F, ours)
    op, here, wrong = database()[name], Counter(), []
    for dtype in [getattr(torch, dtype) for dtype in WITH_GRADIENTS + VALUES_ONLY]:
        for sample in samples(torch, op, dtype) if dtype in op.dtypes else []:
            left_out, how = verdict(torch, name, f, sample)
            here[left_out or "compared"] += 1
            if how:
                args, kwargs = translated(
                    torch, sample, lambda x: f"{str(x.dtype)[6:]}{[*x.shape]}"
                )
                wrong.append(f"{name}(*{args}, **{kwargs}): {how}")
    assert here["compared"], "no sample was compared"
    assert not wrong, f"{len(wrong)} of {here['compared']} samples disagree\n" + "\n".join(
        wrong[:40]
    )
