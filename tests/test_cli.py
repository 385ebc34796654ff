import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import few_images, sampled
from tinyprop.cli import COMMANDS, main
from tinyprop.report.arguments import output_directory

ROOT = Path(__file__).parent.parent
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
    assert main(["train", *QUICK, "--out", str(out)]) == 2
    assert "--resume" in capsys.readouterr().err
    again = ["train", *QUICK, "--out", str(out), "--resume"]
    assert main([*again, "--lr", "0.05", "--seed", "4"]) == 2
    assert "seed = 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "tinyprop: the following arguments are required: COMMAND"),
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
    said = capsys.readouterr().err
    assert words in said
    assert "usage:" not in said
    *lines, last = said.splitlines()
    assert len(lines) in (1, 3)  # or three parts
    assert last.endswith("--help")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--out", "FILE/x"], "FILE is not a directory"),
        (["compare", "--out", "FILE/x.png"], "is not a directory"),
        (["compare", "--out", "x.exe"], "does not end in one of .png"),
        (["compare", "--out", "DIRECTORY.png"], "not a regular file"),
        (["verify", "C1", "--json", "FILE/x.json"], "is not a directory"),
        (["verify", "C1", "--figures", "FILE"], "is not a directory"),
        (["demo", "--out", "FILE"], "is not a directory"),
        (["demo", "--figure", "FILE/x.png"], "is not a directory"),
        (["reproduce", "--ledger", "FILE"], "is not a directory"),
    ],
)
def test_outputs_that_cannot_be_written_are_found_before_computing(
    tmp_path, arguments, words, capsys
):
    (tmp_path / "FILE").write_text("")
    (tmp_path / "DIRECTORY.png").mkdir()
    *options, place = arguments
    with pytest.raises(SystemExit) as caught:
        main([*options, str(tmp_path / place)])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_found_before_computing(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written to"):
        output_directory(str(tmp_path / "new"))


INTERRUPTED = """
import os, signal, sys
import tinyprop_command

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["tinyprop", "info"]
sys.exit(tinyprop_command.main())
"""


@pytest.mark.parametrize(
    "module", ["tinyprop", "numpy", "tinyprop.functional", "tinyprop.instruments.info"]
)
def test_ctrl_c_during_imports_is_quiet(module):
    program = [sys.executable, "-c", INTERRUPTED.format(module=module)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == "\ntinyprop: stopped\n"
    assert (done.returncode, done.stdout) == (130, "")


@pytest.mark.parametrize("module", ["numpy", "tinyprop.functional", "tinyprop.instruments.info"])
def test_ctrl_c_is_quiet_in_python_m_tinyprop(module, tmp_path):
    program = INTERRUPTED.format(module=module).partition("sys.argv")[0]
    (tmp_path / "sitecustomize.py").write_text(program.replace("import tinyprop_command", ""))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tinyprop", "info"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
    )
    assert done.stderr == "\ntinyprop: stopped\n"
    assert (done.returncode, done.stdout) == (130, "")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
def test_a_place_that_no_file_can_be_made_in(capsys):
    """Root may write to it, as far as its permissions tell."""
    with pytest.raises(SystemExit) as caught:
        main(["train", "--out", "/proc/tinyprop/run"])
    assert caught.value.code == 2
    assert "/proc cannot be written to" in capsys.readouterr().err


def test_the_command_starts_where_the_installed_script_does():
    program = [sys.executable, "-c", INTERRUPTED.format(module="nothing")]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "BLAS:" in done.stdout


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
