"""The random generator of each thread, and random numbers that are the same on both backends."""

import math
import pickle  # nosec B403
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .arrays import Array, HostArray, from_host
from .overrides import overridable

_random = threading.local()


def manual_seed(seed: int) -> None:
    """Seed the generator of initial weights and dropout masks for the calling thread.

    Weights, and the keys from which masks are computed, are drawn on the host, so a seed gives the
    same numbers on both backends.

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
    # not before it is needed: NumPy takes a while to load its generators
    if not hasattr(_random, "generator"):
        manual_seed(0)
    return _random.generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside the block, the generator of the calling thread begins with this seed; after it, it
    goes on where it was.

    >>> with seeded(0):
    ...     first = tp.rand(2)
    >>> with seeded(0):
    ...     bool((tp.rand(2) == first).data.all())
    True
    """
    before = generator()
    manual_seed(seed)
    try:
        yield
    finally:
        _random.generator = before


def new_generator(seed: int | list[int]) -> "np.random.Generator":
    return np.random.default_rng(seed)


def numpy_generator() -> bytes:
    """The state of NumPy's generator that a whole process shares. (That of Python's `random` says
    nothing: the threads of a dask worker draw from it, too.)"""
    return pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002 (we only look)


def next_key(random: "np.random.Generator | None" = None) -> int:
    """64 random bits, from the generator of the calling thread if none is given: a key for
    `random_words`."""
    if random is None:
        random = generator()
    return int(random.integers(2**64, dtype="uint64"))


def random_words(size: int, key: int) -> HostArray:
    """`size` random words of 32 bits from NumPy's Philox generator (Salmon et al., 2011).

    Philox scrambles a counter by multiplications. The counter is its only state, so a device can
    compute each word independently.

    >>> random_words(4, key=7).tolist() == random_words(9, key=7)[:4].tolist()
    True
    """
    pairs = -(-size // 2)  # rounded up
    words = np.random.Philox(key=key).random_raw(pairs)
    # (pairs,) of 64 bits -> (2 * pairs,) of 32 bits, the low half first on every machine
    halves = words.astype("<u8", copy=False).view("<u4")
    return halves[:size]


@overridable
def normals(like: Array, shape: tuple[int, ...], key: int) -> Array:
    """Standard normal numbers in float32 on the backend of `like`, from random words by the
    Box-Muller transform (1958).

    >>> x = normals(np.ones(1), (1000, 1000), key=7)
    >>> abs(x.mean()) < 0.005, abs(x.std() - 1.0) < 0.0035  # by five standard errors
    (np.True_, np.True_)
    """
    size = math.prod(shape)
    half = -(-size // 16) * 8  # a multiple of 8, the pairs that a thread of a device makes
    words = random_words(2 * half, key).astype(np.float32)
    first, second = words.reshape(2, half)
    uniform = first * np.float32(2.0**-32) + np.float32(2.0**-33)  # never 0
    radius = np.sqrt(-2.0 * np.log(uniform))
    angle = second * np.float32(2.0 * math.pi / 2.0**32)
    normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return from_host(normal[:size].reshape(shape), like)
