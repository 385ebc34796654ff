import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn


def test_statistics_of_every_layer(backend, rng):
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(backend)
    net[0].weight.data[1] = 0.0
    net[0].bias.data[1] = -1.0  # a dead unit
    x = rng.normal(size=(50, 4)).astype(np.float32)
    linear, relu = nn.signals(net, tp.tensor(x, backend=backend))
    h = x @ net[0].weight.numpy().T + net[0].bias.numpy()
    assert (linear.layer, relu.layer) == ("0 Linear", "1 ReLU")
    assert linear.mean == pytest.approx(h.mean(), abs=1e-5)
    assert linear.std == pytest.approx(h.std(), rel=1e-5)
    out = np.maximum(h, 0)
    assert relu.unit_mean_square == pytest.approx((out.mean(axis=0) ** 2).mean(), rel=1e-5)
    assert (linear.dead, relu.dead) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert relu.gradient_std is None


def test_gradients_with_labels(rng):
    """Also of layers in front of the first parameter."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, labels = tp.tensor(rng.normal(size=(20, 2, 2)).astype(np.float32)), rng.integers(0, 3, 20)
    first, *_, last = nn.signals(net, x, labels)
    inputs = tp.tensor(x.data, requires_grad=True)
    (g,) = tp.grad(tp.functional.cross_entropy(net(inputs), labels), [inputs])
    assert first.gradient_std == pytest.approx(np.sqrt((g.numpy() ** 2).mean()), rel=1e-5)
    assert not x.requires_grad
    logits = net(x).detach()
    logits.requires_grad = True
    (g,) = tp.grad(tp.functional.cross_entropy(logits, labels), [logits])
    assert last.gradient_std == pytest.approx(np.sqrt((g.numpy() ** 2).mean()), rel=1e-5)


def test_layers_are_measured_as_the_network_calls_them(rng):
    """In its own order, some twice and some never."""

    class Net(nn.Module):
        def __init__(self):
            self.unused, self.last, self.first = nn.Tanh(), nn.Linear(4, 3), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(self.first(x)) + 10.0)

    net, x = Net(), tp.tensor(rng.normal(size=(20, 4)).astype(np.float32))
    found = nn.signals(net, x, rng.integers(0, 3, 20))
    assert [s.layer for s in found] == ["first Linear", "first Linear", "last Linear"]
    assert found[-1].mean == pytest.approx(net(x).numpy().mean(), rel=1e-5)
    assert found[1].mean == pytest.approx(net.first(net.first(x)).numpy().mean(), rel=1e-4)
    assert all(s.gradient_std > 0 for s in found)


@pytest.mark.parametrize("norm", ["normprop", "batch"])
def test_it_leaves_the_network_as_it_was(norm, rng):
    net = nn.build("C(4,3,1,1)-C(3,1,1,0)-P(4,4,0,avg)", norm=norm)
    x = tp.tensor(rng.normal(size=(2, 3, 4, 4)).astype(np.float32))
    before = net.state_dict()
    nn.signals(net, x, [0, 1])
    assert all((v == before[k]).all() for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    net[0].weight.data += 1.0  # nothing stays locked


def test_a_layer_that_is_used_twice_has_two_names():
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 8), relu, nn.Linear(8, 8), relu)
    assert [s.layer for s in nn.signals(net, tp.randn(5, 4))] == [
        "0 Linear",
        "1 ReLU",
        "2 Linear",
        "3 ReLU",
    ]


def test_a_unit_is_dead_if_it_never_changes(rng):
    """Not if it changes little, or from place to place of every sample."""
    x = rng.normal(size=(5, 4, 3, 3)).astype(np.float32)
    x[:, 0] = 2.0
    x[:, 1] = x[:1, 1]  # the same image for each sample
    x[:, 2] *= 1e-3
    (flat,) = nn.signals(nn.Sequential(nn.Identity()), tp.tensor(x))
    assert flat.dead == 0.25
