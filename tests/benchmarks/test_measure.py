"""Peers agree before they are timed, and tables and JSON say what was measured."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.cases import SECTIONS, plan
from benchmarks.measure import Measurement, Results, choose, measure
from benchmarks.peers import PEERS, is_installed
from benchmarks.report import tables

BAR = SimpleNamespace(update=lambda: None, set_postfix_str=lambda text: None)
INSTALLED = [name for name in PEERS if is_installed(name)]
ALONE = ("torch-in-parts", "batch")  # it has no statistics over the parts of a batch


def tiny(case):
    """The case with few images and, where that changes nothing but its size, few filters."""
    return replace(case, batch=4, width=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "tinyprop"])
@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.filterwarnings("ignore")  # of other frameworks
def test_a_peer_does_the_same_work(name, section):
    cases = [tiny(case) for case in plan([section]) if case.for_all or not PEERS[name].slow]
    for case in cases:
        if (name, case.norm) == ALONE:
            continue
        _, ours = PEERS["tinyprop"](1).job(case)
        _, theirs = PEERS[name](1).job(case)
        assert len(ours) > 1
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, err_msg=case.name)


@pytest.mark.slow
def test_peers_are_timed_in_processes_and_the_times_are_written(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(
        "benchmarks.__main__.plan", lambda *args: [tiny(case) for case in plan(*args)]
    )
    options = [
        "--peers",
        "tinyprop",
        "torch-in-parts",
        "--repeats",
        "2",
        "--threads",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert main(["step", *options]) == 0
    assert str(tmp_path / "bench.json") in capsys.readouterr().out
    results = json.loads((tmp_path / "bench.json").read_text())
    assert [note for note in results["notes"] if "cannot do step BatchNorm" not in note] == []
    found = {(m["case"], m["peer"]): m for m in results["measurements"]}
    assert list(found) == [
        ("NormProp", "tinyprop"),
        ("NormProp", "torch-in-parts"),
        ("BatchNorm", "tinyprop"),
    ]
    assert all(len(m["seconds"]) == 2 and min(m["seconds"]) > 0 for m in found.values())
    for (case, _), m in found.items():  # after NormProp, the memory of BatchNorm is not its own
        assert m["peak_memory"] is None or (m["peak_memory"] > 0 and case == "NormProp")
    text = (tmp_path / "bench.md").read_text()
    assert results["machine"]["cpu"] in text
    assert "| tinyprop |" in text


class Imitation:
    """A worker that answers at once."""

    def __init__(self, peer, values):
        self.peer = peer
        self.title = PEERS[peer].title
        self.values = values

    def call(self, method, *arguments):
        if self.values is None:
            raise MemoryError("too large")
        return {"prepare": (self.values, 1000), "seconds": 0.5, "forget": None}[method]


def test_a_peer_that_computes_something_else_is_not_timed():
    case, notes = plan(["step"])[0], []
    values = {"tinyprop": [2.0, 1.9], "torch": [2.0, 1.8], "jax": None, "mygrad": [2.0, 1.9]}
    remotes = [Imitation(*item) for item in values.items()]
    assert [m.peer for m in measure([case], remotes, 3, notes, BAR)] == ["tinyprop", "mygrad"]
    assert notes == [
        "PyTorch NCHW: other numbers in step NormProp: [2.0, 1.8], not [2.0, 1.9]",
        "JAX jit: cannot do step NormProp: MemoryError: too large",
    ]
    inference = [*measure(plan(["inference"]), remotes, 3, notes, BAR)]
    assert [m.peer for m in inference] == ["tinyprop"], "slow peers do not take part"


def test_peers_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr("benchmarks.measure.is_installed", lambda name: name != "torch")
    assert choose(None, quick=False) == [name for name in PEERS if name != "torch"]
    assert choose(None, quick=True) == ["tinyprop", "torch-channels-last"], "slow peers wait"
    assert choose(["mygrad"], quick=True) == ["mygrad"], "unless they are asked for"
    with pytest.raises(ValueError, match="torch is not installed: pip install torch"):
        choose(["tinyprop", "torch"], quick=False)


def test_ratios_are_of_medians():
    def m(case, peer, *seconds, section="networks"):
        return Measurement(section, case, peer, 50, list(seconds), None)

    measured = [m("net", "tinyprop", 0.1, 0.2, 9.0), m("net", "torch", 0.5, 0.5, 0.1)]
    measured += [m("net", "torch-channels-last", 0.3, 0.3, 0.3)]
    measured += [
        m(case, "tinyprop", 0.2, 0.1, section="step") for case in ("NormProp", "BatchNorm")
    ]
    measured += [
        m("NormProp", "torch", 0.6, section="step"),
        m("BatchNorm", "torch", 0.3, section="step"),
    ]
    step, networks = tables(Results({}, {}, {}, [], measured))
    assert networks.rows == [["net", "200", "500", "300", "1.50"]]
    assert step.rows[1] == [
        "PyTorch NCHW",
        "600",
        "600-600",
        "83",
        "-",
        "4.00",
        "300",
        "2.00",
        "2.00",
    ]
    assert "84 s against 96 s" in step.note


@pytest.mark.slow
def test_pytorch_trains_the_arrays_of_the_network():
    """So `agreement` can evaluate what it has trained."""
    pytest.importorskip("torch")
    case = tiny(plan(["step"])[0])
    net, (x, labels) = case.build(), case.data()
    before = net[0].weight.data.copy()
    PEERS["torch"](1).trainer(net, 1)(x, labels)
    assert not np.allclose(net[0].weight.data, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "word"),
    [
        (
            ["profile", "--steps", "1", "--images", "2", "--width", "0.05"],
            "| Convolve gradient 2x3x32x32 10x3x5x5 |",
        ),
        (["sampling", "--samples", "1e6", "--repeats", "1"], "times drawing alone"),
        (["overhead", "--repeats", "1"], "x.tanh()"),
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
    if command[0] in ("overhead", "agreement"):
        pytest.importorskip("torch")
    assert main(command) == 0
    assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["stp"], ["step", "--repeats", "0"], ["step", "--peers", "abacus"]]
)
def test_wrong_arguments_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2
    assert wrong[-1] in capsys.readouterr().err
