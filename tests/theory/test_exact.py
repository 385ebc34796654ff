"""What propagate calls exact, against nested quadrature that shares nothing with it: to 1e-9."""

import itertools
import math

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn

EXACT = 1e-9
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def panels(places, low=-10.0, high=10.0, length=0.25):
    """Gauss-Legendre nodes and weights for N(0, 1), cut at these places."""
    count = round((high - low) / length)
    inside = [place for place in places if low < place < high]
    edges = np.unique([*np.linspace(low, high, count + 1), *inside])
    middle = 0.5 * (edges[1:] + edges[:-1])
    half = 0.5 * np.diff(edges)
    z = (middle[:, None] + half[:, None] * NODES).ravel()
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return z, (half[:, None] * WEIGHTS).ravel() * density


def covariance_of(function, kinks, mean, matrix):
    """Of a function of two Gaussian numbers: first, both variances and the covariance."""
    std = np.sqrt(np.diag(matrix))
    rho = matrix[0, 1] / std.prod()
    rest = math.sqrt(1.0 - rho * rho)
    moments = []
    for m, s in zip(mean, std, strict=True):
        z, w = panels([(kink - m) / s for kink in kinks])
        y = function(m + s * z)
        moments.append((w @ y, w @ (y - w @ y) ** 2))
    z, w = panels([(kink - mean[0]) / std[0] for kink in kinks])
    first = function(mean[0] + std[0] * z) - moments[0][0]
    inner = np.empty_like(z)
    for i, here in enumerate(z):
        center = mean[1] + std[1] * rho * here
        x, v = panels([(kink - center) / (std[1] * rest) for kink in kinks])
        inner[i] = v @ function(center + std[1] * rest * x)
    return moments, w @ (first * inner)


def hidden_units():
    """Two units of two Gaussian inputs: their weights, mean and covariance."""
    weight = np.array([[0.9, -0.4], [0.7, 0.8]])
    bias = np.array([0.2, -0.3])
    matrix = np.array([[1.3, 0.4], [0.4, 0.8]])
    return weight, bias, matrix, weight @ matrix @ weight.T


FUNCTIONS = {
    **{name: ([], lambda name=name: [nn.Activation(name)]) for name in tp.activations},
    "relu": ([0.0], lambda: [nn.ReLU()]),
    "leaky_relu": ([0.0], lambda: [nn.LeakyReLU(0.2)]),
    "prelu": ([0.0], lambda: [nn.PReLU(1)]),
    "abs": ([0.0], lambda: [nn.Activation("abs")]),
    "elu": ([0.0], lambda: [nn.ELU(0.7)]),
    "selu": ([0.0], lambda: [nn.Activation("selu")]),
    "hardtanh": ([-1.0, 1.0], lambda: [nn.Activation("hardtanh")]),
    "dyt, relu": ([0.0], lambda: [nn.DyT(2, 0.8), nn.ReLU()]),
    "dyt, gelu": ([], lambda: [nn.DyT(2), nn.GELU()]),
    "derf, relu": ([0.0], lambda: [nn.Derf(2), nn.ReLU()]),
    "derf, tanh": ([], lambda: [nn.Derf(2), nn.Tanh()]),
    "dyt, hardtanh": (
        [-math.atanh(0.5), math.atanh(0.5)],
        lambda: [nn.DyT(2, 1.0), nn.Scale(2.0), nn.Activation("hardtanh")],
    ),
    "tanh, batch norm, relu": (None, lambda: [nn.Tanh(), batch_norm(), nn.ReLU()]),
}


def batch_norm():
    """Of the same mean and variance for both units, so that they have the same function."""
    norm = nn.BatchNorm(2).eval()
    norm.running_mean.data[...] = 0.3
    norm.running_var.data[...] = 0.5
    return norm


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_layers_with_a_function_between_them(name):
    """w^T C w, with C by nested quadrature."""
    kinks, layers = FUNCTIONS[name]
    kinks = [math.atanh(0.3)] if kinks is None else kinks
    weight, bias, matrix, before = hidden_units()
    net = nn.Sequential(nn.Linear(2, 2), *layers(), nn.Linear(2, 1, bias=False)).to(dtype="float64")
    net[0].weight.data[...] = weight
    net[0].bias.data[...] = bias
    net[-1].weight.data[...] = [[1.0, -0.8]]
    records = tp.propagate(net, np.zeros(2), matrix)

    def function(u):
        for layer in net[1:-1]:
            u = layer(tp.tensor(np.stack([u, u], axis=1))).numpy()[:, 0]
        return u

    moments, covariance = covariance_of(function, kinks, bias, before)
    (m1, v1), (m2, v2) = moments
    hidden, last = records[-2:]
    assert [record.exact for record in records] == [True] * len(records)
    np.testing.assert_allclose(hidden.mean, [m1, m2], rtol=EXACT, atol=1e-12)
    np.testing.assert_allclose(hidden.variance, [v1, v2], rtol=EXACT)
    expected = v1 + 0.64 * v2 - 1.6 * covariance
    np.testing.assert_allclose(last.variance, expected, rtol=EXACT)
    np.testing.assert_allclose(last.mean, m1 - 0.8 * m2, rtol=EXACT, atol=1e-12)


def test_a_series_that_is_cut_is_seen(monkeypatch):
    """With a dozen terms, the test above fails by orders of magnitude."""
    monkeypatch.setattr(tp.theory.mixture.Mixture, "is_precise", False)
    with pytest.raises(AssertionError):
        test_two_layers_with_a_function_between_them("erf")


def of_a_plane(function, mean, matrix):
    """Mean and second moments of a vector function of two Gaussian numbers."""
    root = np.linalg.cholesky(matrix)
    z, w = panels([], length=0.2)
    total = 0.0
    squares = 0.0
    for x, v in zip(z, w, strict=True):
        points = mean + np.stack([np.full_like(z, x), z], axis=1) @ root.T
        y = function(points)
        total = total + v * (w @ y)
        squares = squares + v * ((w[:, None] * y).T @ y)
    return total, squares


@pytest.mark.parametrize("mean", [(0.0, 0.0), (0.7, -0.4)])
def test_rms_norm(mean):
    matrix = np.array([[1.3, 0.5], [0.5, 0.6]])
    net = nn.Sequential(nn.RMSNorm(2, eps=0.3), nn.Linear(2, 1, bias=False)).to(dtype="float64")
    net[1].weight.data[...] = [[1.0, -2.0]]

    def function(u):
        return u / np.sqrt((u**2).mean(axis=1, keepdims=True) + 0.3)

    total, squares = of_a_plane(function, np.array(mean), matrix)
    covariance = squares - np.outer(total, total)
    norm, last = tp.propagate(net, mean, matrix)
    assert norm.exact
    assert last.exact
    np.testing.assert_allclose(norm.mean, total, rtol=EXACT, atol=1e-12)
    np.testing.assert_allclose(norm.variance, np.diag(covariance), rtol=EXACT)
    w = net[1].weight.data[0]
    np.testing.assert_allclose(last.variance, w @ covariance @ w, rtol=EXACT)


@pytest.mark.parametrize("groups", [1, 2])
def test_layer_and_group_norm(groups):
    """Of three values, without their mean: two Gaussian numbers, in a basis of that plane."""
    rng = np.random.default_rng(0)
    size = 3 * groups
    root = rng.normal(size=(size, size))
    mean = rng.normal(size=size)
    matrix = root @ root.T / size
    basis = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)

    def function(p):
        return p @ basis / np.sqrt((p**2).sum(axis=1, keepdims=True) / 3 + 0.3)

    norm = nn.LayerNorm(3, eps=0.3) if groups == 1 else nn.GroupNorm(2, 6, eps=0.3)
    net = nn.Sequential(norm, nn.Linear(size, 1)).to(dtype="float64")
    record, after = tp.propagate(net, mean, matrix)
    assert record.exact
    assert after.exact
    for some in np.split(np.arange(size), groups):
        own = matrix[np.ix_(some, some)]
        total, squares = of_a_plane(function, basis @ mean[some], basis @ own @ basis.T)
        np.testing.assert_allclose(record.mean[some], total, rtol=EXACT, atol=1e-12)
        np.testing.assert_allclose(record.variance[some], np.diag(squares) - total**2, rtol=EXACT)


@pytest.mark.parametrize("eps", [0.3, 0.05])
def test_a_linear_layer_after_groups(eps):
    """A GroupNorm of pairs of values leaves +-d / sqrt(d^2 + eps) of their half difference d: the
    covariance of two pairs is an integral over a plane."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    mean = rng.normal(size=6)
    matrix = root @ root.T / 6
    net = nn.Sequential(nn.GroupNorm(3, 6, eps=eps), nn.Linear(6, 2)).to(dtype="float64")
    w = net[1].weight.data
    half = 0.5 * np.kron(np.eye(3), [1.0, -1.0])
    differences = half @ mean
    own = half @ matrix @ half.T

    def function(d):
        return d / np.sqrt(d**2 + eps)

    expected = np.zeros((3, 3))
    means = np.zeros(3)
    for i, j in itertools.product(range(3), repeat=2):
        if i != j:
            some = [i, j]
            total, squares = of_a_plane(function, differences[some], own[np.ix_(some, some)])
            expected[some, some] = np.diag(squares) - total**2
            expected[i, j] = squares[0, 1] - total[0] * total[1]
            means[i] = total[0]
    signs = np.kron(np.eye(3), [[1.0], [-1.0]])  # (values, groups)
    _, after = tp.propagate(net, mean, matrix)
    assert after.exact
    v = w @ signs
    np.testing.assert_allclose(after.variance, np.diag(v @ expected @ v.T), rtol=EXACT)
    np.testing.assert_allclose(after.mean, v @ means + net[1].bias.data, rtol=EXACT)


def test_groups_that_are_too_many_are_not_called_exact():
    net = nn.Sequential(nn.GroupNorm(20, 40), nn.Linear(40, 1))
    matrix = 0.5 * np.eye(40) + 0.5
    norm, after = tp.propagate(net, np.zeros(40), matrix)
    assert norm.exact
    assert not after.exact


def test_a_branch_with_a_norm_and_its_input(rng):
    """x + RMSNorm(x): what they have in common, by Stein's lemma, against the plane."""
    matrix = np.array([[1.3, 0.5], [0.5, 0.6]])
    mean = np.array([0.4, -0.1])
    net = nn.Residual(nn.RMSNorm(2, eps=0.3)).to(dtype="float64")

    def function(u):
        return u + u / np.sqrt((u**2).mean(axis=1, keepdims=True) + 0.3)

    total, squares = of_a_plane(function, mean, matrix)
    *_, record = tp.propagate(net, mean, matrix)
    assert record.exact
    np.testing.assert_allclose(record.mean, total, rtol=EXACT)
    np.testing.assert_allclose(record.variance, np.diag(squares) - total**2, rtol=EXACT)


@pytest.mark.parametrize(
    "pair", list(itertools.combinations(["relu", "tanh", "hardtanh", "sin"], 2)), ids="-".join
)
def test_the_sum_of_two_functions_of_correlated_values(pair, rng):
    """Exact where it says so: of two smooth functions, of two of lines, and of one of each."""

    class Two(nn.Module):
        def __init__(self):
            self.first = nn.Sequential(nn.Linear(3, 2), nn.Activation(pair[0]))
            self.second = nn.Sequential(nn.Linear(3, 2), nn.Activation(pair[1]))

        def forward(self, x):
            return self.first(x) + self.second(x)

    tp.manual_seed(1)
    net = Two().to(dtype="float64")
    *_, record = tp.propagate(net, np.zeros(3), np.eye(3))
    assert record.exact
    x = tp.tensor(rng.normal(size=(200_000, 3)))
    y = net(x).numpy()
    standard_error = math.sqrt(2 / 200_000) * 1.5
    np.testing.assert_allclose(record.variance, y.var(axis=0), rtol=5 * standard_error)


def test_units_with_functions_of_their_own():
    """PReLU with a slope for each channel: the covariance of two functions of lines."""
    weight, bias, matrix, before = hidden_units()
    net = nn.Sequential(nn.Linear(2, 2), nn.PReLU(2), nn.Linear(2, 1, bias=False))
    net = net.to(dtype="float64")
    net[0].weight.data[...] = weight
    net[0].bias.data[...] = bias
    net[1].a.data[...] = [0.5, -0.3]
    net[2].weight.data[...] = [[1.0, 1.0]]
    *_, last = tp.propagate(net, np.zeros(2), matrix)
    assert last.exact
    # prelu(u, a) = a u + (1 - a) relu(u), so by those of relu and of the identity
    rho = before[0, 1] / math.sqrt(before[0, 0] * before[1, 1])
    std = np.sqrt(np.diag(before))
    tail = [0.5 * math.erfc(-m / s / math.sqrt(2)) for m, s in zip(bias, std, strict=True)]
    relu = tp.moments.dual("relu", rho, tuple(bias), tuple(std)).covariance
    cross = before[0, 1]
    a, b = 0.5, -0.3
    covariance = (
        a * b * cross
        + a * (1 - b) * cross * tail[1]
        + b * (1 - a) * cross * tail[0]
        + (1 - a) * (1 - b) * relu
    )
    variances = [
        tp.moments.gaussian("prelu", m, s, a=slope).std ** 2
        for m, s, slope in zip(bias, std, (a, b), strict=True)
    ]
    np.testing.assert_allclose(last.variance, sum(variances) + 2 * covariance, rtol=EXACT)
