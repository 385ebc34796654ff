"""Load a data set by name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import explain
from .catalog import SOURCES
from .sources import Root, Source

NAMES = tuple(SOURCES)
SPLITS = ("train", "valid", "test")
VALIDATION = 5_000  # images, as in section 5 of the paper


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images (N, C, H, W) as bytes, their labels (N,) as int64, and the names of the classes.

    >>> shapes = tp.data.load("shapes", split="test")
    >>> shapes
    <shapes test: 2,000 images 3x32x32 uint8, 10 classes>
    >>> shapes.classes[shapes.labels[0]]
    'square'
    """

    name: str
    split: str
    images: HostArray
    labels: HostArray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(length) for length in self.images.shape[1:])
        images = f"{len(self):,} images {shape} {self.images.dtype}"
        return f"<{self.name} {self.split}: {images}, {len(self.classes)} classes>"

    def first(self, count: int) -> Self:
        """The first `count` images, or all if there are fewer. They are not copied.

        >>> tp.data.load("shapes", split="test").first(3).labels
        array([2, 9, 2])
        """
        if count < 1:
            hint = f"first(100) of the {len(self):,}"
            raise ValueError(explain(f"first({count})", "count is at least 1", hint))
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def subset(self, indices: HostArray | Sequence[int]) -> Self:
        """A copy of the images with these indices, in this order.

        >>> tp.data.load("shapes", split="test").subset([5, 0]).labels
        array([8, 2])
        """
        chosen = np.asarray(indices)
        are_integers = chosen.ndim == 1 and chosen.dtype.kind in "iu"
        if not are_integers or not ((chosen >= 0) & (chosen < len(self))).all():
            rule = f"indices are integers from 0 to {len(self) - 1:,}, in one list or array"
            hint = "subset(numpy.random.default_rng(0).permutation(len(dataset))[:100])"
            raise IndexError(explain(f"subset({indices})", rule, hint))
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def shrunk(self, factor: int) -> Self:
        """The images with each block of factor x factor pixels averaged, as float32.

        >>> tp.data.load("shapes", split="test").first(3).shrunk(2)
        <shapes test: 3 images 3x16x16 float32, 10 classes>
        """
        n, c, h, w = self.images.shape
        if factor < 1 or h % factor or w % factor:
            got = f"shrunk({factor}) of images {h}x{w}"
            raise ValueError(explain(got, "the factor divides height and width", "shrunk(2)"))
        if factor == 1:
            return self
        blocks = self.images.reshape(n, c, h // factor, factor, w // factor, factor)
        means = blocks.mean(axis=(3, 5), dtype="float32")
        return replace(self, images=means)


def load(name: str, root: Root = None, split: str = "train") -> Dataset:
    """A data set: shapes (drawn on the spot), cifar10, cifar100, svhn, mnist or fashion-mnist.

    Its files, compressed as they are published or unpacked, are searched in `root`, in
    $TINYPROP_DATA and in the user's cache folder. Missing files are downloaded into the first of
    these that is given, and checked. The splits are train, valid and test; valid is held out from
    the images that are published for training.

    >>> tp.data.load("shapes", split="valid")
    <shapes valid: 1,000 images 3x32x32 uint8, 10 classes>
    """
    source = _source(name, split)
    paths = source.files(root, split, fetch=True) or []
    images, labels = [], []
    for i, (its_images, its_labels) in enumerate(source.read(source, paths, split)):
        if split != "test":
            per_class = source.per_class[i] if source.per_class else None
            is_valid = held_out(its_labels, per_class)
            chosen = is_valid if split == "valid" else ~is_valid
            its_images = its_images[chosen]
            its_labels = its_labels[chosen]
        images.append(its_images)
        labels.append(its_labels)
    return Dataset(name, split, np.concatenate(images), np.concatenate(labels), source.classes)


def held_out(labels: HostArray, per_class: int | None) -> HostArray:
    """Mark the validation images: the last `per_class` of each class, or else the last 5,000; but
    at most a tenth."""
    marks = np.zeros(len(labels), bool)
    if per_class is None:
        _mark_last(marks, np.arange(len(labels)), VALIDATION)
    else:
        for label in np.unique(labels):
            _mark_last(marks, np.flatnonzero(labels == label), per_class)
    return marks


def _mark_last(marks: HostArray, indices: HostArray, count: int) -> None:
    count = min(count, len(indices) // 10)
    first = len(indices) - count
    marks[indices[first:]] = True


def found(
    name: str, root: Root = None, split: str | None = None, download: bool = False
) -> str | None:
    """Where a data set is, or None if it is not available without a download. Files are looked up,
    not read.

    Without a split, the files of all splits must be there. With `download=True`, missing files are
    downloaded, but not decoded; a DataError says why that fails.

    >>> tp.data.found("shapes")
    'drawn when loaded'
    >>> print(tp.data.found("mnist", root="/nowhere"))
    None
    """
    splits = ("train", "test") if split is None else (split,)
    paths = [_source(name, part).files(root, part, fetch=download) for part in splits]
    if None in paths:
        return None
    if not paths[0]:
        return "drawn when loaded"
    return str(paths[0][0].parent)


def _source(name: str, split: str) -> Source:
    if name not in SOURCES:
        rule = f"a data set is one of {', '.join(NAMES)}"
        raise ValueError(explain(f"data set {name!r}", rule, "load('shapes')"))
    if split not in SPLITS:
        rule = f"a split is one of {', '.join(SPLITS)}"
        raise ValueError(explain(f"split {split!r}", rule, "split='train'"))
    return SOURCES[name]
