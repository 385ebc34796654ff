"""Moments of activations under Gaussian input, which Normalization Propagation shifts and divides
by.

- An activation of the table `tp.activations` has a closed form, or quadrature around the origin, if
  its record says so (`builtin.py`).
- Any other function: quadrature on panels that are found by bisection, with an error (function.py).

Everything is computed in float64, and accurate relative to its value.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import (
    Array,
    HostArray,
    array_module,
    as_array,
    float32,
    float64,
    from_host,
    is_array,
    is_host_array,
    to_numpy,
)
from ..engine.errors import ShapeError, explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, activations, as_activation
from .function import Found, of_function
from .quadrature import root
from .rules import Triple

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


@dataclass(frozen=True)
class Subject:
    """A function whose moments are wanted: that of a record, or one of tensors or of arrays."""

    function: Callable[..., Any]
    kinks: Sequence[float]
    moments: Callable[..., Triple] | None = None
    dual: Callable[..., Array] | None = None
    name: str = "a function"
    is_record: bool = False  # so that it is a function of tensors

    def values(self, u: HostArray, **params: Any) -> HostArray:
        """The values at these points, as a float64 array of the same shape."""
        result = to_numpy(_data(call(self.function, u, **params)))
        return np.broadcast_to(result.astype(float64, copy=False), u.shape)


def subject_of(
    activation: AnyActivation | Subject, params: dict[str, Any]
) -> tuple[Subject, dict[str, Any]]:
    """What an activation stands for, and its parameters, with start values for those that are not
    given."""
    if isinstance(activation, Subject):
        return activation, params
    is_record = isinstance(activation, (str, Activation)) or not callable(activation)
    if is_record or ("kinks" not in params and _is_registered(activation)):
        record = as_activation(activation)
        _check_names(record.name, params, record.options)
        params = {**record.parameters, **params}
        known = (record.function, record.kinks, record.moments, record.dual, record.name)
        return Subject(*known, is_record=True), params
    params = dict(params)
    kinks = params.pop("kinks", ())
    _check_names("a function", params, ["kinks"])
    assert not isinstance(activation, str)
    return Subject(activation, kinks), params


def _is_registered(function: Any) -> bool:
    return any(entry.function is function for entry in activations.values())


def call(function: Callable[..., Any], u: Any, **params: Any) -> Any:
    """The value of a function of tensors or of arrays for either."""
    try:
        return function(u, **params)
    except (AttributeError, TypeError):
        if isinstance(u, Tensor):
            raise
        # a function of tensors, which uses what only these have
        return function(Tensor(u), **params)


def gaussian(
    activation: AnyActivation | Subject, mean: Any = 0.0, std: Any = 1.0, **params: Any
) -> Moments:
    """The moments of activation(U) for U ~ N(mean, std^2), element by element.

    `activation` is a name, a `tp.Activation`, or a function of arrays or of tensors that maps each
    number by itself. Names and records may have parameters (prelu and leaky_relu `a`, elu `alpha`),
    which have their start values unless they are given.

    The moments of a function are right within `error`, which is at most 1e-6, or they are refused.
    It is called many times: kinks and jumps are found by bisection, and `kinks=(...)`, the places
    where the function or its slope jumps, saves some of that. Refused are functions that are not
    elementwise, not deterministic or not finite within 8 standard deviations of the mean, and those
    whose second moment is infinite or lies beyond what float64 can reach. One limit remains: a
    feature narrower than std/1000 may be missed, unless it is at one of `kinks`. slope2 is that of
    the polynomials through the function's values: inf where the function jumps, and nan where it is
    not known to 1e-6, for example because it is infinite without a jump, as that of sqrt|u|.

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
    subject, params = subject_of(activation, params)
    given = {"mean": mean, "std": std, **params}
    inputs = _float64_tensors(given)
    u_mean, u_std = inputs.pop("mean"), inputs.pop("std")
    if subject.moments is not None:
        moments = subject.moments(u_mean, u_std, **inputs)
        if not isinstance(moments, tuple) or len(moments) != 3:
            size = f" of {len(moments)}" if isinstance(moments, tuple) else ""
            got = f"moments= of {subject.name}, which returns a {type(moments).__name__}{size}"
            rule = "moments(mean, std) returns a tuple: mean, standard deviation and E s'^2"
            raise ValueError(explain(got, rule, "tp.Activation(..., moments=None) for quadrature"))
        out_mean, out_std, slope2 = moments
        rounding = 0.0 * out_mean.detach() + CLOSED_FORM_ERROR
        found = Found(out_mean, out_std, slope2, root(slope2), rounding, rounding)
    else:
        tensors_first = subject.is_record or any(isinstance(x, Tensor) for x in given.values())
        function, kinks = subject.function, subject.kinks
        for name, value in params.items():
            single = _float64_tensor(value, u_mean.data)
            if single.size == 1:  # one number for all elements stays one
                inputs[name] = single
        found = of_function(function, kinks, u_mean, u_std, inputs, tensors_first)
    return _moments(found, u_std, given)


def _moments(found: Found, std: Tensor, given: dict[str, Any]) -> Moments:
    """The results in the form of the inputs, with a Jacobian factor, and with the rounding to the
    dtype of tensors in the error."""
    constant = found.std == 0
    divisor = F.where(constant, 1.0, found.std)
    slope = F.where(constant, 0.0, found.slope)  # which is infinite at a jump
    factor = F.where(constant, 1.0, std * slope / divisor)
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
    activation: AnyActivation,
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
    subject, params = subject_of(activation, params)
    given = {
        k: x.data if isinstance(x, Tensor) else x
        for k, x in {"mean": mean, "std": std, **params}.items()
    }
    # (...) -> (..., 1), beside samples
    arrays = {k: x.data[..., None] for k, x in _float64_tensors(given).items()}
    m, s = arrays.pop("mean"), arrays.pop("std")
    numbers = {k: given[k] for k in params if isinstance(given[k], (int, float))}
    random, chunk = new_generator(seed), max(1, CHUNK // max(1, m.size))
    center, sums = None, [0.0 * m[..., 0]] * 4
    for start in range(0, samples, chunk):
        u = m + s * from_host(random.standard_normal(min(chunk, samples - start)), like=m)
        y = _data(call(subject.function, u, **{**arrays, **numbers}))
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


def _check_names(name: str, params: Iterable[str], allowed: Sequence[str] | None) -> None:
    """Refuse unknown parameters of an activation; None allows all."""
    if allowed is None:
        return
    unknown = [param for param in params if param not in allowed]
    if unknown:
        known = ", ".join(["mean", "std", *allowed])
        rule = f"{name} has the parameters {known}"
        raise TypeError(explain(f"parameter {unknown[0]!r} for {name}", rule, "leave it out"))


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
