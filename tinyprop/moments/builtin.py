"""The activations that tinyprop ships, registered as a user would, with their closed forms."""

from collections.abc import Callable, Sequence
from typing import Any

from .. import functional as F
from ..engine.arrays import Array
from ..engine.tensor import Tensor
from ..functional.activation import Activation, activations
from . import rules
from .bivariate import Pair, erf_covariance, gelu_covariance, lines_covariance, sin_covariance
from .exponential import elu_covariance, selu_covariance

PRELU_START = 0.25  # the slope that a PReLU starts with, as in He et al. (2015)


def identity(x: Tensor) -> Tensor:
    return x


def piecewise_linear(
    function: Callable[..., Tensor],
    kinks: Sequence[float],
    slopes: Callable[..., Sequence[Any]],
    **more: Any,
) -> Activation:
    """The record of a continuous function of lines that is 0 at its first kink. `slopes`, a
    function of its parameters, are those before, between and after the kinks."""

    def moments(mean: Tensor, std: Tensor, **params: Any) -> rules.Triple:
        if not kinks:
            slope = slopes(**params)[0]
            return slope * mean, abs(slope) * std, 0.0 * mean + slope * slope
        return rules.piecewise_linear(mean, std, kinks, slopes(**params), 0.0)

    def dual(rho: Array, means: Pair, stds: Pair, **params: Any) -> Array:
        return lines_covariance(kinks, slopes(**params), rho, means, stds)

    return Activation(function, kinks=kinks, moments=moments, dual=dual, **more)


def rectifier(
    function: Callable[..., Tensor], slopes: Callable[..., Any], **more: Any
) -> Activation:
    """A line on each side of 0."""
    return piecewise_linear(function, [0.0], slopes, rectifier=True, homogeneous=True, **more)


def hardtanh_moments(
    mean: Tensor, std: Tensor, min_val: Any = -1.0, max_val: Any = 1.0
) -> rules.Triple:
    return rules.piecewise_linear(mean, std, [min_val, max_val], [0.0, 1.0, 0.0], min_val)


def hardtanh_dual(
    rho: Array, means: Pair, stds: Pair, min_val: Any = -1.0, max_val: Any = 1.0
) -> Array:
    return lines_covariance([min_val, max_val], [0.0, 1.0, 0.0], rho, means, stds)


gelu_moments = rules.smooth(
    lambda u: u * rules.NormalCdf()(u), lambda u: rules.NormalCdf()(u) + u * rules.normal_density(u)
)
silu_moments = rules.smooth(F.silu, lambda u: F.sigmoid(u) * (1.0 + u * F.sigmoid(-u)))
softplus_moments = rules.smooth(F.softplus, F.sigmoid)

BUILT_IN = [
    rectifier(F.relu, lambda: [0.0, 1.0]),
    rectifier(F.prelu, lambda a: [a, 1.0], parameters={"a": PRELU_START}),
    rectifier(F.leaky_relu, lambda a=0.01: [a, 1.0]),
    Activation(F.tanh, moments=rules.tanh),
    Activation(F.sigmoid, moments=rules.sigmoid),
    Activation(F.softplus, rectifier=True, moments=softplus_moments),
    Activation(F.elu, kinks=[0.0], rectifier=True, moments=rules.elu, dual=elu_covariance),
    Activation(F.selu, kinks=[0.0], moments=rules.selu, dual=selu_covariance),
    Activation(F.gelu, rectifier=True, moments=gelu_moments, dual=gelu_covariance),
    Activation(F.silu, rectifier=True, moments=silu_moments),
    Activation(F.hardtanh, kinks=[-1.0, 1.0], moments=hardtanh_moments, dual=hardtanh_dual),
    Activation(F.sin, moments=rules.sin, dual=sin_covariance),
    Activation(F.erf, moments=rules.erf, dual=erf_covariance),
    piecewise_linear(F.abs, [0.0], lambda: [-1.0, 1.0], homogeneous=True),
    piecewise_linear(identity, [], lambda: [1.0], homogeneous=True),
]

for activation in BUILT_IN:
    activations.register(activation)
