"""Where the time of a training step goes: each op of the paper's network, on one thread, 25 images (a half of a batch).

    python benchmarks/profile_step.py > benchmarks/PROFILE.md

Times are of the processor, not of the clock, so they bear with a busy machine; medians over steps. Products are held
against what this BLAS reaches with large square matrices: that is the time below which no code of ours can bring them.
In the end the same on the clock, alone and beside a second thread with as many images: what threads cost each other.
"""

import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from statistics import median
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

import tinyprop as tp
from tinyprop.bench.cases import Case
from tinyprop.bench.engines import LEARNING
from tinyprop.bench.runner import machine
from tinyprop.bench.work import convolution_work, gradient
from tinyprop.engine.graph import Op
from tinyprop.functional.convolution import Convolve

IMAGES, STEPS, WARM_UP = 25, 15, 3


class Clock:
    """The time of nested pieces of work, each without what is inside it; and the arithmetic of their products."""

    def __init__(self):
        self.spent, self.inside, self.flops = defaultdict(float), [], defaultdict(float)
        self.names = [""]

    @contextmanager
    def around(self, what):
        start = time.thread_time()
        self.inside.append(0.0)
        self.names.append(what)
        yield
        self.names.pop()
        took = time.thread_time() - start
        self.spent[what] += took - self.inside.pop()
        if self.inside:
            self.inside[-1] += took


def timed(clock, call, op, *inputs):
    """An op, called. If it computes a gradient, it is a part of that."""
    if clock.names[-1].startswith("gradients of"):
        return call(op, *inputs)
    shapes = [x.shape for x in inputs if getattr(x, "ndim", 0) == 4]
    what = f"{type(op).__name__} {by_name(*shapes)}" if shapes else f"{type(op).__name__}, small"
    if isinstance(op, Convolve):
        clock.flops[what] += products(op, "Convolve")
    with clock.around(what):
        return call(op, *inputs)


def timed_gradients(clock, call, op, g):
    """The gradients of an op."""
    what = f"gradients of {type(op).__name__}"
    if isinstance(op, Convolve):
        what += f" {by_name(op.image, op.filters)}"
        clock.flops[what] += products(op, gradient("Convolve"))
    with clock.around(what):
        parts = call(op, g)
    return [partial(inside, clock, what, part) if callable(part) else part for part in parts]


def by_name(*shapes):
    return " and ".join("x".join(map(str, shape)) for shape in shapes)


def products(op, name):
    """The arithmetic of a convolution, or of those of its gradients that are wanted."""
    first = name != "Convolve" and op.parents[0] is None
    work = convolution_work(op.window, op.image, op.filters, first, exact=False)
    return sum(part.flops for what, part in work if what == name)


def peak():
    """GFLOP/s of a large product on one thread."""
    a = np.ones((2048, 2048), np.float32)
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        a @ a
        seconds.append(time.thread_time() - start)
    return 2 * 2048**3 / min(seconds) / 1e9


def main():
    tp.train.keep_freed_memory()  # as the commands do
    case = Case("profile", "NormProp", batch=IMAGES)
    net, (images, labels) = case.build(), case.data()
    optimizer = tp.optim.SGD(net.parameters(), **LEARNING)
    step = tp.train.TrainingStep(net, optimizer, threads=1)
    rounds, call, gradients = [], Op.__call__, Op.gradients
    with threadpool_limits(1):
        best = peak()
        for i in range(WARM_UP + STEPS):
            clock = Clock()
            with (
                mock.patch.object(Op, "__call__", lambda op, *inputs, clock=clock: timed(clock, call, op, *inputs)),
                mock.patch.object(Op, "gradients", lambda op, g, clock=clock: timed_gradients(clock, gradients, op, g)),
                mock.patch.object(optimizer, "step", partial(inside, clock, "update of the weights", optimizer.step)),
                clock.around("everything else: graph, constraint, sums over parts"),
            ):
                step(images, labels)
            if i >= WARM_UP:
                rounds.append(clock.spent)
    spent = {what: 1000 * median(r[what] for r in rounds) for what in rounds[0]}
    gflop = sum(clock.flops.values()) / 1e9
    about = machine()
    where = f"{IMAGES} images on one thread of {about['cpu']} ({about['blas']}), medians of {STEPS} steps"
    floor = f"at the {best:.0f} GFLOP/s that a product of 2048 x 2048 reaches here"
    print("# Where the time of a step goes\n")
    print(f"Written by `benchmarks/profile_step.py`: {where}, in milliseconds of the processor.")
    print(f"The products of matrices have {gflop:.1f} GFLOP; {floor} they take {1000 * gflop / best:.0f} ms.\n")
    print("| what | ms | products at that speed |\n| --- | ---: | ---: |")
    for what, ms in sorted(spent.items(), key=lambda item: -item[1]):
        if ms >= 0.5:
            print(f"| {what} | {ms:.1f} | {clock.flops[what] / best / 1e6:.1f} |")
    print(f"| less than half a millisecond each | {sum(ms for ms in spent.values() if ms < 0.5):.1f} | |")
    print(f"| **sum** | **{sum(spent.values()):.0f}** | **{1000 * gflop / best:.0f}** |\n")
    alone, together = on_the_clock()
    print(f"On the clock, {IMAGES} images on one thread take {alone:.0f} ms, {2 * IMAGES} on two {together:.0f}.")
    print(
        "The difference is the price of threads: waits for Python's lock, shared caches, and the sum of the gradients."
    )


def on_the_clock():
    """Milliseconds of a step with a batch for one thread, and with one for two."""
    case = Case("profile", "NormProp", batch=2 * IMAGES)
    net, (images, labels) = case.build(), case.data()
    optimizer = tp.optim.SGD(net.parameters(), **LEARNING)
    steps = [(tp.train.TrainingStep(net, optimizer, threads=n), slice(n * IMAGES)) for n in (1, 2)]
    taken = [[], []]
    with threadpool_limits(1):
        for _ in range(WARM_UP + 2 * STEPS):
            for seconds, (step, part) in zip(taken, steps, strict=True):
                start = time.perf_counter()
                step(images[part], labels[part])
                seconds.append(time.perf_counter() - start)
    return [1000 * median(seconds[WARM_UP:]) for seconds in taken]


def inside(clock, what, call):
    with clock.around(what):
        return call()


if __name__ == "__main__":
    main()
