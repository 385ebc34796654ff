"""The front between forgetting and growing: published and derived numbers, the identity that makes
it a line, laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.theory import Design

SMOOTH = ["tanh", "erf", "gelu", "silu", "softplus", "sigmoid", "elu"]


def points(depth, activation, **options):
    return {point.name: point for point in tp.design(depth, activation, **options)}


def test_relu_at_the_depth_of_the_paper_and_at_50():
    nine, fifty = points(9, "relu"), points(50, "relu")
    # a leaky ReLU forgets less than a ReLU does, and that is 0.85
    assert list(nine) == ["he", "normprop", "shifted"]
    assert [nine["he"].unrelated, nine["he"].gain] == pytest.approx([1 / math.pi, 1.0], abs=1e-12)
    assert nine["he"].forgotten == pytest.approx(0.854809, abs=1e-6)
    assert fifty["he"].forgotten == pytest.approx(0.987862, abs=1e-6)
    assert nine["normprop"].chi == pytest.approx(math.pi / (math.pi - 1), rel=1e-12)
    assert nine["normprop"].growth == pytest.approx(31.46, abs=0.005)
    assert [nine["shifted"].beta, fifty["shifted"].beta] == pytest.approx(
        [1.547268731434, 2.321361342381], abs=1e-10
    )
    assert points(9, "relu", zeta=math.e)["shifted"].beta == pytest.approx(
        1.014027858568, abs=1e-10
    )
    assert fifty["tat"].params["a"] == pytest.approx(0.430522948502, abs=1e-10)
    assert points(100, "relu")["tat"].params["a"] == pytest.approx(0.570439531059, abs=1e-10)
    assert [fifty["tat"].gain, fifty["tat"].forgotten] == pytest.approx([1.0, 0.9], abs=1e-9)


@pytest.mark.parametrize(
    ("depth", "activation", "gamma", "beta"),
    [
        (50, "tanh", 0.1284404785, 0.5707795475),
        (50, "softplus", 0.3266251730, 0.4093739680),
        (50, "silu", 0.1844286133, 0.3488179218),
        (50, "gelu", 0.1213606131, 0.2577426237),
        (9, "tanh", 0.3140554936, 0.6638584844),
        (9, "gelu", 0.2998231531, 0.2441832075),
    ],
)
def test_deep_kernel_shaping(depth, activation, gamma, beta):
    """The parameters that PyPI's dks 0.1.2 gives, to its tolerance of 4e-9."""
    point = points(depth, activation)["dks"]
    assert [point.gamma, abs(point.beta)] == pytest.approx([gamma, beta], abs=2e-8)
    assert [point.growth, point.variance_slope, point.forgotten] == pytest.approx(
        [1.5, 1.0, 0.0], abs=1e-8
    )


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", *SMOOTH])
@settings(max_examples=settings().max_examples // 4)
@given(centering=st.floats(0.0, 1.0), gamma=st.floats(0.2, 2.0), beta=st.floats(-1.0, 1.0))
def test_the_front_is_a_line(activation, centering, gamma, beta):
    """C(0), C'(1) and C(1) = 1 by the C-map itself, and C'(1) + C(0) >= 1, the inequality of
    Poincare."""
    point = Design("", activation, 1, centering, gamma, beta, {})
    assert point.c_map(0.0) == pytest.approx(point.unrelated, abs=1e-12)
    assert point.c_map(1.0) == pytest.approx(1.0, abs=1e-9)
    h = 1e-6  # one-sided: C'(1) - (C(1) - C(1 - h)) / h is of order sqrt(h) for a kink
    assert (1.0 - point.c_map(1.0 - h)) / h == pytest.approx(point.gain, rel=5e-3)
    assert point.gain == pytest.approx(point.chi * (1.0 - point.unrelated))
    assert point.gain + point.unrelated >= 1.0 - 1e-12


@given(beta=st.floats(-1.0, 1.0), centering=st.floats(0.0, 1.0))
def test_the_slope_of_the_variance(beta, centering):
    """E[(Z^2 - 1) o^2] / 2, by Gauss-Hermite quadrature."""
    z, w = np.polynomial.hermite_e.hermegauss(60)
    point = Design("", "softplus", 1, centering, 0.8, beta, {})
    o = (np.logaddexp(0.0, 0.8 * z + beta) - centering * point.c2) / point.c1
    w = w / w.sum()
    assert w @ o**2 == pytest.approx(1.0, abs=1e-9)
    assert point.variance_slope == pytest.approx(w @ ((z**2 - 1) * o**2) / 2, abs=1e-8)


def test_curves():
    he = points(4, "relu")["he"]
    path = he.correlations(0.2)
    assert path[0] == 0.2
    assert path[2] == he.c_map(he.c_map(0.2))
    assert len(path) == 5
    normprop = points(3, "tanh")["normprop"]
    np.testing.assert_allclose(normprop.gradients(), normprop.chi ** np.array([3, 2, 1, 0]))
    np.testing.assert_array_equal(normprop.correlations(0.0), 0.0)


def test_refusals():
    assert_explained(ValueError, lambda: tp.design(0, "relu"), "depth >= 1")
    assert_explained(ValueError, lambda: tp.design(9, "relu", zeta=1.0), "zeta > 1")
    assert_explained(ValueError, lambda: tp.design(9, "step"), "step")
    assert_explained(ValueError, lambda: tp.design(20, lambda u: 0 * u + 3.0), "constant")


@pytest.mark.parametrize("power", [3, 5])
def test_a_power_has_no_point_of_deep_kernel_shaping(power):
    """Only beta / gamma matters to it, and Newton's method runs to gamma = 0."""
    assert list(points(20, lambda u: u**power)) == ["he", "normprop"]


@pytest.mark.slow
def test_lines_have_no_edge_of_chaos():
    for line in ("identity", "hardtanh"):  # the latter only in the limit of a small gamma
        assert list(points(9, line)) == ["he", "normprop"]
