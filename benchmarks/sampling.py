"""What `tinyprop verify` adds to drawing random numbers: C01, the mean of ReLU, against drawing
alone.

Both draw as many float32 normals on the same threads, in turns in this process; alone, by NumPy's
fastest generator."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

import tinyprop as tp
from tinyprop.report.arguments import whole_number
from tinyprop.verify.monte_carlo import BLOCK, TASK, Sampler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples", type=whole_number(1), default=10**8, help="how many to draw (default 1e8)"
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), default=7, help="turns of each (default 7)"
    )


def run(options: argparse.Namespace) -> int:
    tasks = max(1, round(options.samples / TASK))
    samples = tasks * TASK
    ratios = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        draw_all(tasks)
        drawn = time.perf_counter()
        tp.verify.run(["C01"], samples=samples)
        verified = time.perf_counter()
        ratios.append((verified - drawn) / (drawn - start))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{samples:,} samples: {median(ratios):.2f} times drawing alone ({spread})")
    return 0


def draw_all(tasks: int) -> None:
    with ThreadPoolExecutor(Sampler().threads) as pool:
        list(pool.map(draw, range(tasks)))


def draw(task: int) -> None:
    random = np.random.Generator(np.random.SFC64(task))
    for _ in range(TASK // BLOCK):
        random.standard_normal(BLOCK, np.float32)
