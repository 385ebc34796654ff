"""What keeps editions of the site apart: files that belong together lie in a folder that is named
after their content, and the service worker knows all of them.

So a page and what it loads are of one edition, whatever a cache still has of another."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from bs4 import BeautifulSoup

DOCS = Path(__file__).parent
MOST_BYTES = 30_000_000  # of a first visit
MOST_OF_A_PAGE = 3_000_000  # before anything runs
PLACEHOLDER = '/* written by docs/editions.py */ {"edition": "", "parts": {}}'


def stamp(site: Path) -> None:
    """Name the folders of a site, and write its service worker."""
    lab = site / "lab"
    live = site / "live"
    rename(folder_in(lab, "pyodide"), [folder_in(lab, "lab"), folder_in(live, "live")])
    rename(folder_in(lab, "lab"), [lab / "index.html"])
    rename(folder_in(live, "live"), lesson_pages(site))
    service_worker(site)


def folder_in(place: Path, name: str) -> Path:
    (folder,) = place.glob(f"{name}-*/")
    return folder


def lesson_pages(site: Path) -> list[Path]:
    return sorted((site / "tutorials").glob("[0-9E][0-9]*_*.html"))


def rename(folder: Path, users: Iterable[Path]) -> None:
    """Put the hash of what a folder holds into its name, and into the files that ask for it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    name, _, _ = folder.name.partition("-")
    new = f"{name}-{digest(files, folder)}"
    for user in users:
        texts = user.iterdir() if user.is_dir() else [user]
        for path in texts:
            if path.suffix in (".html", ".js", ".json"):
                replace(path, f"{folder.name}/", f"{new}/")
    folder.rename(folder.with_name(new))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old in text:
        path.write_text(text.replace(old, new))


def digest(paths: Iterable[Path], folder: Path) -> str:
    """A hash of files, with their names in this folder."""
    content = hashlib.sha256()
    for path in sorted(paths):
        content.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]


# -- without a network


def parts(site: Path) -> dict[str, list[Path]]:
    """What all pages need that run Python, and what lessons and the laboratory need besides."""
    places = {
        "python": [folder_in(site / "lab", "pyodide")],
        "lessons": [site / "live"],
        "laboratory": [folder_in(site / "lab", "lab")],
    }
    return {
        part: sorted(path for place in found for path in place.rglob("*") if path.is_file())
        for part, found in places.items()
    }


def service_worker(site: Path) -> None:
    kept = parts(site)
    check_sizes(site, kept)
    target = site / "sw.js"
    target.unlink(missing_ok=True)
    content = {
        "edition": digest([path for path in site.rglob("*") if path.is_file()], site),
        "parts": {
            name: [path.relative_to(site).as_posix() for path in part]
            for name, part in kept.items()
        },
    }
    script = (DOCS / "live" / "sw.js").read_text()
    if PLACEHOLDER not in script:
        raise SystemExit(f"docs/live/sw.js has no place for its files: {PLACEHOLDER}")
    target.write_text(script.replace(PLACEHOLDER, json.dumps(content)))


def check_sizes(site: Path, kept: dict[str, list[Path]]) -> None:
    """Print what a first visit loads, and refuse too much."""
    largest = max(map(bytes_of_page, lesson_pages(site)))
    size = bytes_of(kept["python"] + kept["lessons"]) + largest
    laboratory = bytes_of(kept["python"] + kept["laboratory"] + [site / "lab" / "index.html"])
    print(f"a page of a lesson loads {largest:,} bytes, a first visit {size:,}")
    print(f"one of the laboratory alone {laboratory:,}")
    if largest > MOST_OF_A_PAGE or size > MOST_BYTES:
        raise SystemExit(f"these are more than {MOST_OF_A_PAGE:,}, or {MOST_BYTES:,}")


def bytes_of(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def bytes_of_page(path: Path) -> int:
    """What a browser loads before anything runs."""
    soup = BeautifulSoup(path.read_text(), "html.parser")
    addresses = {tag["href"] for tag in soup.select("link[rel=stylesheet]")}
    addresses |= {tag["src"] for tag in soup.select("script[src], img[src]")}
    files = {(path.parent / urlsplit(address).path).resolve() for address in addresses}
    return bytes_of({path.resolve()} | files)
