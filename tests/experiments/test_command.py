"""`tinyprop reproduce`, as a user calls it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tinyprop.cli import main
from tinyprop.errors import DataError
from tinyprop.experiments import EXPERIMENTS, command
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.scales import SCALES

from .runs import study


def reproduce(folder, *arguments):
    places = ["--out", str(folder / "out"), "--runs", str(folder / "runs")]
    return main(["reproduce", *arguments, "--scale", "tiny", *places])


def fill(ledger, *names, seeds=2):
    """Put made-up runs into a ledger."""
    for name in names:
        for arm in study(EXPERIMENTS[name], SCALES["tiny"]).arms.values():
            for record in arm.records[:seeds]:
                ledger.add(record)


def test_the_same_ledger_gives_the_same_bytes(tmp_path, capsys):
    """The report covers the finished runs; --seeds 0 computes none."""
    for name in ("a", "b"):
        fill(Ledger(tmp_path / name / "runs/ledger"), "dropout", "covariate-shift")
        assert reproduce(tmp_path / name, "dropout", "covariate-shift", "--seeds", "0") == 0
    said = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    ours, theirs = ({path.name: path.read_bytes() for path in (tmp_path / name / "out").iterdir()} for name in "ab")
    assert ours == theirs
    assert said[:3] == sorted(ours, key=str.swapcase) == ["covariate-shift.png", "dropout.png", "README.md"]
    assert b"`tinyprop reproduce dropout`, 6 runs." in ours["README.md"]


@pytest.mark.slow
def test_only_missing_runs_are_computed_whatever_the_number_of_jobs(tmp_path, capsys):
    ledgers = [Ledger(tmp_path / name / "runs/ledger") for name in ("a", "b")]
    for ledger, jobs in zip(ledgers, ("2", "1"), strict=True):
        fill(ledger, "dropout", seeds=1)
        assert reproduce(ledger.folder.parents[1], "dropout", "--jobs", jobs) == 0
        assert f"6 runs, 3 of them to compute, {jobs} at a time" in capsys.readouterr().out
    for setting in EXPERIMENTS["dropout"].settings(SCALES["tiny"]).values():
        ours, theirs = (ledger.find(replace(setting.config, seed=2)) for ledger in ledgers)
        assert (ours.test, ours.losses, ours.layers) == (theirs.test, theirs.losses, theirs.layers)
    damaged = sorted(ledgers[0].folder.glob("*seed1*"))[0]
    damaged.write_text("{")
    assert reproduce(tmp_path / "a", "dropout") == 0
    said = capsys.readouterr().out
    assert f"{damaged} is damaged" in said
    assert "1 of them to compute" in said


def test_publishing_writes_the_page_and_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", "--scale", "tiny", "--publish", "--seeds", "0"]) == 0
    figures = {f"{name}.png" for name in EXPERIMENTS}
    assert set(capsys.readouterr().out.splitlines()) == {f"figures/{name}" for name in figures} | {"REPRODUCTION.md"}
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert written == {f"figures/{name}" for name in figures} | {"REPRODUCTION.md"}
    assert all(f"(figures/{name})" in (tmp_path / "REPRODUCTION.md").read_text() for name in figures)


def test_data_that_are_not_available_are_named_and_skipped(tmp_path, capsys, monkeypatch):
    def found(name, root, download):
        raise DataError(f"{name}, which cannot be downloaded", "it is needed", "the network")

    monkeypatch.setattr(command.data, "found", found)
    assert reproduce(tmp_path, "dropout") == 0
    assert "shapes is skipped: shapes, which cannot be downloaded" in capsys.readouterr().out
    assert "not run" in (tmp_path / "out/README.md").read_text()


LONG = """
import sys
from dataclasses import replace
from tinyprop.cli import main
from tinyprop.experiments.scales import SCALES
SCALES["tiny"] = replace(SCALES["tiny"], protocol=replace(SCALES["tiny"].protocol, epochs=100_000))
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_no_process_behind(tmp_path):
    """It is stopped in runs that would take for ever."""
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    arguments = ["reproduce", "convergence", "--scale", "tiny", "--jobs", "2", *places]
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not list((tmp_path / "runs").glob("*/log.csv")):  # an epoch is done
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # to the parent alone: it has to tell the others
        said, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command resumes" in said
    deadline = time.monotonic() + 30
    while alive(process.pid):  # once Python's own helper has gone, too
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list((tmp_path / "runs").glob("*/checkpoint-*.safetensors"))
    assert not (tmp_path / "runs/ledger").exists()


@pytest.mark.parametrize(
    "arguments", ["dance", "dropout --jobs 0", "dropout --seeds -1", "dropout --scale huge", "dropout --publish", ""]
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", *arguments.split()])
    assert caught.value.code == 2
