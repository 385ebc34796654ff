"""Activations. At a kink the piecewise ones take the slope from the left, as PyTorch does; NaN
passes its gradient."""

import math
from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.graph import unary
from ..engine.stand_in import accepts_stand_ins
from ..engine.tensor import Operand, Tensor, as_tensor
from .arithmetic import Floating, Ufunc, as_bound, clip, erf, expm1, multiply, where

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


class ReLU(Floating):
    """max(x, 0).

    >>> F.relu([-1.0, 2.0])
    tensor([0., 2.])
    """

    def forward(self, x: Array) -> Array:
        return array_module(x).maximum(x, 0.0)

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return where(out == 0, 0.0, g)  # NaN passes its gradient


class PReLU(Floating):
    def forward(self, x: Array, a: Array) -> Array:
        xp = array_module(x)
        return xp.maximum(x, 0.0) + a * xp.minimum(x, 0.0)

    def backward(self, g: Tensor, x: Tensor, a: Tensor) -> Any:
        return lambda: where(x <= 0, g * a, g), lambda: g * clip(x, None, 0.0)


class Tanh(Ufunc):
    """The hyperbolic tangent.

    >>> F.tanh([0.0, 100.0])
    tensor([0., 1.])
    """

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return g * (1.0 - out * out)


class Sigmoid(Floating):
    """1 / (1 + exp(-x)).

    >>> F.sigmoid([-1000.0, 0.0, 1000.0])
    tensor([0. , 0.5, 1. ])
    """

    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        return xp.exp(-xp.logaddexp(0.0, -x))  # neither tail overflows or loses its digits

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return g * out * (1.0 - out)


class Softplus(Floating):
    """log(1 + exp(x)), a smooth ReLU.

    >>> F.softplus([-1000.0, 1000.0])
    tensor([   0., 1000.])
    """

    def forward(self, x: Array) -> Array:
        return array_module(x).logaddexp(0.0, x)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * sigmoid(x)


class HardTanh(Floating):
    def __init__(self, low: float, high: float):
        self.low, self.high = low, high

    def forward(self, x: Array) -> Array:
        return array_module(x).clip(x, self.low, self.high)

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return where((out <= self.low) | (out >= self.high), 0.0, g)


relu = unary(ReLU)
tanh = unary(Tanh)
sigmoid = unary(Sigmoid)
softplus = unary(Softplus)


def hardtanh(x: Operand, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x limited to the range from min_val to max_val. Unlike that of `clip`, its slope at both
    bounds is 0, as in PyTorch.

    >>> F.hardtanh([-3.0, 0.5])
    tensor([-1. ,  0.5])
    >>> F.hardtanh([-3.0, 0.5, 8.0], 0.0, 6.0)
    tensor([0. , 0.5, 6. ])
    """
    return HardTanh(as_bound(min_val), as_bound(max_val))(x)


@accepts_stand_ins
def prelu(x: Operand, a: Operand) -> Tensor:
    """x where positive, a x elsewhere; `a` is learnable: a number, or one for each channel (axis
    1).

    >>> F.prelu([[-2.0, -2.0], [1.0, 1.0]], [0.25, 0.5])
    tensor([[-0.5, -1. ],
            [ 1. ,  1. ]])
    """
    x = as_tensor(x)
    if not isinstance(a, (int, float)):
        a = as_tensor(a, like=x)
        if a.size == 1:
            a = a.reshape(())
        elif a.ndim == 1 and x.ndim > 2:
            a = a.reshape(-1, *[1] * (x.ndim - 2))  # (C,) -> (C, 1, 1)
    return PReLU()(x, a)


@accepts_stand_ins
def leaky_relu(x: Operand, a: float = 0.01) -> Tensor:
    """x where positive, a x elsewhere, with a fixed slope a.

    >>> F.leaky_relu([-2.0, 2.0], a=0.1)
    tensor([-0.2,  2. ])
    """
    return PReLU()(x, a)


@accepts_stand_ins
def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """x where positive, alpha (exp(x) - 1) elsewhere.

    >>> F.elu([-1000.0, 2.0])
    tensor([-1.,  2.])
    """
    x = as_tensor(x)
    return where(x > 0, x, alpha * expm1(clip(x, None, 0.0)))


@accepts_stand_ins
def selu(x: Operand) -> Tensor:
    """The scaled ELU whose output has mean 0 and variance 1 for N(0, 1) input.

    >>> F.selu([0.0, 1.0])
    tensor([0.      , 1.050701])
    """
    return SELU_SCALE * elu(x, SELU_ALPHA)


@accepts_stand_ins
def gelu(x: Operand) -> Tensor:
    """x Phi(x), with Phi the distribution function of N(0, 1).

    >>> F.gelu([0.0, 100.0])
    tensor([  0., 100.])
    """
    x = as_tensor(x)
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


@accepts_stand_ins
def silu(x: Operand) -> Tensor:
    """x sigmoid(x).

    >>> F.silu([0.0, 100.0])
    tensor([  0., 100.])
    """
    return multiply(x, sigmoid(x))
