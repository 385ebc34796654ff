"""Predict the time of a training step on GPUs that nobody here has: GPU.md.

FLOPs and bytes are counted from the geometry of the network. What the host needs is measured by
`benchmarks/host.py`, on CuPy under emulated CUDA (the package `emucupy`), without the work of the
device."""

import re
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import tinyprop.functional as F
from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.functional.linear import product
from tinyprop.kernels import cuda, tiles
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

from .gpu import BATCH, NORMS, Device
from .host import Cost, measured
from .work import Work, step_work, whole

PAGE = Path(__file__).with_name("GPU.md")
REPEATS = 31  # turns of what is measured on the host

DEVICES = [  # compute capability, multiprocessors, clock and memory clock in kHz, bus width in bits
    Device("T4", "75", 40, 1_590_000, 5_001_000, 256),
    Device("RTX 4090", "89", 128, 2_520_000, 10_501_000, 384),
    Device("H100 SXM", "90", 132, 1_980_000, 2_619_000, 5120),
]


@dataclass(frozen=True)
class Assumptions:
    arithmetic: float  # part of the peak that matrix products reach
    bandwidth: float  # part of the peak that kernels reach that read and write
    latency: float  # seconds until memory answers, which nobody hides at the start of a kernel
    gap: float  # seconds on the device between two kernels
    host: float  # how much longer the host needs than the one that was measured


BEST = Assumptions(0.8, 0.85, 0.5e-6, 1e-6, 0.5)
WORST = Assumptions(0.4, 0.6, 1e-6, 3e-6, 1.2)
# of a step with BatchNorm: a kernel for each layer and each gradient, one optimizer for all
TORCH_LAUNCHES = 90
TORCH_HOST = 5e-6, 10e-6  # seconds of its host for each launch


@dataclass(frozen=True)
class Prediction:
    """Seconds."""

    kernels: dict[str, float]
    waiting: float
    host: float

    @property
    def device(self) -> float:
        return sum(self.kernels.values()) + self.waiting

    @property
    def step(self) -> float:
        """The host orders steps while the device works on earlier ones: the slower of both sets the
        pace."""
        return max(self.device, self.host)


def peaks(device: Device) -> tuple[float, float]:
    """FLOP/s and bytes per second of a device that states all of its clocks."""
    assert device.peak_flops
    assert device.peak_bandwidth
    return device.peak_flops, device.peak_bandwidth


def reachable(device: Device, latency: float) -> float:
    """Bytes per second that the loads in flight allow, however fast the memory is (Little's
    law)."""
    return device.multiprocessors * cuda.RESIDENT * cuda.LOADS * cuda.PACK * 4 / latency


def predict(
    device: Device, work: dict[str, Work], launches: int, host: float, assumed: Assumptions
) -> Prediction:
    """`host` are its seconds for a step."""
    flops = assumed.arithmetic * peaks(device)[0]
    bandwidth = min(assumed.bandwidth * peaks(device)[1], reachable(device, assumed.latency))
    kernels = {name: max(w.flops / flops, w.bytes / bandwidth) for name, w in work.items()}
    return Prediction(kernels, launches * (assumed.gap + assumed.latency), host)


def rounded(x: HostArray) -> HostArray:
    """float32 with 10 bits behind the point instead of 23, as tensor cores read it in TF32."""
    # ties to even
    bits = (
        x.view("uint32") + np.uint32(0xFFF) + ((x.view("uint32") >> np.uint32(13)) & np.uint32(1))
    )
    return (bits & np.uint32(0xFFFFE000)).view("float32")


def tf32_errors() -> dict[str, float]:
    """The error of a convolution of 192 with 192 channels, 5x5, relative to the size of its
    results: by tiles in float32, by one product in TF32, and by tiles in TF32."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 192, 16, 16)).astype("float32")
    w = random.standard_normal((192, 192, 5, 5)).astype("float32")
    with F.exact_convolution():
        exact = F.conv2d(x.astype("float64"), w.astype("float64"), padding=2).data
        plain = F.conv2d(rounded(x), rounded(w), padding=2).data
    in_float32 = F.conv2d(x, w, padding=2).data
    with patch.object(
        tiles, "product", lambda x, y, out=None: product(rounded(x.copy()), rounded(y.copy()), out)
    ):
        tiled = F.conv2d(x, w, padding=2).data

    def error(found: HostArray) -> float:
        return float(np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()))

    return {
        "tiles, float32": error(in_float32),
        "one product, TF32": error(plain),
        "tiles, TF32": error(tiled),
    }


def between(least: float, most: float) -> str:
    """Milliseconds, or thousands of images, as a range."""
    digits = 1 if most >= 10 else 2
    return f"{least:.{digits}f}-{most:.{digits}f}"


def table(rows: list[list[str]]) -> str:
    return Table(rows[0], rows[1:]).markdown()


def page(costs: dict[str, Cost], errors: dict[str, float]) -> str:
    """GPU.md, from what steps cost the host with each way to normalise, and from the errors of
    TF32."""
    images = (BATCH, 3, 32, 32)
    works = {norm: step_work(nn.build(nn.NIN, norm=norm), images) for norm in NORMS}
    work = works["normprop"]

    devices = [["device", "TFLOP/s", "GB/s", "GB/s that loads in flight allow"]]
    for d in DEVICES:
        peak_flops, bandwidth = peaks(d)
        allowed = [f"{reachable(d, a.latency) / 1e9:,.0f}" for a in (WORST, BEST)]
        devices.append(
            [d.name, f"{peak_flops / 1e12:.1f}", f"{bandwidth / 1e9:.0f}", "-".join(allowed)]
        )

    kernels = [["kernel or op", "GFLOP", "MB", *(f"{d.name}, ms" for d in DEVICES)]]
    ranges = {d.name: [predict(d, work, 0, 0.0, a) for a in (BEST, WORST)] for d in DEVICES}
    for name, w in sorted(work.items(), key=lambda item: -item[1].bytes):
        parts = [between(*(p.kernels[name] * 1e3 for p in both)) for both in ranges.values()]
        kernels.append([name, f"{w.flops / 1e9:.2f}", f"{w.bytes / 1e6:.0f}", *parts])
    total = whole(work)
    sums = [between(*(p.device * 1e3 for p in both)) for both in ranges.values()]
    kernels.append(["**sum**", f"{total.flops / 1e9:.2f}", f"{total.bytes / 1e6:.0f}", *sums])

    steps = [["network", "device", "way", "device, ms", "host, ms", "**step, ms**", "images/s"]]
    for norm, title in NORMS.items():
        for d in DEVICES:
            cost, w = costs[norm], works[norm]
            for way, host in (("eager", cost.launches * cost.launch), ("graph", cost.replay)):
                both = [
                    predict(d, w, cost.launches, host * a.host * 1e-6, a) for a in (BEST, WORST)
                ]
                steps.append([title, d.name, way, *timed(both)])
    direct = step_work(nn.build(nn.NIN, norm="batch"), images, exact=True)
    for d in DEVICES:
        pairs = zip((BEST, WORST), TORCH_HOST, strict=True)
        both = [predict(d, direct, TORCH_LAUNCHES, TORCH_LAUNCHES * host, a) for a, host in pairs]
        steps.append(["BatchNorm in PyTorch", d.name, "eager", *timed(both)])

    host = [["network", "launches", "host for a launch, us", "host for a replay, us"]]
    host += [
        [title, str(costs[n].launches), f"{costs[n].launch:.1f}", f"{costs[n].replay:.0f}"]
        for n, title in NORMS.items()
    ]
    gflop, tiled = (whole(w).flops / 1e9 for w in (direct, works["batch"]))
    least, most = (1e6 * seconds for seconds in TORCH_HOST)
    found = [
        ["convolution, 192 to 192 channels, 5x5", "relative error"],
        *([k, f"{v:.1e}"] for k, v in errors.items()),
    ]
    return f"""# What a GPU should do

**A prediction.** None of this was measured on a GPU: nobody here has one. `python -m benchmarks gpu` prints the same
tables, measured on yours; please report what is outside of the ranges. This page is written by
`python -m benchmarks gpu --predict`. A step trains the paper's network: full width, {BATCH} images, float32.

## The step

{table(steps)}

The step is the larger of device and host, because the host orders steps while the device works. Eager: kernel by
kernel. Graph: one launch for a step. PyTorch is a guess of the same kind: convolution without tiles ({gflop:.0f} GFLOP
instead of {tiled:.0f}), {TORCH_LAUNCHES} launches of {least:g} to {most:g} us each.

## Host

{table(host)}

Measured by `python -m benchmarks host` on the machine that wrote this page, without the work of the device.

## Device

{table(kernels)}

GFLOP and MB are counted (`benchmarks/work.py`), here for the NormProp step. Times are the larger of FLOPs by arithmetic
and bytes by bandwidth; each launch of the step adds a gap and the latency of memory.

{table(devices)}

Peaks follow from clocks, cores and bus width, and are those that NVIDIA states (a test compares them). By Little's law,
loads in flight ({cuda.RESIDENT} threads a multiprocessor with {cuda.LOADS} loads of {cuda.PACK * 4} bytes each: see
[KERNELS.md](KERNELS.md)) limit the bandwidth to their bytes by the latency: more than the memory can do.

| assumed | best | worst |
| --- | ---: | ---: |
| matrix products, part of the peak | {BEST.arithmetic:g} | {WORST.arithmetic:g} |
| memory, part of the peak | {BEST.bandwidth:g} | {WORST.bandwidth:g} |
| latency of memory, us | {BEST.latency * 1e6:g} | {WORST.latency * 1e6:g} |
| gap between kernels, us | {BEST.gap * 1e6:g} | {WORST.gap * 1e6:g} |
| time of the host, times that measured here | {BEST.host:g} | {WORST.host:g} |

## TF32

`CUPY_TF32=1` lets cuBLAS round the inputs of float32 products to 10 bits behind the point, on devices since the A100
(not a T4); sums stay in float32. Rounded in NumPy:

{table(found)}

Tiles amplify rounding, so that TF32 and tiles together are the least exact; by default it is off.
"""


def timed(both: list[Prediction]) -> list[str]:
    device, host, step = (
        between(*(getattr(p, what) * 1e3 for p in both)) for what in ("device", "host", "step")
    )
    return [device, host, f"**{step}**", f"{BATCH / both[1].step:,.0f}-{BATCH / both[0].step:,.0f}"]


def stated(page: str) -> tuple[dict[str, Cost], dict[str, float]]:
    """What was measured for a page: what a step costs the host, and the errors of TF32."""
    costs = {}
    for norm, title in NORMS.items():
        found = re.search(rf"^\| {title} \| (\d+) \| ([\d.]+) \| (\d+) \|$", page, re.M)
        assert found
        costs[norm] = Cost(int(found[1]), 0.0, float(found[2]), float(found[3]), 0.0)
    errors = re.findall(r"^\| (.*?, (?:TF32|float32)) \| (\S+) \|$", page, re.M)
    return costs, {name: float(error) for name, error in errors}


def write() -> Path:
    """GPU.md, from what is measured now; stated with few digits, from which the rest of the page
    follows."""
    first = page({norm: measured(norm, REPEATS) for norm in NORMS}, tf32_errors())
    write_whole(PAGE, page(*stated(first)).encode())
    return PAGE
