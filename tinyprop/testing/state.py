"""Leaving a module as it was found, and what has changed in one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..engine.arrays import is_array, to_numpy
from ..engine.random import generator, numpy_generator
from ..engine.tensor import Tensor
from ..nn.module import Module

UNLIKELY_SEED = 3_141_592_653  # that no layer sets


@contextmanager
def untouched(module: Module) -> Iterator[None]:
    """Inside the block a module computes with copies of its arrays. After the block its parameters,
    buffers, gradients, attributes and modes are as before, and so is the random generator of this
    thread.

    >>> from tinyprop.testing.state import untouched
    >>> layer = tp.nn.BatchNorm(1)
    >>> with untouched(layer):
    ...     out = layer.eval().to(dtype="float64")
    ...     layer.running_mean.data[...] = 7.0
    >>> layer.training, layer.running_mean
    (True, tensor([0.]))
    """
    random = generator()
    state_of_random = random.bit_generator.state
    attributes = [(part, dict(vars(part))) for part in module.modules()]
    tensors = [
        (tensor, tensor._data, tensor.uses, tensor.exposed, tensor.grad)
        for _, tensor in module._named_tensors()
    ]
    for tensor, array, *_ in tensors:
        tensor._data = array.copy()
        tensor.uses = []
    try:
        yield
    finally:
        for tensor, array, uses, exposed, grad in tensors:
            tensor._data = array
            tensor.uses = uses
            tensor.exposed = exposed
            tensor.grad = grad
        for part, before in attributes:
            vars(part).clear()
            vars(part).update(before)
        random.bit_generator.state = state_of_random


def moves_numpy(call: Callable[[], Any]) -> bool:
    """Whether a call draws from NumPy's generator of the whole process, or seeds it. Afterwards
    that generator is as before.

    >>> from tinyprop.testing.state import moves_numpy
    >>> moves_numpy(np.random.random), moves_numpy(lambda: np.random.seed(0)), moves_numpy(dict)
    (True, True, False)
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(UNLIKELY_SEED)  # noqa: NPY002
    try:
        start = numpy_generator()
        call()
        return numpy_generator() != start
    finally:
        np.random.set_state(before)  # noqa: NPY002


def differing(first: Module, second: Module) -> list[str]:
    """The attributes that differ between two copies of a module, besides tensors, modules and
    modes.

    >>> from tinyprop.testing.state import differing
    >>> first, second = tp.nn.Dropout(0.5), tp.nn.Dropout(0.2)
    >>> differing(first, second)
    ["'p' of Dropout"]
    """
    found = []
    for part, twin in zip(first.modules(), second.modules(), strict=False):
        names = vars(part).keys() & vars(twin).keys()
        for name in sorted(names - {"_training", "_set_by_forward"}):
            if not _equal(vars(part)[name], vars(twin)[name]):
                found.append(f"{name!r} of {type(part).__name__}")
    return found


def _equal(first: Any, second: Any) -> bool:
    """Whether two attributes are equal. Tensors and modules count as equal: they are compared
    elsewhere; and so does what cannot be compared."""
    if isinstance(first, (Tensor, Module)) and isinstance(second, (Tensor, Module)):
        return True
    if is_array(first) and is_array(second):
        return bool(np.array_equal(to_numpy(first), to_numpy(second)))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(_equal(*pair) for pair in pairs)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    try:
        return first is second or bool(first == second)
    except Exception:
        return True
