"""Checkpoints: the arrays of a run in a safetensors file, and everything else in a JSON file that vouches for it.

Both are written aside, flushed to the disk and renamed, the JSON last, with the hash of the arrays in it. So a run
that is killed at any moment leaves the checkpoint before, whole; the last two are kept.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.arrays import Array, HostArray
from ..errors import StateError
from ..files import write_json, write_whole
from ..saving import decode, encode

FORMAT = "tinyprop checkpoint 1"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: arrays by name, and facts that JSON can hold."""

    arrays: dict[str, HostArray]
    facts: dict[str, Any]


def write(folder: Path, number: int, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Save a checkpoint under a number that grows, and drop those before the last."""
    content = encode(arrays)
    name = f"checkpoint-{number:09d}"
    write_whole(folder / f"{name}.safetensors", content)
    vouched = {"format": FORMAT, "sha256": hashlib.sha256(content).hexdigest(), **facts}
    write_json(folder / f"{name}.json", vouched)
    for old in numbered(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def numbered(folder: Path) -> list[Path]:
    """The JSON files of the checkpoints in a folder, oldest first."""
    return sorted(folder.glob("checkpoint-*.json"))


def read(path: Path) -> Checkpoint:
    """The checkpoint of a JSON file, or a StateError that names what is wrong with it."""
    try:
        facts = json.loads(path.read_bytes())
        if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
            raise ValueError("it is not a checkpoint of this version of tinyprop")
        content = path.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != facts.pop("sha256", None):
            raise ValueError("its arrays are not those that were saved")
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path}, which cannot be used ({error})", "a checkpoint is whole", "delete it: the one before is tried"
        ) from None
    return Checkpoint(decode(content, path.with_suffix(".safetensors")), facts)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if there is any, and what was wrong with newer ones."""
    complaints: list[str] = []
    for path in reversed(numbered(folder)):
        try:
            return read(path), complaints
        except StateError as error:
            complaints.append(error.args[0])
    return None, complaints
