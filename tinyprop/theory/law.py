"""States of networks with random weights: the law of their layers, for given samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Self

import numpy as np

from .. import functional as F
from ..engine.arrays import HostArray
from ..engine.context import current
from ..engine.errors import explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.activation import as_activation
from ..functional.shapes import Reshape
from ..functional.windows import Window
from ..nn.state import State, numbers
from .field import (
    Correlation,
    Factors,
    Field,
    Made,
    Opaque,
    Pointwise,
    Step,
    centered,
    nonzero,
    per_channel,
    scaled,
)
from .mixture import Mixture, Summary
from .origin import Fresh, Origin, Values

VALUES = 2048  # pairs of a sample and a position that are treated together
SAMPLES = 1024  # of a channel, for max pooling
INPUTS = 256  # that stand for a Gaussian input
ZERO_SUM = 1e-5  # relative to the sum of absolute values: rows of weights that add up to 0


@dataclass(frozen=True)
class RandomWeights:
    """What is kept of the weights of a layer: how large they are."""

    window: Window
    inputs: int  # of each unit
    length: float  # mean of |w|^2
    bias_mean: float
    bias_variance: float
    zero_sum: bool  # whether rows add up to 0
    correction: float  # of the variance, for rows that do, and samples with a mean of their own

    def levels(self, mean: HostArray) -> HostArray:
        """Means (N, H, W), added up over each window."""
        places = self.window.output((1, 1, *mean.shape[1:]))
        total = np.zeros((len(mean), *places))
        for (i, a), (j, b) in self._elements(mean.shape):
            total[:, i, j] += mean[:, a, b]
        return total

    def _elements(self, shape: tuple[int, ...]) -> Any:
        return product(self.window.along(0, shape[1]), self.window.along(1, shape[2]))

    def covariance(
        self, covariance: HostArray, first_mean: HostArray, second_mean: HostArray
    ) -> HostArray:
        """The covariance matrix of u = w.x + b and v = w.y + b over weights w, from that of x and
        y, and from their means (N, H, W)."""
        shapes = first_mean.shape + second_mean.shape
        square = covariance.reshape(shapes)
        square = square + np.multiply.outer(first_mean, second_mean).astype(covariance.dtype)
        places = self.window.output((1, 1, *first_mean.shape[1:]))
        total = np.zeros((len(first_mean), *places, len(second_mean), *places), square.dtype)
        for (i, a), (j, b) in self._elements(first_mean.shape):
            total[:, i, j, :, i, j] += square[:, a, b, :, a, b]
        size = math.prod(self.window.kernel)
        count = math.prod(total.shape[:3])
        total = total.reshape(count, -1) / size
        if self.zero_sum:  # such rows see deviations from the mean of the patch
            levels = [self.levels(mean).ravel() for mean in (first_mean, second_mean)]
            total = (total - np.outer(*levels) / size**2) * self.correction
        return self.length * total + self.bias_variance

    def __call__(self, field: Field) -> Made:
        matrix = field.covariance()[:, :, 0, 0]
        shape = self.levels(field.mean).shape
        mean = np.full(shape, self.bias_mean)
        result = Field.of(mean, self.covariance(matrix, field.mean, field.mean))
        return result, Drawn(self, field.mean, field.cell_std, nonzero(result.variance).ravel())


@dataclass(frozen=True)
class Drawn(Step):
    """Random weights, which are the same wherever a layer is used again."""

    weights: RandomWeights
    mean: HostArray
    std: HostArray
    new_std: HostArray

    def with_other(self, other: "Drawn", before: Correlation | None) -> Correlation:
        """The correlations of the results for two inputs."""
        covariance = np.zeros((len(self.std), len(other.std)))
        if before is not None:
            covariance = before.rho[:, :, 0, 0] * np.outer(self.std, other.std)
        after = self.weights.covariance(covariance, self.mean, other.mean)
        rho = after / np.outer(self.new_std, other.new_std)
        shape = self.weights.levels(self.mean).shape
        return Correlation(rho[:, :, None, None], shape, shape)


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
        stds = [nonzero(each.values().fields[k].variance).ravel() for each in (self, other)]
        rho = (covariance / np.outer(*stds))[:, :, None, None]
        shapes = [each.values().fields[k].mean.shape for each in (self, other)]
        return Correlation(rho, shapes[0], shapes[1])


def _over_channels(first: HostArray, second: HostArray) -> HostArray:
    """The covariance over channels of each two values (N, H, W) of two blocks of samples."""
    channels = first.shape[1]
    rows = first.transpose(0, 2, 3, 1).reshape(-1, channels)
    columns = second.transpose(0, 2, 3, 1).reshape(-1, channels)
    return rows @ columns.T / channels - np.outer(first.mean(axis=1), second.mean(axis=1))


@dataclass(frozen=True, eq=False)
class Law(Mixture):
    """A channel of a wide layer: a Gaussian process over samples and positions, the same for all
    channels.

    Let S(p, q) be the mean over channels of x(p) x(q), for positions p, q of two samples. Random
    weights w of mean 0 make

        E u(p) u(q) = |w|^2 (mean of S(p + a, q + a) over the shifts a of the window),

    and by the central limit theorem u is Gaussian where many channels add up. An activation s makes
    S the mean of s(u(p)) s(u(q)), its dual. So S after any number of layers follows from that of
    the samples, whatever their law."""

    # There is one field for each block of samples, and its "channels" are samples. H and W are 1
    # for vectors, and all pairs have a correlation.
    sample: tuple[int, ...] = ()  # the shape of a sample of the layer
    width: int = 1  # channels of the last layer with weights
    count: int = 1  # of samples
    sampled: bool = False  # whether they are samples of a Gaussian input

    @classmethod
    def of(cls, samples: HostArray, sampled: bool) -> "Law":
        """From samples (N, C, H, W) or (N, units), in blocks that are treated by themselves."""
        images = samples if samples.ndim == 4 else samples.astype("float64")[:, :, None, None]
        parts = np.array_split(images, -(-len(images) // max(2, VALUES // images[0, 0].size)))
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

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.sample)

    def linear(self, weight: Any, bias: Any = None) -> Self:
        self._check_form("Linear", 2)
        positions = self.fields[0].mean.shape[1:]  # it sees all of them, after Flatten
        return self._drawn(weight, numbers(weight), bias, Window.of(positions, 1, 0), 1)

    def convolve(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Self:
        self._check_form("a convolution", 4)
        filters = numbers(weight)
        window = Window.of(filters.shape[2:], stride, padding, dilation)
        return self._drawn(weight, filters, bias, window, groups)

    def _drawn(self, given: Any, weight: HostArray, bias: Any, window: Window, groups: int) -> Self:
        before = self.applied
        outputs = len(weight)
        rows = weight.reshape(outputs, -1)
        inputs = groups * rows.shape[1]
        zero_sum = _have_zero_sum(rows)
        if zero_sum and groups > 1:
            got = "rows of weights in groups that add up to 0"
            rule = "random rows are centred over all channels"
            raise TypeError(explain(got, rule, "weights='given'"))
        shifts = np.broadcast_to(0.0 if bias is None else numbers(bias), outputs)
        weights = RandomWeights(
            window=window,
            inputs=inputs,
            length=float((rows**2).sum() / outputs),
            bias_mean=float(shifts.mean()),
            bias_variance=float(shifts.var()),
            zero_sum=zero_sum,
            correction=inputs / (inputs - 1) if zero_sum and before.exact else 1.0,
        )
        error = 1.0 / (inputs if before.exact else groups * weight.shape[1])
        origin = Fresh(before.origin, weights, _identity(given))
        is_vector = weight.ndim == 2
        places = () if is_vector else window.output(self.shape)
        return replace(
            before,
            origin=origin,
            values=origin.compute(),
            errors={**before.errors, origin: error},
            sample=(outputs, *places),
            width=outputs,
        )

    def _scaling(self, factor: Any, shift: Any) -> Callable[[Field], Made]:
        factors = np.broadcast_to(per_channel(numbers(factor), len(self.sample)), self.sample)
        shifts = np.broadcast_to(per_channel(numbers(shift), len(self.sample)), self.sample)
        return partial(_scaled, factor=factors, shift=shifts)

    def _activated(self, function: Pointwise) -> Self:
        """With the mean parameters of all channels."""
        return super()._activated(function.each(_mean))

    @property
    def is_precise(self) -> bool:
        """All channels have the same function, so it costs little."""
        return True

    @property
    def _composes(self) -> bool:
        """Factors that differ between channels are not averaged inside a function."""
        return self.pending is not None and not self.pending.differs

    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        """All samples of a block are the batch: one group."""
        if each_value:
            raise self.refusal("a normaliser of each value, after random weights")
        rest = self.applied.mapped(partial(centered, groups=1))
        return rest.divided_by_expectation(1, eps)

    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        """The mean over many channels and the mean square are the same in all groups."""
        rule = partial(_normalized, eps=eps, removes_mean=centered)
        return self.applied.derived(rule, groups / self.width, exact=False)

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
        sample = (self.sample[0], *window.output(self.shape))
        return self.derived(pooled, error, exact=False, pending=None, sample=sample)

    def avg_pool(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Self:
        after = super().avg_pool(kernel_size, stride, padding)
        return replace(after, sample=(self.sample[0], *after.fields[0].mean.shape[1:]))

    def flatten(self, start_axis: int = 1) -> Self:
        if start_axis != 1:
            raise self.refuse(f"flatten from axis {start_axis}")
        return replace(self.applied, sample=(math.prod(self.sample),))

    def add(self, other: State) -> Self:
        return super().add(other.law if isinstance(other, Samples) else other)

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
        return np.average(found, axis=0, weights=self.weights)


@dataclass(frozen=True, eq=False)
class Samples(State):
    """The samples themselves, in front of the first layer with weights: what is there is applied to
    them."""

    tensor: Tensor
    sampled: bool  # whether they are samples of a Gaussian input

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.tensor.shape[1:])

    @cached_property
    def law(self) -> Law:
        """What random weights see of them."""
        return Law.of(self.tensor.numpy(), self.sampled)

    def before_activation(self) -> Self:
        return self

    def summary(self) -> Summary:
        units = np.moveaxis(self.tensor.numpy(), 1, -1).reshape(-1, self.tensor.shape[1])
        units = units.astype("float64")
        mean = np.sqrt([(units.mean(axis=0) ** 2).mean()])
        return Summary(mean, np.array([units.var(axis=0).mean()]), not self.sampled, 0.0)

    def answer(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        has_weights = function in (F.linear, F.conv2d, F.matmul)
        changes_shape = function is F.flatten or isinstance(function, Reshape)
        others = [x for x in args if isinstance(x, State) and not isinstance(x, Samples)]
        if has_weights or changes_shape or others:
            return super().answer(function, args, kwargs)
        tensors = [x.tensor if isinstance(x, Samples) else x for x in args]
        return self._with(function(*tensors, **kwargs))

    def _with(self, tensor: Any) -> Self:
        if not isinstance(tensor, Tensor) or len(tensor) != len(self.tensor):
            raise self.refusal("a function that mixes samples")
        return replace(self, tensor=tensor)

    def linear(self, weight: Any, bias: Any = None) -> Law:
        return self.law.linear(weight, bias)

    def convolve(self, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Law:
        return self.law.convolve(weight, bias, *args, **kwargs)

    def apply(self, activation: Any, **params: Any) -> Self:
        x = self._floats
        by_channel = {name: per_channel(numbers(p), x.ndim - 1) for name, p in params.items()}
        return self._with(as_activation(activation)(x, **by_channel))

    @property
    def _floats(self) -> Tensor:
        return self.tensor if self.tensor.dtype.kind == "f" else self.tensor.astype("float32")

    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> Self:
        x = self._floats
        factor, shift = (per_channel(numbers(value), x.ndim - 1) for value in (factor, shift))
        scaled = numbers(x) * factor + shift
        return self._with(Tensor(scaled.astype(x.dtype)))

    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        axes = 0 if each_value else (0, *range(2, self.tensor.ndim))
        x = numbers(self.tensor)
        variance = x.var(axis=axes)
        std = np.sqrt(np.where(variance > 0, variance, 1.0) if each_value else variance + eps)
        return self.scale(1.0 / std, -x.mean(axis=axes) / std)

    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        x = self._floats
        if centered:
            return self._with(F.group_norm(x, groups, eps=eps))
        in_groups = x.reshape(len(x) * groups, -1)
        return self._with(F.rms_norm(in_groups, in_groups.shape[1], eps=eps).reshape(x.shape))

    def max_pool(self, *args: Any, **kwargs: Any) -> Self:
        return self._with(F.max_pool2d(self.tensor, *args, **kwargs))

    def avg_pool(self, *args: Any, **kwargs: Any) -> Self:
        return self._with(F.avg_pool2d(self.tensor, *args, **kwargs))

    def drop(self, p: float) -> Self:
        return self._with(F.dropout(self.tensor, p))

    def flatten(self, start_axis: int = 1) -> Self:
        if start_axis != 1:
            raise self.refuse(f"flatten from axis {start_axis}")
        return self._with(F.flatten(self.tensor, 1))

    def combine(self, function: Callable[..., Any], *args: Any) -> State:
        if all(not isinstance(x, Law) for x in args):
            return self._with(function(*(x.tensor if isinstance(x, Samples) else x for x in args)))
        return self.law.combine(function, *(x.law if isinstance(x, Samples) else x for x in args))

    def add(self, other: State) -> State:
        if isinstance(other, Samples):
            return self._with(self.tensor + other.tensor)
        return self.law.add(other)


def _have_zero_sum(rows: HostArray) -> bool:
    """Whether all rows add up to 0, up to rounding, without being 0."""
    sums = abs(rows.sum(axis=1))
    sizes = abs(rows).sum(axis=1)
    return bool((sizes > 0).all() and (sums <= ZERO_SUM * sizes).all())


def _identity(weight: Any) -> object:
    """What tells weights apart: a parameter, or the layer that computes them from its own."""
    is_parameter = isinstance(weight, Tensor) and weight.node is None and weight.requires_grad
    running = current().running
    return weight if is_parameter or not running else running[-1]


def _mean(x: Any) -> float:
    return float(np.mean(x))


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
    return result, Factors(f * field.cell_std / nonzero(result.variance).ravel())


def _normalized(field: Field, eps: float, removes_mean: bool) -> Made:
    """Each sample divided by its root mean square over channels and positions."""
    mean = field.mean
    if removes_mean:
        mean = mean - mean.mean(axis=(1, 2), keepdims=True)
    square = (field.variance + mean**2).mean(axis=(1, 2)) + eps
    return scaled(replace(field, mean=mean), square**-0.5)


def _samples_of(field: Field) -> HostArray:
    """Samples (SAMPLES, N, H, W) of a channel; with a little more variance, as rounding may make
    the covariance indefinite."""
    size = field.mean.size
    covariance = field.covariance().astype("float64").reshape(size, size)
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
