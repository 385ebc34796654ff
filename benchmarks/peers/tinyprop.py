"""tinyprop itself."""

from collections.abc import Callable

import numpy as np

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.backward import grad
from tinyprop.engine.graph import no_grad
from tinyprop.engine.tensor import Tensor
from tinyprop.optim import SGD
from tinyprop.parallel.ranks import Ranks
from tinyprop.train import TrainingStep

from .peer import Peer, Train, cotangent


class Tinyprop(Peer):
    title = package = "tinyprop"

    def __init__(self, threads: int, ranks: Ranks | None = None):
        super().__init__(threads)
        self.ranks = ranks

    def trainer(self, net: nn.Sequential) -> Train:
        optimizer = SGD(net.parameters(), **self.learning)
        step = TrainingStep(net, optimizer, threads=self.threads, ranks=self.ranks)
        return lambda x, labels: float(step(x, labels))

    def layer(
        self, net: nn.Sequential, i: int, x: HostArray, input_gradient: bool
    ) -> Callable[[], list[HostArray]]:
        if x.ndim == 4:  # in the memory order that layers hand on, as channels_last in PyTorch
            channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))  # (N, C, H, W) -> NHWC
            x = channels_last.transpose(0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W)
        layer = net[i]
        entering = Tensor(x)
        with no_grad():
            for before in list(net)[:i]:
                entering = before(entering)
            out = layer(entering).data
        gradient = np.empty_like(out)  # keeps the memory order
        gradient[...] = cotangent(out.shape)
        entering = Tensor(entering.data, requires_grad=input_gradient)
        wanted = list(layer.parameters())
        if input_gradient:
            wanted.insert(0, entering)

        def work() -> list[HostArray]:
            output = layer(entering)
            gradients = grad(output, wanted, Tensor(gradient))
            return [tensor.data for tensor in (output, *gradients)]

        return work
