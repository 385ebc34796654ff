"""Each engine works in a process of its own: threads, patches and memory of one are nothing to the others."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .cases import Case
from .engines import Engine, Tinyprop, TinypropGemm, TinypropPlain
from .with_autograd import Autograd
from .with_chainer import Chainer
from .with_jax import Jax
from .with_torch import Torch, TorchChannelsLast

MAKERS: dict[str, type[Engine]] = {
    "tinyprop": Tinyprop,
    "tinyprop-plain": TinypropPlain,
    "tinyprop-gemm": TinypropGemm,
    "torch": Torch,
    "torch-channels-last": TorchChannelsLast,
    "chainer": Chainer,
    "jax": Jax,
    "autograd": Autograd,
}
LEAST_SECONDS = 0.25  # work that takes less is repeated until it has taken so long, and the mean counts
PAUSE = 0.03  # seconds before each measurement, in which the idle threads of the engine before it stop spinning

T = TypeVar("T")


def is_installed(engine: str) -> bool:
    return find_spec(MAKERS[engine].package) is not None


class Worker:
    """A process that has imported one engine and waits for work."""

    def __init__(self, engine: str, threads: int):
        self.engine, self.title = engine, MAKERS[engine].title
        self.cases = 0  # that were prepared so far
        self.process = ProcessPoolExecutor(1, get_context("spawn"))
        self.starting = self.process.submit(_start, engine, threads)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.process.submit(function, *arguments).result()

    def version(self) -> str:
        """Of the engine; waits until it is imported."""
        return self.starting.result()

    def prepare(self, case: Case) -> list[float]:
        """Make everything ready for `seconds` of this case; returns the numbers in which all engines have to agree."""
        self.cases += 1
        return self.call(_prepare, case)

    def seconds(self, case: Case) -> float:
        """How long the work of a prepared case takes, this time."""
        return self.call(_seconds, case)

    def forget(self) -> None:
        """Let go of all prepared cases."""
        self.call(_forget)

    def peak_memory(self) -> int | None:
        """Bytes that the process held at its height, beyond what it held after the imports; None if not on Linux."""
        return self.call(_peak_memory)

    def close(self) -> None:
        self.process.shutdown(cancel_futures=True)


# -- what runs in the process of a worker


class _Here:
    """What this process has to remember."""

    engine: Engine
    jobs: ClassVar[dict[Case, tuple[Callable[[], Any], int]]] = {}  # the work, and how often it is done for one time
    after_imports: int | None


def _start(engine: str, threads: int) -> str:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reports
    if hasattr(os, "sched_setaffinity"):  # for engines that take every core they see
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    _Here.engine = MAKERS[engine](threads)
    _Here.after_imports = _resident("VmRSS")
    return _Here.engine.version()


def _prepare(case: Case) -> list[float]:
    work, values = _Here.engine.job(case)
    start = time.perf_counter()
    work()
    _Here.jobs[case] = work, max(1, round(LEAST_SECONDS / (time.perf_counter() - start)))
    return values


def _seconds(case: Case) -> float:
    work, calls = _Here.jobs[case]
    time.sleep(PAUSE)
    work()  # not counted: it brings back what the other engines have driven out of the caches, as the step before does
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def _forget() -> None:
    _Here.jobs.clear()


def _peak_memory() -> int | None:
    peak = _resident("VmHWM")
    return None if peak is None or _Here.after_imports is None else peak - _Here.after_imports


def _resident(key: str) -> int | None:
    """Resident memory of this process, now (VmRSS) or at its height (VmHWM).

    getrusage's ru_maxrss would be the same, had it not been inherited from the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields[key].split()[0]) * 1024
