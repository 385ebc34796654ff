"""Small data files of every format, made byte by byte."""

import gzip
import io
import struct
import tarfile
import zlib

import numpy as np

CIFAR10 = [
    *(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
    "cifar-10-batches-bin/test_batch.bin",
]


def images(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def records(images, *labels):
    columns = [np.asarray(column, np.uint8)[:, None] for column in labels]
    return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


def tar(members, **header):
    """An uncompressed archive of (name, content); header sets fields of each member."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                for key, value in header.items():
                    setattr(info, key, value)
                archive.addfile(info, io.BytesIO(content))
        return file.getvalue()


def packed(content):
    return gzip.compress(content, 1, mtime=0)


def idx(array):
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def matrix(name, array, kind=2, shape=None):
    """A variable of a .mat file: flags, axes, name, values."""

    def element(kind, content):
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    axes = np.array(array.shape if shape is None else shape, "<i4").tobytes()
    short = struct.pack("<HH", 1, len(name)) + name.encode().ljust(4, b"\0")
    values = element(kind, array.tobytes("F"))
    return element(14, element(6, struct.pack("<II", 9, 0)) + element(5, axes) + short + values)


def compressed(content):
    content = zlib.compress(content, 1)
    return struct.pack("<II", 15, len(content)) + content


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def svhn(images, labels):
    """The file of images (N, 3, 32, 32) and labels from 1 to 10."""
    x = images.transpose(2, 3, 1, 0)  # (N, C, H, W) -> (H, W, C, N)
    y = np.asarray(labels, np.uint8)[:, None]  # (N,) -> (N, 1)
    return HEADER + compressed(matrix("X", x)) + compressed(matrix("y", y))


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
