"""Readers give what was written, or a DataError that names the file: never another error, and no
memory for claims."""

import re
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import sampled
from tinyprop.data import formats
from tinyprop.data.catalog import SOURCES

from . import samples
from .samples import HEADER, compressed, idx, matrix, packed, tar

LARGE = 8_000_000  # bytes, which compress to very few
RNG = np.random.default_rng(0)
IMAGES = samples.images(RNG, 5, 3, 32, 32)
DIGITS = samples.images(RNG, 3, 28, 28)
X, Y = IMAGES.transpose(2, 3, 1, 0), np.array([[1], [10], [9], [2], [3]], np.uint8)
MEMBERS = [(name, samples.records(IMAGES[:3], [i, i, i])) for i, name in enumerate(samples.CIFAR10)]
ARCHIVE = "cifar-10-binary.tar.gz"


def read(path, split="train"):
    """What the reader of a file gives, chosen by the name of the file."""
    endings = {"bin": "cifar10", "coarse": "cifar100", "gz": "cifar10", "mat": "svhn"}
    name = endings.get(path.name.split(".")[-1])
    if name is None:
        return formats.read_idx(path, (28, 28), SOURCES["mnist"])
    (part,) = SOURCES[name].read(SOURCES[name], [path], split)
    return part


def written(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def test_records_come_back(tmp_path):
    images, labels = read(written(tmp_path, "x.bin", samples.records(IMAGES, [1, 0, 9, 2, 3])))
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == [1, 0, 9, 2, 3]
    content = samples.records(IMAGES, [200, 100, 19, 0, 0], [99, 0, 5, 1, 2])
    _, labels = read(written(tmp_path, "x.coarse", content))
    assert labels.tolist() == [99, 0, 5, 1, 2]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_come_back_in_the_order_of_their_names(tmp_path, format):
    samples.write(tmp_path, dict(MEMBERS))
    with tarfile.open(tmp_path / ARCHIVE, "w:gz", format=format) as file:
        file.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin", recursive=False)
        for name, _ in reversed(MEMBERS):
            file.add(tmp_path / name, name)
    images, labels = read(tmp_path / ARCHIVE, "test")
    np.testing.assert_array_equal(images, IMAGES[:3])
    assert labels.tolist() == [5, 5, 5]
    assert read(tmp_path / ARCHIVE)[1].tolist() == [i // 3 for i in range(15)]


def test_other_members_are_skipped_and_nothing_is_unpacked(tmp_path):
    others = [("../../evil", b"x"), ("/etc/evil", b"x"), ("bomb", bytes(LARGE))]
    assert len(read(written(tmp_path, ARCHIVE, packed(tar(others + MEMBERS))))[1]) == 15
    assert not (tmp_path.parent.parent / "evil").exists()
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


@pytest.mark.parametrize("pack", [bytes, packed])
def test_idx_files_come_back(tmp_path, pack):
    path = tmp_path / ("x.gz" if pack is packed else "x")
    for array in (DIGITS, DIGITS[:, 0, 0].copy()):
        path.write_bytes(pack(idx(array)))
        np.testing.assert_array_equal(
            formats.read_idx(path, array.shape[1:], SOURCES["mnist"]), array
        )


@pytest.mark.parametrize("writer", ["scipy", "samples"])
def test_mat_files_come_back(tmp_path, writer):
    path = written(tmp_path, "x.mat", samples.svhn(IMAGES, Y[:, 0]))
    if writer == "scipy":
        pytest.importorskip("scipy.io").savemat(path, {"X": X, "y": Y}, do_compression=True)
    images, labels = read(path)
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == [1, 0, 9, 2, 3]


def resized(size):
    """An archive whose first header claims this size."""
    content = bytearray(tar(MEMBERS))
    content[124:136] = size
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


CLAIMED_SIZES = (
    b"77777777777\0",
    b"\xff" * 12,
    b"\x80" + bytes(10) + b"\1",
    b"-0000000512\0",
    bytes(12),
)
RECORDS, IDX, LABELS = samples.records(IMAGES, [1, 0, 9, 2, 3]), idx(DIGITS), idx(DIGITS.ravel())
GZIP = packed(tar(MEMBERS))
GOOD_X, GOOD_Y = compressed(matrix("X", X)), compressed(matrix("y", Y))
GOOD = HEADER + GOOD_X + GOOD_Y
CLAIM = matrix("X", X, shape=(32, 32, 3, 500_000)).replace(
    struct.pack("<II", 2, X.size), struct.pack("<II", 2, 500_000 * 3072)
)
REFUSED = {
    "x.bin": [
        (b"", "with 0 bytes"),
        (RECORDS[:-1], "with 15,364 bytes"),
        (RECORDS + b"\0", "with 15,366 bytes"),
        (samples.records(IMAGES, [1, 0, 10, 2, 3]), "label 10.*0 to 9"),
    ],
    ARCHIVE: [
        *((packed(content), "no file") for content in (b"", bytes(LARGE), tar(MEMBERS[:4]))),
        *(
            (packed(content), "header at byte 0 is damaged")
            for content in (b"x" * 1000, tar(MEMBERS)[:5_000])
        ),
        *((packed(resized(size)), "header at byte 0 is damaged") for size in CLAIMED_SIZES),
        (packed(tar(MEMBERS)[:52_000]), "header at byte 51,200 is damaged"),
        (packed(b"x" + tar(MEMBERS)[1:]), "header at byte 0 is damaged"),
        (packed(tar(MEMBERS[1:])), "no file cifar-10-batches-bin/data_batch_1.bin"),
        (packed(tar([(f"../{name}", content) for name, content in MEMBERS])), "no file"),
        (packed(tar([MEMBERS[0], *MEMBERS])), "data_batch_1.bin twice"),
        (packed(tar([*MEMBERS, MEMBERS[0]])), "data_batch_1.bin twice"),
        (packed(tar(MEMBERS, type=tarfile.SYMTYPE, linkname="/etc/passwd")), "no file"),
        (packed(tar(MEMBERS, type=tarfile.LNKTYPE, linkname="/etc/passwd")), "no file"),
        (packed(tar([(MEMBERS[0][0], bytes(LARGE)), *MEMBERS[1:]])), "8,000,000 bytes of records"),
        *((GZIP[:end], "cannot be read") for end in (10, len(GZIP) // 2, -8, -1)),
        *(
            (content, "cannot be read")
            for content in (b"x" + GZIP[1:], GZIP + b"x", GZIP[:-8] + bytes(8))
        ),
        # the checksum comes last
        (packed(tar(MEMBERS) + bytes(LARGE))[:-8] + bytes(8), "cannot be read"),
    ],
    "idx": [
        (b"", "starts with"),
        (IDX[:15], "starts with 00 00 08 03"),
        (LABELS, "starts with 00 00 08 01"),
        (b"\0\0\x0d\3" + IDX[4:], "starts with 00 00 0d 03"),
        (b"\1" + IDX[1:], "starts with 01 00 08 03"),
        (IDX[:-1], "2,351 bytes after it"),
        (IDX + b"x", "2,353 bytes after it"),
        (IDX[:4] + struct.pack(">I", 2**32 - 1) + IDX[8:], r"shape \(4294967295, 28, 28\)"),
        (IDX[:4] + struct.pack(">I", 0) + IDX[8:16], r"shape \(0, 28, 28\)"),
        (IDX[:8] + struct.pack(">II", 14, 56) + IDX[16:], r"shape \(3, 14, 56\)"),
    ],
    "x.mat": [
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "header ends in 00 02"),
        *(
            (HEADER + content, "X is damaged")
            for content in (b"", GOOD_Y + GOOD_X, matrix("X", X) + GOOD_Y)
        ),
        *((HEADER + GOOD_X + content, "y is damaged") for content in (b"", GOOD_X)),
        *((content, "too early") for content in (GOOD[:-1], GOOD[: len(GOOD) // 2])),
        (HEADER + struct.pack("<II", 15, len(GOOD_X) - 12) + GOOD_X[8:], "too early"),
        (HEADER + GOOD_X[:100] + b"\xff" * 100 + GOOD_X[200:] + GOOD_Y, "cannot be read"),
        *((HEADER + compressed(content), "X is damaged") for content in (bytes(LARGE), CLAIM)),
        *(
            (HEADER + compressed(matrix("X", X, shape=shape)) + GOOD_Y, "X is damaged")
            for shape in [
                (32, 32, 3, 2**31 - 1),
                (32, 32, 3, -5),
                (32, 32, 3, 4),
                (32, 32, 3, 6),
                (32, 96, 5),
                (),
            ]
        ),
        (HEADER + compressed(matrix("X", X, kind=9)) + GOOD_Y, "X is damaged"),
        (HEADER + compressed(matrix("X", X) + bytes(8)) + GOOD_Y, "X is damaged"),
        (HEADER + GOOD_X + compressed(matrix("y", Y[:3])), "3 labels for 5 images"),
        (HEADER + GOOD_X + compressed(matrix("y", Y + 1)), "label 11"),
        (HEADER + GOOD_X + compressed(matrix("y", Y - 1)), "label 0"),
    ],
}


@contextmanager
def at_most(memory):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


def refused(path, message, memory=25_000_000):
    """To read the file raises a DataError that names it and says this, and takes no more memory
    than that."""
    match = rf"(?s)^got: .*{re.escape(str(path))}.*{message}.*\ntry:  .+"
    with at_most(memory), pytest.raises(tp.DataError, match=match):
        read(path)


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_files_are_refused(tmp_path, name):
    for content, message in REFUSED[name]:
        refused(written(tmp_path, name, content), message)


def test_files_that_cannot_be_opened_or_are_too_long_are_refused(tmp_path, monkeypatch):
    refused(tmp_path / "none.bin", "No such file")
    (tmp_path / "folder.bin").mkdir()
    refused(tmp_path / "folder.bin", "directory")
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], largest=2_000_000))
    refused(written(tmp_path, "x.bin", bytes(LARGE)), "more than 2,000,000 bytes", memory=5_000_000)
    monkeypatch.setattr(formats, "FREE", 2_000_000)
    refused(
        written(tmp_path, "x.mat", HEADER + compressed(bytes(LARGE))),
        "more than 2,000,000 ",
        memory=5_000_000,
    )


def gzip_bomb(start, megabytes):
    """A gzip file of these bytes and then zeros."""
    packer = zlib.compressobj(1, wbits=31)
    content = packer.compress(start)
    for _ in range(megabytes):
        content += packer.compress(bytes(1 << 20))
    return content + packer.flush()


def huge(kind, size):
    """The header of an archive's member of this kind and size."""
    info = tarfile.TarInfo(samples.CIFAR10[0])
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


CLAIMED = matrix("X", np.zeros((32, 32, 3, 1), np.uint8), shape=(32, 32, 3, 136_533))
SIZE = 400  # MB, of which readers take less than half before they refuse
BOMBS = {
    "zeros": ("cifar10", ARCHIVE, lambda: gzip_bomb(b"", SIZE)),
    "a member": ("cifar10", ARCHIVE, lambda: gzip_bomb(huge(tarfile.REGTYPE, SIZE << 20), SIZE)),
    "an extended header": (
        "cifar10",
        ARCHIVE,
        lambda: gzip_bomb(huge(tarfile.XHDTYPE, SIZE << 20), SIZE),
    ),
    "a long name": (
        "cifar10",
        ARCHIVE,
        lambda: gzip_bomb(huge(tarfile.GNUTYPE_LONGNAME, SIZE << 20), SIZE),
    ),
    "many members": ("cifar10", ARCHIVE, lambda: gzip_bomb(400_000 * huge(tarfile.DIRTYPE, 0), 0)),
    "idx": (
        "mnist",
        "images.gz",
        lambda: gzip_bomb(IDX[:4] + struct.pack(">I", 500_000) + IDX[8:16], SIZE),
    ),
    "a matrix": ("svhn", "x.mat", lambda: HEADER + compressed(CLAIMED + bytes(SIZE << 20))),
}


READER = """
import gzip, re, sys, time
from pathlib import Path
import tinyprop as tp
from tinyprop.data.catalog import SOURCES
def peak():  # in kB; ru_maxrss would begin with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
for path in map(Path, sys.argv[1:]):
    source, start = SOURCES[path.parent.name], time.process_time()
    try:
        list(source.read(source, [path, path], "train"))
    except tp.DataError as error:
        print(peak() - before, time.process_time() - start, str(path) in str(error))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_bombs_are_refused_in_little_time_and_memory(tmp_path):
    """Measured in a process of their own: at most 200 MB more than reading nothing takes, and 10
    seconds for each."""
    paths = []
    for number, (data, name, content) in enumerate(BOMBS.values()):
        paths.append(tmp_path / str(number) / data / name)
        samples.write(tmp_path / str(number) / data, {name: content()})
    done = subprocess.run(
        [sys.executable, "-c", READER, *paths], capture_output=True, text=True, check=True
    )
    refused = [line.split() for line in done.stdout.splitlines()]
    assert len(refused) == len(BOMBS)
    for bomb, (memory, seconds, named) in zip(BOMBS, refused, strict=True):
        assert named == "True", bomb
        assert int(memory) * 1024 < 200_000_000, bomb
        assert float(seconds) < 10, bomb


NUMBERS = [bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\0\0\1\0"]


def damaged(rng, content):
    """A copy with one to three changes, of which half are near the start, where the headers are."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        end = len(content) if rng.integers(2) else min(len(content), 200)
        at = int(rng.integers(end + 1))
        length = int(rng.integers(1, 9)) ** int(rng.integers(1, 4))
        match rng.integers(4):
            case 0 if at < len(content):
                content[at] ^= 1 << int(rng.integers(8))
            case 1:
                del content[at : at + int(rng.choice([length, len(content)]))]
            case 2:
                content[at:at] = content[at : at + length]
            case _:
                words = [*NUMBERS, rng.bytes(length)]
                word = words[rng.integers(len(words))]
                content[at : at + len(word)] = word
    return bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "good", "finish"),
    [
        ("x.bin", RECORDS, bytes),
        (ARCHIVE, GZIP, bytes),
        (ARCHIVE, tar(MEMBERS), packed),
        ("idx", IDX, bytes),
        ("x.mat", GOOD, bytes),
        (
            "x.mat",
            matrix("X", X) + matrix("y", Y),
            lambda c: HEADER + compressed(c[:-64]) + compressed(c[-64:]),
        ),
    ],
    ids=["records", "archive", "inside an archive", "idx", "mat", "inside a mat"],
)
def test_damaged_files_are_read_or_refused(tmp_path, name, good, finish):
    """Ten thousand of them in `make full`."""
    rng = np.random.default_rng(len(good))
    path = tmp_path / name
    refusals = []
    tries = sampled(range(1_700), 200)
    with at_most(25_000_000):
        for _ in tries:
            path.write_bytes(finish(damaged(rng, good)))
            try:
                result = read(path)
            except tp.DataError as refusal:
                refusals.append(str(refusal))
                continue
            images, labels = (result, np.zeros(len(result), int)) if name == "idx" else result
            assert images.shape == (len(labels), *((28, 28) if name == "idx" else (3, 32, 32)))
            assert 0 <= labels.min() <= labels.max() < 10
    assert all(str(path) in text and len(text) < 2_000 for text in refusals)
    # most damage is noticed; a pixel that has changed cannot be
    assert len(refusals) > len(tries) * 0.4
