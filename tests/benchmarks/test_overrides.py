"""What a step costs without each override: the right entries leave the table, and come back."""

import pytest

import tinyprop as tp
from benchmarks import overrides
from benchmarks.__main__ import main
from benchmarks.cases import Case
from benchmarks.overrides import Pair, grouped, row, used_by, without
from benchmarks.workers import Seconds
from tests.conftest import needs_overrides
from tinyprop.engine.overrides import table

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
    cells = row("some", group, [Pair(0.2, 0.1), Pair(0.1, 0.3), Pair(0.1, 0.2)])
    rules = dict.fromkeys(entry.rule.__qualname__ for entry in group)
    assert cells == ["some", ", ".join(rules), "100", "200", "2.000", "0.50-3.00"]


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
@pytest.mark.parametrize("norm", ["normprop", "batch"])
def test_the_command_has_a_row_for_each_override_of_the_step(norm, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.workers.LEAST_SECONDS", 0.0)
    options = ["--width", "0.05", "--batch", "2", "--repeats", "1", "--norm", norm]
    assert main(["overrides", *options, "--threads", "1"]) == 0
    said = capsys.readouterr().out
    case = Case("", norm=norm, width=0.05, batch=2)
    work, _ = overrides.Tinyprop(1).job(case)
    names = used_by(work)
    assert len(names) > 5
    rows = [line.split()[0] for line in said.splitlines()[3:]]
    assert rows[: len(names) + 1] == [overrides.NOTHING, *names]
