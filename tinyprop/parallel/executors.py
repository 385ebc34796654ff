"""Executors for independent pieces of work: processes here, a dask cluster, or the ranks of an MPI
job.

The result of a piece does not depend on where it was computed."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from ..engine.errors import StateError
from ..engine.threads import cores
from .ranks import watched

Piece = TypeVar("Piece", bound=Hashable)
POLL = 0.2  # seconds between two looks at running pieces


def place(text: str) -> str:
    """The value of --cluster, checked."""
    if text not in ("processes", "mpi") and not text.startswith("dask://"):
        raise argparse.ArgumentTypeError(f"{text!r} is not processes, mpi or dask://host:port")
    return text


@contextmanager
def executor(
    where: str, jobs: int | None = None, start: Callable[[], None] | None = None
) -> Iterator[tuple[Executor | None, int]]:
    """An Executor for the pieces, and how many it computes at once. The other ranks of an MPI job
    compute pieces for the first one, and get None when all are done. `start` is called first in
    each process that is made for the pieces.

    >>> with executor("processes", jobs=1) as (pool, jobs):
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    opened: AbstractContextManager[tuple[Executor | None, int]]
    if where == "mpi":
        opened = MPIRanks.open(jobs)
    elif where.startswith("dask://"):
        opened = DaskWorkers.open(where.removeprefix("dask://"), jobs)
    else:
        opened = Processes.open(jobs, start)
    try:
        with opened as pool_and_jobs:
            yield pool_and_jobs
    except BrokenExecutor:
        raise StateError(
            "a worker process that was lost (killed, or out of memory)",
            "every piece of work is computed",
            "the same command again",
        ) from None


# -- signals


@dataclass
class StopRequest:
    """Whether a signal asked this process to stop.

    It is a plain attribute and not a threading.Event: a signal may interrupt the handler of another
    one, and would wait forever for the lock of an Event that is being set."""

    received: bool = False


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a process to stop: Ctrl-C, and those of a terminal or a queue that
    ends. Windows has no SIGHUP."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """A function should_stop(), which is true after the first Ctrl-C, SIGTERM or SIGHUP, so that a
    step can be finished and saved. A second signal acts as usual."""
    request = StopRequest()
    previous: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: Any) -> None:
        request.received = True
        restore()

    try:
        for number in stop_signals():
            # nohup ignores SIGHUP, and so do we then; but Ctrl-C always stops
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if is_ignored and number != signal.SIGINT:
                continue
            with suppress(ValueError):  # only the main thread may set handlers
                previous[number] = signal.signal(number, handle)
        yield lambda: request.received
    finally:
        restore()


# -- one class for each place


class Place(Executor):
    """An Executor whose running pieces can be asked to save and stop. It wraps any other one."""

    def __init__(self, pool: Executor):
        self.pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self.pool.submit(fn, *args, **kwargs)

    def cancel(self, running: Collection["Future[Any]"]) -> None:
        """Let these pieces save and stop, and wait until they have."""
        for future in running:
            future.cancel()
        while not all(future.done() for future in running):
            self.interrupt_workers()  # again and again: one may be starting
            wait(running, POLL)

    def interrupt_workers(self) -> None:
        """Send Ctrl-C to workers that do not get it with this process."""

    @staticmethod
    def should_stop() -> bool:
        """In a worker: whether it was asked to stop."""
        return _request.received


class Processes(Place):
    """Processes on this machine."""

    @classmethod
    @contextmanager
    def open(
        cls, jobs: int | None, start: Callable[[], None] | None
    ) -> Iterator[tuple[Executor, int]]:
        from concurrent.futures import ProcessPoolExecutor  # not in a browser
        from multiprocessing import active_children, get_context

        jobs = jobs or cores()
        with ProcessPoolExecutor(jobs, get_context("spawn"), _start_process, (start,)) as pool:
            try:
                yield cls(pool), jobs
            except BaseException:
                for worker in active_children():
                    worker.kill()
                raise

    def interrupt_workers(self) -> None:
        from multiprocessing import active_children

        for child in active_children():
            if child.pid is None:
                continue
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGINT)


class MPIRanks(Place):
    """The ranks of an MPI job: the first one hands out pieces, the others compute them. Each rank
    gets the signal that stops the job."""

    @classmethod
    @contextmanager
    def open(cls, jobs: int | None) -> Iterator[tuple[Executor | None, int]]:
        futures = _import_extra("mpi4py.futures", "mpi")
        comm = _import_extra("mpi4py.MPI", "mpi").COMM_WORLD
        jobs = jobs or max(1, comm.size - 1)
        if comm.rank != 0:
            _stop_worker_on_signals()
        with watched(comm), futures.MPICommExecutor(comm) as pool:
            if pool is None:
                yield None, jobs
                return
            try:
                yield cls(pool), jobs
            finally:
                pool.shutdown(cancel_futures=True)


class DaskWorkers(Place):
    """The workers of a dask cluster. A worker notices that its future was cancelled."""

    @classmethod
    @contextmanager
    def open(cls, address: str, jobs: int | None) -> Iterator[tuple[Executor, int]]:
        distributed = _import_extra("distributed", "dask")
        with distributed.Client(address, set_as_default=False) as client:
            if not client.nthreads():
                print("waiting for a worker of dask", flush=True)
                client.wait_for_workers(1)
            jobs = jobs or sum(client.nthreads().values())
            try:
                yield cls(client.get_executor(pure=False)), jobs
            except distributed.KilledWorker as error:  # four workers in turn died of one piece
                raise BrokenExecutor from error

    @staticmethod
    def should_stop() -> bool:
        """In a worker of dask: whether its task was cancelled, as it also is when the command that
        submitted it has ended. Elsewhere, False."""
        module = sys.modules.get("distributed.worker")
        if module is None:
            return False
        try:
            worker = module.get_worker()
        except ValueError:  # this thread is not one of a worker
            return False
        task = worker.state.tasks.get(worker.get_current_task())
        return task is None or task.state != "executing"


def _import_extra(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        raise StateError(
            f"a cluster of {extra}, without {name} ({error})",
            "it is an extra of tinyprop",
            f"pip install 'tinyprop[{extra}]'",
        ) from None


# -- the command that hands out pieces


def compute_wanted(
    wanted: Callable[[], list[Piece]],
    compute: Callable[..., bool],
    finished: Callable[[Piece, int], None],
    pool: Executor,
    jobs: int,
    seconds: float,
    stopping: Callable[[], None] = lambda: None,
) -> bool:
    """Compute the first piece that is wanted, whenever a job is free, until time is up; False after
    Ctrl-C.

    `compute(piece, should_stop=...)` is called in a worker, and returns False if it stopped before
    the end; `finished(piece, left)` is called here. In the end, running pieces are asked to stop,
    and can save what they have; after a signal, `stopping` is called before that. A second Ctrl-C
    ends the workers at once."""
    place = pool if isinstance(pool, Place) else Place(pool)
    end = time.monotonic() + seconds
    running: dict[Future[bool], Piece] = {}
    with stop_on_signals() as should_stop:
        try:
            while not should_stop():
                waiting = [piece for piece in wanted() if piece not in running.values()]
                left = len(waiting) + len(running)
                free = jobs - len(running)
                for piece in waiting[:free]:
                    future = place.submit(_compute, compute, piece, end - time.monotonic())
                    running[future] = piece
                done = _wait_for_any(running, should_stop, end)
                if not done:
                    break
                for future in done:
                    piece = running.pop(future)
                    is_complete = future.result()  # raises the error of a worker here
                    if not is_complete:
                        return time.monotonic() > end and not should_stop()
                    left -= 1
                    finished(piece, left)
        finally:  # after an error, too
            if should_stop():
                stopping()
            place.cancel(running)
    return not should_stop()


def _wait_for_any(
    running: Collection["Future[bool]"], should_stop: Callable[[], bool], end: float
) -> set["Future[bool]"]:
    """Those that are done, as soon as there are some; none after a signal, or when time is up."""
    done: set[Future[bool]] = set()
    while running and not done:
        if should_stop() or time.monotonic() > end:
            break
        done, _ = wait(running, POLL, FIRST_COMPLETED)
    return done


# -- in a worker

_request = StopRequest()  # after it, this worker begins nothing new


def should_stop() -> bool:
    """Whether the piece that this thread computes is no longer wanted, in whatever place."""
    return Place.should_stop() or DaskWorkers.should_stop()


def _request_stop(*_: Any) -> None:
    _request.received = True


def _stop_worker_on_signals() -> None:
    """Let a signal make a worker finish or save its piece, and begin nothing new."""
    for number in stop_signals():
        signal.signal(number, _request_stop)


def _compute(compute: Callable[..., bool], piece: Hashable, seconds: float) -> bool:
    end = time.monotonic() + seconds
    is_complete = compute(piece, should_stop=lambda: should_stop() or time.monotonic() > end)
    # a worker of dask computes in threads, and stays when its command ends
    is_own_process = threading.current_thread() is threading.main_thread()
    if is_own_process and not is_complete:
        _request_stop()  # the piece may have caught the signal itself
    return is_complete


def _start_process(start: Callable[[], None] | None) -> None:
    _stop_worker_on_signals()
    if start is not None:
        start()
    # hide the progress bars of single runs; errors reach the parent as exceptions
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent ends, even if the parent was killed."""
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
