"""Known faults of networks, each found by a rule and told in plain words, with what to do."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from .. import nn
from ..data.normalization import Normalizer
from ..engine.arrays import HostArray
from ..nn.declare import declared
from .calls import TRANSPARENT, Call, Moments, by_units, pairs

ENOUGH = 3  # layers or blocks in a row from which a rate is read
LARGE_STEP = 1.4  # a factor of the mean square per layer
LARGE_TOTAL = 4.0  # over all layers
TOO_SATURATED = 0.5  # fraction of values
TOO_DEAD = 0.1  # fraction of units
LONGEST_BRANCH = 8  # calls of a residual branch that a forward adds up by itself


@dataclass(frozen=True)
class Fault:
    """A known fault: its name, the layer where it is, what happens there, and what to do."""

    kind: str
    layer: str
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Case:
    """What the rules look at."""

    inputs: HostArray
    calls: list[Call]
    has_labels: bool


Rule = Callable[[Case], Iterator[tuple[Call, Fault]]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def find_faults(case: Case) -> list[Fault]:
    """All faults, in the order of the layers. A value that is not a number hides everything
    else."""
    broken = not_finite(case)
    if broken is not None:
        return [broken]
    found: list[tuple[Call, Fault]] = []
    for each in RULES:
        found += each(case)
    found.sort(key=lambda pair: pair[0].number)
    return [fault for _, fault in found]


def not_finite(case: Case) -> Fault | None:
    if not np.isfinite(case.inputs).all():
        sentence = "The input has values that are not finite."
        return Fault("not finite", "input", sentence, "Remove NaN and infinity from the data.")
    for call in case.calls:
        if not np.isfinite(call.output).all():
            sentence = "Its input is finite, but its output is not."
            remedy = "Look for a division by 0, a logarithm of 0 or an overflow in this layer."
            return Fault("not finite", call.name, sentence, remedy)
    return None


# The input


@rule
def input_scale(case: Case) -> Iterator[tuple[Call, Fault]]:
    """Data that are far from mean 0 and variance 1."""
    first = case.calls[0]
    starts_normalized = first.is_normalizer or isinstance(first.layer, Normalizer)
    mean = float(case.inputs.mean(dtype="float64"))
    std = float(case.inputs.std(dtype="float64"))
    is_near = abs(mean) <= 2.0 * std and 0.2 <= math.hypot(mean, std) <= 5.0
    if starts_normalized or is_near:
        return
    sentence = f"The input has mean {mean:.3g} and standard deviation {std:.3g}."
    remedy = "Subtract the mean of the training data and divide by their standard deviation."
    yield first, Fault("input not normalised", first.name, sentence, remedy)


# Weights


@dataclass(frozen=True)
class Link:
    """Two layers with weights in a row, `after` the second."""

    after: Call
    length: float  # mean squared length of its rows
    growth: float  # what its rows make of the mean square, from weighted sum to weighted sum
    centered: float  # the same, if its input had mean 0
    gradient: float  # what both make of the mean square of the gradient
    is_bounded: bool  # whether the activation between them is


def links_of(case: Case) -> list[Link]:
    found = []
    for before, after in pairs(case.calls):
        if is_last_weighted(case, after):
            continue  # its scale is that of the logits, which is a matter of taste
        rows = after.rows
        assert rows is not None
        length = float((rows**2).sum(axis=1).mean())
        seen = Moments.of(after.input)
        start = before.moments.square
        if not start > 0.0:
            continue
        growth = length * seen.square / start
        centered = length * seen.centered_square / start
        activation = activation_between(before, after)
        is_bounded = activation is not None and activation.saturated() is not None
        slope = 1.0 if activation is None else activation.mean_square_slope()
        found.append(Link(after, length, growth, centered, length * slope, is_bounded))
    return found


def is_last_weighted(case: Case, call: Call) -> bool:
    weighted = [each for each in case.calls if each.rows is not None]
    return call is weighted[-1]


def activation_between(before: Call, after: Call) -> Call | None:
    source = after.source
    while source is not None and source is not before:
        if source.is_activation:
            return source
        source = source.source
    return None


@rule
def wrong_gain(case: Case) -> Iterator[tuple[Call, Fault]]:
    """Weights that make the signal grow or shrink from layer to layer."""
    links = links_of(case)
    if len(links) < ENOUGH:
        return
    first = links[0].after
    bounded = [link for link in links if link.is_bounded]
    if len(bounded) >= ENOUGH:
        yield from gain_of_bounded(bounded)
        return
    step = median([link.growth for link in links])
    centered = median([link.centered for link in links])
    yield from growth_fault(first, step, centered, len(links))


def growth_fault(
    first: Call, step: float, centered: float, count: int
) -> Iterator[tuple[Call, Fault]]:
    """The fault of layers which each multiply the mean square by `step`, and by `centered` if the
    activation had mean 0."""
    total = step**count
    is_large = step > LARGE_STEP and total > LARGE_TOTAL
    is_small = step < 1.0 / LARGE_STEP and total < 1.0 / LARGE_TOTAL
    is_only_mean = step > 1.2 and total > LARGE_TOTAL and 0.8 < centered < 1.2
    if is_only_mean:
        sentence = (
            f"The mean square grows by a factor of {step:.2f} in every layer, and all of it is "
            "mean: without the mean that the activation makes, it would stay as it is."
        )
        remedy = "Subtract the mean of the activation: (s(u) - c2) / c1, not s(u) / c1."
        yield first, Fault("missing bias correction", first.name, sentence, remedy)
    elif is_large or is_small:
        change = "grows" if is_large else "shrinks"
        sentence = f"The mean square of the signal {change} by a factor of {step:.2f} per layer."
        remedy = (
            f"Divide the weights by {math.sqrt(step):.2f}: for ReLU, He initialisation draws them "
            "with variance 2 / inputs; or use a normaliser."
        )
        yield first, Fault("wrong gain", first.name, sentence, remedy)


def gain_of_bounded(links: list[Link]) -> Iterator[tuple[Call, Fault]]:
    """For tanh and its like the signal cannot grow; the gradient can."""
    first = links[0].after
    length = median([link.length for link in links])
    gradient = median([link.gradient for link in links])
    said = f"The weights have a variance of {length:.2g} / inputs"
    remedy = "Use Glorot or LeCun initialisation: weights of variance 1 / inputs."
    if length > 1.5 and gradient > 0.95:  # if it is less, the activation is saturated
        sentence = (
            f"{said}, which is a gain for ReLU. The activation here is bounded: gradients change "
            f"by a factor of {math.sqrt(gradient):.2f} per layer, and similar inputs drift apart."
        )
        yield first, Fault("gain for another activation", first.name, sentence, remedy)
    elif length < 0.5:
        sentence = f"{said}, so that the signal shrinks from layer to layer."
        yield first, Fault("wrong gain", first.name, sentence, remedy)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(max(value, 1e-300)) for value in values) / len(values))


@rule
def growing_layers(case: Case) -> Iterator[tuple[Call, Fault]]:
    """Layers of a user's own, whose weights are not known: their outputs tell."""
    chain: list[Call] = []
    for call in case.calls:
        is_own = call.rows is None and has_weights(call.layer) and not call.is_normalizer
        is_next = not chain or call.source is chain[-1]
        is_square = call.input.shape[1:] == call.output.shape[1:]
        if is_own and is_square and is_next and not adds_its_input(call):
            chain.append(call)
    if len(chain) < ENOUGH:
        return
    first = chain[0]
    squares = [first.in_moments.square, *[call.out_moments.square for call in chain]]
    steps = [after / before for before, after in pairwise(squares)]
    step = median(steps)
    without_mean = [call.out_moments.centered_square for call in chain]
    centered = median([c / s for c, s in zip(without_mean, squares, strict=False)])
    yield from growth_fault(first, step, centered, len(steps))


def has_weights(layer: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in layer.parameters())


@rule
def equal_units(case: Case) -> Iterator[tuple[Call, Fault]]:
    """Units that all compute the same."""
    for call in case.calls:
        rows = call.rows
        if rows is None or len(rows) < 2 or not rows.any():
            continue
        values = by_units(call.signal)
        if (values == values[:1]).all():
            continue  # units without an input that varies say nothing about the weights
        spread = abs(values - values[:, :1]).max()
        if spread <= 1e-6 * abs(values).max():
            sentence = f"All {len(rows)} units of the layer compute the same value."
            remedy = "Draw the weights at random: equal units get equal gradients, and stay equal."
            yield call, Fault("equal units", call.name, sentence, remedy)
            return  # layers after it may have equal inputs


# Activations


@rule
def saturated(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        fraction = call.saturated()
        if fraction is None or fraction < TOO_SATURATED:
            continue
        seen = call.in_moments
        mean, std = seen.mean, math.sqrt(seen.variance)
        sentence = (
            f"{fraction:.0%} of the values are where the activation is flat: its input has mean "
            f"{mean:.3g} and standard deviation {std:.3g}, so that almost no gradient passes."
        )
        by_mean = mean > std
        remedy = "Make the bias before it smaller." if by_mean else "Make the weights smaller."
        remedy += " A normaliser before the activation does both."
        yield call, Fault("saturated activation", call.name, sentence, remedy)
        return  # later layers follow from the first


@rule
def dead_units(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        is_output = call is case.calls[-1]
        if not call.is_activation or call.saturated() is not None or is_output:
            continue
        dead = call.dead()
        if dead.mean() < TOO_DEAD:
            continue
        source = call.origin()
        bias = bias_of(source)
        inputs = Moments.of(call.input)
        if bias is not None and len(bias) == len(dead):
            shift = float(np.median(bias[dead]))
            typical = float(np.median(inputs.means[dead]))
            by_bias = shift < 0.0 and shift < 0.5 * typical
        else:
            by_bias = False
        if not by_bias and dead.mean() < 0.5:
            continue  # in deep networks of ReLU a few units are off for all inputs
        sentence = f"{dead.mean():.0%} of the units have the same output for every input."
        remedy = "Make the weights before it smaller, or put a normaliser before the activation."
        if source is not None and source.rows is not None and not source.rows.any():
            sentence += f" All weights of {source.name} are 0."
            remedy = "Draw the weights at random; only the last ones of a branch may start at 0."
        elif by_bias:
            sentence += f" The bias of these units, {shift:.3g}, keeps the activation off."
            remedy = "Start the bias at 0; if training made it so, lower the learning rate."
        yield call, Fault("dead units", call.name, sentence, remedy)
        return


def bias_of(call: Call | None) -> HostArray | None:
    bias: Any = None if call is None else getattr(call.layer, "bias", None)
    return None if bias is None else bias.numpy()


@rule
def no_activation(case: Case) -> Iterator[tuple[Call, Fault]]:
    """Layers with weights and nothing between them: their product would do the same."""
    weighted = [call for call in case.calls if call.rows is not None and not call.is_normprop]
    has_others = any(not is_linear(call) for call in case.calls)
    are_direct = all(after.origin() is before for before, after in pairwise(weighted))
    if len(weighted) < 2 or has_others or not are_direct:
        return
    first = weighted[1]
    sentence = f"Nothing is between the {len(weighted)} layers with weights: together, they are "
    sentence += "one linear layer."
    remedy = "Put an activation between them."
    yield first, Fault("no activation", first.name, sentence, remedy)


def is_linear(call: Call) -> bool:
    return (call.rows is not None and not call.is_normprop) or isinstance(call.layer, TRANSPARENT)


@rule
def double_activation(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        source = call.origin()
        if call.is_activation and source is not None and source.is_activation:
            sentence = f"It gets the output of another activation, {source.name}."
            remedy = "Remove one of them, or put the layer with weights between them."
            yield call, Fault("two activations in a row", call.name, sentence, remedy)


# Normalisers


@rule
def double_normalizer(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        source = call.origin()
        is_normalized = source is not None and (source.is_normalizer or source.is_normprop)
        if call.is_normalizer and source is not None and is_normalized:
            sentence = f"Its input is normalised already, by {source.name}."
            remedy = "Remove one of the two normalisers."
            yield call, Fault("double normaliser", call.name, sentence, remedy)


@rule
def small_batch(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        if not is_batch_norm(call) or not call.layer.training:
            continue
        values = by_units(call.input)
        count = values.shape[0] * values.shape[2]
        if count <= 4:
            sentence = (
                f"In training mode, it normalises each unit over {count} values; with a batch of "
                "two, BatchNorm leaves only signs."
            )
            remedy = "Use larger batches, or a normaliser of single samples, as LayerNorm."
            yield call, Fault("BatchNorm with a small batch", call.name, sentence, remedy)
            return


@rule
def stale_statistics(case: Case) -> Iterator[tuple[Call, Fault]]:
    for call in case.calls:
        layer: Any = call.layer
        if not is_batch_norm(call) or layer.training or not hasattr(layer, "running_var"):
            continue
        seen = call.in_moments
        mean, var = layer.running_mean.numpy(), layer.running_var.numpy()
        ratio = float(np.median(((seen.means - mean) ** 2 + seen.variances) / (var + layer.eps)))
        if not 0.25 < ratio < 4.0:
            sentence = (
                f"In evaluation mode, it divides by running statistics that are not those of its "
                f"input: the mean square that it leaves is {ratio:.3g} instead of 1."
            )
            remedy = "Run some batches in training mode first, or check the data they came from."
            yield call, Fault("stale running statistics", call.name, sentence, remedy)
            return


def is_batch_norm(call: Call) -> bool:
    return call.is_normalizer and call.layer.statistics.over == "batch"


@rule
def wrong_axis(case: Case) -> Iterator[tuple[Call, Fault]]:
    """A LayerNorm of images over their positions, without the channels."""
    for call in case.calls:
        shape = getattr(call.layer, "normalized_shape", None)
        if not call.is_normalizer or shape is None or call.input.ndim != 4:
            continue
        if len(shape) < 3:
            axes = "the last axis" if len(shape) == 1 else f"the last {len(shape)} axes"
            sentence = (
                f"It normalises images {call.input.shape[1:]} over {axes}: positions, without the "
                "channels."
            )
            remedy = "Write LayerNorm((channels, None, None)), or GroupNorm(1, channels)."
            yield call, Fault("wrong axis", call.name, sentence, remedy)
            return


# Residual blocks


def adds_its_input(call: Call) -> bool:
    """Whether a module with layers inside returns the sum of its input and of something else."""
    return call.has_layers and call.input.shape == call.output.shape


@rule
def unscaled_residuals(case: Case) -> Iterator[tuple[Call, Fault]]:
    growth = [call for call in case.calls if adds_its_input(call)]
    steps = [
        Step(call, call.input, call.output, has_normalizer(call.layer)) for call in growth
    ] or sums_of(case)
    if len(steps) <= ENOUGH:
        return
    ratios = [step.growth for step in steps]
    later = ratios[len(ratios) // 2 :]
    if median(later) < 1.5:  # with a normaliser, the variance grows by the same amount each time
        return
    factor = geometric_mean(ratios)
    how = "doubles" if 1.7 < factor < 2.5 else f"grows by a factor of {factor:.2g}"
    inside = "the branch has no normaliser"
    first = steps[0].call
    if steps[0].has_normalizer:
        inside = "the normaliser of the branch does not limit it"
    scale = 1.0 / math.sqrt(len(steps))
    sentence = f"The variance {how} in every block: {inside}."
    remedy = f"Scale the branch by 1/sqrt(depth), here {scale:.2g}, or normalise its input."
    yield first, Fault("unscaled residuals", first.name, sentence, remedy)


@dataclass(frozen=True)
class Step:
    """A residual connection: the signal before and after it."""

    call: Call  # the block, or the first of its branch
    before: HostArray
    after: HostArray
    has_normalizer: bool

    @property
    def growth(self) -> float:
        before = Moments.of(self.before).square
        return Moments.of(self.after).square / before if before > 0.0 else 1.0


def sums_of(case: Case) -> list[Step]:
    """Sums x + f(x) that a forward computes outside of any block: f is some calls in a row, and the
    next call gets the sum."""
    found = []
    for end, following in enumerate(case.calls[1:], start=1):
        for start in range(end - 1, max(end - LONGEST_BRANCH, 0) - 1, -1):
            first = case.calls[start]
            last = case.calls[end - 1]
            if is_sum(following.input, first.input, last.output):
                inside = case.calls[start:end]
                is_normalized = any(has_normalizer(call.layer) for call in inside)
                found.append(Step(first, first.input, following.input, is_normalized))
                break
    return found


def is_sum(total: HostArray, first: HostArray, second: HostArray) -> bool:
    if not total.shape == first.shape == second.shape:
        return False
    expected = first.astype("float64") + second
    return bool(abs(expected - total).max() <= 1e-5 * abs(expected).max())


def has_normalizer(module: nn.Module) -> bool:
    return any(declared(inner, "statistics") is not None for inner in module.modules())


# The output


@rule
def output(case: Case) -> Iterator[tuple[Call, Fault]]:
    """What cross-entropy gets instead of logits."""
    last = case.calls[-1]
    values = last.output.astype("float64")
    if not case.has_labels or values.ndim != 2 or values.shape[1] < 2:
        return
    sums = values.sum(axis=1)
    if values.min() >= 0.0 and abs(sums - 1.0).max() < 1e-4:
        sentence = "The network returns probabilities, and cross-entropy applies softmax again."
        yield last, Fault("softmax twice", last.name, sentence, "Return the logits.")
    elif last.saturated() is not None:
        low, high = last.ends()
        sentence = (
            f"The logits go through an activation from {round(low, 3):g} to {round(high, 3):g}: no "
        )
        sentence += f"class can be more than {math.exp(high - low):.3g} times as likely as another."
        yield last, Fault("activation on the logits", last.name, sentence, "Remove it.")
    elif last.is_activation and values.min() == 0.0:
        sentence = "The logits go through a rectifier: no class can get a negative one."
        yield last, Fault("activation on the logits", last.name, sentence, "Remove it.")
