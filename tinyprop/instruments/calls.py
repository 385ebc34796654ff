"""The calls of a network's layers with what `examine` measures of each, and how they are wired."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.tensor import Tensor
from ..nn.declare import declared
from ..nn.measured import Measured
from ..nn.normprop import NormProp
from ..nn.observation import Observation

# layers that hand on what they get, or a part of it
TRANSPARENT = (nn.Flatten, nn.Dropout, nn.Identity)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.GlobalAvgPool2d)
FAR = 50.0  # where a bounded activation is flat
FLAT = 0.1  # a slope, relative to the largest, below which an activation is saturated


@dataclass(frozen=True)
class Moments:
    """Of a signal, over samples and positions."""

    means: HostArray  # of each unit
    variances: HostArray
    correlation: float  # of two inputs: E u(x) u(y) / E u(x)^2

    @property
    def mean(self) -> float:
        """The root mean square over units."""
        return float(np.sqrt((self.means**2).mean()))

    @property
    def variance(self) -> float:
        return float(self.variances.mean())

    @property
    def square(self) -> float:
        """The mean square of all values."""
        return float((self.means**2 + self.variances).mean())

    @property
    def centered_square(self) -> float:
        """The same, without the mean of all values, which is what an activation makes."""
        return self.square - float(self.means.mean()) ** 2

    @classmethod
    def of(cls, values: HostArray) -> "Moments":
        by_unit = by_units(values)  # (samples, units, positions)
        means = by_unit.mean(axis=(0, 2))
        variances = by_unit.var(axis=(0, 2))
        return cls(means, variances, correlation_of_pairs(values))


def by_units(values: HostArray) -> HostArray:
    """(N, C, H, W) -> (N, C, H W), and (N, units) -> (N, units, 1)."""
    samples = len(values)
    units = values.shape[1] if values.ndim > 1 else 1
    return values.reshape(samples, units, -1).astype("float64")


def correlation_of_pairs(values: HostArray) -> float:
    """The mean product of two different samples, over the mean square of one."""
    count = len(values)
    flat = values.reshape(count, -1).astype("float64")
    squares = float((flat**2).sum())
    if count < 2 or not squares > 0.0:
        return float("nan")
    of_pairs = float((flat.sum(axis=0) ** 2).sum()) - squares
    return of_pairs / (count - 1) / squares


class Call:
    """One call of a layer: its record, and the call that its input comes from, if it is known."""

    def __init__(self, number: int, record: Observation, source: "Call | None", inside: bool):
        self.number = number
        self.record = record
        self.name = record.name
        self.layer = record.layer
        self.source = source
        self.has_layers = inside  # whether other calls were made inside of it
        self.output: HostArray = to_numpy(record.output.data)
        signal = record.output if record.pre_activation is None else record.pre_activation
        self.signal: HostArray = to_numpy(signal.data)
        self.input: HostArray = to_numpy(record.input.data)
        self.moments = Moments.of(self.signal)
        self.out_moments = self.moments if signal is record.output else Moments.of(self.output)
        self.in_moments = Moments.of(self.input)

    @property
    def is_normalizer(self) -> bool:
        return declared(self.layer, "statistics") is not None

    @property
    def is_activation(self) -> bool:
        is_layer = isinstance(self.layer, nn.Activation)
        return is_layer and not isinstance(self.layer, nn.Identity)

    @property
    def is_normprop(self) -> bool:
        return isinstance(self.layer, NormProp)

    @property
    def rows(self) -> HostArray | None:
        return rows_of(self.layer)

    def origin(self, skip: tuple[type, ...] = TRANSPARENT) -> "Call | None":
        """The call whose output this one gets, past layers that hand it on."""
        source = self.source
        while source is not None and isinstance(source.layer, skip):
            source = source.source
        return source

    def dead(self) -> HostArray:
        """Which units have the same output for every sample and position."""
        values = by_units(self.output)
        return values.max(axis=(0, 2)) == values.min(axis=(0, 2))

    def saturated(self) -> float | None:
        """The fraction of values where a bounded activation is flat; None for others."""
        if not self.is_activation:
            return None
        ends = self._slopes(np.array([-FAR, FAR]))
        middle = self._slopes(np.linspace(-4.0, 4.0, 81)).max()
        if not ends.max() < 1e-3 * middle:
            return None
        return float((self._slopes(self.input) < FLAT * middle).mean())

    def ends(self) -> tuple[float, float]:
        """Of an activation, its values far to the left and to the right, the smaller one first."""
        low, high = sorted(self._values(np.array([-FAR, FAR])).tolist())
        return low, high

    def mean_square_slope(self) -> float:
        """Of an activation, over the values that it gets."""
        return float((self._slopes(self.input) ** 2).mean())

    def _slopes(self, places: HostArray) -> HostArray:
        """|s'| at these places, by central differences."""
        step = 1e-3
        flat = places.astype("float64").ravel()
        return abs(self._values(flat + step) - self._values(flat - step)) / (2.0 * step)

    def _values(self, places: HostArray) -> HostArray:
        layer: Any = self.layer
        options = dict(layer.params)
        for name, value in layer.activation_parameters.items():
            options[name] = float(value.numpy().mean())
        return to_numpy(layer.activation(Tensor(places), **options).data)


def rows_of(layer: nn.Module) -> HostArray | None:
    """What the units of a layer multiply their inputs by: (units, inputs); None if the layer has no
    such weights."""
    if isinstance(layer, Measured) and layer.is_measured:
        weight, _ = layer.affine()
    elif isinstance(layer, NormProp):
        weight = F.weight_norm(layer.weight, layer.gamma)
    elif isinstance(layer, (nn.Linear, nn.Conv2d, nn.WeightNorm)):
        weight = layer.weight
    else:
        return None
    return weight.numpy().astype("float64").reshape(len(weight), -1)


def calls_of(records: list[Observation]) -> list[Call]:
    """The calls in their order, without lists of layers and modules that return what their last
    layer did."""
    found: list[Call] = []
    by_memory: dict[Any, Call] = {}
    depths: list[int] = []
    for record in records:
        inside = bool(depths) and depths[-1] > record.depth
        while depths and depths[-1] > record.depth:
            depths.pop()
        depths.append(record.depth)
        if not is_measurable(record):
            continue
        place = memory_of(record.output)
        returns_last = inside and bool(found) and memory_of(found[-1].record.output) == place
        if returns_last:
            continue
        source = by_memory.get(memory_of(record.input))
        call = Call(len(found), record, source, inside)
        found.append(call)
        by_memory[place] = call
    return found


def memory_of(tensor: Tensor) -> Any:
    """Where the values are: reshaping leaves them there."""
    array: Any = tensor._data
    host = getattr(array, "__array_interface__", None)
    interface = array.__cuda_array_interface__ if host is None else host
    return interface["data"][0], array.size


def is_measurable(record: Observation) -> bool:
    """Whether a call takes and gives a batch of numbers; images may be integers."""
    for value, kinds in ((record.input, "fiu"), (record.output, "f")):
        is_batch = isinstance(value, Tensor) and value.ndim >= 2 and value.dtype.kind in kinds
        if not is_batch:
            return False
    return True


def is_function_of(values: HostArray, of: HostArray) -> bool:
    """Whether each value is a function of the value at the same place, as F.relu(u) is of u: sorted
    by these, the values go up and down a few times only."""
    if values.shape != of.shape:
        return False
    ordered = values.ravel()[np.argsort(of, axis=None)].astype("float64")
    height = float(ordered.max() - ordered.min())
    way = float(abs(np.diff(ordered)).sum())
    return way < 4.0 * height


def pairs(calls: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Layers with weights, and the next one whose input is an activation of their output, without a
    normaliser between them."""
    weighted = [call for call in calls if call.rows is not None and not call.is_normprop]
    for before, after in pairwise(weighted):
        if flows_into(before, after):
            yield before, after


def flows_into(before: Call, after: Call) -> bool:
    source = after.source
    while source is not None and source is not before:
        hands_on = isinstance(source.layer, (*TRANSPARENT, *POOLS, nn.Scale))
        if not (hands_on or source.is_activation):
            return False
        source = source.source
    return source is before or is_function_of(after.input, before.output)
