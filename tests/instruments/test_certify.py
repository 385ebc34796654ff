"""`tinyprop certify`: a table for a run, and that its numbers are those of the network."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.cli import main
from tinyprop.instruments.certify import certificate
from tinyprop.train import Config, Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    run = Run(
        Config(data="shapes", width=0.04, epochs=1, train_size=100, test_size=60, threads=1), out
    )
    assert run.run()
    return run


@pytest.mark.slow
def test_a_run_is_certified(run, capsys):
    before = {path: path.read_bytes() for path in run.out.iterdir()}
    assert main(["certify", str(run.out), "--images", "60", "--components", "2"]) == 0
    text, note = capsys.readouterr()
    assert "tinyprop examine" in note
    assert text.splitlines()[2].split()[:3] == ["layer", "mean", "predicted"]
    assert all(f"{i} NormPropConv2d" in text for i in (1, 2, 4)), text
    assert "11 Conv2d" in text
    assert before == {path: path.read_bytes() for path in run.out.iterdir()}, "it only reads"


def test_the_numbers_of_a_layer():
    """With one layer, everything is exact: both means and variances, and both sides of the
    proposition."""
    layer = tp.nn.Conv2d(3, 2, 1)
    layer.weight.data[...] = np.array([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]]).reshape(2, 3, 1, 1)
    layer.bias.data[...] = [1.0, -2.0]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    # mean 0, covariance I
    x = (x - x.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T, ddof=0))).T
    table = certificate(tp.nn.Sequential(layer), x.reshape(500, 3, 1, 1).astype("float32"), 1)
    *found, left, assumed, right = table.rows[0][1:]
    assert found == ["1.58", "1.58", "1", "14.5", "14.5", "14.5", "1", "0"]
    assert float(left) < 1e-5
    assert [assumed, right] == ["0", "0"]
    layer.weight.data[1] = layer.weight.data[0] * 2  # rows of cosine 1, and lengths 5 and 10
    *_, coherence, left, assumed, right = certificate(
        tp.nn.Sequential(layer), 2 * x.reshape(-1, 3, 1, 1), 1
    ).rows[0]
    # the input has variance 4, not 1
    assert [coherence, left, assumed, right] == ["1", "283", "70.7", "70.7"]


def test_a_layer_of_one_unit_has_nothing_beside_its_diagonal():
    layer, x = (
        tp.nn.Conv2d(3, 1, 1),
        np.random.default_rng(0).normal(size=(50, 3, 2, 2)).astype("float32"),
    )
    *_, left, assumed, right = certificate(tp.nn.Sequential(layer), x, 1).rows[0]
    assert [left, assumed, right] == ["0", "0", "0"]


def test_refusals(tmp_path, capsys):
    assert main(["certify", str(tmp_path)]) == 1
    assert "no checkpoint" in capsys.readouterr().err
