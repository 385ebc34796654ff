"""Differentiable functions: of each, a forward and its gradient side by side."""

from typing import Any

from ..engine.tensor import Tensor

# isort: off
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
    compare,
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
    index,
    pad,
    reshape,
    split,
    squeeze,
    stack,
    to,
    transpose,
)
from .table import Row as Row, functions as functions

__all__ = [
    "abs",
    "add",
    "argmax",
    "astype",
    "avg_pool2d",
    "batch_norm",
    "broadcast_to",
    "clip",
    "concatenate",
    "conv2d",
    "cos",
    "cross_entropy",
    "divide",
    "dropout",
    "elu",
    "erf",
    "exact_convolution",
    "exp",
    "expm1",
    "flatten",
    "flip",
    "gelu",
    "group_norm",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse_loss",
    "multiply",
    "negative",
    "nll_loss",
    "norm",
    "normprop",
    "pad",
    "power",
    "prelu",
    "relu",
    "reshape",
    "rms_norm",
    "rsqrt",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "tanh",
    "to",
    "transpose",
    "var",
    "weight_norm",
    "where",
]
METHODS: list[Any] = [
    abs,
    argmax,
    astype,
    clip,
    exp,
    flatten,
    log,
    max,
    mean,
    min,
    norm,
    relu,
    reshape,
    sqrt,
    squeeze,
    std,
    sum,
    tanh,
    to,
    transpose,
    var,
]
OPERATORS: dict[str, Any] = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": divide,
    "pow": power,
    "matmul": matmul,
}
COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "invert": "invert",
}


def _attach() -> None:
    """Give Tensor its operators and methods."""
    for function in METHODS:
        setattr(Tensor, function.__name__, function)
    Tensor.T = property(transpose, doc="The axes in reverse order.")
    Tensor.__getitem__, Tensor.__neg__, Tensor.__abs__ = index, negative, abs
    for name, function in OPERATORS.items():
        setattr(Tensor, f"__{name}__", function)
        setattr(Tensor, f"__r{name}__", _swapped(function))
    for name, ufunc in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", _partial(ufunc))
    for name, ufunc in {"eq": "equal", "ne": "not_equal"}.items():
        setattr(Tensor, f"__{name}__", _equality(ufunc))


def _partial(name: str) -> Any:
    # unlike functools.partial, it becomes a method
    return lambda *operands: compare(name, *operands)


def _swapped(function: Any) -> Any:
    return lambda x, y: function(y, x)


def _equality(name: str) -> Any:
    """Element by element with tensors, arrays, numbers and lists; a tensor never equals anything
    else, such as None."""

    def equality(x: Tensor, y: Any) -> Any:
        has_elements = isinstance(y, (Tensor, float, int, list)) or hasattr(y, "dtype")
        return compare(name, x, y) if has_elements else NotImplemented

    return equality


OPERATORS |= {name: _partial(f"bitwise_{name}") for name in ("and", "or", "xor")}
_attach()
