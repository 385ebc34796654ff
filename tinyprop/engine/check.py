"""Gradients against central differences."""

from collections.abc import Callable, Sequence
from itertools import product

from .arrays import Array, array_module, as_array, float64, from_host, host_array, new_generator, to_numpy
from .backward import node_of, pull_back
from .errors import GradientError
from .tensor import Tensor

SMALL = 64  # up to this many elements in and out, every single derivative is checked
STEP = 6e-6  # the cube root of rounding, where central differences are most accurate
PROBED = 1000  # how many elements of a large input are tried one by one to locate an error

Function = Callable[..., Tensor]
Index = tuple[int, ...]


def check_gradients(f: Function, *inputs: Tensor | Array, order: int = 2, tolerance: float = 1e-6) -> None:
    """Compare the gradients of f with central differences in float64; raise GradientError where they differ.

    Both gradients are checked: the one that is computed without a graph, and the recorded one (create_graph=True).
    `order=2` checks the gradient of the gradient as well. Small functions are checked derivative by derivative, large
    ones along random directions. Differences are meaningless next to a kink: choose inputs away from it.

    >>> tp.check_gradients(lambda x, y: x * y + x**3, tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]))
    """
    random = new_generator(0)
    points = []
    for i, x in enumerate(inputs):
        array = x._data if isinstance(x, Tensor) else x
        _check_finite(array, f"input {i}")
        points.append(_leaf(array.astype(float64)))
    for n in range(1, order + 1):
        y = f(*points)
        _check_finite(y._data, "a result")
        u, *steps = [from_host(random.standard_normal(t.shape), like=t._data) for t in (y, *points)]
        for i, step in enumerate(steps):
            _check_input(_with_others_fixed(f, points, i), points[i], u, step, f"order {n}, input {i}", tolerance)
        f, points = _projected_gradient(f, steps), [*points, _leaf(u)]


def _leaf(array: Array) -> Tensor:
    return Tensor(as_array(array), requires_grad=True)


def _check_finite(array: Array, what: str) -> None:
    if not array_module(array).isfinite(array).all():
        raise GradientError(f"{what} with NaN or infinity in it", "differences need finite numbers", "another point")


def _with_others_fixed(f: Function, points: Sequence[Tensor], i: int) -> Function:
    return lambda x: f(*points[:i], x, *points[i + 1 :])


def _projected_gradient(f: Function, steps: Sequence[Array]) -> Function:
    """(*xs, u) -> the slope of <u, f(*xs)> along the steps: what the next order differentiates."""

    def slope(*xs_and_u: Tensor) -> Tensor:
        *xs, u = xs_and_u
        y = f(*xs)
        nodes = [node_of(x) for x in xs]
        found = pull_back(y, u, set(nodes), create_graph=True, retain_graph=True) if y.requires_grad else {}
        total = (u * 0.0).sum()
        for node, step in zip(nodes, steps, strict=True):
            if node in found:
                total = total + (found[node] * step).sum()
        return total

    return slope


def _check_input(f: Function, x: Tensor, u: Array, step: Array, name: str, tolerance: float) -> None:
    """Check f at x: every derivative, or <u, f> along a step and, if that is off, element by element."""
    xp, y, indices = array_module(x._data), f(x), _indices(x.shape)

    def gradient(u: Array, recorded: bool) -> Array:
        found = pull_back(y, Tensor(u), {x}, recorded, retain_graph=True) if y.requires_grad else {}
        return found[x]._data if x in found else xp.zeros_like(x._data)

    def difference(direction: Array) -> Array:
        return (f(_leaf(x._data + STEP * direction))._data - f(_leaf(x._data - STEP * direction))._data) / (2 * STEP)

    def unit(like: Array, index: Index) -> Array:
        direction = array_module(like).zeros_like(like)
        direction[index] = 1.0
        return direction

    def compare(exact: Array, measured: Array, size: float, places: Sequence[str]) -> None:
        exact, measured = to_numpy(exact).reshape(-1), to_numpy(measured).reshape(-1)
        off = abs(exact - measured)
        allowed = tolerance * (abs(exact) + abs(measured)).max(initial=0.0) + 1e-10 * size + 1e-9
        if not (off <= allowed).all():
            i = int(off.argmax())
            raise GradientError(
                f"{name}, {places[i]}: the gradient is {exact[i]:.9g}, differences give {measured[i]:.9g}",
                f"both must agree to {tolerance} of the largest derivative",
                "correct the backward rule; or, if a kink is near, move the input away from it",
            )

    small = x.size <= SMALL and y.size <= SMALL
    if small:
        outputs = _indices(y.shape)
        columns = host_array([to_numpy(difference(unit(x._data, i))).reshape(-1) for i in indices])  # (x.size, y.size)
        size = float(abs(to_numpy(y._data)).max(initial=0.0))
    for recorded in (False, True):
        kind = " (recorded)" if recorded else ""
        if small:
            rows = host_array([to_numpy(gradient(unit(y._data, o), recorded)).reshape(-1) for o in outputs])
            places = [f"index {i}, output {o}{kind}" for i in indices for o in outputs]
            compare(rows.reshape(y.size, x.size).T, columns, size, places)
            continue
        slope, size = gradient(u, recorded), float(abs(u * y._data).sum())
        measured = (u * difference(step)).sum(keepdims=True)
        try:
            compare((slope * step).sum(keepdims=True), measured, size, [f"a random direction{kind}"])
        except GradientError:
            some = indices[:: len(indices) // PROBED + 1]
            exact = host_array([float(slope[i]) for i in some])
            measured = host_array([float((u * difference(unit(x._data, i))).sum()) for i in some])
            compare(exact, measured, size, [f"index {i}{kind}" for i in some])
            raise


def _indices(shape: Index) -> list[Index]:
    return list(product(*map(range, shape)))
