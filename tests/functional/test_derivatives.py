"""Jacobians, Hessians, products with them; and the check of gradients, which must find what is
wrong, and say where."""

import re

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained, leaf, make
from tinyprop import functional as F
from tinyprop.engine.graph import recording_now

A = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0]])


def quartic(x):
    """A function with a Hessian that depends on x: sum of A x^2 times sum of x^2."""
    return (tp.tensor(A, backend=x.backend) @ (x * x)).sum() * (x * x).sum()


def test_jacobian_of_a_linear_map_is_its_matrix(backend):
    x = make(np.array([1.0, 2.0, 3.0]), backend)
    j = tp.jacobian(lambda x: make(A, backend) @ x, x)
    assert_close(j, A)
    assert isinstance(j, tp.Tensor)
    assert not j.requires_grad
    assert tp.jacobian(lambda x: x.reshape(3, 1) * x, x).shape == (3, 3, 3)
    assert tp.jacobian(lambda x: x[:0], x).shape == (0, 3)


def test_jacobian_is_differentiable_where_its_input_is(backend):
    x = leaf([1.0, 2.0], backend)
    j = tp.jacobian(lambda x: x**3, x)
    assert_close(j, [[3, 0], [0, 12]])
    assert_close(tp.grad(j.sum(), [x])[0], [6, 12])
    assert x.grad is None


def test_a_jacobian_inside_a_jacobian_may_use_the_outer_variable(backend):
    x, y = make(np.array([1.0, 2.0]), backend), make(np.array([3.0, 4.0]), backend)
    j = tp.jacobian(lambda x: tp.jacobian(lambda y: x * y * y, y).sum() + x.sum(), x)
    assert_close(j, [2 * 3 + 1, 2 * 4 + 1])
    push = tp.jacobian(lambda x: tp.jvp(lambda y: x * y * y, y, y)[1].sum() + x.sum(), x)
    assert_close(push, [2 * 3 * 3 + 1, 2 * 4 * 4 + 1])


def test_derivatives_need_no_recording_around_them(backend):
    x, v = make(np.array([1.0, 2.0]), backend), make(np.array([1.0, 10.0]), backend)
    with tp.no_grad():
        for point in (x, leaf(x.numpy(), backend)):
            assert_close(tp.jacobian(lambda x: x * x, point), [[2, 0], [0, 4]])
            assert_close(tp.hessian(lambda x: (x**3).sum(), point), [[6, 0], [0, 12]])
            assert_close(tp.jvp(lambda x: x * x, point, v)[1], [2, 40])
            assert not tp.jacobian(lambda x: x * x, point).requires_grad


@tp.no_grad()
def without_a_graph(x):
    return x * x


@pytest.mark.parametrize(
    "f",
    [
        without_a_graph,
        lambda x: x.detach() * 2,
        lambda x: tp.tensor(x.numpy()),
        lambda x: tp.ones(2),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_function_that_records_no_graph_is_refused_instead_of_giving_zeros(f, requires_grad):
    x = make([1.0, 2.0], "numpy", requires_grad)
    for derivative in (tp.jacobian, tp.hessian, lambda f, x: tp.jvp(f, x, tp.ones(2))):
        assert_explained(
            tp.GradientError,
            lambda d=derivative: d(f, x),
            "does not depend on its input through a graph",
        )


def test_a_result_that_depends_only_on_others_is_refused_too():
    w = make([2.0], "numpy", requires_grad=True)
    for f in (lambda x: w * x.detach(), lambda x: w):
        assert_explained(
            tp.GradientError, lambda f=f: tp.jacobian(f, tp.ones(1)), "does not depend on its input"
        )
    assert tp.jacobian(lambda x: tp.functional.concatenate([w, x]), tp.ones(1)).tolist() == [
        [0.0],
        [1.0],
    ]


def test_integers_have_no_derivatives():
    n = tp.tensor(np.array([1, 2]))
    for derivative in (tp.jacobian, tp.hessian, lambda f, x: tp.jvp(f, x, n)):
        assert_explained(
            TypeError, lambda d=derivative: d(lambda x: (x * 0.5).sum(), n), "only floating-point"
        )


def test_hessian(backend):
    x = make(np.array([0.5, -1.0, 2.0]), backend)
    h = tp.hessian(quartic, x).numpy()
    assert_close(tp.jacobian(lambda x: tp.jacobian(quartic, x), x), h)
    a, s, q, point = A.sum(axis=0), (A @ x.numpy() ** 2).sum(), (x.numpy() ** 2).sum(), x.numpy()
    assert_close(
        h,
        2 * np.diag(a) * q
        + 2 * np.eye(3) * s
        + 4 * (np.outer(a * point, point) + np.outer(point, a * point)),
    )
    assert not tp.hessian(lambda x: x.sum(), x).numpy().any()  # linear: true zeros
    assert tp.hessian(lambda x: (x**3).sum(), make(np.ones((2, 2)), backend)).shape == (2, 2, 2, 2)
    w = leaf([1.0, 2.0], backend)
    assert_close(tp.grad(tp.hessian(lambda x: (x**4).sum(), w).sum(), [w])[0], [24, 48])
    assert_explained(tp.ShapeError, lambda: tp.hessian(lambda x: x * x, x), "(3,)", "scalar")


def test_jvp_is_the_jacobian_times_a_vector(backend):
    x, v = make(np.array([0.5, -1.0, 2.0]), backend), make(np.array([1.0, 2.0, -3.0]), backend)
    f = lambda x: make(A, backend) @ F.exp(x)  # noqa: E731
    y, pushed = tp.jvp(f, x, v)
    assert_close(y, f(x).numpy())
    assert_close(pushed, tp.jacobian(f, x).numpy() @ v.numpy())
    assert_close(tp.jvp(lambda x: x, x, v)[1], v.numpy())
    assert_explained(tp.ShapeError, lambda: tp.jvp(f, x, v[:2]), "(3,)", "(2,)")


def test_a_jvp_is_differentiable(backend):
    x, v = leaf([1.0, 2.0], backend), leaf([3.0, 5.0], backend)
    _, pushed = tp.jvp(lambda x: x**3, x, v)
    dx, dv = tp.grad(pushed.sum(), [x, v])
    assert_close(dx, [6 * 1 * 3, 6 * 2 * 5])
    assert_close(dv, [3, 12])


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
def test_a_wrong_element_is_found_and_named_with_both_numbers(size):
    x = np.linspace(-1, 1, size)
    tp.check_gradients(Cube(), x, order=3 if size == 6 else 2, tolerance=1e-5)
    with pytest.raises(
        tp.GradientError, match=r"(?s)order 1, input 0, index \(5,\).*rule:.*try:"
    ) as caught:
        tp.check_gradients(Cube(bend=0.01), x)
    said, measured = map(float, re.findall(r"(?:is|give) (-?[\d.e-]+)", str(caught.value)))
    assert said / measured == pytest.approx(1 + 0.01 / (3 * x[5] ** 2), rel=1e-6)


def test_a_wrong_second_derivative_is_found_at_order_two_only():
    x = np.linspace(0.5, 1, 6)
    tp.check_gradients(Cube(second=0.9), x, order=1)
    with pytest.raises(tp.GradientError, match="order 2, input 0"):
        tp.check_gradients(Cube(second=0.9), x)


@pytest.mark.parametrize("size", [6, 200])
def test_a_wrong_recorded_gradient_is_found(size):
    """Its gradient is right, but the recorded gradient is not."""

    class TwoFaced(tp.Op):
        def forward(self, x):
            return x**3

        def backward(self, g, x):
            return g * 3 * x * x * (2.0 if recording_now() else 1.0)

    for order in (1, 2):
        with pytest.raises(
            tp.GradientError, match=r"(?s)order 1, input 0.*\(recorded\).*rule:.*try:"
        ):
            tp.check_gradients(TwoFaced(), np.linspace(0.5, 1, size), order=order)


def test_the_right_input_is_named():
    with pytest.raises(tp.GradientError, match=r"input 1, index \(5,\)"):
        tp.check_gradients(
            lambda x, y: x.sum() * Cube(bend=1.0)(y), np.ones(2), np.linspace(0.1, 1, 8)
        )


def test_functions_of_some_inputs_or_none_and_of_float32_are_checked_in_float64():
    seen = []
    tp.check_gradients(lambda x, y: x * 2.0, np.ones(3), np.ones(2))
    tp.check_gradients(lambda x: tp.tensor(np.ones(2)), np.ones(3))
    tp.check_gradients(lambda x: x, np.ones(3))
    tp.check_gradients(lambda x: seen.append(x.dtype) or x * x, tp.tensor([1.0, 2.0]))
    assert set(seen) == {np.dtype(np.float64)}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused(bad):
    with pytest.raises(tp.GradientError, match=r"(?s)input 0 with NaN.*rule:.*try:"):
        tp.check_gradients(lambda x: x, np.array([1.0, bad]))
    with pytest.raises(tp.GradientError, match=r"(?s)a result with NaN.*rule:.*try:"):
        tp.check_gradients(lambda x: x * bad, np.array([1.0]))
