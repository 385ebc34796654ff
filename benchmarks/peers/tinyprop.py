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
