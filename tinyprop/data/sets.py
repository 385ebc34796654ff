"""Load a data set: one of ours by its name, or one of yours."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import DataError, UnknownNameError, close_names, explain
from ..engine.loading import is_file_reference
from ..engine.random import new_generator
from ..engine.registry import Registry
from .catalog import SOURCES
from .dataset import Dataset, fingerprint
from .folders import Size, read_folder
from .npz import read_npz
from .sources import Root

NAMES = tuple(SOURCES)
SPLITS = ("train", "valid", "test")
VALIDATION = 5_000  # images, as in section 5 of the paper
DRAWN = {"test": 5, "valid": 10}  # one sample in so many, for a split that is not given

Parts = dict[str, Dataset]


def _no_files(split: str, root: Root, download: bool) -> str:
    return "drawn when loaded"


@dataclass(frozen=True)
class Loader:
    """A data set by name, for `tp.data.datasets.register`.

    `function(split)` returns a Dataset, or images and labels, or None for a split that it does not
    have. If it has a parameter `root` or `image_size`, it is given what the user chose.

    >>> seeds = {"train": 0, "test": 1}
    >>> def noise(split):
    ...     if split in seeds:
    ...         rng = np.random.default_rng(seeds[split])
    ...         return rng.random((100, 4), "float32"), rng.integers(0, 2, 100)
    >>> tp.data.datasets.register(tp.data.Loader("noise", noise))
    >>> tp.data.load("noise", split="test")
    <noise test: 100 vectors of 4 float32, 2 classes>
    >>> tp.data.datasets.unregister("noise")
    """

    name: str
    function: Callable[..., Any]
    # which it has, if that is known; if it has all, each is loaded only when it is asked for
    splits: tuple[str, ...] = ()
    # where the files of a split are, or None if some are missing
    find: Callable[[str, Root, bool], str | None] = _no_files
    path: Path | None = None  # of the file or folder that it reads

    def __str__(self) -> str:
        return str(self.path or self.name)

    def load(self, split: str, root: Root, image_size: Size | int | None) -> Any:
        """What the function returns for a split, if it is something that we can use."""
        parameters = inspect.signature(self.function).parameters
        options: dict[str, Any] = {"root": root} if "root" in parameters else {}
        if "image_size" in parameters:
            options["image_size"] = image_size
        elif image_size is not None:
            got = f"image_size={image_size} for {self.name}"
            rule = "it resizes the images of a folder, or of a function that has this parameter"
            raise ValueError(explain(got, rule, "leave it out"))
        return self._checked(split, self._call(split, options))

    def _call(self, split: str, options: dict[str, Any]) -> Any:
        try:
            return self.function(split, **options)
        except DataError:
            raise
        except Exception as error:
            got = f"{self.name}({split!r}), which raises {type(error).__name__}: {error}"
            rule = "a function of a split returns samples, or None for a split that it has not"
            raise DataError(got, rule, "call it in Python to see where it fails") from error

    def _checked(self, split: str, part: Any) -> Any:
        is_pair = isinstance(part, tuple | list) and len(part) == 2
        is_absent = part is None and split != "train"
        if is_pair or is_absent or isinstance(part, Dataset):
            return part
        got = f"{self.name}({split!r}), which returns {type(part).__name__}"
        rule = "it returns a Dataset, or images and labels; None only for valid and test"
        raise DataError(got, rule, "return images, labels")


datasets: Registry[Loader] = Registry(Loader, "data set", "tp.data.datasets")


def as_loader(source: Any) -> Loader:
    """The loader that is meant by a name, a path, `file.py:function`, a function, a Dataset, or a
    dictionary of splits.

    >>> tp.data.as_loader("shapes").name
    'shapes'
    """
    if isinstance(source, str) and is_file_reference(source):
        return as_loader(datasets.from_file(source))
    if isinstance(source, str | Path):
        return _named(source)
    if isinstance(source, Loader):
        return source
    if isinstance(source, Dataset):
        return Loader(source.name, {"train": source}.get)
    if isinstance(source, Mapping):
        _check_keys(source)
        return Loader("data", source.get)
    if callable(source):
        return Loader(getattr(source, "__name__", type(source).__name__), source)
    got = f"data of type {type(source).__name__}"
    raise TypeError(explain(got, _rule(), "tp.data.Dataset(images, labels)"))


def _named(source: str | Path) -> Loader:
    if source in datasets:
        return datasets[str(source)]
    path = Path(source).expanduser()
    if path.suffix == ".npz" and path.is_file():
        return Loader(path.stem, partial(read_npz, path), path=path.resolve())
    if path.is_dir():
        return Loader(path.resolve().name, partial(read_folder, path), path=path.resolve())
    if path.exists():
        got = f"data set {str(source)!r}, which is a file of another kind"
        raise DataError(got, _rule(), "numpy.savez('my.npz', images=x, labels=y)")
    got = f"data set {str(source)!r}"
    hint = close_names(str(source), datasets) or f"a path from {Path.cwd()}, or an absolute one"
    raise UnknownNameError(got, _rule(), hint)


def _rule() -> str:
    names = ", ".join(datasets)
    files = "an .npz file or a folder of images that is there, or file.py:function"
    return f"a data set is one of {names}, {files}"


def _check_keys(source: Mapping[Any, Any]) -> None:
    unknown = [key for key in source if key not in SPLITS]
    if unknown:
        _check_split(unknown[0])


def _check_split(split: Any) -> None:
    if split not in SPLITS:
        rule = f"a split is one of {', '.join(SPLITS)}"
        raise ValueError(explain(f"split {split!r}", rule, "split='train'"))


class Splits:
    """The splits of a data set by name, each loaded when it is first asked for.

    >>> tp.data.splits("shapes")["train"]
    <shapes train: 9,000 images 3x32x32 uint8, 10 classes>
    """

    def __init__(self, load: Callable[[str], Dataset]):
        self._load = load
        self._loaded: Parts = {}

    def __getitem__(self, split: str) -> Dataset:
        _check_split(split)
        if split not in self._loaded:
            self._loaded[split] = self._load(split)
        return self._loaded[split]


def splits(
    source: Any, root: Root = None, seed: int = 0, image_size: Size | int | None = None
) -> Splits:
    """All splits of a data set: of what `load` takes, or of a Dataset, which is split by the seed.

    >>> parts = tp.data.splits(tp.data.load("shapes", split="test"), seed=1)
    >>> parts["test"]
    <shapes test: 400 images 3x32x32 uint8, 10 classes; 400 of 2,000 drawn with seed 1>
    """
    loader = as_loader(source)
    if set(loader.splits) == set(SPLITS):
        return Splits(lambda split: _part(loader, split, loader.load(split, root, image_size)))
    given = {}
    for split in SPLITS:
        part = loader.load(split, root, image_size)
        if part is not None:
            given[split] = part
    parts = _complete(_fitting(loader, given), seed)
    return Splits(partial(_existing, loader.name, parts))


def load(
    name: Any,
    root: Root = None,
    split: str = "train",
    seed: int = 0,
    image_size: Size | int | None = None,
) -> Dataset:
    """A split of a data set: train, valid or test.

    `name` is one of

    - a name: shapes (drawn on the spot), cifar10, cifar100, svhn, mnist, fashion-mnist, or one that
      you registered in `tp.data.datasets`;
    - an .npz file with the arrays images and labels, and optionally test_images, test_labels,
      valid_images, valid_labels and classes;
    - a folder with a folder of images for each class, or with train, test and valid folders of such
      folders (this needs Pillow: pip install 'tinyprop[images]'). With `image_size`, a height and
      a width, or a number for both, images are resized;
    - a function, or `file.py:function`: see `tp.data.Loader`.

    A split that a source of yours does not have is drawn from its training samples: of each class a
    fifth for test, and a tenth of the rest for valid. The seed decides which, and the `notes` of
    this split and of train say so.

    Files of our data sets, compressed as they are published or unpacked, are searched in `root`, in
    $TINYPROP_DATA and in the user's cache folder. Missing files are downloaded into the first of
    these that is given, and checked. Of our data sets, valid is held out from the images that are
    published for training.

    >>> tp.data.load("shapes", split="valid")
    <shapes valid: 1,000 images 3x32x32 uint8, 10 classes>
    """
    _check_split(split)
    return splits(name, root, seed, image_size)[split]


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Begin what a data set complains about with where it is from."""
    try:
        yield
    except DataError as error:
        got, rule, hint = error.args
        raise DataError(f"{source}: {got}", rule, hint) from None


def _part(loader: Loader, split: str, part: Any, classes: Any = None) -> Dataset:
    """A split as a data set, from one or from images and labels."""
    if isinstance(part, Dataset):
        name = loader.name if part.name == "data" else part.name
        return replace(part, name=name, split=split)
    with _naming(f"{split} of {loader}"):
        images, labels = part
        return Dataset(images, labels, classes, loader.name, split)


def _fitting(loader: Loader, given: dict[str, Any]) -> Parts:
    """Splits whose samples and classes are of one kind. Those that name no classes have those of
    the training samples."""
    train = _part(loader, "train", given["train"])
    parts = {"train": train}
    for split in SPLITS[1:]:
        if split in given:
            part = _part(loader, split, given[split], train.classes)
            with _naming(f"{split} of {loader}"):
                parts[split] = _like(train, part)
    _check_different(loader, parts)
    return parts


def _like(train: Dataset, part: Dataset) -> Dataset:
    """Another split, with the classes of the training samples, which it may not have all of."""
    for fact, ours, theirs in (
        ("samples of shape", train.images.shape[1:], part.images.shape[1:]),
        ("dtype", train.images.dtype, part.images.dtype),
    ):
        if ours != theirs:
            got = f"{fact} {theirs}, where those of train have {ours}"
            raise DataError(got, "all splits hold samples of one kind", "prepare all splits alike")
    if part.classes != train.classes[: len(part.classes)]:
        got = f"classes {', '.join(part.classes)}"
        rule = f"they are those of train: {', '.join(train.classes)}"
        raise DataError(got, rule, "the same `classes` for all splits")
    return replace(part, classes=train.classes)


def _check_different(loader: Loader, parts: Parts) -> None:
    """Refuse a source that gives the same samples for two splits."""
    seen: dict[str, str] = {}
    for split, part in parts.items():
        other = seen.setdefault(fingerprint(part), split)
        if other != split:
            got = f"{loader}: the same {len(part):,} samples for {other} and {split}"
            rule = "errors are measured on samples that the network was not trained on"
            hint = f"give no {split}: it is then drawn from the training samples"
            raise DataError(got, rule, hint)


def _complete(parts: Parts, seed: int) -> Parts:
    """All splits: those that are not given are drawn from the training samples, if these are
    enough."""
    notes = parts["train"].notes
    for split, one_in in DRAWN.items():
        if split in parts:
            continue
        train = parts["train"]
        chosen = _drawn(train.labels, one_in, new_generator([seed, one_in]))
        count = np.count_nonzero(chosen)
        if count:
            taken = f"{count:,} of {len(train):,}"
            part = train.subset(np.flatnonzero(chosen))
            rest = train.subset(np.flatnonzero(~chosen))
            parts[split] = replace(
                part, split=split, notes=(*notes, f"{taken} drawn with seed {seed}")
            )
            parts["train"] = replace(rest, notes=(*rest.notes, f"{taken} held out for {split}"))
    return parts


def _drawn(labels: HostArray, one_in: int, random: "np.random.Generator") -> HostArray:
    """Mark a random part of each class, rounded down."""
    marks = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        indices = random.permutation(np.flatnonzero(labels == label))
        marks[indices[: len(indices) // one_in]] = True
    return marks


def _existing(name: str, parts: Parts, split: str) -> Dataset:
    if split in parts:
        return parts[split]
    got = f"the split {split} of {name}, which gives none, and has too few training samples"
    rule = f"it is drawn from classes that have at least {DRAWN[split]} of them"
    raise DataError(got, rule, f"more samples, or a {split} split of your own")


def _published(name: str, split: str, root: Root) -> Dataset:
    """A split of one of our data sets, from its files."""
    source = SOURCES[name]
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
    return Dataset(np.concatenate(images), np.concatenate(labels), source.classes, name, split)


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
    source: Any, root: Root = None, split: str | None = None, download: bool = False
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
    if split is not None:
        _check_split(split)
    loader = as_loader(source)
    if loader.path is not None:
        return str(loader.path)
    wanted = ("train", "test") if split is None else (split,)
    places = [loader.find(part, root, download) for part in wanted]
    return None if None in places else places[0]


def _find_published(name: str, split: str, root: Root, download: bool) -> str | None:
    paths = SOURCES[name].files(root, split, fetch=download)
    if paths is None:
        return None
    return str(paths[0].parent) if paths else "drawn when loaded"


for _name in NAMES:
    _load, _find = partial(_published, _name), partial(_find_published, _name)
    datasets.register(Loader(_name, _load, SPLITS, _find))
