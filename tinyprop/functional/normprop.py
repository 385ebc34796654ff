"""The equation of Normalization Propagation, section 4.3 of the paper."""

from collections.abc import Callable
from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.graph import Op
from ..engine.tensor import Operand, Tensor, as_tensor
from .activations import relu
from .arithmetic import where
from .convolution import conv2d
from .linear import linear, product
from .normalization import WeightNorm, per_channel, row_lengths, weight_norm
from .reductions import sum as sum_over


def normprop(
    x: Operand,
    weight: Operand,
    gamma: Operand,
    beta: Operand,
    c1: Any,
    c2: Any,
    weighted_sum: Callable[[Tensor, Tensor], Tensor] = linear,
    activation: Callable[[Tensor], Tensor] = relu,
) -> Tensor:
    """(1/c1) [s(gamma w.x / |w| + beta) - c2], with the activation s and a row w of weights for
    each unit.

    `gamma` and `beta` have one value for each unit, and so have `c1` and `c2`, unless they are
    numbers. `weighted_sum(x, weight)` is `linear`, or a convolution.

    >>> F.normprop([[3.0, 4.0]], [[0.0, 2.0]], gamma=[1.0], beta=[0.0], c1=0.5, c2=1.0)
    tensor([[6.]])
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    gamma, beta = as_tensor(gamma, like=weight), as_tensor(beta, like=weight)
    is_linear = weighted_sum is linear and x.ndim == weight.ndim == 2
    if is_linear and x.shape[1] == weight.shape[1] and gamma.shape == weight.shape[:1]:
        u = NormalizedLinear()(x, weight, gamma)
    else:
        u = weighted_sum(x, weight_norm(weight, gamma))
    made_here = getattr(weighted_sum, "func", weighted_sum) in (linear, conv2d)
    return normalized_activation(u, beta, c1, c2, activation, weight.ndim, overwrite=made_here)


def normalized_activation(
    u: Tensor,
    beta: Tensor,
    c1: Any,
    c2: Any,
    activation: Callable[[Tensor], Tensor],
    weight_ndim: int,
    overwrite: bool = False,
) -> Tensor:
    """(1/c1) [s(u + beta) - c2]: the equation from the weighted sums u on, which weights with this
    number of axes have given. With `overwrite`, nobody else needs u, and its memory may hold the
    result."""
    units_on_axis_1 = u.ndim == weight_ndim
    if activation is relu and units_on_axis_1:
        return NormalizedReLU(overwrite)(u, beta, c1, c2)
    rest = weight_ndim - 1  # (units,) -> (units, 1, 1) for images
    activated = activation(u + per_channel(beta, rest))
    return (activated - per_unit(c2, rest)) / per_unit(c1, rest)


def per_unit(values: Any, ndim: int) -> Any:
    """(units,) -> (units, 1, ...) with `ndim` axes; a number stays a number."""
    return per_channel(values, ndim) if getattr(values, "ndim", 0) else values


class NormalizedLinear(Op):
    """gamma w.x / |w| for x (N, in) and rows of w (units, in), as the paper writes it."""

    floating = True

    def forward(self, x: Array, w: Array, gamma: Array) -> Array:
        scale = (gamma / row_lengths(w)).astype(w.dtype)
        return product(x, w.T) * scale

    def backward(self, g: Tensor, x: Tensor, w: Tensor, gamma: Tensor) -> Any:
        of_w, of_gamma = WeightNorm(1.0).backward(g.T @ x, w, gamma)
        return lambda: g @ weight_norm(w, gamma), of_w, of_gamma


class NormalizedReLU(Op):
    """(max(u + beta, 0) - c2) / c1 for u (N, units, ...); the others are numbers, or have one value
    for each unit. With `overwrite`, nobody else needs u, and its memory may hold the result."""

    floating = True

    def __init__(self, overwrite: bool = False):
        self.overwrite = overwrite

    def forward(self, u: Array, beta: Array, c1: Array, c2: Array) -> Array:
        rest = u.ndim - 1  # (units,) -> (units, 1, 1) for images
        activation = array_module(u).maximum(u + per_unit(beta, rest), 0.0)
        return (activation - per_unit(c2, rest)) / per_unit(c1, rest)

    def when_off(self, like: Array, c1: Any, c2: Any) -> Array:
        """The result where the ReLU is off, rounded as in `forward`."""
        return (array_module(like).zeros((), like.dtype) - c2) / c1

    def backward(self, g: Tensor, c1: Any, c2: Any, out: Tensor) -> Any:
        numbers = (c._data if isinstance(c, Tensor) else c for c in (c1, c2))
        is_off = out == per_unit(self.when_off(out._data, *numbers), g.ndim - 1)
        g_u = where(is_off, 0.0, g) / per_unit(c1, g.ndim - 1)  # NaN passes its gradient
        others = (0, *range(2, g.ndim))  # all axes but that of the units
        return (
            g_u,
            lambda: sum_over(g_u, others),
            lambda: -sum_over(g * out, others) / c1,
            lambda: -sum_over(g, others) / c1,
        )
