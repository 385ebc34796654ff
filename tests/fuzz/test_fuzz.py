"""The fuzzer as a test: known cases, then others from a fixed seed; and tests of the fuzzer."""

import sys
from itertools import islice

import numpy as np
import pytest

from tinyprop.functional.table import functions

from . import __main__ as command
from . import programs
from .case import Case, bit_difference, difference, laid_out
from .kinds import KINDS, Kind
from .runner import available, check, draw, known_cases, run, seeds

SEED = 0
QUICK = [name for name, kind in KINDS.items() if kind.quick]


def assert_agreement(kind, count):
    findings = []
    for seed in (*known_cases(kind), *islice(seeds(SEED), count)):
        finding = check(kind, seed)
        if finding is not None:
            findings.append(str(finding))
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("name", QUICK)
def test_a_few_cases(name):
    assert_agreement(KINDS[name], KINDS[name].quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_cases(name):
    if KINDS[name].needs_torch:
        pytest.importorskip("torch")
    assert_agreement(KINDS[name], KINDS[name].cases)


# -- the fuzzer itself


@pytest.mark.parametrize("name", QUICK)
def test_a_seed_is_a_case(name):
    kind = KINDS[name]
    one, again, other = (draw(kind, seed).words for seed in (5, 5, 6))
    assert one == again != other


def planted(rng):
    """Wrong in every second case, on average."""
    x = rng.standard_normal(3)
    wrong = x + 0.1 * rng.integers(0, 2)
    return Case("x + 0", lambda: difference("the sum", wrong, x, 1e-9))


def broken(rng):
    return Case("1 / 0", lambda: str(1 // 0))


def test_a_disagreement_is_printed_and_the_fuzzer_goes_on(monkeypatch, capsys, tmp_path):
    for name, function in (("planted", planted), ("broken", broken)):
        monkeypatch.setitem(KINDS, name, Kind(name, "", function, 1, needs_torch=False))
    page = tmp_path / "page.md"
    options = ["--seconds", "0.2", "--kind", "planted", "--kind", "broken"]
    monkeypatch.setattr(sys, "argv", ["fuzz", *options, "--markdown", str(page)])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "python -m tests.fuzz --kind planted --case " in printed
    assert "x + 0" in printed
    assert "but should be" in printed
    assert "ZeroDivisionError" in printed
    assert "| planted | " in page.read_text()
    tallies = run([KINDS["planted"]], 0.1, 0, lambda finding: None)
    assert 0 < tallies["planted"].disagreements < tallies["planted"].cases


def test_one_case_again(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kind", "moments", "--case", "3"])
    assert command.main() == 0
    assert "moments." in capsys.readouterr().out


def test_without_torch_its_kinds_are_left_out(monkeypatch):
    monkeypatch.setattr("tests.fuzz.runner.find_spec", lambda name: None)
    assert [kind.name for kind in available(KINDS.values())] == [
        name for name, kind in KINDS.items() if not kind.needs_torch
    ]


def test_known_cases_are_of_known_kinds():
    assert all(isinstance(seed, int) for kind in KINDS.values() for seed in known_cases(kind))


def test_every_function_of_the_table_is_drawn():
    assert functions.keys() == (programs.DRAWERS.keys() - {"index"}) | programs.ELSEWHERE
    assert not programs.DRAWERS.keys() & programs.ELSEWHERE


def test_a_layout_changes_no_value(rng):
    x = rng.standard_normal((2, 3, 4, 5))
    for _ in range(20):
        np.testing.assert_array_equal(laid_out(rng, x), x)


def test_differences():
    """NaN and infinities count, and so do bits."""
    x = np.array([1.0, np.nan, np.inf])
    assert difference("x", x, x, 0.0) is None
    assert "2 of 3 differ" in difference("x", x, np.array([1.0, 0.0, -np.inf]), 1.0)
    assert "shape" in difference("x", x, x[:1], 1.0)
    assert bit_difference({"x": x}, {"x": x.copy()}) is None
    assert "zeros" in bit_difference({"x": np.array(0.0)}, {"x": np.array(-0.0)})
    assert "float32" in bit_difference({"x": x}, {"x": x.astype("float32")})
