"""`tp.observe`: one record for each call of a layer."""

from typing import NamedTuple

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import functional as F
from tinyprop import nn
from tinyprop.nn import init
from tinyprop.nn.observation import outermost


def batch(rng, *shape, backend="numpy"):
    return tp.tensor(rng.normal(size=shape).astype(np.float32), backend=backend)


class Gate(nn.Module):
    """Two inputs, one of them by keyword."""

    def forward(self, x, gate=None):
        return x * F.sigmoid(gate)


class Net(nn.Module):
    """A stranger's network: its own order, a layer that is used twice, a list of layers, a layer
    inside of a layer that is called from outside, and two inputs."""

    def __init__(self):
        self.blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)]
        self.shared = nn.ReLU()
        self.gate = Gate()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        h = self.shared(self.blocks[1](x))
        h = self.gate(h, gate=self.blocks[0](x))
        h = self.blocks[0][1](self.shared(h))
        return self.last(h)


def test_every_call_has_a_record_in_its_order(backend, rng):
    net, x = Net().to(backend), batch(rng, 5, 4, backend=backend)
    records = tp.observe(net, x)
    assert [(record.depth, record.name) for record in records] == [
        (1, "blocks.1 Linear"),
        (1, "shared ReLU"),
        (2, "blocks.0.0 Linear"),
        (2, "blocks.0.1 Tanh"),
        (1, "blocks.0 Sequential"),
        (1, "gate Gate"),
        (1, "shared ReLU"),
        (1, "blocks.0.1 Tanh"),
        (1, "last Linear"),
        (0, "Net"),
    ]
    by_hand = net.blocks[1](x)
    np.testing.assert_array_equal(records[0].output.numpy(), by_hand.numpy())
    np.testing.assert_array_equal(records[1].input.numpy(), by_hand.numpy())
    gate = records[5]
    assert gate.layer is net.gate
    assert list(gate.keywords) == ["gate"]
    np.testing.assert_array_equal(gate.keywords["gate"].numpy(), records[4].output.numpy())
    np.testing.assert_array_equal(records[-1].output.numpy(), net(x).numpy())
    assert not any(record.output.requires_grad for record in records)
    assert [record.gradient for record in records] == [None] * len(records)


def test_gradients_are_those_of_the_loss(rng):
    """A layer that is used twice has the gradient of each use; one that the loss does not depend on
    has none."""

    class WithSpectator(Net):
        def __init__(self):
            super().__init__()
            self.spectator = nn.Linear(4, 2)

        def forward(self, x):
            self.spectator(x)
            return super().forward(x)

    net, x, labels = WithSpectator(), batch(rng, 5, 4), [0, 1, 2, 0, 1]
    records = tp.observe(net, x, labels)
    assert records[0].name == "spectator Linear"
    assert records[0].gradient is None
    leaf = tp.tensor(x.data, requires_grad=True)
    kept = tp.observe(net, leaf)  # these have their graph
    loss = F.cross_entropy(kept[-1].output, labels)
    expected = tp.grad(loss, [record.output for record in kept[1:]])
    for record, gradient in zip(records[1:], expected, strict=True):
        np.testing.assert_allclose(record.gradient.numpy(), gradient.numpy(), rtol=1e-6)
    twice = [record.gradient.numpy() for record in records if record.name == "shared ReLU"]
    assert not np.allclose(*twice)


@pytest.mark.parametrize("mode", ["paper", "exact"])
def test_the_pre_activation_of_layers_with_weights(mode, backend, rng):
    layer = nn.NormPropConv2d(2, 3, 3, padding=1, activation="tanh", mode=mode)
    layer.gamma.data[...] = [0.5, 1.0, 2.0]
    layer.beta.data[...] = [0.1, -0.2, 0.3]
    net = nn.Sequential(layer, nn.ScaledWS(nn.Conv2d(3, 2, 1)), nn.Flatten(), nn.Linear(32, 2))
    net.to(backend)
    records = tp.observe(net, batch(rng, 6, 2, 4, 4, backend=backend))
    normprop, standardized, flatten, linear, whole = records
    c1, c2 = (layer.per_unit(constant) for constant in layer.constants())
    expected = (F.tanh(normprop.pre_activation) - c2) / c1
    np.testing.assert_allclose(expected.numpy(), normprop.output.numpy(), atol=1e-5)
    for record in (standardized, linear):
        np.testing.assert_array_equal(record.pre_activation.numpy(), record.output.numpy())
    assert flatten.pre_activation is None
    assert whole.pre_activation is None


def test_a_layer_that_changes_its_forward_says_anew_what_is_in_front_of_the_activation(rng):
    class Rectified(nn.Linear):
        def forward(self, x):
            return F.relu(super().forward(x))

    class Declared(Rectified):
        def forward(self, x):
            return super().forward(x)

        def pre_activation(self, output, x):
            return self.weighted_sum(x, self.weight)

    x = batch(rng, 5, 4)
    silent, declared, _ = tp.observe(nn.Sequential(Rectified(4, 4), Declared(4, 4)), x)
    assert silent.pre_activation is None
    expected = declared.layer.weighted_sum(declared.input, declared.layer.weight)
    np.testing.assert_array_equal(declared.pre_activation.numpy(), expected.numpy())


def test_a_network_with_several_inputs(rng):
    x, gate = batch(rng, 5, 4), batch(rng, 5, 4)
    (whole,) = tp.observe(Gate(), (x, gate))
    np.testing.assert_array_equal(whole.output.numpy(), Gate()(x, gate).numpy())


def test_a_layer_in_two_places_has_two_names():
    relu = nn.ReLU()
    block = nn.Sequential(nn.Linear(4, 4), relu)
    records = tp.observe(nn.Sequential(block, nn.Linear(4, 4), relu, block), tp.randn(5, 4))
    assert [record.name for record in records] == [
        "0.0 Linear",
        "0.1 ReLU",
        "0 Sequential",
        "1 Linear",
        "2 ReLU",
        "3.0 Linear",
        "3.1 ReLU",
        "3 Sequential",
        "Sequential",
    ]


def test_outermost_ends_with_the_network_where_its_output_is_its_own():
    names = [record.name for record in outermost(tp.observe(Net(), tp.randn(5, 4)))]
    assert names[-1] == "last Linear"
    residual = nn.Residual(nn.Linear(4, 4))
    names = [record.name for record in outermost(tp.observe(residual, tp.randn(5, 4)))]
    assert names == ["branch Linear", "Residual"]


def test_it_leaves_the_network_as_it_was(rng):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4), nn.Dropout(), nn.Linear(4, 3))
    before = net.state_dict()
    tp.observe(net, batch(rng, 6, 4), [0, 1, 2, 0, 1, 2])
    assert all((value == before[name]).all() for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    net[0].weight.data += 1.0  # nothing stays locked


def test_layers_are_fitted_whatever_they_are_called_with(rng):
    """A network that calls its layers by keyword, and one of them twice."""

    class Keywords(nn.Module):
        def __init__(self):
            self.first, self.gate, self.second = nn.Linear(4, 4), Gate(), nn.Linear(4, 4)

        def forward(self, x):
            h = self.first(x=self.first(x=x))
            return self.second(x=self.gate(h, gate=x))

    net, x = Keywords(), batch(rng, 50, 4)
    init.lsuv_(net, x)
    first, _, _, second, _ = tp.observe(net, x)
    assert first.output.numpy().var() == pytest.approx(1.0, abs=1e-5)
    assert second.output.numpy().var() == pytest.approx(1.0, abs=1e-5)


def test_what_is_no_module_is_refused_and_named_tuples_are_kept():
    class Pair(NamedTuple):
        first: tp.Tensor
        second: tp.Tensor

    class Two(nn.Module):
        def forward(self, x):
            return Pair(x, x * 2.0)

    assert tp.observe(Two(), tp.ones(2))[-1].output.second.tolist() == [2.0, 2.0]
    assert_explained(TypeError, lambda: tp.observe(F.relu, tp.ones(2)), "Module")
    assert_explained(TypeError, lambda: tp.propagate(F.relu, [0.0], [[1.0]]), "Module")
