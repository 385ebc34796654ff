"""The timer for a device: the emulator has all of its parts, but no times that mean anything."""

import re

from benchmarks import gpu
from benchmarks.__main__ import main
from tests.conftest import on_a_device
from tinyprop.report import environment


class TestOnTheDevice:
    pytestmark = on_a_device

    def test_every_step_after_the_warm_up_is_timed(self):
        for graph in (False, True):
            seconds = gpu.measured("normprop", graph, steps=2, width=0.05, batch=4)
            assert len(seconds) == 2
            assert min(seconds) > 0

    def test_only_a_graph_is_replayed(self):
        images, labels = gpu.random_batch(4)
        steps = [gpu.training_step("normprop", graph, 0.05, images) for graph in (False, True)]
        for step in steps:
            for _ in range(gpu.WARM_UP):
                step(images, labels)
        eager, graph = steps
        assert eager.replays is None
        assert len(graph.replays.graphs) == 1

    def test_the_command_prints_both_networks_and_both_ways(self, capsys):
        assert main(["gpu", "--steps", "1", "--width", "0.05", "--batch", "4"]) == 0
        said = capsys.readouterr().out
        assert gpu.about() in said
        row = r"^(\w+) +(kernel by kernel|CUDA graph) +[\d.]+ +[\d.]+-[\d.]+ +[\d,]+$"
        assert re.findall(row, said, re.MULTILINE) == [
            ("NormProp", "kernel by kernel"),
            ("NormProp", "CUDA graph"),
            ("BatchNorm", "kernel by kernel"),
            ("BatchNorm", "CUDA graph"),
        ]


def test_the_table_has_medians_and_images_a_second(monkeypatch):
    monkeypatch.setattr(gpu, "measured", lambda *arguments: [0.009, 0.010, 0.020])
    first, *_ = gpu.table(steps=3, width=1.0, batch=50).rows
    assert first == ["NormProp", "kernel by kernel", "10", "9-20", "5,000"]


def test_without_a_device_the_command_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(
        environment, "look", lambda: environment.Facts(import_error="No module named cupy")
    )
    assert main(["gpu"]) == 1
    assert "pip install 'tinyprop[cuda13]'" in capsys.readouterr().err
