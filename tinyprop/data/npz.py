"""The arrays of an .npz file."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import DataError
from .dataset import Dataset

PREFIX = {"train": "", "valid": "valid_", "test": "test_"}  # of the arrays in an .npz file
ARRAYS = tuple(f"{prefix}{kind}" for prefix in PREFIX.values() for kind in ("images", "labels"))


def read_npz(path: Path, split: str) -> Dataset | tuple[HostArray, HostArray] | None:
    """A split in a file that `numpy.savez` wrote, if it has it; a pickled object is refused."""
    arrays = _arrays(path, split)
    if not arrays and split != "train":
        return None
    images, labels = (arrays.get(f"{PREFIX[split]}{kind}") for kind in ("images", "labels"))
    if images is None or labels is None:
        got = f"{path}, which has only {', '.join(arrays) or 'other arrays'} for {split}"
        rule = f"it has {PREFIX[split]}images and {PREFIX[split]}labels"
        raise DataError(got, rule, f"numpy.savez({path.name!r}, images=x, labels=y)")
    classes = arrays.get("classes")
    return (images, labels) if classes is None else Dataset(images, labels, classes, path.stem)


def _arrays(path: Path, split: str) -> dict[str, Any]:
    """The arrays of a split, and the names of the classes; nothing if it has no such split."""
    import zipfile

    rule = f"its arrays are images, labels, and optionally {', '.join(ARRAYS[2:])}, classes"
    hint = f"numpy.savez({path.name!r}, images=x, labels=y)"
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path}, which holds a single array", rule, hint)
            unknown = set(file.files) - {*ARRAYS, "classes"}
            if unknown:
                got = f"{path} with an array {min(unknown)!r}"
                raise DataError(got, rule, f"rename it, or leave it out: {hint}")
            wanted = [f"{PREFIX[split]}images", f"{PREFIX[split]}labels"]
            names = [name for name in wanted if name in file.files]
            if names and "classes" in file.files:
                names.append("classes")
            return {name: file[name] for name in names}
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}, which cannot be read ({reason})", rule, hint) from None
