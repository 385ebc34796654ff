"""Images stay channels-last in the memory of a device: what CuPy copies to bring them into order is
counted."""

import pytest

from tinyprop import nn
from tinyprop.functional.windows import channels_first
from tinyprop.kernels import cuda

from ..conftest import on_a_device
from ..train.test_device_step import paper_batch, paper_step

pytestmark = on_a_device
IMAGES, WIDTH = 8, 0.25  # enough for the convolutions to be done as in a whole batch at full width
BATCH = 50  # images; the limits are for the full width


def copied(run):
    """The bytes that CuPy's own copies read and write while `run` runs. Each copy goes to new
    memory, or follows an operation that took some: its size is that of the last allocation."""
    emucupy = pytest.importorskip("emucupy", reason="only the emulator counts")
    from cupy.cuda.memory_hook import MemoryHook

    class Copies(MemoryHook):
        name, size, total = "copies", 0, 0

        def malloc_postprocess(self, size, **_):
            self.count()
            self.size = size

        def count(self):
            copies = sum(
                n
                for name, n in emucupy.stats()["kernels"].items()
                if name.startswith("cupy_copy__")
            )
            self.total += 2 * self.size * copies
            emucupy.reset()

    run()
    emucupy.reset()
    with Copies() as copies:
        run()
    copies.count()
    return copies.total


def copied_in_a_step(norm, rng):
    """Megabytes for a whole batch at full width, without the first im2col of the first layer. Its
    second one does not depend on the width of the network; everything else is taken to grow with
    it."""
    images, labels = paper_batch(rng, IMAGES)
    step = paper_step("cupy", images, norm, WIDTH)
    assert nn.NIN.startswith("C(192,5,1,2)")
    im2col = 2 * 4 * IMAGES * 32 * 32 * 5 * 5 * 3  # read and written
    return (
        (im2col + (copied(lambda: step(images, labels)) - 2 * im2col) / WIDTH)
        * BATCH
        / IMAGES
        / 1e6
    )


@pytest.mark.parametrize(("norm", "most"), [("normprop", 60), ("batch", 120), ("none", 120)])
def test_a_step_copies_little_for_the_layout(norm, most, rng):
    assert 0 < copied_in_a_step(norm, rng) <= most


@pytest.mark.parametrize(("norm", "most"), [("normprop", 60), ("batch", 120)])
def test_a_dropped_layout_is_noticed(norm, most, rng, monkeypatch):
    monkeypatch.setattr(cuda, "channels_first", lambda x: cuda._contiguous(channels_first(x)))
    assert copied_in_a_step(norm, rng) > most
