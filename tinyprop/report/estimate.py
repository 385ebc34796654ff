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
    """A mean of n independent values, and the half-width of its 95 % confidence interval (Student's
    t).

    >>> estimate = Estimate.of([1.0, 2.0, 3.0])
    >>> print(estimate)
    2.0 ± 2.5
    >>> f"{estimate:+.2f}"
    '+2.00 ± 2.48'
    """

    mean: float
    half_width: float  # infinite for a single value, 0 for a number without any chance in it
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From the values themselves."""
        n = len(values)
        if n == 0 or not all(map(math.isfinite, values)):
            return cls(math.nan, math.inf, n)
        if n == 1:
            return cls(values[0], math.inf, n)
        mean = statistics.fmean(values)
        standard_error = statistics.stdev(values) / math.sqrt(n)
        return cls.from_error(mean, standard_error, n)

    @classmethod
    def from_error(cls, mean: float, standard_error: float, n: int) -> "Estimate":
        if not standard_error:
            return cls(mean, 0.0, n)
        return cls(mean, standard_error * student_quantile(CONFIDENCE, n - 1), n)

    @classmethod
    def crossed(cls, values: HostArray) -> "Estimate":
        """The mean of values (seeds, images), with an error bar for new seeds and new images. Both
        are resampled by a crossed bootstrap of infinitely many draws, in which all values of a
        seed, or of an image, go together.

        For independent multinomial weights the variance has a closed form: the sum of the variances
        of the seeds' means, of the images' means and of the residuals (Owen, 2007). It is an upper
        bound, since noise of single values is in all three. The first has n - 1 in place of n, as
        seeds are few."""
        n, m = values.shape
        seeds = values.mean(axis=1)  # (n, m) -> (n,)
        images = values.mean(axis=0)  # (n, m) -> (m,)
        residuals = values - seeds[:, None] - images + seeds.mean()
        variance_of_seeds = seeds.var(ddof=1) / n
        variance_of_images = images.var() / m
        variance_of_residuals = (residuals**2).mean() / (n * m)
        variance = variance_of_seeds + variance_of_images + variance_of_residuals
        return cls.from_error(statistics.fmean(seeds.tolist()), math.sqrt(variance), n)

    @classmethod
    def predicted(
        cls, places: Sequence[Sequence[float]], values: Sequence[float], place: Sequence[float]
    ) -> "Estimate":
        """A new value at a place, by linear regression on values at other places, with its 95 %
        prediction interval.

        >>> rows, values = [[1, 0], [1, 1], [1, 2], [1, 3]], [0.0, 1.1, 1.9, 3.0]
        >>> print(Estimate.predicted(rows, values, [1, 4]))
        3.95 ± 0.65
        """
        x = np.array(places, "float64")  # (values, coefficients)
        y = np.array(values)
        new = np.array(place)
        freedom = len(y) - len(place)
        if freedom <= 0 or np.linalg.matrix_rank(x) < len(place):
            return cls.of([])
        coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
        residuals = y - x @ coefficients
        noise = float((residuals**2).sum()) / freedom
        leverage = float(new @ np.linalg.solve(x.T @ x, new))
        variance = noise * (1.0 + leverage)
        return cls.from_error(float(new @ coefficients), math.sqrt(variance), freedom + 1)

    @property
    def standard_error(self) -> float:
        if not self.half_width:
            return 0.0
        return self.half_width / student_quantile(CONFIDENCE, self.n - 1)

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def half_width_at(self, confidence: float) -> float:
        """The half-width of the interval with another confidence."""
        return self.standard_error * student_quantile(confidence, self.n - 1)

    def __format__(self, form: str) -> str:
        if not self.n or math.isnan(self.mean):
            return "no value"
        if math.isinf(self.half_width):
            return f"{self.mean:{form or '.6g'}} (one value)"
        if not self.half_width:
            return f"{self.mean:{form or '.6g'}}"
        if form:
            return f"{self.mean:{form}} ± {self.half_width:{form.lstrip('+')}}"
        # two digits of the half-width, and the mean to the same place
        digits = max(0, 1 - math.floor(math.log10(self.half_width)))
        if digits > 7:
            return f"{self.mean:.6g} ± {self.half_width:.0e}"
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"

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
    gamma_ratio = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    height = 2.0 * gamma_ratio / math.sqrt(math.pi)

    def probability(angle: float) -> float:
        """Of lying between -angle and angle."""
        return height * angle * float(weights @ np.cos(angle * nodes) ** (freedom - 1))

    low = 0.0
    high = math.pi / 2
    if freedom > 100:  # the density is narrow, and nothing is left beyond t = 10
        high = math.atan(10.0 / math.sqrt(freedom))
    for _ in range(60):  # bisection
        middle = (low + high) / 2
        if probability(middle) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)
