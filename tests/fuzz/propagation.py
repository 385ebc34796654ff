"""tp.propagate of random small networks, with their own weights, against a simulation.

Compared are networks for which propagate promises exact numbers: a Gaussian input, linear layers up
to the second one, and one activation between them. (`tests/theory/test_exact.py` has two pointwise
layers in a row, and normalisers of samples. Later layers are taken as Gaussian, and compared in
`tests/theory/test_check_sample.py`.)"""

import math
from typing import Any

import numpy as np

import tinyprop as tp
from tests.theory.test_propagate import confirmed_misses, covariance, randomize
from tinyprop import nn

from .case import Case, Random, chance, choice, integer
from .networks import ACTIVATIONS, one_line


def affine(rng: Random, channels: int, on_images: bool) -> list[nn.Module]:
    """Layers that leave a Gaussian signal Gaussian."""
    found: list[nn.Module] = []
    if chance(rng, 0.3):
        found.append(nn.Scale(float(rng.uniform(0.5, 2.0))))
    if chance(rng, 0.4):
        norm = nn.BatchNorm(channels)
        found.append(norm if chance(rng, 0.5) else norm.eval())
    if on_images and chance(rng, 0.3):
        found.append(nn.AvgPool2d(choice(rng, [(1, 2), (2, 1)]), 1))
    return found


def weights(
    rng: Random, inputs: int, units: int, on_images: bool, padded: bool = True
) -> nn.Module:
    if on_images:
        size = integer(rng, 1, 2)
        layer: Any = nn.Conv2d(inputs, units, size, 1, size // 2 if padded else 0)
    else:
        layer = nn.Linear(inputs, units, bias=chance(rng, 0.8))
    wrappers = [lambda x: x, nn.WeightNorm]
    if layer.weight[0].size > 1:
        wrappers.append(nn.ScaledWS)
    return choice(rng, wrappers)(layer)


def pointwise(rng: Random, channels: int) -> nn.Module:
    name = choice(rng, [*ACTIVATIONS, "dyt", "derf"])
    by_channel = {"prelu": nn.PReLU, "dyt": nn.DyT, "derf": nn.Derf}
    if name in by_channel:
        return by_channel[name](channels)
    if name == "elu":
        return nn.ELU(float(rng.uniform(0.2, 2.0)))
    return nn.Activation(name)


def hidden(rng: Random, inputs: int, units: int, on_images: bool) -> list[nn.Module]:
    """The first layer with weights, and its activation; or a NormProp layer, which has both."""
    if chance(rng, 0.3):
        name, mode = choice(rng, ACTIVATIONS), choice(rng, ["paper", "exact"])
        if on_images:
            return [nn.NormPropConv2d(inputs, units, 2, 1, 1, name, mode=mode)]
        return [nn.NormPropLinear(inputs, units, name, mode=mode)]
    first = weights(rng, inputs, units, on_images)
    return [first, *affine(rng, units, False), pointwise(rng, units)]


def network(rng: Random, inputs: int, on_images: bool) -> nn.Module:
    units = integer(rng, 1, 3)
    if chance(rng, 0.25):  # a residual block has what a branch shares with its input
        alpha, beta = float(rng.uniform(-2, 2)), float(rng.uniform(0.5, 2.0))
        if on_images:
            branch = [
                nn.Conv2d(inputs, units, 1),
                pointwise(rng, units),
                nn.Conv2d(units, inputs, 1),
            ]
        else:
            branch = [*hidden(rng, inputs, units, False), weights(rng, units, inputs, False)]
        return nn.Sequential(nn.Residual(nn.Sequential(*branch), alpha, beta))
    layers = [*affine(rng, inputs, on_images), *hidden(rng, inputs, units, on_images)]
    if chance(rng, 0.2):
        layers.append(nn.Dropout(float(rng.uniform(0.1, 0.6))))
    if on_images and chance(rng, 0.5):
        layers.append(nn.AvgPool2d((1, 2), 1))
    layers.append(weights(rng, units, integer(rng, 1, 3), on_images))
    return nn.Sequential(*layers)


def draw(rng: Random) -> Case:
    on_images = chance(rng, 0.4)
    shape = (integer(rng, 1, 2), 3, 3) if on_images else (integer(rng, 3, 6),)
    count = math.prod(shape)
    net = randomize(network(rng, shape[0], on_images), rng)
    mean, matrix = rng.normal(size=count), covariance(rng, count)
    root = np.linalg.cholesky(matrix)
    seed = integer(rng, 0, 2**31)
    words = f"propagate of N(mean, covariance) of {shape} through {one_line(net)}"

    def check() -> str | None:
        random = np.random.default_rng(seed)

        def samples(number: int) -> Any:
            noise = random.standard_normal((number, count)) @ root.T
            return (mean + noise).reshape(number, *shape)

        records = tp.propagate(net, mean.reshape(shape), matrix)
        for record in records:
            if not record.exact:
                return f"{record.layer} should be exact, but is not"
        for (layer, what, unit), (predicted, measured) in confirmed_misses(
            records, net, samples
        ).items():
            return (
                f"{what} of unit {unit} of {layer}: {predicted}, but the simulation has {measured}"
            )
        return None

    return Case(words, check)
