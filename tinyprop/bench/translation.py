"""What other frameworks share as engines: each translates the very network that tinyprop builds."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray
from ..nn.module import Module
from .engines import Engine

Arrays = Mapping[str, Any]  # the parameters of a network by their names, as arrays of a framework
Layers = Iterable[tuple[str, Module]]


def parameters(net: Module) -> dict[str, HostArray]:
    return {name: tensor.data for name, tensor in net.named_parameters()}


def constrained(net: Module) -> Iterator[str]:
    """The names of the weights that the constraint keeps at unit length."""
    for name, layer in net.named_children():
        if isinstance(layer, nn.NormPropConv2d | nn.NormPropLinear):
            yield f"{name}.weight"


def numpy_length(weight: HostArray) -> HostArray:
    return np.sqrt((weight * weight).sum(axis=tuple(range(1, weight.ndim)), keepdims=True))


def moved(layer: nn.BatchNorm, running: tuple[Any, Any], now: tuple[Any, Any], count: int) -> tuple[Any, Any]:
    """Running estimates of mean and variance, a step closer to those of a batch of so many values."""
    targets = now[0], now[1] * (count / (count - 1))
    mean, var = (old + layer.momentum * (new - old) for old, new in zip(running, targets, strict=True))
    return mean, var


class Framework(Engine):
    """Forward through a network, written with the few functions in which frameworks differ."""

    def forward(self, layers: Layers, p: Arrays, x: Any) -> Any:
        for name, layer in layers:
            x = self.through(name, layer, p, x)
        return x

    def through(self, name: str, layer: Module, p: Arrays, x: Any) -> Any:
        """The output of a layer, by the tinyprop layer that says what to do."""
        match layer:
            case nn.NormPropConv2d() | nn.NormPropLinear():
                c1, c2 = layer.standard.std, layer.standard.mean
                weight, gamma, beta = (p[f"{name}.{key}"] for key in ("weight", "gamma", "beta"))
                scale = self.per_unit(gamma / (self.length(weight) * c1), weight)
                return self.relu(self.weighted_sum(layer, x, weight * scale, beta / c1)) - c2 / c1
            case nn.Conv2d() | nn.Linear():
                return self.weighted_sum(layer, x, p[f"{name}.weight"], p.get(f"{name}.bias"))
            case nn.BatchNorm():
                return self.batch_norm(name, layer, x, p[f"{name}.weight"], p[f"{name}.bias"])
            case nn.Activation(function="relu"):
                return self.relu(x)
            case nn.MaxPool2d() | nn.AvgPool2d():
                pool = self.max_pool if isinstance(layer, nn.MaxPool2d) else self.avg_pool
                return pool(x, layer.kernel_size, layer.stride or layer.kernel_size, layer.padding)
            case nn.Flatten():
                return x.reshape(len(x), -1)
        raise NotImplementedError(f"{type(layer).__name__} has no translation")

    def weighted_sum(self, layer: Module, x: Any, weight: Any, bias: Any) -> Any:
        if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
            return self.convolve(x, weight, bias, layer.stride, layer.padding)
        return self.linear(x, weight, bias)

    def per_unit(self, values: Any, weight: Any) -> Any:
        """(O,) -> (O, 1, 1, 1), or as many axes as the weight has"""
        return values.reshape(-1, *[1] * (weight.ndim - 1))

    def length(self, weight: Any) -> Any:
        """The length of each weight vector or filter: (O, ...) -> (O,)"""
        raise NotImplementedError

    def relu(self, x: Any) -> Any:
        raise NotImplementedError

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        """Normalised by the batch, with the layer's running estimates brought up to date."""
        raise NotImplementedError
