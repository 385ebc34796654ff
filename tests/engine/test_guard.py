"""What the graph refuses: missing rules, graphs that are gone, and edits in place of what it needs."""

import subprocess
import sys

import numpy as np
import pytest

import tinyprop as tp


def leaf(values, backend="numpy", dtype=np.float64):
    return tp.tensor(np.asarray(values, dtype), requires_grad=True, backend=backend)


# -- what is refused


def test_an_op_without_a_rule_raises():
    class Round(tp.Op):
        def forward(self, x):
            return x.round()

    y = Round()(leaf(1.5))
    with pytest.raises(tp.GradientError, match=r"(?s)gradient of Round.*rule:.*try:"):
        y.backward()


def test_an_op_that_forgets_an_input_raises():
    class Forgetful(tp.Op):
        def forward(self, x, y):
            return x * y

        def backward(self, g, y):
            return g * y, None

    x, y = leaf(1.0), leaf(2.0)
    with pytest.raises(tp.GradientError, match=r"(?s)no gradient from Forgetful.*rule:.*try:"):
        Forgetful()(x, y).backward()
    Forgetful()(x, y.detach()).backward()
    assert x.grad.item() == 2.0


def test_backward_gets_what_it_names_in_the_order_it_names_it():
    class Ratio(tp.Op):
        def forward(self, x, y):
            return x / y

        def backward(self, g, out, y, x):
            return g * out / x, -g * out / y

    tp.check_gradients(Ratio(), np.array([1.0, 2.0]), np.array([3.0, 5.0]))
    with pytest.raises(TypeError, match=r"(?s)Odd.backward with a parameter 'z'.*rule:.*\(x\) or out.*try:"):

        class Odd(tp.Op):
            def forward(self, x):
                return x

            def backward(self, g, z):
                return g


def test_backward_on_a_non_scalar_needs_a_gradient(backend):
    with pytest.raises(tp.GradientError, match=r"(?s)\(2,\).*rule:.*try:.*sum\(\)"):
        (leaf([1.0, 2.0], backend) * 2.0).backward()


def test_backward_of_a_constant_is_refused():
    with pytest.raises(tp.GradientError, match=r"(?s)does not require.*rule:.*try:"):
        tp.tensor(1.0).backward()


# -- edits in place of what the graph needs


def test_an_edit_of_a_saved_array_is_refused_until_the_graph_is_gone():
    source = np.array([1.0, 2.0])
    x = tp.tensor(source, requires_grad=True)
    y = (x * x).sum()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5.0
    with pytest.raises(ValueError, match="read-only"):
        source += 1.0
    y.backward()
    assert x.grad.numpy().tolist() == [2.0, 4.0]
    x.data[0] = 5.0
    assert source[0] == 5.0


def test_an_edit_through_the_owner_of_a_view_is_refused():
    x = leaf(np.ones((2, 2)))
    y = x.reshape(4)
    z = (y * y).sum()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0, 0] = 5.0
    del z
    x.data[0, 0] = 5.0
    y.data[1] = 6.0


def test_what_two_graphs_need_is_free_when_both_are_gone():
    x = leaf([1.0])
    a, b = x * x, x * x
    a.backward()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5.0
    del b
    x.data[0] = 5.0


def test_an_array_that_was_read_only_stays_so():
    source = np.array([1.0])
    source.flags.writeable = False
    (tp.tensor(source, requires_grad=True) ** 2).backward()
    assert not source.flags.writeable


def test_updates_by_tinyprop_explain_themselves(backend):
    x = leaf([1.0], backend)
    y = x * x
    with pytest.raises(tp.BackendError, match=r"(?s)got:.*the weights.*rule:.*still needs.*try:.*no_grad"):
        tp.engine.arrays.check_editable(x.data, "the weights")
    del y
    tp.engine.arrays.check_editable(x.data, "the weights")


def test_data_may_be_set_while_a_graph_is_alive(backend):
    """The graph keeps the array it was computed with, so its gradient stays right."""
    x = leaf([1.0, 2.0], backend)
    y = (x * x).sum()
    x.data = tp.tensor(np.array([10.0, 20.0]), backend=backend).data
    y.backward()
    assert x.grad.numpy().tolist() == [2.0, 4.0]


def test_a_program_that_ends_with_a_live_graph_is_silent():
    code = "import tinyprop as tp; x = tp.tensor([1.0], requires_grad=True); y = x * x; import gc; gc.disable()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
