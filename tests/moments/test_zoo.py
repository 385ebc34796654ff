"""No moment of any function is wrong without a word: see zoo.py."""

import math

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, leaf, quick_only
from tinyprop.engine.arrays import array_module, to_backend, to_numpy
from tinyprop.moments import function as kept
from tinyprop.moments import gaussian, panels
from tinyprop.moments.function import of_function

from .zoo import (
    BENT,
    FALSE_REFUSALS,
    JUMPING,
    REFUSED,
    RIGHT,
    ROUGH,
    SMOOTH,
    Entry,
    around,
    reference,
)

OF_REFERENCE = 2e-13  # the error of the reference itself
OF_SLOPES = 1e-6  # it takes slopes from differences
FIELDS = ("mean", "std", "slope2", "jacobian_factor")


def assert_covered(entry, mean, std, got):
    exact_mean, exact_std, slope2 = reference(entry, mean, std)
    allowed = got.error + OF_REFERENCE * (1.0 + abs(exact_mean) / exact_std)
    assert got.error <= 1e-6
    assert abs(got.mean - exact_mean) / exact_std <= allowed
    assert abs(got.std / exact_std - 1.0) <= allowed
    if math.isfinite(got.slope2) and got.slope_error < 1.0:
        assert got.slope2 == pytest.approx(slope2, rel=got.slope_error + OF_SLOPES)
        factor = std * math.sqrt(slope2) / exact_std
        assert got.jacobian_factor == pytest.approx(factor, rel=got.slope_error + OF_SLOPES)


@pytest.mark.parametrize("name", quick_only(list(RIGHT)[::3], RIGHT))
def test_right(name):
    entry = RIGHT[name]
    for mean, std in entry.settings:
        got = gaussian(entry.function, mean, std)
        assert_covered(entry, mean, std, got)
        if name in SMOOTH or name in BENT:
            assert got.slope_error < 1e-6 or got.slope2 < 1e-270
            assert math.isfinite(got.jacobian_factor)
        elif name in JUMPING:
            assert got.slope2 == got.jacobian_factor == math.inf
        elif name in ROUGH:
            assert math.isnan(got.slope2) or got.slope_error < 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, words = REFUSED[name]
    errors = (ValueError, TypeError)
    assert_explained(errors, lambda: gaussian(function), words)


@pytest.mark.slow
@pytest.mark.parametrize("name", FALSE_REFUSALS)
def test_refused_although_it_has_moments(name):
    assert_explained(ValueError, lambda: gaussian(FALSE_REFUSALS[name]), "u =")


def test_constants():
    for function in (
        lambda u: 3.0,
        lambda u: 3,
        lambda u: np.full_like(u, 3.0),
        lambda u: u * 0 + 3,
    ):
        got = gaussian(function, [0.0, 5.0], [1.0, 0.2])
        for field, value in zip(FIELDS, (3.0, 0.0, 0.0, 1.0), strict=True):
            assert getattr(got, field).tolist() == [value, value]
        assert got.error.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["nested", "quantised tanh", "mish", "log1p", "snake"])
def test_wrong_kinks_do_no_harm(name):
    entry = RIGHT[name]
    for kinks in ((0.123,), (1e9, -50.0), tuple(entry.breaks), tuple(entry.breaks)[1:], [math.nan]):
        assert_covered(entry, 0.7, 0.4, gaussian(entry.function, 0.7, 0.4, kinks=kinks))


def test_a_spike_is_found_wherever_it_is():
    """A spike of a ten-thousandth of a standard deviation is not missed."""
    for place in np.random.default_rng(0).uniform(-2.0, 2.0, 20):

        def spike(u, place=place):
            return np.tanh(u) + 5.0 * np.exp(-0.5 * ((u - place) / 1e-4) ** 2)

        got = gaussian(spike)
        entry = Entry(spike, around(place, 1e-4, 40), width=1e-4)
        exact_mean, exact_std, _ = reference(entry, 0.0, 1.0)
        assert abs(got.mean - exact_mean) < 1e-11
        assert abs(got.std - exact_std) < 1e-11


def test_the_error_follows_the_rounding_of_the_function():
    for offset in (1e3, 1e6, 1e8):
        got = gaussian(lambda u, offset=offset: offset + np.tanh(u))
        true = abs(got.std / gaussian("tanh").std - 1.0)
        assert true <= got.error <= 1e-13 * offset
        assert got.error >= 1e-17 * offset


def test_scales_do_not_matter():
    plain = gaussian(np.tanh, 0.3, 0.8)
    for scale in (1e-200, 1e200):
        got = gaussian(lambda u, scale=scale: scale * np.tanh(u), 0.3, 0.8)
        assert got.mean / scale == pytest.approx(plain.mean, rel=1e-13)
        assert got.std / scale == pytest.approx(plain.std, rel=1e-13)
        assert got.jacobian_factor == pytest.approx(plain.jacobian_factor, rel=1e-12)
        assert got.slope_error == math.inf  # 1e+-400 is no float64


def test_many_elements_at_once(backend):
    """Elements that need panels of their own, and some that share them, in any order."""
    rng = np.random.default_rng(3)
    mean = np.concatenate([rng.normal(0.0, 3.0, 40), [0.0, 1e3, -40.0, 0.0]])
    std = np.concatenate([np.exp(rng.uniform(-4.0, 3.0, 40)), [1e-5, 2.0, 1.0, 0.0]])
    got = gaussian(
        lambda u: array_module(u).maximum(u, 0.1 * u) + 0.5,
        *(to_backend(x.reshape(4, 11), backend) for x in (mean, std)),
    )
    exact = gaussian("leaky_relu", mean, std, a=0.1)
    assert got.mean.shape == got.error.shape == (4, 11)
    out_mean, out_std = (to_numpy(x).ravel() for x in (got.mean, got.std))
    size = np.where(exact.std > 0, exact.std, 1.0)
    error = to_numpy(got.error).ravel()
    assert (abs(out_mean - 0.5 - exact.mean) <= (error + 1e-11) * size).all()
    assert (abs(out_std - exact.std) <= (error + 1e-11) * size).all()
    assert (error[:40] <= 1e-11).all()
    assert gaussian(np.tanh, np.zeros((0, 3))).mean.shape == (0, 3)


def test_std_of_zero_and_narrow_ones():
    at_a_point = gaussian(np.tanh, [1.0, 0.0, -1e5], 0.0)
    assert at_a_point.mean.tolist() == np.tanh([1.0, 0.0, -1e5]).tolist()
    assert at_a_point.std.tolist() == [0.0, 0.0, 0.0]
    assert at_a_point.jacobian_factor.tolist() == [1.0, 1.0, 1.0]
    narrow = gaussian(np.tanh, 1.0, 1e-12)
    assert narrow.std == pytest.approx(1e-12 / math.cosh(1.0) ** 2, rel=narrow.error)
    assert narrow.error < 1e-6
    # a line at no scale
    assert_explained(ValueError, lambda: gaussian(lambda u: abs(u - 1.0), 1.0, 1e-12), "not a line")


@pytest.mark.parametrize("kinks", [(), (0.3,)])
def test_a_jump_is_no_line_however_often_it_is_asked_for(kinks):
    """The second time, panels are known: they were once used without looking at the error, which
    is 1.6 here."""
    step = lambda u: (u > 0.3) * 1.0  # noqa: E731
    for std in (1e-10, 1e-10, 1e-30):
        assert_explained(
            ValueError, lambda s=std: gaussian(step, 0.3, s, kinks=kinks), "not a line"
        )
    assert gaussian(step, 0.3, 0.0, kinks=kinks).std == 0.0


def test_a_function_of_arrays_is_differentiable_in_mean_and_std():
    points = [np.array([-0.4, 0.8]), np.array([1.0, 0.5])]
    for field in FIELDS:
        tp.check_gradients(
            lambda m, s, f=field: getattr(gaussian(lambda u: np.tanh(to_numpy(u)), m, s), f),
            *points,
            order=2,
        )
    mean = leaf([0.3])
    got, exact = gaussian(lambda u: np.maximum(u, 0.0), mean), gaussian("relu", mean)
    assert tp.grad(got.mean, mean)[0].item() == pytest.approx(tp.grad(exact.mean, mean)[0].item())


def test_gradients_flow_to_captured_tensors(backend):
    mean = leaf([0.2, -0.5], backend)

    def with_a_kink_that_moves(a):
        got = gaussian(lambda u: F.tanh(a * u) + F.relu(u - a), mean, 0.8)
        return got.mean + 2.0 * got.std

    def with_slopes(a):
        return gaussian(lambda u: F.tanh(a * u) + a * F.relu(u), mean, 0.8).jacobian_factor

    a = to_backend(np.array(0.7), backend)
    tp.check_gradients(with_a_kink_that_moves, a, order=1)
    tp.check_gradients(with_slopes, a)


def test_parameters_may_differ_by_element(backend):
    slopes, mean = np.array([0.1, 0.5, -0.3]), np.array([0.0, 0.4, -1.0])
    a, m = leaf(slopes, backend), leaf(mean, backend)
    s = leaf([1.0, 0.7, 1.3], backend)

    def leaky(u, a):
        return F.where(u > 0, u, a * u)

    got = of_function(leaky, (), m, s, {"a": a})
    exact = gaussian("prelu", m, s, a=a)
    np.testing.assert_allclose(got.std.numpy(), exact.std.numpy(), rtol=1e-12)
    np.testing.assert_allclose(got.mean.numpy(), exact.mean.numpy(), rtol=1e-12)
    for x, y in zip(
        tp.grad(got.std.sum(), [m, s, a]), tp.grad(exact.std.sum(), [m, s, a]), strict=True
    ):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-10, atol=1e-12)


class Counted:
    """A function that counts the numbers it was called for."""

    def __init__(self, scale=1.0):
        self.count = 0
        self.scale = scale

    def __call__(self, u):
        self.count += u.size
        return F.silu(u * self.scale)


def test_panels_are_kept_while_mean_and_std_stay_in_range():
    function = Counted()
    rng = np.random.default_rng(0)
    mean, std = rng.normal(1.0, 0.1, 256), rng.normal(1.0, 0.1, 256)
    gaussian(function, leaf(mean), leaf(std))
    first = function.count
    for _ in range(5):
        mean, std = mean + 0.01 * rng.normal(size=256), std * np.exp(0.01 * rng.normal(size=256))
        function.count = 0
        got = gaussian(function, leaf(mean), leaf(std))
        assert function.count < first / 20
        assert function.count < 2000  # whatever the number of elements
        exact = gaussian("silu", mean, std)
        np.testing.assert_allclose(got.mean.numpy(), exact.mean, rtol=1e-11)
        np.testing.assert_allclose(got.std.numpy(), exact.std, rtol=1e-11)
        assert (got.error.numpy() < 1e-10).all()
    gaussian(function, leaf(mean), leaf(0.2 * std))
    assert function.count > first / 20  # out of their range


def test_a_function_that_changes_gets_new_panels():
    function = Counted()
    for scale in (1.0, 1.01, 1.5, 40.0, 3000.0):
        function.scale = scale
        got, exact = gaussian(function, 0.2, 0.9), gaussian("silu", 0.2 * scale, 0.9 * scale)
        assert abs(got.std / exact.std - 1.0) <= got.error + 1e-11
        assert abs(got.mean - exact.mean) / exact.std <= got.error + 1e-11
    a = tp.tensor(0.5, requires_grad=True)

    def threshold(u):
        return F.relu(u - a)

    for value in (0.5, 0.5001, 0.53, 0.9):
        a.data[...] = value
        got, exact = gaussian(threshold), gaussian("relu", -float(a.data))
        assert abs(got.std / exact.std - 1.0) <= got.error + 1e-11
        assert got.error < 1e-9


def test_another_function_in_the_same_place_is_searched_anew():
    class Switched:
        on = False

        def __call__(self, u):
            spike = 5.0 * np.exp(-0.5 * ((u - 0.8765) / 2e-4) ** 2)
            return 2.0 * np.tanh(u) + spike if self.on else np.tanh(u)

    function = Switched()
    gaussian(function)
    function.on = True
    got, fresh = gaussian(function), gaussian(lambda u: function(u))
    assert got.std == pytest.approx(fresh.std, rel=1e-12)


def test_panels_of_a_function_are_forgotten_with_it():
    def function(u):
        return np.tanh(u)

    before = len(kept._kept)
    gaussian(function)
    assert len(kept._kept) == before + 1
    del function
    assert len(kept._kept) == before


def test_float32_results_say_so():
    mean = tp.tensor([100.0, 0.0])
    for activation in ("tanh", "softplus", lambda u: F.softplus(u) + 5.0):
        got = gaussian(activation, mean, 0.5)
        assert got.error.dtype == np.float32
        assert not got.error.requires_grad
        exact = gaussian(activation, mean.numpy().astype(np.float64), 0.5)
        off = abs(got.mean.numpy() - exact.mean) / exact.std
        assert (off <= got.error.numpy()).all()


def test_few_panels_are_left_after_the_search():
    smooth = panels.choose(lambda u: np.tanh(u)[None], np.zeros(1), np.ones(1), (), 1, 2e-16)
    bent = panels.choose(
        lambda u: np.maximum(u - 0.1234, 0.0)[None], np.zeros(1), np.ones(1), (), 1, 2e-16
    )
    assert smooth.count < 40
    assert bent.count < 45
    assert bent.cuts == pytest.approx([0.1234], abs=1e-9)
