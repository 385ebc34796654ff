"""The recursion of wide networks, against those that it replaced, by other formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.theory.stacks import COSINES, Stack
from tinyprop.theory.wide import Sites

SAME = 2e-12
NORMS = list(nn.normalizers)


def layer_by_hand(law, state):
    """From the mean square of z and its products to those of the next z, and the gain: the layer of
    a stack, written out."""
    std = math.sqrt(state[0])
    m = tp.moments.gaussian(law.function, law.beta, std)
    rho = np.clip(state[1:] / state[0], -1.0, 1.0)
    products = np.array([covariance_by_hand(law, r, std, m) for r in rho])
    left = 0.0 if law.shift is None else (m.mean - law.shift) ** 2
    arriving = np.append(m.std**2, products) + left
    square = law.square / arriving[0] if law.divides_after else law.square
    return square * arriving, square * m.slope2


def covariance_by_hand(law, rho, std, m):
    """Cov(s(U), s(V)) from sum and difference of U and V, by two trapezoidal sums for a smooth
    function; that of ReLU by the arc-cosine kernel, and of others with kinks by their duals. (Where
    these have none, the result is not compared.)"""
    if law.function.name == "relu" and law.beta == 0.0:
        root = math.sqrt(max(0.0, 1.0 - rho * rho))
        kernel = (root + rho * (math.pi - math.acos(rho))) / (2.0 * math.pi)
        return std**2 * (kernel - 1.0 / (2.0 * math.pi))
    if law.function.dual is not None:
        return tp.moments.dual(law.function, rho, law.beta, std).covariance
    z = np.arange(-9.0, 9.0, 0.1)
    weights = 0.1 * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    a, b = math.sqrt(0.5 + 0.5 * rho), math.sqrt(0.5 - 0.5 * rho)
    u = law.beta + std * (a * z[:, None] + b * z)
    v = law.beta + std * (a * z[:, None] - b * z)
    s = law.function
    product = (s(tp.tensor(u)).numpy() - m.mean) * (s(tp.tensor(v)).numpy() - m.mean)
    return weights @ product @ weights


def normalized_by_hand(law, state):
    if not law.divide:
        return state, 1.0
    if law.divide == "std":
        state = state - state[1]
    square = state[0] / law.gamma**2
    return state / square, square


def theory_by_hand(stack, cosines):
    """States and factors of a stack, by arrays of numbers alone."""
    law = stack.law
    inside = replace(law, divide="rms", gamma=1.0) if stack.scaled else law
    states, factors = [law.start * np.append([1.0, 0.0], cosines)], []
    for _ in range(stack.depth - (not stack.residual)):
        if stack.residual:
            arriving, square = normalized_by_hand(inside, states[-1])
            added, gain = layer_by_hand(law, arriving)
            if stack.is_measured:
                added, measured_square = normalized_by_hand(law, added)
                gain /= measured_square
            states.append(states[-1] + added)
            factors.append(1.0 + gain / square)
        else:
            after, gain = layer_by_hand(law, states[-1])
            state, square = normalized_by_hand(law, after)
            states.append(state)
            factors.append(gain / square)
    return np.array(states), np.array(factors)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("norm", NORMS)
def test_stacks(norm, activation, residual):
    """Every normaliser. A kinked function of tanh has no second formula here: its squares and gains
    are compared, and not its pairs."""
    stack = Stack(norm, activation, 4, 16, 8, residual)
    some = COSINES[::7]
    states, factors = theory_by_hand(stack, some)
    found, gains = stack._theory
    is_known = not stack.law.function.kinks or stack.law.function.dual is not None
    np.testing.assert_allclose(found[:, 0], states[:, 0], rtol=1e-9 if not is_known else SAME)
    if is_known:
        chosen = np.concatenate([found[:, 1:2], found[:, 2:][:, ::7]], axis=1)
        np.testing.assert_allclose(chosen, states[:, 1:], rtol=SAME, atol=SAME * states.max())
    if is_known or stack.divide != "std":
        np.testing.assert_allclose(gains, factors, rtol=SAME if is_known else 1e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "erf"])
def test_propagate_with_random_weights(activation):
    """Two samples of the same length: their mean square and their product, after each layer."""
    tp.manual_seed(0)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(8, 8, bias=False), nn.Activation(activation)]
    net = nn.Sequential(*layers).to(dtype="float64")
    x = np.array([[1.0, 0.0] * 4, [0.6, 0.8] * 4])
    records = tp.propagate(net, data=x, weights="random")
    sites = Sites.at([0.6], 0.5)
    for layer, record in zip(net, records, strict=True):
        if isinstance(layer, nn.Linear):
            sites = sites.weights(float((layer.weight.numpy() ** 2).sum() / 8))
        else:
            sites = sites.activation(activation)
        of_mean = 0.5 * (sites.square + sites.products[0])
        assert record.mean[0] ** 2 == pytest.approx(of_mean, rel=SAME)
        assert record.variance[0] == pytest.approx(sites.square - of_mean, rel=SAME)


def test_recursions_of_claims():
    """He's ReLU network keeps its mean square, and its cosine follows the arc-cosine kernel; with
    tanh, E tanh^2 is iterated; residual blocks of DyT add to the square and multiply the gain."""
    sites = Sites.at([0.3])
    rho = 0.3
    for _ in range(20):
        sites = sites.activation("relu").weights(2.0)
        rho = (math.sqrt(1 - rho * rho) + rho * (math.pi - math.acos(rho))) / math.pi
        assert sites.square == pytest.approx(1.0, rel=SAME)
        assert sites.gain == pytest.approx(1.0, rel=SAME)
        assert sites.cosines[0] == pytest.approx(rho, rel=SAME)
    square = gain = 1.0
    sites = Sites.at([0.3])
    for _ in range(20):
        m = tp.moments.gaussian("tanh", 0.0, math.sqrt(square))
        square, gain = m.std**2, gain * m.slope2
        sites = sites.activation("tanh").weights(1.0)
    assert (sites.square, sites.gain) == pytest.approx((square, gain), rel=SAME)
    square = gain = 1.0
    for _ in range(12):
        m = tp.moments.gaussian("tanh", 0.0, 0.5 * math.sqrt(square))
        square, gain = square + m.std**2, gain * (1.0 + 0.25 * m.slope2)
    assert tp.theory.gains.tanh_residual(12) == pytest.approx((square, gain), rel=SAME)


@pytest.mark.parametrize("gamma", [1.0, 1 / 1.21])
def test_the_paper_s_recursion(gamma):
    """The variance of a unit and the square of its mean, with the constants of ReLU."""
    c2 = 1.0 / math.sqrt(2.0 * math.pi)
    c1 = math.sqrt(0.5 - c2 * c2)
    q, k = gamma**2, 0.0
    found = tp.verify.closed_forms.depth_recursion(gamma, 30).T
    for row in found:
        assert row == pytest.approx((q - k, k), rel=SAME, abs=SAME)
        rho = min(1.0, k / q)
        root = math.sqrt(1 - rho * rho)
        kernel = (root + rho * (math.pi - math.acos(rho))) / (2.0 * math.pi)
        center = -2.0 * c2 * c2 * math.sqrt(q) + c2 * c2
        q, k = (gamma / c1) ** 2 * (q / 2 + center), (gamma / c1) ** 2 * (q * kernel + center)
