"""A run survives a full disk, a broken disk, a kill and a power loss at any file operation."""

import csv
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tinyprop as tp
from tests.faults import BROKEN, FULL, Faults, Killed, injected
from tests.helpers import few_images, flipped, sampled
from tinyprop.train import Config, Run, checkpoint, run
from tinyprop.train.check import audit

OWN = Path(__file__).with_name("own_file.py")  # a network with dropout, and vectors
SMALL = {"width": 0.02, "epochs": 2, "train_size": 8, "batch_size": 4, "threads": 1}
CONFIGURATIONS = {
    "paper": {},
    "exact": {"mode": "exact", "beta": 0.5},
    "prelu": {"activation": "prelu", "mode": "exact"},
    "batch": {"norm": "batch", "data_norm": "batch"},
    "none": {"norm": "none", "activation": "tanh"},
    "rmsprop": {"optimizer": "rmsprop", "lr": 0.001},
    "dropout": {"dropout": 0.3},
    "plateau": {"schedule": "plateau", "patience": 1, "flip": True},
    "linear": {"schedule": "linear", "validation": True},
    "measured": {"norm": "normprop-measured", "refresh": 3, "fixed_images": 4},
    "averaged": {"norm": "batch", "average": 1, "anneal": 1, "halve_every": 1},
    "own": {"net": f"{OWN}:Net", "data": f"{OWN}:load", "width": None},
}
FAULTS = ["full", "broken", "power loss", "kill"]
CASES = [(fault, "paper") for fault in FAULTS] + [
    ("kill", name) for name in CONFIGURATIONS if name != "paper"
]


@pytest.fixture(autouse=True)
def _small_and_without_figures(monkeypatch):
    """And with a checkpoint after each step, so that runs are resumed in the middle of an epoch,
    too."""

    def finish(self):
        run.save(self.out / "model.safetensors", self.model.state_dict())
        run.write_sums(self.out)

    monkeypatch.setattr(Run, "finish", finish)
    monkeypatch.setattr(Run, "SAVE_SECONDS", 0.0)
    with few_images(8, 8):
        yield


def train(config, folder, resume=False):
    assert Run(config, folder, say=lambda line: None).run(resume)
    return {name: array.tobytes() for name, array in tp.load(folder / "model.safetensors").items()}


def log(folder):
    """What the log says, speed aside."""
    rows = csv.DictReader((folder / "log.csv").read_text().splitlines())
    return [
        {name: value for name, value in row.items() if name != "images_per_second"} for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "configuration"), CASES)
def test_any_fault_leaves_a_run_that_resumes_to_the_same_weights(
    fault, configuration, tmp_path, monkeypatch
):
    """At every file operation in `make full`; elsewhere at some, and at fewer for the other
    configurations."""
    config = Config(**SMALL | CONFIGURATIONS[configuration])
    whole = train(config, tmp_path / "whole")
    with injected(Faults(tmp_path / "counted"), monkeypatch) as faults:
        train(config, tmp_path / "counted")
    assert faults.count > 50
    operations = sampled(range(1, faults.count + 1), 12 if configuration == "paper" else 4)
    for at in operations:
        folder = tmp_path / f"at {at}"
        folder.mkdir()
        saved = []  # what a finished save has promised
        write = checkpoint.write
        error = {"full": FULL, "broken": BROKEN}.get(fault)
        with (
            injected(Faults(folder, at, error), monkeypatch) as faults,
            monkeypatch.context() as patch,
        ):

            def promised(where, arrays, facts, saved=saved, write=write):
                write(where, arrays, facts)
                saved.append((len(facts["history"]), facts["batch"]))

            patch.setattr(checkpoint, "write", promised)
            with pytest.raises((OSError, Killed)):
                train(config, folder)
        if fault == "power loss":
            faults.after_power_loss()
        kept, damaged = checkpoint.read_all(folder)
        assert not damaged
        assert not saved or kept[-1].progress >= saved[-1], "a checkpoint that was saved is lost"
        assert train(config, folder, resume=True) == whole
        assert log(folder) == log(tmp_path / "whole")
        assert list(audit(folder)) == []
        assert not list(folder.glob(".*.part"))
    print(f"{fault} at operations {len(operations)}")  # shown by pytest -rP


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, monkeypatch):
    """Of any file of a run that was stopped after its first epoch, with one checkpoint; 1,000 flips
    in `make full`."""
    monkeypatch.setattr(Run, "SAVE_SECONDS", 60.0)
    config = Config(**SMALL)
    whole = train(config, tmp_path / "whole")
    first = replace(config, epochs=1)
    train(first, tmp_path / "stopped")
    chance, refused = random.Random(0), 0
    flips = sampled(range(1000), 40)
    for number in flips:
        copy = shutil.copytree(tmp_path / "stopped", tmp_path / "copy")
        path = chance.choice(sorted(p for p in copy.iterdir() if p.stat().st_size))
        content = path.read_bytes()
        path.write_bytes(flipped(content, chance.randrange(8 * len(content))))
        try:
            assert train(config, copy, resume=True) == whole, f"flip {number}, of {path.name}"
            assert log(copy) == log(tmp_path / "whole")
        except tp.StateError:
            refused += 1
        shutil.rmtree(copy)
    assert 0 < refused < len(flips)
    print(f"resumed after a flip {len(flips)}, refused {refused}")  # shown by pytest -rP
