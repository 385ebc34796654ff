"""The check of gradients, checked: it must find what is wrong, and say where."""

import re

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import functional as F


class Cube(tp.Op):
    """x**3 with a gradient that can be bent at one element, and a second one that can be wrong."""

    def __init__(self, bend=0.0, second=1.0):
        self.bend, self.second = bend, second

    def forward(self, x):
        return x**3

    def backward(self, g, x):
        bend = np.zeros(x.shape)
        bend.flat[5] = self.bend
        slope = 3 * x * x * self.second + 3 * x.detach() ** 2 * (1 - self.second)
        return g * (slope + tp.tensor(bend))


@pytest.mark.parametrize("size", [6, 200])
def test_a_right_gradient_passes(size):
    tp.check_gradients(Cube(), np.linspace(-1, 1, size))


@pytest.mark.parametrize("size", [6, 200])
def test_a_wrong_element_is_found_and_named_with_both_numbers(size):
    x = np.linspace(-1, 1, size)
    with pytest.raises(tp.GradientError, match=r"(?s)order 1, input 0, index \(5,\).*rule:.*try:") as caught:
        tp.check_gradients(Cube(bend=0.01), x)
    said, measured = map(float, re.findall(r"says? (-?[\d.e-]+)", str(caught.value)))
    assert said / measured == pytest.approx(1 + 0.01 / (3 * x[5] ** 2), rel=1e-6)


def test_a_wrong_second_derivative_is_found_at_order_two_only():
    x = np.linspace(0.5, 1, 6)
    tp.check_gradients(Cube(second=0.9), x, order=1)
    with pytest.raises(tp.GradientError, match="order 2, input 0"):
        tp.check_gradients(Cube(second=0.9), x)


def test_the_right_input_is_named():
    with pytest.raises(tp.GradientError, match=r"input 1, index \(5,\)"):
        tp.check_gradients(lambda x, y: x.sum() * Cube(bend=1.0)(y), np.ones(2), np.linspace(0.1, 1, 8))


def test_a_gradient_that_only_a_sum_would_accept_is_caught():
    """softmax(x).sum() is 1 for every x: without a random cotangent any gradient would do."""

    class Bad(tp.Op):
        def forward(self, x):
            e = np.exp(x)
            return e / e.sum()

        def backward(self, g):
            return g * 0.0

    with pytest.raises(tp.GradientError):
        tp.check_gradients(Bad(), np.linspace(-1, 1, 5))


def test_functions_that_do_not_depend_on_an_input():
    tp.check_gradients(lambda x, y: x * 2.0, np.ones(3), np.ones(2))
    tp.check_gradients(lambda x: tp.tensor(np.ones(2)), np.ones(3))


def test_float32_inputs_are_checked_in_float64():
    seen = []
    tp.check_gradients(lambda x: seen.append(x.dtype) or x * x, tp.tensor([1.0, 2.0]))
    assert set(seen) == {np.dtype(np.float64)}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused(bad):
    with pytest.raises(tp.GradientError, match=r"(?s)input 0 with NaN.*rule:.*try:"):
        tp.check_gradients(lambda x: x, np.array([1.0, bad]))
    with pytest.raises(tp.GradientError, match=r"(?s)a result with NaN.*rule:.*try:"):
        tp.check_gradients(lambda x: x * bad, np.array([1.0]))


def test_third_order():
    tp.check_gradients(lambda x: F.sin(x) * F.exp(x), np.linspace(-1, 1, 4), order=3, tolerance=1e-5)
