"""A strict stand-in for CuPy over NumPy, for machines that have neither CuPy nor a device.

Its arrays compute with NumPy, but refuse what CuPy refuses (to become host arrays unasked, to meet host arrays, names
that CuPy lacks), and count what goes between host and device, who waits, and what is computed in float64. Where CuPy
would let a host array pass unnoticed, the stand-in refuses it, too. Its kernels check their arguments and compute
nothing.
"""

import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np

import tinyprop as tp
from tinyprop import special as host_special
from tinyprop.kernels import cuda
from tinyprop.moments import quadrature

# NumPy's functions that CuPy has, as far as tinyprop needs them; test_standin.py holds them against the real CuPy.
SAME = [
    "abs", "add", "arange", "argmax", "argsort", "ascontiguousarray", "bitwise_and", "bitwise_or", "broadcast_to",
    "clip", "concatenate", "cos", "cumsum", "divide", "einsum", "empty", "empty_like", "equal", "exp",
    "expand_dims", "expm1", "eye", "floor", "full", "greater", "greater_equal", "invert", "isfinite", "isnan",
    "less", "less_equal", "log", "log1p", "logaddexp", "matmul", "maximum", "minimum", "multiply", "not_equal",
    "ones", "ones_like", "result_type", "sign", "sin", "sort", "sqrt", "stack", "subtract", "tanh", "tile", "where",
    "zeros", "zeros_like",
]  # fmt: skip
METHODS = [
    "all", "any", "argmax", "astype", "copy", "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "round",
    "squeeze", "std", "sum", "swapaxes", "take", "transpose", "var",
]  # fmt: skip
OPERATORS = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "lt", "le", "gt", "ge", "eq",
    "ne",
]  # fmt: skip
IN_PLACE = ["add", "sub", "mul", "truediv", "pow"]

TINY = np.finfo(np.float32).tiny  # what is smaller, a device flushes to 0

counts = Counter()
owners = WeakValueDictionary()  # device arrays, by the id of the NumPy array inside


def _copied_back(array):
    """Every look at a value waits for the device and copies from it."""
    counts["d2h"] += 1
    counts["syncs"] += 1
    order.use(array)
    return array.host


def _inside(value):
    """The NumPy array inside a device array; numbers as they are; host arrays are refused."""
    if isinstance(value, ndarray):
        order.use(value)
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")  # CuPy's words
    if isinstance(value, (tuple, list)):
        return type(value)(_inside(v) for v in value)
    return value


def _outside(value):
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    if array.dtype == np.float64:
        counts["float64"] += 1
    if array.dtype == np.float32 and array.flags.owndata:
        array[abs(array) < TINY] = 0
    return ndarray(array)


def _lifted(function):
    def on_device(*args, **kwargs):
        return _outside(function(*map(_inside, args), **{k: _inside(v) for k, v in kwargs.items()}))

    return on_device


class ndarray:
    __array_priority__ = 100
    device = "<stand-in>"

    def __init__(self, host):
        self.host, self.base = host, owners.get(id(host.base))
        owners[id(host)] = self

    shape, dtype, ndim, size, strides, flags, itemsize, nbytes = (
        property(lambda self, name=name: getattr(self.host, name))
        for name in ("shape", "dtype", "ndim", "size", "strides", "flags", "itemsize", "nbytes")
    )
    T = property(lambda self: ndarray(self.host.T))
    data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data))

    def get(self):
        return _copied_back(self).copy()

    def set(self, host, stream):
        stream.copy(host, self)

    def item(self):
        return _copied_back(self).item()

    tolist, __float__, __int__, __bool__, __index__ = (
        lambda self, name=name: getattr(_copied_back(self), name)()
        for name in ("tolist", "__float__", "__int__", "__bool__", "__index__")
    )

    def __len__(self):
        return len(self.host)

    def __repr__(self):
        return repr(_copied_back(self))

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """NumPy's scalars may meet device arrays, and widen them; NumPy's arrays and functions may not."""
        if not any(isinstance(x, np.generic) for x in inputs):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        return _lifted(ufunc)(*inputs, **kwargs)

    def __getitem__(self, index):
        index = _inside(index)
        if any(getattr(part, "dtype", None) == np.bool for part in (index if isinstance(index, tuple) else (index,))):
            counts["syncs"] += 1  # how long the result is, only the device knows
        return _outside(self.host[index])

    def __setitem__(self, index, value):
        self.host[_inside(index)] = _inside(value)

    def __neg__(self):
        return ndarray(-self.host)

    def __invert__(self):
        return ndarray(~self.host)

    def __abs__(self):
        return ndarray(abs(self.host))

    __hash__ = None


def _operator(name):
    def apply(self, other):
        if hasattr(other, "__array_priority__") and not isinstance(other, ndarray):
            return NotImplemented  # a tensor's business
        return _outside(getattr(self.host, name)(_inside(other)))

    return apply


def _in_place(name):
    def apply(self, other):
        getattr(self.host, name)(_inside(other))
        return self

    return apply


for name in OPERATORS:
    setattr(ndarray, f"__{name}__", _operator(f"__{name}__"))
    if name[0] not in "lgen":
        setattr(ndarray, f"__r{name}__", _operator(f"__r{name}__"))
for name in IN_PLACE:
    setattr(ndarray, f"__i{name}__", _in_place(f"__i{name}__"))
for name in METHODS:
    setattr(ndarray, name, _lifted(getattr(np.ndarray, name)))


class Kernel:
    """Takes what a kernel takes, and computes nothing."""

    def __init__(self, name):
        self.name = name

    def __call__(self, blocks, threads, arguments):
        for value in arguments:
            if not isinstance(value, (ndarray, np.generic, int, type(None))):
                raise TypeError(f"Unsupported type {type(value)}")
        counts["launches"] += 1


class RawModule:
    """A compiled source."""

    def __init__(self, code, options, name_expressions):
        assert all(name.partition("<")[0] in code for name in name_expressions)

    def get_function(self, name):
        return Kernel(name)


class Stream:
    """Work in order. What nobody has waited for may still be to come, and is left to the last: so mistakes show.

    Each stream counts what it was told to do, and knows how much of the others is done before what it is told next.
    """

    def __init__(self, non_blocking=False):
        self.known, self.pending = Counter(), []  # uploads that have not been seen to arrive

    def order(self):
        self.known[self] += 1
        return self, self.known[self]

    def knows(self, work):
        stream, number = work
        return self.known[stream] >= number

    def copy(self, host, target):
        address = target.data.ptr
        if address in order.used and not self.knows(order.used[address]):
            raise RuntimeError("a batch was overwritten on the device while a step may still have used it")
        if any(upload[0].ctypes.data == host.ctypes.data for upload in order.in_flight):
            raise RuntimeError("a pinned buffer was refilled while its upload may have been under way")
        work = order.uploaded[address] = self.order()
        order.in_flight.append((host, host.copy(), work))
        self.pending.append((host, target, work))
        counts["h2d"] += 1
        counts["h2d_bytes"] += host.nbytes

    def record(self):
        return Event(self)

    def wait_event(self, event):
        for stream, number in event.known.items():
            self.known[stream] = max(self.known[stream], number)
            for host, target, work in [upload for upload in stream.pending if self.knows(upload[2])]:
                target.host[...] = host
                stream.pending = [upload for upload in stream.pending if upload[2] != work]


class Event:
    done = False  # the device is slow

    def __init__(self, stream):
        self.known = Counter(stream.known)

    def synchronize(self):
        counts["syncs"] += 1
        order.thread.wait_event(self)
        for host, before, work in [upload for upload in order.in_flight if order.thread.knows(upload[2])]:
            if (host != before).any():
                raise RuntimeError("a pinned buffer was refilled while its upload may have been under way")
            order.in_flight = [upload for upload in order.in_flight if upload[2] != work]


class Order:
    """Who has to wait for whom: what was uploaded where, and used last, by which stream; the host is a stream, too."""

    def __init__(self):
        self.main, self.thread = Stream(), Stream()
        self.uploaded, self.used = {}, {}  # address: work
        self.in_flight = []  # pinned buffers: memory, what was in it, and the upload that reads it

    def use(self, array):
        address = array.host.ctypes.data if self.uploaded else None
        if address in self.uploaded:
            if not self.main.knows(self.uploaded[address]):
                raise RuntimeError("a step used a batch that may not have arrived")
            self.used[address] = self.main.order()


order = Order()


def asarray(values, dtype=None):
    if isinstance(values, ndarray):
        return values if dtype is None else values.astype(dtype, copy=False)
    array = np.array(values, dtype)
    counts["h2d"] += 1
    counts["h2d_bytes"] += array.nbytes
    return ndarray(array)


def module():
    """What `import cupy` gives."""
    cupy = ModuleType("cupy")
    for name in SAME:
        setattr(cupy, name, _lifted(getattr(np, name)))
    cupy.ndarray, cupy.asarray, cupy.asnumpy = ndarray, asarray, lambda a: a.get()
    cupy.add.at = _lifted(np.add.at)
    cupy.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_lifted(np.lib.stride_tricks.as_strided)))
    cupy.RawModule = RawModule
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    cupy.cuda = SimpleNamespace(
        runtime=runtime, Stream=Stream, get_current_stream=lambda: order.main, alloc_pinned_memory=bytearray
    )
    return cupy


def special():
    """What `import cupyx.scipy.special` gives."""
    module = ModuleType("cupyx.scipy.special")
    for name in ("erf", "erfc", "erfcx"):
        setattr(module, name, _lifted(getattr(host_special, name)))
    return module


def _forget():
    """Kernels and arrays that tinyprop makes once for each device."""
    for made_once in (cuda._kernel, quadrature.rule, quadrature.differentiation):
        made_once.cache_clear()


@contextmanager
def installed(kernels=False):
    """The stand-in as CuPy, inside the block. Without kernels only the plain rules are used, and numbers are right."""
    modules = {"cupy": module(), "cupyx.scipy.special": special()}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    _forget()
    counts.clear()
    order.__init__()
    try:
        with tp.use_backend("cupy"), nullcontext() if kernels else tp.plain():
            yield counts
    finally:
        _forget()
        for name, there in before.items():
            if there is None:
                del sys.modules[name]
            else:
                sys.modules[name] = there
