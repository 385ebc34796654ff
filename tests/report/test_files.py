"""Whoever reads a file sees one whole content: whatever happens to its writer, and of however many
writers."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.faults import BROKEN, FULL, Faults, Killed, injected
from tests.helpers import quick_only
from tinyprop.report import plots
from tinyprop.report.files import (
    TEMPORARY,
    read_regular,
    whole_file,
    write_csv,
    write_json,
    write_whole,
)

WRITERS = {
    "x.bin": lambda path, n: write_whole(path, bytes([n]) * 9_999),
    "x.json": lambda path, n: write_json(path, {"n": n}),
    "x.csv": lambda path, n: write_csv(path, [{"n": n}] * 99),
    "x.safetensors": lambda path, n: tp.save(path, {"n": np.full(99, n)}),
    "x.png": lambda path, n: plots.save(plots.panels(1, 0.5 + n, 1.0)[0], path, ""),
}


@pytest.mark.parametrize("fault", [FULL, BROKEN, "kill", "power loss"])
@pytest.mark.parametrize("name", quick_only(WRITERS.keys() - {"x.png"}, WRITERS))
def test_a_fault_at_any_operation_leaves_the_old_content_or_the_new_one(
    name, fault, tmp_path, monkeypatch
):
    path = tmp_path / "run" / name
    write = WRITERS[name]
    contents = []
    for n in (2, 1):
        with injected(Faults(tmp_path), monkeypatch) as faults:
            write(path, n)
        contents.append(path.read_bytes())
        faults.after_power_loss()
        assert path.read_bytes() == contents[-1], "what was written is on the disk"
    assert contents[0] != contents[1]
    assert 5 <= faults.count <= 50  # open, write, fsync, rename, and fsync of the directory
    for at in range(1, faults.count + 1):
        error = fault if isinstance(fault, int) else None
        with (
            injected(Faults(path.parent, at, error), monkeypatch) as faults,
            pytest.raises((OSError, Killed)),
        ):
            write(path, 2)
        if fault == "power loss":
            faults.after_power_loss()
        assert path.read_bytes() in contents
        left = [p for p in path.parent.iterdir() if p != path]
        assert all(TEMPORARY.fullmatch(p.name) for p in left)
        assert not left or error is None
        for p in left:
            p.unlink()
        path.write_bytes(contents[1])


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda p: p.symlink_to("/dev/zero"), lambda p: p.write_text("5 bytes")],
)
def test_what_is_not_a_small_regular_file_is_refused_by_name_and_left_closed(make, tmp_path):
    make(tmp_path / "x")
    before = os.listdir("/dev/fd")
    with pytest.raises(OSError, match=str(tmp_path / "x")):
        read_regular(tmp_path / "x", most=4)
    assert os.listdir("/dev/fd") == before


WRITER = """
import hashlib, os, sys, time
from pathlib import Path
from tinyprop.report.files import whole_file
path = Path(sys.argv[1])
end = time.monotonic() + float(sys.argv[2])
written = 0
while time.monotonic() < end:
    content = os.urandom(1000) * (1 + written % 300)
    with whole_file(path) as file:
        file.write(hashlib.sha256(content).digest())
        for start in range(0, len(content), 50_000):
            file.write(content[start : start + 50_000])
    written += 1
print(written)
"""
READER = """
import hashlib, sys, time
from pathlib import Path
from tinyprop.report.files import read_regular
path = Path(sys.argv[1])
end = time.monotonic() + float(sys.argv[2])
seen = set()
while time.monotonic() < end:
    content = read_regular(path, most=1 << 20)
    assert hashlib.sha256(content[32:]).digest() == content[:32], len(content)
    seen.add(content[:32])
print(len(seen))
"""


@pytest.mark.slow
def test_four_processes_write_and_two_read_one_path_without_a_torn_read(tmp_path):
    path = tmp_path / "shared"
    with whole_file(path) as file:
        file.write(hashlib.sha256(b"").digest())
    processes = []
    for program in [WRITER] * 4 + [READER] * 2:
        command = [sys.executable, "-c", program, str(path), "5"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    counts = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert min(counts) >= 10, counts  # each wrote, or saw, many different contents
    assert [p.name for p in tmp_path.iterdir()] == ["shared"]
