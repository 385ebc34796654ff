"""tools/intervals.py: what it counts, and what it says of intervals that are wrong."""

import sys
from pathlib import Path

import pytest

import tinyprop as tp

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from intervals import Count, collected, contains, is_counted, is_of_chance, report


def result(found, id="X1", seed=0, verdict="holds", **settings):
    """A result of one case, as JSON, with its seed."""
    case = tp.verify.claimed("a mean", 1.0, exact=1.0, measured=found, **settings)
    parts = {"id": id, "seed": seed, "verdict": verdict, "expected": "holds"}
    return {**parts, "cases": [case.to_json()]}


def bar(mean, half_width):
    return tp.verify.Estimate(mean, half_width, 100)


def test_what_is_counted():
    (inside,) = result(bar(1.1, 0.2))["cases"]
    (outside,) = result(bar(1.3, 0.2))["cases"]
    assert contains(inside)
    assert not contains(outside)
    assert Count.of([inside, outside, inside]) == Count(3, 2)
    (exact,) = result(1.0)["cases"]
    assert not is_counted(exact)
    assert not is_counted({**inside, "exact": None})
    (neglects,) = result(bar(1.3, 0.2), tolerance=0.2)["cases"]
    assert contains(neglects)
    assert is_of_chance(inside)
    assert not is_of_chance(neglects)


@pytest.mark.parametrize(("missed", "is_right"), [(0, False), (1, False), (5, True), (12, False)])
def test_too_few_and_too_many_are_told(missed, is_right):
    means = [1.3] * missed + [1.1] * (100 - missed)
    results = [result(bar(mean, 0.2), seed=seed) for seed, mean in enumerate(means)]
    text, right = report(results)
    assert right == is_right
    assert f"| all | 100 | {100 - missed} | {100 - missed:.1f}% |" in text


def test_wide_bars_do_not_make_up_for_wrong_ones():
    """All together contain it in 95 %, those of chance in 90 %."""
    wrong = [result(bar(1.3 if seed < 10 else 1.1, 0.2), seed=seed) for seed in range(100)]
    wide = [result(bar(1.3, 0.2), "X2", seed, tolerance=0.5) for seed in range(100)]
    text, right = report(wrong + wide)
    assert "| all | 200 | 190 | 95.0% |" in text
    assert not right


def test_a_verdict_that_changed_is_told():
    text, right = report([result(bar(1.1, 0.2), seed=7, verdict="unsettled")])
    assert "Verdicts that changed: X1 (seed 7: unsettled)." in text
    assert not right


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch):
    data = tmp_path / "new" / "found.jsonl"
    first = collected(["C12"], range(2), data)
    assert len(data.read_text().splitlines()) == 2
    again = collected(["C06", "C12"], range(2), data)
    assert [(r["seed"], r["id"]) for r in again] == [(0, "C06"), (0, "C12"), (1, "C06"), (1, "C12")]
    assert again[1::2] == first
    assert len(data.read_text().splitlines()) == 4
    monkeypatch.setattr(tp.verify, "run", None)
    assert collected(["C12"], range(2), data) == first
