"""`tinyprop reproduce`, as a user calls it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tinyprop.cli import main
from tinyprop.engine.errors import DataError
from tinyprop.experiments import EXPERIMENTS, experiments_at
from tinyprop.experiments.experiment import Experiment
from tinyprop.experiments.ledger import Ledger, run_name
from tinyprop.experiments.scales import SCALES
from tinyprop.experiments.study import Study
from tinyprop.report.plots import panels

from .runs import TINY, study


def words(folder, *arguments):
    places = ["--out", str(folder / "out"), "--runs", str(folder / "runs")]
    return ["reproduce", *arguments, "--scale", "tiny", *places]


def fill(ledger, *names, seeds=2):
    """Put made-up runs into a ledger."""
    for name in names:
        for arm in study(name, "tiny").arms.values():
            for record in arm.records[:seeds]:
                ledger.add(record)


OTHER_MACHINE = {
    "PYTHONHASHSEED": "7",
    "OPENBLAS_CORETYPE": "Haswell",
    "OMP_NUM_THREADS": "1",
    "TZ": "Asia/Tokyo",
}


@pytest.mark.slow
def test_the_same_ledger_gives_the_same_bytes_on_another_machine(tmp_path, capsys):
    """With another order of sets, another BLAS and no vector instructions, as far as NumPy can do
    without them, and with files that were written in another order. (Figures are compared for one
    version of matplotlib alone.) The report covers the finished runs; --seeds 0 computes none."""
    names = ["dropout", "scale"]
    fill(Ledger(tmp_path / "a/runs/ledger"), *names)
    fill(Ledger(tmp_path / "b/runs/ledger"), *reversed(names))
    assert main(words(tmp_path / "a", *names, "--seeds", "0")) == 0
    config = np.show_config("dicts")["SIMD Extensions"]
    plain = (
        os.environ | OTHER_MACHINE | {"NPY_DISABLE_CPU_FEATURES": " ".join(config.get("found", []))}
    )
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tinyprop",
        *words(tmp_path / "b", *names, "--seeds", "0"),
    ]
    subprocess.run(command, check=True, env=plain, capture_output=True)
    said = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "out").iterdir()}
        for name in "ab"
    )
    assert ours == theirs
    assert said == ["scale.png", "dropout.png", "README.md"]
    assert ours.keys() == set(said)
    assert b"`tinyprop reproduce dropout --scale tiny`: 6 of 6 planned runs." in ours["README.md"]


@pytest.mark.slow
def test_only_missing_runs_are_computed_whatever_the_number_of_jobs(tmp_path, capsys):
    ledgers = [Ledger(tmp_path / name / "runs/ledger") for name in ("a", "b")]
    for ledger, jobs in zip(ledgers, ("2", "1"), strict=True):
        fill(ledger, "convergence", seeds=1)
        damaged = sorted(ledger.folder.glob("*seed1*"))[0]
        damaged.write_text("{")
        assert main(words(ledger.folder.parents[1], "convergence", "--jobs", jobs)) == 0
        said = capsys.readouterr().out
        assert f"{damaged} is damaged" in said
        assert f"3 runs to compute, {jobs} at a time, in about " in said
    for config in EXPERIMENTS["convergence"](SCALES["tiny"]).settings().values():
        ours, theirs = (ledger.find(replace(config, seed=2)) for ledger in ledgers)
        assert (ours.test, ours.losses, ours.layers) == (theirs.test, theirs.losses, theirs.layers)


def test_files_of_the_user_are_left_alone(tmp_path, monkeypatch, capsys):
    """A report of all experiments is written to --out and nowhere else."""
    monkeypatch.chdir(tmp_path)
    # these are tested elsewhere
    monkeypatch.setattr(Experiment, "figure", lambda self: panels(1, 1.0, 1.0)[0])
    own = [Path(name) for name in ("REPRODUCTION.md", "README.md", "figures/results.png")]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("<!-- evidence -->\nmine\n<!-- evidence -->\n")
    before = {path: path.read_bytes() for path in own}
    planned = experiments_at(SCALES["tiny"])
    fill(Ledger(tmp_path / "runs/reproduce/ledger"), *planned, seeds=1)
    before |= {path: path.read_bytes() for path in Path("runs/reproduce/ledger").iterdir()}
    own = list(before)
    assert main(["reproduce", "all", "--scale", "tiny", "--seeds", "0"]) == 0
    assert {path: path.read_bytes() for path in own} == before
    written = {Path(line) for line in capsys.readouterr().out.splitlines()}
    names = ["README.md", *(f"{name}.png" for name in planned)]
    assert written == {Path("runs/figures") / name for name in names}
    everything = {path for path in Path().rglob("*") if path.is_file()}
    assert everything == written | set(own)


def test_without_data_it_says_where_to_get_them_and_writes_nothing(tmp_path, capsys, monkeypatch):
    def found(name, root, download):
        raise DataError(f"{name}, which cannot be downloaded", "it is needed", "the network")

    monkeypatch.setattr("tinyprop.data.found", found)
    assert main(words(tmp_path, "dropout")) == 1
    said = capsys.readouterr()
    assert "shapes is skipped: shapes, which cannot be downloaded" in said.out
    assert "try:  the network" in said.err
    assert "What needs no download: tinyprop reproduce all --scale tiny" in said.err
    assert not (tmp_path / "out").exists()


def test_an_experiment_without_runs_gets_no_figure(tmp_path, capsys):
    fill(Ledger(tmp_path / "runs/ledger"), "dropout")
    assert main(words(tmp_path, "dropout", "convergence", "--seeds", "0")) == 0
    # the setting that both have
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md",
        "dropout.png",
        "convergence.png",
    }
    assert main(words(tmp_path, "activations", "jacobian-factor", "--seeds", "0")) == 0
    assert not (tmp_path / "out/jacobian-factor.png").exists()


def test_a_scale_has_the_experiments_of_its_plan(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "activations", "--scale", "plateau"])
    assert caught.value.code == 2
    assert "no activations at scale plateau, which has convergence" in capsys.readouterr().err


@pytest.mark.slow
def test_when_time_is_up_the_runs_are_saved(tmp_path):
    endless, work = (
        replace(TINY, epochs=100_000),
        Study([], SCALES["tiny"], Ledger(tmp_path / "ledger"), tmp_path),
    )
    work.wanted = lambda: [endless]
    with ThreadPoolExecutor() as pool:
        assert work.compute(pool, 1, seconds=1.0)
    assert list((tmp_path / run_name(endless)).glob("checkpoint-*.safetensors"))
    assert not work.ledger.find(endless)


LONG = """
import sys
from dataclasses import replace
from tinyprop.cli import main
from tinyprop.experiments.scales import SCALES
SCALES["tiny"] = replace(SCALES["tiny"], protocol=replace(SCALES["tiny"].protocol, epochs=100_000))
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def is_alive(group):
    """Any process of the group, Python's own helpers, too."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def is_gone_after(group, seconds):
    deadline = time.monotonic() + seconds
    while is_alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(group)


@pytest.fixture
def endless(tmp_path):
    """A command in runs that would take for ever, after their first epoch."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, *words(tmp_path, "convergence", "--jobs", "2")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        while len(list((tmp_path / "runs").glob("*/log.csv"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        if is_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def checkpoints(folder):
    """Whether each run that was begun has one."""
    return [
        bool(list(run.glob("checkpoint-*.safetensors")))
        for run in (folder / "runs").iterdir()
        if run.is_dir()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_no_process_behind(tmp_path, endless, number, capsys):
    """A second command in the same directory is refused meanwhile."""
    assert main(words(tmp_path, "dropout")) == 1
    assert f"{tmp_path / 'runs'}, in which another command is at work" in capsys.readouterr().err
    assert endless.poll() is None
    endless.send_signal(number)  # to the parent alone: it has to tell the others
    said, _ = endless.communicate(timeout=90)
    assert endless.returncode == 130
    assert "the same command resumes" in said
    assert "Traceback" not in said
    assert is_gone_after(endless.pid, 30)
    assert checkpoints(tmp_path) == [True, True], "nothing new was begun"
    assert not (tmp_path / "runs/ledger").exists()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_even_if_a_worker_hangs(endless):
    children = Path(f"/proc/{endless.pid}/task/{endless.pid}/children").read_text().split()
    workers = [
        int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
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
    endless.kill()
    endless.wait()
    assert is_gone_after(endless.pid, 5)
    assert checkpoints(tmp_path) == [True, True]


@pytest.mark.parametrize(
    "arguments",
    [
        "dance",
        "dropout --jobs 0",
        "dropout --seeds -1",
        "dropout --scale huge",
        "all --continue",
        "",
        "all --budget 2",
        "all --budget -2h",
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", *arguments.split()])
    assert caught.value.code == 2
