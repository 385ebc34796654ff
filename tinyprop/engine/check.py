"""Gradients against central differences."""

from collections.abc import Callable, Sequence
from itertools import product

from .arrays import Array, array_module, as_array, float64, from_host, host_array, new_generator, to_numpy
from .errors import GradientError
from .graph import jacobian, node_of, pull_back
from .tensor import Tensor

SMALL = 64  # up to this many elements in and out, every single derivative is checked
STEP = 6e-6  # the cube root of rounding: where central differences are best
LOOKED_AT = 1000  # how many elements of a large input are tried one by one to find the one that is wrong

Function = Callable[..., Tensor]
Index = tuple[int, ...]


def check_gradients(f: Function, *inputs: Tensor | Array, order: int = 2, tolerance: float = 1e-6) -> None:
    """Compare the gradients of f with central differences in float64; raise GradientError where they differ.

    `order=2` checks the gradient of the gradient as well. Small functions are checked derivative by derivative,
    large ones along random directions in and out. Differences are meaningless next to a kink: stay away from them.

    >>> tp.check_gradients(lambda x, y: x * y + x**3, tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]))
    """
    random = new_generator(0)
    points = []
    for i, x in enumerate(inputs):
        array = x.data if isinstance(x, Tensor) else x
        _check_finite(array, f"input {i}")
        points.append(_leaf(array.astype(float64)))
    for n in range(1, order + 1):
        y = f(*points)
        _check_finite(y.data, "a result")
        u, *steps = [from_host(random.standard_normal(t.shape), like=t.data) for t in (y, *points)]
        for i, step in enumerate(steps):
            _check_input(_with_the_others_fixed(f, points, i), points[i], u, step, f"order {n}, input {i}", tolerance)
        f, points = _projected_gradient(f, steps), [*points, _leaf(u)]


def _leaf(array: Array) -> Tensor:
    return Tensor(as_array(array), requires_grad=True)


def _check_finite(array: Array, what: str) -> None:
    if not array_module(array).isfinite(array).all():
        raise GradientError(f"{what} with NaN or infinity in it", "differences need finite numbers", "another point")


def _with_the_others_fixed(f: Function, points: Sequence[Tensor], i: int) -> Function:
    return lambda x: f(*points[:i], x, *points[i + 1 :])


def _projected_gradient(f: Function, steps: Sequence[Array]) -> Function:
    """(*xs, u) -> the slope of <u, f(*xs)> in the direction of the steps: what the next order differentiates."""

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

    def difference(direction: Array) -> Array:
        return (f(_leaf(x.data + STEP * direction)).data - f(_leaf(x.data - STEP * direction)).data) / (2 * STEP)

    def along(index: Index) -> Array:
        direction = array_module(x.data).zeros_like(x.data)
        direction[index] = 1.0
        return difference(direction)

    def compare(exact: Array, measured: Array, size: float, places: Sequence[str]) -> None:
        exact, measured = to_numpy(exact).reshape(-1), to_numpy(measured).reshape(-1)
        off = abs(exact - measured)
        allowed = tolerance * (abs(exact) + abs(measured)).max(initial=0.0) + 1e-10 * size + 1e-9
        if not (off <= allowed).all():
            i = int(off.argmax())
            raise GradientError(
                f"{name}, {places[i]}: the gradient says {exact[i]:.9g}, differences say {measured[i]:.9g}",
                f"both must agree to {tolerance} of the largest derivative",
                "mend the backward rule; or, if a kink is near, move the input away from it",
            )

    y = f(x)
    indices = _indices(x.shape)
    if x.size <= SMALL and y.size <= SMALL:
        places = [f"index {i}, output {o}" for i in indices for o in _indices(y.shape)]
        exact = to_numpy(jacobian(f, x)).reshape(y.size, x.size).T
        measured = host_array([to_numpy(along(i)).reshape(-1) for i in indices])
        compare(exact, measured, float(abs(to_numpy(y.data)).max(initial=0.0)), places)
        return
    found = pull_back(y, Tensor(u), {x}, create_graph=False, retain_graph=False) if y.requires_grad else {}
    slope = found[x].data if x in found else array_module(x.data).zeros_like(x.data)
    size = float(abs(u * y.data).sum())
    try:
        compare((slope * step).sum(keepdims=True), (u * difference(step)).sum(keepdims=True), size, ["a random step"])
    except GradientError:
        some = indices[:: len(indices) // LOOKED_AT + 1]
        exact = host_array([float(slope[i]) for i in some])
        measured = host_array([float((u * along(i)).sum()) for i in some])
        compare(exact, measured, size, [f"index {i}" for i in some])
        raise


def _indices(shape: Index) -> list[Index]:
    return list(product(*map(range, shape)))
