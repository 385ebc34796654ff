"""An estimate and its error bar: the one form of "mean ± something"."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..engine.arrays import HostArray
from ..moments.quadrature import gauss_legendre

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean of n independent values, and half the width of its 95 % confidence interval (Student's
    t).

    >>> estimate = Estimate.of([1.0, 2.0, 3.0])
    >>> print(estimate)
    2.0 ± 2.5
    >>> f"{estimate:+.2f}"
    '+2.00 ± 2.48'
    """

    mean: float
    # infinite for a single value, 0 for a number that nothing is left to chance in
    half_width: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From the values themselves."""
        n = len(values)
        if not all(map(math.isfinite, values)):
            return cls(math.nan, math.inf, n)
        if n < 2:
            return cls(values[0] if n else math.nan, math.inf, n)
        return cls.from_error(statistics.fmean(values), statistics.stdev(values) / math.sqrt(n), n)

    @classmethod
    def from_error(cls, mean: float, standard_error: float, n: int) -> "Estimate":
        return cls(
            mean, standard_error * student_quantile(CONFIDENCE, n - 1) if standard_error else 0.0, n
        )

    @classmethod
    def crossed(cls, values: HostArray) -> "Estimate":
        """The mean of values (seeds, images) for new seeds and new images: both are resampled by a
        crossed bootstrap of infinitely many draws, in which all values of a seed, or of an image,
        go together.

        For independent multinomial weights its variance has a closed form, the sum of those of the
        seeds' means, of the images' means and of the rest (Owen, 2007). It is an upper limit: noise
        of single values is in all three. The first has n - 1 in place of n, as seeds are few."""
        n, m = values.shape
        rows, columns = values.mean(axis=1), values.mean(axis=0)
        rest = values - rows[:, None] - columns + rows.mean()
        variance = rows.var(ddof=1) / n + columns.var() / m + (rest**2).mean() / (n * m)
        return cls.from_error(statistics.fmean(rows.tolist()), math.sqrt(variance), n)

    @classmethod
    def predicted(
        cls, places: Sequence[Sequence[float]], values: Sequence[float], place: Sequence[float]
    ) -> "Estimate":
        """A new value at a place, by linear regression over some others, with its 95 % prediction
        interval.

        >>> rows, values = [[1, 0], [1, 1], [1, 2], [1, 3]], [0.0, 1.1, 1.9, 3.0]
        >>> print(Estimate.predicted(rows, values, [1, 4]))
        3.95 ± 0.65
        """
        x, y, new = np.array(places, "float64"), np.array(values), np.array(place)
        if len(y) <= len(place) or np.linalg.matrix_rank(x) < len(place):
            return cls.of([])
        weights = np.linalg.lstsq(x, y, rcond=None)[0]
        freedom = len(y) - len(place)
        variance = (
            float(((y - x @ weights) ** 2).sum())
            / freedom
            * (1.0 + float(new @ np.linalg.solve(x.T @ x, new)))
        )
        return cls.from_error(float(new @ weights), math.sqrt(variance), freedom + 1)

    @property
    def standard_error(self) -> float:
        return (
            self.half_width / student_quantile(CONFIDENCE, self.n - 1) if self.half_width else 0.0
        )

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def half_width_at(self, confidence: float) -> float:
        """Half the width of the interval of another confidence."""
        return self.standard_error * student_quantile(confidence, self.n - 1)

    def __format__(self, form: str) -> str:
        if not self.n or math.isnan(self.mean):
            return "no value"
        if math.isinf(self.half_width):
            return f"{self.mean:{form or '.6g'}} (one value)"
        if not self.half_width:
            return f"{self.mean:{form or '.6g'}}"
        if not form:  # two digits of the half-width, and the mean to the same place
            digits = max(0, 1 - math.floor(math.log10(self.half_width)))
            if digits > 7:
                return f"{self.mean:.6g} ± {self.half_width:.0e}"
            form = f".{digits}f"
        return f"{self.mean:{form}} ± {self.half_width:{form.lstrip('+')}}"

    def __str__(self) -> str:
        return format(self)


@cache
def student_quantile(confidence: float, freedom: int) -> float:
    """The t for which a Student variable with this many degrees of freedom lies in [-t, t] with
    this probability.

    With t = sqrt(freedom) tan(angle) the density becomes a power of a cosine, which is smooth up to
    the end.

    >>> round(student_quantile(0.99, 9), 4), round(student_quantile(0.99, 10**9), 4)
    (3.2498, 2.5758)
    """
    freedom = max(1, min(freedom, 10**6))
    nodes, weights = gauss_legendre(64)
    height = (
        2.0
        * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
        / math.sqrt(math.pi)
    )

    def inside(angle: float) -> float:
        return height * angle * float(weights @ np.cos(angle * nodes) ** (freedom - 1))

    low, high = 0.0, math.atan(10.0 / math.sqrt(freedom)) if freedom > 100 else math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
