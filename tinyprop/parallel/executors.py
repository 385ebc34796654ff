"""Where independent pieces of work are computed: processes here, a dask cluster, or the ranks of an
MPI job.

Each is an Executor of concurrent.futures, and what a piece returns does not depend on which of them
computed it."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

from ..engine.errors import StateError
from ..engine.threads import cores
from .ranks import watched

LIKE_CTRL_C = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
Piece = TypeVar("Piece", bound=Hashable)
STOPPED = threading.Event()  # set in a worker that begins nothing new


def place(text: str) -> str:
    """The value of --cluster, checked."""
    if text not in ("processes", "mpi") and not text.startswith("dask://"):
        raise argparse.ArgumentTypeError(f"{text!r} is not processes, mpi or dask://host:port")
    return text


@contextmanager
def executor(
    where: str, jobs: int | None = None, start: Callable[[], None] | None = None
) -> Iterator[tuple[Executor | None, int]]:
    """An Executor for the pieces, and how many it computes at once. A rank that computed pieces for
    the first one gets None instead, when all are done. `start` is called first in each process that
    is made for them.

    >>> with executor("processes", jobs=1) as (pool, jobs):
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    pool: Any
    try:
        if where == "mpi":
            futures, comm = (
                _import("mpi4py.futures", "mpi"),
                _import("mpi4py.MPI", "mpi").COMM_WORLD,
            )
            if comm.rank:
                listen()
            with watched(comm), futures.MPICommExecutor(comm) as pool:
                try:
                    yield pool, jobs or max(1, comm.size - 1)
                finally:
                    if pool is not None:
                        pool.shutdown(cancel_futures=True)
        elif where.startswith("dask://"):
            distributed = _import("distributed", "dask")
            with distributed.Client(where.removeprefix("dask://"), set_as_default=False) as client:
                if not client.nthreads():
                    print("waiting for a worker of dask", flush=True)
                    client.wait_for_workers(1)
                try:
                    yield client.get_executor(pure=False), jobs or sum(client.nthreads().values())
                # four workers, one after the other, died of one piece
                except distributed.KilledWorker as error:
                    raise BrokenExecutor from error
        else:
            from concurrent.futures import ProcessPoolExecutor  # not in a browser
            from multiprocessing import active_children, get_context

            jobs = jobs or cores()
            with ProcessPoolExecutor(jobs, get_context("spawn"), _start, (start,)) as pool:
                try:
                    yield pool, jobs
                except BaseException:
                    for worker in active_children():
                        worker.kill()
                    raise
    except BrokenExecutor:
        lost = "a worker process that was lost (killed, or out of memory)"
        raise StateError(
            lost, "every piece of work is computed", "the same command again"
        ) from None


def _import(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        got, install = (
            f"a cluster of {extra}, without {name} ({error})",
            f"pip install 'tinyprop[{extra}]'",
        )
        raise StateError(got, "it is an extra of tinyprop", install) from None


@contextmanager
def stop_on_signals() -> Iterator[list[bool]]:
    """A flag that the first Ctrl-C, SIGTERM or SIGHUP sets, so that a step can be finished and
    saved; a second signal acts as usual."""
    stop, previous = [False], dict[int, Any]()
    # nohup ignores one
    numbers = [signal.SIGINT, *(n for n in LIKE_CTRL_C if signal.getsignal(n) != signal.SIG_IGN)]

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def set_flag(number: int, frame: Any) -> None:
        stop[0] = True
        restore()

    try:
        for number in numbers:
            with suppress(ValueError):  # only the main thread may
                previous[number] = signal.signal(number, set_flag)
        yield stop
    finally:
        restore()


def compute_wanted(
    wanted: Callable[[], list[Piece]],
    compute: Callable[..., bool],
    finished: Callable[[Piece, int], None],
    pool: Executor,
    jobs: int,
    seconds: float,
) -> bool:
    """Compute the first piece that is wanted, whenever a job is free, until time is up; False after
    Ctrl-C.

    `compute(piece, told=...)` is called in a worker, and returns False if it was told to stop
    before the end; `finished(piece, left)` is called here. What is being computed in the end is
    told to stop, and can save what it has. A second Ctrl-C ends the workers at once."""
    end, running = time.monotonic() + seconds, dict[Future[bool], Piece]()
    with stop_on_signals() as stop:
        try:
            while not stop[0]:
                left = [piece for piece in wanted() if piece not in running.values()]
                to_go = len(left) + len(running)
                for piece in left[: jobs - len(running)]:
                    running[pool.submit(_compute, compute, piece, end - time.monotonic())] = piece
                done = set[Future[bool]]()
                while running and not (done or stop[0] or time.monotonic() > end):
                    done, _ = wait(running, 0.2, FIRST_COMPLETED)
                if not done:
                    break
                for future in done:
                    piece = running.pop(future)
                    if not future.result():  # raises the error of a worker here
                        return time.monotonic() > end and not stop[0]
                    to_go -= 1
                    finished(piece, to_go)
        finally:  # after an error, too
            _stop(running)
    return not stop[0]


def _stop(running: Collection["Future[bool]"]) -> None:
    """Let all pieces save and stop. Ranks of MPI hear the signal themselves, and know when time is
    up."""
    from multiprocessing import active_children

    for future in running:
        future.cancel()  # which a worker of dask notices
    while not all(future.done() for future in running):
        # again and again: one may be starting
        for pid in [child.pid for child in active_children() if child.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        wait(running, 0.2)


# -- in a worker


def listen() -> None:
    """A signal lets a worker finish, or save, what it is at, and begin nothing new."""
    for number in (signal.SIGINT, *LIKE_CTRL_C):
        signal.signal(number, lambda *_: STOPPED.set())


def _compute(compute: Callable[..., bool], piece: Hashable, seconds: float) -> bool:
    end = time.monotonic() + seconds
    done = compute(piece, told=lambda: stopping() or time.monotonic() > end)
    if not done and threading.current_thread() is threading.main_thread():  # dask has threads
        STOPPED.set()  # the piece has heard the signal
    return done


def _start(start: Callable[[], None] | None) -> None:
    listen()
    if start:
        start()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the bars of single runs; errors go to the parent as they are
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Not even a parent that was killed leaves a worker behind."""
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def stopping() -> bool:
    """Whether the piece that this thread computes is no longer wanted: after a signal, or if dask
    has cancelled it, as it also does when the command that asked for it has ended."""
    if STOPPED.is_set():
        return True
    worker = sys.modules.get("distributed.worker")
    try:
        here = worker and worker.get_worker()
    except ValueError:  # not on a worker of dask
        here = None
    if not here:
        return False
    task = here.state.tasks.get(here.get_current_task())
    return task is None or task.state != "executing"
