"""Files are found where they should be, and downloaded whole or not at all."""

import hashlib
import http.server
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import files
from tinyprop.data.files import Remote, download, find, places
from tinyprop.data.sets import SOURCES

from . import samples


@pytest.fixture
def server(tmp_path):
    """A folder and the address under which it is served."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "served"))

        def log_message(self, *args):
            pass

        def do_GET(self):
            if not self.path.endswith("torn"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")

    (tmp_path / "served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content).hexdigest()


def test_the_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places(None) == [tmp_path / "tinyprop"]
    monkeypatch.setenv("TINYPROP_DATA", "~/data")
    monkeypatch.setenv("HOME", "/home/someone")
    assert places("here") == [Path("here"), Path("/home/someone/data"), tmp_path / "tinyprop"]
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert places(None)[-1] == Path("/home/someone/.cache/tinyprop")


def test_the_first_place_with_all_files_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINYPROP_DATA", str(tmp_path / "env"))
    root = tmp_path / "mnist"
    assert find(root, ("mnist",), ["a", "b"]) is None
    samples.write(tmp_path / "cache/tinyprop/mnist", {"a": b"", "b": b""})
    assert find(root, ("mnist",), ["a", "b"]) == [tmp_path / "cache/tinyprop/mnist" / n for n in "ab"]
    samples.write(tmp_path / "env/mnist", {"a": b"", "b": b""})
    assert find(root, ("mnist",), ["a", "b"]) == [tmp_path / "env/mnist" / n for n in "ab"]
    samples.write(root, {"a": b"", "c": b""})
    assert find(root, ("mnist",), ["a", "b"]) == [tmp_path / "env/mnist" / n for n in "ab"]
    assert find(root, ("mnist",), ["b"], ["a", "c"]) == [root / n for n in "ac"]
    assert find(root, ("fashion-mnist",), ["a"]) is None


def test_a_download_is_checked_and_put_in_its_place(tmp_path, server):
    folder, address = server
    content = os.urandom(3 << 20)
    samples.write(folder, {"file.bin": content})
    path = download(Remote(f"{address}/file.bin", md5(content)), tmp_path / "a" / "b")
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file.bin"]


def test_wrong_torn_or_missing_downloads_leave_nothing(tmp_path, server, monkeypatch):
    folder, address = server
    samples.write(folder, {"file": b"something else", "torn": b"", "endless": bytes(1000)})
    monkeypatch.setattr(files, "LARGEST", 999)
    for name, message in [
        ("file", rf"digest is {md5(b'right')}"),
        ("torn", "9 of 1,000|IncompleteRead|broke off"),
        ("none", "404"),
        ("endless", "goes on after 999 bytes"),
    ]:
        target = tmp_path / "data" / name
        with pytest.raises(tp.DataError, match=rf"(?s)got: .*{message}.*try: .*{target}"):
            download(Remote(f"{address}/{name}", md5(b"right")), tmp_path / "data")
        assert os.listdir(tmp_path / "data") == []


def test_without_a_network_the_message_says_what_to_put_where(tmp_path):
    remote = Remote("http://127.0.0.1:9/x/train.bin", "0" * 32)
    with pytest.raises(
        tp.DataError, match=rf"(?s)got: .*refused.*fetch {remote.url} .* put it at {tmp_path}/train.bin"
    ):
        download(remote, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(tp.DataError, match=r"(?s)got: .*file/train.bin"):
        download(remote, tmp_path / "file")


def test_what_is_missing_is_downloaded_once(tmp_path, server, monkeypatch, rng):
    folder, address = server
    pictures = samples.images(rng, 3, 28, 28)
    content = {
        "t10k-images-idx3-ubyte.gz": samples.packed(samples.idx(pictures)),
        "t10k-labels-idx1-ubyte.gz": samples.packed(samples.idx(np.array([1, 2, 3], np.uint8))),
    }
    samples.write(folder, content)
    remotes = tuple(Remote(f"{address}/{name}", md5(c)) for name, c in content.items())
    source = tp.data.sources.Idx("mnist", SOURCES["mnist"].classes, ("mnist",), remotes, remotes, 10)
    monkeypatch.setitem(SOURCES, "mnist", source)
    root = tmp_path / "root"
    assert tp.data.found("mnist", root, "test") == []
    for _ in range(2):
        dataset = tp.data.load("mnist", root, "test")
        np.testing.assert_array_equal(dataset.images[:, 0], pictures)
        assert dataset.labels.tolist() == [1, 2, 3]
        for name in content:
            (folder / name).unlink(missing_ok=True)  # the second time there is nothing to download
    assert tp.data.found("mnist", root, "test") == [root / "mnist" / name for name in content]


def test_every_digest_and_address_is_one():
    remotes = [r for s in SOURCES.values() for v in vars(s).values() for r in (v if isinstance(v, tuple) else (v,))]
    remotes = [r for r in remotes if isinstance(r, Remote)]
    assert len(remotes) == 13
    assert len({r.md5 for r in remotes}) == len({r.url for r in remotes}) == 13
    assert all(len(bytes.fromhex(r.md5)) == 16 and r.url.startswith("http") for r in remotes)
