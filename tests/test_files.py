"""One path, many writers: whoever reads it sees one whole content. (test_faults.py has writers that are killed.)"""

import hashlib
import subprocess
import sys

import pytest

from tinyprop.files import whole_file

WRITER = """
import hashlib, os, sys, time
from pathlib import Path
from tinyprop.files import whole_file
path, end, written = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2]), 0
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
from tinyprop.files import read_regular
path, end, seen = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2]), set()
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
    programs = [WRITER] * 4 + [READER] * 2
    start = [[sys.executable, "-c", program, str(path), "5"] for program in programs]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for arguments in start]
    counts = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert min(counts) >= 10, counts  # each wrote, or saw, many different contents
    assert [p.name for p in tmp_path.iterdir()] == ["shared"]
