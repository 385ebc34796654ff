"""Differentiable functions: of each, a forward and its gradient side by side.

>>> import tinyprop.functional as F
>>> F.softmax([0.0, 0.0])
tensor([0.5, 0.5])
"""

from typing import Any

from ..engine.tensor import Tensor
from .activations import elu, gelu, hardtanh, leaky_relu, prelu, relu, selu, sigmoid, silu, softplus, tanh
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
    mask,
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
from .normalization import batch_norm, dropout, weight_norm
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
    reshape_method,
    split,
    squeeze,
    stack,
    take,
    to,
    transpose,
    transpose_method,
)

__all__ = [
    "abs", "add", "argmax", "astype", "avg_pool2d", "batch_norm", "broadcast_to", "clip", "compare", "concatenate",
    "conv2d", "cos", "cross_entropy", "divide", "dropout", "elu", "erf", "exact_convolution", "exp", "expm1", "flatten",
    "flip", "gelu", "hardtanh", "index", "leaky_relu", "linear", "log", "log1p", "log_softmax", "logsumexp", "mask",
    "matmul", "max", "max_pool2d", "maximum", "mean", "min", "minimum", "mse_loss", "multiply", "negative", "nll_loss",
    "norm", "pad", "power", "prelu", "relu", "reshape", "rsqrt", "selu", "sigmoid", "silu", "sin", "softmax", "softplus",
    "split", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "take", "tanh", "to", "transpose", "var",
    "weight_norm", "where",
]  # fmt: skip


def _attach() -> None:
    """Give Tensor its operators and methods."""
    for function in (
        abs, argmax, astype, clip, exp, flatten, log, max, mean, min, norm, relu, sqrt, squeeze, std, sum, tanh, to, var
    ):  # fmt: skip
        setattr(Tensor, function.__name__, function)
    Tensor.reshape, Tensor.transpose, Tensor.T = reshape_method, transpose_method, property(lambda x: transpose(x))
    Tensor.T.__doc__ = "The axes in reverse order."
    Tensor.__getitem__, Tensor.__neg__, Tensor.__abs__ = index, negative, abs
    operators = {"add": add, "sub": subtract, "mul": multiply, "truediv": divide, "pow": power, "matmul": matmul}
    for name, function in operators.items():
        setattr(Tensor, f"__{name}__", function)
        setattr(Tensor, f"__r{name}__", _swapped(function))
    comparisons = {
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
        "eq": "equal",
        "ne": "not_equal",
    }
    for name, ufunc in comparisons.items():
        setattr(Tensor, f"__{name}__", _bound(compare, ufunc))
    for name, ufunc in {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.items():
        setattr(Tensor, f"__{name}__", _bound(mask, ufunc))
        setattr(Tensor, f"__r{name}__", _swapped(_bound(mask, ufunc)))
    Tensor.__invert__ = _bound(mask, "invert")


def _swapped(function: Any) -> Any:
    return lambda x, y: function(y, x)


def _bound(function: Any, name: str) -> Any:
    return lambda *operands: function(name, *operands)


def _equality(name: str) -> Any:
    """Elementwise for tensors, arrays, numbers and lists; a tensor is never equal to anything else, such as None."""
    kinds = (Tensor, bool, int, float, list)
    return lambda x, y: compare(name, x, y) if isinstance(y, kinds) or hasattr(y, "dtype") else NotImplemented


_attach()
