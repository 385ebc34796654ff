"""A training step moves nothing but its batch and waits for nobody: proved without CuPy, by the strict stand-in."""

import sys

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.train import TrainingStep

from . import standin
from .conftest import BACKENDS, needs_overrides

CONTRACT = [pytest.param("stand-in"), *(pytest.param("cupy", marks=pytest.mark.cupy) for _ in BACKENDS[1:])]


@pytest.fixture(params=CONTRACT)
def cupy(request):
    if request.param == "cupy":
        yield sys.modules["cupy"]
    else:
        with standin.installed():
            yield sys.modules["cupy"]


def step_and_batch(norm):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (8, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, 8)
    tp.manual_seed(0)
    first = tp.data.GlobalNormalizer((3, 32, 32)).fit(images)
    net = nn.Sequential(first, *nn.build(nn.NIN, norm=norm, width=0.1))
    return TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05, weight_decay=0.001), threads=1), images, labels


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=needs_overrides)])
def test_a_step_moves_only_its_batch_and_never_waits(norm, kernels):
    with standin.installed(kernels) as counts:
        step, images, labels = step_and_batch(norm)
        step(images, labels)
        counts.clear()
        step(images, labels)
        assert counts["d2h"] == counts["syncs"] == 0
        assert (counts["h2d"], counts["h2d_bytes"]) == (2, images.nbytes + labels.nbytes)
        assert counts["float64"] == 0
        assert (counts["launches"] > 0) == kernels


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_it_computes_what_numpy_does(norm):
    step, images, labels = step_and_batch(norm)
    expected = [float(step(images, labels)) for _ in range(3)]
    with standin.installed():
        step, *_ = step_and_batch(norm)
        losses = [step(images, labels) for _ in range(3)]
        assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-4)


# The contract: the stand-in and CuPy refuse the same.


@pytest.mark.parametrize(
    "mistake",
    [
        lambda xp, x: np.asarray(x),
        lambda xp, x: x + np.ones(3, np.float32),
        lambda xp, x: np.ones(3, np.float32) * x,
        lambda xp, x: x + np.ones((), np.float32),
        lambda xp, x: xp.maximum(x, np.ones(3, np.float32)),
        lambda xp, x: xp.insert(x, 0, 1.0),
        lambda xp, x: xp.errstate(),
        lambda xp, x: xp.linalg.vector_norm(x),
        lambda xp, x: x.__setitem__(slice(None), np.ones(3, np.float32)),
        lambda xp, x: hash(x),
    ],
)
def test_what_is_refused(cupy, mistake):
    with pytest.raises((TypeError, AttributeError, ValueError)):
        mistake(cupy, cupy.asarray(np.ones(3, np.float32)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_computed(cupy, dtype):
    host = np.arange(6.0, dtype=dtype).reshape(2, 3)
    x = cupy.asarray(host)
    for got, expected in [
        (x * 2 + 1.5, host * 2 + 1.5),
        (1.0 / (x + 1), 1.0 / (host + 1)),
        (x.sum(axis=0), host.sum(axis=0)),
        (x.sum(), host.sum()),
        (cupy.where(x > 2, x, 0.0), np.where(host > 2, host, 0.0)),
        (x @ x.T, host @ host.T),
        (x[:, ::2], host[:, ::2]),
        (-x.transpose(1, 0), -host.T),
    ]:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got.get(), expected)
    x -= 0.5
    x[0] = 7.0
    np.testing.assert_array_equal(x.get()[1], host[1] - np.asarray(0.5, dtype))


def test_looks_at_values_are_counted():
    for look in (float, bool, int, repr, lambda x: x.item(), lambda x: x.get(), lambda x: x.tolist()):
        with standin.installed() as counts:
            x = tp.tensor(1.0).data
            counts.clear()
            look(x)
            assert counts["d2h"] == counts["syncs"] == 1
    with standin.installed() as counts:
        x = tp.tensor([1.0, 2.0]).data
        x[x > 1.5]
        assert counts["syncs"] == 1


@pytest.mark.cupy
@pytest.mark.parametrize("name", standin.SAME)
def test_the_stand_in_has_nothing_that_cupy_lacks(name):
    assert hasattr(pytest.importorskip("cupy"), name)
