"""Matrix products on a device, by cuBLAS itself.

CuPy calls the same functions, but not while a stream is being captured, which CUDA allows; and it
copies stacks of transposed matrices first. A captured product must not ask for memory, so cuBLAS
gets its workspace from here: one for each stream of a thread, since what runs at the same time
cannot share it."""

import ctypes
import os
import sys
import threading
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
    try:
        library: Any = ctypes.CDLL(
            f"cublas64_{version}.dll" if sys.platform == "win32" else f"libcublas.so.{version}"
        )
    except OSError:
        return None
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    # address, type, stride, a longer one
    matrix, stack = (pointer, number, number), (pointer, number, number, long)
    before = pointer, *[number] * 5, pointer
    library.cublasGemmEx.argtypes = *before, *matrix, *matrix, pointer, *matrix, number, number
    library.cublasGemmStridedBatchedEx.argtypes = (
        *before,
        *stack,
        *stack,
        pointer,
        *stack,
        number,
        number,
        number,
    )
    library.cublasDestroy_v2.argtypes = (pointer,)
    library.cublasSetStream_v2.argtypes = pointer, pointer
    library.cublasSetWorkspace_v2.argtypes = pointer, pointer, ctypes.c_size_t
    return library


@cache
def _kind(dtype: str, device: int) -> tuple[int, int, Any, Any]:
    """The type of elements, how to compute with them, and 1 and 0 in that type."""
    if dtype == "d":
        return (
            FLOAT64,
            COMPUTE_FLOAT64,
            ctypes.pointer(ctypes.c_double(1)),
            ctypes.pointer(ctypes.c_double(0)),
        )
    capability = int(_cupy().cuda.Device(device).compute_capability)
    reduced = int(os.environ.get("CUPY_TF32", "0")) > 0 and capability >= 80  # as in CuPy
    one, zero = ctypes.pointer(ctypes.c_float(1)), ctypes.pointer(ctypes.c_float(0))
    return FLOAT32, COMPUTE_TF32 if reduced else COMPUTE_FLOAT32, one, zero


class Handle:
    """cuBLAS for one thread and device. CuPy has another, whose stream and workspace it resets."""

    def __init__(self, library: Any):
        self.library, self.number = library, ctypes.c_void_p()
        self.stream: int | None = None  # that it is ready for
        self.workspaces: dict[int, Any] = {}  # by stream
        if status := library.cublasCreate_v2(ctypes.byref(self.number)):
            raise RuntimeError(f"cuBLAS does not start: status {status}")

    def on(self, stream: int) -> ctypes.c_void_p:
        if stream != self.stream:
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


_handles = Handles()


def workspaces() -> list[Any]:
    """Those of the calling thread. A graph that it has recorded needs them, even after the end of
    the thread."""
    return [room for handle in _handles.by_device.values() for room in handle.workspaces.values()]


def _operand(x: Array) -> tuple[Array, bool, int]:
    """A stack of matrices whose rows or columns lie in one piece, whether it is the columns, and
    how far apart."""
    (rows, columns), size = x.shape[-2:], x.itemsize
    down, across = x.strides[-2] // size, x.strides[-1] // size
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return x, False, max(down, columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return x, True, max(across, rows)
    return _contiguous(x), False, columns


@override(product, on="cupy")
def cublas_product(x: Array, y: Array, out: Array | None = None) -> Any:
    if y.ndim == 1 and out is None and supported(x, y):
        return product(x.reshape(-1, len(y)), y[:, None]).reshape(x.shape[:-1])
    fits = (
        x.ndim == y.ndim
        and x.ndim in (2, 3)
        and x.shape[:-2] == y.shape[:-2]
        and x.shape[-1] == y.shape[-2]
    )
    if not fits or not supported(x, y) or (library := _library()) is None:
        return NotImplemented
    out = _empty((*x.shape[:-1], y.shape[-1]), x) if out is None else out
    if not out.flags.c_contiguous:
        return NotImplemented
    (x, turned_x, from_x), (y, turned_y, from_y) = _operand(x), _operand(y)
    (device, stream), (m, k), n = (
        (x.data.device_id, _cupy().cuda.get_current_stream().ptr),
        x.shape[-2:],
        y.shape[-1],
    )
    kind, compute, one, zero = _kind(x.dtype.char, device)
    if device not in _handles.by_device:
        _handles.by_device[device] = Handle(library)
    handle = _handles.by_device[device].on(stream)
    # to cuBLAS a row is a column: out.T = y.T @ x.T
    before = handle, turned_y, turned_x, n, m, k, one
    matrices: list[tuple[int, ...]] = [
        (y.data.ptr, kind, from_y),
        (x.data.ptr, kind, from_x),
        (out.data.ptr, kind, n),
    ]
    if x.ndim == 2:
        a, b, c = matrices
        status = library.cublasGemmEx(*before, *a, *b, zero, *c, compute, DEFAULT)
    else:
        a, b, c = (
            (*m, s.strides[0] // s.itemsize) for m, s in zip(matrices, (y, x, out), strict=True)
        )
        status = library.cublasGemmStridedBatchedEx(
            *before, *a, *b, zero, *c, len(x), compute, DEFAULT
        )
    if status:
        raise RuntimeError(
            f"cuBLAS refused a product of {x.shape} and {y.shape} with status {status}"
        )
    return out
