"""Files that are there whole or not at all, safe reading, and a lock on a directory."""

import csv
import io
import json
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..engine.errors import StateError

LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.part")  # names that only `whole_file` gives


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write to a temporary file beside `path`, flush it to the disk, and rename it.

    The temporary name is unique, so threads, processes and machines that share the directory may
    write one path at once: the last to finish wins. The directory is flushed, too, so that the file
    survives a power loss. What is not `durable` survives the end of the process, and takes no time
    to flush: it is for files that can be written again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(aside, "xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
        if durable:
            flush_directory(path.parent)
    finally:
        remove(aside)


def flush_directory(folder: Path) -> None:
    """Make a rename in this directory survive a power loss, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def write_whole(path: Path, content: bytes, durable: bool = True) -> None:
    with whole_file(path, durable) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Indented, for people and for version control."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text.encode(errors="replace"))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], durable: bool = True) -> None:
    write_whole(path, csv_text(rows).encode(), durable)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A column for each name that any of the rows has; where a row does not have it, the cell is
    empty."""
    names = dict.fromkeys(name for row in rows for name in row)  # each once, in order
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_regular(path: Path, most: int, follow: bool = True) -> bytes:
    """The content of a regular file of at most `most` bytes. Anything else is refused, and cannot
    make this hang, as a pipe would.

    Without `follow` a symbolic link is refused, too.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size > most:
            raise OSError(f"{path} has {status.st_size:,} bytes, more than {most:,}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)  # `open` would not close that of a directory


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let only one process at a time work in a directory. However the process ends, the system
    releases the lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name, locked(Path(name)), locked(Path(name)):
    ...     pass
    Traceback (most recent call last):
        ...
    tinyprop.StateError: got:  ..., in which another command is at work
    rule: one command at a time works in a directory
    try:  wait for it, or choose another directory
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "ab") as file:
        try:
            _lock(file.fileno())
        except OSError:
            raise StateError(
                f"{folder}, in which another command is at work",
                "one command at a time works in a directory",
                "wait for it, or choose another directory",
            ) from None
        yield  # closing the file releases the lock


def _lock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
