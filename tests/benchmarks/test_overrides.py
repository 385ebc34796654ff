"""What a step costs without each override: the right entries leave the table, and come back."""

from pathlib import Path

import pytest

import tinyprop as tp
from benchmarks import overrides
from benchmarks.__main__ import main
from benchmarks.overrides import Pair, grouped, row, used_by, without
from benchmarks.trained import programs
from benchmarks.workers import Seconds
from tests.conftest import needs_overrides
from tinyprop.engine.overrides import table
from tinyprop.engine.threads import cores

pytestmark = needs_overrides


def relu_step():
    x = tp.tensor([[-1.0, 2.0]], requires_grad=True)
    x.relu().sum().backward()
    return x.grad.numpy().tolist()


def entries():
    return [str(entry) for entry in tp.overrides()]


def test_the_overrides_that_work_uses_are_found():
    (name,) = used_by(relu_step)
    assert name == "host.relu_gradient"
    assert {name} < grouped().keys()


def test_what_was_used_before_stays_marked():
    used_by(relu_step)
    (entry,) = used_by(relu_step)["host.relu_gradient"]
    used_by(lambda: None)
    assert entry.used


def test_without_an_override_the_rule_computes_and_then_it_is_back():
    before = entries()
    used = used_by(relu_step)["host.relu_gradient"]
    called = []
    original = used[0].function

    def counting(*arguments):
        called.append(arguments)
        return original(*arguments)

    used[0].function = counting
    try:
        expected = relu_step()
        assert len(called) == 1
        with without(used):
            assert len(entries()) == len(before) - 1
            assert relu_step() == expected
            assert len(called) == 1
        relu_step()
        assert len(called) == 2
    finally:
        used[0].function = original
    assert entries() == before


def test_an_override_comes_back_after_an_error():
    before = entries()
    with pytest.raises(KeyError), without(tp.overrides()):
        raise KeyError(*entries())
    assert entries() == before


def test_one_name_may_stand_for_several_rules():
    group = [entry for entries in table["numpy"].values() for entry in entries][:2]
    cells = row("some", group, [{"some": 2.0, "other": 3.0}, {"other": 1.0}])
    rules = dict.fromkeys(entry.rule.__qualname__ for entry in group)
    assert cells == ["some", ", ".join(rules), "2.00", "-"]


def test_a_ratio_is_a_median_of_pairs(monkeypatch):
    """By pairs of with and without: 1, 2 and 6."""
    seconds = iter([1.0, 1.0, 2.0, 1.0, 1.0, 6.0])
    monkeypatch.setattr(overrides.Timer, "seconds", lambda timer: next(seconds))
    monkeypatch.setattr(overrides, "NOTHING", "some")
    timer = overrides.Timer(relu_step, 1, one_thread=True)
    assert overrides.ratios_without(timer, {}, 3) == {"some": 2.0}


def test_pairs_alternate(monkeypatch):
    """Without an override the made-up step takes three times as long, whichever comes first."""
    some = used_by(relu_step)["host.relu_gradient"]
    order = []

    def timed(work, calls):
        missing = any(entry not in tp.overrides() for entry in some)
        order.append(missing)
        return Seconds(clock=9.0, processor=0.3 if missing else 0.1)

    monkeypatch.setattr(overrides, "timed", timed)
    timer = overrides.Timer(relu_step, 1, one_thread=True)
    pairs = [timer.pair(some, without_first) for without_first in (False, True)]
    assert pairs == [Pair(0.1, 0.3)] * 2
    assert order == [False, True, True, False]


@pytest.mark.slow
def test_the_command_writes_a_row_for_each_override_of_a_step(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.workers.LEAST_SECONDS", 0.0)
    (program,) = [one for one in programs() if one.name == "5x5, stride 2 x 16"]
    options = ["--programs", program.name, "--repeats", "1", "--out", str(tmp_path)]
    assert main(["overrides", *options]) == 0
    names = used_by(program.start())
    assert len(names) > 5
    assert "phases.phased" in names
    lines = (tmp_path / "OVERRIDES.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    measured = {cells[0] for cells in rows[2:] if cells[2] != "-"}
    assert measured == {overrides.NOTHING, *names}
    assert "phases.phased" in capsys.readouterr().out


@pytest.mark.slow
def test_every_override_for_numpy_has_a_step_that_uses_it():
    used = set()
    for program in programs():
        used |= used_by(program.start()).keys()
    if min(2, cores()) > 1:  # on one core nothing is shared
        assert used == grouped().keys()


def test_the_page_has_a_line_for_each_override():
    page = Path(overrides.__file__).with_name("OVERRIDES.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    names = {name for name, _, *ratios in rows if set(ratios) != {"-"}}
    assert grouped().keys() <= names
