"""What a training step on a device costs the host: Python, the engine and CuPy, without any work of
the device.

A step that is ordered kernel by kernel is recorded instead of run; one that is replayed gets a
graph without kernels. Both take turns with bare CuPy additions. The ratio is what counts, not the
times. A GPU or emulated CUDA will do."""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop import nn
from tinyprop.engine.arrays import load_module, to_backend
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table
from tinyprop.train.replays import recorded

NORMS = {"normprop": "NormProp", "batch": "BatchNorm"}
TIMES = 50  # that short work is repeated in a turn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=whole_number(1), default=101, help="turns (default 101)")


@dataclass(frozen=True)
class Cost:
    """Microseconds of the host: the least of all turns, since other programs only add to them."""

    launches: int  # of a step, with products of matrices
    addition: float  # a bare CuPy addition
    launch: float  # of a step that is not replayed, for each launch
    replay: float  # of a step that is replayed
    copies: float  # of its batch, without tinyprop


def run(options: argparse.Namespace) -> int:
    rows = []
    for norm, name in NORMS.items():
        c = measured(norm, options.repeats)
        eager = [f"{c.launch:.1f}", f"{c.launch - c.addition:.1f}", f"{c.launch / c.addition:.1f}"]
        graph = [f"{c.replay:.0f}", f"{c.copies:.1f}", f"{(c.replay - c.copies) / c.addition:.1f}"]
        rows.append([name, str(c.launches), f"{c.addition:.1f}", *eager, *graph])
    header = ["network", "launches", "CuPy +, us", "a launch, us", "over it", "ratio"]
    note = (
        "The first ratio is a launch by an addition; the second a replayed step, without its "
        "copies, by an addition."
    )
    table = Table(
        [*header, "replay, us", "its copies", "ratio"],
        rows,
        "Host time of a step on a device",
        note,
    )
    print(table.text(110))
    return 0


def step_of(norm: str, graph: bool, width: float = 0.25, batch: int = 8) -> tuple[Any, Any, Any]:
    """The step of the paper's network, with images on the device and labels on the host, as the
    prefetcher has them."""
    random = np.random.default_rng(0)
    images, labels = (
        random.integers(0, 256, (batch, 3, 32, 32)).astype(np.uint8),
        random.integers(0, 10, batch),
    )
    tp.manual_seed(0)
    with tp.use_backend("cupy"):
        net = nn.Sequential(
            tp.data.GlobalNormalizer((3, 32, 32)).fit(images),
            *nn.build(nn.NIN, norm=norm, width=width),
        )
    step = tp.train.TrainingStep(
        net, tp.optim.SGD(net.parameters(), 0.01, weight_decay=0.001), graph=graph
    )
    return step, to_backend(images, "cupy"), labels


def measured(norm: str, repeats: int) -> Cost:
    cupy: Any = load_module("cupy")
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    eager, images, labels = step_of(norm, graph=False)
    there = to_backend(labels, "cupy")  # an upload cannot be recorded
    for _ in range(2):
        eager(images, there)
    launches = counted(cupy, lambda: eager(images, there))
    replayed, _, _ = step_of(norm, graph=True)
    for _ in range(3):
        replayed(images, labels)
    (replay,) = replayed.replays.graphs.values()
    with recorded(cupy, stream, pool) as empty:
        pass
    replay.graph = empty[0]

    x, room = cupy.ones(8, "float32"), cupy.empty_like(images)

    def recording(work: Callable[[], Any], times: int = 1) -> float:
        with recorded(cupy, stream, pool):
            return seconds(work, times)

    def copies() -> None:
        room.data.copy_from_device_async(images.data, images.nbytes)
        replay.box.next()
        replay.box.post(cupy.cuda.get_current_stream())

    def step() -> None:
        replayed.optimizer.lr *= 0.999  # as a schedule does
        replayed(images, labels)

    def turn(_: int) -> tuple[float, ...]:
        added, ordered = (
            recording(lambda: cupy.add(x, x), TIMES),
            recording(lambda: eager(images, there)),
        )
        return added, ordered / launches, seconds(step, TIMES), seconds(copies, TIMES)

    times = zip(*map(turn, range(repeats)), strict=True)
    return Cost(launches, *(min(t) * 1e6 for t in times))


def seconds(work: Callable[[], Any], times: int) -> float:
    """Of this thread, for doing the work once."""
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times


def counted(cupy: Any, work: Callable[[], Any]) -> int:
    """Kernels, products of matrices and fills of memory that the work orders: the nodes of its
    graph."""
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    with recorded(cupy, stream, pool) as graphs:
        work()
    return len(re.findall(r'^\s*"[^"]+"\s*\[', graphs[0].debug_dot_str(), re.MULTILINE))
