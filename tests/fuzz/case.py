"""What a kind of case is made of: a `Case`, and how two results are compared and described."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One program to be computed in two ways."""

    words: str  # the program, for a reader
    check: Callable[[], str | None]  # in what the two ways differ, or None


def chance(rng: Random, probability: float) -> bool:
    return bool(rng.random() < probability)


def choice(rng: Random, options: Any) -> Any:
    """One of several things, as it is (NumPy's own choice makes an array of them)."""
    options = list(options)
    return options[rng.integers(len(options))]


def integer(rng: Random, least: int, most: int) -> int:
    return int(rng.integers(least, most + 1))


def size(rng: Random, least: int, most: int) -> int:
    """Small ones as often as large ones: the logarithm is uniform."""
    return round(float(np.exp(rng.uniform(np.log(least), np.log(most)))))


# -- layouts


def contiguous(rng: Random, x: Array) -> Array:
    return np.ascontiguousarray(x)


def transposed(rng: Random, x: Array) -> Array:
    """The axes in another order in memory: of images for instance channels last."""
    order = rng.permutation(x.ndim)
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def channels_last(rng: Random, x: Array) -> Array:
    if x.ndim != 4:
        return transposed(rng, x)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def strided(rng: Random, x: Array) -> Array:
    """Every second or third element of a larger array, along some axes backwards."""
    steps = [choice(rng, [1, 2, 3, -1, -2]) for _ in x.shape]
    room = [max(1, length * abs(step)) for length, step in zip(x.shape, steps, strict=True)]
    large = np.full(room, 77, x.dtype)
    view = large[tuple(slice(None, None, step) for step in steps)]
    view = view[tuple(slice(length) for length in x.shape)]
    view[...] = x
    return view


LAYOUTS = (contiguous, contiguous, transposed, channels_last, strided)


def laid_out(rng: Random, x: Array) -> Array:
    """The same values in another memory layout."""
    if x.ndim == 0 or x.size == 0:
        return x
    return choice(rng, LAYOUTS)(rng, x)


def described(x: Array) -> str:
    """The dtype, shape and layout of an array, as "float32(2, 3) with strides (1, 2)"."""
    text = f"{x.dtype}{x.shape}"
    if x.flags.c_contiguous:
        return text
    strides = tuple(stride // x.itemsize for stride in x.strides)
    return f"{text} with strides {strides}"


# -- comparisons


def scale_of(x: Array) -> float:
    """The largest finite magnitude; 0 if there is none."""
    with np.errstate(invalid="ignore"):
        return float(abs(x[np.isfinite(x)].astype("float64")).max(initial=0.0))


def difference(what: str, got: Array, want: Array, allowed: Any) -> str | None:
    """How a result differs from the other one by more than is allowed, a number or an array of
    them. NaN and infinities must be in the same places."""
    if got.shape != want.shape:
        return f"{what} has shape {got.shape}, but should have {want.shape}"
    with np.errstate(all="ignore"):
        both_finite = np.isfinite(got) & np.isfinite(want)
        close = abs(got.astype("float64") - want.astype("float64")) <= allowed
        same = (got == want) | (np.isnan(got) & np.isnan(want))
    fine = np.where(both_finite, close, same)
    if fine.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~fine)[0])
    count = f"{(~fine).sum()} of {fine.size} differ"
    limit = float(np.broadcast_to(allowed, got.shape)[index])
    numbers = f"{got[index].item()!r}, but should be {want[index].item()!r}"
    return f"{what} at {index}: {numbers} to {limit:.1e}; {count}"


def bit_difference(got: Mapping[str, Any], want: Mapping[str, Any]) -> str | None:
    """The first array whose bits differ from those of the array of the same name."""
    if got.keys() != want.keys():
        return f"names {sorted(got)}, but should be {sorted(want)}"
    for name, one in got.items():
        one, other = np.asarray(one), np.asarray(want[name])
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{name}: {described(one)}, but should be {described(other)}"
        if one.tobytes() != other.tobytes():
            return difference(name, one, other, 0.0) or f"{name}: signs of zeros or NaNs differ"
    return None
