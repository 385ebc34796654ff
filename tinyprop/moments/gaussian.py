"""Moments of activations under Gaussian input, which Normalization Propagation shifts and divides
by.

- Piecewise linear functions (relu, prelu, leaky_relu, hardtanh, abs, identity), sin and erf: closed
  forms.
- tanh, sigmoid, softplus, elu, selu, gelu, silu: quadrature around the origin, at any mean and std.
- Any other function: quadrature on panels that are found by bisection, with an error (function.py).

Everything is computed in float64, and accurate relative to its value.
"""

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import functional as F
from ..engine.arrays import (
    Array,
    array_module,
    as_array,
    float32,
    float64,
    from_host,
    is_array,
    is_host_array,
)
from ..engine.errors import ShapeError, explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from .function import Found, of_function
from .quadrature import root
from .rules import RULES

Activation: TypeAlias = str | Callable[..., Any]

CLOSED_FORM_ERROR = 4e-12  # tests compare with 40 digits
CHUNK = 1 << 18  # samples drawn at once


@dataclass(frozen=True)
class Moments:
    """Of sigma(U), where U has a standard deviation std_in: the mean, the standard deviation std,
    slope2 = E[sigma'(U)^2], and jacobian_factor = std_in sqrt(slope2) / std, which for ReLU is the
    paper's 1.21.

    `error` bounds the error of the mean, in units of std, and the relative error of std.
    `slope_error` bounds the relative error of slope2 (that of jacobian_factor is at most the sum of
    both). Where sigma jumps, slope2 is infinite.

    >>> identity = tp.moments.gaussian("identity")
    >>> identity.mean, identity.std, identity.slope2, identity.jacobian_factor
    (0.0, 1.0, 1.0, 1.0)
    >>> identity.error, identity.slope_error
    (4e-12, 4e-12)
    """

    mean: Any
    std: Any
    slope2: Any
    jacobian_factor: Any
    error: Any
    slope_error: Any


@dataclass(frozen=True)
class Simulation:
    """Mean and standard deviation estimated from samples, each with its standard error.

    >>> tp.moments.simulate("relu", samples=100).samples
    100
    """

    mean: Any
    mean_error: Any
    std: Any
    std_error: Any
    samples: int


def gaussian(activation: Activation, mean: Any = 0.0, std: Any = 1.0, **params: Any) -> Moments:
    """The moments of activation(U) for U ~ N(mean, std^2), element by element.

    `activation` is a name (prelu and leaky_relu have a parameter `a`, elu has `alpha`), or a
    function of arrays or of tensors that maps each number by itself.

    The moments of a function are right within `error`, which is at most 1e-6, or they are refused.
    It is called many times: kinks and jumps are found by bisection, and `kinks=(...)`, the places
    where the function or its slope jumps, saves some of that. Refused are functions that are not
    elementwise, not deterministic or not finite within 8 standard deviations of the mean, and those
    whose second moment is infinite or lies beyond what float64 can reach. One limit remains: a
    feature narrower than std/1000 may be missed, unless it is at one of `kinks`. slope2 is that of
    the polynomials through the function's values: inf where the function jumps (or where E s'^2
    cannot be told from infinity), and nan where it is not known to 1e-6.

    Numbers give numbers, arrays give float64 arrays. If anything is a Tensor, so are the results,
    of its dtype, and differentiable in mean, std and params to any order. Gradients flow to tensors
    that a function captures, too, except through the place of a jump; through the place of a kink
    only those of mean and std do, to first order. With std = 0, the jacobian_factor is 1: seen from
    one point, the function is a line. For names, means are clipped at 37 standard deviations from a
    kink, so that ratios stay finite.

    >>> relu = tp.moments.gaussian("relu")
    >>> round(relu.mean, 12), round(relu.std, 12), round(relu.jacobian_factor, 12)
    (0.398942280401, 0.583819370104, 1.211173896236)
    >>> tp.moments.gaussian("prelu", std=[1.0, 2.0], a=-1.0).mean
    array([0.79788456, 1.59576912])
    >>> beta = tp.tensor(0.0, requires_grad=True)
    >>> tp.grad(tp.moments.gaussian("relu", beta).mean, beta)
    (tensor(0.5),)
    >>> bent = tp.moments.gaussian(lambda u: np.maximum(u**2 - 1, 0))
    >>> round(bent.mean, 9), bent.error < 1e-11
    (0.483941449, True)
    """
    if isinstance(activation, str) or not callable(activation):
        _check_params(activation, params)
        given = {"mean": mean, "std": std, **params}
        inputs = _float64_tensors(given)
        out_mean, out_std, slope2 = RULES[activation](**inputs)
        rounding = 0.0 * out_mean.detach() + CLOSED_FORM_ERROR
        found = Found(out_mean, out_std, slope2, root(slope2), rounding, rounding)
    else:
        kinks = params.pop("kinks", ())
        _check_names("a function", params, ["kinks"])
        given = {"mean": mean, "std": std}
        inputs = _float64_tensors(given)
        on_tensors = isinstance(mean, Tensor) or isinstance(std, Tensor)
        found = of_function(activation, kinks, inputs["mean"], inputs["std"], {}, on_tensors)
    return _moments(found, inputs["std"], given)


def _moments(found: Found, std: Tensor, given: dict[str, Any]) -> Moments:
    """The results in the form of the inputs, with a Jacobian factor, and with the rounding to the
    dtype of tensors in the error."""
    constant = found.std == 0
    divisor = F.where(constant, 1.0, found.std)
    factor = F.where(constant, 1.0, std * found.slope / divisor)
    out_mean = _as_given(found.mean, given)
    error, slope_error = found.error, found.slope_error
    if isinstance(out_mean, Tensor) and out_mean.dtype != float64:
        eps = float(np.finfo(out_mean.dtype).eps)
        error = error + eps * (1.0 + abs(found.mean / divisor).detach())
        slope_error = slope_error + eps
        error, slope_error = (F.where(x > 1e30, math.inf, x) for x in (error, slope_error))
    return Moments(
        out_mean,
        _as_given(found.std, given),
        _as_given(found.slope2, given),
        _as_given(factor, given),
        _as_given(error, given),
        _as_given(slope_error, given),
    )


def simulate(
    activation: Activation,
    mean: Any = 0.0,
    std: Any = 1.0,
    samples: int = 1_000_000,
    seed: int = 0,
    **params: Any,
) -> Simulation:
    """Mean and standard deviation of activation(U), U ~ N(mean, std^2), from samples, as the paper
    offers.

    All elements share their samples, and memory does not grow with the number of these. The error
    of the standard deviation follows from the fourth moment (delta method). Nothing here is
    differentiable: tensors count as arrays.

    >>> relu = tp.moments.simulate("relu", samples=10_000)
    >>> abs(relu.mean - tp.moments.gaussian("relu").mean) < 5 * relu.mean_error
    True
    """
    if samples < 2:
        raise ValueError(
            explain(f"samples={samples}", "a standard deviation needs two", "samples=1_000_000")
        )
    if isinstance(activation, str) or not callable(activation):
        _check_params(activation, params)
        function = getattr(F, activation, lambda u: u)  # the identity is no function of its own
    else:
        _check_names("a function", params, [])
        function = activation
    given = {
        k: x.data if isinstance(x, Tensor) else x
        for k, x in {"mean": mean, "std": std, **params}.items()
    }
    # (...) -> (..., 1), beside samples
    arrays = {k: x.data[..., None] for k, x in _float64_tensors(given).items()}
    m, s = arrays.pop("mean"), arrays.pop("std")
    random, chunk = new_generator(seed), max(1, CHUNK // max(1, m.size))
    center, sums = None, [0.0 * m[..., 0]] * 4
    for start in range(0, samples, chunk):
        u = m + s * from_host(random.standard_normal(min(chunk, samples - start)), like=m)
        y = _data(function(u, **arrays))
        # near the mean: powers keep their digits
        center = y.mean(axis=-1, keepdims=True) if center is None else center
        sums = [total + ((y - center) ** (k + 1)).sum(axis=-1) for k, total in enumerate(sums)]
    # about the center; about the mean they are:
    d1, d2, d3, d4 = (total / samples for total in sums)
    variance = d2 - d1**2
    fourth = d4 - 4.0 * d1 * d3 + 6.0 * d1**2 * d2 - 3.0 * d1**4
    xp = array_module(m)
    spread = xp.sqrt(variance)
    of_variance = xp.sqrt(xp.maximum(fourth - variance**2, 0.0) / samples)
    of_spread = of_variance / xp.where(spread > 0, 2.0 * spread, 1.0)
    results = _data(center)[..., 0] + d1, spread / math.sqrt(samples), spread, of_spread
    shown = [_as_given(Tensor(as_array(x)), given) for x in results]
    return Simulation(shown[0], shown[1], shown[2], shown[3], samples)


# What comes in, and how it goes out.


def _check_params(activation: str, params: Collection[str]) -> None:
    if activation not in RULES:
        got, names = f"activation {activation!r}", ", ".join(RULES)
        raise ValueError(explain(got, f"it is one of {names}", "another name, or a function"))
    known = list(inspect.signature(RULES[activation]).parameters.values())[2:]
    _check_names(activation, params, [p.name for p in known])
    for p in known:
        if p.default is p.empty and p.name not in params:
            raise TypeError(
                explain(f"{activation} without {p.name}", "it has no default", f"{p.name}=0.25")
            )


def _check_names(activation: str, params: Collection[str], allowed: Sequence[str]) -> None:
    unknown = [name for name in params if name not in allowed]
    if unknown:
        rule = f"{activation} has the parameters mean, std" + "".join(
            f", {name}" for name in allowed
        )
        raise TypeError(explain(f"parameter {unknown[0]!r} for {activation}", rule, "leave it out"))


def _check_range(mean: Array, std: Array) -> None:
    xp = array_module(mean)
    if not (xp.isfinite(mean) & xp.isfinite(std) & (std >= 0)).all():
        got = f"a smallest std of {std.min()}, means from {mean.min()} to {mean.max()}"
        raise ValueError(explain(got, "both are finite, and std >= 0", "std=abs(...)"))


def _float64_tensors(given: dict[str, Any]) -> dict[str, Tensor]:
    """All inputs as float64 tensors of one shape, on the device of those that are on one."""
    arrays = [_data(x) for x in given.values() if isinstance(x, Tensor) or is_array(x)]
    like = next((x for x in arrays if not is_host_array(x)), np.zeros(()))
    tensors = {name: _float64_tensor(x, like) for name, x in given.items()}
    try:
        shape = np.broadcast_shapes(*(x.shape for x in tensors.values()))
    except ValueError:
        got = ", ".join(f"{name} {x.shape}" for name, x in tensors.items())
        raise ShapeError(
            got, "the shapes must broadcast together", "equal sizes, or 1, on each axis"
        ) from None
    tensors = {
        name: x if x.shape == shape else F.broadcast_to(x, shape) for name, x in tensors.items()
    }
    if is_host_array(like):
        _check_range(tensors["mean"].data, tensors["std"].data)
    else:  # a look at numbers on the device would have to wait for them
        tensors["std"] = F.where(tensors["std"] >= 0, tensors["std"], math.nan)
    return tensors


def _float64_tensor(x: Any, like: Array) -> Tensor:
    if isinstance(x, Tensor):
        return x if x.dtype == float64 else x.astype(float64)
    if isinstance(x, (int, float)):
        return Tensor(array_module(like).full((), x, float64))
    return Tensor(x.astype(float64, copy=False) if is_array(x) else from_host(x, like, float64))


def _as_given(x: Tensor, given: dict[str, Any]) -> Any:
    """A result in the form of the inputs: a tensor of their dtype, a float64 array, or a number."""
    floats = [v.dtype for v in given.values() if isinstance(v, Tensor) and v.dtype.kind == "f"]
    if any(isinstance(v, Tensor) for v in given.values()):
        return x.astype(max(floats, key=lambda dtype: dtype.itemsize, default=float32))
    return x.data.item() if all(isinstance(v, (int, float)) for v in given.values()) else x.data


def _data(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x
