import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_close, assert_explained, leaf, make
from tinyprop import functional as F


def test_a_reused_node_gets_its_whole_gradient(backend):
    x = leaf([1.0, 2.0], backend)
    b = 2 * x
    (b + b).backward(tp.tensor(np.array([1.0, 10.0]), backend=backend))
    assert x.grad.numpy().tolist() == [4.0, 40.0]


def test_diamonds_are_walked_once_each():
    """20 diamonds in a row have 2**20 paths: a walk by paths would not end."""
    x = y = leaf(1.0)
    for _ in range(20):
        y = y + y
    y.backward()
    assert x.grad.item() == 2.0**20


def test_a_chain_of_10_000_ops():
    x = y = leaf([1.0, 1.0])
    for _ in range(10_000):
        y = y + x * 1e-4
    z = y.sum()
    z.backward(retain_graph=True)
    assert_close(x.grad, [2.0, 2.0], 1e-11)
    del y, z  # dropping a long chain must not recurse either


@given(st.integers(0, 2**32 - 1))
def test_random_graphs_have_the_gradient_that_differences_have(seed):
    def graph(x, y):
        rng = np.random.default_rng(seed)  # the same graph at every call
        nodes = [x, y]
        for _ in range(12):
            a, b = (nodes[i] for i in rng.integers(len(nodes), size=2))
            nodes.append([a + b, a - b, a * b, F.tanh(a), F.sin(b)][rng.integers(5)])
        return nodes[-1] + nodes[-2] * nodes[-3]

    rng = np.random.default_rng(seed)
    tp.check_gradients(graph, rng.uniform(-1, 1, size=(2, 3)), rng.uniform(-1, 1, size=(3,)))


def test_an_op_that_is_applied_twice_is_two_nodes():
    class Flat(tp.Op):
        def forward(self, x):
            self.shape_before = x.shape
            return x.reshape(-1)

        def backward(self, g):
            return g.reshape(self.shape_before)

    flat, x = Flat(), leaf([[1.0, 2.0], [3.0, 4.0]])
    first = flat(x)
    second = flat(first * first)
    (second.sum() + flat(x[:1]).sum()).backward()
    assert x.grad.numpy().tolist() == [[3.0, 5.0], [6.0, 8.0]]


def test_interior_gradients_never_accumulate_across_calls(backend):
    x = leaf([1.0, 2.0], backend)
    y = x * x
    z = (y * y).sum()
    z.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    z.backward()
    # those of leaves do, until they are cleared
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first)
    assert y.grad is None


def test_two_leaves_never_share_the_memory_of_a_gradient(backend):
    x, y, z = (leaf([1.0, 2.0], backend) for _ in range(3))
    seed = tp.tensor(np.ones(2), backend=backend)
    (x + y + z.reshape(2)).backward(seed)
    x.grad.data[...] = 7.0
    assert y.grad.numpy().tolist() == z.grad.numpy().tolist() == seed.numpy().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("loss", [lambda x: x.sum(), lambda x: 1.0 * x.sum()])
def test_a_gradient_that_was_broadcast_can_be_edited(loss):
    x = leaf([[1.0, 2.0]])
    loss(x).backward()
    x.grad.data[0, 0] = 5.0
    assert x.grad.numpy().tolist() == [[5.0, 1.0]]


def test_gradients_of_gradients(backend):
    x = leaf([0.5, 2.0], backend)
    (first,) = tp.grad((x**4).sum(), [x], create_graph=True)
    (second,) = tp.grad(first.sum(), x, create_graph=True)
    (third,) = tp.grad(second.sum(), [x])
    assert_close(third, 24 * x.numpy())
    assert x.grad is None
    assert not third.requires_grad
    y = (x**3).sum()
    y.backward(create_graph=True)
    slope, x.grad = x.grad, None
    assert_close(tp.grad(y, [x])[0], slope.numpy())  # create_graph=True retains the graph
    slope.sum().backward()
    assert_close(x.grad, 6 * x.numpy())


def test_grad_with_respect_to_the_output_something_in_between_and_something_unused():
    x = leaf(2.0)
    y = x * x
    z = y * y + x
    gz, gy, gx, unused = tp.grad(z, [z, y, x, leaf(1.0)], allow_unused=True)
    assert (gz.item(), gy.item(), gx.item(), unused) == (1.0, 8.0, 33.0, None)


def test_grad_computes_only_what_is_on_the_way():
    class Costly(tp.Op):
        def forward(self, x, y):
            return x + y

        def backward(self, g):
            return g, self.fail

        def fail(self):
            raise AssertionError("nobody wanted this gradient")

    x, y = leaf(1.0), leaf(2.0)
    assert tp.grad(Costly()(x, y), [x])[0].item() == 1.0


def test_grad_with_respect_to_an_inner_result_frees_nothing_below_it(backend):
    """A second loss may still go back through the layers below h."""
    x = leaf([1.0, 2.0], backend)
    h = x * x
    a, b = (h * h).sum(), (3 * h).sum()
    (slope,) = tp.grad(a, [h])
    assert slope.tolist() == [2.0, 8.0]
    b.backward()
    assert x.grad.tolist() == [6.0, 12.0]


def test_the_gradient_to_start_from_may_be_edited_afterwards(backend):
    x, v = leaf([1.0, 2.0], backend), make([1.0, 1.0], backend).data
    (g,) = tp.grad(x**3, [x], v, create_graph=True)
    v[:] = 0
    assert tp.grad(g.sum(), [x])[0].tolist() == [6.0, 12.0]


def test_an_integer_that_was_told_to_require_a_gradient_is_refused():
    n = tp.tensor(np.arange(3))
    n.requires_grad = True
    assert_explained(
        TypeError, (n * 1.5).sum().backward, "only floating-point tensors have gradients"
    )


def test_no_grad_as_context_and_decorator():
    x = leaf(1.0)

    @tp.no_grad()
    def f():
        return x * 2.0

    assert not f().requires_grad
    assert not f().requires_grad
    with tp.no_grad():
        assert not (x * 2.0).requires_grad
    assert (x * 2.0).requires_grad


def test_threads_record_independently():
    x = leaf(np.ones((100, 100)))
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def other():
        inside.wait()
        seen.append((x * 1.0).requires_grad)
        go_on.set()

    thread = threading.Thread(target=other)
    thread.start()
    with tp.no_grad():
        inside.set()
        go_on.wait()
    thread.join()
    assert seen == [True]


def test_an_op_that_forgets_an_input_raises():
    class Forgetful(tp.Op):
        def forward(self, x, y):
            return x * y

        def backward(self, g, y):
            return g * y, None

    x, y = leaf(1.0), leaf(2.0)
    assert_explained(
        tp.GradientError, Forgetful()(x, y).backward, "no gradient from Forgetful.backward"
    )
    Forgetful()(x, y.detach()).backward()
    assert x.grad.item() == 2.0


def test_backward_gets_what_it_names_in_the_order_it_names_it():
    class Ratio(tp.Op):
        def forward(self, x, y):
            return x / y

        def backward(self, g, out, y, x):
            return g * out / x, -g * out / y

    tp.check_gradients(Ratio(), np.array([1.0, 2.0]), np.array([3.0, 5.0]))
    # z is unknown, or may be missing
    for odd in (lambda op, x: x, lambda op, x, z=2.0: x, lambda op, x, *, z: x):
        rules = {"forward": odd, "backward": lambda op, g, z: g}
        words = "Odd.backward with a parameter 'z'", "(x) or out"
        assert_explained(TypeError, lambda rules=rules: type("Odd", (tp.Op,), rules), *words)


def test_an_op_of_any_number_of_inputs_saves_all_of_them(backend):
    class Product(tp.Op):
        def forward(self, *xs):
            out = xs[0]
            for x in xs[1:]:
                out = out * x
            return out

        def backward(self, g, xs, out):
            return tuple(g * out / x for x in xs)

    x, y, z = (make(np.array(v), backend) for v in ([1.0, 2.0], [3.0, 4.0], 5.0))
    tp.check_gradients(lambda *xs: Product()(*xs), x, y, z)


def test_inputs_after_the_first_are_saved_as_one_tuple(backend):
    class Weighted(tp.Op):
        """w times the sum of the squares of all xs."""

        def forward(self, w, *xs):
            return w * sum(x * x for x in xs)

        def backward(self, g, xs, out, w):
            return g * out / w, *(2.0 * g * w * x for x in xs)

    w, x, y = (make(np.array(v), backend) for v in ([1.0, 2.0], [3.0, 4.0], 5.0))
    tp.check_gradients(Weighted(), w, x, y)
    tp.check_gradients(Weighted(), w, x)
    assert Weighted()(leaf(2.0, backend), 3.0, 1.0).item() == 20.0  # numbers stay numbers


@pytest.mark.parametrize(
    "error", [ValueError("three is too many"), IndexError("no such row"), KeyError("name")]
)
def test_an_exception_in_forward_keeps_its_type_its_message_and_its_traceback(error):
    class Failing(tp.Op):
        def forward(self, x):
            self.fail()

        def fail(self):
            raise error

    with pytest.raises(type(error)) as caught:
        Failing()(leaf([1.0]))
    assert caught.value is error
    assert caught.traceback[-1].name == "fail"


def backward_that_returns(value):
    class Sum3(tp.Op):
        def forward(self, x, y, z):
            return x + y + z

        def backward(self, g):
            return value(g)

    return lambda: Sum3()(*(leaf([1.0, 2.0]) for _ in range(3))).sum().backward()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda g: (g, g), "2 gradients from Sum3.backward for 3 inputs"),
        (lambda g: g, "1 gradients from Sum3.backward for 3 inputs"),
        (lambda g: (g,) * 4, "4 gradients from Sum3.backward for 3 inputs"),
        (lambda g: (g, g.data, g), "a ndarray from Sum3.backward"),
        (lambda g: (g, lambda: 1.0, g), "a float from Sum3.backward"),
        (lambda g: (g, g[:0], g), "a gradient of shape (0,) from Sum3.backward"),
        (
            lambda g: (g, F.stack([g, g]).reshape(4), g),
            "a gradient of shape (4,) from Sum3.backward",
        ),
    ],
)
def test_wrong_gradients_of_an_op_are_explained(value, words):
    assert_explained(tp.GradientError, backward_that_returns(value), words)


class Round(tp.Op):
    def forward(self, x):
        return x.round()


class Talk(tp.Op):
    def forward(self, x):
        return "hello"


def twice(y):
    y.backward()
    y.backward()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x: Round()(x).backward(),
            tp.GradientError,
            ["gradient of Round", "never substitutes zeros"],
        ),
        (lambda x: Talk()(x), TypeError, ["Talk.forward returned a str"]),
        (
            lambda x: F.stack([x, x]).backward(),
            tp.GradientError,
            ["(2,)", "needs a scalar", "sum()"],
        ),
        (
            lambda x: x.detach().backward(),
            tp.GradientError,
            ["does not require one", "requires_grad=True"],
        ),
        (
            lambda x: tp.grad(x * 2.0, [x, leaf([1.0, 2.0], x.backend)]),
            tp.GradientError,
            ["(2,)", "depend"],
        ),
        (lambda x: tp.grad(x * x, [x], np.ones(3)), tp.ShapeError, ["(3,)", "()"]),
        (lambda x: twice(x * x), tp.GradientError, ["freed", "retain_graph=True"]),
    ],
)
def test_refusals_are_explained(backend, call, error, words):
    assert_explained(error, lambda: call(leaf(1.5, backend)), *words)
