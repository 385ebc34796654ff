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
BLOCK = 512  # bytes of a header in a tar archive; contents are padded to a multiple
FREE = 150_000_000  # bytes that any file may hold, however small it is


def refuse(path: Path, fault: str, rule: str) -> NoReturn:
    hint = "delete it and load again to download it, or use another copy"
    raise DataError(f"{path}, {fault}", rule, hint)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, decompressed if its name ends in .gz; a failure to read it becomes a DataError."""
    import gzip

    open_file: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error) or type(error).__name__
        refuse(path, f"which cannot be read ({reason})", "it must be whole and readable")


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
        fault = f"which has {len(labels):,} labels for {len(images):,} images"
        refuse(path, fault, "each image has one label")
    first, last = allowed[0], allowed[-1]
    wrong = labels[(labels < first) | (labels > last)]
    if len(wrong):
        rule = f"labels are integers from {first} to {last}"
        refuse(path, f"which has the label {wrong[0]}", rule)
    return images, labels.astype(np.int64)


def read_cifar(
    source: Source, paths: list[Path], split: str, label_bytes: int = 1
) -> list[Samples]:
    """Records of an image after its label bytes, the last of which counts; in an archive, or in the
    files from it."""
    (archive,) = source.test if split == "test" else source.train
    contents: Sequence[bytearray | memoryview] = [content_of(path, source) for path in paths]
    if paths[0].name == archive.name:
        contents = tar_members(paths[0], memoryview(contents[0]), archive.members)
        paths = paths * len(contents)
    size = label_bytes + prod(IMAGE)
    all_images, all_labels = [], []
    for path, content in zip(paths, contents, strict=True):
        if not content or len(content) % size:
            refuse(path, f"with {len(content):,} bytes of records", f"a record has {size:,} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, size)  # (bytes,) -> (N, size)
        images = records[:, label_bytes:].reshape(-1, *IMAGE)  # (N, C*H*W) -> (N, C, H, W)
        labels = records[:, label_bytes - 1]
        images, labels = labelled(path, images, labels, range(len(source.classes)))
        all_images.append(images)
        all_labels.append(labels)
    return [(np.concatenate(all_images), np.concatenate(all_labels))]


def tar_members(path: Path, archive: memoryview, names: Sequence[str]) -> list[memoryview]:
    """The content of these members of an archive. Everything else in it is skipped, links, too."""
    members: dict[str, memoryview] = {}
    start = 0
    while any(header := bytes(archive[start : start + BLOCK])):  # the last one is all zeros
        name = header[:100].partition(b"\0")[0].decode("latin-1")
        size = _tar_size(header)
        content_start = start + BLOCK
        if size is None or content_start + size > len(archive):
            refuse(path, f"in which the header at byte {start:,} is damaged", "it must be whole")
        end = content_start + size
        if name in members:
            refuse(path, f"which holds {name} twice", "each file is there once")
        is_regular_file = header[156] in b"0\0"
        if name in names and is_regular_file:
            members[name] = archive[content_start:end]
        start = end + -end % BLOCK  # the next multiple of a block
    missing = set(names) - set(members)
    if missing:
        refuse(path, f"which holds no file {min(missing)}", f"it holds {', '.join(names)}")
    return [members[name] for name in names]


def _tar_size(header: bytes) -> int | None:
    """The size of a member, or None for a damaged header. The checksum is the sum of all bytes,
    with its own eight counted as spaces."""
    try:
        size = int(header[124:136].strip(b" \0"), 8)
        checksum = int(header[148:156].strip(b" \0"), 8)
    except ValueError:
        return None
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if size < 0 or checksum != total:
        return None
    return size


def read_mnist(source: Source, paths: list[Path], split: str) -> list[Samples]:
    """A file of images and one of labels."""
    images = read_idx(paths[0], (28, 28), source)[:, None]  # (N, H, W) -> (N, 1, H, W)
    labels = read_idx(paths[1], (), source)
    return [labelled(paths[1], images, labels, range(len(source.classes)))]


def read_idx(path: Path, shape: tuple[int, ...], source: Source) -> HostArray:
    """The bytes (N, *shape) of a file that has a header with the length of each axis."""
    content = content_of(path, source)
    axes = 1 + len(shape)
    start = 4 + 4 * axes  # of the values
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        fault = f"which starts with {content[:4].hex(' ')}"
        refuse(path, fault, f"bytes with {axes} axes start with 00 00 08 0{axes}")
    count, *lengths = struct.unpack_from(f">{axes}I", content, 4)
    size = len(content) - start
    has_shape = tuple(lengths) == shape and count >= 1
    if not has_shape or size != count * prod(shape):
        fault = f"whose header says shape {(count, *lengths)}, with {size:,} bytes after it"
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
                fault = f"whose header ends in {header[124:].hex(' ')}"
                refuse(path, fault, "a MATLAB 5 file has 00 01 49 4d there")
            pixels = _read_matrix(source, path, file, "X", (32, 32, 3, -1))
            labels = _read_matrix(source, path, file, "y", (-1, 1))
        images = pixels.reshape(-1, *IMAGE)  # Fortran order (H, W, C, N) -> (N, C, W, H)
        images, labels = labelled(path, images, labels, range(1, 11))
        images = np.ascontiguousarray(images.swapaxes(2, 3))  # (N, C, W, H) -> (N, C, H, W)
        yield images, labels % 10


def _read_matrix(
    source: Source, path: Path, file: IO[bytes], name: str, shape: tuple[int, ...]
) -> HostArray:
    """The values of the next matrix, flat; in its shape, -1 stands for the number of images."""
    matrix = _read_element(source, path, file)
    # the only header that can be right is made for the number of images that the file states
    (count,) = struct.unpack_from("<i", matrix.ljust(64, b"\0"), 32 + 4 * shape.index(-1))
    count = min(max(1, count), 1 << 20)
    axes = [count if length == -1 else length for length in shape]
    size = prod(axes)
    head = struct.pack(f"<II{len(axes)}i", INT32, 4 * len(axes), *axes)  # the lengths of the axes
    head += struct.pack("<HH4s", INT8, 1, name.encode())
    head += struct.pack("<II", UINT8, size)  # the tag of the values
    start = 24 + len(head)  # after the tag of the matrix and its flags
    padding = len(matrix) - start - size
    if matrix[24:start] != head or not 0 <= padding < 8:
        rule = f"{name} is a compressed matrix of bytes of shape {shape}"
        refuse(path, f"in which {name} is damaged", rule)
    return np.frombuffer(matrix, np.uint8, size, start)


def _read_element(source: Source, path: Path, file: IO[bytes]) -> bytearray:
    """The next element, decompressed; nothing if it is not a compressed one."""
    content = bytearray()
    kind, left = struct.unpack("<II", file.read(8).ljust(8, b"\0"))
    if kind != COMPRESSED:
        return content
    stream = zlib.decompressobj()
    while not stream.eof:
        piece = stream.unconsumed_tail
        if not piece:
            piece = file.read(min(PIECE, left))
            left -= len(piece)
        if not piece:
            raise EOFError("it ends too early")
        content += stream.decompress(piece, PIECE)
        check_size(path, content, source)
    return content
