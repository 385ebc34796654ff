"""Streaming estimates: merged as if all samples were there at once, honest, the same on every run,
and fast."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop.verify import Sampler, Tally, each
from tinyprop.verify.monte_carlo import TASK


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_merging_is_the_tally_of_everything(sizes, quantities, seed):
    random = np.random.default_rng(seed)
    blocks = [
        random.gamma(2.0, size=(quantities, n)) + 10.0 * random.standard_normal() for n in sizes
    ]
    merged, whole = (
        Tally.merged([Tally.of(b) for b in blocks]),
        Tally.of(np.concatenate(blocks, axis=1)),
    )
    assert merged.count == whole.count
    for name in ("means", "products", "cubes", "fourths"):
        got, want = getattr(merged, name), getattr(whole, name)
        np.testing.assert_allclose(
            got, want, rtol=1e-9, atol=1e-9 * abs(whole.fourths).max(), err_msg=name
        )


def test_nothing_cancels_far_from_the_origin():
    random = np.random.default_rng(0)
    x = random.standard_normal(100_000)
    far = Tally.merged([Tally.of(part + 1e8) for part in np.split(x, 100)])
    assert far.variance().mean == pytest.approx(x.var(ddof=1), rel=1e-6)
    assert far.variance().standard_error == pytest.approx(
        Tally.of(x).variance().standard_error, rel=1e-6
    )


def test_moments_agree_with_numpy():
    x = np.random.default_rng(1).exponential(size=(2, 5000))
    tally = Tally.of(x)
    np.testing.assert_allclose(tally.covariance(), np.cov(x))
    assert tally.mean(1).mean == pytest.approx(x[1].mean())
    assert tally.mean(1).standard_error == pytest.approx(x[1].std(ddof=1) / 5000**0.5)
    assert tally.fourths[0] == pytest.approx(((x[0] - x[0].mean()) ** 4).sum())
    assert tally.function(lambda m: m[0] * m[1]).mean == pytest.approx(x[0].mean() * x[1].mean())


def test_the_error_of_a_variance_comes_from_the_fourth_moment():
    """Over 2000 repetitions; the standard deviation of 2000 numbers is known to 5 % at 3 standard
    errors."""
    random, n = np.random.default_rng(2), 500
    estimates = [Tally.of(random.exponential(size=n)).variance() for _ in range(2000)]
    scatter = np.std([e.mean for e in estimates])
    exact = ((9.0 - 1.0) / n) ** 0.5  # fourth central moment 9, variance 1
    assert scatter == pytest.approx(exact, rel=0.1)
    assert np.sqrt(np.mean([e.standard_error**2 for e in estimates])) == pytest.approx(
        scatter, rel=0.15
    )


def test_the_delta_method_uses_the_covariance():
    """The ratio of two nearly equal quantities is far more certain than either."""
    random = np.random.default_rng(3)
    x = 5.0 + random.standard_normal(10_000)
    tally = Tally.of(np.stack([x, x + 0.01 * random.standard_normal(10_000)]))
    ratio = tally.function(lambda m: m[1] / m[0])
    assert ratio.standard_error == pytest.approx(0.01 / 5.0 / 100, rel=0.1)


def normals(random, count):
    return random.standard_normal(count, np.float32)


def test_the_answer_depends_on_seed_and_name_not_on_threads():
    tallies = [
        Sampler(seed=5, threads=t).tally("x", normals, samples=3 * TASK + 17) for t in (1, 2, 5)
    ]
    assert {t.count for t in tallies} == {3 * TASK + 17}
    assert len({t.mean().mean for t in tallies}) == len({t.fourths[0] for t in tallies}) == 1
    others = [
        Sampler(seed=seed).tally(name, normals, samples=1000)
        for name, seed in (("a", 0), ("b", 0), ("a", 1))
    ]
    assert len({t.mean().mean for t in others}) == 3


def test_until_stops_at_the_error_asked_for():
    tally = Sampler(until=1e-3).tally("x", normals, samples=1000)
    assert tally.mean().standard_error <= 1e-3
    assert tally.count < 2 * 10**6  # 10^6 are needed
    watched = Sampler(until=2e-3).tally("x", normals, samples=1000, watch=Tally.variance)
    assert watched.variance().standard_error <= 2e-3


def test_expensive_samples_are_fewer():
    assert Sampler(samples=50_000).tally("x", normals, samples=7, cost=1000).count == 50
    assert Sampler(samples=2000).tally("x", normals, samples=7, cost=1000).count == 8
    assert Sampler().tally("x", normals, samples=7, cost=1000).count == 7


def exponentials(random, count):
    z = random.standard_normal(count)
    return {"exp": np.exp(z), "z": z, "square": z * z}


KNOWN = {"z": 0.0, "square": 1.0}


def test_known_expectations_take_chance_away():
    """E exp(Z) = sqrt(e). Its residual on 1, Z and Z^2 has the variance e^2 - e - e - e/2."""
    tally = Sampler(seed=3).tally("x", exponentials, 40_000)
    better = tally.given(KNOWN)
    assert better.names == ("exp",)
    expected = np.sqrt((np.e**2 - 2.5 * np.e) / 40_000)
    assert better.mean("exp").standard_error == pytest.approx(expected, rel=0.1)
    assert better.mean("exp").standard_error < 0.4 * tally.mean("exp").standard_error
    assert abs(better.mean("exp").mean - np.sqrt(np.e)) < 5 * expected
    twice = better.function(lambda mean: 2.0 * mean["exp"])
    assert twice.standard_error == pytest.approx(2.0 * better.mean("exp").standard_error)
    assert np.isnan(better.variance("exp").half_width)  # unknown, and not 0


@pytest.mark.parametrize("count", [12, 200])
def test_errors_beside_known_expectations_are_honest(count):
    """Of 2000 intervals of normal residuals, 1900 are to contain the mean: 5 deviations are 49."""
    random = np.random.default_rng(count)
    missed = 0
    for _ in range(2000):
        z, noise = random.standard_normal((2, count))
        tally = Tally.of({"y": 3.0 * z + noise, "z": z, "other": random.standard_normal(count)})
        found = tally.given({"z": 0.0, "other": 0.0}).mean("y")
        missed += not found.low <= 0.0 <= found.high
    assert abs(missed - 100) < 49


def test_a_wrong_known_expectation_makes_a_wrong_mean():
    tally = Sampler(seed=3).tally("x", exponentials, 40_000)
    wrong = tally.given({"z": 0.1}).mean("exp")
    assert abs(wrong.mean - np.sqrt(np.e)) > 10 * wrong.standard_error
    with pytest.raises(ValueError, match="no quantity 'zz'"):
        tally.given({"zz": 0.0})


def test_memory_does_not_grow():
    def peak(samples):
        tracemalloc.start()
        Sampler(threads=1).tally("x", normals, samples)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1000)
    assert peak(20 * TASK) < peak(TASK) + 200_000


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"until": 0.0}, {"until": -1.0}])
def test_no_samples_are_refused(wrong):
    with pytest.raises(ValueError, match="rule: it is a number above 0"):
        Sampler(**wrong)


def test_a_failing_draw_is_heard_of():
    def draw(random, count):
        raise RuntimeError("no samples today")

    with pytest.raises(RuntimeError, match="no samples today"):
        Sampler().tally("x", draw, samples=10 * TASK)


def test_samples_stay_as_they_are():
    """A draw may return what it goes on to use."""
    data = np.arange(1000.0)
    tally = Sampler().tally("data", lambda random, count: data[:count], 5000, block=1000)
    assert tally.mean().mean == pytest.approx(499.5)
    assert data[0] == 0.0


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint32, np.float16])
def test_samples_of_any_real_dtype(dtype):
    whole = np.random.default_rng(0).integers(2, size=5000)
    assert Tally.of(whole.astype(dtype)).mean() == Tally.of(whole.astype(float)).mean()
    large = Tally.of(np.full(5000, 100).astype(dtype) if dtype is not bool else whole == whole)
    assert large.mean().mean == (1.0 if dtype is bool else 100.0)


def test_samples_that_are_no_numbers_are_refused():
    for wrong in (1j * np.ones(3), np.array(["a"] * 3), np.array([None] * 3)):
        with pytest.raises(tp.ShapeError, match="rule: samples are real numbers"):
            Tally.of(wrong)


def test_single_samples_have_the_same_quantities():
    draw = each(lambda random: {"a": 1.0} if random.random() < 0.5 else {"b": 1.0})
    with pytest.raises(tp.ShapeError, match="rule: each sample has the same quantities"):
        draw(np.random.default_rng(0), 20)
