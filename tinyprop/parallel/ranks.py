"""Processes that train one network together: each computes its share of every batch, and all hold
the same weights."""

import os
import subprocess  # nosec B404
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from ..engine.arrays import Array, array_module, is_device_array, is_host_array, load_module
from ..engine.errors import StateError
from ..engine.threads import Part, Shape, blas_threads, cores, sharing

T = TypeVar("T")

PATIENCE = 2.0  # seconds that a rank with an error waits for the others to meet it, too
# how many processes mpiexec started: MPICH (and Slurm), Open MPI
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
LOST = (
    "tinyprop: a rank was lost, and the others were stopped; what is saved can be resumed, on "
    "any number of ranks"
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
        # how many ranks this machine has, and which this one is
        self.comm, self.here, self.place = comm, here, place
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self.nccl: Any = None  # carries arrays on devices
        self.asked: Callable[[], bool] = lambda: False  # whether this rank shall stop
        self.flag: Any = 0  # how many ranks were asked to, when the last step ended

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def cores(self) -> int:
        return max(1, cores() // self.here)

    def share(self, samples: int) -> slice:
        """This rank's share of the samples. If there are fewer samples than ranks, the last ranks
        have none."""
        return slice(
            -(-samples * self.rank // self.size), -(-samples * (self.rank + 1) // self.size)
        )

    def sharing(self, samples: int) -> AbstractContextManager[None]:
        """Inside the block, sums over the batch go over all ranks."""
        return sharing(RankPart(self, samples) if self.size > 1 else None)

    def add_up(self, numbers: Any) -> Any:
        """The sum of a number or an array over all ranks."""
        if self.size == 1:
            return numbers
        array = numbers if is_device_array(numbers) else np.asarray(numbers)
        xp = array_module(array)
        # a row for each rank
        sent = xp.zeros((self.size, -(-array.size // self.size)), array.dtype)
        sent.reshape(-1)[: array.size] = array.reshape(-1)
        received = xp.empty_like(sent)
        if is_host_array(array):
            self.comm.Alltoall(sent, received)
            self.comm.Allgather(reduce(add, received), sent)
        else:
            self.nccl.all_to_all(sent, received)
            self.nccl.all_gather(reduce(add, received), sent, sent.shape[1])
        return sent.reshape(-1)[: array.size].reshape(array.shape)[()]

    def total(self, loss: Array, gradients: list[Array | None]) -> tuple[Array, list[Array | None]]:
        """The sums of the loss and of each gradient, which travel together with the wish to
        stop."""
        if self.size == 1:
            return loss, gradients
        given = [g for g in gradients if g is not None]
        xp = array_module(loss)
        pieces = [
            xp.reshape(loss, 1),
            *(g.reshape(-1) for g in given),
            xp.full(1, self.asked(), loss.dtype),
        ]
        sums = iter(
            xp.split(
                self.add_up(xp.concatenate(pieces)),
                np.cumsum([p.size for p in pieces])[:-1].tolist(),
            )
        )
        loss = next(sums).reshape(())
        totals = [
            None if g is None else next(sums).reshape(g.shape).astype(g.dtype, copy=False)
            for g in gradients
        ]
        self.flag = next(sums)[0]
        return loss, totals

    def stopping(self) -> bool:
        """Whether all ranks stop here, because one was asked to before its last step."""
        return self.asked() if self.size == 1 else bool(self.flag)

    def gather(self, rows: Array) -> Array:
        """The rows of all ranks."""
        return rows if self.size == 1 else array_module(rows).concatenate(self.comm.allgather(rows))

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
        every = [value] if self.size == 1 else self.comm.allgather(value)
        if others := [rank for rank, theirs in enumerate(every) if theirs != every[0]]:
            raise StateError(
                f"other {what} on rank {others[0]} than on rank 0",
                "all ranks train the same network with the same images",
                "the same data and versions, and processors of one kind, for all ranks",
            )


class RankPart(Part):
    """One rank's share of a batch with this number of samples."""

    def __init__(self, ranks: Ranks, samples: int):
        self.ranks, self.samples = ranks, samples
        self.place, self.first = 0, ranks.first

    def add_up(self, numbers: Any) -> Any:
        return self.ranks.add_up(numbers)

    def in_batch(self, shape: Shape) -> tuple[Shape, Any]:
        share = self.ranks.share(self.samples)
        mine = shape[:1] == (share.stop - share.start,)
        return ((self.samples, *shape[1:]), share) if mine else (shape, ...)


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
        met, deadline = meeting.Ibarrier(), time.monotonic() + PATIENCE
        while not met.Test() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not met.Test():
            print(
                f"tinyprop: on rank {ranks.rank}: {str(error) or type(error).__name__}",
                file=sys.stderr,
                flush=True,
            )
            ranks.comm.Abort(1)
            os._exit(1)  # it may return before mpiexec ends this process, too
        if not ranks.first:
            raise SystemExit(1) from None
        raise


@contextmanager
def watched(comm: Any) -> Iterator[None]:
    """Say so if this rank is killed, or another one is: mpiexec gives the survivors no time to say
    anything, so a process of its own, which waits for a word, does."""
    if comm.rank or comm.size == 1:
        yield
        return
    command = ["/bin/sh", "-c", 'read word || echo "$0" >&2', LOST]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # nosec B603
    try:
        yield
    finally:
        watcher.communicate(b"all is well\n")


def _connect(started: int) -> Ranks:
    try:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        if comm.size != started:
            raise RuntimeError(
                f"{MPI.Get_library_version().split(chr(10))[0]} finds {comm.size} of them"
            )
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
    if ranks.here > (devices := cupy.cuda.runtime.getDeviceCount()):
        raise StateError(
            f"{ranks.here} ranks on a machine with {devices} devices",
            "a rank has a device of its own",
            "fewer ranks",
        )
    from cupyx.distributed import init_process_group

    cupy.cuda.Device(ranks.place).use()
    ranks.nccl = init_process_group(ranks.size, ranks.rank, use_mpi=True)
