"""A batch in two parts, as two ranks would share it, on threads of this process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.arrays import HostArray
from ..engine.batch import Shape, sharing

PATIENCE = 20.0  # seconds that one part waits for the other


class Half:
    """One of two parts of a batch."""

    def __init__(self, number: int, cuts: list[int], slots: list[Any], barrier: threading.Barrier):
        self.number = number
        self.cuts = cuts
        self.slots = slots
        self.barrier = barrier
        self.first = number == 0

    @property
    def places(self) -> slice:
        return slice(self.cuts[self.number], self.cuts[self.number + 1])

    def add_up(self, numbers: Any) -> Any:
        self.slots[self.number] = numbers
        self.barrier.wait(PATIENCE)
        total = self.slots[0] + self.slots[1]
        self.barrier.wait(PATIENCE)  # nobody writes before both have read
        return total

    def in_batch(self, shape: Shape) -> tuple[Shape, Any]:
        return (self.cuts[-1], *shape[1:]), self.places


def in_two_parts(compute: Callable[[slice], HostArray], samples: int) -> list[HostArray]:
    """What compute(places) gives for both parts of a batch, if `tp.nn.over_batch` adds up both."""
    cuts = [0, samples // 2, samples]
    barrier = threading.Barrier(2)
    slots: list[Any] = [None, None]

    def one(number: int) -> HostArray:
        half = Half(number, cuts, slots, barrier)
        try:
            with sharing(half):
                return compute(half.places)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(one, number) for number in range(2)]
    errors = [error for error in (each.exception() for each in running) if error is not None]
    if errors:
        # the other part has only lost its partner
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [each.result() for each in running]
