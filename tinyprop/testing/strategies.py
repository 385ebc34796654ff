"""Hypothesis strategies: shapes, tensors, activations, layers, specs and networks.

    from hypothesis import given
    from tinyprop.testing import check_layer, strategies

    @given(strategies.layers())
    def test_layers(drawn):
        check_layer(*drawn)

They draw from what is registered, so your activations and normalisers are among them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import nn
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.random import seeded
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..functional.activation import activations as table_of_activations
from ..nn.module import observing
from .points import points

try:
    import hypothesis.strategies as st
    from hypothesis import reject
    from hypothesis.extra import numpy as of_arrays
except ImportError as error:
    got = "tinyprop.testing.strategies without the package hypothesis"
    rule = "strategies are hypothesis's; all other checks work without it"
    raise ImportError(explain(got, rule, "pip install 'tinyprop[testing]'")) from error

Draw = Callable[[Any], Any]
Shape = tuple[int, ...]

__all__ = ["activations", "layers", "networks", "rngs", "shapes", "specs", "tensors"]

SAMPLES = 3
SIDE = 8  # of images that a spec is for
CHANNELS = 3


def rngs() -> st.SearchStrategy["np.random.Generator"]:
    """Random generators of NumPy, for numbers that need not shrink."""
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


def shapes(least: int = 0, most: int = 3, side: int = 3) -> st.SearchStrategy[Shape]:
    """Shapes of `least` to `most` axes, each of 1 to `side` elements."""
    return of_arrays.array_shapes(min_dims=least, max_dims=most, max_side=side)


@st.composite
def tensors(
    draw: Draw,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    low: float = -3.0,
    high: float = 3.0,
    kinks: Iterable[float] = (),
    gap: float = 0.05,
    dtype: Any = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Tensors of a shape, or of one that a strategy draws. Their values are from low to high, all
    different, and none is nearer than `gap` to one of the kinks: so gradients can be checked."""
    drawn = draw(shapes() if shape is None else shape) if not isinstance(shape, tuple) else shape
    values = points(draw(rngs()), drawn, low, high, kinks, gap)
    return Tensor(values.astype(dtype), requires_grad=requires_grad)


def activations() -> st.SearchStrategy[Activation]:
    """The entries of `tp.activations`."""
    return st.sampled_from(list(table_of_activations.values()))


# -- layers

# A maker draws a layer, and the shape of one sample for it.
Maker = Callable[[Draw], tuple[nn.Module, Shape]]


def _vectors(make: Callable[[int], nn.Module]) -> Maker:
    """A layer that is made for a number of features."""

    def maker(draw: Draw) -> tuple[nn.Module, Shape]:
        features = draw(st.integers(2, 5))
        return make(features), (features,)

    return maker


def _images(make: Callable[[int], nn.Module]) -> Maker:
    """A layer that is made for a number of channels."""

    def maker(draw: Draw) -> tuple[nn.Module, Shape]:
        channels = draw(st.integers(1, 3))
        return make(channels), (channels, 4, 5)

    return maker


def _linear(draw: Draw) -> tuple[nn.Module, Shape]:
    features = draw(st.integers(1, 5))
    layer = nn.Linear(features, draw(st.integers(1, 4)), bias=draw(st.booleans()))
    return layer, (*draw(shapes(0, 1)), features)


def _convolution(draw: Draw) -> tuple[nn.Module, Shape]:
    groups = draw(st.integers(1, 2))
    channels = groups * draw(st.integers(1, 2))
    window = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 2))
    layer = nn.Conv2d(channels, 2 * groups, *window, groups=groups, bias=draw(st.booleans()))
    return layer, (channels, 4, 5)


def _normprop(draw: Draw) -> tuple[nn.Module, Shape]:
    mode = draw(st.sampled_from(["paper", "exact"]))
    activation = draw(activations())
    if draw(st.booleans()):
        return nn.NormPropLinear(4, 3, activation=activation, mode=mode), (4,)
    return nn.NormPropConv2d(2, 2, 2, activation=activation, mode=mode), (2, 3, 3)


def _activation(draw: Draw) -> tuple[nn.Module, Shape]:
    channels = draw(st.integers(1, 3))
    return nn.Activation(draw(activations()), num_parameters=channels), (channels, 4)


LAYERS: dict[str, Maker] = {
    "Linear": _linear,
    "Conv2d": _convolution,
    "NormProp": _normprop,
    "Activation": _activation,
    "MaxPool2d": _images(lambda channels: nn.MaxPool2d(3, 2, 1)),
    "AvgPool2d": _images(lambda channels: nn.AvgPool2d(3, 2, 1)),
    "GlobalAvgPool2d": _images(lambda channels: nn.GlobalAvgPool2d()),
    "Flatten": _images(lambda channels: nn.Flatten()),
    "Dropout": _vectors(lambda features: nn.Dropout(0.3)),
    "BatchNorm": _images(nn.BatchNorm),
    "LayerNorm": _vectors(nn.LayerNorm),
    "RMSNorm": _vectors(nn.RMSNorm),
    "GroupNorm": _images(lambda channels: nn.GroupNorm(1, channels)),
    "DyT": _images(nn.DyT),
    "Derf": _vectors(nn.Derf),
    "WeightNorm": _vectors(lambda features: nn.WeightNorm(nn.Linear(features, 3))),
    "ScaledWS": _vectors(lambda features: nn.ScaledWS(nn.Linear(features, 3))),
    "MeasuredLinear": _vectors(lambda features: nn.MeasuredLinear(features, 3)),
    "Residual": _vectors(lambda features: nn.Residual(nn.Linear(features, features))),
    "Scale": _vectors(lambda features: nn.Scale(0.5)),
}


@st.composite
def layers(draw: Draw, kinds: Iterable[str] = tuple(LAYERS)) -> tuple[nn.Module, Tensor]:
    """A layer of `tp.nn` and a batch of three samples for it: layer(x) works. Its parameters are
    random, and not where they start."""
    kind = draw(st.sampled_from(list(kinds)))
    random = draw(rngs())
    with seeded(int(random.integers(2**32))):
        layer, shape = LAYERS[kind](draw)
    _move(layer, random)
    return layer, _batch(random, (SAMPLES, *shape))


def _move(layer: nn.Module, random: "np.random.Generator") -> None:
    for p in layer.parameters():
        p.data[...] += random.uniform(-0.3, 0.3, p.shape).astype(p.dtype)


def _batch(random: "np.random.Generator", shape: Shape) -> Tensor:
    return Tensor(points(random, shape, kinks=(0.0,)).astype("float32"))


# -- networks


@st.composite
def specs(draw: Draw, dense: bool = True, residual: bool = True) -> str:
    """Networks in the shorthand of `tp.nn.build`, for images of 8x8 pixels and four classes; with
    fully connected layers in the end, and residual blocks, if these are allowed."""
    parts = []
    side = SIDE
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from("CPR" if residual else "CP"))
        stride = draw(st.integers(1, 2)) if side > 2 else 1
        if kind == "P":
            mode = draw(st.sampled_from(["max", "avg"]))
            parts.append(f"P(3,{stride},1,{mode})")
        else:
            filters, size = draw(st.integers(2, 4)), draw(st.sampled_from([1, 3]))
            conv = f"C({filters},{size},{stride},{size // 2})"
            parts.append(f"R({conv})" if kind == "R" else conv)
        side = -(-side // stride)  # rounded up
    if dense and draw(st.booleans()):
        parts.append(f"F({draw(st.integers(2, 5))})-F(4)")
    else:
        parts.append(f"C(4,1,1,0)-P({side},{side},0,avg)")
    return "-".join(parts)


@st.composite
def networks(
    draw: Draw,
    norms: Iterable[Any] | None = None,
    dense: bool = True,
    residual: bool = True,
) -> tuple[nn.Module, Tensor]:
    """A network that `tp.nn.build` makes, with one of these normalisers or of all that are
    registered, and a batch of three images for it. `dense` and `residual` are those of `specs`."""
    norm = draw(st.sampled_from(list(nn.normalizers if norms is None else norms)))
    spec = draw(specs(dense, residual))
    activation = draw(activations())
    random = draw(rngs())
    with seeded(int(random.integers(2**32))):
        net = nn.build(spec, CHANNELS, norm=norm, activation=activation, size=(SIDE, SIDE))
    images = _batch(random, (SAMPLES, CHANNELS, SIDE, SIDE))
    try:
        with no_grad(), observing():
            net(images)
    except ShapeError:  # not every normaliser takes vectors, or images of one place
        reject()
    return net, images
