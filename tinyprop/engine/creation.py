"""Tensors made from an array, whose memory they share, or from a shape."""

from typing import Any

from .arrays import (
    HostArray,
    array_module,
    as_int_tuple,
    default_backend,
    float32,
    host_array,
    is_host_array,
    load_module,
    unwrap_scalar,
)
from .errors import BackendError, explain
from .random import generator
from .tensor import Tensor, check_elements, tensor


def from_numpy(array: HostArray, requires_grad: bool = False) -> Tensor:
    """A tensor that shares the memory of a NumPy array.

    While a graph needs its values the array is read-only, as described at `Tensor.data`. Memory
    that NumPy does not own (a PyTorch tensor's, a mapped file's) is copied when a graph saves it.

    >>> a = tp.tensor([1.0, 2.0]).numpy()
    >>> t = tp.from_numpy(a)
    >>> a[0] = 5.0
    >>> t
    tensor([5., 2.])
    """
    if not is_host_array(array):
        got = f"from_numpy of a {type(array).__name__}"
        raise TypeError(
            explain(got, "only a NumPy array has memory to share", "tp.tensor(...), which copies")
        )
    check_elements(array.dtype, requires_grad)
    shared = Tensor(host_array(array), requires_grad)
    shared.exposed = True
    return shared


# The kinds of devices that DLPack numbers (dlpack.h).
HOST_KINDS = {1: "CPU", 3: "pinned host memory"}
CUDA_KINDS = {2: "CUDA", 13: "managed memory of CUDA"}


def from_dlpack(source: Any, requires_grad: bool = False) -> Tensor:
    """A tensor that shares the memory of an array of another library, such as PyTorch's or JAX's:
    anything with `__dlpack__`.

    What is done to it there is seen here. When a graph saves the values, it saves a copy. A tensor
    of PyTorch that requires a gradient is refused: write `from_dlpack(t.detach())`.

    >>> array = tp.tensor([1.0, 2.0]).data
    >>> shared = tp.from_dlpack(array)
    >>> array[0] = 5.0
    >>> shared
    tensor([5., 2.])
    """
    if not hasattr(source, "__dlpack__"):
        got = f"from_dlpack of a {type(source).__name__}"
        raise TypeError(explain(got, "it has a method __dlpack__", "tp.tensor(...), which copies"))
    kind, _ = source.__dlpack_device__()
    if kind not in HOST_KINDS | CUDA_KINDS:
        got = f"from_dlpack of a {type(source).__name__} on a device of kind {kind}"
        rule = "tensors are on the host or on a CUDA device"
        raise BackendError(explain(got, rule, "move it there first: x.cpu()"))
    xp = load_module("numpy" if kind in HOST_KINDS else "cupy")
    try:
        array = xp.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        got = f"from_dlpack of a {type(source).__name__}"
        hint = "x.detach() if it requires a gradient; x.float() for a dtype that NumPy has not"
        raise BufferError(explain(got, " ".join(str(error).split()), hint)) from None
    check_elements(array.dtype, requires_grad)
    shared = Tensor(array, requires_grad)
    shared.exposed = True
    return shared


def _created(
    name: str, args: tuple[Any, ...], requires_grad: bool, dtype: Any, backend: str | None
) -> Tensor:
    """What the function of that name in NumPy or CuPy returns, as a tensor."""
    xp = load_module(backend or default_backend())
    create = getattr(xp, name)
    array = create(*args, dtype=dtype)
    check_elements(array.dtype, requires_grad)
    return Tensor(array, requires_grad)


def _shape(lengths: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape, given as (2, 3) or as ((2, 3),)."""
    return as_int_tuple(lengths[0] if len(lengths) == 1 else lengths)


def zeros(
    *shape: Any, requires_grad: bool = False, dtype: Any = float32, backend: str | None = None
) -> Tensor:
    """A tensor of zeros: zeros(2, 3) or zeros((2, 3)).

    >>> tp.zeros(3)
    tensor([0., 0., 0.])
    """
    return _created("zeros", (_shape(shape),), requires_grad, dtype, backend)


def ones(
    *shape: Any, requires_grad: bool = False, dtype: Any = float32, backend: str | None = None
) -> Tensor:
    """A tensor of ones.

    >>> tp.ones(3)
    tensor([1., 1., 1.])
    """
    return _created("ones", (_shape(shape),), requires_grad, dtype, backend)


def full(
    shape: Any,
    value: float,
    requires_grad: bool = False,
    dtype: Any = float32,
    backend: str | None = None,
) -> Tensor:
    """A tensor filled with one value.

    >>> tp.full((2,), 7.0)
    tensor([7., 7.])
    """
    return _created("full", (_shape((shape,)), value), requires_grad, dtype, backend)


def arange(
    *bounds: float, requires_grad: bool = False, dtype: Any = None, backend: str | None = None
) -> Tensor:
    """arange(stop), arange(start, stop) or arange(start, stop, step): integers for integers,
    otherwise float32.

    >>> tp.arange(3.0)
    tensor([0., 1., 2.])
    """
    whole = all(isinstance(unwrap_scalar(bound), int) for bound in bounds)
    # in float64: steps that are rounded to float32 would add up to an error
    values = _created("arange", bounds, False, "int64" if whole else "float64", backend)
    if dtype is None:
        dtype = "int64" if whole else float32
    return tensor(values.data, requires_grad, dtype)


def randn(
    *shape: Any, requires_grad: bool = False, dtype: Any = float32, backend: str | None = None
) -> Tensor:
    """Samples of N(0, 1); `tp.manual_seed` seeds them.

    >>> tp.randn(2, 3).shape
    (2, 3)
    """
    dtype = _float_dtype(dtype)
    samples = generator().standard_normal(_shape(shape))
    return tensor(samples, requires_grad, dtype, backend)


def rand(
    *shape: Any, requires_grad: bool = False, dtype: Any = float32, backend: str | None = None
) -> Tensor:
    """Samples of the uniform distribution on [0, 1); `tp.manual_seed` seeds them.

    >>> bool((tp.rand(2, 3) < 1).data.all())
    True
    """
    dtype = _float_dtype(dtype)
    samples = generator().random(_shape(shape))
    xp = array_module(samples)
    # float64 samples just below 1 would be rounded to 1
    largest = xp.nextafter(dtype.type(1), dtype.type(0))
    return tensor(xp.minimum(samples, largest), requires_grad, dtype, backend)


def _float_dtype(dtype: Any) -> Any:
    """The dtype, refused if it is not one of floats."""
    dtype = host_array(0, dtype).dtype
    if dtype.kind != "f":
        raise TypeError(
            explain(
                f"random numbers of type {dtype}",
                "random numbers are floats",
                "(10 * tp.rand(3)).astype('int64')",
            )
        )
    return dtype
