"""Training steps on a device as CUDA graphs: recorded once, and then each step is one launch.

To order the 120 kernels of a step takes the host milliseconds, longer than a fast device needs to
run them. A graph has them with their arguments: each replay reads and writes the same addresses,
with whatever is there by then. So a batch is first copied to a fixed place, memory comes from a
pool of its own, and numbers that change from step to step, as the learning rate does, are read from
the device."""

import gc
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from itertools import chain
from operator import is_
from struct import Struct
from threading import get_ident
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import Array, DType, HostArray, is_host_array, load_module
from ..engine.context import current
from ..engine.overrides import recorders
from ..engine.random import generator, next_key
from ..engine.tensor import Tensor
from ..nn.module import Module
from ..optim import Adam
from .cublas import workspaces
from .cuda import CHANGING, staging_in

SLOTS = 4  # batches whose labels may be on their way: how far the host may be ahead of the device
MOST_GRAPHS = 8  # of one training; batches of further shapes are computed as usual
MOST_UPDATES = 16  # groups of parameters with numbers of their own


class Mailbox:
    """What changes from step to step, besides the images: the labels, and numbers of the optimizer.
    They go to the device in one copy, from pinned memory that is not written again before the copy
    is over."""

    def __init__(self, cupy: Any, shape: tuple[int, ...], labels: DType, numbers: DType):
        self.runtime, size = cupy.cuda.runtime, math.prod(shape) * labels.itemsize
        self.format, self.each = Struct(f"{CHANGING}{numbers.char}"), CHANGING * numbers.itemsize
        self.start = -(-size // self.each) * self.each  # of the numbers
        self.bytes = self.start + MOST_UPDATES * self.each
        self.there = cupy.empty(self.bytes, "uint8")
        self.labels = self.there[:size].view(labels).reshape(shape)
        self.memory = [cupy.cuda.alloc_pinned_memory(self.bytes) for _ in range(SLOTS)]
        self.rooms = [
            np.frombuffer(m, labels, math.prod(shape)).reshape(shape) for m in self.memory
        ]
        self.posted = [cupy.cuda.Event(disable_timing=True) for _ in range(SLOTS)]
        self.turn = self.used = 0  # the present slot, and how many have their numbers in it
        self.kind, self.keys = numbers, 0  # of random masks: these come before the updates
        self.replaying = False

    def next(self) -> HostArray:
        """Take the next slot; returns where its labels go."""
        self.turn, self.used = (self.turn + 1) % SLOTS, 0
        if not self.posted[self.turn].done:
            self.posted[self.turn].synchronize()
        return self.rooms[self.turn]

    def stage(self, numbers: tuple[float, ...]) -> Array | None:
        """Add the numbers of an update to the next post; returns where on the device a recorded
        kernel finds them."""
        if self.used == MOST_UPDATES:
            raise ValueError(f"there are more than {MOST_UPDATES} groups of parameters")
        start = self.start + self.used * self.each
        self.format.pack_into(self.memory[self.turn], start, *numbers)
        self.used += 1
        return None if self.replaying else self.there[start:]

    def stage_key(self, key: int, kind: DType) -> Array | None:
        """Add the key of a random mask of this dtype, in pieces that a float can hold."""
        if kind != self.kind:
            raise ValueError(f"a mask is {kind}, but the parameters are {self.kind}")
        self.keys += 1
        return self.stage(
            (*((key >> shift) & 0xFFFF for shift in (0, 16, 32, 48)), *[0] * (CHANGING - 4))
        )

    def post(self, stream: Any) -> None:
        to, start = self.there.data.ptr, self.memory[self.turn].ptr
        self.runtime.memcpyAsync(to, start, self.bytes, self.runtime.memcpyHostToDevice, stream.ptr)
        self.posted[self.turn].record(stream)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process the driver may be gone
            for posted in self.posted:
                posted.synchronize()  # then the pool may hand out the memory again


class Replay:
    """One graph, for batches like this one, and everything that it has the addresses of."""

    def __init__(self, step: Any, x: Array, labels: Array):
        self.cupy, self.step = load_module("cupy"), step
        self.checked = step.loss is F.cross_entropy and is_host_array(labels)
        self.x = self.cupy.empty(x.shape, x.dtype)
        kind = np.dtype("int64") if self.checked else labels.dtype
        self.box = Mailbox(self.cupy, labels.shape, kind, step.optimizer.params[0].dtype)
        self.total = labels.size if self.checked else len(x)
        self.edits, self.modules = Module.edits, [vars(module) for module in step.model.modules()]
        self.attributes = self.present_attributes()
        tensors = [value for value in self.attributes if isinstance(value, Tensor)]
        self.tensors = list(
            dict.fromkeys([*step.optimizer.params, *step.model.parameters(), *tensors])
        )
        self.objects = self.present_objects()

    def present_attributes(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self.modules)))

    def present_objects(self) -> list[Any]:
        step, arrays = self.step, [t._data for t in self.tensors]
        settings = [value for name, value in vars(step.optimizer).items() if name != "lr"]
        return [
            step.model,
            step.optimizer,
            step.loss,
            *settings,
            *arrays,
            *chain(*step.optimizer.memory.values()),
        ]

    def holds(self) -> bool:
        """Whether nothing has changed since the graph was recorded, except for numbers in
        arrays."""
        if self.edits != Module.edits:
            self.edits, now = Module.edits, self.present_attributes()
            if len(now) != len(self.attributes) or not all(map(is_, now, self.attributes)):
                return False
        return all(map(is_, self.present_objects(), self.objects))

    def take(self, labels: Array) -> bool:
        """Put labels on the host into the mailbox; False if one of them is no class, or does not
        count."""
        room = self.box.next()
        if is_host_array(labels):
            room[...] = labels
        # where -1 is very large
        return not self.checked or bool(room.view("uint64").max() < self.step.classes)

    def record(self, stream: Any) -> None:
        expected, self.pool = deepcopy(generator()), self.cupy.cuda.MemoryPool()
        with recorded(self.cupy, stream, self.pool) as graphs, staging_in(self.box):
            self.loss, gradients = self.step.differentiate(self.x, self.box.labels, self.total)
            self.step.update(gradients)
        self.graph, self.workspaces, self.box.replaying = graphs[0], workspaces(), True
        due = [i for i, g in enumerate(gradients) if g is not None]
        # Adam counts the steps of each
        self.due = due if isinstance(self.step.optimizer, Adam) else due[:1]
        self.gradients = [Tensor(gradients[i]) for i in self.due]
        for _ in range(self.box.keys):
            next_key(expected)
        if generator().bit_generator.state != expected.bit_generator.state:
            raise ValueError("random numbers were drawn on the host")
        if self.box.used == self.box.keys:
            raise ValueError("no kernel updates these parameters")

    def refresh(self) -> None:
        """Draw new keys, and let the optimizer do its part on the host: its kernels only leave
        their numbers in the mailbox."""
        keys, self.box.keys = self.box.keys, 0
        for _ in range(keys):
            self.box.stage_key(next_key(), self.box.kind)
        optimizer = self.step.optimizer
        for i, gradient in zip(self.due, self.gradients, strict=True):
            optimizer.params[i].grad = gradient  # the array in which the graph leaves it
        with staging_in(self.box):
            optimizer.update(self.due)
        for i in self.due:
            optimizer.params[i].grad = None

    def launch(self, x: Array, labels: Array) -> Array:
        """A step on the current stream; returns a copy of its loss."""
        stream = self.cupy.cuda.get_current_stream()
        self.box.post(stream)
        for static, array in (
            ((self.x, x),) if is_host_array(labels) else ((self.x, x), (self.box.labels, labels))
        ):
            if is_host_array(array):
                static.set(array)
            elif array.flags.c_contiguous:
                static.data.copy_from_device_async(array.data, array.nbytes, stream)
            else:
                static[...] = array
        self.graph.launch(stream)
        loss = self.cupy.ndarray((), self.loss.dtype)
        loss.data.copy_from_device_async(self.loss.data, loss.nbytes, stream)
        return loss


@contextmanager
def recorded(cupy: Any, stream: Any, pool: Any) -> Iterator[list[Any]]:
    """Record, instead of run, what the block orders; the list has the graph afterwards. Uploads by
    this thread are refused: the graph would repeat them from memory that is long used for something
    else."""
    graphs: list[Any] = []
    usual, me = cupy.get_default_pinned_memory_pool().malloc, get_ident()

    def allocate(size: int) -> Any:
        if get_ident() == me:
            raise ValueError("something is uploaded in the middle of the step")
        return usual(size)

    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        cupy.cuda.set_pinned_memory_allocator(allocate)
        try:
            yield graphs
        except BaseException:
            with suppress(Exception):  # an operation that is not allowed has ended it already
                stream.end_capture()
            raise
        finally:
            cupy.cuda.set_pinned_memory_allocator(usual)
        graphs.append(stream.end_capture())


class Replays:
    """The graphs of a training, one for each shape of a batch and mode. The first batch of a kind
    is computed as usual, which compiles kernels; the graph is recorded for the second."""

    def __init__(self, step: Any):
        self.step, self.cuda = step, load_module("cupy").cuda
        # to record on; replays run on that of the caller
        self.stream = self.cuda.Stream(non_blocking=True)
        self.asked: Any = None  # the kind of the last batch
        # kinds of batches that were computed as usual, without an error
        self.seen: set[Any] = set()
        self.graphs: dict[Any, Replay] = {}

    def __call__(self, x: Array, labels: Array) -> Array | None:
        """The loss of a replayed step; None if nothing was done, and the batch is to be computed as
        usual."""
        key: Any = x.shape, x.dtype.char, is_host_array(labels), labels.shape, labels.dtype.char
        here = current()
        key += (
            self.cuda.runtime.getDevice(),
            here.exact_convolution,
            here.evaluating,
            here.observing,
        )
        self.asked = key
        if here.plain or here.visit is not None or not 0 <= self.step.optimizer.lr < math.inf:
            return None
        replay = self.graphs.get(key)
        if replay is not None and replay.holds():
            if not replay.take(labels):
                return None
            replay.refresh()
            return replay.launch(x, labels)
        if replay is not None:
            del self.graphs[key]
        elif key in self.seen and len(self.graphs) < MOST_GRAPHS and self.may_record():
            return self.first(key, x, labels)
        return None

    def may_record(self) -> bool:
        """Whether a step may be recorded now; model and loss may have been edited."""
        if self.step.graph is None and self.step.no_graph is None:
            self.step.no_graph = self.step.stranger()
        return self.step.no_graph is None

    def computed(self) -> None:
        """The last batch was computed as usual: one like it may be recorded."""
        self.seen.add(self.asked)

    def first(self, key: Any, x: Array, labels: Array) -> Array | None:
        """Record a graph, and replay it; if that is not possible, say why, and never try again."""
        optimizer = self.step.optimizer
        # Adam counts its steps
        host = {k: list(v) if isinstance(v, list) else v for k, v in vars(optimizer).items()}
        replay = Replay(self.step, x, labels)
        if not replay.take(labels):
            return None
        try:
            replay.record(self.stream)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            self.graphs[key] = replay
            return replay.launch(x, labels)
        vars(optimizer).update(host)
        optimizer.zero_grad()
        gc.collect()  # a graph of ops that was left half way must not guard the parameters
        if self.step.graph:
            raise RuntimeError(f"the step cannot be recorded as a CUDA graph: {reason}")
        self.step.no_graph = reason
        warnings.warn(
            f"tinyprop trains without CUDA graphs: {reason}", RuntimeWarning, stacklevel=4
        )
        return None


recorders["cupy"] = Replays
