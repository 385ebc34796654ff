"""Means, intervals and what follows from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyprop.experiments.statistics import above, difference, in_words, interval, rounded
from tinyprop.experiments.table import between, median_interval

numbers = st.floats(-100, 100).map(lambda x: round(x, 3))
runs = st.lists(numbers, min_size=2, max_size=8)


def test_students_interval_of_three_runs():
    found = interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2.0
    assert found["reach"] == pytest.approx(4.302652730 / math.sqrt(3), rel=1e-8)  # t of 2 degrees of freedom, 97.5 %


def test_one_run_has_no_interval_and_none_no_mean():
    assert interval([4.0]) == {"mean": 4.0, "reach": None, "runs": 1}
    assert interval([])["mean"] is None
    assert difference({0: 1.0}, {0: 2.0})["sign"] == 0
    assert not above(interval([4.0]), 3.0)


@given(runs, numbers, st.floats(0.1, 10))
def test_an_interval_moves_and_stretches_with_the_runs(values, shift, scale):
    before, after = interval(values), interval([scale * value + shift for value in values])
    assert after["mean"] == pytest.approx(scale * before["mean"] + shift, abs=1e-9)
    assert after["reach"] == pytest.approx(scale * before["reach"], abs=1e-9)


@given(runs, runs)
def test_a_difference_turns_around_with_its_sides(ours, theirs):
    a, b = dict(enumerate(ours)), dict(enumerate(theirs))
    there, back = difference(a, b), difference(b, a)
    assert there["mean"] == pytest.approx(-back["mean"])
    assert there["sign"] == -back["sign"]
    assert there["runs"] == min(len(ours), len(theirs)), "only seeds that both have"


@given(runs, st.floats(0.01, 50))
def test_what_all_seeds_share_is_seen_whatever_their_spread(values, gap):
    """The differences are paired: a constant gap is clear though the runs themselves scatter."""
    a = dict(enumerate(values))
    b = {seed: value + gap for seed, value in a.items()}
    found = difference(a, b)
    assert found["mean"] == pytest.approx(-gap)
    assert found["reach"] == pytest.approx(0.0, abs=1e-9)
    assert found["sign"] == -1


def test_a_scatter_around_0_cannot_tell():
    assert difference({0: 1.0, 1: -1.0, 2: 0.1}, {0: 0.0, 1: 0.0, 2: 0.0})["sign"] == 0


@given(st.integers(6, 200))
def test_the_interval_of_a_median_is_the_narrowest_that_suffices(count):
    low, high = median_interval(count)
    assert low + high == count - 1
    assert between(count, low) >= 0.95
    assert low + 1 > count // 2 or between(count, low + 1) < 0.95


def test_words_and_rounding():
    assert in_words({"mean": -1.26, "reach": 0.34, "runs": 3}, " points", sign=True) == "-1.3 ± 0.3 points"
    assert in_words({"mean": 2.0, "reach": None, "runs": 1}) == "2.0"
    assert in_words(interval([])) == "no run"
    once = rounded({1: (1 / 3, math.nan), "b": [True, None, "x"]})
    assert once == {"1": [0.333333, None], "b": [True, None, "x"]}
    assert rounded(once) == once
