"""A stranger's network and data: trained from Python and from the command line, killed and resumed
to the same bits, loaded back, evaluated, and compared with theory."""

import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, sampled
from tinyprop.cli import main
from tinyprop.train import Config, Run, checkpoint

FILE = Path(__file__).with_name("own_file.py").read_text()
SMALL = {"batch_size": 20, "threads": 1, "lr": 0.05}
FLAGS = ["--batch-size", "20", "--threads", "1", "--lr", "0.05"]


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    """Drawing takes longer than training."""
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def kind_of(file, name="Net"):
    from tinyprop.engine.loading import from_file

    return from_file(f"{file}:{name}")


def config_of(file, **changes):
    settings = {"net": f"{file}:Net", "data": f"{file}:load", "epochs": 2, **SMALL}
    return Config(**settings | changes)


def quiet(config, out, **given):
    return Run(config, out, say=lambda line: None, **given)


def weights(out):
    return tp.load(out / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


# -- from Python and from the command line


def test_one_run_by_a_file_by_objects_and_on_the_command_line(file, tmp_path):
    """A network that is given has drawn its first weights already, so that dropout draws other
    numbers; else the bits are the same, whichever way network and data are given."""
    assert quiet(config_of(file), tmp_path / "by file").run()
    words = ["--net", f"{file}:Net", "--data", f"{file}:load", "--epochs", "2"]
    assert main(["train", *words, *FLAGS, "--out", str(tmp_path / "typed"), "--quiet"]) == 0
    tp.manual_seed(0)
    net = kind_of(file)()
    splits = tp.data.splits(f"{file}:load")
    given = {name: splits[name] for name in ("train", "valid", "test")}
    config = Config(epochs=2, **SMALL)
    run = quiet(config, tmp_path / "objects", model=net, data=given)
    by_file = quiet(config_of(file), tmp_path / "other")
    assert same(run.model.state_dict(), by_file.model.state_dict())
    assert (run.config.net, run.fingerprint) == (by_file.config.net, by_file.fingerprint)
    assert run.run()
    assert run.model[-1] is net, "it is trained in place"
    assert same(weights(tmp_path / "typed"), weights(tmp_path / "by file"))


def test_the_layers_of_an_own_network_are_recorded(file, tmp_path):
    run = quiet(config_of(file, epochs=1), tmp_path / "run")
    assert run.run()
    layers = [row["layer"] for row in run.signals]
    assert layers == [
        "0 GlobalNormalizer",
        "1.first NormPropLinear",
        "1.block Block",
        "1.last Linear",
    ]


def test_a_summary_comes_before_the_training(file, tmp_path, capsys):
    words = ["--net", f"{file}:Net", "--data", f"{file}:load", "--epochs", "1", *FLAGS]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    before, _, after = said.partition("epoch 1/1")
    drawn = "load train: 14 of 150 held out for valid"
    for part in ("1.block.linear Linear", "(1, 12)", "load test", drawn, "1 thread"):
        assert part in before
    assert "Test error" in after
    assert main(["train", *words, "--out", str(tmp_path / "other"), "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("Test error")


@pytest.mark.parametrize("data_norm", ["global", "batch", "none"])
def test_samples_are_normalised_in_front_of_it(file, tmp_path, data_norm):
    run = quiet(config_of(file, data_norm=data_norm, epochs=1), tmp_path / "run")
    assert run.run()
    kinds = {"global": "GlobalNormalizer", "batch": "BatchNormalizer", "none": "Net"}
    assert type(run.model[0]).__name__ == kinds[data_norm]
    assert len(run.model) == 1 + (data_norm != "none")


def test_an_mlp_needs_no_file(file, tmp_path):
    """A spec is built as it is written."""
    run = quiet(Config(data=f"{file}:load", spec="F(20)-F(3)", epochs=1, **SMALL), tmp_path / "x")
    assert [p.shape for name, p in run.model.named_parameters() if "weight" in name] == [
        (20, 6),
        (3, 20),
    ]
    assert run.run()
    assert tp.train.load(tmp_path / "x")(tp.tensor(run.test.images)).shape == (150, 3)


# -- loaded back


def test_a_trained_network_is_loaded_evaluated_and_compared_with_theory(file, tmp_path):
    run = quiet(config_of(file, epochs=3), tmp_path / "run")
    assert run.run()
    state = tp.engine.random.generator().bit_generator.state
    net = tp.train.load(tmp_path / "run")
    assert tp.engine.random.generator().bit_generator.state == state
    assert same(net.state_dict(), run.model.state_dict())
    loss, error = tp.train.evaluate(net, run.test.images, run.test.labels, threads=1)
    assert (loss, error) == (run.history[-1]["test_loss"], run.history[-1]["test_error"])
    predicted = tp.propagate(net, data=run.test.images)
    seen = {record.name: record for record in tp.observe(net, run.test.images)}
    first = next(record for record in predicted if "first" in record.layer)
    u = seen[first.layer].pre_activation.numpy()
    np.testing.assert_allclose(first.mean, u.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(first.variance, u.var(axis=0), rtol=1e-3)


def test_a_record_of_a_run(file, tmp_path):
    run = quiet(config_of(file), tmp_path / "run")
    run.should_stop = lambda: run.epoch == 1
    assert not run.run()
    saved = tp.train.read(tmp_path / "run")
    assert (saved.epoch, saved.is_finished) == (1, False)
    assert saved.config == run.config
    assert saved.history == tuple(run.history)
    assert saved.signals == tuple(run.signals)
    assert saved.data == tp.data.fingerprint(run.train, run.test)
    assert saved.classes == ("0", "1", "2")
    assert saved._repr_html_() == run._repr_html_()
    assert "1 of 2 epochs" in saved._repr_html_()


@pytest.mark.parametrize("read", [tp.train.read, tp.train.load])
def test_a_folder_without_a_run(tmp_path, read):
    assert_explained(tp.StateError, lambda: read(tmp_path / "none"), "no checkpoint")


def test_arguments_of_a_network_must_be_the_same(file, tmp_path):
    """Those that change no shape, too."""
    net = kind_of(file)
    config = Config(epochs=1, **SMALL)
    given = {"data": tp.data.load(f"{file}:load")}
    assert quiet(config, tmp_path / "run", model=net(slope=0.3), **given).run()
    for wrong in (None, net(slope=0.2)):
        words = "slope = ", "which has slope = 0.3", "same arguments"
        assert_explained(tp.StateError, lambda w=wrong: tp.train.load(tmp_path / "run", w), *words)
    assert tp.train.load(tmp_path / "run", net(slope=0.3))[-1].block.slope == 0.3
    more = Config(epochs=2, **SMALL)
    words = "with slope = 0.1", "slope = 0.3"
    assert_explained(
        tp.StateError,
        lambda: quiet(more, tmp_path / "run", model=net(), **given).run(resume=True),
        *words,
    )
    assert quiet(more, tmp_path / "run", model=net(slope=0.3), **given).run(resume=True)


# -- continued


def test_resume_needs_the_folder_only(file, tmp_path, monkeypatch, capsys):
    words = ["--net", "mine.py:Net", "--data", "mine.py:load", *FLAGS, "--quiet"]
    monkeypatch.chdir(file.parent)
    assert main(["train", *words, "--epochs", "3", "--out", str(tmp_path / "whole")]) == 0
    assert main(["train", *words, "--epochs", "1", "--out", str(tmp_path / "parts")]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = ["train", "--out", str(tmp_path / "parts"), "--resume", "--quiet"]
    assert main([*again, "--epochs", "2"]) == 0
    assert main([*again, "--epochs", "3"]) == 0
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    capsys.readouterr()
    before = files_in(tmp_path / "parts")
    assert main([*again, "--lr", "0.1"]) == 2
    assert "lr = 0.1 for the run" in capsys.readouterr().err
    assert files_in(tmp_path / "parts").keys() == before.keys()


def test_resume_where_there_is_no_run(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "x"), "--resume", "--epochs", "3"]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_changed_file_or_changed_data_are_refused(file, tmp_path, capsys):
    assert quiet(config_of(file, epochs=1), tmp_path / "run").run()
    before = files_in(tmp_path / "run")
    again = ["train", "--out", str(tmp_path / "run"), "--resume", "--epochs", "2"]
    file.write_text(FILE.replace("slope=0.1", "slope=0.2"))
    assert main(again) == 2
    assert "content has changed" in capsys.readouterr().err
    assert_explained(ValueError, lambda: tp.train.load(tmp_path / "run"), "content has changed")
    file.write_text(FILE)

    arrays = kind_of(file, "load")
    np.savez(tmp_path / "data.npz", images=arrays("train")[0], labels=arrays("train")[1])
    config = config_of(file, epochs=1, data=str(tmp_path / "data.npz"))
    assert quiet(config, tmp_path / "other").run()
    np.savez(tmp_path / "data.npz", images=arrays("test")[0], labels=arrays("test")[1])
    again[2] = str(tmp_path / "other")
    assert main(again) == 2
    assert "other images or labels" in capsys.readouterr().err
    assert files_in(tmp_path / "run") == before


def test_a_network_of_a_package_is_imported_with_it(tmp_path, monkeypatch):
    """Where a file by itself could not import the rest of its package."""
    package = tmp_path / "nets_of_a_stranger"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "blocks.py").write_text(FILE)
    (package / "net.py").write_text("from .blocks import Net\n\n\nclass Mine(Net):\n    pass\n")
    (tmp_path / "data.py").write_text(FILE)
    train = f"""
        from nets_of_a_stranger.net import Mine
        import tinyprop as tp
        config = tp.train.Config(data="{tmp_path}/data.py:load", epochs=1, batch_size=50)
        tp.train.Run(config, "run", model=Mine()).run()
    """
    python(train, tmp_path)
    done = python("import tinyprop as tp; print(tp.train.load('run')[-1].width)", tmp_path, 1)
    assert "no attribute 'width'" in done.stderr
    words = [sys.executable, "-m", "tinyprop", "train", "--out", "run", "--resume", "--epochs", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_named_first_and_imported_afterwards(file, tmp_path):
    """The class of the import is another one than that of file.py:Net."""
    code = """
        import tinyprop as tp
        data = tp.data.load("mine.py:load")
        from mine import Net
        tp.train.Run(tp.train.Config(epochs=1), "run", model=Net(), data=data).run()
        print(tp.train.read("run").config.net)
        print(type(tp.train.load("run")[-1]).__name__)
    """
    *_, where, name = python(code, tmp_path).stdout.splitlines()
    assert where.startswith(f"{file}:Net#")
    assert name == "Net"


def python(code, folder, status=0):
    """A program in this folder."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    return done


PROGRAM = """
import tinyprop as tp
from mine import Net as Base, load

class Net(Base):
    pass

config = tp.train.Config(data="mine.py:load", epochs={epochs}, batch_size=50)
run = tp.train.Run(config, "run", model=Net(), say=lambda line: None)
print(run.run(resume=True))
"""


def test_a_network_of_the_program_that_trains_it(file, tmp_path):
    """Loading it would run the program again. So it is asked for; and the program may change in
    other places, such as its number of epochs."""
    for epochs in (1, 2):
        (tmp_path / "program.py").write_text(PROGRAM.format(epochs=epochs))
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout == "True\n", done.stderr
    assert tp.train.read(tmp_path / "run").config.net == "Net"
    words = "'Net', which was given as an object", "model=Net(...)"
    assert_explained(ValueError, lambda: tp.train.load(tmp_path / "run"), *words)


def test_a_file_that_trains_when_it_is_imported_is_refused(file, tmp_path):
    text = FILE + "\ntp.train.Run(tp.train.Config(train_size=20), 'run').run()\n"
    file.write_text(text)
    words = "started by a file that is being imported", "__main__"
    assert_explained(ImportError, lambda: config_of(file), *words)


# -- refused, before anything is written

WRONG = {
    "a setting of built networks": ("--net {f}:Net --data {f}:load --gamma 2", "gamma = 2.0"),
    "also at its default": ("--net {f}:Net --data {f}:load --norm normprop", "--norm"),
    "no mode": ("--norm batch --mode paper", "have no mode"),
    "a fixed activation": ("--norm selu --activation tanh", "activation of its own"),
    "no alpha": ("--alpha 0.5", "--optimizer rmsprop"),
    "other samples": ("--net {f}:Net", "raises ShapeError"),
    "other outputs": ("--data {f}:load --spec F(5)-F(4)", "F(5)-F(3)"),
    "images for vectors": ("--data {f}:load --spec C(3,1,1,0)", "F(units)"),
    "no network for vectors": ("--data {f}:load", "the paper's network"),
    "vectors to flip": ("--data {f}:load --spec F(3) --flip", "mirrored"),
    "no pool for dropout": ("--data {f}:load --spec F(3) --dropout 0.1", "pooling"),
    "not a network": ("--net {f}:load", "without arguments"),
    "no gradient": ("--net wrong.py:Detached --data {f}:load", "outputs that have no gradient"),
    "a sample is lost": ("--net wrong.py:OneLess --data {f}:load", "outputs (1, 3) for a batch (2"),
    "a normaliser for vectors": ("--norm wrong.py:ForVectors --width 0.04", "wrong.py:ForVectors"),
    "an attribute that is not": ("--norm wrong.py:NoSuch --width 0.04", "AttributeError"),
    "a last batch of one": (
        "--data {f}:load --spec F(4)-F(3) --norm batch --batch-size 67 --train-size 135",
        "norm = 'batch' with 135 images in batches of 67",
    ),
    "a module": ("--net {f}:np", "a subclass of tp.nn.Module"),
}


MISTAKES = """
import tinyprop as tp
from tinyprop import nn


class Net(nn.Module):
    def __init__(self):
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x)


class Detached(Net):
    def forward(self, x):
        return tp.tensor(super().forward(x).data)


class OneLess(Net):
    def forward(self, x):
        return super().forward(x)[1:]


class Infinite(Net):
    def forward(self, x):
        return super().forward(x) * float("inf")


class ForVectors(nn.Module):
    def __init__(self, channels):
        self.gain = tp.ones(channels)

    def forward(self, x):
        samples, channels = x.shape
        return self.gain * x


class NoSuch(ForVectors):
    def forward(self, x):
        return self.nothing(x)
"""


@pytest.fixture
def mistakes(tmp_path, monkeypatch):
    """wrong.py in the current directory."""
    (tmp_path / "wrong.py").write_text(MISTAKES)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_exit_with_2_and_write_nothing(file, tmp_path, capsys, name):
    words, said = WRONG[name]
    out = tmp_path / "out"
    assert main(["train", *words.format(f=file).split(), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert ("got:" in error, "rule:" in error, "try:" in error) == (True, True, True)
    assert not out.exists()


@pytest.mark.usefixtures("mistakes")
def test_no_advice_about_a_setting_that_an_own_network_does_not_have(file, tmp_path, capsys):
    words = ["--net", "wrong.py:Infinite", "--data", f"{file}:load", "--quiet"]
    assert main(["train", *words, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "try:  a smaller learning rate\n" in said


@pytest.mark.usefixtures("mistakes")
def test_a_missing_gradient_is_no_traceback(capsys):
    words = ["examine", "wrong.py:Detached", "--shape", "6"]
    assert main([*words, "--out", "page.html"]) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("tinyprop: got: ")
    assert "gradient" in said


def test_a_setting_that_is_none():
    assert_explained(TypeError, lambda: Config(epoch=3), "Config(epoch=3)", "try:  'epochs'")


def test_a_damaged_checkpoint_is_named_even_if_quiet(file, tmp_path, capsys):
    out = tmp_path / "run"
    assert quiet(config_of(file, epochs=2), out).run()
    last = checkpoint.paths(out)[-1]
    last.write_bytes(last.read_bytes()[:100])
    assert main(["train", "--out", str(out), "--resume", "--quiet"]) == 0
    found = capsys.readouterr()
    assert f"tinyprop: passed over {last}" in found.err
    assert found.out.startswith("Test error")


def test_what_is_given_to_run_must_not_contradict_its_config(file, tmp_path):
    net, data = kind_of(file)(), tp.data.load(f"{file}:load")

    def refused(error, words, config=None, **given):
        assert_explained(error, lambda: Run(config or Config(), tmp_path / "run", **given), words)

    refused(TypeError, "Net(), an object", model=kind_of(file))
    refused(TypeError, "model=3", model=3)
    refused(ValueError, "norm = 'batch'", Config(norm="batch"), model=net, data=data)
    refused(ValueError, "one network", Config(net=f"{file}:Net"), model=net, data=data)
    refused(ValueError, "one data set", Config(data="cifar10"), model=net, data=data)
    refused(ValueError, "without parameters", model=tp.nn.Flatten(), data=data)
    assert not (tmp_path / "run").exists()
    assert quiet(Config(epochs=1), tmp_path / "run", model=net, data=data).run()
    again = tp.train.read(tmp_path / "run").config
    assert again.data == "given"
    assert_explained(ValueError, lambda: quiet(again, tmp_path / "run"), "given as arrays")


class TwoRanks(tp.train.Ranks):
    def __init__(self):
        super().__init__()
        self.size = 2


def test_ranks_refuse_what_they_cannot_split(file, tmp_path):
    given = {"data": tp.data.load(f"{file}:load"), "ranks": TwoRanks()}
    config = Config(epochs=1)
    words = "2 ranks", "Together may look across the batch"
    together = kind_of(file, "Together")()
    assert_explained(
        ValueError, lambda: Run(config, tmp_path / "run", model=together, **given), *words
    )
    Run(config, tmp_path / "run", model=kind_of(file)(), **given)


# -- killed at random

LIFE = """
import os, sys, time
os.fsync = lambda descriptor: None
import tinyprop as tp
from tinyprop.train import Config, Run
Run.SAVE_SECONDS = 0.02
run = Run(Config(**{config!r}), {out!r}, say=lambda line: None)
train_on = run.train_on
run.train_on = lambda *batch: time.sleep(0.02) or train_on(*batch)
run.run(resume=True)
"""


@pytest.mark.slow
def test_it_is_killed_at_random_and_ends_with_the_same_bits(file, tmp_path):
    """SIGKILL, 20 times in `make full`; the network has dropout, so that the state of the generator
    counts."""
    kills = len(sampled(range(20), 3))
    config = config_of(file, epochs=3 * kills)
    settings = {name: getattr(config, name) for name in ("net", "data", "epochs", *SMALL)}
    assert quiet(config, tmp_path / "whole").run()
    chance, out = random.Random(1), tmp_path / "killed"
    for _ in range(kills):
        code = LIFE.format(config=settings, out=str(out))
        before = checkpoint.paths(out)
        process = subprocess.Popen([sys.executable, "-c", code])
        while checkpoint.paths(out) == before:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    shutil.copytree(out, tmp_path / "copy")
    assert main(["train", "--out", str(out), "--resume", "--quiet"]) == 0
    assert same(weights(out), weights(tmp_path / "whole"))
    run = quiet(config, tmp_path / "copy")
    assert run.run(resume=True)
    assert same(weights(tmp_path / "copy"), weights(tmp_path / "whole"))
    history = tp.train.read(out).history
    whole = tp.train.read(tmp_path / "whole").history
    for row in (*history, *whole):
        del row["images_per_second"]
    assert history == whole
