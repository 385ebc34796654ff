"""`tinyprop reproduce`, as a user calls it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tinyprop.cli import main
from tinyprop.errors import DataError
from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.experiment import Experiment
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.scales import SCALES
from tinyprop.plots import panels

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


OTHER_MACHINE = {"PYTHONHASHSEED": "7", "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1", "TZ": "Asia/Tokyo"}


def test_the_same_ledger_gives_the_same_bytes_on_another_machine(tmp_path, capsys):
    """With another order of sets, another BLAS and no vector instructions, as far as NumPy can do without them. The
    report covers the finished runs; --seeds 0 computes none."""
    names = ["dropout", "scale"]
    for name in ("a", "b"):
        fill(Ledger(tmp_path / name / "runs/ledger"), *names)
    assert reproduce(tmp_path / "a", *names, "--seeds", "0") == 0
    places = ["--out", str(tmp_path / "b/out"), "--runs", str(tmp_path / "b/runs")]
    config = np.show_config("dicts")["SIMD Extensions"]
    plain = os.environ | OTHER_MACHINE | {"NPY_DISABLE_CPU_FEATURES": " ".join(config.get("found", []))}
    command = [sys.executable, "-W", "ignore", "-m", "tinyprop", "reproduce", *names, "--seeds", "0", "--scale", "tiny"]
    subprocess.run([*command, *places], check=True, env=plain, capture_output=True)
    said = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    ours, theirs = ({path.name: path.read_bytes() for path in (tmp_path / name / "out").iterdir()} for name in "ab")
    assert ours == theirs
    assert said == ["scale.png", "dropout.png", "README.md"]
    assert ours.keys() == set(said)
    assert b"`tinyprop reproduce dropout`: 6 of 6 planned runs." in ours["README.md"]


@pytest.mark.slow
def test_only_missing_runs_are_computed_whatever_the_number_of_jobs(tmp_path, capsys):
    ledgers = [Ledger(tmp_path / name / "runs/ledger") for name in ("a", "b")]
    for ledger, jobs in zip(ledgers, ("2", "1"), strict=True):
        fill(ledger, "dropout", seeds=1)
        assert reproduce(ledger.folder.parents[1], "dropout", "--jobs", jobs) == 0
        assert f"3 runs to compute, {jobs} at a time" in capsys.readouterr().out
    for config in EXPERIMENTS["dropout"].settings(SCALES["tiny"]).values():
        ours, theirs = (ledger.find(replace(config, seed=2)) for ledger in ledgers)
        assert (ours.test, ours.losses, ours.layers) == (theirs.test, theirs.losses, theirs.layers)
    damaged = sorted(ledgers[0].folder.glob("*seed1*"))[0]
    damaged.write_text("{")
    assert reproduce(tmp_path / "a", "dropout") == 0
    said = capsys.readouterr().out
    assert f"{damaged} is damaged" in said
    assert "1 runs to compute" in said


def test_publishing_writes_the_page_and_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Experiment, "figure", lambda self: panels(1, 1.0, 1.0)[0])  # these are tested elsewhere
    assert main(["reproduce", "--continue", "--scale", "tiny", "--seeds", "0"]) == 0
    figures = {f"{name}.png" for name in EXPERIMENTS}
    assert set(capsys.readouterr().out.splitlines()) == {f"figures/{name}" for name in figures} | {"REPRODUCTION.md"}
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert written == {f"figures/{name}" for name in figures} | {"REPRODUCTION.md"}
    assert all(f"(figures/{name})" in (tmp_path / "REPRODUCTION.md").read_text() for name in figures)


def test_data_that_are_not_available_are_named_and_skipped(tmp_path, capsys, monkeypatch):
    def found(name, root, download):
        raise DataError(f"{name}, which cannot be downloaded", "it is needed", "the network")

    monkeypatch.setattr("tinyprop.data.found", found)
    assert reproduce(tmp_path, "dropout") == 0
    assert "shapes is skipped: shapes, which cannot be downloaded" in capsys.readouterr().out
    assert "not run" in (tmp_path / "out/README.md").read_text()


LONG = """
import sys
from dataclasses import replace
from tinyprop.cli import main
from tinyprop.experiments.scales import SCALES
from tinyprop.plots import panels
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


@pytest.fixture
def endless(tmp_path):
    """A command in runs that would take for ever, after their first epoch."""
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    arguments = ["reproduce", "convergence", "--scale", "tiny", "--jobs", "2", *places]
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        while len(list((tmp_path / "runs").glob("*/log.csv"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def is_gone_after(group, seconds):
    """All processes of the group, Python's own helpers, too."""
    deadline = time.monotonic() + seconds
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(group)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves_no_process_behind(tmp_path, endless, number):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the tests run under nohup")
    endless.send_signal(number)  # to the parent alone: it has to tell the others
    said, _ = endless.communicate(timeout=90)
    assert endless.returncode == 130
    assert "the same command resumes" in said
    assert "Traceback" not in said
    assert is_gone_after(endless.pid, 30)
    runs = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 2  # nothing new was begun
    assert all(list(run.glob("checkpoint-*.safetensors")) for run in runs)
    assert not (tmp_path / "runs/ledger").exists()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_even_if_a_worker_hangs(tmp_path, endless):
    workers = [int(pid) for pid in children(endless.pid) if "spawn_main" in command_line(pid)]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGSTOP)  # it will never save
    os.killpg(endless.pid, signal.SIGINT)  # to all, as a terminal does
    time.sleep(3)
    assert endless.poll() is None
    os.killpg(endless.pid, signal.SIGINT)
    said, _ = endless.communicate(timeout=5)
    assert endless.returncode == 130
    assert "Traceback" not in said
    assert is_gone_after(endless.pid, 5)


@pytest.mark.slow
def test_workers_end_with_their_parent_and_begin_nothing_new(tmp_path, endless):
    before = set((tmp_path / "runs").iterdir())
    endless.kill()
    endless.wait()
    assert is_gone_after(endless.pid, 5)
    assert set((tmp_path / "runs").iterdir()) == before
    assert all(list(run.glob("checkpoint-*.safetensors")) for run in before if run.is_dir())


@pytest.mark.slow
def test_a_second_command_in_the_same_directory_is_refused(tmp_path, endless, capsys):
    assert reproduce(tmp_path, "dropout") == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'runs'}, in which another command is at work" in said
    assert endless.poll() is None


@pytest.mark.slow
def test_a_budget_saves_and_reports(tmp_path):
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    arguments = ["reproduce", "convergence", "--scale", "tiny", "--jobs", "1", "--budget", "0.2m", *places]
    done = subprocess.run([sys.executable, "-c", LONG, *arguments], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/README.md").exists()
    assert list((tmp_path / "runs").glob("*/checkpoint-*.safetensors"))


def children(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return file.read().split()


def command_line(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()


@pytest.mark.parametrize(
    "arguments",
    [
        "dance", "dropout --jobs 0", "dropout --seeds -1", "dropout --scale huge", "dropout --continue", "",
        "--continue --budget 2", "--continue --budget -2h",
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", *arguments.split()])
    assert caught.value.code == 2
