"""Where arrays live: NumPy's on the host, CuPy's on a device.

An array decides where it is computed: `xp = array_module(x)` is the module that has its functions.
The default backend only says where tensors are created from numbers, lists and host arrays."""

import importlib
import os
import sys
from operator import index as as_int
from typing import Any, TypeAlias

import numpy as np

from .errors import BackendError, explain

Array: TypeAlias = Any  # a numpy.ndarray or a cupy.ndarray
HostArray: TypeAlias = np.ndarray[Any, Any]
DType: TypeAlias = np.dtype[Any]
Scalar: TypeAlias = bool | int | float
float32, float64 = np.float32, np.float64
_MASK = np.dtype(bool)
_default: str | None = None  # decided on first use: $TINYPROP_BACKEND, or NumPy


def array_module(*arrays: Array) -> Any:
    """The module, NumPy or CuPy, that computes with these arrays (there may be Python scalars among
    them)."""
    for array in arrays:
        # arithmetic turns 0-d arrays into NumPy scalars
        if isinstance(array, (np.ndarray, np.generic)):
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
    """The array module of a backend, or one sentence that says why it is not available."""
    if backend == "numpy":
        return np
    if backend != "cupy":
        raise BackendError(f"There is no backend {backend!r}: choose 'numpy' or 'cupy'.")
    try:
        cupy = importlib.import_module("cupy")
        if cupy.cuda.runtime.getDeviceCount():
            return cupy
        reason = "there is no CUDA device"
    except Exception as error:  # a broken installation may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise BackendError(
        f"The CuPy backend is not available ({reason}): `tinyprop info` says what to install."
    )


def default_backend() -> str:
    """The backend on which new tensors are created."""
    global _default
    if _default is None:
        load_module(name := os.environ.get("TINYPROP_BACKEND", "numpy"))
        _default = name
    return _default


class use_backend:
    """Set where new tensors are created; as a context manager, only inside the block.

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


def host_array(values: object, dtype: Any = None) -> HostArray:
    """Numbers, lists or a host array as a NumPy array."""
    return np.asarray(values, dtype)


def numbers(values: object, dtype: Any) -> HostArray:
    """Numbers in nested lists as a host array, in this dtype or, with None, in their own; anything
    else is refused."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        kind = (
            type(values).__name__
            if array.dtype.kind == "O" and not array.ndim
            else f"{array.dtype} elements"
        )
        raise TypeError(
            explain(
                kind,
                "a tensor holds floats, integers or bools",
                "numbers, lists of them, or arrays",
            )
        )
    return array.astype(dtype or array.dtype)  # a copy: what is saved must not change


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


def plain_number(value: Any) -> Any:
    """A NumPy scalar as a Python number, which never promotes; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def common_backend(operands: list[Any], floating: bool) -> str | None:
    """That of float arrays of one dtype, with Python numbers and, if not `floating`, masks: they
    need no fitting."""
    kind = dtype = None
    for x in operands:
        t = type(x)
        if t is float or t is int:
            continue
        if kind is None and (t is np.ndarray or is_device_array(x)):
            kind = t
        elif t is not kind:
            return None
        if x.dtype is dtype or (x.dtype is _MASK and not floating):
            continue
        if dtype is None:
            dtype = x.dtype
        elif x.dtype != dtype:
            return None
    if dtype is None or dtype.kind != "f":
        return None
    backend = "numpy" if kind is np.ndarray else "cupy"
    return (
        None
        if backend == "cupy" and elsewhere([x for x in operands if type(x) is kind])
        else backend
    )


def elsewhere(arrays: list[Array]) -> set[int]:
    """The numbers of devices, other than the current one, that have some of these arrays."""
    return {x.data.device_id for x in arrays} - {sys.modules["cupy"].cuda.runtime.getDevice()}


def fit_together(name: str, operands: list[Any], floating: bool) -> tuple[list[Any], str]:
    """Operands made to fit, and their backend: one backend, and no dtype that widens another by
    accident.

    Floats keep their dtype. Integers and bools become float32 in a function that is `floating`, or
    where they meet a Python float; integers that meet a float array take its dtype. Python and
    NumPy scalars never promote."""
    # np.matrix: other operators
    special = [isinstance(x, np.ndarray) and type(x) is not np.ndarray for x in operands]
    operands = [
        np.array(x) if odd else plain_number(x) for x, odd in zip(operands, special, strict=True)
    ]
    arrays = [x for x in operands if is_array(x)]
    if odd := [x.dtype for x in arrays if x.dtype.kind not in "fiub"]:
        raise TypeError(
            explain(
                f"{name} of {odd[0]} elements", "a tensor holds floats, integers or bools", "x.real"
            )
        )
    if len({backend_of(x) for x in arrays}) > 1:
        raise BackendError(
            f"{name} got a NumPy and a CuPy array together: move one by .to('cupy') or "
            ".to('numpy')."
        )
    backend = backend_of(arrays[0]) if arrays else default_backend()
    if backend == "cupy" and (others := elsewhere(arrays)):
        raise BackendError(
            f"{name} got an array of device {min(others)}, not the current one: see "
            "cupy.cuda.Device."
        )
    lists = [
        i
        for i, x in enumerate(operands)
        if not (is_array(x) or (isinstance(x, (int, float)) and (arrays or i)))
    ]
    for i in lists:
        operands[i] = numbers(operands[i], None)
    dtype = max(
        (x.dtype for x in arrays if x.dtype.kind == "f"), key=lambda d: d.itemsize, default=None
    )
    cast = "iu" if dtype is not None and not floating else "iub"
    floats = any(isinstance(x, float) or (is_array(x) and x.dtype.kind == "f") for x in operands)
    if dtype is None and (floating or floats or not arrays):
        dtype = np.dtype(float32)
    for i, x in enumerate(operands):
        if is_array(x) and dtype is not None and (i in lists or x.dtype.kind in cast):
            operands[i] = x.astype(dtype)
    return [to_backend(x, backend) if i in lists else x for i, x in enumerate(operands)], backend


def as_int_tuple(numbers: Any) -> tuple[int, ...]:
    """An integer, or several of them, as a tuple; NumPy's integers are integers, too."""
    try:
        return (as_int(numbers),)
    except TypeError:
        return tuple(map(as_int, numbers))
