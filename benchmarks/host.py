"""What a training step on a device costs the host: Python, the engine and CuPy, without any work of
the device.

A step that is launched kernel by kernel is recorded instead of run; one that is replayed gets a
graph without kernels. Both take turns with bare CuPy additions. The ratio is what counts, not the
times. A GPU or emulated CUDA will do."""

import argparse
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tinyprop.engine.arrays import load_module, to_backend
from tinyprop.kernels.graphs import recorded
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table
from tinyprop.train import TrainingStep

from .cases import NORMS
from .gpu import random_batch, training_step

WIDTH = 0.25
BATCH = 8
TIMES = 50  # that short work is repeated in a turn
Work = Callable[[], Any]


@dataclass(frozen=True)
class Cost:
    """Microseconds of the host: the least of all turns, since other programs only add to them."""

    launches: int  # of a step, with products of matrices
    addition: float  # a bare CuPy addition
    launch: float  # of a step that is not replayed, for each launch
    replay: float  # of a step that is replayed
    copies: float  # of its batch, without tinyprop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=whole_number(1), default=101, help="turns (default 101)")


def run(options: argparse.Namespace) -> int:
    rows = []
    for norm, name in NORMS.items():
        cost = measured(norm, options.repeats)
        row = [
            name,
            str(cost.launches),
            f"{cost.addition:.1f}",
            f"{cost.launch:.1f}",
            f"{cost.launch - cost.addition:.1f}",
            f"{cost.launch / cost.addition:.1f}",
            f"{cost.replay:.0f}",
            f"{cost.copies:.1f}",
            f"{(cost.replay - cost.copies) / cost.addition:.1f}",
        ]
        rows.append(row)
    header = (
        "network, launches, CuPy + us, a launch us, over it, ratio, replay us, its copies, ratio"
    )
    note = (
        "The first ratio is a launch divided by an addition; the second a replayed step, without "
        "its copies, divided by an addition."
    )
    table = Table(header.split(", "), rows, "Host time of a step on a device", note)
    print(table.text(110))
    return 0


def measured(norm: str, repeats: int) -> Cost:
    cupy: Any = load_module("cupy")
    images, labels = random_batch(BATCH)
    images = to_backend(images, "cupy")
    labels_there = to_backend(labels, "cupy")  # an upload cannot be recorded
    eager = prepared(norm, graph=False)
    for _ in range(2):
        eager(images, labels_there)
    launches = counted(lambda: eager(images, labels_there))
    replayed = prepared(norm, graph=True)
    for _ in range(3):
        replayed(images, labels)
    (replay,) = replayed.replays.graphs.values()
    replay.graph = empty_graph()
    ones = cupy.ones(8, "float32")
    room = cupy.empty_like(images)

    def add() -> None:
        cupy.add(ones, ones)

    def launch() -> None:
        eager(images, labels_there)

    def step() -> None:
        replayed.optimizer.lr *= 0.999  # as a schedule does
        replayed(images, labels)

    def copy() -> None:
        room.data.copy_from_device_async(images.data, images.nbytes)
        replay.mailbox.next_slot()
        replay.mailbox.upload(cupy.cuda.get_current_stream())

    times: list[list[float]] = [[], [], [], []]
    for _ in range(repeats):
        times[0].append(seconds_of_recording(add, TIMES))
        times[1].append(seconds_of_recording(launch, 1) / launches)
        times[2].append(seconds(step, TIMES))
        times[3].append(seconds(copy, TIMES))
    return Cost(launches, *(min(turns) * 1e6 for turns in times))


def prepared(norm: str, graph: bool) -> TrainingStep:
    images, _ = random_batch(BATCH)
    return training_step(norm, graph, WIDTH, images)


@cache
def stream_and_pool() -> tuple[Any, Any]:
    """The same for all recordings, so that only the first one takes memory from the device."""
    cupy: Any = load_module("cupy")
    return cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()


def recording() -> AbstractContextManager[list[Any]]:
    """Inside the block nothing runs: a graph is recorded, in a stream and memory of its own."""
    stream, pool = stream_and_pool()
    return recorded(load_module("cupy"), stream, pool)


def empty_graph() -> Any:
    with recording() as graphs:
        pass
    return graphs[0]


def counted(work: Work) -> int:
    """Kernels, products of matrices and fills of memory that the work launches: the nodes of its
    graph."""
    with recording() as graphs:
        work()
    nodes = re.findall(r'^\s*"[^"]+"\s*\[', graphs[0].debug_dot_str(), re.MULTILINE)
    return len(nodes)


def seconds_of_recording(work: Work, times: int) -> float:
    with recording():
        return seconds(work, times)


def seconds(work: Work, times: int) -> float:
    """Of this thread, for doing the work once."""
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times
