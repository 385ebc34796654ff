"""The benchmark: engines agree before they are timed, and tables, JSON and pictures say what was measured."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tinyprop import bench
from tinyprop.bench.cases import ENGINES, FAST, plan
from tinyprop.bench.engines import Tinyprop
from tinyprop.bench.report import Table, as_markdown, by_case
from tinyprop.bench.runner import Measurement, Results, choose, measure
from tinyprop.bench.with_torch import Torch, TorchChannelsLast
from tinyprop.bench.workers import MAKERS, is_installed
from tinyprop.cli import main

BAR = SimpleNamespace(update=lambda: None, set_postfix_str=lambda text: None)


def tiny(case):
    """The case with few images and, where that changes nothing but its size, few filters."""
    return replace(case, batch=4, width=0.05)


@pytest.fixture(scope="module")
def results():
    """Every section once, on all engines that are installed."""
    cases = [tiny(case) for case in plan(["step", "scaling"], quick=True)]
    cases += [
        tiny(plan([section], quick=True)[i]) for section, i in (("layers", 2), ("inference", 0), ("networks", -2))
    ]
    return bench.run(ENGINES, repeats=2, cases=cases)


@pytest.mark.slow
def test_installed_engines_agree_and_are_timed(results):
    assert [note for note in results.notes if "not installed" not in note] == []
    for case in ("NormProp", "BatchNorm"):
        timed = by_case(results.of("step"))[case]
        assert list(timed) == [engine for engine in ENGINES if is_installed(engine)]
        assert all(len(m.seconds) == 2 and m.median > 0 for m in timed.values())


@pytest.mark.slow
def test_peak_memory_is_that_of_the_first_case_alone(results):
    steps = by_case(results.of("step"))
    assert all(m.peak_memory is None or m.peak_memory > 0 for m in steps["NormProp"].values())
    assert all(m.peak_memory is None for m in steps["BatchNorm"].values())


@pytest.mark.slow
def test_json_tables_and_pictures_are_written(results, tmp_path):
    paths = bench.write(results, tmp_path)
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [m["seconds"] for m in kept["measurements"]] == [m.seconds for m in results.measurements]
    assert kept["machine"]["cores"] >= 1
    text = (tmp_path / "bench.md").read_text()
    for word in (
        kept["machine"]["cpu"],
        "peak MB",
        "NormProp against BatchNorm",
        "| batch size 10 |",
        "tinyprop GEMM:",
    ):
        assert word in text
    assert {p.name for p in paths} >= {f"{n}.png" for n in ("step", "layers", "scaling", "networks")}
    for path in paths:
        start = {".png": b"\x89PNG", ".svg": b"<?xml"}.get(path.suffix, b"")
        assert path.read_bytes().startswith(start)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Torch, TorchChannelsLast])
@pytest.mark.parametrize("section", ["step", "layers", "inference", "networks"])
def test_pytorch_does_the_same_work(engine, section):
    pytest.importorskip("torch")
    for case in map(tiny, plan([section])):
        _, ours = Tinyprop(1).job(case)
        _, theirs = engine(1).job(case)
        assert len(ours) > 1
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, err_msg=case.name)


class Imitation:
    """A worker that answers at once."""

    cases = 1

    def __init__(self, title, values):
        self.engine = self.title = title
        self.values = values

    def prepare(self, case):
        if self.values is None:
            raise MemoryError("too large")
        return self.values

    def seconds(self, case):
        return 0.5

    def forget(self):
        self.values = None

    def peak_memory(self):
        return 1000


def test_an_engine_that_computes_something_else_is_not_timed():
    case, notes = replace(plan(["step"])[0], engines=tuple("abcd")), []
    workers = [Imitation("a", [2.0, 1.9]), Imitation("b", [2.0, 1.8]), Imitation("c", None), Imitation("d", [2.0, 1.9])]
    assert [m.engine for m in measure([case], workers, 3, notes, BAR)] == ["a", "d"]
    assert notes == [
        "b: other numbers in step NormProp: [2.0, 1.8], not [2.0, 1.9]",
        "c: cannot do step NormProp: MemoryError: too large",
    ]
    assert list(measure([case], [Imitation("c", None)], 3, notes, BAR)) == []


def test_who_is_left_out_is_told():
    chosen, notes = choose(None, quick=True)
    assert set(chosen) <= {*FAST, "tinyprop-plain", "tinyprop-gemm"}
    left_out = [engine for engine in ENGINES if engine not in chosen]
    assert [note.split(":")[0] for note in notes] == [MAKERS[engine].title for engine in left_out]


def test_ratios_are_of_medians():
    def m(engine, *seconds):
        return Measurement("networks", "", "net", engine, 50, list(seconds))

    measured = [m("tinyprop", 0.1, 0.2, 9.0), m("torch", 0.5, 0.5, 0.1), m("torch-channels-last", 0.3, 0.3, 0.3)]
    machine = {"cpu": "x", "cores": 1, "blas": "y", "system": "z", "python": "3", "numpy": "2"}
    options = {"repeats": 3, "threads": 1, "quick": False, "load_before": None}
    text = as_markdown(Results(machine, options, {}, [], measured))
    assert "| net | 200 | 500 | 300 | 1.50 |" in text


def test_a_table_is_aligned_and_its_note_fits_the_terminal():
    text = Table("Title", ["case", "ms"], [["a", "1"], ["longer", "1000"]], "word " * 30).text(40)
    assert text.splitlines()[2:5] == ["case      ms", "a          1", "longer  1000"]
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path, capsys):
    arguments = ["--quick", "--engines", "tinyprop", "--only", "inference", "--repeats", "1", "--threads", "1"]
    assert main(["bench", *arguments, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "Inference of a batch" in said
    assert f"{tmp_path / 'bench.json'}" in said


@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--engines", "abacus"], ["--only", "fun"]])
def test_wrong_arguments_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", *wrong])
    assert caught.value.code == 2
    assert wrong[1] in capsys.readouterr().err
