"""Jacobians, Hessians, and Jacobian-vector products. All of them are differentiable where their input is."""

from collections.abc import Callable

from ..engine.arrays import array_module
from ..engine.backward import grad, node_of, pull_back
from ..engine.errors import GradientError, ShapeError
from ..engine.graph import recording, recording_now
from ..engine.tensor import Tensor
from .reductions import sum as sum_over
from .shapes import stack

Function = Callable[[Tensor], Tensor]


def _input(x: Tensor) -> tuple[Tensor, bool]:
    """An input that requires a gradient, and whether the derivative is to be differentiable."""
    if x.requires_grad:
        return x, recording_now()
    return Tensor(x._data, requires_grad=True).share(x), False


def _output(f: Function, x: Tensor, name: str) -> Tensor:
    """f(x), refused if it does not depend on x: the derivative would be zeros because no graph was recorded."""
    with recording(True):
        y = f(x)
    if not (isinstance(y, Tensor) and y.requires_grad):
        raise GradientError(
            f"{name} of a function whose result does not depend on its input through a graph",
            "the function must compute with tensors, without detach(), .data or no_grad()",
            "write it with tp.functional; the derivative of a constant is not computed",
        )
    return y


def _rows(y: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """The derivatives of y with respect to x, shape (*y.shape, *x.shape); zeros where y does not depend on x."""
    xp, node, rows = array_module(x._data), node_of(x), []
    for i in range(y.size):
        seed = xp.zeros(y.size, y.dtype)
        seed[i] = 1
        found = pull_back(y, Tensor(seed.reshape(y.shape)), {node}, create_graph, retain_graph=True)
        rows.append(found[node] if node in found else Tensor(xp.zeros(x.shape, x.dtype)))
    return stack(rows).reshape(*y.shape, *x.shape) if rows else Tensor(xp.zeros(y.shape + x.shape, x.dtype))


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
        raise ShapeError(f"hessian of a function with result {y.shape}", "the result is a scalar", "sum(), or jacobian")
    (gradient,) = grad(y, [x], Tensor(array_module(x._data).ones(y.shape, y.dtype)), create_graph=True)
    if not gradient.requires_grad:  # f is linear in x
        return Tensor(array_module(x._data).zeros(x.shape + x.shape, x.dtype))
    return _rows(gradient, x, create_graph)


def jvp(f: Function, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """f(x), and the product of its Jacobian with a vector v of x's shape: the derivative of f in the direction v.

    The vector-Jacobian product u -> u J is linear in u, and its transpose applied to v is J v.

    >>> tp.jvp(lambda x: x * x, tp.tensor([1.0, 2.0]), tp.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    if v.shape != x.shape:
        raise ShapeError(f"jvp at x {x.shape} with v {v.shape}", "v has the shape of x", f"v.reshape{x.shape}")
    differentiable = recording_now() and (x.requires_grad or v.requires_grad)
    x, _ = _input(x)
    y = _output(f, x, "jvp")
    u = Tensor(array_module(y._data).zeros(y.shape, y.dtype), requires_grad=True)
    with recording(True):
        (pulled,) = grad(y, [x], u, create_graph=True)
        (pushed,) = grad(sum_over(pulled * v), [u], create_graph=differentiable)
    return (y if differentiable else y.detach()), pushed
