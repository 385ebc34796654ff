"""The input of a network of random weights: samples, until the first layer with weights.

Averaging over random weights makes values Gaussian *after* the first weighted sum, whatever law
the input has (wide.py). In front of it nothing is random but the samples, so nothing has to be
predicted: each layer is run on the samples themselves. A layer that is called with `Samples`
answers with `Samples`. The first one with weights answers with a `Wide`, and from there on theory
takes over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from .. import functional as F
from ..engine.tensor import Tensor
from ..functional.activation import as_activation
from ..functional.shapes import Reshape
from ..nn.state import State, numbers
from .field import per_channel
from .mixture import Summary
from .wide import Wide

INPUTS = 192  # that stand for a Gaussian input: the time grows with their square
WITH_WEIGHTS = (F.linear, F.conv2d, F.matmul)


@dataclass(frozen=True, eq=False)
class Samples(State):
    """The samples themselves, in front of the first layer with weights.

    >>> x = Samples(tp.tensor([[-1.0, 2.0], [3.0, 6.0]]), sampled=False, positions=1)
    >>> x.apply("relu").tensor.numpy().tolist()
    [[0.0, 2.0], [3.0, 6.0]]
    >>> type(x.linear(tp.ones(5, 2))).__name__
    'Wide'
    """

    tensor: Tensor
    sampled: bool  # whether they are samples of a Gaussian input
    positions: int  # of the largest images of the network, as far as it is known

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.tensor.shape[1:])

    @cached_property
    def wide(self) -> Wide:
        """What random weights see of them."""
        return Wide.of(self.tensor.numpy(), self.sampled, self.positions)

    def before_activation(self) -> Self:
        return self

    def summary(self) -> Summary:
        """One number for all units: the root mean square of their means, and their mean
        variance."""
        channels = self.tensor.shape[1]
        channels_last = np.moveaxis(self.tensor.numpy(), 1, -1)
        # (N, H, W, C) -> (N * H * W, C)
        units = channels_last.reshape(-1, channels).astype("float64")
        mean_square = (units.mean(axis=0) ** 2).mean()
        variance = units.var(axis=0).mean()
        is_exact = not self.sampled
        return Summary(np.sqrt([mean_square]), np.array([variance]), is_exact, 0.0)

    # Any function without weights

    def answer(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a function of a forward makes of the samples. Layers with weights, changes of shape
        and sums with other States have a method of their own."""
        has_weights = function in WITH_WEIGHTS
        changes_shape = function is F.flatten or isinstance(function, Reshape)
        has_others = any(isinstance(x, State) and not isinstance(x, Samples) for x in args)
        if has_weights or changes_shape or has_others:
            return super().answer(function, args, kwargs)
        return self._with(function(*map(_tensor_of, args), **kwargs))

    def _with(self, tensor: Any) -> Self:
        """These values in the place of the samples: still one row for each."""
        if not isinstance(tensor, Tensor) or len(tensor) != len(self.tensor):
            raise self.refusal("a function that mixes samples")
        return replace(self, tensor=tensor)

    @property
    def _floats(self) -> Tensor:
        """The samples as fractions, if they are integers."""
        if self.tensor.dtype.kind == "f":
            return self.tensor
        return self.tensor.astype("float32")

    # Layers with weights

    def linear(self, weight: Any, bias: Any = None) -> Wide:
        return self.wide.linear(weight, bias)

    def convolve(self, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Wide:
        return self.wide.convolve(weight, bias, *args, **kwargs)

    # Layers without weights

    def apply(self, activation: Any, **params: Any) -> Self:
        x = self._floats
        of_channels = {}
        for name, value in params.items():
            of_channels[name] = per_channel(numbers(value), x.ndim - 1)
        return self._with(as_activation(activation)(x, **of_channels))

    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> Self:
        x = self._floats
        factor = per_channel(numbers(factor), x.ndim - 1)
        shift = per_channel(numbers(shift), x.ndim - 1)
        scaled = numbers(x) * factor + shift
        return self._with(Tensor(scaled.astype(x.dtype)))

    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        x = numbers(self.tensor)
        axes = 0 if each_value else (0, *range(2, x.ndim))
        mean = x.mean(axis=axes)
        variance = x.var(axis=axes)
        if each_value:
            std = np.sqrt(np.where(variance > 0, variance, 1.0))
        else:
            std = np.sqrt(variance + eps)
        return self.scale(1.0 / std, -mean / std)

    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        x = self._floats
        if centered:
            return self._with(F.group_norm(x, groups, eps=eps))
        in_groups = x.reshape(len(x) * groups, -1)
        divided = F.rms_norm(in_groups, in_groups.shape[1], eps=eps)
        return self._with(divided.reshape(x.shape))

    def max_pool(self, *args: Any, **kwargs: Any) -> Self:
        return self._with(F.max_pool2d(self.tensor, *args, **kwargs))

    def avg_pool(self, *args: Any, **kwargs: Any) -> Self:
        return self._with(F.avg_pool2d(self.tensor, *args, **kwargs))

    def drop(self, p: float) -> Self:
        return self._with(F.dropout(self.tensor, p))

    def flatten(self, start_axis: int = 1) -> Self:
        if start_axis != 1:
            raise self.refuse(f"flatten from axis {start_axis}")
        return self._with(F.flatten(self.tensor, 1))

    # Several States

    def combine(self, function: Callable[..., Any], *args: Any) -> State:
        if any(isinstance(x, Wide) for x in args):
            return self.wide.combine(function, *map(_wide_of, args))
        return self._with(function(*map(_tensor_of, args)))

    def add(self, other: State) -> State:
        if isinstance(other, Samples):
            return self._with(self.tensor + other.tensor)
        return self.wide.add(other)


def _tensor_of(x: Any) -> Any:
    return x.tensor if isinstance(x, Samples) else x


def _wide_of(x: Any) -> Any:
    return x.wide if isinstance(x, Samples) else x
