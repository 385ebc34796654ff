"""Where arrays live. The only file that knows NumPy and CuPy by name.

An array decides where it is computed: `xp = array_module(x)` is the module of its functions. The default backend
only says where tensors are made from numbers, lists and host arrays.
"""

import importlib
import os
import sys
import threading
from collections import deque
from typing import Any, TypeAlias

import numpy as np

from .errors import BackendError, explain

Array: TypeAlias = Any  # a numpy.ndarray or a cupy.ndarray
HostArray: TypeAlias = np.ndarray[Any, Any]
DType: TypeAlias = np.dtype[Any]
Scalar: TypeAlias = bool | int | float
float32, float64 = np.float32, np.float64

_default: str | None = None  # not known until someone asks: then $TINYPROP_BACKEND, or NumPy
_generator = np.random.default_rng(0)


def array_module(*arrays: Array) -> Any:
    """The module, NumPy or CuPy, that computes with these arrays (there may be Python scalars among them)."""
    for array in arrays:
        if isinstance(array, (np.ndarray, np.generic)):  # arithmetic turns 0-d arrays into NumPy scalars
            return np
    return sys.modules.get("cupy", np)


def is_host_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def is_device_array(value: object) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or is_device_array(value)


def backend_of(array: Array) -> str:
    return "numpy" if isinstance(array, (np.ndarray, np.generic)) else "cupy"


def load_module(backend: str) -> Any:
    """The array module of a backend, or one sentence on what is missing and how to get it."""
    if backend == "numpy":
        return np
    if backend != "cupy":
        raise BackendError(f"There is no backend {backend!r}: choose 'numpy' or 'cupy'.")
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise BackendError(
            f"The CuPy backend needs CuPy, which cannot be imported here ({reason}): "
            "pip install 'tinyprop[cuda13]', or 'tinyprop[cuda12]' for a driver of CUDA 12."
        ) from error
    try:
        devices, reason = cupy.cuda.runtime.getDeviceCount(), "it counts none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        devices, reason = 0, str(error)
    if not devices:
        raise BackendError(
            f"The CuPy backend needs a CUDA device, and CuPy finds none ({reason}): "
            "install the NVIDIA driver of this machine's GPU, or go on with TINYPROP_BACKEND=numpy."
        )
    return cupy


def default_backend() -> str:
    """The backend that new tensors are made on."""
    global _default
    if _default is None:
        name = os.environ.get("TINYPROP_BACKEND", "numpy")
        load_module(name)
        _default = name
    return _default


class use_backend:
    """Set where new tensors are made; as a context manager, only inside the block.

    >>> with tp.use_backend("numpy"):
    ...     tp.tensor(1.0).backend
    'numpy'
    """

    def __init__(self, name: str):
        global _default
        load_module(name)
        self.previous, _default = _default, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        global _default
        _default = self.previous


def host_array(values: object, dtype: Any = None, copy: bool | None = None) -> HostArray:
    """Numbers, lists or a host array as a NumPy array."""
    return np.array(values, dtype=dtype, copy=copy)


def as_array(value: Any) -> Array:
    """A NumPy scalar, which reductions return, as a 0-d array; arrays as they are."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def to_numpy(array: Array) -> HostArray:
    """The array on the host; the same object if it is there already."""
    return array.get() if is_device_array(array) else np.asarray(array)


def to_backend(array: Array, backend: str) -> Array:
    """The array on that backend; the same object if it is there already."""
    if backend_of(array) == backend:
        return array
    return to_numpy(array) if backend == "numpy" else load_module(backend).asarray(array)


def from_host(values: object, like: Array, dtype: Any = None) -> Array:
    """Numbers, lists or a host array as an array where `like` lives."""
    return to_backend(np.asarray(values, dtype), backend_of(like))


def contiguous(array: HostArray) -> HostArray:
    """The array with its elements in the order of its axes in memory."""
    return np.ascontiguousarray(array).reshape(array.shape)


def show(array: Array, prefix: str) -> str:
    """The elements as text, for a repr that starts with this prefix."""
    return np.array2string(to_numpy(array), separator=", ", prefix=prefix, threshold=200)


def alike(operands: list[Any]) -> bool:
    """Whether the operands are host arrays of one dtype, the common case that needs no fitting."""
    dtype = getattr(operands[0], "dtype", None)
    for x in operands:
        if type(x) is not np.ndarray or x.dtype is not dtype:
            return False
    return True


def plain(value: Any) -> Any:
    """A NumPy scalar as a Python number, which never promotes; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def fit_together(name: str, operands: list[Any]) -> list[Any]:
    """Operands of one operation made to fit: one backend, and no integer array that would widen a float.

    Python and NumPy scalars become Python scalars, which never promote; lists become arrays of the others' dtype.
    Integers and bools that meet only Python floats become float32, as numbers do.
    """
    operands = [plain(x) for x in operands]
    arrays = [x for x in operands if is_array(x)]
    if len({backend_of(x) for x in arrays}) > 1:
        raise BackendError(
            f"{name} got a NumPy and a CuPy array together: move one of them with .to('cupy') or .to('numpy') first."
        )
    floats = [x.dtype for x in arrays if x.dtype.kind == "f"]
    dtype = max(floats, key=lambda d: d.itemsize, default=None)
    narrow = "iu"
    if not floats and any(isinstance(x, float) for x in operands):
        dtype, narrow = np.dtype(float32), "iub"
    fitted = []
    for i, x in enumerate(operands):
        if is_array(x):
            x = x.astype(dtype) if dtype is not None and x.dtype.kind in narrow else x
        elif not isinstance(x, (bool, int, float)) or (i == 0 and not arrays):
            x = to_backend(np.asarray(x, dtype or float32), backend_of(arrays[0]) if arrays else default_backend())
        fitted.append(x)
    return fitted


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes are broadcast to; ValueError if there is none."""
    return np.broadcast_shapes(*shapes)


def gauss_legendre(points: int) -> tuple[HostArray, HostArray]:
    """Nodes and weights on [0, 1] that integrate polynomials of degree 2 * points - 1 exactly."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1.0) / 2.0, weights / 2.0


def scatter_add(target: Array, index: Any, values: Array) -> None:
    """`target[index] += values`, where an element that is named twice is added to twice."""
    array_module(target).add.at(target, index, values)


def strided_view(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of the array's memory with this shape and these strides in bytes."""
    return array_module(array).lib.stride_tricks.as_strided(array, shape, strides)


def device_special() -> Any:
    """The special functions that CuPy brings along."""
    return importlib.import_module("cupyx.scipy.special")


def no_float_warnings() -> Any:
    """A context in which overflow and NaN pass without a warning, for code that looks at its results itself."""
    return np.errstate(all="ignore")


def manual_seed(seed: int) -> None:
    """Start the generator of initial weights and dropout masks afresh.

    Random numbers are drawn on the host, so that a seed means the same on both backends.

    >>> tp.manual_seed(0)
    >>> first = tp.nn.Linear(3, 2).weight
    >>> tp.manual_seed(0)
    >>> bool((tp.nn.Linear(3, 2).weight.data == first.data).all())
    True
    """
    global _generator
    _generator = new_generator(seed)


def generator() -> np.random.Generator:
    """The generator that `manual_seed` starts."""
    return _generator


def new_generator(seed: int | list[int]) -> np.random.Generator:
    return np.random.default_rng(seed)


# While a graph needs an array for its backward pass, the array is read-only: an edit in place fails where it is
# made, instead of giving a wrong gradient later. Views count with the array that owns their memory. CuPy arrays
# have no such flag; there only updates that go through tinyprop are refused.

_kept: dict[int, tuple[int, list[Array]]] = {}  # id of the owner: (times kept, arrays to make writeable again)
_changes: deque[tuple[int, Array]] = deque()  # +1 or -1 and an array, not yet counted in _kept
_counting = threading.Lock()


def _owner(array: Array) -> Array:
    return array.base if isinstance(array.base, type(array)) else array


def _count_changes() -> None:
    """Work off the queue, unless another thread, or this one before the garbage collector broke in, is at it."""
    while _changes and _counting.acquire(blocking=False):
        while _changes:
            change, array = _changes.popleft()
            owner = _owner(array)
            times, frozen = _kept.pop(id(owner), (0, []))
            if times + change:
                _kept[id(owner)] = times + change, frozen
                for a in (owner, array):
                    if isinstance(a, np.ndarray) and a.flags.writeable:
                        a.flags.writeable = False
                        frozen.append(a)
            else:
                for a in frozen:
                    a.flags.writeable = True
        _counting.release()


class Kept:
    """An array that a graph needs, guarded against edits in place for as long as this object lives."""

    __slots__ = ("array",)

    def __init__(self, array: Array):
        self.array = array
        _changes.append((+1, array))
        _count_changes()

    def __del__(self) -> None:
        _changes.append((-1, self.array))
        _count_changes()


def check_editable(array: Array, name: str) -> None:
    """Refuse an update in place of an array that a graph still needs."""
    if id(_owner(array)) in _kept:
        raise BackendError(
            explain(
                f"an update in place of {name}, shape {array.shape}",
                "a graph that has not been freed still needs the old values for its backward pass",
                "update after backward(); free unused graphs (del loss), or evaluate under tp.no_grad()",
            )
        )
