"""Networks with a planted fault, and sound ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop import nn

WIDTH = 64


def vectors(seed, count=256, features=WIDTH):
    return np.random.default_rng(1000 + seed).normal(size=(count, features)).astype("float32")


def images(seed, count=64):
    return np.random.default_rng(2000 + seed).normal(size=(count, 3, 8, 8)).astype("float32")


def dense(gain, activation="relu", depth=6, features=WIDTH):
    """Layers whose rows have a mean square of gain^2 / inputs, and logits."""
    layers = []
    for _ in range(depth):
        layers += [drawn(nn.Linear(features, WIDTH), gain), nn.Activation(activation)]
        features = WIDTH
    return nn.Sequential(*layers, drawn(nn.Linear(WIDTH, 10), 1.0))


def drawn(layer, gain):
    inputs = layer.weight.size // len(layer.weight)
    values = tp.randn(*layer.weight.shape).numpy() * gain / math.sqrt(inputs)
    layer.weight.data[...] = values
    return layer


HE = math.sqrt(2.0)


@dataclass(frozen=True)
class Plant:
    """A network with a fault, its input, and what is to be found."""

    make: Callable[[], nn.Module]
    kind: str
    layer: str
    data: Callable[[int], Any] = vectors
    follows: tuple[str, ...] = ()  # kinds of faults that the planted one may cause


class Uncentered(nn.Module):
    """NormProp without the subtraction of c2, as a layer of someone's own."""

    def __init__(self):
        self.weight = drawn(nn.Linear(WIDTH, WIDTH), 1.0).weight

    def forward(self, x):
        rows = tp.functional.weight_norm(self.weight, tp.ones(WIDTH))
        c1 = tp.moments.gaussian("relu").std
        return tp.functional.relu(tp.functional.linear(x, rows)) / c1


def uncentered_by_layers():
    """The same with layers of tinyprop."""
    layers = []
    c1 = tp.moments.gaussian("relu").std
    for _ in range(12):
        layer = nn.WeightNorm(drawn(nn.Linear(WIDTH, WIDTH), 1.0), scale=1.0)
        layers += [layer, nn.ReLU(), nn.Scale(1.0 / c1)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


class Own(nn.Module):
    """A forward of one's own, with functions instead of layers."""

    def __init__(self, gain, function, depth=6):
        self.layers = [drawn(nn.Linear(WIDTH, WIDTH), gain) for _ in range(depth)]
        self.head = drawn(nn.Linear(WIDTH, 10), 1.0)
        self.function = function

    def forward(self, x):
        for layer in self.layers:
            x = self.function(layer(x))
        return self.head(x)


class OwnResidual(nn.Module):
    """Sums that the network's own forward computes."""

    def __init__(self, depth=6):
        self.blocks = [nn.Sequential(drawn(nn.Linear(WIDTH, WIDTH), 1.0)) for _ in range(depth)]
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class OwnBranches(nn.Module):
    """The same, with branches of two layers."""

    def __init__(self, depth=6):
        self.blocks = [plain_branch() for _ in range(depth)]
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def residual(branch, depth=6, alpha=1.0):
    blocks = [nn.Residual(branch(), alpha=alpha) for _ in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 10))


def plain_branch():
    return nn.Sequential(nn.ReLU(), drawn(nn.Linear(WIDTH, WIDTH), HE))


def normalized_branch():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU(), drawn(nn.Linear(WIDTH, WIDTH), HE))


def saturated_by_weights():
    net = dense(1.0, "sigmoid", depth=3)
    net[2].weight.data[...] *= 60.0
    return net


def saturated_by_bias():
    net = dense(1.0, "tanh", depth=3)
    net[0].bias.data[...] = 5.0
    return net


def dead_by_bias():
    net = dense(HE)
    net[4].bias.data[:32] = -12.0
    return net


def double_normalizer():
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm(WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), head()
    )


def normprop_and_batch_norm():
    return nn.Sequential(nn.NormPropLinear(WIDTH, WIDTH), nn.BatchNorm(WIDTH), head())


def head():
    return nn.Linear(WIDTH, 10)


def batch_norm():
    layers = []
    for _ in range(3):
        layers += [drawn(nn.Linear(WIDTH, WIDTH), HE), nn.BatchNorm(WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, head())


def stale_batch_norm():
    net = batch_norm().eval()
    net[4].running_var.data[...] = 50.0
    net[1].running_var.data[...] = 2.0
    return net


def layer_norm_over_width():
    return nn.Sequential(
        drawn(nn.Conv2d(3, 8, 3, padding=1), 1.0),
        nn.LayerNorm(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def layer_norm_over_positions():
    return nn.Sequential(
        drawn(nn.Conv2d(3, 8, 3, padding=1), 1.0),
        nn.ReLU(),
        nn.LayerNorm((8, 8)),
        nn.GlobalAvgPool2d(),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def linear_layers():
    return [*(drawn(nn.Linear(WIDTH, WIDTH), 1.0) for _ in range(3)), nn.Dropout(0.1), head()]


def zero_weights():
    net = dense(HE, depth=3)
    net[2].weight.data[...] = 0.0
    return net


def equal_weights():
    net = dense(HE, depth=3)
    net[2].weight.data[...] = 0.1
    return net


class Softmax(nn.Module):
    def forward(self, x):
        return tp.functional.softmax(x, 1)


class Logarithm(nn.Module):
    def forward(self, x):
        return tp.functional.log(x)


def default_of_pytorch():
    """Uniform weights of variance 1 / (3 inputs), as torch.nn.Linear draws them."""
    return dense(math.sqrt(1.0 / 3.0))


PLANTS = {
    "gain too large": Plant(lambda: dense(2.5), "wrong gain", "2 Linear"),
    "gain too small": Plant(lambda: dense(0.6), "wrong gain", "2 Linear"),
    "Glorot for ReLU": Plant(lambda: dense(1.0), "wrong gain", "2 Linear"),
    "PyTorch's default for ReLU": Plant(default_of_pytorch, "wrong gain", "2 Linear"),
    "gain too large, own forward": Plant(
        lambda: Own(2.5, tp.functional.relu), "wrong gain", "layers.1 Linear"
    ),
    "He for tanh": Plant(
        lambda: dense(HE, "tanh", depth=10), "gain for another activation", "2 Linear"
    ),
    "tiny weights for tanh": Plant(lambda: dense(0.3, "tanh"), "wrong gain", "2 Linear"),
    "mean not subtracted": Plant(uncentered_by_layers, "missing bias correction", "3 WeightNorm"),
    "mean not subtracted, own layer": Plant(
        lambda: nn.Sequential(*[Uncentered() for _ in range(12)], head()),
        "missing bias correction",
        "0 Uncentered",
    ),
    "two normalisers": Plant(double_normalizer, "double normaliser", "2 LayerNorm"),
    "NormProp and BatchNorm": Plant(normprop_and_batch_norm, "double normaliser", "1 BatchNorm"),
    "BatchNorm with a batch of 2": Plant(
        batch_norm,
        "BatchNorm with a small batch",
        "1 BatchNorm",
        lambda seed: vectors(seed, count=2),
    ),
    "saturated sigmoid": Plant(saturated_by_weights, "saturated activation", "3 Activation"),
    "saturated tanh by a bias": Plant(saturated_by_bias, "saturated activation", "1 Activation"),
    "dead ReLU by a bias": Plant(dead_by_bias, "dead units", "5 Activation"),
    "unscaled residuals": Plant(lambda: residual(plain_branch), "unscaled residuals", "0 Residual"),
    "unscaled residuals, own forward": Plant(
        OwnResidual, "unscaled residuals", "blocks.0.0 Linear"
    ),
    "unscaled residuals, own branches": Plant(OwnBranches, "unscaled residuals", "blocks.0.0 ReLU"),
    "no activation": Plant(lambda: nn.Sequential(*linear_layers()), "no activation", "1 Linear"),
    "weights of 0": Plant(zero_weights, "dead units", "3 Activation"),
    "sigmoid on the logits": Plant(
        lambda: nn.Sequential(dense(HE), nn.Sigmoid()), "activation on the logits", "1 Sigmoid"
    ),
    "bytes from 0 to 255": Plant(
        lambda: dense(HE),
        "input not normalised",
        "0 Linear",
        lambda seed: np.random.default_rng(seed).integers(0, 256, (256, WIDTH)).astype("uint8"),
    ),
    "LayerNorm over the width": Plant(layer_norm_over_width, "wrong axis", "1 LayerNorm", images),
    "LayerNorm over positions": Plant(
        layer_norm_over_positions, "wrong axis", "2 LayerNorm", images
    ),
    "stale running statistics": Plant(stale_batch_norm, "stale running statistics", "4 BatchNorm"),
    "equal weights": Plant(equal_weights, "equal units", "2 Linear", follows=("dead units",)),
    "pixels from 0 to 255": Plant(
        lambda: dense(HE),
        "input not normalised",
        "0 Linear",
        lambda seed: 127.5 + 60.0 * vectors(seed),
    ),
    "softmax before cross-entropy": Plant(
        lambda: nn.Sequential(dense(HE), Softmax()), "softmax twice", "1 Softmax"
    ),
    "ReLU on the logits": Plant(
        lambda: nn.Sequential(dense(HE), nn.ReLU()), "activation on the logits", "1 ReLU"
    ),
    "two activations": Plant(
        lambda: nn.Sequential(drawn(head_of(WIDTH), HE), nn.ReLU(), nn.Tanh(), head()),
        "two activations in a row",
        "2 Tanh",
    ),
    "logarithm of negative numbers": Plant(
        lambda: nn.Sequential(drawn(head_of(WIDTH), 1.0), Logarithm(), head()),
        "not finite",
        "1 Logarithm",
    ),
}


def head_of(units):
    return nn.Linear(WIDTH, units)


# Sound networks


def selu():
    return dense(1.0, "selu", depth=8)


def trained_batch_norm():
    net = batch_norm()
    optimizer = tp.optim.SGD(net.parameters(), lr=0.05)
    step = tp.train.TrainingStep(net, optimizer, threads=1)
    x = vectors(7)
    labels = (x[:, :10]).argmax(axis=1)
    for _ in range(30):
        step(x, labels)
    return net.eval()


def convolutions(norm):
    spec = "C(16,3,1,1)-P(2,2,0,max)-C(16,3,1,1)-C(16,3,1,1)-C(10,1,1,0)-P(4,4,0,avg)"
    init = "he" if norm == "none" else None
    return lambda: nn.build(spec, norm=norm, init=init)


def residual_convolutions():
    spec = "C(16,3,1,1)-R(C(16,3,1,1)-C(16,3,1,1))-R(C(16,3,1,1))-C(10,1,1,0)-P(8,8,0,avg)"
    return nn.build(spec, norm="batch", init="he")


SOUND = {
    "a single layer": (lambda: nn.Sequential(nn.Flatten(), head()), vectors),
    "He for ReLU": (lambda: dense(HE), vectors),
    "He, 12 layers": (lambda: dense(HE, depth=12), vectors),
    "LeCun for tanh": (lambda: dense(1.0, "tanh", depth=10), vectors),
    "SELU": (selu, vectors),
    "GELU": (lambda: dense(1.5, "gelu"), vectors),
    "own forward": (lambda: Own(HE, tp.functional.relu), vectors),
    "BatchNorm": (batch_norm, vectors),
    "BatchNorm, trained": (trained_batch_norm, vectors),
    "NormProp": (convolutions("normprop"), images),
    "NormProp, exact": (convolutions("normprop-exact"), images),
    "BatchNorm, images": (convolutions("batch"), images),
    "LayerNorm, images": (convolutions("layer"), images),
    "He, images": (convolutions("none"), images),
    "residual blocks with LayerNorm": (lambda: residual(normalized_branch), vectors),
    "scaled residual blocks": (lambda: residual(plain_branch, alpha=6**-0.5), vectors),
    "residual images": (residual_convolutions, images),
}
