"""Keeps values that a graph still needs from being edited in place.

Tensors on the same memory share a list `uses`, with one entry for each op that has saved this
memory for its backward pass; lists append and pop atomically. Memory that can be reached from
outside the engine (`data` handed it out, or it came from there) is *exposed*: while it is used, its
arrays are read-only, so that an edit fails where it is made. CuPy arrays have no such flag; there
only updates that go through tinyprop are refused."""

from collections import Counter
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .errors import EditError

if TYPE_CHECKING:
    from .tensor import Tensor

Uses = list[None]

_lock = RLock()  # reentrant: the garbage collector may free a graph while this thread holds it
# id of a list `uses` -> the arrays that were made read-only for it
_frozen: dict[int, list[Array]] = {}
_count: Counter[int] = Counter()  # id of an array -> for how many such lists it is read-only


def owner_of(array: Array) -> Array:
    """The array that owns this memory; None if another library does."""
    owner = array if array.base is None else array.base
    return owner if isinstance(owner, np.ndarray) and owner.flags.owndata else None


def freeze(array: Array, uses: Uses) -> Array:
    """Make exposed memory read-only while it is used; returns the array to save, a copy if the
    memory is not ours."""
    if not isinstance(array, np.ndarray):
        return array
    owner = owner_of(array)
    if owner is None:
        return array.copy()  # memory of another library, which could not be made writeable again
    with _lock:
        arrays = _frozen.setdefault(id(uses), [])
        for a in (owner, array):
            if (a.flags.writeable or id(a) in _count) and not any(a is known for known in arrays):
                arrays.append(a)
                _count[id(a)] += 1
                a.setflags(write=False)
    return array


def expose(array: Array, uses: Uses) -> None:
    """Make memory read-only that is handed out while a graph uses it."""
    # so that no other thread releases the last use before the array is on its list
    uses.append(None)
    freeze(array, uses)
    uses.pop()
    release(uses)


def release(uses: Uses) -> None:
    """Make memory that is no longer used writeable again."""
    with _lock:
        for a in _frozen.pop(id(uses), ()) if not uses else ():
            _count[id(a)] -= 1
            if not _count[id(a)]:
                del _count[id(a)]
                _thaw(a)


def _thaw(a: Array) -> None:
    """Make an array writeable again; a view whose owner is still in use becomes writeable together
    with its owner."""
    if id(a.base) in _count:
        next(arrays for arrays in _frozen.values() if any(b is a.base for b in arrays)).append(a)
        _count[id(a)] += 1
        return
    with suppress(ValueError):  # its owner was made read-only by the user
        a.setflags(write=True)


class Saved:
    """Arrays (and numbers) that an op has saved; their memory is in use as long as this object
    lives."""

    __slots__ = ("arrays", "uses")

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.uses: list[Uses | None] = []

    def add(self, array: Any, owner: Any) -> None:
        """Save an array: that of the tensor `owner`, or an array of the user's, or a private copy
        of either."""
        uses: Uses | None = None
        try:
            if owner._data is array:
                uses = owner.uses
                uses.append(None)
                if owner.exposed:
                    array = freeze(array, uses)
        except AttributeError:  # not a tensor
            if owner is array and hasattr(array, "dtype"):
                uses = [None]
                array = freeze(array, uses)
        self.arrays.append(array)
        self.uses.append(uses)

    def __del__(self) -> None:
        for uses in self.uses:
            if uses is not None:
                uses.pop()
                if _frozen and not uses:
                    release(uses)


NOTHING = Saved()


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
