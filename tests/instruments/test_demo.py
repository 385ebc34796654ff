"""The tour, and the figure at the front of the README: what depth does to signals and gradients."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import BACKENDS
from tests.helpers import figure_in_words
from tinyprop.cli import main
from tinyprop.engine.threads import blas_threads
from tinyprop.instruments import demo, depth, figures
from tinyprop.report import environment

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def networks():
    with blas_threads(1):
        return {name: depth.measured(name) for name in depth.NETWORKS}


@pytest.mark.slow
def test_depth_does_what_theory_says(networks):
    """Mean-square gains of the gradient are known; spreads are those of wide networks (width 256:
    up to 20 %)."""
    default, exact, he, batch, pairs = networks.values()
    gain = (depth.LAYERS - 1) / 2
    chi = math.pi / (math.pi - 1)
    assert default.at(1)[1] == pytest.approx(1.0, rel=0.15)
    assert exact.at(1)[1] == pytest.approx(1.120168**gain, rel=0.1)
    assert he.at(1)[1] == pytest.approx(1.0, rel=0.2)
    assert batch.at(1)[1] == pytest.approx((chi * (1 + 1.0848 / 50)) ** gain, rel=0.1)
    assert default.at(2)[0] == pytest.approx(math.sqrt(0.466507), rel=0.02)
    assert default.at(9)[0] == pytest.approx(math.sqrt(0.065866), rel=0.1)
    assert he.at(2)[0] == pytest.approx(math.sqrt(1 - 1 / math.pi), rel=0.02)
    for kept in (exact, batch):
        np.testing.assert_allclose(kept.spread, 1.0, atol=0.07)
    for values in pairs.values.values():
        assert np.median(abs(values)) == pytest.approx(1, abs=1e-3), (
            "of two values, one is as far up as one is down"
        )


@pytest.mark.slow
def test_the_readme_says_what_the_figure_shows(networks):
    text = README.read_text()
    assert depth.table(networks).markdown() in text
    _, exact, _, batch, _ = (
        found.at(1)[1] ** (1 / (depth.LAYERS - 1)) for found in networks.values()
    )
    assert f"gradients grow by {100 * (exact - 1):.0f} % a layer. He" in text
    assert f"gradients grow by {100 * (batch - 1):.0f} % a layer; with" in text


@pytest.mark.slow
def test_the_figure_of_the_readme_says_in_words_what_it_shows(networks):
    words = figures.describe_depth(networks, depth.SHOWN)
    assert figure_in_words(README.parent / "figures" / "depth.png") == words
    default = networks["NormProp, default gamma"]
    assert f"{default.at(1)[0]:.2f} in layer 1 and {default.at(30)[0]:.2f} in layer 30" in words


@pytest.mark.slow
def test_the_figure_has_a_curve_and_a_distribution_for_each_network(networks):
    left, right, *below = figures.depth(networks, depth.SHOWN).axes
    assert len(left.lines) == len(right.lines) == len(below) == len(networks)
    assert [axes.get_title(loc="left").replace("\n", ", ") for axes in below] == list(networks)
    np.testing.assert_allclose(
        left.lines[0].get_ydata()[-1], next(iter(networks.values())).at(depth.LAYERS)[0]
    )


@pytest.mark.slow
def test_the_tour_tells_its_story_and_can_be_repeated(networks, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", 500)
    monkeypatch.setattr(depth, "measured", networks.__getitem__)
    command = ["demo", "--epochs", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    for name in ("NormProp", "BatchNorm"):
        assert re.search(rf"^{name}, epoch 1/1: loss \d\.\d+, error train ", first, re.M)
    assert [id for id in demo.CLAIMS if f"{id}: " not in first] == []
    figures = re.findall(r"^.*\.png$", first, re.M)
    assert len(figures) == 3
    depth_of, *predictions = map(Path, figures)
    assert "NormProp, default gamma: " in figure_in_words(depth_of)
    assert all(" images with the class" in figure_in_words(path) for path in predictions)
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_the_tour_refuses_no_epochs_and_stops_at_once(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--epochs", "0"])
    assert "at least 1" in capsys.readouterr().err

    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(depth, "measured", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err


def test_without_a_gpu_one_sentence_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(
        environment, "look", lambda: environment.Facts(import_error="No module named cupy")
    )
    assert main(["demo", "--backend", "cupy"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("tinyprop: CuPy is not installed: pip install")
    assert len(said.err.splitlines()) == 1


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
def test_on_a_gpu_both_networks_are_trained_and_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", 150)
    assert (
        main(
            [
                "demo",
                "--backend",
                "cupy",
                "--width",
                "0.05",
                "--epochs",
                "2",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    for name in demo.NETWORKS.values():
        line = (
            rf"^{name}, epoch 2/2: loss \d\.\d+, error train .*%, [\d,]+ images/s, "
            r"[\d:]+, [\d,]+ MB of the GPU's memory in use$"
        )
        assert re.search(line, said, re.M), said
    assert "kernel by kernel" not in said
    assert Path(said.splitlines()[-1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
def test_the_notebook_for_a_hosted_gpu_runs_small(tmp_path, monkeypatch, capsys):
    source = (README.parent / "tutorials" / "gpu_demo.py").read_text()
    small = source.replace("WIDTH, EPOCHS = 1.0, 4", "WIDTH, EPOCHS = 0.05, 1")
    assert small != source
    monkeypatch.setattr(demo, "IMAGES", 100)
    monkeypatch.chdir(tmp_path)
    exec(compile(small, "gpu_demo.py", "exec"), {})
    assert (tmp_path / "runs" / "gpu_demo" / "gpu.png").is_file()
    assert "BatchNorm, epoch 1/1" in capsys.readouterr().out
