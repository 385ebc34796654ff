"""Leaving a module as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..engine.random import generator
from ..nn.module import Module


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
