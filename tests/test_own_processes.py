"""A stranger's activation, normaliser and layer in other processes: in spawned ones, in workers of
dask and of MPI, and in one that resumes a run. The file is imported there."""

import copy
import importlib
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, run_python
from tests.parallel.test_executors import dask, needs_dask
from tests.parallel.test_ranks import ENVIRONMENT, mpi, needs_mpi
from tinyprop.engine.loading import fingerprint
from tinyprop.parallel.executors import executor
from tinyprop.train import Config

FILE = '''
"""Registered inline: no name of this file stands for a record."""

import tinyprop as tp
import tinyprop.functional as F


def bent(u, slope):
    inside = F.clip(u, -1.0, 2.0)
    return inside + slope * (u - inside)


class Half(tp.nn.Module):
    per_sample = True

    def __init__(self, channels):
        self.weight = tp.tensor([0.5], requires_grad=True)

    def forward(self, x):
        return self.weight * x


tp.activations.register(tp.Activation(bent, "bent_line", parameters={"slope": 0.2}), force=True)
tp.nn.normalizers.register(tp.nn.Normalizer("half-size", before=Half, bias=False), force=True)
ours_by_another_name = tp.nn.Normalizer("ours", before=tp.nn.BatchNorm)
'''
IMAGES = np.linspace(-1.0, 1.0, 2 * 3 * 32 * 32, dtype=np.float32).reshape(2, 3, 32, 32)
SPEC = "C(4,3,1,1)-C(10,1,1,0)-P(32,32,0,avg)"


def output_of(config):
    """What the network of a config computes; in a worker."""
    tp.manual_seed(config.seed)
    return tp.train.network(config, IMAGES, 10)(tp.tensor(IMAGES)).numpy()


def output_of_network(net):
    return net(tp.tensor(IMAGES)).numpy()


@pytest.fixture
def path(tmp_path):
    """The file of a stranger, which has been imported here."""
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    tp.nn.as_normalizer(f"{path}:half-size")
    yield path
    tp.activations.unregister("bent_line")
    tp.nn.normalizers.unregister("half-size")


@pytest.fixture
def config(path):
    """By names only."""
    return Config(norm="half-size", activation="bent_line", spec=SPEC, width=1.0)


@pytest.fixture
def net(config):
    tp.manual_seed(0)
    return tp.train.network(config, IMAGES, 10).eval()


def test_a_name_is_recorded_with_the_file_that_registered_it(path, config):
    digest = fingerprint(path)
    assert config.norm == f"{path}:half-size#{digest}"
    assert config.activation == f"{path}:bent_line#{digest}"
    for given in ("bent_line", tp.activations["bent_line"], f"{path}:bent_line", f"{path}:bent"):
        recorded = Config(activation=given).activation
        assert tp.nn.Activation(recorded).activation is tp.activations["bent_line"]
    assert Config(norm=f"{path}:ours_by_another_name").norm.startswith(f"{path}:ours_by_another")
    assert Config(norm=tp.nn.normalizers["half-size"]) == Config(norm="half-size")


def test_what_a_file_neither_defines_nor_registers(path):
    words = "defines bent, Half", "registers no 'bent_lime'"
    assert_explained(ValueError, lambda: Config(activation=f"{path}:bent_lime"), *words)
    assert_explained(ValueError, lambda: Config(activation=f"{path}:relu"), "registers no 'relu'")
    assert_explained(ValueError, lambda: Config(norm=f"{path}:halfsize"), "no 'halfsize'")


@pytest.mark.slow
def test_spawned_processes(config, net):
    with executor("processes", jobs=1) as (pool, _):
        assert (pool.submit(output_of, config).result() == output_of(config)).all()
        assert (pool.submit(output_of_network, net).result() == output_of_network(net)).all()


@pytest.mark.slow
@needs_dask
def test_workers_of_dask(config, net, tmp_path_factory):
    with (
        dask(tmp_path_factory.mktemp("dask"), workers=1) as (address, _),
        executor(address) as (pool, _),
    ):
        assert (pool.submit(output_of, config).result() == output_of(config)).all()
        assert (pool.submit(output_of_network, net).result() == output_of_network(net)).all()


ON_RANKS = """
import sys
from tests.test_own_processes import Config, SPEC, executor, output_of, output_of_network, tp
with executor("mpi") as (pool, _):
    if pool is not None:
        tp.nn.as_normalizer(sys.argv[1] + ":half-size")  # only this rank imports the file
        config = Config(norm="half-size", activation="bent_line", spec=SPEC, width=1.0)
        found = pool.submit(output_of, config).result()
        tp.manual_seed(0)
        net = tp.nn.build(SPEC, norm="half-size", activation="bent_line", width=1.0)
        there = pool.submit(output_of_network, net).result()
        same = (found == output_of(config)).all() and (there == output_of_network(net)).all()
        print("the same:", bool(same))
"""
QUICK = ["--spec", SPEC, "--width", "0.5", "--train-size", "20", "--test-size", "10"]
QUICK += ["--batch-size", "10", "--threads", "1"]


@pytest.mark.slow
@needs_mpi
def test_workers_of_mpi(path):
    done = mpi(2, "-c", ON_RANKS, path)
    assert done.stdout == "the same: True\n", done.stderr


@pytest.mark.slow
@needs_mpi
def test_ranks_train_it_together(path, tmp_path):
    words = ["--norm", f"{path}:half-size", "--activation", f"{path}:bent_line", *QUICK]
    words = ["-m", "tinyprop", "train", *words, "--epochs", "1", "--out"]
    done = mpi(2, *words, tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    alone(*words[2:], tmp_path / "alone")
    ours, theirs = (tp.load(tmp_path / name / "model.safetensors") for name in ("ranks", "alone"))
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=1e-6, err_msg=name)


def alone(*words, fails=False):
    """A tinyprop command in a process of its own; what it says of an error."""
    command = [sys.executable, "-m", "tinyprop", *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=180)
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_run_is_resumed_in_a_new_process(path, tmp_path):
    own, out = tmp_path / "run.py", tmp_path / "run"
    path.rename(own)

    def train(file, *more, fails=False):
        own = ["--norm", f"{file}:half-size", "--activation", f"{file}:bent_line"]
        return alone("train", *own, *QUICK, "--out", out, *more, fails=fails)

    train(own, "--epochs", "1")
    train(own, "--epochs", "2", "--resume")
    config = json.loads((out / "config.json").read_text())
    assert config["activation"] == f"{own}:bent_line#{fingerprint(own)}"

    moved = tmp_path / "moved.py"
    own.rename(moved)
    rebuild = f"""
import json, numpy, tinyprop as tp
stated = json.load(open({str(out / "config.json")!r}))
names = tp.train.Config.__dataclass_fields__
config = tp.train.Config(**{{name: stated[name] for name in names}})
tp.train.network(config, numpy.zeros((1, 3, 32, 32), "float32"), 10)
"""
    said = run_python(rebuild).stderr
    assert "there is none of this name\ntry:  the file where it was, or its new path" in said
    assert "there is none of this name" in train(own, "--epochs", "3", "--resume", fails=True)
    train(moved, "--epochs", "3", "--resume")  # the same content

    moved.write_text(FILE + "# changed\n")
    said = train(moved, "--epochs", "4", "--resume", fails=True)
    assert "moved.py:half-size#" in said
    assert "a run is continued as it began" in said
    assert "content has changed" in run_python(rebuild).stderr


def test_an_entry_of_a_notebook_is_recorded_by_its_name():
    """There is no file, so another process needs it registered first."""
    cell = """
def squared(u):
    return u * u
tp.activations.register(tp.Activation(squared), force=True)
"""
    exec(compile(cell * 2, "<cell>", "exec"), {"tp": tp})  # it runs twice
    try:
        config = Config(activation="squared", spec=SPEC, width=1.0)
        assert config.activation == "squared"
        output_of(config)
    finally:
        tp.activations.unregister("squared")
    words = "activation 'squared'", "one of relu", "tp.activations.register(...)"
    assert_explained(ValueError, lambda: Config(activation="squared"), *words)
    assert_explained(ValueError, lambda: output_of(config), *words)


def test_a_module_that_was_edited_after_its_import_is_refused(path, tmp_path, monkeypatch):
    """What runs is not what the file says any longer."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "edited_later.py"
    module.write_text(FILE.replace("bent_line", "bent_too").replace("half-size", "half-too"))
    importlib.import_module("edited_later")
    try:
        config = Config(activation="bent_too", spec=SPEC, width=1.0)
        output_of(config)
        module.write_text(module.read_text() + "# edited")
        assert Config(activation="bent_too").activation == config.activation
        assert_explained(ValueError, lambda: output_of(config), "edited_later.py, whose content")
    finally:
        tp.activations.unregister("bent_too")
        tp.nn.normalizers.unregister("half-too")


# -- pickles and copies


def test_networks_are_pickled_with_what_strangers_wrote(net, path, tmp_path):
    (tmp_path / "net.pickle").write_bytes(pickle.dumps(net))
    np.save(tmp_path / "expected.npy", output_of_network(net))
    program = f"""
import pickle, numpy
net = pickle.load(open({str(tmp_path / "net.pickle")!r}, "rb"))
from tests.test_own_processes import output_of_network
print((output_of_network(net) == numpy.load({str(tmp_path / "expected.npy")!r})).all())
"""
    done = run_python(program)
    assert done.stdout == "True\n", done.stderr
    path.write_text(FILE.replace("0.2", "0.3"))
    done = run_python(program)
    assert "mine.py, whose content has changed" in done.stderr
    path.unlink()
    done = run_python(program)
    assert "there is none of this name" in done.stderr


def test_a_layer_alone_is_pickled_too(path, tmp_path):
    half = tp.nn.normalizers["half-size"].before(3)
    function = tp.activations["bent_line"].function
    unregistered = tp.Activation(function, "steeper", parameters={"slope": 0.5})
    for layer in (half, tp.nn.Activation(unregistered)):
        (tmp_path / "layer.pickle").write_bytes(pickle.dumps(layer))
        program = f"""
import pickle, tinyprop as tp
print(pickle.load(open({str(tmp_path / "layer.pickle")!r}, "rb"))(tp.tensor([[4.0]])).item())
"""
        assert float(run_python(program).stdout) == layer(tp.tensor([[4.0]])).item()


def test_a_copy_does_not_need_the_file(net, path):
    path.unlink()
    np.testing.assert_array_equal(output_of_network(copy.deepcopy(net)), output_of_network(net))


def test_records_are_pickled(path):
    for entry in (tp.nn.normalizers["half-size"], tp.activations["bent_line"]):
        assert pickle.loads(pickle.dumps(entry)) is entry
    for entry in tp.nn.normalizers.values():
        assert pickle.loads(pickle.dumps(entry)) == entry
