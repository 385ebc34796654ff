"""What a training step costs on n workers: measured on this machine, predicted for clusters.

A step of n workers takes as long as the slowest worker's share of the batch, what every worker does
for itself (the update), and the sums: T(n) = max over workers of (fixed + image * ceil(batch / n))
+ update + sums(n). For the sums each worker sends its slices to the others, adds up what it
received, and sends the result to all. These are 2 (n - 1) messages of bytes / n each: sums(n) = 2
(n - 1) (latency + bytes / n / bandwidth) + bytes / memory."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.ledger import Ledger, run_name
from tinyprop.experiments.scales import IMAGES, SCALES
from tinyprop.experiments.study import Study
from tinyprop.parallel.ranks import Ranks
from tinyprop.report.arguments import whole_number
from tinyprop.report.environment import machine
from tinyprop.report.files import write_json, write_whole
from tinyprop.report.table import Table
from tinyprop.train import Config, TrainingStep, network

PAGE = Path(__file__).with_name("RANKS.md")
BATCH = 50  # the paper's
WIDTHS = (0.25, 1.0)
SHARES = (50, 25, 13, 7)  # of a batch of 50, on 1 to 8 workers
SIZES = (1_000, 10_000, 100_000, 1_000_000)  # numbers in a buffer
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST = 4096  # workers, where a crossover is looked for
TRIALS = 2000  # simulated steps
MARGIN = 1.15  # what two ranks may cost, in steps of two threads


@dataclass(frozen=True)
class Network:
    """How workers are connected."""

    name: str
    latency: float  # seconds a message
    bandwidth: float  # bytes a second, of one worker


ETHERNET = Network("10 Gb/s Ethernet", 30e-6, 1.1e9)
INFINIBAND = Network("100 Gb/s InfiniBand", 2e-6, 11e9)
CLUSTERS = (ETHERNET, INFINIBAND)
BATCHES: dict[str, Callable[[int], int]] = {
    "a batch of 50": lambda n: BATCH,
    "50 images each": lambda n: BATCH * n,
}


@dataclass(frozen=True)
class Step:
    """The costs of a step of one network on one thread of this machine, in seconds, and the size of
    its buffer."""

    width: float
    fixed: float  # whatever the share
    image: float
    update: float
    size: int  # bytes
    jitter: list[float]  # times of single steps, relative to their median

    def computing(self, workers: int, batch: int) -> float:
        return self.fixed + self.image * ceil(batch / workers)


def sums(network: Network, memory: float, size: int, workers: int) -> float:
    """How many seconds it takes to sum a buffer of this many bytes."""
    if workers == 1:
        return 0.0
    return (
        2 * (workers - 1) * (network.latency + size / workers / network.bandwidth) + size / memory
    )


def simulated(step: Step, network: Network, memory: float, workers: int, batch: int) -> float:
    """Seconds of a step in which the slowest of the workers decides, each with a jitter as was
    measured."""
    random = np.random.default_rng(workers)
    slowest = random.choice(step.jitter, (TRIALS, workers)).max(axis=1).mean()
    return (
        slowest * step.computing(workers, batch)
        + step.update
        + sums(network, memory, step.size, workers)
    )


def crossover(
    step: Step, network: Network, memory: float, batch: Callable[[int], int]
) -> int | None:
    """From how many workers on the sums take longer than computing."""
    longer = (
        n
        for n in range(2, MOST + 1)
        if sums(network, memory, step.size, n) > step.computing(n, batch(n)) + step.update
    )
    return next(longer, None)


# -- measured, in a job of two ranks


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def prepared(width: float, threads: int, ranks: Ranks | None = None) -> TrainingStep:
    images = np.random.default_rng(0).normal(size=(BATCH, 3, 32, 32)).astype("float32")
    tp.manual_seed(0)
    net = network(Config(width=width), images, 10)
    optimizer = tp.optim.SGD(net.parameters(), 0.01, 0.9, 0.001)
    return TrainingStep(net, optimizer, threads=threads, ranks=ranks)


def measure(repeats: int) -> dict[str, Any] | None:
    """What rank 0 of two finds, in turns: steps on one thread, on two threads, and on two ranks of
    a thread each."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    assert comm.size == 2
    ranks = Ranks(comm, here=2)

    def meet() -> None:  # without keeping the core busy, as an MPI that waits does
        request = comm.Ibarrier()
        while not request.Test():
            time.sleep(0.001)

    def turns(work: Callable[[], Any], everyone: bool) -> float:
        meet()
        seconds = timed(work) if everyone or ranks.first else 0.0
        meet()
        return seconds

    random = np.random.default_rng(0)
    images, labels = (
        random.normal(size=(BATCH, 3, 32, 32)).astype("float32"),
        random.integers(0, 10, BATCH),
    )
    found: dict[str, Any] = {"steps": {}, "sums": {}}
    for width in WIDTHS:
        steps = {
            "one thread": prepared(width, 1),
            "two threads": prepared(width, 2),
            "two ranks": prepared(width, 1, ranks),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        shares: dict[int, list[float]] = {share: [] for share in SHARES}
        for turn in range(repeats + 1):  # the first is not counted
            for name, step in steps.items():
                for _ in range(3):
                    seconds = turns(partial(step, images, labels), name == "two ranks")
                    times[name] += [seconds] if turn else []
            for share in SHARES:
                x, y = images[:share], labels[:share]
                seconds = turns(partial(steps["one thread"], x, y), False)
                shares[share] += [seconds] if turn else []
        step = steps["one thread"]

        def update(step: TrainingStep = step) -> None:
            for p in step.optimizer.params:
                p.grad = tp.tensor(p.data)
            step.optimizer.step()
            tp.optim.normalize_weights(step.model)

        updates = [turns(update, False) for _ in range(repeats)]
        size = 4 * (2 + sum(p.size for p in step.optimizer.params))
        found["steps"][str(width)] = {
            "times": times,
            "shares": shares,
            "updates": updates,
            "bytes": size,
        }
    for size in SIZES:
        numbers = np.ones(size, "float32")
        seconds = [turns(partial(ranks.add_up, numbers), True) for _ in range(20 * repeats)]
        found["sums"][str(size)] = seconds[repeats:]
    return found if ranks.first else None


def fitted(width: float, found: dict[str, Any]) -> Step:
    """A straight line through the times of shares; the update is not a part of it."""
    update = median(found["updates"])
    shares = sorted(
        (int(share), median(times) - update) for share, times in found["shares"].items()
    )
    image, fixed = np.polyfit(*zip(*shares, strict=True), 1)
    alone = found["times"]["one thread"]
    jitter = [seconds / median(alone) for seconds in alone]
    return Step(width, max(0.0, float(fixed)), float(image), update, found["bytes"], jitter)


def machine_network(found: dict[str, list[float]]) -> Network:
    """Latency and bandwidth between two ranks of this machine: a line through the times of sums, 2
    messages each."""
    points = [(4 * int(size) / 2, median(seconds) / 2) for size, seconds in found.items()]
    sizes, seconds = np.array(points).T
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return Network(
        "this machine", float(max(1e-7, seconds[0] - slope * sizes[0])), float(1.0 / slope)
    )


def memory_speed() -> float:
    """Bytes a second at which one thread adds one array to another."""
    a, b = np.ones(4_000_000, "float32"), np.ones(4_000_000, "float32")
    return a.nbytes / min(timed(lambda: np.add(a, b, out=a)) for _ in range(20))


# -- the page


def sweep(step: Step) -> tuple[int, float, float]:
    """Runs of the paper-scale sweep, their core-hours, and the hours of the longest."""
    nowhere = Path("nothing is finished")
    study = Study(list(EXPERIMENTS.values()), SCALES["paper"], Ledger(nowhere), nowhere)
    arms = [arm for experiment in study.experiments() for arm in experiment.arms.values()]
    configs = {run_name(config): config for arm in arms for config in study.configs(arm)}
    images = {"svhn": 598_388}  # train and extra, without 600 of each class for validation
    hours = [
        c.epochs
        * (
            (c.train_size or images.get(c.data, IMAGES))
            * (step.image + (step.fixed + step.update) / c.batch_size)
        )
        * (c.width / step.width) ** 1.2
        / 3600
        for c in configs.values()
    ]
    return len(hours), sum(hours), max(hours)


def page(found: dict[str, Any], repeats: int) -> str:
    memory, here = found["memory"], machine_network(found["sums"])
    steps = [fitted(width, found["steps"][str(width)]) for width in WIDTHS]
    lines = [
        "# A step on many workers",
        "",
        (
            "Made by `python -m benchmarks ranks`. (How the cost of one step grows with the "
            "network "
            "is another page.)"
        ),
        "",
        *__doc__.split("\n\n")[1].splitlines(),
        "",
        (
            f"Machine: {found['machine']}. float32, the paper's network, batches of {BATCH}; "
            "medians "
            f"of {3 * repeats}. The"
        ),
        (
            f"load of the machine was {found['load']:.1f} before: above 0 it was not idle, and "
            "times "
            "are too long."
        ),
        "",
    ]
    rows = []
    for step in steps:
        times = found["steps"][str(step.width)]["times"]
        model = simulated(step, here, memory, 2, BATCH)
        measured = [ms(median(t)) for t in times.values()]
        rows.append([f"{step.width:g}", *measured, f"{ratio(times):.2f}", ms(model)])
    header = [
        "width",
        "1 thread",
        "2 threads",
        "2 ranks",
        "ranks / threads",
        "2 ranks, by the model",
    ]
    lines += [Table(header, rows, "Measured on 1 and 2 workers (ms)").markdown(), ""]
    rows = [
        [
            f"{step.width:g}",
            ms(step.fixed),
            ms(step.image),
            ms(step.update),
            f"{step.size / 1e6:.2f}",
        ]
        for step in steps
    ]
    header = ["width", "fixed (ms)", "an image (ms)", "update (ms)", "buffer (MB)"]
    lines += [Table(header, rows, "The model's numbers").markdown(), ""]
    rows = [
        [
            n.name,
            f"{n.latency * 1e6:.1f}",
            f"{n.bandwidth / 1e9:.2f}",
            "measured" if n is here else "assumed",
        ]
        for n in (here, ETHERNET, INFINIBAND)
    ]
    lines += [
        Table(
            ["network", "latency (us)", "bandwidth (GB/s)", "source"], rows, "Networks"
        ).markdown(),
        "",
    ]
    lines += [
        "## Prediction",
        "",
        fill(
            "Nothing below was run. It assumes that a worker is a core like this machine's; that "
            "its steps scatter as "
            f"the {len(steps[0].jitter)} measured ones do, so that a machine that was busy makes "
            "the prediction worse; "
            "that sums and computing do not overlap; that no two messages share a link; and that "
            "the 2 (n - 1) "
            "messages follow one another, which for short ones is more than an MPI needs. A cell "
            "has the time of a "
            "step, the images per second, and the fraction of the time that the sums take.",
            120,
        ),
        "",
    ]
    for step in steps:
        for kind, batch in BATCHES.items():
            columns = ["workers", *(n.name for n in CLUSTERS)]
            rows = []
            for workers in WORKERS:
                cells = []
                for links in CLUSTERS:
                    total = simulated(step, links, memory, workers, batch(workers))
                    share = sums(links, memory, step.size, workers) / total
                    cells.append(f"{ms(total)} ms, {batch(workers) / total:,.0f}/s, {share:.0%}")
                rows.append([str(workers), *cells])
            lines += [Table(columns, rows, f"Width {step.width:g}, {kind}").markdown(), ""]
    rows = []
    for speed in (1, 10, 100):
        for step in (
            replace(s, fixed=s.fixed / speed, image=s.image / speed, update=s.update / speed)
            for s in steps
        ):
            found_at = [
                crossover(step, links, memory, batch)
                for batch in BATCHES.values()
                for links in CLUSTERS
            ]
            cells = [f"{n:,}" if n else f"above {MOST:,}" for n in found_at]
            rows.append([f"{speed} times a core, width {step.width:g}", *cells])
    header = ["worker", *(f"{links.name}, {kind}" for kind in BATCHES for links in CLUSTERS)]
    lines += [
        Table(
            header, rows, "From how many workers on the sums take longer than the rest"
        ).markdown(),
        "",
    ]
    runs, hours, longest = sweep(steps[-1])
    lines += [
        "## A sweep at the paper's scale",
        "",
        fill(
            f"`tinyprop reproduce all --scale paper` plans at most {runs} runs. At the measured "
            "cost of a step on one "
            f"thread their training takes {hours:,.0f} core-hours (costs of other widths are "
            "scaled by width^1.2). "
            f"Runs are independent: 8 workers need at least {max(longest, hours / 8):,.0f} "
            "hours, 256 workers "
            f"{max(longest, hours / 256):,.0f}. The longest single run takes {longest:,.0f} "
            "hours, and fewer on "
            "several ranks.",
            120,
        ),
        "",
    ]
    return "\n".join(lines)


def ratio(times: dict[str, list[float]]) -> float:
    """What a step on two ranks takes, in steps on two threads of the same turn."""
    return median(b / a for a, b in zip(times["two threads"], times["two ranks"], strict=True))


def ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 1 else f"{1000 * seconds:.3g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=7, help="turns of each measurement (default 7)"
    )
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="the page (default benchmarks/RANKS.md)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"fail if two ranks cost {MARGIN} of two threads, or more",
    )


def run(options: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    mpiexec = Path(sys.executable).with_name("mpiexec")
    program = [sys.executable, "-c", f"from {__name__} import worker; worker({options.repeats})"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(mpiexec), "-n", "2", *program],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    found = json.loads(done.stdout) | {"load": load}
    text = page(found, options.repeats)
    write_whole(options.out, text.encode())
    write_json(options.out.with_suffix(".json"), found)
    print(text)
    worst = max(ratio(some["times"]) for some in found["steps"].values())
    print(f"two ranks take {worst:.2f} of the time of two threads, at worst; the limit is {MARGIN}")
    return int(options.check and worst >= MARGIN)


def worker(repeats: int) -> None:
    found = measure(repeats)
    if found is not None:
        print(json.dumps(found | {"memory": memory_speed(), "machine": machine()["cpu"]}))
