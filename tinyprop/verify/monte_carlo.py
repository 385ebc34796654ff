"""Streaming Monte-Carlo: samples come in blocks, and only their moments stay.

A task draws its samples from a generator of its own, seeded by the run's seed, the name of what is
measured, and the number of the task. Tasks are spread over the cores and merged in order, so the
answer is the same on every run and for any number of threads, and memory does not grow with the
number of samples."""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, to_numpy
from ..engine.errors import explain
from ..engine.threads import blas_threads, cores
from ..report.estimate import Estimate

# so many samples: (count,), or (quantities, count)
Draw: TypeAlias = Callable[[np.random.Generator, int], Array]

BLOCK = 1 << 16  # samples that are drawn and digested together, so that they stay in the cache
# what one task draws: long enough to hide the handing out, short enough to share evenly
TASK = 1 << 19
FEWEST = 1000  # plain samples, whatever the user asks for: fewer give no error bar worth the name
FEWEST_EXPENSIVE = 8  # networks
GROUPS = 16  # of a median of means
MOST_GROWTH = 8  # how far one round of `until` trusts the error bar of the round before


@dataclass(frozen=True)
class Tally:
    """What stays of samples of k quantities: count, means (k,), co-moments (k, k), third and fourth
    moments (k,).

    Moments are sums of powers of deviations from the mean. Tallies are merged by the formulas of
    Chan, Golub and LeVeque (1979) and Pébay (2008), in which nothing large cancels: each part's
    deviations are moved to the new mean.

    >>> tally = tp.verify.Tally.of(tp.tensor([1.0, 2.0, 3.0]).data)
    >>> tally.mean().mean, tally.variance().mean
    (2.0, 1.0)
    """

    count: int
    means: Array
    products: Array
    cubes: Array
    fourths: Array

    @classmethod
    def of(cls, values: Array, overwrite: bool = False) -> "Tally":
        """The tally of one block, (count,) or (k, count). To overwrite the values saves memory, and
        so time."""
        xp = array_module(values)
        block = xp.atleast_2d(values)
        count, means = block.shape[1], block.sum(axis=1) / block.shape[1]
        away = xp.subtract(block, means[:, None], out=block if overwrite else None)
        squares = away * away
        cubes, fourths = (
            (squares[:, None] @ powers[:, :, None])[:, 0, 0] for powers in (away, squares)
        )
        return cls(
            count, *(sums.astype(np.float64) for sums in (means, away @ away.T, cubes, fourths))
        )

    @classmethod
    def merged(cls, parts: Sequence["Tally"]) -> "Tally":
        """The tally of all parts, computed on the backend that they share."""
        xp, count = array_module(parts[0].means), sum(part.count for part in parts)
        counts = xp.array([part.count for part in parts], np.float64)[:, None]
        means, cubes, fourths = (
            xp.stack([getattr(p, name) for p in parts]) for name in ("means", "cubes", "fourths")
        )
        squares = xp.stack([part.variance_sums() for part in parts])
        mean = means[0] + (counts * (means - means[0])).sum(axis=0) / count
        step = means - mean
        return cls(
            count,
            mean,
            xp.stack([part.products for part in parts]).sum(axis=0) + (counts * step).T @ step,
            (cubes + step * (3.0 * squares + counts * step**2)).sum(axis=0),
            (fourths + step * (4.0 * cubes + step * (6.0 * squares + counts * step**2))).sum(
                axis=0
            ),
        )

    def on_host(self) -> "Tally":
        return Tally(
            self.count, *map(to_numpy, (self.means, self.products, self.cubes, self.fourths))
        )

    def variance_sums(self) -> Array:
        return self.products.diagonal()

    def covariance(self) -> HostArray:
        """The unbiased covariance matrix of the quantities."""
        return self.products / (self.count - 1)

    def mean(self, i: int = 0) -> Estimate:
        error = math.sqrt(self.covariance()[i, i] / self.count)
        return Estimate.from_error(float(self.means[i]), error, self.count)

    def variance(self, i: int = 0) -> Estimate:
        """The unbiased variance; its error follows from the fourth moment."""
        n, variance = self.count, float(self.covariance()[i, i])
        spread = float(self.fourths[i]) / n - variance**2 * (n - 3) / (n - 1)
        return Estimate.from_error(variance, math.sqrt(max(spread, 0.0) / n), n)

    def std(self, i: int = 0) -> Estimate:
        variance = self.variance(i)
        root = math.sqrt(variance.mean)
        return Estimate.from_error(
            root, variance.standard_error / (2.0 * root) if root else 0.0, self.count
        )

    def power(self, exponent: float, i: int = 0) -> Estimate:
        """Of a mean: what many independent factors with this mean make, or the factor that makes
        it."""
        return self.function(lambda means: float(means[i] ** exponent))

    def function(self, f: Callable[[HostArray], float]) -> Estimate:
        """A smooth function of the means, its error by the delta method with the whole
        covariance."""
        steps = 1e-5 * (np.abs(self.means) + np.sqrt(self.variance_sums() / self.count))
        shifts = np.diag(steps)
        pairs = [(f(self.means + shift), f(self.means - shift)) for shift in shifts]
        slopes = np.array(
            [
                (up - down) / (2.0 * h) if h else 0.0
                for (up, down), h in zip(pairs, steps, strict=True)
            ]
        )
        variance = max(float(slopes @ self.covariance() @ slopes), 0.0)
        return Estimate.from_error(
            float(f(self.means)), math.sqrt(variance / self.count), self.count
        )


def padding_ignored() -> Any:
    """No warning where OpenBLAS computes with the padding of a small matrix, whose results it
    discards.

    NaN in a result does not go unnoticed: it contradicts every exact value.
    """
    return np.errstate(invalid="ignore")


Watch: TypeAlias = Callable[[Tally], Estimate]  # the estimate whose standard error `until` looks at


@dataclass
class Sampler:
    """How claims are measured: with how many samples, or until which standard error, from which
    seed, on which cores.

    >>> mc = tp.verify.Sampler(seed=1)
    >>> def normals(random, count):
    ...     return random.standard_normal(count)
    >>> tally = mc.tally("normals", normals, samples=10_000)
    >>> tally.count, abs(tally.mean().mean) < 5 * tally.mean().standard_error
    (10000, True)
    """

    samples: int | None = None
    until: float | None = None
    seed: int = 0
    threads: int | None = None  # None: as many as there are cores
    # called with the fraction of the tasks done
    progress: Callable[[float], None] = lambda fraction: None

    def __post_init__(self) -> None:
        for name, value in {"samples": self.samples, "until": self.until}.items():
            if value is not None and not value > 0:
                raise ValueError(
                    explain(f"{name}={value}", "it is a number above 0", f"{name}=1000")
                )

    def tally(
        self,
        name: str,
        draw: Draw,
        samples: int,
        cost: int = 1,
        block: int = BLOCK,
        watch: Watch = Tally.mean,
    ) -> Tally:
        """Draw `samples` samples, or as many as the user asked for, and tally them.

        An expensive sample, such as a whole network, has a `cost`: the number of plain samples that
        it counts for where the user gives a number. `until` watches the standard error of one
        estimate."""
        block = max(1, min(block, TASK // cost))
        per_task = block * max(1, TASK // (cost * block))

        def tasks(first: int, count: int) -> Tally:
            """Tasks from number `first` on, for so many samples, on the cores; BLAS keeps to one
            thread in each."""

            def task(number: int) -> Tally:
                key = (zlib.crc32(name.encode()), first + number)
                random = np.random.Generator(
                    np.random.SFC64(np.random.SeedSequence(self.seed, spawn_key=key))
                )
                stop = min(per_task, count - number * per_task)
                starts = range(0, stop, block)
                with padding_ignored():
                    parts = [
                        Tally.of(draw(random, min(block, stop - i)), overwrite=True) for i in starts
                    ]
                    # not in between, so that a device is not kept waiting
                    return Tally.merged(parts).on_host()

            number = -(-count // per_task)
            with blas_threads(1):
                pool = ThreadPoolExecutor(min(self.threads or cores(), number))
                try:
                    try:
                        results: Iterator[Tally] = iter(pool.map(task, range(number)))
                    # no thread can be started (in a browser): one task after the other
                    except RuntimeError:
                        results = map(task, range(number))
                    total = next(results)
                    for done, result in enumerate(results, start=2):
                        self.progress(done / number)
                        total = Tally.merged([total, result])
                finally:
                    pool.shutdown(cancel_futures=True)
            return total

        total = tasks(
            0,
            samples
            if self.samples is None
            else max(FEWEST_EXPENSIVE, max(FEWEST, self.samples) // cost),
        )
        while self.until is not None and (error := watch(total).standard_error) > self.until:
            wanted = total.count * min(MOST_GROWTH, 1.05 * (error / self.until) ** 2)
            first = -(-total.count // per_task)
            more = max(1, math.ceil(wanted / per_task) - first) * per_task
            total = Tally.merged([total, tasks(first, more)])
        return total

    def median_of_means(
        self, name: str, draw: Draw, samples: int, cost: int, block: int
    ) -> Estimate:
        """The mean of what has a long tail, as the median of the means of groups, which no single
        sample can move. Its standard error is sqrt(pi/2) times that of their mean."""
        each_has = -(-samples // GROUPS)
        means = [
            self.tally(f"{name} {i}", draw, each_has, cost, block).mean().mean
            for i in range(GROUPS)
        ]
        error = math.sqrt(math.pi / 2.0) * Estimate.of(means).standard_error
        return Estimate.from_error(float(np.median(means)), error, GROUPS)


def each(draw: Callable[[np.random.Generator], Any]) -> Draw:
    """Samples that are drawn one by one, such as networks: a number each, or several quantities."""
    return lambda random, count: np.array([draw(random) for _ in range(count)], np.float64).T
