"""Runs are measured correctly, recorded, never computed twice, and resumed to the same record."""

import json
import os
import signal
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.conftest import PLAIN, needs_kernels
from tests.helpers import changed_data
from tinyprop.experiments import ledger as room
from tinyprop.experiments import record as records
from tinyprop.experiments.ledger import Ledger, compute, run_name
from tinyprop.experiments.record import (
    Evaluation,
    Record,
    RecordedRun,
    best_temperature,
    image_losses,
    passed_through,
)
from tinyprop.report.environment import NUMERICS, sources
from tinyprop.train import network

from .runs import TINY, record

ROOT = Path(__file__).parents[2]
VALIDATED = replace(TINY, validation=True, schedule="linear", dropout=0.2)


@pytest.fixture
def few_validation_images():
    load = tp.data.load

    def short(name, root, split):
        return load(name, root, split).first(130) if split == "valid" else load(name, root, split)

    with changed_data(short):
        yield


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_means_are_those_of_every_feature_that_arrives(norm, rng, backend, monkeypatch):
    """Against what a network without the layers above puts out."""
    monkeypatch.setattr(records, "CHUNK", 8)
    images = rng.integers(0, 256, (20, 3, 32, 32)).astype(np.uint8)
    x = tp.tensor(images).to(backend)
    tp.manual_seed(0)
    with tp.use_backend(backend):
        net = network(replace(TINY, norm=norm), images, 10)
    net(x)  # running statistics have seen a batch
    net.eval()
    outputs, means, deviations = passed_through(net, images)
    layers = list(net)
    convolutions = [
        i
        for i, layer in enumerate(layers)
        if isinstance(layer, tp.nn.Conv2d | tp.nn.NormPropConv2d)
    ]
    assert len(convolutions) == 9
    with tp.no_grad():
        arriving = [tp.nn.Sequential(*layers[:i])(x).numpy().astype(float) for i in convolutions]
        np.testing.assert_allclose(outputs, net(x).numpy(), rtol=1e-3, atol=1e-4)
    for mean, deviation, expected in zip(means, deviations, arriving, strict=True):
        np.testing.assert_allclose(mean, expected.mean(axis=(0, 2, 3)), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(deviation, expected.std(axis=(0, 2, 3)), rtol=1e-3, atol=1e-3)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 30.0))
def test_what_is_saved_of_single_images_is_close(seed, scale):
    rng = np.random.default_rng(seed)
    outputs = scale * rng.standard_normal((203, 10))
    # of probabilities at this temperature
    labels = (outputs / scale + rng.gumbel(size=outputs.shape)).argmax(axis=1)
    temperature = best_temperature(outputs, labels)
    losses = image_losses(outputs, labels, temperature)
    found = Evaluation.of(outputs, labels, temperature)
    assert (found.image_correct() == (outputs.argmax(axis=1) == labels)).all()
    assert len(found.correct) + len(found.scaled_losses) < 2 * len(labels) + 20, (
        "the ledger stays small"
    )
    assert found.scaled_loss == pytest.approx(losses.mean())
    assert found.image_losses().mean() == pytest.approx(losses.mean())
    error = abs(found.image_losses() - losses)
    assert (error <= 0.23 * losses + 2e-4).all()
    assert losses.mean() <= min(
        image_losses(outputs, labels, factor * temperature).mean() for factor in (0.9, 1.1)
    )


def test_a_name_is_the_content_of_the_config():
    assert run_name(TINY) == run_name(replace(TINY, threads=2, read_every=7))
    changes = {
        "seed": 1,
        "lr": 0.1,
        "beta": 1.0,
        "test_size": 31,
        "flip": True,
        "epochs": 3,
        "validation": True,
    }
    names = {run_name(replace(TINY, **{name: value})) for name, value in changes.items()}
    assert len(names | {run_name(TINY)}) == len(changes) + 1


@pytest.mark.usefixtures("few_validation_images")
def test_a_run_is_computed_once_and_leaves_only_its_record(ledger, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    assert ledger.find(VALIDATED) is None
    assert compute(VALIDATED, ledger, runs, None)
    found = ledger.find(VALIDATED)
    assert list(runs.iterdir()) == []
    assert [path.name for path in ledger.folder.iterdir()] == [f"{run_name(VALIDATED)}.json"]
    assert [row["epoch"] for row in found.history] == [1, 2]
    assert found.images == {"train": 60, "validation": 130, "test": 30}
    assert found.test.error == pytest.approx(found.history[-1]["test_error"], rel=1e-4)
    assert found.validation.loss == pytest.approx(found.history[-1]["validation_loss"], rel=1e-4)
    assert found.validation.image_correct().mean() == pytest.approx(
        1.0 - found.validation.error, rel=1e-4
    )
    assert found.losses == pytest.approx(
        [np.mean([row["train_loss"] for row in found.history])], rel=1e-4
    )
    assert [(layer.layer, len(layer.size), layer.moved[0]) for layer in found.layers] == [
        (i, 3, 0.0) for i in range(1, 10)
    ]
    assert all(layer.moved[1] > 0 for layer in found.layers)
    assert any("conv" in name.lower() for name in found.overrides) == (not PLAIN)
    assert Record.from_json(json.loads(json.dumps(found.to_json()))) == found
    monkeypatch.setattr(room, "RecordedRun", None)
    assert compute(VALIDATED, ledger, runs, None)


@pytest.mark.usefixtures("few_validation_images")
@pytest.mark.parametrize("stop_after", [2, 5])
def test_a_run_that_is_stopped_resumes_to_the_same_record(
    stop_after, ledger, tmp_path, monkeypatch
):
    """Within the first epoch, and in the second one; dropout needs the state of the generator."""
    whole = Ledger(tmp_path / "whole")
    assert compute(VALIDATED, whole, tmp_path / "runs", None)
    steps = 0

    class Interrupted(records.StepWithLosses):
        def __call__(self, x, labels):
            nonlocal steps
            steps += 1
            if steps == stop_after:
                os.kill(os.getpid(), signal.SIGINT)
            return super().__call__(x, labels)

    monkeypatch.setattr(records, "StepWithLosses", Interrupted)
    assert not compute(VALIDATED, ledger, tmp_path / "runs", None)
    assert ledger.find(VALIDATED) is None
    losses = tmp_path / "runs" / run_name(VALIDATED) / "losses.f4"
    losses.write_bytes(losses.read_bytes() + b"----")  # of a step that no checkpoint knows of
    assert compute(VALIDATED, ledger, tmp_path / "runs", None)
    assert steps == 6, "no step is made twice"

    def timeless(found):
        return [{k: v for k, v in row.items() if k != "images_per_second"} for row in found.history]

    ours, theirs = ledger.find(VALIDATED), whole.find(VALIDATED)
    assert timeless(ours) == timeless(theirs)
    assert replace(ours, history=()) == replace(theirs, history=())


def test_epoch_0_changes_nothing(tmp_path):
    """Neither the network nor the random numbers: it trains as a run that does not look."""
    config = replace(TINY, norm="batch", dropout=0.3, epochs=1)
    looking, plain = (
        RecordedRun(config, tmp_path / "a"),
        tp.train.Run(config, tmp_path / "b", say=lambda line: None),
    )
    tp.manual_seed(5)
    looking.run(resume=True)
    tp.manual_seed(5)
    plain.run()
    ours, theirs = looking.model.state_dict(), plain.model.state_dict()
    assert all((ours[name] == theirs[name]).all() for name in theirs)


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "edited": lambda content: content.replace(b'"error": 0.', b'"error": 0.1', 1),
    "another format": lambda content: b"[]",
    "no fields": lambda content: b"{}",
    "another run": lambda content: json.dumps(record(replace(TINY, seed=1)).to_json()).encode(),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_record_counts_as_not_there_and_is_named(how, ledger):
    ledger.add(record(TINY))
    path, said = ledger.path(TINY), []
    assert ledger.find(TINY).test.error == 0.5
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    assert ledger.find(TINY, said.append) is None
    assert len(said) == 1
    assert str(path) in said[0]


def test_a_run_that_diverges_is_recorded(ledger, tmp_path):
    wild = replace(TINY, norm="none", lr=100.0, epochs=30, data_norm="global")
    assert compute(wild, ledger, tmp_path / "runs", None)
    found = ledger.find(wild)
    assert "loss" in found.diverged["what"]
    assert found.test is None
    assert len(found.history) == found.diverged["epoch"] - 1
    assert len(found.layers[0].size) == found.diverged["epoch"]
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_wrong_and_a_divergence(
    value, ledger, tmp_path, monkeypatch
):
    """The last step may break a network, and no further step notices. With -inf for a class that is
    not the image's, the loss is finite."""
    through, config = records.passed_through, replace(TINY, epochs=1)

    def broken(model, images):
        passed = through(model, images)
        labels = run.test.labels
        passed.outputs[:] = np.arange(10) == labels[:, None]
        passed.outputs[0, (labels[0] + 1) % 10] = value
        return passed

    run = RecordedRun(config, tmp_path / "other")
    monkeypatch.setattr(records, "passed_through", broken)
    with np.errstate(all="ignore"):
        assert run.evaluate("test", run.test)["test_error"] == pytest.approx(1 / len(run.test))
        assert compute(config, ledger, tmp_path / "runs", None)
    found = ledger.find(config)
    assert (found.diverged["epoch"], found.test) == (1, None)


@needs_kernels
def test_a_run_says_which_sources_computed_it(tmp_path):
    """Whatever their version; also if others resume it. What else is imported decides no number of
    a run."""
    run = RecordedRun(replace(TINY, epochs=1), tmp_path)
    # as an older version has left it
    run.signals = [{"epoch": 0, "layer": 1, "size": 0.1, "moved": 0.0}]
    run.signals += [{"epoch": 1, "layer": 1, "size": 0.1, "moved": 0.0, "sources": sources()}]
    found = run.record({"epoch": 1, "step": 1, "what": "a loss"})
    assert found.versions["sources"] == f"? {sources()}"
    others = "experiments parallel report theory verify"
    program = "import sys, tinyprop.experiments.record; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    rooms = {name.split(".")[1] for name in loaded.split() if name.startswith("tinyprop.")}
    assert rooms - {*others.split()} == {name for name in NUMERICS if "/" not in name}


def test_averaged_weights_are_evaluated_and_times_and_plan_are_recorded(ledger, tmp_path):
    """The averaged network is the one that `Run.averaged` gives, on all test images."""
    config = replace(TINY, epochs=3, average=1, anneal=1, norm="batch")
    outputs = {}

    class Kept(RecordedRun):
        def record(self, diverged, registration=None):
            network = self.averaged()
            with tp.nn.evaluating():
                outputs["test"] = passed_through(network, self.test.images).outputs
            outputs["labels"] = self.test.labels
            return super().record(diverged, registration)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "RecordedRun", Kept)
        assert compute(config, ledger, tmp_path / "runs", None, registration="abc")
    found = ledger.find(config)
    right = outputs["test"].argmax(axis=1) == outputs["labels"]
    assert (found.averaged.image_correct() == right).all()
    assert found.averaged != found.test
    assert found.started <= found.ended
    assert found.registration == "abc"
    assert found.commit is None or len(found.commit) == 40
    assert len(found.layers[1].spread) == len(found.layers[1].size) == 4


def test_records_of_older_versions_are_read():
    """They know nothing of averages, times and plans."""
    facts = record(TINY).to_json()
    new = ("averaged", "started", "ended", "commit", "registration")
    old = {k: v for k, v in deepcopy(facts).items() if k not in (*new, "format", "sha256")}
    for layer in old["layers"]:
        del layer["spread"]
    for name in ("average", "anneal", "shrink", "output", "alpha", "decay_on", "unconstrained"):
        del old["config"][name]
    found = Record.from_json({"format": records.FORMAT, "sha256": records.digest(old), **old})
    assert replace(found, layers=[]) == replace(Record.from_json(facts), layers=[])


def test_a_run_waits_while_the_pause_file_exists(ledger, tmp_path):
    """It is computed when the file is gone, and can be stopped while it waits."""
    pause = tmp_path / "pause"
    pause.touch()
    looks = []

    def stop_at_third_look():
        looks.append(pause.exists())
        return len(looks) > 2

    wait = {"ledger": ledger, "runs": tmp_path / "runs", "root": None, "pause_file": pause}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "PAUSE_POLL", 0.0)
        assert not compute(TINY, should_stop=stop_at_third_look, **wait)
        assert ledger.find(TINY) is None
        patch.setattr(room.time, "sleep", lambda seconds: pause.unlink())
        assert compute(TINY, **wait)
    assert not pause.exists()
    assert ledger.find(TINY)


@pytest.mark.usefixtures("few_validation_images")
@pytest.mark.parametrize("norm", ["batch", "normprop-measured"])
def test_a_run_that_averages_and_anneals_resumes_to_the_same_record(norm, ledger, tmp_path):
    """Stopped within the epoch that is averaged. Its times are its own."""
    config = replace(TINY, epochs=3, average=1, anneal=1, norm=norm, validation=True)
    whole = Ledger(tmp_path / "whole")
    assert compute(config, whole, tmp_path / "runs", None)
    asked = iter([False] * 5 + [True])
    assert not compute(
        config, ledger, tmp_path / "runs", None, should_stop=lambda: next(asked, True)
    )
    assert compute(config, ledger, tmp_path / "runs", None)
    ours, theirs = ledger.find(config), whole.find(config)
    # the second part may need fewer overrides
    assert replace(ours, history=(), overrides=()) == replace(theirs, history=(), overrides=())
    assert ours.averaged is not None
