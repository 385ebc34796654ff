"""Readers for the file formats of the data sets. They trust no byte of a file.

A damaged file gives a DataError that names it. Memory follows what a file really holds, up to a
limit, and not what a header claims. Nothing is unpacked to the disk."""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import DataError
from .sources import PIECE, Samples, Source

IMAGE = (3, 32, 32)
FREE = 150_000_000  # bytes that any file may hold, however small it is


def refuse(path: Path, fault: str, rule: str) -> NoReturn:
    raise DataError(
        f"{path}, {fault}", rule, "delete it and load again to download it, or use another copy"
    )


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, decompressed if its name ends in .gz; a failure to read it becomes a DataError."""
    import gzip

    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        refuse(
            path,
            f"which cannot be read ({str(error) or type(error).__name__})",
            "it must be whole and readable",
        )


def check_size(path: Path, content: bytearray, source: Source) -> None:
    """Refuse what no file of the data set can hold, or what is compressed as no images are."""
    limit = min(source.largest, max(FREE, 2 * os.path.getsize(path)))
    if len(content) > limit:
        rule = "none of the data set's files holds more, and none is compressed to less than half"
        refuse(path, f"which holds more than {limit:,} bytes", rule)


def content_of(path: Path, source: Source) -> bytearray:
    content = bytearray()
    with opened(path) as file:
        while piece := file.read(PIECE):
            content += piece
            check_size(path, content, source)
    return content


def labelled(path: Path, images: HostArray, labels: HostArray, allowed: range) -> Samples:
    """Images and labels that fit together; the labels are from this file."""
    if len(images) != len(labels):
        refuse(
            path,
            f"which has {len(labels):,} labels for {len(images):,} images",
            "each image has one label",
        )
    wrong = labels[(labels < allowed[0]) | (labels > allowed[-1])]
    if len(wrong):
        refuse(
            path,
            f"which has the label {wrong[0]}",
            f"labels are integers from {allowed[0]} to {allowed[-1]}",
        )
    return images, labels.astype(np.int64)


def read_cifar(
    source: Source, paths: list[Path], split: str, label_bytes: int = 1
) -> list[Samples]:
    """Records of label bytes, the last of which counts, and an image; in an archive, or in the
    files from it."""
    (archive,) = source.test if split == "test" else source.train
    contents: Sequence[bytearray | memoryview] = [content_of(path, source) for path in paths]
    if paths[0].name == archive.name:
        contents = tar_members(paths[0], memoryview(contents[0]), archive.members)
        paths = paths * len(contents)
    size, parts = label_bytes + prod(IMAGE), []
    for path, content in zip(paths, contents, strict=True):
        if not content or len(content) % size:
            refuse(path, f"with {len(content):,} bytes of records", f"a record has {size:,} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        images, labels = records[:, label_bytes:].reshape(-1, *IMAGE), records[:, label_bytes - 1]
        parts.append(labelled(path, images, labels, range(len(source.classes))))
    return [
        (
            np.concatenate([images for images, _ in parts]),
            np.concatenate([labels for _, labels in parts]),
        )
    ]


def tar_members(path: Path, archive: memoryview, names: Sequence[str]) -> list[memoryview]:
    """The content of these members of an archive; everything else in it is skipped, and so are
    links."""
    members: dict[str, memoryview] = {}
    start = 0
    while any(header := bytes(archive[start : start + 512])):  # the last one is all zeros
        name = header[:100].partition(b"\0")[0].decode("latin-1")
        try:
            size, checksum = (
                int(header[at].strip(b" \0"), 8) for at in (slice(124, 136), slice(148, 156))
            )
        except ValueError:
            size = checksum = -1
        end = start + 512 + size
        if not (
            size >= 0
            and end <= len(archive)
            and checksum == sum(header) - sum(header[148:156]) + 8 * ord(" ")
        ):
            refuse(path, f"in which the header at byte {start:,} is damaged", "it must be whole")
        if name in members:
            refuse(path, f"which holds {name} twice", "each file is there once")
        if name in names and header[156] in b"0\0":  # a regular file
            members[name] = archive[start + 512 : end]
        start = end + -end % 512
    if missing := set(names) - set(members):
        refuse(path, f"which holds no file {min(missing)}", f"it holds {', '.join(names)}")
    return [members[name] for name in names]


def read_mnist(source: Source, paths: list[Path], split: str) -> list[Samples]:
    """A file of images and one of labels."""
    images, labels = read_idx(paths[0], (28, 28), source), read_idx(paths[1], (), source)
    return [labelled(paths[1], images[:, None], labels, range(len(source.classes)))]


def read_idx(path: Path, shape: tuple[int, ...], source: Source) -> HostArray:
    """The bytes (N, *shape) of a file that has a header with the length of each axis."""
    content = content_of(path, source)
    axes = 1 + len(shape)
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        refuse(
            path,
            f"which starts with {content[:4].hex(' ')}",
            f"bytes with {axes} axes start with 00 00 08 0{axes}",
        )
    count, *lengths = struct.unpack_from(f">{axes}I", content, 4)
    if tuple(lengths) != shape or count < 1 or len(content) != start + count * prod(shape):
        fault = (
            f"whose header says shape {(count, *lengths)}, with {len(content) - start:,} bytes "
            "after it"
        )
        refuse(path, fault, f"its shape is (N, {str(shape)[1:]}, and it ends where its header says")
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *shape)


# SVHN: MATLAB's level-5 format. After a header of 128 bytes come the matrices X and y, each
# compressed after a tag of type and size. A matrix is a sequence of such elements: flags, lengths
# of the axes, name, and values in Fortran order.

INT8, UINT8, INT32, COMPRESSED = 1, 2, 5, 15  # types of elements


def read_svhn(source: Source, paths: list[Path], split: str) -> Iterator[Samples]:
    """Images and labels of each file; the label 10 is the digit 0."""
    for path in paths:
        with opened(path) as file:
            header = file.read(128)
            if header[124:] != b"\x00\x01IM":
                refuse(
                    path,
                    f"whose header ends in {header[124:].hex(' ')}",
                    "a MATLAB 5 file has 00 01 49 4d there",
                )
            # (N, C, W, H)
            images = _read_matrix(source, path, file, "X", (32, 32, 3, -1)).reshape(-1, *IMAGE)
            labels = _read_matrix(source, path, file, "y", (-1, 1))
        images, labels = labelled(path, images, labels, range(1, 11))
        yield np.ascontiguousarray(images.swapaxes(2, 3)), labels % 10


def _read_matrix(
    source: Source, path: Path, file: IO[bytes], name: str, shape: tuple[int, ...]
) -> HostArray:
    """The values of the next matrix; in its shape, -1 stands for the number of images."""
    kind, size = struct.unpack("<II", file.read(8).ljust(8, b"\0"))
    matrix, stream = bytearray(), zlib.decompressobj()
    while kind == COMPRESSED and not stream.eof:
        piece = stream.unconsumed_tail
        if not piece:
            piece = file.read(min(PIECE, size))
            size -= len(piece)
        if not piece:
            raise EOFError("it ends too early")
        matrix += stream.decompress(piece, PIECE)
        check_size(path, matrix, source)
    (count,) = struct.unpack_from("<i", matrix.ljust(64, b"\0"), 32 + 4 * shape.index(-1))
    axes = [min(max(1, count), 1 << 20) if length == -1 else length for length in shape]
    head = struct.pack(
        f"<II{len(axes)}iHH4sII",
        INT32,
        4 * len(axes),
        *axes,
        INT8,
        1,
        name.encode(),
        UINT8,
        prod(axes),
    )
    start = 24 + len(head)  # after the tag of the matrix and its flags
    if matrix[24:start] != head or not 0 <= len(matrix) - start - prod(axes) < 8:
        refuse(
            path,
            f"in which {name} is damaged",
            f"{name} is a compressed matrix of bytes of shape {shape}",
        )
    return np.frombuffer(matrix, np.uint8, prod(axes), start)
