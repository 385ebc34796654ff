"""What is measured: networks, sizes and the work done with them, the same for every peer."""

from dataclasses import dataclass
from itertools import pairwise

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.random import manual_seed, new_generator
from tinyprop.nn.module import Module
from tinyprop.nn.spec import Conv, Pool, parse

# A small rate, so that in a long run no loss gets so close to 0 that its gradients are denormal:
# those are slow.
LEARNING = {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.001}
NORMS = {"normprop": "NormProp", "batch": "BatchNorm"}  # and what tables call them
SIZES = [(0.1, 50), (0.25, 1), (0.25, 4), (0.25, 16), (0.25, 50), (1.0, 50)]  # widths and images
PERCEPTRONS = {"784-100-10": 50, "2-16-16-2": 20}  # features, and samples in a batch
LAYER_SIZES = [(0.1, 50), (0.25, 16), (1.0, 25)]
LAYERS = [0, 1, 2, 4, 6, 11]  # of the paper's network: two wide convolutions, a 1x1, three pools


@dataclass(frozen=True)
class Case:
    """A piece of work. From the same case every peer makes the same network, weights, images and
    labels.

    `work` is a training "step", or forward and backward through one "layer"."""

    name: str
    network: str = nn.NIN  # the paper's shorthand, or features joined by '-'
    work: str = "step"
    norm: str = "normprop"
    width: float = 1.0
    image: tuple[int, int, int] = (3, 32, 32)
    batch: int = 50
    layer: int = 0
    input_gradient: bool = True  # of a layer; the first one of a network needs none

    @property
    def convolutional(self) -> bool:
        return "C" in self.network

    def features(self) -> list[int]:
        """Of a network without convolutions, from the input to the logits."""
        return [int(word) for word in self.network.split("-")]

    def build(self) -> nn.Sequential:
        """The network with the weights that every peer starts from."""
        manual_seed(0)
        if self.convolutional:
            return nn.build(self.network, self.image[0], self.norm, width=self.width)
        return perceptron(*self.features(), norm=self.norm)

    def data(self) -> tuple[HostArray, HostArray]:
        """Images (N, C, H, W), or features (N, F) for a network without convolutions, and labels
        (N,)."""
        random = new_generator(1)
        shape: tuple[int, ...] = self.image
        classes = 10
        if not self.convolutional:
            first, *_, classes = self.features()
            shape = (first,)
        images = random.standard_normal((self.batch, *shape), "float32")
        labels = random.integers(0, classes, self.batch)
        return images, labels


def perceptron(*features: int, norm: str) -> nn.Sequential:
    """Fully connected layers with ReLU between them, normalised by "normprop" or "none".

    >>> len(perceptron(4, 8, 2, norm="none"))
    3
    """
    layers: list[Module] = []
    for inputs, outputs in pairwise(features[:-1]):
        if norm == "normprop":
            layers.append(nn.NormPropLinear(inputs, outputs))
        else:
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    layers.append(nn.Linear(features[-2], features[-1]))
    return nn.Sequential(*layers)


def steps() -> dict[str, list[Case]]:
    """Training steps of what users train, by the row that asks for them.

    >>> list(steps())[:2], [case.name for case in steps()["2-16-16-2"]]
    (['0.1x50', '0.25x1'], ['MLP 2-16-16-2 x 20, plain', 'MLP 2-16-16-2 x 20, NormProp'])
    """
    rows = {}
    for width, batch in SIZES:
        rows[f"{width:g}x{batch}"] = [
            Case(f"width {width:g} x {batch}, {title}", norm=norm, width=width, batch=batch)
            for norm, title in NORMS.items()
        ]
    for network, batch in PERCEPTRONS.items():
        rows[network] = [
            Case(f"MLP {network} x {batch}, {title}", network, norm=norm, batch=batch)
            for norm, title in {"none": "plain", "normprop": "NormProp"}.items()
        ]
    return rows


def layers() -> dict[str, list[Case]]:
    """Single layers of the paper's network, by its width, on as many images as users give it.

    >>> [case.name for case in layers()["0.1"]][:2]
    ['C(19,5,1,2) on 3x32x32 x 50', 'C(16,1,1,0) on 19x32x32 x 50']
    """
    rows = {}
    for width, batch in LAYER_SIZES:
        found = []
        for i, name in enumerate(layer_names(width)):
            if i in LAYERS:
                found.append(layer(f"{name} x {batch}", i, width, batch))
        filters = nn.build(nn.NIN, 3, "batch", width=width)[0].weight.shape[0]
        found.append(layer(f"BatchNorm on {filters}x32x32 x {batch}", 1, width, batch, "batch"))
        rows[f"{width:g}"] = found
    last = LAYERS[-1]
    rows["1"].append(layer(f"{layer_names(1.0)[last]} x 1", last, 1.0, 1))
    return rows


def layer(name: str, i: int, width: float, batch: int, norm: str = "normprop") -> Case:
    return Case(
        name, work="layer", norm=norm, width=width, batch=batch, layer=i, input_gradient=i > 0
    )


def layer_names(width: float) -> list[str]:
    """The layers of the paper's network in its shorthand, each with the images that it gets."""
    names = []
    channels = 3
    side = 32
    net = nn.build(nn.NIN, 3, "normprop", width=width)
    for shorthand, spec, built in zip(nn.NIN.split("-"), parse(nn.NIN), net, strict=False):
        on = f"{channels}x{side}x{side}"
        if isinstance(spec, Conv):
            channels = built.weight.shape[0]
            shorthand = f"C({channels},{spec.size},{spec.stride},{spec.padding})"
        names.append(f"{shorthand} on {on}")
        if isinstance(spec, Conv | Pool):
            side = (side + 2 * spec.padding - spec.size) // spec.stride + 1
    return names
