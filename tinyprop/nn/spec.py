"""The paper's shorthand for networks: C(filters, size, stride, padding) and P(size, stride,
padding, mode); residual blocks are R(...)."""

import re
from math import prod
from typing import Any, NoReturn, TypeAlias

from .. import functional as F
from ..engine.errors import explain
from ..engine.tensor import Tensor
from . import init as initial
from .layers import ACTIVATIONS, Activation, AvgPool2d, Conv2d, Flatten, MaxPool2d, PReLU
from .module import Module, Sequential
from .normprop import PRELU_START, NormPropConv2d
from .residual import Residual, Scale
from .statistics import BatchNorm, Derf, DyT, GroupNorm, LayerNorm, RMSNorm
from .weights import ScaledWS, WeightNorm

NIN = (
    "C(192,5,1,2)-C(160,1,1,0)-P(3,2,1,max)-C(96,1,1,0)-C(192,5,1,2)-C(192,1,1,0)-P(3,2,1,avg)"
    "-C(192,1,1,0)-C(192,5,1,0)-C(192,1,1,2)-C(10,1,1,0)-P(8,8,0,avg)"
)

GRAMMAR = (
    "layers joined by '-', each C(filters,size,stride,padding), P(size,stride,padding,max|avg), "
    "or a residual block, "
    "R(layers), which has a C, and in which size = 2 padding + 1; all are integers, at least 1 "
    "except for padding; "
    "the last C is in no block"
)
LAYER = re.compile(
    r"C\(([1-9]\d*),([1-9]\d*),([1-9]\d*),(\d+)\)|P\(([1-9]\d*),([1-9]\d*),(\d+),(max|avg)\)|R\("
)

# ("192", "5", "1", "2"), ("3", "2", "1", "max"), or a block
Layer: TypeAlias = tuple[str, ...] | list["Layer"]


def parse(spec: str) -> list[Layer]:
    """The layers of a spec, those of a residual block in a list; spaces are ignored.

    >>> parse("R(C(16,3,1,1)) - C(10,1,1,0) - P(2,2,0,max)")
    [[('16', '3', '1', '1')], ('10', '1', '1', '0'), ('2', '2', '0', 'max')]
    """
    text = "".join(spec.split())
    layers, end = _sequence(text, 0)
    units = [layer for layer in layers if not is_pool(layer)]
    if end < len(text) or not units or isinstance(units[-1], list):
        _refuse(text, end)
    return layers


def _sequence(text: str, position: int, in_block: bool = False) -> tuple[list[Layer], int]:
    """The layers from this position on, and where they end."""
    layers: list[Layer] = []
    while match := LAYER.match(text, position):
        if match[0] == "R(":
            block, end = _sequence(text, match.end(), in_block=True)
            if text[end : end + 1] != ")" or all(is_pool(layer) for layer in block):
                _refuse(text, end)
            layers.append(block)
            position = end + 1
        else:
            layer = tuple(group for group in match.groups() if group is not None)
            size, _, padding = map(int, layer[:3] if is_pool(layer) else layer[1:])
            if in_block and size != 2 * padding + 1:
                break
            layers.append(layer)
            position = match.end()
        if text[position : position + 1] != "-":
            return layers, position
        position += 1
    _refuse(text, position)


def _refuse(text: str, position: int) -> NoReturn:
    rest = repr(text[position : position + 20]) if position < len(text) else "its end"
    raise ValueError(
        explain(f"a spec that cannot be parsed at position {position}: {rest}", GRAMMAR, NIN[:27])
    )


def is_pool(layer: Layer) -> bool:
    return layer[-1] in ("max", "avg")


BEFORE: dict[str, Any] = {  # normalisers in front of the activation, made for a number of channels
    "batch": BatchNorm,
    "layer": lambda channels: LayerNorm((channels, None, None)),
    "rms": lambda channels: RMSNorm((channels, None, None)),
    "group": lambda channels: GroupNorm(groups(channels), channels),
    "instance": lambda channels: GroupNorm(channels, channels),
    "dyt": DyT,
    "derf": Derf,
}
NORMS = ("normprop", *BEFORE, "layer-after", "weight", "ws", "selu", "none")
# the layers count on inputs of variance 1, so residual blocks keep count of it
ANALYTIC = ("normprop", "ws")
INITS = ("glorot", "he", "lecun", "orthogonal", "fixup")


def groups(channels: int) -> int:
    """The number of groups of a GroupNorm: up to 32, as in Wu and He (2018), of at least two
    channels each.

    >>> groups(192), groups(40), groups(7)
    (32, 20, 1)
    """
    return max(n for n in range(1, 33) if channels % n == 0 and (n == 1 or channels >= 2 * n))


def build(
    spec: str,
    in_channels: int = 3,
    norm: str = "normprop",
    activation: str = "relu",
    width: float = 1.0,
    classes: int | None = None,
    mode: str = "paper",
    gamma: Any = "jacobian",
    init: str | None = None,
    alpha: float = 1.0,
) -> Sequential:
    """Build the network of a spec, with hidden layers normalised by `norm`.

    The last convolution is linear and gives the logits. `width` scales the number of filters of all
    the others; `classes` sets that of the last one. `mode` and `gamma` are passed to the NormProp
    layers.

    | norm | a hidden layer is |
    |---|---|
    | "normprop" | a NormPropConv2d |
    | "batch", "layer", "rms", "group", "instance", "dyt", "derf" | conv., normaliser, activation |
    | "layer-after" | convolution, activation, LayerNorm |
    | "weight", "ws" | convolution with WeightNorm or ScaledWS, activation |
    | "none" | convolution, activation |
    | "selu" | the same, with SELU whatever `activation` says |

    `init` is "glorot" (the default for "normprop", "batch" and "none"), "he" (for all others),
    "lecun", "orthogonal" or "fixup", which are functions of `tp.nn.init`. He's and orthogonal rows
    have the gain of the activation that their input has gone through: for SELU, He's are LeCun's.

    A residual block R(C(...)-C(...)) adds to its input: in the branch and around it, normaliser and
    activation stand in front of the convolution that needs them instead of behind the last one (He
    et al., 2016), and a 1x1 convolution takes the other path where the branch changes the number of
    channels or the size. It is h + alpha branch(h / beta). beta is 1, but for "normprop" and "ws"
    the deviation of h that follows from the blocks before: see `Residual`.

    >>> net = tp.nn.build("C(8,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(4,4,0,avg)", classes=5)
    >>> net(tp.tensor([[[[1.0] * 8] * 8] * 3])).shape
    (1, 5)
    >>> blocks = "R(C(8,3,1,1)-C(8,3,1,1))-R(C(16,3,2,1))"
    >>> net = tp.nn.build(f"C(8,3,1,1)-{blocks}-C(5,1,1,0)-P(4,4,0,avg)", norm="layer")
    >>> net(tp.ones(1, 3, 8, 8)).shape, [type(layer).__name__ for layer in net[1].branch]
    ((1, 5), ['LayerNorm', 'Activation', 'Conv2d', 'LayerNorm', 'Activation', 'Conv2d'])
    """
    for name, value, allowed in (("norm", norm, NORMS), ("init", init or "glorot", INITS)):
        if value not in allowed:
            rule = f"it is one of {', '.join(allowed)}"
            raise ValueError(explain(f"{name}={value!r}", rule, f"{name}={allowed[0]!r}"))
    init = init or ("glorot" if norm in ("normprop", "batch", "none") else "he")
    norm, activation = ("none", "selu") if norm == "selu" else (norm, activation)
    layers = parse(spec)
    builder = Builder(in_channels, norm, activation, width, init, alpha, (gamma, mode))
    last = max(i for i, layer in enumerate(layers) if not is_pool(layer))
    network = Sequential(*builder.sequence(layers, last, classes), Flatten())
    if init == "fixup":
        initial.fixup_(network, activation)
    return network


class Builder:
    """Makes layers in order, and knows the signal that arrives at the next one."""

    def __init__(
        self,
        channels: int,
        norm: str,
        activation: str,
        width: float,
        init: str,
        alpha: float,
        normprop: Any,
    ):
        self.norm, self.activation, self.width, self.init = norm, activation, width, init
        self.alpha, self.normprop = alpha, normprop
        self.channels, self.variance = channels, 1.0
        # the activation, by name or as a function, that the signal has gone through
        self.source: Any = "identity"
        # whether normaliser and activation of the last convolution or block are still to come
        self.pending = False

    def sequence(
        self, layers: list[Layer], last: int | None = None, classes: int | None = None
    ) -> list[Module]:
        """The modules of these layers; number `last` gives the logits."""
        made: list[Module] = []
        for i, layer in enumerate(layers):
            if isinstance(next((unit for unit in layers[i:] if not is_pool(unit)), None), tuple):
                made += self.activated()  # a block has its own activations
            if isinstance(layer, list):
                made.append(self.block(layer))
                continue
            *filters, size, stride, padding = map(int, layer[:3] if is_pool(layer) else layer)
            if is_pool(layer):
                made.append((MaxPool2d if layer[3] == "max" else AvgPool2d)(size, stride, padding))
            elif i == last:
                made.append(
                    self.initialized(
                        Conv2d(self.channels, classes or filters[0], size, stride, padding)
                    )
                )
            else:
                width = max(1, round(filters[0] * self.width))
                made.append(
                    self.convolution(self.channels, width, (size, stride, padding), self.activation)
                )
                self.channels, self.pending = width, True
        return made

    def convolution(
        self, channels: int, filters: int, geometry: tuple[int, int, int], activation: str
    ) -> Module:
        """A convolution with weights as the norm has them; NormProp's contains the activation."""
        if self.norm == "normprop":
            return self.initialized(
                NormPropConv2d(channels, filters, *geometry, activation, *self.normprop)
            )
        layer = self.initialized(Conv2d(channels, filters, *geometry, bias=self.norm not in BEFORE))
        if self.norm == "ws":
            return ScaledWS(layer, self.source)
        return WeightNorm(layer) if self.norm == "weight" else layer

    def initialized(self, layer: Any) -> Any:
        if self.init in ("he", "lecun"):
            initial.kaiming_normal_(layer, self.source if self.init == "he" else "identity")
        return (
            initial.orthogonal_(layer, initial.gain(self.source))
            if self.init == "orthogonal"
            else layer
        )

    def activated(self) -> list[Module]:
        """What stands between the last convolution or block and the next convolution."""
        made = self.at_unit_variance()
        if self.pending and self.norm != "normprop":
            made += [BEFORE[self.norm](self.channels)] if self.norm in BEFORE else []
            made.append(
                PReLU(self.channels) if self.activation == "prelu" else Activation(self.activation)
            )
            made += [LayerNorm((self.channels, None, None))] if self.norm == "layer-after" else []
            self.source = self.squashed if self.norm in ("dyt", "derf") else self.activation
        self.pending = False
        return made

    def squashed(self, x: Tensor) -> Tensor:
        """What DyT or Derf and the activation make of a value at the start."""
        params = {"a": PRELU_START} if self.activation == "prelu" else {}
        return ACTIVATIONS[self.activation](
            (F.tanh if self.norm == "dyt" else F.erf)(0.5 * x), **params
        )

    def at_unit_variance(self) -> list[Module]:
        variance, self.variance = self.variance, 1.0
        return [Scale(variance**-0.5)] if variance != 1.0 else []

    def block(self, layers: list[Layer]) -> Residual:
        channels, variance, self.variance = self.channels, self.variance, 1.0
        branch = Sequential(*self.sequence(layers), *self.at_unit_variance())
        shortcut, stride, self.source = None, strides(layers), "identity"
        if stride > 1 or self.channels != channels:
            shortcut = self.convolution(channels, self.channels, (1, stride, 0), "identity")
        block = Residual(branch, self.alpha, variance**0.5, shortcut)
        self.variance, self.pending = block.variance if self.norm in ANALYTIC else 1.0, True
        return block


def strides(layers: list[Layer]) -> int:
    """The product of all strides."""
    return prod(
        strides(x) if isinstance(x, list) else int(x[1] if is_pool(x) else x[2]) for x in layers
    )
