"""Runs side by side, each in a process on one thread, so the results do not depend on how many there are."""

import os
import signal
import threading
import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

from ..cluster import STOPPED, stop_on_signals, stopping
from ..errors import StateError
from ..files import locked
from ..threads import blas_threads
from ..train import Config, keep_freed_memory
from .ledger import Ledger, compute, run_name
from .study import Study

ALONE = threading.Lock()  # held by a run: its record says which overrides the process used


def compute_all(study: Study, pool: Executor, jobs: int, seconds: float) -> bool:
    """Compute the first run that is wanted, whenever a job is free, until time is up; False after Ctrl-C.

    Everything done so far is saved in any case. A second Ctrl-C ends the workers at once, with the checkpoints that
    they have.
    """
    end, running = time.monotonic() + seconds, dict[Future[bool], Config]()
    ledger, runs = Ledger(study.ledger.folder.absolute()), study.runs.absolute()  # workers may be elsewhere
    with locked(runs), stop_on_signals() as stop:
        try:
            while not stop[0]:
                left = [config for config in study.wanted() if config not in running.values()]
                to_go = len(left) + len(running)
                for config in left[: jobs - len(running)]:
                    running[pool.submit(_compute, config, ledger, runs, study.root, end - time.monotonic())] = config
                finished = set[Future[bool]]()
                while running and not (finished or stop[0] or time.monotonic() > end):
                    finished, _ = wait(running, 0.2, FIRST_COMPLETED)
                if not finished:
                    break
                for future in finished:
                    name = run_name(config := running.pop(future))
                    if not future.result():  # raises the error of a worker here
                        return time.monotonic() > end and not stop[0]
                    if not ledger.find(config):
                        rule = "workers and the command share the directories of runs and of the ledger"
                        raise StateError(f"{name}, finished but not in {ledger.folder}", rule, "a shared file system")
                    to_go -= 1
                    print(f"{name} is finished, {to_go} to go", flush=True)
        finally:  # after an error, too
            _stop(running)
    return not stop[0]


def _stop(running: Collection[Future[bool]]) -> None:
    """Let all runs save and stop. Ranks of MPI hear the signal themselves, and know when time is up."""
    for future in running:
        future.cancel()  # which a worker of dask notices
    while not all(future.done() for future in running):
        for pid in [child.pid for child in active_children() if child.pid]:  # again and again: a run may be starting
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        wait(running, 0.2)


# -- in a worker


def _compute(config: Config, ledger: Ledger, runs: Path, root: Path | None, seconds: float) -> bool:
    """Compute a run, for so long; False if it was stopped."""
    end, ours = time.monotonic() + seconds, threading.current_thread() is threading.main_thread()  # dask has threads
    if ours:
        keep_freed_memory()
    with ALONE, blas_threads(1):
        if stopping():
            return False
        finished = compute(config, ledger, runs, root, lambda: stopping() or time.monotonic() > end)
    if ours and not finished:
        STOPPED.set()  # the run has heard the signal
    return finished
