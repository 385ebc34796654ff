"""In front of random weights, nothing is random but the samples: each layer is run on them."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.theory.inputs import Samples

F = tp.functional
IMAGES = {
    "relu": nn.ReLU(),
    "prelu of channels": nn.PReLU(2, [0.1, 0.2]),
    "scale": nn.Scale(-1.5),
    "batch norm": nn.BatchNorm(2),
    "layer norm": nn.LayerNorm((2, None, None)),
    "rms norm": nn.RMSNorm((2, None, None)),
    "group norm": nn.GroupNorm(2, 2),
    "max pool": nn.MaxPool2d(2),
    "average pool": nn.AvgPool2d(2),
    "flatten": nn.Flatten(),
    "residual": nn.Residual(nn.Tanh()),
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_layer_in_front_of_random_weights_sees_the_samples(name, rng):
    """The record is what `observe` measures: the mean square of the means of units, and their mean
    variance."""
    layer = IMAGES[name]
    images = rng.normal(size=(6, 2, 4, 4)) + 0.3
    *_, record = tp.propagate(layer, data=images, weights="random")
    with tp.no_grad():
        after = layer(tp.tensor(images)).numpy()
    units = np.moveaxis(after, 1, -1).reshape(-1, after.shape[1])
    assert record.exact
    assert record.mean**2 == pytest.approx((units.mean(axis=0) ** 2).mean())
    assert record.variance == pytest.approx(units.var(axis=0).mean())


RULES = {
    "tanh": (lambda state: state.apply("tanh"), F.tanh),
    "prelu": (
        lambda state: state.apply("prelu", a=np.array([0.1, 0.2])),
        nn.PReLU(2, [0.1, 0.2]),
    ),
    "factor and shift": (
        lambda state: state.scale([2.0, -1.0], 0.5),
        lambda x: x * tp.tensor([2.0, -1.0]).reshape(2, 1, 1) + 0.5,
    ),
    "batch": (lambda state: state.normalize_batch(1e-5), nn.BatchNorm(2)),
    "each value": (
        lambda state: state.normalize_batch(each_value=True),
        lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    ),
    "groups": (lambda state: state.normalize_sample(2, 1e-5), nn.GroupNorm(2, 2)),
    "not centered": (
        lambda state: state.normalize_sample(1, 0.1, centered=False),
        nn.RMSNorm((2, None, None), eps=0.1),
    ),
    "max pool": (lambda state: state.max_pool(2), nn.MaxPool2d(2)),
    "average pool": (lambda state: state.avg_pool(2, 1), nn.AvgPool2d(2, 1)),
    "flatten": (lambda state: state.flatten(), nn.Flatten()),
    "sum": (lambda state: state.add(state.apply("relu")), lambda x: x + F.relu(x)),
    "product": (lambda state: state.combine(F.multiply, state, state), lambda x: x * x),
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_layer_s_own_rule_may_ask_for(name, rng):
    """The methods of a State, in front of random weights: the same function of the samples."""
    rule, function = RULES[name]
    images = tp.tensor(rng.normal(size=(6, 2, 4, 4)))
    found = rule(Samples(images, sampled=False, positions=16))
    with tp.no_grad():
        expected = function(images)
    np.testing.assert_allclose(found.tensor.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_dropout_drops_samples(rng):
    state = Samples(tp.ones(6, 100), sampled=False, positions=1)
    assert set(np.unique(state.drop(0.5).tensor.numpy())) == {0.0, 2.0}


def test_integers_become_fractions(rng):
    pixels = rng.integers(0, 255, size=(6, 2, 4, 4))
    same = nn.Sequential(nn.Scale(1 / 255), nn.ReLU())
    (_, found), (_, expected) = (
        tp.propagate(same, data=x, weights="random") for x in (pixels, pixels.astype("float32"))
    )
    assert (found.mean, found.variance) == (expected.mean, expected.variance)


def test_a_function_that_mixes_samples_is_refused(rng):
    class Reversed(nn.Module):
        def forward(self, x):
            return F.concatenate([x, x])

    call = lambda: tp.propagate(Reversed(), data=rng.normal(size=(6, 2)), weights="random")  # noqa: E731
    assert_explained(TypeError, call, "concatenate")
