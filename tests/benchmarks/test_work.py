"""Counted work is the work that is done: the stand-in for CuPy sees every matrix product and every kernel."""

import sys
from collections import Counter

import numpy as np
import pytest

import tinyprop as tp
from benchmarks.work import gradient, step_work
from tests import standin
from tests.conftest import needs_overrides
from tinyprop import nn
from tinyprop.kernels import cuda
from tinyprop.train import TrainingStep

IMAGES = (8, 3, 32, 32)
WIDTH = 0.25  # wide enough for the convolutions to be done as in the full network
PRODUCTS = ("Convolve", gradient("Convolve"))
SMALL = ("cross_entropy", "batch_statistics")  # kernels with a few numbers for each image or channel


def updated(table):
    """The bytes of parameters and means, read and written, and of gradients: rows (w, g, mean, square, end)."""
    each = 2 * (table[:, [0, 2, 3]] != 0).sum(axis=1) + 1
    return 4 * (each * np.diff(table[:, 4], prepend=0)).sum()


TABLES = {"update": updated}


def done(norm, monkeypatch):
    """FLOPs and bytes of the matrix products of a step, and bytes of the arrays of every kernel, by name."""
    seen = Counter()

    def seen_product(multiply):
        def product(a, b, **rest):
            result = multiply(a, b, **rest)
            seen["flops"] += 2 * result.size * a.shape[-1]
            seen["bytes"] += a.nbytes + b.nbytes + result.nbytes
            return result

        return product

    def seen_kernel(kernel, blocks, threads, arguments):
        name = kernel.name.partition("<")[0]
        seen[name] += sum(a.nbytes for a in arguments if isinstance(a, standin.ndarray))
        if name in TABLES:  # whose arrays are addresses in a table
            seen[name] += TABLES[name](np.frombuffer(arguments[0].tobytes(), np.int64).reshape(cuda.TABLE, -1))

    with standin.installed(kernels=True):
        monkeypatch.setattr(standin.Kernel, "__call__", seen_kernel)
        monkeypatch.setattr(standin.ndarray, "__matmul__", seen_product(standin.ndarray.__matmul__))
        monkeypatch.setattr(sys.modules["cupy"], "matmul", seen_product(sys.modules["cupy"].matmul))
        net = nn.build(nn.NIN, norm=norm, width=WIDTH)
        step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1))
        step(np.ones(IMAGES, np.float32), np.zeros(8, int))
    return net, seen


@needs_overrides
@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_every_product_and_every_array_is_counted(norm, monkeypatch):
    net, seen = done(norm, monkeypatch)
    work = step_work(net, IMAGES)
    products = [work[op] for op in PRODUCTS]
    assert sum(w.flops for w in products) == seen["flops"]
    copies = 2 * 4 * (8 * 3 * (32**2 + 2 * 36**2) + 8 * 32**2 * 75)  # to rows, for the first layer, there and back
    assert sum(w.bytes for w in products) == seen["bytes"] + copies
    kernels = {name: w for name, w in work.items() if name[0].islower()}
    assert len(kernels) >= 4
    assert {name for name in seen if name not in ("flops", "bytes", *SMALL)} == kernels.keys()
    for name, w in kernels.items():  # what is one number for each channel is not counted
        assert w.bytes == pytest.approx(seen[name], rel=0.05), name


def test_without_tiles_it_is_the_arithmetic_of_textbooks():
    """Each weight meets each place of its window once forwards and twice backwards, but once in the first layer."""
    net = nn.build("C(64,3,1,1)-P(2,2,0,max)-C(32,3,1,1)-C(10,1,1,0)-P(4,4,0,avg)")
    forwards = [2 * 5 * places * weights for places, weights in [(64, 64 * 3 * 9), (16, 32 * 64 * 9), (16, 320)]]
    work = step_work(net, (5, 3, 8, 8), exact=True)
    assert sum(work[op].flops for op in PRODUCTS) == 3 * sum(forwards) - forwards[0]
