"""What a peer has to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.random import new_generator
from tinyprop.nn.module import Module

from ..cases import LEARNING, Case

# that the third loss agrees shows that gradients, updates and the constraint do, too
STEPS_CHECKED = 3

# a step on images and labels; returns the loss before it
Train = Callable[[HostArray, HostArray], float]


class Peer:
    """A framework that can do the work of a case."""

    title = ""
    package = ""
    learning = LEARNING  # of the optimiser

    def __init__(self, threads: int):
        """Import the framework."""
        self.threads = threads

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Inside the block, this process computes on `self.threads` threads, and afterwards on as
        many as before. The whole process is limited, so nothing else should compute meanwhile."""
        with threadpool_limits(self.threads, user_api="blas"):
            yield

    def job(self, case: Case) -> tuple[Callable[[], Any], list[float]]:
        """What is timed, and numbers in which all peers have to agree."""
        net = case.build()
        x, labels = case.data()
        if case.work == "step":
            step = partial(self.trainer(net), x, labels)
            return step, [step() for _ in range(STEPS_CHECKED)]
        work = self.layer(net, case.layer, x, case.input_gradient)
        return work, [float(np.mean(np.square(a, dtype=np.float64))) for a in work()]

    def trainer(self, net: nn.Sequential) -> Train:
        """Steps of SGD with momentum and weight decay, and the unit-length constraint."""
        raise NotImplementedError

    def layer(
        self, net: nn.Sequential, i: int, x: HostArray, input_gradient: bool
    ) -> Callable[[], list[HostArray]]:
        """Output and gradients of layer i, on what the layers before it make of the images."""
        raise NotImplementedError


def parameters(net: Module) -> dict[str, HostArray]:
    return {name: tensor.data for name, tensor in net.named_parameters()}


def constrained(net: Module) -> list[str]:
    """The names of the weights that the constraint keeps at unit length."""
    normprop = nn.NormPropConv2d | nn.NormPropLinear
    return [f"{name}.weight" for name, layer in net.named_children() if isinstance(layer, normprop)]


def cotangent(shape: tuple[int, ...]) -> HostArray:
    """A random gradient of an output, the same for every peer."""
    return new_generator(2).standard_normal(shape, "float32")
