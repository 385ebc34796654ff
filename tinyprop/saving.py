"""Arrays by name in a safetensors file."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .engine.arrays import Array, HostArray, to_numpy
from .errors import StateError
from .files import write_whole


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
    import safetensors.numpy

    return safetensors.numpy.save({name: np.asarray(to_numpy(array), order="C") for name, array in state.items()})


def decode(content: bytes, path: str | Path) -> dict[str, HostArray]:
    import safetensors.numpy

    try:
        return safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise StateError(
            f"{path}, which cannot be read ({error})",
            "it must be a whole safetensors file",
            "save it again, or take another copy",
        ) from None
