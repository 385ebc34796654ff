"""What flows through a network: the statistics of every layer's output on a batch."""

from dataclasses import dataclass
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module
from ..engine.backward import grad
from ..engine.graph import recording
from ..engine.tensor import Tensor
from .module import Module


@dataclass(frozen=True)
class Signal:
    """Statistics of the output of one layer, over samples, units (axis 1) and places.

    >>> tp.nn.signals(tp.nn.Sequential(tp.nn.Flatten()), tp.tensor([[1.0], [3.0]]))[0].std
    1.0
    """

    layer: str  # number and kind, as "2 MaxPool2d"
    mean: float
    std: float
    dead: float  # fraction of units whose output is the same for every sample and place
    unit_mean_square: float  # mean over units of the squared mean of each: 0 if every unit is centred
    gradient_std: float | None  # root mean square of the loss's gradient in this output, if labels were given


def signals(model: Module, x: Tensor, labels: Any = None) -> list[Signal]:
    """Run a batch and measure the output of every layer, and, given labels, the gradient of the loss in it.

    >>> net = tp.nn.Sequential(tp.nn.Linear(4, 8), tp.nn.ReLU())
    >>> [s.layer for s in tp.nn.signals(net, tp.tensor([[1.0] * 4] * 2))]
    ['0 Linear', '1 Activation']
    """
    names, outputs = [], []
    with recording(labels is not None):
        for i, layer in enumerate(model):
            x = layer(x)
            names.append(f"{i} {type(layer).__name__}")
            outputs.append(x)
        gradients: list[Tensor | None] = [None] * len(outputs)
        if labels is not None:
            gradients = list(grad(F.cross_entropy(x, labels), outputs))
    return [_signal(*parts) for parts in zip(names, outputs, gradients, strict=True)]


def _signal(name: str, output: Tensor, gradient: Tensor | None) -> Signal:
    xp = array_module(output.data)
    array = output.data.astype("float64")
    places = (0, *range(2, array.ndim))
    unit_means, spans = array.mean(axis=places), array.max(axis=places) - array.min(axis=places)
    return Signal(
        layer=name,
        mean=float(array.mean()),
        std=float(array.std()),
        dead=float((spans == 0).mean()),
        unit_mean_square=float((unit_means**2).mean()),
        gradient_std=None if gradient is None else float(xp.sqrt((gradient.data.astype("float64") ** 2).mean())),
    )
