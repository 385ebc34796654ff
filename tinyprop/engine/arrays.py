"""Arrays on the host (NumPy) and on a device (CuPy).

The array decides where to compute: `xp = array_module(x)` is the module that has its functions. The
default backend only says where tensors are created from numbers, lists and host arrays."""

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
float32 = np.float32
float64 = np.float64
WIDER = "x.astype('float64')"  # what to try where integers are too large for float32
_MASK = np.dtype(bool)
_default: str | None = None  # decided on first use: $TINYPROP_BACKEND, or NumPy


def array_module(*arrays: Array) -> Any:
    """The module, NumPy or CuPy, that computes with these arrays and Python numbers."""
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
    """The array module of a backend, or an error that says why it is not available."""
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
        name = os.environ.get("TINYPROP_BACKEND", "numpy")
        load_module(name)
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
        self.previous = _default
        _default = name

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
        is_single_object = array.dtype.kind == "O" and array.ndim == 0
        got = type(values).__name__ if is_single_object else f"{array.dtype} elements"
        rule = "a tensor holds floats, integers or bools"
        raise TypeError(explain(got, rule, "numbers, lists of them, or arrays"))
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
    if backend == "numpy":
        return to_numpy(array)
    return load_module(backend).asarray(array)


def from_host(values: object, like: Array, dtype: Any = None) -> Array:
    """Numbers, lists or a host array as an array where `like` lives."""
    return to_backend(np.asarray(values, dtype), backend_of(like))


def strided_view(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of this shape, with these strides in bytes.

    >>> strided_view(np.arange(5), (2, 3), (16, 8)).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    if is_host_array(x) and x.flags.c_contiguous:  # as_strided takes ten times as long
        return np.ndarray(shape, x.dtype, x, 0, strides)
    return array_module(x).lib.stride_tricks.as_strided(x, shape, strides)


def unwrap_scalar(value: Any) -> Any:
    """A NumPy scalar as a Python number, which never promotes; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def fast_path_backend(operands: list[Any], floating: bool) -> str | None:
    """The backend of operands that need no promotion; None if they may need one.

    Float arrays of one dtype need none, with Python numbers and, if not `floating`, masks."""
    array_type = None
    dtype = None
    for x in operands:
        t = type(x)
        if t is float or t is int:
            continue
        if array_type is None and (t is np.ndarray or is_device_array(x)):
            array_type = t
        elif t is not array_type:
            return None
        if x.dtype is dtype or (x.dtype is _MASK and not floating):
            continue
        if dtype is None:
            dtype = x.dtype
        elif x.dtype != dtype:
            return None
    if dtype is None or dtype.kind != "f":
        return None
    if array_type is np.ndarray:
        return "numpy"
    arrays = [x for x in operands if type(x) is array_type]
    return None if foreign_devices(arrays) else "cupy"


def foreign_devices(arrays: list[Array]) -> set[int]:
    """The numbers of devices, other than the current one, that have some of these arrays."""
    return {x.data.device_id for x in arrays} - {sys.modules["cupy"].cuda.runtime.getDevice()}


def promote_operands(
    name: str, operands: list[Any], floating: bool, masks: bool = True, wide: bool = False
) -> tuple[list[Any], str]:
    """Operands on one backend, in dtypes that do not widen each other by accident; and this
    backend.

    Floats keep their dtype. Integers that meet a float array take its dtype; they become float32 in
    a function that is `floating`, or where they meet a Python float; too large ones are refused.
    Bools that meet others stay bools. Bools alone stay bools, if the function takes `masks`, become
    float32 like integers, or are refused. Python and NumPy scalars never promote. A function that
    is `wide` adds many integers, which become int64."""
    operands, backend, lists = _on_one_backend(name, operands)
    dtype = _float_dtype(operands, lists, floating)
    common = dtype or _common_dtype(name, operands)
    if common.kind == "b" and not masks:
        rule = "bools are masks, and this function needs numbers"
        hint = "x.astype('float32'); masks have ~, &, | and ^"
        raise TypeError(explain(f"{name} of bools", rule, hint))
    only_masks = all(x.dtype.kind == "b" for x in operands if is_array(x))
    for i, x in enumerate(operands):
        if not is_array(x):
            continue
        if x.dtype.kind in "iu" and dtype is not None:
            x = exact_floats(x, dtype, name)
        elif x.dtype.kind in "iu" and wide:
            x = x.astype("int64", copy=False)
        elif x.dtype.kind == "b" and (floating or only_masks):
            x = x.astype(common, copy=False)
        if i in lists:
            x = to_backend(x.astype(dtype) if x.dtype.kind == "f" else x, backend)
        operands[i] = x
    return operands, backend


def comparable_operands(name: str, operands: list[Any]) -> list[Any]:
    """Operands on one backend that NumPy compares exactly: it converts integers to float64 where
    they meet floats, so they must not be too large for that."""
    operands, backend, lists = _on_one_backend(name, operands)
    dtype = _float_dtype(operands, lists, floating=False)
    meets_float = dtype is not None
    for i, x in enumerate(operands):
        if not is_array(x):
            continue
        if meets_float and x.dtype.kind in "iu":
            check_exact(x, np.dtype(float64), name)
        if i in lists:
            numbers = x.astype(dtype) if x.dtype.kind == "f" else x
            operands[i] = to_backend(numbers, backend)
    return operands


def exact_floats(x: Array, dtype: Any, name: str, hint: str = WIDER) -> Array:
    """Integers or bools as floats of that dtype, refused if one is too large to be exact."""
    dtype = np.dtype(dtype)
    check_exact(x, dtype, name, hint)
    return x.astype(dtype)


def check_exact(x: Array, dtype: DType, name: str, hint: str = WIDER) -> None:
    """Refuse integers too large to be exact as floats of that dtype. Of 32 or 64 bits, they must be
    looked at, which waits for a device; of fewer, all are exact in float32."""
    largest_exact = 2 ** (np.finfo(dtype).nmant + 1)
    if x.dtype.kind == "b" or np.iinfo(x.dtype).max <= largest_exact or not x.size:
        return
    lowest, highest = int(x.min()), int(x.max())
    if -largest_exact <= lowest and highest <= largest_exact:
        return
    extreme = lowest if -lowest > highest else highest
    got = f"{x.dtype} elements in {name}, one of which is {extreme}"
    rule = f"they become {dtype}, which has all integers only up to {largest_exact}"
    if dtype.itemsize == 8:
        hint = "smaller numbers: subtract their minimum first"
    raise TypeError(explain(got, rule, hint))


def _on_one_backend(name: str, operands: list[Any]) -> tuple[list[Any], str, set[int]]:
    """Operands as plain arrays and Python numbers, their backend, and the positions of those that
    were lists, or a number in the first place: they are host arrays of their own dtype now."""
    operands = [_without_subclass(x) for x in operands]
    arrays = [x for x in operands if is_array(x)]
    for x in arrays:
        if x.dtype.kind not in "fiub":
            got = f"{name} of {x.dtype} elements"
            raise TypeError(explain(got, "a tensor holds floats, integers or bools", "x.real"))
    backend = _only_backend(name, arrays)
    lists = set()
    for i, x in enumerate(operands):
        stays_number = isinstance(x, (int, float)) and (len(arrays) > 0 or i > 0)
        if not is_array(x) and not stays_number:
            operands[i] = numbers(x, None)
            lists.add(i)
    return operands, backend, lists


def _without_subclass(x: Any) -> Any:
    """Subclasses such as np.matrix, which has other operators, as plain arrays; NumPy scalars as
    Python numbers."""
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray:
        return np.array(x)
    return unwrap_scalar(x)


def _only_backend(name: str, arrays: list[Array]) -> str:
    """The backend that all of these arrays are on."""
    if not arrays:
        return default_backend()
    backend = backend_of(arrays[0])
    if any(backend_of(x) != backend for x in arrays):
        raise BackendError(
            f"{name} got a NumPy and a CuPy array together: move one by .to('cupy') or "
            ".to('numpy')."
        )
    if backend == "cupy" and (others := foreign_devices(arrays)):
        raise BackendError(
            f"{name} got an array of device {min(others)}, not the current one: see "
            "cupy.cuda.Device."
        )
    return backend


def _float_dtype(operands: list[Any], lists: set[int], floating: bool) -> DType | None:
    """The float dtype that lists and integers take; None if integers stay integers."""
    given = [x for i, x in enumerate(operands) if is_array(x) and i not in lists]
    floats = [x.dtype for x in given if x.dtype.kind == "f"]
    if floats:
        return max(floats, key=lambda dtype: dtype.itemsize)
    meets_float = any(isinstance(x, float) for x in operands)
    from_lists = {operands[i].dtype.kind for i in lists}
    only_lists = not given
    lists_of_floats = "f" in from_lists or (only_lists and from_lists - {"b"})
    if floating or meets_float or lists_of_floats:
        return np.dtype(float32)
    return None


def _common_dtype(name: str, operands: list[Any]) -> DType:
    """The dtype that integers and bools have together; refused if it would be a float."""
    elements = [x.dtype if is_array(x) else x for x in operands]
    common: DType = np.result_type(*elements)
    if common.kind == "f":
        got = f"{name} of {' and '.join(map(str, elements))}"
        raise TypeError(explain(got, "no integer type holds both", "x.astype('int64')"))
    return common


def as_int_tuple(numbers: Any) -> tuple[int, ...]:
    """One integer or several, of Python or NumPy, as a tuple of Python integers."""
    try:
        return (as_int(numbers),)
    except TypeError:
        return tuple(map(as_int, numbers))
