"""The page about two processes, on made-up measurements, and a job that measures."""

import json
from pathlib import Path

import pytest

from benchmarks import ranks


def times(**changes):
    found = {"one thread": [0.105] * 3, "two threads": [0.055] * 3, "two ranks": [0.06] * 3}
    return found | changes


def test_the_page_has_medians_and_ratios_of_the_same_turn():
    uneven = times(**{"two threads": [0.05, 0.1, 0.2], "two ranks": [0.1, 0.1, 0.1]})
    found = {
        "steps": {"0.25": times(), "1.0": uneven},
        "sums": {"1000": [1e-4, 2e-4, 9e-4]},
        "machine": "an abacus",
        "others": 0.125,
    }
    text = ranks.page(found, 1)
    assert "an abacus" in text
    assert "other programs used 12% of a core" in text
    assert "| 0.25 | 105 | 55 | 60 | 1.09 |" in text
    assert "| 1 | 105 | 100 | 100 | 1.00 |" in text
    assert "| 1,000 | 0.2 |" in text


def test_the_committed_page_follows_from_its_data():
    folder = Path(ranks.__file__).parent
    found = json.loads((folder / "RANKS.json").read_text())
    assert ranks.page(found, ranks.REPEATS) == (folder / "RANKS.md").read_text()


@pytest.mark.slow
def test_two_ranks_are_measured(tmp_path):
    pytest.importorskip("mpi4py")
    if ranks.mpiexec() is None:
        pytest.skip("there is no mpiexec")
    page, data = ranks.write(tmp_path, 1)
    assert "| 0.25 |" in page.read_text()
    assert data.exists()


def test_without_mpi_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ranks, "mpiexec", lambda: None)
    with pytest.raises(ValueError, match=r"tinyprop\[mpi\]"):
        ranks.measured(1)
