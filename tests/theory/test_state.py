"""Networks with a forward of their own: branches in any order, functions, operators, refusals."""

import gc
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, rngs
from tests.theory.test_propagate import covariance, randomize, stationary
from tinyprop import nn
from tinyprop.nn.state import NoRule
from tinyprop.theory import field, origin

N = 4


class Net(nn.Module):
    """A network with these layers and this forward."""

    def __init__(self, forward, **layers):
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def three(forward):
    return Net(forward, a=nn.Linear(N, N), b=nn.Linear(N, N), c=nn.Linear(N, N))


def last(net, *args, **options):
    return tp.propagate(net, *args, **options)[-1]


def assert_same(record, other, tolerance=1e-9):
    np.testing.assert_allclose(record.mean, other.mean, rtol=tolerance, atol=1e-3 * tolerance)
    np.testing.assert_allclose(record.variance, other.variance, rtol=tolerance, atol=1e-12)
    assert record.exact == other.exact
    assert record.error == pytest.approx(other.error, rel=tolerance, abs=1e-12)


def inputs(rng, shape=(N,)):
    size = math.prod(shape)
    return rng.normal(size=shape), covariance(rng, size)


def assert_as_sampled(net, rng, shape=(N,), count=40_000):
    """The last record, which is exact, against samples: mean and variance of each unit within 6
    standard errors, and a truncated series within what is stated. That fails by chance with a
    probability of 2e-9 for a Gaussian unit; squares of skewed units have heavier tails, so a miss
    counts if it is there in four times as many fresh samples, too."""
    mean, matrix = inputs(rng, shape)
    record = last(net, mean, matrix)
    assert record.exact, record

    def misses(count):
        x = rng.multivariate_normal(mean.ravel(), matrix, count).reshape(-1, *shape)
        with tp.no_grad():
            u = net(tp.tensor(x)).numpy()
        by_sample = np.moveaxis(u, 1, -1).reshape(count, -1, u.shape[1])
        center = by_sample.mean(axis=(0, 1))
        squares = (by_sample - center) ** 2
        of_mean = by_sample.mean(axis=1).std(axis=0) / math.sqrt(count)
        of_variance = squares.mean(axis=1).std(axis=0) / math.sqrt(count)
        mean_off = abs(record.mean - center) > 6 * of_mean + 1e-9
        series = min(record.error, 0.02) * record.variance + 1e-9
        variance_off = abs(record.variance - squares.mean(axis=(0, 1))) > 6 * of_variance + series
        return mean_off | variance_off

    if misses(count).any():
        assert not misses(4 * count).any()


# The network's own forward.


def test_the_readmes_network():
    hidden, output = nn.NormPropLinear(2, 32), nn.Linear(32, 2)
    net = Net(lambda net, x: net.last(net.hidden(x)), hidden=hidden, last=output)
    records = tp.propagate(net, np.zeros(2), np.eye(2))
    assert [record.layer for record in records] == ["hidden NormPropLinear", "last Linear"]
    for record, other in zip(
        records, tp.propagate(nn.Sequential(hidden, output), np.zeros(2), np.eye(2)), strict=True
    ):
        assert_same(record, other)


def test_names(rng):
    """A module whose result is that of its last layer has no record of its own; another one has."""

    class Block(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(N, N), nn.Linear(N, N)]

        def forward(self, x):
            for layer in self.layers:
                x = x + F.tanh(layer(x))
            return x

    net = Net(
        lambda net, x: net.b(net.shared(net.shared(net.first[0](x)))),
        first=nn.ModuleList([Block()]),
        shared=nn.Linear(N, N),
        b=nn.Sequential(nn.ReLU(), nn.Residual(nn.Linear(N, N), shortcut=nn.Sequential(nn.ReLU()))),
    )
    assert [record.layer for record in tp.propagate(net, *inputs(rng))] == [
        "first.0.layers.0 Linear",
        "first.0.layers.1 Linear",
        "first.0 Block",
        "shared Linear",
        "shared Linear",
        "b.0 ReLU",
        "b.1.branch Linear",
        "b.1.shortcut.0 ReLU",
        "b.1 Residual",
    ]
    assert last(nn.Linear(N, 1), *inputs(rng)).layer == "Linear"
    relu_at_the_end = three(lambda net, x: F.relu(net.a(x)))
    names = [record.layer for record in tp.propagate(relu_at_the_end, *inputs(rng))]
    assert names == ["a Linear", "Net"]


BRANCHES = {
    "x + branch": lambda net, x: x + net.b(F.relu(net.a(x))),
    "branch + x": lambda net, x: net.b(F.relu(net.a(x))) + x,
    "in place": lambda net, x: F.add(net.b(net.a(x).relu()), x),
    "difference": lambda net, x: x - (-net.b(F.relu(net.a(x)))),
    "halves": lambda net, x: 2.0 * (x / 2.0 + net.b(F.relu(net.a(x))) * 0.5),
    "three": lambda net, x: 0.25 * x + net.b(F.relu(net.a(x))) + x * tp.tensor([0.75]),
}


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize("forward", BRANCHES.values(), ids=BRANCHES)
def test_a_branch_is_a_residual_block(forward, weights, rng):
    net = randomize(three(lambda net, x: F.tanh(net.c(forward(net, F.tanh(x))))), rng)
    block = nn.Residual(nn.Sequential(net.a, nn.ReLU(), net.b))
    same = nn.Sequential(nn.Tanh(), block, net.c, nn.Tanh())
    gaussian = {"mean": np.ones(N), "covariance": np.eye(N), "weights": weights}
    assert_same(last(net, **gaussian), last(same, **gaussian))
    data = {"data": rng.normal(size=(12, N)), "weights": weights}
    assert_same(last(net, **data), last(same, **data), 1e-6)  # covariances of data are float32


SUMS = {
    "two branches": lambda net, x: F.tanh(net.a(x)) + F.relu(net.b(x)),
    "the other one first": lambda net, x: (lambda b, a: a + b)(F.relu(net.b(x)), F.tanh(net.a(x))),
    "three summands": lambda net, x: x + F.tanh(net.a(x)) - 2 * F.relu(net.b(x)),
    "longer": lambda net, x: net.a(F.relu(net.b(x))) + F.tanh(net.c(x)),
    "nested": lambda net, x: (lambda h: x + net.b(h + F.relu(h)))(net.a(x)),
    "the same function twice": lambda net, x: F.relu(x) + net.a(F.relu(x)),
    "the same layer twice": lambda net, x: net.a(x) + net.a(F.relu(x)),
    "twice and half": lambda net, x: 0.5 * (net.a(x) + net.a(x)),
    "one after the other": lambda net, x: net.a(F.relu(net.a(x))),
    "batch norm": lambda net, x: F.batch_norm(net.a(x), tp.zeros(N), tp.ones(N)) + F.relu(x),
    "own swish": lambda net, x: net.a(x * F.sigmoid(1.5 * x)),
    "own mish": lambda net, x: net.a(x * F.tanh(F.softplus(x))),
    "powers": lambda net, x: net.a(0.1 * x**2 + F.exp(0.3 * x)),
    "clipped": lambda net, x: net.a(x.clip(-0.5, 0.7)) + abs(x),
    "maximum": lambda net, x: net.a(F.maximum(x, 0.3)) - F.minimum(1.0, x),
    "arrays": lambda net, x: np.arange(4.0) - tp.tensor([1.0, 2.0, 3.0, 4.0]) * x - x / 3 + 1,
    "matrices": lambda net, x: F.relu(x @ net.a.weight.T) @ net.b.weight.numpy().T,
}


@pytest.mark.parametrize("forward", SUMS.values(), ids=SUMS)
@settings(max_examples=-(-settings().max_examples // 7))
@given(rng=rngs())
def test_what_branches_have_in_common(forward, rng):
    """Exact, for any weights and any order, up to one activation."""
    assert_as_sampled(randomize(three(forward), rng), rng)


def test_values_that_a_forward_has_dropped_are_computed_again(rng):
    def forward(net, x):
        x = F.relu(net.a(x))
        left = net.b(x)
        x = net.c(x)
        return left + x

    net = randomize(three(forward), rng)
    kept = three(lambda net, x: (lambda h: net.b(h) + net.c(h))(F.relu(net.a(x))))
    kept.a, kept.b, kept.c = net.a, net.b, net.c
    mean, matrix = inputs(rng)
    assert_same(last(net, mean, matrix), last(kept, mean, matrix))


def test_a_long_way_back():
    """As many layers as Python's recursion limit has levels."""
    layers = [nn.Linear(1, 1) for _ in range(sys.getrecursionlimit() // 2)]
    for layer in layers:
        layer.weight.data[...] = 1.0

    def forward(net, x):
        h = x
        for layer in net.layers:
            h = layer(h)
        return x + h

    record = last(Net(forward, layers=layers), np.zeros(1), np.eye(1))
    assert record.variance[0] == pytest.approx(4.0)


def test_only_values_in_use_are_kept(rng):
    """A chain of layers keeps the covariances of the last ones only."""

    def count_fields():
        gc.collect()
        values = [each for each in gc.get_objects() if isinstance(each, origin.Values)]
        return sum(len(each.fields) for each in values)

    alive = []

    def forward(net, x):
        for layer in net.layers:
            x = F.relu(layer(x))
            alive.append(count_fields())
        return x

    tp.propagate(Net(forward, layers=[nn.Linear(N, N) for _ in range(8)]), *inputs(rng))
    assert alive[-1] <= alive[2], alive


def test_the_same_function_of_the_same_values_is_the_same(rng):
    """However often a forward computes it."""
    again = three(lambda net, x: F.relu(x) + F.relu(net.a(F.relu(x))))
    once = three(lambda net, x: (lambda h: h + F.relu(net.a(h)))(F.relu(x)))
    once.a = again.a
    mean, matrix = inputs(rng)
    assert_same(last(again, mean, matrix), last(once, mean, matrix))


# Images.

SMALL = (1, 4, 4)


def convolutions(forward, **options):
    return Net(
        forward,
        a=nn.Conv2d(1, 3, 3, padding=1, **options),
        b=nn.Conv2d(1, 3, 1, **options),
        c=nn.Conv2d(3, 3, 3, padding=1),
        last=nn.Linear(48 if not options else 12, 3),
    )


FLAT = {
    "flatten": lambda net, x: x.flatten(1),
    "F.flatten": lambda net, x: F.flatten(x, 1),
    "len": lambda net, x: x.reshape(len(x), -1),
    "shape": lambda net, x: x.reshape(x.shape[0], -1),
    "tuple": lambda net, x: F.reshape(x, (-1, 48)),
}


@pytest.mark.parametrize("flat", FLAT.values(), ids=FLAT)
def test_images_become_vectors(flat, rng):
    forward = lambda net, x: net.last(flat(net, F.relu(net.c(net.a(x)))))  # noqa: E731
    net = randomize(convolutions(forward), rng)
    layers = nn.Sequential(net.a, net.c, nn.ReLU(), nn.Flatten(), net.last)
    mean, matrix = inputs(rng, SMALL)
    for options in (
        {"mean": mean, "covariance": matrix},
        {"data": rng.normal(size=(6, *SMALL)), "weights": "random"},
    ):
        assert_same(last(net, **options), last(layers, **options))


@settings(max_examples=-(-settings().max_examples // 7))
@given(rng=rngs())
def test_branches_with_strides(rng):
    """As where a block halves an image: both paths have a stride."""
    net = convolutions(lambda net, x: net.b(x) + net.c(F.relu(net.a(x))), stride=2)
    assert_as_sampled(randomize(net, rng), rng, SMALL, 10_000)


def test_branches_of_large_images(rng, monkeypatch):
    """By offset, which describes a stationary image as well as its whole covariance."""

    def forward(net, x):
        h = net.a(x)
        return net.last(h + net.c(F.tanh(net.b(h))) + 0.5 * h)

    net = Net(
        forward,
        a=nn.Conv2d(2, 3, 3),
        b=nn.Conv2d(3, 4, 3, padding=1),
        c=nn.Conv2d(4, 3, 1),
        last=nn.Conv2d(3, 2, 3),
    )
    randomize(net, rng)
    mean, matrix = np.ones((2, 14, 9)) * rng.normal(size=(2, 1, 1)), stationary(2, 14, 9, rng)
    whole = last(net, mean, matrix)
    monkeypatch.setattr(field, "WHOLE", 0)
    by_offset = last(net, mean, matrix)
    np.testing.assert_allclose(by_offset.mean, whole.mean, atol=1e-5)
    np.testing.assert_allclose(by_offset.variance, whole.variance, rtol=0.03)
    net.d = nn.Conv2d(2, 3, 3)
    net.function = lambda net, x: net.a(x) + net.d(x)
    assert_explained(TypeError, lambda: last(net, mean, matrix), "residual branch", "stride 1")


# Every function does what its layer does.

LAYERS = {
    "relu": (lambda x: F.relu(x), nn.ReLU()),
    "method": (lambda x: x.tanh(), nn.Tanh()),
    "gelu": (F.gelu, nn.GELU()),
    "silu": (F.silu, nn.SiLU()),
    "selu": (F.selu, nn.SELU()),
    "elu": (lambda x: F.elu(x, 0.5), nn.ELU(0.5)),
    "leaky": (lambda x: F.leaky_relu(x, a=0.2), nn.LeakyReLU(0.2)),
    "prelu": (lambda x: F.prelu(x, tp.tensor([0.1, 0.2])), nn.PReLU(2, [0.1, 0.2])),
    "max": (lambda x: F.max_pool2d(x, 2), nn.MaxPool2d(2)),
    "avg": (lambda x: F.avg_pool2d(x, 2, 1), nn.AvgPool2d(2, 1)),
    "dropout": (lambda x: F.dropout(x, 0.3), nn.Dropout(0.3)),
    "layer": (lambda x: F.layer_norm(x, x.shape[1:]), nn.LayerNorm((2, None, None))),
    "rms": (lambda x: F.rms_norm(x, x.shape[1:]), nn.RMSNorm((2, None, None))),
    "group": (lambda x: F.group_norm(x, 2), nn.GroupNorm(2, 2)),
    "batch": (
        lambda x: F.batch_norm(x, tp.zeros(2), tp.ones(2), training=True),
        nn.BatchNorm(2),
    ),
    "scale": (lambda x: -1.5 * x.astype("float64"), nn.Scale(-1.5)),
    "conv": (lambda x: F.conv2d(x, np.full((1, 2, 2, 2), 0.25), padding=1), None),
}


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize(("function", "layer"), LAYERS.values(), ids=LAYERS)
def test_functions_are_their_layers(function, layer, weights, rng):
    if layer is None:
        layer = nn.Conv2d(2, 1, 2, padding=1, bias=False)
        layer.weight.data[...] = 0.25
    if isinstance(layer, nn.Dropout) and weights == "random":
        weights = "given"  # in front of random weights, dropout draws
    start = nn.Conv2d(2, 2, 1)
    net = Net(lambda net, x: function(net.start(x)), start=start)
    layers = nn.Sequential(start, layer).to(dtype="float64")
    data = rng.normal(size=(8, 2, 5, 4))
    assert_same(last(net, data=data, weights=weights), last(layers, data=data, weights=weights))


# Random weights.


def gates(forward):
    return lambda: Net(forward, a=nn.Linear(20, 100), b=nn.Linear(100, 100))


RANDOM = {
    "an activation of itself": gates(lambda net, x: (lambda h: h + F.relu(h))(net.a(x))),
    "with another sign": gates(lambda net, x: (lambda h: h - 2 * F.relu(h))(net.a(x))),
    "the same weights twice": gates(
        lambda net, x: (lambda h: net.b(F.relu(h)) + net.b(F.tanh(h)))(net.a(x))
    ),
    "the same weights in turn": gates(
        lambda net, x: (lambda h: net.b(F.relu(net.b(F.relu(h)))) + net.b(h))(net.a(x))
    ),
    "in front of weights": gates(lambda net, x: net.b(F.relu(net.a(x * F.sigmoid(x) + x)))),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_the_law_of_sums(make):
    """100 networks of width 100: the mean squares of the means of units, and their variances,
    within 5 standard errors, and what is stated for the width."""
    rng = np.random.default_rng(3)
    x = (rng.gamma(0.5, size=(12, 20)) * rng.choice([0.3, 2.0], size=(12, 1))).astype("float32")
    measured, laws = [], []
    for seed in range(100):
        tp.manual_seed(seed)
        net = make()
        with tp.no_grad():
            u = net(tp.tensor(x)).numpy()
        measured.append([(u.mean(axis=0) ** 2).mean(), u.var(axis=0).mean()])
        if seed < 10:
            record = last(net, data=x, weights="random")
            laws.append([record.mean[0] ** 2, record.variance[0]])
    law = np.mean(laws, axis=0)
    standard_error = np.std(measured, axis=0) / 10
    allowed = 5 * standard_error + 0.5 * record.error * law.sum()
    assert (abs(law - np.mean(measured, axis=0)) <= allowed).all()


# What has no rule.

REFUSED = {
    "softmax": lambda net, x: F.softmax(x),
    "mean": lambda net, x: x.mean(),
    "concatenate": lambda net, x: F.concatenate([x, x], 1),
    "numpy.tanh": lambda net, x: np.tanh(x),
    "NumPy": lambda net, x: np.asarray(x),
    ".data": lambda net, x: x.data,
    ".numpy": lambda net, x: tp.tensor(x.numpy()),
    ".detach": lambda net, x: x.detach(),
    "an index": lambda net, x: x[:, 0],
    "a loop": lambda net, x: list(x),
    "a comparison": lambda net, x: F.where(x > 0, x, 0.0),
    "a division by a State": lambda net, x: 1.0 / x,
    "multiply of two States that are not functions of the same": lambda net, x: x * net.a(x),
    "linear of a State": lambda net, x: F.linear(net.a.weight, x),
    "matmul of a State": lambda net, x: net.a.weight @ x,
    "flatten from axis 0": lambda net, x: x.flatten(0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_rule_is_refused_by_name(words, rng):
    net = three(REFUSED[words])
    hint = "def propagate(self, state)"
    assert_explained(NoRule, lambda: tp.propagate(net, *inputs(rng)), words, "forward of Net", hint)


def test_a_forward_may_ask_what_a_state_has(rng):
    net = three(lambda net, x: net.a(x.nothing if hasattr(x, "nothing") else x))
    assert_same(last(net, *(two := inputs(rng))), last(net.a, *two))


BESIDE = {
    ".numpy": lambda x: x.numpy(),
    ".data": lambda x: x.data,
    ".detach": lambda x: x.detach().data,
}


@pytest.mark.parametrize("values", BESIDE.values(), ids=BESIDE)
def test_what_a_normaliser_declares_is_asked_where_it_leaves_the_graph(values, rng):
    class OfSamples(nn.Module):
        statistics = nn.Statistics(over="sample", center=False)

        def forward(self, x):
            return x / np.sqrt((values(x) ** 2).mean(1, keepdims=True))

    data = rng.normal(size=(9, N))
    assert_same(last(OfSamples(), data=data), last(nn.RMSNorm(N, eps=0.0), data=data), 1e-6)


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize("function", [F.multiply, F.maximum])
def test_weighted_sums_of_a_function_are_no_function_of_its_values(function, weights, rng):
    """Both branches go back to one scaled value, but each sees it through weights of its own."""

    def forward(net, x):
        scaled = 2.0 * net.a(x)
        return function(net.b(scaled), F.tanh(net.c(scaled)))

    net = three(forward)
    words = f"{function.__name__} of two States that are not functions of the same values"
    assert_explained(TypeError, lambda: tp.propagate(net, *inputs(rng), weights=weights), words)


def test_other_refusals(rng):
    two = inputs(rng)
    wrong_shape = three(lambda net, x: x.reshape(2, 2))
    assert_explained(ValueError, lambda: tp.propagate(wrong_shape, *two), "(2, 2)", "len(x)")
    assert_explained(NoRule, lambda: tp.propagate(wrong_shape, *two), "propagate knows images")
    wrong_array = three(lambda net, x: x + np.ones(3))
    assert_explained(ValueError, lambda: tp.propagate(wrong_array, *two), "(3,)", "one sample")
    wrong_scale = three(lambda net, x: x.scale(np.ones(3)))
    assert_explained(ValueError, lambda: tp.propagate(wrong_scale, *two), "(3,)", "per channel")
    no_state = three(lambda net, x: tp.ones(1))
    assert_explained(TypeError, lambda: tp.propagate(no_state, *two), "returned a Tensor")
    some = nn.LayerNorm(2)
    net = Net(lambda net, x: net.some(net.a(x)), some=some, a=nn.Conv2d(1, 2, 1))
    assert_explained(TypeError, lambda: tp.propagate(net, *inputs(rng, (1, 2, 2))), "whole samples")


def test_a_subclass_is_never_passed_over(rng):
    """One that changes forward computes by it, unless it has a rule of its own."""
    mean, matrix = inputs(rng)

    class Doubled(nn.NormPropLinear):
        def forward(self, x):
            return 2.0 * x

    class Shifted(nn.NormPropLinear):
        def activate(self, u):
            return F.tanh(u) + 1.0

    assert_same(last(Doubled(N, N), mean, matrix), last(nn.Scale(2.0), mean, matrix))
    shifted, plain = Shifted(N, N, "tanh"), nn.NormPropLinear(N, N, "tanh")
    plain.load_state_dict(shifted.state_dict())
    c1 = plain.standard.std
    after = last(nn.Sequential(shifted, nn.Identity()), mean, matrix)
    before = last(nn.Sequential(plain, nn.Identity()), mean, matrix)
    np.testing.assert_allclose(after.mean, before.mean + 1.0 / c1, rtol=1e-6)
    np.testing.assert_allclose(after.variance, before.variance, rtol=1e-6)


def test_tensors_do_not_notice(rng):
    """States change neither the network nor what it computes."""
    net = nn.Sequential(nn.Linear(N, N), nn.BatchNorm(N), nn.ReLU(), nn.Linear(N, 1))
    x = tp.tensor(rng.normal(size=(5, N)).astype("float32"))
    state = net.state_dict()
    before = net.eval()(x).numpy()
    tp.propagate(net.train(), data=x, weights="given")
    tp.propagate(net, data=x, weights="random")
    assert all((value == state[name]).all() for name, value in net.state_dict().items())
    assert (net.eval()(x).numpy() == before).all()
    assert not net[0].weight.grad


def test_weights_on_any_backend(backend, rng):
    """Moments are computed on the host, wherever the weights are."""

    def forward(net, x):
        ones = tp.ones(N).to(net.b.bias.backend)
        return net.c(x + ones * F.relu(net.a(x)) * net.b.bias)

    net = three(forward)
    data = rng.normal(size=(6, N))
    for weights in ("given", "random"):
        expected = last(net.to("numpy"), data=data, weights=weights)
        assert_same(last(net.to(backend), data=data, weights=weights), expected)
