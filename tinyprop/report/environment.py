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
from typing import Any

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

    found = {"tinyprop": __version__}
    for package in packages or ("numpy",):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found if packages else found | {"python": platform.python_version()}


@cache
def sources() -> str:
    """A short digest of all sources that decide the numbers of a run, whatever version they call
    themselves."""
    package = Path(__file__).parent.parent
    paths = [path for name in NUMERICS for path in (package / name, *(package / name).rglob("*"))]
    texts = {
        str(p.relative_to(package)): p.read_text("utf-8")
        for p in paths
        if p.suffix in (".py", ".cu")
    }
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:10]


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
    names = re.findall(r"model name\s*: (.+)", path.read_text()) if path.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def blas() -> str:
    """The BLAS that NumPy uses."""
    from threadpoolctl import threadpool_info

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    names = (
        " ".join(str(b.get(k) or "") for k in ("internal_api", "version", "architecture"))
        for b in libraries
    )
    return ", ".join(dict.fromkeys(names)) or "unknown"


OLDEST = 12  # the oldest CUDA that there is a CuPy for
DRIVERS = "https://www.nvidia.com/drivers"


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
    names = {(d.metadata["Name"] or "").lower() for d in distributions()}
    wheels = tuple(sorted(n for n in names if re.fullmatch(r"cupy(-cuda\w+|-rocm\S*)?", n)))
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
    blas_error = "" if ones is None else _attempt(lambda: ones @ ones, None)[1]
    return Facts(wheels, "", driver, devices, device_error, kernel_error, blas_error, hidden)


def diagnose(facts: Facts) -> str:
    """What is wrong, in one sentence with the command that helps; an empty string if CuPy works.

    >>> diagnose(Facts(import_error="No module named 'cupy'"))
    "CuPy is not installed: pip install 'tinyprop[cuda13]', or 'tinyprop[cuda12]' for CUDA 12."
    """
    wheels, major = facts.wheels, facts.driver // 1000
    known, fitting = f"{major}.{facts.driver % 1000 // 10}", "cuda12" if major == 12 else "cuda13"
    package = wheels[0] if wheels else f"cupy-{fitting}x"
    built = re.search(r"cuda(\d\d)", " ".join(wheels))  # 13 for cupy-cuda13x
    wanted = int(built[1]) if built else 0
    install, update = f"pip install 'tinyprop[{fitting}]'", f"({DRIVERS}), then try nvidia-smi."
    reason = f" ({facts.device_error})" if facts.device_error else ""
    help = (
        "unset CUDA_VISIBLE_DEVICES, which hides devices"
        if facts.hidden
        else "nvidia-smi shows what there is"
    )
    problems: dict[str, object] = {  # in the order in which they show
        f"Several packages bring CuPy and overwrite each other ({', '.join(wheels)}): "
        f"pip uninstall -y {' '.join(wheels)} && {install}.": len(wheels) > 1,
        (
            "CuPy is not installed: pip install 'tinyprop[cuda13]', or 'tinyprop[cuda12]' for CUDA "
            "12."
        ): (not wheels and facts.import_error),
        f"CuPy is installed but cannot be imported ({facts.import_error}): "
        f"pip install --force-reinstall 'tinyprop[{fitting}]'.": facts.import_error,
        f"There is no NVIDIA driver: install that of this machine's GPU {update}": not facts.driver,
        f"The NVIDIA driver is too old: it supports CUDA {known}, and CuPy needs {OLDEST}.0 or "
        "newer. "
        f"Install a newer one {update}": major < OLDEST,
        f"CuPy is built for CUDA {wanted}, and the NVIDIA driver supports CUDA {known}: "
        f"pip uninstall -y {package} && {install}, or install a newer driver.": major < wanted,
        f"CuPy finds no CUDA device{reason}: {help}.": not facts.devices,
        f"CuPy cannot compile a kernel ({facts.kernel_error}): "
        f"pip install '{package}[ctk]', which brings CUDA's compiler and "
        "headers.": facts.kernel_error,
        f"CuPy cannot multiply matrices ({facts.blas_error}): "
        f"pip install '{package}[ctk]', which brings cuBLAS.": facts.blas_error,
    }
    return next((text for text, present in problems.items() if present), "")
