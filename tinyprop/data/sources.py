"""How each data set is found, fetched and read: its files, classes and splits.

A source finds the files of a split, or fetches them; then it reads them. Validation images come from the end of the
training images: 5,000 of them, as in section 5 of the paper, or a tenth where that is less. SVHN is split as in the
paper, too: of each class 400 training and 200 extra images are for validation (here the last ones, and again at most
a tenth), and the rest of both is for training.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ..engine.arrays import HostArray
from ..files import write_whole
from . import shapes
from .classes import DIGITS
from .files import Remote, Root, download, find, places
from .formats import PIECE, check_labels, opened, read_idx, read_records, refuse, tar_members
from .matlab import read_svhn

VALIDATION = 5_000

Samples = tuple[HostArray, HostArray]  # images (N, C, H, W) and labels (N,)


class Source(Protocol):
    """What `load` needs of a data set. A split is train, valid or test."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def find(self, root: Root, split: str) -> list[Path] | None:
        """The files of a split, if they are all there."""

    def fetch(self, root: Root, split: str) -> list[Path]:
        """Put the files of a split, not all of which are there, into the first of the places."""

    def read(self, paths: list[Path], split: str) -> Samples:
        """The images and labels of a split."""


def _published(split: str) -> str:
    """Validation images are published as training images."""
    return "test" if split == "test" else "train"


def _part(samples: Samples, split: str) -> Samples:
    """The part of the published images that a split has."""
    if split == "test":
        return samples
    train = len(samples[1]) - min(VALIDATION, len(samples[1]) // 10)
    part = slice(train) if split == "train" else slice(train, None)
    return samples[0][part], samples[1][part]


def _joined(parts: list[Samples]) -> Samples:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


@dataclass(frozen=True)
class Drawn:
    """The shapes: drawn when first needed, and kept in files of records. A file that has changed is drawn anew."""

    classes: tuple[str, ...] = shapes.CLASSES

    def find(self, root: Root, split: str) -> list[Path] | None:
        drawing = shapes.DRAWINGS[_published(split)]
        paths = find(root, ("shapes",), [drawing.file])
        return paths if paths and _md5(paths[0]) == drawing.md5 else None

    def fetch(self, root: Root, split: str) -> list[Path]:
        drawing = shapes.DRAWINGS[_published(split)]
        path = places(root)[0] / "shapes" / drawing.file
        images, labels = drawing.draw()
        records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], axis=1)
        try:
            write_whole(path, records.tobytes())
        except OSError:
            return []  # nothing can be kept there: that only costs time
        return [path]

    def read(self, paths: list[Path], split: str) -> Samples:
        drawing = shapes.DRAWINGS[_published(split)]
        if not paths:
            return _part(drawing.draw(), split)
        with opened(paths[0]) as file:
            return _part(_joined([read_records(paths[0], file, drawing.count, len(self.classes))]), split)


@dataclass(frozen=True)
class Cifar:
    """Files of records, in an archive or in the folder that it unpacks to."""

    name: str
    classes: tuple[str, ...]
    archive: Remote
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    most: int  # records in a file
    label_bytes: int

    def names(self, split: str) -> tuple[str, ...]:
        return self.test if split == "test" else self.train

    def find(self, root: Root, split: str) -> list[Path] | None:
        unpacked = find(root, (self.folder, f"{self.name}/{self.folder}"), self.names(split))
        return unpacked or find(root, (".", self.name), [self.archive.name])

    def fetch(self, root: Root, split: str) -> list[Path]:
        return [download(self.archive, places(root)[0] / self.name)]

    def read(self, paths: list[Path], split: str) -> Samples:
        if paths[0].name == self.archive.name:
            return _part(self.unpack(paths[0], self.names(split)), split)
        parts = []
        for path in paths:
            with opened(path) as file:
                parts.append(read_records(path, file, self.most, len(self.classes), self.label_bytes))
        return _part(_joined(parts), split)

    def unpack(self, path: Path, names: tuple[str, ...]) -> Samples:
        longest = self.most * (self.label_bytes + 3 * 32 * 32)
        members = {f"{self.folder}/{name}": longest for name in self.train + self.test}
        parts: dict[str, Samples] = {}
        with opened(path) as file:
            for name, member in tar_members(path, file, members):
                if name.removeprefix(f"{self.folder}/") in names:
                    parts[name] = read_records(path, member, self.most, len(self.classes), self.label_bytes)
        return _joined([parts[f"{self.folder}/{name}"] for name in names])


@dataclass(frozen=True)
class Idx:
    """A file of images and one of labels, packed or not. Two data sets share the names, so folders tell them apart."""

    name: str
    classes: tuple[str, ...]
    folders: tuple[str, ...]
    train: tuple[Remote, Remote]
    test: tuple[Remote, Remote]
    most: int
    shape: tuple[int, int] = (28, 28)

    def find(self, root: Root, split: str) -> list[Path] | None:
        packed = [remote.name for remote in (self.test if split == "test" else self.train)]
        raw = [name.removesuffix(".gz") for name in packed]
        dotted = [name.replace("-idx", ".idx") for name in raw]  # as some unpackers write them
        return find(root, self.folders, raw, dotted, packed)

    def fetch(self, root: Root, split: str) -> list[Path]:
        return [_found_or_downloaded(root, self.folders, r) for r in (self.test if split == "test" else self.train)]

    def read(self, paths: list[Path], split: str) -> Samples:
        with opened(paths[0]) as file:
            images = read_idx(paths[0], file, self.most, self.shape)[:, None]
        with opened(paths[1]) as file:
            labels = check_labels(paths[1], read_idx(paths[1], file, self.most, ()), 0, len(self.classes) - 1)
        if len(images) != len(labels):
            fault = f"which has {len(labels):,} labels, for {len(images):,} images in {paths[0]}"
            refuse(paths[1], fault, "there is a label for each image")
        return _part((images, labels), split)


@dataclass(frozen=True)
class Svhn:
    """Files of MATLAB: train, extra and test."""

    train: Remote
    extra: Remote
    test: Remote
    most: int
    classes: tuple[str, ...] = DIGITS
    folders: tuple[str, ...] = ("svhn", ".")
    held_out: tuple[int, int] = (400, 200)  # of each class of train and of extra, for validation

    def remotes(self, split: str) -> list[Remote]:
        return [self.test] if split == "test" else [self.train, self.extra]

    def find(self, root: Root, split: str) -> list[Path] | None:
        return find(root, self.folders, [remote.name for remote in self.remotes(split)])

    def fetch(self, root: Root, split: str) -> list[Path]:
        return [_found_or_downloaded(root, self.folders, remote) for remote in self.remotes(split)]

    def read(self, paths: list[Path], split: str) -> Samples:
        parts = []
        for path, count in zip(paths, self.held_out, strict=False):
            with opened(path) as file:
                images, labels = read_svhn(path, file, self.most)
            if split != "test":
                chosen = self.validation(labels, count)
                chosen = chosen if split == "valid" else ~chosen
                images, labels = images[chosen], labels[chosen]
            parts.append((images, labels))
        return _joined(parts)

    def validation(self, labels: HostArray, count: int) -> HostArray:
        """Marks the last `count` images of each class, or the last tenth of them if that is less."""
        marks = np.zeros(len(labels), bool)
        for label in range(len(self.classes)):
            mine = np.flatnonzero(labels == label)
            marks[mine[len(mine) - min(count, len(mine) // 10) :]] = True
        return marks


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with opened(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _found_or_downloaded(root: Root, folders: tuple[str, ...], remote: Remote) -> Path:
    found = find(root, folders, [remote.name])
    return found[0] if found else download(remote, places(root)[0] / folders[0])
