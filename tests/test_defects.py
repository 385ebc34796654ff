"""Mistakes that break or slow down the CuPy path, sown on purpose: each is caught, without a device, by some net."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn, step
from tinyprop.data import prefetch
from tinyprop.engine.graph import Op
from tinyprop.engine.tensor import Tensor
from tinyprop.functional import shapes

from . import standin
from .test_nets import uses, what_is_missing
from .test_repository import array_modules_imported


def network():
    tp.manual_seed(0)
    return nn.build("C(6,3,1,1)-P(2,2,0,max)-C(4,1,1,0)-P(4,4,0,avg)")


def complaints(layer=None, optimizer=tp.optim.SGD):
    """What the stand-in holds against a step of a small network, with a layer in front of it."""
    images, labels = np.ones((2, 3, 8, 8), np.float32), np.array([0, 3])
    with standin.installed() as counts:
        net = nn.Sequential(*([layer] if layer else []), *network())
        train = step.TrainingStep(net, optimizer(net.parameters(), 0.1))
        try:
            train(images, labels)
            counts.clear()
            train(images, labels)
        except (TypeError, AttributeError, tp.BackendError) as error:
            return str(error)
        return {k: counts[k] for k in ("d2h", "syncs", "float64") if counts[k]}


class Defect(nn.Module):
    """A layer that changes nothing, and does something that it should not do on the way."""

    def __init__(self, deed):
        self.deed = deed

    def forward(self, x):
        result = self.deed(x.data, tp.engine.arrays.array_module(x.data))
        return x if result is None else result


def test_without_a_defect_nobody_complains():
    assert complaints() == complaints(Defect(lambda x, xp: None)) == {}


def test_a_float64_learning_rate_is_caught():
    class Widening(tp.optim.SGD):
        def update(self, due):
            for i in due:
                self.params[i]._data -= np.float64(self.lr) * self.params[i].grad._data

    assert complaints(optimizer=Widening)["float64"] > 0


def test_a_host_array_in_an_assignment_is_caught():
    def deed(x, xp):
        xp.zeros(x.shape, x.dtype)[...] = np.ones(x.shape, np.float32)

    assert "Unsupported type" in complaints(Defect(deed))


def test_a_missing_function_is_caught():
    assert "insert" in complaints(Defect(lambda x, xp: xp.insert(x, 0, 1.0)))
    assert "insert" in uses("xp = array_module(x)\nxp.insert(x, 0, 1.0)")


@pytest.mark.cupy
def test_a_missing_function_is_caught_before_it_runs():
    cupy = pytest.importorskip("cupy")
    assert list(what_is_missing(cupy, "xp = array_module(x)\nif False:\n    xp.insert(x, 0, 1.0)")) == ["cupy.insert"]


def test_a_hidden_bool_is_caught():
    def deed(x, xp):
        if (x > 1e9).any():
            raise OverflowError

    assert complaints(Defect(deed))["syncs"] > 0


def test_a_round_trip_to_the_host_is_caught():
    def deed(x, xp):
        tp.tensor(tp.Tensor(x).numpy() * 2, backend="cupy")

    assert complaints(Defect(deed))["d2h"] > 0


def test_an_update_that_loses_duplicates_is_caught(monkeypatch):
    def lossy(op, x):
        out = np.zeros(op.new_shape, x.dtype)
        out[op.where] += x
        return out

    x = tp.tensor(np.arange(3.0), requires_grad=True)
    tp.check_gradients(lambda x: F.take(x, [2, 0, 2]), x)
    monkeypatch.setattr(shapes.Put, "forward", lossy)
    with pytest.raises(tp.GradientError):
        tp.check_gradients(lambda x: F.take(x, [2, 0, 2]), x)


def test_reliance_on_subnormal_numbers_is_caught():
    """exp(-100) is subnormal in float32: NumPy keeps it, a device does not."""
    with standin.installed():
        x = tp.tensor([[0.0, 100.0]])
        assert F.log_softmax(x).data.host[0, 0] == -100.0
        with np.errstate(divide="ignore"):
            assert F.log(F.softmax(x)).data.host[0, 0] == -np.inf
    assert F.log(F.softmax([[0.0, 100.0]])).numpy()[0, 0] == pytest.approx(-100.0, rel=1e-3)


@pytest.mark.parametrize("line", ["import numpy as np", "from numpy import exp", "def f():\n    import cupy.cuda"])
def test_numpy_by_name_in_the_engine_is_caught(line):
    assert array_modules_imported(line)


def test_numpy_by_name_on_device_arrays_is_caught():
    assert "Unsupported type" in complaints(Defect(lambda x, xp: np.exp(x)))


def test_sliding_windows_that_synchronise_are_caught():
    def deed(x, xp):
        xp.lib.stride_tricks.sliding_window_view(x, 3, axis=-1)

    assert "sliding_window_view" in complaints(Defect(deed))


def test_a_pinned_buffer_that_is_refilled_too_early_is_caught(monkeypatch):
    upload = prefetch.Slot.upload

    def hasty(slot, images, stream):
        slot.uploaded = None  # nothing to wait for
        upload(slot, images, stream)

    pairs = [(np.full((2, 3), i, np.uint8), np.array([0, 1])) for i in range(4)]
    with standin.installed():
        assert len(list(prefetch.prefetched(pairs, "cupy"))) == 4
        monkeypatch.setattr(prefetch.Slot, "upload", hasty)
        with pytest.raises(RuntimeError, match="refilled"):
            list(prefetch.prefetched(pairs, "cupy"))


def test_an_op_that_hands_on_a_host_array_is_caught():
    class Home(Op):
        def forward(self, x):
            return x.get()

        def backward(self, g):
            return g

    assert "NumPy and a CuPy array together" in complaints(Defect(lambda x, xp: Home()(Tensor(x))))
