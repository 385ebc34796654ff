"""Verdict rules: what they say, and how often they are wrong, by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyprop.experiments.evidence import ACCURACY, LOSS, Comparison, deviations, roughness

RULES = ("better", "alike", "at_least_as_good")


def comparison(differences, measure=ACCURACY, diverged=(0, 0)):
    return Comparison(measure, dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0), diverged)


def verdicts(found):
    return {rule: getattr(found, rule)() for rule in RULES}


@given(st.floats(-5, 5), st.floats(0.01, 3), st.sampled_from([ACCURACY, LOSS]))
def test_one_interval_never_contradicts_itself(mean, half, measure):
    """Three differences, so that the interval is about mean ± 4.3 half."""
    ours = comparison([mean - half * math.sqrt(3), mean, mean + half * math.sqrt(3)], measure)
    theirs = Comparison(measure, ours.theirs, ours.ours)
    swapped = {"better": "worse", "worse": "better"}
    assert theirs.outcome == swapped.get(ours.outcome, ours.outcome)
    found = verdicts(ours)
    assert found["alike"] == theirs.alike()
    assert not (found["better"] and theirs.better())
    assert found["at_least_as_good"] or not (found["better"] or found["alike"])
    assert found["at_least_as_good"] is not False or theirs.better()


@pytest.mark.parametrize(
    ("low", "high", "outcome", "expected"),
    [
        (1.2, 1.8, "better", (True, False, True)),
        (0.2, 0.8, "better", (True, True, True)),
        (-0.5, 0.6, "alike", (False, True, True)),
        (-0.5, 1.6, "cannot tell", (None, None, True)),
        (-1.5, 0.5, "cannot tell", (None, None, None)),
        (-0.8, -0.2, "worse", (False, True, True)),
        (-1.5, -0.2, "worse", (False, None, None)),
        (-2.0, -1.5, "worse", (False, False, False)),
    ],
)
def test_better_alike_and_at_least_as_good(low, high, outcome, expected):
    two = [(low + high) / 2 + sign * (high - low) / 2 / 12.7062 for sign in (-1, 1)]  # Student's t of two values
    for values, measure in ((two, ACCURACY), ([-0.03 * v for v in two], LOSS)):  # a loss is better below
        found = comparison(values, measure)
        assert found.outcome == outcome
        assert tuple(verdicts(found).values()) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "diverged", "outcome"),
    [
        (3, 0, (0, 3), "better"),
        (0, 3, (3, 0), "worse"),
        (3, 2, (0, 1), "cannot tell"),  # survivors are a biased sample
        (2, 0, (1, 3), "cannot tell"),
        (0, 0, (3, 3), "cannot tell"),
        (0, 0, (0, 3), "cannot tell"),  # ours was not run
        (0, 3, (0, 0), "cannot tell"),
        (1, 1, (0, 0), "cannot tell"),  # one seed has no spread
    ],
)
def test_runs_that_diverged_or_are_missing(ours, theirs, diverged, outcome):
    values = [dict.fromkeys(range(count), value) for count, value in ((ours, 80.0), (theirs, 20.0))]
    found = Comparison(ACCURACY, *values, diverged)
    assert found.outcome == outcome
    assert found.better() is {"better": True, "worse": False}.get(outcome)
    assert outcome in str(found)


def test_only_seeds_that_both_have_are_compared():
    found = Comparison(ACCURACY, {0: 2.0, 1: 3.0, 7: 99.0}, {1: 1.0, 0: 1.0, 5: -99.0}).difference
    assert (found.mean, found.n) == (1.5, 2)


SAMPLES = 2000


def simulated(mean, seeds, rng, spread=1.0):
    return [comparison(row) for row in mean + spread * rng.standard_normal((SAMPLES, seeds))]


@pytest.mark.parametrize("seeds", [4, 12])
def test_verdicts_are_wrong_in_at_most_five_percent(seeds, rng):
    """At the edge of what a rule excludes. Binomial errors of four standard deviations: 1 in 15,000 for each."""
    most = SAMPLES * 0.05 + 4 * math.sqrt(SAMPLES * 0.05 * 0.95)
    null = simulated(0.0, seeds, rng)
    assert sum(c.outcome in ("better", "worse") for c in null) == pytest.approx(
        SAMPLES * 0.05, abs=most - SAMPLES * 0.05
    )
    edge = simulated(-ACCURACY.margin, seeds, rng, spread=0.5)
    assert sum(c.alike() is True for c in edge) < most / 2 + SAMPLES * 0.01, "one side of the interval is enough"
    assert sum(c.at_least_as_good() is True for c in edge) < most
    assert sum(c.at_least_as_good() is False for c in edge) < most


def test_planned_seeds_find_a_difference_of_two_points(rng):
    """With a standard deviation of 1.5 points between paired runs, as in the first runs at laptop scale."""
    assert sum(c.better() is True for c in simulated(2.0, 24, rng, spread=1.5)) > 0.99 * SAMPLES
    assert sum(c.alike() is True for c in simulated(0.0, 24, rng, spread=1.5)) > 0.7 * SAMPLES


def test_deviations_tell_which_of_two_settings_varies_less(rng):
    found = []
    for factor in (1.0, 3.0):
        values = [dict(enumerate(s * rng.standard_normal(24))) for s in [1.0, factor] * 300]
        pairs = zip(values[::2], values[1::2], strict=True)
        found.append(sum(Comparison(LOSS, deviations(a), deviations(b)).better() is True for a, b in pairs))
    assert found[0] < 300 * 0.025 + 4 * math.sqrt(300 * 0.025)
    assert found[1] > 0.9 * 300


def test_roughness_sees_noise_and_no_trend(rng):
    steps = np.arange(40) + 0.5
    smooth = 2.3 - 0.4 * np.log(steps) + 0.03 * np.log(steps) ** 2
    assert roughness(smooth) == pytest.approx(0.0, abs=1e-9)
    noise = [roughness(smooth + 0.05 * rng.standard_normal(40)) for _ in range(200)]
    assert np.mean(np.square(noise)) == pytest.approx(0.05**2, rel=0.1)
