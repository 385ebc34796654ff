"""What the engine itself costs: chains of small ops, forward and backward, against PyTorch.

Both run interleaved in this process; the ratio of the medians is what counts, not the times.
"""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "x * 1.0": lambda x, y: x * 1.0,
    "x.tanh()": lambda x, y: x.tanh(),
}
LENGTH = 1_000  # ops in a chain
ONES = np.ones((8, 8), np.float32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=41, help="turns of each engine (default 41)"
    )


def run(options: argparse.Namespace) -> int:
    print(table(options.repeats).text())
    return 0


def table(repeats: int) -> Table:
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    rows = []
    for name, op in OPS.items():
        our_times = []
        their_times = []
        for _ in range(repeats):
            our_times.append(seconds(op, tp.tensor))
            their_times.append(seconds(op, torch.tensor))
        ours = median(our_times)
        theirs = median(their_times)
        rows.append([name, f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{ours / theirs:.2f}"])
    header = ["op", "tinyprop us", "PyTorch us", "ratio"]
    note = "In one process and one thread, in turns; medians of the processor's time."
    return Table(header, rows, "An op on 8x8 arrays and its gradient (us)", note)


def seconds(op: Callable[[Any, Any], Any], tensor: Callable[..., Any]) -> float:
    """For one op of a chain, with its gradient."""
    x = tensor(ONES, requires_grad=True)
    y = tensor(ONES, requires_grad=True)
    start = time.process_time()
    out = x
    for _ in range(LENGTH):
        out = op(out, y)
    out.backward(tensor(ONES))
    return (time.process_time() - start) / LENGTH
