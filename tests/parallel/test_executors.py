"""Claims and runs on processes, MPI and dask: the same bytes, also if a worker dies, and nothing is
left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinyprop as tp
from tests.helpers import assert_explained, exhaustive
from tests.parallel.test_ranks import ENVIRONMENT, MPIEXEC, needs_mpi
from tinyprop.cli import main
from tinyprop.parallel import executors
from tinyprop.report.files import locked

needs_dask = pytest.mark.skipif(not find_spec("distributed"), reason="needs tinyprop[dask]")
CLAIMS = ["C01", "C06", "C12", "C21", "N01"]
OWN = Path(__file__).parents[2] / "docs" / "own" / "claims.py"  # a stranger's file
VERIFY = ["verify", *CLAIMS, str(OWN), "--samples", "5000"]
REPRODUCE = ["reproduce", "dropout", "--scale", "tiny", "--seeds", "1"]
SCHEDULER = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
WORKER = [sys.executable, "-m", "distributed.cli.dask_worker"]
WORKER += ["--nthreads", "1", "--no-dashboard", "--no-nanny"]  # a nanny would start it again
TIMES = ("images_per_second",)  # what a record has of the time that a run took


def command(*arguments, launcher=()):
    """A tinyprop command in a process of its own; it cannot hang."""
    words = [*launcher, sys.executable, "-m", "tinyprop", *arguments]
    return subprocess.run(
        [*map(str, words)], text=True, env=ENVIRONMENT, capture_output=True, timeout=240
    )


def background(*words, **options):
    return subprocess.Popen([*map(str, words)], env=ENVIRONMENT, start_new_session=True, **options)


@contextmanager
def dask(folder, workers=2):
    """The address of a dask cluster, and the processes of its workers."""
    file = folder / "scheduler.json"
    log = open(folder / "dask.log", "w")  # noqa: SIM115  closed below
    quiet = {"stdout": log, "stderr": log, "cwd": folder}
    at = ["--scheduler-file", str(file)]
    local = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = background(*SCHEDULER, *at, *local, **quiet)
    members = []
    try:
        until(file.exists, 60)
        for _ in range(workers):
            members.append(background(*WORKER, *at, "--local-directory", folder, **quiet))
        until(lambda: (folder / "dask.log").read_text().count("Registered to") >= workers, 90)
        address = json.loads(file.read_text())["address"]
        yield address.replace("tcp://", "dask://"), members
    finally:
        for process in (*members, scheduler):
            process.kill()
            process.wait()
        log.close()


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory):
    """For tests that kill no worker."""
    with dask(tmp_path_factory.mktemp("dask")) as found:
        yield found


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_any_executor_settles_claims_to_the_same_results():
    expected = tp.verify.run(CLAIMS, samples=5000)
    seen = []
    with ThreadPoolExecutor(3) as pool:
        found = tp.verify.run(
            CLAIMS, 5000, 0, None, pool, progress=lambda id, fraction: seen.append(id)
        )
    assert found == expected
    assert seen == [result.id for result in expected]


def test_a_claim_that_nobody_wants_any_longer_is_not_settled(monkeypatch):
    monkeypatch.setattr(executors._request, "received", True)
    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match="C01 was stopped"):
        tp.verify.run(["C01"], samples=5000, executor=pool)


def test_a_cluster_that_does_not_exist_is_refused(capsys, monkeypatch):
    for wrong in ("slurm", "dask:host", ""):
        with pytest.raises(SystemExit) as caught:
            main(["verify", "C01", "--cluster", wrong])
        assert caught.value.code == 2
        assert "is not processes, mpi or dask://host:port" in capsys.readouterr().err
    for extra, module in (("mpi", "mpi4py"), ("dask", "distributed")):
        monkeypatch.setitem(sys.modules, module, None)
        where = "mpi" if extra == "mpi" else "dask://127.0.0.1:1"
        assert_explained(
            tp.StateError, executors.executor(where).__enter__, f"pip install 'tinyprop[{extra}]'"
        )


# -- verify


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """What `tinyprop verify` writes without a cluster."""
    path = tmp_path_factory.mktemp("verify") / "numbers.json"
    assert main([*VERIFY, "--json", str(path)]) == 0
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "launcher"),
    [
        ("processes", ()),
        pytest.param("mpi", (MPIEXEC, "-n", "1"), marks=[needs_mpi, exhaustive]),
        pytest.param("mpi", (MPIEXEC, "-n", "3"), marks=needs_mpi),
        pytest.param("dask", (), marks=needs_dask),
    ],
)
def test_claims_are_settled_to_the_same_bytes(tmp_path, numbers, where, launcher, request):
    where = request.getfixturevalue("dask_cluster")[0] if where == "dask" else where
    done = command(*VERIFY, "--json", tmp_path / "a", "--cluster", where, launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a").read_bytes() == numbers
    assert done.stdout.count("claims in") == 1, "the first rank alone reports"


@pytest.mark.slow
@needs_dask
def test_a_first_worker_of_dask_is_waited_for(tmp_path, capsys):
    """As in the queue of a cluster: nothing must be computed, and called finished, by no
    workers."""
    with dask(tmp_path, workers=0) as (address, members):
        words = [*WORKER, address.replace("dask://", "tcp://"), "--local-directory", tmp_path]
        threading.Timer(1.0, lambda: members.append(background(*words))).start()
        with executors.executor(address) as (pool, jobs):
            assert (jobs, pool.submit(abs, -3).result()) == (1, 3)
    assert "waiting for a worker" in capsys.readouterr().out


def cpu_seconds(root):
    """Of a process and all that it has started."""
    processes = {}  # number -> parent, ticks
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            processes[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])

    def is_ours(pid):
        return pid == root or (pid in processes and is_ours(processes[pid][0]))

    ticks = sum(ticks for pid, (_, ticks) in processes.items() if is_ours(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", pytest.param("mpi", marks=needs_mpi)])
def test_ctrl_c_ends_claims_at_once(where):
    """Of 1e10 samples, which take minutes; the signal goes to the command alone."""
    launcher = [MPIEXEC, "-n", "3"] if where == "mpi" else []
    words = f"-m tinyprop verify C01 C02 C21 --samples 1e10 --cluster {where}".split()
    with running(*launcher, sys.executable, *words) as job:
        until(lambda: cpu_seconds(job.pid) > 8)  # imports take less
        assert job.poll() is None
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=60)
        assert job.returncode == 130
        assert "Traceback" not in said
        until(lambda: not group_alive(job.pid), 20)


@contextmanager
def running(*words):
    """A job that leaves nothing behind."""
    job = background(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield job
    finally:
        if group_alive(job.pid):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def group_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# -- reproduce


def reproduced(folder, *arguments, launcher=()):
    places = ["--out", folder / "out", "--runs", folder / "runs"]
    done = command(*REPRODUCE, *arguments, *places, launcher=launcher)
    assert done.returncode == 0, done.stderr
    return contents(folder)


def contents(folder):
    """The bytes of the report, and the records without times."""
    records = {
        path.name: json.loads(path.read_text()) for path in (folder / "runs/ledger").iterdir()
    }
    for record in records.values():
        del record["sha256"]  # which covers the times
        del record["started"], record["ended"]
        for row in record["history"]:
            for name in TIMES:
                del row[name]
    assert not list((folder / "runs").glob("*-seed*")), "nothing unfinished is left"
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}, records


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What one process makes."""
    folder = tmp_path_factory.mktemp("reproduce")
    page, records = found = reproduced(folder, "--jobs", "1")
    assert page.keys() == {"README.md", "dropout.png"}
    assert len(records) == 3
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "launcher"),
    [
        (("--jobs", "2"), ()),
        pytest.param(("--cluster", "mpi"), (MPIEXEC, "-n", "3"), marks=needs_mpi),
    ],
)
def test_runs_are_computed_to_the_same_bytes(tmp_path, report, arguments, launcher):
    assert reproduced(tmp_path, *arguments, launcher=launcher) == report


WAITING = """
import os, time
from pathlib import Path
from tinyprop.verify import claim, claimed

@claim("W1", "here", "One equals one, once the test agrees.")
def waiting(mc):
    '''It says which process settles it, and waits for a file.'''
    Path("PLACE", f"settled by {os.getpid()}").touch()
    while not Path("PLACE", "go").exists():
        time.sleep(0.05)
    yield claimed("one", 1.0, exact=1.0)
    return "they are equal"
"""


@pytest.mark.slow
@needs_dask
def test_killed_workers_of_dask_delay_their_claims_and_runs_only(tmp_path, report):
    """One settles a claim; one is in a run, which the third one resumes."""
    own = tmp_path / "waiting.py"
    own.write_text(WAITING.replace("PLACE", str(tmp_path)))
    verify = ["verify", *CLAIMS, own, "--samples", "5000", "--json"]
    reproduce = [*REPRODUCE, "--out", tmp_path / "out", "--runs", tmp_path / "runs"]

    with dask(tmp_path, workers=3) as (address, workers):

        def job(*words):
            return running(sys.executable, "-m", "tinyprop", *words, "--cluster", address)

        with job(*verify, tmp_path / "a") as verifying:
            until(lambda: list(tmp_path.glob("settled by *")))
            [settled] = tmp_path.glob("settled by *")
            [victim] = [each for each in workers if settled.name.endswith(f" {each.pid}")]
            victim.kill()
            (tmp_path / "go").touch()
            assert verifying.wait(240) == 0
        assert len(list(tmp_path.glob("settled by *"))) == 2, "by another worker"

        with job(*reproduce) as reproducing:
            until(lambda: list((tmp_path / "runs").glob("*/log.csv")))
            next(each for each in workers if each is not victim).kill()
            assert reproducing.wait(240) == 0

    assert main([*map(str, verify), str(tmp_path / "b")]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert contents(tmp_path) == report


LONG = """
import sys
from dataclasses import replace
from tinyprop.cli import main
from tinyprop.experiments.scales import SCALES
SCALES["tiny"] = replace(SCALES["tiny"], protocol=replace(SCALES["tiny"].protocol, epochs=100_000))
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def endless(folder, *arguments, launcher=()):
    """A command whose runs would take for ever, when two of them have finished an epoch."""
    places = ["--out", folder / "out", "--runs", folder / "runs"]
    words = ["reproduce", "convergence", "--scale", "tiny"]
    command = [*launcher, sys.executable, "-c", LONG, *words, *arguments, *places]
    with running(*command) as job:
        until(lambda: len(list((folder / "runs").glob("*/log.csv"))) == 2)
        yield job


@pytest.mark.slow
@needs_mpi
def test_ctrl_c_lets_the_runs_of_all_ranks_save(tmp_path):
    with endless(tmp_path, "--cluster", "mpi", launcher=(MPIEXEC, "-n", "3")) as job:
        job.send_signal(signal.SIGINT)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert said.count("the same command resumes") == 1
    assert "Traceback" not in said
    runs = list((tmp_path / "runs").glob("*-seed*"))
    assert len(runs) == 2
    assert all(list(run.glob("checkpoint-*.safetensors")) for run in runs)


@pytest.mark.slow
def test_a_lost_process_ends_the_command_with_a_sentence(tmp_path):
    with endless(tmp_path, "--jobs", "2") as job:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        workers = [int(pid) for pid, words in commands.items() if b"spawn_main" in words]
        os.kill(workers[0], signal.SIGKILL)
        said, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "got:  a worker process that was lost" in said
    assert "Traceback" not in said


@pytest.mark.slow
@needs_dask
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_run_goes_on_after_its_command(tmp_path, number, dask_cluster):
    """Dask's workers stay, but stop computing; the runs are saved."""
    address, workers = dask_cluster
    with endless(tmp_path, "--cluster", address) as job:
        job.send_signal(number)
        said, _ = job.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (job.returncode, "the same command resumes" in said) == (130, True)
    until(lambda: not any(map(at_work, (tmp_path / "runs").glob("*-seed*"))), 60)
    runs = list((tmp_path / "runs").glob("*-seed*"))
    assert len(runs) == 2, "and nothing new was begun"
    assert all(worker.poll() is None for worker in workers)
    assert all(list(run.glob("checkpoint-*.safetensors")) for run in runs)


def at_work(run):
    """Whether some process holds the lock of a run."""
    try:
        with locked(run):
            return False
    except tp.StateError:
        return True


@pytest.mark.slow
@needs_dask
def test_workers_that_see_other_files_are_told_from_those_that_share_them(
    tmp_path, monkeypatch, dask_cluster
):
    """A ledger that the command does not find its run in is an error, not a reason to compute it
    for ever."""
    from tinyprop.experiments.ledger import Ledger

    monkeypatch.setattr(Ledger, "find", lambda self, config, say=None: None)
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert main([*REPRODUCE, *places, "--cluster", dask_cluster[0]]) == 1
