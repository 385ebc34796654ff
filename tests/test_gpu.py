"""What is new on a real device: streams and memory. On the emulator these have less to do."""

import importlib.util

import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.train import TrainingStep

from .conftest import on_a_device

IMAGES, WIDTH = (200, 0.25) if importlib.util.find_spec("emucupy") is None else (20, 0.1)
pytestmark = [pytest.mark.gpu, *on_a_device]


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


def test_memory_does_not_grow():
    import cupy

    trained(3)
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes()
    trained(10)
    assert pool.total_bytes() <= 1.5 * before
