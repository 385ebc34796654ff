"""One step of training, and evaluation, on all cores."""

import ctypes
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import (
    Array,
    array_module,
    as_array,
    float32,
    from_host,
    host_array,
    is_array,
    is_host_array,
)
from ..engine.backward import grad
from ..engine.errors import DivergenceError, ShapeError, explain
from ..engine.graph import no_grad
from ..engine.overrides import recorders
from ..engine.tensor import Tensor
from ..engine.threads import Workers, allow, blas_threads, cores
from ..functional.losses import IGNORED
from ..nn.module import Module, Sequential, edit_count, evaluating
from ..optim import Optimizer
from ..optim.constraint import constrained_weights, normalize
from ..parallel.ranks import Ranks

Gradients = list[Array | None]  # one per parameter; None if the loss does not depend on it
# of a part of a batch, to its mean loss and to the gradients
Contribution = tuple[Array, Gradients]
Loss = Callable[[Tensor, Any], Tensor]

INPUT = "the input"
ON_DEVICE = 1_000  # images that a device evaluates together
# for a thread to pay, as measured: elements of its inputs times the root of the number of weights
LEAST_WORK = 5.5e6


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed arrays for new ones, which makes training on a CPU
    faster.

    Otherwise it returns large blocks to the system and gets them back page by page, each filled
    with zeros. This changes the whole process, so only the commands of tinyprop do it by
    themselves. It works with glibc, that is, on Linux; its older versions take no threshold above
    32 MB.

    >>> tp.train.keep_freed_memory()
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as numbered in malloc.h
    if mallopt is not None and (
        mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 1 << 25)
    ):
        mallopt(trim_threshold, 1 << 30)
        # the size of a thread's heap: with less, a heap may be returned to the system
        mallopt(top_pad, 1 << 26)


@dataclass(frozen=True)
class Members:
    """Tensors of a model, found by one walk over its modules."""

    edits: int  # of modules, when they were found
    buffers: list[Tensor]  # such as BatchNorm's running estimates
    constrained: list[Tensor]  # weights whose rows are kept at unit length


class TrainingStep:
    """step(x, labels): forward, backward, update, and unit-length constraint; returns the mean
    loss, on the device.

    `loss(outputs, labels)` returns the mean over the samples of a batch, as a scalar tensor. Any
    function will do that treats each sample by itself; F.cross_entropy is the default.

    A NormProp network never looks across the batch, so the gradient for a batch is the sum of the
    gradients for its parts. The parts of a convolutional network run on `threads` threads, each
    with a BLAS of one thread, which is faster than one thread that calls a BLAS of many. With None,
    as many cores are used as the work is worth: threads take turns to run Python, which costs a
    small batch more than it gains. BatchNorm's parts run at the same time, and wait for the sums of
    each other. Fully connected networks are the exception: they have more weights than activations,
    so each product is shared out among the threads instead of the batch. Dropout, whose keys come
    from one generator, takes one thread, and so does a GPU. Several threads of a program may train
    their own networks at once.

    On a GPU the step of a network of tp.nn is recorded as a CUDA graph when a shape of batch comes
    for the second time, and then replayed by one launch. A replay does not repeat what a forward or
    a loss of your own does in Python, so these are recorded only with `graph=True`. `graph=False`
    launches kernel by kernel. `no_graph` has the reason if there is no graph. A graph is recorded
    anew when arrays or attributes of modules were replaced.

    With `ranks`, several processes train one network: each calls its step with the same whole
    batch, computes its share, and updates with the sums of all. Sums over the batch and masks are
    those of one process.

    >>> net = tp.nn.build("C(4,3,1,1)-C(2,1,1,0)-P(8,8,0,avg)")
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    >>> images = tp.tensor([[[[1.0] * 8] * 8] * 3] * 2)
    >>> step(images, [0, 1]).shape
    ()
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Loss = F.cross_entropy,
        threads: int | None = None,
        graph: bool | None = None,
        ranks: Ranks | None = None,
    ):
        if not callable(loss):
            rule = "the third argument is a function of outputs and labels"
            raise TypeError(
                explain(f"TrainingStep with loss={loss!r}", rule, f"threads={loss!r}, by name")
            )
        self.ranks = ranks or Ranks()
        obstacles = [
            f"{type(m).__name__} needs the batch in one piece"
            for m in model.modules()
            if m.whole_batch
        ]
        if obstacles and self.ranks.size > 1:
            raise ValueError(explain(f"{self.ranks.size} ranks", obstacles[0], "one rank"))
        obstacles += [
            f"{type(m).__name__} draws for the whole batch"
            for m in model.modules()
            if m.draws_for_batch
        ]
        if optimizer.params[0].backend != "numpy":
            obstacles.append("a GPU takes one thread")
        self.explicit = threads is not None
        limit = self.ranks.cores if self.ranks.cores < cores() else None
        # of a batch in one piece; None: no limit
        self.blas_threads = limit if threads is None and obstacles else 1
        if threads is None:
            threads = 1 if obstacles else self.ranks.cores
        if threads < 1 or (threads > 1 and obstacles):
            rule = obstacles[0] if obstacles else "it is at least 1"
            raise ValueError(
                explain(f"threads={threads}", rule, "threads=1, or None to let it choose")
            )
        self.model, self.optimizer, self.loss, self.threads = model, optimizer, loss, threads
        self.in_parts = threads > 1 and any(p.ndim == 4 for p in model.parameters())
        # widths, and so activations, grow with it
        self.root = math.sqrt(sum(p.size for p in model.parameters()))
        self.together = any(m.sums_over_batch for m in model.modules())
        self._members: Members | None = None
        self.graph, self.classes = graph, 0
        self.no_graph = self.obstacle()
        if graph and self.no_graph:
            raise ValueError(
                explain("graph=True", f"here it is not possible: {self.no_graph}", "graph=None")
            )
        if graph is None and self.no_graph is None:
            self.no_graph = self.stranger()
        if graph is False:
            self.no_graph = "graph=False"
        self.replays = None if self.no_graph else recorders[optimizer.params[0].backend](self)

    def obstacle(self) -> str | None:
        """Why the step cannot be a CUDA graph; None if it can, as far as is known beforehand."""
        backend = self.optimizer.params[0].backend
        if backend == "numpy":
            return "these parameters are not on a GPU"
        if backend not in recorders:
            return "kernels/graphs.py is not there"
        if self.ranks.size > 1:
            return "ranks add up their gradients before the update"
        if not _is_ours(type(self.optimizer).update):
            name = type(self.optimizer).__name__
            return f"what {name}.update computes on the host would not be repeated"
        return None

    def stranger(self) -> str | None:
        """Which part of the step is not tinyprop's, and so may do in Python what a replay would not
        repeat: a counter, a print, a branch; None if there is none."""
        if not _is_ours(self.loss):
            return "what the loss computes in Python would not be repeated"
        for module in self.model.modules():
            if not _is_ours(type(module)):
                name = type(module).__name__
                return f"what {name} computes in Python would not be repeated"
        return None

    def __call__(self, x: Any, labels: Any) -> Array:
        x, labels = _array(x), _array(labels)
        if not x.ndim or not labels.ndim or not len(x) or len(x) != len(labels):
            raise ShapeError(
                f"a batch of x {x.shape} and labels {labels.shape}",
                "the first axis of both is the number of samples, at least 1",
                "one label per sample",
            )
        if self.replays is not None and (replayed := self.replays(x, labels)) is not None:
            return replayed
        home = self.optimizer.params[0]._data
        # what the mean loss is taken over: samples, or labels that count
        x, total = _there(x, home), len(x)
        if self.loss is not F.cross_entropy:
            labels = _there(labels, home)
        elif is_host_array(labels):  # cross_entropy checks these before it uploads them
            total = max(1, int((labels != IGNORED).sum()))
        loss, gradients = self.differentiate(x, labels, total)
        self.update(gradients)
        if self.replays is not None:
            self.replays.computed()
        return as_array(loss)

    def differentiate(self, x: Array, labels: Array, total: int) -> Contribution:
        """The mean loss of a batch and the gradients; numbers that are not finite are refused on
        the host."""
        mine = self.ranks.share(len(x))
        our_x, our_labels = x[mine], labels[mine]

        def part(where: slice) -> Contribution:
            with np.errstate(all="ignore"):  # a loss that is not finite is dealt with below
                loss = self.mean_loss(our_x[where], our_labels[where], total)
                gradients = grad(loss, self.optimizer.params, allow_unused=True)
            return loss._data, [None if g is None else g._data for g in gradients]

        buffers = self.members().buffers if is_host_array(x) else []
        before = [(buffer, buffer._data.copy()) for buffer in buffers]
        finite = False
        try:
            with self.ranks.sharing(len(x)):
                loss, gradients = self.ranks.total(*self.gradients(part, our_x))
            finite = not is_host_array(x) or bool(
                math.isfinite(loss) and all(g is None or np.isfinite(g).all() for g in gradients)
            )
        finally:
            for buffer, values in [] if finite else before:  # BatchNorm's running estimates
                buffer._data[...] = values
        if not finite:
            where, hint = (
                self.first_bad_layer(x),
                "a smaller learning rate; for norm='none' the paper needs 0.0001",
            )
            got = f"a loss of {float(loss):g}, first not finite in {where}"
            if math.isfinite(loss):
                got = f"a gradient that is not finite, of a loss of {float(loss):g}"
            raise DivergenceError(
                got,
                "loss and gradients are finite numbers; nothing was updated with these",
                "samples without NaN or infinity" if where == INPUT else hint,
            )
        return loss, gradients

    def members(self) -> "Members":
        """The tensors of the model that a step needs; looked for anew after an edit of any
        module."""
        if self._members is None or self._members.edits != edit_count():
            buffers = list(self.model.buffers())
            self._members = Members(edit_count(), buffers, constrained_weights(self.model))
        return self._members

    def update(self, gradients: Gradients) -> None:
        for p, g in zip(self.optimizer.params, gradients, strict=True):
            p.grad = None if g is None else Tensor(g)
        with allow(self.threads):
            self.optimizer.step()
            normalize(self.members().constrained)
        self.optimizer.zero_grad()

    def gradients(self, part: Callable[[slice], Contribution], x: Array) -> Contribution:
        """The mean loss of a batch and the gradients: the sums of the contributions of its
        parts."""
        threads = self.threads if self.in_parts else 1
        if not self.explicit:
            threads = max(1, min(threads, int(x.size * self.root / LEAST_WORK)))
        if threads == 1:
            with (
                allow(self.threads),
                nullcontext() if self.blas_threads is None else blas_threads(self.blas_threads),
            ):
                return part(slice(None))
        try:
            return Workers.of(threads).map(part, len(x), _add, self.together)
        except (ValueError, TypeError, LookupError):
            if self.ranks.size > 1:  # the others may not have met it
                raise
            try:  # told for the whole batch, if it occurs there too: the user knows those shapes
                part(slice(None))
            except Exception as same:
                raise same from None
            raise

    def mean_loss(self, x: Array, labels: Array, total: int) -> Tensor:
        """What a part contributes to the mean loss of a batch, taken over `total` samples or
        labels."""
        outputs = self.model(Tensor(x))
        self.classes = outputs.shape[1] if outputs.ndim > 1 else 0
        if not len(x):  # a rank without a share of this batch takes part in the sums
            return F.sum(outputs) * 0.0
        if self.loss is F.cross_entropy:
            return F.cross_entropy(outputs, labels, "sum") * (1.0 / total)
        loss = self.loss(outputs, labels)
        if not isinstance(loss, Tensor) or loss.shape != ():
            got = (
                f"a loss of shape {loss.shape}"
                if isinstance(loss, Tensor)
                else f"a {type(loss).__name__} as a loss"
            )
            raise ShapeError(
                got, "a loss is a scalar tensor, the mean over the batch", "loss(...).mean()"
            )
        return loss * (len(x) / total)

    @no_grad()
    def first_bad_layer(self, x: Array) -> str:
        """Where the first output that is not finite comes from."""
        if not array_module(x).isfinite(x).all():
            return INPUT
        layers = (
            list(self.model.named_children())
            if isinstance(self.model, Sequential)
            else [("", self.model)]
        )
        out = Tensor(x)
        for name, layer in layers:
            with np.errstate(all="ignore"), evaluating():
                out = layer(out)
            if not array_module(out._data).isfinite(out._data).all():
                return f"layer {name}, {type(layer).__name__}" if name else type(layer).__name__
        return "the loss itself"


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(f"{__name__.split('.')[0]}.")


def _add(a: Contribution, b: Contribution) -> Contribution:
    return a[0] + b[0], [
        x if y is None else y if x is None else x + y for x, y in zip(a[1], b[1], strict=True)
    ]


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
    """The outputs of a network in evaluation mode, without a graph: on all cores, or on the stream
    of the caller.

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
            error.add_note(
                f"(in images {where.start} to {where.stop - 1}: {len(images)} are evaluated in "
                "parts)"
            )
            raise

    with evaluating():
        if is_host_array(home):
            parts = Workers.of(threads or cores()).map(part, len(images), lambda a, b: a + b)
        else:  # here and now: the stream and the device belong to this thread
            starts = range(0, max(len(images), 1), ON_DEVICE)
            parts = [out for start in starts for out in part(slice(start, start + ON_DEVICE))]
    return array_module(*parts).concatenate(parts)


def evaluate(
    model: Module,
    images: Array,
    labels: Array,
    threads: int | None = None,
    ranks: Ranks | None = None,
) -> tuple[float, float]:
    """The mean cross-entropy of a network on images and the fraction it gets wrong, in evaluation
    mode. Each of several `ranks` computes its share of the images.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> images, labels = tp.tensor([[0.0, 9.0], [9.0, 0.0]]), tp.tensor([1, 1], dtype=int)
    >>> evaluate(net, images.data, labels.data)[1]
    0.5
    """
    labels = _array(labels)
    if not len(images) or len(images) != len(labels):
        got = f"{len(images)} images and {len(labels)} labels"
        raise ShapeError(
            got,
            "there is one label per image, and at least one image",
            "images and labels of the same split",
        )
    ranks = ranks or Ranks()
    out = ranks.gather(logits(model, images[ranks.share(len(images))], threads or ranks.cores))
    truth = _there(labels, out)
    loss = F.cross_entropy(Tensor(out), truth).item()
    # NaN is not a class
    wrong = (out.argmax(axis=1) != truth) | ~array_module(out).isfinite(out).all(axis=1)
    return loss, float(wrong[truth != IGNORED].mean())
