"""What networks of two widths say of an infinitely wide one."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..report.estimate import Estimate
from .monte_carlo import Tally


@dataclass(frozen=True)
class Limit:
    """An estimate for infinite width, and the size of what the extrapolation neglects.

    >>> limit = tp.verify.Limit(tp.verify.Estimate(1.0, 0.01, 50), neglected=0.002)
    >>> round(tp.verify.claimed("a gain", 1.0, exact=1.0, measured=limit).tolerance, 3)
    0.002
    """

    estimate: Estimate
    neglected: float


def infinite_width(
    by_width: Mapping[int, Estimate], order: float = 1.0, neglected: float | None = None
) -> Limit:
    """The limit of estimates at two widths n, if they are limit + a/n^order up to smaller terms.

    What is neglected is taken as the correction of the larger width times that of the smaller one,
    relatively: terms of the order (a/n^order)^2. Where the next order is another one, `neglected`
    says how large it is, relative to the limit.

    >>> low, high = (tp.verify.Estimate(1.0 + 1.0 / n, 0.0, 9) for n in (10, 40))
    >>> limit = tp.verify.infinite_width({10: low, 40: high})
    >>> round(limit.estimate.mean, 9), round(limit.neglected, 9)
    (1.0, 0.0025)
    """
    (small, first), (large, second) = sorted(by_width.items())
    ratio = (large / small) ** order
    weight = ratio / (ratio - 1.0)  # of the larger width; 1 - weight of the smaller one
    limit = weight * second.mean + (1.0 - weight) * first.mean
    variances = [
        (weight * second.standard_error) ** 2,
        ((1.0 - weight) * first.standard_error) ** 2,
    ]
    total = sum(variances)
    n = 1
    if total:
        # degrees of freedom by Welch and Satterthwaite
        counts = (second.n, first.n)
        parts = [v * v / max(1, n - 1) for v, n in zip(variances, counts, strict=True)]
        n = int(total * total / sum(parts)) + 1
    found = Estimate.from_error(limit, total**0.5, n)
    if neglected is not None:
        return Limit(found, neglected * abs(limit))
    small_correction = abs(first.mean - limit)
    large_correction = abs(second.mean - limit)
    if limit == 0.0:
        return Limit(found, large_correction)
    return Limit(found, large_correction * small_correction / abs(limit))


def limit_of(tallies: Mapping[int, Tally], quantity: str, power: float = 1.0) -> Limit:
    """The limit of the mean of a quantity, or of a power of it, from tallies at two widths.

    >>> low, high = (tp.verify.Tally.of({"gain": [1.0 + 1.0 / n] * 9}) for n in (10, 40))
    >>> round(limit_of({10: low, 40: high}, "gain").estimate.mean, 9)
    1.0
    """
    return infinite_width({width: tally.power(power, quantity) for width, tally in tallies.items()})
