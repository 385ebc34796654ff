"""Activations for a depth: the front between forgetting the input and growing the gradient.

Let o(u) = (s(gamma u + beta) - centering c2) / c1, with c2 the mean of s(gamma Z + beta), and c1
such that E o(Z)^2 =
1. Two inputs of correlation rho have the correlation C(rho) = E o(Z1) o(Z2) one layer later, if
weights are random and layers wide. C(0) says how much of the difference between unrelated inputs a
layer forgets, C'(1) by how much it multiplies the squared gradient. As C(0) = (E o)^2 and C'(1) = E
o'^2,

    C'(1) = chi (1 - C(0)),    chi = E o'^2 / Var o >= 1,

with equality for lines only: centering moves along this line, and only chi moves the line.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import moments
from ..engine.arrays import HostArray
from ..engine.backward import grad
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activation import AnyActivation, as_activation
from .wide import Wide

STEPS = 60  # at most, of the search for a root
ROUNDING = 1e-14
SINGULAR = 1e-14  # a determinant
CONVERGED = 1e-11  # a change of gamma and beta
LEAST_GAMMA = 1e-8  # beside which such a change is small
# by which equations may be missed at a root, relative to log(zeta) / depth
MISS = 1e-6


@dataclass(frozen=True)
class Design:
    """One point of the front: o(u) = (s(gamma u + beta) - centering c2) / c1, and what becomes of
    it in `depth` layers.

    >>> he = tp.design(9, "relu")[0]
    >>> he.name, round(he.c_map(0.0), 6), round(he.forgotten, 6), round(he.growth, 6)
    ('he', 0.31831, 0.854809, 1.0)
    """

    name: str
    activation: AnyActivation
    depth: int
    centering: float
    gamma: float
    beta: float
    params: dict[str, float]  # of the activation, such as the slope `a` of a leaky ReLU
    c1: float = field(init=False)
    c2: float = field(init=False)
    chi: float = field(init=False)  # E o'^2 / Var o
    unrelated: float = field(init=False)  # C(0)
    gain: float = field(init=False)  # C'(1)
    growth: float = field(init=False)  # C'(1)^depth
    # of E o(sqrt(q) Z)^2 in q at 1: whether errors of the variance grow
    variance_slope: float = field(init=False)

    def __post_init__(self) -> None:
        found = moments.gaussian(self.activation, self.beta, self.gamma, **self.params)
        if not found.std > 0.0:
            name = as_activation(self.activation).name
            got = f"{name} of N({self.beta:.6g}, {self.gamma:.6g}^2), which is constant"
            rule = "the output is divided by its standard deviation"
            raise ValueError(explain(got, rule, "an activation that varies between -3 and 3"))
        mean_left = (1.0 - self.centering) * found.mean
        square = found.std**2 + mean_left**2
        chi = found.jacobian_factor**2
        unrelated = mean_left**2 / square
        gain = chi * (1.0 - unrelated)
        computed = {
            "c1": math.sqrt(square),
            "c2": found.mean,
            "chi": chi,
            "unrelated": unrelated,
            "gain": gain,
            "growth": gain**self.depth,
            "variance_slope": self._slope_of_square(found.mean) / square,
        }
        vars(self).update(computed)  # the record is frozen

    def _slope_of_square(self, mean: float) -> float:
        """The slope in q, at 1, of E (s(gamma sqrt(q) Z + beta) - centering mean)^2."""
        q = Tensor(np.array(1.0), requires_grad=True)
        std = self.gamma * q**0.5
        found = moments.gaussian(self.activation, self.beta, std, **self.params)
        square = found.std**2 + (found.mean - self.centering * mean) ** 2
        (slope,) = grad(square, q)
        return float(slope.item())

    @cached_property
    def forgotten(self) -> float:
        """C(C(...C(0))): the correlation of unrelated inputs after all layers."""
        return float(self.correlations(0.0)[-1])

    def c_map(self, rho: Any) -> Any:
        """C(rho), for a number or an array."""
        inputs = Wide.at(np.ravel(rho), self.gamma**2).scale(shift=self.beta)
        values = inputs.apply(self.activation, **self.params)
        after = values.scale(1.0 / self.c1, -self.centering * self.c2 / self.c1).products
        return after.reshape(np.shape(rho)) if np.ndim(rho) else float(after[0])

    def correlations(self, rho: float) -> HostArray:
        """The correlation of two inputs, before and after each of the layers."""
        path = [rho]
        for _ in range(self.depth):
            path.append(min(self.c_map(path[-1]), 1.0))
        return np.array(path)

    def gradients(self) -> HostArray:
        """The mean squared gradient of the input of each layer, relative to that of the output."""
        return self.gain ** np.arange(self.depth, -1, -1.0)


def design(
    depth: int, activation: AnyActivation, zeta: float = 1.5, eta: float = 0.9
) -> list[Design]:
    """Points of the front for a network of `depth` nonlinear layers, those of them that exist:

    - "he": without centering, as He et al. (2015) start; keeps the gradient of a ReLU, forgets the
      input.
    - "normprop": centered, as in the paper; keeps unrelated inputs unrelated, multiplies gradients
      by chi.
    - "shifted" (homogeneous rectifiers, for which only beta / gamma matters): NormProp with a beta
      for which squared gradients grow by `zeta` over the depth.
    - "tat" (homogeneous rectifiers): without centering, with a leaky slope for which unrelated
      inputs end at a correlation of `eta` (tailored activations: Zhang et al., 2022).
    - "dks" (all that are not homogeneous): centered, with gamma and beta for which squared
      gradients grow by `zeta`, and small errors of the variance neither grow nor decay (deep kernel
      shaping: Martens et al., 2021).

    >>> for point in tp.design(50, "relu"):
    ...     print(f"{point.name:8} C_L(0) = {point.forgotten:.3f}, gradient x {point.growth:.3g}")
    he       C_L(0) = 0.988, gradient x 1
    normprop C_L(0) = 0.000, gradient x 2.09e+08
    shifted  C_L(0) = 0.000, gradient x 1.5
    tat      C_L(0) = 0.900, gradient x 1
    """
    if depth < 1 or zeta <= 1.0 or not 0.0 < eta < 1.0:
        got = f"design(depth={depth}, zeta={zeta}, eta={eta})"
        raise ValueError(explain(got, "depth >= 1, zeta > 1 and 0 < eta < 1", "design(9, 'relu')"))
    known = as_activation(activation)
    params = dict(known.parameters)
    he = Design("he", activation, depth, 0.0, 1.0, 0.0, params)
    normprop = Design("normprop", activation, depth, 1.0, 1.0, 0.0, params)
    points: list[Design | None] = [he, normprop]
    target = math.log(zeta) / depth  # of log chi
    if known.rectifier and known.homogeneous:
        points += [_shifted(normprop, target), _tailored(depth, eta)]
    elif not known.homogeneous:
        points.append(_shaped(normprop, target))
    return [point for point in points if point is not None]


def _shifted(normprop: Design, target: float) -> Design | None:
    """With the beta for which log chi is the target, if it is larger without one."""
    if math.log(normprop.chi) <= target:
        return None

    def shifted(beta: float) -> Design:
        return replace(normprop, name="shifted", beta=beta)

    beta = _root(lambda beta: math.log(shifted(beta).chi) - target, 0.0, 30.0)
    return shifted(beta)


def _tailored(depth: int, eta: float) -> Design | None:
    """Leaky ReLU with the slope for which unrelated inputs end at a correlation of eta, if they end
    above it without one."""

    def leaky(a: float) -> Design:
        return Design("tat", "leaky_relu", depth, 0.0, 1.0, 0.0, {"a": a})

    if leaky(0.0).forgotten <= eta:
        return None
    return leaky(_root(lambda a: leaky(a).forgotten - eta, 0.0, 1.0))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes its sign between two numbers: by regula falsi, which halves the
    value at an end that stays (Illinois)."""
    at_low = function(low)
    at_high = function(high)
    for _ in range(STEPS):
        between = high - at_high * (high - low) / (at_high - at_low)
        value = function(between)
        if value * at_high < 0.0:
            low, at_low = high, at_high
        else:
            at_low *= 0.5
        high, at_high = between, value
        if abs(high - low) <= ROUNDING * abs(high) or value == 0.0:
            break
    return high


def _shaped(normprop: Design, target: float) -> Design | None:
    """With the gamma and beta for which log chi is the target and the variance slope 1, if Newton's
    method finds them."""

    def misses(x: HostArray) -> HostArray:
        point = Design("", normprop.activation, 1, 1.0, float(x[0]), float(x[1]), {})
        return np.array([math.log(point.chi) - target, point.variance_slope - 1.0])

    for beta in (0.6, -0.6):
        found = _newton(misses, np.array([0.3, beta]))
        if found is not None and abs(misses(found)).max() <= MISS * target:
            return replace(normprop, name="dks", gamma=float(found[0]), beta=float(found[1]))
    return None


def _newton(function: Callable[[HostArray], HostArray], x: HostArray) -> HostArray | None:
    """A root of a function of gamma > 0 and beta, from a start near it; None if there is none.

    A step changes neither number by more than 0.3, nor gamma by more than half of itself."""
    for _ in range(STEPS):
        here = function(x)
        # that of hardtanh runs to gamma = 0, where it is a line
        h = min(1e-5, 0.5 * float(x[0]))
        columns = []
        for axis in np.eye(2):
            columns.append((function(x + h * axis) - function(x - h * axis)) / (2 * h))
        jacobian = np.stack(columns, axis=1)
        if not np.isfinite(jacobian).all() or abs(np.linalg.det(jacobian)) < SINGULAR:
            return None
        change = np.linalg.solve(jacobian, -here)
        largest = float(abs(change).max())
        keeps_gamma_positive = 0.5 * x[0] / max(-change[0], 1e-30)
        x = x + change * min(1.0, 0.3 / largest, keeps_gamma_positive)
        if largest < CONVERGED:
            return x if x[0] > LEAST_GAMMA else None
    return None
