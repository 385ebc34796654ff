"""Gradients against central differences, which know their own error."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, as_array, float64, from_host, to_numpy
from ..engine.backward import node_of, pull_back
from ..engine.context import context
from ..engine.errors import GradientError
from ..engine.graph import no_grad
from ..engine.random import new_generator
from ..engine.sums import total
from ..engine.tensor import Tensor, as_tensor
from ..functional.reductions import sum as sum_over
from ..nn.module import Module, observing
from .state import untouched

Value = Callable[[], Tensor]

SMALL = 64  # up to this many elements in or out, every single one is checked
PROBED = 8  # elements of a larger input that are checked, besides a random direction
BUDGET = 128  # directions that all inputs and parameters share, at least one each
STEP = 1e-3  # of the first difference, relative to the size of the input
SHRINK = 16.0
STEPS = 6  # the last one is 1e-9
JITTER = 1e-9  # steps that show only the rounding errors of a function
NOISE_SAFETY = 30.0  # the noise is estimated from few numbers
EPS = 2.0**-52
CANCELLATION = 1e-11  # what rounding may leave in a gradient, of the largest one
RESOLUTION = 0.01  # differences that are less certain than this check nothing
VANISHING = 1e-6  # a gradient that is 0 within its error must be as small as this, relatively


def check_gradients(
    f: Callable[..., Tensor],
    *inputs: Tensor | Array,
    order: int = 2,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare the gradients of f with central differences in float64; raise GradientError where
    they differ.

    f is a function of tensors, or a module: then the gradients with respect to its parameters are
    checked, too. Afterwards the module is as before. Inputs are converted to float64. Both
    gradients are checked: the one that is computed without a graph, and the recorded one
    (create_graph=True). `order=2` checks the gradient of the gradient as well.

    Each derivative is compared at its own scale: both must agree to `tolerance` of it and the
    error of the differences, which is estimated from two step sizes and from the rounding errors of
    f. Steps are made shorter until this error is small. If it remains larger than 1 %, the check is
    refused. Inputs and results of more than 64 elements are checked along random directions and at
    some random elements, by `seed`; many parameters at fewer elements each, or along a random
    direction only, which sees an error in any element. A difference across a kink is not a
    derivative: choose inputs that are not at one.

    >>> tp.check_gradients(lambda x, y: x * y + x**3, tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]))
    >>> tp.check_gradients(tp.nn.NormPropLinear(3, 2), tp.randn(4, 3))
    """
    with ExitStack() as stack:
        points = [_leaf(_checked_input(x, f"input {i}")) for i, x in enumerate(inputs)]
        leaves = [Leaf(f"input {i}", x) for i, x in enumerate(points)]
        if isinstance(f, Module):
            stack.enter_context(untouched(f))
            f.to(dtype=float64)
            leaves += [Leaf(f"parameter {name!r}", p) for name, p in f.named_parameters()]
        stack.enter_context(observing())
        compare_with_differences(lambda: f(*points), leaves, order, tolerance, seed)


class Leaf:
    """A float64 tensor with respect to which a function is differentiated."""

    def __init__(self, name: str, tensor: Tensor):
        self.name = name
        self.tensor = tensor
        # how far each element may move: by its own size, or if that is small, by that of others
        size = abs(tensor._data)
        largest = float(size.max()) if size.size else 0.0  # CuPy's max has no `initial`
        self.scale = array_module(size).maximum(size, min(1.0, largest) or 1.0)


def compare_with_differences(
    value: Value, leaves: Sequence[Leaf], order: int, tolerance: float, seed: int
) -> None:
    """`check_gradients` of a function that computes with these tensors."""
    leaves = [leaf for leaf in leaves if leaf.tensor.size]
    _check_question(leaves, order, tolerance)
    random = new_generator(seed)
    for n in range(1, order + 1):
        with context(recording=True):
            _check_value(value)
            check = Check(n, value, leaves, tolerance, seed, random)
            if not check.y.size:
                return
            check.run()
        value = check.slope
        leaves = [*leaves, check.cotangent]


def _leaf(array: Array) -> Tensor:
    return Tensor(as_array(array), requires_grad=True)


def _checked_input(x: Any, name: str) -> Array:
    array = as_tensor(x)._data
    if array.dtype.kind != "f":
        raise GradientError(
            f"{name} of dtype {array.dtype}",
            "only floating-point numbers have gradients",
            "f inside a lambda, which captures what is no floating-point number",
        )
    _check_finite(array, name)
    return array.astype(float64)


def _check_finite(array: Array, what: str) -> None:
    if not array_module(array).isfinite(array).all():
        raise GradientError(
            f"{what} with NaN or infinity in it", "differences need finite numbers", "another point"
        )


def _check_question(leaves: Sequence[Leaf], order: int, tolerance: float) -> None:
    if not leaves:
        raise GradientError(
            "a function without inputs and parameters",
            "a gradient is with respect to at least one element",
            "check_gradients(f, x), or a module that has parameters",
        )
    for leaf in leaves:
        _check_finite(leaf.tensor._data, leaf.name)
    if order < 1 or not 0 < tolerance <= RESOLUTION:
        raise GradientError(
            f"order={order}, tolerance={tolerance}",
            f"the order is at least 1, the tolerance positive and at most {RESOLUTION}",
            "order=2, tolerance=1e-6",
        )


def _check_value(value: Value) -> None:
    """Refuse a function that differences say nothing about."""
    first, second = value(), value()
    for y in (first, second):
        if not isinstance(y, Tensor):
            raise GradientError(
                f"a function that returns a {type(y).__name__}",
                "gradients are those of a tensor",
                "a function that returns one tensor: lambda x: f(x)[0]",
            )
        if y.dtype != float64:
            raise GradientError(
                f"a function that maps float64 to {y.dtype}",
                "differences need the precision of float64",
                "a function that keeps the dtype of its input",
            )
        _check_finite(y._data, "a result")
    same_shape = first.shape == second.shape
    if not same_shape or (first._data != second._data).any():
        raise GradientError(
            "a function whose result changes from one call to the next",
            "differences compare calls of the same function",
            "eval(), or a function without random numbers, whose state does not change its result",
        )


@dataclass(frozen=True)
class Direction:
    """A direction in which a leaf moves, and how to call it."""

    place: str
    step: Array  # relative to the scale of the leaf
    index: int | None  # of the only element that moves


class Check:
    """The check of one order: every leaf, in some directions, for some projections of the
    result."""

    def __init__(
        self,
        order: int,
        value: Value,
        leaves: Sequence[Leaf],
        tolerance: float,
        seed: int,
        random: "np.random.Generator",
    ):
        self.order = order
        self.value = value
        self.leaves = leaves
        self.tolerance = tolerance
        self.seed = seed
        self.random = random
        self.y = value()
        weights = from_host(_signed(random, self.y.shape), like=self.y._data)
        self.cotangent = Leaf(f"the cotangent of order {order}", _leaf(weights))
        self.most = max(1, BUDGET // len(leaves))  # directions of each leaf
        self.steps = [
            from_host(_signed(random, leaf.tensor.shape), like=leaf.tensor._data) for leaf in leaves
        ]

    def run(self) -> None:
        gradients = {recorded: self.gradients(recorded) for recorded in (False, True)}
        for i, leaf in enumerate(self.leaves):
            directions = self.directions(leaf, self.steps[i])
            measured, errors = self.differences(leaf, directions)
            for recorded, rows in gradients.items():
                exact, size = self.along(directions, leaf, rows[i])
                comparison = Comparison(self, leaf, directions, exact, size, measured, errors)
                comparison.run(recorded)

    def locate(self, leaf: Leaf, recorded: bool) -> None:
        """Find an element that makes a random direction wrong: the direction is halved, and the
        half that is worse again, until one element is left."""
        i = self.leaves.index(leaf)
        rows = self.gradients(recorded)[i]
        places = np.arange(leaf.tensor.size)
        while len(places) > 1:
            halves = np.array_split(places, 2)
            directions = [_part(self.steps[i], half) for half in halves]
            worse = self.comparison(leaf, directions, rows).severity().max(axis=1).argmax()
            places = halves[int(worse)]
        element = _element(leaf.tensor._data, int(places[0]))
        self.comparison(leaf, [element], rows).run(recorded)

    def comparison(
        self, leaf: Leaf, directions: Sequence[Direction], rows: Sequence[Array]
    ) -> "Comparison":
        measured, errors = self.differences(leaf, directions)
        exact, size = self.along(directions, leaf, rows)
        return Comparison(self, leaf, directions, exact, size, measured, errors)

    def slope(self) -> Tensor:
        """The slope of <cotangent, value> along the steps: what the next order differentiates."""
        with context(recording=True):
            y = self.value()
            u = self.cotangent.tensor
            slope = sum_over(u * 0.0)
            if not y.requires_grad:
                return slope
            nodes = [node_of(leaf.tensor) for leaf in self.leaves]
            gradients = pull_back(y, u, set(nodes), create_graph=True, retain_graph=True)
            for node, step in zip(nodes, self.steps, strict=True):
                if node in gradients:
                    slope = slope + sum_over(gradients[node] * step)
            return slope

    @property
    def is_small(self) -> bool:
        return self.y.size <= SMALL

    def projected(self, y: Array) -> HostArray:
        """Every element of a small result; of a large one, its product with the cotangent."""
        if self.is_small:
            return to_numpy(y).reshape(-1)
        return to_numpy(total(y * self.cotangent.tensor._data, keepdims=True)).reshape(-1)

    def projection(self, i: int) -> str:
        if not self.is_small:
            return "a random projection of the output"
        index = tuple(map(int, np.unravel_index(i, self.y.shape)))
        return f"output {index}"

    def directions(self, leaf: Leaf, step: Array) -> list[Direction]:
        """Every element of a small leaf; of a large one a few, and all of them at once."""
        x = leaf.tensor._data
        if x.size <= min(SMALL, self.most):
            return [_element(x, i) for i in range(x.size)]
        some = self.random.choice(x.size, min(PROBED, self.most - 1), replace=False)
        elements = [_element(x, int(i)) for i in np.sort(some)]
        return [*elements, Direction("a random direction", step, None)]

    def gradients(self, recorded: bool) -> list[list[Array]]:
        """For each leaf, the gradients of all projections."""
        tensors = [leaf.tensor for leaf in self.leaves]
        rows: list[list[Array]] = [[] for _ in tensors]
        for u in self.cotangents():
            found: dict[Any, Tensor] = {}
            if self.y.requires_grad:
                found = pull_back(self.y, Tensor(u), set(tensors), recorded, retain_graph=True)
            for row, tensor in zip(rows, tensors, strict=True):
                zeros = array_module(tensor._data).zeros_like(tensor._data)
                row.append(found[tensor]._data if tensor in found else zeros)
        return rows

    def cotangents(self) -> list[Array]:
        if self.is_small:
            return [_element(self.y._data, i).step for i in range(self.y.size)]
        return [self.cotangent.tensor._data]

    def along(
        self, directions: Sequence[Direction], leaf: Leaf, rows: Sequence[Array]
    ) -> tuple[HostArray, HostArray]:
        """The slopes by the gradient, (directions, projections), and the sums of the absolute
        values of what was added up for each."""
        slopes = []
        sizes = []
        for direction in directions:
            if direction.index is not None:
                values = [float(row.reshape(-1)[direction.index]) for row in rows]
                slopes.append(values)
                sizes.append([abs(value) for value in values])
            else:
                terms = [row * leaf.scale * direction.step for row in rows]
                slopes.append([float(total(term)) for term in terms])
                sizes.append([float(total(abs(term))) for term in terms])
        return np.array(slopes), np.array(sizes)

    def at(self, moved: Sequence[tuple[Leaf, Array]]) -> HostArray:
        """The projections of the value with leaves moved there."""
        before = [leaf.tensor._data for leaf, _ in moved]
        try:
            for leaf, array in moved:
                leaf.tensor.data = as_array(array)
            # beside the point, a function may leave its domain
            with np.errstate(all="ignore"), no_grad():
                # before the leaves move back: the value may be one of them
                return self.projected(self.value()._data).copy()
        finally:
            for (leaf, _), array in zip(moved, before, strict=True):
                leaf.tensor.data = as_array(array)

    @cached_property
    def noise(self) -> HostArray:
        """The standard deviation of the rounding errors of each projection: from third differences
        of calls so near to each other that nothing else is left (Hamming, 1962)."""
        values = []
        for i in range(6):
            moved = []
            for leaf, step in zip(self.leaves, self.steps, strict=True):
                array = leaf.tensor._data
                moved.append((leaf, array + i * JITTER * leaf.scale * step))
            values.append(self.at(moved))
        third = np.diff(np.array(values), n=3, axis=0)
        of_third = np.sqrt((third**2).mean(axis=0) / 20.0)  # 1 + 9 + 9 + 1
        # a sum of many terms loses digits that no single call shows
        return np.maximum(of_third, 0.5 * EPS * self.size_of_terms())

    def size_of_terms(self) -> HostArray:
        """The sum of the absolute values of what is added up for each projection."""
        if self.is_small:
            return abs(self.projected(self.y._data))
        terms = abs(self.y._data * self.cotangent.tensor._data)
        return to_numpy(total(terms, keepdims=True)).reshape(-1)

    def differences(
        self, leaf: Leaf, directions: Sequence[Direction]
    ) -> tuple[HostArray, HostArray]:
        """The slopes by differences, (directions, projections), and what each may be off by."""
        slopes = [self.difference(leaf, direction) for direction in directions]
        return np.array([slope for slope, _ in slopes]), np.array([error for _, error in slopes])

    def difference(self, leaf: Leaf, direction: Direction) -> tuple[HostArray, HostArray]:
        best = np.full(len(self.noise), np.nan)
        error = np.full(len(self.noise), np.inf)
        length = self.length(leaf, direction)
        step = STEP
        for _ in range(STEPS):
            wide = self.central(leaf, direction, step)
            narrow = self.central(leaf, direction, step / 2)
            extrapolated = narrow + (narrow - wide) / 3.0
            truncation = abs(narrow - wide)  # far more than is left of it
            rounding = NOISE_SAFETY * self.noise / (step * length)
            found = truncation + rounding
            is_better = found < error  # not so for NaN
            best = np.where(is_better, extrapolated, best)
            error = np.where(is_better, found, error)
            enough = np.maximum(self.tolerance * abs(best), rounding)
            if (truncation <= enough).all():
                break
            step /= SHRINK
        return best, error

    def length(self, leaf: Leaf, direction: Direction) -> float:
        """What a step of 1 in this direction is: of one element, in its own units."""
        if direction.index is None:
            return 1.0
        return float(leaf.scale.reshape(-1)[direction.index])

    def central(self, leaf: Leaf, direction: Direction, step: float) -> HostArray:
        x = leaf.tensor._data
        change = step * leaf.scale * direction.step
        above, below = x + change, x - change
        distance = 2.0 * step
        if direction.index is not None:  # as it was rounded
            i = direction.index
            distance = float(above.reshape(-1)[i] - below.reshape(-1)[i])
        if distance == 0.0:
            return np.full(1, np.nan)
        return (self.at([(leaf, above)]) - self.at([(leaf, below)])) / distance


def _signed(random: "np.random.Generator", shape: tuple[int, ...]) -> HostArray:
    """Random numbers of both signs, none of which is small: what they are multiplied with is
    seen."""
    return random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape)


def _part(step: Array, places: HostArray) -> Direction:
    """Some elements move, each as far as in a random direction."""
    part = array_module(step).zeros_like(step)
    part.reshape(-1)[places] = step.reshape(-1)[places]
    return Direction("a part of a random direction", part, None)


def _element(like: Array, index: int) -> Direction:
    """One element moves."""
    place = tuple(map(int, np.unravel_index(index, like.shape)))
    step = array_module(like).zeros(like.shape)
    step[place] = 1.0
    return Direction(f"index {place}", step, index)


@dataclass(frozen=True)
class Comparison:
    """Slopes of one leaf by the gradient and by differences, all (directions, projections)."""

    check: Check
    leaf: Leaf
    directions: Sequence[Direction]
    exact: HostArray
    size: HostArray
    measured: HostArray
    errors: HostArray

    def severity(self) -> HostArray:
        """How much more than what is allowed each slope is off; 0 where it is right."""
        off = abs(self.exact - self.measured)
        rounding = CANCELLATION * np.maximum(self.size, self.size.max())
        allowed = self.check.tolerance * abs(self.measured) + self.errors + rounding
        is_right = off <= allowed  # not so for NaN
        return np.where(is_right, 0.0, off / np.maximum(allowed, np.finfo(float).tiny))

    def run(self, recorded: bool) -> None:
        if not np.isfinite(self.errors).all():
            self.refuse(int(self.errors.argmax()))
        severity = self.severity()
        if severity.any():
            worst = int(severity.argmax())
            direction, _ = divmod(worst, self.exact.shape[1])
            if self.directions[direction].index is None:
                self.check.locate(self.leaf, recorded)
            self.fail(worst, recorded)
        uncertain = self.errors > RESOLUTION * self.visible()
        if uncertain.any():
            self.refuse(int(np.where(uncertain, self.errors, 0.0).argmax()))

    def visible(self) -> float:
        """The size of slopes that must be seen. Where all are 0 within their errors, this is a
        fraction of the result."""
        largest = max(self.size.max(), abs(self.measured).max())
        if largest > self.errors.max():
            return float(largest)
        result = float(abs(self.check.y._data).max())
        return VANISHING * result / float(self.leaf.scale.max())

    def place(self, i: int) -> str:
        direction, projection = divmod(i, self.exact.shape[1])
        where = f"{self.directions[direction].place}, {self.check.projection(projection)}"
        return f"order {self.check.order}, {self.leaf.name}, {where}"

    def fail(self, i: int, recorded: bool) -> None:
        exact, measured, error = (
            float(values.reshape(-1)[i]) for values in (self.exact, self.measured, self.errors)
        )
        how = " (recorded)" if recorded else ""
        raise GradientError(
            f"{self.place(i)}{how}: the gradient is {exact:.9g}, differences give "
            f"{measured:.9g} ± {error:.1g} (seed={self.check.seed})",
            f"both must agree to {self.check.tolerance} and the error of the differences",
            "correct the backward rule; or, if a kink is near, move the input away from it",
        )

    def refuse(self, i: int) -> None:
        measured, error = (float(values.reshape(-1)[i]) for values in (self.measured, self.errors))
        raise GradientError(
            f"{self.place(i)}: differences give {measured:.9g} ± {error:.1g} "
            f"(seed={self.check.seed})",
            "they check nothing, because rounding errors are too large, or a kink or an end of the "
            "domain is too near",
            "another input, or a function whose result is of the size of its changes",
        )
