"""Work on all cores: threads that share the parts of a batch, sums over these parts, and the
threads of BLAS."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import cache, reduce
from operator import add
from typing import Any, TypeVar

from .arrays import Array
from .context import context, current, enter
from .graph import Op
from .tensor import Tensor

# samples that go through the network together: enough for large products, few enough for memory
MAX_PART = 64

T = TypeVar("T")
Shape = tuple[int, ...]


def cores() -> int:
    """How many threads are worth starting: one where threads do not exist (in a browser)."""
    return 1 if sys.platform == "emscripten" else os.cpu_count() or 1


# -- the threads of BLAS


class BLASLimits:
    """The limits that blocks have asked for: the lowest counts, for the whole process, until its
    block is left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[int] = []
        self.lowest: int | None = None
        self.original: list[tuple[Any, int]] = []  # libraries, and what to restore in them

    def change(self, edit: Callable[[int], None], threads: int) -> None:
        with self.lock:
            edit(threads)
            lowest = min(self.asked, default=None)
            if lowest is None:
                self.restore()
            elif lowest != self.lowest:
                self.original = self.original or [
                    (library, library.get_num_threads()) for library in _blas()
                ]
                self.lowest = lowest
                for library in _blas():
                    _set_threads(library, lowest)

    def restore(self) -> None:
        for library, threads in self.original:
            _set_threads(library, threads)
        self.lowest, self.original = None, []

    def start_again(self) -> None:
        """In a forked process, which has none of the threads that were inside a block."""
        self.restore()
        self.lock = threading.Lock()
        self.asked.clear()


@cache
def _blas() -> list[Any]:
    """What limits the threads of each BLAS library; nothing in a browser, where there are none."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    # finding them takes milliseconds
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _set_threads(library: Any, threads: int) -> None:
    """From any thread: threadpoolctl 3.8 listens to one thread only, lest several fight; but our
    limits are counted."""
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


_limits = BLASLimits()


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Limit the threads of BLAS, for the whole process; where blocks overlap, the lowest limit
    counts.

    >>> with blas_threads(1):
    ...     y = tp.ones(2, 2) @ tp.ones(2, 2)
    """
    _limits.change(_limits.asked.append, threads)
    try:
        yield
    finally:
        _limits.change(_limits.asked.remove, threads)


# -- sums over a batch in parts


class Team:
    """The threads that compute the parts of one batch at the same time. Each puts its numbers on a
    desk; when all have, everyone adds up all of them in the same order, and so gets the same bits.
    There are two desks in turn: nobody comes back to the first one before all have left it for the
    second."""

    def __init__(self, size: int):
        self.desks: list[list[Any]] = [[None] * size, [None] * size]
        self.barrier = threading.Barrier(size)


class Part:
    """One thread's place in a team. If the team shares the batch with other processes, its first
    thread speaks with them, as the part `beyond`."""

    def __init__(self, team: Team, place: int, beyond: "Part | None" = None):
        self.team, self.place, self.turn, self.beyond = team, place, 0, beyond
        # of all parts, everywhere
        self.first: bool = place == 0 and (beyond is None or beyond.first)

    def exchange(self, numbers: Any) -> list[Any]:
        desk = self.team.desks[self.turn]
        self.turn = 1 - self.turn
        desk[self.place] = numbers
        self.team.barrier.wait()
        return list(desk)

    def add_up(self, numbers: Any) -> Any:
        every = self.exchange(numbers)
        if any(n is None for n in every):
            raise RuntimeError(
                "one part of the batch asked for fewer sums over the batch than the others"
            )
        total = reduce(add, every)
        if self.beyond is None:
            return total
        return self.exchange(self.beyond.add_up(total) if self.place == 0 else None)[0]

    def in_batch(self, shape: Shape) -> tuple[Shape, Any]:
        return shape, ...


def sharing(part: Part | None) -> AbstractContextManager[None]:
    """Inside the block, this is a part of a batch."""
    return context(part=part)


def add_up(numbers: Any) -> Any:
    """The sum of a number or an array over all parts of the batch. Where nobody shares a batch, it
    is one part."""
    part = current().part
    return numbers if part is None else part.add_up(numbers)


class OverBatch(Op):
    """The differentiable sum: each part's numbers go to all parts, so the gradients of all parts
    come back to each."""

    def forward(self, numbers: Array) -> Array:
        return add_up(numbers)

    def backward(self, g: Tensor) -> Tensor:
        return over_batch(g)


def over_batch(numbers: Tensor) -> Tensor:
    """As `add_up`, with gradients."""
    return OverBatch()(numbers) if shares_batch() else numbers


def shares_batch() -> bool:
    """Whether sums over the batch need those of others."""
    return current().part is not None


def in_batch(shape: Shape) -> tuple[Shape, Any]:
    """The shape of the batch that all processes share, and the index of this one's samples in
    it."""
    part = current().part
    return (shape, ...) if part is None else part.in_batch(shape)


def is_first_part() -> bool:
    """Whether this thread has the first sample of the batch."""
    part = current().part
    return part is None or part.first


def is_first_thread() -> bool:
    """Whether this thread, of all that share the batch in this process, may do what is done once
    for all of them."""
    part = current().part
    return part is None or part.place == 0


# -- workers


class Workers:
    """Threads that share the parts of a batch, each with a BLAS of one thread."""

    @staticmethod
    @cache
    def of(threads: int) -> "Workers":
        """One shared pool per thread count, because starting threads takes milliseconds."""
        return Workers(threads)

    def __init__(self, threads: int):
        from concurrent.futures import ThreadPoolExecutor

        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "tinyprop")
        # a team enters the queue as a whole: half of two teams would wait forever
        self.lock = threading.Lock()

    def map(
        self,
        work: Callable[[slice], T],
        samples: int,
        merge: Callable[[T, T], T],
        together: bool = False,
    ) -> T:
        """The results of work on all parts, merged in the order of the samples; `together`, the
        work adds up numbers over all parts, so there is one for each thread."""
        # a worker that waited for its own pool might wait forever
        threads = 1 if current().in_worker else self.threads
        samples = max(samples, 1)  # no samples are one empty part
        # equal parts, the same number for each thread
        rounds = 1 if together else -(-samples // (MAX_PART * threads))
        size = -(-samples // (rounds * threads))
        parts = [slice(start, start + size) for start in range(0, samples, size)]
        count = min(threads, len(parts))
        shares = [
            parts[len(parts) * i // count : len(parts) * (i + 1) // count] for i in range(count)
        ]
        team = Team(count) if together and count > 1 else None
        beyond = current().part if together else None

        def merged(place: int) -> T:
            if team is None:
                enter(current().changed(in_worker=True, part=beyond))
                return reduce(merge, map(work, shares[place]))
            part = Part(team, place, beyond)
            enter(current().changed(in_worker=True, part=part))
            try:
                result = work(*shares[place])
                part.exchange(None)  # whoever still asks for a sum learns that it will not come
            except BaseException:
                team.barrier.abort()
                raise
            return result

        # no_grad() and exact_convolution() hold in the threads, too
        contexts = [copy_context() for _ in shares]
        with blas_threads(1):
            if count == 1:
                return contexts[0].run(merged, 0)
            with self.lock:
                runs = [self.pool.submit(c.run, merged, place) for place, c in enumerate(contexts)]
            # waits for all of them, even if one fails
            errors = list(filter(None, [run.exception() for run in runs]))
            if errors:
                try:  # a thread's own error, not that others then waited for it in vain
                    raise min(
                        errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)
                    )
                finally:
                    # the error refers to this frame: this cycle would keep its graph alive
                    del errors, runs
            return reduce(merge, [run.result() for run in runs])


def allow(threads: int) -> AbstractContextManager[None]:
    """Let `spread` use this number of threads inside the block, and BLAS no more than one of its
    own in each."""
    return context(thread_limit=threads)


def allowed() -> int:
    """How many threads `spread` takes here: one in a worker, which shares its work already."""
    return 1 if current().in_worker else current().thread_limit


def spread(work: Callable[[slice], None], pieces: int) -> None:
    """Do the work on all pieces, on as many threads as are allowed here, this one among them."""
    threads = min(allowed(), pieces)
    if threads < 2:
        return work(slice(None))
    shares = [slice(pieces * i // threads, pieces * (i + 1) // threads) for i in range(threads)]

    def alone(share: slice) -> None:
        enter(current().changed(in_worker=True))
        work(share)

    others = [
        Workers.of(threads).pool.submit(copy_context().run, alone, share) for share in shares[1:]
    ]
    try:
        copy_context().run(alone, shares[0])
    finally:
        for run in others:
            run.exception()  # waits
    for run in others:
        run.result()  # raises what it has raised
    return None


def _after_fork() -> None:
    """A forked process inherits no threads."""
    Workers.of.cache_clear()
    _limits.start_again()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
