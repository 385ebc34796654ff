"""moments.gaussian, dual and simulate of every activation, at random means, deviations and
parameters, against dense Gauss-Legendre quadrature of formulas that are written here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
from tests.moments import test_dual

from .case import Array, Case, Random, chance, choice, difference, integer

FARTHEST = 12.0  # standard deviations: beyond them is less than 1e-32
ROUNDING = 1e-10  # relative to the size of the result
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)

erf = np.vectorize(math.erf, otypes=[float])


def cdf(u: Array) -> Array:
    return 0.5 * (1.0 + erf(u / math.sqrt(2.0)))


def density(u: Array) -> Array:
    return np.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)


def logistic(u: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * u))


def exp_below(u: Array) -> Array:
    return np.exp(np.minimum(u, 0.0))


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@dataclass(frozen=True)
class Function:
    """An activation, its slope, and its slope with respect to its parameter p, if it has one."""

    value: Callable[..., Array]
    slope: Callable[..., Array]
    by_parameter: Callable[..., Array] | None = None
    parameter: str = ""
    kinks: tuple[float, ...] = (0.0,)


def rectifier(parameter: str) -> Function:
    """x where positive, p x elsewhere."""
    return Function(
        lambda u, p: np.where(u > 0, u, p * u),
        lambda u, p: np.where(u > 0, 1.0, p),
        lambda u, p: np.where(u > 0, 0.0, u),
        parameter,
    )


FUNCTIONS = {
    "relu": Function(lambda u: np.maximum(u, 0.0), lambda u: (u > 0) * 1.0),
    "prelu": rectifier("a"),
    "leaky_relu": rectifier("a"),
    "tanh": Function(np.tanh, lambda u: 1.0 / np.cosh(u) ** 2),
    "sigmoid": Function(logistic, lambda u: 0.25 / np.cosh(0.5 * u) ** 2),
    "softplus": Function(lambda u: np.logaddexp(0.0, u), logistic),
    "elu": Function(
        lambda u, p: np.where(u > 0, u, p * (exp_below(u) - 1.0)),
        lambda u, p: np.where(u > 0, 1.0, p * exp_below(u)),
        lambda u, p: np.where(u > 0, 0.0, exp_below(u) - 1.0),
        "alpha",
    ),
    "selu": Function(
        lambda u: SELU_SCALE * np.where(u > 0, u, SELU_ALPHA * (exp_below(u) - 1.0)),
        lambda u: SELU_SCALE * np.where(u > 0, 1.0, SELU_ALPHA * exp_below(u)),
    ),
    "gelu": Function(lambda u: u * cdf(u), lambda u: cdf(u) + u * density(u)),
    "silu": Function(lambda u: u * logistic(u), lambda u: logistic(u) * (1.0 + u * logistic(-u))),
    "hardtanh": Function(
        lambda u: np.clip(u, -1.0, 1.0), lambda u: (abs(u) < 1) * 1.0, kinks=(-1.0, 1.0)
    ),
    "sin": Function(np.sin, np.cos),
    "erf": Function(erf, lambda u: 2.0 / math.sqrt(math.pi) * np.exp(-u * u)),
    "abs": Function(abs, np.sign),
    "identity": Function(lambda u: u, np.ones_like),
}


def draw(rng: Random) -> Case:
    return choice(rng, [gaussian, gaussian, gradients, dual, simulation])(rng)


@dataclass(frozen=True)
class Point:
    """An activation at N(mean, std^2), with its parameter, if it has one."""

    name: str
    mean: float
    std: float
    params: dict[str, float]

    def __str__(self) -> str:
        return f"{self.name} {self.params or ''} at N({self.mean!r}, {self.std!r}^2)"

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.name]

    def of(self, function: Callable[..., Array]) -> tuple[Array, Array, Array]:
        """Nodes of U in standard deviations from its mean, their weights, and the function there:
        in panels between the kinks, none longer than a quarter of a standard deviation or, where
        the function bends, of its own unit."""
        kinks = [(kink - self.mean) / self.std for kink in self.function.kinks]
        near = [kink + np.linspace(-8.0, 8.0, 65) / self.std for kink in kinks]
        breaks = np.concatenate([np.linspace(-FARTHEST, FARTHEST, 97), *near])
        edges = np.unique(np.clip(breaks, -FARTHEST, FARTHEST))
        lengths = np.diff(edges)[:, None]
        z = (edges[:-1, None] + lengths * (NODES + 1.0) / 2.0).ravel()
        weights = (lengths * WEIGHTS / 2.0).ravel() * density(z)
        return z, weights, function(self.mean + self.std * z, *self.params.values())


def draw_point(rng: Random, name: str | None = None, params: Any = None) -> Point:
    """An activation, unless it is given, at a point where it is not constant up to rounding: what
    is left of a dead unit is compared with 40 digits in tests/moments/."""
    name = name or choice(rng, FUNCTIONS)
    parameter = FUNCTIONS[name].parameter
    if params is None:
        params = {parameter: float(rng.normal(0.0, 1.5))} if parameter else {}
    while True:
        std = float(np.exp(rng.uniform(math.log(0.02), math.log(6.0))))
        mean = float(rng.normal(0.0, 2.0)) if chance(rng, 0.9) else 0.0
        point = Point(name, mean, std, params)
        if exact_moments(point)[1] > 1e-6:
            return point


def exact_moments(point: Point) -> tuple[float, float, float]:
    """Mean, standard deviation and mean squared slope."""
    _, weights, values = point.of(point.function.value)
    mean = weights @ values
    variance = weights @ (values - mean) ** 2
    _, _, slopes = point.of(point.function.slope)
    return float(mean), math.sqrt(variance), float(weights @ slopes**2)


def gaussian(rng: Random) -> Case:
    """Of the activation by its name, or of a function with its kinks."""
    point = draw_point(rng)
    by_name = chance(rng, 0.7)
    words = f"moments.gaussian of {point}, {'by name' if by_name else 'as a function'}"

    def check() -> str | None:
        if by_name:
            got = tp.moments.gaussian(point.name, point.mean, point.std, **point.params)
        else:
            function, params = point.function, point.params.values()
            got = tp.moments.gaussian(
                lambda u: function.value(u, *params), point.mean, point.std, kinks=function.kinks
            )
        mean, std, slope2 = exact_moments(point)
        size = abs(mean) + std
        accuracy = ROUNDING if by_name else 1e-8  # slopes of a function are differences
        factor = point.std * math.sqrt(slope2) / std
        for what, a, b, scale in (
            ("mean", got.mean, mean, size),
            ("std", got.std, std, size),
            ("slope2", got.slope2, slope2, slope2 + (size / point.std) ** 2),
            ("jacobian_factor", got.jacobian_factor, factor, factor * size / std),
        ):
            if complaint := difference(what, np.array(a), np.array(b), accuracy * scale):
                return complaint
        return None

    return Case(words, check)


def gradients(rng: Random) -> Case:
    """The gradients of mean and standard deviation: with U = mean + std Z, those of E s(U) are
    E s'(U), E s'(U) Z and E ds/dp, and those of the variance twice the covariances of the same with
    s(U)."""
    point = draw_point(rng)
    words = f"the gradients of moments.gaussian of {point}"

    def check() -> str | None:
        given = {"mean": point.mean, "std": point.std, **point.params}
        leaves = {k: tp.tensor(np.array(v), requires_grad=True) for k, v in given.items()}
        got = tp.moments.gaussian(point.name, **leaves)
        z, weights, values = point.of(point.function.value)
        _, _, slopes = point.of(point.function.slope)
        inner = {"mean": slopes, "std": slopes * z}
        if point.params:
            assert point.function.by_parameter is not None
            inner[point.function.parameter] = point.of(point.function.by_parameter)[2]
        mean, std, _ = exact_moments(point)
        for name, leaf in leaves.items():
            by = inner[name]
            size = 1.0 + math.sqrt(weights @ by**2)
            of_mean = weights @ by
            of_std = weights @ ((values - mean) * (by - of_mean)) / std
            for what, result, exact in (("mean", got.mean, of_mean), ("std", got.std, of_std)):
                (gradient,) = tp.grad(result, [leaf], retain_graph=True, allow_unused=True)
                found = np.array(0.0) if gradient is None else gradient.numpy()
                allowed = 1e-9 * size * (1.0 + (abs(mean) + 1e-3) / std)
                what = f"the gradient of {what} with respect to {name}"
                if complaint := difference(what, found, np.array(exact), allowed):
                    return complaint
        return None

    return Case(words, check)


def dual(rng: Random) -> Case:
    """Two correlated numbers, against quadrature over their sum and difference."""
    one = draw_point(rng)
    other = draw_point(rng, one.name, one.params)
    rho = choice(rng, [float(rng.uniform(-1, 1)), float(1 - 10 ** rng.uniform(-9, 0)), 0.0, -1.0])
    means, stds = (one.mean, other.mean), (one.std, other.std)
    words = f"moments.dual of {one.name} {one.params or ''}, rho={rho!r}, "
    words += f"means {means}, deviations {stds}"

    def check() -> str | None:
        got = tp.moments.dual(one.name, rho, means, stds, **one.params)
        product, covariance = test_dual.reference(
            lambda u: one.function.value(u, *one.params.values()),
            one.function.kinks,
            rho,
            one.mean,
            stds[0],
            other.mean,
            stds[1],
        )
        size = 1.0
        for point in (one, other):
            mean, std, _ = exact_moments(point)
            size *= abs(mean) + std
        for what, a, b in (
            ("product", got.product, product),
            ("covariance", got.covariance, covariance),
        ):
            if complaint := difference(what, np.array(a), np.array(b), ROUNDING * size):
                return complaint
        return None

    return Case(words, check)


def simulation(rng: Random) -> Case:
    """The estimates are within 6 of their true standard errors, and so are the errors that are
    stated, whose own errors follow from moments up to the eighth. By chance, a Gaussian estimate
    misses with a probability of 2e-9; these are nearly Gaussian, for 40,000 samples."""
    point = draw_point(rng)
    seed = integer(rng, 0, 2**31)
    samples = 40_000
    words = f"moments.simulate of {point} with {samples} samples, seed {seed}"

    def check() -> str | None:
        got = tp.moments.simulate(point.name, point.mean, point.std, samples, seed, **point.params)
        mean, std, _ = exact_moments(point)
        _, weights, values = point.of(point.function.value)
        fourth, eighth = (weights @ ((values - mean) / std) ** k for k in (4, 8))
        if eighth > 1e4:  # hardly ever on: samples say little
            return None
        of_mean = std / math.sqrt(samples)
        of_std = std * math.sqrt((fourth - 1.0) / samples) / 2.0
        of_of_std = of_std * math.sqrt(eighth / samples) / (fourth - 1.0) + 1e-9 * std
        for what, a, b, error in (
            ("mean", got.mean, mean, of_mean),
            ("std", got.std, std, of_std),
            ("mean_error", got.mean_error, of_mean, of_std / math.sqrt(samples)),
            ("std_error", got.std_error, of_std, of_of_std),
        ):
            allowed = 6.0 * error + 1e-9 * (abs(mean) + std)
            if complaint := difference(what, np.array(a), np.array(b), allowed):
                return complaint
        return None

    return Case(words, check)
