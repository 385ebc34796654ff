"""What a user's own activation or normaliser raises is said in three parts."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import functional as F
from tinyprop import nn

TAKES_AN_ACTIVATION = [
    nn.Activation,
    lambda activation: nn.NormPropLinear(3, 2, activation),
    lambda activation: nn.build("F(4)-F(2)", 3, norm="batch", activation=activation),
]


def raises(u):
    raise RuntimeError("boom")


def looks_up(u):
    return {}["a"]


def takes_nothing():
    return 3


def by_numpy(u):
    return np.tanh(u)


def detached(u):
    return tp.tensor(np.tanh(u.numpy()))


def detached_relu(u):
    return F.relu(u.detach())


BAD = [
    (raises, "raises RuntimeError: boom"),
    (looks_up, "raises KeyError: 'a'"),
    (takes_nothing, "takes_nothing() takes 0 positional arguments"),
    (by_numpy, "does not support ufuncs"),
    (detached, "no gradient"),
    (detached_relu, "no gradient"),
]


@pytest.mark.parametrize("take", TAKES_AN_ACTIVATION)
@pytest.mark.parametrize(("bad", "words"), BAD)
def test_an_activation_with_a_mistake(take, bad, words):
    assert_explained(ValueError, lambda: take(bad), bad.__name__, words)


STEPS = [
    lambda u: (u > 0.0).astype(u.dtype),
    lambda u: F.where(u > 0.0, 1.0, -1.0).astype(u.dtype),
    lambda u: tp.tensor(np.round(10.0 * u.numpy()) / u.dtype.type(10.0)),
    lambda u: 0.0 * u + 1.0,
]


@pytest.mark.parametrize("step", STEPS)
def test_the_derivative_of_a_step_function_is_0(step):
    nn.Activation(step)
    with tp.no_grad():
        nn.Activation(F.tanh)
        nn.Activation(lambda u: u * F.tanh(u))


def takes_a_layer(inputs, outputs, activation):
    return nn.Linear(inputs, outputs)


class NoArguments(nn.Module):
    def __init__(self):
        pass


PARTS = [
    ({"before": NoArguments}, "NoArguments.__init__() takes 1", "number of channels"),
    ({"after": lambda channels: channels.size}, "AttributeError", "number of channels"),
    ({"weights": lambda: nn.ReLU()}, "takes 0 positional arguments", "a Linear or Conv2d"),
    ({"layer": takes_a_layer}, "takes_a_layer() got multiple values", "kernel_size"),
]


@pytest.mark.parametrize(("part", "raised", "rule"), PARTS)
def test_a_normaliser_with_a_mistake(part, raised, rule):
    (name,) = part
    norm = nn.Normalizer("odd", **part)
    words = f"{name}= of the normaliser 'odd', which raises", raised, rule
    assert_explained(ValueError, lambda: nn.build("C(4,3,1,1)-C(2,1,1,0)", norm=norm), *words)


def test_a_refusal_inside_a_normaliser_says_where_it_was():
    norm = nn.Normalizer("odd", layer=lambda *sizes, activation: nn.Activation("relo"))
    words = "activation 'relo', at layer= of the normaliser 'odd'", "'relu'"
    assert_explained(ValueError, lambda: nn.build("F(4)-F(2)", 3, norm=norm), *words)
