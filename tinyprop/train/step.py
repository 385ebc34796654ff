"""One step of training, and evaluation, on all cores."""

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import cache, reduce
from typing import Any, TypeVar

import numpy as np

from .. import functional as F
from ..engine.arrays import Array, array_module, as_array, float32, from_host, host_array, is_array, is_host_array
from ..engine.backward import grad
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..errors import DivergenceError
from ..functional.losses import IGNORED
from ..nn.module import Module, Sequential, evaluating
from ..optim import Optimizer, normalize_weights

MAX_PART = 64  # samples that go through the network together: enough for large products, few enough for memory

Gradients = list[Array | None]  # one per parameter; None if the loss does not depend on it
Loss = Callable[[Tensor, Any], Tensor]
T = TypeVar("T")


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed arrays for new ones, which makes training on a CPU faster.

    Otherwise it returns large blocks to the system and gets them back page by page, each filled with zeros. This
    changes the whole process, so only the commands of tinyprop do it by themselves. It works with glibc, that is, on
    Linux; its older versions take no threshold above 32 MB.

    >>> tp.train.keep_freed_memory()
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as numbered in malloc.h
    if mallopt is not None and (mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 1 << 25)):
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 1 << 26)  # the size of a thread's heap: with less, a heap may be returned to the system


class OneThreadBLAS:
    """`with one_thread_blas:` limits BLAS to one thread, for the whole process, until the last block is left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0  # entered and not left yet
        self.limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if not self.blocks:
                self.limit = _controller() and _controller().limit(limits=1, user_api="blas")
            self.blocks += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.blocks -= 1
            if not self.blocks:
                self.restore()

    def restore(self) -> None:
        if self.limit is not None:
            self.limit.restore_original_limits()
            self.limit = None

    def start_again(self) -> None:
        """In a forked process, which has none of the threads that were inside a block."""
        self.restore()
        self.lock, self.blocks = threading.Lock(), 0


@cache
def _controller() -> Any:
    """What limits the threads of BLAS; None in a browser, where there are none."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()  # finding the BLAS takes milliseconds


def cores() -> int:
    """How many threads are worth starting: one where threads do not exist (in a browser)."""
    return 1 if sys.platform == "emscripten" else os.cpu_count() or 1


one_thread_blas = OneThreadBLAS()
_in_worker = ContextVar("in_worker", default=False)


class Workers:
    """Threads that share the parts of a batch, each with a BLAS of one thread."""

    @staticmethod
    @cache
    def of(threads: int) -> "Workers":
        """One shared pool per thread count, because starting threads takes milliseconds."""
        return Workers(threads)

    def __init__(self, threads: int):
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "tinyprop")

    def map(self, work: Callable[[slice], T], samples: int, merge: Callable[[T, T], T]) -> T:
        """The results of work on all parts, merged in the order of the samples."""
        samples = max(samples, 1)  # no samples are one empty part
        rounds = -(-samples // (MAX_PART * self.threads))  # equal parts, the same number for each thread
        size = -(-samples // (rounds * self.threads))
        parts = [slice(start, start + size) for start in range(0, samples, size)]
        count = min(self.threads, len(parts))
        shares = [parts[len(parts) * i // count : len(parts) * (i + 1) // count] for i in range(count)]

        def merged(share: list[slice]) -> T:
            _in_worker.set(True)
            return reduce(merge, map(work, share))

        contexts = [copy_context() for _ in shares]  # no_grad() and exact_convolution() hold in the threads, too
        with one_thread_blas:
            if count == 1 or _in_worker.get():  # a worker that waited for its own pool might wait forever
                return reduce(merge, [c.run(merged, share) for c, share in zip(contexts, shares, strict=True)])
            runs = [self.pool.submit(c.run, merged, share) for c, share in zip(contexts, shares, strict=True)]
            wait(runs)  # for all of them, even if one fails
            return reduce(merge, [run.result() for run in runs])


def _after_fork() -> None:
    """A forked process inherits no threads."""
    Workers.of.cache_clear()
    one_thread_blas.start_again()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


class TrainingStep:
    """step(x, labels): forward, backward, update, and unit-length constraint; returns the mean loss, on the device.

    `loss(outputs, labels)` returns the mean over the samples of a batch, as a scalar tensor. Any function will do that
    treats each sample by itself; F.cross_entropy is the default.

    A NormProp network never looks across the batch, so the gradient for a batch is the sum of the gradients for its
    parts. The parts of a convolutional network run on `threads` threads (all cores if None), each with a BLAS of one
    thread, which is faster than one thread that calls a BLAS of many. Fully connected networks are the exception: a
    few large products, which BLAS itself distributes best. Networks that need the batch in one piece, as BatchNorm
    does, take one thread, and so does a GPU. Several threads of a program may train their own networks at once.

    >>> net = tp.nn.build("C(4,3,1,1)-C(2,1,1,0)-P(8,8,0,avg)")
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    >>> images = tp.tensor([[[[1.0] * 8] * 8] * 3] * 2)
    >>> step(images, [0, 1]).shape
    ()
    """

    def __init__(self, model: Module, optimizer: Optimizer, loss: Loss = F.cross_entropy, threads: int | None = None):
        if not callable(loss):
            rule = "the third argument is a function of outputs and labels"
            raise TypeError(explain(f"TrainingStep with loss={loss!r}", rule, f"threads={loss!r}, by name"))
        obstacles = [f"{type(m).__name__} needs the batch in one piece" for m in model.modules() if m.whole_batch]
        if optimizer.params[0].backend != "numpy":
            obstacles.append("a GPU takes one thread")
        if threads is None:
            threads = 1 if obstacles else cores()
        if threads < 1 or (threads > 1 and obstacles):
            rule = obstacles[0] if obstacles else "it is at least 1"
            raise ValueError(explain(f"threads={threads}", rule, "threads=1, or None to let it choose"))
        self.model, self.optimizer, self.loss, self.threads = model, optimizer, loss, threads
        self.in_parts = threads > 1 and any(p.ndim == 4 for p in model.parameters())

    def __call__(self, x: Any, labels: Any) -> Array:
        home = self.optimizer.params[0]._data
        x, labels = _there(_array(x), home), _array(labels)
        if not x.ndim or not labels.ndim or not len(x) or len(x) != len(labels):
            raise ShapeError(
                f"a batch of x {x.shape} and labels {labels.shape}",
                "the first axis of both is the number of samples, at least 1",
                "one label per sample",
            )
        total = len(x)  # what the mean loss is taken over: samples, or labels that count
        if self.loss is not F.cross_entropy:
            labels = _there(labels, home)
        elif is_host_array(labels):  # cross_entropy checks these before it uploads them
            total = max(1, int((labels != IGNORED).sum()))

        def part(where: slice) -> tuple[Array, Gradients]:
            """The contribution of a part of the batch to its mean loss and to the gradients."""
            with np.errstate(all="ignore"):  # a loss that is not finite is dealt with below
                loss = self.mean_loss(x[where], labels[where], total)
                gradients = grad(loss, self.optimizer.params, allow_unused=True)
            return loss._data, [None if g is None else g._data for g in gradients]

        before = [(b, b._data.copy()) for b in self.model.buffers()] if is_host_array(x) else []
        if self.in_parts:
            try:
                loss, gradients = Workers.of(self.threads).map(part, len(x), _add)
            except (ValueError, TypeError, LookupError):
                try:  # told for the whole batch, if it occurs there too: the user knows those shapes
                    part(slice(None))
                except Exception as same:
                    raise same from None
                raise
        else:
            loss, gradients = part(slice(None))
        if is_host_array(x) and not (math.isfinite(loss) and all(g is None or np.isfinite(g).all() for g in gradients)):
            for buffer, values in before:  # BatchNorm's running estimates
                buffer._data[...] = values
            what = "a gradient that is not finite, " if math.isfinite(loss) else ""
            raise DivergenceError(
                f"{what}a loss of {float(loss):g}, first not finite in {self.first_bad_layer(x)}",
                "loss and gradients are finite numbers; nothing was updated with these",
                "a smaller learning rate; for norm='none' the paper needs 0.0001",
            )
        for p, g in zip(self.optimizer.params, gradients, strict=True):
            p.grad = None if g is None else Tensor(g)
        self.optimizer.step()
        normalize_weights(self.model)
        self.optimizer.zero_grad()
        return as_array(loss)

    def mean_loss(self, x: Array, labels: Array, total: int) -> Tensor:
        """What a part contributes to the mean loss of a batch, taken over `total` samples or labels."""
        outputs = self.model(Tensor(x))
        if self.loss is F.cross_entropy:
            return F.cross_entropy(outputs, labels, "sum") * (1.0 / total)
        loss = self.loss(outputs, labels)
        if not isinstance(loss, Tensor) or loss.shape != ():
            got = f"a loss of shape {loss.shape}" if isinstance(loss, Tensor) else f"a {type(loss).__name__} as a loss"
            raise ShapeError(got, "a loss is a scalar tensor, the mean over the batch", "loss(...).mean()")
        return loss * (len(x) / total)

    @no_grad()
    def first_bad_layer(self, x: Array) -> str:
        """Where the first output that is not finite comes from."""
        layers = list(self.model.named_children()) if isinstance(self.model, Sequential) else [("", self.model)]
        out = Tensor(x)
        for name, layer in layers:
            with np.errstate(all="ignore"), evaluating():
                out = layer(out)
            if not array_module(out._data).isfinite(out._data).all():
                return f"layer {name}, {type(layer).__name__}" if name else type(layer).__name__
        return "the loss itself"


def _add(a: tuple[Array, Gradients], b: tuple[Array, Gradients]) -> tuple[Array, Gradients]:
    return a[0] + b[0], [x if y is None else y if x is None else x + y for x, y in zip(a[1], b[1], strict=True)]


def _array(values: Any) -> Array:
    """The array of a tensor, an array as it is, or a list as an array of integers or of float32."""
    values = values._data if isinstance(values, Tensor) else values
    if is_array(values):
        return values
    array = host_array(values)
    return array.astype(float32) if array.dtype.kind == "f" else array


def _there(array: Array, home: Array) -> Array:
    return from_host(array, like=home) if is_host_array(array) else array


@no_grad()
def logits(model: Module, images: Array, threads: int | None = None) -> Array:
    """The outputs of a network in evaluation mode, without a graph, on all cores.

    The network is only read: several threads may evaluate it at once.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> logits(net, tp.tensor([[1.0, 2.0]]).data)
    array([[1., 2.]], dtype=float32)
    """
    images = _array(images)
    home = next((p._data for p in model.parameters()), images)

    def part(where: slice) -> list[Array]:
        try:
            return [model(Tensor(_there(images[where], home)))._data]
        except Exception as error:
            error.add_note(f"(in images {where.start} to {where.stop - 1}: {len(images)} are evaluated in parts)")
            raise

    workers = Workers.of(threads or cores() if is_host_array(home) else 1)
    with evaluating():
        parts = workers.map(part, len(images), lambda a, b: a + b)
    return array_module(*parts).concatenate(parts)


def evaluate(model: Module, images: Array, labels: Array, threads: int | None = None) -> tuple[float, float]:
    """The mean cross-entropy of a network on images and the fraction it gets wrong, in evaluation mode.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> evaluate(net, tp.tensor([[0.0, 9.0], [9.0, 0.0]]).data, tp.tensor([1, 1], dtype=int).data)[1]
    0.5
    """
    labels = _array(labels)
    if not len(images) or len(images) != len(labels):
        got = f"{len(images)} images and {len(labels)} labels"
        raise ShapeError(
            got, "there is one label per image, and at least one image", "images and labels of the same split"
        )
    out = logits(model, images, threads)
    truth = _there(labels, out)
    loss = F.cross_entropy(Tensor(out), truth).item()
    wrong = (out.argmax(axis=1) != truth) | ~array_module(out).isfinite(out).all(axis=1)  # NaN is not a class
    return loss, float(wrong.mean())
