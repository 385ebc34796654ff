"""Functions that move elements without changing them."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import index as as_int
from typing import Any

from ..engine.arrays import (
    Array,
    array_module,
    as_int_tuple,
    backend_of,
    host_array,
    is_array,
    is_host_array,
    to_backend,
)
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.tensor import Operand, Tensor, as_tensor


class Reshape(Op):
    hint = "a shape with the same number of elements; one -1 is inferred"

    def __init__(self, shape: tuple[int, ...]):
        self.new_shape = shape

    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        return x.reshape(self.new_shape)

    def backward(self, g: Tensor) -> Any:
        return reshape(g, self.old_shape)


class Transpose(Op):
    hint = "axes that name each axis of the tensor once"

    def __init__(self, axes: tuple[int, ...] | None):
        self.axes = axes

    def forward(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def backward(self, g: Tensor) -> Any:
        axes = [axis % g.ndim for axis in self.axes or range(g.ndim)[::-1]]
        return transpose(g, tuple(axes.index(i) for i in range(g.ndim)))


class BroadcastTo(Op):
    """The engine undoes broadcasting, so the gradient passes as it is."""

    hint = "a shape that the tensor's shape broadcasts to: equal, or 1, on each axis from the right"

    def __init__(self, shape: tuple[int, ...]):
        self.new_shape = shape

    def forward(self, x: Array) -> Array:
        return array_module(x).broadcast_to(x, self.new_shape)

    def backward(self, g: Tensor) -> Any:
        return g


class Concatenate(Op):
    hint = "shapes that are equal except on the axis of concatenation"

    def __init__(self, axis: int):
        self.axis = axis

    def forward(self, *xs: Array) -> Array:
        got = f"concatenate of {[x.shape for x in xs]} along axis={self.axis}"
        (self.axis,) = counted(self.axis, xs[0].ndim, got)
        self.sizes = [x.shape[self.axis] for x in xs]
        return array_module(*xs).concatenate(xs, self.axis)

    def backward(self, g: Tensor) -> Any:
        return tuple(split(g, self.sizes, self.axis))


class Index(Op):
    """x[where] with a tuple of slices, integers, None, Ellipsis, and arrays of integers or
    bools."""

    hint = "an index within the shape of the tensor"

    def __init__(self, where: tuple[Any, ...]):
        self.where = where

    def forward(self, x: Array) -> Array:
        self.old_shape = x.shape
        return x[self.where]

    def backward(self, g: Tensor) -> Any:
        return Put(self.where, self.old_shape)(g)


class Put(Op):
    """Zeros of a shape with x added at an index: the transpose of Index. Slices may have another
    background."""

    def __init__(self, where: tuple[Any, ...], shape: tuple[int, ...], background: float = 0.0):
        self.where, self.new_shape, self.background = where, shape, background

    def forward(self, x: Array) -> Array:
        out = array_module(x).full(self.new_shape, self.background, x.dtype)
        if any(is_array(part) and part.dtype.kind != "b" for part in self.where):
            array_module(x).add.at(out, self.where, x)  # an index may occur twice
        else:
            out[self.where] = x
        return out

    def backward(self, g: Tensor) -> Any:
        return Index(self.where)(g)


class To(Op):
    def __init__(self, backend: str):
        self.backend = backend

    def forward(self, x: Array) -> Array:
        self.home = backend_of(x)
        return to_backend(x, self.backend)

    def backward(self, g: Tensor) -> Any:
        return to(g, self.home)


def reshape(x: Operand, shape: Any = (), *more: int) -> Tensor:
    """The same elements in the same order in another shape, given as (2, -1) or as 2, -1; one -1 is
    inferred.

    >>> F.reshape([1, 2, 3, 4], (2, -1))
    tensor([[1., 2.],
            [3., 4.]])
    """
    return Reshape(as_int_tuple((shape, *more) if more else shape))(x)


def transpose(x: Operand, axes: Any = None, *more: int) -> Tensor:
    """The axes in another order, given as (1, 0) or as 1, 0; reversed if none is given.

    >>> F.transpose([[1.0, 2.0]])
    tensor([[1.],
            [2.]])
    """
    return Transpose(None if axes is None else as_int_tuple((axes, *more) if more else axes))(x)


def flatten(x: Operand, start_axis: int = 0) -> Tensor:
    """All axes from `start_axis` on joined into one.

    >>> F.flatten([[[1.0, 2.0], [3.0, 4.0]]], 1).shape
    (1, 4)
    """
    x = as_tensor(x)
    (start,) = (
        counted(start_axis, x.ndim, f"flatten of {x.shape} from axis {start_axis}")
        if x.ndim
        else (0,)
    )
    return reshape(x, (*x.shape[:start], prod(x.shape[start:])))


def squeeze(x: Operand, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x without the axes of length 1, or without those named, which must have length 1.

    >>> F.squeeze([[[1.0, 2.0]]]).shape
    (2,)
    """
    x = as_tensor(x)
    got = f"squeeze of {x.shape} along axis={axis}"
    axes = counted(axis, x.ndim, got, once=False)
    if axis is not None and any(x.shape[a] != 1 for a in axes):
        raise ShapeError(got, "only axes of length 1 can go", "squeeze()")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in axes))


def flip(x: Operand, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x with the order of its elements reversed along some axes, or along all.

    >>> F.flip([1.0, 2.0, 3.0])
    tensor([3., 2., 1.])
    """
    x = as_tensor(x)
    axes = counted(axis, x.ndim, f"flip of {x.shape} along axis={axis}", once=False)
    return Index(tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim)))(x)


def split(x: Operand, size: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """x cut along an axis into parts of that size (the last may be smaller), or into parts of the
    sizes given.

    >>> [part.shape for part in F.split(tp.zeros(5, 2), 2)]
    [(2, 2), (2, 2), (1, 2)]
    """
    x = as_tensor(x)
    got = f"split of {x.shape} into {size} along axis={axis}"
    size = size if isinstance(size, Sequence) else as_int(size)
    (axis,) = counted(axis, x.ndim, got)
    n = x.shape[axis]
    sizes = (
        [min(size, n - i) for i in range(0, n, max(size, 1))]
        if isinstance(size, int)
        else list(size)
    )
    if min(sizes, default=1) < 0 or (isinstance(size, int) and size < 1) or sum(sizes) != n:
        raise ShapeError(
            got,
            f"sizes are positive, and a list of them adds up to {n}",
            f"split(x, {max(1, n // 2)})",
        )
    before, ends = (slice(None),) * axis, accumulate(sizes)
    return [x[(*before, slice(end - size, end))] for end, size in zip(ends, sizes, strict=True)]


def broadcast_to(x: Operand, shape: Sequence[int]) -> Tensor:
    """x repeated along axes of length 1, and new ones in front, to fill a shape.

    >>> F.broadcast_to([1.0, 2.0], (2, 2))
    tensor([[1., 2.],
            [1., 2.]])
    """
    return BroadcastTo(tuple(shape))(x)


def pad(x: Operand, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """x with a border: for each axis a pair (before, after).

    >>> F.pad([1.0, 2.0], [(1, 2)])
    tensor([0., 1., 2., 0., 0.])
    """
    x = as_tensor(x)
    fits = isinstance(widths, (tuple, list)) and len(widths) == x.ndim
    if not fits or not all(
        isinstance(w, (tuple, list)) and len(w) == 2 and min(w) >= 0 for w in widths
    ):
        raise ShapeError(
            f"pad({x.shape}, {widths})",
            "one pair of widths >= 0 for each axis",
            f"{[(1, 1)] * x.ndim}",
        )
    shape = tuple(n + before + after for n, (before, after) in zip(x.shape, widths, strict=True))
    inside = tuple(
        slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True)
    )
    return Put(inside, shape, value)(x)


def concatenate(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """The tensors joined along an axis they have.

    >>> F.concatenate([[1.0], [2.0, 3.0]])
    tensor([1., 2., 3.])
    """
    if len(xs) == 0:
        raise ShapeError(
            "concatenate([])", "there must be at least one tensor to join", "a list of tensors"
        )
    return Concatenate(axis)(*xs)


def stack(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, joined along a new axis.

    >>> F.stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([[1., 3.],
            [2., 4.]])
    """
    given = [as_tensor(x) for x in xs if isinstance(x, Tensor) or is_array(x)]
    widest = max(given, key=lambda x: (x.dtype.kind == "f", x.dtype.itemsize), default=None)
    tensors = [as_tensor(x, like=widest) for x in xs]
    if len(set(shapes := [x.shape for x in tensors])) != 1:
        raise ShapeError(
            f"stack of {shapes}",
            "there must be at least one tensor, all of one shape",
            "concatenate",
        )
    (axis,) = counted(axis, len(shapes[0]) + 1, f"stack of {shapes} along axis={axis}")
    return concatenate([x[(slice(None),) * axis + (None,)] for x in tensors], axis)


def index(x: Operand, where: Any) -> Tensor:
    """x[where]: slices, integers, None, Ellipsis, and arrays, lists or tuples of integers or
    bools."""
    x = as_tensor(x)
    return Index(
        tuple(_index_part(part, x) for part in (where if isinstance(where, tuple) else (where,)))
    )(x)


def _index_part(part: Any, x: Tensor) -> Any:
    """One part of an index; arrays are copied, so that a later edit cannot change the gradient."""
    if isinstance(part, (list, tuple)):
        part = host_array(
            [p._data if isinstance(p, Tensor) else p for p in part], None if len(part) else "int64"
        )
    if isinstance(part, Tensor):
        part = part._data
    if hasattr(part, "__len__") and not is_array(part):  # an array of another library, a range
        part = host_array(part)
    if not is_array(part):
        return part
    if part.dtype.kind not in "iub":
        got = f"an index of type {part.dtype} for a tensor of shape {x.shape}"
        hint = "index.astype('int64'), or a mask such as x > 0"
        raise IndexError(explain(got, "an index has integers or bools", hint))
    return to_backend(part, x.backend).copy()


def take(x: Operand, indices: Any, axis: int = 0) -> Tensor:
    """The slices of x along an axis at the given indices.

    >>> F.take([10.0, 20.0, 30.0], [2, 0, 2])
    tensor([30., 10., 30.])
    """
    x = as_tensor(x)
    got = f"take from {x.shape} along axis={axis}"
    (axis,) = counted(axis, x.ndim, got)
    given, n = host_array(indices) if isinstance(indices, list) else indices, x.shape[axis]
    if is_host_array(given) and given.size and not -n <= given.min() <= given.max() < n:
        # CuPy would silently wrap around
        rule = f"an index is less than the length {n} of the axis"
        raise ShapeError(
            f"{got} of {given.min()} to {given.max()}",
            rule,
            "an index within the shape of the tensor",
        )
    return index(x, (slice(None),) * axis + (indices,))


def counted(axis: Any, ndim: int, got: str, once: bool = True) -> list[int]:
    """One axis, several, or for None all of them, counted from the front, in order; `once` forbids
    to repeat one."""
    given = range(ndim) if axis is None else as_int_tuple(axis)
    if any(not -ndim <= a < ndim for a in given) or (
        once and len({a % ndim for a in given}) < len(given)
    ):
        rule = f"axes are between {-ndim} and {ndim - 1}" + (", each given once" if once else "")
        raise ShapeError(got, rule, "axis=0, or axis=-1 for the last")
    return sorted(a % ndim for a in given)


def to(x: Tensor, backend: str) -> Tensor:
    """x on another backend; see Tensor.to.

    >>> F.to(tp.tensor([1.0]), "numpy").backend
    'numpy'
    """
    return To(backend)(x)
