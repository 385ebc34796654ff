"""Memory, descriptors and threads stay flat, however long a process works."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import few_images
from tinyprop.train import Config, Run, TrainingStep

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
SPEC = "C(8,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(4,4,0,avg)"
BATCH = np.random.default_rng(0).normal(size=(16, 3, 8, 8)).astype(np.float32), np.arange(16) % 10


def usage():
    """(MB of memory, descriptors, threads)"""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
    )


def steps(count):
    net = tp.nn.build(SPEC)
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.01), threads=2)
    for _ in range(count):
        step(*BATCH)


def models(count):
    for _ in range(count):
        steps(2)


def epochs(count, folder):
    config = Config(epochs=count, train_size=40, test_size=20, width=0.05, batch_size=20, threads=2)
    with few_images(40, 20):
        Run(config, folder, say=lambda line: None).run()


@pytest.mark.parametrize(
    ("work", "few", "many"),
    [
        (steps, 20, 100),
        (models, 5, 20),
        pytest.param(steps, 200, 2_000, marks=pytest.mark.slow),
        pytest.param(models, 30, 300, marks=pytest.mark.slow),
        pytest.param(epochs, 2, 30, marks=pytest.mark.slow),
    ],
)
def test_it_stays_flat(work, few, many, tmp_path, monkeypatch):
    """After a warm-up, ten times the work may take 20 MB more: less than 10 kB a step, 70 kB a
    model."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # it only takes time
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)
    work(few, *[tmp_path / "a"] if work is epochs else [])
    before = usage()
    work(many, *[tmp_path / "b"] if work is epochs else [])
    after = usage()
    print(f"{work.__name__} {few} then {many}: {before} -> {after}")  # shown by pytest -rP
    assert after[0] - before[0] < 20
    assert after[1:] == before[1:]
