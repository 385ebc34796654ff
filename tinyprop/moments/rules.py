"""How the moments of our activations are computed: closed forms, and quadrature around the origin.

A rule takes mean and std of U (and parameters) as float64 tensors of one shape and gives mean, std
and E[sigma'^2] of sigma(U). All are differentiable to any order, and accurate relative to their
value, also where a unit is nearly dead: sums of positive terms, not differences of large numbers.
So no variance is an E sigma^2 - (E sigma)^2, although GELU and ELU have closed forms of that kind:
GELU's keeps 5 digits at N(-16, 1), ELU's 10 at N(0.5, 0.001^2)."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import functional as F
from ..engine.arrays import Array, array_module, float64
from ..engine.graph import Op
from ..engine.tensor import Tensor
from ..functional.activations import SELU_ALPHA, SELU_SCALE
from ..functional.special import erfc
from .bivariate import TINY
from .quadrature import (
    FARTHEST,
    NEGLIGIBLE,
    Grid,
    Mills,
    around_origin,
    not_too_narrow,
    outer,
    root,
    rule,
)

Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]  # mean, std and slope2 of sigma(U)


class NormalCdf(Op):
    """The distribution function of N(0, 1), accurate in its left tail."""

    def forward(self, x: Array) -> Array:
        return 0.5 * erfc(-math.sqrt(0.5) * x)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * normal_density(x)


def normal_density(x: Tensor) -> Tensor:
    return F.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def piecewise_linear(
    mean: Tensor, std: Tensor, kinks: Sequence[Any], slopes: Sequence[Any], at_kink: Any
) -> Triple:
    """Continue the line that the mean lies on, and add, for each kink, a ReLU that starts there and
    leads away.

    With the kink x <= 0 standard deviations from the mean, that ReLU is std (Z + x)_+, and its
    moments of order 0, 1, 2 are Phi(x), phi(x) Mills_1(-x) and 2 phi(x) Mills_2(-x): small and
    accurate. The rest are sums and products. `at_kink` is the value at the first kink."""
    value, here = at_kink + slopes[0] * (mean - kinks[0]), slopes[0]
    relus: list[Any] = []
    for i, kink in enumerate(kinks):
        bend = slopes[i + 1] - slopes[i]
        distance, passed = mean - kink, mean > kink
        beyond = passed.astype(float64)
        value = F.where(passed, at_kink + slopes[i + 1] * distance, value)
        here = here + bend * beyond
        away = 1.0 - 2.0 * beyond  # the ReLU leads to the right of the mean, +1, or to the left, -1
        floor = array_module(mean.data).maximum(abs(distance.data) / FARTHEST, TINY)
        x = away * distance / F.maximum(std, floor)
        density = normal_density(x)
        relus.append(
            (
                bend,
                away,
                passed,
                x,
                NormalCdf()(x),
                density * Mills(1)(-x),
                2.0 * density * Mills(2)(-x),
            )
        )
        if i + 1 < len(kinks):
            at_kink = at_kink + slopes[i + 1] * (kinks[i + 1] - kink)
    out_mean, slope2 = value, here * here
    variance = slope2
    for i, (bend, away, passed, x, probability, first, second) in enumerate(relus):
        # E s'^2 changes from (slope before)^2 to (slope after)^2 at the kink, or, if that lies
        # left, the other way.
        slope2 = slope2 + away * bend * (slopes[i] + slopes[i + 1]) * probability
        out_mean = out_mean + bend * std * first
        variance = (
            variance
            + 2.0 * here * away * bend * probability
            + bend * bend * (second - first * first)
        )
        for nearer_left in relus[:i]:
            other_bend, _, other_passed, other_x, _, other_first, other_second = nearer_left
            gap = away * (other_x - x)
            both_left = other_second + gap * other_first
            # or on either side: never both at work
            both_right = F.where(other_passed, 0.0, second + gap * first)
            product = F.where(passed, both_left, both_right)
            variance = variance + 2.0 * bend * other_bend * (product - first * other_first)
    return out_mean, std * root(variance), slope2


def sin(mean: Tensor, std: Tensor) -> Triple:
    """With v = std^2, the variance is (1 - e^-v) ((1 - e^-v) / 2 + e^-v cos^2)."""
    positive = F.maximum(std, TINY)
    v = positive * positive
    cosine = F.sin(mean + math.pi / 2)
    remaining = F.exp(-v)
    half = F.tanh(0.5 * v)
    lost = 2.0 * half / (1.0 + half)  # 1 - exp(-v), without cancellation
    variance = lost / v * (0.5 * lost + remaining * cosine * cosine)
    slope2 = 0.5 * lost * (1.0 + remaining) + remaining * remaining * cosine * cosine
    return F.exp(-0.5 * v) * F.sin(mean), std * root(variance), slope2


def erf(mean: Tensor, std: Tensor) -> Triple:
    """With T Owen's function and v = std^2, E erf^2 = 1 - 8 T(h, b) and (E erf)^2 = 1 - 8 T(h, 1),
    where h = mean / sqrt(1/2 + v) and b = 1 / sqrt(1 + 4v): the variance is 8 (T(h, 1) - T(h, b)),
    that is (4/pi) times the integral of exp(-h^2 (1 + x^2) / 2) / (1 + x^2) from b to 1."""
    positive = F.maximum(std, TINY)
    v = positive * positive
    b = 1.0 / F.sqrt(1.0 + 4.0 * v)
    farthest = FARTHEST * array_module(v.data).sqrt((0.5 + v.data) / (1.0 + b.data * b.data))
    near = F.maximum(F.minimum(mean, farthest), -farthest)
    h = near / F.sqrt(0.5 + v)
    # One panel, no longer than what matters of it. A cut there is beyond rounding, so it need not
    # be differentiated.
    xp = array_module(h.data)
    decay = 2.0 * NEGLIGIBLE / xp.maximum(h.data * h.data, 1.0)
    cut = decay / (b.data + xp.sqrt(b.data * b.data + decay))
    whole = 4.0 * b * b / (1.0 + b)  # (1 - b) / v
    length = F.where(v * whole > cut, cut, v * whole)
    nodes, weights = rule(mean.backend)
    x = b.reshape(*b.shape, 1) + length.reshape(*b.shape, 1) * nodes
    square = 1.0 + x * x
    area = (weights * F.exp(-0.5 * (h * h).reshape(*h.shape, 1) * square) / square).sum(axis=-1)
    variance = (4.0 / math.pi) * (length / v) * area
    slope2 = (4.0 / math.pi) * b * F.exp(-2.0 * near * near * b * b)
    return F.erf(mean / F.sqrt(1.0 + 2.0 * v)), std * root(variance), slope2


# Quadrature.


def _bent_at_origin(
    value: Callable[..., Tensor],
    slope: Callable[..., Tensor],
    mean: Tensor,
    std: Tensor,
    *params: Tensor,
    kink: bool = False,
) -> Triple:
    """E[value(U)] - value(mean), the standard deviation of value(U), and E[slope(U)^2].

    Where the slope jumps, nodes must stay on their side of the kink: they then move with the mean.
    Otherwise they are fixed, which makes gradients expectations of slopes, the more accurate form.
    """
    wide = not_too_narrow(mean, std)
    half_width, starts, lengths = around_origin(mean.data, wide.data)
    origin = F.clip(-mean / wide, -half_width, half_width)
    origin = origin if kink else origin.detach()
    grid = Grid(origin.reshape(*mean.shape, 1) + starts, Tensor(lengths))
    u, at_nodes = grid.points(mean, wide), [outer(p) for p in params]
    here = value(mean, *params)
    shift, spread = grid.shift_and_std(value(u, *at_nodes) - outer(here.detach()))
    slopes = slope(u, *at_nodes)
    # 1, unless that is 1e-6: then it follows the line through the mean, which has a slope
    part = std / wide
    line = (1.0 - part.detach()) * (here - here.detach())
    return shift * part + line, spread * part, grid.expectation(slopes * slopes)


def _sigmoid_on_the_left(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Triple]:
    """Where the mean was right of 0, its mirror image on the left, where sigmoid has digits for its
    small values."""
    right = mean > 0
    left = F.where(right, -mean, mean)
    return (
        right,
        left.detach(),
        _bent_at_origin(F.sigmoid, lambda u: F.sigmoid(u) * F.sigmoid(-u), left, std),
    )


def sigmoid(mean: Tensor, std: Tensor) -> Triple:
    right, left, (shift, spread, slope2) = _sigmoid_on_the_left(mean, std)
    out_mean = F.sigmoid(left) + shift
    return F.where(right, 1.0 - out_mean, out_mean), spread, slope2


def tanh(mean: Tensor, std: Tensor) -> Triple:
    # tanh(u) = 2 sigmoid(2u) - 1
    right, left, (shift, spread, slope2) = _sigmoid_on_the_left(2.0 * mean, 2.0 * std)
    out_mean = F.tanh(0.5 * left) + 2.0 * shift
    return F.where(right, -out_mean, out_mean), 2.0 * spread, 16.0 * slope2


def smooth(
    value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Callable[..., Triple]:
    """The rule of a smooth function that is accurate relative to its value everywhere."""

    def find(mean: Tensor, std: Tensor) -> Triple:
        shift, spread, slope2 = _bent_at_origin(value, slope, mean, std)
        return value(mean.detach()) + shift, spread, slope2

    return find


def elu(mean: Tensor, std: Tensor, alpha: Tensor | float = 1.0) -> Triple:
    # elu + alpha, which has digits where elu is nearly -alpha
    def above_floor(u: Tensor, alpha: Tensor) -> Tensor:
        return F.where(u > 0, u + alpha, alpha * F.exp(F.clip(u, None, 0.0)))

    def slope(u: Tensor, alpha: Tensor) -> Tensor:
        return F.where(u > 0, 1.0, alpha * F.exp(F.clip(u, None, 0.0)))

    alpha = alpha + 0.0 * mean
    shift, spread, slope2 = _bent_at_origin(above_floor, slope, mean, std, alpha, kink=True)
    return above_floor(mean.detach(), alpha.detach()) + shift - alpha, spread, slope2


def selu(mean: Tensor, std: Tensor) -> Triple:
    out_mean, spread, slope2 = elu(mean, std, SELU_ALPHA)
    return SELU_SCALE * out_mean, SELU_SCALE * spread, SELU_SCALE**2 * slope2
