"""One walk over a network: what each call of a layer gets and gives.

Everything that looks inside a network uses it: `nn.signals`, spectra, correlations, `tinyprop
compare` and `examine`, the records of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from .. import functional as F
from ..engine.backward import grad
from ..engine.context import current
from ..engine.errors import explain
from ..engine.graph import no_grad, recording
from ..engine.tensor import Tensor, as_tensor
from .module import Module, definer, observing, places, visiting


@dataclass(frozen=True, eq=False)
class Observation:
    """One call of a layer, while a network computed its output for a batch.

    >>> net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.ReLU())
    >>> linear, relu, whole = tp.observe(net, tp.ones(5, 3))
    >>> linear.name, relu.name, whole.name
    ('0 Linear', '1 ReLU', 'Sequential')
    >>> linear.depth, whole.depth, relu.input.shape, relu.pre_activation
    (1, 0, (5, 2), None)
    """

    name: str  # where it is in the network, and its class: "1.branch.0 Conv2d"
    layer: Module
    depth: int  # 0 for the network itself, 1 for the layers that it calls, and so on
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any
    # the weighted sums of a layer with weights, in front of its activation; None for others
    pre_activation: Tensor | None
    # of the loss with respect to the output, if labels were given and it depends on it
    gradient: Tensor | None = None

    @property
    def input(self) -> Any:
        """The first tensor that the layer was called with; None if there was none."""
        for value in (*self.arguments, *self.keywords.values()):
            if isinstance(value, Tensor):
                return value
        return None


def observe(net: Module, x: Any, labels: Any = None) -> list[Observation]:
    """A record of each call of a layer of a network while it computes its output for a batch x, in
    the order in which the calls end; the last is the network itself.

    `x` is a tensor or an array, or a tuple of them for a network with several inputs. With labels,
    the records have the gradient of the cross-entropy with respect to each output. A layer that is
    used twice has two records, and layers inside of layers have theirs, too: `depth` tells them
    apart. All layers run in their own mode, and the network stays as it is. If x requires a
    gradient, the tensors of the records keep their graph; otherwise they have none.

    >>> net = tp.nn.Sequential(tp.nn.Linear(3, 4), tp.nn.Tanh(), tp.nn.Linear(4, 2))
    >>> for record in tp.observe(net, tp.ones(5, 3), labels=[0, 1, 0, 1, 0]):
    ...     print(record.name, record.output.shape, record.gradient.shape)
    0 Linear (5, 4) (5, 4)
    1 Tanh (5, 4) (5, 4)
    2 Linear (5, 2) (5, 2)
    Sequential (5, 2) (5, 2)
    """
    if not isinstance(net, Module):
        got = f"observe of a {type(net).__name__}"
        raise TypeError(explain(got, "it looks into a Module", "a class with a forward"))
    inputs = [as_tensor(each) for each in (x if isinstance(x, tuple) else (x,))]
    keeps_graph = any(each.requires_grad for each in inputs)
    with_loss = labels is not None
    if with_loss:
        # the first layers may have no parameters
        inputs = [_requiring_gradient(each) for each in inputs]
    walk = Walk(net)
    with recording(keeps_graph or with_loss), observing():
        with visiting(walk.visit):
            output = net(*inputs)
        records = walk.records
        if with_loss:
            loss = F.cross_entropy(output, labels)
            records = _with_gradients(records, loss)
    return records if keeps_graph else list(map(_without_graph, records))


def outermost(records: list[Observation]) -> list[Observation]:
    """The records of the layers that the network itself calls, and at last of the network, unless
    its output is that of its last layer; without those whose output is no tensor."""
    *inside, whole = records
    found = []
    for record in inside:
        if record.depth == 1 and isinstance(record.output, Tensor):
            found.append(record)
    if not found or found[-1].output._data is not whole.output._data:
        found.append(whole)
    return found


class _Reached(Exception):
    """The output that was waited for."""


def until(net: Module, number: int) -> Callable[[Tensor], Tensor]:
    """The network up to the end of the call of this number among those that it makes itself, as
    `outermost` counts them: a function from the input to the output of that call."""

    def function(x: Tensor) -> Tensor:
        outside = len(current().running)
        calls = count()

        def visit(layer: Module, *arguments: Any, **keywords: Any) -> Any:
            is_outermost = len(current().running) - outside == 1
            return after_call if is_outermost else None

        def after_call(output: Any) -> None:
            is_counted = isinstance(output, Tensor)
            if is_counted and next(calls) == number:
                raise _Reached(output)

        try:
            with visiting(visit):
                return net(x)
        except _Reached as reached:
            return reached.args[0]

    return function


class Walk:
    """Writes down the calls of layers inside a network."""

    def __init__(self, net: Module):
        self.outside = len(current().running)  # modules that are running already
        self.names = CallNames(net)
        self.records: list[Observation] = []

    def visit(self, layer: Module, *arguments: Any, **keywords: Any) -> Any:
        depth = len(current().running) - self.outside
        name = self.names.next(layer)

        def after_call(output: Any) -> None:
            pre_activation = None
            if knows_pre_activation(type(layer)):
                with no_grad():
                    pre_activation = layer.pre_activation(output, *arguments, **keywords)
            record = Observation(name, layer, depth, arguments, keywords, output, pre_activation)
            self.records.append(record)

        return after_call


def knows_pre_activation(kind: type[Module]) -> bool:
    """Whether its `pre_activation` belongs to its `forward`: a class that changes how it computes
    must say anew what is in front of the activation."""
    return issubclass(definer(kind, "pre_activation"), definer(kind, "forward"))


class CallNames:
    """The name of each call of a layer: where the layer is in the network, and its class. A layer
    that stands in several places is called by their names in turn."""

    def __init__(self, net: Module):
        self.places: dict[Module, list[str]] = {}
        for place, layer in places(net):
            if place == "":  # the network itself is called by its class alone
                continue
            self.places.setdefault(layer, []).append(place)

    def next(self, layer: Module) -> str:
        """The name of the next call of this layer."""
        kind = type(layer).__name__
        places = self.places.get(layer)
        if not places:  # the network itself, or what a forward has just made
            return kind
        place = places.pop(0) if len(places) > 1 else places[0]
        return f"{place} {kind}"


def _requiring_gradient(x: Tensor) -> Tensor:
    has_gradient = x.requires_grad or x.dtype.kind != "f"  # integers have none
    return x if has_gradient else Tensor(x._data, requires_grad=True)


def _with_gradients(records: list[Observation], loss: Tensor) -> list[Observation]:
    """The records with the gradient of the loss with respect to each output that is a tensor of the
    graph."""
    outputs = []
    for record in records:
        if isinstance(record.output, Tensor) and record.output.requires_grad:
            outputs.append(record.output)
    gradients = dict(zip(map(id, outputs), grad(loss, outputs, allow_unused=True), strict=True))
    return [replace(record, gradient=gradients.get(id(record.output))) for record in records]


def _without_graph(record: Observation) -> Observation:
    """The record with tensors that have no history."""
    return replace(
        record,
        arguments=tuple(map(_detached, record.arguments)),
        keywords={name: _detached(value) for name, value in record.keywords.items()},
        output=_detached(record.output),
    )


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "_fields"):  # a namedtuple takes its elements one by one
        return type(value)(*map(_detached, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_detached, value))
    return value
