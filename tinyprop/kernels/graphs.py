"""Training steps on a device as CUDA graphs: recorded once, and then each step is one launch.

Launching the 120 kernels of a step one by one takes the host milliseconds, longer than a fast
device needs to run them. A graph holds them with their arguments: each replay reads and writes the
same addresses, with whatever is there by then. So a batch is first copied to a fixed place, memory
comes from a pool of its own, and numbers that change from step to step, such as the learning rate,
are read from the device."""

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
from ..nn.module import edit_count
from ..optim import Adam
from .cublas import workspaces
from .cuda import CHANGING, staging_in

SLOTS = 4  # batches whose labels may be on their way: how far the host may be ahead of the device
MOST_GRAPHS = 8  # of one training; batches of further shapes are computed as usual
MOST_UPDATES = 16  # groups of parameters with numbers of their own, and random masks


class Mailbox:
    """What changes from step to step, besides the images: the labels, numbers of the optimizer and
    keys of random masks. They are staged in a slot of pinned memory and uploaded in one copy; a
    slot is not written again before its copy is over."""

    def __init__(self, cupy: Any, shape: tuple[int, ...], labels: DType, numbers: DType):
        self.runtime = cupy.cuda.runtime
        self.dtype = numbers
        self.format = Struct(f"{CHANGING}{numbers.char}")
        # labels first, then the numbers, aligned to the size of an entry
        label_bytes = math.prod(shape) * labels.itemsize
        entry_bytes = self.format.size
        self.start = -(-label_bytes // entry_bytes) * entry_bytes
        self.bytes = self.start + MOST_UPDATES * entry_bytes
        self.on_device = cupy.empty(self.bytes, "uint8")
        self.labels = self.on_device[:label_bytes].view(labels).reshape(shape)
        self.pinned = [cupy.cuda.alloc_pinned_memory(self.bytes) for _ in range(SLOTS)]
        self.host_labels = []
        for memory in self.pinned:
            flat = np.frombuffer(memory, labels, math.prod(shape))
            self.host_labels.append(flat.reshape(shape))
        self.uploaded = [cupy.cuda.Event(disable_timing=True) for _ in range(SLOTS)]
        self.slot = 0
        self.staged = 0  # entries of this slot
        self.keys = 0  # how many of them are keys of random masks; these come before the updates
        self.replaying = False

    def next_slot(self) -> HostArray:
        """Begin the next slot; returns where its labels go."""
        self.slot = (self.slot + 1) % SLOTS
        self.staged = 0
        uploaded = self.uploaded[self.slot]
        if not uploaded.done:
            uploaded.synchronize()
        return self.host_labels[self.slot]

    def stage(self, numbers: tuple[float, ...]) -> Array | None:
        """Add the numbers of an update to the next upload; returns where on the device a recorded
        kernel finds them."""
        if self.staged == MOST_UPDATES:
            raise ValueError(f"there are more than {MOST_UPDATES} groups of parameters")
        start = self.start + self.staged * self.format.size
        self.format.pack_into(self.pinned[self.slot], start, *numbers)
        self.staged += 1
        return None if self.replaying else self.on_device[start:]

    def stage_key(self, key: int, dtype: DType) -> Array | None:
        """Add the key of a random mask of this dtype, in pieces that a float can hold."""
        if dtype != self.dtype:
            raise ValueError(f"a mask is {dtype}, but the parameters are {self.dtype}")
        self.keys += 1
        pieces = [(key >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
        unused = [0] * (CHANGING - len(pieces))
        return self.stage((*pieces, *unused))

    def upload(self, stream: Any) -> None:
        target = self.on_device.data.ptr
        source = self.pinned[self.slot].ptr
        to_device = self.runtime.memcpyHostToDevice
        self.runtime.memcpyAsync(target, source, self.bytes, to_device, stream.ptr)
        self.uploaded[self.slot].record(stream)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process the driver may be gone
            for uploaded in self.uploaded:
                uploaded.synchronize()  # then the pool may hand out the memory again


class Snapshot:
    """The objects that a graph has the addresses of, or that Python has looked at while it was
    recorded."""

    def __init__(self, step: Any):
        self.step = step
        self.edits = edit_count()
        self.modules = [vars(module) for module in step.model.modules()]
        self.attributes = self.present_attributes()
        attribute_tensors = [value for value in self.attributes if isinstance(value, Tensor)]
        tensors = [*step.optimizer.params, *step.model.parameters(), *attribute_tensors]
        self.tensors = list(dict.fromkeys(tensors))
        self.objects = self.present_objects()

    def present_attributes(self) -> list[Any]:
        """Of all modules."""
        return list(chain.from_iterable(map(dict.values, self.modules)))

    def present_objects(self) -> list[Any]:
        """The parts of the step, the settings of its optimizer, and all arrays."""
        step = self.step
        settings = [value for name, value in vars(step.optimizer).items() if name != "lr"]
        arrays = [tensor._data for tensor in self.tensors]
        memory = chain.from_iterable(step.optimizer.memory.values())
        return [step.model, step.optimizer, step.loss, *settings, *arrays, *memory]

    def holds(self) -> bool:
        """Whether nothing has changed since, except for numbers in arrays."""
        if self.edits != edit_count():
            self.edits = edit_count()
            if not _same_objects(self.present_attributes(), self.attributes):
                return False
        return _same_objects(self.present_objects(), self.objects)


def _same_objects(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class Replay:
    """One graph, for batches like this one, and everything that it has the addresses of."""

    def __init__(self, step: Any, x: Array, labels: Array):
        self.cupy = load_module("cupy")
        self.step = step
        # labels on a device are not checked, nor are those of another loss
        self.checked = step.loss is F.cross_entropy and is_host_array(labels)
        label_dtype = np.dtype("int64") if self.checked else labels.dtype
        self.x = self.cupy.empty(x.shape, x.dtype)
        number_dtype = step.optimizer.params[0].dtype
        self.mailbox = Mailbox(self.cupy, labels.shape, label_dtype, number_dtype)
        self.snapshot = Snapshot(step)

    def take(self, labels: Array) -> bool:
        """Put labels on the host into the mailbox; False if one of them is no class, or does not
        count."""
        slot = self.mailbox.next_slot()
        if is_host_array(labels):
            slot[...] = labels
        if not self.checked:
            return True
        largest = slot.view("uint64").max()  # where -1 is very large
        return bool(largest < self.step.classes)

    def record(self, stream: Any) -> None:
        """Record the step for the labels that were taken."""
        expected = deepcopy(generator())
        self.pool = self.cupy.cuda.MemoryPool()
        counted = (
            self.mailbox.labels.size if self.checked else None
        )  # `take` lets all of them count
        with recorded(self.cupy, stream, self.pool) as graphs, staging_in(self.mailbox):
            self.loss, gradients = self.step.differentiate(self.x, self.mailbox.labels, counted)
            self.step.update(gradients)
        self.outputs = self.step.last_outputs
        self.graph = graphs[0]
        self.workspaces = workspaces()
        self.mailbox.replaying = True
        self.note_updated(gradients)
        for _ in range(self.mailbox.keys):
            next_key(expected)
        if generator().bit_generator.state != expected.bit_generator.state:
            raise ValueError("random numbers were drawn on the host")
        if self.mailbox.staged == self.mailbox.keys:
            raise ValueError("no kernel updates these parameters")

    def note_updated(self, gradients: list[Array | None]) -> None:
        """Remember which parameters the optimizer has updated, and where their gradients are. Adam
        counts the steps of each; to others one stands for all."""
        due = [i for i, g in enumerate(gradients) if g is not None]
        self.due = due if isinstance(self.step.optimizer, Adam) else due[:1]
        self.due_gradients = [Tensor(gradients[i]) for i in self.due]

    def refresh(self) -> None:
        """Draw new keys, and let the optimizer do its part on the host: its kernels only stage
        their numbers in the mailbox."""
        keys = self.mailbox.keys
        self.mailbox.keys = 0
        for _ in range(keys):
            self.mailbox.stage_key(next_key(), self.mailbox.dtype)
        optimizer = self.step.optimizer
        for i, gradient in zip(self.due, self.due_gradients, strict=True):
            optimizer.params[i].grad = gradient
        with staging_in(self.mailbox):
            optimizer.update(self.due)
        for i in self.due:
            optimizer.params[i].grad = None

    def launch(self, x: Array, labels: Array) -> Array:
        """A step on the current stream; returns a copy of its loss."""
        stream = self.cupy.cuda.get_current_stream()
        self.mailbox.upload(stream)
        self.copy_to(self.x, x, stream)
        if not is_host_array(labels):
            self.copy_to(self.mailbox.labels, labels, stream)
        self.graph.launch(stream)
        self.step.last_outputs = self.outputs
        loss = self.cupy.ndarray((), self.loss.dtype)
        loss.data.copy_from_device_async(self.loss.data, loss.nbytes, stream)
        return loss

    def copy_to(self, place: Array, array: Array, stream: Any) -> None:
        if is_host_array(array):
            place.set(array)
        elif array.flags.c_contiguous:
            place.data.copy_from_device_async(array.data, array.nbytes, stream)
        else:
            place[...] = array


@contextmanager
def recorded(cupy: Any, stream: Any, pool: Any) -> Iterator[list[Any]]:
    """Record what the block launches instead of running it; the list has the graph afterwards.
    Uploads by this thread are refused: the graph would repeat them from memory that is long used
    for something else."""
    graphs: list[Any] = []
    usual = cupy.get_default_pinned_memory_pool().malloc
    me = get_ident()

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
        self.step = step
        self.cuda = load_module("cupy").cuda
        # to record on; replays run on that of the caller
        self.stream = self.cuda.Stream(non_blocking=True)
        self.last_kind: Any = None  # of the last batch
        # kinds of batches that were computed as usual, without an error
        self.seen: set[Any] = set()
        self.graphs: dict[Any, Replay] = {}

    def __call__(self, x: Array, labels: Array) -> Array | None:
        """The loss of a replayed step; None if nothing was done, and the batch is to be computed as
        usual."""
        kind = self.kind_of(x, labels)
        self.last_kind = kind
        if not self.may_replay():
            return None
        replay = self.graphs.get(kind)
        if replay is None:
            return self.first(kind, x, labels) if self.may_record(kind) else None
        if not replay.snapshot.holds():
            del self.graphs[kind]
            return None
        if not replay.take(labels):
            return None
        replay.refresh()
        return replay.launch(x, labels)

    def kind_of(self, x: Array, labels: Array) -> Any:
        """What batches have in common that may share a graph."""
        here = current()
        device = self.cuda.runtime.getDevice()
        modes = (here.exact_convolution, here.evaluating, here.observing)
        of_labels = (is_host_array(labels), labels.shape, labels.dtype.char)
        return (x.shape, x.dtype.char, *of_labels, device, *modes)

    def may_replay(self) -> bool:
        """A wrong learning rate is refused by the usual step."""
        here = current()
        if here.plain or here.visit is not None:
            return False
        return 0 <= self.step.optimizer.lr < math.inf

    def may_record(self, kind: Any) -> bool:
        """Whether a step may be recorded now; model and loss may have been edited."""
        if kind not in self.seen or len(self.graphs) >= MOST_GRAPHS:
            return False
        if self.step.graph is None and self.step.no_graph is None:
            self.step.no_graph = self.step.stranger()
        return self.step.no_graph is None

    def computed(self) -> None:
        """The last batch was computed as usual: one like it may be recorded."""
        self.seen.add(self.last_kind)

    def first(self, kind: Any, x: Array, labels: Array) -> Array | None:
        """Record a graph, and replay it; if that is not possible, say why, and never try again."""
        before = _copied_settings(self.step.optimizer)
        replay = Replay(self.step, x, labels)
        if not replay.take(labels):
            return None
        try:
            replay.record(self.stream)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            self.graphs[kind] = replay
            return replay.launch(x, labels)
        vars(self.step.optimizer).update(before)
        self.step.optimizer.zero_grad()
        gc.collect()  # a graph of ops that was left half way must not guard the parameters
        if self.step.graph:
            raise RuntimeError(f"the step cannot be recorded as a CUDA graph: {reason}")
        self.step.no_graph = reason
        message = f"tinyprop trains without CUDA graphs: {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
        return None


def _copied_settings(optimizer: Any) -> dict[str, Any]:
    """The attributes of an optimizer. Lists are copied, since Adam counts its steps in one."""
    copied = {}
    for name, value in vars(optimizer).items():
        copied[name] = list(value) if isinstance(value, list) else value
    return copied


recorders["cupy"] = Replays
