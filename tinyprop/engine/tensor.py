"""Tensor: an array, its gradient, and operators whose work is done in functional/."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .arrays import (
    Array,
    DType,
    HostArray,
    Scalar,
    backend_of,
    default_backend,
    float32,
    host_array,
    is_array,
    show,
    to_backend,
    to_numpy,
)
from .errors import ShapeError, explain

if TYPE_CHECKING:
    from .graph import Op

Axes: TypeAlias = int | tuple[int, ...] | None
Operand: TypeAlias = Union["Tensor", Array, Scalar, list[Any]]

# Imports go downwards only; the two rooms above that Tensor's methods lead to announce themselves here.
graph: Any = None
functional: Any = None


def announce(room: ModuleType) -> None:
    globals()[room.__name__.rpartition(".")[2]] = room


def _unary(name: str) -> Callable[["Tensor"], "Tensor"]:
    return lambda x: getattr(functional, name)(x)


def _binary(name: str) -> Callable[["Tensor", Operand], "Tensor"]:
    return lambda x, y: getattr(functional, name)(x, y)


def _swapped(name: str) -> Callable[["Tensor", Operand], "Tensor"]:
    return lambda x, y: getattr(functional, name)(y, x)


def _comparison(name: str) -> Any:
    return lambda x, y: functional.compare(name, x, y)


class Tensor:
    """An array that remembers how it was computed. Make one with `tp.tensor`.

    >>> x = tp.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """

    __slots__ = ("__weakref__", "_data", "grad", "name", "node", "requires_grad")
    __array_ufunc__ = None  # array + tensor is the tensor's business
    __array_priority__ = 1000  # the same, said to CuPy

    def __init__(self, data: Array, requires_grad: bool = False, node: Union["Op", "Tensor", None] = None):
        self._data = data
        self.grad: Tensor | None = None
        self.requires_grad = requires_grad
        self.node = node  # where its gradient goes: the op that made it; None, for a leaf, is the tensor itself
        self.name: str | None = None

    @property
    def data(self) -> Array:
        """The array itself, not a copy. It may be set to another array of the same shape.

        >>> x = tp.tensor([1.0, 2.0])
        >>> x.data *= 10
        >>> x
        tensor([10., 20.])
        """
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        if not is_array(array) or array.shape != self.shape:
            got = f"an array of shape {array.shape}" if is_array(array) else f"a {type(array).__name__}"
            raise ShapeError(
                f"data set to {got}", f"it must be an array of this tensor's shape {self.shape}", "tp.tensor(...)"
            )
        check_elements(array.dtype, self.requires_grad)
        self._data = array

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis.

        >>> tp.tensor([[1.0, 2.0]]).shape
        (1, 2)
        """
        return self._data.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements.

        >>> tp.tensor([1.0]).dtype
        dtype('float32')
        """
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes.

        >>> tp.tensor([[1.0, 2.0]]).ndim
        2
        """
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements.

        >>> tp.tensor([[1.0, 2.0]]).size
        2
        """
        return self._data.size

    @property
    def backend(self) -> str:
        """Where the array lives: "numpy" or "cupy".

        >>> tp.tensor([1.0], backend="numpy").backend
        'numpy'
        """
        return backend_of(self._data)

    def numpy(self) -> HostArray:
        """The array on the host, without a copy if it is there already.

        >>> tp.tensor([1.0, 2.0]).numpy()
        array([1., 2.], dtype=float32)
        """
        return to_numpy(self._data)

    def item(self) -> Any:
        """The only element as a Python number.

        >>> tp.tensor([1.5]).item()
        1.5
        """
        if self.size != 1:
            raise ShapeError(f"item() of shape {self.shape}", "only one element is a number", "sum() first, or t[0]")
        return self._data.item()

    def detach(self) -> "Tensor":
        """The same array without its history.

        >>> x = tp.tensor([1.0], requires_grad=True)
        >>> (2 * x).detach()
        tensor([2.])
        """
        return Tensor(self._data)

    def backward(
        self, grad: Union["Tensor", Array, None] = None, create_graph: bool = False, retain_graph: bool = False
    ) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that requires one.

        `grad` is the gradient with respect to this tensor itself, needed unless it has a single element.
        `create_graph` makes the gradients differentiable; `retain_graph` allows a second backward.

        >>> x = tp.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).backward(tp.tensor([1.0, 10.0]))
        >>> x.grad
        tensor([ 2., 40.])
        """
        graph.backward(self, grad, create_graph, retain_graph)

    def to(self, backend: str) -> "Tensor":
        """The same values on another backend; the gradient finds its way back.

        >>> tp.tensor([1.0]).to("numpy").backend
        'numpy'
        """
        return functional.to(self, backend)

    def astype(self, dtype: Any) -> "Tensor":
        """The same values as elements of another type.

        >>> tp.tensor([1.0]).astype("float64")
        tensor([1.], dtype=float64)
        """
        return functional.astype(self, dtype)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The sum over all elements, or over some axes.

        >>> tp.tensor([[1.0, 2.0], [3.0, 4.0]]).sum(axis=0)
        tensor([4., 6.])
        """
        return functional.sum(self, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The mean over all elements, or over some axes.

        >>> tp.tensor([[1.0, 2.0], [3.0, 4.0]]).mean()
        tensor(2.5)
        """
        return functional.mean(self, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The largest element, of all or over some axes.

        >>> tp.tensor([[1.0, 2.0], [3.0, 4.0]]).max(axis=1, keepdims=True)
        tensor([[2.],
                [4.]])
        """
        return functional.max(self, axis, keepdims)

    def reshape(self, *shape: Any) -> "Tensor":
        """The same elements in another shape; one -1 is worked out.

        >>> tp.tensor([1.0, 2.0, 3.0, 4.0]).reshape(2, -1).shape
        (2, 2)
        """
        return functional.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> "Tensor":
        """The axes in another order, reversed if none is given.

        >>> tp.tensor([[[1.0, 2.0]]]).transpose(2, 0, 1).shape
        (2, 1, 1)
        """
        return functional.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    @property
    def T(self) -> "Tensor":
        """The axes in reverse order.

        >>> tp.tensor([[1.0, 2.0]]).T.shape
        (2, 1)
        """
        return functional.transpose(self)

    __add__, __radd__ = _binary("add"), _swapped("add")
    __sub__, __rsub__ = _binary("subtract"), _swapped("subtract")
    __mul__, __rmul__ = _binary("multiply"), _swapped("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _swapped("divide")
    __pow__, __rpow__ = _binary("power"), _swapped("power")
    __matmul__, __rmatmul__ = _binary("matmul"), _swapped("matmul")
    __neg__, __abs__ = _unary("negative"), _unary("abs")
    __lt__, __le__ = _comparison("less"), _comparison("less_equal")
    __gt__, __ge__ = _comparison("greater"), _comparison("greater_equal")
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __hash__ = object.__hash__  # a tensor is itself, whatever == says element by element

    def __getitem__(self, index: Any) -> "Tensor":
        return functional.index(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            explain(
                f"an assignment into a tensor of shape {self.shape}",
                "tensors are not changed in place: the graph may need the old values",
                "tp.functional.where(mask, new, old); or t.data[...] = ... before t is used",
            )
        )

    def __repr__(self) -> str:
        extra = "" if self.dtype == float32 else f", dtype={self.dtype}"
        extra += "" if self.backend == "numpy" else f", backend={self.backend!r}"
        extra += ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({show(self._data, 'tensor(')}{extra})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(explain("len() of a 0-d tensor", "only an axis has a length", "t.size, or t.reshape(1)"))
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        if self.backend != "numpy":
            raise TypeError(
                explain("a CuPy tensor where NumPy wants an array", "nothing leaves the device unasked", "t.numpy()")
            )
        return host_array(self._data, dtype, copy)


def check_elements(dtype: Any, requires_grad: bool) -> None:
    """Refuse what cannot be an element of a tensor, or cannot have a gradient."""
    got = f"requires_grad=True with elements of type {dtype}" if requires_grad else f"elements of type {dtype}"
    if dtype.kind not in "fiub":
        raise TypeError(explain(got, "a tensor holds floats, integers or bools", "dtype=numpy.float32"))
    if requires_grad and dtype.kind != "f":
        raise TypeError(explain(got, "only floating-point tensors have gradients", "dtype=numpy.float32"))


def tensor(data: Any, requires_grad: bool = False, dtype: Any = None, backend: str | None = None) -> Tensor:
    """A tensor of numbers, nested lists or an array.

    Python numbers and lists become float32. An array keeps its dtype and is used without a copy; it stays on its
    device, but a host array goes to the default backend (`tp.use_backend`) unless `backend` says otherwise.

    >>> tp.tensor([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]])
    """
    array = data.data if isinstance(data, Tensor) else data
    if not is_array(array):
        try:
            array = host_array(array, dtype or (None if hasattr(array, "dtype") else float32))
        except (TypeError, ValueError) as error:
            got = f"tensor(...) of a {type(data).__name__}"
            raise ShapeError(got, str(error), "nested lists of numbers, all of equal length") from None
    if backend is None:
        backend = default_backend() if backend_of(array) == "numpy" else "cupy"
    array = to_backend(array, backend)
    if dtype is not None:
        array = array.astype(dtype, copy=False)
    check_elements(array.dtype, requires_grad)
    return Tensor(array, requires_grad)


def as_tensor(value: Operand, like: object = None) -> Tensor:
    """A tensor as it is; anything else as `tensor` makes one, but numbers and lists follow the tensor `like`."""
    if isinstance(value, Tensor):
        return value
    if is_array(value) or not isinstance(like, Tensor):
        return tensor(value)
    return tensor(value, dtype=like.dtype if like.dtype.kind == "f" else None, backend=like.backend)
