"""check_normalized finds layers that are not, and lets those pass that are."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, quick_only
from tinyprop import nn
from tinyprop.testing import CheckError, check_normalized

SAMPLES = 40_000
SOUND = {
    "paper, gamma = 1": (lambda: nn.NormPropLinear(6, 4, gamma=1.0), None),
    "paper, tanh": (lambda: nn.NormPropLinear(6, 4, activation="tanh", gamma=1.0), None),
    "exact": (lambda: nn.NormPropLinear(6, 4, mode="exact"), None),
    "exact, prelu": (lambda: nn.NormPropLinear(6, 4, activation="prelu", mode="exact"), None),
    "exact, convolution": (lambda: nn.NormPropConv2d(2, 3, 2, mode="exact"), (2, 2, 2)),
    "identity": (nn.Identity, 3),
    "batch": (lambda: nn.BatchNorm(3), 3),
    "batch, evaluated": (lambda: nn.BatchNorm(3).eval(), 3),
    "layer": (lambda: nn.LayerNorm(12), 12),
    "rms": (lambda: nn.RMSNorm(12), 12),
    "group": (lambda: nn.GroupNorm(2, 16), 16),
    "ws": (lambda: nn.ScaledWS(nn.Linear(6, 4), "identity"), 6),
}


def moved(layer, seed):
    """Gamma and beta as training may leave them."""
    rng = np.random.default_rng(seed)
    if getattr(layer, "mode", "") == "exact":
        layer.gamma.data[...] = rng.uniform(0.5, 2.0, layer.gamma.shape)
        layer.beta.data[...] = rng.uniform(-0.5, 1.0, layer.beta.shape)
    return layer


@pytest.mark.parametrize("name", SOUND)
def test_sound_layers_pass(name):
    make, shape = SOUND[name]
    tp.manual_seed(2)
    layer = moved(make(), 0)
    state = layer.state_dict()
    measured = check_normalized(layer, shape, samples=SAMPLES)
    assert abs(measured.mean.mean) < 0.05
    assert "variance" in str(measured)
    for key, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, state[key])


class Perturbed(nn.Module):
    """NormProp with ReLU and constants that are slightly wrong."""

    def __init__(self, c1=1.0, c2=0.0, one_unit=0.0, slope=1.0, length=1.0):
        self.layer = nn.NormPropLinear(6, 4, gamma=1.0)
        self.c1, self.c2, self.one_unit, self.slope, self.length = c1, c2, one_unit, slope, length
        self.jacobian_factor = 1.2111738962

    def forward(self, x):
        y = self.layer(x) / self.c1 - self.c2
        unit = tp.tensor(np.array([0.0, 0.0, self.one_unit, 0.0], np.float32))
        if self.slope == 1.0:
            return self.length * (y + unit)
        return y + (self.slope - 1.0) * (y - y.detach())


FAULTS = {
    "c1 is 1 % off": ({"c1": 1.01}, ["variance", "Jacobian factor"]),
    "c2 is off by 0.01": ({"c2": 0.01}, ["mean"]),
    "one unit is shifted": ({"one_unit": 0.02}, ["mean"]),
    "the gradient is 1 % off": ({"slope": 1.01}, ["Jacobian factor"]),
    "everything is 3 % too long": ({"length": 1.03}, ["variance", "Jacobian factor"]),
}


@pytest.mark.parametrize("name", quick_only(["one unit is shifted"], FAULTS))
def test_a_fault_is_found_and_named(name):
    options, expected = FAULTS[name]
    tp.manual_seed(0)
    with pytest.raises(CheckError) as caught:
        check_normalized(Perturbed(**options), 6, samples=1_000_000, seed=5)
    assert [failure.check for failure in caught.value.failures] == expected
    message = str(caught.value)
    assert "error probability 1e-06" in message
    assert "seed=5" in message
    if options == {"one_unit": 0.02}:
        assert "all units" in message or "unit 2" in message


class Function(nn.Module):
    def __init__(self, function):
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_an_output_that_is_not_finite_is_said_once():
    with pytest.raises(CheckError, match="output: NaN or infinity") as caught:
        check_normalized(Function(lambda x: F.log(x)), 3, samples=SAMPLES)
    assert len(caught.value.failures) == 1


def test_an_output_without_a_gradient_is_said():
    layer = Function(lambda x: tp.tensor(x.data * 1.0))
    check_normalized(layer, 3, samples=SAMPLES)
    with pytest.raises(CheckError, match="Jacobian factor: an output without a gradient"):
        check_normalized(layer, 3, jacobian_factor=1.0, samples=SAMPLES)


def test_a_padding_is_found():
    """Zeros at the border lower the variance there."""
    layer = nn.NormPropConv2d(2, 3, 3, padding=1, gamma=1.0)
    with pytest.raises(CheckError, match="zeros of a padding"):
        check_normalized(layer, (2, 4, 4), samples=SAMPLES)


def test_the_papers_start_is_not_normalized_but_keeps_gradients():
    with pytest.raises(CheckError) as caught:
        check_normalized(nn.NormPropLinear(6, 4), samples=SAMPLES)
    assert [failure.check for failure in caught.value.failures] == ["mean", "variance"]


def test_the_jacobian_factor_of_a_layer_is_that_of_its_gradients():
    for options in ({"activation": "gelu"}, {"mode": "exact"}, {"gamma": 0.5}):
        tp.manual_seed(0)
        layer = moved(nn.NormPropLinear(6, 50, **options), 1).to(dtype="float64")
        x = tp.tensor(np.random.default_rng(0).normal(size=(8_000, 6)), requires_grad=True)
        v = np.random.default_rng(1).normal(size=(8_000, 50))
        (g,) = tp.grad(layer(x), [x], tp.tensor(v))
        measured = np.sqrt((g.numpy() ** 2).sum() / v.size)
        assert measured == pytest.approx(layer.jacobian_factor, rel=0.02)


def test_questions_without_an_answer():
    def check(layer, shape=None, **options):
        return lambda: check_normalized(layer, shape, **options)

    assert_explained(tp.ShapeError, check(nn.ReLU()), "ReLU without a shape")
    assert_explained(ValueError, check(nn.Linear(3, 2), samples=3), "samples=3")
    assert_explained(ValueError, check(nn.Linear(3, 2), error_probability=0.0), "a probability")

    class Total(nn.Module):
        def forward(self, x):
            return F.sum(x, axis=1)

    assert_explained(tp.ShapeError, check(Total(), 3, samples=200), "units on axis 1")


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """At a stated error probability of 5 %, of 300 checks at most 25 raise an alarm: 5 % is 15, and
    26 or more have a probability of 0.5 %."""
    alarms = 0
    for seed in range(300):
        tp.manual_seed(seed)
        layer = moved(nn.NormPropLinear(6, 4, gamma=1.0), seed)
        try:
            check_normalized(layer, samples=6_400, tolerance=0.0, error_probability=0.05, seed=seed)
        except CheckError:
            alarms += 1
    assert alarms <= 25


@pytest.mark.parametrize("shape", [0, (3, -1), 2.5, (2.0,)])
def test_a_shape_has_whole_numbers(shape):
    assert_explained(
        tp.ShapeError, lambda: check_normalized(nn.Identity(), shape), "whole numbers, at least 1"
    )
