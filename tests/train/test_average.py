"""Weights averaged over the last epochs, annealed rates, and small images."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, few_images
from tinyprop import nn
from tinyprop.train import Config, Run
from tinyprop.train.average import AveragedWeights, measure_again

TINY = {"width": 0.04, "train_size": 40, "batch_size": 10, "threads": 1}


@pytest.fixture(autouse=True)
def _few_images_and_no_curves(monkeypatch):
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)
    with few_images(40, 20):
        yield


def run_of(tmp_path, **settings):
    return Run(Config(**TINY | settings), tmp_path / "run", say=lambda line: None)


def test_the_mean_of_the_weights_of_the_last_epochs_before_annealing(tmp_path, monkeypatch):
    run = run_of(tmp_path, epochs=4, average=2, anneal=1)
    seen = []
    add = AveragedWeights.add

    def spy(average):
        seen.append((run.epoch, average.model.state_dict()))
        add(average)

    monkeypatch.setattr(AveragedWeights, "add", spy)
    assert run.run()
    assert [epoch for epoch, _ in seen] == [1] * 4 + [2] * 4
    averaged = run.averaged().state_dict()
    for name, _ in run.model.named_parameters():
        mean = np.mean([state[name] for _, state in seen], axis=0, dtype="float64")
        np.testing.assert_allclose(averaged[name], mean, rtol=1e-6, atol=1e-7)
    saved = tp.load(tmp_path / "run/averaged.safetensors")
    assert all((saved[name] == value).all() for name, value in averaged.items())
    last = run.history[-1]
    expected = tp.train.evaluate(run.averaged(), run.test.images, run.test.labels, threads=1)
    assert (last["averaged_test_loss"], last["averaged_test_error"]) == expected


def test_statistics_of_batch_norm_are_measured_again():
    """They become the mean over the batches, whatever they were."""
    net = nn.Sequential(nn.BatchNorm(2))
    net[0].running_mean.data[...] = 99.0
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (50, 2)).astype("float32") for _ in range(4)]
    measure_again(net, iter(batches))
    means = np.mean([x.mean(axis=0) for x in batches], axis=0)
    variances = np.mean([x.var(axis=0, ddof=1) for x in batches], axis=0)
    np.testing.assert_allclose(net[0].running_mean.numpy(), means, rtol=1e-5)
    np.testing.assert_allclose(net[0].running_var.numpy(), variances, rtol=1e-5)
    assert net[0].momentum == 0.1


def test_the_rate_is_halved_and_then_annealed_to_0(tmp_path):
    run = run_of(tmp_path, epochs=6, anneal=2, halve_every=2, lr=0.08)
    rates = []
    train_on = run.train_on
    run.train_on = lambda *batch: rates.append(run.optimizer.lr) or train_on(*batch)
    assert run.run()
    by_epoch = np.array(rates).reshape(6, 4)
    np.testing.assert_allclose(by_epoch[:4], np.repeat([[0.08], [0.08], [0.04], [0.04]], 4, axis=1))
    np.testing.assert_allclose(by_epoch[4:].ravel(), 0.02 * (1 - np.arange(8) / 8))


def test_images_are_averaged_over_blocks(tmp_path):
    spec = "C(8,3,1,1)-C(10,1,1,0)-P(16,16,0,avg)"
    run = run_of(tmp_path, epochs=1, shrink=2, spec=spec)
    assert run.run()
    whole = tp.data.load("shapes", None, "test")
    assert run.test.images.shape == (20, 3, 16, 16)
    block = whole.images[0, :, 2:4, 6:8].mean(axis=(1, 2))
    np.testing.assert_allclose(run.test.images[0, :, 1, 3], block, rtol=1e-6)
    assert_explained(ValueError, lambda: whole.shrunk(5), "32x32", "divides")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"average": 3, "epochs": 2}, "average = 3"),
        ({"average": 2, "anneal": 1, "epochs": 2}, "anneal = 1"),
        ({"anneal": 1, "schedule": "linear"}, "schedule = 'linear'"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, words):
    assert_explained(ValueError, lambda: Config(**settings), words)


def test_layers_that_measure_nothing_take_no_fixed_images(tmp_path):
    assert_explained(ValueError, lambda: run_of(tmp_path, refresh=5), "refresh = 5", "measured")


def test_a_run_that_averages_is_resumed_to_the_same_end_only(tmp_path):
    run = run_of(tmp_path, epochs=2, average=1)
    run.should_stop = lambda: run.epoch == 1
    assert not run.run()
    assert_explained(
        tp.StateError, lambda: run_of(tmp_path, epochs=3, average=1).run(resume=True), "epochs"
    )
