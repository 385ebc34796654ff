"""Files are found where they should be, and downloaded whole or not at all."""

import hashlib
import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
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


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `content` by path; `faults` are what happens to the next requests."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        server.starts.append(start)
        fault = server.faults.pop(0) if server.faults else None
        content = server.content.get(self.path)
        if isinstance(fault, str) or content is None:  # a redirect
            self.send_response(302 if fault else 404)
            self.send_header("Location", str(fault))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if not server.ranges:
            start = 0
        self.send_response(206 if server.ranges else 200)
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if fault is not None:  # the connection breaks off after this number of bytes
            rest = rest[:fault]
            self.close_connection = True
        with suppress(OSError):  # the client has given up
            for i in range(0, len(rest), server.piece):
                self.wfile.write(rest[i : i + server.piece])
                time.sleep(server.pause)


@contextmanager
def serving(wrap=lambda socket: socket):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = wrap(server.socket)
        server.content, server.faults, server.starts = {}, [], []
        server.ranges, server.piece, server.pause = True, 1 << 20, 0.0
        server.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server():
    with serving() as server:
        yield server


def remote(server, path, content, scheme="http"):
    """A file with this content, at this path of the server."""
    url = f"{scheme}://{server.address}{path}"
    return Remote(url, len(content), hashlib.sha256(content).hexdigest())


def test_the_places(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYPROP_DATA", "~/data")
    monkeypatch.setenv("HOME", "/home/someone")
    for cache, folder in [
        (tmp_path, tmp_path),
        ("", "/home/someone/.cache"),
        ("relative", "/home/someone/.cache"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        assert places("here") == [
            Path("here"),
            Path("/home/someone/data"),
            Path(folder, "tinyprop"),
        ]


def test_the_first_place_with_all_files_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINYPROP_DATA", str(tmp_path / "env"))
    root = tmp_path / "letters"
    remote = Remote("http://x/letters.tar.gz", 1, "", ("a", "b"))
    assert find(root, ("letters",), remote) is None
    samples.write(root, {"a": b"1", "c": b"1"})
    for place in (tmp_path / "cache/tinyprop/letters", tmp_path / "env/letters"):
        samples.write(place, {"a": b"1", "b": b"1"})
        assert find(root, ("letters",), remote) == [place / "a", place / "b"]
    samples.write(root, {"letters.tar.gz": b"1"})
    assert find(root, ("letters",), remote) == [root / "letters.tar.gz"]
    assert find(root, ("digits",), remote) is None


def test_only_regular_files_that_are_not_empty_are_found(tmp_path):
    # to open a pipe that nobody writes to would never return
    for make in (os.mkfifo, Path.mkdir, Path.touch):
        root = tmp_path / make.__name__
        root.mkdir()
        make(root / "test_32x32.mat")
        assert tp.data.found("svhn", root, "test") is None
    (tmp_path / "test_32x32.mat").write_bytes(b"anything: it is not read")
    assert tp.data.found("svhn", tmp_path, "test") == str(tmp_path)
    assert tp.data.found("svhn", tmp_path) is None  # no file of the training images


RIGHT = bytes(range(256)) * 40


def fails(remote, folder, message):
    path = folder / remote.name
    match = (
        rf"(?s)got:  {path}, .*not available.*{message}.*"
        rf"rule: .*try:  download {remote.url} .* save it as {path}"
    )
    with pytest.raises(tp.DataError, match=match):
        download(remote, folder)
    assert os.listdir(folder) == []


def test_a_download_that_fails_leaves_nothing_and_says_what_to_put_where(
    tmp_path, server, monkeypatch
):
    server.content = {
        "/other": RIGHT[::-1],
        "/long": RIGHT + b"x",
        "/short": RIGHT[:-1],
        "/loop": b"",
    }
    wrong = hashlib.sha256(RIGHT[::-1]).hexdigest()
    data = tmp_path / "data"
    fails(
        remote(server, "/other", RIGHT),
        data,
        f"digest is {wrong} instead of {hashlib.sha256(RIGHT).hexdigest()}",
    )
    fails(remote(server, "/long", RIGHT), data, "longer than 10,240 bytes")
    fails(remote(server, "/short", RIGHT), data, "ends after 10,239 of 10,240 bytes")
    fails(remote(server, "/missing", RIGHT), data, "404")
    fails(Remote("http://127.0.0.1:9/offline", 1, ""), data, "refused")
    server.faults = ["file:///etc/passwd"]
    fails(remote(server, "/loop", RIGHT), data, "not allowed")
    server.faults = [f"http://{server.address}/loop"] * 50
    fails(remote(server, "/loop", RIGHT), data, "infinite loop")
    assert len(server.faults) > 30
    (tmp_path / "file").touch()
    with pytest.raises(tp.DataError, match=r"(?s)got: .*file/x"):
        download(remote(server, "/x", RIGHT), tmp_path / "file")  # which is no folder


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_transfer_is_resumed_and_checked_as_a_whole(tmp_path, server, ranges):
    server.content, server.ranges = {"/file": RIGHT}, ranges
    server.faults = [1000, 2000, 3000] if ranges else [1000, 2000]
    assert download(remote(server, "/file", RIGHT), tmp_path).read_bytes() == RIGHT
    assert server.starts == ([0, 1000, 3000, 6000] if ranges else [0, 1000, 2000])
    server.starts, server.faults = [], [1000, 0]  # nothing more: it is given up
    fails(remote(server, "/file", RIGHT), tmp_path / "data", "ends after (1,00)?0 of 10,240 bytes")
    server.starts, server.faults = [], [1] * 100
    if ranges:
        fails(remote(server, "/file", RIGHT), tmp_path / "data", "ends after 10 of 10,240 bytes")
        assert len(server.starts) == sources.TRIES


@pytest.mark.slow
def test_a_transfer_has_a_limit_however_little_it_is_silent(tmp_path, server, monkeypatch):
    monkeypatch.setattr(sources, "TRANSFER", 0.5)
    server.content, server.piece, server.pause = {"/file": RIGHT}, 10, 0.02
    start = time.monotonic()
    fails(remote(server, "/file", RIGHT), tmp_path, "takes longer than")
    assert time.monotonic() - start < 5
    monkeypatch.setattr(sources, "TRANSFER", 60.0)
    monkeypatch.setattr(sources, "SILENCE", 0.1)
    server.pause = 1.0
    fails(remote(server, "/file", RIGHT), tmp_path, "timed out")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_https_is_not_left(tmp_path, server, monkeypatch):
    """A certificate for 127.0.0.1 is trusted; one redirect leads to another address with https, one
    to http."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run([*make, *subject, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(partial(context.wrap_socket, server_side=True)) as secure:
        server.content = secure.content = {"/file": RIGHT}
        secure.faults = [f"https://{secure.address}/file"]
        safe = remote(secure, "/file", RIGHT, "https")
        assert download(safe, tmp_path / "a").read_bytes() == RIGHT
        server.faults = [f"https://{secure.address}/file"]
        assert download(remote(server, "/file", RIGHT), tmp_path / "b").read_bytes() == RIGHT
        secure.faults = [f"http://{server.address}/file"]
        fails(safe, tmp_path / "c", f"redirected to http://{server.address}/file")


def test_missing_files_are_downloaded_once(tmp_path, server, monkeypatch, rng, capsys):
    images = samples.images(rng, 3, 28, 28)
    content = {
        "t10k-images-idx3-ubyte.gz": samples.packed(samples.idx(images)),
        "t10k-labels-idx1-ubyte.gz": samples.packed(samples.idx(np.array([1, 2, 3], np.uint8))),
    }
    server.content = {f"/{name}": c for name, c in content.items()}
    remotes = tuple(remote(server, f"/{name}", c) for name, c in content.items())
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], test=remotes))
    root = tmp_path / "root"
    assert tp.data.found("mnist", root, "test") is None
    assert not root.exists()
    assert tp.data.found("mnist", root, "test", download=True) == str(root / "mnist")
    server.content = {}  # there is nothing left to download
    assert sorted(os.listdir(root / "mnist")) == list(content)
    dataset = tp.data.load("mnist", root, "test")
    np.testing.assert_array_equal(dataset.images[:, 0], images)
    assert dataset.labels.tolist() == [1, 2, 3]
    assert capsys.readouterr().err == ""  # they are the published files


@pytest.mark.parametrize("style", ["raw", "packed", "dotted"])
def test_a_file_that_is_not_the_published_one_is_named_once(
    tmp_path, rng, style, monkeypatch, capsys
):
    arrays = {
        "images-idx3": samples.images(rng, 3, 28, 28),
        "labels-idx1": np.array([1, 2, 3], np.uint8),
    }
    files = {f"t10k-{kind}-ubyte": samples.idx(array) for kind, array in arrays.items()}
    if style == "packed":
        files = {f"{name}.gz": samples.packed(content) for name, content in files.items()}
    elif style == "dotted":
        files = {name.replace("-idx", ".idx"): content for name, content in files.items()}
    folder = samples.write(tmp_path / "mnist", files)
    images, labels = sorted(files)
    digest = hashlib.sha256(files[labels]).hexdigest()
    mnist = SOURCES["mnist"]
    published_images, published_labels = mnist.test
    unpacked = dict.fromkeys(published_labels.unpacked, digest)
    ours = replace(published_labels, sha256=digest, unpacked=unpacked)
    monkeypatch.setitem(SOURCES, "mnist", replace(mnist, test=(published_images, ours)))
    assert tp.data.found("mnist", tmp_path, "test") == str(folder)
    assert capsys.readouterr().err == ""  # a file that is only looked up is not read
    for _ in range(2):
        assert len(tp.data.load("mnist", tmp_path, "test")) == 3
    (line,) = capsys.readouterr().err.splitlines()
    digest = hashlib.sha256(files[images]).hexdigest()
    rest = f"is not the published file: its SHA-256 digest is {digest}"
    assert line == f"tinyprop: {folder / images} {rest}"


def test_every_address_has_a_digest_of_its_own():
    remotes = [r for s in SOURCES.values() for r in s.train + s.test]
    assert len({r.url for r in remotes}) == len({r.sha256 for r in remotes}) == 13
    digests = [digest for r in remotes for digest in (r.sha256, *r.unpacked.values())]
    assert len(set(digests)) == 25
    assert all(len(bytes.fromhex(digest)) == 32 for digest in digests)
    assert all(set(map(os.path.basename, r.members)) <= set(r.unpacked) for r in remotes)
    plain = {r.url.split("/")[2] for r in remotes if not r.url.startswith("https://")}
    # without https
    assert plain == {"ufldl.stanford.edu", "fashion-mnist.s3-website.eu-central-1.amazonaws.com"}
    for source in SOURCES.values():
        assert all(r.size < source.largest for r in source.train + source.test)


def test_importing_the_room_loads_nothing_for_downloads_or_archives():
    network = {"tqdm", "http.client", "urllib.request", "ssl"}
    archives = {"tarfile", "zipfile", "gzip"}
    heavy = network | archives | {"numpy.random"}
    code = (
        "import sys; before = {*sys.modules}; import tinyprop.data; "
        f"print({heavy} & ({{*sys.modules}} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
