"""One step of training, and evaluation, on all cores."""

import ctypes
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, reduce
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from . import functional as F
from .engine.arrays import (
    Array,
    array_module,
    as_array,
    from_host,
    host_array,
    is_array,
    is_host_array,
)
from .engine.backward import grad
from .engine.errors import DivergenceError, explain
from .engine.graph import no_grad
from .engine.tensor import Tensor
from .nn.module import Module
from .optim import Optimizer, normalize_weights

PART = 64  # samples at most that go through the network together: enough for large products, few enough for memory

Gradients = list[Array | None]  # one for each parameter; None for one that the loss does not depend on
T = TypeVar("T")


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed arrays for the next ones, for each thread by itself.

    Otherwise it returns large blocks to the system and gets them back page by page, each filled with zeros. Only glibc,
    which Linux has, can be told so; its older versions take no threshold above 32 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as malloc.h numbers them
    if mallopt is not None and (mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 1 << 25)):
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 1 << 26)  # the heaps of threads have so many bytes; less to spare, and one may be returned


class Workers:
    """Threads that share the parts of a batch, each with a BLAS of one thread.

    Where the parts do not depend on each other, this is faster than one thread that calls a BLAS of many.
    """

    @staticmethod
    @cache
    def of(threads: int) -> "Workers":
        """Always the same so many threads: to start them, and to find the BLAS, takes milliseconds."""
        return Workers(threads)

    def __init__(self, threads: int):
        keep_freed_memory()
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "tinyprop")
        self.blas = ThreadpoolController()

    def map(self, work: Callable[[slice], T], samples: int, merge: Callable[[T, T], T]) -> T:
        """The results of work on all parts, merged in the order of the samples."""
        samples = max(samples, 1)  # none is one empty part
        rounds = -(-samples // (PART * self.threads))  # equal parts, as many for each thread
        size = -(-samples // (rounds * self.threads))
        parts = [slice(start, start + size) for start in range(0, samples, size)]
        count = min(self.threads, len(parts))
        shares = [parts[len(parts) * i // count : len(parts) * (i + 1) // count] for i in range(count)]
        contexts = [copy_context() for _ in shares]  # no_grad() and exact_convolution() hold in the threads, too
        with self.blas.limit(limits=1, user_api="blas"):
            runs = self.pool.map(lambda c, share: c.run(reduce, merge, map(work, share)), contexts, shares)
            return reduce(merge, runs)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Workers.of.cache_clear)  # a process inherits no threads


class TrainingStep:
    """step(x, labels): forward, backward, update, and unit-length constraint; returns the mean loss, on the device.

    A NormProp network never looks across the batch, so the gradient of a batch is the sum of the gradients of its
    parts. The parts of a convolutional network run on `threads` threads (all cores if None), each with a BLAS of one
    thread, which is faster than one thread that calls a BLAS of many. Fully connected networks are the exception: a
    few large products, which BLAS shares out best by itself. Networks that need the batch in one piece, as BatchNorm
    does, take one thread, and so does a GPU.

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
        keep_freed_memory()
        self.model, self.optimizer, self.threads = model, optimizer, threads
        self.in_parts = threads > 1 and any(p.ndim == 4 for p in model.parameters())

    def __call__(self, x: Any, labels: Any) -> Array:
        x = _there(_array(x), self.optimizer.params[0].data)
        labels = _array(labels)  # those on the host are checked there, by cross_entropy, before they are uploaded

        def part(where: slice) -> tuple[Array, Gradients]:
            """The contribution of a part of the batch to its mean loss and to the gradients."""
            with np.errstate(all="ignore"):  # a loss that is not finite is dealt with below
                loss = F.cross_entropy(self.model(Tensor(x[where])), labels[where], "sum") * (1.0 / len(x))
                gradients = grad(loss, self.optimizer.params, allow_unused=True)
            return loss.data, [None if g is None else g.data for g in gradients]

        if self.in_parts:
            loss, gradients = Workers.of(self.threads).map(part, len(x), _add)
        else:
            loss, gradients = part(slice(None))
        if is_host_array(x) and not math.isfinite(loss):
            raise DivergenceError(
                f"a loss of {float(loss)}, first not finite in {self.first_bad_layer(x)}",
                "a loss is a finite number; nothing was updated with this one",
                "a smaller learning rate; for norm='none' the paper needs 0.0001",
            )
        for p, g in zip(self.optimizer.params, gradients, strict=True):
            p.grad = None if g is None else Tensor(g)
        self.optimizer.step()
        normalize_weights(self.model)
        self.optimizer.zero_grad()
        return as_array(loss)

    @no_grad()
    def first_bad_layer(self, x: Array) -> str:
        """The first layer whose output for a batch is not finite."""
        out = Tensor(x)
        for name, layer in self.model.named_children():
            with np.errstate(all="ignore"):
                out = layer(out)
            if not array_module(out.data).isfinite(out.data).all():
                return f"layer {name}, {type(layer).__name__}"
        return "the loss itself"


def _add(a: tuple[Array, Gradients], b: tuple[Array, Gradients]) -> tuple[Array, Gradients]:
    return a[0] + b[0], [x if y is None else y if x is None else x + y for x, y in zip(a[1], b[1], strict=True)]


def _array(values: Any) -> Array:
    values = values.data if isinstance(values, Tensor) else values
    return values if is_array(values) else host_array(values)


@no_grad()
def logits(model: Module, images: Array, threads: int | None = None) -> Array:
    """The outputs of a network in evaluation mode, without a graph, on all cores.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> logits(net, tp.tensor([[1.0, 2.0]]).data)
    array([[1., 2.]], dtype=float32)
    """
    home = next((p.data for p in model.parameters()), images)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()

    def part(where: slice) -> list[Array]:
        return [model(Tensor(_there(images[where], home))).data]

    workers = Workers.of(threads or os.cpu_count() or 1 if is_host_array(home) else 1)
    try:
        parts = workers.map(part, len(images), lambda a, b: a + b)
    finally:
        for module, mode in modes:
            module.training = mode
    return array_module(*parts).concatenate(parts)


def evaluate(model: Module, images: Array, labels: Array, threads: int | None = None) -> tuple[float, float]:
    """The mean loss of a network on images and the fraction it gets wrong, in evaluation mode.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> evaluate(net, tp.tensor([[0.0, 9.0], [9.0, 0.0]]).data, tp.tensor([1, 1], dtype=int).data)[1]
    0.5
    """
    out = logits(model, images, threads)
    truth = _there(labels, out)
    loss = F.cross_entropy(Tensor(out), truth).item()
    return loss, float((out.argmax(axis=1) != truth).mean())


def _there(array: Array, home: Array) -> Array:
    return from_host(array, like=home) if is_host_array(array) else array
