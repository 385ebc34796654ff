"""Readers give what was written, or a DataError that names the file: never another error, and no memory for claims."""

import re
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import formats
from tinyprop.data.catalog import SOURCES

from . import samples
from .samples import HEADER, compressed, matrix

LARGE = 8_000_000  # bytes, which compress to very few
RNG = np.random.default_rng(0)
IMAGES = samples.images(RNG, 5, 3, 32, 32)
X, Y = IMAGES.transpose(2, 3, 1, 0), np.array([[1], [10], [9], [2], [3]], np.uint8)
DIGITS = samples.images(RNG, 3, 28, 28)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def read(name, path, split="test"):
    """The images that one file gives."""
    (part,) = SOURCES[name].read(SOURCES[name], [path], split)
    return part


def refused(call, path, message, memory=25_000_000):
    """The call raises a DataError that names the file and says this, and it takes no more memory than that."""
    tracemalloc.start()
    try:
        with pytest.raises(tp.DataError, match=rf"(?s)^got: .*{re.escape(str(path))}.*\nrule: .+\ntry:  .+") as error:
            call()
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
    assert re.search(message, str(error.value)), str(error.value)


# CIFAR


def test_records_come_back(tmp_path):
    path = write(tmp_path, "x.bin", samples.records(IMAGES, [1, 0, 9, 2, 3]))
    images, labels = read("cifar10", path)
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == [1, 0, 9, 2, 3]
    path = write(tmp_path, "x.bin", samples.records(IMAGES, [200, 100, 19, 0, 0], [99, 0, 5, 1, 2]))
    assert read("cifar100", path)[1].tolist() == [99, 0, 5, 1, 2]


RECORDS = samples.records(IMAGES, [1, 0, 9, 2, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "with 0 bytes"),
        (RECORDS[:-1], "with 15,364 bytes"),
        (RECORDS + b"\0", "with 15,366 bytes"),
        (samples.records(IMAGES, [1, 0, 10, 2, 3]), "label 10(?s:.*)0 to 9"),
    ],
)
def test_records_of_wrong_size_or_label_are_refused(tmp_path, content, message):
    path = write(tmp_path, "x.bin", content)
    refused(lambda: read("cifar10", path), path, message, memory=5_000_000)


def test_files_that_cannot_be_opened_or_are_too_long_are_refused(tmp_path, monkeypatch):
    refused(lambda: read("cifar10", tmp_path / "none"), tmp_path / "none", "No such file")
    refused(lambda: read("cifar10", tmp_path), tmp_path, "directory")
    path = write(tmp_path, "x.gz", samples.packed(bytes(LARGE)))
    monkeypatch.setattr(formats, "LARGEST", 5_000_000)
    refused(lambda: read("cifar10", path), path, "more than 5,000,000 bytes", memory=10_000_000)


MEMBERS = [(name, samples.records(IMAGES[:3], [i, i, i])) for i, name in enumerate(samples.CIFAR10)]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_come_back_in_the_order_of_their_names(tmp_path, format):
    path = tmp_path / "cifar-10-binary.tar.gz"
    samples.write(tmp_path, dict(MEMBERS))
    with tarfile.open(path, "w:gz", format=format) as file:
        file.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin", recursive=False)
        for name, _ in reversed(MEMBERS):
            file.add(tmp_path / name, name)
    images, labels = read("cifar10", path)
    np.testing.assert_array_equal(images, IMAGES[:3])
    assert labels.tolist() == [5, 5, 5]
    assert read("cifar10", path, "train")[1].tolist() == [i // 3 for i in range(15)]


def resized(size):
    """An archive whose first header claims this size."""
    content = bytearray(samples.tar(MEMBERS))
    content[124:136] = size
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (bytes(LARGE), "cannot be read|no file"),
        (b"x" * 1000, "cannot be read"),
        (samples.tar(MEMBERS[1:]), "no file cifar-10-batches-bin/data_batch_1.bin"),
        (samples.tar([(f"../{name}", content) for name, content in MEMBERS]), "no file"),
        (samples.tar([MEMBERS[0], *MEMBERS]), "data_batch_1.bin twice"),
        (samples.tar([*MEMBERS, MEMBERS[0]]), "data_batch_1.bin twice"),
        (samples.tar(MEMBERS, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "cannot be read|no file"),
        (samples.tar(MEMBERS, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "cannot be read|no file"),
        (samples.tar([(MEMBERS[0][0], bytes(LARGE)), *MEMBERS[1:]]), "with 8,000,000 bytes of records"),
        (samples.tar([(MEMBERS[0][0], b""), *MEMBERS[1:]]), "with 0 bytes"),
        (samples.tar(MEMBERS)[:20_000], "cannot be read"),
        (b"\1" + samples.tar(MEMBERS)[1:], "cannot be read"),
        *((resized(size), "cannot be read|no file|bytes of records") for size in (b"77777777777\0", b"\xff" * 12)),
    ],
)
def test_archives_with_wrong_members_are_refused(tmp_path, content, message):
    path = write(tmp_path, "cifar-10-binary.tar.gz", samples.packed(content))
    refused(lambda: read("cifar10", path, "train"), path, message)


def test_other_members_are_skipped_and_nothing_is_unpacked(tmp_path):
    others = [("../../evil", b"x"), ("/etc/evil", b"x"), ("bomb", bytes(LARGE))]
    path = write(tmp_path, "cifar-10-binary.tar.gz", samples.packed(samples.tar(others + MEMBERS)))
    assert len(read("cifar10", path, "train")[1]) == 15
    assert not (tmp_path.parent.parent / "evil").exists()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


GZIP = samples.packed(samples.tar(MEMBERS))


@pytest.mark.parametrize(
    "content",
    [GZIP[:10], GZIP[:-1], GZIP[:-8], GZIP[: len(GZIP) // 2], b"x" + GZIP[1:], GZIP + b"x", GZIP[:-8] + bytes(8)],
)
def test_damaged_gzip_is_refused(tmp_path, content):
    path = write(tmp_path, "cifar-10-binary.tar.gz", content)
    for split in ("train", "test"):
        refused(lambda split=split: read("cifar10", path, split), path, "cannot be read|holds no file")


# MNIST

IDX, LABELS = samples.idx(DIGITS), samples.idx(DIGITS[:, 0, 0].copy())


@pytest.mark.parametrize("pack", [bytes, samples.packed])
def test_idx_files_come_back(tmp_path, pack):
    name = "x.gz" if pack is samples.packed else "x"
    np.testing.assert_array_equal(formats.read_idx(write(tmp_path, name, pack(IDX)), (28, 28)), DIGITS)
    np.testing.assert_array_equal(formats.read_idx(write(tmp_path, name, pack(LABELS)), ()), DIGITS[:, 0, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with"),
        (IDX[:15], "starts with 00 00 08 03"),
        (IDX[:-1], "2,351 bytes after it"),
        (IDX + b"x", "2,353 bytes after it"),
        (LABELS, "starts with 00 00 08 01"),
        (b"\0\0\x0d\3" + IDX[4:], "starts with 00 00 0d 03"),
        (IDX[:4] + struct.pack(">I", 2**32 - 1) + IDX[8:], r"shape \(4294967295, 28, 28\)"),
        (IDX[:4] + struct.pack(">I", 0) + IDX[8:16], r"shape \(0, 28, 28\)"),
        (IDX[:8] + struct.pack(">II", 14, 56) + IDX[16:], r"shape \(3, 14, 56\)"),
    ],
)
def test_wrong_idx_files_are_refused(tmp_path, content, message):
    path = write(tmp_path, "x", content)
    refused(lambda: formats.read_idx(path, (28, 28)), path, message, memory=5_000_000)


# SVHN


@pytest.mark.parametrize("write_file", ["scipy", "samples"])
def test_mat_files_come_back(tmp_path, write_file):
    path = tmp_path / "x.mat"
    if write_file == "scipy":
        pytest.importorskip("scipy.io").savemat(path, {"X": X, "y": Y}, do_compression=True)
    else:
        path.write_bytes(samples.svhn(IMAGES, Y[:, 0]))
    images, labels = read("svhn", path)
    np.testing.assert_array_equal(images, IMAGES)
    assert labels.tolist() == [1, 0, 9, 2, 3]


GOOD_X, GOOD_Y = compressed(matrix("X", X)), compressed(matrix("y", Y))
GOOD = HEADER + GOOD_X + GOOD_Y
LONG_CLAIM = matrix("X", X, shape=(32, 32, 3, 500_000)).replace(
    struct.pack("<II", 2, X.size), struct.pack("<II", 2, 500_000 * 3072)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header ends in"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "header ends in 00 02"),
        (HEADER, "X is damaged"),
        (HEADER + GOOD_X, "y is damaged"),
        (HEADER + GOOD_X + GOOD_X, "y is damaged"),
        (HEADER + GOOD_Y + GOOD_X, "X is damaged"),
        (HEADER + matrix("X", X) + GOOD_Y, "X is damaged"),
        (GOOD[:-1], "too early"),
        (GOOD[: len(GOOD) // 2], "too early"),
        (HEADER + struct.pack("<II", 15, len(GOOD_X) - 12) + GOOD_X[8:], "too early"),
        (HEADER + GOOD_X[:100] + b"\xff" * 100 + GOOD_X[200:] + GOOD_Y, "cannot be read"),
        (HEADER + compressed(bytes(LARGE)), "X is damaged"),
        (HEADER + compressed(LONG_CLAIM), "X is damaged"),
        *(
            (HEADER + compressed(matrix("X", X, shape=shape)) + GOOD_Y, "X is damaged")
            for shape in [(32, 32, 3, 2**31 - 1), (32, 32, 3, -5), (32, 32, 3, 4), (32, 32, 3, 6), (32, 96, 5), ()]
        ),
        (HEADER + compressed(matrix("X", X, kind=9)) + GOOD_Y, "X is damaged"),
        (HEADER + compressed(matrix("X", X) + bytes(8)) + GOOD_Y, "X is damaged"),
        (HEADER + GOOD_X + compressed(matrix("y", Y[:3])), "3 labels for 5 images"),
        (HEADER + GOOD_X + compressed(matrix("y", Y + 1)), "label 11"),
        (HEADER + GOOD_X + compressed(matrix("y", Y - 1)), "label 0"),
    ],
)
def test_wrong_mat_files_are_refused(tmp_path, content, message):
    path = write(tmp_path, "x.mat", content)
    refused(lambda: read("svhn", path), path, message)


def test_no_other_errors_are_swallowed(tmp_path):
    with pytest.raises(KeyError), formats.opened(write(tmp_path, "x", b"")):
        raise KeyError
