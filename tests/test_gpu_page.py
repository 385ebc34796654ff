"""benchmarks/GPU.md says what the script that writes it says now."""

import importlib.util
import re
import sys

import pytest

from tinyprop.bench.gpu import NORMS

from .test_repository import ROOT


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_prediction", ROOT / "benchmarks" / "gpu_prediction.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def launches_on(page):
    """What the page says of the launches of a step, by norm."""
    return {norm: int(re.search(rf"^\| {title}, T4 \| (\d+) ", page, re.M)[1]) for norm, title in NORMS.items()}


def test_the_page_follows_from_the_launches_it_states(script):
    page = script.PAGE.read_text()
    assert script.page(launches_on(page)) == page


@pytest.mark.cupy
def test_the_launches_it_states_are_those_of_the_step(script):
    pytest.importorskip("emucupy", reason="only the emulator counts")
    counted = {norm: script.counted_launches(norm) for norm in NORMS}
    assert launches_on(script.PAGE.read_text()) == counted


def test_the_slower_of_host_and_device_sets_the_pace(script):
    device, work = script.DEVICES[0], {"a": script.Work(flops=4e9, bytes=1.0), "b": script.Work(flops=1.0, bytes=3.2e8)}
    found = script.predict(device, work, 100, script.Assumptions(0.5, 0.5, 1e-6, 1e-5))
    assert found.kernels == {"a": pytest.approx(4e9 / 4.07e12, rel=1e-3), "b": pytest.approx(2e-3, rel=1e-3)}
    assert found.device == pytest.approx(sum(found.kernels.values()) + 1e-4)
    assert (found.step, found.host) == (found.device, 1e-3)
    assert script.predict(device, work, 1000, script.Assumptions(0.5, 0.5, 1e-6, 1e-5)).step == 1e-2
