"""Benchmarks and long experiments share a machine: the runs wait while something is measured."""

import pytest

from benchmarks.load import runs_paused


def test_the_pause_file_exists_while_something_is_measured(tmp_path, monkeypatch):
    path = tmp_path / "pause"
    monkeypatch.setenv("TINYPROP_PAUSE", str(path))
    with runs_paused():
        assert path.exists()
    assert not path.exists()
    with pytest.raises(RuntimeError), runs_paused():
        raise RuntimeError("a benchmark failed")
    assert not path.exists(), "whatever happens"


def test_nothing_is_made_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("TINYPROP_PAUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    with runs_paused():
        assert list(tmp_path.iterdir()) == []
