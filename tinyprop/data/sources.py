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
SILENCE = 30.0  # seconds without a byte after which a download is given up
TRANSFER = 3600.0  # and seconds altogether
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

    def known_digest(self, path: Path) -> str:
        """The digest that this local copy should have, or an empty string if it is not known."""
        digests = {**self.unpacked, self.name: self.sha256}
        return digests.get(path.name.replace(".idx", "-idx"), "")


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
        remotes = self.test if split == "test" else self.train
        paths = []
        for remote in remotes:
            here = find(root, self.folders, remote)
            if here is None and not fetch:
                return None
            if here is None:
                folder = places(root)[0] / self.folders[0]
                here = [download(remote, folder)]
            elif fetch:
                for path in here:
                    compare(path, remote.known_digest(path))
            paths += here
        return paths


def places(root: Root) -> list[Path]:
    """The folders to search, whether they exist or not: root, $TINYPROP_DATA, the user's cache
    folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore a relative path
        cache = Path(os.path.expanduser("~"), ".cache")
    folders = []
    for place in (root, os.environ.get("TINYPROP_DATA")):
        if place:
            folders.append(Path(os.path.expanduser(place)))
    return [*folders, cache / "tinyprop"]


def find(root: Root, folders: Sequence[str], remote: Remote) -> list[Path] | None:
    """The nonempty files that hold the content of a remote file, from the first place that has
    them; or None.

    The folders are relative to the places; a place that has the name of a folder may be that folder
    itself."""
    raw = remote.name.removesuffix(".gz")
    dotted = raw.replace("-idx", ".idx")  # as some programs unpack MNIST
    forms = (remote.members or (raw,), (dotted,), (remote.name,))
    for place, folder, names in product(places(root), folders, forms):
        relative = [Path(folder, name) for name in names]
        bases = [place]
        if relative[0].parts[0] == place.name:
            bases.append(place.parent)
        for base in bases:
            paths = [base / path for path in relative]
            if all(_has_content(path) for path in paths):
                return paths
    return None


def _has_content(path: Path) -> bool:
    """Whether this is a nonempty regular file; reading a pipe would hang."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def sha256(path: str | Path) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache  # each file once
def compare(path: Path, known: str) -> None:
    """Print a line about a file that is not the published one. The reader of the data set reports
    files that cannot be read."""
    if not known or not os.access(path, os.R_OK):
        return
    digest = sha256(path)
    if digest != known:
        message = f"{path} is not the published file: its SHA-256 digest is {digest}"
        print(f"tinyprop: {message}", file=sys.stderr)


def download(remote: Remote, folder: Path) -> Path:
    """Download a file into a folder; it appears there complete and with the right digest, or not at
    all."""
    from http.client import HTTPException

    path = folder / remote.name
    try:
        with whole_file(path) as file:
            _receive_all(remote, file)
            file.flush()
            digest = sha256(file.name)
            if digest != remote.sha256:
                raise OSError(f"its SHA-256 digest is {digest} instead of {remote.sha256}")
    except (OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}, which is not available: the download failed ({reason})",
            "a data set is read from its files; those that are missing are downloaded",
            f"download {remote.url} on a machine with a network and save it as {path}",
        ) from None
    return path


def _receive_all(remote: Remote, file: BinaryIO) -> None:
    """Receive a file; a transfer that breaks off is resumed, as long as each try adds something."""
    from http.client import HTTPException

    end = time.monotonic() + TRANSFER
    for tries_left in reversed(range(TRIES)):
        start = file.tell()
        try:
            receive(remote, file, end)
            return
        except (OSError, HTTPException):
            has_grown = file.tell() > start
            if tries_left == 0 or not has_grown:
                raise


def receive(remote: Remote, file: BinaryIO, end: float) -> None:
    """Append the rest of a remote file, or write all of it again if the server cannot resume."""
    from urllib.request import Request, urlopen

    from tqdm.auto import tqdm

    headers = {"User-Agent": "tinyprop", "Range": f"bytes={file.tell()}-"}
    request = Request(remote.url, headers=headers)
    with (  # urllib refuses redirects to file: and in circles; the others are checked below
        urlopen(request, timeout=SILENCE) as response,  # nosec B310
        tqdm(desc=remote.name, total=remote.size, unit="B", unit_scale=True, disable=None) as bar,
    ):
        if _scheme(response.url) not in ("https", _scheme(remote.url)):
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


def _scheme(url: str) -> str:
    return url.partition(":")[0]
