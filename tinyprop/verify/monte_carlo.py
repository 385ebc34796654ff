"""Streaming Monte-Carlo: samples come in blocks, and only their moments stay.

A task draws its samples from a generator of its own, seeded by the run's seed, the name of what is
measured, and the number of the task. Tasks are spread over the cores and merged in order, so the
answer is the same on every run and for any number of threads, and memory does not grow with the
number of samples."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, to_numpy
from ..engine.errors import ShapeError, UnknownNameError, close_names, explain
from ..engine.tensor import Tensor
from ..engine.threads import blas_threads, cores
from ..report.estimate import Estimate

# so many samples: (count,), (quantities, count), or arrays (count,) by name
Draw: TypeAlias = Callable[[np.random.Generator, int], Any]

BLOCK = 1 << 16  # samples that are drawn and digested together, so that they stay in the cache
# what one task draws: long enough to hide the handing out, short enough to share evenly
TASK = 1 << 19
FEWEST = 1000  # plain samples, whatever the user asks for: fewer give no error bar worth the name
FEWEST_EXPENSIVE = 8  # networks
MOST_GROWTH = 8  # how far one round of `until` trusts the error bar of the round before


@dataclass(frozen=True)
class Tally:
    """What stays of samples of k quantities: count, means (k,), co-moments (k, k), third and fourth
    moments (k,), and their names, if they have any.

    Moments are sums of powers of deviations from the mean. Tallies are merged by the formulas of
    Chan, Golub and LeVeque (1979) and Pébay (2008), in which nothing large cancels: each part's
    deviations are moved to the new mean.

    >>> tally = tp.verify.Tally.of({"x": [1.0, 2.0, 3.0], "square": [1.0, 4.0, 9.0]})
    >>> tally.mean("x").mean, tally.variance("x").mean
    (2.0, 1.0)
    >>> round(tally.function(lambda means: means["square"] / means["x"]).mean, 6)
    2.333333
    """

    count: int
    means: Array
    products: Array
    cubes: Array
    fourths: Array
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Any) -> "Tally":
        """The tally of one block: an array (count,) or (k, count), or arrays by name."""
        block, names = as_block(values)
        count = block.shape[1]
        means = block.sum(axis=1) / count
        away = block - means[:, None]
        squares = away * away
        # sums over the samples: (k, 1, count) @ (k, count, 1) -> (k,)
        cubes = (squares[:, None] @ away[:, :, None])[:, 0, 0]
        fourths = (squares[:, None] @ squares[:, :, None])[:, 0, 0]
        first, second, third, fourth = (
            part.astype(np.float64) for part in (means, away @ away.T, cubes, fourths)
        )
        return cls(count, first, second, third, fourth, names)

    @classmethod
    def merged(cls, parts: Sequence["Tally"]) -> "Tally":
        """The tally of all parts, computed on the backend that they share."""
        for part in parts:
            if part.names != parts[0].names:
                one, other = (", ".join(names) for names in (parts[0].names, part.names))
                rule = "each block of samples has the same quantities, in the same order"
                raise ShapeError(
                    f"blocks of {one} and of {other}", rule, "the same names each time"
                )
        xp = array_module(parts[0].means)
        count = sum(part.count for part in parts)
        counts = xp.array([part.count for part in parts], np.float64)[:, None]  # (parts, 1)
        means = xp.stack([part.means for part in parts])  # (parts, k)
        squares = xp.stack([part.variance_sums() for part in parts])
        cubes = xp.stack([part.cubes for part in parts])
        fourths = xp.stack([part.fourths for part in parts])
        products = xp.stack([part.products for part in parts])
        mean = means[0] + (counts * (means - means[0])).sum(axis=0) / count
        step = means - mean
        moved_products = products.sum(axis=0) + (counts * step).T @ step
        moved_cubes = cubes + step * (3.0 * squares + counts * step**2)
        inner = 6.0 * squares + counts * step**2
        moved_fourths = fourths + step * (4.0 * cubes + step * inner)
        return cls(
            count,
            mean,
            moved_products,
            moved_cubes.sum(axis=0),
            moved_fourths.sum(axis=0),
            parts[0].names,
        )

    def on_host(self) -> "Tally":
        return Tally(
            self.count,
            to_numpy(self.means),
            to_numpy(self.products),
            to_numpy(self.cubes),
            to_numpy(self.fourths),
            self.names,
        )

    def variance_sums(self) -> Array:
        return self.products.diagonal()

    def covariance(self) -> HostArray:
        """The unbiased covariance matrix of the quantities."""
        return self.products / (self.count - 1)

    def index(self, quantity: int | str) -> int:
        if isinstance(quantity, int):
            return quantity
        if quantity not in self.names:
            rule = f"the quantities are {', '.join(self.names) or 'numbered, from 0'}"
            hint = close_names(quantity, self.names) or "one of these"
            raise UnknownNameError(f"no quantity {quantity!r}", rule, hint)
        return self.names.index(quantity)

    def mean(self, quantity: int | str = 0) -> Estimate:
        i = self.index(quantity)
        error = math.sqrt(self.covariance()[i, i] / self.count)
        return Estimate.from_error(float(self.means[i]), error, self.count)

    def variance(self, quantity: int | str = 0) -> Estimate:
        """The unbiased variance; its error follows from the fourth moment."""
        i = self.index(quantity)
        n = self.count
        variance = float(self.covariance()[i, i])
        spread = float(self.fourths[i]) / n - variance**2 * (n - 3) / (n - 1)
        return Estimate.from_error(variance, math.sqrt(max(spread, 0.0) / n), n)

    def std(self, quantity: int | str = 0) -> Estimate:
        variance = self.variance(quantity)
        root = math.sqrt(variance.mean)
        error = variance.standard_error / (2.0 * root) if root else 0.0
        return Estimate.from_error(root, error, self.count)

    def power(self, exponent: float, quantity: int | str = 0) -> Estimate:
        """Of a mean: what many independent factors with this mean make, or the factor that makes
        it."""
        i = self.index(quantity)
        return self._smooth(lambda means: float(means[i] ** exponent))

    def function(self, f: Callable[[Any], float]) -> Estimate:
        """A smooth function of the means, by name if they have names; its error by the delta method
        with the whole covariance."""
        if not self.names:
            return self._smooth(f)
        return self._smooth(lambda means: float(f(dict(zip(self.names, means, strict=True)))))

    def given(self, known: Mapping[str, float]) -> "Tally":
        """The tally of the other quantities, with less chance in it: the expectations of these are
        known, so their means tell how lucky the draws were (control variates).

        The means of the others are moved along their regression on these, and only what is left of
        it makes the error. It has means, their functions and powers, but no variances.

        >>> z = np.random.default_rng(2).standard_normal(10_000)
        >>> tally = tp.verify.Tally.of({"exp": np.exp(z), "z": z, "square": z * z})
        >>> plain, better = tally.mean("exp"), tally.given({"z": 0.0, "square": 1.0}).mean("exp")
        >>> print(plain, "or", better)
        1.671 ± 0.042 or 1.641 ± 0.014
        """
        controls = [self.index(name) for name in known]
        others = [i for i in range(len(self.means)) if i not in controls]
        luck = self.means[controls] - np.array(list(known.values()))
        among = self.products[np.ix_(controls, controls)]
        between = self.products[np.ix_(controls, others)]
        slopes = np.linalg.lstsq(among, between, rcond=None)[0]  # (controls, others)
        means = self.means[others] - luck @ slopes
        left = self.products[np.ix_(others, others)] - between.T @ slopes
        # each slope takes one degree of freedom, and has an error of its own
        count = self.count - len(controls)
        of_slopes = self.count * float(luck @ np.linalg.lstsq(among, luck, rcond=None)[0])
        products = left * (count / self.count) * (1.0 + of_slopes)
        unknown = np.full(len(others), np.nan)
        names = tuple(self.names[i] for i in others)
        return Tally(count, means, products, unknown, unknown, names)

    def _smooth(self, f: Callable[[HostArray], float]) -> Estimate:
        steps = 1e-5 * (np.abs(self.means) + np.sqrt(self.variance_sums() / self.count))
        slopes = np.zeros(len(steps))
        for i, step in enumerate(steps):
            if step:
                shift = np.zeros(len(steps))
                shift[i] = step
                slopes[i] = (f(self.means + shift) - f(self.means - shift)) / (2.0 * step)
        variance = max(float(slopes @ self.covariance() @ slopes), 0.0)
        error = math.sqrt(variance / self.count)
        return Estimate.from_error(float(f(self.means)), error, self.count)


def as_block(values: Any) -> tuple[Array, tuple[str, ...]]:
    """Samples as one array (quantities, count), and the names of the quantities."""
    if not isinstance(values, Mapping):
        block = as_array(values)
        return (block[None] if block.ndim == 1 else block), ()
    arrays = [as_array(value) for value in values.values()]
    if len({array_module(array) for array in arrays}) > 1:
        arrays = [to_numpy(array) for array in arrays]
    return array_module(arrays[0]).stack(arrays), tuple(values)


def as_array(values: Any) -> Array:
    """Whole numbers, truth values and float16, whose sums would lose digits, as float64."""
    array = values.data if isinstance(values, Tensor) else values
    if isinstance(values, (list, tuple)):
        array = np.array(values, np.float64)
    if array.dtype.kind not in "fiub":
        got = f"samples of dtype {array.dtype}"
        rule = "samples are real numbers"
        raise ShapeError(got, rule, "their real parts, or their sizes: abs(samples)")
    is_exact = array.dtype.kind == "f" and array.dtype != np.float16
    return array if is_exact else array.astype(np.float64)


def checked(values: Any, count: int, name: str) -> Any:
    """What a draw returned, if it is so many samples."""
    arrays = list(values.values()) if isinstance(values, Mapping) else [values]
    shapes: list[tuple[int, ...]] = []
    for array in arrays:
        is_list = isinstance(array, (list, tuple))
        shapes.append(as_array(array).shape if is_list else getattr(array, "shape", ()))
    for shape in shapes or [()]:
        one = len(shape) == 1
        several = len(shape) == 2 and not isinstance(values, Mapping)
        if not (one or several) or shape[-1] != count:
            got = f"{name!r}, a draw of {count} samples that returns {shape or type(values)}"
            rule = "it returns (samples,), (quantities, samples), or arrays (samples,) by name"
            raise ShapeError(got, rule, f"as many samples as the argument count, {count}")
    return values


def padding_ignored() -> Any:
    """No warning where OpenBLAS computes with the padding of a small matrix, whose results it
    discards.

    NaN in a result does not go unnoticed: it contradicts every exact value.
    """
    return np.errstate(invalid="ignore")


Watch: TypeAlias = Callable[[Tally], Estimate]  # the estimate whose standard error `until` looks at


class Plan:
    """How samples of one name are cut into tasks, which does not depend on who computes them."""

    def __init__(self, name: str, draw: Draw, cost: int, block: int):
        self.name = name
        self.draw = draw
        self.block = max(1, min(block, TASK // cost))
        self.per_task = self.block * max(1, TASK // (cost * self.block))

    def task(self, seed: int, number: int, samples: int) -> Tally:
        """Samples from a generator of its own, in blocks."""
        sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(self.name.encode()), number))
        random = np.random.Generator(np.random.SFC64(sequence))
        parts = []
        with padding_ignored():
            for start in range(0, samples, self.block):
                count = min(self.block, samples - start)
                drawn = checked(self.draw(random, count), count, self.name)
                parts.append(Tally.of(drawn))
            # not in between, so that a device is not kept waiting
            return Tally.merged(parts).on_host()


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

        `draw(random, count)` returns so many samples of one quantity, or of several by name:
        {"gain": ..., "square": ...}. An expensive sample, such as a whole network, has a `cost`:
        the number of plain samples that it counts for where the user gives a number. `until`
        watches the standard error of one estimate."""
        plan = Plan(name, draw, cost, block)
        count = samples
        if self.samples is not None:
            count = max(FEWEST_EXPENSIVE, max(FEWEST, self.samples) // cost)
        total = self._run(plan, 0, count)
        while self.until is not None and (error := watch(total).standard_error) > self.until:
            growth = min(MOST_GROWTH, 1.05 * (error / self.until) ** 2)
            first = -(-total.count // plan.per_task)
            tasks = max(1, math.ceil(total.count * growth / plan.per_task) - first)
            total = Tally.merged([total, self._run(plan, first, tasks * plan.per_task)])
        return total

    def _run(self, plan: "Plan", first: int, count: int) -> Tally:
        """Tasks from number `first` on, for so many samples, on the cores; BLAS keeps to one thread
        in each."""
        number = -(-count // plan.per_task)

        def task(i: int) -> Tally:
            return plan.task(self.seed, first + i, min(plan.per_task, count - i * plan.per_task))

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


def each(draw: Callable[[np.random.Generator], Any]) -> Draw:
    """Samples that are drawn one by one, such as networks: a number each, or numbers by name.

    >>> coin = tp.verify.each(lambda random: {"heads": random.integers(2)})
    >>> coin(np.random.default_rng(0), 4)["heads"].shape
    (4,)
    """

    def several(random: np.random.Generator, count: int) -> Any:
        drawn = [draw(random) for _ in range(count)]
        if not isinstance(drawn[0], Mapping):
            return np.array(drawn, np.float64).T
        names = drawn[0].keys()
        for one in drawn:
            if one.keys() != names:
                got = f"a sample of {', '.join(one)} after one of {', '.join(names)}"
                rule = "each sample has the same quantities"
                raise ShapeError(got, rule, "a number for each name, in every sample")
        return {name: np.array([one[name] for one in drawn], np.float64) for name in names}

    return several
