"""The kinds of cases, each a module with a function `draw`."""

from collections.abc import Callable
from dataclasses import dataclass

from . import (
    accuracy,
    convolutions,
    copies,
    derivatives,
    laws,
    losses,
    moments,
    normalizers,
    optimizers,
    pools,
    programs,
    propagation,
    resuming,
    threads,
)
from .case import Case, Random


@dataclass(frozen=True)
class Kind:
    name: str
    draw: Callable[[Random], Case]
    cases: int  # in `make test`
    quick: int = 0  # in `make check`, where PyTorch, which takes seconds to load, is not used
    needs_torch: bool = True


# All together, these numbers of cases take about 30 s of one core, and the quick ones 2 s.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("programs", programs.draw, cases=1500),
        Kind("accuracy", accuracy.draw, cases=80),
        Kind("convolutions", convolutions.draw, cases=300),
        Kind("pools", pools.draw, cases=300),
        Kind("losses", losses.draw, cases=300),
        Kind("normalizers", normalizers.draw, cases=300),
        Kind("optimizers", optimizers.draw, cases=150),
        Kind("derivatives", derivatives.draw, cases=150),
        Kind("threads", threads.draw, cases=60, quick=10, needs_torch=False),
        Kind("copies", copies.draw, cases=60, quick=10, needs_torch=False),
        Kind("resuming", resuming.draw, cases=4, needs_torch=False),
        Kind("propagation", propagation.draw, cases=30, quick=5, needs_torch=False),
        Kind("laws", laws.draw, cases=8, needs_torch=False),
        Kind("moments", moments.draw, cases=200, quick=40, needs_torch=False),
    )
}
