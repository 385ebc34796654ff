"""How long each op of a training step takes, forward and backward, on a processor or on a
device."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from tinyprop.engine.graph import Op

from .work import REST, gradient


@dataclass(frozen=True)
class Share:
    """The part of one op or kernel in the time of a step."""

    calls: int
    seconds: float


class Clock:
    """Marks at the beginning and end of pieces of work, which may be nested; the time of a piece
    excludes inner ones.

    `record()` gives the present moment, `elapsed(a, b)` the seconds between two of them.
    """

    def __init__(self, record: Callable[[], Any], elapsed: Callable[[Any, Any], float]):
        self.record, self.elapsed = record, elapsed
        self.names, self.calls = [REST], Counter[str]()
        self.marks: list[tuple[Any, str]] = []  # a moment, and what begins, or continues, after it

    def mark(self) -> None:
        self.marks.append((self.record(), self.names[-1]))

    @contextmanager
    def around(self, name: str, calls: int = 1) -> Iterator[None]:
        self.calls[name] += calls
        self.names.append(name)
        self.mark()
        yield
        self.names.pop()
        self.mark()

    def shares(self) -> dict[str, Share]:
        seconds: defaultdict[str, float] = defaultdict(float)
        for (start, name), (end, _) in pairwise(self.marks):
            seconds[name] += self.elapsed(start, end)
        return {
            name: Share(self.calls[name], s)
            for name, s in sorted(seconds.items(), key=lambda item: -item[1])
        }


@contextmanager
def watched(
    clock: Clock, label: Callable[[Op, str], str] = lambda op, name: name
) -> Iterator[None]:
    """Inside the block every op, and the gradient of every op, runs under the clock, by its name or
    label."""
    call, gradients = Op.__call__, Op.gradients
    backward = 0  # inside how many gradients we are: an op that computes a gradient is a part of it

    def timed_call(op: Op, *inputs: Any) -> Any:
        if backward:
            return call(op, *inputs)
        with clock.around(label(op, type(op).__name__)):
            return call(op, *inputs)

    def timed_gradients(op: Op, g: Any) -> list[Any]:
        name = label(op, gradient(type(op).__name__))

        def timed(function: Callable[[], Any], calls: int = 0) -> Any:
            nonlocal backward
            backward += 1
            try:
                with clock.around(name, calls):
                    return function()
            finally:
                backward -= 1

        parts = timed(lambda: gradients(op, g), calls=1)
        return [partial(timed, part) if callable(part) else part for part in parts]

    with patch.object(Op, "__call__", timed_call), patch.object(Op, "gradients", timed_gradients):
        yield
