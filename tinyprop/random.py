"""The random generator of each thread, and Philox, whose numbers are the same wherever they are computed.

NumPy loads its own generators on first use, which takes a while.
"""

import math
import threading

import numpy as np

from .engine.arrays import Array, array_module

_random = threading.local()


def manual_seed(seed: int) -> None:
    """Seed the generator of initial weights and dropout masks for the calling thread.

    Weights are drawn on the host, and masks by `philox` from a key that is drawn there, so that a seed means the same
    on both backends.

    >>> tp.manual_seed(0)
    >>> first = tp.nn.Linear(3, 2).weight
    >>> tp.manual_seed(0)
    >>> bool((tp.nn.Linear(3, 2).weight == first).data.all())
    True
    """
    _random.generator = new_generator(seed)


def generator() -> "np.random.Generator":
    """The generator of the calling thread, which `manual_seed` seeds; a new thread starts with seed 0."""
    if not hasattr(_random, "generator"):
        manual_seed(0)
    return _random.generator


def new_generator(seed: int | list[int]) -> "np.random.Generator":
    return np.random.default_rng(seed)


def next_key(random: "np.random.Generator | None" = None) -> int:
    """64 random bits, from the generator of the calling thread if none is given: a key for `philox`."""
    return int((random or generator()).integers(2**64, dtype="uint64"))


def philox(counter: tuple[Array, ...], key: int) -> tuple[Array, ...]:
    """Philox 4x32-10 of Salmon et al. (2011): four random words for each counter of four words, which is scrambled by
    multiplications. No state is kept, so that every element of an array can be computed by itself.

    >>> zero = np.zeros(1, "uint64")
    >>> " ".join(f"{word.item():08x}" for word in philox((zero,) * 4, key=0))
    '6627e8d5 e169c58d bc57ac4c 9b00dbd8'
    """
    a, b, c, d = counter  # uint64, below 2**32
    low = np.uint64(0xFFFFFFFF)
    for i in range(10):
        k0, k1 = (np.uint64((word + i * step) & 0xFFFFFFFF) for word, step in zip(_words(key), _STEPS, strict=True))
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (right >> 32) ^ b ^ k0, right & low, (left >> 32) ^ d ^ k1, left & low
    return a, b, c, d


_STEPS = 0x9E3779B9, 0xBB67AE85  # of the key from round to round: the golden ratio, and sqrt(3) - 1


def _words(key: int) -> tuple[int, int]:
    return key & 0xFFFFFFFF, key >> 32


def random_words(shape: tuple[int, ...], key: int, like: Array) -> Array:
    """A random uint32 for each element of an array of this shape, where `like` is: Philox of the element's number."""
    xp, size = array_module(like), math.prod(shape)
    number = xp.arange(-(-size // 4), dtype="uint64")
    zero = xp.zeros_like(number)
    words = philox((number & np.uint64(0xFFFFFFFF), number >> 32, zero, zero), key)
    return xp.stack(words, axis=1).reshape(-1)[:size].reshape(shape).astype("uint32")
