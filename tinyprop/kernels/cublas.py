"""Matrix products on a device, by cuBLAS itself.

CuPy calls the same functions, but not while a stream is being captured, which CUDA allows; and it
copies stacks of transposed matrices first. A captured product must not ask for memory, so cuBLAS
gets its workspace from here: one for each stream of a thread, since what runs at the same time
cannot share it."""

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..engine.arrays import Array
from ..engine.overrides import override
from ..functional.linear import product
from .cuda import _contiguous, _cupy, _empty, supported

WORKSPACE = 32 << 20  # bytes, as NVIDIA recommends for its largest devices
FLOAT32, FLOAT64 = 0, 1  # cudaDataType_t
COMPUTE_FLOAT32, COMPUTE_FLOAT64, COMPUTE_TF32 = 68, 70, 77  # cublasComputeType_t
DEFAULT = -1  # cublasGemmAlgo_t


@cache
def _library() -> Any:
    """cuBLAS as CuPy has loaded it; None if it is not found by its name."""
    version = _cupy().cuda.runtime.runtimeGetVersion() // 1000
    windows = sys.platform == "win32"
    name = f"cublas64_{version}.dll" if windows else f"libcublas.so.{version}"
    try:
        library: Any = ctypes.CDLL(name)
    except OSError:
        return None
    _declare_arguments(library)
    return library


def _declare_arguments(library: Any) -> None:
    """Tell ctypes what the functions take; all return a status."""
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    library.cublasDestroy_v2.argtypes = (pointer,)
    library.cublasSetStream_v2.argtypes = (pointer, pointer)
    library.cublasSetWorkspace_v2.argtypes = (pointer, pointer, ctypes.c_size_t)
    # handle, two transpositions, three sizes, alpha
    before = (pointer, *[number] * 5, pointer)
    beta, compute, algorithm = pointer, number, number
    matrix = (pointer, number, number)  # address, type, leading dimension
    single = (*before, *matrix, *matrix, beta, *matrix, compute, algorithm)
    library.cublasGemmEx.argtypes = single
    stack = (*matrix, long)  # and how far apart the matrices are
    count = number
    batched = (*before, *stack, *stack, beta, *stack, count, compute, algorithm)
    library.cublasGemmStridedBatchedEx.argtypes = batched


@dataclass(frozen=True)
class Kind:
    """The type of elements, how to compute with them, and 1 and 0 in that type."""

    elements: int
    compute: int
    one: Any
    zero: Any


@cache
def _kind(dtype: str, device: int) -> Kind:
    if dtype == "d":
        one, zero = ctypes.c_double(1), ctypes.c_double(0)
        return Kind(FLOAT64, COMPUTE_FLOAT64, ctypes.pointer(one), ctypes.pointer(zero))
    capability = int(_cupy().cuda.Device(device).compute_capability)
    tf32_allowed = int(os.environ.get("CUPY_TF32", "0")) > 0  # as in CuPy
    compute = COMPUTE_TF32 if tf32_allowed and capability >= 80 else COMPUTE_FLOAT32
    return Kind(
        FLOAT32, compute, ctypes.pointer(ctypes.c_float(1)), ctypes.pointer(ctypes.c_float(0))
    )


class Handle:
    """cuBLAS for one thread and device. CuPy has another, whose stream and workspace it resets."""

    def __init__(self, library: Any):
        self.library = library
        self.number = ctypes.c_void_p()
        self.stream: int | None = None  # that it is ready for
        self.workspaces: dict[int, Any] = {}  # by stream
        status = library.cublasCreate_v2(ctypes.byref(self.number))
        if status:
            raise RuntimeError(f"cuBLAS does not start: status {status}")

    def on(self, stream: int) -> ctypes.c_void_p:
        """The handle, ready for this stream."""
        if stream == self.stream:
            return self.number
        if stream not in self.workspaces:
            self.workspaces[stream] = _cupy().cuda.Memory(WORKSPACE)  # from no pool
        self.library.cublasSetStream_v2(self.number, stream)  # takes the workspace away
        self.library.cublasSetWorkspace_v2(self.number, self.workspaces[stream].ptr, WORKSPACE)
        self.stream = stream
        return self.number

    def __del__(self) -> None:
        if not sys.is_finalizing():  # at the end of the process CUDA may be gone
            self.library.cublasDestroy_v2(self.number)


class Handles(threading.local):
    """Those of the calling thread, by device."""

    def __init__(self) -> None:
        self.by_device: dict[int, Handle] = {}

    def of(self, device: int, library: Any) -> Handle:
        if device not in self.by_device:
            self.by_device[device] = Handle(library)
        return self.by_device[device]


_handles = Handles()


def workspaces() -> list[Any]:
    """Those of the calling thread. A graph that it has recorded needs them, even after the end of
    the thread."""
    every: list[Any] = []
    for handle in _handles.by_device.values():
        every += handle.workspaces.values()
    return every


@dataclass
class Operand:
    """A matrix, or a stack of them, as cuBLAS takes it: rows or columns are contiguous."""

    array: Array
    by_columns: bool  # whether it is the columns
    apart: int  # from one row or column to the next, in elements


def _operand(x: Array) -> Operand:
    rows, columns = x.shape[-2:]
    down = x.strides[-2] // x.itemsize
    across = x.strides[-1] // x.itemsize
    rows_contiguous = across == 1 or columns == 1
    rows_disjoint = down >= columns or rows == 1
    if rows_contiguous and rows_disjoint:
        return Operand(x, False, max(down, columns))
    columns_contiguous = down == 1 or rows == 1
    columns_disjoint = across >= rows or columns == 1
    if columns_contiguous and columns_disjoint:
        return Operand(x, True, max(across, rows))
    return Operand(_contiguous(x), False, columns)


def _fit(x: Array, y: Array) -> bool:
    """Whether these are two matrices, or two stacks of as many, that can be multiplied."""
    same_axes = x.ndim == y.ndim and x.ndim in (2, 3)
    return same_axes and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-2]


@override(product, on="cupy")
def cublas_product(x: Array, y: Array, out: Array | None = None) -> Any:
    if y.ndim == 1 and out is None and supported(x, y):  # a vector is a matrix of one column
        return product(x.reshape(-1, len(y)), y[:, None]).reshape(x.shape[:-1])
    if not _fit(x, y) or not supported(x, y):
        return NotImplemented
    library = _library()
    if library is None:
        return NotImplemented
    if out is None:
        out = _empty((*x.shape[:-1], y.shape[-1]), x)
    if not out.flags.c_contiguous:
        return NotImplemented
    status = _multiply(library, _operand(x), _operand(y), out)
    if status:
        shapes = f"{x.shape} and {y.shape}"
        raise RuntimeError(f"cuBLAS refused a product of {shapes} with status {status}")
    return out


def _multiply(library: Any, left: Operand, right: Operand, out: Array) -> int:
    """out = left @ right on the current stream; returns the status of cuBLAS."""
    x, y = left.array, right.array
    device = x.data.device_id
    kind = _kind(x.dtype.char, device)
    handle = _handles.of(device, library).on(_cupy().cuda.get_current_stream().ptr)
    m, k = x.shape[-2:]
    n = y.shape[-1]
    # cuBLAS takes a row for a column: out.T = right.T @ left.T
    before = (handle, right.by_columns, left.by_columns, n, m, k, kind.one)
    a = (y.data.ptr, kind.elements, right.apart)
    b = (x.data.ptr, kind.elements, left.apart)
    c = (out.data.ptr, kind.elements, n)
    if x.ndim == 2:
        return library.cublasGemmEx(*before, *a, *b, kind.zero, *c, kind.compute, DEFAULT)
    to_next_y, to_next_x, to_next_out = (s.strides[0] // s.itemsize for s in (y, x, out))
    stacks = (*a, to_next_y, *b, to_next_x, kind.zero, *c, to_next_out)
    return library.cublasGemmStridedBatchedEx(*before, *stacks, len(x), kind.compute, DEFAULT)
