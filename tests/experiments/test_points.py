"""Points are measured rightly, kept, shared and resumed."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.experiments import points
from tinyprop.experiments.points import Point, Store, compute, key, unit_means
from tinyprop.train import Config, network

TINY = Config(data="shapes", width=0.04, epochs=2, batch_size=20, train_size=60, test_size=30, threads=1)


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_mean_inputs_are_those_of_every_image_and_place(norm, rng, backend):
    """Against the arguments themselves, seen by an activation that lets them through and writes them down."""
    images = rng.integers(0, 256, (7, 3, 32, 32)).astype(np.uint8)
    with tp.use_backend(backend):
        net = network(replace(TINY, norm=norm, gamma=0.8, beta=0.3), images, 10)
    x, expected = tp.tensor(images).to(backend), []
    net(x)  # BatchNorm has looked at a batch
    net.eval()
    found = unit_means(net, images)
    assert len(found) == 9
    with tp.no_grad():
        layers = list(net)
        for i, layer in enumerate(layers):
            if isinstance(layer, tp.nn.NormPropConv2d):
                u = tp.functional.conv2d(x, layer.weight, None, layer.stride, layer.padding).numpy()
                lengths = np.sqrt((layer.weight.numpy() ** 2).sum(axis=(1, 2, 3)))
                expected.append((x, u / lengths[:, None, None] * 0.8 + 0.3))
            elif isinstance(layer, tp.nn.Conv2d):
                u = layer(x)
                expected.append((x, layers[i + 1](u).numpy() if norm == "batch" and i < len(layers) - 3 else u.numpy()))
            x = layer(x)
    for (arriving, activated), (entering, u) in zip(found, expected, strict=True):
        np.testing.assert_allclose(arriving, entering.numpy().mean(axis=(0, 2, 3)), atol=1e-5)
        np.testing.assert_allclose(activated, u.mean(axis=(0, 2, 3)), atol=1e-5)


def test_the_key_is_the_content_of_the_config():
    assert key(TINY) == key(replace(TINY, epochs=9, threads=2))
    others = [replace(TINY, **c) for c in ({"seed": 1}, {"lr": 0.1}, {"beta": 1.0}, {"test_size": 31}, {"flip": True})]
    assert len({key(config) for config in [TINY, *others]}) == 6


def test_a_finished_point_is_never_computed_again(tmp_path, monkeypatch):
    store = Store(tmp_path)
    assert store.result(TINY) is None
    assert compute(TINY, store, None)
    found = store.result(TINY)
    assert [row["epoch"] for row in found["history"]] == [1, 2]
    assert {row["layer"] for row in found["layers"]} == set(range(1, 10))
    assert "images_per_second" not in json.dumps(found)
    assert {path.suffix for path in store.place(TINY).iterdir()} == {".json", ".csv"}, "large files are dropped"
    monkeypatch.setattr(points, "Point", None)
    assert compute(TINY, store, None)
    assert compute(replace(TINY, epochs=1), store, None), "the beginning of a run is a run"
    shorter = store.result(replace(TINY, epochs=1))
    assert shorter["history"] == found["history"][:1]
    assert {row["epoch"] for row in shorter["layers"]} == {1}
    assert store.result(replace(TINY, epochs=3)) is None


def test_a_point_that_is_stopped_goes_on_to_the_same_result(tmp_path, monkeypatch):
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    compute(TINY, whole, None)
    steps = 0

    class Interrupted(Point):
        def finish_epoch(self):
            super().finish_epoch()
            nonlocal steps
            steps += 1
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(points, "Point", Interrupted)
    assert not compute(TINY, parts, None)
    assert parts.result(TINY) is None
    assert parts.epochs_logged(TINY) == 1
    monkeypatch.setattr(points, "Point", Point)
    assert compute(TINY, parts, None)
    assert steps == 1
    assert parts.result(TINY) == whole.result(TINY)


def test_a_point_that_diverges_is_a_result(tmp_path):
    wild = replace(TINY, norm="none", lr=100.0, epochs=30)
    store = Store(tmp_path)
    assert compute(wild, store, None)
    found = store.result(wild)
    assert found["diverged"]["epoch"] <= 9
    assert "loss" in found["diverged"]["what"]
    assert len(found["history"]) == found["diverged"]["epoch"] - 1
    assert found == store.result(replace(wild, epochs=50)), "more epochs would not help"


def test_what_is_measured_once_is_kept(tmp_path):
    store = Store(tmp_path)
    assert store.keep("speed", lambda: {"seconds": 1.0}) == store.keep("speed", lambda: {"seconds": 2.0})
