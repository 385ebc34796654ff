"""Fully connected networks of each normaliser, and what is known of them in the limit of a large
width."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, float32
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.random import generator
from ..engine.tensor import Tensor, tensor
from ..functional.activation import Activation, AnyActivation
from ..nn.declare import declared, is_ours
from ..nn.measured import has_refresh
from ..nn.module import observing
from ..nn.normalizers import AnyNormalizer, Maker, takes
from ..nn.normprop import MIN_RELATIVE_C1
from ..nn.state import NoRule
from . import gains
from .sample import own_random_numbers
from .spectrum import largest_singular_values
from .wide import Wide, gaussian

FIXED = 1000  # samples that layers measure, if they do
PROBE = 4  # units of a layer that is only looked at
MOST_UNITS = 1024  # of layers that theory runs, where it does not depend on their number
# the largest of n uniform numbers is below 1 - NEARLY / n in one of exp(NEARLY) cases
NEARLY = 10.0
DEGREES = 60.0  # between two inputs
# and between others
COSINES = np.append(math.cos(math.radians(DEGREES)), np.linspace(-1.0, 1.0, 21))

INSTRUMENTS = {
    "signal": "Signal: standard deviation of a unit over inputs",
    "gradient": "Gradient, relative to the last layer",
    "spectrum": "Largest singular value of the Jacobian so far",
    "correlation": f"Correlation of two inputs at an angle of {DEGREES:.0f}\N{DEGREE SIGN}",
}

Maps = Callable[[Any], list[nn.Module]]  # layers with weights, for inputs from an activation


class Shift(nn.Module):
    """x plus a fixed number."""

    def __init__(self, number: float):
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return x + self.number


class Canonical(nn.Module):
    """The part of a NormProp layer after its weighted sum u: (s(u + beta) - c2) / c1. Its beta is
    added here, so that u has no mean."""

    def __init__(self, activation: Activation, beta: float, c1: float, c2: float):
        self.activation, self.beta, self.c1, self.c2 = activation, beta, c1, c2

    def forward(self, u: Tensor) -> Tensor:
        return (self.activation(u + self.beta) - self.c2) / self.c1


class RandomRows(nn.Module):
    """A layer of random weights, of which theory knows what it declares."""

    def __init__(self, rows: nn.Rows):
        self.rows = rows

    def propagate(self, state: Any) -> Any:
        return state.weighted(self.rows.square, self.rows.center)


class Standardized(nn.Module):
    """What a measured layer makes of its weighted sums: gamma (u - mean) / std, over samples."""

    def __init__(self, gamma: float):
        self.gamma = gamma

    def propagate(self, state: Any) -> Any:
        normalized = state.normalize_batch().scale(self.gamma)
        return replace(normalized, over_batch=False)  # the samples are fixed


@dataclass(frozen=True)
class Theory:
    """What the recursion says of each layer."""

    states: list[Wide]  # at each cut, or between residual blocks

    @property
    def coupled(self) -> bool:
        """Whether samples of a batch, or the units of a group, share statistics."""
        return self.over_batch or self.in_groups

    @property
    def over_batch(self) -> bool:
        return self.states[-1].over_batch

    @property
    def in_groups(self) -> bool:
        return self.states[-1].in_groups

    @property
    def is_of_sums(self) -> bool:
        """Whether all values are Gaussian of mean 0, so that slopes are those of such values."""
        return all(state.sums and not state.has_mean for state in self.states)

    @cached_property
    def squares(self) -> HostArray:
        """For each layer, the mean square, the mean product for unrelated inputs, and those for
        inputs with COSINES between them."""
        return np.array([[z.square, z.unrelated, *z.products] for z in self.states])

    @cached_property
    def gains(self) -> HostArray:
        """Of the squared gradient, from each layer to the one before."""
        return np.array([z.gain for z in self.states[1:]])


@dataclass(frozen=True)
class Stack:
    """Fully connected layers, or residual blocks, of one width and one normaliser.

    Theory runs the same modules on a `Wide` state: see `random_rows` for what is in the place of
    weights. Where one of them has no rule, there is no theory: see `reason`."""

    norm: AnyNormalizer  # a name, a Normalizer, or a function of the number of units
    activation: AnyActivation
    depth: int
    width: int
    batch: int
    residual: bool
    # scale and shift of a normaliser that has them: one number for all units, or None
    gamma: float | None = None
    beta: float | None = None  # for what its layers start with
    init: str | None = None  # initial weights; None for the normaliser's own
    alpha: float = 1.0  # of a residual branch

    def __post_init__(self) -> None:
        if self.maker.init == "fixup":
            rule = "it needs a network with a last layer, and these have none"
            raise ValueError(explain("init='fixup'", rule, "init='he'"))
        if self.maker.makes_whole_layers:
            return  # which refuse what they do not take
        for name, value in (("gamma", self.gamma), ("beta", self.beta)):
            if value is not None and not self.has(name):
                got = f"{self.label} with {name}={value}"
                raise ValueError(explain(got, "it has no such parameter", f"{name}=None"))

    @property
    def layers(self) -> HostArray:
        """Their numbers: from 1, or from 0 with residual blocks, where 0 is the input."""
        return np.arange(0 if self.residual else 1, self.depth + 1)

    @property
    def label(self) -> str:
        """The normaliser, and the initial weights if they are not its own."""
        name = self.normalizer.name
        return name if self.init is None else f"{name}/{self.init}"

    @cached_property
    def normalizer(self) -> nn.Normalizer:
        return nn.as_normalizer(self.norm)

    @cached_property
    def maker(self) -> Maker:
        given = {"gamma": self.gamma, "beta": self.beta} if self.normalizer.layer else {}
        options = {name: value for name, value in given.items() if value is not None}
        init = self.normalizer.init if self.init is None else self.init
        nn.init.check_name(init)
        return Maker(self.normalizer, self.activation, init, options)

    @cached_property
    def before(self) -> nn.Module | None:
        """What comes before the activation, for its declarations and its start values."""
        make = self.normalizer.before
        if make is None:
            return None
        with own_random_numbers():
            return make(self.width)

    @cached_property
    def statistics(self) -> nn.Statistics | None:
        """What it divides by, before the activation."""
        return None if self.before is None else declared(self.before, "statistics")

    @cached_property
    def squashes(self) -> bool:
        """Whether a function of each value comes before the activation, which is part of it."""
        return self.before is not None and declared(self.before, "elementwise")

    @cached_property
    def whole_layer(self) -> Any:
        """A small layer of a normaliser that makes the activation, too."""
        if not self.maker.makes_whole_layers:
            return None
        with own_random_numbers():
            return self.maker.weighted(PROBE, PROBE, (), "identity")

    @property
    def is_normprop(self) -> bool:
        """Whether the layers are NormProp's, which can be cut before their activation. (A subclass
        may compute something else.)"""
        return type(self.whole_layer) is nn.NormPropLinear or self.is_measured

    @property
    def is_measured(self) -> bool:
        """Whether they divide by a standard deviation that is measured on fixed samples."""
        return type(self.whole_layer) is nn.MeasuredLinear

    @property
    def scaled(self) -> bool:
        """Whether residual blocks divide by the standard deviation of their input that theory
        predicts."""
        return self.normalizer.unit_input

    @property
    def function(self) -> Activation:
        return self.maker.activation

    def has(self, name: str) -> bool:
        """Whether its layers have a "gamma" or a "beta"."""
        if self.maker.makes_whole_layers:
            return takes(self.normalizer.layer, name)
        parameter = {"gamma": "weight", "beta": "bias"}[name]
        return self.statistics is not None and hasattr(self.before, parameter)

    @cached_property
    def affine(self) -> tuple[float, float]:
        """gamma and beta."""
        gamma, beta = 1.0, 0.0
        if self.is_normprop:
            gamma = self.whole_layer.gamma.data[0].item()
            beta = self.whole_layer.beta.data[0].item()
        return gamma if self.gamma is None else self.gamma, beta if self.beta is None else self.beta

    @cached_property
    def constants(self) -> tuple[float, float]:
        """c1 and c2 of NormProp; in a residual block its gamma is after the activation."""
        if self.whole_layer.mode == "paper":
            m = gaussian(self.function)
            return m.std, m.mean
        std = 1.0 if self.residual else self.affine[0]
        m = gaussian(self.function, self.affine[1], std)
        return max(m.std, MIN_RELATIVE_C1 * gaussian(self.function, 0.0, std).std), m.mean

    def network(self) -> nn.Sequential:
        """Random weights; cut before each activation, or into an identity and residual blocks.
        Whole layers that are not NormProp's are cut after their activation."""
        layers: list[nn.Module] = [nn.Identity()] if self.residual else []
        variance = 1.0
        for i in range(self.depth):
            if not self.residual:
                stage = self.stage(self.linear, self.width, is_first=i == 0)
                layers.append(nn.Sequential(*stage))
                continue
            if self.scaled and self.theory is not None:
                variance = self.theory.states[i].square
            branch = nn.Sequential(*self.branch(self.linear, self.width))
            block = nn.Residual(branch, self.alpha, math.sqrt(variance))
            variance = block.variance if self.scaled else 1.0
            layers.append(block)
        network = nn.Sequential(*layers)
        if has_refresh(network):
            fixed = generator().standard_normal((FIXED, self.width))
            nn.refresh(network, tensor(fixed, dtype=float32))
        return network

    def stage(self, linear: Maps, units: int, is_first: bool) -> list[nn.Module]:
        """From one activation to the next."""
        if self.is_uncut:
            return linear("identity")
        layer = linear("identity" if is_first else self.source)
        before = [] if self.squashes else self.normalizing(units)
        return [*layer, *before] if is_first else [*self.activated(units), *layer, *before]

    def branch(self, linear: Maps, units: int) -> list[nn.Module]:
        """The layers of a residual branch."""
        if self.is_uncut:
            return linear("identity")
        before = [] if self.squashes else self.normalizing(units)
        return [*before, *self.activated(units), *linear(self.source)]

    @property
    def is_uncut(self) -> bool:
        """Whether a layer cannot be cut before its activation."""
        return self.maker.makes_whole_layers and not self.is_normprop

    def normalizing(self, units: int) -> list[nn.Module]:
        """What comes before the activation, with gamma."""
        made: list[Any] = self.maker.before(units)
        for module in made:
            if self.gamma is not None:
                module.weight.data[...] = self.gamma
        return made

    def activated(self, units: int) -> list[nn.Module]:
        """From the cut to the next weights."""
        if self.is_normprop:
            return [Canonical(self.function, self.affine[1], *self.constants)]
        made = self.normalizing(units) if self.squashes else []
        if self.beta is not None:
            made.append(Shift(self.beta))  # here, so that the values at the cut have no mean
        made.append(self.maker.activation_layer(units))
        return made + self.maker.after(units)

    def linear(self, source: Any) -> list[nn.Module]:
        """A square layer for inputs that come from this activation."""
        n = self.width
        if self.is_normprop:
            kind = type(self.whole_layer)
            layer = kind(n, n, "identity", gamma=self.affine[0])
            return [nn.init.fill(layer, self.maker.init, source)]
        return [self.maker.weighted(n, n, (), source)]

    def random_rows(self, source: Any) -> list[nn.Module]:
        """What theory has in the place of such a layer."""
        gamma = self.affine[0]
        if self.is_measured:
            return [RandomRows(nn.Rows(1.0)), Standardized(gamma)]
        if self.is_normprop:
            return [RandomRows(nn.Rows(gamma**2))]
        if not self.runs_layers:
            return [RandomRows(self.rows(source))]
        layer = self.typical_layer(source)
        rows = self.rows_by_declaration(layer)
        return [layer if rows is None else RandomRows(rows)]

    @property
    def runs_layers(self) -> bool:
        """Whether layers are made by a function that theory does not know. What it does may depend
        on their size, and on chance."""
        return self.is_uncut or not (
            self.normalizer.weights is None or is_ours(self.normalizer.weights)
        )

    @property
    def units(self) -> int:
        """Of the layers that theory runs."""
        return self.width if self.runs_layers else min(self.width, MOST_UNITS)

    def typical_layer(self, source: Any) -> nn.Module:
        """A layer of weights of which each row has the length that rows have on average; and then
        what the normaliser makes of it."""
        first, second = self.made_of_typical_rows(source), self.made_of_typical_rows(source)
        for weight, other in zip(nn.init.weights(first), nn.init.weights(second), strict=False):
            if weight.data.any() and np.array_equal(weight.data, other.data):
                got = f"{self.label}, whose layers have the same weights"
                rule = "theory takes weights that are drawn for each layer"
                hint = "tp.propagate(net, data=x), with the weights as they are"
                raise NoRule(explain(got, rule, hint))
        return first

    def made_of_typical_rows(self, source: Any) -> nn.Module:
        change = self.normalizer.weights

        if change is None:
            layer = self.maker.weighted(self.units, self.units, (), source)
            return self.with_typical_rows(layer, source)

        @wraps(change)
        def changed(layer: nn.Module, *more: Any) -> nn.Module:
            return change(self.with_typical_rows(layer, source), *more)

        entry = replace(self.normalizer, weights=changed)
        maker = replace(self.maker, normalizer=entry)
        return maker.weighted(self.units, self.units, (), source).to(dtype="float64")

    def with_typical_rows(self, layer: nn.Module, source: Any) -> nn.Module:
        """Weights that were not drawn by `fill` stay as they are, and so do those that no layer of
        tinyprop holds."""
        layer.to(dtype="float64")
        init = self.maker.init
        for weight in nn.init.weights(layer):
            rows = weight.data.reshape(len(weight), -1)
            if init == "glorot" and not are_glorots(rows):
                continue
            square = nn.init.row_square(init, source, rows.shape)
            rows *= np.sqrt(square / (rows**2).sum(axis=1, keepdims=True))
        return layer

    def rows_by_declaration(self, layer: nn.Module) -> Any:
        """`nn.Rows` that a stranger's class declares; None where the layer's forward says more."""
        rows = declared(layer, "rows")
        bias = getattr(layer, "bias", None)
        has_bias = bias is not None and bias.data.any()
        if rows is None or has_bias or is_ours(type(layer)):
            return None
        if rows.square is not None:
            return rows
        weights = list(nn.init.weights(layer))
        if len(weights) != 1:
            return None
        (weight,) = weights
        return replace(rows, square=float((weight.data**2).sum()) / len(weight))

    @cached_property
    def source(self) -> Activation:
        """What the input of a layer has gone through."""
        with own_random_numbers():
            return self.maker.source_after([] if self.before is None else [self.before])

    @property
    def theory(self) -> Theory | None:
        """None where a module of the normaliser has no rule."""
        return self._outcome if isinstance(self._outcome, Theory) else None

    @property
    def reason(self) -> str:
        """Why there is no theory: which module has no rule, and for what."""
        return str(self._outcome) if isinstance(self._outcome, NoRule) else ""

    @cached_property
    def _outcome(self) -> Theory | NoRule:
        try:
            with own_random_numbers(), no_grad(), observing():
                return Theory(self._residual_states() if self.residual else self._states())
        except NoRule as error:
            return error

    def _states(self) -> list[Wide]:
        z = Wide.at(COSINES, units=self.units)
        states = [_through(self.stage(self.random_rows, self.units, is_first=True), z)]
        stage: list[nn.Module] = []
        while len(states) < self.depth:
            if not stage or self.runs_layers:
                stage = self.stage(self.random_rows, self.units, is_first=False)
            states.append(_through(stage, states[-1].restarted()))
        return states

    def _residual_states(self) -> list[Wide]:
        z = Wide.at(COSINES, units=self.units)
        states = [z]
        for _ in range(self.depth):
            beta = math.sqrt(z.square) if self.scaled else 1.0
            branch = nn.Sequential(*self.branch(self.random_rows, self.units))
            z = _through([nn.Residual(branch, self.alpha, beta)], z.restarted())
            states.append(z)
        return states

    @property
    def known_theory(self) -> Theory:
        if self.theory is None:
            got = f"the theory of the normaliser {self.label!r}"
            rule = "one of its modules has no rule for a State: see above"
            hint = "predicted(instrument), which is None here"
            assert isinstance(self._outcome, NoRule)
            raise ValueError(explain(got, rule, hint)) from self._outcome
        return self.theory

    def rows(self, source: Any) -> Any:
        """`nn.Rows` of random weights for inputs from this activation, in a layer of ours."""
        with own_random_numbers():
            layer = self.maker.weighted(PROBE, PROBE, (), source)
        rows = declared(layer, "rows")
        if rows.square is not None:
            return rows
        square = nn.init.row_square(self.maker.init, source, (PROBE, PROBE))
        return replace(rows, square=square)

    @property
    def knows_finite_sizes(self) -> bool:
        """Whether the gradient is known for finite layers and batches: of a normaliser before the
        activation and plain weights, for gamma = 1 and beta = 0."""
        is_plain = self.normalizer.weights is None and self.normalizer.after is None
        return self.statistics is not None and is_plain and self.affine == (1.0, 0.0)

    @property
    def over_batch(self) -> bool:
        return self.statistics is not None and self.statistics.over == "batch"

    @property
    def states(self) -> HostArray:
        """For each layer, in the limit of a large width: the mean square of z, in front of the
        activation (or of h, between residual blocks), the mean product for unrelated inputs, and
        those for inputs with COSINES between them."""
        return self.known_theory.squares

    @cached_property
    def factors(self) -> HostArray:
        """By how much the squared gradient grows from each layer to the one before, with what is
        known of finite sizes and batches: for gamma = 1 and beta = 0."""
        limits = self.known_theory.gains
        statistics = self.statistics
        if statistics is None or not self.knows_finite_sizes:
            return limits
        if statistics.over == "batch":
            gain = gains.batch_norm_gain(self.batch, self.function)
        else:
            group = statistics.group or self.width
            gain = gains.norm_gain(self.width, self.function, group, statistics.center)
        if self.residual:  # W is after N, and independent of it
            limit = nn.init.gain(self.function) ** 2 * gaussian(self.function).slope2
            return 1.0 + (limits - 1.0) * gain * self.width / (self.width - 1) / limit
        return np.full(len(limits), gain)

    def predicted(self, instrument: str) -> HostArray | None:
        """The curve of theory for one instrument: in the limit of a large width, and singular
        values to the next order. There is none where a small batch or a small group matters in a
        way that is not known, as for the singular values behind BatchNorm, whose samples share one
        Jacobian, nor for those of residual networks, nor for a normaliser without a `theory`."""
        theory = self.theory
        if theory is None:
            return None
        square, unrelated, pair = self.states.T[:3]
        if instrument == "spectrum":
            is_known = theory.is_of_sums and not (theory.coupled or self.residual or self.is_uncut)
            return self.largest() if is_known and not self.has_changed_orthogonal_rows else None
        if instrument == "correlation":
            return None if theory.coupled else pair / square
        if instrument == "signal":
            if theory.in_groups:
                return None
            # BatchNorm divides by the size of the batch, not by one less
            is_divided = self.over_batch and not self.residual
            size = self.batch / (self.batch - 1) if is_divided else 1.0
            return np.sqrt((square - unrelated) * size)
        is_of_unknown_size = theory.coupled and self.statistics is None
        if self.has_infinite_gradient or is_of_unknown_size or np.isnan(theory.gains).any():
            return None
        growth = np.append(np.cumprod(self.factors[::-1])[::-1], 1.0)
        if self.over_batch and self.residual and self.knows_finite_sizes:
            of = gains.batch_norm_residual_gain
            shape = (self.depth, self.batch, self.function)
            (rows,) = self.random_rows(self.source)
            row_square = self.alpha**2 * rows.rows.square
            growth = np.array([of(*shape, first, row_square) for first in range(self.depth + 1)])
        return np.sqrt(growth)

    @property
    def has_changed_orthogonal_rows(self) -> bool:
        """Whether the normaliser changes rows that were drawn orthogonal."""
        is_changed = self.normalizer.weights is not None or self.maker.makes_whole_layers
        return self.maker.init == "orthogonal" and is_changed

    @property
    def has_infinite_gradient(self) -> bool:
        """Whether a group has so few values that the mean squared gradient is infinite."""
        if self.statistics is None or self.statistics.group is None:
            return False
        dimensions = self.statistics.group - self.statistics.center
        return dimensions <= 2

    def largest(self) -> HostArray:
        """The largest singular value of the Jacobian of the layers so far."""
        return largest_singular_values(
            self.states[:, 0],
            self.factors,
            self.function if self.is_normprop else self.source,
            mean=self.affine[1],
            width=self.width,
            is_orthogonal=self.maker.init == "orthogonal",
        )


def are_glorots(rows: HostArray) -> bool:
    """Whether weights (outputs, inputs) are as a new layer has them: uniform, so that the largest
    of many is nearly the bound."""
    bound = math.sqrt(6.0 / sum(rows.shape))
    largest = abs(rows).max() / bound
    return bool(1.0 - NEARLY / rows.size < largest < 1.0 + 1e-6)


def _through(modules: list[nn.Module], z: Wide) -> Wide:
    state: Any = z
    for module in modules:
        state = module(state)
    return state.applied
