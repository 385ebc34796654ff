"""The training loop: what it leaves, and that nothing stops it from ending with the same bits."""

import csv
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest

import tinyprop as tp
from tests.conftest import BACKENDS
from tests.helpers import changed_data, few_images, flipped, quick_only, sampled
from tinyprop.parallel.executors import stop_on_signals
from tinyprop.report.files import locked
from tinyprop.train import Config, Run, checkpoint, network

TINY = {
    "data": "shapes",
    "width": 0.04,
    "epochs": 3,
    "train_size": 120,
    "batch_size": 20,
    "threads": 2,
}


@pytest.fixture(autouse=True, scope="module")
def _few_test_images():
    """Evaluation of a run is not what is tested here."""
    with few_images(200, 40):
        yield


@pytest.fixture
def _no_curves(monkeypatch):
    """Drawing takes longer than training."""
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("whole")
    run = Run(Config(**TINY), out)
    assert run.run()
    assert same(weights(out), run.model.state_dict())
    return out


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    assert Run(Config(**{**TINY, "epochs": 2}), out).run(resume=True), (
        "without a run to resume, a new one starts"
    )
    return out


@pytest.fixture
def stopped(two_epochs, tmp_path):
    """A copy of the directory of a run that was stopped after two epochs."""
    return shutil.copytree(two_epochs, tmp_path / "stopped")


def weights(out):
    return tp.load(out / "model.safetensors")


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def same(a, b):
    return a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def test_a_run_leaves_everything_behind(whole):
    assert {p.suffix for p in whole.iterdir()} == {
        "",
        ".json",
        ".jsonl",
        ".csv",
        ".safetensors",
        ".png",
        ".svg",
    }
    assert json.loads((whole / "config.json").read_text())["width"] == 0.04
    rows = read_csv(whole / "log.csv")
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    assert 0 <= float(rows[-1]["test_error"]) <= 1
    layers = {row["layer"] for row in read_csv(whole / "signals.csv")}
    assert {"0 GlobalNormalizer", "1 NormPropConv2d"} <= layers
    assert len(checkpoint.paths(whole)) == 2, "older checkpoints are dropped"


DAMAGE = {
    None: lambda path, content: path.write_bytes(content),
    "truncate": lambda path, content: path.write_bytes(content[:-7]),
    "flip": lambda path, content: path.write_bytes(flipped(content, 8 * len(content) - 1)),
    "foreign": lambda path, content: path.write_bytes(b"something else"),
    "fifo": lambda path, content: os.mkfifo(path),
    "link": lambda path, content: path.symlink_to("/dev/zero"),
    "sparse": lambda path, content: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.usefixtures("_no_curves")
@pytest.mark.parametrize("damage", quick_only([None, "flip"], DAMAGE))
def test_a_resumed_run_skips_a_damaged_checkpoint_and_ends_with_the_same_bits(
    whole, stopped, damage, capsys
):
    newest = checkpoint.paths(stopped)[-1]
    content = newest.read_bytes()
    newest.unlink()
    DAMAGE[damage](newest, content)
    Run(Config(**TINY), stopped).run(resume=True)
    assert (str(newest) in capsys.readouterr().out) == (damage is not None)
    assert same(weights(stopped), weights(whole))


def test_what_cannot_be_resumed_is_refused_and_changes_nothing(stopped):
    def refused(words, resume=True, **change):
        before = {path.name: path.read_bytes() for path in stopped.iterdir()}
        with pytest.raises(tp.StateError, match=rf"(?s){words}"):
            Run(Config(**{**TINY, **change}), stopped).run(resume=resume)
        assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before

    refused("holds a run.*rule:.*--resume", resume=False)
    refused("lr = 0.1 for the run.*which has lr = 0.02.*rule:.*try:", lr=0.1)
    refused("epochs = 1 .*which has epochs >= 2", epochs=1)
    load, backwards = tp.data.load, lambda images: images.subset(range(len(images))[::-1])
    with changed_data(lambda *which: backwards(load(*which))):
        refused("other images or labels")
    for path in checkpoint.paths(stopped):
        path.write_bytes(path.read_bytes()[:-1])
    refused("none of whose 2 checkpoints can be used.*nothing was changed")


def test_an_epoch_that_has_begun_is_not_left_out(stopped):
    found = checkpoint.read_all(stopped)[0][-1]
    checkpoint.write(stopped, found.arrays, {**found.facts, "batch": 1})
    with pytest.raises(tp.StateError, match=r"epochs = 2 .*which has epochs >= 3"):
        Run(Config(**{**TINY, "epochs": 2}), stopped).run(resume=True)


@pytest.mark.usefixtures("_no_curves")
def test_a_run_that_ends_earlier_than_it_was_to_is_tested_all_the_same(tmp_path):
    settings = {**TINY, "validation": True}
    run = Run(Config(**settings), tmp_path / "run")
    run.should_stop = lambda: run.epoch == 2
    assert not run.run()
    assert "test_error" not in run.history[-1]
    checkpoint.paths(run.out)[-1].unlink()  # which is a step later than the end of the epoch
    shorter = Run(Config(**{**settings, "epochs": 2}), tmp_path / "run")
    assert shorter.run(resume=True)
    assert 0 <= shorter.history[-1]["test_error"] <= 1
    assert read_csv(tmp_path / "run" / "log.csv")[-1]["test_error"]


def test_a_learning_rate_may_be_a_whole_number(tmp_path):
    Run(Config(**TINY, lr=1), tmp_path).save()
    (found,), complaints = checkpoint.read_all(tmp_path)
    assert found.facts["lr"] == 1.0
    assert not complaints


def test_a_last_batch_of_one_image_is_refused_before_any_work(tmp_path):
    with pytest.raises(
        ValueError, match=r"(?s)'batch' with 41 images in batches of 20.*rule:.*one image.*try:"
    ):
        Run(Config(**{**TINY, "train_size": 41, "batch_size": 20, "data_norm": "batch"}), tmp_path)


def test_beta_reaches_the_layers_of_residual_blocks():
    spec = "C(4,3,1,1)-R(C(4,3,1,1))-C(10,1,1,0)-P(32,32,0,avg)"
    net = network(Config(spec=spec, beta=0.7), np.zeros((1, 3, 32, 32), "uint8"), 10)
    betas = [value for name, value in net.named_parameters() if name.endswith("beta")]
    assert len(betas) == 2
    assert all((beta == 0.7).numpy().all() for beta in betas)


def test_a_setting_that_an_older_version_did_not_know_has_its_default(stopped):
    found = checkpoint.read_all(stopped)[0][-1]
    settings = {name: value for name, value in found.facts["config"].items() if name != "spec"}
    checkpoint.write(stopped, found.arrays, {**found.facts, "config": settings})
    Run(Config(**TINY), stopped).resume()
    checkpoint.write(stopped, found.arrays, {**found.facts, "config": {**settings, "warmup": 3}})
    with pytest.raises(tp.StateError, match=r"(?s)cannot be used.*unexpected.*warmup"):
        checkpoint.read(checkpoint.paths(stopped)[-1])


@pytest.mark.usefixtures("_no_curves")
def test_one_command_at_a_time_which_removes_its_own_temporary_files_only(stopped):
    ours, theirs = stopped / f".log.csv.{'0' * 32}.part", stopped / ".thesis.part"
    for path in (ours, theirs):
        path.touch()
    run = Run(Config(**{**TINY, "epochs": 2, "threads": 1}), stopped)
    with locked(stopped), pytest.raises(tp.StateError, match="another command is at work"):
        run.run(resume=True)
    assert ours.exists()
    assert run.run(resume=True), "the lock is released"
    assert (ours.exists(), theirs.exists()) == (False, True)


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    run = Run(Config(**TINY), tmp_path)
    next(run.model.parameters()).data[...] = np.nan
    with pytest.raises(tp.DivergenceError, match="not finite"):
        run.save()
    assert checkpoint.paths(tmp_path) == []


@pytest.mark.slow
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bits(tmp_path):
    """Ctrl-C after every third step, again and again, until the run is done; test_faults.py has
    other settings."""
    change = {"dropout": 0.3, "threads": None, "flip": True, "validation": True}
    config = Config(**{**TINY, **change})
    whole = Run(config, tmp_path / "whole")
    whole.run()
    for _ in range(100):
        run = Run(config, tmp_path / "parts")
        steps = 0

        def counted(*batch, train_on=run.train_on):
            nonlocal steps
            steps += 1
            if steps == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return train_on(*batch)

        run.train_on = counted
        if run.run(resume=True):
            break
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    for row in (*run.history, *whole.history):
        del row["images_per_second"]
    assert run.history == whole.history


SLOW_RUN = """
import sys, time
from dataclasses import replace
from pathlib import Path
import tinyprop as tp
from tinyprop.train import Config, Run
from tests.helpers import few_images
few = few_images(200, 40)
few.__enter__()
Run.SAVE_SECONDS = 0.05
run = Run(Config(**{config!r}), Path({out!r}), say=lambda line: None)
train_on = run.train_on
run.train_on = lambda *batch: time.sleep(0.05) or train_on(*batch)
run.run(resume=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_no_curves")
def test_a_run_that_is_killed_at_any_moment_ends_with_the_same_bits(tmp_path):
    """SIGKILL, while it computes and while it writes, 20 times in `make full`; each life gets a
    checkpoint further."""
    kills = len(sampled(range(20), 3))
    # of 12 steps each; a life has no more than 8
    config = {**TINY, "epochs": kills, "batch_size": 10}
    Run(Config(**config), tmp_path / "whole").run()
    chance, out = random.Random(0), tmp_path / "killed"
    for _ in range(kills):
        code = SLOW_RUN.format(config=config, out=str(out))
        before, process = checkpoint.paths(out), subprocess.Popen([sys.executable, "-c", code])
        while checkpoint.paths(out) == before:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert Run(Config(**config), out, say=lambda line: None).run(resume=True)
    assert same(weights(out), weights(tmp_path / "whole"))
    assert not list(out.glob(".*.part"))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_save_and_stop(tmp_path, name):
    run, number = Run(Config(**TINY), tmp_path), getattr(signal, name)
    train_on = run.train_on
    run.train_on = lambda *batch: os.kill(os.getpid(), number) or train_on(*batch)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
    try:
        assert not run.run()
    finally:
        signal.signal(number, before)
    (whole,), _ = checkpoint.read_all(tmp_path)
    assert whole.progress == (0, 1)


def test_divergence_names_the_step_and_the_layer(tmp_path):
    with pytest.raises(tp.DivergenceError, match=r"(?s)layer \d+, .*at step \d+ of epoch \d.*try:"):
        Run(Config(**{**TINY, "norm": "none", "lr": 50.0, "epochs": 9}), tmp_path).run()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "torch"),
        ("optimizer", "adam"),
        ("spec", "C(8,3,1)"),
        ("spec", ""),
        ("init", "xavier"),
        ("epochs", 0),
        ("batch_size", -1),
        ("train_size", 0),
        ("lr", -0.1),
        ("lr", float("nan")),
        ("momentum", 1.5),
    ],
)
def test_wrong_values_are_refused_before_any_work(name, value):
    with pytest.raises(ValueError, match=rf"(?s){name} = .*rule:.*try:.*{name} = "):
        Config(**{name: value})


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"normaliser 'bach'\nrule: .*normprop.*\ntry:  'batch'"):
        Config(norm="bach")
    with pytest.raises(ValueError, match=r"activation 'rleu'\nrule: .*relu.*\ntry:  'relu'"):
        Config(activation="rleu")
    with pytest.raises(ValueError, match=r"data set 'imagenet'.*\nrule: .*cifar10.*\ntry:"):
        Config(data="imagenet")


def test_the_network_is_the_papers_with_its_data_normalised():
    images = np.zeros((10, 1, 28, 28), np.uint8)
    net = network(Config(width=0.05, dropout=0.1, data_norm="batch"), images, 7)
    kinds = [type(layer).__name__ for layer in net]
    assert kinds[0] == "BatchNormalizer"
    assert kinds.count("Dropout") == 2
    assert net.eval()(tp.tensor(images)).shape == (10, 7)


RESIDUAL = "C(8,3,2,1)-R(C(8,3,1,1)-C(8,3,1,1))-C(10,1,1,0)-P(16,16,0,avg)"


@pytest.mark.parametrize("init", quick_only([None], [None, "orthogonal", "fixup", "lsuv"]))
def test_any_network_in_the_papers_shorthand_trains_and_resumes(tmp_path, init):
    config = Config(**{**TINY, "spec": RESIDUAL, "norm": "none", "init": init, "width": 1.0})
    assert Run(replace(config, epochs=1), tmp_path / "resumed").run()
    assert Run(config, tmp_path / "resumed").run(resume=True)
    assert Run(config, tmp_path / "whole").run()
    assert same(weights(tmp_path / "resumed"), weights(tmp_path / "whole"))


def test_lsuv_starts_every_layer_at_variance_1():
    images = np.random.default_rng(0).integers(0, 255, (200, 3, 16, 16)).astype(np.uint8)
    net = network(
        Config(spec="C(8,3,1,1)-C(8,3,1,1)-C(5,1,1,0)-P(16,16,0,avg)", norm="none", init="lsuv"),
        images,
        5,
    )
    found = [
        signal for signal in tp.nn.signals(net, tp.tensor(images[:100])) if "Conv2d" in signal.layer
    ]
    assert [signal.std for signal in found] == pytest.approx([1.0, 1.0, 1.0], abs=1e-3)


def test_a_network_with_too_many_outputs_is_refused():
    with pytest.raises(tp.ShapeError, match="one output for each of 5 classes"):
        network(Config(spec="C(5,1,1,0)-P(2,2,0,avg)"), np.zeros((2, 3, 4, 4), np.uint8), 5)


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) == 1, reason="needs CuPy and a device, or the emulator")
@pytest.mark.usefixtures("_no_curves")
def test_the_same_code_on_a_device(tmp_path):
    losses = []
    for backend in ("numpy", "cupy"):
        config = Config(
            **{**TINY, "backend": backend, "threads": None, "epochs": 1, "train_size": 40}
        )
        run = Run(config, tmp_path / backend)
        run.run()
        assert next(run.model.parameters()).backend == backend
        losses.append(run.history[0]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class DeviceLoss:
    """Reading it would synchronise with the device."""

    reads = 0

    def __init__(self, value):
        self.value = value

    def __radd__(self, other):
        return DeviceLoss(self.value + (other.value if isinstance(other, DeviceLoss) else other))

    __add__ = __radd__

    def astype(self, dtype):
        return self

    def __float__(self):
        DeviceLoss.reads += 1
        return self.value


def on_a_device(tmp_path, monkeypatch, every, loss):
    """A run whose step returns such a loss, on 6 batches."""
    monkeypatch.setattr(tp.data, "prefetched", lambda batches, backend: batches)
    monkeypatch.setattr(DeviceLoss, "reads", 0)
    run = Run(Config(**TINY), tmp_path)
    run.config = replace(run.config, backend="cupy", read_every=every)
    monkeypatch.setattr(run, "count_errors", lambda labels: None)
    run.step = lambda images, labels: DeviceLoss(loss(run.batch))
    return run


@pytest.mark.parametrize(
    ("every", "looks", "noticed"), [(1, 6, 3), (3, 2, 3), (4, 2, 4), (100, 1, 6)]
)
def test_on_a_device_the_loss_is_read_every_so_many_steps(
    tmp_path, monkeypatch, every, looks, noticed
):
    """One that is not finite is noticed then, and at the end of the epoch at the latest."""
    assert on_a_device(tmp_path, monkeypatch, every, lambda batch: 1.0).run_epoch()
    assert DeviceLoss.reads == 2 * looks
    run = on_a_device(
        tmp_path, monkeypatch, every, lambda batch: float("nan") if batch == 2 else 1.0
    )
    with pytest.raises(tp.DivergenceError, match=f"at step {noticed} of epoch 1"):
        run.run_epoch()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_a_run_under_nohup_goes_on_when_the_terminal_closes():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as should_stop:
            signal.raise_signal(signal.SIGHUP)
            assert not should_stop()
            signal.raise_signal(signal.SIGTERM)
            assert should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_no_curves")
def test_the_training_loss_is_a_mean_over_images(tmp_path):
    """Of weights that hardly move, and a last batch of one image."""
    run = Run(Config(**{**TINY, "epochs": 1, "train_size": 41, "lr": 1e-12}), tmp_path / "run")
    loss, _ = tp.train.evaluate(run.model, run.train.images, run.train.labels)
    run.run()
    assert run.history[0]["train_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.usefixtures("_no_curves")
def test_the_training_error_is_that_of_the_steps(tmp_path):
    """Of weights that hardly move, and a last batch of one image."""
    run = Run(Config(**{**TINY, "epochs": 1, "train_size": 41, "lr": 1e-12}), tmp_path / "run")
    _, error = tp.train.evaluate(run.model, run.train.images, run.train.labels)
    assert error not in (0.0, 1.0)
    run.run()
    assert run.history[0]["train_error"] == error


@pytest.mark.usefixtures("_no_curves")
def test_a_checkpoint_of_a_version_that_did_not_count_errors(tmp_path):
    """The epoch that it was in has the error of its other steps; or none."""
    run = Run(Config(**{**TINY, "epochs": 2}), tmp_path)
    run.should_stop = lambda: run.batch == run.batches_per_epoch
    assert not run.run()
    (found,), _ = checkpoint.read_all(tmp_path)
    assert (found.facts["counted"], found.progress) == (120, (0, 6))
    old = {name: value for name, value in found.facts.items() if name not in ("wrong", "counted")}
    checkpoint.write(tmp_path, found.arrays, old | {"history": []})
    run = Run(Config(**{**TINY, "epochs": 2}), tmp_path, say=lambda line: None)
    assert run.run(resume=True)
    assert ["train_error" in row for row in run.history] == [False, True]


@pytest.mark.usefixtures("_no_curves")
def test_a_log_is_flushed_to_the_disk_when_the_run_ends(tmp_path, monkeypatch):
    """Before, the checkpoint has it, too: flushing takes longer than a short epoch."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(name_of(descriptor)))

    def name_of(descriptor):
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    assert Run(Config(**TINY), tmp_path, say=lambda line: None).run()
    logs = [name.split(".")[1] for name in flushed if name.startswith((".log.", ".signals."))]
    assert logs == ["log", "signals", "log"]
    assert sum("checkpoint" in name for name in flushed) == 3


@pytest.mark.usefixtures("_no_curves")
def test_a_run_does_not_depend_on_what_else_was_drawn(tmp_path):
    runs = [
        Run(Config(**{**TINY, "epochs": 1, "dropout": 0.5, "threads": 1}), tmp_path / name)
        for name in "ab"
    ]
    losses = [run.run() and run.history[0]["train_loss"] for run in runs]
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("_no_curves")
def test_a_finished_run_is_freed_at_once(tmp_path):
    """With its images and its network, without the collector of cycles: a sweep makes hundreds of
    runs in one process."""
    run = Run(Config(**{**TINY, "epochs": 1}), tmp_path)
    gc.collect()
    gc.disable()
    try:
        assert run.run()
        still_there = [weakref.ref(run), weakref.ref(run.model), weakref.ref(run.train.images)]
        del run
        assert [found() for found in still_there] == [None] * 3
    finally:
        gc.enable()


def test_more_images_than_there_are_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has 200 training images"):
        Run(Config(**{**TINY, "train_size": 201}), tmp_path / "run")
