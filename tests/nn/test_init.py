"""Initial weights: their laws, and what they do to signals."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained
from tinyprop import functional as F
from tinyprop import nn
from tinyprop.nn import init


@pytest.mark.parametrize(
    ("activation", "second_moment"),
    [("relu", 0.5), ("identity", 1.0), ("selu", 1.0), ("prelu", (1 + 0.25**2) / 2), ("abs", 1.0)],
)
def test_the_gain_is_one_over_the_root_of_the_second_moment(activation, second_moment):
    assert init.gain(activation) == pytest.approx(second_moment**-0.5, abs=1e-10)
    if activation == "relu":
        assert init.gain(F.relu) == pytest.approx(math.sqrt(2), abs=1e-10)


@pytest.mark.parametrize(
    "layer", [(nn.Linear, 300, 100), (nn.Conv2d, 12, 100, 5), (nn.NormPropConv2d, 12, 100, 5)]
)
def test_kaiming_normal(layer, backend):
    """Mean and variance of 30,000 weights within 5 standard errors."""
    layer = layer[0](*layer[1:]).to(backend)
    tp.manual_seed(0)
    assert init.kaiming_normal_(layer) is layer
    w, inputs = layer.weight.numpy().astype(np.float64), layer.weight[0].size
    assert abs(w.mean()) < 5 * math.sqrt(2 / inputs / w.size)
    assert abs(w.var() * inputs / 2 - 1) < 5 * math.sqrt(2 / w.size)
    assert abs((w**4).mean() / w.var() ** 2 - 3) < 5 * math.sqrt(96 / w.size), "not Gaussian"
    tp.manual_seed(0)
    np.testing.assert_array_equal(
        init.kaiming_normal_(tp.zeros(*layer.weight.shape)).numpy(), layer.weight.numpy()
    )


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (3, 2, 2, 2), (9, 2, 2, 2)])
def test_orthogonal(shape, backend):
    w = init.orthogonal_(tp.zeros(*shape, backend=backend), gain=1.5).numpy().reshape(shape[0], -1)
    gram = w @ w.T if len(w) <= len(w.T) else w.T @ w
    assert_close(gram, 2.25 * np.eye(len(gram)), 1e-5)


def test_orthogonal_matrices_are_uniform():
    """Without the signs of R, the diagonal would be biased: 5 standard errors of 400 matrices of 3
    x 3."""
    found = np.array([np.trace(init.orthogonal_(tp.zeros(3, 3)).numpy()) for _ in range(400)])
    assert abs(found.mean()) < 5 / math.sqrt(400), (
        "the trace of a uniform orthogonal matrix has mean 0 and variance 1"
    )
    assert abs(found.var() - 1) < 0.35


def network(wrap=lambda layer: layer):
    inside = nn.Sequential(nn.ReLU(), wrap(nn.Conv2d(6, 6, 3, padding=1)))
    return nn.Sequential(
        wrap(nn.Conv2d(3, 6, 3)),
        nn.Residual(inside, shortcut=wrap(nn.Conv2d(6, 6, 1))),
        nn.Flatten(),
    )


def test_lsuv_gives_every_layer_unit_variance(backend, rng):
    """In a residual block too, where one input arrives at two layers; biases are 0, and nothing
    else has changed."""
    net, x = (
        network().to(backend),
        tp.tensor(rng.normal(size=(5, 3, 6, 6)).astype(np.float32), backend=backend),
    )
    net[0].bias.data[...] = 1.0
    assert init.lsuv_(net, x) is net
    h = net[0](x)
    for out in (h, net[1].branch(h), net[1].shortcut(h)):
        assert out.numpy().var() == pytest.approx(1.0, abs=1e-5)
    rows = net[0].weight.numpy().reshape(6, -1)
    gram = rows @ rows.T
    assert_close(gram, gram[0, 0] * np.eye(6), 1e-5)
    assert not net[0].bias.numpy().any()
    assert_explained(
        ValueError, lambda: init.lsuv_(nn.Sequential(nn.ReLU()), x), "Linear or Conv2d"
    )
    assert_explained(ValueError, lambda: init.lsuv_(network().to(backend), x * 0.0), "constant")


def test_data_dependent_initialization_of_a_network(backend, rng):
    net, x = (
        network(nn.WeightNorm).to(backend),
        tp.tensor(rng.normal(size=(5, 3, 6, 6)), backend=backend),
    )
    net.to(dtype=np.float64)
    assert init.data_dependent_(net, x) is net
    h = net[0](x)
    for out in (h, net[1].branch(h), net[1].shortcut(h)):
        assert_close(out.numpy().mean(axis=(0, 2, 3)) + 1, np.ones(6), 1e-10)
        assert_close(out.numpy().var(axis=(0, 2, 3)), np.ones(6), 1e-10)
    assert_explained(
        ValueError, lambda: init.data_dependent_(network().to(backend), x), "WeightNorm"
    )


def test_a_layer_that_is_used_twice_is_fitted_to_its_first_input(rng):
    layer, x = nn.Linear(4, 4), tp.tensor(rng.normal(size=(9, 4)).astype(np.float32))
    init.lsuv_(nn.Sequential(layer, nn.ReLU(), layer), x)
    assert layer(x).numpy().var() == pytest.approx(1.0, abs=1e-5)


def test_fixup_starts_as_the_identity(rng):
    def block():
        return nn.Residual(
            nn.Sequential(
                nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50)
            )
        )

    tp.manual_seed(0)
    net = init.fixup_(nn.Sequential(*(block() for _ in range(16)), nn.Linear(50, 10)))
    x = tp.tensor(rng.normal(size=(4, 50)).astype(np.float32))
    blocks = list(net)[:-1]
    for layer in blocks:
        np.testing.assert_array_equal(layer(x).numpy(), x.numpy())
        first, second, last = (w.numpy() for w in init.weights(layer))
        assert not last.any()
        for w in (first, second):  # m = 3: a factor of 16^(-1/4) = 1/2
            assert w.std() == pytest.approx(0.5 * math.sqrt(2 / 50), rel=0.1)
    assert not net(x).numpy().any()
    assert_explained(
        ValueError,
        lambda: init.fixup_(network(nn.WeightNorm)),
        "WeightNorm",
        "cannot be normalised",
    )


def test_what_is_no_weight_is_explained():
    assert_explained(
        tp.ShapeError, lambda: init.orthogonal_(tp.zeros(3)), "(3,)", "(outputs, inputs, ...)"
    )
    assert_explained(ValueError, lambda: init.kaiming_normal_(nn.Linear(2, 2), "step"), "'step'")


def test_gain_follows_a_function_that_has_changed():
    prelu = nn.PReLU()
    assert init.gain(prelu) > 1.3
    prelu.a.data.fill(1.0)
    assert init.gain(prelu) == pytest.approx(1.0)


def test_fixup_takes_blocks_without_weights():
    net = nn.Sequential(nn.Residual(nn.ReLU()), nn.Linear(4, 2))
    assert not init.fixup_(net)(tp.ones(1, 4)).data.any()
