"""The benchmark on a device: the emulator has all of its parts, but no times that mean anything."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

import tinyprop as tp
from benchmarks import figures, gpu, gpu_prediction, host
from benchmarks.__main__ import main
from benchmarks.clock import Clock, Share, watched
from benchmarks.gpu import NORMS, REST, GpuResults, Step, points, step_table, way_table
from benchmarks.gpu_prediction import DEVICES, PAGE, Assumptions, predict
from benchmarks.work import Work
from tests.conftest import needs_overrides, on_a_device
from tinyprop.engine.graph import Op
from tinyprop.report import environment, plots

T4 = DEVICES[0]


@pytest.mark.parametrize(
    ("number", "teraflops", "gigabytes"), [(0, 8.1, 320), (1, 82.6, 1008), (2, 67, 3350)]
)
def test_peaks_are_those_that_nvidia_states(number, teraflops, gigabytes):
    device = DEVICES[number]
    assert device.peak_flops == pytest.approx(teraflops * 1e12, rel=0.01)
    assert device.peak_bandwidth == pytest.approx(gigabytes * 1e9, rel=0.01)


def made(**shares):
    """A step of 10 ms with a kernel of 2 ms that does 4 GFLOP on 1 GB, and others without counted
    work."""
    work = {"kernel": Work(4e9, 1e9), "other": Work(2e9, 3e9)}
    shares = {name: Share(1, s) for name, s in {"kernel": 0.002, "Add": 0.001, **shares}.items()}
    return Step(
        "normprop",
        50,
        1.0,
        [0.009, 0.010, 0.020],
        [0.001],
        shares,
        work,
        [0.004, 0.005],
        [1e-4],
        10**6,
        10**7,
    )


def test_rates_are_work_by_the_median_time():
    (row,) = step_table(GpuResults(T4, {}, [made()])).rows
    # images/s, host, TFLOP/s and GB/s of the peaks
    assert row[3:9] == ["5,000", "1", "0.60", "7%", "400", "125%"]


def test_both_ways_are_told_as_in_the_prediction():
    eager, graph = way_table(GpuResults(T4, {}, [made()])).rows
    assert eager == ["NormProp", "T4", "eager", "3", "1", "10", "5,000"]
    assert graph == ["NormProp", "T4", "graph", "3", "0.1", "4.5", "11,111"]
    assert all(f"| {cell} " in PAGE.read_text() for cell in eager[:3])


@pytest.mark.parametrize(
    "device",
    [
        T4,
        replace(T4, clock=0),
        replace(T4, capability="999", memory_clock=0),
        replace(T4, bus_width=0),
    ],
)
def test_a_roofline_is_drawn_from_what_is_known(device, tmp_path):
    assert points(made(other=1e-6)) == {"the whole step": (1.5, 6e9 / 0.010), "kernel": (4.0, 2e12)}
    assert (device.peak_flops is None) == (device.clock == 0 or device.capability == "999")
    figure = figures.roofline("step", device.peak_flops, device.peak_bandwidth, points(made()))
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert len(lines) == (device.peak_flops is not None) + (device.peak_bandwidth is not None) - (
        device is T4
    )
    assert plots.save(figure, tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


def test_inner_times_are_not_counted_outside():
    moments = iter(range(100))
    clock = Clock(lambda: next(moments), lambda a, b: (b - a) / 1e3)
    clock.mark()
    with clock.around("Convolve"):
        with clock.around("map_tiles"):
            pass
        with clock.around("map_tiles"):
            pass
    clock.mark()
    assert clock.shares() == {
        "Convolve": Share(1, pytest.approx(0.003)),
        "map_tiles": Share(2, pytest.approx(0.002)),
        REST: Share(0, pytest.approx(0.002)),
    }


def test_ops_and_their_gradients_are_watched_and_no_trace_is_left():
    call, x, clock = (
        Op.__call__,
        tp.tensor([2.0], requires_grad=True),
        Clock(time.thread_time, lambda a, b: b - a),
    )
    with watched(clock):
        (x * x).sum().backward()
    assert Op.__call__ is call
    calls = {name: share.calls for name, share in clock.shares().items() if name != REST}
    assert calls == {"Multiply": 1, "Sum": 1, "Sum gradient": 1, "Multiply gradient": 1}, (
        "without ops of gradients"
    )


@pytest.fixture(scope="module")
def results():
    return gpu.measured(steps=2, width=0.05, batch=4)


class TestOnTheDevice:
    pytestmark = on_a_device

    def test_a_step_is_measured_in_all_its_parts(self, results):
        for step in results.steps:
            assert len(step.seconds) == len(step.host_seconds) == 2
            assert min(*step.seconds, *step.host_seconds) > 0
            assert step.held >= step.used > 0
            assert {"Convolve", "Convolve gradient", "pool", "update"} <= step.shares.keys()
            assert step.shares["update"].calls == 1
            assert step.shares["Convolve"].calls == step.shares["Convolve gradient"].calls == 9
            assert "hold" not in step.shares
            unnoticed = {name for name in step.work if name not in step.shares}
            assert not unnoticed, "work that is counted, but no kernel of this name runs"

    def test_the_command_prints_and_writes(self, results, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(gpu, "measured", lambda steps, width: results)
        assert main(["gpu", "--out", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "Where the time of a NormProp step goes" in said
        assert str(tmp_path / "roofline_normprop.png") in said
        kept = json.loads((tmp_path / "gpu.json").read_text())
        assert [s["seconds"] for s in kept["steps"]] == [s.seconds for s in results.steps]
        text = (tmp_path / "gpu.md").read_text()
        for word in (
            results.device.name,
            "images/s",
            "MB held",
            "| Convolve gradient",
            "BatchNorm step",
        ):
            assert word in text

    def test_the_launches_on_the_page_are_those_of_the_step(self):
        costs, _ = gpu_prediction.stated(PAGE.read_text())
        for norm in NORMS:
            assert costs[norm].launches == host.measured(norm, 1).launches


def test_without_a_device_the_command_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(
        environment, "look", lambda: environment.Facts(import_error="No module named cupy")
    )
    assert main(["gpu"]) == 1
    assert "pip install 'tinyprop[cuda13]'" in capsys.readouterr().err


def test_the_page_follows_from_what_it_states():
    page = PAGE.read_text()
    assert gpu_prediction.page(*gpu_prediction.stated(page)) == page


@needs_overrides  # it is about tiles
def test_tf32_costs_what_the_page_says():
    _, stated = gpu_prediction.stated(PAGE.read_text())
    found = gpu_prediction.tf32_errors()
    assert found == pytest.approx(stated, rel=0.2), "BLAS adds up in an order of its own"
    third = np.array([1 / 3, 1.0, 1 + 2**-11, 1 + 3 * 2**-11], "float32")
    assert gpu_prediction.rounded(third).tolist() == [0.333251953125, 1.0, 1.0, 1 + 2**-9]


def test_the_slower_of_host_and_device_sets_the_pace():
    work = {"a": Work(flops=4e9, bytes=1.0), "b": Work(flops=1.0, bytes=3.2e8)}
    assumed = Assumptions(0.5, 0.5, 5e-7, 1e-6, 1.0)
    found = predict(T4, work, 100, 1e-3, assumed)
    assert found.kernels == {
        "a": pytest.approx(4e9 / 4.07e12, rel=1e-3),
        "b": pytest.approx(2e-3, rel=1e-3),
    }
    assert found.device == pytest.approx(sum(found.kernels.values()) + 1.5e-4)
    assert (found.step, found.host) == (found.device, 1e-3)
    assert predict(T4, work, 100, 1e-2, assumed).step == 1e-2
    slow = predict(T4, work, 100, 1e-3, replace(assumed, latency=1e-3)).kernels["b"]
    assert slow == pytest.approx(3.2e8 / (40 * 512 * 8 * 16 / 1e-3)), (
        "loads in flight limit the bandwidth"
    )
