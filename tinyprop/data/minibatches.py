"""Mini-batches."""

from collections.abc import Iterator

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, from_host, is_array
from ..engine.errors import ShapeError, explain
from .dataset import Dataset


def batches(
    data: Dataset | tuple[Array, Array],
    batch_size: int,
    random: "np.random.Generator | None" = None,  # quoted: NumPy loads it on first use
    flip: bool = False,
) -> Iterator[tuple[Array, Array]]:
    """Images and labels, `batch_size` at a time, every sample once; the last batch may be smaller.

    With a generator the samples are shuffled; with `flip`, a random half of the images is mirrored
    left to right. All random numbers of the epoch are drawn by this call, so the state of the
    generator does not depend on how many batches are taken. Only the samples of a batch are copied;
    without a generator, nothing is.

    >>> dataset = tp.data.load("shapes", split="test")
    >>> [len(labels) for images, labels in tp.data.batches(dataset, 600)]
    [600, 600, 600, 200]
    """
    images, labels = (data.images, data.labels) if isinstance(data, Dataset) else data
    _check_samples(images, labels)
    if batch_size < 1:
        raise ValueError(explain(f"batch_size={batch_size}", "it is at least 1", "batch_size=50"))
    new_generator = "random=numpy.random.default_rng(0)"
    if random is not None and not hasattr(random, "permutation"):
        raise TypeError(explain(f"random={random!r}", "it is a generator", new_generator))
    if flip and images.ndim < 3:
        got = f"flip=True for samples of shape {images.shape[1:]}"
        rule = "images to flip have a height and a width; vectors have no left and right"
        raise ValueError(explain(got, rule, "flip=False"))
    if flip and random is None:
        rule = "a generator says which images are flipped"
        raise ValueError(explain("flip=True, random=None", rule, new_generator))
    if random is None:
        return _in_order(images, labels, batch_size)
    order = random.permutation(len(labels))
    flips = random.integers(2, size=len(labels)) == 1 if flip else None
    return _shuffled(images, labels, batch_size, order, flips)


def _check_samples(images: Array, labels: Array) -> None:
    are_arrays = is_array(images) and is_array(labels)
    if are_arrays and labels.ndim == 1 and len(images) == len(labels):
        return
    shapes = [getattr(array, "shape", type(array).__name__) for array in (images, labels)]
    raise ShapeError(
        f"images of shape {shapes[0]} and labels of shape {shapes[1]}",
        "arrays (N, ...) and (N,)",
        "batches(dataset, 50), or batches((images, labels), 50)",
    )


def _in_order(images: Array, labels: Array, size: int) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        yield images[part], labels[part]


def _shuffled(
    images: Array, labels: Array, size: int, order: HostArray, flips: HostArray | None
) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        its_images = images[from_host(order[part], like=images)]
        its_labels = labels[from_host(order[part], like=labels)]
        if flips is not None:
            mirrored = from_host(flips[part], like=images)
            mirrored = mirrored.reshape(-1, *[1] * (images.ndim - 1))  # (n,) -> (n, 1, 1, 1)
            xp = array_module(images)
            its_images = xp.where(mirrored, its_images[..., ::-1], its_images)
        yield its_images, its_labels
