"""What is measured: networks, sizes and the work done with them, the same for every peer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

VGG = (
    "C(64,3,1,1)-C(64,3,1,1)-P(2,2,0,max)-C(128,3,1,1)-C(128,3,1,1)-P(2,2,0,max)"
    "-C(256,3,1,1)-C(256,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(4,4,0,avg)"
)
MLP = "784-1024-1024-10"  # features from the input to the logits
QUICK_WIDTH = 0.25  # of the VGG-like network in a quick run


@dataclass(frozen=True)
class Case:
    """A piece of work. From the same case every peer makes the same network, weights, images and
    labels.

    `work` is a training "step", the "inference" of a batch, or forward and backward through one
    "layer"."""

    section: str
    name: str
    network: str = nn.NIN  # the paper's shorthand, or features joined by '-'
    work: str = "step"
    norm: str = "normprop"
    width: float = 1.0
    image: tuple[int, int, int] = (3, 32, 32)
    batch: int = 50
    threads: int = 1
    layer: int = 0
    input_gradient: bool = True  # of a layer; the first one of a network needs none
    for_all: bool = False  # also for slow peers

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
        shape = self.image if self.convolutional else (self.features()[0],)
        images = random.standard_normal((self.batch, *shape), "float32")
        labels = random.integers(0, 10, self.batch)
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


def plan(sections: Sequence[str] = ("step",), threads: int = 1, quick: bool = False) -> list[Case]:
    """Every case of some sections, in the order in which they are measured.

    >>> [case.name for case in plan(["step"])]
    ['NormProp', 'BatchNorm']
    """
    cases = []
    for name, section in SECTIONS.items():
        if name in sections:
            cases += section(threads, quick)
    return cases


def steps(threads: int, quick: bool) -> list[Case]:
    return [
        Case("step", name, norm=norm, threads=threads, for_all=True) for norm, name in NORMS.items()
    ]


def layers(threads: int, quick: bool) -> list[Case]:
    """Each layer of the paper's network by itself, on one thread and half a batch, as one of two
    threads sees it."""
    cases = []
    channels = 3
    side = 32
    for i, (shorthand, layer) in enumerate(zip(nn.NIN.split("-"), parse(nn.NIN), strict=True)):
        name = f"{shorthand} on {channels}x{side}x{side}"
        cases.append(Case("layers", name, work="layer", layer=i, input_gradient=i > 0, batch=25))
        if isinstance(layer, Conv):
            channels = layer.filters
        if isinstance(layer, Conv | Pool):
            side = (side + 2 * layer.padding - layer.size) // layer.stride + 1
    return cases


def inference(threads: int, quick: bool) -> list[Case]:
    cases = []
    for n in sorted({threads, 1}, reverse=True):
        name = f"NIN, NormProp, {n} thread{'s' if n > 1 else ''}"
        cases.append(Case("inference", name, work="inference", threads=n))
    return cases


def networks(threads: int, quick: bool) -> list[Case]:
    """Steps of other networks, and convolutions of unusual geometry: forward and both gradients, on
    one thread."""
    width = QUICK_WIDTH if quick else 1.0
    vgg = Case("networks", "VGG-like", VGG, width=width, threads=threads)
    mlp = Case("networks", "MLP", MLP, batch=128, threads=threads)
    cases = []
    for norm, name in {"normprop": "NormProp", "none": "plain"}.items():
        for net in (vgg, mlp):
            cases.append(replace(net, name=f"{net.name}, {name}", norm=norm))
    return [
        *cases,
        convolution("7x7, stride 2", "C(64,7,2,3)", 64),
        convolution("5x5, stride 2", "C(64,5,2,2)", 64),
        convolution("1x1, stride 2", "C(128,1,2,0)", 64),
        convolution("11x11", "C(32,11,1,5)", 16),
    ]


def convolution(name: str, spec: str, channels: int) -> Case:
    return Case(
        "networks",
        f"{name}, {channels} channels",
        spec,
        work="layer",
        norm="none",
        image=(channels, 32, 32),
        batch=25,
    )


SECTIONS: dict[str, Callable[[int, bool], list[Case]]] = {
    "step": steps,
    "layers": layers,
    "inference": inference,
    "networks": networks,
}
