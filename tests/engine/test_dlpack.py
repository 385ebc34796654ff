"""Memory that is shared with other libraries by DLPack, and that the guard is not fooled by it."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, leaf, make


def test_a_tensor_is_lent_without_a_copy(backend):
    x = make(np.array([1.0, 2.0]), backend)
    xp = tp.engine.arrays.array_module(x.data)
    other = xp.from_dlpack(x)
    x.data[0] = 5.0
    assert other.tolist() == [5.0, 2.0]
    assert tp.from_dlpack(x).backend == backend
    assert x.__dlpack_device__() == x.data.__dlpack_device__()


def test_an_array_of_another_library_is_shared():
    array = np.ones(3)
    x = tp.from_dlpack(array, requires_grad=True)
    y = (x * x).sum()
    array[0] = 100.0  # the graph has a copy
    assert x.tolist() == [100.0, 1.0, 1.0]
    y.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_dtypes_are_kept(name):
    x = tp.from_dlpack(np.ones((2, 3), name).T)
    assert (x.shape, x.dtype) == ((3, 2), np.dtype(name))
    assert np.from_dlpack(x).dtype == np.dtype(name)


def test_gradients_are_not_lost():
    x = leaf([1.0, 2.0])
    assert_explained(BufferError, lambda: np.from_dlpack(x), "requires a gradient", "detach")
    assert np.from_dlpack(x.detach()).tolist() == [1.0, 2.0]


LENDERS = [
    lambda x: x.detach(),
    lambda x: tp.from_numpy(x.data),  # another tensor on the same memory
    lambda x: x.detach().reshape(1, 2),
    lambda x: x.detach()[:1],
]


@pytest.mark.parametrize("lender", LENDERS)
def test_values_that_a_graph_has_saved_are_not_lent(lender):
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    assert_explained(BufferError, lambda: np.from_dlpack(lender(x)), "a graph still needs")
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert np.from_dlpack(lender(x)).ravel()[0] == 1.0  # the graph is gone


@pytest.mark.parametrize("lender", LENDERS)
@pytest.mark.parametrize("hidden", [False, True], ids=["leaf", "result"])
def test_a_graph_saves_a_copy_of_what_was_lent(lender, hidden):
    """Also of a result that was never handed out itself."""
    start = leaf([1.0, 2.0])
    x = start * 1.0 if hidden else start
    other = _writeable(lender(x))
    y = (x * x).sum()
    other.ravel()[0] = 100.0  # unnoticed, and harmless
    y.backward()
    assert start.grad.tolist() == [2.0, 4.0]


def _writeable(tensor):
    """As another library sees it that does not know of read-only memory, as PyTorch does not."""
    array = np.from_dlpack(tensor)
    if array.flags.writeable:
        return array
    return np.lib.stride_tricks.as_strided(array, writeable=True)


def test_a_copy_may_be_lent_at_any_time():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    copy = np.from_dlpack(x.detach(), copy=True)
    copy[0] = 100.0
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_memory_that_is_gone_is_forgotten():
    before = len(tp.engine.guard._lent)
    x = tp.tensor([1.0, 2.0])
    np.from_dlpack(x)
    assert len(tp.engine.guard._lent) == before + 1
    del x
    assert len(tp.engine.guard._lent) == before


class OnDevice:
    def __init__(self, kind):
        self.kind = kind

    def __dlpack__(self, **options):
        raise AssertionError("not asked")

    def __dlpack_device__(self):
        return self.kind, 0


def test_refusals():
    assert_explained(TypeError, lambda: tp.from_dlpack([1.0]), "list", "__dlpack__")
    metal = OnDevice(8)
    with pytest.raises(tp.BackendError, match="kind 8"):
        tp.from_dlpack(metal)
    complex_numbers = np.ones(2, complex)
    assert_explained(TypeError, lambda: tp.from_dlpack(complex_numbers), "complex128")
    integers = np.ones(2, int)
    assert_explained(TypeError, lambda: tp.from_dlpack(integers, requires_grad=True), "gradients")


@pytest.mark.slow
def test_pytorch_reads_and_edits_our_memory_and_we_its():
    torch = pytest.importorskip("torch")
    x = leaf([1.0, 2.0])
    theirs = torch.from_dlpack(x.detach())
    y = (x * x).sum()
    theirs[0] = 100.0
    assert x.tolist() == [100.0, 2.0]
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    z = (x * x).sum()  # saves a copy
    assert torch.from_dlpack(x.detach()).data_ptr() == theirs.data_ptr()
    del z
    theirs = torch.ones(2)
    ours = tp.from_dlpack(theirs)
    theirs[1] = 3.0
    assert ours.tolist() == [1.0, 3.0]
    theirs.requires_grad = True
    assert_explained(BufferError, lambda: tp.from_dlpack(theirs), "require gradient", "detach")
    half = torch.ones(2, dtype=torch.bfloat16)
    assert_explained(BufferError, lambda: tp.from_dlpack(half), "dtype", "x.float()")
