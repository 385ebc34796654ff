"""Random networks: of the shorthand with every normaliser, of single layers, and with parts of a
user."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn

from .case import Array, Random, chance, choice, integer

CLASSES = 4
SIDE = 8  # of images
ACTIVATIONS = [name for name in tp.activations if name != "identity"]


class AcrossTheBatch(nn.Module):
    """A user's module: it compares samples with each other, draws random numbers and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        self.calls += 1
        x = x - x.mean(axis=0)
        return F.dropout(x, 0.3, self.training) * (1.0 + 0.1 * self.calls)


class Gate(nn.Module):
    """A user's module with parameters of its own: each channel, times a sigmoid of its mean."""

    def __init__(self, channels: int) -> None:
        self.layer = nn.Linear(channels, channels)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        gate = F.sigmoid(self.layer(x.mean(axis=(2, 3))))
        return x * gate.reshape(*gate.shape, 1, 1)


def normalizer(rng: Random, channels: int) -> nn.Module:
    makers = (
        nn.BatchNorm,
        lambda channels: nn.LayerNorm((channels, None, None)),
        lambda channels: nn.RMSNorm((channels, None, None)),
        lambda channels: nn.GroupNorm(channels, channels),
        lambda channels: nn.GroupNorm(1, channels),
        nn.DyT,
        nn.Derf,
    )
    return choice(rng, makers)(channels)


def convolution(rng: Random, channels: int, filters: int) -> nn.Module:
    size = choice(rng, [1, 3, 5])
    window = (channels, filters, size, 1, size // 2)
    activation = choice(rng, ACTIVATIONS)
    makers = [
        lambda: nn.Conv2d(*window),
        lambda: nn.WeightNorm(nn.Conv2d(*window)),
        lambda: nn.NormPropConv2d(*window, activation),
        lambda: nn.NormPropConv2d(*window, activation, mode="exact"),
    ]
    if channels * size > 1:  # a single weight minus its mean is 0
        makers.append(lambda: nn.ScaledWS(nn.Conv2d(*window)))
    return choice(rng, makers)()


def activation(rng: Random, channels: int) -> nn.Module:
    name = choice(rng, ACTIVATIONS)
    return nn.PReLU(channels) if name == "prelu" else nn.Activation(name)


def by_hand(rng: Random, channels: int) -> nn.Module:
    """Convolutions, normalisers, activations, pools, residual blocks and a user's modules."""
    layers: list[nn.Module] = []
    side = SIDE
    for _ in range(integer(rng, 1, 3)):
        filters = choice(rng, [1, 3, 8, 20, 36])
        layers.append(convolution(rng, channels, filters))
        channels = filters
        if chance(rng, 0.6):
            layers.append(normalizer(rng, channels))
        layers.append(activation(rng, channels))
        if chance(rng, 0.3):
            branch = nn.Sequential(convolution(rng, channels, channels), activation(rng, channels))
            layers.append(nn.Residual(branch, alpha=0.5, beta=choice(rng, [1.0, 1.5])))
        if chance(rng, 0.3):
            layers.append(nn.Dropout(0.3))
        if chance(rng, 0.2):
            layers.append(AcrossTheBatch() if chance(rng, 0.5) else Gate(channels))
        if side > 2 and chance(rng, 0.4):
            layers.append(choice(rng, [nn.MaxPool2d, nn.AvgPool2d])(2))
            side //= 2
    last = nn.Linear(channels * side * side, CLASSES)
    return nn.Sequential(*layers, nn.Flatten(), last)


def by_spec(rng: Random, channels: int) -> nn.Module:
    norm = choice(rng, nn.normalizers)
    block = choice(rng, ["C(8,3,1,1)", "R(C(8,3,1,1)-C(8,3,1,1))", "C(36,3,1,1)-C(36,5,1,2)"])
    spec = f"C(8,3,1,1)-P(2,2,0,max)-{block}-C({CLASSES},1,1,0)-P(4,4,0,avg)"
    kind = "selu" if norm == "selu" else choice(rng, ["relu", "relu", "prelu", "tanh", "gelu"])
    return nn.build(spec, norm=norm, activation=kind, in_channels=channels)


@dataclass(frozen=True)
class Model:
    """A recipe for a network, which makes the same one each time, and a batch for it."""

    make: Callable[[], nn.Module]
    x: Array
    labels: Array


def draw_model(rng: Random) -> Model:
    channels = choice(rng, [1, 3])
    recipe = choice(rng, [by_hand, by_hand, by_spec])
    seed = integer(rng, 0, 2**31)

    def make() -> nn.Module:
        tp.manual_seed(seed)
        return recipe(np.random.default_rng(seed), channels)

    batch = choice(rng, [2, 3, 7, 33, 70])
    x = rng.standard_normal((batch, channels, SIDE, SIDE)).astype("float32")
    labels = rng.integers(0, CLASSES, batch)
    if chance(rng, 0.3):
        labels[1:][rng.random(batch - 1) < 0.2] = -100  # F.cross_entropy ignores these
    return Model(make, x, labels)


def one_line(net: Any) -> str:
    """A network as text, without line breaks."""
    return " ".join(repr(net).split())
