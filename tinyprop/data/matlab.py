"""Reader of the .mat files of SVHN: MATLAB's format of level 5, as far as these files use it.

After a header of 128 bytes comes one element for each variable: a tag of type and size, and a matrix that is mostly
compressed. A matrix is again elements: flags, the size of each axis, the name, and the numbers in Fortran's order.
"""

import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from ..engine.arrays import HostArray
from .formats import OTHER_MEMBERS, PIECE, Section, Stream, check_labels, read_exactly, read_up_to, refuse

MATRIX, COMPRESSED = 14, 15  # types of elements
UINT32, INT32, INT8 = 6, 5, 1
NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
COMPLEX = 0x0800  # a flag of a matrix
CLASSES = range(6, 16)  # of matrices: the real numbers
PICTURE = (32, 32, 3)
CHUNK = 1000  # images that are transposed together


class Inflated:
    """A compressed part of a file, unpacked as it is read."""

    def __init__(self, path: Path, packed: Section):
        self.path, self.packed, self.zlib = path, packed, zlib.decompressobj()

    def read(self, size: int) -> bytes:
        while size and not self.zlib.eof:
            source = self.zlib.unconsumed_tail or self.packed.read(PIECE)
            if piece := self.zlib.decompress(source, size):
                return piece
            if not source:
                refuse(self.path, "in which compressed data ends too early", "it must be whole")
        return b""


def read_svhn(path: Path, file: Stream, most: int) -> tuple[HostArray, HostArray]:
    """Images (N, 3, 32, 32) and labels, in which the digit 0 is 0 and not 10, of a file with at most that many."""
    header = read_exactly(path, file, 128)
    if header[124:128] != b"\x00\x01IM":
        refuse(path, f"whose header ends in {header[124:128].hex(' ')}", "it is a MATLAB 5 file: 00 01 49 4d")
    found: dict[str, HostArray] = {}
    passed_over = 0
    while len(found) < 2:
        tag = read_up_to(file, 8)
        if len(tag) < 8:
            refuse(path, f"which ends after the variables {sorted(found)}", "it holds the variables X and y")
        kind, size = struct.unpack("<II", tag)
        element = Section(path, file, size)
        if kind == MATRIX:
            _read_variable(path, element, most, found)
        elif kind == COMPRESSED:
            inflated = Inflated(path, element)
            if struct.unpack("<II", read_exactly(path, inflated, 8))[0] != MATRIX:
                refuse(path, "which has something compressed that is no matrix", "variables are matrices")
            if _read_variable(path, inflated, most, found) and inflated.read(1):
                refuse(path, "in which a matrix is longer than its axes say", "sizes agree")
        else:
            refuse(path, f"which has an element of type {kind}", "variables are matrices, compressed or not")
        passed_over += element.left
        if passed_over > OTHER_MEMBERS:
            refuse(path, f"with more than {OTHER_MEMBERS:,} bytes of other variables", "it holds X and y, not more")
        element.skip()
    images, labels = found["X"], found["y"]
    if len(images) != len(labels):
        refuse(path, f"which has {len(images):,} images and {len(labels):,} labels", "there is a label for each image")
    return images, labels % 10


def _read_variable(path: Path, file: Stream, most: int, found: dict[str, HostArray]) -> bool:
    """Read a matrix if it is X or y; otherwise only its head."""
    flags, shape = _small_element(path, file, UINT32), _small_element(path, file, INT32)
    name = bytes(_small_element(path, file, INT8)).decode("ascii", "replace")
    if name not in ("X", "y"):
        return False
    if name in found:
        refuse(path, f"which has {name} twice", "each variable is there once")
    axes = tuple(shape.tolist())
    if len(flags) != 2 or (flags[0] & 0xFF) not in CLASSES or flags[0] & COMPLEX:
        refuse(path, f"whose variable {name} has the flags {flags.tolist()}", "it is a matrix of real numbers")
    count = axes[3] if name == "X" and len(axes) == 4 else axes[0] if len(axes) == 2 else 0
    if axes != ((*PICTURE, count) if name == "X" else (count, 1)) or not 1 <= count <= most:
        refuse(path, f"whose {name} has the shape {axes}", f"X is (32, 32, 3, N) and y is (N, 1), N from 1 to {most:,}")
    kind, size, numbers = _tag(path, file)
    if kind not in NUMBERS or (name == "X" and NUMBERS[kind] != "u1"):
        refuse(path, f"whose {name} is stored as type {kind}", "X is stored as bytes, y as numbers")
    if size != prod(axes) * np.dtype(NUMBERS[kind]).itemsize:
        refuse(path, f"whose {name} of shape {axes} has {size:,} bytes", "the size is that of the shape")
    if numbers is None:
        numbers = read_exactly(path, file, size)
        read_up_to(file, -size % 8)  # the room up to the next element
    values = np.frombuffer(numbers, NUMBERS[kind])
    if name == "y":
        found["y"] = check_labels(path, values, 1, 10)
    else:  # Fortran's order of (H, W, C, N) is C's order of (N, C, W, H)
        found["X"] = _upright(values.reshape(count, *PICTURE[::-1]))
    return True


def _upright(images: HostArray) -> HostArray:
    """(N, C, W, H) -> (N, C, H, W), in place: the extra images of SVHN fill 1.6 GB."""
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        chunk[...] = chunk.swapaxes(2, 3).copy()
    return images


def _small_element(path: Path, file: Stream, kind: int) -> HostArray:
    """The numbers of an element in the head of a matrix."""
    got, size, numbers = _tag(path, file)
    if got != kind or size > 64 or size % np.dtype(NUMBERS[kind]).itemsize:
        refuse(
            path, f"in which a matrix starts with {size:,} bytes of type {got}", "flags, axes, name: each has its type"
        )
    if numbers is None:
        numbers = read_exactly(path, file, size + -size % 8)[:size]
    return np.frombuffer(numbers, NUMBERS[kind])


def _tag(path: Path, file: Stream) -> tuple[int, int, bytearray | None]:
    """Type and size of an element, and its content if that is so short that it lies in the tag."""
    tag = read_exactly(path, file, 8)
    kind, size = struct.unpack("<II", tag)
    if kind <= 0xFFFF:
        return kind, size, None
    kind, size = struct.unpack("<HH", tag[:4])
    if size > 4:
        refuse(path, f"with an element of {size} bytes in a tag", "only 4 bytes have room there")
    return kind, size, tag[4 : 4 + size]
