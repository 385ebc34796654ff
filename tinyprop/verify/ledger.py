"""The ledger of claims, and running them."""

from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Executor
from functools import partial
from importlib import import_module

from ..engine.arrays import default_backend, use_backend
from ..engine.errors import explain
from ..engine.random import generator, manual_seed
from ..engine.threads import blas_threads
from ..parallel.executors import should_stop
from .claim import (
    APPROXIMATE,
    DOES_NOT_HOLD,
    EMPIRICAL,
    HOLDS,
    IN_EXPECTATION,
    LEDGER,
    Claim,
    Result,
    Results,
)
from .monte_carlo import Sampler

for name in (
    "canonical",
    "depth",
    "init",
    "jacobian",
    "moment",
    "normalizer",
    "pooling",
    "residual",
    "training",
):
    import_module(f".{name}_claims", __package__)  # which enters its claims

FAMILIES = ("normprop", "batchnorm", "layernorm", "init", "residual", "dyt")
NOT_TRUE = {
    DOES_NOT_HOLD: ("C08 C09 C10 C15 C17 C18 C21 C23 C24 C33 C39 C41 N03 N11 N14 N21 N28 N30"),
    IN_EXPECTATION: "C11 C14 C16 C19 N09 N24 N27",
    APPROXIMATE: "C13 C20 C37 N04 N26",
    EMPIRICAL: "C27 C28 C34 C38 C42 C43 C44",
}
EXPECTED = dict.fromkeys(LEDGER, HOLDS) | {
    id: verdict for verdict, ids in NOT_TRUE.items() for id in ids.split()
}


def claims(family: str = "normprop") -> list[Claim]:
    """The claims of a family. "normprop": C01 to C45 of the paper, and G1 to G6 beyond it. The
    others, N01 to N30, are what other papers say of "batchnorm", "layernorm", "init"
    (initialisations, and what is done to weights), "residual" networks, and "dyt" (dynamic tanh);
    "all" is all of them.

    >>> [claim.id for claim in tp.verify.claims()][:3]
    ['C01', 'C02', 'C03']
    >>> [claim.id for claim in tp.verify.claims("dyt")]
    ['N28', 'N29']
    """
    if family not in (*FAMILIES, "all"):
        raise ValueError(
            explain(
                f"no family {family!r}",
                f"it is one of {', '.join(FAMILIES)}, or all",
                "'batchnorm'",
            )
        )
    return [LEDGER[id] for id in sorted(LEDGER) if family in (LEDGER[id].family, "all")]


def chosen(ids: Collection[str] | None, family: str | None = None) -> list[Claim]:
    """The claims of these ids, or else of this family, in the order of the ledger."""
    if ids is None:
        return claims(family or "normprop")
    if family is not None:
        raise ValueError(
            explain(
                f"{len(ids)} ids and family {family!r}", "ids or a family, not both", "ids=None"
            )
        )
    wanted = {id.upper() for id in ids}
    unknown = sorted(wanted - LEDGER.keys())
    if unknown:
        rule = "ids are C01 to C45, G1 to G6 and N01 to N30"
        raise ValueError(explain(f"no claim {unknown[0]!r}", rule, "tp.verify.claims('all')"))
    return [claim for claim in claims("all") if claim.id in wanted]


def run(
    ids: Collection[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    backend: str | None = None,
    executor: Executor | None = None,
    until: float | None = None,
    threads: int | None = None,
    progress: Callable[[str, float], None] = lambda id, fraction: None,
    family: str | None = None,
) -> Results:
    """Settle the claims of these ids, or of a family: see `claims`.

    `samples` is the number of plain samples for each estimate; a random network counts for many, by
    its cost, and a few are always drawn. `until` is a standard error to reach instead. The answer
    depends on the seed only, not on the number of threads, nor on the `executor` of
    concurrent.futures that settles the claims side by side, if one is given. `progress` is called
    with the claim at work and the fraction of its samples that is done.

    >>> (result,) = tp.verify.run(["C01"], samples=10_000)
    >>> result.verdict, round(result.exact, 6), result.estimate.n
    ('holds', 0.398942, 10000)
    """
    backend = backend or default_backend()
    picked = chosen(ids, family)
    threads = threads if backend == "numpy" and executor is None else 1  # a GPU takes one thread
    settle = partial(
        settled, samples=samples, until=until, seed=seed, backend=backend, threads=threads
    )
    if executor is None:
        return Results(settle(claim.id, progress=progress) for claim in picked)
    results = Results()
    for result in executor.map(settle, [claim.id for claim in picked]):
        progress(result.id, 1.0)
        results.append(result)
    return results


def go_on_if_wanted(id: str, fraction: float) -> None:
    """The progress of a claim that another process settles."""
    if should_stop():
        raise CancelledError(f"{id} was stopped")


def settled(
    id: str,
    samples: int | None,
    until: float | None,
    seed: int,
    backend: str,
    threads: int | None,
    progress: Callable[[str, float], None] = go_on_if_wanted,
) -> Result:
    """A settled claim: one piece of work, for any process."""
    before = generator().bit_generator.state
    sampler = Sampler(samples, until, seed, threads, partial(progress, id))
    try:
        # the same bits whatever the cores, and whoever else computes
        with use_backend(backend), blas_threads(1):
            sampler.progress(0.0)
            manual_seed(seed)  # so that no claim depends on those before it
            return LEDGER[id].settle(sampler, EXPECTED[id])
    finally:  # the generator of weights and masks goes on as if nothing had been drawn from it
        manual_seed(0)
        generator().bit_generator.state = before
