"""Readers give what was written, or a DataError that names the file: never another error, a hang, or much memory."""

import gzip
import os
import re
import struct
import tarfile
import tracemalloc
import zlib

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import formats
from tinyprop.data.matlab import read_svhn
from tinyprop.data.sets import SOURCES

from . import samples

LARGE = 30_000_000


@pytest.fixture
def pictures(rng):
    return samples.images(rng, 3, 3, 32, 32)


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


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


# records


def read_records(path, most=5, classes=10, label_bytes=1):
    with formats.opened(path) as file:
        return formats.read_records(path, file, most, classes, label_bytes)


def test_records_come_back(tmp_path, pictures):
    path = write(tmp_path, "x.bin", samples.records(pictures, [1, 0, 9]))
    images, labels = read_records(path)
    np.testing.assert_array_equal(images, pictures)
    assert labels.tolist() == [1, 0, 9]
    assert labels.dtype == np.int64
    path = write(tmp_path, "x.bin", samples.records(pictures, [200, 100, 19], [99, 0, 5]))
    assert read_records(path, classes=100, label_bytes=2)[1].tolist() == [99, 0, 5]


def test_records_of_wrong_size_or_label_are_refused(tmp_path, pictures):
    good = samples.records(pictures, [1, 0, 9])
    for content, message in [
        (b"", "holds 0 bytes"),
        (good[:-1], "holds 9,218 bytes"),
        (good + b"\0", "holds 9,220 bytes"),
        (good * 2, "more than 15,365 bytes"),
        (good * 1_000, "more than 15,365 bytes"),
        (samples.records(pictures, [1, 0, 10]), "label 10.*\n.*0 to 9"),
    ]:
        path = write(tmp_path, "x.bin", content)
        refused(lambda path=path: read_records(path), path, message, memory=1_000_000)


def test_files_that_cannot_be_opened_are_refused(tmp_path):
    refused(lambda: read_records(tmp_path / "none"), tmp_path / "none", "No such file")
    refused(lambda: read_records(tmp_path), tmp_path, "directory")


def test_only_plain_files_are_found(tmp_path):
    """To open a pipe that nobody writes to would never return."""
    os.mkfifo(tmp_path / "test_32x32.mat")
    assert tp.data.found("svhn", tmp_path, "test") == []
    (tmp_path / "test_32x32.mat").unlink()
    (tmp_path / "test_32x32.mat").mkdir()
    assert tp.data.found("svhn", tmp_path, "test") == []


# archives


def members(pictures):
    names = [*samples.CIFAR10_TRAIN, "test_batch.bin"]
    return [(f"cifar-10-batches-bin/{n}", samples.records(pictures, [i, i, i])) for i, n in enumerate(names)]


def unpack(path, split="train"):
    return SOURCES["cifar10"].read([path], split)


def archive(tmp_path, content):
    return write(tmp_path, "cifar-10-binary.tar.gz", samples.packed(content))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_come_back_in_the_order_of_their_names(tmp_path, pictures, format):
    path = tmp_path / "cifar-10-binary.tar.gz"
    for name, content in members(pictures):
        samples.write(tmp_path, {name: content})
    with tarfile.open(path, "w:gz", format=format) as file:
        file.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin", recursive=False)
        for name, _ in reversed(members(pictures)):
            file.add(tmp_path / name, name)
    images, labels = unpack(path, "test")
    np.testing.assert_array_equal(images, pictures)
    assert labels.tolist() == [5, 5, 5]
    train, valid = unpack(path), unpack(path, "valid")
    assert np.concatenate([train[1], valid[1]]).tolist() == [i // 3 for i in range(15)]
    assert valid[0].shape == (1, 3, 32, 32)
    np.testing.assert_array_equal(valid[0][0], pictures[2])


def test_archives_with_wrong_members_are_refused(tmp_path, pictures):
    good = members(pictures)
    outside = [("../../evil", b"x"), ("/etc/evil", b"x")]
    assert len(unpack(archive(tmp_path, samples.tar(outside + good)))[1]) == 14  # passed over
    assert not (tmp_path.parent.parent / "evil").exists()
    for content, message in [
        (b"", "no file cifar-10-batches-bin/data_batch_1.bin"),
        (bytes(LARGE), "no file cifar-10-batches-bin/data_batch_1.bin"),
        (samples.tar(good[:-1]), "no file cifar-10-batches-bin/test_batch.bin"),
        (samples.tar([(f"../{name}", content) for name, content in good]), "no file"),
        (samples.tar([good[0], *good]), "data_batch_1.bin twice"),
        (samples.tar([*good, good[0]]), "data_batch_1.bin twice"),
        (samples.tar(good, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "header|no file"),
        (samples.tar(good, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "header|no file"),
        (samples.tar([("bomb", bytes(LARGE)), *good]), "other members"),
        (samples.tar([("cifar-10-batches-bin/test_batch.bin", bytes(LARGE)), *good]), "test_batch.bin twice"),
        (samples.tar([("cifar-10-batches-bin/test_batch.bin", bytes(31_000_000)), *good]), "has 31,000,000 bytes"),
        (samples.tar(good) + b"x" * LARGE, "after the images"),
        (samples.tar([(good[0][0], good[0][1][:-1]), *good[1:]]), "holds 9,218 bytes"),
        (samples.tar(good)[:20_000], "too early"),
        (b"\1" + samples.tar(good)[1:], "header of a member is broken"),
        (samples.tar([(good[0][0], b""), *good[1:]]), "holds 0 bytes"),
        (b"x" * 1000, "header of a member is broken"),
    ]:
        path = archive(tmp_path, content)
        del content
        refused(lambda path=path: unpack(path), path, message)
    for size in (b"77777777777\0", b"-0000000001\0", b"\x80" + bytes(10) + b"\1", b"\xff" * 12, b"0x000000001\0"):
        content = bytearray(samples.tar(good))
        content[124:136] = size
        content[148:156] = b" " * 8
        content[148:156] = b"%06o\0 " % sum(content[:512])
        path = archive(tmp_path, bytes(content))
        refused(lambda path=path: unpack(path), path, "header of a member|has 8,589,934,591 bytes")


def test_damaged_gzip_is_refused(tmp_path, pictures):
    good = samples.packed(samples.tar(members(pictures)))
    end = bytearray(good)
    end[-5] ^= 1  # the checksum, which comes last
    for content in (b"", good[:10], good[:-1], good[:-8], good[: len(good) // 2], b"x" + good[1:], end, good + b"x"):
        path = write(tmp_path, "cifar-10-binary.tar.gz", content)
        for split in tp.data.SPLITS:
            refused(lambda path=path, split=split: unpack(path, split), path, "cannot be read|holds no file")


# idx


def read_idx(path, most=5, shape=(28, 28)):
    with formats.opened(path) as file:
        return formats.read_idx(path, file, most, shape)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_come_back_or_are_refused(tmp_path, rng, suffix):
    pack = samples.packed if suffix else bytes
    array = samples.images(rng, 3, 28, 28)
    good = samples.idx(array)
    np.testing.assert_array_equal(read_idx(write(tmp_path, f"x{suffix}", pack(good))), array)
    labels = samples.idx(array[:, 0, 0].copy())
    np.testing.assert_array_equal(read_idx(write(tmp_path, f"x{suffix}", pack(labels)), shape=()), array[:, 0, 0])
    for content, message in [
        (b"", "too early"),
        (good[:-1], "1 bytes too early"),
        (good + b"x", "goes on after 2,368 bytes"),
        (good + bytes(LARGE), "goes on after 2,368 bytes"),
        (labels, "starts with 00 00 08 01"),
        (b"\0\0\x0d\3" + good[4:], "starts with 00 00 0d 03"),
        (good[:4] + struct.pack(">I", 2**32 - 1) + good[8:], r"shape \(4294967295, 28, 28\)"),
        (good[:4] + struct.pack(">I", 6) + good[8:], r"shape \(6, 28, 28\)"),
        (good[:4] + struct.pack(">I", 0) + good[8:], r"shape \(0, 28, 28\)"),
        (good[:8] + struct.pack(">II", 14, 56) + good[16:], r"shape \(3, 14, 56\)"),
    ]:
        path = write(tmp_path, f"x{suffix}", pack(content))
        refused(lambda path=path: read_idx(path), path, message, memory=5_000_000)


def test_a_claim_of_many_images_takes_no_memory(tmp_path):
    path = write(tmp_path, "x", samples.idx(np.zeros((1, 28, 28), np.uint8))[:4] + struct.pack(">III", 60_000, 28, 28))
    refused(lambda: read_idx(path, most=60_000), path, "too early", memory=5_000_000)


# MATLAB


def read_mat(path, most=5):
    with formats.opened(path) as file:
        return read_svhn(path, file, most)


@pytest.mark.parametrize("pack", [samples.compressed, bytes], ids=["compressed", "plain"])
def test_mat_files_come_back(tmp_path, pictures, pack):
    path = write(tmp_path, "x.mat", samples.svhn(pictures, [1, 10, 9], pack))
    images, labels = read_mat(path)
    np.testing.assert_array_equal(images, pictures)
    assert labels.tolist() == [1, 0, 9]
    assert images.flags.c_contiguous


@pytest.mark.parametrize("compression", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_mat_files_written_by_scipy_come_back(tmp_path, pictures, compression, dtype):
    io = pytest.importorskip("scipy.io")
    labels = np.array([[1], [10], [9]], dtype)
    values = {"note": "text", "X": pictures.transpose(2, 3, 1, 0), "other": np.ones((2, 2)), "y": labels}
    io.savemat(tmp_path / "x.mat", values, do_compression=compression)
    images, labels = read_mat(tmp_path / "x.mat")
    np.testing.assert_array_equal(images, pictures)
    assert labels.tolist() == [1, 0, 9]


def test_wrong_mat_files_are_refused(tmp_path, pictures):
    x, y, pack = pictures.transpose(2, 3, 1, 0), np.array([[1], [10], [9]], np.uint8), samples.compressed
    good_x, good_y, header = pack(samples.matrix("X", x)), pack(samples.matrix("y", y)), samples.HEADER
    good = header + good_x + good_y
    matrix, element = samples.matrix, samples.element
    bomb = pack(element(14, bytes(LARGE)))
    nested = element(14, element(14, element(14, element(14, b""))))
    for content, message in [
        (b"", "too early"),
        (header, "variables X and y"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "header ends in 00 02"),
        (header + good_x, r"variables \['X'\]"),
        (header + good_x + good_x + good_y, "X twice"),
        (good[:-1], "too early"),
        (good[:-9], "too early|cannot be read"),
        (good[: len(good) // 2], "too early"),
        (header + bomb + good_x + good_y, "type 0"),
        (header + nested, "type 14"),
        (header + pack(pack(matrix("X", x))), "no matrix"),
        (header + struct.pack("<II", 14, 2**32 - 1), "too early"),
        (header + struct.pack("<II", 15, 2**32 - 1) + good_x[8:], "too early|variables|type"),
        (header + struct.pack("<II", 77, 8) + bytes(8), "type 77"),
        (header + element(14, element(6, bytes(LARGE))), "30,000,000 bytes of type 6"),
        (header + element(14, struct.pack("<HHI", 6, 8, 9)), "8 bytes in a tag"),
        (header + pack(matrix("Z", np.zeros(LARGE, np.uint8)) * 2) + good_x, "variables"),
        (header + matrix("Z", np.zeros(LARGE, np.uint8)) + good_x + good_y, "other variables"),
        (header + pack(matrix("X", x, shape=(32, 32, 3, 2**31 - 1))), "shape"),
        (header + pack(matrix("X", x, shape=(32, 32, 3, -3))), "shape"),
        (header + pack(matrix("X", x, shape=(2**31 - 1,) * 4)), "shape"),
        (header + pack(matrix("X", x, shape=(32, 32, 3, 2))), "has 9,216 bytes"),
        (header + pack(matrix("X", x, shape=(32, 32, 3, 4))), "has 9,216 bytes"),
        (header + pack(matrix("X", x, shape=(32, 96, 3))), "shape"),
        (header + pack(matrix("X", x, shape=())), "shape"),
        (header + pack(matrix("X", x, shape=(1,) * 16)), "shape"),
        (header + pack(matrix("X", x, shape=(1,) * 17)), "68 bytes of type 5"),
        (header + pack(matrix("X", x, kind=9)), "type 9"),
        (header + pack(matrix("X", x, flags=9 | 0x800)), "flags"),
        (header + pack(matrix("X", x, flags=1)), "flags"),
        (header + pack(matrix("X", x) + bytes(8)) + good_y, "longer than its axes"),
        (header + pack(matrix("X", x) + bytes(LARGE)) + good_y, "longer than its axes"),
        (header + good_x + pack(matrix("y", y[:2])), "3 images and 2 labels"),
        (header + good_x + pack(matrix("y", y + 1)), "label 11"),
        (header + good_x + pack(matrix("y", y - 1)), "label 0"),
        (header + good_x + pack(matrix("y", np.array([[1], [np.nan], [3]]), kind=9)), "label nan"),
        (header + good_x + pack(matrix("y", np.array([[1], [np.inf], [3]]), kind=9)), "label inf"),
        (header + good_x + pack(matrix("y", np.array([[1], [1.5], [3]]), kind=9)), "label 1.5"),
    ]:
        path = write(tmp_path, "x.mat", content)
        del content
        refused(lambda path=path: read_mat(path), path, message)


def test_a_claim_of_many_digits_takes_no_memory(tmp_path, pictures):
    claim = samples.matrix("X", pictures, shape=(32, 32, 3, 500_000))
    claim = claim.replace(struct.pack("<II", 2, pictures.nbytes), struct.pack("<II", 2, 500_000 * 3072))
    path = write(tmp_path, "x.mat", samples.HEADER + samples.compressed(claim))
    refused(lambda: read_mat(path, 531_131), path, "too early", memory=5_000_000)


def test_no_other_errors_are_swallowed(tmp_path):
    path = write(tmp_path, "x", b"")
    with pytest.raises(KeyError), formats.opened(path):
        raise KeyError
    assert issubclass(gzip.BadGzipFile, OSError)  # which `opened` turns into a DataError
    assert not issubclass(zlib.error, OSError)
