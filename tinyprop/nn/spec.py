"""The paper's shorthand for networks: C(filters, size, stride, padding) and P(size, stride,
padding, mode); fully connected layers are F(units), residual blocks R(...)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ..engine.errors import explain
from ..functional.activation import AnyActivation
from ..functional.windows import Window
from . import init as initial
from .layers import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d
from .module import Module, Sequential
from .normalizers import AnyNormalizer, Maker, as_normalizer
from .residual import Residual, Scale

NIN = (
    "C(192,5,1,2)-C(160,1,1,0)-P(3,2,1,max)-C(96,1,1,0)-C(192,5,1,2)-C(192,1,1,0)-P(3,2,1,avg)"
    "-C(192,1,1,0)-C(192,5,1,0)-C(192,1,1,2)-C(10,1,1,0)-P(8,8,0,avg)"
)

GRAMMAR = (
    "layers joined by '-', each C(filters,size,stride,padding), P(size,stride,padding,max|avg), "
    "F(units), or a residual block, R(layers); all are integers, at least 1 except for padding; "
    "after an F there is no C and no P; a block has F alone, or C and P with at least one C, and "
    "size = 2 padding + 1; the last C or F is in no block"
)
CONV = re.compile(r"C\(([1-9]\d*),([1-9]\d*),([1-9]\d*),(\d+)\)")
DENSE = re.compile(r"F\(([1-9]\d*)\)")
POOL = re.compile(r"P\(([1-9]\d*),([1-9]\d*),(\d+),(max|avg)\)")


@dataclass(frozen=True)
class Conv:
    """A convolution: C(filters,size,stride,padding)."""

    filters: int
    size: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Pool:
    """A pooling layer: P(size,stride,padding,mode)."""

    size: int
    stride: int
    padding: int
    mode: str  # "max" or "avg"


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: F(units)."""

    units: int


@dataclass(frozen=True)
class Block:
    """A residual block: R(layers)."""

    layers: tuple["Layer", ...]


Layer: TypeAlias = Conv | Pool | Dense | Block
Unit: TypeAlias = Conv | Dense | Block  # a layer that has weights


def parse(spec: str) -> list[Layer]:
    """The layers of a spec; spaces are ignored.

    >>> for layer in parse("R(C(16,3,1,1)) - P(2,2,0,max) - C(10,1,1,0)"):
    ...     print(layer)
    Block(layers=(Conv(filters=16, size=3, stride=1, padding=1),))
    Pool(size=2, stride=2, padding=0, mode='max')
    Conv(filters=10, size=1, stride=1, padding=0)
    """
    text = "".join(spec.split())
    layers, end = _parse_layers(text, 0, in_block=False)
    is_complete = end == len(text)
    if not is_complete or not isinstance(last_unit(layers), Conv | Dense):
        _refuse(text, end)
    return layers


def _parse_layers(text: str, position: int, in_block: bool) -> tuple[list[Layer], int]:
    """The layers joined by "-" from this position on, and the position after them."""
    layers: list[Layer] = []
    while True:
        layer, end = _parse_layer(text, position, in_block)
        changes_kind = bool(layers) and is_dense(layer) != is_dense(layers[-1])
        if changes_kind and (in_block or not is_dense(layer)):
            _refuse(text, position)
        layers.append(layer)
        if not text.startswith("-", end):
            return layers, end
        position = end + 1


def _parse_layer(text: str, position: int, in_block: bool) -> tuple[Layer, int]:
    """The layer at this position, and the position after it."""
    if text.startswith("R(", position):
        return _parse_block(text, position)
    if match := DENSE.match(text, position):
        return Dense(int(match[1])), match.end()
    layer: Conv | Pool
    if match := CONV.match(text, position):
        filters, size, stride, padding = map(int, match.groups())
        layer = Conv(filters, size, stride, padding)
    elif match := POOL.match(text, position):
        size, stride, padding = map(int, match.groups()[:3])
        layer = Pool(size, stride, padding, mode=match[4])
    else:
        _refuse(text, position)
    # its output is as large as that of a 1x1 convolution with its stride
    fits_shortcut = layer.size == 2 * layer.padding + 1
    if in_block and not fits_shortcut:
        _refuse(text, position)
    return layer, match.end()


def _parse_block(text: str, position: int) -> tuple[Block, int]:
    """The block at this position, and the position after it."""
    layers, end = _parse_layers(text, position + len("R("), in_block=True)
    is_closed = text.startswith(")", end)
    if not is_closed or last_unit(layers) is None:
        _refuse(text, end)
    return Block(tuple(layers)), end + len(")")


def _refuse(text: str, position: int) -> NoReturn:
    rest = repr(text[position : position + 20]) if position < len(text) else "its end"
    got = f"a spec that cannot be parsed at position {position}: {rest}"
    raise ValueError(explain(got, GRAMMAR, NIN[:27]))


def is_dense(layer: Layer) -> bool:
    """Whether this layer, or those of this block, are fully connected."""
    return is_dense(layer.layers[0]) if isinstance(layer, Block) else isinstance(layer, Dense)


def first_unit(layers: Iterable[Layer]) -> Unit | None:
    """The first layer that has weights, if there is one."""
    for layer in layers:
        if not isinstance(layer, Pool):
            return layer
    return None


def last_unit(layers: Sequence[Layer]) -> Unit | None:
    """The last layer that has weights, if there is one."""
    return first_unit(reversed(layers))


def total_stride(layers: Iterable[Layer]) -> int:
    """The product of all strides."""
    product = 1
    for layer in layers:
        if isinstance(layer, Block):
            product *= total_stride(layer.layers)
        elif not isinstance(layer, Dense):
            product *= layer.stride
    return product


def outputs_of(spec: str) -> int:
    """How many outputs a spec has, as it is written.

    >>> outputs_of("F(100)-F(7)")
    7
    """
    last = last_unit(parse(spec))
    assert isinstance(last, Conv | Dense)
    return last.filters if isinstance(last, Conv) else last.units


def with_outputs(spec: str, outputs: int) -> str:
    """The spec with another number of outputs.

    >>> with_outputs("F(100)-F(7)", 10)
    'F(100)-F(10)'
    """
    start = max(spec.rfind("C("), spec.rfind("F("))  # the last unit is in no block
    return spec[:start] + re.sub(r"\d+", str(outputs), spec[start:], count=1)


def build(
    spec: str,
    in_channels: int = 3,
    norm: AnyNormalizer = "normprop",
    activation: AnyActivation = "relu",
    width: float = 1.0,
    classes: int | None = None,
    mode: str | None = None,
    gamma: Any = None,
    init: str | None = None,
    alpha: float = 1.0,
    beta: Any = None,
    size: tuple[int, int] | None = None,
) -> Sequential:
    """Build the network of a spec, with hidden layers normalised by `norm`: a name in
    `tp.nn.normalizers`, a `Normalizer`, or a function of the number of channels.

    The last layer with weights is linear and gives the logits. `width` scales the number of filters
    or units of all the others; `classes` sets that of the last one. `mode`, `gamma` and `beta` are
    options of the normaliser's layers; one that does not have them refuses them. Images are
    flattened before the first F(units), for which their `size`, (height, width), must be known. A
    spec that begins with an F, without a size, is for vectors of `in_channels` features.

    | norm | a hidden layer is |
    |---|---|
    | "normprop", "normprop-exact", "normprop-measured" | a NormPropConv2d or MeasuredConv2d |
    | "batch", "layer", "rms", "group", "instance", "dyt", "derf" | conv., normaliser, activation |
    | "layer-after" | convolution, activation, LayerNorm |
    | "weight", "ws" | convolution with WeightNorm or ScaledWS, activation |
    | "none" | convolution, activation |
    | "selu" | the same, with SELU whatever `activation` says |

    `init` is "glorot" (the default for NormProp, "batch" and "none"), "he" (for all others),
    "lecun", "orthogonal" or "fixup", which are functions of `tp.nn.init`. He's and orthogonal rows
    have the gain of the activation that their input has gone through: for SELU, He's are LeCun's.

    A residual block R(C(...)-C(...)) adds to its input: h + alpha branch(h / beta), see `Residual`.
    In the branch and around it, normaliser and activation come before the convolution that needs
    them instead of after the previous one (He et al., 2016). Where the branch changes the number of
    channels or the size, there is a 1x1 convolution, or a linear layer, on the other path. That
    beta is 1; only for normalisers with `unit_input`, NormProp and "ws", it is the standard
    deviation of h that follows from the blocks before.

    >>> net = tp.nn.build("C(8,3,1,1)-P(2,2,0,max)-C(10,1,1,0)-P(4,4,0,avg)", classes=5)
    >>> net(tp.tensor([[[[1.0] * 8] * 8] * 3])).shape
    (1, 5)
    >>> net = tp.nn.build("C(8,3,1,1)-P(2,2,0,max)-F(20)-F(5)", size=(8, 8))
    >>> net(tp.ones(1, 3, 8, 8)).shape, tp.nn.build("F(20)-F(5)", 4)(tp.ones(1, 4)).shape
    ((1, 5), (1, 5))
    >>> blocks = "R(C(8,3,1,1)-C(8,3,1,1))-R(C(16,3,2,1))"
    >>> net = tp.nn.build(f"C(8,3,1,1)-{blocks}-C(5,1,1,0)-P(4,4,0,avg)", norm="layer")
    >>> net(tp.ones(1, 3, 8, 8)).shape, [type(layer).__name__ for layer in net[1].branch]
    ((1, 5), ['LayerNorm', 'Activation', 'Conv2d', 'LayerNorm', 'Activation', 'Conv2d'])
    """
    normalizer = as_normalizer(norm)
    if init is None:
        init = normalizer.init
    initial.check_name(init)
    given = {"mode": mode, "gamma": gamma, "beta": beta}
    options = {name: value for name, value in given.items() if value is not None}
    maker = Maker(normalizer, activation, init, options)
    layers = parse(spec)
    builder = Builder(
        maker=maker,
        width=width,
        alpha=alpha,
        logits=last_unit(layers),
        classes=classes,
        channels=in_channels,
        size=size,
        is_flat=size is None and is_dense(layers[0]),
    )
    made = builder.sequence(layers)
    if not builder.is_flat:
        made.append(Flatten())
    network = Sequential(*made)
    if init == "fixup":
        initial.fixup_(network, maker.activation)
    return network


@dataclass
class Builder:
    """Makes layers in order, and keeps track of the signal that arrives at the next one."""

    maker: Maker
    width: float
    alpha: float
    logits: Unit | None  # the layer that gives the logits
    classes: int | None

    channels: int  # of the signal; or features, once it is flat
    size: tuple[int, int] | None  # of its images, if that is known
    is_flat: bool  # whether it is a vector
    variance: float = 1.0  # of the signal, where residual blocks keep track of it
    source: AnyActivation = "identity"  # the activation that the signal has gone through
    # whether normaliser and activation of the last layer or block are still to come
    pending: bool = False

    def sequence(self, layers: Sequence[Layer]) -> list[Module]:
        """The modules of these layers."""
        made: list[Module] = []
        for i, layer in enumerate(layers):
            # a block has activations of its own
            if isinstance(first_unit(layers[i:]), Conv | Dense):
                made += self.activated()
            if is_dense(layer) and not self.is_flat:
                made.append(self.flatten())
            if isinstance(layer, Block):
                made.append(self.residual(layer))
            elif isinstance(layer, Pool):
                pool = MaxPool2d if layer.mode == "max" else AvgPool2d
                made.append(pool(layer.size, layer.stride, layer.padding))
                self.move(layer)
            elif layer is self.logits:
                made.append(self.output(layer))
            else:
                made.append(self.hidden(layer))
        return made

    def output(self, layer: Conv | Dense) -> Module:
        """The layer that gives the logits."""
        made: Module
        if isinstance(layer, Dense):
            made = Linear(self.channels, self.classes or layer.units)
        else:
            filters = self.classes or layer.filters
            made = Conv2d(self.channels, filters, layer.size, layer.stride, layer.padding)
            self.move(layer)
        return initial.fill(made, self.maker.init, self.source)

    def hidden(self, layer: Conv | Dense) -> Module:
        """A layer of scaled width, whose normaliser and activation are to come."""
        window: tuple[int, ...] = ()
        written = layer.units if isinstance(layer, Dense) else layer.filters
        if isinstance(layer, Conv):
            window = (layer.size, layer.stride, layer.padding)
            self.move(layer)
        outputs = max(1, round(written * self.width))
        made = self.maker.weighted(self.channels, outputs, window, self.source)
        self.channels = outputs
        self.pending = True
        return made

    def move(self, layer: Conv | Pool) -> None:
        """Compute the size of the images after this layer, if it is known before."""
        if self.size is not None:
            window = Window.of(layer.size, layer.stride, layer.padding)
            self.size = window.output((1, self.channels, *self.size))

    def flatten(self) -> Module:
        if self.size is None:
            got = "a spec with C(...) or P(...) before F(...), and no size of the images"
            rule = "the number of features after the images are flattened follows from their size"
            raise ValueError(explain(got, rule, "build(..., size=(32, 32))"))
        height, width = self.size
        self.channels *= height * width
        self.is_flat = True
        return Flatten()

    def activated(self) -> list[Module]:
        """What comes between the last layer with weights and the next one."""
        made = self.at_unit_variance()
        if self.pending:
            between = self.maker.activated(self.channels)
            self.source = self.maker.source_after(between)
            made += between
        self.pending = False
        return made

    def at_unit_variance(self) -> list[Module]:
        """A layer that scales the signal to variance 1, if it has another one."""
        if self.variance == 1.0:
            return []
        scale = Scale(self.variance**-0.5)
        self.variance = 1.0
        return [scale]

    def residual(self, block: Block) -> Residual:
        in_channels = self.channels
        in_variance = self.variance
        self.variance = 1.0  # the branch gets h / beta
        layers = self.sequence(block.layers)
        branch = Sequential(*layers, *self.at_unit_variance())
        self.source = "identity"  # the sum goes through no activation
        stride = total_stride(block.layers)
        shortcut = None
        if stride > 1 or self.channels != in_channels:
            # size, stride, padding
            window = () if self.is_flat else (1, stride, 0)
            shortcut = self.maker.weighted(
                in_channels, self.channels, window, self.source, activation="identity"
            )
        residual = Residual(branch, self.alpha, in_variance**0.5, shortcut)
        self.variance = residual.variance if self.maker.normalizer.unit_input else 1.0
        self.pending = True
        return residual
