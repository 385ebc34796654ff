"""Claims, settled: the exact value, a Monte-Carlo estimate with its error bar, and a verdict. Those
of the paper and 30 of other papers on normalisation are here; yours enter by the same decorator.

>>> [(r.id, r.verdict) for r in tp.verify.run(["C06", "C26"])]
[('C06', 'holds'), ('C26', 'holds')]
"""

from importlib import import_module

from ..report.estimate import Estimate
from .case import Case, as_derived, at_least, at_most, beside, claimed, judge, other_than
from .ledger import Claim, claim, claims, unregister
from .limits import Limit, infinite_width
from .monte_carlo import Sampler, Tally, each
from .settling import Result, run

FILES = "canonical depth init jacobian moment normalizer pooling residual training"

for name in FILES.split():
    import_module(f".{name}_claims", __package__)  # which enters our claims

__all__ = [
    "Case",
    "Claim",
    "Estimate",
    "Limit",
    "Result",
    "Sampler",
    "Tally",
    "as_derived",
    "at_least",
    "at_most",
    "beside",
    "claim",
    "claimed",
    "claims",
    "each",
    "infinite_width",
    "judge",
    "other_than",
    "run",
    "unregister",
]
