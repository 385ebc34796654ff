"""Moments of an activation against simulations that know nothing of them but the function."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..engine.arrays import HostArray, to_numpy
from ..engine.context import context
from ..engine.errors import explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, as_activation
from ..moments import dual, gaussian
from ..moments.gaussian import Moments, Subject
from ..report.estimate import Estimate
from .failure import Wrong, run_checks

SETTINGS = ((0.0, 1.0), (0.7, 0.4), (-1.3, 2.5))  # means and standard deviations
PAIRS = ((0.6, (0.0, 0.0), (1.0, 1.0)), (-0.8, (0.5, -1.0), (0.7, 1.5)))  # rho, means, stds
MOVED = 0.3  # by which learnable parameters are changed, for a second try
REPEATS = 32  # independent simulations, whose spread gives the error bars
FARTHEST = 15.0  # standard deviations: far enough for functions that grow like an exponential
BULK = 8.0  # standard deviations within which a function must be finite
OF_DUAL = 1e-9  # the error of covariances, relative to both standard deviations
ROUNDING = 1e-13  # of sums in float64, relative to the root mean square

INTERVALS = 8_000  # in which kinks are looked for
BISECTIONS = 30
SEARCHED = 8.0  # kinks are looked for between -8 and 8
VISIBLE = 1e-5  # of the largest slope or value: a smaller jump is none
NEAR = 1e-6  # to a declared kink
FAR_OUT = 10.0  # where a rectifier is looked at
ONE_SIDED = 0.5  # of its larger side, what it may be on the other one


def check_moments(
    activation: AnyActivation,
    samples: int = 16_384,
    error_probability: float = 1e-6,
    seed: int = 0,
    **params: Any,
) -> None:
    """Check what is known about an activation against simulations; raise a CheckError that says
    everything that is wrong.

    - moments: mean, standard deviation and E s'^2 of `tp.moments.gaussian`, from a closed form or
      by quadrature, for three Gaussian inputs, with the start values of learnable parameters and
      with others. They must be within their stated error of a simulation and its error bar.
    - closed form: if there is one, quadrature must give the same, to the error that both state.
    - dual: if there is a closed form, quadrature must give the same covariances.
    - kinks: every place between -8 and 8 where the function or its slope jumps must be declared,
      and E s'^2 is infinite if the function jumps.
    - homogeneous: s(c u) = c s(u), if this is declared.
    - rectifier: the function is small on one side, if this is declared.

    A simulation puts one random point into each of `samples` equal cells between -15 and 15
    standard deviations and weighs it by the density, which has a much smaller error than
    independent Gaussian samples: about 1e-6 for ReLU. The error bars come from 32 repetitions, and
    are so long that a sound activation fails with a probability of `error_probability`, for all
    numbers together.

    >>> tp.testing.check_moments("gelu")
    >>> def bent(u):
    ...     return F.relu(u - 0.5)
    >>> try:
    ...     tp.testing.check_moments(tp.Activation(bent))
    ... except tp.testing.CheckError as error:
    ...     print(error)
    got:  kinks: the slope jumps from 0 to 1 at 0.5, which is not among (); 1 such place is missing
    rule: kinks has all places where the function or its slope jumps
    try:  tp.Activation(..., kinks=(0.5,))
    """
    record = as_activation(activation)
    record.check_names(params)
    if samples < 2 or not 0.0 < error_probability < 1.0:
        got = f"samples={samples}, error_probability={error_probability}"
        rule = "at least two samples, and a probability between 0 and 1"
        raise ValueError(explain(got, rule, "check_moments('relu')"))
    question = Question(record, params, samples, error_probability, seed)
    checks = [(name, partial(check, question)) for name, check in CHECKS.items()]
    with np.errstate(all="ignore"):
        run_checks(checks, seed)


@dataclass(frozen=True)
class Question:
    record: Activation
    params: dict[str, Any]
    samples: int
    error_probability: float
    seed: int

    def values_and_slopes(
        self, u: HostArray, params: dict[str, Any]
    ) -> tuple[HostArray, HostArray]:
        with context(recording=True):
            x = Tensor(u, requires_grad=True)
            y = self.record(x, **params)
            if not y.requires_grad:
                return to_numpy(y._data), np.zeros(u.shape)
            y.backward(Tensor(np.ones(u.shape)))
        assert x.grad is not None
        return to_numpy(y._data), to_numpy(x.grad._data)

    @property
    def function(self) -> Subject:
        """The function without its closed forms."""
        record = self.record
        return Subject(record.function, record.kinks, name=record.name, is_record=True)

    @property
    def start(self) -> dict[str, Any]:
        return {**self.record.parameters, **self.params}

    def parameters(self) -> list[dict[str, Any]]:
        """Start values, and others for what is learnt."""
        learnt = [name for name in self.record.parameters if name not in self.params]
        moved = {**self.start, **{name: self.start[name] + MOVED for name in learnt}}
        return [self.start, moved] if learnt else [self.start]

    def confidence(self) -> float:
        """Of each single comparison, so that all together err with the stated probability."""
        comparisons = 3 * len(SETTINGS) * len(self.parameters())
        return 1.0 - self.error_probability / comparisons


# -- simulation


def _cells(random: "np.random.Generator", count: int) -> HostArray:
    """One random point in each of `count` equal cells from -FARTHEST to FARTHEST."""
    # the cells are turned at random, so that no jump is always at the same place of one
    turned = np.arange(count) + random.random(count) + count * random.random()
    return FARTHEST * (2.0 * (turned / count % 1.0) - 1.0)


def _density(z: HostArray) -> HostArray:
    """Of N(0, 1), times the length of what `_cells` draws from."""
    return 2.0 * FARTHEST / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * z * z)


def _finite(values: HostArray, z: HostArray) -> HostArray:
    """Without what overflows far outside, where the density is 0 beside everything else."""
    return np.where((abs(z) > BULK) & ~np.isfinite(values), 0.0, values)


def simulated_moments(
    question: Question, mean: float, std: float, params: dict[str, Any]
) -> dict[str, Estimate]:
    """Mean, standard deviation and E s'^2."""
    random = new_generator([question.seed, 0])
    rows = []
    for _ in range(REPEATS):
        z = _cells(random, question.samples)
        weights = _density(z) / question.samples
        y, slopes = question.values_and_slopes(mean + std * z, params)
        y, slopes = _finite(y, z), _finite(slopes, z)
        rows.append([float((weights * x).sum()) for x in (y, y * y, slopes * slopes)])
    first, second, slope2 = np.array(rows).T
    center = first.mean()
    variance = second - 2.0 * center * first + center**2
    spread = math.sqrt(max(variance.mean(), 0.0))
    of_variance = Estimate.of(variance.tolist())
    half_width = of_variance.half_width / (2.0 * spread) if spread else 0.0
    return {
        "mean": Estimate.of(first.tolist()),
        "std": Estimate(spread, half_width, REPEATS),
        "slope2": Estimate.of(slope2.tolist()),
    }


# -- the checks


def check_moments_by_simulation(question: Question) -> None:
    for (mean, std), params in itertools.product(SETTINGS, question.parameters()):
        stated = gaussian(question.record, mean, std, **params)
        simulated = simulated_moments(question, mean, std, params)
        for field, error in _stated_errors(stated).items():
            _compare(question, field, getattr(stated, field), error, simulated[field], mean, std)


def _stated_errors(stated: Moments) -> dict[str, float]:
    """What each moment may be off by."""
    size = math.hypot(stated.mean, stated.std)
    errors = {"mean": stated.error * stated.std, "std": stated.error * stated.std}
    if math.isfinite(stated.slope2) and math.isfinite(stated.slope_error):
        errors["slope2"] = stated.slope_error * stated.slope2
    return {field: error + ROUNDING * size for field, error in errors.items()}


NAMES = {"mean": "the mean", "std": "the standard deviation", "slope2": "E s'^2"}


def _compare(
    question: Question,
    field: str,
    stated: float,
    error: float,
    simulated: Estimate,
    mean: float,
    std: float,
) -> None:
    half_width = simulated.half_width_at(question.confidence())
    if abs(simulated.mean - stated) <= error + half_width:
        return
    form = "the closed form" if question.record.moments else "quadrature"
    raise Wrong(
        f"{NAMES[field]} for N({mean:g}, {std:g}^2) is {stated:.9g} ± {error:.1g} by {form}, and "
        f"{simulated.mean:.9g} ± {half_width:.1g} by simulation (seed={question.seed})",
        f"both agree within their errors (error probability {question.error_probability:g})",
        "correct moments=, or leave it out: then quadrature computes them; and see whether the "
        "slope that autograd gives is that of the function",
    )


def check_closed_form(question: Question) -> None:
    record = question.record
    if record.moments is None:
        return
    for (mean, std), params in itertools.product(SETTINGS, question.parameters()):
        stated = gaussian(record, mean, std, **params)
        computed = gaussian(question.function, mean, std, **params)
        errors, others = _stated_errors(stated), _stated_errors(computed)
        for field in [field for field in errors if field in others]:
            first, second = getattr(stated, field), getattr(computed, field)
            allowed = errors[field] + others[field]
            if not abs(first - second) <= allowed:
                raise Wrong(
                    f"{NAMES[field]} for N({mean:g}, {std:g}^2) is {first:.12g} by the closed "
                    f"form, and {second:.12g} by quadrature",
                    f"both agree to {allowed:.1g}",
                    "correct moments=, or leave it out: then quadrature computes them",
                )


def check_dual(question: Question) -> None:
    if question.record.dual is None:
        return
    for (rho, means, stds), params in itertools.product(PAIRS, question.parameters()):
        stated = dual(question.record, rho, means, stds, **params).covariance
        computed = dual(question.function, rho, means, stds, **params).covariance
        size = [
            gaussian(question.record, m, s, **params).std for m, s in zip(means, stds, strict=True)
        ]
        allowed = OF_DUAL * size[0] * size[1]
        if not abs(stated - computed) <= allowed:
            raise Wrong(
                f"the covariance for a correlation of {rho:g}, means {means} and standard "
                f"deviations {stds} is {stated:.9g} by the closed form, and {computed:.9g} by "
                "quadrature",
                f"both agree to {allowed:.1g}",
                "correct dual=, or leave it out: then it is computed numerically",
            )


def check_kinks(question: Question) -> None:
    record = question.record
    jumps = list(_jumps(question))
    missing = [jump for jump in jumps if not _is_declared(jump.place, record.kinks)]
    if missing:
        places = sorted({float(f"{jump.place:.9g}") for jump in missing})
        kinks = sorted({*record.kinks, *places[:5]})
        listed = ", ".join(f"{kink:.9g}" for kink in kinks) + ("," if len(kinks) == 1 else "")
        raise Wrong(
            f"{missing[0]}, which is not among {record.kinks}; "
            f"{len(places)} such place{'s are' if len(places) > 1 else ' is'} missing",
            "kinks has all places where the function or its slope jumps",
            f"tp.Activation(..., kinks=({listed}))",
        )
    stated = gaussian(record, **question.start).slope2
    of_values = [jump for jump in jumps if jump.of == "the function"]
    near = [jump for jump in of_values if abs(jump.place) < 5.0]
    if near and math.isfinite(stated):
        raise Wrong(
            f"{near[0]}, and E s'^2 is {stated:.6g}",
            "where a function jumps, its slope is infinite, and so is the mean square of that",
            "return math.inf from moments=",
        )


@dataclass(frozen=True)
class Jump:
    of: str  # "the function" or "the slope"
    place: float
    left: float
    right: float

    def __str__(self) -> str:
        return f"{self.of} jumps from {self.left:.4g} to {self.right:.4g} at {self.place:.9g}"


def _is_declared(place: float, kinks: tuple[float, ...]) -> bool:
    return any(abs(place - kink) <= NEAR * (1.0 + abs(kink)) for kink in kinks)


def _jumps(question: Question) -> Iterator[Jump]:
    """Where the function or its slope changes by as much over a tiny interval as over a large one:
    each interval is halved many times, towards the half with the larger change."""
    ends = np.linspace(-SEARCHED, SEARCHED, INTERVALS + 1)
    ends = ends + 1e-3 * math.pi * (ends[1] - ends[0])  # kinks at round numbers lie inside
    for which, of in enumerate(("the function", "the slope")):

        def at(u: HostArray, which: int = which) -> HostArray:
            return question.values_and_slopes(u, question.start)[which]

        heights = at(ends)
        visible = VISIBLE * abs(heights).max(initial=0.0)
        left, right = ends[:-1], ends[1:]
        f_left, f_right = heights[:-1], heights[1:]
        for _ in range(BISECTIONS):
            is_large = abs(f_right - f_left) > visible
            left, right = left[is_large], right[is_large]
            f_left, f_right = f_left[is_large], f_right[is_large]
            middle = 0.5 * (left + right)
            f_middle = at(middle)
            goes_left = abs(f_middle - f_left) > abs(f_right - f_middle)
            right, f_right = np.where(goes_left, (middle, f_middle), (right, f_right))
            left, f_left = np.where(goes_left, (left, f_left), (middle, f_middle))
        for i in np.flatnonzero(abs(f_right - f_left) > visible):
            place = 0.5 * float(left[i] + right[i])
            yield Jump(of, 0.0 if abs(place) < 1e-9 else place, float(f_left[i]), float(f_right[i]))


def check_homogeneous(question: Question) -> None:
    if not question.record.homogeneous:
        return
    u = new_generator(question.seed).uniform(-3.0, 3.0, 100)
    values, _ = question.values_and_slopes(u, question.start)
    for factor in (0.3, 7.0):
        scaled, _ = question.values_and_slopes(factor * u, question.start)
        off = abs(scaled - factor * values)
        if not off.max() <= 1e-12 * abs(scaled).max():
            i = int(off.argmax())
            raise Wrong(
                f"s({factor:g} * {u[i]:.6g}) = {scaled[i]:.9g}, and {factor:g} s({u[i]:.6g}) = "
                f"{factor * values[i]:.9g} (seed={question.seed})",
                "homogeneous=True says that s(c u) = c s(u) for c > 0",
                "homogeneous=False",
            )


def check_rectifier(question: Question) -> None:
    if not question.record.rectifier:
        return
    left, right = question.values_and_slopes(np.array([-FAR_OUT, FAR_OUT]), question.start)[0]
    smaller, larger = sorted((abs(left), abs(right)))
    if smaller > ONE_SIDED * larger:
        raise Wrong(
            f"s({-FAR_OUT:g}) = {left:.6g}, and s({FAR_OUT:g}) = {right:.6g}",
            "rectifier=True says that the function is small on one side, beside the other",
            "rectifier=False",
        )


CHECKS: dict[str, Callable[[Question], None]] = {
    "moments": check_moments_by_simulation,
    "closed form": check_closed_form,
    "dual": check_dual,
    "kinks": check_kinks,
    "homogeneous": check_homogeneous,
    "rectifier": check_rectifier,
}
