"""A stranger's file has layers and networks of their own. `tp.propagate` takes them: as an outsider
would use it, through public names only."""

import importlib.util
import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained

FILE = '''
"""Layers that tinyprop has never heard of."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F


class Mixed(tp.nn.Module):
    """With a rule of its own: its forward computes with arrays."""

    def __init__(self, features):
        self.weight = tp.nn.Linear(features, features).weight
        self.offset = tp.tensor(np.linspace(-1.0, 1.0, features), requires_grad=True)

    def forward(self, x):
        u = x.numpy() @ self.weight.numpy().T + self.offset.numpy()
        return tp.tensor(2.0 * np.tanh(u))

    def propagate(self, state):
        return state.linear(self.weight, self.offset).apply("tanh").scale(2.0)


class Sorted(tp.nn.Module):
    """Without a rule: no function of the library is behind it."""

    def forward(self, x):
        return tp.tensor(np.sort(x.numpy()))


class Gated(tp.nn.Module):
    """Without a rule, and it needs none: operators and functions only."""

    def __init__(self, features):
        self.inner = tp.nn.Linear(features, features)
        self.gain = tp.tensor(np.linspace(0.5, 1.5, features), requires_grad=True)

    def forward(self, x):
        h = self.inner(x)
        return (x - 0.5 * F.relu(h)) * self.gain + 1.0


class Forgetful(tp.nn.Module):
    """With a rule that returns no State."""

    def forward(self, x):
        return 2.0 * x

    def propagate(self, state):
        state.scale(2.0)


class Network(tp.nn.Module):
    def __init__(self, layer, features, outputs):
        self.layer = layer
        self.outputs = [tp.nn.Linear(features, features), tp.nn.Linear(features, outputs)]

    def forward(self, x):
        h = self.layer(x)
        return self.outputs[1](h + 0.5 * self.outputs[0](h))
'''
FEATURES = 6


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "their_layers.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("their_layers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def input_moments(rng):
    root = rng.normal(size=(FEATURES, FEATURES)) / math.sqrt(FEATURES) + 0.5 * np.eye(FEATURES)
    return rng.normal(size=FEATURES), root @ root.T


@pytest.mark.parametrize("layer", ["Mixed", "Gated"])
def test_the_prediction_agrees_with_samples(theirs, layer, rng):
    """200,000 samples: within 6 standard errors and the stated error of a series. By chance, one of
    the three units misses with a probability below 1e-7."""
    tp.manual_seed(3)
    net = theirs.Network(getattr(theirs, layer)(FEATURES), FEATURES, 3).to(dtype="float64")
    mean, matrix = input_moments(rng)
    *_, record = records = tp.propagate(net, mean, matrix)
    names = [each.layer for each in records]
    assert names[-3:] == [f"layer {layer}", "outputs.0 Linear", "outputs.1 Linear"]
    assert record.exact
    assert record.error < 0.01
    count = 200_000
    x = rng.multivariate_normal(mean, matrix, count)
    with tp.no_grad():
        u = net(tp.tensor(x)).numpy()
    squares = (u - u.mean(axis=0)) ** 2
    of_mean, of_variance = (z.std(axis=0) / math.sqrt(count) for z in (u, squares))
    assert (abs(record.mean - u.mean(axis=0)) <= 6 * of_mean).all()
    allowed = 6 * of_variance + record.error * record.variance
    assert (abs(record.variance - squares.mean(axis=0)) <= allowed).all()
    # a rule that is 3 % off would be seen
    assert (0.03 * record.variance > allowed).all()


@pytest.mark.parametrize("layer", ["Mixed", "Gated"])
def test_the_same_rule_serves_random_weights(theirs, layer, rng):
    """100 networks of width 100: within 5 standard errors and the stated error of the width."""
    x = rng.normal(size=(8, 100))
    measured, laws = [], []
    for seed in range(100):
        tp.manual_seed(seed)
        net = theirs.Network(getattr(theirs, layer)(100), 100, 100).to(dtype="float64")
        with tp.no_grad():
            u = net(tp.tensor(x)).numpy()
        measured.append((u**2).mean())
        if seed < 5:
            record = tp.propagate(net, data=x, weights="random")[-1]
            laws.append(record.mean[0] ** 2 + record.variance[0])
    standard_error = np.std(measured) / 10
    law = np.mean(laws)
    assert abs(law - np.mean(measured)) <= 5 * standard_error + record.error * law
    assert record.error < 0.1


def test_a_layer_without_a_rule_is_refused_by_name(theirs, rng):
    net = tp.nn.Sequential(tp.nn.Linear(FEATURES, FEATURES), theirs.Sorted())
    with pytest.raises(AttributeError) as caught:
        tp.propagate(net, *input_moments(rng))
    message = str(caught.value)
    assert "the forward of Sorted" in message
    assert "def propagate(self, state)` in Sorted" in message


def test_a_rule_that_returns_no_state_is_refused(theirs, rng):
    assert_explained(
        TypeError,
        lambda: tp.propagate(theirs.Forgetful(), *input_moments(rng)),
        "Forgetful.propagate",
        "NoneType",
        "takes a State and returns one",
    )


def test_a_rule_may_be_tried_by_itself(theirs, rng):
    """A layer alone is a network; a State is an abstract class, for annotations."""
    (record,) = tp.propagate(theirs.Mixed(FEATURES), *input_moments(rng))
    assert record.layer == "Mixed"
    assert (abs(record.mean) < 2.0).all()
    with pytest.raises(TypeError):
        tp.theory.State()
