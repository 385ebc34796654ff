"""What is told about speed is what was measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.__main__ import main
from benchmarks.cases import layers, steps
from benchmarks.measure import Results, Row

README = Path(__file__).resolve().parents[2] / "README.md"
MACHINE = dict.fromkeys(["cpu", "cores", "blas", "system", "numpy", "python"], "X")
SLOW = {"width 0.1 x 50, NormProp": 0.5, "BatchNorm on 48x32x32 x 16": 0.25}  # PyTorch / ours


def made_up(section, name, rounds=9, others=0.0):
    """A row in which PyTorch takes twice our time, unless it is one of the slow ones."""
    ratio = SLOW.get(name, 2.0)
    times = {}
    for way in compare.ways(section):
        seconds = 0.1 if way.peer == "tinyprop" else 0.1 * ratio
        times[way.name] = [seconds * 0.8 if way.processes > 1 else seconds] * rounds
    return Row(name, 50, [others] * rounds, times, times)


@pytest.fixture
def pieces(tmp_path):
    """What the commands have measured, in a folder, by file."""
    pytest.importorskip("torch")
    found = {}
    for section, cases in {"steps": steps(), "layers": layers()}.items():
        for name, some in cases.items():
            rows = [made_up(section, case.name) for case in some]
            found[f"{section}-{name}"] = Results(MACHINE, {"torch": "2"}, "abc", [], rows)
    for name in compare.PROGRAMS:
        row = Row(name, 1, [0.0] * 3, {"tinyprop": [9.0] * 3}, {"tinyprop": [8.0] * 3})
        found[f"programs-{name}"] = Results(MACHINE, {"torch": "2"}, "abc", [], [row])
    folder = tmp_path / "pieces"
    for name, some in found.items():
        some.write(folder / f"{name}.json")
    return folder


@pytest.fixture
def clone(tmp_path):
    """The files of a clone that `publish` writes to."""
    clone = tmp_path / "clone"
    (clone / "benchmarks").mkdir(parents=True)
    (clone / "README.md").write_text(README.read_text())
    return clone


def publish(pieces, clone):
    return main(["publish", "--from", str(pieces), "--into", str(clone)])


def changed(pieces, name, **changes):
    path = pieces / f"{name}.json"
    replace(Results.read(path), **changes).write(path)


def test_page_and_readme_say_the_same(pieces, clone, capsys):
    for _ in range(2):  # it can be written again
        assert publish(pieces, clone) == 0
    readme = (clone / "README.md").read_text()
    page = (clone / "benchmarks/RESULTS.md").read_text()
    row = "| width 1 x 50, NormProp | 100 | 2.00 | 100 | 2.00 | 80 | 2.50 | 9 of 9 |"
    sentence = (
        "tinyprop makes 2.50 times PyTorch's speed on the paper's step; slower on width 0.1 x 50, "
        "NormProp (0.62)."
    )
    for words in (row, sentence):
        assert words in readme.replace("\n", " ")
        assert words in page.replace("\n", " ")
    assert "slower than PyTorch: BatchNorm on 48x32x32 x 16 (0.25)." in page
    assert "width 0.25 x 4, NormProp: 1.25" in page
    assert "import (tinyprop) | 9000 |" in page
    gains = (
        "1.2 times as fast in narrow networks with several images, "
        "1.2 times as fast in narrow networks with one image"
    )
    assert f"two processes were, on X cores of an X: {gains}," in readme.replace("\n", " ")
    steps = r"The time of a training step.*?(?=To train large)"
    processes = r"Compared with two threads.*?(?=Statistics over)"
    written = f"{steps}|{processes}"
    assert re.sub(written, "", readme, flags=re.S) == re.sub(
        written, "", README.read_text(), flags=re.S
    )


def test_a_readme_without_the_table_is_refused(pieces, clone, capsys):
    (clone / "README.md").write_text("no table")
    assert publish(pieces, clone) == 1
    assert "0 tables" in capsys.readouterr().err
    assert list((clone / "benchmarks").iterdir()) == []


def test_a_readme_without_the_paragraph_on_processes_is_refused(pieces, clone, capsys):
    text = README.read_text().replace("Compared with two threads, two", "Two")
    (clone / "README.md").write_text(text)
    assert publish(pieces, clone) == 1
    assert "0 paragraphs" in capsys.readouterr().err
    assert (clone / "README.md").read_text() == text
    assert list((clone / "benchmarks").iterdir()) == []


def refused(pieces, clone, capsys, *words):
    before = (clone / "README.md").read_text()
    assert publish(pieces, clone) == 1
    said = capsys.readouterr()
    assert said.out == ""
    for word in words:
        assert word in said.err
    assert list((clone / "benchmarks").iterdir()) == []
    assert (clone / "README.md").read_text() == before


def test_pieces_that_are_missing_are_named_with_their_command(pieces, clone, capsys):
    (pieces / "steps-0.25x4.json").unlink()
    (pieces / "programs-verify.json").unlink()
    refused(
        pieces,
        clone,
        capsys,
        "no results of 0.25x4, verify",
        "python -m benchmarks steps --rows 0.25x4",
        "python -m benchmarks programs --rows verify",
    )


@pytest.mark.parametrize("part", ["sources", "versions", "machine"])
def test_pieces_of_different_sources_are_not_put_together(pieces, clone, capsys, part):
    other = {"sources": "def", "versions": {"torch": "3"}, "machine": {**MACHINE, "cpu": "Y"}}
    changed(pieces, "layers-1", **{part: other[part]})
    refused(pieces, clone, capsys, f"pieces with different {part}")


@pytest.mark.parametrize(
    ("others", "word"), [(0.2, "in 0 of 9 rounds other programs were quiet"), (None, "Linux")]
)
def test_a_busy_machine_publishes_nothing(pieces, clone, capsys, others, word):
    rows = [made_up("steps", case.name, others=others) for case in steps()["0.1x50"]]
    changed(pieces, "steps-0.1x50", rows=rows)
    refused(pieces, clone, capsys, word)


def test_a_few_quiet_rounds_are_not_enough(pieces, clone, capsys):
    rows = [made_up("steps", case.name, rounds=6) for case in steps()["0.1x50"]]
    changed(pieces, "steps-0.1x50", rows=rows)
    refused(pieces, clone, capsys, "in 6 of 6 rounds", "at least 7 count")
