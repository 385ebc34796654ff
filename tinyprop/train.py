"""Training: one step of a network, on all cores."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

from threadpoolctl import ThreadpoolController

from . import functional as F
from .autograd import grad
from .backend import Array, as_array, from_host, host_array, is_array, is_host_array
from .errors import explain
from .nn.module import Module
from .optim import Optimizer, normalize_weights
from .tensor import Tensor, as_tensor

PART = 25  # samples that go through the network together: enough for large matrix products, few enough for the cache

Gradients = list[Array | None]  # one for each parameter; None for one that the loss does not depend on


class TrainingStep:
    """step(x, labels): forward, backward, update, and unit-length constraint; returns the mean loss, on the device.

    A NormProp network never looks across the batch, so the gradient of a batch is the sum of the gradients of its
    parts. The parts run on `threads` threads (all cores if None), each with a BLAS of one thread, which is faster
    than one thread that calls a BLAS of many. Networks that need the batch in one piece, as BatchNorm does, take one
    thread, and so does a GPU.

    >>> net = tp.nn.build("C(4,3,1,1)-C(2,1,1,0)-P(8,8,0,avg)")
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    >>> images = tp.tensor([[[[1.0] * 8] * 8] * 3] * 2)
    >>> step(images, [0, 1]).shape
    ()
    """

    def __init__(self, model: Module, optimizer: Optimizer, threads: int | None = None):
        obstacles = [f"{type(m).__name__} needs the batch in one piece" for m in model.modules() if m.whole_batch]
        if optimizer.params[0].backend != "numpy":
            obstacles.append("a GPU takes one thread")
        if threads is None:
            threads = 1 if obstacles else os.cpu_count() or 1
        if threads < 1 or (threads > 1 and obstacles):
            rule = obstacles[0] if obstacles else "it is at least 1"
            raise ValueError(explain(f"threads={threads}", rule, "threads=1, or None to let it choose"))
        self.model, self.optimizer, self.threads = model, optimizer, threads
        self.pool = ThreadPoolExecutor(threads, "tinyprop") if threads > 1 else None
        self.blas = ThreadpoolController()

    def __call__(self, x: Any, labels: Any) -> Array:
        home = self.optimizer.params[0].data
        x, labels = (from_host(v, like=home) if is_host_array(v) else v for v in (as_tensor(x).data, _array(labels)))
        if self.pool is None:
            loss, gradients = self.sum_over([slice(None)], x, labels)
        else:
            size = min(PART, -(-len(x) // self.threads))
            parts = [slice(start, start + size) for start in range(0, len(x), size)]
            shares = [parts[i :: self.threads] for i in range(self.threads) if parts[i :: self.threads]]
            with self.blas.limit(limits=1, user_api="blas"):
                loss, gradients = reduce(_add, self.pool.map(lambda share: self.sum_over(share, x, labels), shares))
        for p, g in zip(self.optimizer.params, gradients, strict=True):
            p.grad = None if g is None else Tensor(g)
        self.optimizer.step()
        normalize_weights(self.model)
        self.optimizer.zero_grad()
        return as_array(loss)

    def sum_over(self, parts: Iterable[slice], x: Array, labels: Array) -> tuple[Array, Gradients]:
        """The contribution of some parts of a batch to its mean loss and to the gradients."""
        return reduce(_add, (self.part(x[part], labels[part], len(x)) for part in parts))

    def part(self, x: Array, labels: Array, batch: int) -> tuple[Array, Gradients]:
        loss = F.cross_entropy(self.model(Tensor(x)), labels, "sum") * (1.0 / batch)
        gradients = grad(loss, self.optimizer.params, allow_unused=True)
        return loss.data, [None if g is None else g.data for g in gradients]


def _add(a: tuple[Array, Gradients], b: tuple[Array, Gradients]) -> tuple[Array, Gradients]:
    return a[0] + b[0], [x if y is None else y if x is None else x + y for x, y in zip(a[1], b[1], strict=True)]


def _array(labels: Any) -> Array:
    labels = labels.data if isinstance(labels, Tensor) else labels
    return labels if is_array(labels) else host_array(labels)
