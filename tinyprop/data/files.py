"""Where data files are: found, or downloaded, checked and put in their place."""

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..errors import DataError
from ..files import whole_file

PIECE = 1 << 20  # bytes read at a time
PATIENCE = 30.0  # seconds without a byte after which a download is given up
LARGEST = 2 << 30  # bytes that a download may have

Root = str | Path | None


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def places(root: Root) -> list[Path]:
    """Where data is looked for, there or not: root, $TINYPROP_DATA, the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the specification of XDG says to ignore it then
        cache = Path(os.path.expanduser("~"), ".cache")
    given = [place for place in (root, os.environ.get("TINYPROP_DATA")) if place]
    return [Path(os.path.expanduser(place)) for place in given] + [cache / "tinyprop"]


def find(root: Root, folders: Sequence[str], *alternatives: Sequence[str]) -> list[Path] | None:
    """Files that lie together in the first folder that has all the names of an alternative, or None.

    The folders are relative to the places; a place that bears the name of one of them is taken for it.
    """
    for place in places(root):
        for folder in [place / folder for folder in folders] + [place] * (place.name in folders):
            for names in alternatives:
                if all(os.path.isfile(folder / name) for name in names):  # no folder, no pipe, and no error
                    return [folder / name for name in names]
    return None


def download(remote: Remote, folder: Path) -> Path:
    """Fetch a file into a folder: it is there whole and with the right digest, or not at all."""
    path = folder / remote.name
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with whole_file(path) as file:
            for piece in _pieces(remote):
                digest.update(piece)
                file.write(piece)
            if digest.hexdigest() != remote.md5:
                raise DataError(
                    f"{remote.url}, whose content has the md5 digest {digest.hexdigest()}",
                    f"its digest is {remote.md5}",
                    f"load again; if that does not help, put the right file at {path}",
                )
    except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
        raise DataError(
            f"no file {path}, and no download of it ({str(error) or type(error).__name__})",
            "a data set is read from its files, which are downloaded where they are missing",
            f"fetch {remote.url} where there is a network, and put it at {path}",
        ) from None
    return path


def _pieces(remote: Remote) -> Iterator[bytes]:
    """The content of a remote file, with a bar that shows how far it is."""
    request = urllib.request.Request(remote.url, headers={"User-Agent": "tinyprop"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        received = 0
        with tqdm(desc=remote.name, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
            while piece := response.read(PIECE):
                received += len(piece)
                if received > LARGEST:
                    raise OSError(f"it goes on after {LARGEST:,} bytes")
                bar.update(len(piece))
                yield piece
        if total is not None and received < total:
            raise OSError(f"it broke off after {received:,} of {total:,} bytes")
