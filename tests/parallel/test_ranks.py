"""Processes that train one network together: the weights of one process, whatever happens to a
rank.

Most tests use threads as ranks, which exchange arrays as MPI does; those that need real processes
are skipped without `pip install 'tinyprop[mpi]'`."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, exhaustive, quick_only
from tinyprop import functional as F
from tinyprop.cli import main
from tinyprop.parallel import launch, ranks
from tinyprop.parallel.ranks import world
from tinyprop.train import Config, Ranks, Run, TrainingStep, checkpoint, evaluate

from .rank_program import KINDS, on_threads, train

MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    not (find_spec("mpi4py") and MPIEXEC.exists()), reason="needs tinyprop[mpi]"
)
TINY = Config(width=0.04, epochs=2, batch_size=10, train_size=44, test_size=15, threads=1)
TOLERANCE = {"float32": 2e-6}  # of weights of order 1 after 20 steps; 1e-12 in float64


def assert_same_weights(found, expected, tolerance):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@cache
def alone(kind):
    """What one process trains."""
    return train(Ranks(), 1, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", quick_only([3], [2, 3, 4]))
def test_the_weights_are_those_of_one_process(kind, size):
    """With uneven and empty shares, sums over the batch, masks, any loss; and every rank holds the
    same bits."""
    ranks = on_threads(size, lambda ranks: train(ranks, 1, **KINDS[kind]))
    for state in ranks:
        assert_same_bits(state, ranks[0])
    assert_same_weights(ranks[0], alone(kind), TOLERANCE.get(kind, 1e-12))


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("size", "threads"),
    [(3, 1), (2, 2), pytest.param(2, 1, marks=exhaustive), pytest.param(4, 1, marks=exhaustive)],
)
def test_the_weights_are_those_of_one_process_on_mpi(tmp_path, size, threads):
    """And several threads in each rank; there, a second job has the same bits again."""
    jobs = "ab" if threads > 1 else "a"
    for folder in [tmp_path / job for job in jobs]:
        folder.mkdir()
        done = mpi(size, "-m", "tests.parallel.rank_program", folder, threads)
        assert done.returncode == 0, done.stderr
    for kind in KINDS:
        paths = [tmp_path / job / f"{kind}-{rank}.npz" for job in jobs for rank in range(size)]
        states = [dict(np.load(path)) for path in paths]
        for state in states:
            assert_same_bits(state, states[0])
        assert_same_weights(states[0], alone(kind), TOLERANCE.get(kind, 1e-12))


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


def words(size, *arguments):
    """The command that runs Python under mpiexec."""
    return [str(MPIEXEC), "-n", str(size), sys.executable, *map(str, arguments)]


def mpi(size, *arguments):
    """A job that cannot hang."""
    return subprocess.run(
        words(size, *arguments), text=True, env=ENVIRONMENT, capture_output=True, timeout=180
    )


@pytest.mark.parametrize("samples", [1, 3, 8, 50])
def test_shares_cover_a_batch_and_the_first_rank_has_one(samples):
    for size in (1, 2, 3, 4, 7):
        shares = on_threads(size, lambda ranks: ranks.share(samples))
        covered = [i for share in shares for i in range(share.start, share.stop)]
        assert covered == list(range(samples))
        assert shares[0].stop > 0
        lengths = {share.stop - share.start for share in shares}
        assert max(lengths) - min(lengths) <= 1


def test_sums_are_taken_in_the_order_of_the_ranks(backend):
    """(1e16 - 1e16) + 1 is 1 in float64, and other orders give 0; what is not a multiple of the
    ranks is padded."""
    numbers = [1e16, -1e16, 1.0]

    def add_up(ranks):
        mine = tp.full((2, 2), numbers[ranks.rank], dtype="float64", backend=backend).data
        return ranks.add_up(mine), ranks.add_up(ranks.rank)

    for total, count in on_threads(3, add_up):
        assert tp.engine.arrays.backend_of(total) == backend
        assert tp.engine.arrays.to_numpy(total).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert count == 3


def test_a_device_trains_as_the_host_does(backend):
    """The same buffer, through NCCL's calls."""

    def weights(ranks):
        tp.manual_seed(0)
        net = tp.nn.build("C(4,3,1,1)-C(4,1,1,0)-P(8,8,0,avg)", norm="batch").to(backend)
        step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=1, ranks=ranks)
        rng = np.random.default_rng(0)
        for n in (5, 2, 7):
            loss = step(rng.normal(size=(n, 3, 8, 8)).astype("float32"), rng.integers(0, 4, n))
        images = rng.normal(size=(5, 3, 8, 8)).astype("float32")
        labels = rng.integers(0, 4, 5)
        state = {name: tp.engine.arrays.to_numpy(value) for name, value in net.state_dict().items()}
        return state | {"loss": float(loss), "evaluation": evaluate(net, images, labels, 1, ranks)}

    ranks = on_threads(3, weights)
    assert_same_bits(ranks[1], ranks[0])
    assert_same_weights(ranks[0], weights(Ranks()), 1e-5)


class Stranger(tp.nn.Module):
    def forward(self, x):
        return x * 2.0


def own_loss(outputs, labels):
    return (outputs**2).mean()


def test_a_stranger_is_refused_unless_it_is_declared_to_treat_each_sample_by_itself(monkeypatch):
    """It may look across the batch, and no rank has all of it."""
    net = tp.nn.Sequential(tp.nn.Linear(3, 2), Stranger())

    def step(loss, ranks):
        return TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), loss, ranks=ranks)

    def refused(loss, *words):
        assert_explained(ValueError, lambda: on_threads(2, partial(step, loss)), "2 ranks", *words)

    refused(F.cross_entropy, "Stranger may look across the batch", "per_sample = True")
    monkeypatch.setattr(Stranger, "per_sample", True)
    on_threads(2, partial(step, F.cross_entropy))
    refused(own_loss, "a loss of your own", "per_sample = True")
    refused(partial(F.cross_entropy, reduction="sum"), "a loss of your own")
    own_loss.per_sample = True
    on_threads(2, partial(step, own_loss))


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr("tinyprop.parallel.ranks.cores", lambda: 8)
    net = tp.nn.build("C(4,3,1,1)")
    assert Ranks(here=3).cores == 2
    assert Ranks(here=9).cores == 1
    assert TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), ranks=Ranks(here=3)).threads == 2


# -- whole runs


@pytest.fixture
def _no_curves(monkeypatch):
    """Drawing takes longer than training."""
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)


def finished(ranks, out, config=TINY, **options):
    run = Run(config, out, say=options.pop("say", lambda line: None), ranks=ranks)
    return run.run(**options), run


@pytest.mark.usefixtures("_no_curves")
@pytest.mark.parametrize("size", quick_only([3], [2, 3]))
def test_a_run_is_that_of_one_process_and_the_first_rank_writes_it(tmp_path, size):
    _, alone = finished(None, tmp_path / "one")
    runs = on_threads(
        size,
        lambda ranks: finished(ranks, tmp_path / "all" if ranks.first else tmp_path / "nobody"),
    )
    assert [done for done, _ in runs] == [True] * size
    for _, run in runs:
        assert [row["train_error"] for row in run.history] == [
            row["train_error"] for row in alone.history
        ]
    assert not (tmp_path / "nobody").exists()
    ours, theirs = ({p.name for p in (tmp_path / name).iterdir()} for name in ("one", "all"))
    assert ours == theirs
    one, many = (tp.load(tmp_path / name / "model.safetensors") for name in ("one", "all"))
    assert_same_weights(many, one, 2e-6)
    assert list(tp.train.check.audit(tmp_path / "all")) == []


@pytest.mark.usefixtures("_no_curves")
def test_one_rank_that_is_asked_to_stop_stops_all_after_the_same_step(tmp_path):
    """Then another number of ranks continues, which is mentioned."""

    def stopped(ranks):
        run = Run(TINY, tmp_path / "run", say=lambda line: None, ranks=ranks)
        if ranks.rank == 1:
            run.should_stop = lambda: (run.epoch, run.batch) >= (1, 2)
        return run.run(), run.epoch, run.batch

    assert on_threads(2, stopped) == [(False, 1, 3)] * 2
    (newest,) = checkpoint.read_all(tmp_path / "run")[0][-1:]
    assert (newest.progress, newest.facts["ranks"]) == ((1, 3), 2)
    lines = []
    runs = on_threads(
        3, lambda ranks: finished(ranks, tmp_path / "run", resume=True, say=lines.append)
    )
    assert all(done for done, _ in runs)
    assert lines[0].endswith("other ranks, so the last bits may differ: 3, before 2")
    finished(None, tmp_path / "one")
    one, many = (tp.load(tmp_path / name / "model.safetensors") for name in ("one", "run"))
    assert_same_weights(many, one, 2e-6)


@pytest.mark.usefixtures("_no_curves")
def test_what_the_first_rank_refuses_all_refuse(tmp_path):
    finished(None, tmp_path / "run", TINY)

    def refused(ranks):
        with pytest.raises(tp.StateError, match="which holds a run"):
            finished(ranks, tmp_path / "run" if ranks.first else tmp_path / "nobody")
        return True

    assert on_threads(2, refused) == [True, True]


def test_ranks_with_other_images_or_other_weights_stop(tmp_path):
    def other_images(ranks):
        run = Run(TINY, tmp_path / "a", ranks=ranks)
        run.fingerprint += str(ranks.rank // 2)
        run.run()

    with pytest.raises(tp.StateError, match="other images on rank 2 than on rank 0"):
        on_threads(3, other_images)

    def other_weights(ranks):
        run = Run(TINY, tmp_path / "b", ranks=ranks)
        next(run.model.parameters()).data[...] *= 1.0 + ranks.rank * 1e-6
        run.run()

    with pytest.raises(tp.StateError, match="other weights on rank 1 than on rank 0"):
        on_threads(2, other_weights)
    assert not checkpoint.paths(tmp_path / "b")


def test_all_ranks_diverge_together(tmp_path):
    """An image of one rank is not finite: all learn of it from the sums, and none updates."""

    def diverge(ranks):
        run = Run(TINY, tmp_path / "run", ranks=ranks)
        if ranks.rank == 1:
            run.step.model[0].mean.data[...] = np.nan
        before = run.model.state_dict()["2.weight"].copy()
        with pytest.raises(tp.DivergenceError, match="step 1 of epoch 1"):
            run.run()
        return np.array_equal(run.model.state_dict()["2.weight"], before)

    assert on_threads(2, diverge) == [True, True]


def test_without_mpi4py_the_processes_of_mpiexec_are_refused(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert_explained(
        tp.StateError,
        world().__enter__,
        "4 processes that cannot reach",
        "pip install 'tinyprop[mpi]'",
    )


# -- the command, under mpiexec

LONG = ["--width", "0.04", "--train-size", "100", "--test-size", "20"]
LONG += ["--epochs", "1000", "--batch-size", "10"]


TRAIN = ["-m", "tinyprop", "train", *LONG]
STARTED = {
    "by mpiexec": words(2, *TRAIN),
    "by --processes": [sys.executable, *TRAIN, "--processes", "2"],
}


@contextmanager
def after_an_epoch(command, folder):
    """A job of two ranks after its first epoch, which would take for ever; no process of it is left
    behind."""
    job = subprocess.Popen(
        [*command, "--out", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "run/log.csv").exists():
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield job
    finally:
        job.kill()
        job.communicate()
        time.sleep(0.5)
        assert workers(folder) == []


@pytest.fixture(params=["by --processes", pytest.param("by mpiexec", marks=exhaustive)])
def endless(tmp_path, request):
    with after_an_epoch(STARTED[request.param], tmp_path) as job:
        yield job


def workers(folder):
    """The processes that were started for a run in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(folder / "run") in words and "mpiexec" not in words[0] and "hydra" not in words[0]:
            found.append(int(path.parent.name))
    return sorted(found)


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=exhaustive)])
def test_a_signal_saves_and_stops_all_ranks(tmp_path, endless, number):
    endless.send_signal(number)
    said, _ = endless.communicate(timeout=90)
    assert endless.returncode == 130
    assert said.count("everything is saved") == 1
    assert "Traceback" not in said
    assert checkpoint.paths(tmp_path / "run")


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("rank", [pytest.param(0, marks=exhaustive), 1])
def test_a_killed_rank_ends_the_job_with_a_line_and_another_number_of_ranks_resumes(
    tmp_path, endless, rank
):
    epochs = epochs_after_a_loss(endless, tmp_path, rank)
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    more = [*LONG, "--epochs", str(epochs + 1), "--resume", "--out"]
    assert mpi(3, "-m", "tinyprop", "train", *more, tmp_path / "run").returncode == 0
    assert main(["train", *more, str(tmp_path / "alone")]) == 0
    ours, theirs = (tp.load(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    assert_same_weights(ours, theirs, 1e-5)


def epochs_after_a_loss(job, folder, rank):
    """Kill a rank; how many epochs the last checkpoint has."""
    ranks = workers(folder)
    assert len(ranks) == 2
    os.kill(ranks[rank], signal.SIGKILL)
    said, _ = job.communicate(timeout=60)
    assert job.returncode != 0
    assert said.count("tinyprop: a rank was lost") == 1
    assert "Traceback" not in said
    whole, complaints = checkpoint.read_all(folder / "run")
    assert not complaints
    epochs = whole[-1].progress[0]
    assert epochs >= 1
    return epochs


OWN = """
import tinyprop as tp

class Undeclared(tp.nn.Module):
    def __init__(self):
        self.first = tp.nn.NormPropLinear(3 * 32 * 32, 8)
        self.last = tp.nn.Linear(8, 10)

    def forward(self, x):
        return self.last(self.first(x.reshape(len(x), -1)))

class Net(Undeclared):
    per_sample = True
"""
SAMPLES = ["--train-size", "100", "--test-size", "20", "--batch-size", "10"]


@pytest.mark.slow
@needs_mpi
def test_a_network_of_the_users_own_is_trained_killed_and_resumed(tmp_path):
    """By --processes, as one process resumes it."""
    (tmp_path / "mine.py").write_text(OWN)
    words = ["train", "--net", f"{tmp_path / 'mine.py'}:Net", *SAMPLES]
    command = [sys.executable, "-m", "tinyprop", *words, "--processes", "2"]
    with after_an_epoch([*command, "--epochs", "100000"], tmp_path) as job:
        epochs = epochs_after_a_loss(job, tmp_path, 1)
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    more = ["--epochs", str(epochs + 1), "--resume", "--out"]
    command = [sys.executable, "-m", "tinyprop", "train", "--processes", "2"]
    resumed = [*command, *more, str(tmp_path / "run")]
    subprocess.run(resumed, env=ENVIRONMENT, check=True, timeout=180)
    assert main(["train", *more, str(tmp_path / "alone")]) == 0
    ours, theirs = (tp.load(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    assert_same_weights(ours, theirs, 1e-5)


ABORTS = """
        from mpi4py import MPI
        if self.training and len(x) == 5:  # a rank's half of a batch
            MPI.COMM_WORLD.Abort(3)
        return self.last"""
# as a message does that was under way from a rank that is killed (4 of 100 times, if the machine is
# busy)
FAILS = """
        from mpi4py import MPI
        if self.training and len(x) == 5 and MPI.COMM_WORLD.rank == 0:
            raise MPI.Exception(MPI.ERR_OTHER)
        return self.last"""


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("how", "status"), [(ABORTS, 3), (FAILS, 1)], ids=["abort", "exception"])
def test_a_failure_inside_of_mpi_ends_with_the_same_line(tmp_path, how, status):
    """mpiexec ends at once then, without passing on what the ranks write."""
    (tmp_path / "mine.py").write_text(OWN.replace("\n        return self.last", how))
    words = ["train", "--net", f"{tmp_path / 'mine.py'}:Net", *SAMPLES, "--processes", "2"]
    job = subprocess.run(
        [sys.executable, "-m", "tinyprop", *words, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
        timeout=180,
    )
    assert job.returncode == status
    assert job.stdout.count("tinyprop: a rank was lost") == 1


def test_a_descriptor_that_is_no_longer_the_launchers_stderr_is_not_written_to(monkeypatch):
    name = ranks.LAUNCHER_STDERR
    environment = ranks.with_stderr()
    monkeypatch.setenv(name, environment[name])
    descriptor = int(environment[name].split()[0])
    assert ranks._stderr_of_launcher() == descriptor
    with open(os.devnull) as other:
        os.dup2(other.fileno(), descriptor)
    assert ranks._stderr_of_launcher() is None
    os.close(descriptor)
    assert ranks._stderr_of_launcher() is None
    monkeypatch.delenv(name)
    assert ranks._stderr_of_launcher() is None


ERRORS = """
import sys
from tinyprop import functional as F
from tinyprop.cli import main
from tinyprop.train import Run
def run(self, resume):
    if sys.argv[1] in ("all", str(self.ranks.rank)):
        raise OSError("the disk is full")
    self.ranks.comm.Barrier()
Run.run = run
sizes = ["--width", "0.04", "--train-size", "10", "--test-size", "10"]
sys.exit(main(["train", *sizes, "--out", sys.argv[2]]))
"""


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("who", [pytest.param("0", marks=exhaustive), "1", "all"])
def test_an_error_of_one_rank_or_of_all_is_told_once(tmp_path, who):
    done = mpi(2, "-c", ERRORS, who, tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.count("the disk is full") == 1
    assert ("on rank" in done.stderr) == (who != "all")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_mpi
def test_processes_train_the_weights_of_one(tmp_path):
    """`--processes 2` is `mpiexec -n 2`, to the bit."""
    short = ["-m", "tinyprop", "train", *LONG, "--epochs", "1", "--out"]
    command = [sys.executable, *short, str(tmp_path / "run"), "--processes", "2"]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert mpi(2, *short, tmp_path / "same").returncode == 0
    ours, theirs = (tp.load(tmp_path / name / "model.safetensors") for name in ("run", "same"))
    assert_same_bits(ours, theirs)
    wrong = mpi(3, *short, tmp_path / "wrong", "--processes", "2")
    assert wrong.returncode != 0
    assert wrong.stderr.count("--processes 2 under mpiexec with 3 processes") == 1


ACROSS = """
import tinyprop as tp

class Centered(tp.nn.Module):
    def forward(self, x):
        return x - x.mean(axis=0, keepdims=True)

def across(channels):
    return Centered()
"""


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("arguments", "got", "rule", "hint"),
    [
        (
            ["--norm", "mine.py:across"],
            "2 ranks",
            "Centered may look across the batch",
            "per_sample = True",
        ),
        (
            ["--net", "mine.py:Undeclared"],
            "2 ranks",
            "Undeclared may look across the batch",
            "per_sample = True",
        ),
        (
            ["--batch-size", "1"],
            "2 processes with --batch-size 1",
            "its share of every batch",
            "--batch-size 2, or fewer processes",
        ),
    ],
    ids=["normalizer", "network", "batch"],
)
def test_processes_refuse_what_they_cannot_split_before_anything_is_written(
    tmp_path, arguments, got, rule, hint
):
    (tmp_path / "mine.py").write_text(OWN + ACROSS)
    command = [sys.executable, "-m", "tinyprop", "train", *SAMPLES, *arguments]
    command += ["--processes", "2", "--out", "run"]
    done = subprocess.run(
        command, env=ENVIRONMENT, text=True, capture_output=True, timeout=180, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.count("got:") == 1
    for part, words in {"got:": got, "rule:": rule, "try:": hint}.items():
        (line,) = [line for line in done.stderr.splitlines() if part in line]
        assert words in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@needs_mpi
def test_a_run_of_processes_is_resumed_by_processes(tmp_path):
    """To the weights of a run that was not interrupted, bit by bit."""
    common = [sys.executable, "-m", "tinyprop", "train", *LONG, "--processes", "2", "--out"]
    parts = [
        [str(tmp_path / "whole"), "--epochs", "2"],
        [str(tmp_path / "parts"), "--epochs", "1"],
        [str(tmp_path / "parts"), "--epochs", "2", "--resume"],
    ]
    for part in parts:
        subprocess.run([*common, *part], env=ENVIRONMENT, check=True, timeout=180)
    ours, theirs = (tp.load(tmp_path / name / "model.safetensors") for name in ("parts", "whole"))
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("missing", ["mpiexec", "mpi4py"])
def test_processes_without_mpi_are_refused_before_anything_is_written(
    tmp_path, missing, monkeypatch, capsys
):
    if missing == "mpiexec":
        monkeypatch.setattr(launch, "mpiexec", lambda: None)
    else:
        monkeypatch.setattr(launch, "mpiexec", lambda: "mpiexec")
        monkeypatch.setattr(launch, "find_spec", lambda name: None)
    assert main(["train", *LONG, "--processes", "2", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"got:  --processes 2 without {missing}\n" in said
    assert "rule: " in said
    assert "try:  pip install 'tinyprop[mpi]'" in said
    assert not (tmp_path / "run").exists()
