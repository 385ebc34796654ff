"""Start a command again, on several processes of this machine."""

import os
import shutil
import subprocess  # nosec B404
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..engine.errors import StateError
from .ranks import SIZES, with_stderr


def mpiexec() -> str | None:
    """The mpiexec beside this Python, which the wheel of MPICH installs, or else the one on the
    path."""
    beside_python = Path(sys.executable).with_name("mpiexec")
    if beside_python.exists():
        return str(beside_python)
    return shutil.which("mpiexec")


def is_launched() -> bool:
    """Whether mpiexec has started this process."""
    return any(name in os.environ for name in SIZES)


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `tinyprop` with these arguments on several processes, under mpiexec, in place of this
    process: signals, output and exit status are those of mpiexec."""
    starter = mpiexec()
    if starter is None or find_spec("mpi4py") is None:
        missing = "mpiexec" if starter is None else "mpi4py"
        raise StateError(
            f"--processes {processes} without {missing}",
            "processes that share a batch exchange their sums by MPI",
            "pip install 'tinyprop[mpi]'",
        )
    command = [starter, "-n", str(processes), sys.executable, "-m", "tinyprop", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execve(starter, command, with_stderr())  # nosec B606
    return subprocess.call(command)  # nosec B603
