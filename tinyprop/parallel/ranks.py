"""Processes that train one network together: each computes its share of every batch, and all hold
the same weights."""

import os
import subprocess  # nosec B404
import sys
import time
from argparse import ArgumentError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from ..engine.arrays import Array, array_module, is_device_array, is_host_array, load_module
from ..engine.batch import Shape, sharing
from ..engine.errors import StateError
from ..engine.threads import blas_threads, cores

T = TypeVar("T")

PATIENCE = 2.0  # seconds that a rank with an error waits for the others to meet it, too
# how many processes mpiexec started: MPICH (and Slurm), Open MPI
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
# the descriptor, device and inode of the standard error of `launch`
LAUNCHER_STDERR = "TINYPROP_LAUNCHER_STDERR"
LOST = (
    "tinyprop: a rank was lost, and the others were stopped; "
    "what is saved can be resumed, on any number of ranks"
)


class Ranks:
    """The processes of an MPI communicator, or one alone. `Alltoall` and `Allgather` carry what a
    step adds up.

    Sums are taken in the order of the ranks: each rank receives one slice of everyone's numbers,
    adds these up, and sends the result to all. So all ranks get the same bits, every time, and no
    rank sends more than twice the numbers.

    >>> alone = tp.train.Ranks()
    >>> alone.share(5), alone.add_up(2.0)
    (slice(0, 5, None), 2.0)
    """

    def __init__(self, comm: Any = None, here: int = 1, place: int = 0):
        self.comm = comm
        self.here = here  # how many ranks this machine has
        self.place = place  # which of these this one is
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self.nccl: Any = None  # carries arrays on devices
        self.should_stop: Callable[[], bool] = lambda: False  # whether this rank was asked to
        self.stop_requests: Any = 0  # how many ranks were asked to, when the last step ended

    @contextmanager
    def asking(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        """In a `with` block: this rank was asked to stop if `should_stop` says so. Afterwards it is
        forgotten, with all that it refers to."""
        before, self.should_stop = self.should_stop, should_stop
        try:
            yield
        finally:
            self.should_stop = before

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def cores(self) -> int:
        return max(1, cores() // self.here)

    def share(self, samples: int) -> slice:
        """This rank's share of the samples. If there are fewer samples than ranks, the last ranks
        have none."""
        start = -(-samples * self.rank // self.size)  # rounded up
        stop = -(-samples * (self.rank + 1) // self.size)
        return slice(start, stop)

    def sharing(self, samples: int) -> AbstractContextManager[None]:
        """Inside the block, sums over the batch go over all ranks."""
        part = RankPart(self, samples) if self.size > 1 else None
        return sharing(part)

    def add_up(self, numbers: Any) -> Any:
        """The sum of a number or an array over all ranks."""
        if self.size == 1:
            return numbers
        array = numbers if is_device_array(numbers) else np.asarray(numbers)
        (total,) = self.add_up_together([array])
        return total[()]  # an array without axes becomes a number

    def add_up_together(self, arrays: list[Array]) -> list[Array]:
        """The sum of each array over all ranks, sent in one message."""
        xp = array_module(arrays[0])
        pieces = [array.reshape(-1) for array in arrays]
        length = sum(piece.size for piece in pieces)
        padding = -length % self.size
        if padding:
            pieces.append(xp.zeros(padding, pieces[0].dtype))
        numbers = xp.concatenate(pieces)
        rows = numbers.reshape(self.size, -1)  # (numbers,) -> (ranks, numbers of each)
        received = xp.empty_like(rows)  # everyone's numbers in this rank's slice
        if is_host_array(rows):
            self.comm.Alltoall(rows, received)
            self.comm.Allgather(reduce(add, received), rows)
        else:
            self.nccl.all_to_all(rows, received)
            self.nccl.all_gather(reduce(add, received), rows, rows.shape[1])
        totals = []
        start = 0
        for array in arrays:
            stop = start + array.size
            total = numbers[start:stop].reshape(array.shape)  # rows are a view of numbers
            totals.append(total.astype(array.dtype, copy=False))
            start = stop
        return totals

    def total(self, loss: Array, gradients: list[Array | None]) -> tuple[Array, list[Array | None]]:
        """The sums of the loss and of each gradient. They are sent in one message, together with
        whether this rank should stop."""
        if self.size == 1:
            return loss, gradients
        should_stop = array_module(loss).full(1, self.should_stop(), loss.dtype)
        known = [g for g in gradients if g is not None]
        total_loss, *sums, stop_requests = self.add_up_together([loss, *known, should_stop])
        self.stop_requests = stop_requests[0]
        in_turn = iter(sums)
        totals = [None if g is None else next(in_turn) for g in gradients]
        return total_loss, totals

    def all_should_stop(self) -> bool:
        """Whether all ranks stop here, because one was asked to before its last step."""
        if self.size == 1:
            return self.should_stop()
        return bool(self.stop_requests)

    def gather(self, rows: Array) -> Array:
        """The rows of all ranks."""
        if self.size == 1:
            return rows
        return array_module(rows).concatenate(self.comm.allgather(rows))

    def from_first(self, work: Callable[[], T]) -> T:
        """What the work on the first rank returns, or raises, on all ranks."""
        if self.size == 1:
            return work()
        result: Any = None
        error: Exception | None = None
        if self.first:
            try:
                result = work()
            except Exception as raised:
                error = raised
        result, error = self.comm.bcast((result, error))
        if error is not None:
            raise error
        return result

    def check_same(self, what: str, value: str) -> None:
        """Refuse to go on unless this is the same on all ranks."""
        if self.size == 1:
            return
        values = self.comm.allgather(value)
        for rank, theirs in enumerate(values):
            if theirs != values[0]:
                raise StateError(
                    f"other {what} on rank {rank} than on rank 0",
                    "all ranks train the same network with the same images",
                    "the same data and versions, and processors of one kind, for all ranks",
                )


class RankPart:
    """One rank's share of a batch with this number of samples."""

    def __init__(self, ranks: Ranks, samples: int):
        self.ranks = ranks
        self.samples = samples
        self.first = ranks.first

    def add_up(self, numbers: Any) -> Any:
        return self.ranks.add_up(numbers)

    def in_batch(self, shape: Shape) -> tuple[Shape, Any]:
        share = self.ranks.share(self.samples)
        has_batch_axis = shape[:1] == (share.stop - share.start,)
        if not has_batch_axis:
            return shape, ...
        return (self.samples, *shape[1:]), share


@contextmanager
def world(backend: str = "numpy") -> Iterator[Ranks]:
    """The processes that mpiexec started, one device for each on a GPU; without mpiexec, one alone.

    An error that all ranks meet is left to the first one. After an error of one rank, or its death,
    the job ends."""
    started = max(int(os.environ.get(name, 1)) for name in SIZES)
    if started == 1:
        yield Ranks()
        return
    ranks = _connect(started)
    meeting = ranks.comm.Dup()
    try:
        if backend == "cupy":
            _use_device(ranks)
        with watched(ranks.comm), blas_threads(ranks.cores):
            yield ranks
    except BaseException as error:
        # the others are gone, or have no error
        if _is_of_mpi(error) or not _all_arrive(meeting):
            reason = str(error) or type(error).__name__
            print(f"tinyprop: on rank {ranks.rank}: {reason}", file=sys.stderr, flush=True)
            ranks.comm.Abort(1)
            os._exit(1)  # Abort may return before mpiexec ends this process
        if not ranks.first:
            # as the first one: mpiexec joins the exit statuses of all
            raise SystemExit(2 if isinstance(error, ArgumentError) else 1) from None
        raise


def _is_of_mpi(error: BaseException) -> bool:
    from mpi4py import MPI

    return isinstance(error, MPI.Exception)


def _all_arrive(meeting: Any) -> bool:
    """Whether all ranks call this within the time that a rank with an error waits."""
    barrier = meeting.Ibarrier()
    deadline = time.monotonic() + PATIENCE
    while not barrier.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def watched(comm: Any) -> Iterator[None]:
    """Print a line if any rank is killed inside the block. mpiexec gives the survivors no time to
    do so; therefore the first rank starts a process that waits for a word, and prints the line if
    its input ends without one. (After a failure inside of MPI, mpiexec may end before it has passed
    the line on; then only a job that `launch` started is sure to show it.)"""
    is_watching = comm.rank == 0 and comm.size > 1
    if not is_watching:
        yield
        return
    command = ["/bin/sh", "-c", 'read word || echo "$0" >&2', LOST]
    watcher = subprocess.Popen(  # nosec B603
        command, stdin=subprocess.PIPE, stderr=_stderr_of_launcher(), start_new_session=True
    )
    word = b"all is well\n"
    try:
        yield
    except BaseException as error:
        if _is_of_mpi(error):  # a message to a rank that is lost may fail before mpiexec acts
            word = b""
        raise
    finally:
        watcher.communicate(word)


def with_stderr() -> dict[str, str]:
    """The environment for a program that starts ranks: these can write to the standard error of
    this process, even when that program has ended."""
    descriptor = os.dup(2)
    os.set_inheritable(descriptor, True)
    what = os.fstat(descriptor)
    return {**os.environ, LAUNCHER_STDERR: f"{descriptor} {what.st_dev} {what.st_ino}"}


def _stderr_of_launcher() -> int | None:
    """The descriptor that `with_stderr` made; None without one, or where it was closed on the
    way."""
    kept = os.environ.get(LAUNCHER_STDERR)
    if kept is None:
        return None
    descriptor, *identity = (int(word) for word in kept.split())
    try:
        what = os.fstat(descriptor)
    except OSError:
        return None
    return descriptor if [what.st_dev, what.st_ino] == identity else None


def _connect(started: int) -> Ranks:
    try:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        if comm.size != started:
            library = MPI.Get_library_version().splitlines()[0]
            raise RuntimeError(f"{library} finds {comm.size} of them")
    except (ImportError, RuntimeError) as error:
        raise StateError(
            f"{started} processes that cannot reach each other ({error})",
            "mpi4py and mpiexec belong to the same MPI",
            "pip install 'tinyprop[mpi]', and the mpiexec that it installs",
        ) from None
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    return Ranks(comm, machine.size, machine.rank)


def _use_device(ranks: Ranks) -> None:
    cupy = load_module("cupy")
    devices = cupy.cuda.runtime.getDeviceCount()
    if ranks.here > devices:
        raise StateError(
            f"{ranks.here} ranks on a machine with {devices} devices",
            "a rank has a device of its own",
            "fewer ranks",
        )
    from cupyx.distributed import init_process_group

    cupy.cuda.Device(ranks.place).use()
    ranks.nccl = init_process_group(ranks.size, ranks.rank, use_mpi=True)
