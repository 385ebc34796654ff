"""Random programs of functions of the table (tinyprop/functional/table.py), with gradients of first
and second order, against PyTorch.

A program starts from an array. Each step applies a function to an earlier result, after `fitted`
has scaled and shifted it into the function's domain and away from its kinks, which the table
states. Further operands are earlier results that broadcast, or new inputs. PyTorch computes along
in float64, so the values are known while a program is drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tinyprop.functional as F
from tinyprop.functional.table import ALL, Domain, Row, functions

from .case import Array, Case, Random, chance, choice, described, integer, laid_out
from .oracle import Bound, Question, disagreement, torch, torch_tensor

MOST = 300  # elements of a result
GAP = 0.02  # to a kink, and between values that are compared with each other
RANGE = 2.5  # arguments lie within this distance of 0, so that derivatives stay moderate


class Unsuitable(Exception):
    """A function does not fit the values at hand: another one is drawn."""


@dataclass(frozen=True)
class Step:
    """A function of earlier results, by both libraries; an input has none."""

    words: str
    operands: list[int]
    ours: Callable[..., Any] | None = None
    theirs: Callable[..., Any] | None = None


@dataclass
class Program:
    """Steps, and what PyTorch finds after each of them."""

    rng: Random
    dtype: str
    steps: list[Step] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)

    def input(self, values: Array) -> int:
        """A new input."""
        array = laid_out(self.rng, np.asarray(values).astype(self.dtype))
        name = f"x{len(self.steps)}"
        self.inputs[name] = array
        self.steps.append(Step(f"{name} = {described(array)}", []))
        self.values.append(torch_tensor(array, "float64"))
        return len(self.steps) - 1

    def apply(self, words: str, operands: list[int], ours: Any, theirs: Any) -> int:
        """A new result."""
        with torch().no_grad():
            value = theirs(*(self.values[i] for i in operands))
        if value.numel() > MOST or not value.isfinite().all():
            raise Unsuitable
        names = ", ".join(f"x{i}" for i in operands)
        self.steps.append(Step(f"x{len(self.steps)} = {words} of {names}", operands, ours, theirs))
        self.values.append(value)
        return len(self.steps) - 1

    def run(self, which: str, leaves: tuple[Any, ...]) -> Any:
        """The last result, computed by one of the libraries."""
        given = iter(leaves)
        results: list[Any] = []
        for step in self.steps:
            function = getattr(step, which)
            operands = [results[i] for i in step.operands]
            results.append(next(given) if function is None else function(*operands))
        return results[-1]


def draw(rng: Random) -> Case:
    dtype = "float32" if chance(rng, 0.2) else "float64"
    program = Program(rng, dtype)
    shape = [integer(rng, 1, 4) for _ in range(choice(rng, [0, 1, 2, 2, 3, 4, 4]))]
    program.input(rng.uniform(-RANGE, RANGE, shape))
    wanted = integer(rng, 1, 6)
    for _ in range(4 * wanted):  # some do not fit
        applied = sum(step.ours is not None for step in program.steps)
        if applied >= wanted:
            break
        before = len(program.steps)
        try:
            DRAWERS[choice(rng, DRAWERS)](program)
        except Unsuitable:
            forget(program, before)
    question = Question(
        program.inputs,
        lambda *leaves: program.run("ours", leaves),
        lambda *leaves: program.run("theirs", leaves),
        order=choice(rng, [1, 1, 2]) if dtype == "float64" else 1,
        seed=integer(rng, 0, 2**31),
        bound=Bound(relative=1e-9, times=10.0, ulps=64.0),
    )
    plain = chance(rng, 0.3)
    words = "; ".join(step.words for step in program.steps) + f"; order {question.order}"
    return Case(words, lambda: disagreement(question, plain))


def forget(program: Program, count: int) -> None:
    """Go back to the first steps."""
    for name in [f"x{i}" for i in range(count, len(program.steps))]:
        program.inputs.pop(name, None)
    del program.steps[count:], program.values[count:]


# -- operands


def latest(program: Program) -> int:
    """A result to go on from: most often the last one."""
    last = len(program.steps) - 1
    return last if chance(program.rng, 0.7) else integer(program.rng, 0, last)


def interval(domain: Domain) -> tuple[float, float]:
    """Where arguments are put: inside the domain, with a distance from its end."""
    if domain.hole is not None:
        return domain.hole + 0.3, domain.hole + RANGE
    return max(domain.low + 0.3, -RANGE), RANGE


def fitted(program: Program, index: int, domain: Domain = ALL, kinks: Any = ()) -> int:
    """The result itself if all its values are in the domain and away from the kinks, otherwise
    scaled and shifted."""
    values = program.values[index].numpy()
    low, high = interval(domain)

    def fits(values: Array) -> bool:
        inside = values.size == 0 or (values.min() >= low and values.max() <= high)
        return inside and all((abs(values - kink) > GAP).all() for kink in kinks)

    if fits(values) and chance(program.rng, 0.5):
        return index
    spread = max(float(np.ptp(values)), 0.1) if values.size else 1.0
    for _ in range(10):
        length = program.rng.uniform(0.3, 1.0) * (high - low)
        scale = round(float(choice(program.rng, [-1, 1]) * min(length / spread, 2.0)), 3)
        scaled = scale * values
        room = (low - scaled.min(initial=0.0), high - scaled.max(initial=0.0))
        shift = round(float(program.rng.uniform(*sorted(room))), 3)
        if fits(scaled + shift):
            return scaled_and_shifted(program, index, scale, shift)
    raise Unsuitable


def scaled_and_shifted(program: Program, index: int, scale: float, shift: float) -> int:
    def function(x: Any) -> Any:
        return scale * x + shift

    return program.apply(f"{scale} x + {shift}", [index], function, function)


def broadcasting(program: Program, index: int) -> int:
    """Another operand: the same result, an earlier one that broadcasts against it, or a new input
    of some of its axes."""
    rng = program.rng
    shape = tuple(program.values[index].shape)
    if chance(rng, 0.5):
        other = integer(rng, 0, len(program.steps) - 1)
        try:
            np.broadcast_shapes(shape, tuple(program.values[other].shape))
        except ValueError:
            raise Unsuitable from None
        return other
    kept = shape[integer(rng, 0, len(shape)) :]
    lengths = [1 if chance(rng, 0.3) else length for length in kept]
    return program.input(rng.uniform(-RANGE, RANGE, lengths))


def some_axes(rng: Random, ndim: int, forms: tuple[str, ...]) -> Any:
    """An axis in one of these forms."""
    form = choice(rng, forms)
    if form == "None":
        return None
    if ndim == 0:
        raise Unsuitable
    if form == "int":
        return integer(rng, -ndim, ndim - 1)
    chosen = rng.permutation(ndim)[: integer(rng, 1, ndim)]
    return tuple(int(axis) - ndim * chance(rng, 0.3) for axis in chosen)


# -- functions of the table


def theirs_of(row: Row) -> Any:
    """PyTorch's function of that row."""
    assert row.torch is not None
    found = torch()
    for name in row.torch.split(".")[1:]:
        found = getattr(found, name)
    return found


def call(program: Program, row: Row, operands: list[int], **options: Any) -> int:
    """The function with these options, which have another name in PyTorch if the table says so."""
    renamed = {row.renamed.get(name, name): value for name, value in options.items()}
    if renamed.get("dim", ...) is None and row.name != "argmax":
        renamed["dim"] = tuple(range(program.values[operands[0]].ndim))
    theirs = theirs_of(row)
    words = ", ".join([row.name, *(f"{name}={value}" for name, value in options.items())])
    return program.apply(
        words,
        operands,
        lambda *xs: row.function(*xs, **options),
        lambda *xs: theirs(*xs, **renamed),
    )


def uniform(rng: Random, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)), 2)


PARAMETERS: dict[str, Callable[[Random], dict[str, float]]] = {
    "clip": lambda rng: {"low": uniform(rng, -2, 0), "high": uniform(rng, 0.1, 2)},
    "leaky_relu": lambda rng: {"a": uniform(rng, -1, 1)},
    "elu": lambda rng: {"alpha": uniform(rng, 0.2, 2)},
    "hardtanh": lambda rng: {"min_val": uniform(rng, -2, 0), "max_val": uniform(rng, 0.1, 2)},
}


def one_operand(row: Row) -> Callable[[Program], int]:
    def apply(program: Program) -> int:
        options = PARAMETERS.get(row.name, lambda rng: {})(program.rng)
        kinks = [options[kink] if isinstance(kink, str) else kink for kink in row.kinks]
        x = fitted(program, latest(program), row.domains[0], kinks)
        return call(program, row, [x], **options)

    return apply


def two_operands(row: Row) -> Callable[[Program], int]:
    def apply(program: Program) -> int:
        x = latest(program)
        y = broadcasting(program, x)
        domains = (*row.domains, ALL)
        x, y = fitted(program, x, domains[0]), fitted(program, y, domains[1])
        if "ties" in row.kinks:
            apart = (program.values[x] - program.values[y]).abs()
            if (apart < GAP).any():
                raise Unsuitable
        x, y = (x, y) if chance(program.rng, 0.5) or domains[0] != domains[1] else (y, x)
        return call(program, row, [x, y])

    return apply


def reduction(row: Row) -> Callable[[Program], int]:
    def apply(program: Program) -> int:
        rng = program.rng
        x = fitted(program, latest(program))
        values = program.values[x].numpy()
        axis = some_axes(rng, values.ndim, row.axes)
        options: dict[str, Any] = {"axis": axis, "keepdims": chance(rng, 0.4)}
        lengths = np.array(values.shape, int)
        axes = range(values.ndim) if axis is None else np.atleast_1d(axis)
        count = int(np.prod(lengths[list(axes)]))
        if "ddof" in row.renamed:
            options["ddof"] = integer(rng, 0, 1)
            if count < 2:
                raise Unsuitable
        if "ties" in row.kinks:
            require_no_ties(values, axes, count)
        if "all zero" in row.kinks and (values.std(axis=tuple(axes)) < GAP).any():
            raise Unsuitable
        return call(program, row, [x], **options)

    return apply


def require_no_ties(values: Array, axes: Any, count: int) -> None:
    """Along these axes together, all values are different."""
    if values.size == 0:
        raise Unsuitable
    front = np.moveaxis(values, list(axes), range(len(list(axes))))
    ordered = np.sort(front.reshape(count, -1), axis=0)
    if (np.diff(ordered, axis=0) < GAP / 10).any():
        raise Unsuitable


def along(row: Row) -> Callable[[Program], int]:
    """softmax or log_softmax. PyTorch has one axis only: several are written with logsumexp."""

    def apply(program: Program) -> int:
        x = fitted(program, latest(program))
        ndim = program.values[x].ndim
        axis = some_axes(program.rng, ndim, row.axes)
        if isinstance(axis, int):
            return call(program, row, [x], axis=axis)
        dims = tuple(range(ndim)) if axis is None else axis

        def theirs(x: Any) -> Any:
            logarithm = x - x.logsumexp(dims, keepdim=True)
            return logarithm if row.name == "log_softmax" else logarithm.exp()

        words = f"{row.name}, axis={axis}"
        return program.apply(words, [x], lambda x: row.function(x, axis=axis), theirs)

    return apply


def where(program: Program) -> int:
    x = latest(program)
    y = broadcasting(program, x)
    shape = np.broadcast_shapes(tuple(program.values[x].shape), tuple(program.values[y].shape))
    mask = program.rng.random(shape) < 0.5
    return program.apply(
        f"where({mask.tolist()}, x, y)",
        [x, y],
        lambda x, y: F.where(mask, x, y),
        lambda x, y: torch().where(torch_tensor(mask), x, y),
    )


def prelu(program: Program) -> int:
    x = latest(program)
    if program.values[x].ndim < 2:
        raise Unsuitable
    x = fitted(program, x, kinks=(0.0,))
    slopes = program.input(program.rng.uniform(-1.0, 1.0, program.values[x].shape[1]))
    return call(program, functions["prelu"], [x, slopes])


# -- shapes


def reshape(program: Program) -> int:
    x = latest(program)
    left, shape = program.values[x].numel(), []
    if left == 0:
        raise Unsuitable
    while left > 1:
        shape.append(choice(program.rng, [n for n in range(1, left + 1) if left % n == 0]))
        left //= shape[-1]
    if shape and chance(program.rng, 0.3):
        shape[integer(program.rng, 0, len(shape) - 1)] = -1
    return call(program, functions["reshape"], [x], shape=tuple(shape))


def transpose(program: Program) -> int:
    x = latest(program)
    axes = tuple(int(axis) for axis in program.rng.permutation(program.values[x].ndim))
    return call(program, functions["transpose"], [x], axes=axes)


def flatten(program: Program) -> int:
    x = latest(program)
    if program.values[x].ndim == 0:
        raise Unsuitable
    start = integer(program.rng, 0, program.values[x].ndim - 1)
    return call(program, functions["flatten"], [x], start_axis=start)


def squeeze(program: Program) -> int:
    x = latest(program)
    ones = [axis for axis, length in enumerate(program.values[x].shape) if length == 1]
    if not ones:
        raise Unsuitable
    axis = choice(program.rng, [None, ones[0], tuple(ones)])
    return call(program, functions["squeeze"], [x], axis=axis)


def flip(program: Program) -> int:
    x = latest(program)
    axes = some_axes(program.rng, program.values[x].ndim, ("None", "int", "tuple"))
    every = range(program.values[x].ndim) if axes is None else np.atleast_1d(axes).tolist()
    return program.apply(
        f"flip, axis={axes}",
        [x],
        lambda x: F.flip(x, axis=axes),
        lambda x: torch().flip(x, tuple(every)),
    )


def split(program: Program) -> int:
    x = latest(program)
    shape = program.values[x].shape
    axis = some_axes(program.rng, len(shape), ("int",))
    if shape[axis] == 0:
        raise Unsuitable
    size = integer(program.rng, 1, shape[axis])
    part = integer(program.rng, 0, -(-shape[axis] // size) - 1)
    return program.apply(
        f"part {part} of split, size={size}, axis={axis}",
        [x],
        lambda x: F.split(x, size, axis=axis)[part],
        lambda x: torch().split(x, size, dim=axis)[part],
    )


def broadcast_to(program: Program) -> int:
    x = latest(program)
    lengths = [
        integer(program.rng, 1, 3) if length == 1 else length for length in program.values[x].shape
    ]
    front = [integer(program.rng, 1, 3) for _ in range(integer(program.rng, 0, 1))]
    return call(program, functions["broadcast_to"], [x], shape=(*front, *lengths))


def pad(program: Program) -> int:
    x = latest(program)
    rng = program.rng
    widths = [(integer(rng, 0, 2), integer(rng, 0, 2)) for _ in program.values[x].shape]
    value = uniform(rng, -1, 1)
    backwards = [width for pair in widths[::-1] for width in pair]
    return program.apply(
        f"pad, widths={widths}, value={value}",
        [x],
        lambda x: F.pad(x, widths, value),
        lambda x: torch().nn.functional.pad(x, backwards, value=value) if widths else x * 1.0,
    )


def index(program: Program) -> int:
    """NumPy says which elements an index picks; PyTorch takes them by their numbers."""
    x = latest(program)
    rng = program.rng
    shape = tuple(program.values[x].shape)
    where: list[Any] = []
    for length in shape[: integer(rng, 0, len(shape))]:
        if chance(rng, 0.1):
            where.append(None)  # a new axis
        where.append(index_of_axis(rng, length))
    if chance(rng, 0.2):
        where.append(...)
    picked: Any = tuple(where)
    if shape and chance(rng, 0.15):
        picked = rng.random(shape) < 0.5  # a mask
    numbers = torch_tensor(np.arange(math.prod(shape)).reshape(shape)[picked])
    return program.apply(
        f"[{picked!r}]",
        [x],
        lambda x: x[picked],
        lambda x: x.reshape(-1)[numbers.reshape(-1)].reshape(numbers.shape),
    )


def index_of_axis(rng: Random, length: int) -> Any:
    """A slice, a position, or an array or list of positions."""
    if length == 0:
        return slice(None)
    positions = rng.integers(-length, length, 3)
    forms = [
        slice(None),
        slice(None, None, -1),
        slice(integer(rng, 0, length - 1), None, integer(rng, 1, 2)),
        slice(None, integer(rng, -length, length)),
        integer(rng, -length, length - 1),
        positions,
        positions.tolist(),
    ]
    return choice(rng, forms)


def join(row: Row) -> Callable[[Program], int]:
    def apply(program: Program) -> int:
        x = latest(program)
        shape = program.values[x].shape
        same = [i for i, value in enumerate(program.values) if value.shape == shape]
        operands = [choice(program.rng, same) for _ in range(integer(program.rng, 1, 3))]
        ndim = len(shape) + (row.name == "stack")
        axis = some_axes(program.rng, ndim, row.axes)
        theirs = theirs_of(row)
        return program.apply(
            f"{row.name}, axis={axis}",
            operands,
            lambda *xs: row.function(list(xs), axis=axis),
            lambda *xs: theirs(list(xs), dim=axis),
        )

    return apply


# -- products, images, normalisers


def matmul(program: Program) -> int:
    rng = program.rng
    x = latest(program)
    shape = program.values[x].shape
    if not shape:
        raise Unsuitable
    other = [shape[-1], *([integer(rng, 1, 3)] if chance(rng, 0.7) else [])]
    if len(shape) > 2 and len(other) == 2 and chance(rng, 0.5):
        other = [*(1 if chance(rng, 0.3) else length for length in shape[:-2]), *other]
    y = program.input(rng.uniform(-1.0, 1.0, other))
    return call(program, functions["matmul"], [x, y])


def linear(program: Program) -> int:
    rng = program.rng
    x = latest(program)
    shape = program.values[x].shape
    if not shape:
        raise Unsuitable
    units = integer(rng, 1, 3)
    operands = [x, program.input(rng.uniform(-1.0, 1.0, (units, shape[-1])))]
    if chance(rng, 0.5):
        operands.append(program.input(rng.uniform(-1.0, 1.0, units)))
    return call(program, functions["linear"], operands)


def of_images(program: Program) -> int:
    x = latest(program)
    if program.values[x].ndim != 4 or 0 in program.values[x].shape:
        raise Unsuitable
    return fitted(program, x)


def conv2d(program: Program) -> int:
    rng = program.rng
    x = of_images(program)
    _, channels, height, width = program.values[x].shape
    size = (integer(rng, 1, min(3, height)), integer(rng, 1, min(3, width)))
    weight = program.input(rng.uniform(-1.0, 1.0, (integer(rng, 1, 3), channels, *size)))
    padding = integer(rng, 0, 1)
    return call(program, functions["conv2d"], [x, weight], padding=padding)


def max_pool2d(program: Program) -> int:
    x = of_images(program)
    values = program.values[x].numpy()
    size = tuple(integer(program.rng, 1, length) for length in values.shape[2:])
    require_no_ties(values, (2, 3), values.shape[2] * values.shape[3])
    return call(program, functions["max_pool2d"], [x], kernel_size=size)


def avg_pool2d(program: Program) -> int:
    x = of_images(program)
    size = tuple(integer(program.rng, 1, length) for length in program.values[x].shape[2:])
    return call(program, functions["avg_pool2d"], [x], kernel_size=size)


def last_axis(program: Program) -> int:
    """A result whose last axis has a spread everywhere."""
    x = fitted(program, latest(program))
    values = program.values[x].numpy()
    if values.ndim < 2 or values.size == 0 or values.shape[-1] < 3:
        raise Unsuitable
    if (values.std(axis=-1) < 0.2).any():
        raise Unsuitable
    return x


def layer_norm(program: Program) -> int:
    x = last_axis(program)
    shape = (program.values[x].shape[-1],)
    weight = program.input(program.rng.uniform(0.5, 2.0, shape))
    bias = program.input(program.rng.uniform(-1.0, 1.0, shape))
    return program.apply(
        f"layer_norm over {shape}",
        [x, weight, bias],
        lambda x, w, b: F.layer_norm(x, shape, w, b),
        lambda x, w, b: torch().nn.functional.layer_norm(x, shape, w, b),
    )


def rms_norm(program: Program) -> int:
    x = last_axis(program)
    shape = (program.values[x].shape[-1],)
    return call(program, functions["rms_norm"], [x], normalized_shape=shape, eps=1e-5)


def cross_entropy(program: Program) -> int:
    x = fitted(program, latest(program))
    values = program.values[x]
    if values.ndim < 2 or 0 in values.shape:
        raise Unsuitable
    labels = program.rng.integers(0, values.shape[1], (values.shape[0], *values.shape[2:]))
    reduction = choice(program.rng, ["mean", "sum", "none"])
    return program.apply(
        f"cross_entropy with {labels.tolist()}, reduction={reduction}",
        [x],
        lambda x: F.cross_entropy(x, labels, reduction),
        lambda x: torch().nn.functional.cross_entropy(x, torch_tensor(labels), reduction=reduction),
    )


def mse_loss(program: Program) -> int:
    x = latest(program)
    target = program.input(program.rng.uniform(-1.0, 1.0, tuple(program.values[x].shape)))
    reduction = choice(program.rng, ["mean", "sum", "none"])
    return call(program, functions["mse_loss"], [x, target], reduction=reduction)


# -- which function is drawn how

BY_HAND = {
    function.__name__: function
    for function in (
        where,
        prelu,
        reshape,
        transpose,
        flatten,
        squeeze,
        flip,
        split,
        broadcast_to,
        pad,
        matmul,
        linear,
        conv2d,
        max_pool2d,
        avg_pool2d,
        layer_norm,
        rms_norm,
        cross_entropy,
        mse_loss,
    )
}
FORMS: dict[str, Callable[[Row], Callable[[Program], int]]] = {
    "reduction": reduction,
    "along": along,
    "join": join,
}
# Other kinds draw these (normalizers, losses), or they have no gradient or counterpart to compare.
ELSEWHERE = {
    "argmax",
    "astype",
    "batch_norm",
    "dropout",
    "exact_convolution",
    "group_norm",
    "nll_loss",
    "normprop",
    "to",
    "weight_norm",
}


def drawers() -> dict[str, Callable[[Program], int]]:
    """How each function of the table is drawn, and indexing."""
    found: dict[str, Callable[[Program], int]] = {"index": index}
    for name, row in functions.items():
        if name in BY_HAND:
            found[name] = BY_HAND[name]
        elif name in ELSEWHERE:
            continue
        elif row.form == "elementwise":
            found[name] = one_operand(row) if len(row.shapes) == 1 else two_operands(row)
        else:
            found[name] = FORMS[row.form](row)
    return found


DRAWERS = drawers()
