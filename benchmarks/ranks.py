"""What a training step costs on two processes (ranks), against one thread and two threads.

A job of two ranks measures all of it in turns, on this machine. Two ranks compute half of the batch
each, on one thread, and exchange the sums of their gradients."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop.parallel.launch import mpiexec
from tinyprop.parallel.ranks import Ranks
from tinyprop.report.arguments import whole_number
from tinyprop.report.environment import machine
from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table
from tinyprop.train import Config, TrainingStep, keep_freed_memory, network

from .load import Watch
from .report import milliseconds

BATCH = 50  # the paper's
WIDTHS = (0.1, 0.25, 1.0)
SIZES = (1_000, 10_000, 100_000, 1_000_000)  # numbers in a buffer
REPEATS = 7
STEPS = 3  # in each turn
Times = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=REPEATS, help=f"turns (default {REPEATS})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/ranks"), help="directory (default runs/ranks)"
    )


def run(options: argparse.Namespace) -> int:
    for path in write(options.out, options.repeats):
        print(path)
    return 0


def write(out: Path, repeats: int) -> list[Path]:
    """Measure, print the page, and write RANKS.md with its data."""
    watch = Watch()
    found = measured(repeats) | {"others": watch.others()}
    text = page(found, repeats)
    print(text)
    paths = [out / "RANKS.md", out / "RANKS.json"]
    write_whole(paths[0], text.encode())
    write_json(paths[1], found)
    return paths


def measured(repeats: int) -> dict[str, Any]:
    """What rank 0 of a new job of two ranks finds."""
    starter = mpiexec()
    if starter is None:
        raise ValueError("two ranks need MPI: pip install 'tinyprop[mpi]'")
    program = [sys.executable, "-c", f"from {__name__} import worker; worker({repeats})"]
    done = subprocess.run(
        [starter, "-n", "2", *program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        check=True,
    )
    return dict(json.loads(done.stdout))


# -- in the job


def worker(repeats: int) -> None:
    from mpi4py import MPI

    keep_freed_memory()
    comm = MPI.COMM_WORLD
    assert comm.size == 2
    ranks = Ranks(comm, here=2)
    steps = {str(width): step_times(ranks, width, repeats) for width in WIDTHS}
    sums = {str(size): sum_times(ranks, size, repeats) for size in SIZES}
    if ranks.first:
        print(json.dumps({"steps": steps, "sums": sums, "machine": machine()["cpu"]}))


def step_times(ranks: Ranks, width: float, repeats: int) -> Times:
    """Steps on one thread, on two threads, and on two ranks of a thread each, in turns."""
    random = np.random.default_rng(0)
    images = random.normal(size=(BATCH, 3, 32, 32)).astype("float32")
    labels = random.integers(0, 10, BATCH)
    steps = {
        "one thread": prepared(width, images, threads=1),
        "two threads": prepared(width, images, threads=2),
        "two ranks": prepared(width, images, threads=1, ranks=ranks),
    }
    times: Times = {name: [] for name in steps}
    for turn in range(1 + repeats):
        for name, step in steps.items():
            both = name == "two ranks"
            for _ in range(STEPS):
                seconds = timed(ranks, partial(step, images, labels), both)
                if turn > 0:  # the first turn warms up
                    times[name].append(seconds)
    return times


def prepared(width: float, images: Any, threads: int, ranks: Ranks | None = None) -> TrainingStep:
    tp.manual_seed(0)
    net = network(Config(width=width), images, 10)
    optimizer = tp.optim.SGD(net.parameters(), 0.01, 0.9, 0.001)
    return TrainingStep(net, optimizer, threads=threads, ranks=ranks)


def sum_times(ranks: Ranks, size: int, repeats: int) -> list[float]:
    """Of a buffer with this many numbers, over both ranks."""
    numbers = np.ones(size, "float32")
    seconds = [timed(ranks, partial(ranks.add_up, numbers), True) for _ in range(20 * repeats)]
    return seconds[repeats:]


def timed(ranks: Ranks, work: Callable[[], Any], both: bool) -> float:
    """Seconds of work that both ranks do, or the first alone."""
    meet(ranks)
    start = time.perf_counter()
    if both or ranks.first:
        work()
    seconds = time.perf_counter() - start
    meet(ranks)
    return seconds


def meet(ranks: Ranks) -> None:
    """Wait for the other rank without keeping the core busy, as an MPI that waits does."""
    request = ranks.comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


# -- the page


def page(found: dict[str, Any], repeats: int) -> str:
    return f"""# A step on two processes

Written by `python -m benchmarks ranks`, on {found["machine"]}; float32, the paper's network,
batches of {BATCH}; medians of {STEPS * repeats}{others_words(found["others"])}. Two ranks are two
processes that compute half of each batch, on one thread each, and add up their gradients.
`tinyprop train --processes 2` starts two; [RESULTS.md](RESULTS.md) has them beside PyTorch.

{step_table(found["steps"]).markdown()}

{sum_table(found["sums"]).markdown()}
"""


def others_words(others: float | None) -> str:
    if others is None:
        return "; how much other programs disturbed them is not known"
    return f"; other programs used {others:.0%} of a core"


def step_table(steps: dict[str, Times]) -> Table:
    rows = []
    for width, times in steps.items():
        medians = [milliseconds(median(seconds)) for seconds in times.values()]
        rows.append([f"{float(width):g}", *medians, f"{ranks_by_threads(times):.2f}"])
    header = ["width", "1 thread", "2 threads", "2 ranks", "ranks / threads"]
    return Table(header, rows, "A step (ms)")


def ranks_by_threads(times: Times) -> float:
    """The time of a step on two ranks divided by that of the same turn on two threads."""
    pairs = zip(times["two ranks"], times["two threads"], strict=True)
    return median(ranks / threads for ranks, threads in pairs)


def sum_table(sums: Times) -> Table:
    rows = []
    for size, seconds in sums.items():
        rows.append([f"{int(size):,}", milliseconds(median(seconds))])
    return Table(["numbers (float32)", "ms"], rows, "Adding up a buffer over two ranks")
