"""The kinds of cases, each a module with a function `draw`."""

from collections.abc import Callable
from dataclasses import dataclass

from . import (
    accuracy,
    convolutions,
    copies,
    derivatives,
    dtypes,
    kinks,
    laws,
    losses,
    moments,
    normalizers,
    optimizers,
    pools,
    programs,
    propagation,
    resuming,
    signals,
    threads,
)
from .case import Case, Random


@dataclass(frozen=True)
class Kind:
    name: str
    what: str  # is compared with what
    draw: Callable[[Random], Case]
    cases: int  # in `make test`
    quick: int = 0  # in `make check`, where PyTorch, which takes seconds to load, is not used
    needs_torch: bool = True


# All together, these numbers of cases take about 30 s of one core, and the quick ones 2 s.
WITH_TORCH = (
    Kind(
        "programs",
        "random programs of functions of the table, with first and second gradients",
        programs.draw,
        cases=1500,
    ),
    Kind("kinks", "functions at their kinks, and ties", kinks.draw, cases=200),
    Kind(
        "accuracy",
        "up to a million rows, offsets and outliers, in float32 and float16",
        accuracy.draw,
        cases=80,
    ),
    Kind("convolutions", "conv2d: windows, groups, layouts", convolutions.draw, cases=300),
    Kind("pools", "max_pool2d and avg_pool2d: windows, borders, layouts", pools.draw, cases=300),
    Kind("losses", "losses: reductions, ignored labels, smoothing", losses.draw, cases=300),
    Kind("normalizers", "normalisers, weight_norm and normprop", normalizers.draw, cases=300),
    Kind("optimizers", "several steps of an optimizer, and schedules", optimizers.draw, cases=150),
    Kind("derivatives", "jacobian, hessian, jvp, and nested ones", derivatives.draw, cases=150),
)
WITHOUT_TORCH = (
    Kind(
        "dtypes",
        "functions of integers, masks and float16: the dtypes of the table, values of float64",
        dtypes.draw,
        cases=1000,
        quick=200,
        needs_torch=False,
    ),
    Kind(
        "threads",
        "training steps on 1, 2 and 3 threads, and with the same seed: the same bits",
        threads.draw,
        cases=30,
        quick=5,
        needs_torch=False,
    ),
    Kind(
        "copies",
        "networks that are copied, pickled, saved and loaded: the same bits",
        copies.draw,
        cases=60,
        quick=10,
        needs_torch=False,
    ),
    Kind(
        "signals",
        "nn.signals, with the outputs of one layer after the other",
        signals.draw,
        cases=30,
        quick=5,
        needs_torch=False,
    ),
    Kind(
        "resuming",
        "runs that are stopped and resumed: the same bits as without a stop",
        resuming.draw,
        cases=8,
        needs_torch=False,
    ),
    Kind(
        "propagation",
        "tp.propagate with given weights, with a simulation",
        propagation.draw,
        cases=30,
        quick=5,
        needs_torch=False,
    ),
    Kind(
        "laws",
        "tp.propagate with random weights, with the average of 100 networks",
        laws.draw,
        cases=6,
        needs_torch=False,
    ),
    Kind(
        "moments",
        "Gaussian moments, their gradients, duals and simulations, with another quadrature",
        moments.draw,
        cases=200,
        quick=40,
        needs_torch=False,
    ),
)
KINDS = {kind.name: kind for kind in (*WITH_TORCH, *WITHOUT_TORCH)}
