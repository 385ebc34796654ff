"""What 30 untrained layers keep and lose of a signal and of its gradient, without a normaliser and
with three."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.backward import grad
from ..engine.random import manual_seed, new_generator
from ..engine.tensor import Tensor
from ..report.table import Table

LAYERS, WIDTH, INPUTS, SEEDS = 30, 256, 100, 8
SHOWN = (1, 10, 20, 30)  # layers whose distributions are drawn


def normprop(x: Tensor, mode: str) -> Iterator[Tensor]:
    """The pre-activations of each layer: the equation of the NormProp layer, halted before its
    activation."""
    for _ in range(LAYERS):
        layer = nn.NormPropLinear(WIDTH, WIDTH, mode=mode)
        u = layer.weighted_sum(x, F.weight_norm(layer.weight, layer.gamma)) + layer.beta
        yield u
        c1, c2 = layer.constants()
        x = (layer.activate(u) - c2) / c1


def he(x: Tensor, batch: int | None = None) -> Iterator[Tensor]:
    """The pre-activations of each layer, with weights as in He et al. (2015); BatchNorm over
    mini-batches, if given."""
    for i in range(LAYERS):
        layer = nn.Linear(WIDTH, WIDTH)
        if i:  # behind a ReLU, which halves the mean square
            layer.weight.data *= math.sqrt(2.0)
        u = layer(x) if batch is None else batch_norm(layer(x), batch)
        yield u
        x = F.relu(u)


def batch_norm(u: Tensor, batch: int) -> Tensor:
    """BatchNorm of consecutive mini-batches: to the layer, the same unit in two of them is two
    features."""
    n = INPUTS // batch
    features = F.transpose(u.reshape(n, batch, WIDTH), (1, 0, 2)).reshape(batch, n * WIDTH)
    normalized = nn.BatchNorm(n * WIDTH)(features).reshape(batch, n, WIDTH)
    return F.transpose(normalized, (1, 0, 2)).reshape(INPUTS, WIDTH)


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
        tensors = list(function(Tensor(inputs), *arguments))
        back = grad((tensors[-1] * Tensor(cotangent)).sum(), tensors)
        arrays = [to_numpy(u.data).astype("float64") for u in tensors]
        spreads.append([math.sqrt(u.var(axis=0).mean()) for u in arrays])
        sizes = [math.sqrt(np.square(to_numpy(g.data), dtype="float64").mean()) for g in back]
        gradients.append([size / sizes[-1] for size in sizes])
        values = values or {i: arrays[i - 1] - arrays[i - 1].mean() for i in SHOWN}
    return Depth(np.array(spreads), np.array(gradients), values)


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
        size = f"x {gradient:#.2g}" if gradient < 100 else f"x {gradient:.0f}"
        size = size if gradient < 1e6 else f"over 10^{math.floor(math.log10(gradient))}"
        rows.append([name, f"{first:.2f}", f"{last:.2f}", size, NETWORKS[name][2]])
    return Table(header, rows, align="lrrrl")
