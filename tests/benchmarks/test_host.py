"""What a step costs the host; the times mean nothing here, but what is counted does."""

import pytest

from benchmarks import gpu, host
from benchmarks.__main__ import main
from tests.conftest import on_a_device

pytestmark = on_a_device


def test_recording_orders_what_a_step_orders():
    emucupy = pytest.importorskip("emucupy", reason="only the emulator counts")
    import cupy

    step = host.prepared("normprop", graph=False)
    images, there = map(cupy.asarray, gpu.random_batch(host.BATCH))
    step(images, there)
    emucupy.reset()
    step(images, there)
    counts = emucupy.stats()
    ordered = counts["launches"] + sum(counts["library_calls"].values()) + counts["memsets"]
    assert host.counted(lambda: step(images, there)) == ordered


def test_the_command_prints_both_ratios(capsys):
    assert main(["host", "--repeats", "1"]) == 0
    said = capsys.readouterr().out
    assert "NormProp" in said
    assert "BatchNorm" in said
    cost = host.measured("normprop", 1)
    assert min(cost.addition, cost.launch, cost.replay, cost.copies) > 0
