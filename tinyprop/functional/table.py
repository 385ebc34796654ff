"""The table of functions: what each takes, what it returns, and what it is called in PyTorch.

The page "Functions" of the documentation, the tests in tests/functional/ and the fuzzer are
generated from it. A public function without a row, or a row that is wrong, fails a test."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .activations import (
    elu,
    gelu,
    hardtanh,
    leaky_relu,
    prelu,
    relu,
    selu,
    sigmoid,
    silu,
    softplus,
    tanh,
)
from .arithmetic import (
    abs,
    add,
    astype,
    clip,
    cos,
    divide,
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    rsqrt,
    sin,
    sqrt,
    square,
    subtract,
    where,
)
from .convolution import conv2d, exact_convolution
from .linear import linear, matmul
from .losses import cross_entropy, mse_loss, nll_loss
from .normalization import batch_norm, dropout, group_norm, layer_norm, rms_norm, weight_norm
from .normprop import normprop
from .pooling import avg_pool2d, max_pool2d
from .reductions import argmax, log_softmax, logsumexp, max, mean, min, norm, softmax, std, sum, var
from .shapes import (
    broadcast_to,
    concatenate,
    flatten,
    flip,
    pad,
    reshape,
    split,
    squeeze,
    stack,
    to,
    transpose,
)


@dataclass(frozen=True)
class Dtypes:
    """The dtype of the result, for floats, signed and unsigned integers, and bools: "same" as
    the operands have together, the name of a dtype, or None if the function refuses them.

    Where integers become floats, they are exact: integers beyond 2**24 (float32; 2**11 in float16,
    2**53 in float64) are refused. The dtype of floats is that of the widest float array; Python
    numbers have no dtype, except that a float turns integers and bools into float32, and an integer
    turns bools into int64."""

    f: str | None
    i: str | None
    u: str | None
    b: str | None

    def result(self, dtype: Any) -> str | None:
        """The name of the result's dtype for operands of this dtype; None if they are refused."""
        name: str | None = getattr(self, dtype.kind)
        return str(dtype) if name == "same" else name


FRACTIONS = Dtypes("same", "float32", "float32", "float32")  # it computes with fractions
ANY = Dtypes("same", "same", "same", "same")  # integers stay integers, masks stay masks
NUMBERS = Dtypes("same", "same", "same", None)  # a mask is not a number here
PRODUCT = Dtypes("same", "int64", "int64", None)  # many integers are added
TOTAL = Dtypes("same", "int64", "int64", "int64")
POSITION = Dtypes("int64", "int64", "int64", "int64")
CHOSEN = Dtypes("chosen", "chosen", "chosen", "chosen")  # by the caller


@dataclass(frozen=True)
class Domain:
    """The numbers for which a function and its slope are finite: all above `low`, except `hole`.

    >>> str(F.functions["log1p"].domains[0])
    'x > -1'
    """

    low: float = -math.inf
    hole: float | None = None

    def __contains__(self, x: float) -> bool:
        return x > self.low and x != self.hole

    def __str__(self) -> str:
        if self.hole is not None:
            return f"x != {self.hole:g}"
        return "all" if self.low == -math.inf else f"x > {self.low:g}"


ALL = Domain()
POSITIVE = Domain(low=0.0)
ABOVE_MINUS_1 = Domain(low=-1.0)
NONZERO = Domain(hole=0.0)

# Which axes a function takes. An integer may be negative, and counts from the back then.
ONE_AXIS = ("int",)
ANY_AXES = ("None", "int", "tuple")

Form = Literal[
    "elementwise",  # the tensors broadcast, and the result has their common shape
    "reduction",  # along some axes
    "along",  # along some axes, which stay
    "shape",  # the elements move, and keep their values
    "join",  # a sequence of tensors becomes one
    "matrix",
    "image",  # (N, C, H, W)
    "normalizer",
    "loss",
    "context",  # a context manager, no function of tensors
]


@dataclass(frozen=True)
class Row:
    """What a reader, a test and a fuzzer need to know about a function.

    >>> row = F.functions["sqrt"]
    >>> row.torch, str(row.domains[0]), row.dtypes.i
    ('torch.sqrt', 'x > 0', 'float32')
    """

    function: Callable[..., Any]
    form: Form
    torch: str | None  # its counterpart in PyTorch
    dtypes: Dtypes
    # The tensors, in the order of its parameters, with their shapes. Letters are lengths, the same
    # letter stands for the same length; "..." is any number of axes. Tensors of shape "..." that
    # are more than one broadcast.
    shapes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"x": "..."}))
    # PyTorch's names of parameters that have another name there
    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # what differs from PyTorch, or why PyTorch has none
    note: str = ""
    domains: tuple[Domain, ...] = (ALL,)  # of each tensor; those that are left out: ALL
    # Where the slope jumps: a value of an element; the name of a parameter that has such a value;
    # "ties", where two elements or operands are equal; "all zero", where all elements are 0, or
    # have no spread
    kinks: tuple[float | str, ...] = ()
    axes: tuple[str, ...] = ()  # the forms of its parameter `axis`; () if it has none
    # Whether a sample of the result (an index on axis 0) depends on more than the same sample of
    # the operands: "axis" means only along axis 0, "reduction" unless reduction="none"; "yes" may
    # depend on other arguments
    across_batch: Literal["no", "axis", "yes", "training", "reduction"] = "no"
    random: bool = False
    gradient: bool = True

    def domain(self, operand: int) -> Domain:
        """The domain of the elements of a tensor, which is given by its position."""
        return self.domains[operand] if operand < len(self.domains) else ALL

    @property
    def name(self) -> str:
        """Its name in `tinyprop.functional`."""
        return str(self.function.__name__)


def _one(function: Any, torch: str | None, dtypes: Dtypes = FRACTIONS, **more: Any) -> Row:
    return Row(function, "elementwise", torch, dtypes, **more)


def _two(function: Any, torch: str, dtypes: Dtypes = ANY, **more: Any) -> Row:
    return Row(function, "elementwise", torch, dtypes, {"x": "...", "y": "..."}, **more)


def _reduction(function: Any, torch: str, dtypes: Dtypes = FRACTIONS, **more: Any) -> Row:
    names = {"axis": "dim", "keepdims": "keepdim"} | more.pop("renamed", {})
    axes = more.pop("axes", ANY_AXES)
    return Row(
        function,
        "reduction",
        torch,
        dtypes,
        renamed=names,
        axes=axes,
        across_batch="axis",
        **more,
    )


def _moves(function: Any, torch: str | None, form: Form = "shape", **more: Any) -> Row:
    more.setdefault("across_batch", "axis")
    return Row(function, form, torch, ANY, **more)


ROWS = [
    # arithmetic
    _two(add, "torch.add", note="of masks: or"),
    _two(subtract, "torch.sub", NUMBERS, note="of masks: refused; ^ is the difference"),
    _two(multiply, "torch.mul", note="of masks: and"),
    _two(divide, "torch.div", FRACTIONS, domains=(ALL, NONZERO)),
    _two(
        power,
        "torch.pow",
        NUMBERS,
        domains=(POSITIVE, ALL),
        note="of a negative number with respect to the exponent: NaN",
    ),
    _two(maximum, "torch.maximum", kinks=("ties",)),
    _two(minimum, "torch.minimum", kinks=("ties",)),
    _one(negative, "torch.neg", NUMBERS, note="of masks: refused; ~ inverts"),
    _one(abs, "torch.abs", NUMBERS, kinks=(0.0,)),
    _one(square, "torch.square", ANY, note="PyTorch's square of a mask has integers"),
    _one(exp, "torch.exp"),
    _one(expm1, "torch.expm1"),
    _one(log, "torch.log", domains=(POSITIVE,)),
    _one(log1p, "torch.log1p", domains=(ABOVE_MINUS_1,)),
    _one(sqrt, "torch.sqrt", domains=(POSITIVE,), note="defined at 0, with an infinite slope"),
    _one(rsqrt, "torch.rsqrt", domains=(POSITIVE,)),
    _one(sin, "torch.sin"),
    _one(cos, "torch.cos"),
    _one(erf, "torch.erf"),
    _one(
        clip,
        "torch.clamp",
        NUMBERS,
        renamed={"low": "min", "high": "max"},
        kinks=("low", "high"),
        note="bounds are numbers, no tensors",
    ),
    Row(
        where,
        "elementwise",
        "torch.where",
        ANY,
        {"x": "...", "y": "..."},
        note="the condition comes first: a mask, which broadcasts and has no gradient",
    ),
    _one(
        astype,
        "torch.Tensor.to",
        CHOSEN,
        note="integers and bools have no gradient; explicit, so it rounds",
    ),
    # activations
    _one(relu, "torch.nn.functional.relu", kinks=(0.0,), note="integers stay integers there"),
    _one(
        leaky_relu,
        "torch.nn.functional.leaky_relu",
        renamed={"a": "negative_slope"},
        kinks=(0.0,),
    ),
    _one(
        prelu,
        "torch.nn.functional.prelu",
        shapes={"x": "N C ...", "a": "C"},
        renamed={"a": "weight"},
        kinks=(0.0,),
        note="a may also be a number",
    ),
    _one(elu, "torch.nn.functional.elu", kinks=(0.0,), note="smooth if alpha is 1"),
    _one(selu, "torch.nn.functional.selu", kinks=(0.0,)),
    _one(gelu, "torch.nn.functional.gelu"),
    _one(silu, "torch.nn.functional.silu"),
    _one(sigmoid, "torch.sigmoid"),
    _one(tanh, "torch.tanh"),
    _one(
        softplus,
        "torch.nn.functional.softplus",
        note="PyTorch's is linear above a threshold of 20",
    ),
    _one(
        hardtanh,
        "torch.nn.functional.hardtanh",
        kinks=("min_val", "max_val"),
        note="integers stay integers there",
    ),
    # reductions
    _reduction(sum, "torch.sum", TOTAL),
    _reduction(mean, "torch.mean", note="integers and masks are refused there"),
    _reduction(
        var,
        "torch.var",
        renamed={"ddof": "correction"},
        note="ddof is 0 unless given, PyTorch's correction 1",
    ),
    _reduction(
        std,
        "torch.std",
        renamed={"ddof": "correction"},
        kinks=("all zero",),
        note="ddof is 0 unless given, PyTorch's correction 1; the slope at 0 is taken as 0",
    ),
    _reduction(max, "torch.amax", ANY, kinks=("ties",)),
    _reduction(min, "torch.amin", ANY, kinks=("ties",)),
    _reduction(argmax, "torch.argmax", POSITION, axes=("None", "int"), gradient=False),
    _reduction(
        norm,
        "torch.linalg.vector_norm",
        kinks=("all zero",),
        note="the Euclidean one; its slope at 0 is taken as 0",
    ),
    _reduction(logsumexp, "torch.logsumexp", note="PyTorch needs an axis"),
    Row(
        softmax,
        "along",
        "torch.softmax",
        FRACTIONS,
        renamed={"axis": "dim"},
        axes=ANY_AXES,
        across_batch="axis",
        note="along the last axis unless given",
    ),
    Row(
        log_softmax,
        "along",
        "torch.log_softmax",
        FRACTIONS,
        renamed={"axis": "dim"},
        axes=ANY_AXES,
        across_batch="axis",
        note="along the last axis unless given",
    ),
    # shapes
    _moves(
        reshape,
        "torch.reshape",
        across_batch="yes",
        note="also of several numbers: reshape(x, 2, 3)",
    ),
    _moves(
        transpose,
        "torch.permute",
        renamed={"axes": "dims"},
        across_batch="yes",
        note="the axes in reverse order unless given",
    ),
    _moves(flatten, "torch.flatten", renamed={"start_axis": "start_dim"}, across_batch="yes"),
    _moves(squeeze, "torch.squeeze", renamed={"axis": "dim"}, axes=ANY_AXES),
    _moves(flip, "torch.flip", renamed={"axis": "dims"}, axes=ANY_AXES),
    _moves(
        split,
        "torch.split",
        renamed={"size": "split_size_or_sections", "axis": "dim"},
        axes=ONE_AXIS,
    ),
    _moves(broadcast_to, "torch.broadcast_to", renamed={"shape": "size"}, across_batch="no"),
    _moves(
        pad,
        "torch.nn.functional.pad",
        renamed={"widths": "pad"},
        across_batch="no",
        note="widths are pairs (before, after) from the first axis on; PyTorch lists the numbers "
        "from the last axis backwards",
    ),
    _moves(
        concatenate,
        "torch.cat",
        "join",
        shapes={"xs": "..."},
        renamed={"xs": "tensors", "axis": "dim"},
        axes=ONE_AXIS,
    ),
    _moves(
        stack,
        "torch.stack",
        "join",
        shapes={"xs": "..."},
        renamed={"xs": "tensors", "axis": "dim"},
        axes=ONE_AXIS,
    ),
    _moves(to, "torch.Tensor.to", across_batch="no", note="'numpy' or 'cupy'"),
    # products
    Row(
        matmul,
        "matrix",
        "torch.matmul",
        PRODUCT,
        {"x": "N I", "y": "I O"},
        note="also vectors and stacks of matrices, as in NumPy",
    ),
    Row(
        linear,
        "matrix",
        "torch.nn.functional.linear",
        PRODUCT,
        {"x": "N I", "weight": "O I", "bias": "O"},
    ),
    Row(
        conv2d,
        "image",
        "torch.nn.functional.conv2d",
        PRODUCT,
        {"x": "N C H W", "weight": "O C h w", "bias": "O"},
        note="with groups, weight is (O, C / groups, h, w)",
    ),
    Row(
        max_pool2d,
        "image",
        "torch.nn.functional.max_pool2d",
        ANY,
        {"x": "N C H W"},
        kinks=("ties",),
    ),
    Row(
        avg_pool2d,
        "image",
        "torch.nn.functional.avg_pool2d",
        FRACTIONS,
        {"x": "N C H W"},
        note="without ceil_mode and divisor_override",
    ),
    Row(
        exact_convolution,
        "context",
        None,
        ANY,
        {},
        gradient=False,
        note="PyTorch has no such choice for one block of code",
    ),
    # normalizers
    Row(
        batch_norm,
        "normalizer",
        "torch.nn.functional.batch_norm",
        FRACTIONS,
        {"x": "N C ...", "running_mean": "C", "running_var": "C", "weight": "C", "bias": "C"},
        across_batch="training",
    ),
    Row(
        layer_norm,
        "normalizer",
        "torch.nn.functional.layer_norm",
        FRACTIONS,
        {"x": "N C", "weight": "C", "bias": "C"},
        note="normalized_shape is that of the last axes",
    ),
    Row(
        rms_norm,
        "normalizer",
        "torch.nn.functional.rms_norm",
        FRACTIONS,
        {"x": "N C", "weight": "C"},
        note="eps is 1e-5 unless given, PyTorch's the machine epsilon",
    ),
    Row(
        group_norm,
        "normalizer",
        "torch.nn.functional.group_norm",
        FRACTIONS,
        {"x": "N C ...", "weight": "C", "bias": "C"},
    ),
    Row(
        weight_norm,
        "normalizer",
        None,
        FRACTIONS,
        {"weight": "O I", "scale": "O"},
        note="PyTorch has it as a parametrization of layers",
    ),
    Row(
        normprop,
        "normalizer",
        None,
        FRACTIONS,
        {"x": "N I", "weight": "O I", "gamma": "O", "beta": "O"},
        kinks=("activation",),
        note="the paper's equation",
    ),
    Row(
        dropout,
        "normalizer",
        "torch.nn.functional.dropout",
        FRACTIONS,
        random=True,
    ),
    # losses
    Row(
        cross_entropy,
        "loss",
        "torch.nn.functional.cross_entropy",
        FRACTIONS,
        {"x": "N C ..."},
        {"labels": "target"},
        across_batch="reduction",
        note="labels are integers (N, ...); without class weights and probabilities as labels",
    ),
    Row(
        nll_loss,
        "loss",
        "torch.nn.functional.nll_loss",
        FRACTIONS,
        {"x": "N C ..."},
        {"labels": "target"},
        across_batch="reduction",
        note="labels are integers (N, ...); without class weights",
    ),
    Row(
        mse_loss,
        "loss",
        "torch.nn.functional.mse_loss",
        FRACTIONS,
        {"x": "...", "target": "..."},
        across_batch="reduction",
        note="both have one shape",
    ),
]

functions: Mapping[str, Row] = MappingProxyType({row.name: row for row in ROWS})
