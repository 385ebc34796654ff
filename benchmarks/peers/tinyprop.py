"""tinyprop itself."""

from collections.abc import Callable

import numpy as np

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.backward import grad
from tinyprop.engine.graph import no_grad
from tinyprop.engine.tensor import Tensor
from tinyprop.engine.threads import cores
from tinyprop.optim import SGD
from tinyprop.train import TrainingStep, logits

from .peer import Peer, Train, cotangent


class Tinyprop(Peer):
    title = package = "tinyprop"

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        # as PyTorch may use fewer than it is allowed to
        chosen = threads if threads < cores() else None
        step = TrainingStep(net, SGD(net.parameters(), **self.learning), threads=chosen)
        return lambda x, labels: float(step(x, labels))

    def predictor(self, net: nn.Sequential, threads: int) -> Callable[[HostArray], HostArray]:
        return lambda x: logits(net, x, threads)

    def layer(
        self, net: nn.Sequential, i: int, x: HostArray, input_gradient: bool
    ) -> Callable[[], list[HostArray]]:
        # in the memory order that layers hand on, as PyTorch's channels_last gets it
        if x.ndim == 4:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        layer, entering = net[i], Tensor(x)
        with no_grad():
            for before in list(net)[:i]:
                entering = before(entering)
            out = layer(entering).data
        gradient = np.empty_like(out)  # keeps the memory order
        gradient[...] = cotangent(out.shape)
        entering = Tensor(entering.data, requires_grad=input_gradient)
        wanted = [entering] * input_gradient + list(layer.parameters())

        def work() -> list[HostArray]:
            output = layer(entering)
            return [output.data, *(g.data for g in grad(output, wanted, Tensor(gradient)))]

        return work
