"""A broken installation of CuPy is recognised, and the advice is a command that exists."""

import sys
from types import SimpleNamespace

import pytest

from tinyprop import cli
from tinyprop.instruments import info
from tinyprop.report.environment import Facts, diagnose, look

WORKS = {"wheels": ("cupy-cuda13x",), "driver": 13000, "devices": ("a GPU",)}


@pytest.mark.parametrize(
    ("facts", "problem", "command"),
    [
        (
            {"wheels": (), "import_error": "No module named 'cupy'"},
            "not installed",
            "pip install 'tinyprop[cuda13]'",
        ),
        (
            {"wheels": ("cupy-cuda12x", "cupy-cuda13x"), "driver": 12080},
            "Several packages",
            "pip uninstall -y cupy-cuda12x cupy-cuda13x && pip install 'tinyprop[cuda12]'",
        ),
        (
            {"import_error": "undefined symbol"},
            "cannot be imported (undefined symbol)",
            "--force-reinstall",
        ),
        ({"driver": 0, "devices": ()}, "no NVIDIA driver", "nvidia-smi"),
        ({"driver": 11040, "devices": ()}, "too old: it supports CUDA 11.4", "nvidia-smi"),
        (
            {"driver": 12080, "devices": ()},
            "built for CUDA 13, and the NVIDIA driver supports CUDA 12.8",
            "pip uninstall -y cupy-cuda13x && pip install 'tinyprop[cuda12]'",
        ),
        (
            {"devices": (), "device_error": "cudaErrorNoDevice"},
            "no CUDA device (cudaErrorNoDevice)",
            "nvidia-smi",
        ),
        ({"devices": (), "hidden": True}, "no CUDA device", "unset CUDA_VISIBLE_DEVICES"),
        (
            {"kernel_error": "libnvrtc.so.13"},
            "compile a kernel (libnvrtc.so.13)",
            "pip install 'cupy-cuda13x[ctk]'",
        ),
        (
            {"blas_error": "libcublas.so.13"},
            "multiply matrices (libcublas",
            "pip install 'cupy-cuda13x[ctk]'",
        ),
    ],
)
def test_each_problem_has_its_command(facts, problem, command):
    text = diagnose(Facts(**{**WORKS, **facts}))
    assert problem in text
    assert command in text


@pytest.mark.parametrize(
    "change", [{}, {"wheels": ("cupy-cuda12x",)}, {"wheels": ("cupy",)}, {"wheels": ()}]
)
def test_what_works_is_left_alone(change):
    """A driver of CUDA 13 also runs what is made for CUDA 12, and CuPy may be built from its
    source."""
    assert diagnose(Facts(**{**WORKS, **change})) == ""


def fake_cupy(count=1, ones=None, driver=13000):
    def refuse(*args):
        raise RuntimeError("it is broken\nin several lines")

    runtime = SimpleNamespace(
        driverGetVersion=lambda: driver,
        getDeviceCount=lambda: count or refuse(),
        getDeviceProperties=lambda i: {"name": b"a GPU"},
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), ones=ones or refuse)


class WithoutBlas:
    def __add__(self, other):
        return self

    def __matmul__(self, other):
        raise OSError("libcublas.so.13: cannot open shared object file")


@pytest.mark.parametrize(
    ("cupy", "expected"),
    [
        (None, {"devices": ()}),
        (fake_cupy(count=0), {"devices": (), "device_error": "it is broken", "driver": 13000}),
        (fake_cupy(), {"devices": ("a GPU",), "kernel_error": "it is broken"}),
        (
            fake_cupy(ones=lambda *args: WithoutBlas()),
            {"kernel_error": "", "blas_error": "libcublas.so.13: cannot open shared object file"},
        ),
    ],
)
def test_a_look_goes_as_far_as_things_work(cupy, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    facts = look()
    assert {name: getattr(facts, name) for name in expected} == expected
    assert bool(facts.import_error) == (cupy is None)


def test_info_gives_the_advice(monkeypatch, capsys):
    broken = Facts(**{**WORKS, "blas_error": "libcublas.so.13"})
    monkeypatch.setattr(info, "look", lambda: broken)
    assert cli.main(["info"]) == 0
    assert "backends: numpy. CuPy cannot multiply matrices" in capsys.readouterr().out
    monkeypatch.setattr(info, "look", lambda: Facts(**WORKS))
    assert cli.main(["info"]) == 0
    assert "backends: numpy, cupy on a GPU" in capsys.readouterr().out
