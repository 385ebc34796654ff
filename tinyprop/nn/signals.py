"""Statistics of every layer's output on a batch."""

import math
from dataclasses import dataclass
from typing import Any

from ..engine.sums import total
from ..engine.tensor import Tensor
from ..functional.reductions import moments
from ..report.table import Table, Tabular
from .module import Module
from .observation import Observation, observe, outermost


@dataclass(frozen=True)
class Signal:
    """Statistics of the output of one layer, over samples, units (axis 1) and positions.

    >>> tp.nn.signals(tp.nn.Sequential(tp.nn.Flatten()), tp.tensor([[1.0], [3.0]]))[0].std
    1.0
    """

    layer: str  # name and class, as "2 MaxPool2d"
    mean: float
    std: float
    dead: float  # fraction of units whose output is the same for every sample and position
    # mean over units of the squared mean of each: 0 if every unit is centred
    unit_mean_square: float
    # root mean square of the gradient of the loss w.r.t. this output, if labels were given
    gradient_std: float | None


class Signals(list[Signal], Tabular):
    """Signals of the layers of a network, which a notebook shows as a table.

    >>> signals = tp.nn.signals(tp.nn.Flatten(), tp.tensor([[1.0], [3.0]]))
    >>> print(signals.table().text())
    layer    mean  std  dead  unit mean square
    Flatten     2    1    0%                 4
    """

    def table(self) -> Table:
        header = ["layer", "mean", "std", "dead", "unit mean square"]
        has_gradients = any(signal.gradient_std is not None for signal in self)
        if has_gradients:
            header.append("gradient std")
        rows = []
        for signal in self:
            numbers = [signal.mean, signal.std, signal.unit_mean_square, signal.gradient_std]
            mean, std, square, gradient = ("" if n is None else f"{n:.3g}" for n in numbers)
            row = [signal.layer, mean, std, f"{signal.dead:.0%}", square]
            rows.append([*row, gradient] if has_gradients else row)
        return Table(header, rows)


def signals(model: Module, x: Tensor, labels: Any = None) -> Signals:
    """Measure the output of every layer of a model for a batch, in the order in which they are
    called, and, given labels, the gradient of the loss with respect to it. The layers run in their
    own mode, and the model stays as it is. `tp.observe` has the outputs themselves, and those of
    layers inside of layers.

    >>> net = tp.nn.Sequential(tp.nn.Linear(4, 8), tp.nn.ReLU())
    >>> [s.layer for s in tp.nn.signals(net, tp.tensor([[1.0] * 4] * 2))]
    ['0 Linear', '1 ReLU']
    """
    return Signals(_measure(record) for record in outermost(observe(model, x, labels)))


def _measure(record: Observation) -> Signal:
    array = record.output._data.astype("float64")
    everywhere = tuple(range(array.ndim))
    all_but_units = (0, *range(2, array.ndim))  # samples and positions
    mean, variance = moments(array, everywhere, array.size)
    units = array.shape[1] if array.ndim > 1 else 1
    unit_means = total(array, all_but_units, divisor=array.size // units)
    unit_ranges = array.max(axis=all_but_units) - array.min(axis=all_but_units)
    gradient = record.gradient
    return Signal(
        layer=record.name,
        mean=mean.item(),
        std=math.sqrt(variance.item()),
        dead=float(total(unit_ranges == 0, divisor=units)),
        unit_mean_square=float(total(unit_means**2, divisor=units)),
        gradient_std=None if gradient is None else _root_mean_square(gradient),
    )


def _root_mean_square(t: Tensor) -> float:
    squares = t._data.astype("float64") ** 2
    return math.sqrt(float(total(squares, divisor=t.size)))
