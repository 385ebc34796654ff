"""Where the time of a training step goes: each op of the paper's network, on one thread, 25 images
(half a batch).

Times are of the processor, not of the clock, so they tolerate a busy machine."""

import argparse
from pathlib import Path
from statistics import median

from threadpoolctl import threadpool_limits

from tinyprop.engine.graph import Op
from tinyprop.optim import SGD
from tinyprop.report.arguments import whole_number
from tinyprop.report.environment import machine, versions
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table
from tinyprop.train import TrainingStep, keep_freed_memory

from .cases import LEARNING, Case
from .clock import REST, Clock, watched

STEPS = 15
IMAGES = 25
WARM_UP = 3
LEAST = 0.5  # ms, for a row of its own
Milliseconds = dict[str, float]  # by op


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps",
        type=whole_number(1),
        default=STEPS,
        help=f"steps to take the median of (default {STEPS})",
    )
    parser.add_argument(
        "--images", type=whole_number(1), default=IMAGES, help=f"batch size (default {IMAGES})"
    )
    parser.add_argument("--width", type=float, default=1.0, help="of the network (default 1)")
    parser.add_argument("--out", type=Path, help="a directory for PROFILE.md (default: none)")


def run(options: argparse.Namespace) -> int:
    spent = measured(options.steps, options.images, options.width)
    text = page(spent, options.steps, options.images)
    print(text)
    if options.out is not None:
        write_whole(options.out / "PROFILE.md", f"{text}\n".encode())
    return 0


def measured(steps: int = STEPS, images: int = IMAGES, width: float = 1.0) -> Milliseconds:
    keep_freed_memory()
    case = Case("NormProp", batch=images, width=width)
    net = case.build()
    x, labels = case.data()
    step = TrainingStep(net, SGD(net.parameters(), **LEARNING), threads=1)
    rounds = []
    with threadpool_limits(1):
        for _ in range(WARM_UP + steps):
            clock = Clock()
            with watched(clock, with_shapes):
                step(x, labels)
            rounds.append(clock.seconds)
    counted = rounds[WARM_UP:]
    return {name: 1e3 * median(seconds[name] for seconds in counted) for name in rounds[0]}


def with_shapes(op: Op, name: str) -> str:
    """The name, and the shapes of images and filters, if the op has them."""
    words = [name]
    for key in ("image", "filters"):
        if hasattr(op, key):
            words.append("x".join(map(str, getattr(op, key))))
    return " ".join(words)


def page(spent: Milliseconds, steps: int, images: int) -> str:
    """PROFILE.md."""
    here = machine()
    where = f"{images} images on one thread of {here['cpu']} ({here['blas']})"
    return f"""# Where the time of a step goes

Written by `python -m benchmarks profile` with tinyprop {versions()["tinyprop"]}: {where}.
Medians of {steps} steps, in milliseconds of the processor.

{table(spent).markdown()}"""


def table(spent: Milliseconds) -> Table:
    """A row for each op that takes long enough, the longest first."""
    ops = {name: ms for name, ms in spent.items() if name != REST}
    small = sum(ms for ms in ops.values() if ms < LEAST)
    rows = []
    for name, ms in sorted(ops.items(), key=lambda item: -item[1]):
        if ms >= LEAST:
            rows.append([name, f"{ms:.1f}"])
    rows.append([f"less than {LEAST} ms each", f"{small:.1f}"])
    rows.append([REST, f"{spent[REST]:.1f}"])
    rows.append(["**sum**", f"**{sum(spent.values()):.0f}**"])
    return Table(["what", "ms"], rows)
