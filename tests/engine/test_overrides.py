import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import leaf, make, run_python
from tinyprop.engine import context, overrides
from tinyprop.engine.overrides import overridable, override


@pytest.fixture(autouse=True)
def _scratch_table(monkeypatch):
    """What a test registers is forgotten afterwards; and overrides are on, also in a run of the
    suite without them."""
    for backend, rules in overrides.table.items():
        monkeypatch.setitem(overrides.table, backend, dict(rules))
    before = context.enter(context.current().changed(plain=False))
    yield
    context.leave(before)


class Twice(tp.Op):
    """2 x, and who computed it."""

    def forward(self, x):
        self.by = "rule"
        return 2 * x

    def backward(self, g, x):
        return 2 * g


def twice(x):
    op = Twice()
    return op, op(x)


def test_the_first_that_does_not_decline_is_taken(backend):
    asked = []

    @override(Twice.forward)
    def declines(op, x):
        asked.append("first")
        return NotImplemented

    @override(Twice.forward)
    def accepts(op, x):
        asked.append("second")
        op.by = "override"
        return x + x

    @override(Twice.forward)
    def never_asked(op, x):
        raise AssertionError

    op, y = twice(leaf([1.0], backend))
    assert (op.by, y.tolist(), asked) == ("override", [2.0], ["first", "second"])
    used = {
        str(entry): entry.used
        for entry in tp.overrides()
        if entry.rule is Twice.forward and entry.backend == backend
    }
    assert list(used.values()) == [False, True, False]
    assert f"Twice.forward on {backend}: {__name__}.accepts" in used


def test_an_override_is_for_its_backend_only():
    @override(Twice.forward, on="cupy")
    def on_a_device(op, x):
        raise AssertionError

    assert twice(leaf([1.0]))[0].by == "rule"


def test_plain_asks_nobody(backend):
    @override(Twice.forward)
    def forward(op, x):
        raise AssertionError

    @override(Twice.backward)
    def backward(op, g, x):
        raise AssertionError

    with tp.plain():
        op, y = twice(leaf([1.0], backend))
        y.backward()
    assert op.by == "rule"
    with pytest.raises(AssertionError):
        twice(leaf([1.0], backend))


def test_a_backward_override_gets_arrays_and_is_not_asked_for_a_gradient_of_the_gradient(backend):
    seen = []

    @override(Twice.backward)
    def backward(op, g, x):
        seen.append((type(g), type(x)))
        return g + g

    x = leaf([1.0], backend)
    _, y = twice(x)
    (recorded,) = tp.grad(y, [x], create_graph=True)
    assert not seen
    assert tp.grad(y, [x])[0].tolist() == recorded.tolist() == [2.0]
    assert seen == [(type(x.data), type(x.data))]


def test_what_a_backward_override_may_return(backend):
    class Product(tp.Op):
        def forward(self, x, y, z):
            return x * y * z

        def backward(self, g, x, y, z):
            return g * y * z, g * x * z, g * x * y

    def unwanted():
        raise AssertionError

    @override(Product.backward)
    def backward(op, g, x, y, z):
        return g * y * z, (lambda: g * x * z), (unwanted if op.lazy else None)

    op, leaves = Product(), [leaf([2.0], backend), leaf([3.0], backend), make([5.0], backend)]
    op.lazy = True
    first, second = tp.grad(op(*leaves), leaves[:2])
    assert (first.tolist(), second.tolist()) == ([15.0], [10.0])
    op.lazy, leaves[2] = False, leaf([5.0], backend)
    with pytest.raises(tp.GradientError, match="no gradient from Product"):
        op(*leaves).backward()


def test_a_backward_override_gets_any_number_of_inputs_as_a_tuple(backend):
    class Product(tp.Op):
        def forward(self, x, *ys):
            return x * ys[0] * ys[1]

        def backward(self, g, ys, x):
            raise AssertionError

    @override(Product.backward)
    def backward(op, g, ys, x):
        assert isinstance(ys, tuple)
        y, z = ys
        return g * y * z, g * x * z, g * x * y

    leaves = [leaf([v], backend) for v in (2.0, 3.0, 5.0)]
    slopes = tp.grad(Product()(*leaves), leaves)
    assert [slope.item() for slope in slopes] == [15.0, 10.0, 6.0]


def test_an_override_may_keep_something_for_backward_in_the_cache(backend):
    @override(Twice.forward)
    def forward(op, x):
        if op.recorded:
            op.cache["factor"] = 2.0
        return 2 * x

    @override(Twice.backward)
    def backward(op, g, x):
        return g * op.cache["factor"] if op.cache else NotImplemented

    x = leaf([1.0], backend)
    op, y = twice(x)
    assert op.cache == {"factor": 2.0}
    assert op(x).node.cache is not op.cache
    y.backward()
    assert op.cache == {}
    with tp.no_grad():
        assert twice(x)[0].cache == {}
    with tp.plain():
        _, y = twice(x)
    y.backward()
    assert x.grad.tolist() == [4.0]


def test_plain_functions_can_be_overridden_too(backend):
    @overridable
    def scale(arrays, factor):
        """Multiply in place."""
        for array in arrays:
            array *= factor

    @override(scale)
    def faster(arrays, factor):
        if factor == 3:
            return NotImplemented
        arrays[0][...] = -1

    array = make(np.ones(2), backend).data
    scale([array], 3)
    assert array.tolist() == [3.0, 3.0]
    scale([array], factor=2)
    assert array.tolist() == [-1.0, -1.0]
    assert scale.__doc__ == "Multiply in place."


def test_plain_by_the_environment():
    code = (
        "import tinyprop as tp; from tinyprop.engine import context; print(context.current().plain)"
    )
    for value, expected in (("1", "True"), ("0", "False"), ("", "False")):
        assert run_python(code, TINYPROP_PLAIN=value).stdout.strip() == expected
