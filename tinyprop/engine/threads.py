"""Threads that share blocks of arrays inside kernels, and the threads of BLAS.

One thread runs Python. Where a kernel goes over blocks of an array, other threads take blocks from
the same list (`for_each`). The cut into blocks never depends on the number of threads, so a program
gives the same bits on one core and on many, whatever a user's forward or loss does.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, copy_context
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

from .context import context, current, enter

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """How many threads are worth starting: one where threads do not exist (in a browser)."""
    if sys.platform == "emscripten":
        return 1
    return os.cpu_count() or 1


# -- blocks


def thread_limit(threads: int) -> AbstractContextManager[None]:
    """Inside the block, kernels may use this number of threads. BLAS should have one of its own in
    each: `blas_threads(1)`."""
    return context(thread_limit=threads)


def for_each(work: Callable[[T], None], blocks: Sequence[T]) -> None:
    """Call work(block) for every block, on as many threads as are allowed here, with this one.

    The blocks must not depend on each other. If some calls fail, the error of the first such block
    is raised when all threads have stopped.

    >>> found = [0] * 3
    >>> with thread_limit(2):
    ...     for_each(lambda i: found.__setitem__(i, i * i), range(3))
    >>> found
    [0, 1, 4]
    """
    threads = min(current().thread_limit, len(blocks))
    if threads < 2:
        for block in blocks:
            work(block)
        return
    job = Job(work, blocks)
    offers = [Offer(job) for _ in range(threads - 1)]
    _crew.take(offers)
    try:
        copy_context().run(job.run)
    finally:
        job.left.clear()  # after Ctrl-C
        for offer in offers:
            offer.withdraw()
    if job.errors:
        _, error = min(job.errors, key=lambda failed: failed[0])
        try:
            raise error
        finally:
            del error, job, offers  # the error refers to this frame: a cycle would keep its arrays


def map_each(work: Callable[[T], R], blocks: Sequence[T]) -> list[R]:
    """The results of `for_each`, in the order of the blocks.

    >>> map_each(abs, [-1, 2])
    [1, 2]
    """
    if len(blocks) == 1:
        return [work(blocks[0])]
    results: list[Any] = [None] * len(blocks)

    def keep(number: int) -> None:
        results[number] = work(blocks[number])

    for_each(keep, range(len(blocks)))
    return results


class Job:
    """Blocks that several threads take from one list."""

    def __init__(self, work: Callable[[Any], None], blocks: Sequence[Any]):
        self.work = work
        self.left = deque(enumerate(blocks))
        self.errors: list[tuple[int, Exception]] = []  # with the number of their block

    def run(self) -> None:
        """Take blocks until none is left."""
        enter(current().changed(thread_limit=1))  # blocks are not cut again
        while self.left:
            try:
                number, block = self.left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self.work(block)
            except Exception as error:
                self.errors.append((number, error))
                self.left.clear()


class Offer:
    """A job that one thread of the crew may take part in, unless it is withdrawn before."""

    def __init__(self, job: Job):
        self.job: Job | None = job  # None when it is over: its arrays must not live in a queue
        self.context: Context = copy_context()  # no_grad(), NumPy's errstate, ...
        self.taken = threading.Lock()
        self.finished = threading.Lock()
        self.finished.acquire()

    def accept(self) -> None:
        """In a thread of the crew: take blocks, if nobody was faster."""
        if self.job is None or not self.taken.acquire(blocking=False):
            return
        try:
            self.context.run(self.job.run)
        finally:
            self.job = None
            self.finished.release()

    def withdraw(self) -> None:
        """Take the offer back or, if a thread has accepted it, wait until it is done."""
        if self.taken.acquire(blocking=False):
            self.job = None
        else:
            self.finished.acquire()


class Crew:
    """Threads that wait for offers. They start when they are first needed."""

    def __init__(self) -> None:
        self.offers: SimpleQueue[Offer] = SimpleQueue()
        self.size = 0
        self.lock = threading.Lock()

    def take(self, offers: list[Offer]) -> None:
        while self.size < len(offers):
            self.hire()
        for offer in offers:
            self.offers.put(offer)

    def hire(self) -> None:
        with self.lock:
            self.size += 1
            threading.Thread(target=self.serve, name="tinyprop", daemon=True).start()

    def serve(self) -> None:
        while True:
            self.offers.get().accept()


_crew = Crew()


# -- the threads of BLAS


class BLASLimits:
    """The limits that blocks have asked for: the lowest counts, for the whole process, until its
    block is left."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requested: list[int] = []
        self.lowest: int | None = None
        self.original: list[tuple[Any, int]] = []  # libraries, and what to restore in them

    def add(self, threads: int) -> None:
        with self.lock:
            self.requested.append(threads)
            self.apply()

    def remove(self, threads: int) -> None:
        with self.lock:
            self.requested.remove(threads)
            self.apply()

    def apply(self) -> None:
        lowest = min(self.requested, default=None)
        if lowest is None:
            self.restore()
            return
        if lowest == self.lowest:
            return
        libraries = _blas_libraries()
        if not self.original:
            self.original = [(library, library.get_num_threads()) for library in libraries]
        self.lowest = lowest
        for library in libraries:
            _set_threads(library, lowest)

    def restore(self) -> None:
        for library, threads in self.original:
            _set_threads(library, threads)
        self.lowest = None
        self.original = []

    def start_again(self) -> None:
        """In a forked process, which has none of the threads that were inside a block."""
        self.restore()
        self.lock = threading.Lock()
        self.requested.clear()


@cache
def _blas_libraries() -> list[Any]:
    """What limits the threads of each BLAS library; nothing in a browser, where there are none."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    controller = ThreadpoolController()  # finding the libraries takes milliseconds
    return list(controller.select(user_api="blas").lib_controllers)


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
    _limits.add(threads)
    try:
        yield
    finally:
        _limits.remove(threads)


def _after_fork() -> None:
    """A forked process inherits no threads."""
    global _crew
    _crew = Crew()
    _limits.start_again()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
