"""`tinyprop check`, and every single-bit flip of the smallest run."""

import shutil
from contextlib import suppress

import pytest

import tinyprop as tp
from tests.helpers import few_images, flipped, sampled
from tinyprop.cli import main
from tinyprop.report.saving import decode
from tinyprop.train import Config, Run, checkpoint
from tinyprop.train.check import SUMS, audit

SEALED = (".png", ".svg", ".safetensors")  # a digest covers every bit of these
SMALLEST = Config(width=0.01, epochs=1, train_size=4, batch_size=4, threads=1)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with few_images(4, 4):
        Run(SMALLEST, folder, say=lambda line: None).run()
    return folder


def test_a_run_is_as_it_was_written(run_folder, capsys):
    assert main(["check", str(run_folder)]) == 0
    assert "every file is as it was written" in capsys.readouterr().out


@pytest.mark.slow
def test_every_bit_flip_is_found(run_folder, tmp_path):
    """Of the texts that a run leaves, sampled here and all in `make full`; of what a digest covers,
    some."""
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    flips = [
        (path, bit) for path in sorted(copy.iterdir()) for bit in range(8 * path.stat().st_size)
    ]
    sealed = [flip for flip in flips if flip[0].suffix in SEALED]
    texts = [flip for flip in flips if flip[0].suffix not in SEALED]
    flips = sampled(texts, 300) + sealed[:: len(sealed) // 100]
    for path, bit in flips:
        whole = path.read_bytes()
        path.write_bytes(flipped(whole, bit))
        assert list(audit(copy)), f"bit {bit} of {path.name}"
        path.write_bytes(whole)
    assert not list(audit(copy))
    print(f"bit flips {len(flips)}")  # shown by pytest -rP


@pytest.mark.slow
def test_no_bit_flip_of_a_checkpoint_is_read(run_folder, tmp_path):
    """Nearly all are refused as soon as they are decoded; the others, which leave no digest to
    compare, when read."""
    (path,) = checkpoint.paths(run_folder)
    content, copy = path.read_bytes(), tmp_path / path.name
    flips = sampled(range(8 * len(content)), 2000)
    for bit in flips:
        changed = flipped(content, bit)
        with suppress(tp.StateError):
            decode(changed, path)
            copy.write_bytes(changed)
            checkpoint.read(copy)
            pytest.fail(f"bit {bit} was read")
    print(f"bit flips of a checkpoint {len(flips)}")  # shown by pytest -rP


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", -1),
        ("batch", True),
        ("loss", "1"),
        ("lr", float("inf")),
        ("config", {"width": 0.0}),
        ("history", [{"epoch": 2}]),
        ("threads", 0),
        ("extra", 1),
    ],
)
def test_facts_of_wrong_types_or_ranges_are_refused(run_folder, tmp_path, name, value):
    (path,) = checkpoint.paths(run_folder)
    found = checkpoint.read(path)
    checkpoint.write(tmp_path, found.arrays, found.facts)
    assert checkpoint.read_all(tmp_path)[1] == []
    with pytest.raises(ValueError, match=r"it has|its|width|state|epochs"):
        checkpoint.check({**found.facts, name: value})


@pytest.mark.parametrize("missing", ["log.csv", "config.json", SUMS, "curves.png"])
def test_a_missing_file_is_a_finding(run_folder, tmp_path, missing, capsys):
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    (copy / missing).unlink()
    assert main(["check", str(copy)]) == 1
    assert missing in capsys.readouterr().out
