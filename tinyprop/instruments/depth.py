"""What 30 untrained layers keep and lose of a signal and of its gradient, without a normaliser and
with three."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.backward import grad
from ..engine.random import manual_seed, new_generator
from ..engine.tensor import Tensor
from ..nn.observation import observe, outermost
from ..report.table import Table

LAYERS, WIDTH, INPUTS, SEEDS = 30, 256, 100, 8
SHOWN = (1, 10, 20, 30)  # layers whose distributions are drawn


class WeightedSums(nn.Module):
    """The equation of a NormProp layer up to its activation."""

    def __init__(self, layer: nn.NormPropLinear):
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.pre_activation(None, x)


class NormalizedActivation(nn.Module):
    """The rest of that equation."""

    def __init__(self, layer: nn.NormPropLinear):
        self.layer = layer

    def forward(self, u: Tensor) -> Tensor:
        c1, c2 = self.layer.constants()
        return (self.layer.activate(u) - c2) / c1


class BatchNormInBatches(nn.Module):
    """BatchNorm of consecutive mini-batches: to the layer, the same unit in two of them is two
    features."""

    def __init__(self, batch: int):
        self.batch = batch
        self.batches = INPUTS // batch
        self.norm = nn.BatchNorm(self.batches * WIDTH)

    def forward(self, u: Tensor) -> Tensor:
        by_batch = u.reshape(self.batches, self.batch, WIDTH)
        features = F.transpose(by_batch, (1, 0, 2)).reshape(self.batch, self.batches * WIDTH)
        normalized = self.norm(features).reshape(self.batch, self.batches, WIDTH)
        return F.transpose(normalized, (1, 0, 2)).reshape(INPUTS, WIDTH)


# A network is a list of pairs: what gives the pre-activations of a layer, and its activation.
Pairs = list[tuple[nn.Module, nn.Module]]


def normprop(mode: str) -> Pairs:
    layers = [nn.NormPropLinear(WIDTH, WIDTH, mode=mode) for _ in range(LAYERS)]
    return [(WeightedSums(layer), NormalizedActivation(layer)) for layer in layers]


def he(batch: int | None = None) -> Pairs:
    """Weights as in He et al. (2015), and BatchNorm over mini-batches, if given."""
    pairs: Pairs = []
    for i in range(LAYERS):
        layer = nn.Linear(WIDTH, WIDTH)
        if i:  # after a ReLU, which halves the mean square
            layer.weight.data *= math.sqrt(2.0)
        norm = nn.Identity() if batch is None else BatchNormInBatches(batch)
        pairs.append((nn.Sequential(layer, norm), nn.ReLU()))
    return pairs


# the function, its arguments, and what it teaches
NETWORKS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "NormProp, default gamma": (normprop, ("paper",), "keeps gradients, loses the input"),
    "NormProp, exact mode": (normprop, ("exact",), "keeps the signal, gradients grow slowly"),
    "He, no normalisation": (he, (), "keeps gradients, loses the input"),
    "BatchNorm, batches of 50": (he, (50,), "keeps the signal, gradients explode"),
    "BatchNorm, batches of 2": (he, (2,), "keeps only signs, gradients explode"),
}


@dataclass(frozen=True)
class Depth:
    """What is measured of one kind of network, for each random seed and layer."""

    # standard deviation of a unit over inputs, root mean square over units: (seeds, layers)
    spread: HostArray
    # root-mean-square gradient with respect to the pre-activations, over that of the last layer
    gradient: HostArray
    # pre-activations of the first seed in some layers, minus their mean: (inputs, units)
    values: dict[int, HostArray]

    def at(self, layer: int) -> tuple[float, float]:
        """Spread and gradient of this layer: geometric means over the seeds."""
        spread, gradient = (
            np.exp(np.log(array[:, layer - 1]).mean()) for array in (self.spread, self.gradient)
        )
        return float(spread), float(gradient)


def measured(name: str) -> Depth:
    """Send standard normal inputs, and a random gradient back, through the layers of this
    network."""
    function, arguments, _ = NETWORKS[name]
    spreads, gradients = [], []
    values: dict[int, HostArray] = {}
    for seed in range(SEEDS):
        manual_seed(seed)
        inputs, cotangent = new_generator([seed, 1]).standard_normal((2, INPUTS, WIDTH), "float32")
        tensors = pre_activations(function(*arguments), Tensor(inputs, requires_grad=True))
        back = grad((tensors[-1] * Tensor(cotangent)).sum(), tensors)
        arrays = [to_numpy(u.data).astype("float64") for u in tensors]
        spreads.append([math.sqrt(u.var(axis=0).mean()) for u in arrays])
        sizes = [math.sqrt(np.square(to_numpy(g.data), dtype="float64").mean()) for g in back]
        gradients.append([size / sizes[-1] for size in sizes])
        values = values or {i: arrays[i - 1] - arrays[i - 1].mean() for i in SHOWN}
    return Depth(np.array(spreads), np.array(gradients), values)


def pre_activations(pairs: Pairs, x: Tensor) -> list[Tensor]:
    """Those of each layer for a batch x, with their graph."""
    modules: list[nn.Module] = []
    for sums, activation in pairs:
        modules += [sums, activation]
    records = outermost(observe(nn.Sequential(*modules[:-1]), x))
    return [record.output for record in records[::2]]


def table(networks: dict[str, Depth]) -> Table:
    """The ends of the curves, and what they teach."""
    header = [
        "untrained network",
        "std, layer 1",
        f"layer {LAYERS}",
        "gradient, layer 1",
        "keeps and loses",
    ]
    rows = []
    for name, found in networks.items():
        (first, gradient), (last, _) = found.at(1), found.at(LAYERS)
        rows.append([name, f"{first:.2f}", f"{last:.2f}", factor(gradient), NETWORKS[name][2]])
    return Table(header, rows, align="lrrrl")


def factor(gradient: float) -> str:
    """By how much a gradient is larger, in words that are the same on each machine.

    >>> factor(0.9512), factor(348.2), factor(3e24)
    ('x 0.95', 'x 348', 'over 10^20')
    """
    if gradient >= 1e6:  # to ten powers of ten: rounding decides the rest
        return f"over 10^{10 * math.floor(math.log10(gradient) / 10)}"
    return f"x {gradient:#.2g}" if gradient < 100 else f"x {gradient:.0f}"
