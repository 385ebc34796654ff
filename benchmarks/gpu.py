"""A training step on a CUDA device: how fast it is, how near to what the device can do, and where
its time goes."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from tqdm import tqdm

from tinyprop import __version__, nn
from tinyprop.data import GlobalNormalizer, prefetched
from tinyprop.engine.arrays import load_module, to_backend, use_backend
from tinyprop.engine.random import manual_seed, new_generator
from tinyprop.kernels import cuda
from tinyprop.optim import SGD
from tinyprop.report import environment, plots
from tinyprop.report.arguments import whole_number
from tinyprop.report.table import Table
from tinyprop.train import TrainingStep

from . import figures
from .cases import LEARNING
from .clock import Clock, Share, watched
from .report import megabytes, milliseconds, spread, write_page
from .work import REST, Work, step_work, whole

NORMS = {"normprop": "NormProp", "batch": "BatchNorm"}
BATCH = 50
WARM_UP = 3  # steps: kernels are compiled, memory is taken from the device
LONGEST_HOLD = 0.5  # seconds
USUAL_CLOCK = 1_500_000  # kHz, if a device does not tell
HOLD = """__global__ void hold(long long cycles) {
    for (const long long start = clock64(); clock64() - start < cycles;) {}
}"""
LEAST_SHARE = 0.01  # of the time of a step, for a line in the table

# FP32 cores of a multiprocessor, by compute capability: Common/helper_cuda.h of
# https://github.com/NVIDIA/cuda-samples
CORES = {
    "50": 128,
    "52": 128,
    "53": 128,
    "60": 64,
    "61": 128,
    "62": 128,
    "70": 64,
    "72": 64,
    "75": 64,
    "80": 64,
    "86": 128,
    "87": 128,
    "89": 128,
    "90": 128,
    "100": 128,
    "101": 128,
    "103": 128,
    "110": 128,
    "120": 128,
    "121": 128,
}


@dataclass(frozen=True)
class Device:
    """What a device tells of itself, 0 if it does not; and what it can do at best, which is then
    unknown."""

    name: str
    capability: str  # as "75"
    multiprocessors: int
    clock: int  # kHz
    memory_clock: int  # kHz
    bus_width: int  # bits

    @property
    def peak_flops(self) -> float | None:
        """A multiplication and an addition for each core and cycle.

        >>> t4 = Device("T4", "75", 40, 1_590_000, 5_001_000, 256)
        >>> f"{t4.peak_flops / 1e12:.1f} TFLOP/s, {t4.peak_bandwidth / 1e9:.0f} GB/s"
        '8.1 TFLOP/s, 320 GB/s'
        """
        return 2e3 * self.clock * self.multiprocessors * CORES.get(self.capability, 0) or None

    @property
    def peak_bandwidth(self) -> float | None:
        """Twice the width of the bus for each cycle: memory has a double data rate."""
        return 2e3 * self.memory_clock * self.bus_width / 8 or None


def this_device() -> Device:
    cupy = load_module("cupy")
    number = cupy.cuda.Device()
    # of CUDA 13 and later, the only place that tells clocks; a name may be missing
    facts = number.attributes
    name = cupy.cuda.runtime.getDeviceProperties(number.id)["name"].decode()
    told = [
        facts.get(k, 0)
        for k in ("MultiProcessorCount", "ClockRate", "MemoryClockRate", "GlobalMemoryBusWidth")
    ]
    return Device(name, number.compute_capability, *told)


@dataclass(frozen=True)
class Step:
    """What was measured of the training step of a network."""

    norm: str
    batch: int
    width: float
    seconds: list[float]  # from the end of a step to the end of the next
    host_seconds: list[float]  # that the host needs to order a step
    shares: dict[str, Share]  # on the device alone, without the waiting for the host
    work: dict[str, Work]
    # seconds of steps as a CUDA graph, from the end of one to the end of the next
    replayed: list[float]
    replay_host: list[float]  # seconds that the host needs to order one of these
    used: int  # bytes after the steps: weights, optimiser, data
    held: int  # bytes that the memory pool has taken from the device: what the steps needed at most

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class GpuResults:
    device: Device
    versions: dict[str, str]
    steps: list[Step] = field(default_factory=list)


def device_clock() -> Clock:
    """CUDA events; reading the time between two waits for the later one."""
    cuda = load_module("cupy").cuda

    def elapsed(start: Any, end: Any) -> float:
        end.synchronize()
        return cuda.get_elapsed_time(start, end) / 1e3

    return Clock(lambda: cuda.get_current_stream().record(), elapsed)


@contextmanager
def watched_kernels(clock: Clock) -> Iterator[None]:
    """Inside the block every op, the gradient of every op, and every fused kernel runs under the
    clock, by its name."""
    launch = cuda._launch

    def timed_launch(kernel: str, *arguments: Any, **options: Any) -> None:
        with clock.around(short(kernel)):
            launch(kernel, *arguments, **options)

    with watched(clock), patch.object(cuda, "_launch", timed_launch):
        yield


def short(kernel: str) -> str:
    """The name of a kernel without its file.

    >>> short("tiles.map_tiles")
    'map_tiles'
    """
    return kernel.partition(".")[2]


def measured(steps: int = 50, width: float = 1.0, batch: int = BATCH) -> GpuResults:
    """Measure the training step of the paper's network on the device, with NormProp and with
    BatchNorm."""
    cupy = load_module("cupy")
    runtime = cupy.cuda.runtime
    numbers = {"CUDA": runtime.runtimeGetVersion(), "driver of CUDA": runtime.driverGetVersion()}
    versions = {"tinyprop": __version__, "CuPy": cupy.__version__}
    versions |= {name: f"{v // 1000}.{v % 1000 // 10}" for name, v in numbers.items()}
    results = GpuResults(this_device(), versions)
    for norm in NORMS:
        results.steps.append(measure(norm, width, batch, steps))
    return results


def measure(norm: str, width: float, batch: int, steps: int) -> Step:
    cupy = load_module("cupy")
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.used_bytes(), pool.total_bytes()
    random = new_generator(1)
    images, labels = (
        random.integers(0, 256, (batch, 3, 32, 32), "uint8"),
        random.integers(0, 10, batch),
    )
    manual_seed(0)
    with use_backend("cupy"):
        net = nn.Sequential(
            GlobalNormalizer(images.shape[1:]).fit(images),
            *nn.build(nn.NIN, norm=norm, width=width),
        )
    # kernel by kernel, to be watched
    step = TrainingStep(net, SGD(net.parameters(), **LEARNING), graph=False)

    stream, ends = cupy.cuda.get_current_stream(), []
    # as in training: uploads overlap
    batches = prefetched(repeat((images, labels), WARM_UP + steps), "cupy")
    for x, y in tqdm(
        batches, desc=NORMS[norm], total=WARM_UP + steps, unit="step", disable=None, leave=False
    ):
        step(x, y)
        ends.append(stream.record())
    ends[-1].synchronize()
    seconds = [cupy.cuda.get_elapsed_time(a, b) / 1e3 for a, b in pairwise(ends[WARM_UP - 1 :])]
    used, held = pool.used_bytes() - before[0], pool.total_bytes() - before[1]

    x, y = to_backend(images, "cupy"), to_backend(labels, "cupy")
    profiler = import_module("cupyx.profiler")
    host_seconds = profiler.benchmark(
        step, (x, y), n_repeat=min(10, steps), name=norm, n_warmup=1
    ).cpu_times.tolist()
    clock = device_clock()
    hold(min(LONGEST_HOLD, 4 * max(host_seconds)), this_device().clock or USUAL_CLOCK)
    with watched_kernels(clock):
        clock.mark()
        step(x, y)
        clock.mark()
    work = step_work(net, images.shape)
    replay = TrainingStep(net, SGD(net.parameters(), **LEARNING), graph=True)
    replayed, replay_host = [], []
    for _ in range(WARM_UP + steps):
        begin = time.perf_counter()
        replay(x, labels)
        replay_host.append(time.perf_counter() - begin)
        replayed.append(stream.record())
    replayed[-1].synchronize()
    graph = [cupy.cuda.get_elapsed_time(a, b) / 1e3 for a, b in pairwise(replayed[WARM_UP - 1 :])]
    return Step(
        norm,
        batch,
        width,
        seconds,
        host_seconds,
        clock.shares(),
        work,
        graph,
        replay_host[WARM_UP:],
        used,
        held,
    )


def hold(seconds: float, clock: int) -> None:
    """Keep a device busy for some seconds, given its clock in kHz, so that the host gets ahead of
    it."""
    module = load_module("cupy").RawModule(
        code=HOLD, options=("-std=c++17",), name_expressions=("hold",)
    )
    module.get_function("hold")((1,), (1,), (int(1e3 * clock * seconds),))


# -- tables and figures


def part(value: float, peak: float | None) -> str:
    return "-" if peak is None else f"{value / peak:.0%}"


def about(results: GpuResults) -> list[str]:
    d = results.device
    flops = "unknown" if d.peak_flops is None else f"{d.peak_flops / 1e12:.1f} TFLOP/s"
    bandwidth = "unknown" if d.peak_bandwidth is None else f"{d.peak_bandwidth / 1e9:.0f} GB/s"
    return [
        f"{d.name}, compute capability {d.capability[:-1]}.{d.capability[-1]}, "
        f"{d.multiprocessors} multiprocessors; "
        f"peak in float32 {flops}, of its memory {bandwidth}",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
    ]


def tables(results: GpuResults) -> list[Table]:
    return [way_table(results), step_table(results), *(share_table(step) for step in results.steps)]


def way_table(results: GpuResults) -> Table:
    """The table of GPU.md, measured."""
    rows = []
    for s in results.steps:
        device = milliseconds(sum(share.seconds for share in s.shares.values()))
        for way, seconds, host in (
            ("eager", s.seconds, s.host_seconds),
            ("graph", s.replayed, s.replay_host),
        ):
            times = [device, milliseconds(median(host)), milliseconds(median(seconds))]
            rows.append(
                [
                    NORMS[s.norm],
                    results.device.name,
                    way,
                    *times,
                    f"{s.batch / median(seconds):,.0f}",
                ]
            )
    header = ["network", "device", "way", "device, ms", "host, ms", "step, ms", "images/s"]
    return Table(header, rows, "The step, to compare with benchmarks/GPU.md")


def step_table(results: GpuResults) -> Table:
    d, rows = results.device, []
    for s in results.steps:
        work = whole(s.work)
        flops, bandwidth = work.flops / s.median, work.bytes / s.median
        speed = [
            milliseconds(s.median),
            spread(s.seconds),
            f"{s.batch / s.median:,.0f}",
            milliseconds(median(s.host_seconds)),
        ]
        rates = [f"{flops / 1e12:.2f}", part(flops, d.peak_flops), f"{bandwidth / 1e9:.0f}"]
        memory = [megabytes(s.used), megabytes(s.held)]
        rows.append([NORMS[s.norm], *speed, *rates, part(bandwidth, d.peak_bandwidth), *memory])
    header = [
        "network",
        "ms",
        "least-most",
        "images/s",
        "host ms",
        "TFLOP/s",
        "of peak",
        "GB/s",
        "of peak",
    ]
    first = results.steps[0]
    note = (
        f"The paper's network at width {first.width:g}, {first.batch} images, float32; median of "
        f"{len(first.seconds)} "
        "steps in a row, batches uploaded from pinned memory. If the host needs as long to order "
        "a step as the step "
        "takes, the device waits for it. FLOPs and bytes are counted from the geometry of the "
        "network; what tiles "
        "save of plain convolution is not counted. MB: used by weights, optimiser and data, and "
        "held by the memory "
        "pool, which is what the steps needed at most."
    )
    return Table([*header, "MB used", "MB held"], rows, "A training step on the device", note)


def share_table(step: Step) -> Table:
    total = sum(share.seconds for share in step.shares.values())
    rows, rest = [], 0.0
    for name, share in step.shares.items():
        if share.seconds < LEAST_SHARE * total or name == REST:
            rest += share.seconds
            continue
        work, cells = step.work.get(name), ["-"] * 4
        if work:
            rates = work.flops / share.seconds / 1e12, work.bytes / share.seconds / 1e9
            cells = [
                f"{work.flops / 1e9:.2f}",
                f"{work.bytes / 1e6:.0f}",
                f"{rates[0]:.2f}",
                f"{rates[1]:.0f}",
            ]
        rows.append(
            [
                name,
                str(share.calls),
                milliseconds(share.seconds),
                f"{share.seconds / total:.0%}",
                *cells,
            ]
        )
    rows.append([REST, "-", milliseconds(rest), f"{rest / total:.0%}", *["-"] * 4])
    header = ["kernel or op", "calls", "ms", "share", "GFLOP", "MB", "TFLOP/s", "GB/s"]
    note = (
        f"One step of {milliseconds(total)} ms by CUDA events around every op and fused kernel, "
        "ordered while the "
        "device was held up, so that it never waited for the host. An op (in capitals) has what "
        "its fused kernels "
        "leave: for convolutions, the matrix products."
    )
    return Table(header, rows, f"Where the time of a {NORMS[step.norm]} step goes", note)


def write(results: GpuResults, out: Path) -> list[Path]:
    """The page, and a roofline for each network."""
    paths = write_page(
        out, "gpu", "Benchmark on a device", about(results), tables(results), results
    )
    d = results.device
    for step in results.steps:
        title = f"{NORMS[step.norm]} step on {d.name}"
        figure = figures.roofline(title, d.peak_flops, d.peak_bandwidth, points(step))
        paths += [
            plots.save(figure, out / f"roofline_{step.norm}.{kind}") for kind in ("png", "svg")
        ]
    return paths


def points(step: Step) -> dict[str, tuple[float, float]]:
    """FLOPs per byte, and FLOPs per second, of the whole step and of each kernel that matters."""
    total = sum(share.seconds for share in step.shares.values())
    parts = [("the whole step", whole(step.work), step.median)]
    for name, share in step.shares.items():
        if name in step.work and share.seconds >= LEAST_SHARE * total:
            parts.append((name, step.work[name], share.seconds))
    return {
        name: (work.flops / work.bytes, work.flops / seconds)
        for name, work, seconds in parts
        if work.flops
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--predict", action="store_true", help="write GPU.md instead; needs CuPy on emulated CUDA"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="write KERNELS.md instead; needs CuPy and cuobjdump"
    )
    parser.add_argument(
        "--steps", type=whole_number(1), default=50, help="steps that are timed (default 50)"
    )
    parser.add_argument("--width", type=float, default=1.0, help="of the network (default 1)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="output directory (default runs/bench)"
    )


def run(options: argparse.Namespace) -> int:
    if options.predict:
        from . import gpu_prediction

        print(gpu_prediction.write())
        return 0
    if options.kernels:
        from . import gpu_kernels

        print(gpu_kernels.write())
        return 0
    if problem := environment.diagnose(environment.look()):
        raise ValueError(problem)
    results = measured(options.steps, options.width)
    print("\n\n".join(["\n".join(about(results)), *(table.text() for table in tables(results))]))
    for path in write(results, options.out):
        print(path)
    return 0
