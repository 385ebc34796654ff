"""The random generator of each thread; NumPy loads its own generators on first use, which takes a while."""

import threading

import numpy as np

_random = threading.local()


def manual_seed(seed: int) -> None:
    """Seed the generator of initial weights and dropout masks for the calling thread.

    Random numbers are generated on the host, so that a seed means the same on both backends.

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
