"""Differentiable functions: of each, a forward and its gradient side by side.

>>> import tinyprop.functional as F
>>> F.softmax([0.0, 0.0])
tensor([0.5, 0.5])
"""

import sys

from ..engine.tensor import announce
from .activations import elu, gelu, hardtanh, leaky_relu, prelu, relu, selu, sigmoid, silu, softplus, tanh
from .arithmetic import (
    abs,
    add,
    astype,
    clip,
    compare,
    divide,
    erf,
    exp,
    log,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    sin,
    sqrt,
    subtract,
    where,
)
from .convolution import conv2d, exact_convolution
from .fused import scaled_rows, shifted_relu
from .linear import linear, matmul
from .pooling import avg_pool2d, max_pool2d
from .rectified import rectified_conv2d
from .reductions import cross_entropy, log_softmax, logsumexp, max, mean, softmax, sum, var
from .shapes import broadcast_to, concatenate, index, pad, reshape, stack, take, to, transpose

announce(sys.modules[__name__])

__all__ = [
    "abs", "add", "astype", "avg_pool2d", "broadcast_to", "clip", "compare", "concatenate", "conv2d", "cross_entropy",
    "divide", "elu", "erf", "exact_convolution", "exp", "gelu", "hardtanh", "index", "leaky_relu", "linear", "log",
    "log_softmax", "logsumexp", "matmul", "max", "max_pool2d", "maximum", "mean", "minimum", "multiply", "negative",
    "pad", "power", "prelu", "rectified_conv2d", "relu", "reshape", "scaled_rows", "selu", "shifted_relu",
    "sigmoid", "silu", "sin", "softmax", "softplus", "sqrt", "stack", "subtract", "sum", "take", "tanh", "to",
    "transpose", "var", "where",
]  # fmt: skip
