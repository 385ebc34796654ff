"""Arrays by name in a safetensors file, sealed: a digest in its metadata covers every byte of
it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..engine.arrays import Array, HostArray, to_numpy
from ..engine.errors import StateError
from .files import read_regular, write_whole

MOST = 1 << 40  # bytes of a file that `load` reads
NO_DIGEST = "0" * 64  # what stands in the place of the digest while the digest is computed


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
    content = read_regular(Path(path), MOST)
    arrays, _ = decode(content, path)
    return arrays


def encode(state: Mapping[str, Array], facts: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of these arrays, with these facts and the digest in its metadata."""
    import safetensors.numpy

    arrays = {name: np.asarray(to_numpy(array), order="C") for name, array in state.items()}
    metadata = {**(facts or {}), "sha256": NO_DIGEST}
    content = safetensors.numpy.save(arrays, metadata)
    sha256 = hashlib.sha256(content).hexdigest()
    return content.replace(_entry(NO_DIGEST), _entry(sha256), 1)


def decode(content: bytes, path: str | Path) -> tuple[dict[str, HostArray], dict[str, str]]:
    """The arrays and the metadata of a safetensors file. If it has a digest, every byte is checked
    against it."""
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(content)
        header_length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + header_length])
        facts: dict[str, str] = header.get("__metadata__", {})
        if "sha256" in facts and digest(content, facts["sha256"]) != facts["sha256"]:
            raise ValueError("its bytes are not those that were saved")
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise StateError(
            f"{path}, which cannot be read ({error})",
            "it must be a whole safetensors file",
            "save it again, or take another copy",
        ) from None
    return arrays, facts


def digest(content: bytes, stated: str) -> str:
    """The digest of a file in which `stated` stands in the place of the digest."""
    entry = _entry(stated)
    start = content.find(entry)
    if start < 0:
        raise ValueError("its digest is not in its place")
    end = start + len(entry)
    view = memoryview(content)  # slices of it copy nothing
    total = hashlib.sha256()
    total.update(view[:start])
    total.update(_entry(NO_DIGEST))
    total.update(view[end:])
    return total.hexdigest()


def _entry(digest: str) -> bytes:
    """The digest as it stands in the header; quotes inside other metadata are escaped, so it is
    there only once."""
    return f'"sha256":"{digest}"'.encode()
