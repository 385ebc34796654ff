"""The law of wide networks with random weights (tp.propagate with weights="random"), against the
average of 100 networks.

Compared are networks in which each activation stands between layers with weights, and a pool after
an activation. Known to be off today, and left out: two pointwise layers in a row, and pools after a
normaliser of samples, which divides each sample by a number of its own. Convolutions have no
padding: at a corner fewer inputs add up than the stated error, 1 / (inputs of a unit), counts."""

from typing import Any

import numpy as np

import tinyprop as tp
from tests.theory.test_propagate import compared_with_law
from tinyprop import nn

from .case import Case, Random, chance, choice, integer
from .networks import ACTIVATIONS, one_line
from .propagation import weights

WIDTH = 80
NETWORKS = 100


def biased(rng: Random, layer: Any) -> Any:
    """With a random bias, which the law takes for one of many."""
    if layer.bias is not None and chance(rng, 0.5):
        layer.bias.data[...] = 1.0 + tp.randn(*layer.bias.shape).data
    return layer


def normalizer(rng: Random, on_images: bool) -> nn.Module:
    shape = (WIDTH, None, None) if on_images else WIDTH
    makers = (
        lambda: nn.BatchNorm(WIDTH),
        lambda: nn.LayerNorm(shape),
        lambda: nn.RMSNorm(shape),
        lambda: nn.GroupNorm(2, WIDTH),
        lambda: nn.Scale(1.7),
    )
    return choice(rng, makers)()


def layers(rng: Random, inputs: int, on_images: bool) -> list[nn.Module]:
    found: list[nn.Module] = []
    channels = inputs
    for _ in range(integer(rng, 1, 2)):
        if chance(rng, 0.25) and not on_images:
            name, mode = choice(rng, ACTIVATIONS), choice(rng, ["paper", "exact"])
            found.append(nn.NormPropLinear(channels, WIDTH, name, mode=mode))
            channels = WIDTH
            continue
        found.append(biased(rng, weights(rng, channels, WIDTH, on_images, padded=False)))
        channels = WIDTH
        is_normalized = chance(rng, 0.4)
        if is_normalized:
            found.append(normalizer(rng, on_images))
        found.append(activation(rng))
        if on_images and not is_normalized and chance(rng, 0.3):
            found.append(choice(rng, [nn.MaxPool2d, nn.AvgPool2d])(2, 1))
        if chance(rng, 0.2):
            found.append(nn.Dropout(0.4))
    return [*found, weights(rng, channels, WIDTH, on_images, padded=False)]


def activation(rng: Random) -> nn.Module:
    name = choice(rng, [*ACTIVATIONS, "dyt", "derf"])
    by_channel = {"prelu": nn.PReLU, "dyt": nn.DyT, "derf": nn.Derf}
    return by_channel[name](WIDTH) if name in by_channel else nn.Activation(name)


def draw(rng: Random) -> Case:
    on_images = chance(rng, 0.4)
    seed = integer(rng, 0, 2**31)
    inputs = choice(rng, [5, 20])
    # five windows of 2x2 at the most, each of which takes a row and a column
    shape = (12, inputs, 6, 6) if on_images else (12, inputs)
    scales = rng.choice([0.3, 2.0], size=(12, *[1] * (len(shape) - 1)))
    x = (rng.gamma(0.5, size=shape) * scales).astype("float32")  # not Gaussian

    def make() -> list[nn.Module]:
        return layers(np.random.default_rng(seed), inputs, on_images)

    words = f"the law of {NETWORKS} networks on {shape}: {one_line(nn.Sequential(*make()))}"

    def check() -> str | None:
        _, wrong = compared_with_law(make, x, NETWORKS)
        for record, law, simulated in wrong:
            return (
                f"{record.layer}, stated error {record.error:.3f}: squared mean and variance "
                f"{law}, but the simulation has {simulated}"
            )
        return None

    return Case(words, check)
