"""An engine does the work of a case. Here are what all engines share, and tinyprop itself."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .. import __version__, nn
from ..engine.arrays import HostArray
from ..engine.backward import grad
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..kernels import tiles
from ..optim import SGD
from ..random import new_generator
from ..train import TrainingStep, keep_freed_memory, logits
from .cases import Case

# A small rate, so that no loss gets so near to 0 in a long run that its gradients are denormal numbers, which are slow.
LEARNING = {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.001}
STEPS_CHECKED = 3  # that the third loss agrees shows that gradients, updates and the constraint do, too

Job = tuple[Callable[[], Any], list[float]]  # what is timed, and numbers in which all engines have to agree


class Engine:
    """Turns a case into work that can be timed."""

    title = ""
    package = ""
    remark = ""  # what a reader of a table has to know

    def __init__(self, threads: int):
        """Import what is needed."""

    def version(self) -> str:
        return version(self.package)

    def use_threads(self, threads: int) -> None:
        threadpool_limits(threads, user_api="blas")

    def job(self, case: Case) -> Job:
        self.use_threads(case.threads)
        make = {"step": self.step, "inference": self.inference, "layer": self.layer}[case.work]
        return make(case, case.build(), *case.data())

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        """A training step, which gives the loss before it."""
        raise NotImplementedError

    def inference(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        raise NotImplementedError

    def layer(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        """Forward and backward through one layer of a network, on what the layers before it make of the images."""
        raise NotImplementedError


def like(output: HostArray) -> HostArray:
    """A random gradient of an output, in the same order in memory."""
    gradient = np.empty_like(output)
    gradient[...] = new_generator(2).standard_normal(output.shape, "float32")
    return gradient


def mean_squares(arrays: list[Any]) -> list[float]:
    return [float(np.mean(np.square(a, dtype=np.float64))) for a in arrays]


class Tinyprop(Engine):
    title = "tinyprop"
    package = "tinyprop"

    def __init__(self, threads: int):
        super().__init__(threads)
        keep_freed_memory()

    def version(self) -> str:
        return __version__

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        together = any(module.whole_batch for module in net.modules())
        step = TrainingStep(net, SGD(net.parameters(), **LEARNING), threads=1 if together else case.threads)

        def work() -> float:
            return float(step(x, labels))

        return work, [work() for _ in range(STEPS_CHECKED)]

    def inference(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        def work() -> HostArray:
            return logits(net, x, case.threads)

        return work, mean_squares(list(work()[:5]))

    def layer(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        layer, entering = net[case.layer], Tensor(x)
        with no_grad():
            for before in list(net)[: case.layer]:
                entering = before(entering)
            gradient = Tensor(like(layer(entering).data))
        entering = Tensor(entering.data, requires_grad=case.input_gradient)
        wanted = [entering] * case.input_gradient + list(layer.parameters())

        def work() -> list[HostArray]:
            output = layer(entering)
            return [output.data, *(g.data for g in grad(output, wanted, gradient))]

        return work, mean_squares(work())


class TinypropPlain(Tinyprop):
    title = "tinyprop net(x)"
    remark = "the network called in one piece, with a BLAS of many threads"

    def inference(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        @no_grad()
        def work() -> HostArray:
            return net(Tensor(x)).data

        return work, mean_squares(list(work()[:5]))


class TinypropGemm(Tinyprop):
    title = "tinyprop GEMM"
    remark = "every convolution by one strided copy and one matrix product"

    def __init__(self, threads: int):
        super().__init__(threads)
        tiles.pays = lambda *geometry: False  # an engine has a process to itself
