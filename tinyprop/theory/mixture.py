"""Networks with given weights: what their layers do to a mixture of Gaussians.

This is not the recursion of wide networks (wide.py), which averages over weights. It keeps what
that has no need of: a mean and a variance for each unit, the covariance of each two, and what a
layer has in common with any other (origin.py). What both do alike is here once, and `Wide` inherits
it: the order in which functions are applied, sums, dropout, pools. Both have their moments of
activations from `Pointwise`, and so from `tinyprop.moments`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation, activations, as_activation
from ..functional.windows import Window
from ..nn.state import State, numbers
from . import norms
from .field import WHOLE, Field
from .linear import Linear
from .origin import Derived, Origin, Sum, Values
from .pointwise import Pointwise, ValueMoments
from .pool import max_pool
from .steps import Made, Opaque, dropped, flat, scaled

Amounts = Mapping[Origin, float]  # what each rule adds to an error
MOST_DIVIDED = 1024  # values whose covariance is decomposed, for a norm
EXACT = 1e-9  # the largest error of what is called exact


class Summary(NamedTuple):
    """What a record of `propagate` says of a layer."""

    mean: HostArray
    variance: HostArray
    exact: bool
    error: float


@dataclass(frozen=True, eq=False)
class Mixture(State):
    """Weighted Gaussians, and an activation that is still to be applied to them.

    Max pooling needs the values before the activation, hence the delay."""

    origin: Origin
    values: Values
    weights: tuple[float, ...] = (1.0,)  # of the Gaussians
    gaussian: bool = True  # whether the values are jointly Gaussian
    exact: bool = True  # whether means and covariances are those of the values
    exact_values: bool = False  # whether only those of single values are, not of pairs
    divided: bool = False  # whether samples were divided by a norm, of these values or before
    bound: float = 0.0  # of the error of series in covariances, in units of both deviations
    errors: Amounts = field(default_factory=dict)  # estimates of the rest, with random weights
    pending: Pointwise | None = None
    # with this State, to which the activation was applied, if the result was scaled since
    unscaled: Self | None = None
    # the State that these values are a function of, one by one, and the function
    source: tuple[Self, Pointwise] | None = None

    @classmethod
    def start(cls, fields: list[Field], **options: Any) -> Self:
        """The input of a network."""
        values = Values(fields)
        return cls(Origin(values), values, **options)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.values.fields

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.fields[0].mean.shape)

    @property
    def error(self) -> float:
        return sum(self.errors.values(), 0.0)

    def total(self) -> tuple[HostArray, HostArray]:
        """Mean and variance of each value, over all Gaussians."""
        found = [self._moments(each) for each in self.fields]
        mean = sum(w * each.mean for w, each in zip(self.weights, found, strict=True))
        variance = sum(
            w * (each.variance + (each.mean - mean) ** 2)
            for w, each in zip(self.weights, found, strict=True)
        )
        return np.asarray(mean), np.asarray(variance)

    def before_activation(self) -> Self:
        """Without the activation that is pending."""
        return replace(self, pending=None, unscaled=None)

    def summary(self) -> "Summary":
        """The moments of each channel, over samples and positions."""
        mean, variance = by_channel(*self.total())
        bound = self.bound + max(self._moments(each).error for each in self.fields)
        is_known = self.exact and (self.pending is None or self.gaussian)
        is_known |= self.exact_values and self.pending is None
        is_exact = is_known and bound <= EXACT
        return Summary(mean, variance, is_exact, bound if is_exact else math.inf)

    def _moments(self, each: Field) -> ValueMoments:
        if self.pending is None:
            return ValueMoments(each.mean, each.variance, 0.0)
        return self.pending.moments(each.mean, each.variance)

    def _numbers(self, name: str, value: Any) -> Any:
        """A number, an array with one value per channel, or one of the shape of a sample."""
        array = numbers(value)
        if array.size == 1:
            return float(array.reshape(()))
        channels, *positions = self.shape[1:]
        if array.shape in ((channels,), (channels, *[1] * len(positions))):
            return array.reshape(channels)
        if array.shape == (channels, *positions):
            return array
        got = f"a {name} of shape {array.shape} for a State {self.shape}"
        rule = "it is a number, one value per channel, or has the shape of a sample"
        raise ShapeError(got, rule, f"shape ({channels},)")

    # How a new State is made

    def derived(self, rule: Callable[[Field], Made], error: float = 0.0, **changes: Any) -> Self:
        """After a rule for each field, which adds to the error."""
        origin = Derived(self.origin, rule)
        errors = {**self.errors, origin: error} if error else self.errors
        changes = {"source": None, "exact_values": False, "errors": errors, **changes}
        return replace(self, origin=origin, values=origin.compute(), **changes)

    def mapped(self, rule: Callable[[Field], Made], **changes: Any) -> Self:
        """After a rule that is exact where all correlations are known."""
        exact = self.exact and self.fields[0].whole
        return self.derived(rule, **{"exact": exact, **changes})

    @property
    def applied(self) -> Self:
        """After the activation that is pending, if there is one."""
        return self if self.pending is None else self._applied

    @cached_property
    def _applied(self) -> Self:
        assert self.pending is not None
        if self.unscaled is None:
            return self._activated(self.pending)
        return self.unscaled.applied._scaled(self.pending.factor, self.pending.shift)

    def _activated(self, function: Pointwise) -> Self:
        exact = self.exact and self.gaussian
        source = self.before_activation()._without_values(), function
        after = self.derived(
            self._rule(function),
            gaussian=False,
            exact=exact,
            pending=None,
            unscaled=None,
            source=source,
        )
        return replace(after, bound=max(step.bound for step in after.origin.steps))

    def _rule(self, function: Pointwise) -> Callable[[Field], Made]:
        """The rule for an activation."""
        return partial(function, precise=self.is_precise)

    @property
    def is_precise(self) -> bool:
        """Whether covariances of an activation are worth computing to rounding."""
        return self.exact and self.gaussian

    def _without_values(self) -> Self:
        """What is known of the values, without keeping them in memory."""
        return replace(self, values=Values(()))

    def _with_values(self) -> Self:
        return replace(self, values=self.origin.values())

    # The algebra

    def linear(self, weight: Any, bias: Any = None) -> Self:
        self._check_form("Linear", 2)
        weights = Linear(numbers(weight), _bias(bias))
        self._check_weights("linear", weights, "x is (N, in), weight is (out, in)")
        return self._weighted(weight, weights)

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
        weights = Linear(filters, _bias(bias), window)
        rule = "x is (N, C, H, W), weight is (O, C / groups, kh, kw)"
        self._check_weights("conv2d", weights, rule, groups)
        return self._weighted(weight, weights, groups)

    def _check_form(self, name: str, ndim: int) -> None:
        if self.ndim != ndim:
            got = f"{name} of values {self.shape[1:]}"
            rule = "Linear takes vectors, a convolution images (C, H, W)"
            raise ShapeError(got, rule, "Flatten, or another mean")

    def _check_weights(self, name: str, weights: Linear, rule: str, groups: int = 1) -> None:
        """Refuse weights for another number of inputs, and biases for another one of outputs."""
        shape = weights.weight.shape
        has_axes = len(shape) == self.ndim
        if not has_axes or groups * shape[1] != self.shape[1] or shape[0] % groups:
            got = f"{name} of x {self.shape} and weight {shape}"
            if groups != 1:
                got = f"{name} in {groups} groups, of x {self.shape} and weight {shape}"
            raise ShapeError(got, rule, f"a layer for {self.shape[1]} inputs")
        bias = np.shape(weights.bias)
        if np.size(weights.bias) > 1 and bias != shape[:1]:
            got = f"{name} with weight {shape} and bias {bias}"
            raise ShapeError(got, "there is one bias for each output", f"shape {shape[:1]}")

    def _weighted(self, given: Any, weights: Linear, groups: int = 1) -> Self:
        """After a layer with these weights, which a forward has given."""
        weights = replace(weights, weight=_without_groups(weights.weight, groups))
        before = self.applied
        after = before.mapped(weights)
        if not before.bound:
            return after
        growth = max(map(weights.growth, before.fields, after.fields))
        return replace(after, bound=before.bound * growth)

    def apply(self, activation: Any, **params: Any) -> Self:
        arrays = {name: self._numbers(name, value) for name, value in params.items()}
        before = self if self._composes else self.applied
        function = Pointwise(as_activation(activation), arrays, inner=before.pending)
        for known, after in before._activations:
            if known.equals(function):  # the same values again, not others that are like them
                return after
        after = replace(before, pending=function, unscaled=None)
        before._activations.append((function, after))
        return after

    @property
    def _composes(self) -> bool:
        """Whether a function of these values is one of the values before their activation."""
        return self.pending is not None

    @cached_property
    def _activations(self) -> list[tuple[Pointwise, Self]]:
        """What has been applied to these values."""
        return []

    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> Self:
        factor = self._numbers("factor", factor)
        shift = self._numbers("shift", shift)
        if self.pending is not None and np.ndim(factor) <= 1 and np.ndim(shift) <= 1:
            pending = self.pending.scaled(factor, shift)
            unscaled = self if self.unscaled is None else self.unscaled
            return replace(self, pending=pending, unscaled=unscaled)
        return self.applied._scaled(factor, shift)

    def _scaled(self, factor: Any, shift: Any) -> Self:
        function = Pointwise(activations["identity"], {}, factor, shift)
        source = self._without_values(), function
        rule = self._scaling(factor, shift)
        return self.derived(rule, source=source, exact_values=self.exact_values)

    def _scaling(self, factor: Any, shift: Any) -> Callable[[Field], Made]:
        """The rule for factor * x + shift."""
        return partial(scaled, factor=factor, shift=shift)

    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        mean, variance = self.total()
        if each_value:
            std = np.sqrt(np.where(variance > 0, variance, 1.0))
        else:
            mean, variance = by_channel(mean, variance)
            std = np.sqrt(variance + eps)
        return self.scale(1.0 / std, -mean / std)

    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        self._check_groups(groups, centered)
        before = self.applied
        if centered:
            before = before.mapped(partial(norms.centered, groups=groups))
        each = before.fields[0]
        if not each.whole or each.mean.size > MOST_DIVIDED:
            return before.divided_by_expectation(groups, eps)
        is_known = before.exact and before.gaussian
        after = before.derived(
            partial(norms.divided, groups=groups, eps=eps),
            exact=is_known and norms.are_few(groups, each.mean.size),
            exact_values=is_known,
            gaussian=False,
            divided=True,
        )
        return replace(after, bound=max(step.bound for step in after.origin.steps))

    def _check_groups(self, groups: int, centered: bool) -> None:
        """Refuse groups that are no whole number of channels, or that nothing would be left of."""
        channels = self.shape[1]
        got = f"a normaliser of a State {self.shape} in {groups} groups"
        if groups < 1 or channels % groups:
            raise ShapeError(got, "the number of groups divides that of channels", "groups=1")
        if centered and self.size == groups:
            rule = "one value has no spread: its normalised value would be 0/0"
            raise ShapeError(got, rule, "fewer groups, or RMSNorm, which needs no spread")

    def divided_by_expectation(self, groups: int, eps: float) -> Self:
        """Each group divided by the root of its expected mean square."""
        rule = partial(norms.divided_by_expectation, groups=groups, eps=eps)
        return self.derived(rule, exact=False)

    def max_pool(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
    ) -> Self:
        self._check_form("MaxPool2d", 4)
        window = Window.of(kernel_size, stride, padding, ceil=ceil_mode)
        window.output(self.shape)  # refuses a window that does not fit
        function = self.pending or Pointwise(activations["identity"], {})

        def pooled(each: Field) -> Made:
            return max_pool(each, function, window), Opaque()

        return self.derived(pooled, gaussian=False, exact=False, pending=None)

    def avg_pool(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Self:
        self._check_form("AvgPool2d", 4)
        window = Window.of(kernel_size, stride, padding)
        kernel = np.full(window.kernel, 1.0 / math.prod(window.kernel))

        def pooled(field: Field) -> Made:
            channels = np.eye(len(field.mean))[:, :, None, None]
            return Linear(channels * kernel, window=window)(field)

        return self.applied.mapped(pooled)

    def drop(self, p: float) -> Self:
        if not 0.0 <= p < 1.0:
            rule = "a probability of dropping is at least 0 and less than 1"
            raise ValueError(explain(f"dropout of a State with p={p}", rule, "p=0.5"))
        return self.applied.mapped(partial(dropped, p=p), gaussian=False)

    def flatten(self, start_axis: int = 1) -> Self:
        if start_axis != 1:
            raise self.refuse(f"flatten from axis {start_axis}")
        before = self.applied
        if before.fields[0].mean.size > WHOLE:
            got = f"Flatten of an image {before.shape[1:]}"
            rule = f"the covariance of more than {WHOLE} values would not fit"
            raise ShapeError(got, rule, "pool it first")
        return before.mapped(flat, exact_values=before.exact_values)

    def combine(self, function: Callable[..., Any], *args: Any) -> Self:
        name = getattr(function, "__name__", type(function).__name__.lower())
        views = [x.views() for x in args if isinstance(x, Mixture)]
        common = set.intersection(*(set(each) for each in views))
        if not common:
            raise self.refusal(f"{name} of two States that are not functions of the same values")
        youngest = max(common, key=lambda origin: origin.number)
        chosen = [each[youngest] for each in views]

        def together(u: Tensor) -> Tensor:
            values = iter([view.value(u) for view in chosen])
            return function(*(next(values) if isinstance(x, Mixture) else x for x in args))

        kinks = {x for x in args if not isinstance(x, State)}
        for view in chosen:
            kinks |= view.kinks
        return chosen[0].state._with_values().apply(Activation(together, name, kinks=kinks))

    def views(self) -> "dict[Origin, View]":
        """The State as a function of the values of other States, for each of them."""
        found = {}
        view = View(self.before_activation()._without_values(), ())
        if self.pending is not None:
            view = view.after(view.state, self.pending)
        while view.is_of_numbers:
            found[view.state.origin] = view
            if view.state.source is None:
                break
            view = view.after(*view.state.source)
        return found

    def add(self, other: State) -> Self:
        if not isinstance(other, type(self)):
            raise other.refuse("the sum with a State of another kind")
        if self.shape != other.shape:
            got = f"the sum of States {self.shape} and {other.shape}"
            rule = "propagate adds values of the same shape"
            raise ShapeError(got, rule, "a shortcut that gives both the same shape")
        first = self.applied
        second = other.applied
        origin = Sum(first.origin, second.origin)
        is_whole = first.fields[0].whole and second.fields[0].whole
        # what a normalised sample and another function have in common is not known
        has_norm = first.divided or second.divided
        is_known = not has_norm or first.gaussian or second.gaussian
        values = origin.compute()
        bounds = [max(first.bound, second.bound, step.bound) * step.growth for step in origin.steps]
        return replace(
            first,
            origin=origin,
            values=values,
            source=None,
            gaussian=first.gaussian and second.gaussian,
            exact=first.exact and second.exact and is_whole and is_known,
            exact_values=False,
            divided=has_norm,
            bound=max(bounds),
            errors={**first.errors, **second.errors},
        )


@dataclass(frozen=True)
class View:
    """A State as a function of the values of another one: several functions, the last one first."""

    state: Any  # the other one, without its values
    functions: tuple[Pointwise, ...]

    def after(self, state: Any, function: Pointwise) -> "View":
        """From one State further back, by the function that was applied to it."""
        return View(state, (*self.functions, function))

    @property
    def is_of_numbers(self) -> bool:
        """Whether the functions are the same for all values."""
        return not any(function.differs for function in self.functions)

    @property
    def kinks(self) -> set[float]:
        """Of the function that comes first."""
        return set(self.functions[-1].kinks) if self.functions else set()

    def value(self, u: Tensor) -> Tensor:
        for function in reversed(self.functions):
            u = function.of_tensor(u)
        return u


def by_channel(mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
    """Mean and variance of each channel, over samples and positions."""
    axes = tuple(range(1, mean.ndim))
    return mean.mean(axis=axes), variance.mean(axis=axes) + mean.var(axis=axes)


def _bias(bias: Any) -> Any:
    return 0.0 if bias is None else numbers(bias)


def _without_groups(filters: HostArray, groups: int) -> HostArray:
    """Filters for all channels of the input, with 0 between groups."""
    if groups == 1:
        return filters
    outputs, inputs = filters.shape[:2]
    rows, channels = np.indices((outputs, inputs))
    group = rows // (outputs // groups)
    dense = np.zeros((outputs, groups * inputs, *filters.shape[2:]))
    dense[rows, channels + group * inputs] = filters
    return dense
