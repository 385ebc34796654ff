"""erf and its relatives on arrays, which NumPy lacks."""

import math

from .backend import Array, array_module, backend_of, device_special


def erfcx(x: Array) -> Array:
    """exp(x^2) erfc(x) for x >= 0, to rounding.

    The midpoint rule for erfc(x) = (2/pi) exp(-x^2) integral_0^inf x exp(-t^2) / (t^2 + x^2) dt converges like
    exp(-pi^2 / h^2); what its poles at t = +-ix leave out is known in closed form (Hunter and Regan, 1972).
    """
    if backend_of(x) == "cupy":
        return device_special().erfcx(x)
    xp = array_module(x)
    step, terms, far = (0.5, 13, 1e8) if x.dtype.itemsize == 8 else (0.72, 6, 1e4)
    beyond = far / xp.maximum(x, far)  # further out it falls like 1/x, to rounding, and x^2 might overflow
    x = xp.minimum(x, far)
    square = x * x
    total = xp.zeros_like(x)
    for k in range(terms):
        node = ((k + 0.5) * step) ** 2
        total += math.exp(-node) / (square + node)
    # The poles matter below pi / step; further out they leave out less than rounding.
    near = xp.minimum(x, math.pi / step)
    poles = xp.where(x < math.pi / step, 2.0 * xp.exp(near * near) / (1.0 + xp.exp(near * (2.0 * math.pi / step))), 0.0)
    return ((2.0 * step / math.pi) * x * total + poles) * beyond


def erfc(x: Array) -> Array:
    """1 - erf(x), without losing the digits of its right tail."""
    if backend_of(x) == "cupy":
        return device_special().erfc(x)
    xp = array_module(x)
    x = xp.clip(x, -30.0, 30.0)  # it is 2 or 0 long before
    right = xp.exp(-x * x) * erfcx(abs(x))
    return xp.where(x < 0, 2.0 - right, right)


def erf(x: Array) -> Array:
    """The error function, to rounding (relative to its value, also near 0)."""
    if backend_of(x) == "cupy":
        return device_special().erf(x)
    xp = array_module(x)
    near = xp.clip(x, -0.5, 0.5)
    square = near * near
    series = xp.zeros_like(x)
    for n in reversed(range(12)):  # sum of (-x^2)^n / (n! (2n + 1)), for |x| <= 1/2
        series = 1.0 / (math.factorial(n) * (2 * n + 1)) - square * series
    return xp.where(abs(x) < 0.5, (2.0 / math.sqrt(math.pi)) * near * series, 1.0 - erfc(x))
