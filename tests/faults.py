"""A file system that fails: under tinyprop.files, at the k-th operation, as in the tests of SQLite.

Every file is written through tinyprop.files, whose operations (open, write, fsync, rename, unlink)
are counted here. At the k-th one the disk is full or broken (an OSError), the process is killed
(Killed, which nobody catches, and no operation after it has any effect), or the power fails: then
`Faults.after_power_loss` also takes back everything that was not flushed to the disk - content
before fsync, and names before the fsync of their directory."""

import builtins
import errno
import os
from contextlib import contextmanager

from tinyprop.report import files


class Killed(BaseException):
    """The end of the process."""


class Faults:
    def __init__(self, folder, at=None, error=None):
        """At operation number `at`, counted from 1: an OSError of this errno, or the end of the
        process for None."""
        self.folder, self.at, self.error = folder, at, error
        self.count, self.dead = 0, False
        self.flushed = {}  # inode -> content that survives a power loss
        # names that do
        self.durable = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    def operation(self):
        if self.dead:
            raise Killed
        self.count += 1
        if self.count == self.at:
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            self.dead = True
            raise Killed

    # -- what tinyprop.files sees as `os` and `open`

    def open_file(self, path, mode="r", **options):
        if "x" not in mode:
            return builtins.open(path, mode, **options)
        self.operation()
        return Watched(builtins.open(path, mode, **options), self)

    def fsync(self, descriptor):
        self.operation()
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            folder = os.path.realpath(f"/proc/self/fd/{descriptor}")
            self.durable = {
                p: c for p, c in self.durable.items() if str(p.parent.resolve()) != folder
            }
            for path in self.folder.rglob("*"):
                if path.is_file() and str(path.parent.resolve()) == folder:
                    self.durable[path] = self.flushed.get(path.stat().st_ino, b"")
        else:
            self.flushed[os.fstat(descriptor).st_ino] = os.pread(descriptor, 1 << 30, 0)

    def replace(self, a, b):
        self.operation()
        os.replace(a, b)

    def unlink(self, path):
        self.operation()
        os.unlink(path)

    def __getattr__(self, name):
        return getattr(os, name)

    def after_power_loss(self):
        """Bring the folder into the state that the disk has."""
        for path in [p for p in self.folder.rglob("*") if p.is_file()]:
            if path not in self.durable:
                path.unlink()
        for path, content in self.durable.items():
            path.write_bytes(content)


class Watched:
    """A file whose writes are operations; an open file can be read back by the harness."""

    def __init__(self, file, faults):
        self.file, self.faults = builtins.open(file.name, "r+b"), faults  # noqa: SIM115
        file.close()

    def write(self, content):
        self.faults.operation()
        return self.file.write(content)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


@contextmanager
def injected(faults, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", faults)
        patch.setattr(files, "open", faults.open_file, raising=False)
        yield faults


FULL, BROKEN = errno.ENOSPC, errno.EIO
