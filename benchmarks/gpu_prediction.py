"""Predict the time of a training step on GPUs that nobody here has: GPU.md.

FLOPs and bytes are counted from the geometry of the network. Launches are counted by running a step on CuPy under
emulated CUDA (the package `emucupy`); they depend neither on the width of the network, from a quarter up, nor on the
batch size.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop import nn
from tinyprop.files import write_whole
from tinyprop.table import Table

from .gpu import BATCH, NORMS, Device
from .work import Work, step_work, whole

PAGE = Path(__file__).with_name("GPU.md")

DEVICES = [  # compute capability, multiprocessors, clock and memory clock in kHz, bus width in bits
    Device("T4", "75", 40, 1_590_000, 5_001_000, 256),
    Device("RTX 4090", "89", 128, 2_520_000, 10_501_000, 384),
    Device("H100 SXM", "90", 132, 1_980_000, 2_619_000, 5120),
]


@dataclass(frozen=True)
class Assumptions:
    arithmetic: float  # part of the peak that matrix products reach
    bandwidth: float  # part of the peak that kernels reach that read and write
    gap: float  # seconds on the device between two kernels
    host: float  # seconds of the host for each launch: Python, the engine and CuPy


BEST = Assumptions(0.8, 0.85, 1e-6, 10e-6)
WORST = Assumptions(0.4, 0.6, 3e-6, 30e-6)


@dataclass(frozen=True)
class Prediction:
    """Seconds."""

    kernels: dict[str, float]
    gaps: float
    host: float

    @property
    def device(self) -> float:
        return sum(self.kernels.values()) + self.gaps

    @property
    def step(self) -> float:
        """The host orders steps while the device works on earlier ones: the slower of both sets the pace."""
        return max(self.device, self.host)


def peaks(device: Device) -> tuple[float, float]:
    """FLOP/s and bytes per second of a device that states all of its clocks."""
    assert device.peak_flops
    assert device.peak_bandwidth
    return device.peak_flops, device.peak_bandwidth


def predict(device: Device, work: dict[str, Work], launches: int, assumed: Assumptions) -> Prediction:
    flops, bandwidth = assumed.arithmetic * peaks(device)[0], assumed.bandwidth * peaks(device)[1]
    kernels = {name: max(w.flops / flops, w.bytes / bandwidth) for name, w in work.items()}
    return Prediction(kernels, launches * assumed.gap, launches * assumed.host)


def counted_launches(norm: str) -> int:
    """Kernels, library calls and fills of memory in one step."""
    emucupy: Any = import_module("emucupy")
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (8, 3, 32, 32)).astype(np.uint8), random.integers(0, 10, 8)
    with tp.use_backend("cupy"):
        first = tp.data.GlobalNormalizer((3, 32, 32)).fit(images)
        net = nn.Sequential(first, *nn.build(nn.NIN, norm=norm, width=0.25))
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), 0.01, weight_decay=0.001))
    step(images, labels)
    emucupy.reset()
    step(images, labels)
    counts = emucupy.stats()
    return counts["launches"] + sum(counts["library_calls"].values()) + counts["memsets"]


def between(least: float, most: float) -> str:
    """Milliseconds, or thousands of images, as a range."""
    digits = 1 if most >= 10 else 2
    return f"{least:.{digits}f}-{most:.{digits}f}"


def table(rows: list[list[str]]) -> str:
    return Table(rows[0], rows[1:]).markdown()


def page(launches: dict[str, int]) -> str:
    """GPU.md, from the launches of a step with each way to normalise."""
    images = (BATCH, 3, 32, 32)
    works = {norm: step_work(nn.build(nn.NIN, norm=norm), images) for norm in NORMS}
    work = works["normprop"]
    ranges = {
        (norm, d.name): [predict(d, works[norm], launches[norm], a) for a in (BEST, WORST)]
        for norm in NORMS
        for d in DEVICES
    }

    devices = [["device", "multiprocessors x cores x clock x 2", "TFLOP/s", "memory clock x bus width x 2", "GB/s"]]
    for d in DEVICES:
        peak_flops, bandwidth = peaks(d)
        cores = peak_flops / (2e3 * d.clock * d.multiprocessors)
        flops = f"{d.multiprocessors} x {cores:.0f} x {d.clock / 1e6:.2f} GHz x 2"
        bytes_ = f"{d.memory_clock / 1e6:.3f} GHz x {d.bus_width} bits x 2"
        devices.append([d.name, flops, f"{peak_flops / 1e12:.1f}", bytes_, f"{bandwidth / 1e9:.0f}"])

    kernels = [["kernel or op", "GFLOP", "MB", *(f"{d.name}, ms" for d in DEVICES)]]
    for name, w in sorted(work.items(), key=lambda item: -item[1].bytes):
        parts = [[p.kernels[name] * 1e3 for p in ranges["normprop", d.name]] for d in DEVICES]
        kernels.append([name, f"{w.flops / 1e9:.2f}", f"{w.bytes / 1e6:.0f}", *(between(*p) for p in parts)])
    total = whole(work)
    sums = [[sum(p.kernels.values()) * 1e3 for p in ranges["normprop", d.name]] for d in DEVICES]
    kernels.append(["**sum**", f"{total.flops / 1e9:.2f}", f"{total.bytes / 1e6:.0f}", *(between(*s) for s in sums)])

    steps = [["network, device", "launches", "gaps, ms", "device, ms", "host, ms", "**step, ms**", "images/s"]]
    for (norm, name), both in ranges.items():
        gaps, device, host, step = (
            between(*(getattr(p, what) * 1e3 for p in both)) for what in ("gaps", "device", "host", "step")
        )
        rate = f"{BATCH / both[1].step:,.0f}-{BATCH / both[0].step:,.0f}"
        steps.append([f"{NORMS[norm]}, {name}", str(launches[norm]), gaps, device, host, f"**{step}**", rate])

    t4, example = DEVICES[0], work["Convolve"]
    peak_flops, bandwidth = peaks(t4)
    by_flops = [example.flops / (a.arithmetic * peak_flops) * 1e3 for a in (BEST, WORST)]
    by_bytes = [example.bytes / (a.bandwidth * bandwidth) * 1e3 for a in (BEST, WORST)]
    direct = whole(step_work(nn.build(nn.NIN), images, exact=True)).flops / 1e9
    return f"""# What a GPU should do

**A prediction.** None of this was measured on a GPU: nobody here has one. To check it on yours:

    python -m benchmarks gpu

prints the same kernels with their times; please report where it is off by more than the ranges. This page is written by
`python -m benchmarks gpu --predict`, and a test keeps it in step with the code.

The training step of the paper's network, full width, {BATCH} images, float32.

## Work

{table(kernels)}

GFLOP and MB are counted from the geometry of the network (`benchmarks/work.py`), for the NormProp step. Convolution
without tiles would take {direct:.1f} GFLOP in all. Times are the larger of FLOPs by arithmetic and bytes by bandwidth,
from best to worst. So for Convolve on a {t4.name}: {example.flops / 1e9:.2f} GFLOP / ({BEST.arithmetic:g} to \
{WORST.arithmetic:g} x {peak_flops / 1e12:.1f} TFLOP/s) = {between(*by_flops)} ms, and
{example.bytes / 1e6:.0f} MB / ({BEST.bandwidth:g} to {WORST.bandwidth:g} x {bandwidth / 1e9:.0f} GB/s) = \
{between(*by_bytes)} ms.

## Devices

{table(devices)}

These give what NVIDIA states: in the data sheets of the T4 (8.1 TFLOP/s, 320 GB/s) and of the H100 SXM (67 TFLOP/s,
3.35 TB/s), and in the white paper of the Ada architecture for the RTX 4090 (82.6 TFLOP/s, 1008 GB/s). Cores by compute
capability are those of NVIDIA's cuda-samples. TF32 is off, as CuPy has it by default.

## Assumptions

| | best | worst | why |
| --- | ---: | ---: | --- |
| matrix products, part of the peak | {BEST.arithmetic:g} | {WORST.arithmetic:g} | matrices of 96 to 192 columns fill \
a large GPU badly; a T4 lowers its clock at 70 W |
| memory, part of the peak | {BEST.bandwidth:g} | {WORST.bandwidth:g} | reads and writes in order reach about 0.85; \
tiles and windows overlap, but caches help |
| gap between kernels, us | {BEST.gap * 1e6:g} | {WORST.gap * 1e6:g} | what a device needs from one kernel to the next |
| host for each launch, us | {BEST.host * 1e6:g} | {WORST.host * 1e6:g} | CuPy's elementwise functions took 11 us of \
host time in [cupy#3298](https://github.com/cupy/cupy/pull/3298); the engine adds some |

These four are guesses; everything else is counted.

## The step

{table(steps)}

Launches (kernels, calls of cuBLAS, fills) are counted on emulated CUDA. Device = kernels + gaps; host = launches x time
of the host for each; the step is the larger of the two, because the host orders steps while the device works. Where the
host sets the pace, a larger batch costs nothing until the device is busy.
"""


def write() -> Path:
    """GPU.md, from launches that are counted now."""
    write_whole(PAGE, page({norm: counted_launches(norm) for norm in NORMS}).encode())
    return PAGE
