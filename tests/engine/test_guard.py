"""The guard against edits in place: what a graph needs is read-only, and writeable again when the
graph is gone."""

import copy
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, leaf, make, run_python
from tinyprop.engine import guard


def read_only():
    return pytest.raises(ValueError, match="read-only")


@pytest.fixture(autouse=True)
def _nothing_stays_frozen():
    yield
    gc.collect()
    assert not guard._frozen


def test_an_edit_of_a_saved_array_is_refused_until_the_graph_is_gone():
    """Of an array that came from outside, of one that was handed out before, and of an intermediate
    result."""
    source, w = np.array([1.0, 2.0]), leaf([1.0, 1.0])
    x, before = tp.from_numpy(source, requires_grad=True), w.data
    h = x + 1.0
    y = (x * w * h).sum()
    for array in (source, x.data, before, h.data):
        with read_only():
            array[0] = 5.0
    y.backward()
    assert x.grad.tolist() == [3.0, 5.0]
    for array in (h.data, before, x.data):
        array[0] = 5.0
    assert source[0] == 5.0
    source.flags.writeable = False  # what was read-only stays so
    (tp.from_numpy(source, requires_grad=True) ** 2).sum().backward()
    assert not source.flags.writeable


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape(4),
        lambda x: x.T,
        lambda x: x[0],
        lambda x: x.T[0],
        lambda x: x.detach(),
    ],
)
def test_views_share_the_guard_of_their_owner(view):
    x = leaf(np.ones((2, 2)))
    y = view(x)
    z = leaf(np.ones(1)) * y
    with read_only():
        x.data[0, 0] = 5.0
    with read_only():
        y.data[0] = 5.0
    del z
    x.data[0, 0] = 5.0
    y.data[...] = 6.0
    assert x.data[0, 0] == 6.0


def test_two_tensors_on_one_array_and_on_a_view_of_it():
    """The view becomes writeable again even if its owner is released later."""
    array = np.ones(4)
    view = array[1:]
    a, b = tp.from_numpy(array, requires_grad=True), tp.from_numpy(view, requires_grad=True)
    first, second = a * a, b * b
    del second
    with read_only():
        view[0] = 5.0
    del first
    view[0] = array[0] = 5.0


def test_memory_is_writeable_again_when_the_last_of_several_graphs_is_gone():
    """In whatever order they go."""
    array = np.ones(4)
    for first, last in ((0, 1), (1, 0)):
        tensors = [tp.from_numpy(a, requires_grad=True) for a in (array[:2], array[1:])]
        views = [t.data for t in tensors]
        graphs = [t * 2.0 for t in tensors]
        graphs[first] = None
        for a in (array, *views):
            with read_only():
                a[0] = 5.0
        graphs[last] = None
        for a in (array, *views):
            a[0] = 1.0


def test_updates_by_tinyprop_explain_themselves(backend):
    x = leaf([1.0], backend)
    y = x * x
    assert_explained(
        tp.EditError,
        lambda: guard.check_editable(x, "the weights"),
        "the weights",
        "(1,)",
        "no_grad",
    )
    del y
    guard.check_editable(x)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.reshape(2, 1) * 2.0,
        lambda x: x.reshape(2, 1).T * 2.0,
        lambda x: x.detach() * x,
        lambda x: tp.grad((x**3).sum(), [x], create_graph=True)[0],
    ],
    ids=["view", "view of a view", "detached", "gradient"],
)
def test_an_update_is_refused_while_a_graph_needs_the_memory_in_another_way(backend, use):
    x = leaf([1.0, 2.0], backend)
    y = use(x)
    assert_explained(tp.EditError, lambda: guard.check_editable(x), "still needs the old values")
    del y
    guard.check_editable(x)


def test_a_tensor_that_was_converted_for_an_op_may_be_edited(backend):
    """The op saved the converted copy."""
    n, x = make(np.array([1, 2]), backend), leaf([1.0, 1.0], backend)
    y = (x * n).sum()
    n.data[0] = 5
    y.backward()
    assert x.grad.tolist() == [1.0, 2.0]


def test_data_may_be_set_while_a_graph_is_alive(backend):
    """The graph keeps the array it was computed with, so its gradient stays right."""
    x = leaf([1.0, 2.0], backend)
    y = (x * x).sum()
    x.data = make(np.array([10.0, 20.0]), backend).data
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


# Memory of other libraries cannot be made read-only: it is copied when it is saved.


def torch_memory():
    tensor = pytest.importorskip("torch").ones(3, dtype=pytest.importorskip("torch").float64)
    return tensor.numpy(), tensor


def strided_memory():
    owner = np.ones(5)
    return np.lib.stride_tricks.as_strided(owner, (3,), (8,)), owner


@pytest.mark.parametrize(
    "memory", [pytest.param(torch_memory, marks=pytest.mark.slow), strided_memory]
)
def test_memory_of_another_library_is_copied_and_does_not_disable_the_guard(memory):
    array, owner = memory()
    x = tp.from_numpy(array, requires_grad=True)
    y = (x * x).sum()
    owner[0] = 100.0  # unnoticed, and harmless
    y.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    test_an_edit_of_a_saved_array_is_refused_until_the_graph_is_gone()


def test_the_copy_of_foreign_memory_is_guarded_by_itself():
    """Two graphs save a copy each, and the one that lives longer saves its copy once more."""
    array, owner = strided_memory()
    x = tp.from_numpy(array, requires_grad=True)
    short, long = x * x, x * x * x
    (slope,) = tp.grad(long.sum(), [x], create_graph=True)
    del long
    owner[0] = 100.0  # unnoticed, and harmless
    (curvature,) = tp.grad(slope.sum(), [x])
    assert curvature.tolist() == [6.0, 6.0, 6.0]
    del slope, short


def doubled_by_torch(x):
    return pytest.importorskip("torch").tensor(x).mul(2).numpy()


def doubled_by_strides(x):
    return np.lib.stride_tricks.as_strided(2 * x, x.shape, x.strides)


@pytest.mark.parametrize(
    "doubled", [pytest.param(doubled_by_torch, marks=pytest.mark.slow), doubled_by_strides]
)
def test_a_result_in_memory_of_another_library_can_be_edited_without_harm(doubled):
    class Doubled(tp.Op):
        def forward(self, x):
            return doubled(x)

        def backward(self, g):
            return g * 2

    x = leaf([1.0])
    y = Doubled()(x)
    z = y * y
    y.data[0] = 100.0
    z.backward()
    assert x.grad.tolist() == [8.0]


def test_an_op_that_returns_its_second_input_hands_on_its_guard():
    class Second(tp.Op):
        def forward(self, x, y):
            return y

        def backward(self, g):
            return g * 0.0, g

    x, y = leaf([1.0]), leaf([2.0])
    out = Second()(x, y)
    z = out * out
    with read_only():
        y.data[0] = 5.0
    del z


@pytest.mark.parametrize(
    ("use", "array", "expected"),
    [
        (lambda x, a: x[a], [0, 0, 1], [[2, 2, 2], [1, 1, 1]]),
        (lambda x, a: x[:, a], [2, 0, 2], [[1, 0, 2], [1, 0, 2]]),
        (lambda x, a: x[a, 0], [True, False], [[1, 0, 0], [0, 0, 0]]),
        (lambda x, a: x[a], [True, False], [[1, 1, 1], [0, 0, 0]]),
        (lambda x, a: F.where(a, x, 0.0), [True, True, False], [[1, 1, 0], [1, 1, 0]]),
        (lambda x, a: x * a, [1.0, 2.0, 3.0], [[1, 2, 3], [1, 2, 3]]),
        (lambda x, a: F.nll_loss(x, a, "sum"), [0, 2], [[-1, 0, 0], [0, 0, -1]]),
        (lambda x, a: F.cross_entropy(x * 1e9, a, "sum") * 1e-9, [0, 1], [[-1, 0, 1], [0, -1, 1]]),
    ],
)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_what_is_edited_after_use_changes_no_gradient(backend, kind, use, array, expected):
    if backend == "cupy" and expected in ([[1, 1, 0], [1, 1, 0]], [[1, 2, 3], [1, 2, 3]]):
        pytest.skip("operands on a device are not guarded, as the docstring of Tensor.data says")
    x, given = leaf([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], backend), make(np.array(array), backend)
    out = use(x, given if kind == "tensor" else given.data)
    try:
        given.data[...] = given.data[::-1].copy()
    except ValueError:  # or the edit is refused
        assert not given.data.flags.writeable
    assert tp.grad(out.sum(), [x])[0].tolist() == expected


class Probe(tp.Op):
    """x * x, with something in its cache."""

    def forward(self, x):
        if self.recorded:
            self.cache["big"] = np.zeros(10)
            self.cache_alive = weakref.ref(self.cache["big"])
        return x * x

    def backward(self, g, x):
        return 2 * g * x


def test_backward_or_dropping_a_graph_releases_what_was_saved_and_cached():
    x, op = leaf(np.ones(10)), Probe()
    h = x + 1.0
    y = op(h) * 1.0
    saved = weakref.ref(h._data)
    del h
    gc.collect()
    assert saved() is not None
    y.backward(np.ones(10))
    assert saved() is None, "without the help of the garbage collector"
    assert op.cache_alive() is None
    assert op.cache == {}
    alive = weakref.ref(op)
    del op
    assert alive() is None, "the graph lives on after backward, while its result is still in scope"
    op = Probe()
    h = x + 1.0
    y = op(h)
    saved, cached = weakref.ref(h._data), op.cache_alive
    del h, op, y  # a graph that is dropped releases everything, too
    assert saved() is None
    assert cached() is None
    x.data[0] = 5.0


def test_a_graph_in_a_cycle_is_released_by_the_garbage_collector():
    x = leaf(np.ones(3))
    x.data  # noqa: B018  # exposed
    cycle = [x * x]
    cycle.append(cycle)
    del cycle
    gc.collect()
    x.data[0] = 5.0


def test_a_program_that_ends_with_a_live_graph_is_silent():
    code = (
        "import tinyprop as tp; x = tp.tensor([1.0], requires_grad=True); y = x * x; import gc; "
        "gc.disable()"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def in_threads(*functions):
    """Run functions at once, with many switches between them; the first error of any of them is
    raised here."""
    errors, start, interval = [], threading.Barrier(len(functions)), sys.getswitchinterval()

    def guarded(function):
        start.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


def test_every_edit_is_noticed_while_other_threads_build_and_free_graphs():
    shared = leaf(np.full(8, 3.0))

    def work():
        mine = leaf(np.full(8, 2.0))
        for _ in range(300):
            y = (mine * mine * shared).sum()
            with read_only():
                mine.data[0] = 100.0
            with read_only():
                shared.data[0] = 100.0
            y.backward()
            assert mine.grad.tolist() == [12.0] * 8
            mine.grad = None

    in_threads(work, work, work)
    shared.data[0] = 5.0


def test_no_false_error_while_other_threads_build_and_free_graphs():
    """Each thread may update its own weights as soon as its own graph is gone; the shared ones are
    free at the end."""
    shared = leaf(np.ones(8))
    shared.data  # noqa: B018  # exposed: its array is frozen and released again and again

    def work():
        weights = [leaf(np.ones(8)) for _ in range(4)]
        optimizer = tp.optim.SGD(weights, lr=0.01)
        for _ in range(300):
            sum((w * w * shared * shared).sum() for w in weights).backward()
            optimizer.step()
            for w in weights:
                w.data *= 1.0
                w.grad = None

    def look():
        for _ in range(3000):
            shared.data  # noqa: B018

    in_threads(work, work, look)
    shared.data[0] = 5.0


def test_a_deep_copy_is_not_bound_to_the_graph_of_the_original():
    net = tp.nn.Linear(3, 2)
    loss = (net(tp.ones(4, 3)) ** 2).sum()
    best = copy.deepcopy(net)
    optimizer = tp.optim.SGD(best.parameters(), lr=0.1)
    (best(tp.ones(4, 3)) ** 2).sum().backward()
    optimizer.step()
    best.weight.data[0] = 5.0
    assert best.weight.name == "weight"
    loss.backward()
