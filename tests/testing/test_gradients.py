"""check_gradients finds wrong gradients of inputs and of parameters, also small ones."""

import numpy as np
import pytest

import tinyprop as tp


class Product(tp.Op):
    """x * w, with a gradient with respect to w that is too large by a factor."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x, w):
        return x * w

    def backward(self, g, x, w):
        return g * w, self.factor * g * x


class Scale(tp.nn.Module):
    def __init__(self, factor, size):
        self.factor = factor
        self.weight = tp.tensor(np.linspace(1.0, 2.0, 3) * size, requires_grad=True)

    def forward(self, x):
        return Product(self.factor)(x, self.weight)


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e8])
def test_a_wrong_gradient_of_a_parameter_is_found_at_any_scale(size):
    x = size * np.linspace(0.5, 1.5, 3)
    tp.check_gradients(Scale(1.0, 1.0), x)
    with pytest.raises(tp.GradientError, match=r"weight"):
        tp.check_gradients(Scale(1.01, 1.0), x)


def test_the_module_stays_as_it_is():
    net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.BatchNorm(2))
    before = {name: value.copy() for name, value in net.state_dict().items()}
    tp.check_gradients(net, np.random.default_rng(0).standard_normal((4, 3)))
    for name, value in net.state_dict().items():
        assert np.array_equal(value, before[name])
        assert value.dtype == before[name].dtype


@pytest.mark.parametrize("seed", [3, 11])
def test_rounding_errors_of_a_projection_are_not_taken_for_0(seed):
    """A random projection of the output is a sum of terms of both signs, each of which rounds."""
    x = np.random.default_rng(seed).standard_normal((2, 4, 3, 6))
    tp.check_gradients(tp.nn.BatchNorm(4), x, order=1, seed=seed)


class Chain(tp.nn.Module):
    """Many parameters, one of which has a gradient that is wrong by 1 % in one of its elements."""

    def __init__(self, depth, wrong):
        self.layers = [tp.nn.Linear(10, 10) for _ in range(depth)]
        self.wrong = wrong

    def forward(self, x):
        factor = np.ones((10, 10))
        factor[3, 7] = 1.01
        for i, layer in enumerate(self.layers):
            weight = Product(factor)(tp.ones(1, dtype="float64"), layer.weight)
            x = tp.functional.tanh(x @ (weight if i == self.wrong else layer.weight).T)
        return x


def test_many_parameters_share_a_budget_and_one_wrong_element_is_found(monkeypatch):
    """Some elements of each, and a random direction, which sees all of them."""
    tp.manual_seed(1)
    x = np.random.default_rng(0).standard_normal((2, 10))
    calls = []
    forward = Chain.forward
    monkeypatch.setattr(Chain, "forward", lambda *args: calls.append(1) or forward(*args))
    tp.check_gradients(Chain(40, None), x, order=1)
    assert len(calls) < 20 * tp.testing.gradients.BUDGET
    with pytest.raises(tp.GradientError, match=r"parameter 'layers\.25\.weight', index \(3, 7\)"):
        tp.check_gradients(Chain(40, 25), x, order=1)


class OneElement(tp.Op):
    """x^2, with a gradient that is wrong by 1 % in one element."""

    def __init__(self, place):
        self.place = place

    def forward(self, x):
        return x * x

    def backward(self, g, x):
        factor = np.ones(x.shape)
        factor.reshape(-1)[self.place] = 1.01
        return 2.0 * g * x * factor


@pytest.mark.parametrize("seed", range(10))
def test_one_wrong_element_of_many_is_found_and_named(seed):
    random = np.random.default_rng(seed)
    x = random.uniform(0.5, 2.0, (100, 100))
    row, column = random.integers(100, size=2)
    with pytest.raises(tp.GradientError, match=rf"order 1, input 0, index \({row}, {column}\)"):
        tp.check_gradients(OneElement(100 * row + column), x, order=1, seed=seed)
