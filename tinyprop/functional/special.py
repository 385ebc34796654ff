"""erf and its relatives on arrays, which NumPy lacks and CuPy has."""

import math
from importlib import import_module

from ..engine.arrays import Array, array_module, backend_of


def on_device(name: str, x: Array) -> Array:
    """CuPy's special function of that name, whose result for float16 would be float64."""
    function = getattr(import_module("cupyx.scipy.special"), name)
    return function(x).astype(x.dtype, copy=False)


def erfcx(x: Array) -> Array:
    """exp(x^2) erfc(x) for x >= 0, to rounding.

    The midpoint rule for erfc(x) = (2/pi) exp(-x^2) integral_0^inf x exp(-t^2) / (t^2 + x^2) dt
    converges like exp(-pi^2 / h^2); the contribution of its poles at t = +-ix is known in closed
    form (Hunter and Regan, 1972)."""
    if backend_of(x) == "cupy":
        return on_device("erfcx", x)
    xp = array_module(x)
    far = 1e8 if x.dtype.itemsize == 8 else 1e4
    # further out it falls like 1/x, to rounding, and x^2 might overflow
    beyond = far / xp.maximum(x, far)
    x = xp.minimum(x, far)
    step, total = midpoint_rule(x * x)
    # The poles matter below pi / step; further out they contribute less than rounding.
    near = xp.minimum(x, math.pi / step)
    poles = xp.where(
        x < math.pi / step,
        2.0 * xp.exp(near * near) / (1.0 + xp.exp(near * (2.0 * math.pi / step))),
        0.0,
    )
    return ((2.0 * step / math.pi) * x * total + poles) * beyond


def midpoint_rule(square: Array) -> tuple[float, Array]:
    """The step h of the midpoint rule, and the sum over its nodes t of exp(-t^2) / (t^2 + x^2),
    given x^2."""
    step, terms = (0.5, 13) if square.dtype.itemsize == 8 else (0.72, 6)
    xp = array_module(square)
    total = xp.zeros_like(square)
    term = xp.empty_like(square)  # one for all nodes: new memory costs more than the sum
    for k in range(terms):
        node = ((k + 0.5) * step) ** 2
        xp.add(square, node, out=term)
        xp.divide(math.exp(-node), term, out=term)
        total += term
    return step, total


def erfc(x: Array) -> Array:
    """1 - erf(x), without losing the digits of its right tail."""
    if backend_of(x) == "cupy":
        return on_device("erfc", x)
    xp = array_module(x)
    x = xp.clip(x, -30.0, 30.0)  # it is 2 or 0 long before
    right = xp.exp(-x * x) * erfcx(abs(x))
    return xp.where(x < 0, 2.0 - right, right)


def erf(x: Array) -> Array:
    """The error function, to rounding (relative to its value, also near 0).

    In 1 - erfc(x) by the midpoint rule, with its poles, 1 and the poles make a hyperbolic tangent.
    """
    if backend_of(x) == "cupy":
        return on_device("erf", x)
    xp = array_module(x)
    near = xp.clip(x, -0.5, 0.5)
    square = near * near
    series = xp.zeros_like(x)
    # sum of (-x^2)^n / (n! (2n + 1)), for |x| <= 1/2
    for n in reversed(range(12 if x.dtype.itemsize == 8 else 7)):
        series = 1.0 / (math.factorial(n) * (2 * n + 1)) - square * series
    x = xp.clip(x, -9.0, 9.0)  # it is 1 or -1 long before
    step, total = midpoint_rule(x * x)
    far = xp.tanh((math.pi / step) * x) - (2.0 * step / math.pi) * x * xp.exp(-x * x) * total
    return xp.where(abs(x) < 0.5, (2.0 / math.sqrt(math.pi)) * near * series, far)
