"""Networks of wide layers with random weights: one recursion, for samples and for pairs of inputs.

For two inputs a and b (or positions of them), let K_ab be the mean over the channels of a layer of
x_a x_b, and m_a that of x_a. Weights of mean 0 make weighted sums that are Gaussian with covariance
K, by the central limit theorem, so K after a layer follows from K before it. The squared gradient
is multiplied by what weights and normalisers multiply squares by, and at an activation by
E s'(u)^2. Each method of `Wide` is what one kind of layer does: a line of the table `MAPS`. Layers
find theirs by their own forward, or by their `propagate`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Self, TypeVar

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.arrays import HostArray
from ..engine.errors import ShapeError, explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..functional.windows import Window
from ..moments.many import ManyUnits, of_pairs
from ..nn.state import NoRule, State, numbers
from .field import WHOLE, Correlation, Field, per_channel, safe_std
from .linear import Linear
from .mixture import Mixture, Summary
from .norms import centered, expected_factors
from .origin import Fresh, Origin, Values, correlation
from .pointwise import ROUNDING, Bent, Pointwise
from .steps import Factors, Made, Opaque, scaled
from .weights import RandomWeights, are_like_random, have_zero_sum, identity

VALUES = 2048  # pairs of a sample and a position that are treated together
MOST_STORED = 1 << 30  # covariances of the values of all blocks
SAMPLES = 1024  # of a channel, for max pooling
SAME_INPUT = 1.0 - ROUNDING  # a correlation that is 1, but for rounding


@dataclass(frozen=True)
class Map:
    """A line of the table of maps: what a kind of layer does, in formulas."""

    layer: str
    forwards: str  # to K and m
    backwards: str  # to G, the product of gradients of two inputs; "" where it is not known
    holds: str  # whether it is exact, or how fast its error falls


MAPS: dict[str, Map] = {}  # by the names of the methods of a State
Method = TypeVar("Method", bound=Callable[..., Any])


def layer_map(layer: str, forwards: str, backwards: str, holds: str) -> Callable[[Method], Method]:
    """Puts a method into the table."""

    def keep(method: Method) -> Method:
        MAPS[method.__name__] = Map(layer, forwards, backwards, holds)
        return method

    return keep


class Enlarged(Exception):
    """A layer has made images larger than their blocks are cut for."""

    def __init__(self, positions: int):
        self.positions = positions


class SampleOrigin(Origin):
    """Samples, in blocks (N, C, H, W)."""

    def __init__(self, parts: Sequence[HostArray]):
        self.parts = parts
        fields = [Field.of(part.mean(axis=1), _over_channels(part, part)) for part in parts]
        super().__init__(Values(fields))

    def with_input(self, other: Origin, k: int) -> Correlation | None:
        if not isinstance(other, SampleOrigin):
            return None
        covariance = _over_channels(self.parts[k], other.parts[k])
        stds = [safe_std(each.values().fields[k].variance).ravel() for each in (self, other)]
        rho = (covariance / np.outer(*stds))[:, :, None, None]
        shapes = [each.values().fields[k].mean.shape for each in (self, other)]
        return Correlation(rho, shapes[0], shapes[1])


def _count_blocks(samples: int, positions: int) -> int:
    """Of samples whose values are treated together: at least two of them, as different ones are
    compared."""
    together = max(2, VALUES // positions)
    count = -(-samples // together)
    stored = samples * together * positions**2
    if stored > MOST_STORED:
        got = f"{samples:,} samples of images with {positions:,} positions, after random weights"
        rule = (
            f"they have {stored:,} covariances in blocks of {together} samples, and at most "
            f"{MOST_STORED:,} fit"
        )
        raise ShapeError(got, rule, "fewer samples, data=x[:10], or smaller images")
    return count


def _over_channels(first: HostArray, second: HostArray) -> HostArray:
    """The covariance over channels of each two values (N, H, W) of two blocks of samples."""
    channels = first.shape[1]
    rows = first.transpose(0, 2, 3, 1).reshape(-1, channels)
    columns = second.transpose(0, 2, 3, 1).reshape(-1, channels)
    return rows @ columns.T / channels - np.outer(first.mean(axis=1), second.mean(axis=1))


@dataclass(frozen=True, eq=False)
class Wide(Mixture):
    """A channel of a wide layer: a Gaussian process over samples and positions, the same for all
    channels.

    Let K(p, q) be the mean over channels of x(p) x(q), for positions p, q of two samples. Random
    weights w of mean 0 make

        E u(p) u(q) = |w|^2 (mean of K(p + a, q + a) over the shifts a of the window),

    and by the central limit theorem u is Gaussian where many channels add up. An activation s makes
    K the mean of s(u(p)) s(u(q)), its dual. So K after any number of layers follows from that of
    the samples, whatever their law. Or it follows from that of pairs of inputs: see `at`.

    Two inputs at a right angle, in a layer of ReLU and He's weights:

    >>> after = Wide.at([0.0]).apply("relu").weighted(2.0)
    >>> round(after.square, 12), after.products.round(6), round(after.gain, 12)
    (1.0, array([0.31831]), 1.0)
    """

    # There is one field for each block of samples, and its "channels" are samples. H and W are 1
    # for vectors, and all pairs have a correlation.
    sample: tuple[int, ...] = ()  # the shape of a sample of the layer
    width: int = 1  # channels of the last layer with weights
    count: int = 1  # of samples
    sampled: bool = False  # whether they are samples of a Gaussian input
    # whether there are no samples, but inputs of the same length, of which only those pairs count
    # that the first is in; the last input is unrelated to all others, as those of a large batch are
    pairs: bool = False
    # E (dx / dinput)^2 before what is pending, for pairs; None if it is not known
    jacobian: float | None = None
    sums: bool = False  # whether values are Gaussian and units alike: of weighted sums, for pairs
    over_batch: bool = False  # whether a batch was normalised
    in_groups: bool = False  # whether groups of channels were

    @classmethod
    def of(cls, samples: HostArray, sampled: bool, positions: int = 1) -> "Wide":
        """From samples (N, C, H, W) or (N, units), in blocks that are treated by themselves. Images
        of the network have up to so many positions, if it is more than in these."""
        images = samples if samples.ndim == 4 else samples.astype("float64")[:, :, None, None]
        count = _count_blocks(len(images), max(positions, images[0, 0].size))
        parts = np.array_split(images, count)
        origin = SampleOrigin(parts)
        return cls(
            origin,
            origin.values(),
            weights=tuple(len(part) / len(images) for part in parts),
            gaussian=False,
            sample=samples.shape[1:],
            count=len(images),
            sampled=sampled,
        )

    @classmethod
    def at(cls, cosines: Any, square: float = 1.0, units: int = 1) -> "Wide":
        """Pairs of Gaussian inputs with these cosines between them, and one unrelated input."""
        with_first = square * np.concatenate([[1.0], np.asarray(cosines, "float64"), [0.0]])
        field = _beside_first(
            np.zeros(len(with_first)), np.full(len(with_first), square), with_first
        )
        values = Values([field])
        return cls(
            Origin(values),
            values,
            sample=(units,),
            count=len(with_first),
            pairs=True,
            jacobian=1.0,
            sums=True,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.sample)

    # What is known of pairs

    @cached_property
    def _with_first(self) -> HostArray:
        """K_ab of the first input with all."""
        (field,) = self.applied.fields
        mean = field.mean.ravel()
        std = field.cell_std
        return field.rho[0, :, 0, 0] * std[0] * std + mean[0] * mean

    @property
    def square(self) -> float:
        """K_aa, the same for all inputs."""
        return float(self._with_first[0])

    @property
    def products(self) -> HostArray:
        """K_ab of each pair."""
        return self._with_first[1:-1]

    @property
    def unrelated(self) -> float:
        """K_ab of two inputs that were unrelated."""
        return float(self._with_first[-1])

    @property
    def has_mean(self) -> bool:
        """Whether the mean of units is not 0."""
        (field,) = self.applied.fields
        return bool(field.mean.any())

    @property
    def gain(self) -> float:
        """Of the squared gradient, from these values back to the first."""
        known = self.applied.jacobian
        return math.nan if known is None else known

    @property
    def cosines(self) -> HostArray:
        """Between the values of each pair."""
        return self.products / self.square

    def restarted(self) -> Self:
        """The same values as the first ones."""
        values = self.applied.values
        return replace(
            self.applied, origin=Origin(values), values=values, source=None, jacobian=1.0
        )

    # The maps

    def weighted(self, square: float, center: bool = False) -> Self:
        """Random weights with |row|^2 = square on average; rows that add up to 0 see the deviations
        from the mean over channels."""
        before = self.applied
        positions = before.fields[0].mean.shape[1:]
        rule = RandomWeights(Window.of(positions, 1, 0), square, zero_sum=center)
        return before._summed(rule, object(), 0.0)

    @layer_map(
        "Linear",
        "K <- v K + Var b + (E b)^2,  m <- E b;  rows of sum 0 see K - m m^T in place of K",
        "G <- v G",
        "1/width",
    )
    def linear(self, weight: Any, bias: Any = None) -> Self:
        return super().linear(weight, bias)

    @layer_map(
        "Conv2d",
        "K_pq <- v mean over shifts t of K_(p+t, q+t), which is 0 on the padding; bias as above",
        "transposed shifts",
        "1/channels",
    )
    def convolve(self, weight: Any, bias: Any = None, *args: Any, **options: Any) -> Self:
        return super().convolve(weight, bias, *args, **options)

    def _output(self, window: Window) -> tuple[int, ...]:
        """The places of a window. Blocks of larger images need to have fewer samples."""
        places = window.output(self.shape)
        positions = math.prod(places)
        samples = max(len(field.mean) for field in self.values.fields)
        if samples > 2 and samples * positions > WHOLE:
            raise Enlarged(positions)
        return places

    def _weighted(self, given: Any, weights: Linear, groups: int = 1) -> Self:
        """After random weights in the place of these."""
        before = self.applied
        window = weights.window
        if window is None:  # a linear layer sees all positions, after Flatten
            window = Window.of(self.fields[0].mean.shape[1:], 1, 0)
            places: tuple[int, ...] = ()
        else:
            places = self._output(window)
        outputs = len(weights.weight)
        rows = weights.weight.reshape(outputs, -1)
        inputs = groups * rows.shape[1]
        zero_sum = have_zero_sum(rows)
        if zero_sum and groups > 1:
            got = "rows of weights in groups that add up to 0"
            rule = "random rows are centred over all channels"
            raise TypeError(explain(got, rule, "weights='given'"))
        shifts = np.broadcast_to(weights.bias, outputs)
        if self.pairs:
            _check_units_are_alike(rows, shifts)
        # the covariance over the channels of a sample lacks the variance of their mean
        is_of_sample = zero_sum and before.exact and not self.pairs
        drawn = RandomWeights(
            window=window,
            length=float((rows**2).sum() / outputs),
            bias_mean=float(shifts.mean()),
            bias_variance=float(shifts.var()),
            zero_sum=zero_sum,
            correction=inputs / (inputs - 1) if is_of_sample else 1.0,
        )
        channels = groups * weights.weight.shape[1]
        error = 1.0 / (inputs if before.exact else channels)
        after = before._summed(drawn, identity(given), error)
        return replace(after, sample=(outputs, *places), width=outputs)

    def _summed(self, weights: RandomWeights, key: object, error: float) -> Self:
        origin = Fresh(self.origin, weights, key)
        return replace(
            self,
            origin=origin,
            values=origin.compute(),
            source=None,  # a sum of many values is no function of one
            errors={**self.errors, origin: error},
            jacobian=_times(self.jacobian, weights.length),
            sums=self.pairs,
        )

    @layer_map(
        "Activation",
        "K_ab <- E s(u_a) s(u_b),  m_a <- E s(u_a),  u ~ N(m, K - m m^T)",
        "G_ab <- G_ab E s'(u_a) s'(u_b)",
        "exact for Gaussian u; functions in a row are one function",
    )
    def apply(self, activation: Any, **params: Any) -> Self:
        return super().apply(activation, **params)

    def _activated(self, function: Pointwise) -> Self:
        """With the mean parameters of all channels."""
        function = function.each(_mean)
        if not self.pairs:
            return super()._activated(function)
        (field,) = self.fields
        mean, std = _first_value(field)
        function = _as_one(function, mean, std, function.key(mean, std))
        slope = _unit(function, mean, std).known.slope2
        jacobian = _times(self.jacobian, float(slope))
        return replace(super()._activated(function), jacobian=jacobian, sums=False)

    def _rule(self, function: Pointwise) -> Callable[[Field], Made]:
        return partial(_of_pairs, function=function) if self.pairs else super()._rule(function)

    @property
    def is_precise(self) -> bool:
        """All channels have the same function, so it costs little."""
        return True

    @property
    def _composes(self) -> bool:
        """Factors that differ between channels are not averaged inside a function."""
        return self.pending is not None and not self.pending.differs

    @layer_map(
        "Scale, a factor f and a shift t",
        "K <- f^2 K + f t (m_a + m_b) + t^2,  m <- f m + t",
        "G <- f^2 G",
        "exact",
    )
    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> Self:
        factor = _if_equal(self._numbers("factor", factor))
        shift = _if_equal(self._numbers("shift", shift))
        return super().scale(factor, shift)

    def _scaled(self, factor: Any, shift: Any) -> Self:
        after = super()._scaled(factor, shift)
        return replace(after, jacobian=_times(self.jacobian, float(np.mean(np.square(factor)))))

    def _scaling(self, factor: Any, shift: Any) -> Callable[[Field], Made]:
        if not np.ndim(factor) and not np.ndim(shift):
            return partial(scaled, factor=factor, shift=shift)
        factors = np.broadcast_to(per_channel(numbers(factor), len(self.sample)), self.sample)
        shifts = np.broadcast_to(per_channel(numbers(shift), len(self.sample)), self.sample)
        return partial(_scaled, factor=factors, shift=shifts)

    @layer_map(
        "BatchNorm",
        "K <- (K - k) / (K_aa - k),  m <- 0,  with k = K of unrelated inputs",
        "G <- G / (K_aa - k)",
        "1/batch; finite batches of vectors: `theory.gains`",
    )
    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        """All samples of a block are the batch: one group. Pairs are in a large batch of unrelated
        inputs, so it removes what these have in common."""
        if each_value:
            raise self.refusal("a normaliser of each value, after random weights")
        before = self.applied
        if not before.pairs:
            rest = before.mapped(partial(centered, groups=1))
            return rest.divided_by_expectation(1, eps)
        if not before.sums:
            raise self.refusal("a normaliser of the batch, whose units do not vary alike,")
        rest = before.derived(_without_common)
        return replace(rest._scaled((rest.square + eps) ** -0.5, 0.0), over_batch=True)

    @layer_map(
        "LayerNorm, RMSNorm, GroupNorm",
        "K_ab <- C_ab / sqrt(C_aa C_bb),  m <- m / sqrt(C_aa),  with C = K - m m^T and m <- 0 "
        "first, or C = K for RMSNorm",
        "G_ab <- G_ab / sqrt(C_aa C_bb)",
        "1/(units of a group); finite groups: `theory.gains`",
    )
    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        """The mean over many channels and the mean square are the same in all groups."""
        if not self.pairs:  # which stand for any number of units
            self._check_groups(groups, centered)
        before = self.applied
        rule = partial(_normalized, eps=eps, removes_mean=centered)
        after = before.derived(rule, groups / self.width, exact=False)
        rest = _without_mean(before.fields[0]) if centered else before.fields[0]
        factor = float(_factors_of_samples(rest, eps)[0])
        jacobian = _times(before.jacobian, factor**2)
        return replace(after, jacobian=jacobian, in_groups=before.in_groups or groups > 1)

    @layer_map(
        "MaxPool2d", "K_PQ <- E max_P u max_Q u, of samples of N(m, K - m m^T)", "", "sampled"
    )
    def max_pool(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
    ) -> Self:
        """From samples of a channel."""
        self._check_form("MaxPool2d", 4)
        window = Window.of(kernel_size, stride, padding, ceil=ceil_mode)
        pending = None if self.pending is None else self.pending.each(_mean)

        def pooled(field: Field) -> Made:
            values = _samples_of(field)
            if pending is not None:
                values = pending.value(values)
            settings = window.kernel, window.stride, window.padding, window.ceil
            largest = F.max_pool2d(Tensor(values), *settings).numpy()
            mean = largest.mean(axis=0)
            rest = (largest - mean).reshape(SAMPLES, -1)
            return Field.of(mean, rest.T @ rest / SAMPLES), Opaque()

        error = math.sqrt(2.0 / SAMPLES)
        sample = (self.sample[0], *self._output(window))
        return self.derived(pooled, error, exact=False, pending=None, sample=sample, jacobian=None)

    @layer_map("AvgPool2d", "K_PQ <- mean of K_pq over p in P, q in Q", "", "exact")
    def avg_pool(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Self:
        self._check_form("AvgPool2d", 4)
        places = self._output(Window.of(kernel_size, stride, padding))
        if max(field.mean.size for field in self.values.fields) > WHOLE:
            got = f"AvgPool2d of images {self.sample}, after random weights"
            rule = f"it takes two samples of at most {WHOLE // 2:,} positions"
            raise ShapeError(got, rule, "smaller images, or a convolution with a stride before it")
        sample = (self.sample[0], *places)
        after = super().avg_pool(kernel_size, stride, padding)
        return replace(after, sample=sample, jacobian=None)

    @layer_map("Dropout", "K_aa <- K_aa / (1 - p), others stay", "G_aa <- G_aa / (1 - p)", "exact")
    def drop(self, p: float) -> Self:
        after = super().drop(p)
        return replace(after, jacobian=_times(after.jacobian, 1.0 / (1.0 - p)), sums=False)

    @layer_map("Flatten", "positions become units", "the same", "exact")
    def flatten(self, start_axis: int = 1) -> Self:
        if start_axis != 1:
            raise self.refuse(f"flatten from axis {start_axis}")
        return replace(self.applied, sample=(math.prod(self.sample),))

    @layer_map(
        "Residual, a sum of branches f and g",
        "K <- K_f + K_g, and K_fg + K_gf where they have weights or activations in common",
        "G <- G_f + G_g, where they have none",
        "exact",
    )
    def add(self, other: State) -> Self:
        first = self.applied
        second: Any = getattr(other, "wide", other)  # of the samples themselves
        after = super().add(second)
        if not self.pairs:
            return after
        second = second.applied
        jacobian = None
        if first.jacobian is not None and second.jacobian is not None:
            has_common = correlation(first.origin, second.origin, 0) is not None
            jacobian = None if has_common else first.jacobian + second.jacobian
        return replace(
            after,
            jacobian=jacobian,
            sums=first.sums and second.sums,
            over_batch=first.over_batch or second.over_batch,
            in_groups=first.in_groups or second.in_groups,
        )

    def summary(self) -> Summary:
        """One number for all units: the root mean square of their means, and their mean
        variance."""
        square, same, other = self.squares()
        n = self.count
        of_mean = max(same / n + (1.0 - 1.0 / n) * other, 0.0)
        is_exact = self.exact and self.pending is None and not self.sampled
        error = 0.0 if is_exact else self.error
        if self.sampled:
            error += math.sqrt(2.0 / n)
        return Summary(np.sqrt([of_mean]), np.array([square - of_mean]), is_exact, error)

    def squares(self) -> HostArray:
        """Over positions, E u^2, and E u(p) u(q) for a sample with itself and for two different
        ones; averaged over the blocks."""
        found = [_squares(field) for field in self.applied.fields]
        square, same, _ = np.average(found, axis=0, weights=self.weights)
        # blocks of a single sample have no different ones
        pairs = [
            weight * (len(field.mean) > 1)
            for weight, field in zip(self.weights, self.fields, strict=True)
        ]
        others = [other for _, _, other in found]
        return np.array([square, same, np.average(others, weights=pairs) if any(pairs) else 0.0])


def _check_units_are_alike(rows: HostArray, shifts: HostArray) -> None:
    """Pairs stand for all networks of a kind, so nothing but chance tells their units apart."""
    if not are_like_random(rows):
        got = f"weights {rows.shape} whose rows are not like random ones"
        rule = "theory takes rows that are independent, of mean 0 and of one length"
        raise NoRule(explain(got, rule, "tp.propagate(net, data=x), with the weights as they are"))
    if (shifts != shifts[0]).any():
        got = "biases that differ between units"
        rule = "theory takes one bias for all units of a layer"
        raise NoRule(explain(got, rule, "tp.propagate(net, data=x), with the biases as they are"))


def _mean(x: Any) -> float:
    return x if isinstance(x, float) else float(np.mean(x))


def _scaled(field: Field, factor: HostArray, shift: HostArray) -> Made:
    """Channels times factors plus shifts, which have nothing to do with the channels' values."""
    f = factor.mean()
    t = shift.mean()
    if (factor == f).all() and (shift == t).all():
        return scaled(field, f, t)
    mean = field.mean.ravel()
    together = ((factor - f) * (shift - t)).mean()
    covariance = (factor**2).mean() * field.covariance()[:, :, 0, 0] + shift.var()
    covariance += factor.var() * np.outer(mean, mean) + together * np.add.outer(mean, mean)
    result = Field.of(f * field.mean + t, covariance)
    return result, Factors(f * field.cell_std / safe_std(result.variance).ravel())


def _normalized(field: Field, eps: float, removes_mean: bool) -> Made:
    """Each sample divided by its root mean square over channels and positions."""
    rest = _without_mean(field) if removes_mean else field
    return scaled(rest, _factors_of_samples(rest, eps))


def _without_mean(field: Field) -> Field:
    """The mean of each sample, which all channels have in common, is removed."""
    return replace(field, mean=field.mean - field.mean.mean(axis=(1, 2), keepdims=True))


def _factors_of_samples(field: Field, eps: float) -> HostArray:
    """One over the root mean square of each sample: samples stand in the place of channels."""
    return expected_factors(field, len(field.mean), eps)


def _of_pairs(field: Field, function: Pointwise) -> Made:
    """An activation, for the covariances with the first input. Inputs are of one length, so the
    moments and the series of the first are those of all."""
    count = len(field.mean)
    unit = _unit(function, *_first_value(field))
    rho = np.clip(field.rho[0, :, 0, 0], -1.0, 1.0)
    (others,) = np.nonzero(rho < SAME_INPUT)
    covariance = np.full(count, unit.variance)
    covariance[others], bound = unit.covariances(rho[others])
    after = _beside_first(np.full(count, unit.mean), np.full(count, unit.variance), covariance)
    units = function.units(field.mean, field.variance)
    std = np.full(count, math.sqrt(unit.variance))
    return after, Bent(std, units=units, bound=bound + unit.error)


@dataclass(frozen=True)
class Unit:
    """A function of one Gaussian number, times a factor."""

    known: moments.Moments
    units: ManyUnits
    factor: float
    is_closed: bool  # whether the moments are a closed form

    @property
    def mean(self) -> float:
        return float(self.factor * self.known.mean)

    @property
    def variance(self) -> float:
        return float(self.factor * self.known.std) ** 2

    @property
    def error(self) -> float:
        return 0.0 if self.is_closed else float(self.known.error)

    def covariances(self, rho: HostArray) -> tuple[HostArray, float]:
        """At pairs with these correlations, and a bound of their error."""
        found, bound = of_pairs(self.units, rho, self.known.std**2)
        return self.factor**2 * found, bound


def _unit(function: Pointwise, mean: float, std: float) -> Unit:
    """A homogeneous function of N(0, std^2) is std times that of N(0, 1)."""
    activation = function.activation
    factor = std if activation.homogeneous and mean == 0.0 and std > 0.0 else 1.0
    std = std / factor
    params = tuple(function.params.items())
    known, units = _of_one(activation, mean, std, params, function.unscaled.key(mean, std))
    return Unit(known, units, factor, activation.moments is not None)


# deep networks ask for the same ones again and again
@lru_cache(maxsize=256)
def _of_one(
    activation: Activation,
    mean: float,
    std: float,
    params: tuple[tuple[str, float], ...],
    key: bytes,
) -> tuple[moments.Moments, ManyUnits]:
    """The moments and the series of a function with this key, see `Pointwise.key`."""
    function = Pointwise(activation, dict(params))
    known = moments.gaussian(activation, mean, std, **function.params)
    return known, function.units(np.full((1, 1, 1), mean), np.full((1, 1, 1), std**2))


def gaussian(activation: Activation, mean: float = 0.0, std: float = 1.0) -> moments.Moments:
    """The moments of an activation with the parameters that it starts with, kept for the next
    layer."""
    return _gaussian(activation, mean, std, Pointwise(activation, {}).key(mean, std))


@lru_cache(maxsize=4096)
def _gaussian(activation: Activation, mean: float, std: float, key: bytes) -> moments.Moments:
    return moments.gaussian(activation, mean, std)


def _first_value(field: Field) -> tuple[float, float]:
    """Mean and standard deviation of the first input."""
    return float(field.mean.flat[0]), math.sqrt(field.variance.flat[0])


def _without_common(field: Field) -> Made:
    """Minus what a unit makes of most inputs, which are unrelated to the first."""
    covariance = field.covariance()[0, :, 0, 0]
    rest = covariance - covariance[-1]
    variance = field.variance.ravel() - covariance[-1]
    after = _beside_first(np.zeros(len(rest)), variance, rest)
    return after, Opaque()


def _beside_first(mean: HostArray, variance: HostArray, covariance: HostArray) -> Field:
    """The field of inputs of which only the covariances with the first are known. The others, that
    nothing depends on, are 0."""
    matrix = np.diag(variance)
    matrix[0] = covariance
    matrix[:, 0] = covariance
    matrix[0, 0] = variance[0]
    return Field.of(mean[:, None, None], matrix)


@lru_cache(maxsize=256)
def _as_one(function: Pointwise, mean: float, std: float, key: bytes) -> Pointwise:
    """Functions in a row as one record, with the kinks that a Gaussian value meets."""
    if function.inner is None:
        return function
    law = np.array([mean]), np.array([std])
    record = function.record(*law, function.places(*law))
    return function if record is None else Pointwise(record, {})


def _times(jacobian: float | None, factor: float) -> float | None:
    return None if jacobian is None else jacobian * factor


def _if_equal(values: Any) -> Any:
    """One number instead of equal numbers."""
    if isinstance(values, float):
        return values
    array = numbers(values)
    first = array.ravel()[0]
    return float(first) if (array == first).all() else values


def _samples_of(field: Field) -> HostArray:
    """Samples (SAMPLES, N, H, W) of a channel; with a little more variance, as rounding may make
    the covariance indefinite."""
    size = field.mean.size
    covariance = field.covariance().astype("float64").reshape(size, size)
    if not covariance.trace():  # samples of nothing but zeros
        return np.broadcast_to(field.mean, (SAMPLES, *field.mean.shape))
    root = np.linalg.cholesky(covariance + 1e-6 * covariance.trace() * np.eye(size))
    z = new_generator(0).standard_normal((SAMPLES // 2, size))
    deviations = np.concatenate([z, -z]) @ root.T
    return deviations.reshape(-1, *field.mean.shape) + field.mean


def _squares(field: Field) -> HostArray:
    count = len(field.mean)
    products = field.covariance()[:, :, 0, 0] + np.outer(field.mean, field.mean)
    blocks = products.reshape(count, field.mean[0].size, count, -1).mean(axis=(1, 3))
    other = (blocks.sum() - blocks.trace()) / max(1, count * (count - 1))
    return np.array([products.trace() / len(products), blocks.trace() / count, other])
