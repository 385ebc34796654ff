"""`tinyprop info`: machine, versions, BLAS, data sets, and CuPy, with the command that fixes it if
it does not work."""

import argparse
from collections.abc import Iterator

from .. import data
from ..report.environment import diagnose, look, machine, versions

PACKAGES = (
    "numpy",
    "matplotlib",
    "safetensors",
    "tqdm",
    "threadpoolctl",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def describe() -> Iterator[str]:
    """The lines of `tinyprop info`."""
    here = machine()
    yield f"Python {here['python']} on {here['system']}; {here['cpu']}, {here['cores']} cores"
    packages = [f"{name} {number}" for name, number in versions(*PACKAGES).items()]
    yield f"packages: {', '.join(packages)}"
    yield f"BLAS: {here['blas']}"
    cuda = look()
    problem = diagnose(cuda)
    if problem:
        yield f"backends: numpy. {problem}"
    else:
        yield f"backends: numpy, cupy on {', '.join(cuda.devices)}"
    for name in data.NAMES:
        where = data.found(name) or "not available here; downloaded on first use"
        yield f"data: {name:14} {where}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`tinyprop info` has no options."""


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    for line in describe():
        print(line, flush=True)
    return 0
