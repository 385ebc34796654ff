"""Ten thousand damaged files: each is read as a valid data set or refused by name, with little memory."""

import tracemalloc

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data.catalog import SOURCES

from . import samples

DAMAGED = 1_100  # copies of each of the files below
IMAGES = np.arange(5 * 3072, dtype=np.uint32).astype(np.uint8).reshape(5, 3, 32, 32)
DIGITS = IMAGES[:, 0, :28, :28].copy()
LABELS = [3, 9, 1, 2, 10]
RECORDS = samples.records(IMAGES[:2], [3, 9])
TAR = samples.tar([(name, RECORDS) for name in samples.CIFAR10], mtime=1)
MATRICES = [samples.matrix("X", IMAGES.T), samples.matrix("y", np.array(LABELS, np.uint8)[:, None])]
GOOD = {"images": samples.idx(DIGITS), "labels": samples.idx(np.array([3, 9, 1, 2, 0], np.uint8))}


def compressed_matrices(content):
    """Damage that lies under the compression."""
    cut = len(MATRICES[0])
    return samples.HEADER + samples.compressed(content[:cut]) + samples.compressed(content[cut:])


# name: data set, file name, content to damage, what is done to it afterwards
CASES = {
    "records": ("cifar100", "test.bin", samples.records(IMAGES[:2], [1, 2], [3, 99]), bytes),
    "archive": ("cifar10", "cifar-10-binary.tar.gz", samples.packed(TAR), bytes),
    "archive inside": ("cifar10", "cifar-10-binary.tar.gz", TAR, samples.packed),
    "idx": ("mnist", "t10k-images-idx3-ubyte", GOOD["images"], bytes),
    "idx packed": ("mnist", "t10k-images-idx3-ubyte.gz", samples.packed(GOOD["images"]), bytes),
    "idx inside": ("mnist", "t10k-images-idx3-ubyte.gz", GOOD["images"], samples.packed),
    "idx labels": ("mnist", "t10k-labels-idx1-ubyte", GOOD["labels"], bytes),
    "mat": ("svhn", "test_32x32.mat", samples.svhn(IMAGES, LABELS), bytes),
    "mat inside": ("svhn", "test_32x32.mat", b"".join(MATRICES), compressed_matrices),
}


def damaged(rng, content):
    """A copy with one to three changes, of which half are near the start, where the headers are."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        end = len(content) if rng.integers(2) else min(len(content), 200)
        at, length = int(rng.integers(end + 1)), int(rng.integers(1, 9)) ** int(rng.integers(1, 4))
        words = [b"", bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\0\0\1\0", rng.bytes(length)]
        match rng.integers(4):
            case 0 if at < len(content):
                content[at] ^= 1 << int(rng.integers(8))
            case 1:
                del content[at:]
            case 2:
                content[at:at] = content[at : at + length]
            case _:
                word = words[rng.integers(len(words))]
                content[at : at + (len(word) or length)] = word
    return bytes(content)


def read_or_refuse(folder, name, content):
    """Put the file beside a good one, if the data set has two, and read it: whether that worked."""
    dataset, file, _, finish = CASES[name]
    path = folder / file
    path.write_bytes(finish(content))
    paths = [path]
    if dataset == "mnist":
        paths = [folder / "images", path] if "labels" in file else [path, folder / "labels"]
    source = SOURCES[dataset]
    try:
        ((images, labels),) = source.read(source, paths, "test")
    except tp.DataError as error:
        assert str(folder) in str(error)
        assert len(str(error)) < 2_000
        return False
    assert images.dtype == np.uint8
    assert images.shape == (len(labels), *((1, 28, 28) if dataset == "mnist" else (3, 32, 32)))
    assert labels.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < len(source.classes)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    samples.write(tmp_path, GOOD)
    rng = np.random.default_rng(list(CASES).index(name))
    good = CASES[name][2]
    assert read_or_refuse(tmp_path, name, good)
    tracemalloc.start()
    try:
        read = sum(read_or_refuse(tmp_path, name, damaged(rng, good)) for _ in range(DAMAGED))
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
    assert read < DAMAGED * 0.6  # most damage is noticed; a pixel that has changed cannot be
