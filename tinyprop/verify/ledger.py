"""The ledger of claims, and running them."""

from collections.abc import Callable, Collection
from functools import partial

from ..engine.arrays import default_backend, use_backend
from ..engine.errors import explain
from ..random import generator, manual_seed
from . import (  # noqa: F401  each of these enters its claims
    canonical_claims,
    depth_claims,
    general_claims,
    jacobian_claims,
    moment_claims,
    pooling_claims,
    training_claims,
)
from .claim import LEDGER, Claim, Result
from .expected import EXPECTED
from .monte_carlo import Sampler


def claims() -> list[Claim]:
    """Every claim of the ledger: C01 to C45 of the paper, and G1 to G6 beyond it.

    >>> [claim.id for claim in tp.verify.claims()][:3]
    ['C01', 'C02', 'C03']
    """
    return [LEDGER[id] for id in sorted(LEDGER)]


def chosen(ids: Collection[str] | None) -> list[Claim]:
    """The claims of these ids, in the order of the ledger; all of them for None."""
    if ids is None:
        return claims()
    wanted = {id.upper() for id in ids}
    unknown = sorted(wanted - LEDGER.keys())
    if unknown:
        raise ValueError(explain(f"no claim {unknown[0]!r}", "ids are C01 to C45 and G1 to G6", "tp.verify.claims()"))
    return [claim for claim in claims() if claim.id in wanted]


def run(
    ids: Collection[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    backend: str | None = None,
    until: float | None = None,
    threads: int | None = None,
    progress: Callable[[str, float], None] = lambda id, fraction: None,
) -> list[Result]:
    """Settle the claims of these ids, or all of them.

    `samples` is the number of plain samples for each estimate; a random network counts for many, by its cost, and a few
    are always drawn. `until` is a standard error to reach instead. The answer depends on the seed only, not on the
    number of threads. `progress` is called with the claim at work and the fraction of its samples that is done.

    >>> (result,) = tp.verify.run(["C01"], samples=10_000)
    >>> result.verdict, round(result.exact, 6), result.estimate.n
    ('holds', 0.398942, 10000)
    """
    backend = backend or default_backend()
    picked = chosen(ids)
    sampler = Sampler(samples, until, seed, threads if backend == "numpy" else 1)  # a GPU takes one thread
    results = []
    before = generator().bit_generator.state
    try:
        with use_backend(backend):
            for claim in picked:
                sampler.progress = partial(progress, claim.id)
                sampler.progress(0.0)
                manual_seed(seed)  # so that no claim depends on those before it
                results.append(claim.settle(sampler, EXPECTED[claim.id]))
    finally:  # the generator of weights and masks goes on as if nothing had been drawn from it
        manual_seed(0)
        generator().bit_generator.state = before
    return results
