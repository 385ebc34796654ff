"""Runs side by side, each in a process on one thread, so the results do not depend on how many there are."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path

from threadpoolctl import threadpool_limits

from ..files import locked
from ..train import Config, keep_freed_memory
from .ledger import Ledger, compute, run_name

LIKE_CTRL_C = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
STOPPED = threading.Event()  # set in a worker that begins nothing new


def compute_all(
    wanted: Callable[[], Sequence[Config]], ledger: Ledger, runs: Path, root: Path | None, jobs: int, seconds: float
) -> bool:
    """Compute the first run that is wanted, whenever a job is free, until time is up; False after Ctrl-C.

    Everything done so far is saved in any case. A second Ctrl-C ends the workers at once, with the checkpoints that
    they have.
    """
    end, running = time.monotonic() + seconds, dict[Future[bool], Config]()
    with locked(runs):
        heard = [n for n in LIKE_CTRL_C if signal.getsignal(n) != signal.SIG_IGN]  # nohup ignores SIGHUP
        before = {n: signal.signal(n, signal.default_int_handler) for n in heard}
        pool, stopped = ProcessPoolExecutor(jobs, get_context("spawn"), _start), False
        try:
            while True:
                left = [config for config in wanted() if config not in running.values()]
                to_go = len(left) + len(running)
                for config in left[: jobs - len(running)]:
                    running[pool.submit(_compute, config, ledger, runs, root)] = config
                finished, _ = wait(
                    running, min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX), FIRST_COMPLETED
                )
                stopped = not all(future.result() for future in finished)  # raises the error of a worker here
                if stopped or not finished:
                    break
                for future in finished:
                    to_go -= 1
                    print(f"{run_name(running.pop(future))} is finished, {to_go} to go", flush=True)
        except KeyboardInterrupt:
            stopped = True
        finally:  # after an error, too
            try:
                pool.shutdown(wait=not running, cancel_futures=True)
                if running:
                    _stop_workers()
            except KeyboardInterrupt:
                for worker in active_children():
                    worker.kill()
                raise
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
    return not stopped


def _stop_workers() -> None:
    while children := active_children():
        for pid in [child.pid for child in children if child.pid]:  # again and again: a run may just be starting
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        time.sleep(0.2)


# -- in a worker


def _start() -> None:
    for number in (signal.SIGINT, *LIKE_CTRL_C):
        signal.signal(number, lambda *_: STOPPED.set())  # while a run is in progress, it listens and saves
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the bars of single runs; errors go to the parent as they are
    threadpool_limits(1, user_api="blas")
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _compute(config: Config, ledger: Ledger, runs: Path, root: Path | None) -> bool:
    if not STOPPED.is_set() and not compute(config, ledger, runs, root):
        STOPPED.set()
    return not STOPPED.is_set()


def _end_with_parent() -> None:
    """Not even a parent that was killed leaves a worker behind; its run resumes from the last checkpoint."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
