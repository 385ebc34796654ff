"""The paper's shorthand for networks: C(filters, size, stride, padding) and P(size, stride, padding, mode)."""

import re
from typing import Any

from ..engine.errors import explain
from .batchnorm import BatchNorm
from .layers import Activation, AvgPool2d, Conv2d, Flatten, MaxPool2d, PReLU
from .module import Module, Sequential
from .normalization import NormPropConv2d

NIN = (
    "C(192,5,1,2)-C(160,1,1,0)-P(3,2,1,max)-C(96,1,1,0)-C(192,5,1,2)-C(192,1,1,0)-P(3,2,1,avg)"
    "-C(192,1,1,0)-C(192,5,1,0)-C(192,1,1,2)-C(10,1,1,0)-P(8,8,0,avg)"
)

GRAMMAR = (
    "layers joined by '-', each C(filters,size,stride,padding) or P(size,stride,padding,max|avg); "
    "all are integers, at least 1 except for padding; there is at least one C"
)
LAYER = re.compile(r"C\(([1-9]\d*),([1-9]\d*),([1-9]\d*),(\d+)\)|P\(([1-9]\d*),([1-9]\d*),(\d+),(max|avg)\)")

Layer = tuple[str, ...]  # ("192", "5", "1", "2") or ("3", "2", "1", "max")


def parse(spec: str) -> list[Layer]:
    """The layers of a spec; spaces are ignored.

    >>> parse("C(16,3,1,1) - P(2,2,0,max)")
    [('16', '3', '1', '1'), ('2', '2', '0', 'max')]
    """
    text = "".join(spec.split())
    layers: list[Layer] = []
    position = 0
    while match := LAYER.match(text, position):
        layers.append(tuple(group for group in match.groups() if group is not None))
        position = match.end()
        if position == len(text) and not all(is_pool(layer) for layer in layers):
            return layers
        if text[position : position + 1] != "-":
            break
        position += 1
    rest = repr(text[position : position + 20]) if position < len(text) else "its end"
    raise ValueError(explain(f"a spec that cannot be parsed at position {position}: {rest}", GRAMMAR, NIN[:27]))


def is_pool(layer: Layer) -> bool:
    return layer[-1] in ("max", "avg")


def build(
    spec: str,
    in_channels: int = 3,
    norm: str = "normprop",
    activation: str = "relu",
    width: float = 1.0,
    classes: int | None = None,
    mode: str = "paper",
    gamma: Any = "jacobian",
) -> Sequential:
    """Build the network of a spec, with hidden layers normalised by "normprop", "batch" or "none".

    The last convolution is linear and gives the logits. `width` scales the number of filters of all the others;
    `classes` sets that of the last one. `mode` and `gamma` are passed to the NormProp layers.

    >>> net = tp.nn.build("C(8,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(4,4,0,avg)", classes=5)
    >>> net(tp.tensor([[[[1.0] * 8] * 8] * 3])).shape
    (1, 5)
    """
    if norm not in ("normprop", "batch", "none"):
        raise ValueError(explain(f"norm={norm!r}", "it is 'normprop', 'batch' or 'none'", "norm='normprop'"))
    layers = parse(spec)
    last = max(i for i, layer in enumerate(layers) if not is_pool(layer))
    network: list[Module] = []
    for i, layer in enumerate(layers):
        if is_pool(layer):
            size, stride, padding = map(int, layer[:3])
            network.append((MaxPool2d if layer[3] == "max" else AvgPool2d)(size, stride, padding))
            continue
        filters, size, stride, padding = map(int, layer)
        geometry = (size, stride, padding)
        if i == last:
            network.append(Conv2d(in_channels, classes or filters, *geometry))
            continue
        filters = max(1, round(filters * width))
        if norm == "normprop":
            network.append(NormPropConv2d(in_channels, filters, *geometry, activation, gamma, mode))
        else:
            network.append(Conv2d(in_channels, filters, *geometry, bias=norm == "none"))
            network += [BatchNorm(filters)] if norm == "batch" else []
            network.append(PReLU(filters) if activation == "prelu" else Activation(activation))
        in_channels = filters
    return Sequential(*network, Flatten())
