"""Tensor: an array, its gradient, and its place in the graph.

Operators and methods are attached by other modules: `backward` by backward.py, and all that compute
by `functional`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from . import arrays
from .arrays import (
    Array,
    DType,
    HostArray,
    Scalar,
    backend_of,
    is_array,
    is_device_array,
    to_backend,
    to_numpy,
)
from .errors import ShapeError, explain
from .guard import Uses, expose, lend
from .stand_in import StandIn, calling_function

if TYPE_CHECKING:
    from .graph import Op

Axes: TypeAlias = int | tuple[int, ...] | None
Operand: TypeAlias = Union["Tensor", Array, Scalar, list[Any]]


def _attached(*operands: Any, **settings: Any) -> "Tensor":
    raise NotImplementedError("tinyprop.functional attaches this")


class Tensor:
    """An array that remembers how it was computed. Create one with `tp.tensor`.

    >>> x = tp.tensor([1.0, 2.0], requires_grad=True)
    >>> x.shape, x.ndim, x.size, x.dtype, x.backend, x.T.shape
    ((2,), 1, 2, dtype('float32'), 'numpy', (2,))
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    >>> x.grad.numpy(), x.grad.tolist(), x[0].item(), x.T.detach()
    (array([2., 4.], dtype=float32), [2.0, 4.0], 1.0, tensor([1., 2.]))
    """

    __slots__ = ("__weakref__", "_data", "exposed", "grad", "name", "node", "requires_grad", "uses")
    __array_ufunc__ = None  # let Tensor handle array + tensor
    __array_priority__ = 1000  # the same, for CuPy

    def __init__(
        self, data: Array, requires_grad: bool = False, node: Union["Op", "Tensor", None] = None
    ):
        self._data = data
        self.grad: Tensor | None = None
        self.requires_grad = requires_grad
        self.node = node  # where its gradient goes: the op that computed it, or None for a leaf
        self.name: str | None = None
        self.uses: Uses = []  # see guard.py, as for `exposed`
        self.exposed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        """A copy with memory of its own, which no graph has saved."""
        node = deepcopy(self.node, memo)
        new = Tensor(self._data.copy(), self.requires_grad, node)
        memo[id(self)] = new
        new.grad = deepcopy(self.grad, memo)
        new.name = self.name
        return new

    # What `functional` attaches, declared for type checkers.
    sum = mean = var = std = max = min = argmax = norm = _attached
    exp = log = sqrt = tanh = relu = abs = clip = _attached
    to = astype = reshape = flatten = squeeze = transpose = __getitem__ = _attached
    __neg__ = __abs__ = __invert__ = __and__ = __or__ = __xor__ = _attached
    __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = _attached
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = _attached
    __lt__ = __le__ = __gt__ = __ge__ = _attached
    T: Any
    backward: Any
    __eq__: Any
    __ne__: Any
    # a tensor is a node of a graph: == compares elements, the hash is its identity
    __hash__ = object.__hash__

    @property
    def data(self) -> Array:
        """The array itself, not a copy. It may be edited, or set to another array of the same
        shape.

        While a graph needs the values, the array is read-only, and an edit raises ValueError. The
        guard works on this array object and on the array that owns its memory. It cannot see edits
        through a *view* that you took before (`v = x.data[1:]`), nor edits of a CuPy array.

        >>> x = tp.tensor([1.0, 2.0])
        >>> x.data[0] = 5.0
        """
        self.exposed = True
        if self.uses:
            expose(self._data, self.uses)
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        rule = f"it must be an array of this tensor's shape {self.shape}"
        if not is_array(array):
            raise ShapeError(f"data set to a {type(array).__name__}", rule, "tp.tensor(...)")
        if array.shape != self.shape:
            raise ShapeError(f"data set to an array of shape {array.shape}", rule, "tp.tensor(...)")
        check_elements(array.dtype, self.requires_grad)
        if array is not self._data:
            self._data = array
            self.uses = []
            self.exposed = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._data.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def backend(self) -> str:
        """Where the array lives: "numpy" or "cupy"."""
        return backend_of(self._data)

    def numpy(self) -> HostArray:
        """The array on the host, without a copy if it is there already; see `data` about edits."""
        return to_numpy(self.data)

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.size != 1:
            rule = "only a tensor with one element can become a number"
            raise ShapeError(f"item() of shape {self.shape}", rule, "sum() first, or t[0]")
        return self._data.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self._data.tolist()

    def detach(self) -> "Tensor":
        """The same array without its history."""
        return Tensor(self._data)._share(self)

    def _share(self, other: "Tensor") -> "Tensor":
        """Count uses together with another tensor on the same memory, for the guard against
        edits."""
        self.uses = other.uses
        self.exposed = True
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            explain(
                f"an assignment into a tensor of shape {self.shape}",
                "tensors are not changed in place: the graph may need the old values",
                "tp.functional.where(mask, new, old); or t.data[...] = ... before t is used",
            )
        )

    def __repr__(self) -> str:
        array = to_numpy(self._data)
        parts = [np.array2string(array, separator=", ", prefix="tensor(", threshold=200)]
        if self.dtype != arrays.float32:
            parts.append(f"dtype={self.dtype}")
        if self.backend != "numpy":
            parts.append(f"backend={self.backend!r}")
        if self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(
                explain(
                    "len() of a 0-d tensor", "only an axis has a length", "t.size, or t.reshape(1)"
                )
            )
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        if self.requires_grad:
            raise self._refused("an implicit conversion would lose the gradient")
        if self.backend != "numpy":
            raise self._refused("nothing leaves the device unless you ask for it")
        return np.array(self.data, dtype=dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the memory is, for `torch.from_dlpack` and its like."""
        return self._data.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        """Lend the memory to another library, as `torch.from_dlpack(t)` asks for it: no copy.

        From then on, the other library may edit the values. A graph that needs them saves a copy,
        and a tensor whose values a graph has saved already is not lent.

        >>> np.from_dlpack(tp.tensor([1.0, 2.0]))
        array([1., 2.], dtype=float32)
        """
        if self.requires_grad:
            raise BufferError(
                explain(
                    f"a tensor of shape {self.shape} that requires a gradient, by DLPack",
                    "another library does not know its graph: the gradient would be lost",
                    "t.detach()",
                )
            )
        if not options.get("copy"):
            self.exposed = True
            lend(self._data, self.uses)
        return self._data.__dlpack__(**options)

    def _refused(self, rule: str) -> TypeError:
        return TypeError(
            explain(
                f"a tensor of shape {self.shape} where NumPy wants an array",
                rule,
                "tp.functional.concatenate, stack, ... keep the gradient; t.numpy() or "
                "t.detach() drop it",
            )
        )


def check_elements(dtype: Any, requires_grad: bool) -> None:
    """Refuse what cannot be an element of a tensor, or cannot have a gradient."""
    if dtype.kind == "f":
        return
    got = f"elements of type {dtype}"
    hint = "dtype=numpy.float32"
    if requires_grad:
        got = f"requires_grad=True with {got}"
    if dtype.kind not in "fiub":
        raise TypeError(explain(got, "a tensor holds floats, integers or bools", hint))
    if requires_grad:
        raise TypeError(explain(got, "only floating-point tensors have gradients", hint))


def tensor(
    data: Any, requires_grad: bool = False, dtype: Any = None, backend: str | None = None
) -> Tensor:
    """A tensor with a copy of the data: numbers, nested lists or an array.

    Python numbers and lists become float32, but bools stay bools: they are masks. An array keeps
    its dtype. An array on a device stays there; everything else goes to the default backend
    (`tp.use_backend`) unless `backend` says otherwise.

    >>> tp.tensor([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]])
    >>> tp.tensor([5.0, 6.0])[tp.tensor([False, True])]
    tensor([6.])
    """
    if isinstance(data, Tensor):
        if data.requires_grad:
            raise TypeError(
                explain(
                    f"tensor(...) of a tensor of shape {data.shape}",
                    "an implicit copy would lose the gradient",
                    "t.detach(), or t itself",
                )
            )
        data = data._data
    array = _array_from(data, dtype)
    if backend is None:
        backend = "cupy" if is_device_array(array) else arrays.default_backend()
    moved = to_backend(array, backend)
    copied = moved.astype(dtype or moved.dtype, copy=moved is array)
    check_elements(copied.dtype, requires_grad)
    return Tensor(copied, requires_grad)


def _array_from(data: Any, dtype: Any) -> Array:
    """An array as it is; numbers and nested lists as a host array."""
    if is_device_array(data):
        return data
    if hasattr(data, "dtype"):
        return np.asarray(data)  # a plain array, also of an np.matrix or a tensor of PyTorch
    try:
        array = arrays.numbers(data, dtype)
    except ValueError as error:
        got = f"tensor(...) of a {type(data).__name__}"
        hint = "nested lists of numbers, all of equal length"
        raise ShapeError(got, str(error), hint) from None
    if dtype is not None or array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu":
        return arrays.exact_floats(array, arrays.float32, "tensor(...)", "dtype='int64'")
    return array.astype(arrays.float32)


def as_tensor(value: Operand, like: object = None) -> Tensor:
    """A tensor as it is; arrays share their memory; numbers and lists follow the tensor `like`:
    beside floats they take its dtype, and beside integers, integers stay integers. Bools stay
    bools."""
    if isinstance(value, Tensor):
        return value
    if is_array(value):
        shared = Tensor(value)
        shared.exposed = True
        return shared
    if isinstance(value, StandIn):
        raise value.refuse(calling_function())
    value = arrays.unwrap_scalar(value)
    if not isinstance(like, Tensor):
        return tensor(value)
    elements = arrays.numbers(value, None)
    dtype = like.dtype if like.dtype.kind == "f" else None
    if elements.dtype.kind == "f":
        elements = elements.astype(dtype or arrays.float32)
    elif elements.dtype.kind != "b" and dtype is not None:
        elements = arrays.exact_floats(elements, dtype, "a list", "an array")
    return tensor(elements, backend=like.backend)
