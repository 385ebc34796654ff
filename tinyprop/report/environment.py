"""The machine, versions and BLAS that a result depends on, and what keeps CuPy from working."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, NamedTuple

NUMERICS = (  # rooms and files that decide the numbers of a run
    "data",
    "engine",
    "experiments/record.py",
    "functional",
    "kernels",
    "moments",
    "nn",
    "optim",
    "parallel/ranks.py",
    "train",
)


def versions(*packages: str) -> dict[str, str]:
    """The version of tinyprop and of these packages, where installed; by default, of what a result
    depends on.

    >>> list(versions())
    ['tinyprop', 'numpy', 'python']
    """
    from .. import __version__

    installed = {"tinyprop": __version__}
    for package in packages or ("numpy",):
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    if not packages:
        installed["python"] = platform.python_version()
    return installed


@cache
def commit() -> str | None:
    """The commit of the clone that this package is in; None elsewhere."""
    import subprocess  # nosec B404

    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # nosec B603
    except (OSError, subprocess.CalledProcessError):  # no git, or a directory it does not trust
        return None
    return done.stdout.strip()


@cache
def sources() -> str:
    """A short digest of all sources that decide the numbers of a run, whatever their version
    number."""
    package = Path(__file__).parent.parent
    texts = {}
    for name in NUMERICS:
        file_or_room = package / name
        for path in (file_or_room, *file_or_room.rglob("*")):
            if path.suffix in (".py", ".cu"):
                texts[str(path.relative_to(package))] = path.read_text("utf-8")
    content = json.dumps(texts, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def machine() -> dict[str, Any]:
    """Where something was measured."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "blas": blas(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }


def cpu() -> str:
    """The name of the processor, as far as the system tells."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        name = re.search(r"model name\s*: (.+)", path.read_text())
        if name is not None:
            return name[1]
    return platform.processor() or platform.machine()


def blas() -> str:
    """The BLAS that NumPy uses."""
    from threadpoolctl import threadpool_info

    names = []
    for library in threadpool_info():
        if library["user_api"] != "blas":
            continue
        facts = [library.get(key) or "" for key in ("internal_api", "version", "architecture")]
        names.append(" ".join(map(str, facts)))
    return ", ".join(dict.fromkeys(names)) or "unknown"


OLDEST = 12  # the oldest CUDA that there is a CuPy for
DRIVERS = "https://www.nvidia.com/drivers"
CUPY_WHEEL = re.compile(r"cupy(-cuda\w+|-rocm\S*)?")


@dataclass(frozen=True)
class Facts:
    """What we know about CuPy on this machine; an error is its text, empty if there was none."""

    wheels: tuple[str, ...] = ()  # installed packages that bring CuPy
    import_error: str = ""
    # the newest CUDA that the driver supports, as 12080 for 12.8; 0 without a driver
    driver: int = 0
    devices: tuple[str, ...] = ()
    device_error: str = ""
    kernel_error: str = ""  # of a first kernel, which needs NVRTC and CUDA's headers
    blas_error: str = ""  # of a first matrix product, which needs cuBLAS
    hidden: bool = False  # whether CUDA_VISIBLE_DEVICES says which devices may be seen


def _attempt(fn: Callable[[], Any], otherwise: Any) -> tuple[Any, str]:
    """What a function returns, or something else and the first line of its error."""
    try:
        return fn(), ""
    except Exception as error:  # a broken installation may raise anything
        text = str(error).strip() or type(error).__name__
        return otherwise, text.splitlines()[0]


def look() -> Facts:
    """Try one layer after the other: package, import, driver, device, kernel, matrix product."""
    wheels = _cupy_wheels()
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    cupy, import_error = _attempt(lambda: import_module("cupy"), None)
    if cupy is None:
        return Facts(wheels, import_error, hidden=hidden)
    runtime = cupy.cuda.runtime
    driver, _ = _attempt(lambda: int(runtime.driverGetVersion()), 0)
    numbers, device_error = _attempt(lambda: range(runtime.getDeviceCount()), range(0))
    if not numbers:
        return Facts(wheels, driver=driver, device_error=device_error, hidden=hidden)
    devices = tuple(runtime.getDeviceProperties(i)["name"].decode() for i in numbers)
    ones, kernel_error = _attempt(lambda: cupy.ones((2, 2), "float32") + 1.0, None)
    blas_error = ""
    if ones is not None:
        _, blas_error = _attempt(lambda: ones @ ones, None)
    return Facts(
        wheels=wheels,
        driver=driver,
        devices=devices,
        device_error=device_error,
        kernel_error=kernel_error,
        blas_error=blas_error,
        hidden=hidden,
    )


def _cupy_wheels() -> tuple[str, ...]:
    """The installed packages that bring CuPy."""
    names = {(distribution.metadata["Name"] or "").lower() for distribution in distributions()}
    return tuple(sorted(name for name in names if CUPY_WHEEL.fullmatch(name)))


class Problem(NamedTuple):
    """Something that keeps CuPy from working, and a sentence with the command that helps."""

    is_present: bool
    sentence: str


def diagnose(facts: Facts) -> str:
    """What is wrong, in one sentence with the command that helps; an empty string if CuPy works.

    >>> diagnose(Facts(import_error="No module named 'cupy'"))
    "CuPy is not installed: pip install 'tinyprop[cuda13]', or 'tinyprop[cuda12]' for CUDA 12."
    """
    for problem in _problems(facts):
        if problem.is_present:
            return problem.sentence
    return ""


def _problems(facts: Facts) -> list[Problem]:
    """All that can be wrong, in the order in which it shows."""
    wheels = facts.wheels
    major = facts.driver // 1000
    minor = facts.driver % 1000 // 10
    supported = f"{major}.{minor}"  # the CUDA of the driver
    extra = "cuda12" if major == 12 else "cuda13"  # of tinyprop, for this driver
    install = f"pip install 'tinyprop[{extra}]'"
    package = wheels[0] if wheels else f"cupy-{extra}x"
    built = re.search(r"cuda(\d\d)", " ".join(wheels))
    built_for = int(built[1]) if built else 0  # 13 for cupy-cuda13x
    device_error = f" ({facts.device_error})" if facts.device_error else ""
    if facts.hidden:
        find_devices = "unset CUDA_VISIBLE_DEVICES, which hides devices"
    else:
        find_devices = "nvidia-smi shows what there is"
    return [
        Problem(
            len(wheels) > 1,
            f"Several packages bring CuPy and overwrite each other ({', '.join(wheels)}): "
            f"pip uninstall -y {' '.join(wheels)} && {install}.",
        ),
        Problem(
            not wheels and bool(facts.import_error),
            "CuPy is not installed: "
            "pip install 'tinyprop[cuda13]', or 'tinyprop[cuda12]' for CUDA 12.",
        ),
        Problem(
            bool(facts.import_error),
            f"CuPy is installed but cannot be imported ({facts.import_error}): "
            f"pip install --force-reinstall 'tinyprop[{extra}]'.",
        ),
        Problem(
            facts.driver == 0,
            "There is no NVIDIA driver: "
            f"install that of this machine's GPU ({DRIVERS}), then try nvidia-smi.",
        ),
        Problem(
            major < OLDEST,
            "The NVIDIA driver is too old: "
            f"it supports CUDA {supported}, and CuPy needs {OLDEST}.0 or newer. "
            f"Install a newer one ({DRIVERS}), then try nvidia-smi.",
        ),
        Problem(
            major < built_for,
            f"CuPy is built for CUDA {built_for}, and the NVIDIA driver supports CUDA {supported}: "
            f"pip uninstall -y {package} && {install}, or install a newer driver.",
        ),
        Problem(
            not facts.devices,
            f"CuPy finds no CUDA device{device_error}: {find_devices}.",
        ),
        Problem(
            bool(facts.kernel_error),
            f"CuPy cannot compile a kernel ({facts.kernel_error}): "
            f"pip install '{package}[ctk]', which brings CUDA's compiler and headers.",
        ),
        Problem(
            bool(facts.blas_error),
            f"CuPy cannot multiply matrices ({facts.blas_error}): "
            f"pip install '{package}[ctk]', which brings cuBLAS.",
        ),
    ]
