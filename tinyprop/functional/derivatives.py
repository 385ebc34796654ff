"""Derivatives of functions: Jacobians, Hessians, Jacobian-vector products, and a check against
central differences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from ..engine.arrays import (
    Array,
    HostArray,
    array_module,
    as_array,
    float64,
    from_host,
    host_array,
    to_numpy,
)
from ..engine.backward import grad, inputs_first, node_of, pull_back
from ..engine.context import context, current
from ..engine.errors import GradientError, ShapeError
from ..engine.graph import recording, recording_now
from ..engine.random import new_generator
from ..engine.sums import total
from ..engine.tensor import Tensor, as_tensor, check_elements
from .reductions import sum as sum_over
from .shapes import stack

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
    leaf = Tensor(x._data, requires_grad=True)._share(x)
    return leaf, recording_now() and current().differentiating


def _output(f: Function, x: Tensor, name: str) -> Tensor:
    """f(x), refused if it does not depend on x: the derivative would be zeros because no graph was
    recorded."""
    with context(recording=True, differentiating=True):
        y = f(x)
    if not isinstance(y, Tensor) or not _depends_on(y, x):
        raise GradientError(
            f"{name} of a function whose result does not depend on its input through a graph",
            "the function must compute with tensors, without detach(), .data or no_grad()",
            "write it with tp.functional; the derivative of a constant is not computed",
        )
    return y


def _depends_on(y: Tensor, x: Tensor) -> bool:
    ops, leaves = inputs_first(node_of(y))
    return any(node is node_of(x) for node in (*ops, *leaves))


def _rows(y: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """The derivatives of y with respect to x, shape (*y.shape, *x.shape); zeros where y does not
    depend on x."""
    xp = array_module(x._data)
    if y.size == 0:
        return Tensor(xp.zeros(y.shape + x.shape, x.dtype))
    node = node_of(x)
    rows = []
    for i in range(y.size):
        seed = xp.zeros(y.size, y.dtype)
        seed[i] = 1
        cotangent = Tensor(seed.reshape(y.shape))
        gradients = pull_back(y, cotangent, {node}, create_graph, retain_graph=True)
        row = gradients.get(node)
        rows.append(Tensor(xp.zeros(x.shape, x.dtype)) if row is None else row)
    return stack(rows).reshape(*y.shape, *x.shape)


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
        got = f"hessian of a function with result {y.shape}"
        raise ShapeError(got, "the result is a scalar", "sum(), or jacobian")
    xp = array_module(x._data)
    (gradient,) = grad(y, [x], Tensor(xp.ones(y.shape, y.dtype)), create_graph=True)
    if not gradient.requires_grad:  # f is linear in x
        return Tensor(xp.zeros(x.shape + x.shape, x.dtype))
    return _rows(gradient, x, create_graph)


def jvp(f: Function, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """f(x), and the product of its Jacobian with a vector v of x's shape: the derivative of f in
    the direction v.

    The vector-Jacobian product u -> u J is linear in u, and its transpose applied to v is J v.

    >>> tp.jvp(lambda x: x * x, tp.tensor([1.0, 2.0]), tp.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    if v.shape != x.shape:
        got = f"jvp at x {x.shape} with v {v.shape}"
        raise ShapeError(got, "v has the shape of x", f"v.reshape{x.shape}")
    asked_for = x.requires_grad or v.requires_grad or current().differentiating
    differentiable = recording_now() and asked_for
    x, _ = _input(x)
    y = _output(f, x, "jvp")
    u = Tensor(array_module(y._data).zeros(y.shape, y.dtype), requires_grad=True)
    with recording(True):
        (pulled,) = grad(y, [x], u, create_graph=True)
        (pushed,) = grad(sum_over(pulled * v), [u], create_graph=differentiable)
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
        u = from_host(random.standard_normal(y.shape), like=y._data)
        steps = [from_host(random.standard_normal(x.shape), like=x._data) for x in points]
        for i, x in enumerate(points):
            check = GradientCheck(
                f"order {n}, input {i}", tolerance, _with_others_fixed(f, points, i), x
            )
            check.run(u, steps[i])
        f = _projected_gradient(f, steps)
        points = [*points, _leaf(u)]


def _leaf(array: Array) -> Tensor:
    return Tensor(as_array(array), requires_grad=True)


def _check_finite(array: Array, what: str) -> None:
    if not array_module(array).isfinite(array).all():
        raise GradientError(
            f"{what} with NaN or infinity in it", "differences need finite numbers", "another point"
        )


def _with_others_fixed(f: Callable[..., Tensor], points: Sequence[Tensor], i: int) -> Function:
    return lambda x: f(*points[:i], x, *points[i + 1 :])


def _projected_gradient(f: Callable[..., Tensor], steps: Sequence[Array]) -> Callable[..., Tensor]:
    """(*xs, u) -> the slope of <u, f(*xs)> along the steps: what the next order differentiates."""

    def slope(*xs_and_u: Tensor) -> Tensor:
        *xs, u = xs_and_u
        y = f(*xs)
        slope_along_steps = sum_over(u * 0.0)
        if not y.requires_grad:
            return slope_along_steps
        nodes = [node_of(x) for x in xs]
        gradients = pull_back(y, u, set(nodes), create_graph=True, retain_graph=True)
        for node, step in zip(nodes, steps, strict=True):
            if node in gradients:
                slope_along_steps = slope_along_steps + sum_over(gradients[node] * step)
        return slope_along_steps

    return slope


@dataclass(frozen=True)
class GradientCheck:
    """The check of a function of one input at a point x."""

    name: str
    tolerance: float
    f: Function
    x: Tensor

    def run(self, u: Array, step: Array) -> None:
        """Check every derivative, or, of a large function, the slope of <u, f> along a step."""
        y = self.f(self.x)
        small = self.x.size <= SMALL and y.size <= SMALL
        if small:
            self.every_derivative(y)
        else:
            self.one_direction(y, u, step)

    def every_derivative(self, y: Tensor) -> None:
        inputs, outputs = _indices(self.x.shape), _indices(y.shape)
        columns = [self.difference(_unit(self.x._data, i)) for i in inputs]
        measured = _matrix(columns, y.size)  # (x.size, y.size)
        size = float(abs(to_numpy(y._data)).max(initial=0.0))
        for recorded in (False, True):
            rows = [self.gradient(y, _unit(y._data, o), recorded) for o in outputs]
            exact = _matrix(rows, self.x.size).T  # (x.size, y.size)
            places = [f"index {i}, output {o}" for i in inputs for o in outputs]
            self.compare(exact, measured, size, places, recorded)

    def one_direction(self, y: Tensor, u: Array, step: Array) -> None:
        """If the slope along the step is wrong, elements are tried one by one to locate the
        error."""
        size = float(total(abs(u * y._data)))
        measured = total(u * self.difference(step), keepdims=True)
        for recorded in (False, True):
            gradient = self.gradient(y, u, recorded)
            exact = total(gradient * step, keepdims=True)
            try:
                self.compare(exact, measured, size, ["a random direction"], recorded)
            except GradientError:
                self.some_elements(gradient, u, size, recorded)
                raise

    def some_elements(self, gradient: Array, u: Array, size: float, recorded: bool) -> None:
        indices = _indices(self.x.shape)
        some = indices[:: len(indices) // PROBED + 1]
        exact = [float(gradient[i]) for i in some]
        measured = [float(total(u * self.difference(_unit(self.x._data, i)))) for i in some]
        places = [f"index {i}" for i in some]
        self.compare(host_array(exact), host_array(measured), size, places, recorded)

    def gradient(self, y: Tensor, u: Array, recorded: bool) -> Array:
        """The gradient of <u, y> with respect to x, computed with or without a graph."""
        if not y.requires_grad:
            return array_module(self.x._data).zeros_like(self.x._data)
        gradients = pull_back(y, Tensor(u), {self.x}, recorded, retain_graph=True)
        if self.x not in gradients:
            return array_module(self.x._data).zeros_like(self.x._data)
        return gradients[self.x]._data

    def difference(self, direction: Array) -> Array:
        """The central difference of f at x along a direction."""
        above = self.f(_leaf(self.x._data + STEP * direction))._data
        below = self.f(_leaf(self.x._data - STEP * direction))._data
        return (above - below) / (2 * STEP)

    def compare(
        self, exact: Array, measured: Array, size: float, places: Sequence[str], recorded: bool
    ) -> None:
        """Raise an error at the place where two arrays differ most, unless they agree. Differences
        of numbers of that size have rounding errors of about 1e-10 of it."""
        exact = to_numpy(exact).reshape(-1)
        measured = to_numpy(measured).reshape(-1)
        largest = (abs(exact) + abs(measured)).max(initial=0.0)
        allowed = self.tolerance * largest + 1e-10 * size + 1e-9
        off = abs(exact - measured)
        if (off <= allowed).all():
            return
        i = int(off.argmax())
        place = f"{places[i]} (recorded)" if recorded else places[i]
        raise GradientError(
            f"{self.name}, {place}: the gradient is {exact[i]:.9g}, differences give "
            f"{measured[i]:.9g}",
            f"both must agree to {self.tolerance} of the largest derivative",
            "correct the backward rule; or, if a kink is near, move the input away from it",
        )


def _unit(like: Array, index: Index) -> Array:
    """Zeros with a 1 at the index."""
    direction = array_module(like).zeros_like(like)
    direction[index] = 1.0
    return direction


def _matrix(rows: Sequence[Array], length: int) -> HostArray:
    """Arrays of that many elements each, as the rows of a matrix."""
    flat = [to_numpy(row).reshape(-1) for row in rows]
    return host_array(flat).reshape(len(rows), length)


def _indices(shape: Index) -> list[Index]:
    return list(product(*map(range, shape)))
