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
    quick: int  # cases in `make check`
    cases: int  # cases in `make test`
    needs_torch: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        Kind("programs", programs.draw, quick=10, cases=300),
        Kind("accuracy", accuracy.draw, quick=2, cases=40),
        Kind("convolutions", convolutions.draw, quick=5, cases=100),
        Kind("pools", pools.draw, quick=10, cases=200),
        Kind("losses", losses.draw, quick=10, cases=200),
        Kind("normalizers", normalizers.draw, quick=10, cases=200),
        Kind("optimizers", optimizers.draw, quick=5, cases=100),
        Kind("derivatives", derivatives.draw, quick=5, cases=100),
        Kind("threads", threads.draw, quick=1, cases=10, needs_torch=False),
        Kind("copies", copies.draw, quick=2, cases=20, needs_torch=False),
        Kind("resuming", resuming.draw, quick=0, cases=2, needs_torch=False),
        Kind("propagation", propagation.draw, quick=1, cases=10, needs_torch=False),
        Kind("laws", laws.draw, quick=0, cases=4, needs_torch=False),
        Kind("moments", moments.draw, quick=5, cases=50, needs_torch=False),
    )
}
