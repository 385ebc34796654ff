"""Intervals cover what they should, by simulation."""

import math

import numpy as np
import pytest

from tinyprop.report.estimate import Estimate


def crossed(rng, samples, seeds, images, of_seed, of_image, of_both):
    """Differences (samples, seeds, images) about 0, with these standard deviations."""
    parts = ((of_seed, (seeds, 1)), (of_image, (1, images)), (of_both, (seeds, images)))
    return sum(scale * rng.standard_normal((samples, *shape)) for scale, shape in parts)


def test_the_closed_form_is_what_a_crossed_bootstrap_finds(rng):
    values = crossed(rng, 1, 8, 50, 3.0, 4.0, 6.0)[0]
    seeds, images = (rng.multinomial(n, [1 / n] * n, size=20_000) for n in values.shape)
    means = ((seeds @ values) * images).sum(axis=1) / values.size
    # n - 1 in place of n
    between = values.mean(axis=1).var(ddof=1) / 8 - values.mean(axis=1).var() / 8
    assert Estimate.crossed(values).standard_error == pytest.approx(
        math.sqrt(means.var() + between), rel=0.02
    )


@pytest.mark.parametrize(
    ("of_seed", "of_image", "of_both"), [(1.5, 0, 0), (1.5, 20, 40), (0.5, 30, 40), (0, 30, 0)]
)
def test_intervals_cover_the_truth(of_seed, of_image, of_both, rng):
    """Of new seeds on new images, in at least 95 % of the samples: four binomial errors are 1 in
    30,000."""
    samples, seeds = 1000, 6
    found = [
        Estimate.crossed(values)
        for values in crossed(rng, samples, seeds, 400, of_seed, of_image, of_both)
    ]
    covered = sum(estimate.low < 0.0 < estimate.high for estimate in found)
    assert covered > 0.95 * samples - 4 * math.sqrt(samples * 0.05 * 0.95)
    assert np.median([estimate.standard_error for estimate in found]) < 1.5 * math.hypot(
        of_seed / seeds**0.5, of_image / 20, of_both / (20 * seeds**0.5)
    )


def test_a_prediction_interval_covers_new_values(rng):
    places = np.column_stack([np.ones(6), rng.standard_normal((6, 2))])
    new, weights, covered = np.array([1.0, 0.2, 0.2]), np.array([-3.0, 1.0, 0.5]), 0
    for _ in range(500):
        found = Estimate.predicted(places, places @ weights + rng.standard_normal(6), new)
        covered += abs(found.mean - new @ weights - rng.standard_normal()) < found.half_width
    assert abs(covered - 475) < 4 * math.sqrt(500 * 0.05 * 0.95)
    assert not Estimate.predicted(places[:3], [1.0, 2.0, 3.0], new).n, (
        "no number of degrees of freedom is left"
    )
    assert not Estimate.predicted(np.ones((6, 3)), np.arange(6.0), new).n, "all at one place"
