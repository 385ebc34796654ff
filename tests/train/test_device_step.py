"""The training step on a device: it computes what NumPy does, and nothing but the batch crosses the
border."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.train import TrainingStep
from tinyprop.train import step as step_module

from ..conftest import on_a_device

pytestmark = on_a_device
WIDTH = 0.25  # wide enough for the convolutions to be done as in the full network


def paper_batch(rng, n=8):
    return rng.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, n)


def paper_step(backend, images, norm="normprop", width=WIDTH, lr=0.05, graph=False):
    tp.manual_seed(0)
    with tp.use_backend(backend):
        first = tp.data.GlobalNormalizer((3, 32, 32)).fit(images)
        net = nn.Sequential(first, *nn.build(nn.NIN, norm=norm, width=width))
    return TrainingStep(
        net, tp.optim.SGD(net.parameters(), lr, weight_decay=0.001), threads=1, graph=graph
    )


def counted(run):
    """What the emulator counts while `run` runs; what is made once is made before."""
    emucupy = pytest.importorskip("emucupy", reason="only the emulator counts")
    run()
    emucupy.reset()
    run()
    return emucupy.stats()


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_only_the_batch_crosses_the_border_and_nobody_waits(norm, rng):
    images, labels = paper_batch(rng)
    step = paper_step("cupy", images, norm)
    assert tp.Tensor(step(images, labels)).backend == "cupy", "the loss stays on the device"
    counts = counted(lambda: step(images, labels))
    assert counts["d2h"] == counts["syncs"] == 0
    assert (counts["h2d"], counts["h2d_bytes"]) == (2, images.nbytes + labels.nbytes)
    assert not [k for k in counts["kernels"] if "float64" in k or "double" in k]


@pytest.mark.parametrize(("norm", "most"), [("normprop", 118), ("batch", 118), ("none", 102)])
@pytest.mark.parametrize("optimizer", [tp.optim.SGD, tp.optim.RMSProp])
def test_a_step_takes_few_kernels(norm, most, optimizer, rng):
    images, labels = paper_batch(rng)
    step = paper_step("cupy", images, norm)
    step.optimizer = optimizer(step.model.parameters(), 0.001, weight_decay=0.001)
    counts = counted(lambda: step(images, labels))
    assert counts["launches"] + counts["memsets"] <= most
    assert sum(counts["library_calls"].values()) == 26, (
        "nine convolutions: the first has no gradient for its input"
    )


def test_evaluation_runs_on_the_stream_of_its_caller_in_large_parts(rng, monkeypatch):
    """On another stream it would race with the upload of the weights (with EMUCUPY_RACES=1; see
    conftest.py)."""
    import cupy

    images, labels = paper_batch(rng, 8)
    sizes = []
    before = nn.Sequential.forward

    def forward(self, x):
        sizes.append(len(x))
        return before(self, x)

    monkeypatch.setattr(step_module, "BATCH_ON_DEVICE", 3)
    monkeypatch.setattr(nn.Sequential, "forward", forward)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        net = paper_step("cupy", images, width=0.05).model
        loss, error = tp.train.evaluate(net, images, labels)
        assert cupy.cuda.get_current_stream() == stream
    assert sizes == [3, 3, 2]
    assert math.isfinite(loss)
    assert 0 <= error <= 1


def trained(backend, norm, images, labels, dtype=np.float32):
    """Losses (10,) and, in one vector, all parameters after ten steps."""
    step = paper_step(backend, images, norm, lr=0.01, graph=None)
    step.model.to(dtype=dtype)
    losses = [float(step(images, labels)) for _ in range(10)]
    return np.array(losses), np.concatenate([p.numpy().ravel() for p in step.model.parameters()])


@pytest.mark.parametrize(
    ("norm", "tolerance"), [("normprop", 2e-3), ("batch", 0.2), ("none", 2e-3)]
)
def test_ten_steps_agree_with_numpy_to_rounding(norm, tolerance, rng):
    """Training amplifies rounding, through the kinks of ReLU and of maxima most of all: a sum that
    is 1e-7 on one side of 0 passes a gradient there, and none on the other. So errors vary a
    hundredfold from batch to batch, on both backends. On four batches, against float64, they stayed
    below 3e-4 of the fall of the loss, and below 2e-4 of the way of the parameters (4e-2 with
    BatchNorm). A gradient that is 1 % off is off by 1 % of both."""
    for _ in range(2):
        images, labels = paper_batch(rng)
        losses, parameters = trained("numpy", norm, images, labels, np.float64)
        start = np.concatenate(
            [p.numpy().ravel() for p in paper_step("numpy", images, norm).model.parameters()]
        )
        fall, way = np.linalg.norm(losses - losses[0]), np.linalg.norm(parameters - start)
        for backend in ("numpy", "cupy"):
            found = trained(backend, norm, images, labels)
            assert np.linalg.norm(found[0] - losses) <= 2e-3 * fall, backend
            assert np.linalg.norm(found[1] - parameters) <= tolerance * way, backend
