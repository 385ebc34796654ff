"""More than ten thousand damaged files: each is read as a valid data set or refused by name, with little memory."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop.data.sets import SOURCES

from . import samples

MUTATIONS = 1_100  # of each of the files below
PICTURES = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3, 32, 32)
DIGITS = PICTURES[:, 0, :28, :28].copy()
RECORDS = samples.records(PICTURES, [3, 9])
TAR = samples.tar(
    [(f"cifar-10-batches-bin/{name}", RECORDS) for name in [*samples.CIFAR10_TRAIN, "test_batch.bin"]], mtime=1
)
MATRICES = [samples.matrix("X", PICTURES.T), samples.matrix("y", np.array([[3], [10]], np.uint8), flags=6)]


def compressed_matrices(content):
    """Damage that lies under the compression."""
    cut = len(MATRICES[0])
    return samples.HEADER + samples.compressed(content[:cut]) + samples.compressed(content[cut:])


# name: data set, file name, content to damage, what is done to it afterwards
CASES = {
    "records": ("cifar100", "test.bin", samples.records(PICTURES, [1, 2], [3, 99]), bytes),
    "archive": ("cifar10", "cifar-10-binary.tar.gz", samples.packed(TAR), bytes),
    "archive inside": ("cifar10", "cifar-10-binary.tar.gz", TAR, samples.packed),
    "idx": ("mnist", "t10k-images-idx3-ubyte", samples.idx(DIGITS), bytes),
    "idx packed": ("mnist", "t10k-images-idx3-ubyte.gz", samples.packed(samples.idx(DIGITS)), bytes),
    "idx inside": ("mnist", "t10k-images-idx3-ubyte.gz", samples.idx(DIGITS), samples.packed),
    "idx labels": ("mnist", "t10k-labels-idx1-ubyte", samples.idx(np.array([3, 9], np.uint8)), bytes),
    "mat": ("svhn", "test_32x32.mat", samples.svhn(PICTURES, [3, 10]), bytes),
    "mat plain": ("svhn", "test_32x32.mat", samples.svhn(PICTURES, [3, 10], bytes), bytes),
    "mat inside": ("svhn", "test_32x32.mat", b"".join(MATRICES), compressed_matrices),
}


def damaged(rng, content):
    """A copy with one to three changes, of which half are near the start, where the headers are."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        end = len(content) if rng.integers(2) else min(len(content), 200)
        at, length = int(rng.integers(end + 1)), int(rng.integers(1, 9)) ** int(rng.integers(1, 4))
        match rng.integers(8):
            case 0 if at < len(content):
                content[at] ^= 1 << int(rng.integers(8))
            case 1 if at < len(content):
                content[at] = int(rng.choice([0, 1, 8, 14, 15, 32, 127, 128, 255]))
            case 2:
                del content[at:]
            case 3:
                content += rng.bytes(length)
            case 4:
                content[at:at] = rng.bytes(length)
            case 5:
                del content[at : at + length]
            case 6:
                content[at:at] = content[at : at + length]
            case _:
                words = [bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x00\x00\x01\x00"]
                content[at : at + 4] = words[rng.integers(len(words))]
    return bytes(content)


def read_or_refuse(folder, name, content):
    """Put the file beside a good one, if the data set has two, and load it: whether it was read."""
    dataset, file, _, finish = CASES[name]
    path = folder / file
    path.write_bytes(finish(content))
    paths = [path]
    if dataset == "mnist":
        paths = [folder / "images", path] if "labels" in file else [path, folder / "labels"]
    source, complaint = SOURCES[dataset], ""
    try:
        images, labels = source.read(paths, "test")
    except tp.DataError as error:
        complaint = str(error)
    if complaint:
        assert str(folder) in complaint
        assert len(complaint) < 2_000
        return False
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), *((1, 28, 28) if dataset == "mnist" else (3, 32, 32)))
    assert labels.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < len(source.classes)
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    good = {"images": samples.idx(DIGITS), "labels": samples.idx(np.array([3, 9], np.uint8))}
    return samples.write(tmp_path_factory.mktemp("fuzz"), good)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_read_or_refused(folder, name):
    rng = np.random.default_rng(list(CASES).index(name))
    good = CASES[name][2]
    assert read_or_refuse(folder, name, good)
    read, slowest = 0, 0.0
    tracemalloc.start()
    try:
        for _ in range(MUTATIONS):
            content = damaged(rng, good)
            start = time.process_time()
            read += read_or_refuse(folder, name, content)
            slowest = max(slowest, time.process_time() - start)
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
    assert slowest < 2.0
    assert read < MUTATIONS * 0.6  # most damage is noticed; a pixel that has changed cannot be


@given(name=st.sampled_from(list(CASES)), start=st.floats(0, 1), end=st.binary(max_size=600))
def test_what_hypothesis_makes_up_is_read_or_refused(folder, name, start, end):
    good = CASES[name][2]
    read_or_refuse(folder, name, good[: int(start * len(good))] + end)
