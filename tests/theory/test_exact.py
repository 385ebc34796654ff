"""What propagate calls exact is right to 1e-9.

The reference is Gauss-Legendre quadrature of the definitions, E s(U) and E s(U) s(V), over one
Gaussian number, or over two. It shares nothing with the package: no Hermite series, no closed form,
no Stein's lemma. A network of two units is enough for it: its last layer is w, so the variance of
its output is w^T C w, which depends on both variances and on the covariance C of two functions.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn

EXACT = 1e-9
EDGE = 10.0  # standard deviations, beyond which 1e-23 of the mass lies
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


# The reference


def panels(cuts, length=0.25):
    """Nodes and weights for N(0, 1): Gauss-Legendre panels, cut at these places as well."""
    count = round(2.0 * EDGE / length)
    inside = [place for place in cuts if abs(place) < EDGE]
    edges = np.unique([*np.linspace(-EDGE, EDGE, count + 1), *inside])
    middle = 0.5 * (edges[1:] + edges[:-1])
    half = 0.5 * np.diff(edges)
    z = (middle[:, None] + half[:, None] * NODES).ravel()
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    lengths = (half[:, None] * WEIGHTS).ravel()
    return z, lengths * density


@dataclass
class Reference:
    """The moments of s(U) and s(V)."""

    means: list[float]
    variances: list[float]
    covariance: float


def reference_of(function, kinks, mean, matrix):
    """For (U, V) ~ N(mean, matrix): E[s(U) E[s(V) | U]], with panels that end at the kinks."""
    std = np.sqrt(np.diag(matrix))
    means = []
    variances = []
    for m, s in zip(mean, std, strict=True):
        z, weights = panels([(kink - m) / s for kink in kinks])
        y = function(m + s * z)
        means.append(weights @ y)
        variances.append(weights @ (y - weights @ y) ** 2)

    rho = matrix[0, 1] / std.prod()
    std_given_u = std[1] * math.sqrt(1.0 - rho * rho)
    z, weights = panels([(kink - mean[0]) / std[0] for kink in kinks])
    expected_given_u = np.empty_like(z)
    for i, here in enumerate(z):
        mean_given_u = mean[1] + std[1] * rho * here
        x, inner = panels([(kink - mean_given_u) / std_given_u for kink in kinks])
        expected_given_u[i] = inner @ function(mean_given_u + std_given_u * x)
    deviations = function(mean[0] + std[0] * z) - means[0]
    return Reference(means, variances, weights @ (deviations * expected_given_u))


def moments_on_plane(function, mean, matrix):
    """E y and E y y^T for a vector function y of two Gaussian numbers, (n, 2) -> (n, values)."""
    root = np.linalg.cholesky(matrix)
    z, weights = panels([], length=0.2)
    first = 0.0
    second = 0.0
    for x, weight in zip(z, weights, strict=True):
        line = np.stack([np.full_like(z, x), z], axis=1)
        y = function(mean + line @ root.T)
        first = first + weight * (weights @ y)
        second = second + weight * ((weights[:, None] * y).T @ y)
    return first, second


def assert_exact(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=EXACT, atol=1e-12)


# Functions of each value


@dataclass
class TwoUnits:
    """Two Gaussian pre-activations: weights, bias, and the covariance of the inputs."""

    weight: np.ndarray
    bias = np.array([0.2, -0.3])
    inputs = np.array([[1.3, 0.4], [0.4, 0.8]])

    @property
    def covariance(self):
        return self.weight @ self.inputs @ self.weight.T

    def network(self, layers, last):
        """Linear, these layers, and the sum of both units with the weights `last`."""
        net = nn.Sequential(nn.Linear(2, 2), *layers, nn.Linear(2, 1, bias=False))
        net.to(dtype="float64")
        net[0].weight.data[...] = self.weight
        net[0].bias.data[...] = self.bias
        net[-1].weight.data[...] = [last]
        return net


DIFFERENT = TwoUnits(np.array([[0.9, -0.4], [0.7, 0.8]]))
ALIKE = TwoUnits(np.array([[0.9, -0.4], [0.91, -0.37]]))  # a correlation of 0.9995


def batch_norm():
    """Of the same mean and variance for both units, so that they have the same function."""
    norm = nn.BatchNorm(2).eval()
    norm.running_mean.data[...] = 0.3
    norm.running_var.data[...] = 0.5
    return norm


# By name: the kinks of the function, and the layers that compute it.
# Every activation of the table; those with kinks or parameters are described below.
FUNCTIONS = {name: ([], lambda name=name: [nn.Activation(name)]) for name in tp.activations}
FUNCTIONS |= {
    "relu": ([0.0], lambda: [nn.ReLU()]),
    "leaky_relu": ([0.0], lambda: [nn.LeakyReLU(0.2)]),
    "prelu": ([0.0], lambda: [nn.PReLU(1)]),
    "abs": ([0.0], lambda: [nn.Activation("abs")]),
    "elu": ([0.0], lambda: [nn.ELU(0.7)]),
    "selu": ([0.0], lambda: [nn.Activation("selu")]),
    "hardtanh": ([-1.0, 1.0], lambda: [nn.Activation("hardtanh")]),
}
# Several in a row are one function, whose kinks are where the first one reaches the second one's.
IN_A_ROW = {
    "dyt, relu": ([0.0], lambda: [nn.DyT(2, 0.8), nn.ReLU()]),
    "dyt, gelu": ([], lambda: [nn.DyT(2), nn.GELU()]),
    "derf, relu": ([0.0], lambda: [nn.Derf(2), nn.ReLU()]),
    "derf, tanh": ([], lambda: [nn.Derf(2), nn.Tanh()]),
    "dyt, hardtanh": (  # 2 tanh(u) = 1
        [-math.atanh(0.5), math.atanh(0.5)],
        lambda: [nn.DyT(2, 1.0), nn.Scale(2.0), nn.Activation("hardtanh")],
    ),
    "tanh, batch norm, relu": (  # tanh(u) = 0.3, the mean
        [math.atanh(0.3)],
        lambda: [nn.Tanh(), batch_norm(), nn.ReLU()],
    ),
}
FUNCTIONS |= IN_A_ROW


@pytest.mark.parametrize("units", [DIFFERENT, ALIKE], ids=["different", "alike"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_layers_with_a_function_between_them(name, units):
    """Linear, s, Linear: means and variances of s, and w^T C w."""
    kinks, make = FUNCTIONS[name]
    layers = make()
    net = units.network(layers, last=[1.0, -0.8])

    def function(u):
        both = tp.tensor(np.stack([u, u], axis=1))
        for layer in layers:
            both = layer(both)
        return both.numpy()[:, 0]

    expected = reference_of(function, kinks, units.bias, units.covariance)
    m1, m2 = expected.means
    v1, v2 = expected.variances
    records = tp.propagate(net, np.zeros(2), units.inputs)
    assert all(record.exact for record in records)
    *_, hidden, last = records
    assert_exact(hidden.mean, [m1, m2])
    assert_exact(hidden.variance, [v1, v2])
    assert_exact(last.mean, m1 - 0.8 * m2)
    assert_exact(last.variance, v1 + 0.8**2 * v2 - 2.0 * 0.8 * expected.covariance)


def test_a_series_that_is_cut_is_seen(monkeypatch):
    """With a dozen terms, the test above fails by orders of magnitude."""
    monkeypatch.setattr(tp.theory.mixture.Mixture, "is_precise", False)
    with pytest.raises(AssertionError):
        test_two_layers_with_a_function_between_them("erf", DIFFERENT)


def test_units_with_functions_of_their_own():
    """PReLU with a slope for each channel: prelu(u, a) = a u + (1 - a) relu(u). So its covariances
    follow from those of u and relu(u), which are Cov(u, v) P(v > 0) for one of each."""
    a, b = 0.5, -0.3
    prelu = nn.PReLU(2)
    net = DIFFERENT.network([prelu], last=[1.0, 1.0])
    prelu.a.data[...] = [a, b]
    *_, last = tp.propagate(net, np.zeros(2), DIFFERENT.inputs)
    assert last.exact

    m1, m2 = DIFFERENT.bias
    s1, s2 = np.sqrt(np.diag(DIFFERENT.covariance))
    of_lines = DIFFERENT.covariance[0, 1]
    rho = of_lines / (s1 * s2)
    positive1 = 0.5 * math.erfc(-m1 / s1 / math.sqrt(2))
    positive2 = 0.5 * math.erfc(-m2 / s2 / math.sqrt(2))
    of_relus = tp.moments.dual("relu", rho, (m1, m2), (s1, s2)).covariance
    covariance = (
        a * b * of_lines
        + a * (1 - b) * of_lines * positive2
        + b * (1 - a) * of_lines * positive1
        + (1 - a) * (1 - b) * of_relus
    )
    v1 = tp.moments.gaussian("prelu", m1, s1, a=a).std ** 2
    v2 = tp.moments.gaussian("prelu", m2, s2, a=b).std ** 2
    assert_exact(last.variance, v1 + v2 + 2 * covariance)


PAIRS = list(itertools.combinations(["relu", "tanh", "hardtanh", "sin"], 2))


@pytest.mark.parametrize(("first", "second"), PAIRS, ids="-".join)
def test_the_sum_of_two_functions_of_correlated_values(first, second, rng):
    """Exact where it says so: of two smooth functions, of two of lines, and of one of each. Against
    200,000 samples, within 5 standard errors."""

    class Two(nn.Module):
        def __init__(self):
            self.first = nn.Sequential(nn.Linear(3, 2), nn.Activation(first))
            self.second = nn.Sequential(nn.Linear(3, 2), nn.Activation(second))

        def forward(self, x):
            return self.first(x) + self.second(x)

    tp.manual_seed(1)
    net = Two().to(dtype="float64")
    *_, record = tp.propagate(net, np.zeros(3), np.eye(3))
    assert record.exact
    count = 200_000
    y = net(tp.tensor(rng.normal(size=(count, 3)))).numpy()
    standard_error = 1.5 * math.sqrt(2 / count)
    np.testing.assert_allclose(record.variance, y.var(axis=0), rtol=5 * standard_error)


# Normalisers of samples


@pytest.mark.parametrize("mean", [(0.0, 0.0), (0.7, -0.4)])
def test_rms_norm(mean):
    """Of two values: an integral over a plane. Then a linear layer, which sees their covariance."""
    matrix = np.array([[1.3, 0.5], [0.5, 0.6]])
    net = nn.Sequential(nn.RMSNorm(2, eps=0.3), nn.Linear(2, 1, bias=False)).to(dtype="float64")
    w = np.array([1.0, -2.0])
    net[1].weight.data[...] = [w]

    def function(u):
        return u / np.sqrt((u**2).mean(axis=1, keepdims=True) + 0.3)

    expected, squares = moments_on_plane(function, np.array(mean), matrix)
    covariance = squares - np.outer(expected, expected)
    norm, last = tp.propagate(net, mean, matrix)
    assert norm.exact
    assert last.exact
    assert_exact(norm.mean, expected)
    assert_exact(norm.variance, np.diag(covariance))
    assert_exact(last.variance, w @ covariance @ w)


@pytest.mark.parametrize("groups", [1, 2])
def test_layer_and_group_norm(groups):
    """Of three values, without their mean: two Gaussian numbers, in a basis of that plane."""
    rng = np.random.default_rng(0)
    size = 3 * groups
    root = rng.normal(size=(size, size))
    mean = rng.normal(size=size)
    matrix = root @ root.T / size
    norm = nn.LayerNorm(3, eps=0.3) if groups == 1 else nn.GroupNorm(2, 6, eps=0.3)
    net = nn.Sequential(norm, nn.Linear(size, 1)).to(dtype="float64")
    record, after = tp.propagate(net, mean, matrix)
    assert record.exact
    assert after.exact

    basis = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)

    def function(p):
        mean_square = (p**2).sum(axis=1, keepdims=True) / 3
        return p @ basis / np.sqrt(mean_square + 0.3)

    for group in np.split(np.arange(size), groups):
        own = matrix[np.ix_(group, group)]
        expected, squares = moments_on_plane(function, basis @ mean[group], basis @ own @ basis.T)
        assert_exact(record.mean[group], expected)
        assert_exact(record.variance[group], np.diag(squares) - expected**2)


@pytest.mark.parametrize("eps", [0.3, 0.05])
def test_a_linear_layer_after_groups(eps):
    """A GroupNorm of pairs of values leaves +y and -y with y = d / sqrt(d^2 + eps), for their half
    difference d: the covariance of two pairs is an integral over a plane."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    mean = rng.normal(size=6)
    matrix = root @ root.T / 6
    net = nn.Sequential(nn.GroupNorm(3, 6, eps=eps), nn.Linear(6, 2)).to(dtype="float64")
    weight = net[1].weight.data
    _, after = tp.propagate(net, mean, matrix)
    assert after.exact

    def function(d):
        return d / np.sqrt(d**2 + eps)

    half_difference = 0.5 * np.kron(np.eye(3), [1.0, -1.0])  # (groups, values)
    mean_of_d = half_difference @ mean
    covariance_of_d = half_difference @ matrix @ half_difference.T
    mean_of_y = np.zeros(3)
    covariance_of_y = np.zeros((3, 3))
    for i, j in itertools.permutations(range(3), 2):
        some = [i, j]
        own = covariance_of_d[np.ix_(some, some)]
        expected, squares = moments_on_plane(function, mean_of_d[some], own)
        mean_of_y[i] = expected[0]
        covariance_of_y[i, i] = squares[0, 0] - expected[0] ** 2
        covariance_of_y[i, j] = squares[0, 1] - expected[0] * expected[1]
    both_signs = np.kron(np.eye(3), [[1.0], [-1.0]])  # (values, groups)
    w = weight @ both_signs
    assert_exact(after.mean, w @ mean_of_y + net[1].bias.data)
    assert_exact(after.variance, np.diag(w @ covariance_of_y @ w.T))


def test_groups_that_are_too_many_are_not_called_exact():
    net = nn.Sequential(nn.GroupNorm(20, 40), nn.Linear(40, 1))
    matrix = 0.5 * np.eye(40) + 0.5
    norm, after = tp.propagate(net, np.zeros(40), matrix)
    assert norm.exact
    assert not after.exact


def test_a_branch_with_a_norm_and_its_input():
    """x + RMSNorm(x): what they have in common, by Stein's lemma, against the plane."""
    matrix = np.array([[1.3, 0.5], [0.5, 0.6]])
    mean = np.array([0.4, -0.1])
    net = nn.Residual(nn.RMSNorm(2, eps=0.3)).to(dtype="float64")

    def function(u):
        return u + u / np.sqrt((u**2).mean(axis=1, keepdims=True) + 0.3)

    expected, squares = moments_on_plane(function, mean, matrix)
    *_, record = tp.propagate(net, mean, matrix)
    assert record.exact
    assert_exact(record.mean, expected)
    assert_exact(record.variance, np.diag(squares) - expected**2)


# Values that hardly vary


def variance_of_narrow_rms_norm(mean, root):
    """The variances of y = u / sqrt(mean(u^2)), u = mean + root z, by Gauss-Hermite quadrature.

    With d = root z and r the root mean square of u, of which r0 is that of the mean,

        y = mean / r0 + d / r - mean (1 / r0 - 1 / r),
        1 / r0 - 1 / r = (r^2 - r0^2) / (r r0 (r + r0)).

    The first part is constant and left out. Nothing cancels in the others.
    """
    nodes, weight = np.polynomial.hermite_e.hermegauss(40)
    weight /= weight.sum()
    z = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = np.einsum("i,j,k->ijk", weight, weight, weight).ravel()
    d = z @ root.T
    square_before = (mean**2).mean()
    change = (2.0 * mean * d + d**2).mean(axis=1)  # of the mean square
    before = math.sqrt(square_before)
    after = np.sqrt(square_before + change)
    shrink = change / (after * before * (after + before))
    y = d / after[:, None] - mean * shrink[:, None]
    return weights @ (y - weights @ y) ** 2


@pytest.mark.parametrize("std", [1e-2, 1e-4, 1e-6, 1e-9])
def test_a_norm_of_values_that_hardly_vary(std):
    """RMSNorm of a Gaussian vector far from 0: E y y^T and E y E y^T are nearly the same, so their
    difference is rounding. What is stated bounds what is wrong."""
    mean = np.array([0.13, -0.13, 0.64])
    root = std * np.array([[0.05, -0.27, 0.18], [0.65, 0.47, -0.35], [-0.63, -1.16, 0.32]])
    net = nn.Sequential(nn.RMSNorm(3, eps=0.0)).to(dtype="float64")
    (record,) = tp.propagate(net, mean, root @ root.T)
    expected = variance_of_narrow_rms_norm(mean, root)
    wrong = abs(record.variance.mean() / expected.mean() - 1.0)
    if record.exact:
        assert wrong < max(3.0 * record.error, 1e-12)
        assert record.error <= EXACT
    else:
        assert wrong < 3e-7
    assert record.exact == (std != 1e-4), "the worst: neither a line nor far from rounding"


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_values_that_hardly_vary_stay_numbers():
    """Rounding makes no variance negative: neither of a norm nor of a dead unit."""
    rng = np.random.default_rng(0)
    layers = [nn.Linear(4, 16), nn.RMSNorm(16), nn.PReLU(), nn.Linear(16, 16), nn.LayerNorm(16)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, 3)).to(dtype="float64")
    net[0].bias.data[...] = rng.normal(size=16)
    net[0].weight.data[...] *= 1e-10
    net[0].weight.data[3] = 0.0
    net[0].bias.data[3] = 0.0
    for record in tp.propagate(net, rng.normal(size=4), np.eye(4)):
        assert (record.variance >= 0.0).all(), record.layer
        assert np.isfinite(record.mean).all(), record.layer


def test_a_saturated_unit_has_a_variance_of_0():
    found = tp.moments.gaussian("hardtanh", 1.425944896912179, 5.091356824457251e-18)
    assert (found.mean, found.std) == (1.0, 0.0)


def test_seen_from_one_point_a_step_is_a_line():
    step = tp.Activation(lambda u: (u > 0.3) * 1.0, "step", kinks=(0.3,))
    assert tp.moments.gaussian(step, 0.3, 0.0).jacobian_factor == 1.0
