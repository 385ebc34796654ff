"""The time of a training step on a CUDA device: launched kernel by kernel, and replayed as a CUDA
graph.

CUDA events between consecutive steps tell the time, while batches are uploaded as in training."""

import argparse
from itertools import pairwise, repeat
from statistics import median
from typing import Any

from tinyprop import __version__, nn
from tinyprop.data import GlobalNormalizer, prefetched
from tinyprop.engine.arrays import HostArray, load_module, use_backend
from tinyprop.engine.random import manual_seed, new_generator
from tinyprop.optim import SGD
from tinyprop.report import environment
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table
from tinyprop.train import TrainingStep

from .cases import LEARNING, NORMS
from .report import milliseconds, spread

WARM_UP = 3  # steps: kernels are compiled, memory is taken from the device, a graph is recorded
WAYS = {"kernel by kernel": False, "CUDA graph": True}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=whole_number(1), default=50, help="steps that are timed (default 50)"
    )
    parser.add_argument("--width", type=float, default=1.0, help="of the network (default 1)")
    parser.add_argument("--batch", type=whole_number(1), default=50, help="images (default 50)")


def run(options: argparse.Namespace) -> int:
    problem = environment.diagnose(environment.look())
    if problem:
        raise ValueError(problem)
    print(about())
    print(table(options.steps, options.width, options.batch).text())
    return 0


def about() -> str:
    """The device, and the versions of what runs on it."""
    cupy: Any = load_module("cupy")
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    version = cupy.cuda.runtime.runtimeGetVersion()
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return f"{name}; tinyprop {__version__}, CuPy {cupy.__version__}, CUDA {cuda}"


def table(steps: int, width: float, batch: int) -> Table:
    rows = []
    for norm, name in NORMS.items():
        for way, graph in WAYS.items():
            seconds = measured(norm, graph, steps, width, batch)
            typical = median(seconds)
            speed = f"{batch / typical:,.0f}"
            rows.append([name, way, milliseconds(typical), spread(seconds), speed])
    header = ["network", "launched", "ms", "least-most", "images/s"]
    note = f"The paper's network at width {width:g}, {batch} images, float32; medians of {steps}."
    return Table(header, rows, "A training step on the device", note, "llrrr")


def measured(norm: str, graph: bool, steps: int, width: float, batch: int) -> list[float]:
    """The seconds from the end of each step to the end of the next."""
    cupy: Any = load_module("cupy")
    images, labels = random_batch(batch)
    step = training_step(norm, graph, width, images)
    stream = cupy.cuda.get_current_stream()
    ends = []
    for x, y in prefetched(repeat((images, labels), WARM_UP + steps), "cupy"):
        step(x, y)
        ends.append(stream.record())
    ends[-1].synchronize()
    timed = ends[WARM_UP - 1 :]
    return [cupy.cuda.get_elapsed_time(start, end) / 1e3 for start, end in pairwise(timed)]


def random_batch(size: int) -> tuple[HostArray, HostArray]:
    random = new_generator(1)
    images = random.integers(0, 256, (size, 3, 32, 32), "uint8")
    labels = random.integers(0, 10, size)
    return images, labels


def training_step(norm: str, graph: bool, width: float, images: HostArray) -> TrainingStep:
    """A step of the paper's network on the device; the network normalizes the images first."""
    manual_seed(0)
    with use_backend("cupy"):
        normalizer = GlobalNormalizer(images.shape[1:]).fit(images)
        net = nn.Sequential(normalizer, *nn.build(nn.NIN, norm=norm, width=width))
    return TrainingStep(net, SGD(net.parameters(), **LEARNING), graph=graph)
