"""The input of a network of random weights: samples, until the first layer with weights."""

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

INPUTS = 256  # that stand for a Gaussian input


@dataclass(frozen=True, eq=False)
class Samples(State):
    """The samples themselves, in front of the first layer with weights: what is there is applied to
    them."""

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
        units = np.moveaxis(self.tensor.numpy(), 1, -1).reshape(-1, self.tensor.shape[1])
        units = units.astype("float64")
        mean = np.sqrt([(units.mean(axis=0) ** 2).mean()])
        return Summary(mean, np.array([units.var(axis=0).mean()]), not self.sampled, 0.0)

    def answer(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        has_weights = function in (F.linear, F.conv2d, F.matmul)
        changes_shape = function is F.flatten or isinstance(function, Reshape)
        others = [x for x in args if isinstance(x, State) and not isinstance(x, Samples)]
        if has_weights or changes_shape or others:
            return super().answer(function, args, kwargs)
        tensors = [x.tensor if isinstance(x, Samples) else x for x in args]
        return self._with(function(*tensors, **kwargs))

    def _with(self, tensor: Any) -> Self:
        if not isinstance(tensor, Tensor) or len(tensor) != len(self.tensor):
            raise self.refusal("a function that mixes samples")
        return replace(self, tensor=tensor)

    def linear(self, weight: Any, bias: Any = None) -> Wide:
        return self.wide.linear(weight, bias)

    def convolve(self, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Wide:
        return self.wide.convolve(weight, bias, *args, **kwargs)

    def apply(self, activation: Any, **params: Any) -> Self:
        x = self._floats
        by_channel = {name: per_channel(numbers(p), x.ndim - 1) for name, p in params.items()}
        return self._with(as_activation(activation)(x, **by_channel))

    @property
    def _floats(self) -> Tensor:
        return self.tensor if self.tensor.dtype.kind == "f" else self.tensor.astype("float32")

    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> Self:
        x = self._floats
        factor, shift = (per_channel(numbers(value), x.ndim - 1) for value in (factor, shift))
        scaled = numbers(x) * factor + shift
        return self._with(Tensor(scaled.astype(x.dtype)))

    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> Self:
        axes = 0 if each_value else (0, *range(2, self.tensor.ndim))
        x = numbers(self.tensor)
        variance = x.var(axis=axes)
        std = np.sqrt(np.where(variance > 0, variance, 1.0) if each_value else variance + eps)
        return self.scale(1.0 / std, -x.mean(axis=axes) / std)

    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> Self:
        x = self._floats
        if centered:
            return self._with(F.group_norm(x, groups, eps=eps))
        in_groups = x.reshape(len(x) * groups, -1)
        return self._with(F.rms_norm(in_groups, in_groups.shape[1], eps=eps).reshape(x.shape))

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

    def combine(self, function: Callable[..., Any], *args: Any) -> State:
        if all(not isinstance(x, Wide) for x in args):
            return self._with(function(*(x.tensor if isinstance(x, Samples) else x for x in args)))
        return self.wide.combine(function, *(x.wide if isinstance(x, Samples) else x for x in args))

    def add(self, other: State) -> State:
        if isinstance(other, Samples):
            return self._with(self.tensor + other.tensor)
        return self.wide.add(other)
