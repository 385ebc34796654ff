import json

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import few_images, sampled
from tinyprop.cli import COMMANDS, main

QUICK = ["--width", "0.04", "--train-size", "60", "--batch-size", "20", "--epochs", "1"]


@pytest.fixture(autouse=True)
def _few_images():
    with few_images(100, 100):
        yield


def test_train_takes_the_papers_settings(tmp_path, capsys):
    out = tmp_path / "x"
    settings = (
        "--data shapes --norm normprop --activation relu --lr 0.05 --momentum 0.9 "
        "--weight-decay 0.001 --seed 3 --backend numpy"
    )
    assert main(["train", *settings.split(), "--out", str(out), *QUICK]) == 0
    assert str(out / "curves.png") in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text())
    assert (config["seed"], config["weight_decay"], config["train_size"]) == (3, 0.001, 60)
    assert main(["train", *QUICK, "--out", str(out)]) == 1
    assert "--resume" in capsys.readouterr().err
    again = ["train", *QUICK, "--out", str(out), "--resume"]
    assert main([*again, "--lr", "0.05", "--seed", "4"]) == 1
    assert "seed = 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: tinyprop"),
        (["dance"], "invalid choice: 'dance'"),
        (["train", "--norm", "spectral"], "normprop"),
        (["train", "--data", "imagenet"], "cifar10"),
        (["train", "--epochs", "many"], "'many' is not a whole number"),
        (["train", "--epochs", "0"], "at least 1"),
        (["train", "--lr", "-1"], "argument --lr: '-1' is not a number above 0"),
        (["train", "--width", "0"], "argument --width"),
        (["train", "--widht", "1"], "did you mean --width?"),
        (["trian"], "did you mean train?"),
    ],
)
def test_wrong_arguments_exit_with_2_and_the_allowed_ones(arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", *QUICK, "--out", str(tmp_path / "file" / "x")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_divergence_is_explained(tmp_path, capsys):
    settings = "--norm none --lr 99 --epochs 9"
    assert main(["train", *QUICK, *settings.split(), "--out", str(tmp_path)]) == 1
    assert "smaller learning rate" in capsys.readouterr().err


def test_info_tells_what_is_here(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    versions = [f"tinyprop {tp.__version__}", f"numpy {np.__version__}"]
    for words in (*versions, "BLAS:", "backends: numpy", "cifar10"):
        assert words in said


@pytest.mark.parametrize(
    "command",
    [[], ["train"], ["info"], ["demo"], ["verify"], ["reproduce"], ["compare"], ["examine"]],
)
def test_help_suffices(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "tinyprop" in said
    with_examples = (["train"], ["verify"], ["reproduce"], ["examine"])
    assert ("example" in said) == (command in with_examples)


COMMAND_WORDS = "demo verify train examine check reproduce info all C15 convergence"
OPTIONS = (
    "--help --version --out --epochs --width --lr --seed --norm --resume "
    "--samples --until --jobs --json"
)
NUMBERS = "0 1 -1 1e8 nan inf 1e999"
NONSENSE = ["", " ", "-", "--", "=", "--width=", "ä", "\x00", "9" * 400, "x" * 99]
WORDS = [*COMMAND_WORDS.split(), *OPTIONS.split(), *NUMBERS.split(), *NONSENSE]


@pytest.mark.slow
def test_no_command_line_ends_in_a_traceback(monkeypatch, capsys):
    """Random command lines, the work itself stubbed: 1,000 here, 10,000 in `make full`."""
    for module, _ in COMMANDS.values():
        monkeypatch.setattr(f"tinyprop.{module}.run", lambda options, parser: 0)
    random = np.random.default_rng(0)
    for _ in sampled(range(10_000), 1000):
        line = [WORDS[i] for i in random.integers(0, len(WORDS), random.integers(0, 6))]
        try:
            status = main(line)
        except SystemExit as end:
            status = end.code
        assert status in (0, 1, 2), line
    assert "Traceback" not in "".join(capsys.readouterr())
