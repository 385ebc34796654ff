"""The benchmark on a device: the emulator has all of its parts, but no times that mean anything."""

import json
import sys
from dataclasses import replace

import pytest

from tests import standin
from tinyprop import bench, diagnosis, plots
from tinyprop.bench.gpu import CORES, Clock, Device, Share, Step, points, step_table, watched
from tinyprop.bench.work import Work
from tinyprop.cli import main
from tinyprop.engine.graph import Op

from .conftest import BACKENDS

needs_cupy = [
    pytest.mark.cupy,
    pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator"),
]
T4 = Device("Tesla T4", "75", 40, 1_590_000, 5_001_000, 256)


@pytest.mark.parametrize(
    ("device", "teraflops", "gigabytes"),  # as NVIDIA states them
    [
        (T4, 8.1, 320),
        (Device("RTX 4090", "89", 128, 2_520_000, 10_501_000, 384), 82.6, 1008),
        (Device("H100 SXM", "90", 132, 1_980_000, 2_619_000, 5120), 67, 3350),
    ],
)
def test_peaks_are_those_of_the_data_sheets(device, teraflops, gigabytes):
    assert device.peak_flops == pytest.approx(teraflops * 1e12, rel=0.01)
    assert device.peak_bandwidth == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_what_a_device_does_not_tell_is_unknown():
    assert replace(T4, clock=0).peak_flops is None
    assert replace(T4, capability="999").peak_flops is None
    assert replace(T4, memory_clock=0).peak_bandwidth is None
    assert min(CORES.values()) == 64


def made(**shares):
    """A step of 10 ms with a kernel of 2 ms that does 4 GFLOP on 1 GB, and others without counted work."""
    work = {"kernel": Work(4e9, 1e9), "other": Work(2e9, 3e9)}
    shares = {name: Share(1, s) for name, s in {"kernel": 0.002, "Add": 0.001, **shares}.items()}
    return Step("normprop", 50, 1.0, [0.009, 0.010, 0.020], [0.001], shares, work, 10**6, 10**7)


def test_rates_are_work_by_the_median_time():
    text = step_table(bench.gpu.GpuResults(T4, {}, [made()])).text(200)
    for cell in ("5,000", "0.60", "7%", "400", "125%"):  # images/s, TFLOP/s and GB/s, and their parts of the peaks
        assert f" {cell} " in text


def test_points_of_the_roofline():
    assert points(made(other=1e-6)) == {"the whole step": (1.5, 6e9 / 0.010), "kernel": (4.0, 2e12)}


@pytest.mark.parametrize(
    "device", [T4, replace(T4, clock=0), replace(T4, bus_width=0), replace(T4, clock=0, bus_width=0)]
)
def test_a_roofline_is_drawn_from_what_is_known(device, tmp_path):
    figure = plots.roofline("step", device.peak_flops, device.peak_bandwidth, points(made()))
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert len(lines) == (device.peak_flops is not None) + (device.peak_bandwidth is not None) - (device is T4)
    assert plots.save(figure, tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


class Event:
    """A moment on a device that takes 1 ms for everything."""

    now = 0

    def __init__(self):
        Event.now += 1
        self.moment = Event.now

    def synchronize(self):
        pass


def test_inner_times_are_not_counted_outside(monkeypatch):
    with standin.installed():
        cuda = sys.modules["cupy"].cuda
        cuda.get_elapsed_time = lambda a, b: b.moment - a.moment
        monkeypatch.setattr(standin.Stream, "record", lambda stream: Event())
        clock = Clock()
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
            bench.gpu.REST: Share(0, pytest.approx(0.002)),
        }


def test_watching_leaves_no_trace():
    call = Op.__call__
    with standin.installed(), watched(Clock()):
        assert Op.__call__ is not call
    assert Op.__call__ is call


@pytest.fixture(scope="module")
def results():
    return bench.gpu.run(steps=2, width=0.05, batch=4)


class TestOnTheDevice:
    pytestmark = needs_cupy

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

    def test_tables_and_pictures_are_written(self, results, tmp_path):
        paths = bench.gpu.write(results, tmp_path)
        assert {p.suffix for p in paths} == {".json", ".md", ".png", ".svg"}
        kept = json.loads((tmp_path / "gpu.json").read_text())
        assert [s["seconds"] for s in kept["steps"]] == [s.seconds for s in results.steps]
        text = (tmp_path / "gpu.md").read_text()
        for word in (results.device.name, "images/s", "MB held", "| Convolve gradient", "BatchNorm step"):
            assert word in text

    def test_the_command(self, tmp_path, capsys, monkeypatch):
        run = bench.gpu.run
        monkeypatch.setattr(bench.gpu, "run", lambda steps, width: run(steps, 0.05, 4, ("normprop",)))
        assert main(["bench", "--backend", "cupy", "--repeats", "1", "--out", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "Where the time of a NormProp step goes" in said
        assert str(tmp_path / "roofline_normprop.png") in said


def test_without_a_device_the_command_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(diagnosis, "look", lambda: diagnosis.Facts(import_error="No module named cupy"))
    assert main(["bench", "--backend", "cupy"]) == 1
    assert "pip install 'tinyprop[cuda13]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--engines", "torch"], ["--only", "step"], ["--threads", "2"]])
def test_options_of_the_cpu_are_refused(option, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--backend", "cupy", *option])
    assert caught.value.code == 2
    assert option[0] in capsys.readouterr().err
