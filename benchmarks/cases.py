"""What is measured: networks, sizes and the work done with them, the same for every peer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.random import manual_seed, new_generator
from tinyprop.nn.module import Module
from tinyprop.nn.spec import is_pool, parse

# A small rate, so that in a long run no loss gets so close to 0 that its gradients are denormal:
# those are slow.
LEARNING = {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.001}

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

    def build(self) -> nn.Sequential:
        """The network with the weights that every peer starts from."""
        manual_seed(0)
        if "C" in self.network:
            return nn.build(self.network, self.image[0], self.norm, width=self.width)
        return perceptron(*map(int, self.network.split("-")), norm=self.norm)

    def data(self) -> tuple[HostArray, HostArray]:
        """Images (N, C, H, W), or features (N, F) for a network without convolutions, and labels
        (N,)."""
        random = new_generator(1)
        shape = self.image if "C" in self.network else (int(self.network.split("-")[0]),)
        return random.standard_normal((self.batch, *shape), "float32"), random.integers(
            0, 10, self.batch
        )


def perceptron(*features: int, norm: str) -> nn.Sequential:
    """Fully connected layers with ReLU between them, normalised by "normprop" or "none".

    >>> len(perceptron(4, 8, 2, norm="none"))
    3
    """
    hidden: list[Module] = []
    for inputs, outputs in pairwise(features[:-1]):
        normprop = norm == "normprop"
        hidden += (
            [nn.NormPropLinear(inputs, outputs)]
            if normprop
            else [nn.Linear(inputs, outputs), nn.ReLU()]
        )
    return nn.Sequential(*hidden, nn.Linear(features[-2], features[-1]))


def plan(sections: Sequence[str] = ("step",), threads: int = 1, quick: bool = False) -> list[Case]:
    """Every case of some sections, in the order in which they are measured.

    >>> [case.name for case in plan(["step"])]
    ['NormProp', 'BatchNorm']
    """
    return [
        case
        for name, cases in SECTIONS.items()
        if name in sections
        for case in cases(threads, quick)
    ]


def steps(threads: int, quick: bool) -> list[Case]:
    norms = {"NormProp": "normprop", "BatchNorm": "batch"}
    return [
        Case("step", name, norm=norm, threads=threads, for_all=True) for name, norm in norms.items()
    ]


def layers(threads: int, quick: bool) -> list[Case]:
    """Each layer of the paper's network by itself, on one thread and half a batch, as one of two
    threads sees it."""
    cases, channels, side = [], 3, 32
    for i, layer in enumerate(parse(nn.NIN)):
        size, stride, padding = map(int, layer[:3] if is_pool(layer) else layer[1:])
        name = f"{'P' if is_pool(layer) else 'C'}({','.join(layer)}) on {channels}x{side}x{side}"
        cases.append(Case("layers", name, work="layer", layer=i, input_gradient=i > 0, batch=25))
        channels = channels if is_pool(layer) else int(layer[0])
        side = (side + 2 * padding - size) // stride + 1
    return cases


def inference(threads: int, quick: bool) -> list[Case]:
    names = {
        f"NIN, NormProp, {n} thread{'s' * (n > 1)}": n for n in sorted({threads, 1}, reverse=True)
    }
    return [Case("inference", name, work="inference", threads=n) for name, n in names.items()]


def networks(threads: int, quick: bool) -> list[Case]:
    """Steps of other networks, and convolutions of unusual geometry: forward and both gradients, on
    one thread."""
    vgg = Case("networks", "VGG-like", VGG, width=QUICK_WIDTH if quick else 1.0, threads=threads)
    mlp = Case("networks", "MLP", MLP, batch=128, threads=threads)
    convolution = Case("networks", "", work="layer", norm="none", batch=25)
    unusual = {
        "7x7, stride 2": ("C(64,7,2,3)", 64),
        "5x5, stride 2": ("C(64,5,2,2)", 64),
        "1x1, stride 2": ("C(128,1,2,0)", 64),
        "11x11": ("C(32,11,1,5)", 16),
    }
    return [
        *[replace(net, name=f"{net.name}, NormProp") for net in (vgg, mlp)],
        *[replace(net, name=f"{net.name}, plain", norm="none") for net in (vgg, mlp)],
        *[
            replace(
                convolution,
                name=f"{name}, {channels} channels",
                network=network,
                image=(channels, 32, 32),
            )
            for name, (network, channels) in unusual.items()
        ],
    ]


SECTIONS: dict[str, Callable[[int, bool], list[Case]]] = {
    "step": steps,
    "layers": layers,
    "inference": inference,
    "networks": networks,
}
