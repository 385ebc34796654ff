"""Every claim of the paper, and 30 of other papers on normalisation, settled: the exact value, a
Monte-Carlo estimate with its error bar, and a verdict.

>>> [(r.id, r.verdict) for r in tp.verify.run(["C06", "C26"])]
[('C06', 'holds'), ('C26', 'holds')]
"""

from ..report.estimate import Estimate
from .claim import Case, Claim, Result, judge
from .ledger import claims, run
from .monte_carlo import Sampler, Tally

__all__ = ["Case", "Claim", "Estimate", "Result", "Sampler", "Tally", "claims", "judge", "run"]
