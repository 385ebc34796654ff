"""Derivatives of functions: Jacobians, Hessians, Jacobian-vector products, and a check against
central differences."""

from collections.abc import Callable, Sequence
from itertools import product

from .. import functional as F
from ..engine.arrays import Array, array_module, as_array, float64, from_host, host_array, to_numpy
from ..engine.backward import grad, inputs_first, node_of, pull_back
from ..engine.context import context, current
from ..engine.errors import GradientError, ShapeError
from ..engine.graph import recording, recording_now
from ..engine.random import new_generator
from ..engine.tensor import Tensor, as_tensor, check_elements

Function = Callable[[Tensor], Tensor]
Index = tuple[int, ...]

SMALL = 64  # up to this many elements in and out, every single derivative is checked
STEP = 6e-6  # the cube root of rounding, where central differences are most accurate
PROBED = 1000  # how many elements of a large input are tried one by one to locate an error


def _input(x: Tensor) -> tuple[Tensor, bool]:
    """An input that requires a gradient, and whether the derivative is to be differentiable."""
    check_elements(x.dtype, requires_grad=True)
    if x.requires_grad:
        return x, recording_now()
    return Tensor(x._data, requires_grad=True)._share(
        x
    ), recording_now() and current().differentiating


def _output(f: Function, x: Tensor, name: str) -> Tensor:
    """f(x), refused if it does not depend on x: the derivative would be zeros because no graph was
    recorded."""
    with context(recording=True, differentiating=True):
        y = f(x)
    if not (
        isinstance(y, Tensor)
        and any(node is node_of(x) for nodes in inputs_first(node_of(y)) for node in nodes)
    ):
        raise GradientError(
            f"{name} of a function whose result does not depend on its input through a graph",
            "the function must compute with tensors, without detach(), .data or no_grad()",
            "write it with tp.functional; the derivative of a constant is not computed",
        )
    return y


def _rows(y: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """The derivatives of y with respect to x, shape (*y.shape, *x.shape); zeros where y does not
    depend on x."""
    xp, node, rows = array_module(x._data), node_of(x), []
    for i in range(y.size):
        seed = xp.zeros(y.size, y.dtype)
        seed[i] = 1
        found = pull_back(y, Tensor(seed.reshape(y.shape)), {node}, create_graph, retain_graph=True)
        rows.append(found[node] if node in found else Tensor(xp.zeros(x.shape, x.dtype)))
    return (
        F.stack(rows).reshape(*y.shape, *x.shape)
        if rows
        else Tensor(xp.zeros(y.shape + x.shape, x.dtype))
    )


def jacobian(f: Function, x: Tensor) -> Tensor:
    """All derivatives of f at x, as a tensor of shape (*f(x).shape, *x.shape).

    If x requires a gradient, so does the result: a Jacobian can be differentiated, and nested.

    >>> tp.jacobian(lambda x: x * x, tp.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    x, create_graph = _input(x)
    return _rows(_output(f, x, "jacobian"), x, create_graph)


def hessian(f: Function, x: Tensor) -> Tensor:
    """The second derivatives of a scalar function at x, as a tensor of shape (*x.shape, *x.shape).

    >>> tp.hessian(lambda x: (x**3).sum(), tp.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    x, create_graph = _input(x)
    y = _output(f, x, "hessian")
    if y.size != 1:
        raise ShapeError(
            f"hessian of a function with result {y.shape}",
            "the result is a scalar",
            "sum(), or jacobian",
        )
    (gradient,) = grad(
        y, [x], Tensor(array_module(x._data).ones(y.shape, y.dtype)), create_graph=True
    )
    if not gradient.requires_grad:  # f is linear in x
        return Tensor(array_module(x._data).zeros(x.shape + x.shape, x.dtype))
    return _rows(gradient, x, create_graph)


def jvp(f: Function, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """f(x), and the product of its Jacobian with a vector v of x's shape: the derivative of f in
    the direction v.

    The vector-Jacobian product u -> u J is linear in u, and its transpose applied to v is J v.

    >>> tp.jvp(lambda x: x * x, tp.tensor([1.0, 2.0]), tp.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    if v.shape != x.shape:
        raise ShapeError(
            f"jvp at x {x.shape} with v {v.shape}", "v has the shape of x", f"v.reshape{x.shape}"
        )
    differentiable = recording_now() and (
        x.requires_grad or v.requires_grad or current().differentiating
    )
    x, _ = _input(x)
    y = _output(f, x, "jvp")
    u = Tensor(array_module(y._data).zeros(y.shape, y.dtype), requires_grad=True)
    with recording(True):
        (pulled,) = grad(y, [x], u, create_graph=True)
        (pushed,) = grad(F.sum(pulled * v), [u], create_graph=differentiable)
    return (y if differentiable else y.detach()), pushed


def check_gradients(
    f: Callable[..., Tensor], *inputs: Tensor | Array, order: int = 2, tolerance: float = 1e-6
) -> None:
    """Compare the gradients of f with central differences in float64; raise GradientError where
    they differ.

    Both gradients are checked: the one that is computed without a graph, and the recorded one
    (create_graph=True). `order=2` checks the gradient of the gradient as well. Small functions are
    checked derivative by derivative, large ones along random directions. Differences are
    meaningless next to a kink: choose inputs away from it.

    >>> tp.check_gradients(lambda x, y: x * y + x**3, tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]))
    """
    random = new_generator(0)
    points = []
    for i, x in enumerate(inputs):
        array = as_tensor(x)._data
        _check_finite(array, f"input {i}")
        points.append(_leaf(array.astype(float64)))
    for n in range(1, order + 1):
        y = f(*points)
        _check_finite(y._data, "a result")
        u, *steps = [from_host(random.standard_normal(t.shape), like=t._data) for t in (y, *points)]
        for i, step in enumerate(steps):
            _check_input(
                _with_others_fixed(f, points, i),
                points[i],
                u,
                step,
                f"order {n}, input {i}",
                tolerance,
            )
        f, points = _projected_gradient(f, steps), [*points, _leaf(u)]


def _leaf(array: Array) -> Tensor:
    return Tensor(as_array(array), requires_grad=True)


def _check_finite(array: Array, what: str) -> None:
    if not array_module(array).isfinite(array).all():
        raise GradientError(
            f"{what} with NaN or infinity in it", "differences need finite numbers", "another point"
        )


def _with_others_fixed(
    f: Callable[..., Tensor], points: Sequence[Tensor], i: int
) -> Callable[..., Tensor]:
    return lambda x: f(*points[:i], x, *points[i + 1 :])


def _projected_gradient(f: Callable[..., Tensor], steps: Sequence[Array]) -> Callable[..., Tensor]:
    """(*xs, u) -> the slope of <u, f(*xs)> along the steps: what the next order differentiates."""

    def slope(*xs_and_u: Tensor) -> Tensor:
        *xs, u = xs_and_u
        y = f(*xs)
        nodes = [node_of(x) for x in xs]
        found = (
            pull_back(y, u, set(nodes), create_graph=True, retain_graph=True)
            if y.requires_grad
            else {}
        )
        total = (u * 0.0).sum()
        for node, step in zip(nodes, steps, strict=True):
            if node in found:
                total = total + (found[node] * step).sum()
        return total

    return slope


def _check_input(
    f: Callable[..., Tensor], x: Tensor, u: Array, step: Array, name: str, tolerance: float
) -> None:
    """Check f at x: every derivative, or <u, f> along a step and, if that is off, element by
    element."""
    xp, y, indices = array_module(x._data), f(x), _indices(x.shape)

    def gradient(u: Array, recorded: bool) -> Array:
        found = pull_back(y, Tensor(u), {x}, recorded, retain_graph=True) if y.requires_grad else {}
        return found[x]._data if x in found else xp.zeros_like(x._data)

    def difference(direction: Array) -> Array:
        return (
            f(_leaf(x._data + STEP * direction))._data - f(_leaf(x._data - STEP * direction))._data
        ) / (2 * STEP)

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
                (
                    f"{name}, {places[i]}: the gradient is {exact[i]:.9g}, differences give "
                    f"{measured[i]:.9g}"
                ),
                f"both must agree to {tolerance} of the largest derivative",
                "correct the backward rule; or, if a kink is near, move the input away from it",
            )

    small = x.size <= SMALL and y.size <= SMALL
    if small:
        outputs = _indices(y.shape)
        # (x.size, y.size)
        columns = host_array([to_numpy(difference(unit(x._data, i))).reshape(-1) for i in indices])
        size = float(abs(to_numpy(y._data)).max(initial=0.0))
    for recorded in (False, True):
        kind = " (recorded)" if recorded else ""
        if small:
            rows = host_array(
                [to_numpy(gradient(unit(y._data, o), recorded)).reshape(-1) for o in outputs]
            )
            places = [f"index {i}, output {o}{kind}" for i in indices for o in outputs]
            compare(rows.reshape(y.size, x.size).T, columns, size, places)
            continue
        slope, size = gradient(u, recorded), float(abs(u * y._data).sum())
        measured = (u * difference(step)).sum(keepdims=True)
        try:
            compare(
                (slope * step).sum(keepdims=True), measured, size, [f"a random direction{kind}"]
            )
        except GradientError:
            some = indices[:: len(indices) // PROBED + 1]
            exact = host_array([float(slope[i]) for i in some])
            measured = host_array([float((u * difference(unit(x._data, i))).sum()) for i in some])
            compare(exact, measured, size, [f"index {i}{kind}" for i in some])
            raise


def _indices(shape: Index) -> list[Index]:
    return list(product(*map(range, shape)))
