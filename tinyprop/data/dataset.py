"""A data set: samples with their labels, which checks itself."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

import numpy as np

from ..engine.arrays import HostArray, is_array, is_host_array
from ..engine.errors import DataError, explain
from ..engine.tensor import Tensor
from .show import show

CHANNELS = (1, 3, 4)  # of gray, color and transparent images
SMALLEST_SIDE = 8  # of an image that we would mistake for one with its channels last
LONGEST_SIDE = 4  # times the shorter one
ROUNDING = 1e-4  # of the range of a feature, by which float32 may change its values


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images (N, C, H, W) or vectors (N, features), as bytes or float32, and their labels (N,).

    Labels are integers from 0; `classes` has the name of each, by default its number. Arrays are
    checked and not copied, except that float64 becomes float32. `notes` says what a user should
    know about how the data set was made, such as a split that was drawn.

    >>> rng = np.random.default_rng(0)
    >>> tp.data.Dataset(rng.random((4, 5)), [0, 1, 2, 0], classes=("a", "b", "c"), name="mine")
    <mine: 4 vectors of 5 float32, 3 classes; rounded from float64 to float32>
    >>> shapes = tp.data.load("shapes", split="test")
    >>> shapes
    <shapes test: 2,000 images 3x32x32 uint8, 10 classes>
    >>> shapes.classes[shapes.labels[0]]
    'square'
    """

    images: HostArray
    labels: HostArray
    classes: tuple[str, ...] = None  # type: ignore[assignment]  # never None after __init__
    name: str = "data"
    split: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, rounded = _checked_images(self.images)
        labels = _checked_labels(self.labels, len(images))
        notes = (*self.notes, *rounded)
        checked = {"images": images, "labels": labels, "notes": notes}
        checked["classes"] = _checked_classes(self.classes, labels)
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        title = f"{self.name} {self.split}".rstrip()
        facts = f"{self.contents}, {len(self.classes)} classes"
        return f"<{'; '.join((f'{title}: {facts}', *self.notes))}>"

    def _repr_html_(self) -> str:
        return show(self)

    @property
    def contents(self) -> str:
        """Number, shape and dtype of the samples, in words.

        >>> tp.data.load("shapes", split="test").contents
        '2,000 images 3x32x32 uint8'
        """
        dtype = self.images.dtype
        if self.has_vectors:
            return f"{len(self):,} vectors of {self.images.shape[1]:,} {dtype}"
        shape = "x".join(str(length) for length in self.images.shape[1:])
        return f"{len(self):,} images {shape} {dtype}"

    @property
    def has_vectors(self) -> bool:
        """Whether the samples are vectors, and not images."""
        return self.images.ndim == 2

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
        if factor == 1:
            return self
        if self.has_vectors:
            got = f"shrunk({factor}) of {self.contents}"
            raise ValueError(explain(got, "vectors have no pixels to average", "shrunk(1)"))
        n, c, h, w = self.images.shape
        if factor < 1 or h % factor or w % factor:
            got = f"shrunk({factor}) of images {h}x{w}"
            raise ValueError(explain(got, "the factor divides height and width", "shrunk(2)"))
        blocks = self.images.reshape(n, c, h // factor, factor, w // factor, factor)
        means = blocks.mean(axis=(3, 5), dtype="float32")
        return replace(self, images=means)


def fingerprint(*datasets: Dataset) -> str:
    """The SHA-256 digest of all samples and labels, by which a run knows its data again.

    >>> shapes = tp.data.load("shapes", split="test")
    >>> tp.data.fingerprint(shapes) == tp.data.fingerprint(shapes.first(10))
    False
    """
    digest = hashlib.sha256()
    for dataset in datasets:
        for array in (dataset.images, dataset.labels):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _as_array(name: str, value: Any) -> HostArray:
    """An array on the host; what it is made of is not copied."""
    rule = f"{name} are a NumPy array"
    if isinstance(value, Tensor):
        raise DataError(f"{name} that are a tensor", rule, f"{name}.numpy()")
    if is_array(value) and not is_host_array(value):
        raise DataError(f"{name} on a device", rule, f"cupy.asnumpy({name})")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        # lists of different lengths, or the tensors of other libraries
        got = f"{name} that NumPy cannot make an array of ({error})"
        raise DataError(got, rule, "samples that all have the same shape") from None
    return array


def _checked_images(value: Any) -> tuple[HostArray, tuple[str, ...]]:
    """Samples as bytes or float32, and a note if some were rounded."""
    images = _as_array("images", value)
    _check_shape(images.shape)
    if images.dtype == np.uint8:
        return images, ()
    if images.dtype not in (np.float32, np.float64):
        _refuse_dtype(images)
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        floats = images.astype(np.float32, copy=False)
    _check_finite(images, floats)
    if np.array_equal(images, floats):
        return floats, ()
    _check_rounding(images, floats)
    return floats, ("rounded from float64 to float32",)


def _check_shape(shape: tuple[int, ...]) -> None:
    rule = "images have four axes (N, C, H, W), channels first, or vectors two: (N, features)"
    got = f"images of shape {shape}"
    if len(shape) == 3:
        raise DataError(got, rule, "images[:, None] for gray images (N, H, W)")
    if len(shape) == 1:
        raise DataError(got, rule, "images[:, None] for samples of one number each")
    if len(shape) not in (2, 4):
        raise DataError(got, rule, "images.reshape(len(images), -1) for vectors")
    if 0 in shape:
        raise DataError(got, "there is at least one sample, and no axis is empty", "other arrays")
    if len(shape) == 4 and _has_channels_last(shape):
        hint = "images.transpose(0, 3, 1, 2), if the channels are last"
        raise DataError(got, rule, hint)


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether (N, H, W, C) is the likelier meaning of a shape of four axes."""
    _, height, width, channels = shape
    shorter, longer = sorted((height, width))
    looks_like_an_image = shorter >= SMALLEST_SIDE and longer <= LONGEST_SIDE * shorter
    return channels in CHANNELS and looks_like_an_image


def _refuse_dtype(images: HostArray) -> NoReturn:
    rule = "images are bytes (uint8) or float32; float64 is converted"
    hint = 'images.astype("float32")'
    if images.dtype.kind in "iub":
        low, high = images.min(), images.max()
        fits = int(low) >= 0 and int(high) <= 255
        hint = 'images.astype("uint8")' if fits else f"{hint}, for values from {low} to {high}"
    raise DataError(f"images of dtype {images.dtype}", rule, hint)


def _check_finite(images: HostArray, floats: HostArray) -> None:
    is_finite = np.isfinite(floats)
    if is_finite.all():
        return
    index = tuple(int(i) for i in np.argwhere(~is_finite)[0])
    count = np.count_nonzero(~is_finite)
    got = f"images with {count:,} values that are not finite: {images[index]} at {index}"
    rule = "all values are finite, and below 3.4e38, the largest of float32"
    raise DataError(got, rule, "leave out these samples, or replace the values")


def _check_rounding(images: HostArray, floats: HostArray) -> None:
    """Refuse features whose differences float32 cannot hold, such as seconds since 1970."""
    largest_change = abs(images - floats).max(axis=0)
    low, high = images.min(axis=0), images.max(axis=0)
    is_lost = largest_change > ROUNDING * (high - low)
    if not is_lost.any():
        return
    feature = tuple(int(i) for i in np.argwhere(is_lost)[0])
    got = f"float64 values from {low[feature]} to {high[feature]} at {feature} of each sample"
    rule = "float32, with its 7 digits, must hold their differences"
    raise DataError(got, rule, "images - images.mean(axis=0)")


def _checked_labels(value: Any, count: int) -> HostArray:
    labels = _as_array("labels", value)
    got = f"labels of shape {labels.shape} and dtype {labels.dtype}"
    rule = "labels are integers from 0, one for each sample"
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(got, rule, "labels.argmax(axis=1), if they are one-hot")
    if labels.ndim != 1:
        raise DataError(got, rule, "labels.reshape(-1)")
    if len(labels) != count:
        raise DataError(f"{count:,} images and {len(labels):,} labels", rule, "as many of both")
    if labels.dtype.kind in "US":
        hint = "classes, labels = numpy.unique(labels, return_inverse=True)"
        raise DataError(got, rule, hint)
    if labels.dtype.kind not in "iu":
        raise DataError(got, rule, "labels.astype(int), if they are whole numbers")
    if labels.min() < 0:
        raise DataError(f"a label of {labels.min()}", rule, "labels - labels.min()")
    return labels.astype(np.int64, copy=False)


def _checked_classes(value: Any, labels: HostArray) -> tuple[str, ...]:
    """The names of the classes; without any, their numbers, if every label occurs."""
    largest = int(labels.max())
    if value is None:
        distinct = len(np.unique(labels))
        if distinct == largest + 1:
            return tuple(str(label) for label in range(distinct))
        got = f"{distinct:,} different labels, from {labels.min()} to {largest}"
        rule = "labels count from 0, and without `classes` every one occurs"
        hint = "labels = numpy.unique(labels, return_inverse=True)[1], or classes=(...)"
        raise DataError(got, rule, hint)
    if isinstance(value, str):
        got = f"classes = {value!r}"
        raise DataError(got, "classes are a tuple of names", f"classes={tuple(value.split())}")
    classes = tuple(str(name) for name in value)
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise DataError(f"two classes {twice!r}", "each class has a name of its own", "other names")
    if largest >= len(classes):
        got = f"the label {largest} with {len(classes)} classes"
        rule = f"labels are integers from 0 to {len(classes) - 1}"
        raise DataError(got, rule, f"{largest + 1} names, or other labels")
    return classes
