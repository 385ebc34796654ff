"""Benchmarks and long experiments share a machine: the runs wait while something is measured."""

import os

import pytest

from benchmarks import load
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


def made_up_proc(folder, monkeypatch, busy, processes):
    """/proc of a machine whose processors have worked for so many ticks. A process is (pid, parent,
    ticks of its own, ticks of its ended children)."""
    (folder / "stat").write_text(f"cpu  {busy} 0 0 900 9 0 0 0 0 0\ncpu0 1 2 3\n")
    for pid, parent, own, ended in processes:
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = f"S {parent} 1 1 0 -1 4 0 0 0 0 {own} 0 {ended} 0 20 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (a (b) c) {fields}")
    monkeypatch.setattr(load, "PROC", folder)


def test_our_own_processes_are_not_others(tmp_path, monkeypatch):
    tick = os.sysconf("SC_CLK_TCK")
    me = os.getpid()
    ours = [(me, 1, 2, 3), (me + 1, me, 4, 0), (me + 2, me + 1, 5, 0)]
    stranger = (me + 3, 1, 100, 0)
    made_up_proc(tmp_path, monkeypatch, 114, [*ours, stranger])
    assert load.seconds_of_others() == 100 / tick


@pytest.mark.parametrize(("used", "counts"), [(10, True), (20, False)])
def test_a_round_counts_if_others_are_quiet(tmp_path, monkeypatch, used, counts):
    """In a second, others use 10 or 20 of 100 hundredths of a core."""
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    moments = iter([10.0, 11.0])
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(moments))
    made_up_proc(tmp_path, monkeypatch, 50, [(os.getpid(), 1, 50, 0)])
    watch = load.Watch()
    made_up_proc(tmp_path, monkeypatch, 250 + used, [(os.getpid(), 1, 250, 0)])
    others = watch.others()
    assert others == pytest.approx(used / 100)
    assert load.is_quiet(others) == counts


def test_where_the_system_does_not_tell_every_round_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PROC", tmp_path)
    others = load.Watch().others()
    assert others is None
    assert load.is_quiet(others)
