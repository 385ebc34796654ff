"""The processor time of each op of a training step, forward and backward."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from tinyprop.engine.graph import Op

REST = "everything else: graph, update, constraint"  # time outside of ops
Label = Callable[[Op, str], str]  # an op, and its name or that of its gradient


class Clock:
    """Adds up the time of pieces of work, which may be nested: the time of a piece excludes the
    inner ones."""

    def __init__(self, now: Callable[[], float] = time.thread_time):
        self.now = now
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.names = [REST]  # the piece of work that is under way, after those around it
        self.since = now()

    def add(self) -> None:
        """Count the time since the last call for the piece of work that is under way."""
        now = self.now()
        self.seconds[self.names[-1]] += now - self.since
        self.since = now

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        self.add()
        self.names.append(name)
        try:
            yield
        finally:
            self.add()
            self.names.pop()


def by_name(op: Op, name: str) -> str:
    return name


@contextmanager
def watched(clock: Clock, label: Label = by_name) -> Iterator[None]:
    """Inside the block every op, and the gradient of every op, runs under the clock, by its
    label."""
    call = Op.__call__
    gradients = Op.gradients
    backward = 0  # inside how many gradients we are: an op that computes a gradient is a part of it

    def timed_call(op: Op, *inputs: Any) -> Any:
        if backward:
            return call(op, *inputs)
        with clock.around(label(op, type(op).__name__)):
            return call(op, *inputs)

    def timed_gradients(op: Op, g: Any) -> list[Any]:
        name = label(op, f"{type(op).__name__} gradient")

        def timed(function: Callable[[], Any]) -> Any:
            nonlocal backward
            backward += 1
            try:
                with clock.around(name):
                    return function()
            finally:
                backward -= 1

        parts = timed(partial(gradients, op, g))
        return [partial(timed, part) if callable(part) else part for part in parts]

    with patch.object(Op, "__call__", timed_call), patch.object(Op, "gradients", timed_gradients):
        yield
    clock.add()
