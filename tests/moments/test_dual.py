"""Dual activations: an independent quadrature, laws, functions, refusals."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained
from tinyprop.functional.special import erfc
from tinyprop.moments import dual, gaussian
from tinyprop.moments.hermite import coefficients

PARAMS = {"prelu": {"a": 0.3}, "elu": {"alpha": 0.7}}
NAMES = list(tp.activations)
KINKS = {"hardtanh": (-1.0, 1.0)}

means = st.floats(-3.0, 3.0)
stds = st.floats(-2.0, 1.5).map(math.exp)
inside = st.floats(-1.0, 1.0)
near_one = st.tuples(st.sampled_from([-1.0, 1.0]), st.floats(0.0, 12.0)).map(
    lambda x: x[0] * (1.0 - 10.0 ** -x[1])
)
rhos = inside | near_one | st.sampled_from([-1.0, 0.0, 1.0])


def function(name):
    return (
        (lambda u: u)
        if name == "identity"
        else lambda u: getattr(F, name)(u, **PARAMS.get(name, {})).data
    )


def gelu(u):
    """Without the cancellation in 1 + erf(u/sqrt(2)) far below 0, which costs digits there."""
    return u * 0.5 * erfc(-u / math.sqrt(2.0))


def panels(edges, points=20):
    nodes, weights = np.polynomial.legendre.leggauss(points)
    lengths = np.diff(edges)[..., None]
    x = edges[..., :-1, None] + lengths * (nodes + 1.0) / 2.0
    return x, lengths * weights / 2.0 * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def reference(s, kinks, rho, m1, s1, m2, s2):
    """E s(U)s(V) and the covariance, over independent sum and difference of U and V, in units of
    their deviations.

    For a given sum, the integrand is smooth between the kinks of both factors. These integrals are
    smooth functions of the sum, on the scale at which kinks pass through the bulk of the
    difference."""
    a, b, ends = math.sqrt((1.0 + rho) / 2.0), math.sqrt((1.0 - rho) / 2.0), (-12.0, 12.0)
    x, y = [(k - m1) / s1 for k in kinks], [(k - m2) / s2 for k in kinks]
    steps = 2.0 ** np.arange(-3.0, 34.0)
    breaks = [np.linspace(*ends, 49)]
    if a > 1e-6:
        breaks += [z / a + max(b / a, 1e-9) * np.concatenate([-steps, [0.0], steps]) for z in x + y]
        breaks += [[(z + w) / (2.0 * a) for z in x for w in y]]
    p, weight = (z.ravel() for z in panels(np.unique(np.clip(np.concatenate(breaks), *ends))))
    cuts = [np.full_like(p, end) for end in np.linspace(*ends, 17)]
    cuts += [(z - a * p) / max(b, 1e-30) for z in x] + [(a * p - z) / max(b, 1e-30) for z in y]
    total = np.zeros(3)
    edges = np.sort(np.clip(cuts, *ends), axis=0).T  # (sums, cuts)
    for left, right in zip(edges.T[:-1], edges.T[1:], strict=True):
        q, inner = (z[:, 0] for z in panels(np.stack([left, right], axis=1)))
        u, v = s(m1 + s1 * (a * p[:, None] + b * q)), s(m2 + s2 * (a * p[:, None] - b * q))
        total += [float(weight @ (inner * f).sum(axis=1)) for f in (u * v, u, v)]
    return total[0], total[0] - total[1] * total[2]


def assert_agrees(activation, s, places, rho, m1, s1, m2, s2, **params):
    got = dual(activation, rho, (m1, m2), (s1, s2), **params)
    one, other = gaussian(activation, m1, s1, **params), gaussian(activation, m2, s2, **params)
    size = (abs(one.mean) + one.std) * (abs(other.mean) + other.std)
    expected = reference(s, places, rho, m1, s1, m2, s2)
    assert [got.product, got.covariance] == pytest.approx(expected, abs=1e-11 * size, rel=0)
    assert abs(got.covariance) <= one.std * other.std * (1.0 + 1e-11)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=settings().max_examples // 4)
@given(rho=rhos, m1=means, s1=stds, m2=means, s2=stds)
def test_a_dual_equals_an_independent_quadrature(name, rho, m1, s1, m2, s2):
    assert_agrees(
        name, function(name), KINKS.get(name, (0.0,)), rho, m1, s1, m2, s2, **PARAMS.get(name, {})
    )


@pytest.mark.parametrize(
    ("s", "kinks"),
    [
        (lambda u: u**3 - u, ()),
        (lambda u: np.cos(2 * u) + u, ()),
        (lambda u: np.where(u > 0.5, u, -0.3), (0.5,)),
    ],
    ids=["cubic", "cosine", "jump"],
)
@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.3, 1.0 - 1e-7])
def test_a_function_of_the_user(s, kinks, rho):
    assert_agrees(s, s, kinks, rho, 0.3, 0.8, -0.4, 1.3, **({"kinks": kinks} if kinks else {}))


def mish(u):
    return u * np.tanh(np.logaddexp(0.0, u))


@pytest.mark.parametrize(
    ("activation", "m1", "s1", "m2", "s2"),
    [("tanh", 8.1, 0.021, 8.0, 0.17), ("tanh", -8.3, 0.07, -3.7, 2.9), ("tanh", 9.6, 0.1, 9.5, 20)],
)
@pytest.mark.parametrize("rho", [-0.28, 0.999])
def test_a_saturated_unit(activation, m1, s1, m2, s2, rho):
    """Its std is close to the rounding of its values, and its covariance is right to 1e-12 of
    these, whether or not it is far below them."""
    got = dual(activation, rho, (m1, m2), (s1, s2)).covariance
    slopes = [gaussian(activation, m, s) for m, s in ((m1, s1), (m2, s2))]
    assert abs(got) <= slopes[0].std * slopes[1].std + 1e-12
    assert np.sign(got) == np.sign(rho) or abs(got) < 1e-12


def step(u):
    return np.where(u > 0.0, 1.0, 0.0)


FAR_STEPS = [(-10.0, 1.3), (6.0, 0.8), (-5.0, 0.6), (10.0, 1.5), (10.0, 0.5), (-20.0, 3.0)]


@pytest.mark.parametrize("levels", [(0.0, 1.0), (-1.0, 1.0)], ids=["step", "sign"])
def test_a_step_that_is_far_away_is_right_or_refused(levels):
    """Without kinks=, a step in a region that has no probability may be refused; what is returned
    is right, and with kinks= everything is."""
    low, high = levels

    def far_step(u):
        return np.where(u > 0.0, high, low)

    refused = 0
    for mean, std in FAR_STEPS:
        above = 0.5 * math.erfc(-mean / std / math.sqrt(2.0))
        expected = (low + (high - low) * above) ** 2
        named = dual(far_step, 0.5, mean, std, kinks=(0.0,))
        assert named.product - named.covariance == pytest.approx(expected, abs=1e-12)
        try:
            found = dual(far_step, 0.5, mean, std)
        except ValueError:
            refused += 1
            assert_explained(ValueError, lambda m=mean, s=std: dual(far_step, 0.5, m, s), "kinks")
        else:
            assert found.product == pytest.approx(named.product, abs=1e-12)
    assert refused <= 1


# where the reference cuts its panels
PLACES = {"relu": (0.0,), "gelu": (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0), step: (0.0,)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
@settings(max_examples=settings().max_examples // 2)
@given(
    rho=st.floats(-0.999, 0.999),
    m1=st.floats(-10.0, 10.0),
    m2=st.floats(-10.0, 10.0),
    s1=st.floats(math.log(0.01), math.log(20.0)).map(math.exp),
    s2=st.floats(math.log(0.01), math.log(20.0)).map(math.exp),
)
def test_units_that_are_dead_saturated_narrow_or_wide(name, rho, m1, m2, s1, s2):
    """To 1e-12 of sqrt(E s(U)^2 E s(V)^2), but for what is more than 12 standard deviations away,
    which the reference leaves out; a step that is so far away is not refused."""
    places = PLACES[name]
    s = name if callable(name) else function(name)
    if name == "gelu":
        s = gelu
    params = {"kinks": (0.0,)} if callable(name) else {}
    got = dual(name, rho, (m1, m2), (s1, s2), **params)
    product, _ = reference(s, places, rho, m1, s1, m2, s2)
    squares = [reference(s, places, 1.0, m, d, m, d)[0] for m, d in ((m1, s1), (m2, s2))]
    scale = math.sqrt(max(squares[0], 0.0)) * math.sqrt(max(squares[1], 0.0))
    assert abs(got.product - product) <= 1e-12 * scale + 1e-30


SMOOTH = {
    "tanh": np.tanh,
    "sigmoid": lambda u: 0.5 + 0.5 * np.tanh(0.5 * u),
    "silu": lambda u: u * (0.5 + 0.5 * np.tanh(0.5 * u)),
}
# on both sides of each border between a series, smoothing by noise, and two grids
STRONG = [0.85, 0.9, 0.93, 0.97, 0.985, 0.9955, 0.999, 0.9998, 0.99992, 0.9999999, 1.0]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(
    ("laws"),
    [((0.0, 20.0), (0.0, 20.0)), ((-7.0, 9.0), (4.0, 20.0)), ((1.0, 0.02), (-3.0, 15.0))],
    ids=["same", "wide", "narrow and wide"],
)
def test_wide_units_and_strong_correlations(name, laws):
    """Of smooth functions, which need a long series there, or none at all: to 1e-12 of the scale;
    all correlations at once, or one by one."""
    (m1, s1), (m2, s2) = laws
    rho = np.array([-r for r in STRONG[::-1]] + STRONG)
    found = dual(name, rho, (m1, m2), (s1, s2))
    s = SMOOTH[name]
    places = np.arange(-16.0, 17.0, 2.0)
    squares = [reference(s, places, 1.0, m, d, m, d)[0] for m, d in laws]
    scale = math.sqrt(squares[0] * squares[1])
    for i in range(0, len(rho), 3):
        expected, _ = reference(s, places, rho[i], m1, s1, m2, s2)
        assert abs(found.product[i] - expected) <= 1e-12 * scale
    alone = [dual(name, r, (m1, m2), (s1, s2)).covariance for r in rho]
    np.testing.assert_allclose(found.covariance, alone, rtol=0, atol=1e-13 * scale)


def test_what_many_strong_correlations_cost():
    """A hundred duals share their values of the function: 5,000 at a time, where two grids would
    take 200,000 for each correlation."""
    count = 0

    def counted(u):
        nonlocal count
        count += u.size
        return u.tanh()

    wide = tp.Activation(counted, moments=tp.activations["tanh"].moments)
    dual(wide, np.linspace(0.99, 0.999, 100), std=20.0)
    assert 1_000 < count < 100_000


# E s(U) s(V) by mpmath, to 15 digits, for U ~ N(-0.7, 0.6^2), V ~ N(1.3, 2.1^2), rho = 0.9
PRODUCTS = {
    "gelu": 0.006570532436141,
    "tanh": -0.034492395696692,
    "elu": -0.070165496479294,
    "hardtanh": -0.052315471742550,
    mish: -0.034018356489414,
}


@pytest.mark.parametrize("activation", PRODUCTS)
def test_products_to_15_digits(activation):
    found = dual(activation, 0.9, (-0.7, 1.3), (0.6, 2.1)).product
    assert found == pytest.approx(PRODUCTS[activation], abs=2e-15)


def test_many_different_units_of_a_users_function(rng):
    """In time, where the series of some unit does not resolve it: kinks are searched for around
    the units that need it, and not between a narrow Gaussian and a wide one."""
    means = rng.uniform(-10.0, 10.0, (2, 100))
    stds = np.exp(rng.uniform(np.log(0.01), np.log(20.0), (2, 100)))
    rho = rng.uniform(-0.999, 0.999, 100)
    means[:, 0] = -9.2, 3.0  # of which the trapezoidal rule does not see the right end
    stds[:, 0] = 1.65, 0.02
    count = 0

    def counted(u):
        nonlocal count
        count += u.size
        return mish(u)

    found = dual(counted, rho, tuple(means), tuple(stds)).covariance
    assert count < 12_000_000
    for i in range(3):
        alone = dual(mish, rho[i], tuple(means[:, i]), tuple(stds[:, i])).covariance
        assert found[i] == pytest.approx(alone, rel=1e-9)


def test_a_unit_that_does_not_vary():
    """Where its function is 0, nothing tells how large rounding is."""
    found = dual(mish, 0.5, ([0.0, 1.0, 0.0], 0.3), ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0]))
    assert found.covariance[:2].tolist() == [0.0, 0.0]
    assert found.covariance[2] == dual(mish, 0.5, (0.0, 0.3)).covariance


@pytest.mark.parametrize("mean", [-2.0, 0.3, 2.0, 3e10])
def test_lines_of_a_unit_that_does_not_vary(mean):
    """Its mean is the value of the function, on either side of a kink and at it."""

    def floor(u):
        return np.maximum(u, 0.3)

    found = dual(floor, 0.5, mean=(mean, 1.0), std=(0.0, 1.0), kinks=(0.3,))
    expected = floor(mean) * tp.moments.gaussian(floor, 1.0, kinks=(0.3,)).mean
    assert found.covariance == 0.0
    assert found.product == pytest.approx(expected, rel=1e-12)


def test_kinks_of_units_far_apart():
    """A jump that only wide units see, one that both do, and none in between."""

    def jumps(u):
        return np.where(u > 0.3, 1.0, 0.0) + np.where(u > 40.0, u, 0.0)

    means = np.array([0.3, 30.0]), np.array([0.31, 35.0])
    stds = np.array([0.01, 10.0]), np.array([0.02, 12.0])
    got = dual(jumps, 0.4, means, stds).covariance
    known = dual(jumps, 0.4, means, stds, kinks=(0.3, 40.0)).covariance
    np.testing.assert_allclose(got, known, rtol=1e-9)


def test_closed_forms():
    """The arc-cosine kernel of Cho and Saul (2009), and Williams' (1998) of erf."""
    rho = np.linspace(-1.0, 1.0, 9)
    angle = np.arccos(rho)
    arc_cosine = (np.sin(angle) + (math.pi - angle) * rho) / (2.0 * math.pi)
    np.testing.assert_allclose(
        dual("relu", rho, std=(2.0, 3.0)).product, 6.0 * arc_cosine, atol=1e-14
    )
    np.testing.assert_allclose(
        dual("erf", rho).product, 2.0 / math.pi * np.arcsin(2.0 * rho / 3.0), atol=1e-15
    )


def test_shapes():
    assert isinstance(dual("tanh", 0.5).product, float)
    pair = dual("tanh", tp.tensor([[0.1], [0.2]]), (0.0, np.arange(3.0)), 2.0)
    assert pair.covariance.shape == (2, 3)
    assert pair.covariance[1, 2] == dual("tanh", float(np.float32(0.2)), (0.0, 2.0), 2.0).covariance
    assert dual("relu", [0.5, 0.5], std=(0.0, 1.0)).covariance.tolist() == [0.0, 0.0]
    assert dual("prelu", 0.5, a=np.array([0.0, 1.0])).covariance[1] == 0.5


def test_refusals():
    assert_explained(ValueError, lambda: dual("relu", 1.1), "1.1", "-1 <= rho <= 1")
    assert_explained(ValueError, lambda: dual("relu", 0.5, std=(1.0, -1.0)), "std >= 0")
    assert_explained(ValueError, lambda: dual("step", 0.5), "step")
    assert_explained(TypeError, lambda: dual("relu", 0.5, a=0.1), "'a'")
    waves = {"kinks": (0.0,)}
    assert_explained(ValueError, lambda: dual(lambda u: np.sin(300 * abs(u)), 0.5, **waves), "grid")


def test_a_kink_that_is_not_among_those_that_are_named():
    wrong = dual(lambda u: abs(u - 0.1), 0.5, kinks=(0.0,)).covariance
    right = dual(lambda u: abs(u - 0.1), 0.5, kinks=(0.1,)).covariance
    assert wrong == pytest.approx(right, rel=1e-12)


PLACE, WIDTH = 1.2345, 0.002


def spike(u):
    return np.exp(-0.5 * ((u - PLACE) / WIDTH) ** 2)


def spikes_covariance(rho):
    """Of the spike at U and V ~ N(0, 1): both factors are densities, up to a constant."""
    size = 1.0 + WIDTH**2
    mean = WIDTH / math.sqrt(size) * math.exp(-0.5 * PLACE**2 / size)
    area = WIDTH**2 / math.sqrt(size**2 - rho**2)
    return area * math.exp(-(PLACE**2) / (size + rho)) - mean**2


def spike_with_line(rho):
    """Cov(U, spike(V)), by Stein's lemma: rho E spike'."""
    size = 1.0 + WIDTH**2
    mean = WIDTH / math.sqrt(size) * math.exp(-0.5 * PLACE**2 / size)
    return rho * mean * PLACE / size


@pytest.mark.parametrize("rho", [0.5, -0.9, 0.9999, 1.0])
def test_a_spike_that_grids_miss(rho):
    """Between the points at which a function is taken for a line."""
    found = dual(spike, rho).covariance
    assert found == pytest.approx(spikes_covariance(rho), rel=1e-10)
    found = dual(lambda u: u + 10.0 * spike(u), rho).covariance
    expected = rho + 20.0 * spike_with_line(rho) + 100.0 * spikes_covariance(rho)
    assert found == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("kinks", [{}, {"kinks": (0.0,)}], ids=["found", "named"])
def test_a_spike_beside_a_kink(kinks):
    def spiked(u):
        return np.maximum(u, 0.0) + 30.0 * spike(-u)

    found = dual(spiked, [0.5, 1.0], **kinks)
    known = gaussian(spiked)
    assert found.covariance[0] == pytest.approx(0.130502721391, rel=1e-10)
    assert found.covariance[1] == pytest.approx(known.std**2, rel=1e-10)
    np.testing.assert_allclose(found.product - found.covariance, known.mean**2, rtol=1e-10)


@pytest.mark.parametrize("rho", [0.5, -0.9, 0.9999])
@pytest.mark.parametrize("kinks", [(-0.5, 0.5, 1.5), (-0.31, 0.9, 1.1)])
def test_kinks_need_not_be_named(kinks, rho):
    low, middle, high = kinks

    def hat(u):
        rise = (u - low) / (middle - low)
        fall = (high - u) / (high - middle)
        return np.clip(np.minimum(rise, fall), 0.0, 1.0)

    named = dual(hat, rho, 0.2, (1.0, 2.0), kinks=kinks).covariance
    assert dual(hat, rho, 0.2, (1.0, 2.0)).covariance == pytest.approx(named, rel=1e-9, abs=1e-12)


def test_hermite_coefficients_see_the_kink():
    """E[ReLU(m + s Z) Z] = s Phi(m/s), which an integral across the kink misses by 1e-3."""
    (found,) = coefficients(lambda u: np.maximum(u, 0.0), np.array(0.3), np.array(0.7), 1)
    assert found == pytest.approx(0.7 * NormalDist().cdf(0.3 / 0.7), rel=1e-12)


@pytest.mark.parametrize("name", list(tp.activations))
def test_a_constant_has_no_covariance(name):
    """A Gaussian number of standard deviation 0, on either side."""
    for stds in ((0.0, 1.0), (1.0, 0.0)):
        found = tp.moments.dual(name, [0.5, -0.9], mean=(0.3, -0.2), std=stds)
        np.testing.assert_allclose(found.covariance, 0.0, atol=1e-15)
