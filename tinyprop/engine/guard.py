"""Keeps values that a graph still needs from being edited in place.

Tensors on the same memory share a list `uses`, with one entry for each op that has saved this
memory for its backward pass; lists append and pop atomically. Memory that can be reached from
outside the engine (`data` handed it out, or it came from there) is *exposed*: while it is used, its
arrays are read-only, so that an edit fails where it is made. CuPy arrays have no such flag; there
only updates that go through tinyprop are refused.

Memory that was *lent* to another library (`Tensor.__dlpack__`) can be edited there, whatever
NumPy's flag says. It is copied when an op saves it, as memory is that another library owns."""

from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from .arrays import Array
from .errors import EditError, explain

if TYPE_CHECKING:
    from .tensor import Tensor

Uses = list[None]


@dataclass
class FrozenMemory:
    """Memory that is read-only while a graph uses it."""

    # the owner before its views: a view is writeable only if its owner is
    arrays: list[Array] = field(default_factory=list)
    # one list for each group of tensors that share it; tensors that the user made separately on one
    # array do not
    users: list[Uses] = field(default_factory=list)


_lock = RLock()  # reentrant: the garbage collector may free a graph while this thread holds it
_frozen: dict[int, FrozenMemory] = {}  # by the id of the array that owns the memory
_lent: WeakValueDictionary[int, Array] = WeakValueDictionary()  # the owners, by their ids


def owner_of(array: Array) -> Array:
    """The array that owns this memory; None if another library does."""
    owner = array if array.base is None else array.base
    return owner if isinstance(owner, np.ndarray) and owner.flags.owndata else None


def freeze(array: Array, owner: Array, uses: Uses) -> None:
    """Make exposed memory read-only while it is used: the array, and the one that owns it."""
    with _lock:
        memory = _frozen.get(id(owner)) or FrozenMemory()
        for each in (owner, array):
            if each.flags.writeable:  # or it is frozen already, or the user's wish
                each.setflags(write=False)
                memory.arrays.append(each)
        _frozen[id(owner)] = memory
        if not any(uses is known for known in memory.users):
            memory.users.append(uses)


def expose(array: Array, uses: Uses) -> None:
    """Make memory read-only that is handed out while a graph uses it."""
    owner = owner_of(array)
    if owner is None:
        return
    # so that no other thread releases the last use before the array is frozen
    uses.append(None)
    freeze(array, owner, uses)
    uses.pop()
    if not uses:
        release(array)


def release(array: Array) -> None:
    """Make this memory writeable again if nothing uses it any more."""
    owner = owner_of(array)
    if id(owner) not in _frozen:
        return
    with _lock:
        memory = _frozen.get(id(owner))
        if memory is None:  # another thread was faster
            return
        memory.users = [uses for uses in memory.users if uses]
        if memory.users:
            return
        del _frozen[id(owner)]
        for each in memory.arrays:
            with suppress(ValueError):  # its owner was made read-only by the user
                each.setflags(write=True)


def lend(array: Array, uses: Uses) -> None:
    """Let another library edit this memory from now on; refused while a graph needs its values."""
    owner = owner_of(array) if isinstance(array, np.ndarray) else None
    if owner is not None:
        _lent[id(owner)] = owner  # first, so that another thread that saves it now makes a copy
    is_saved = len(uses) > 0 or (owner is not None and id(owner) in _frozen)
    if is_saved:
        raise BufferError(
            explain(
                f"a tensor of shape {array.shape}, lent to another library",
                "a graph still needs its values, and edits elsewhere could not be noticed",
                "after backward(), or when the graph is gone; or lend a copy, tp.tensor(t)",
            )
        )


def is_lent(array: Any) -> bool:
    """Whether another library may edit this memory."""
    if not _lent or not isinstance(array, np.ndarray):
        return False
    return id(owner_of(array)) in _lent


class Saved:
    """An array (or a number) that an op has saved; its memory is in use as long as this object
    lives."""

    __slots__ = ("array", "uses")

    def __init__(self, array: Any, source: Any) -> None:
        """Save an operand of forward: the array of the input `source`, or a private copy of it,
        which has no uses to count."""
        self.array = array
        self.uses: Uses | None = None
        if hasattr(source, "uses"):  # a tensor
            if source._data is not array:
                return
            uses = source.uses
            exposed = source.exposed
        elif source is array and hasattr(array, "dtype"):  # an array of the user's
            uses = []
            exposed = True
        else:
            return
        if is_lent(array):
            self.array = array.copy()
            return

        must_freeze = exposed and isinstance(array, np.ndarray)
        if not must_freeze:
            uses.append(None)
            self.uses = uses
            return
        owner = owner_of(array)
        if owner is None:  # memory of another library, which could not be made writeable again
            self.array = array.copy()
            return
        uses.append(None)
        self.uses = uses
        freeze(array, owner, uses)

    def __del__(self) -> None:
        uses = self.uses
        if uses is not None:
            uses.pop()
            if _frozen and not uses:
                release(self.array)


def check_editable(tensor: "Tensor", name: Any = None) -> None:
    """Refuse an update in place of a tensor that a graph still needs."""
    if tensor.uses:
        raise EditError(
            f"an update in place of {name or tensor.name or 'a parameter'} of shape {tensor.shape}",
            "a graph that has not been freed still needs the old values for its backward pass",
            (
                "update after backward(); free unused graphs (del loss), or evaluate under "
                "tp.no_grad()"
            ),
        )
