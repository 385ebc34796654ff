"""A run survives a full disk, a broken disk, a kill and a power loss at any file operation."""

import pytest

import tinyprop as tp
from tests.faults import BROKEN, FULL, Faults, Killed, injected
from tests.helpers import sampled
from tinyprop.train import Config, Run, checkpoint, run
from tinyprop.train.check import audit

CONFIG = Config(width=0.02, epochs=2, train_size=8, batch_size=4, threads=1)


@pytest.fixture(autouse=True)
def _small_and_without_figures(monkeypatch):
    load = tp.data.load
    monkeypatch.setattr(tp.data, "load", lambda *which: load(*which).first(8))

    def finish(self):
        run.save(self.out / "model.safetensors", self.model.state_dict())
        run.write_sums(self.out)

    monkeypatch.setattr(Run, "finish", finish)


def train(folder, resume=False):
    assert Run(CONFIG, folder, say=lambda line: None).run(resume)
    return {name: array.tobytes() for name, array in tp.load(folder / "model.safetensors").items()}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "broken", "kill", "power loss"])
def test_any_fault_leaves_a_run_that_resumes_to_the_same_weights(fault, tmp_path, monkeypatch):
    whole = train(tmp_path / "whole")
    with injected(Faults(tmp_path / "counted"), monkeypatch) as faults:
        train(tmp_path / "counted")
    assert faults.count > 30
    for at in sampled(range(1, faults.count + 1), 12):
        folder = tmp_path / f"at {at}"
        folder.mkdir()
        saved = []  # what a finished save has promised
        write = checkpoint.write
        error = {"full": FULL, "broken": BROKEN}.get(fault)
        with injected(Faults(folder, at, error), monkeypatch) as faults, monkeypatch.context() as patch:

            def promised(where, arrays, facts, saved=saved, write=write):
                write(where, arrays, facts)
                saved.append((len(facts["history"]), facts["batch"]))

            patch.setattr(checkpoint, "write", promised)
            with pytest.raises((OSError, Killed)):
                train(folder)
        if fault == "power loss":
            faults.after_power_loss()
        kept, damaged = checkpoint.read_all(folder)
        assert not damaged
        assert not saved or kept[-1].progress >= saved[-1], "a checkpoint that was saved is lost"
        assert train(folder, resume=True) == whole
        assert list(audit(folder)) == []
        assert not list(folder.glob(".*.part"))
