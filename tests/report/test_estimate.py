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
    of_seeds = values.mean(axis=1)
    correction = of_seeds.var(ddof=1) / 8 - of_seeds.var() / 8  # for n - 1 in place of n
    expected = math.sqrt(means.var() + correction)
    assert Estimate.crossed(values).standard_error == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("of_seed", "of_image", "of_both"), [(1.5, 0, 0), (1.5, 20, 40), (0.5, 30, 40), (0, 30, 0)]
)
def test_intervals_cover_the_truth(of_seed, of_image, of_both, rng):
    """Of new seeds on new images, in at least 95 % of the samples: four binomial errors are 1 in
    30,000."""
    samples, seeds = 1000, 6
    draws = crossed(rng, samples, seeds, 400, of_seed, of_image, of_both)
    estimates = [Estimate.crossed(values) for values in draws]
    covered = sum(estimate.low < 0.0 < estimate.high for estimate in estimates)
    assert covered > 0.95 * samples - 4 * math.sqrt(samples * 0.05 * 0.95)
    typical = np.median([estimate.standard_error for estimate in estimates])
    true = math.hypot(of_seed / seeds**0.5, of_image / 20, of_both / (20 * seeds**0.5))
    assert typical < 1.5 * true


def test_a_prediction_interval_covers_new_values(rng):
    places = np.column_stack([np.ones(6), rng.standard_normal((6, 2))])
    new = np.array([1.0, 0.2, 0.2])
    weights = np.array([-3.0, 1.0, 0.5])
    covered = 0
    for _ in range(500):
        values = places @ weights + rng.standard_normal(6)
        prediction = Estimate.predicted(places, values, new)
        new_value = new @ weights + rng.standard_normal()
        covered += abs(prediction.mean - new_value) < prediction.half_width
    assert abs(covered - 475) < 4 * math.sqrt(500 * 0.05 * 0.95)
    no_freedom = Estimate.predicted(places[:3], [1.0, 2.0, 3.0], new)
    assert no_freedom.n == 0
    all_at_one_place = Estimate.predicted(np.ones((6, 3)), np.arange(6.0), new)
    assert all_at_one_place.n == 0
