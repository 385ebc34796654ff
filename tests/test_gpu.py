"""What is new on a real device: streams, libraries, memory, races. These run by themselves where there is one.

They run on the emulator, too, with less to do. It cannot show a race, or what NVIDIA's libraries compute; but a test
that meets its first device has then been seen to pass.
"""

import importlib.util

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.train import TrainingStep, evaluate

from .conftest import BACKENDS

IMAGES, WIDTH = (200, 0.25) if importlib.util.find_spec("emucupy") is None else (20, 0.1)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.cupy,
    pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator"),
]


def trained(steps=10):
    """A small network after some steps on shapes, with its losses; everything on the device."""
    shapes = tp.data.load("shapes", split="test").first(IMAGES)
    images, labels = shapes.images, shapes.labels
    tp.manual_seed(0)
    with tp.use_backend("cupy"):
        first = tp.data.GlobalNormalizer(images.shape[1:]).fit(images)
        net = nn.Sequential(first, *nn.build(nn.NIN, images.shape[1], width=WIDTH))
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05))
    return net, [step(images, labels) for _ in range(steps)]


def test_it_learns_and_gives_the_same_bits_again():
    (net, losses), (again, _) = trained(), trained()
    assert float(losses[-1]) < float(losses[0])
    for name, value in net.state_dict().items():
        assert (value == again.state_dict()[name]).all(), name


def test_it_runs_on_another_stream():
    import cupy

    expected = [float(loss) for loss in trained(3)[1]]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        losses = trained(3)[1]
        stream.synchronize()
        assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-5)


def test_evaluation_agrees_with_numpy():
    test = tp.data.load("shapes", split="test").first(IMAGES // 2)
    net, _ = trained(3)
    on_device = evaluate(net, test.images, test.labels)
    assert on_device == pytest.approx(evaluate(net.to("numpy"), test.images, test.labels), rel=1e-3)


def test_libraries_that_the_emulator_replaces(rng):
    """cuBLAS, cuSOLVER, Thrust and cuRAND, each once."""
    import cupy

    host = rng.normal(size=(40, 30)).astype(np.float32)
    x = cupy.asarray(host)
    np.testing.assert_allclose((x.T @ x).get(), host.T @ host, rtol=1e-3, atol=1e-3)
    singular = cupy.linalg.svd(x, compute_uv=False).get()
    np.testing.assert_allclose(singular, np.linalg.svd(host, compute_uv=False), rtol=1e-3)
    np.testing.assert_array_equal(cupy.sort(x, axis=0).get(), np.sort(host, axis=0))
    normal = cupy.random.default_rng(0).standard_normal(100_000, dtype=cupy.float32)
    assert abs(float(normal.mean())) < 0.02  # six standard errors
    assert abs(float(normal.std()) - 1) < 0.02


def test_memory_does_not_grow():
    import cupy

    trained(3)
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes()
    trained(10)
    assert pool.total_bytes() <= 1.5 * before
