"""Arrays by name in a safetensors file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from .engine.arrays import Array, HostArray, to_numpy
from .errors import StateError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file aside, make sure it is on the disk, and put it in its place: it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with whole_file(path) as file:
        file.write(content)


def save(path: str | Path, state: Mapping[str, Array]) -> None:
    """Save arrays by name, for instance a `state_dict()`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tp.save(f"{folder}/net.safetensors", tp.nn.Linear(3, 2).state_dict())
    ...     sorted(tp.load(f"{folder}/net.safetensors"))
    ['bias', 'weight']
    """
    write_whole(Path(path), encode(state))


def load(path: str | Path) -> dict[str, HostArray]:
    """The arrays of a safetensors file, on the host.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tp.save(f"{folder}/x.safetensors", {"x": tp.tensor([1.0, 2.0]).data})
    ...     tp.load(f"{folder}/x.safetensors")
    {'x': array([1., 2.], dtype=float32)}
    """
    return decode(Path(path).read_bytes(), path)


def encode(state: Mapping[str, Array]) -> bytes:
    return safetensors.numpy.save({name: np.asarray(to_numpy(array), order="C") for name, array in state.items()})


def decode(content: bytes, path: str | Path) -> dict[str, HostArray]:
    try:
        return safetensors.numpy.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise StateError(
            f"{path}, which cannot be read ({error})",
            "it must be a whole safetensors file",
            "save it again, or take another copy",
        ) from None
