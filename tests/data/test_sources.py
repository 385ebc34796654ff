"""Files are found where they should be, and downloaded whole or not at all."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import sources
from tinyprop.data.catalog import SOURCES
from tinyprop.data.sources import Remote, download, find, places

from . import samples


@pytest.fixture
def server(tmp_path):
    """A folder and the address under which it is served."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "served")
    (tmp_path / "served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content).hexdigest()


def test_the_places(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYPROP_DATA", "~/data")
    monkeypatch.setenv("HOME", "/home/someone")
    for cache, folder in [(tmp_path, tmp_path), ("", "/home/someone/.cache"), ("relative", "/home/someone/.cache")]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        assert places("here") == [Path("here"), Path("/home/someone/data"), Path(folder, "tinyprop")]


def test_the_first_place_with_all_files_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINYPROP_DATA", str(tmp_path / "env"))
    root, remote = tmp_path / "letters", Remote("http://x/letters.tar.gz", "", ("a", "b"))
    assert find(root, ("letters",), remote) is None
    samples.write(root, {"a": b"1", "c": b"1"})
    for place in (tmp_path / "cache/tinyprop/letters", tmp_path / "env/letters"):
        samples.write(place, {"a": b"1", "b": b"1"})
        assert find(root, ("letters",), remote) == [place / "a", place / "b"]
    samples.write(root, {"letters.tar.gz": b"1"})
    assert find(root, ("letters",), remote) == [root / "letters.tar.gz"]
    assert find(root, ("digits",), remote) is None


def test_only_regular_files_that_are_not_empty_are_found(tmp_path):
    for make in (os.mkfifo, Path.mkdir, Path.touch):  # to open a pipe that nobody writes to would never return
        root = tmp_path / make.__name__
        root.mkdir()
        make(root / "test_32x32.mat")
        assert tp.data.found("svhn", root, "test") is None
    (tmp_path / "test_32x32.mat").write_bytes(b"anything: it is not read")
    assert tp.data.found("svhn", tmp_path, "test") == str(tmp_path)
    assert tp.data.found("svhn", tmp_path) is None  # no file of the training images


def test_a_download_that_fails_leaves_nothing_and_says_what_to_put_where(tmp_path, server, monkeypatch):
    folder, address = server
    samples.write(folder, {"other": b"something else", "endless": bytes(1000)})
    monkeypatch.setattr(sources, "LARGEST", 999)
    for url, message in [
        (f"{address}/other", f"digest is {md5(b'something else')} instead of {md5(b'right')}"),
        (f"{address}/missing", "404"),
        (f"{address}/endless", "longer than 999 bytes"),
        ("http://127.0.0.1:9/offline", "refused"),
    ]:
        path = tmp_path / "data" / url.rsplit("/", 1)[1]
        match = rf"(?s)got:  {path}, .*not available.*{message}.*rule: .*try:  download {url} .* save it as {path}"
        with pytest.raises(tp.DataError, match=match):
            download(Remote(url, md5(b"right")), tmp_path / "data")
        assert os.listdir(tmp_path / "data") == []
    with pytest.raises(tp.DataError, match=r"(?s)got: .*other/x"):
        download(Remote(f"{address}/x", ""), folder / "other")  # which is no folder


def test_missing_files_are_downloaded_once(tmp_path, server, monkeypatch, rng):
    folder, address = server
    images = samples.images(rng, 3, 28, 28)
    content = {
        "t10k-images-idx3-ubyte.gz": samples.packed(samples.idx(images)),
        "t10k-labels-idx1-ubyte.gz": samples.packed(samples.idx(np.array([1, 2, 3], np.uint8))),
    }
    samples.write(folder, content)
    remotes = tuple(Remote(f"{address}/{name}", md5(c)) for name, c in content.items())
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], test=remotes))
    root = tmp_path / "root"
    assert tp.data.found("mnist", root, "test") is None
    assert not root.exists()
    assert tp.data.found("mnist", root, "test", download=True) == str(root / "mnist")
    for name in content:
        (folder / name).unlink()  # there is nothing left to download
    assert sorted(os.listdir(root / "mnist")) == list(content)
    dataset = tp.data.load("mnist", root, "test")
    np.testing.assert_array_equal(dataset.images[:, 0], images)
    assert dataset.labels.tolist() == [1, 2, 3]


def test_every_address_has_a_digest_of_its_own():
    remotes = {(r.url, r.md5) for s in SOURCES.values() for r in s.train + s.test}
    assert len(remotes) == len({url for url, _ in remotes}) == len({digest for _, digest in remotes}) == 13
    assert all(len(bytes.fromhex(digest)) == 16 and url.startswith("http") for url, digest in remotes)


def test_importing_the_room_loads_nothing_for_downloads_or_archives():
    heavy = {"tqdm", "http.client", "urllib.request", "tarfile", "zipfile", "gzip", "ssl", "numpy.random"}
    code = f"import sys; before = {{*sys.modules}}; import tinyprop.data; print({heavy} & ({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
