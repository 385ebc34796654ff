"""Whether the output of a layer is normalised, by simulation with error bars."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..engine.arrays import HostArray, float64, from_host, to_numpy
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.random import new_generator, seeded
from ..engine.tensor import Tensor
from ..nn.module import Module, observing
from ..report.estimate import Estimate
from .failure import CheckError, Failure, Wrong, run_checks
from .state import untouched

GROUPS = 64  # independent batches, whose spread gives the error bars


@dataclass(frozen=True)
class Normalized:
    """What `check_normalized` has measured, over all units: mean, variance and Jacobian factor of
    the output, with 95 % confidence intervals."""

    mean: Estimate
    variance: Estimate
    jacobian_factor: Estimate

    def __str__(self) -> str:
        return f"mean {self.mean}, variance {self.variance}, Jacobian factor {self.jacobian_factor}"


def check_normalized(
    layer: Module,
    shape: int | tuple[int, ...] | None = None,
    jacobian_factor: float | None = None,
    samples: int = 400_000,
    tolerance: float = 1e-4,
    error_probability: float = 1e-6,
    seed: int = 0,
) -> Normalized:
    """Check that each unit of a layer has mean 0 and variance 1 if its inputs are independent and
    N(0, 1); return what was measured, or raise a CheckError.

    `shape` is that of one sample; without it, layers that have `in_features` are given these.
    Units are along axis 1 of the output. The layer runs in the mode that it is in.

    The Jacobian factor is the root mean square length of the gradient of one output with respect to
    the sample: the factor by which a gradient grows on its way back, if the layer keeps its size.
    It is compared with `jacobian_factor`, or with that of the layer, if it has one, as NormProp
    layers do.

    The units together and each unit by itself must be within `tolerance` of what is expected, and
    an error bar. The error bars are so long that a sound layer fails with a probability of
    `error_probability`, for all its numbers together. Take more `samples` to notice smaller errors.

    >>> layer = tp.nn.NormPropLinear(10, 4, mode="exact")
    >>> measured = tp.testing.check_normalized(layer, samples=20_000)
    >>> abs(measured.variance.mean - 1.0) < 0.05
    True
    >>> try:
    ...     tp.testing.check_normalized(tp.nn.NormPropLinear(10, 4), samples=20_000)
    ... except tp.testing.CheckError as error:
    ...     print([failure.check for failure in error.failures])
    ['mean', 'variance']
    """
    _check_question(samples, tolerance, error_probability)
    sizes = _sample_shape(layer, shape)
    expected = jacobian_factor
    if expected is None:
        expected = getattr(layer, "jacobian_factor", None)
    with untouched(layer), observing(), seeded(seed), np.errstate(all="ignore"):
        groups = Groups.simulated(layer, sizes, samples, seed)
    if not (np.isfinite(groups.means).all() and np.isfinite(groups.squares).all()):
        got = f"NaN or infinity for some of {samples} samples (seed={seed})"
        rule = "the output is finite for every input"
        raise CheckError([Failure("output", got, rule, "F.clip, or an eps beside a divisor")])
    judge = Judge(groups, expected, tolerance, error_probability, seed)
    checks: list[tuple[str, Callable[[], None]]] = [
        ("mean", judge.check_means),
        ("variance", judge.check_variances),
        ("Jacobian factor", judge.check_jacobian),
    ]
    run_checks(checks, seed)
    return judge.measured


def _check_question(samples: int, tolerance: float, error_probability: float) -> None:
    if samples < 2 * GROUPS or tolerance < 0.0 or not 0.0 < error_probability < 1.0:
        got = f"samples={samples}, tolerance={tolerance}, error_probability={error_probability}"
        rule = f"at least {2 * GROUPS} samples, a tolerance of 0 or more, a probability in (0, 1)"
        raise ValueError(explain(got, rule, "check_normalized(layer, samples=400_000)"))


def _sample_shape(layer: Module, shape: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if shape is None:
        shape = getattr(layer, "in_features", None)
    if shape is None:
        raise ShapeError(
            f"check_normalized of a {type(layer).__name__} without a shape",
            "inputs are drawn, so the shape of one sample must be known",
            "check_normalized(layer, (3, 8, 8))",
        )
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    is_shape = all(isinstance(size, int) and size > 0 for size in sizes)
    if not is_shape:
        got = f"check_normalized with shape={shape!r}"
        rule = "the shape of one sample has whole numbers, at least 1"
        raise ShapeError(got, rule, "check_normalized(layer, (3, 8, 8))")
    return tuple(sizes)


@dataclass(frozen=True)
class Groups:
    """Averages over each of many independent batches."""

    means: HostArray  # (groups, units)
    squares: HostArray  # (groups, units)
    slopes: HostArray  # (groups,): squared lengths of gradients, per output

    @classmethod
    def simulated(cls, layer: Module, shape: tuple[int, ...], samples: int, seed: int) -> "Groups":
        random = new_generator(seed)
        parameters = list(layer.parameters())
        like = parameters[0]._data if parameters else np.zeros(1, np.float32)
        draw = partial(_draw, random, like)
        rows = [_one_group(layer, (max(2, samples // GROUPS), *shape), draw) for _ in range(GROUPS)]
        means, squares, slopes = zip(*rows, strict=True)
        return cls(np.array(means), np.array(squares), np.array(slopes))

    @property
    def variances(self) -> HostArray:
        """Mean squares about the mean of all groups: (groups, units)."""
        center = self.means.mean(axis=0)
        return self.squares - 2.0 * center * self.means + center**2


def _draw(random: "np.random.Generator", like: Any, shape: tuple[int, ...]) -> Tensor:
    return Tensor(from_host(random.standard_normal(shape), like=like, dtype=like.dtype))


def _one_group(
    layer: Module, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Tensor]
) -> tuple[HostArray, HostArray, float]:
    x = draw(shape)
    x.requires_grad = True
    y = layer(x)
    if not isinstance(y, Tensor) or y.ndim < 2 or len(y) != len(x):
        raise ShapeError(
            f"a layer that maps {x.shape} to {getattr(y, 'shape', type(y).__name__)}",
            "its output has samples on axis 0 and units on axis 1",
            "a layer of shape (N, C) or (N, C, H, W)",
        )
    values = to_numpy(y._data).astype(float64)
    values = values.reshape(*y.shape[:2], -1)  # (N, C, ...) -> (N, C, positions)
    slope = math.nan
    if y.requires_grad:
        y.backward(draw(y.shape))
        gradient = to_numpy(x.grad._data).astype(float64) if x.grad is not None else np.zeros(1)
        slope = float((gradient**2).sum() / y.size)
    with no_grad():
        return values.mean(axis=(0, 2)), (values**2).mean(axis=(0, 2)), slope


@dataclass(frozen=True)
class Judge:
    """Compares averages with what is expected."""

    groups: Groups
    jacobian_factor: float | None
    tolerance: float
    error_probability: float
    seed: int

    @property
    def measured(self) -> Normalized:
        slope = Estimate.of(self.groups.slopes.tolist())
        factor = math.sqrt(slope.mean) if slope.mean >= 0.0 else math.nan
        half_width = slope.half_width / (2.0 * factor) if factor else 0.0  # delta method
        return Normalized(
            Estimate.of(self.groups.means.mean(axis=1).tolist()),
            Estimate.of(self.groups.variances.mean(axis=1).tolist()),
            Estimate(factor, half_width, slope.n),
        )

    @property
    def confidence(self) -> float:
        """Of each single comparison, so that all together err with the stated probability."""
        units = self.groups.means.shape[1]
        comparisons = 2 * (units + 1) + 1
        return 1.0 - self.error_probability / comparisons

    @property
    def rule(self) -> str:
        return (
            f"up to {self.tolerance:g} and the error bar "
            f"(error probability {self.error_probability:g})"
        )

    def check_means(self) -> None:
        hint = "subtract the activation's mean, tp.moments.gaussian(activation).mean"
        self.compare(self.groups.means, 0.0, hint)

    def check_variances(self) -> None:
        hint = (
            "divide by the activation's standard deviation, tp.moments.gaussian(activation).std; "
            "zeros of a padding lower the variance"
        )
        self.compare(self.groups.variances, 1.0, hint)

    def check_jacobian(self) -> None:
        if self.jacobian_factor is None:
            return
        factor = self.measured.jacobian_factor
        if math.isnan(factor.mean):
            got = f"an output without a gradient (seed={self.seed})"
            rule = "gradients pass through the layer"
            raise Wrong(got, rule, "tensors and tp.functional, in place of arrays")
        half_width = factor.half_width_at(self.confidence)
        if not abs(factor.mean - self.jacobian_factor) <= self.tolerance + half_width:
            got = f"{factor.mean:.6g} ± {half_width:.2g} (all units, seed={self.seed})"
            hint = "tp.moments.gaussian(activation).jacobian_factor is that of gamma = 1"
            raise Wrong(got, f"it is {self.jacobian_factor:.6g}, {self.rule}", hint)

    def compare(self, values: HostArray, expected: float, hint: str) -> None:
        """The average over units, and then each unit."""
        columns = [("all units", values.mean(axis=1))]
        columns += [(f"unit {i}", column) for i, column in enumerate(values.T)]
        for name, column in columns:
            estimate = Estimate.of(column.tolist())
            half_width = estimate.half_width_at(self.confidence)
            if not abs(estimate.mean - expected) <= self.tolerance + half_width:
                got = f"{estimate.mean:.6g} ± {half_width:.2g} ({name}, seed={self.seed})"
                raise Wrong(got, f"it is {expected:g}, {self.rule}", hint)
