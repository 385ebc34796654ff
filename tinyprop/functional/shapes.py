"""Functions that move elements without changing them."""

from collections.abc import Sequence
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
from ..engine.stand_in import accepts_stand_ins
from ..engine.sums import wide
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
        if self.axes is None:
            return transpose(g)
        axes = [axis % g.ndim for axis in self.axes]
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
        (self.axis,) = normalize_axes(self.axis, xs[0].ndim, got)
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
        xp = array_module(x)
        if any(is_array(part) and part.dtype.kind != "b" for part in self.where):
            sums = xp.full(self.new_shape, self.background, wide(x.dtype))
            xp.add.at(sums, self.where, x.astype(sums.dtype))  # an index may occur many times
            return sums.astype(x.dtype, copy=False)
        out = xp.full(self.new_shape, self.background, x.dtype)
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
    if axes is None:
        return Transpose(None)(x)
    return Transpose(as_int_tuple((axes, *more) if more else axes))(x)


@accepts_stand_ins
def flatten(x: Operand, start_axis: int = 0) -> Tensor:
    """All axes from `start_axis` on joined into one.

    >>> F.flatten([[[1.0, 2.0], [3.0, 4.0]]], 1).shape
    (1, 4)
    """
    x = as_tensor(x)
    if not x.ndim:
        return reshape(x, (1,))
    got = f"flatten of {x.shape} from axis {start_axis}"
    (start,) = normalize_axes(start_axis, x.ndim, got)
    return reshape(x, (*x.shape[:start], prod(x.shape[start:])))


def squeeze(x: Operand, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x without the axes of length 1, or without those named, which must have length 1.

    >>> F.squeeze([[[1.0, 2.0]]]).shape
    (2,)
    """
    x = as_tensor(x)
    got = f"squeeze of {x.shape} along axis={axis}"
    axes = normalize_axes(axis, x.ndim, got, once=False)
    named = axis is not None
    if named and any(x.shape[a] != 1 for a in axes):
        raise ShapeError(got, "only axes of length 1 can go", "squeeze()")
    kept = [n for i, n in enumerate(x.shape) if n != 1 or i not in axes]
    return reshape(x, tuple(kept))


def flip(x: Operand, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x with the order of its elements reversed along some axes, or along all.

    >>> F.flip([1.0, 2.0, 3.0])
    tensor([3., 2., 1.])
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim, f"flip of {x.shape} along axis={axis}", once=False)
    steps = [-1 if i in axes else 1 for i in range(x.ndim)]
    return Index(tuple(slice(None, None, step) for step in steps))(x)


def split(x: Operand, size: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """x cut along an axis into parts of that size (the last may be smaller), or into parts of the
    sizes given.

    >>> [part.shape for part in F.split(tp.zeros(5, 2), 2)]
    [(2, 2), (2, 2), (1, 2)]
    """
    x = as_tensor(x)
    got = f"split of {x.shape} into {size} along axis={axis}"
    (axis,) = normalize_axes(axis, x.ndim, got)
    n = x.shape[axis]
    if isinstance(size, Sequence):
        sizes = list(size)
        fits = min(sizes, default=0) >= 0 and sum(sizes) == n
    else:
        size = as_int(size)
        sizes = [min(size, n - start) for start in range(0, n, max(size, 1))]
        fits = size >= 1
    if not fits:
        rule = f"sizes are positive, and a list of them adds up to {n}"
        raise ShapeError(got, rule, f"split(x, {max(1, n // 2)})")
    before = (slice(None),) * axis
    parts = []
    start = 0
    for length in sizes:
        parts.append(x[(*before, slice(start, start + length))])
        start += length
    return parts


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
    if not _are_widths(widths, x.ndim):
        got = f"pad({x.shape}, {widths})"
        raise ShapeError(got, "one pair of widths >= 0 for each axis", f"{[(1, 1)] * x.ndim}")
    if x.dtype.kind != "f":
        _check_border(x, value)
    shape = []
    inside = []
    for n, (before, after) in zip(x.shape, widths, strict=True):
        shape.append(before + n + after)
        inside.append(slice(before, before + n))
    return Put(tuple(inside), tuple(shape), value)(x)


def _check_border(x: Tensor, value: float) -> None:
    """Refuse a border that the integers or bools of x cannot have."""
    lowest, highest = (0, 1) if x.dtype.kind == "b" else _integer_range(x)
    is_element = lowest <= value <= highest and value == int(value)
    if not is_element:
        got = f"pad of {x.dtype} elements with {value}"
        raise TypeError(explain(got, f"{x.dtype} has no such value", "x.astype('float32')"))


def _integer_range(x: Tensor) -> tuple[int, int]:
    limits = array_module(x._data).iinfo(x.dtype)
    return int(limits.min), int(limits.max)


def _are_widths(widths: Any, ndim: int) -> bool:
    """Whether there is a pair (before, after), both at least 0, for each axis."""
    if not isinstance(widths, (tuple, list)) or len(widths) != ndim:
        return False
    are_pairs = all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in widths)
    return are_pairs and all(min(pair) >= 0 for pair in widths)


def concatenate(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """The tensors joined along an axis they have.

    >>> F.concatenate([[1.0], [2.0, 3.0]])
    tensor([1., 2., 3.])
    """
    if len(xs) == 0:
        raise ShapeError(
            "concatenate([])", "there must be at least one tensor to join", "a list of tensors"
        )
    return Concatenate(axis)(*_as_tensors(xs))


def stack(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, joined along a new axis.

    >>> F.stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([[1., 3.],
            [2., 4.]])
    """
    tensors = _as_tensors(xs)
    shapes = [x.shape for x in tensors]
    if len(set(shapes)) != 1:
        rule = "there must be at least one tensor, all of one shape"
        raise ShapeError(f"stack of {shapes}", rule, "concatenate")
    got = f"stack of {shapes} along axis={axis}"
    (axis,) = normalize_axes(axis, len(shapes[0]) + 1, got)
    new_axis = (*(slice(None),) * axis, None)
    return concatenate([x[new_axis] for x in tensors], axis)


def _as_tensors(xs: Sequence[Operand]) -> list[Tensor]:
    """Numbers and lists as tensors that are like the widest of the tensors beside them."""
    given = [as_tensor(x) for x in xs if isinstance(x, Tensor) or is_array(x)]
    widest = max(given, key=lambda x: (x.dtype.kind == "f", x.dtype.itemsize), default=None)
    return [as_tensor(x, like=widest) for x in xs]


def index(x: Operand, where: Any) -> Tensor:
    """x[where]: slices, integers, None, Ellipsis, and arrays, lists or tuples of integers or
    bools."""
    x = as_tensor(x)
    given = where if isinstance(where, tuple) else (where,)
    parts = [_index_part(given, i, x) for i in range(len(given))]
    return Index(tuple(parts))(x)


def _index_part(given: tuple[Any, ...], i: int, x: Tensor) -> Any:
    """Part i of an index. Arrays are copied, so that a later edit cannot change the gradient."""
    if not hasattr(given[i], "__len__"):
        return given[i]  # a slice, an integer, None, Ellipsis
    array = _index_array(given[i])
    if array.dtype.kind not in "iub":
        got = f"an index of type {array.dtype} for a tensor of shape {x.shape}"
        hint = "index.astype('int64'), or a mask such as x > 0"
        raise IndexError(explain(got, "an index has integers or bools", hint))
    there = to_backend(array, x.backend)
    if there is array:
        return array.copy()
    if is_host_array(array) and array.dtype.kind != "b":
        _check_range(array, _first_axis(given, i, x.ndim), x.shape)  # CuPy would wrap around
    return there


def _index_array(part: Any) -> Array:
    """A list, a tuple, a range, a tensor or an array as an array."""
    if isinstance(part, (list, tuple)):
        elements = [p._data if isinstance(p, Tensor) else p for p in part]
        return host_array(elements, None if elements else "int64")
    if isinstance(part, Tensor):
        return part._data
    return part if is_array(part) else host_array(part)


def _first_axis(given: tuple[Any, ...], i: int, ndim: int) -> int:
    """The first axis that part i of an index is for."""
    after_ellipsis = any(part is Ellipsis for part in given[:i])
    if after_ellipsis:
        return ndim - sum(map(_axes_used, given[i:]))
    return sum(map(_axes_used, given[:i]))


def _axes_used(part: Any) -> int:
    """How many axes a part of an index is for; an Ellipsis is for all that are left."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if not hasattr(part, "__len__"):
        return 1
    array = _index_array(part)
    return int(array.ndim) if array.dtype.kind == "b" else 1


def _check_range(indices: Array, axis: int, shape: tuple[int, ...]) -> None:
    """Refuse integers that are no index of this axis."""
    if not indices.size or not 0 <= axis < len(shape):
        return
    n = shape[axis]
    lowest, highest = indices.min(), indices.max()
    if lowest < -n or highest >= n:
        got = f"an index from {lowest} to {highest} for axis {axis} of a tensor of shape {shape}"
        rule = f"an index is at least {-n} and less than {n}, the length of the axis"
        raise ShapeError(got, rule, Index.hint)


def normalize_axes(axis: Any, ndim: int, got: str, once: bool = True) -> list[int]:
    """One axis, several, or for None all of them, counted from the front, in order; `once` forbids
    repeating one."""
    given = range(ndim) if axis is None else as_int_tuple(axis)
    in_range = all(-ndim <= a < ndim for a in given)
    axes = sorted(a % ndim for a in given) if in_range else []
    repeated = len(set(axes)) < len(axes)
    if not in_range or (once and repeated):
        rule = f"axes are between {-ndim} and {ndim - 1}" + (", each given once" if once else "")
        raise ShapeError(got, rule, "axis=0, or axis=-1 for the last")
    return axes


def to(x: Tensor, backend: str) -> Tensor:
    """x on another backend; see Tensor.to.

    >>> F.to(tp.tensor([1.0]), "numpy").backend
    'numpy'
    """
    return To(backend)(x)
