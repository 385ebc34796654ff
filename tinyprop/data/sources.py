"""The files of a data set: found on the disk and compared with what is published, or downloaded."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import BinaryIO

from ..engine.arrays import HostArray
from ..engine.errors import DataError
from ..report.files import whole_file

PIECE = 1 << 20  # bytes read at a time
# seconds without a byte, and altogether, after which a download is given up
SILENCE, TRANSFER = 30.0, 3600.0
TRIES = 10  # connections for one file

Root = str | Path | None
Samples = tuple[HostArray, HostArray]  # images (N, C, H, W) and labels (N,)


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded."""

    url: str
    size: int
    sha256: str
    members: tuple[str, ...] = ()  # files that are needed of an archive
    # known digests of these, or of the unpacked file
    unpacked: Mapping[str, str] = field(default_factory=dict)

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
    largest: int = 0  # bytes that a file can hold, decompressed
    # gives all images that are published for a split
    read: Callable[["Source", list[Path], str], Iterable[Samples]]
    # how many of each class are for validation, for each of the Samples that are read
    per_class: tuple[int, ...] = ()

    def files(self, root: Root, split: str, fetch: bool) -> list[Path] | None:
        """The files of a split, or None if some are missing; with `fetch`, these are downloaded,
        the others checked."""
        paths = []
        for remote in self.test if split == "test" else self.train:
            here = find(root, self.folders, remote)
            if here is None and not fetch:
                return None
            paths += here or [download(remote, places(root)[0] / self.folders[0])]
            for path in (here or ()) if fetch else ():
                known = {**remote.unpacked, remote.name: remote.sha256}.get(
                    path.name.replace(".idx", "-idx")
                )
                compare(path, known or "")
        return paths


def places(root: Root) -> list[Path]:
    """The folders to search, whether they exist or not: root, $TINYPROP_DATA, the user's cache
    folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore a relative path
        cache = Path(os.path.expanduser("~"), ".cache")
    given = [place for place in (root, os.environ.get("TINYPROP_DATA")) if place]
    return [Path(os.path.expanduser(place)) for place in given] + [cache / "tinyprop"]


def find(root: Root, folders: Sequence[str], remote: Remote) -> list[Path] | None:
    """The nonempty files that hold the content of a remote file, from the first place that has
    them; or None.

    The folders are relative to the places; a place that has the name of a folder may be that folder
    itself."""
    raw = remote.name.removesuffix(".gz")
    dotted = raw.replace("-idx", ".idx")  # as some programs unpack MNIST
    for place, folder in product(places(root), folders):
        for names in (remote.members or (raw,), (dotted,), (remote.name,)):
            relative = [Path(folder, name) for name in names]
            for base in (place, place.parent) if relative[0].parts[0] == place.name else (place,):
                paths = [base / path for path in relative]
                # a pipe would hang
                if all(os.path.isfile(path) and os.path.getsize(path) for path in paths):
                    return paths
    return None


def sha256(path: str | Path) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache  # each file once
def compare(path: Path, known: str) -> None:
    """Name a file that is not the published one; one that cannot be read is left to its reader."""
    if known and os.access(path, os.R_OK) and (digest := sha256(path)) != known:
        print(
            f"tinyprop: {path} is not the published file: its SHA-256 digest is {digest}",
            file=sys.stderr,
        )


def download(remote: Remote, folder: Path) -> Path:
    """Download a file into a folder; it appears there complete and with the right digest, or not at
    all."""
    from http.client import HTTPException

    path, end = folder / remote.name, time.monotonic() + TRANSFER
    try:
        with whole_file(path) as file:
            for left in reversed(range(TRIES)):
                start = file.tell()
                try:
                    receive(remote, file, end)
                    break
                except (OSError, HTTPException):
                    if not left or file.tell() <= start:
                        raise  # a transfer that breaks off later is resumed
            file.flush()
            if (digest := sha256(file.name)) != remote.sha256:
                raise OSError(f"its SHA-256 digest is {digest} instead of {remote.sha256}")
    except (OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        raise DataError(
            (
                f"{path}, which is not available: the download failed "
                f"({str(error) or type(error).__name__})"
            ),
            "a data set is read from its files; those that are missing are downloaded",
            f"download {remote.url} on a machine with a network and save it as {path}",
        ) from None
    return path


def receive(remote: Remote, file: BinaryIO, end: float) -> None:
    """Append the rest of a remote file, or write all of it again if the server cannot resume."""
    from urllib.request import Request, urlopen

    from tqdm.auto import tqdm

    request = Request(
        remote.url, headers={"User-Agent": "tinyprop", "Range": f"bytes={file.tell()}-"}
    )
    with (  # urllib refuses redirects to file: and in circles; the others are checked below
        urlopen(request, timeout=SILENCE) as response,  # nosec B310
        tqdm(desc=remote.name, total=remote.size, unit="B", unit_scale=True, disable=None) as bar,
    ):
        if response.url.partition(":")[0] not in {"https", remote.url.partition(":")[0]}:
            raise ValueError(f"redirected to {response.url}")
        if response.status != 206:  # it sends everything
            file.seek(0)
            file.truncate()
        while piece := response.read1(PIECE):  # read() would wait for the whole piece
            file.write(piece)
            bar.update(file.tell() - bar.n)
            if file.tell() > remote.size:
                raise ValueError(f"longer than {remote.size:,} bytes")
            if time.monotonic() > end:
                raise ValueError(f"it takes longer than {TRANSFER:,.0f} seconds")
    if file.tell() < remote.size:
        raise OSError(f"it ends after {file.tell():,} of {remote.size:,} bytes")
