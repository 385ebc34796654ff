"""Ways agree before they are timed, rounds that others disturb do not count, and tables and JSON
say what was measured."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks import compare, measure, report
from benchmarks.__main__ import main
from benchmarks.cases import layers, steps
from benchmarks.measure import Results, Row, in_turns, measured
from benchmarks.peers import PEERS, TORCH
from benchmarks.workers import RemoteJob, Seconds, Way


def tiny(case):
    """The case with few images and, where that changes nothing but its size, few filters."""
    return replace(case, batch=min(case.batch, 4), width=0.05)


def all_cases():
    return [case for rows in (steps(), layers()) for cases in rows.values() for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH)
def test_pytorch_does_the_same_work(name):
    pytest.importorskip("torch")
    for case in {tiny(case) for case in all_cases()}:
        _, ours = PEERS["tinyprop"](1).job(case)
        _, theirs = PEERS[name](1).job(case)
        assert len(ours) > 1
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, err_msg=case.name)


def blas_threads():
    """Of each BLAS that this process has loaded."""
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_a_limit_of_threads_ends_with_its_block():
    with threadpool_limits(3, user_api="blas"):
        peer = PEERS["tinyprop"](1)
        assert blas_threads() == {3}, "as long as nothing is measured"
        with peer.limited():
            assert blas_threads() == {1}
        assert blas_threads() == {3}


@pytest.mark.slow
def test_a_limit_of_pytorch_ends_with_its_block():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    peer = PEERS["torch"](before + 1)
    with peer.limited():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_ways_are_timed_in_processes_and_the_times_are_written(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("mpi4py")
    case = tiny(steps()["0.1x50"][0])
    monkeypatch.setitem(compare.CASES, "steps", lambda: {"0.1x50": [case]})
    monkeypatch.setattr(measure, "is_quiet", lambda others: True)
    assert main(["steps", "--rounds", "2", "--out", str(tmp_path)]) == 0
    path = tmp_path / "steps-0.1x50.json"
    assert str(path) in capsys.readouterr().out
    found = Results.read(path)
    assert found.notes == []
    (row,) = found.rows
    assert list(row.clock) == [way.name for way in compare.ways("steps")]
    assert len(row.clock) == 7
    for times in (*row.clock.values(), *row.processor.values()):
        assert len(times) == 2
        assert min(times) > 0


@pytest.mark.slow
def test_an_error_in_a_job_is_raised_and_the_job_goes_on():
    pytest.importorskip("mpi4py")
    job = RemoteJob(Way("tinyprop", processes=2))
    try:
        case = tiny(steps()["0.1x50"][0])
        with pytest.raises(KeyError):
            job.call("seconds", case)
        values, _ = job.call("prepare", case)
        _, alone = PEERS["tinyprop"](1).job(case)
        np.testing.assert_allclose(values, alone, rtol=1e-4)
    finally:
        job.close()
    assert job.job.returncode == 0


class Imitation:
    """A process that answers at once."""

    def __init__(self, values):
        self.values = values

    def call(self, method, *arguments):
        if self.values is None and method != "forget":
            raise MemoryError("too large")
        answers = {"prepare": (self.values, 1000), "seconds": Seconds(0.5, 0.25), "forget": None}
        return answers[method]


def test_a_way_that_computes_something_else_is_not_timed():
    case, notes = steps()["0.1x50"][0], []
    remotes = {
        Way("tinyprop"): Imitation([2.0, 1.9]),
        Way("torch"): Imitation([2.0, 1.8]),
        Way("torch-channels-last"): Imitation(None),
        Way("tinyprop", threads=2): Imitation([2.0, 1.9]),
    }
    row = measured(case, remotes, 1, notes)
    assert list(row.clock) == ["tinyprop, 1 thread", "tinyprop, 2 threads"]
    assert notes == [
        f"torch, 1 thread: other numbers in {case.name}: [2.0, 1.8], not [2.0, 1.9]",
        f"torch-channels-last, 1 thread: cannot do {case.name}: MemoryError: too large",
    ]


class Others:
    """A machine on which other programs use so much, round by round."""

    def __init__(self, monkeypatch, *shares):
        self.shares = iter(shares)
        monkeypatch.setattr(measure, "Watch", lambda: self)

    def others(self):
        return next(self.shares)


def test_rounds_that_others_disturb_do_not_count(monkeypatch):
    Others(monkeypatch, 0.0, 0.9, 0.1, 0.2, 0.14)
    times = iter([1.0, 9.0, 2.0, 9.0, 3.0])
    row = in_turns("work", {"way": lambda: Seconds(next(times), 7.0)}, 3)
    assert row.quiet == [0, 2, 4]
    assert row.median_clock("way") == 2.0
    assert report.rounds_cell(row) == "3 of 5"


def test_a_busy_machine_ends_it(monkeypatch):
    Others(monkeypatch, *[0.9] * 4)
    row = in_turns("work", {"way": lambda: Seconds(1.0, 1.0)}, 2)
    assert (row.quiet, len(row.others)) == ([], 4)
    assert row.median_clock("way") == 1.0, "it is told, but not published"


def test_ways_take_turns_there_and_back(monkeypatch):
    Others(monkeypatch, 0.0, 0.0)
    order = []

    def turn(name):
        def work():
            order.append(name)
            return Seconds(1.0, 1.0)

        return work

    in_turns("work", {name: turn(name) for name in "abc"}, 2)
    assert "".join(order) == "abccba"


def row(**clock):
    """Ways by short names; the processor takes half as long."""
    names = {
        "one": "tinyprop, 1 thread",
        "two": "tinyprop, 2 threads",
        "both": "tinyprop, 2 processes",
        "nchw": "torch, 1 thread",
        "last": "torch-channels-last, 1 thread",
        "nchw2": "torch, 2 threads",
        "last2": "torch-channels-last, 2 threads",
    }
    times = {names[way]: [seconds] for way, seconds in clock.items()}
    half = {names[way]: [seconds / 2] for way, seconds in clock.items()}
    return Row("a step", 50, [0.0], times, half)


def test_ratios_are_of_pytorchs_best():
    full = row(one=0.4, two=0.2, both=0.1, nchw=0.3, last=0.2, nchw2=0.25, last2=0.15)
    table = report.step_table([full])
    assert table.rows == [
        ["a step", "200", "0.50", "200", "0.75", "100", "1.50", "1 of 1"],
    ]
    assert report.gain_of_processes(full) == 2.0
    slow_threads = row(two=0.2, last=0.1, last2=0.3)
    assert report.two_cores(slow_threads) == 0.5, "PyTorch may be better on one thread"
    assert report.step_table([row(one=0.1)]).rows == [
        ["a step", "50", "-", "-", "-", "-", "-", "1 of 1"]
    ]


@pytest.mark.slow
def test_pytorch_trains_the_arrays_of_the_network():
    """So `agreement` can evaluate what it has trained."""
    pytest.importorskip("torch")
    case = tiny(steps()["0.1x50"][0])
    net, (x, labels) = case.build(), case.data()
    before = net[0].weight.data.copy()
    PEERS["torch"](1).trainer(net)(x, labels)
    assert not np.allclose(net[0].weight.data, before)


def test_a_benchmark_that_is_ended_leaves_no_pause_file(tmp_path, monkeypatch, capsys):
    """`timeout` ends what takes too long by SIGTERM."""
    pause = tmp_path / "pause"
    monkeypatch.setenv("TINYPROP_PAUSE", str(pause))
    programs = {"import": {"tinyprop": ["-c", "import os, signal; os.kill(os.getppid(), 15)"]}}
    monkeypatch.setattr(compare, "PROGRAMS", programs)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["programs", "--out", str(tmp_path)]) == 130
    assert not pause.exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_programs_are_timed(tmp_path, monkeypatch, capsys):
    programs = {"import": {"tinyprop": ["-c", "pass"], "numpy": ["-c", "pass"]}}
    monkeypatch.setattr(compare, "PROGRAMS", programs)
    monkeypatch.setattr(measure, "is_quiet", lambda others: True)
    assert main(["programs", "--rounds", "1", "--out", str(tmp_path)]) == 0
    (row,) = Results.read(tmp_path / "programs-import.json").rows
    assert list(row.clock) == ["tinyprop", "numpy"]
    assert row.clock["numpy"][0] > 0
    assert "import (numpy)" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "word"),
    [
        (
            ["profile", "--steps", "1", "--images", "2", "--width", "0.05"],
            "| Convolve gradient 2x3x32x32 10x3x5x5 |",
        ),
        (
            ["agreement", "--data", "shapes", "--epochs", "1", "--seeds", "2", "--images", "50"],
            "difference",
        ),
    ],
)
def test_the_other_commands(command, word, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.profile.LEAST", 0.0)
    # the paper's takes ten seconds
    monkeypatch.setattr("tinyprop.nn.NIN", "C(40,5,4,2)-C(10,1,1,0)-P(8,8,0,avg)")
    if command[0] == "agreement":
        pytest.importorskip("torch")
    assert main(command) == 0
    assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["stp"], ["steps", "--rounds", "0"], ["steps", "--rows", "0.3x7"]]
)
def test_wrong_arguments_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2
    assert wrong[-1] in capsys.readouterr().err
