"""Weights averaged over the last steps of a run: the noise of the steps cancels."""

from collections.abc import Iterable, Mapping
from copy import deepcopy

from ..engine.arrays import Array, array_module, backend_of, float64, to_backend
from ..engine.errors import StateError
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..nn.module import Module


class AveragedWeights:
    """The mean of each parameter of a network over several moments.

    >>> net = tp.nn.Linear(1, 1, bias=False)
    >>> average = AveragedWeights(net)
    >>> for weight in (1.0, 4.0):
    ...     net.weight.data[...] = weight
    ...     average.add()
    >>> average.network().weight
    tensor([[2.5]], requires_grad=True)
    """

    def __init__(self, model: Module):
        self.model = model
        self.count = 0
        self.sums: dict[str, Array] = {}
        for name, parameter in model.named_parameters():
            array = parameter._data
            self.sums[name] = array_module(array).zeros(array.shape, float64)

    def add(self) -> None:
        """Take in the present weights."""
        for name, parameter in self.model.named_parameters():
            self.sums[name] += parameter._data
        self.count += 1

    def network(self) -> Module:
        """A copy of the network with the averaged weights."""
        copy = deepcopy(self.model)
        for name, parameter in copy.named_parameters():
            parameter.data[...] = self.sums[name] / self.count
        return copy

    def state_dict(self) -> dict[str, Array]:
        return {name: total.copy() for name, total in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if state.keys() != self.sums.keys():
            raise StateError(
                "averaged weights of another network",
                "they have the names of its parameters",
                "the network of the run",
            )
        for name, total in self.sums.items():
            total[...] = to_backend(state[name], backend_of(total))


@no_grad()
def measure_again(model: Module, batches: Iterable[Array]) -> None:
    """Set the running statistics of normalisers, as BatchNorm has them, to their mean over these
    batches: for averaged weights, those of the run do not hold."""
    normalizers = [layer for layer in model.modules() if hasattr(layer, "momentum")]
    if not normalizers:
        return
    given = [layer.momentum for layer in normalizers]
    model.train()
    for count, images in enumerate(batches, start=1):
        for layer in normalizers:
            layer.momentum = 1.0 / count
        model(Tensor(images))
    for layer, momentum in zip(normalizers, given, strict=True):
        layer.momentum = momentum
