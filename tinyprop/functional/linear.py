"""Matrix products."""

from math import prod
from typing import Any

from ..engine.arrays import Array, array_module
from ..engine.errors import ShapeError
from ..engine.graph import Op
from ..engine.overrides import overridable
from ..engine.stand_in import accepts_stand_ins
from ..engine.tensor import Operand, Tensor, as_tensor
from .shapes import transpose


@overridable
def product(x: Array, y: Array, out: Array | None = None) -> Array:
    """x @ y for matrices, stacks of them, or a vector y, into `out` if it is given."""
    return array_module(x).matmul(x, y, out=out)


class Matmul(Op):
    """Products of matrices, on stacks of them if there are more than two axes."""

    hint = "stacks of matrices whose leading axes are equal, or 1"
    masks, wide = False, True

    def forward(self, x: Array, y: Array) -> Array:
        return product(x, y)

    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Any:
        return lambda: g @ _swapped(y), lambda: _swapped(x) @ g


class Linear(Op):
    """x (N, in) to (N, out) by weights (out, in). Each gradient has the memory layout of its
    input."""

    masks, wide = False, True

    def forward(self, x: Array, w: Array) -> Array:
        return product(x, w.T)

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        return lambda: Matmul()(g, w), lambda: Matmul()(_swapped(g), x)


class Affine(Op):
    """x (N, in) to (N, out) by weights (out, in) plus a bias (out,)."""

    masks, wide = False, True

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        return product(x, w.T) + bias

    def backward(self, g: Tensor, x: Tensor, w: Tensor) -> Any:
        return lambda: Matmul()(g, w), lambda: Matmul()(_swapped(g), x), g


@accepts_stand_ins
def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Tensor:
    """x (..., in) to (..., out): x @ weight.T + bias, as in PyTorch.

    >>> F.linear([[1.0, 2.0]], [[3.0, 4.0]], [0.5])
    tensor([[11.5]])
    """
    x, weight = as_tensor(x, like=weight), as_tensor(weight, like=x)
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        got = f"linear of x {x.shape} and weight {weight.shape}"
        fits_if_flat = weight.ndim == 2 and x.ndim > 2 and prod(x.shape[1:]) == weight.shape[1]
        hint = "in_features equal to the last axis of x"
        if fits_if_flat:
            hint = "Flatten() before this layer, or x.flatten(1)"
        raise ShapeError(got, "x is (..., in), weight is (out, in)", hint)
    units = weight.shape[0]
    flat = x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])  # (..., in) -> (N, in)
    if bias is not None:
        bias = as_tensor(bias, like=x)
    has_row = bias is not None and bias.shape == (units,)
    out = Affine()(flat, weight, bias) if has_row else Linear()(flat, weight)
    if x.ndim != 2:
        out = out.reshape(*x.shape[:-1], units)  # (N, out) -> (..., out)
    if bias is None or has_row:
        return out
    moved = out + bias
    if moved.shape != out.shape:
        got = f"linear with a bias of shape {bias.shape} for an output of shape {out.shape}"
        raise ShapeError(got, "there is one for each output", f"a bias of shape {(units,)}")
    return moved


def _swapped(x: Tensor) -> Tensor:
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@accepts_stand_ins
def matmul(x: Operand, y: Operand) -> Tensor:
    """The matrix product, with NumPy's rules for vectors and for stacks of matrices.

    >>> F.matmul([[1.0, 2.0]], [3.0, 4.0])
    tensor([11.])
    """
    x, y = as_tensor(x, like=y), as_tensor(y, like=x)
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        got = f"matmul of {x.shape} and {y.shape}"
        rule = (
            "the last axis of the first must be as long as the last but one (or only) axis of "
            "the second"
        )
        raise ShapeError(got, rule, "transpose one of them, for instance x @ w.T")
    rows = x.shape[:-1]
    columns = y.shape[-1:] if y.ndim > 1 else ()
    if y.ndim <= 2:  # one large product: (..., K) @ (K, M) -> (rows, K) @ (K, M)
        left = x.reshape(prod(rows), x.shape[-1])
        right = y.reshape(y.shape[0], prod(columns))
        return Matmul()(left, right).reshape(*rows, *columns)
    if x.ndim == 1:
        return Matmul()(x.reshape(1, -1), y).reshape(*y.shape[:-2], *columns)
    return Matmul()(x, y)
