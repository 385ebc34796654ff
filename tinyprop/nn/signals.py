"""Statistics of every layer's output on a batch."""

from dataclasses import dataclass
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module
from ..engine.backward import grad
from ..engine.graph import recording
from ..engine.tensor import Tensor
from .module import Module, observing, visiting


@dataclass(frozen=True)
class Signal:
    """Statistics of the output of one layer, over samples, units (axis 1) and positions.

    >>> tp.nn.signals(tp.nn.Sequential(tp.nn.Flatten()), tp.tensor([[1.0], [3.0]]))[0].std
    1.0
    """

    layer: str  # number and class, as "2 MaxPool2d"
    mean: float
    std: float
    dead: float  # fraction of units whose output is the same for every sample and position
    # mean over units of the squared mean of each: 0 if every unit is centred
    unit_mean_square: float
    # root mean square of the gradient of the loss w.r.t. this output, if labels were given
    gradient_std: float | None


def signals(model: Module, x: Tensor, labels: Any = None) -> list[Signal]:
    """Measure the output of every layer of a model for a batch, in the order in which they are
    called, and, given labels, the gradient of the loss with respect to it. The layers run in their
    own mode, and the model stays as it is.

    >>> net = tp.nn.Sequential(tp.nn.Linear(4, 8), tp.nn.ReLU())
    >>> [s.layer for s in tp.nn.signals(net, tp.tensor([[1.0] * 4] * 2))]
    ['0 Linear', '1 ReLU']
    """
    found: list[tuple[str, Tensor]] = []
    names: dict[Module, list[str]] = {}  # several if it is used several times
    for name, layer in model.named_children():
        names.setdefault(layer, []).append(f"{name} {type(layer).__name__}")

    def visit(layer: Module, *arriving: Any) -> Any:
        if layer not in names:
            return None
        name = names[layer].pop(0) if len(names[layer]) > 1 else names[layer][0]
        return lambda out: found.append((name, out))

    x = Tensor(x._data, requires_grad=labels is not None)  # the first layers may have no parameters
    with recording(labels is not None), observing(), visiting(visit):
        out = model(x)
        loss = None if labels is None else F.cross_entropy(out, labels)
    outputs = [output for _, output in found]
    gradients = [None] * len(outputs) if loss is None else grad(loss, outputs, allow_unused=True)
    return [_signal(*layer, gradient) for layer, gradient in zip(found, gradients, strict=True)]


def _signal(name: str, output: Tensor, gradient: Tensor | None) -> Signal:
    xp = array_module(output._data)
    array = output._data.astype("float64")
    axes = (0, *range(2, array.ndim))  # samples and positions
    unit_means, ranges = array.mean(axis=axes), array.max(axis=axes) - array.min(axis=axes)
    return Signal(
        layer=name,
        mean=float(array.mean()),
        std=float(array.std()),
        dead=float((ranges == 0).mean()),
        unit_mean_square=float((unit_means**2).mean()),
        gradient_std=None
        if gradient is None
        else float(xp.sqrt((gradient._data.astype("float64") ** 2).mean())),
    )
