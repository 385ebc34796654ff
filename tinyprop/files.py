"""Files that are there whole or not at all."""

import csv
import io
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary file beside `path`, flush it to the disk, and rename it.

    The temporary name is unique, so threads, processes and machines that share the directory may write one path at
    once: the last to finish wins. The directory is flushed, too, so that the file survives a power loss.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(aside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        flush_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def flush_directory(folder: Path) -> None:
    """Make a rename in this directory survive a power loss, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Indented, for people and for version control."""
    write_whole(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A column for each name that any of the rows has; where a row does not have it, the cell is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
