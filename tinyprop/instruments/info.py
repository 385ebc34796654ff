"""`tinyprop info`: machine, versions, BLAS, data sets, and CuPy, with the command that helps where
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
    yield "packages: " + ", ".join(
        f"{name} {number}" for name, number in versions(*PACKAGES).items()
    )
    yield f"BLAS: {here['blas']}"
    cuda = look()
    problem = diagnose(cuda)
    yield (
        f"backends: numpy. {problem}"
        if problem
        else f"backends: numpy, cupy on {', '.join(cuda.devices)}"
    )
    for name in data.NAMES:
        yield f"data: {name:14} {data.found(name) or 'not available here; downloaded on first use'}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`tinyprop info` has no options."""


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    for line in describe():
        print(line, flush=True)
    return 0
