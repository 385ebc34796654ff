"""Mini-batches."""

from collections.abc import Iterator

import numpy as np

from ..engine.arrays import Array, array_module, from_host, is_array
from ..engine.errors import ShapeError, explain
from .sets import Dataset


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
    if (
        not is_array(images)
        or not is_array(labels)
        or labels.ndim != 1
        or len(images) != len(labels)
    ):
        shapes = [getattr(array, "shape", type(array).__name__) for array in (images, labels)]
        got = f"images of shape {shapes[0]} and labels of shape {shapes[1]}"
        raise ShapeError(
            got,
            "arrays (N, ...) and (N,)",
            "batches(dataset, 50), or batches((images, labels), 50)",
        )
    if batch_size < 1:
        raise ValueError(explain(f"batch_size={batch_size}", "it is at least 1", "batch_size=50"))
    if random is not None and not hasattr(random, "permutation"):
        got, rule = f"random={random!r}", "it is a generator"
        raise TypeError(explain(got, rule, "random=numpy.random.default_rng(0)"))
    if flip and (random is None or images.ndim < 2):
        rule = "images to flip have a width, and a generator says which are flipped"
        raise ValueError(
            explain(f"flip=True, random={random}", rule, "random=numpy.random.default_rng(0)")
        )
    order = None if random is None else random.permutation(len(labels))
    flips = random.integers(2, size=len(labels)) == 1 if flip and random is not None else None
    return _taken(images, labels, batch_size, order, flips)


def _taken(
    images: Array, labels: Array, size: int, order: Array, flips: Array
) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(labels), size):
        part = slice(start, start + size)
        if order is None:
            yield images[part], labels[part]
            continue
        batch, its_labels = (
            images[from_host(order[part], like=images)],
            labels[from_host(order[part], like=labels)],
        )
        if flips is not None:
            mirrored = from_host(flips[part], like=images).reshape(-1, *[1] * (images.ndim - 1))
            batch = array_module(batch).where(mirrored, batch[..., ::-1], batch)
        yield batch, its_labels
