"""What each rank of the tests does: train networks of all kinds, and save what it holds. As a
program, under mpiexec:

mpiexec -n 3 python -m tests.parallel.rank_program FOLDER THREADS
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import tinyprop as tp
from tinyprop import functional as F
from tinyprop import nn
from tinyprop.train import Ranks, TrainingStep, evaluate

SPEC = "C(8,3,1,1)-P(2,2,0,max)-C(8,3,1,1)-C(4,1,1,0)-P(4,4,0,avg)"
SIZES = (7, 7, 2, 9, 5)  # of batches: uneven shares, and fewer samples than ranks
STEPS = 20
KINDS = {
    "normprop": {"norm": "normprop"},
    "measured": {"norm": "normprop-measured", "fixed": 6},
    "batchnorm": {"norm": "batch", "data_norm": True},
    "dropout": {"norm": "layer", "dropout": True},
    "own loss": {"norm": "none", "loss": F.mse_loss},
    "ignored labels": {"norm": "normprop", "ignored": True},
    "dense": {"dense": True},
    "float32": {"norm": "normprop", "dtype": "float32"},
}


def layers(norm, data_norm, dropout, dense):
    if dense:
        return [nn.Flatten(), nn.NormPropLinear(192, 16), nn.Linear(16, 4)]
    first = [tp.data.BatchNormalizer((3, 8, 8))] if data_norm else []
    return [*first, *nn.build(SPEC, norm=norm), *([nn.Dropout(0.3)] if dropout else [])]


def train(
    ranks,
    threads,
    norm="normprop",
    data_norm=False,
    dropout=False,
    dense=False,
    ignored=False,
    fixed=0,
    dtype="float64",
    loss=F.cross_entropy,
):
    """The losses of each step, the evaluation, and the state."""
    rng = np.random.default_rng(1)
    tp.manual_seed(0)
    net = nn.Sequential(*layers(norm, data_norm, dropout, dense)).to(dtype=dtype)
    optimizer = tp.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.001)
    step = TrainingStep(net, optimizer, loss, threads, ranks=ranks)
    losses = []
    for i in range(STEPS):
        if fixed and i % 5 == 0:
            nn.refresh(net, np.random.default_rng(2).normal(size=(fixed, 3, 8, 8)).astype(dtype))
        size = SIZES[i % len(SIZES)]
        x = rng.normal(size=(size, 3, 8, 8)).astype(dtype)
        labels = rng.integers(0, 4, size)
        if ignored:
            labels[1:3] = -100
        if loss is F.mse_loss:
            labels = rng.normal(size=(len(x), 4)).astype(dtype)
        losses.append(float(step(x, labels)))
    images = rng.normal(size=(3, 3, 8, 8)).astype(dtype)
    losses += evaluate(net, images, np.array([0, 1, 2]), threads, ranks)
    return {"losses": np.array(losses), **net.state_dict()}


class ThreadComm:
    """What tinyprop uses of an MPI communicator (and of NCCL's), among threads."""

    def __init__(self, rank, slots, barrier):
        self.rank = rank
        self.size = len(slots)
        self.slots = slots
        self.barrier = barrier

    def allgather(self, value):
        self.slots[self.rank] = value
        self.barrier.wait(60)
        every = list(self.slots)
        self.barrier.wait(60)
        return every

    def bcast(self, value):
        return self.allgather(value)[0]

    def Alltoall(self, sent, received):
        for row, theirs in zip(received, self.allgather(sent.copy()), strict=True):
            row[...] = theirs[self.rank]

    def Allgather(self, sent, received):
        for row, theirs in zip(received, self.allgather(sent), strict=True):
            row[...] = theirs

    all_to_all = Alltoall

    def all_gather(self, sent, received, count):
        assert sent.size == count
        self.Allgather(sent, received)


def on_threads(size, work):
    """The results of work(ranks) on this many ranks, each a thread."""
    slots = [None] * size
    barrier = threading.Barrier(size)

    def rank(number):
        ranks = Ranks(ThreadComm(number, slots, barrier), here=size)
        ranks.nccl = ranks.comm
        try:
            return work(ranks)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(rank, number) for number in range(size)]
    errors = list(filter(None, [run.exception() for run in runs]))
    if errors:
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [run.result() for run in runs]


def main(folder, threads):
    from mpi4py import MPI

    ranks = Ranks(MPI.COMM_WORLD)
    for name, kind in KINDS.items():
        np.savez(Path(folder) / f"{name}-{ranks.rank}.npz", **train(ranks, int(threads), **kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
