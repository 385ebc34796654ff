"""The one way to add up many numbers.

NumPy adds pairwise along the axis that is fastest in memory. Along any other it adds row by row, so
that a float32 sum of a million rows loses four digits, and one of float16 stops at 2048. `total`
adds in a wider type whatever the layout, and rounds once. Integers and bools are added exactly."""

import math
from typing import Any

import numpy as np

from .arrays import Array, DType, HostArray, float32, float64
from .overrides import overridable

FEW = 64  # float32 terms that may be added one after the other
_WIDE: dict[DType, DType] = {
    np.dtype(np.float16): np.dtype(float32),
    np.dtype(float32): np.dtype(float64),
}


def wide(dtype: Any, terms: int | None = None) -> DType:
    """The type in which elements of this type are added: float32 stays as it is if the number of
    terms is known to be small.

    >>> wide("float16"), wide("float32"), wide("float32", terms=9)
    (dtype('float32'), dtype('float64'), dtype('float32'))
    """
    dtype = np.dtype(dtype)
    if dtype == float32 and terms is not None and terms <= FEW:
        return dtype
    return _WIDE.get(dtype, dtype)


def at_least_float32(x: Array) -> Array:
    """x, or float16 as float32, in which squares of its elements and their sums are finite."""
    return x.astype(float32) if x.dtype == np.float16 else x


@overridable
def total(
    x: Array, axes: Any = None, keepdims: bool = False, dtype: Any = None, divisor: Any = None
) -> Array:
    """The sum of all elements, or along some axes, divided by `divisor` if there is one, and then
    rounded to `dtype`: that of x, unless it is given.

    >>> ones = np.ones((5000, 2), "float16")
    >>> total(ones, 0).tolist(), total(ones, 0, divisor=5000).tolist()
    ([5000.0, 5000.0], [1.0, 1.0])
    """
    if x.dtype.kind != "f":
        sums = x.sum(axis=axes, keepdims=keepdims, dtype="int64")
        dtype = dtype or (sums.dtype if divisor is None else float64)
    else:
        sums = x.sum(axis=axes, keepdims=keepdims, dtype=wide(x.dtype))
        dtype = dtype or x.dtype
    if divisor is not None:
        sums = sums / divisor
    return sums.astype(dtype, copy=False)


@np.errstate(over="ignore", invalid="ignore")
def is_finite(*arrays: HostArray) -> bool:
    """Whether all elements are finite, for arrays on the host: on a device the answer would have to
    be waited for.

    NaN and infinity stay in a sum of squares, so that one product tells. Only where it is not
    finite, perhaps because it overflows, is each element looked at, which takes three times as
    long.

    >>> is_finite(np.array([1e200, -1e200])), is_finite(np.ones(2), np.array([1.0, np.nan]))
    (True, False)
    """
    for x in arrays:
        elements = x.ravel(order="K")  # in the order of memory: no copy
        squares = elements.dot(elements)
        if not math.isfinite(squares) and not np.isfinite(elements).all():
            return False
    return True
