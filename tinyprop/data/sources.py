"""The files of a data set: found on the disk, or downloaded."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ..engine.arrays import HostArray
from ..errors import DataError
from ..files import whole_file

PIECE = 1 << 20  # bytes read at a time
TIMEOUT = 30.0  # seconds without a byte after which a download is given up
LARGEST = 2 << 30  # bytes that a file may have

Root = str | Path | None
Samples = tuple[HostArray, HostArray]  # images (N, C, H, W) and labels (N,)


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded."""

    url: str
    md5: str
    members: tuple[str, ...] = ()  # files that are needed of an archive

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set: its classes, its files and how to read them."""

    classes: tuple[str, ...]
    folders: tuple[str, ...] = ()  # that may hold the files; downloads go to the first
    train: tuple[Remote, ...] = ()
    test: tuple[Remote, ...] = ()
    read: Callable[["Source", list[Path], str], Iterable[Samples]]  # gives all images that are published for a split
    per_class: tuple[int, ...] = ()  # how many of each class are for validation, for each of the Samples that are read

    def files(self, root: Root, split: str, fetch: bool) -> list[Path] | None:
        """The files of a split, or None if some are missing; with `fetch`, those are downloaded."""
        paths = []
        for remote in self.test if split == "test" else self.train:
            here = find(root, self.folders, remote)
            if here is None and not fetch:
                return None
            paths += here or [download(remote, places(root)[0] / self.folders[0])]
        return paths


def places(root: Root) -> list[Path]:
    """The folders to search, whether they exist or not: root, $TINYPROP_DATA, the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore a relative path
        cache = Path(os.path.expanduser("~"), ".cache")
    given = [place for place in (root, os.environ.get("TINYPROP_DATA")) if place]
    return [Path(os.path.expanduser(place)) for place in given] + [cache / "tinyprop"]


def find(root: Root, folders: Sequence[str], remote: Remote) -> list[Path] | None:
    """The nonempty files that hold the content of a remote file, from the first place that has them; or None.

    The folders are relative to the places; a place that has the name of a folder may be that folder itself.
    """
    raw = remote.name.removesuffix(".gz")
    dotted = raw.replace("-idx", ".idx")  # as some programs unpack MNIST
    for place, folder in product(places(root), folders):
        for names in (remote.members or (raw,), (dotted,), (remote.name,)):
            relative = [Path(folder, name) for name in names]
            for base in (place, place.parent) if relative[0].parts[0] == place.name else (place,):
                paths = [base / path for path in relative]
                if all(os.path.isfile(path) and os.path.getsize(path) for path in paths):  # a pipe would hang
                    return paths
    return None


def download(remote: Remote, folder: Path) -> Path:
    """Download a file into a folder; it appears there complete and with the right digest, or not at all."""
    import hashlib
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    from tqdm.auto import tqdm

    path = folder / remote.name
    digest = hashlib.md5(usedforsecurity=False)
    request = Request(remote.url, headers={"User-Agent": "tinyprop"})
    try:
        with whole_file(path) as file, urlopen(request, timeout=TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            with tqdm(desc=remote.name, total=total, unit="B", unit_scale=True, disable=None) as bar:
                while piece := response.read(PIECE):
                    digest.update(piece)
                    if file.write(piece) and file.tell() > LARGEST:
                        raise OSError(f"longer than {LARGEST:,} bytes")
                    bar.update(len(piece))
            if digest.hexdigest() != remote.md5:
                raise OSError(f"its MD5 digest is {digest.hexdigest()} instead of {remote.md5}")
    except (OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        raise DataError(
            f"{path}, which is not available: the download failed ({str(error) or type(error).__name__})",
            "a data set is read from its files; those that are missing are downloaded",
            f"download {remote.url} on a machine with a network and save it as {path}",
        ) from None
    return path
