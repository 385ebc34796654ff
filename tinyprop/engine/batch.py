"""Sums over a batch that several processes share.

Where nobody shares the batch, all of this does nothing. A rank of a training (parallel/ranks.py)
enters its part of the batch in the context; what looks across the batch, as BatchNorm does, adds up
its numbers by the functions here, and so gets the numbers of the whole batch.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol, overload

from .arrays import Array
from .context import context, current
from .graph import Op
from .tensor import Tensor

Shape = tuple[int, ...]


class Part(Protocol):
    """The samples of a batch that one process computes."""

    first: bool  # whether the first sample of the batch is among them

    def add_up(self, numbers: Any) -> Any:
        """The sum of a number or an array over all parts, with the same bits for each."""

    def in_batch(self, shape: Shape) -> tuple[Shape, Any]:
        """For an array of this shape, whose first axis holds the samples of this part: its shape in
        the whole batch, and the index of this part in that."""


def sharing(part: Part | None) -> AbstractContextManager[None]:
    """Inside the block, samples are this part of a batch."""
    return context(part=part)


def shares_batch() -> bool:
    """Whether sums over the batch need those of other processes."""
    return current().part is not None


def add_up(numbers: Any) -> Any:
    """The sum of a number or an array over all parts of the batch."""
    part = current().part
    return numbers if part is None else part.add_up(numbers)


class OverBatch(Op):
    """The differentiable sum: each part's numbers go to all parts, so the gradients of all parts
    come back to each."""

    def forward(self, numbers: Array) -> Array:
        return add_up(numbers)

    def backward(self, g: Tensor) -> Tensor:
        return over_batch(g)


@overload
def over_batch(numbers: Tensor) -> Tensor: ...


@overload
def over_batch(numbers: Any) -> Any: ...


def over_batch(numbers: Any) -> Any:
    """The sum of a tensor, with gradients, or of a number, over all ranks that share a batch.

    A module that needs statistics of the batch gets those of the whole batch from its own samples'
    sums, and declares it: `sums_over_batch = True`. On one process this changes nothing. All ranks
    must call it, in the same order.

    >>> class Centered(tp.nn.Module):
    ...     sums_over_batch = True
    ...     def forward(self, x):
    ...         count = tp.nn.over_batch(len(x))
    ...         return x - tp.nn.over_batch(x.sum(axis=0)) / count
    >>> Centered()(tp.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]])
    """
    if not isinstance(numbers, Tensor):
        return add_up(numbers)
    return OverBatch()(numbers) if shares_batch() else numbers


def in_batch(shape: Shape) -> tuple[Shape, Any]:
    """The shape of the whole batch, and the index of this process's samples in it."""
    part = current().part
    return (shape, ...) if part is None else part.in_batch(shape)


def is_first_part() -> bool:
    """Whether this process has the first sample of the batch."""
    part = current().part
    return part is None or part.first
