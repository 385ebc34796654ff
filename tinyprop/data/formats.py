"""Readers of the files that data sets come in. No byte of a file is trusted.

A reader takes an open file and says beforehand how much it may hold. It reads bit by bit, so that memory follows what
is really there, not what a header claims; what is wrong is a DataError that names the file. Nothing is unpacked to
the disk, no name inside an archive is used as a path, and no pickle is read.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np

from ..engine.arrays import HostArray
from ..errors import DataError

PIECE = 1 << 20  # bytes read at a time
BLOCK = 512  # of a tar archive
IDX_BYTES = 8  # the code of unsigned bytes in the header of an idx file
OTHER_MEMBERS = 16 << 20  # bytes of an archive that may be something else than images


class Stream(Protocol):
    """A file as the readers see it: it can only be read on."""

    def read(self, size: int, /) -> bytes: ...


def refuse(path: Path, fault: str, rule: str) -> NoReturn:
    raise DataError(f"{path}, {fault}", rule, "delete it and load again to download it, or take another copy")


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """The content of a file, unpacked if its name ends in .gz; whatever goes wrong below names the file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error) or type(error).__name__
        refuse(path, f"which cannot be read ({reason})", "it must be whole and readable")


def read_up_to(file: Stream, size: int) -> bytearray:
    """The next `size` bytes, fewer at the end of the file."""
    content = bytearray()
    while len(content) < size and (piece := file.read(min(PIECE, size - len(content)))):
        content += piece
    return content


def read_exactly(path: Path, file: Stream, size: int) -> bytearray:
    content = read_up_to(file, size)
    if len(content) < size:
        refuse(path, f"which ends {size - len(content):,} bytes too early", "it must be whole")
    return content


class Section:
    """The next `size` bytes of a file, as a file."""

    def __init__(self, path: Path, file: "Stream", size: int):
        self.path, self.file, self.left = path, file, size

    def read(self, size: int) -> bytes:
        piece = self.file.read(min(size, self.left))
        if self.left and size and not piece:
            refuse(self.path, f"in which a part ends {self.left:,} bytes too early", "it must be whole")
        self.left -= len(piece)
        return piece

    def skip(self) -> None:
        """Pass over what nobody has read."""
        while self.read(PIECE):
            pass


def check_labels(path: Path, labels: HostArray, low: int, high: int) -> HostArray:
    """The labels as int64, if they are whole numbers from low to high."""
    right = (labels >= low) & (labels <= high) & (labels == np.floor(labels))
    if not right.all():
        refuse(path, f"which has the label {labels[~right][0]}", f"labels are whole numbers from {low} to {high}")
    return labels.astype(np.int64)


# CIFAR: records of label bytes, the last of which counts, and a picture


def read_records(
    path: Path, file: Stream, most: int, classes: int, label_bytes: int = 1, shape: tuple[int, ...] = (3, 32, 32)
) -> tuple[HostArray, HostArray]:
    """Images and labels of a file of records, to its end."""
    size = label_bytes + prod(shape)
    content = read_up_to(file, most * size + 1)
    count, rest = divmod(len(content), size)
    if rest or not 1 <= count <= most:
        length = f"more than {most * size:,}" if count >= most else f"{len(content):,}"
        refuse(path, f"which holds {length} bytes", f"it holds 1 to {most:,} records of {size:,} bytes")
    records = np.frombuffer(content, np.uint8).reshape(count, size)
    labels = check_labels(path, records[:, label_bytes - 1], 0, classes - 1)
    return records[:, label_bytes:].reshape(count, *shape), labels  # a view: whoever joins files makes the only copy


def tar_members(path: Path, file: Stream, wanted: dict[str, int]) -> Iterator[tuple[str, Section]]:
    """The wanted members of a tar archive, in its order: name and content; `wanted` says how long each may be.

    Only plain files count. Everything else, links and folders included, is passed over.
    """
    missing, passed_over = dict(wanted), 0
    while any(header := read_up_to(file, BLOCK)):  # zeros are the end of the archive
        name, size, plain = _tar_header(path, header)
        if plain and name in wanted:
            if name not in missing:
                refuse(path, f"which holds {name} twice", "each file is there once")
            if size > missing.pop(name):
                refuse(path, f"whose member {name} has {size:,} bytes", f"it has at most {wanted[name]:,}")
        else:
            passed_over += size + BLOCK
            if passed_over > OTHER_MEMBERS:
                refuse(path, f"with more than {passed_over - 1:,} bytes of other members", "it holds images, not more")
        member = Section(path, file, size)
        if plain and name in wanted:
            yield name, member
        member.skip()
        read_exactly(path, file, -size % BLOCK)
    if missing:
        refuse(path, f"which holds no file {min(missing)}", f"it holds {', '.join(sorted(wanted))}")
    if len(read_up_to(file, OTHER_MEMBERS + 1)) > OTHER_MEMBERS:  # to the end, where gzip keeps its checksum
        refuse(path, f"with more than {OTHER_MEMBERS:,} bytes after the images", "it holds images, not more")


def _tar_header(path: Path, header: bytearray) -> tuple[str, int, bool]:
    """Name, size and whether it is a plain file."""
    checksum = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    try:
        if len(header) < BLOCK or int(header[148:156].strip(b" \0"), 8) != checksum:
            raise ValueError
        size = int(header[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        size = -1
    if size < 0:
        refuse(path, "in which the header of a member is broken", "it is a tar archive")
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    name = (prefix + b"/" if prefix else b"") + header[:100].split(b"\0")[0]
    return name.decode("utf-8", "replace").removeprefix("./"), size, header[156] in b"0\0"


# MNIST: an idx file is a header with the size of each axis, and the elements


def read_idx(path: Path, file: Stream, most: int, shape: tuple[int, ...]) -> HostArray:
    """The array (N, *shape) of bytes, N from 1 to `most`, of an idx file."""
    axes = 1 + len(shape)
    start = read_exactly(path, file, 4)
    if start != bytes([0, 0, IDX_BYTES, axes]):
        rule = f"it starts with 00 00 08 0{axes}: idx, bytes, {axes} axes"
        refuse(path, f"which starts with {start.hex(' ')}", rule)
    count, *sizes = np.frombuffer(read_exactly(path, file, 4 * axes), ">u4").tolist()
    if tuple(sizes) != shape or not 1 <= count <= most:
        refuse(
            path,
            f"whose header says shape {(count, *sizes)}",
            f"its shape is (N, {str(shape)[1:]}, N from 1 to {most:,}",
        )
    content = read_exactly(path, file, count * prod(shape))
    if file.read(1):
        refuse(path, f"which goes on after {4 + 4 * axes + len(content):,} bytes", "it ends where its header says")
    return np.frombuffer(content, np.uint8).reshape(count, *shape)
