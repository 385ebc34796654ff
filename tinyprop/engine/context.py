"""What holds inside a `with` block: whether a graph is recorded, whether overrides are used, ...

All of it is one frozen record in one context variable, so that threads and coroutines see only
their own blocks, and a worker thread that copies the context of its caller sees all of it at once.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

_PLAIN = os.environ.get("TINYPROP_PLAIN", "0") not in ("", "0")


@dataclass(frozen=True)
class Context:
    """The settings of the present block; `context` changes them for another one."""

    recording: bool = True  # whether ops record a graph: `tp.no_grad`
    plain: bool = _PLAIN  # whether overrides are left alone: `tp.plain`
    exact_convolution: bool = False  # whether convolutions must round as little as the plain rule
    differentiating: bool = False  # inside a function whose derivatives `tp.jacobian` takes
    evaluating: bool = False  # whether every module is in evaluation mode: `tp.nn.evaluating`
    observing: bool = False  # whether running estimates stay as they are
    visit: Callable[..., Any] | None = None  # told of every call of a module
    running: tuple[Any, ...] = ()  # the modules whose forward is being computed, outermost first
    inputs: tuple[Any, ...] = ()  # what these were called with
    part: Any = None  # the part of a batch that this process computes
    thread_limit: int = 1  # how many threads a kernel may use
    importing: bool = False  # whether a file of a user's is being imported, as `file.py:name`

    def changed(self, **changes: Any) -> "Context":
        """A copy with these changes. (dataclasses.replace takes several times as long.)"""
        other = object.__new__(Context)
        object.__setattr__(other, "__dict__", self.__dict__ | changes)
        return other


NAMES = frozenset(field.name for field in fields(Context))

_DEFAULT = Context()
_current: ContextVar[Context] = ContextVar("tinyprop", default=_DEFAULT)

current = _current.get
enter = _current.set
leave = _current.reset


@contextmanager
def context(**changes: Any) -> Iterator[None]:
    """Inside the block these settings hold: `with context(plain=True):`.

    >>> with context(recording=False):
    ...     current().recording, current().evaluating
    (False, False)
    """
    if not changes.keys() <= NAMES:
        raise TypeError(f"a Context has no {', '.join(sorted(changes.keys() - NAMES))}")
    before = enter(current().changed(**changes))
    try:
        yield
    finally:
        leave(before)
