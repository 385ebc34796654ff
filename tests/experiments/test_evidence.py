"""Verdict rules: what they say, and how often they are wrong, by simulation."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import sampled
from tinyprop.experiments import evidence
from tinyprop.experiments.evidence import (
    ACCURACY,
    LARGEST_RATE,
    LEVEL,
    LOSS,
    Comparison,
    compared,
    first_verdict,
    judged,
)
from tinyprop.report.estimate import Estimate

RULES = ("better", "alike", "at_least_as_good")
NO_MARGIN = replace(ACCURACY, margin=0.0)


def comparison(differences, measure=ACCURACY):
    return compared(
        measure, dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)
    )


def verdicts(found):
    return {rule: getattr(found, rule)() for rule in RULES}


@given(st.floats(-5, 5), st.floats(0.01, 3), st.sampled_from([ACCURACY, LOSS]))
def test_one_interval_never_contradicts_itself(mean, half, measure):
    """Three differences, so that the interval is about mean ± 4.3 half."""
    ours = comparison([mean - half * math.sqrt(3), mean, mean + half * math.sqrt(3)], measure)
    theirs = comparison([half * math.sqrt(3) - mean, -mean, -half * math.sqrt(3) - mean], measure)
    swapped = {"better": "worse", "worse": "better"}
    assert theirs.outcome == swapped.get(ours.outcome, ours.outcome)
    found = verdicts(ours)
    assert found["alike"] == theirs.alike()
    assert not (found["better"] and theirs.better())
    assert found["at_least_as_good"] or not (found["better"] or found["alike"])
    assert found["at_least_as_good"] is not False or theirs.better()


def test_whole_numbers_that_are_equal_for_all_seeds_decide_nothing():
    """A fair coin falls on the same side four times once in eight times."""
    assert set(verdicts(comparison([1.0] * 4, LARGEST_RATE)).values()) == {None}
    assert comparison([1.0] * 11 + [2.0], LARGEST_RATE).better()


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
    # Student's t of two values
    two = [(low + high) / 2 + sign * (high - low) / 2 / 12.7062 for sign in (-1, 1)]
    # a loss is better below
    for values, measure in ((two, ACCURACY), ([-0.03 * v for v in two], LOSS)):
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
    found = compared(ACCURACY, *values, diverged)
    assert found.outcome == outcome
    assert found.better() is {"better": True, "worse": False}.get(outcome)
    assert (outcome in str(found)) == any(diverged), "what has no interval has no outcome"


def test_only_seeds_that_both_have_are_compared():
    found = compared(ACCURACY, {0: 2.0, 1: 3.0, 7: 99.0}, {1: 1.0, 0: 1.0, 5: -99.0}).difference
    assert (found.mean, found.n) == (1.5, 2)


def test_images_are_part_of_the_interval():
    """Two settings that differ on a few of few images, in the same way for all seeds."""
    ours = {seed: np.repeat([100.0, 0.0], [55, 45]) for seed in range(6)}
    theirs = {seed: np.repeat([100.0, 0.0], [50, 50]) for seed in range(6)}
    found = compared(ACCURACY, ours, theirs)
    assert found.difference.mean == pytest.approx(5.0)
    assert found.difference.standard_error == pytest.approx(100 * math.sqrt(0.05 * 0.95 / 100))
    assert compared(ACCURACY, ours, dict.fromkeys(ours, 10.0)).difference.mean == pytest.approx(
        45.0
    )


@pytest.mark.parametrize("seeds", [12, 24])
def test_what_so_many_seeds_find_is_found_in_four_of_five(seeds, rng):
    found = Comparison(NO_MARGIN, Estimate.from_error(0.0, 1.5 / math.sqrt(seeds), seeds))
    samples = found.detectable(LEVEL) + 1.5 * rng.standard_normal((1000, seeds))
    better = [comparison(values, NO_MARGIN).better() is True for values in samples.tolist()]
    # t is nearly normal
    assert abs(np.mean(better) - evidence.POWER) < 4 * math.sqrt(0.2 * 0.8 / 1000) + 0.01


# -- looks and families

PLANNED = (24, 24, 24, 24, 16, 16, 16, 12, 12, 12, 12, 12)  # about as registered: 12 claims
FAMILY = [  # each at the edge, where no verdict is right
    (Comparison.better, NO_MARGIN, 0.0),
    (Comparison.alike, ACCURACY, 1.0),
    (Comparison.alike, ACCURACY, -1.0),
    (Comparison.at_least_as_good, ACCURACY, -1.0),
] * 3


def simulated(rng, samples, family=FAMILY, planned=PLANNED, effect=(), shared=0.5, spread=1.5):
    """Rules and looks of each sample of a family of claims, all of whose settings share a
    control."""
    means = np.array([edge for _, _, edge in family])
    means[: len(effect)] = effect
    values = math.sqrt(1.0 - shared) * rng.standard_normal((samples, len(family), max(planned)))
    values = means[:, None] + spread * (
        values + math.sqrt(shared) * rng.standard_normal((samples, 1, max(planned)))
    )
    at = {n: values[..., :n] for n in {n for most in planned for n in evidence.looks(most)}}
    at = {
        n: (part.mean(axis=-1).tolist(), (part.std(axis=-1, ddof=1) / n**0.5).tolist())
        for n, part in at.items()
    }

    def claim(i, j):
        rule, measure, _ = family[j]
        return rule, [
            (
                n / planned[j],
                [Comparison(measure, Estimate.from_error(at[n][0][i][j], at[n][1][i][j], n))],
            )
            for n in evidence.looks(planned[j])
        ]

    return [[claim(i, j) for j in range(len(family))] for i in range(samples)]


def most(samples, probability=LEVEL):
    """Four binomial standard deviations: 1 in 30,000."""
    return samples * probability + 4 * math.sqrt(samples * probability * (1 - probability))


@pytest.mark.parametrize(
    "samples", [500, pytest.param(len(sampled(range(20_000), 4000)), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("shared", [0.0, 0.5])
@pytest.mark.parametrize("effect", [(), (6.0, 8.0, 8.0, 6.0)], ids=["no effects", "four effects"])
def test_any_verdict_of_a_family_is_wrong_in_at_most_five_percent(samples, shared, effect, rng):
    """With three looks. Claims with an effect are decided, and leave their share of the level to
    the others."""
    rows = simulated(rng, samples, effect=effect, shared=shared)
    found = [
        evidence.holm([partial(first_verdict, *claim) for claim in row], len(row)) for row in rows
    ]
    wrong = sum(any(verdict is not None for verdict in row[len(effect) :]) for row in found)
    assert 0.2 * LEVEL * samples < wrong < most(samples)
    if effect:
        assert np.mean([row[:4] == [True, False, False, True] for row in found]) > 0.99


@pytest.mark.parametrize(
    "samples", [2000, pytest.param(len(sampled(range(50_000), 10_000)), marks=pytest.mark.slow)]
)
def test_one_claim_is_wrongly_judged_in_at_most_five_percent(samples, rng):
    """Over all its looks: nearly all of the level is used, and without O'Brien and Fleming it would
    be exceeded."""
    claims = [claim for (claim,) in simulated(rng, samples, FAMILY[:1], (24,))]
    assert (
        0.7 * LEVEL * samples
        < sum(first_verdict(*claim, LEVEL) is not None for claim in claims)
        < most(samples)
    )
    naive = sum(any(judged(rule, look[1], LEVEL) is not None for look in at) for rule, at in claims)
    assert naive > most(samples)


def test_looks_spend_the_level_and_no_more():
    used = []
    assert (
        first_verdict(
            lambda _, level: used.append(level), [(n / 24, [None]) for n in evidence.LOOKS], LEVEL
        )
        is None
    )
    by_look = used[::2]  # each comparison is asked twice: whether it fails, and whether it holds
    assert by_look == used[1::2]
    assert sum(by_look) == pytest.approx(LEVEL)
    assert by_look == sorted(by_look)


def test_a_claim_holds_for_all_and_fails_for_one():
    good, open_, bad = (
        Comparison(ACCURACY, Estimate.from_error(mean, 0.5, 24)) for mean in (3.0, 0.5, -3.0)
    )
    assert judged(Comparison.better, [good, good], LEVEL) is True
    assert judged(Comparison.better, [good, open_], LEVEL) is None
    assert judged(Comparison.better, [good, open_, bad], LEVEL) is False
    # in one of 1,000 it would be found by chance
    barely = Comparison(ACCURACY, Estimate.from_error(-1.2, 0.5, 24))
    assert judged(Comparison.better, [barely], LEVEL) is False
    assert judged(Comparison.better, [barely, *[good] * 9], LEVEL) is None


def test_holm_gives_the_share_of_decided_claims_to_the_others():
    needs = [0.05 / 12, 0.05 / 11, 0.05 / 9]
    judges = [lambda level, need=need: True if level >= need else None for need in needs]
    assert evidence.holm(judges, 12) == [True, True, None]


@pytest.mark.parametrize(("planned", "effect"), [(24, 1.9), (16, 2.3), (12, 2.8)])
def test_planned_seeds_find_such_a_difference(planned, effect, rng):
    """In four of five samples, first of the family, with a deviation of 1.5 points, as in the first
    paired runs."""
    claims = [claim for (claim,) in simulated(rng, 500, FAMILY[:1], (planned,), [effect])]
    assert np.mean([first_verdict(*claim, LEVEL / 12) is True for claim in claims]) > 0.8


def test_deviations_tell_which_of_two_settings_varies_less(rng):
    def better(factor):
        ours, theirs = (
            evidence.deviations(dict(enumerate(s * rng.standard_normal(24)))) for s in (1.0, factor)
        )
        return compared(LOSS, ours, theirs).better() is True

    assert sum(better(1.0) for _ in range(300)) < 300 * 0.025 + 4 * math.sqrt(300 * 0.025)
    assert sum(better(3.0) for _ in range(300)) > 0.9 * 300


def test_roughness_sees_noise_and_no_trend(rng):
    steps = np.arange(40) + 0.5
    smooth = 2.3 - 0.4 * np.log(steps) + 0.03 * np.log(steps) ** 2
    assert evidence.roughness(smooth) == pytest.approx(0.0, abs=1e-9)
    noise = [evidence.roughness(smooth + 0.05 * rng.standard_normal(40)) for _ in range(200)]
    assert np.mean(np.square(noise)) == pytest.approx(0.05**2, rel=0.1)
