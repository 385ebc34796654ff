"""Each peer works in a process of its own, so that threads, settings and memory of one do not
affect the others; or all work in one, where they share what the machine gives to a process."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tinyprop.train import keep_freed_memory

from .cases import Case
from .peers import PEERS

# Shorter work is repeated until it has taken so long, twice at least; its mean counts.
LEAST_SECONDS = 0.15
# Seconds before each measurement, in which the idle threads of the peer before it stop spinning.
PAUSE = 0.03


Work = Callable[[], Any]


def enough_calls(work: Work) -> int:
    """How many calls are timed together."""
    start = time.perf_counter()
    work()
    once = time.perf_counter() - start
    least = 1 if once > 1.0 else 2
    return max(least, round(LEAST_SECONDS / once))


def seconds(work: Work, calls: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """For one call, after a pause and a call that is not counted."""
    time.sleep(PAUSE)
    work()  # it fills the caches again, as the step before does in training
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


class Remote:
    """A process with a Worker, whose methods it calls: a new process, or one that other peers use,
    too."""

    def __init__(self, peer: str, threads: int, process: ProcessPoolExecutor | None = None):
        self.peer = peer
        self.title = PEERS[peer].title
        self.process = process or new_process()
        self.starting = self.process.submit(_start, peer, threads, process is None)

    def call(self, method: str, *arguments: Any) -> Any:
        self.starting.result()  # raises what the import of the peer has raised
        return self.process.submit(_call, self.peer, method, *arguments).result()

    def close(self) -> None:
        self.process.shutdown(cancel_futures=True)


class Worker:
    """Lives in the process of one peer."""

    def __init__(self, peer: str, threads: int, alone: bool):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reports
        if hasattr(os, "sched_setaffinity"):  # for peers that take every core they see
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        keep_freed_memory()  # for every peer: otherwise PyTorch waits for new pages in each step
        self.peer = PEERS[peer](threads)
        self.jobs: dict[Case, tuple[Work, int]] = {}  # and how many calls are timed together
        self.after_imports = resident("VmRSS") if alone else None

    def prepare(self, case: Case) -> tuple[list[float], int | None]:
        """Make everything ready for `seconds` of this case.

        Returns the numbers in which all peers have to agree and, for the first case of a peer in
        its own process, the most bytes that it has held, minus what it held after the imports:
        later that would include the cases before."""
        work, values = self.peer.job(case)
        self.jobs[case] = work, enough_calls(work)
        before = self.after_imports
        peak = resident("VmHWM")
        self.after_imports = None
        if before is None or peak is None:
            return values, None
        return values, peak - before

    def seconds(self, case: Case) -> float:
        """How long the work of a prepared case takes, this time."""
        return seconds(*self.jobs[case])

    def forget(self) -> None:
        self.jobs.clear()


_workers: dict[str, Worker] = {}  # of this process, by peer


def _start(peer: str, threads: int, alone: bool) -> None:
    _workers[peer] = Worker(peer, threads, alone)


def _call(peer: str, method: str, *arguments: Any) -> Any:
    return getattr(_workers[peer], method)(*arguments)


def resident(key: str) -> int | None:
    """Resident memory of this process: now (VmRSS), or at most so far (VmHWM); None if not on
    Linux.

    getrusage's ru_maxrss would be the same, had it not been inherited from the process that started
    this one."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields[key].split()[0]) * 1024
