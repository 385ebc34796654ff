"""Derivatives of functions: Jacobians, Hessians, Jacobian-vector products."""

from collections.abc import Callable

from ..engine.arrays import array_module
from ..engine.backward import grad, inputs_first, node_of, pull_back
from ..engine.context import context, current
from ..engine.errors import GradientError, ShapeError
from ..engine.graph import recording, recording_now
from ..engine.tensor import Tensor, check_elements
from .reductions import sum as sum_over
from .shapes import stack

Function = Callable[[Tensor], Tensor]


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
