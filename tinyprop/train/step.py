"""One step of training, and evaluation, on all cores."""

import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    to_numpy,
)
from ..engine.backward import grad, inputs_first, node_of
from ..engine.errors import DivergenceError, GradientError, ShapeError, explain
from ..engine.graph import no_grad
from ..engine.overrides import recorders
from ..engine.sums import is_finite, total
from ..engine.tensor import Tensor
from ..engine.threads import blas_threads, cores, thread_limit
from ..functional.activation import Activation
from ..functional.losses import IGNORED
from ..functional.reductions import Mean
from ..nn.declare import can_be_split, declared, is_ours
from ..nn.module import Module, Sequential, edit_count, evaluating
from ..optim import Optimizer
from ..optim.constraint import constrained_weights, normalize
from ..parallel.ranks import Ranks

Gradients = list[Array | None]  # one per parameter; None if the loss does not depend on it
Loss = Callable[[Tensor, Any], Tensor]

INPUT = "the input"
BATCH_ON_HOST = 64  # images that are evaluated together
BATCH_ON_DEVICE = 1_000
PROBED = 8  # images that are computed alone and together


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
    """step(x, labels): forward, backward, update, and unit-length constraint; returns the loss, on
    the device.

    `loss(outputs, labels)` returns a scalar tensor; F.cross_entropy is the default. The network and
    the loss may be anything: the batch is never cut.

    On the host, kernels share blocks of their arrays among `threads` threads, by default one for
    each core. The numbers do not depend on how many there are. Several threads of a program may
    train their own networks at once.

    On a GPU the step of a network of tp.nn is recorded as a CUDA graph when a shape of batch comes
    for the second time, and then replayed by one launch. A replay does not repeat what a forward or
    a loss of your own does in Python, so these are recorded only with `graph=True`. `graph=False`
    launches kernel by kernel. `no_graph` has the reason if there is no graph. A graph is recorded
    anew when arrays or attributes of modules were replaced.

    With `ranks`, several processes train one network: each calls its step with the same whole
    batch, computes its share, and updates with the sums of all. Sums over the batch and masks are
    those of one process. A module or a loss that may look across the batch in another way is
    refused, unless it is declared to treat each sample by itself, `per_sample = True`, or to sum
    over the batch by `tp.nn.over_batch`, `sums_over_batch = True`. (A loss that is `per_sample` is
    a mean over the samples.)

    >>> net = tp.nn.build("C(4,3,1,1)-C(2,1,1,0)-P(8,8,0,avg)")
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    >>> images = tp.tensor([[[[1.0] * 8] * 8] * 3] * 2)
    >>> step(images, [0, 1]).shape
    ()
    """

    constrain = True  # keep the filters of NormProp at unit length

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
        if threads is not None and threads < 1:
            raise ValueError(explain(f"threads={threads}", "it is at least 1", "threads=1"))
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.ranks = ranks or Ranks()
        self.threads = threads or self.ranks.cores
        if self.ranks.size > 1:
            self.check_that_ranks_can_share()
        self._members: Members | None = None
        self.is_graph_checked = False
        self.classes = 0
        self.last_outputs: Array | None = None  # of this rank's share of the last batch
        self.graph = graph
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

    def check_that_ranks_can_share(self) -> None:
        """Refuse modules and losses whose numbers for a batch may not follow from those of its
        parts."""
        got = f"{self.ranks.size} ranks"
        hint = (
            "declare per_sample = True if it treats each sample by itself, sums_over_batch = True "
            "if it sums over the batch by tp.nn.over_batch, or use one rank"
        )
        for module in self.model.modules():
            if not can_be_split(module):
                name = type(module).__name__
                raise ValueError(explain(got, f"{name} may look across the batch", hint))
        is_known = self.loss in (F.cross_entropy, F.mse_loss)
        is_declared = getattr(self.loss, "per_sample", False)
        if not (is_known or is_declared):
            rule = "a loss of your own may look across the batch"
            hint = "declare per_sample = True if it is a mean over samples, or use one rank"
            raise ValueError(explain(got, rule, hint))

    def obstacle(self) -> str | None:
        """Why the step cannot be a CUDA graph; None if it can, as far as is known beforehand."""
        backend = self.optimizer.params[0].backend
        if backend == "numpy":
            return "these parameters are not on a GPU"
        if backend not in recorders:
            return "kernels/graphs.py is not there"
        if self.ranks.size > 1:
            return "ranks add up their gradients before the update"
        if not is_ours(type(self.optimizer).update):
            name = type(self.optimizer).__name__
            return f"what {name}.update computes on the host would not be repeated"
        return None

    def stranger(self) -> str | None:
        """Which part of the step is not tinyprop's, and so may do in Python what a replay would not
        repeat: a counter, a print, a branch; None if there is none."""
        if not is_ours(self.loss):
            return "what the loss computes in Python would not be repeated"
        for module in self.model.modules():
            activation = getattr(module, "activation", None)
            if not is_ours(type(module)):
                name = type(module).__name__
            elif isinstance(activation, Activation) and not is_ours(activation.function):
                name = activation.name
            else:
                continue
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
        if self.replays is not None:
            replayed = self.replays(x, labels)
            if replayed is not None:
                return replayed
        home = self.optimizer.params[0]._data
        x = _there(x, home)
        counted = None  # labels that count
        if self.loss is not F.cross_entropy:  # which checks labels before it uploads them
            labels = _there(labels, home)
        elif is_host_array(labels) or self.ranks.size > 1:
            counted = max(1, int(array_module(labels).count_nonzero(labels != IGNORED)))
        with self.threads_for_kernels():
            loss, gradients = self.differentiate(x, labels, counted)
            self.update(gradients)
        if self.replays is not None:
            self.replays.computed()
        return as_array(loss)

    @contextmanager
    def threads_for_kernels(self) -> Iterator[None]:
        """Inside the block, kernels share their blocks, and BLAS has one thread in each."""
        if self.optimizer.params[0].backend != "numpy":
            yield
            return
        with thread_limit(self.threads), blas_threads(1):
            yield

    def differentiate(
        self, x: Array, labels: Array, counted: int | None = None
    ) -> tuple[Array, Gradients]:
        """The loss of a batch and its gradients. On the host, numbers that are not finite are
        refused. If it is known how many labels count, the device need not find out."""
        on_host = is_host_array(x)
        with self.undone_unless_finite() as result:
            with self.ranks.sharing(len(x)), np.errstate(all="ignore"):
                loss = self.share_of_loss(x, labels, counted)
                if not self.is_graph_checked:
                    self.check_parameters(loss)
                tensors = grad(loss, self.optimizer.params, allow_unused=True)
                gradients = [None if g is None else g._data for g in tensors]
                total_loss, totals = self.ranks.total(loss._data, gradients)
            result.finite = not on_host or all_finite(total_loss, totals)
        if not result.finite:
            self.explain_divergence(x, total_loss)
        return total_loss, totals

    def check_parameters(self, loss: Tensor) -> None:
        """Refuse a first step in which something requires a gradient that nothing trains, as a
        parameter that forward makes anew each time."""
        self.is_graph_checked = True
        if not loss.requires_grad:
            return
        _, leaves = inputs_first(node_of(loss))
        known = {*self.optimizer.params, *self.model.parameters()}
        for leaf in leaves:
            if leaf not in known:
                raise GradientError(
                    f"a tensor of shape {leaf.shape} that requires a gradient, in forward or loss",
                    "it is neither a parameter of the network nor one of the optimizer, so that "
                    "nothing would train it",
                    "make it in __init__, as an attribute; or detach() it",
                )

    def share_of_loss(self, x: Array, labels: Array, counted: int | None) -> Tensor:
        """The loss of the batch; or what this rank's samples contribute to it."""
        mine = self.ranks.share(len(x))
        outputs = self.outputs(x[mine])
        if not len(outputs):  # a rank without samples takes part in the sums
            return F.sum(outputs) * 0.0
        if counted is not None:
            losses = F.cross_entropy(outputs, labels[mine], "none")
            return Mean(None, keepdims=False, count=counted)(losses)
        loss = self.checked_loss(outputs, labels[mine])
        if self.ranks.size == 1:
            return loss
        return loss * (len(outputs) / len(x))

    def outputs(self, x: Array) -> Tensor:
        outputs = self.model(Tensor(x))
        self.last_outputs = outputs._data
        self.classes = outputs.shape[1] if outputs.ndim > 1 else 0
        return outputs

    def checked_loss(self, outputs: Tensor, labels: Array) -> Tensor:
        loss = self.loss(outputs, labels)
        if isinstance(loss, Tensor) and loss.shape == ():
            return loss
        got = f"a {type(loss).__name__} as a loss"
        if isinstance(loss, Tensor):
            got = f"a loss of shape {loss.shape}"
        raise ShapeError(got, "a loss is a scalar tensor", "loss(...).mean()")

    @contextmanager
    def undone_unless_finite(self) -> Iterator["Outcome"]:
        """Restore running estimates at the end of the block, unless its result is finite."""
        outcome = Outcome()
        on_host = self.optimizer.params[0].backend == "numpy"
        buffers = self.members().buffers if on_host else []
        before = [(buffer, buffer._data.copy()) for buffer in buffers]
        try:
            yield outcome
        finally:
            if not outcome.finite:
                for buffer, values in before:
                    buffer._data[...] = values

    def explain_divergence(self, x: Array, loss: Array) -> None:
        """Raise the error for a loss or a gradient that is not finite."""
        where = self.first_nonfinite_layer(x)
        hint = "a smaller learning rate; for norm='none' the paper needs 0.0001"
        got = f"a loss of {float(loss):g}, first not finite in {where}"
        if math.isfinite(loss):
            got = f"a gradient that is not finite, of a loss of {float(loss):g}"
        raise DivergenceError(
            got,
            "loss and gradients are finite numbers; nothing was updated with these",
            "samples without NaN or infinity" if where == INPUT else hint,
        )

    def members(self) -> "Members":
        """The tensors of the model that a step needs; looked for anew after an edit of any
        module."""
        if self._members is None or self._members.edits != edit_count():
            buffers = list(self.model.buffers())
            constrained = constrained_weights(self.model) if self.constrain else []
            self._members = Members(edit_count(), buffers, constrained)
        return self._members

    def update(self, gradients: Gradients) -> None:
        for p, g in zip(self.optimizer.params, gradients, strict=True):
            p.grad = None if g is None else Tensor(g)
        self.optimizer.step()
        normalize(self.members().constrained)
        self.optimizer.zero_grad()

    @no_grad()
    def first_nonfinite_layer(self, x: Array) -> str:
        """Where the first output that is not finite comes from."""
        if not array_module(x).isfinite(x).all():
            return INPUT
        layers = [("", self.model)]
        if isinstance(self.model, Sequential):
            layers = list(self.model.named_children())
        out = Tensor(x)
        for name, layer in layers:
            with np.errstate(all="ignore"), evaluating():
                out = layer(out)
            if not array_module(out._data).isfinite(out._data).all():
                return f"layer {name}, {type(layer).__name__}" if name else type(layer).__name__
        return "the loss itself"


@dataclass
class Outcome:
    """What a block tells about its result."""

    finite: bool = False


def all_finite(loss: Array, gradients: Gradients) -> bool:
    return math.isfinite(loss) and is_finite(*(g for g in gradients if g is not None))


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
def logits(
    model: Module, images: Array, threads: int | None = None, batch_size: int | None = None
) -> Array:
    """The outputs of a network in evaluation mode, without a graph, `batch_size` images at a time.

    The network is only read: several threads may evaluate it at once. If a module is neither
    tinyprop's nor declared `per_sample = True`, a few images are first computed alone and together,
    and if they differ, nothing is cut.

    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Identity())
    >>> logits(net, tp.tensor([[1.0, 2.0]]).data)
    array([[1., 2.]], dtype=float32)
    """
    images = _array(images)
    home = next((p._data for p in model.parameters()), images)
    size = batch_size or (BATCH_ON_HOST if is_host_array(home) else BATCH_ON_DEVICE)
    starts = range(0, max(len(images), 1), size)
    with evaluating(), thread_limit(threads or cores()), blas_threads(1):
        if len(starts) > 1:
            check_per_sample(model, _there(images[:PROBED], home))
        parts = []
        for start in starts:
            stop = min(start + size, len(images))
            try:
                parts.append(model(Tensor(_there(images[start:stop], home)))._data)
            except Exception as error:
                if len(starts) > 1:
                    error.add_note(f"(in images {start} to {stop - 1} of {len(images)})")
                raise
    return array_module(*parts).concatenate(parts)


def check_per_sample(model: Module, images: Array) -> None:
    """Refuse to cut a set of images for a network whose outputs depend on what else is in the
    batch, unless all its modules are known not to."""
    strangers = []
    for module in model.modules():
        if not (is_ours(type(module)) or declared(module, "per_sample")):
            strangers.append(module)
    if not strangers:
        return
    together = to_numpy(model(Tensor(images))._data)
    alone = np.concatenate(
        [to_numpy(model(Tensor(images[i : i + 1]))._data) for i in range(len(images))]
    )
    scale = np.abs(together).max(initial=0.0)
    if together.shape != alone.shape or not np.allclose(
        together, alone, 1e-3, 1e-4 * scale, equal_nan=True
    ):
        names = ", ".join(sorted({type(m).__name__ for m in strangers}))
        raise ValueError(
            explain(
                f"an evaluation in pieces of a network with {names}",
                "its outputs for an image depend on the other images of the batch",
                "batch_size=len(images); or fix the module, and declare per_sample = True",
            )
        )


def evaluate(
    model: Module,
    images: Array,
    labels: Array,
    threads: int | None = None,
    ranks: Ranks | None = None,
    batch_size: int | None = None,
) -> tuple[float, float]:
    """The mean cross-entropy of a network on images and the fraction it gets wrong, in evaluation
    mode, `batch_size` images at a time. Each of several `ranks` computes its share of the images.

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
    mine = images[ranks.share(len(images))]
    out = ranks.gather(logits(model, mine, threads or ranks.cores, batch_size))
    truth = _there(labels, out)
    loss = F.cross_entropy(Tensor(out), truth).item()
    # NaN is not a class
    wrong = (out.argmax(axis=1) != truth) | ~array_module(out).isfinite(out).all(axis=1)
    counts = truth != IGNORED
    return loss, float(total(wrong & counts, divisor=total(counts)))
