"""The random generator of each thread, and numbers that are the same wherever they are computed.

NumPy loads its own generators on first use, which takes a while.
"""

import math
import threading

import numpy as np

from .arrays import Array, HostArray, from_host
from .overrides import overridable

_random = threading.local()


def manual_seed(seed: int) -> None:
    """Seed the generator of initial weights and dropout masks for the calling thread.

    Weights are drawn on the host, and masks follow from a key that is drawn there, so that a seed
    means the same on both backends.

    >>> tp.manual_seed(0)
    >>> first = tp.nn.Linear(3, 2).weight
    >>> tp.manual_seed(0)
    >>> bool((tp.nn.Linear(3, 2).weight == first).data.all())
    True
    """
    _random.generator = new_generator(seed)


def generator() -> "np.random.Generator":
    """The generator of the calling thread, which `manual_seed` seeds; a new thread starts with seed
    0."""
    if not hasattr(_random, "generator"):
        manual_seed(0)
    return _random.generator


def new_generator(seed: int | list[int]) -> "np.random.Generator":
    return np.random.default_rng(seed)


def next_key(random: "np.random.Generator | None" = None) -> int:
    """64 random bits, from the generator of the calling thread if none is given: a key for
    `random_words`."""
    return int((random or generator()).integers(2**64, dtype="uint64"))


def random_words(size: int, key: int) -> HostArray:
    """`size` random words of 32 bits, from NumPy's Philox (Salmon et al., 2011), which scrambles a
    counter by multiplications. Its only state is the counter, so a device can compute each word by
    itself.

    >>> random_words(4, key=7).tolist() == random_words(9, key=7)[:4].tolist()
    True
    """
    return (
        np.random.Philox(key=key)
        .random_raw(-(-size // 2))
        .astype("<u8", copy=False)
        .view("<u4")[:size]
    )


@overridable
def normals(like: Array, shape: tuple[int, ...], key: int) -> Array:
    """Standard normal numbers in float32, where `like` is, from random words by the formula of Box
    and Muller (1958).

    >>> x = normals(np.ones(1), (1000, 1000), key=7)
    >>> abs(x.mean()) < 0.005, abs(x.std() - 1.0) < 0.0035  # by five standard errors
    (np.True_, np.True_)
    """
    half = -(-math.prod(shape) // 16) * 8  # a multiple of what a thread of a device makes
    radius, angle = random_words(2 * half, key).astype(np.float32).reshape(2, half)
    radius = np.sqrt(-2.0 * np.log(radius * np.float32(2.0**-32) + np.float32(2.0**-33)))
    angle *= np.float32(2.0 * math.pi / 2.0**32)
    numbers = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return from_host(numbers[: math.prod(shape)].reshape(shape), like)
