"""Each way to do a piece of work has a process of its own, or several, so that threads, settings
and memory of one do not affect the others."""

import base64
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tinyprop.parallel.launch import mpiexec
from tinyprop.parallel.ranks import Ranks
from tinyprop.train import keep_freed_memory

from .cases import Case
from .peers import PEERS, Tinyprop

# Shorter work is repeated until it has taken so long; its mean counts.
LEAST_SECONDS = 0.05
# Seconds before each measurement, in which the idle threads of the peer before it stop spinning.
PAUSE = 0.03
SERVE = "from benchmarks.workers import serve; serve()"

Work = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """A framework, and on how much of the machine it works."""

    peer: str
    threads: int = 1
    processes: int = 1

    @property
    def name(self) -> str:
        """For instance "torch, 2 threads"."""
        kind, number = ("thread", self.threads)
        if self.processes > 1:
            kind, number = ("process", self.processes)
        plural = "es" if kind == "process" else "s"
        return f"{self.peer}, {number} {kind}{plural if number > 1 else ''}"


@dataclass(frozen=True)
class Seconds:
    """Of one call."""

    clock: float
    processor: float  # of all threads of the (first) process


def enough_calls(work: Work) -> int:
    """How many calls are timed together."""
    start = time.perf_counter()
    work()
    once = time.perf_counter() - start
    return max(1, round(LEAST_SECONDS / once))


def timed(work: Work, calls: int) -> Seconds:
    """After a pause and a call that is not counted."""
    time.sleep(PAUSE)
    work()  # it fills the caches again, as the step before does in training
    processor = time.process_time()
    clock = time.perf_counter()
    for _ in range(calls):
        work()
    clock = time.perf_counter() - clock
    processor = time.process_time() - processor
    return Seconds(clock / calls, processor / calls)


class Worker:
    """Lives in the process of one way, or in each of its processes."""

    def __init__(self, way: Way, ranks: Ranks | None = None):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reports
        keep_freed_memory()  # for every peer: otherwise PyTorch waits for new pages in each step
        self.ranks = ranks
        self.peer = PEERS[way.peer](way.threads) if ranks is None else Tinyprop(1, ranks)
        self.limits = ExitStack()  # never closed: this process does nothing else
        self.limits.enter_context(self.peer.limited())
        self.jobs: dict[Case, tuple[Work, int]] = {}  # and how many calls are timed together
        self.after_imports = resident("VmRSS")

    def prepare(self, case: Case) -> tuple[list[float], int | None]:
        """Make everything ready for `seconds` of this case.

        Returns the numbers in which all peers have to agree and, for the first case, the most bytes
        that this process has held, minus what it held after the imports: later that would include
        the cases before."""
        work, values = self.peer.job(case)
        calls = enough_calls(work)
        if self.ranks is not None:
            calls = self.ranks.comm.bcast(calls)
        self.jobs[case] = work, calls
        before = self.after_imports
        peak = resident("VmHWM")
        self.after_imports = None
        if before is None or peak is None:
            return values, None
        return values, peak - before

    def seconds(self, case: Case) -> Seconds:
        """How long the work of a prepared case takes, this time."""
        return timed(*self.jobs[case])

    def forget(self) -> None:
        self.jobs.clear()


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


class Remote:
    """A process with a Worker, whose methods it calls."""

    def __init__(self, way: Way):
        self.way = way
        self.process = ProcessPoolExecutor(1, get_context("spawn"))
        self.starting = self.process.submit(_start, way)

    def call(self, method: str, *arguments: Any) -> Any:
        self.starting.result()  # raises what the import of the peer has raised
        return self.process.submit(_call, method, *arguments).result()

    def close(self) -> None:
        self.process.shutdown(cancel_futures=True)


_workers: list[Worker] = []  # the one of this process


def _start(way: Way) -> None:
    _workers.append(Worker(way))


def _call(method: str, *arguments: Any) -> Any:
    return getattr(_workers[0], method)(*arguments)


class RemoteJob:
    """Several processes of tinyprop that share every batch, as `tinyprop train --processes` starts
    them, each with a Worker. What is asked of the first is done by all."""

    def __init__(self, way: Way):
        self.way = way
        starter = mpiexec()
        if starter is None:
            raise ValueError(f"{way.name} need MPI: pip install 'tinyprop[mpi]'")
        self.job = subprocess.Popen(
            [starter, "-n", str(way.processes), sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the process that reports
        )

    def call(self, method: str, *arguments: Any) -> Any:
        assert self.job.stdin is not None
        assert self.job.stdout is not None
        self.job.stdin.write(as_line((method, arguments)))
        self.job.stdin.flush()
        line = self.job.stdout.readline()
        if not line:
            raise ValueError(f"{self.way.name} ended")
        result = from_line(line)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        self.job.communicate()  # closes what it reads, which ends it


def as_line(value: Any) -> bytes:
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def from_line(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))  # from our own processes


def serve() -> None:
    """What each process of a job runs: the first reads what to do, and answers."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ranks = Ranks(comm, here=comm.size)
    worker = Worker(Way("tinyprop", processes=comm.size), ranks)
    while True:
        line = next_line(comm)
        if not line:
            return
        method, arguments = from_line(line)
        try:
            result = getattr(worker, method)(*arguments)
        except Exception as error:  # whatever it is, it is reported
            result = error
        if ranks.first:
            sys.stdout.buffer.write(as_line(result))
            sys.stdout.buffer.flush()


def next_line(comm: Any) -> bytes:
    """What the first process reads, on all of them. The others wait without keeping a core busy, as
    an MPI that waits does."""
    if comm.rank == 0:
        line = sys.stdin.buffer.readline()
        for other in range(1, comm.size):
            comm.send(line, dest=other)
        return line
    while not comm.iprobe(source=0):
        time.sleep(0.01)
    return bytes(comm.recv(source=0))
