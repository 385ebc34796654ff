"""Where the time of a training step goes: each op of the paper's network, on one thread, 25 images
(half a batch).

Times are of the processor, not of the clock, so they tolerate a busy machine. Products of matrices
are compared with the speed that this BLAS reaches with large square matrices, which no code of ours
can exceed."""

import argparse
import os
import time
from collections import defaultdict
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from tinyprop import nn
from tinyprop.engine.graph import Op
from tinyprop.functional.windows import Shape
from tinyprop.optim import SGD
from tinyprop.report.environment import machine, versions
from tinyprop.report.table import Table
from tinyprop.train import TrainingStep, keep_freed_memory

from .cases import LEARNING, Case
from .clock import Clock, watched
from .work import REST, convolution_work, gradient, shape_after, window_of

WARM_UP = 3
LEAST = 0.5  # ms, for a row of its own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, default=15, help="steps that the medians are taken over (default 15)"
    )
    parser.add_argument("--images", type=int, default=25, help="batch size (default 25)")
    parser.add_argument("--width", type=float, default=1.0, help="of the network (default 1)")
    # `publish` has its own
    parser.set_defaults(load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None)


def run(options: argparse.Namespace) -> int:
    print(measured(options))
    return 0


def measured(options: argparse.Namespace) -> str:
    keep_freed_memory()
    case = Case("profile", "NormProp", batch=options.images, width=options.width)
    net, (images, labels) = case.build(), case.data()
    step = TrainingStep(net, SGD(net.parameters(), **LEARNING), threads=1)
    rounds = []
    with threadpool_limits(1):
        best = peak()
        for _ in range(WARM_UP + options.steps):
            clock = Clock(time.thread_time, lambda a, b: b - a)
            clock.mark()
            with watched(clock, with_shapes):
                step(images, labels)
            clock.mark()
            rounds.append({name: share.seconds for name, share in clock.shares().items()})
    spent = {name: 1e3 * median(r[name] for r in rounds[WARM_UP:]) for name in rounds[0]}
    return page(spent, products(net, images.shape), best, options)


def with_shapes(op: Op, name: str) -> str:
    shapes = [getattr(op, key) for key in ("image", "filters") if hasattr(op, key)]
    return " ".join([name, *("x".join(map(str, shape)) for shape in shapes)])


def products(net: nn.Sequential, shape: Shape) -> dict[str, float]:
    """The arithmetic of the matrix products of each convolution and of its gradients, by the labels
    of the ops."""
    flops: defaultdict[str, float] = defaultdict(float)
    first = True
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
            label = f"{'x'.join(map(str, shape))} {'x'.join(map(str, layer.weight.shape))}"
            for name, work in convolution_work(
                window_of(layer), shape, layer.weight.shape, first, exact=False
            ):
                if name in ("Convolve", gradient("Convolve")):
                    flops[f"{name} {label}"] += work.flops
            first = False
        shape = shape_after(layer, shape)
    return flops


def peak() -> float:
    """FLOP/s of a large product on one thread."""
    a = np.ones((2048, 2048), np.float32)
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        a @ a
        seconds.append(time.thread_time() - start)
    return 2 * 2048**3 / min(seconds)


def page(
    spent: dict[str, float], flops: dict[str, float], best: float, options: argparse.Namespace
) -> str:
    """PROFILE.md."""
    here = machine()
    least = 1e3 * sum(flops.values()) / best
    rows = [
        [name, f"{ms:.1f}", f"{1e3 * flops.get(name, 0.0) / best:.1f}"]
        for name, ms in sorted(spent.items(), key=lambda item: -item[1])
        if ms >= LEAST and name != REST
    ]
    small = sum(ms for name, ms in spent.items() if ms < LEAST and name != REST)
    rows.append([f"less than {LEAST} ms each", f"{small:.1f}", ""])
    rows.append(["everything else: graph, update, constraint", f"{spent[REST]:.1f}", ""])
    rows.append(["**sum**", f"**{sum(spent.values()):.0f}**", f"**{least:.0f}**"])
    where = f"{options.images} images on one thread of {here['cpu']} ({here['blas']})"
    load = "" if options.load is None else f"; load of the machine before: {options.load:.2f}"
    gflop = sum(flops.values()) / 1e9
    return f"""# Where the time of a step goes

Written by `python -m benchmarks profile` with tinyprop {versions()["tinyprop"]}: \
{where}, medians of {options.steps} steps, in milliseconds of the processor{load}.
Each op, forward and backward, is compared with what its products of matrices would take at the \
speed of BLAS; other frameworks are not measured here.
The products of matrices have {gflop:.1f} GFLOP; at the {best / 1e9:.0f} GFLOP/s that a product of \
2048 x 2048 reaches here they take {least:.0f} ms.

{Table(["what", "ms", "products at that speed"], rows).markdown()}"""
