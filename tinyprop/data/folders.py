"""A folder with a folder of images for each class; or with train, test and valid folders of such
folders. Pillow reads the images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import DataError
from .dataset import Dataset

GRAY = ("1", "L", "LA")  # Pillow's names for the kinds of pixels
COLOR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held
ON_ITS_SIDE = (5, 6, 7, 8)  # values for which height and width are swapped
SUGGESTED = 32  # pixels

Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class Picture:
    """An image file, and what its header says."""

    path: Path
    label: int
    size: Size
    is_gray: bool


def read_folder(folder: Path, split: str, image_size: Size | int | None) -> Dataset | None:
    """The images of a split, or None if the folder has no such split.

    Classes are the names of the training folders, in alphabetical order. All images have one size,
    or are resized to `image_size`, a height and a width or one number for both, whatever their
    proportions. Images that are all gray have one channel, others three."""
    wanted = None if image_size is None else _checked_size(image_size)
    train_folder = folder
    its_folder: Path | None = folder if split == "train" else None
    if _has_splits(folder):
        train_folder = folder / "train"
        its_folder = folder / split if (folder / split).is_dir() else None
    if its_folder is None:
        return None
    classes = [path.name for path in _class_folders(train_folder)]
    pictures, notes = _pictures(its_folder, classes)
    sizes = {picture.size: picture for picture in pictures}
    if wanted is not None:
        if len(sizes) > 1 or wanted not in sizes:
            notes.append(f"resized to {_in_words(wanted)} from {_range(list(sizes))}")
    elif len(sizes) > 1:
        _refuse_sizes(its_folder, sizes)
    size = wanted or pictures[0].size
    are_gray = all(picture.is_gray for picture in pictures)
    images = np.empty((len(pictures), 1 if are_gray else 3, *size), np.uint8)
    for i, picture in enumerate(pictures):
        images[i] = _pixels(picture.path, size, are_gray)
    labels = np.array([picture.label for picture in pictures])
    return Dataset(images, labels, tuple(classes), folder.resolve().name, notes=tuple(notes))


def _has_splits(folder: Path) -> bool:
    """Whether its folders are train, test and valid. Among other names, train is a class."""
    names = {path.name for path in _visible(folder)}
    return "train" in names and names <= {"train", "valid", "test"}


def _checked_size(size: Any) -> Size:
    if isinstance(size, int):
        size = (size, size)
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in size):
        got, rule = f"image_size={size!r}", "it is a height and a width, in pixels"
        raise DataError(got, rule, f"image_size=({SUGGESTED}, {SUGGESTED})")
    return tuple(size)


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, in alphabetical order, without hidden files such as .DS_Store."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        hint = "a folder that you may read"
        raise DataError(f"{folder} ({error})", "its files are listed", hint) from None


def _class_folders(folder: Path) -> list[Path]:
    rule = "a folder of images has a folder for each class, and images in these"
    hint = "folders such as cat/ and dog/, each with its images"
    entries = _visible(folder)
    loose = [path for path in entries if not path.is_dir()]
    if loose:
        raise DataError(f"{folder} with a file {loose[0].name}", rule, hint)
    if not entries:
        raise DataError(f"{folder}, which is empty", rule, hint)
    return entries


def _pictures(folder: Path, classes: list[str]) -> tuple[list[Picture], list[str]]:
    """The images of all classes, and notes about files that are none."""
    from_here = _class_folders(folder)
    unknown = [path.name for path in from_here if path.name not in classes]
    if unknown:
        got = f"{folder} with a class {unknown[0]!r}"
        rule = f"its classes are those of train: {', '.join(classes)}"
        raise DataError(got, rule, "the same folders in all splits")
    extensions = _image_module().registered_extensions()
    pictures, others = [], []
    for class_folder in from_here:
        label = classes.index(class_folder.name)
        paths = _visible(class_folder)
        images = [path for path in paths if path.suffix.lower() in extensions]
        others += [path for path in paths if path not in images]
        if not images:
            rule = "each folder of a class has images"
            raise DataError(f"{class_folder}, which has none", rule, "fill it, or delete it")
        pictures += [_picture(path, label) for path in images]
    notes = []
    if others:
        example = others[0].relative_to(folder)
        notes.append(f"passed over {len(others)} that are no images, such as {example}")
    return pictures, notes


def _image_module() -> Any:
    """Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError:
        got, rule = "a folder of images, and no Pillow", "Pillow, an optional package, reads images"
        raise DataError(got, rule, "pip install 'tinyprop[images]'") from None
    Image.init()  # registers the extensions of all formats
    return Image


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    rule = "all images in a folder of images can be read"
    try:
        with _image_module().open(path) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow's formats raise errors of many kinds for damaged files
        got = f"{path}, which cannot be read ({error})"
        raise DataError(got, rule, "another copy, or delete it") from None


def _picture(path: Path, label: int) -> Picture:
    """What the header of an image says."""
    with _opened(path) as image:
        if image.mode not in (*GRAY, *COLOR):
            got = f"{path} with pixels of kind {image.mode}"
            raise DataError(got, "each channel of a pixel has 8 bits", "save it with 8 bits")
        if getattr(image, "n_frames", 1) > 1:
            got, rule = f"{path} with {image.n_frames} frames", "an image has one"
            raise DataError(got, rule, "save its frames as files of their own")
        width, height = image.size
        if image.getexif().get(ORIENTATION) in ON_ITS_SIDE:
            height, width = width, height
        return Picture(path, label, (height, width), image.mode in GRAY)


def _pixels(path: Path, size: Size, as_gray: bool) -> HostArray:
    """An image (C, H, W), upright."""
    from PIL import Image, ImageOps

    with _opened(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            _refuse_transparency(path, upright)
        converted = upright.convert("L" if as_gray else "RGB")
        height, width = size
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
    channels_last = pixels.reshape(height, width, -1)
    return channels_last.transpose(2, 0, 1)  # (H, W, C) -> (C, H, W)


def _refuse_transparency(path: Path, image: Any) -> None:
    least, _ = image.convert("RGBA").getchannel("A").getextrema()
    if least < 255:
        got, rule = (
            f"{path}, which is transparent in places",
            "pixels have a color and nothing else",
        )
        raise DataError(got, rule, "put it on a background, and save it without transparency")


def _refuse_sizes(folder: Path, sizes: dict[Size, Picture]) -> None:
    shown = []
    for size in (min(sizes), max(sizes)):
        shown.append(f"{_in_words(size)} ({sizes[size].path.relative_to(folder)})")
    got = f"{folder} with images of {len(sizes)} sizes, such as {' and '.join(shown)}"
    hint = f"--image-size {SUGGESTED}, or image_size=({SUGGESTED}, {SUGGESTED}): all are resized"
    raise DataError(got, "all images of a data set have one size, height x width", hint)


def _in_words(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _range(sizes: list[Size]) -> str:
    if len(sizes) == 1:
        return _in_words(sizes[0])
    return f"{len(sizes)} sizes between {_in_words(min(sizes))} and {_in_words(max(sizes))}"
