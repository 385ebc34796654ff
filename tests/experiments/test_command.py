"""`tinyprop reproduce`, as a user calls it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tinyprop.cli import main
from tinyprop.experiments import command
from tinyprop.experiments.scales import SCALES

SMALL = {"train_size": 60, "test_size": 30, "batch_size": 20}


@pytest.fixture
def _small(monkeypatch):
    tiny = SCALES["tiny"]
    monkeypatch.setitem(SCALES, "tiny", replace(tiny, protocol=replace(tiny.protocol, **SMALL)))


def reproduce(folder, *arguments):
    return main(
        ["reproduce", *arguments, "--scale", "tiny", "--out", str(folder / "out"), "--runs", str(folder / "runs")]
    )


def is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def contents(folder):
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_twice_the_same_bytes_whatever_the_number_of_jobs(tmp_path, capsys):
    a, b = tmp_path / "a", tmp_path / "b"
    assert reproduce(a, "dropout", "covariate-shift", "--jobs", "2", "--report", str(a / "REPRODUCTION.md")) == 0
    assert "to compute: 10 runs, 20 epochs, 2 at a time" in capsys.readouterr().out
    assert reproduce(b, "covariate-shift", "--jobs", "1") == 0
    assert reproduce(b, "dropout", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "8 runs, 4 of them finished before" in said, "points are shared"
    assert contents(a) == contents(b)
    names = {f"{name}.{kind}" for name in ("dropout", "covariate-shift") for kind in ("json", "md", "png")}
    assert set(contents(a)) == names | {"README.md"}
    assert "Dropout" in (a / "REPRODUCTION.md").read_text()
    assert reproduce(a, "dropout") == 0
    assert "to compute: 0 runs" in capsys.readouterr().out


LONG = """
import sys
from dataclasses import replace
from tinyprop.cli import main
from tinyprop.experiments.scales import SCALES
SCALES["tiny"] = replace(SCALES["tiny"], protocol=replace(SCALES["tiny"].protocol, epochs=100_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    """It is stopped in trainings that would take for ever, and goes on with fewer epochs."""
    arguments = ["reproduce", "convergence", "--scale", "tiny", "--jobs", "2"]
    folders = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, *arguments, *folders], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not list((tmp_path / "runs").glob("tiny/*/config.json")):  # a point has begun
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # to the parent alone: it has to tell the others
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command goes on" in said
    deadline = time.monotonic() + 20
    while is_there(process.pid):  # nobody is left behind, once Python's own helper has gone, too
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert main([*arguments, *folders]) == 0
    assert (tmp_path / "out" / "convergence.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_small")
def test_data_that_are_nowhere_are_an_error_if_nothing_else_is_left(tmp_path, capsys, monkeypatch):
    from tinyprop.errors import DataError

    def load(name, root, split):
        raise DataError(f"{name}, which is not here", "it must be", "the network")

    monkeypatch.setattr(command.datasets, "load", load)
    assert reproduce(tmp_path, "dropout") == 1
    assert "shapes, which is not here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["dance"], ["dropout", "--jobs", "0"], ["dropout", "--jobs", "-1"], ["dropout", "--scale", "huge"], []],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", *arguments])
    assert caught.value.code == 2


def test_help_suffices(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    said = capsys.readouterr().out
    for word in ("covariate-shift", "--scale", "--jobs", "--root", "examples:", "Ctrl-C"):
        assert word in said
