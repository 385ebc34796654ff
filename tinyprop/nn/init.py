"""Initial weights. Each function draws the weights of a tensor (outputs, inputs, ...), or of every
Linear, Conv2d and NormProp layer in a module, in place, and returns what it was given; the names
are PyTorch's where it has one."""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .. import functional as F
from ..engine.arrays import HostArray, array_module, from_host
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.guard import check_editable
from ..engine.random import generator
from ..engine.tensor import Tensor
from ..functional.activation import AnyActivation
from .layers import Conv2d, Linear
from .module import Module, observing, visiting
from .normprop import NormProp, standard_moments
from .residual import Residual
from .weights import WeightNorm

Target = TypeVar("Target", Tensor, Module)

# by the names that `tp.nn.build` and a Normalizer know; all but the last fill one layer
INITS = ("glorot", "he", "lecun", "orthogonal", "fixup")


def check_name(init: str) -> None:
    """Refuse a name that is not one of INITS."""
    if init not in INITS:
        rule = f"it is one of {', '.join(INITS)}"
        raise ValueError(explain(f"init={init!r}", rule, f"init={INITS[0]!r}"))


def fill(layer: Target, init: str, source: Any) -> Target:
    """New weights for a layer whose input has gone through the activation `source`. It keeps those
    it has for "glorot", which are made so, and for "fixup", which needs the whole network.

    >>> row_square = (fill(tp.nn.Linear(400, 100), "he", "relu").weight ** 2).sum(axis=1).mean()
    >>> 1.9 < row_square.item() < 2.1
    True
    """
    check_name(init)
    if init == "he":
        return kaiming_normal_(layer, source)
    if init == "lecun":
        return kaiming_normal_(layer, "identity")
    if init == "orthogonal":
        return orthogonal_(layer, gain(source))
    return layer


def row_square(init: str, source: Any, shape: tuple[int, ...]) -> float:
    """The mean squared length of the rows of weights (outputs, inputs, ...) that `fill` draws.

    >>> round(row_square("he", "relu", (3, 4)), 6), round(row_square("glorot", "relu", (3, 4)), 6)
    (2.0, 1.142857)
    """
    outputs = shape[0]
    inputs = math.prod(shape[1:])
    if init == "he":
        return gain(source) ** 2
    if init == "orthogonal":
        return gain(source) ** 2 * min(1.0, inputs / outputs)
    return 1.0 if init == "lecun" else 2.0 * inputs / (inputs + outputs)


def weights(target: Tensor | Module) -> Iterator[Tensor]:
    """The tensor itself, or the weights of the layers in a module, in order."""
    if isinstance(target, Tensor):
        yield target
        return
    for module in target.modules():
        if isinstance(module, (Linear, Conv2d, NormProp)):
            yield module.weight


def _fill(target: Target, values: Callable[[tuple[int, ...], int], HostArray]) -> Target:
    """Set each weight to the values for its shape and its number of inputs."""
    for weight in weights(target):
        if weight.ndim < 2:
            got = f"initial values for {weight.shape}"
            raise ShapeError(got, "a weight is (outputs, inputs, ...)", "a matrix")
        check_editable(weight, "the weight")
        inputs = math.prod(weight.shape[1:])
        drawn = values(weight.shape, inputs)
        weight._data[...] = from_host(drawn, weight._data)
    return target


def gain(activation: AnyActivation | Module) -> float:
    """1/sqrt(E s(Z)^2), Z ~ N(0, 1), for an activation s: a name, a `tp.Activation`, a function of
    tensors, or a layer. After this activation, rows of this length keep
    pre-activations at a mean square of 1. (PyTorch has other numbers for tanh and SELU.)

    >>> round(tp.nn.init.gain("relu") ** 2, 12), round(tp.nn.init.gain("selu"), 12)
    (2.0, 1.0)
    """
    m = standard_moments(activation)
    mean_square = m.std**2 + m.mean**2
    return float(1.0 / math.sqrt(mean_square))


def kaiming_normal_(target: Target, nonlinearity: AnyActivation | Module = "relu") -> Target:
    """Gaussian, with a standard deviation of gain(nonlinearity) / sqrt(inputs): He et al. (2015),
    for any activation. For "identity" it is LeCun's (1998), and for "selu" too, which needs it
    (Klambauer et al., 2017).

    >>> tp.nn.init.kaiming_normal_(tp.nn.Linear(200, 100)).weight.std().item() < 0.11
    True
    """
    length = gain(nonlinearity)

    def values(shape: tuple[int, ...], inputs: int) -> HostArray:
        return generator().normal(0.0, length / math.sqrt(inputs), shape)

    return _fill(target, values)


def orthogonal_(target: Target, gain: float = 1.0) -> Target:
    """Orthogonal rows of length `gain`, or orthogonal columns if these are fewer, uniformly
    distributed: Saxe et al. (2014). The inputs of a filter count as one axis.

    >>> w = tp.nn.init.orthogonal_(tp.zeros(2, 3), gain=2.0)
    >>> format((w @ w.T).sum(), ".3f")
    '8.000'
    """

    def values(shape: tuple[int, ...], inputs: int) -> HostArray:
        outputs = shape[0]
        tall = (max(outputs, inputs), min(outputs, inputs))
        normal = generator().normal(size=tall)
        xp = array_module(normal)
        q, r = xp.linalg.qr(normal)
        q = q * xp.sign(xp.diag(r))  # otherwise the signs are those of the algorithm
        matrix = q if outputs >= inputs else q.T
        return gain * matrix.reshape(shape)  # (outputs, inputs) -> (outputs, channels, H, W)

    return _fill(target, values)


def data_dependent_(net: Module, x: Tensor) -> Module:
    """Initialise each `WeightNorm` on its own input when the network runs on this batch: Salimans
    and Kingma (2016), section 3.

    >>> net = tp.nn.Sequential(*(tp.nn.WeightNorm(tp.nn.Linear(4, 4)) for _ in range(3)))
    >>> out = tp.nn.init.data_dependent_(net, tp.randn(50, 4))(tp.randn(50, 4))
    """

    def initialize(layer: Any, *args: Any, **kwargs: Any) -> None:
        layer.initialize(*args, **kwargs)

    return _fit_layers_in_order(net, x, (WeightNorm,), initialize)


def lsuv_(net: Module, x: Tensor) -> Module:
    """Orthogonal weights, each layer's scaled so that its output has variance 1 on this batch:
    layer-sequential unit-variance initialisation, Mishkin and Matas (2016). Biases become 0, so
    that one step is enough. WeightNorm, ScaledWS and NormProp have scales of their own, and stay as
    they are.

    >>> layers = tp.nn.Linear(4, 4), tp.nn.ReLU(), tp.nn.Linear(4, 4)
    >>> net = tp.nn.init.lsuv_(tp.nn.Sequential(*layers), tp.randn(9, 4))
    """

    def unit_variance(layer: Any, *args: Any, **kwargs: Any) -> None:
        orthogonal_(layer)
        if layer.bias is not None:
            layer.bias._data[...] = 0.0
        std = F.std(layer(*args, **kwargs))
        if not std.item() > 0:
            got = f"lsuv_ with a batch that is constant after a {type(layer).__name__}"
            hint = "a larger batch, of different samples"
            raise ValueError(explain(got, "its variance cannot become 1", hint))
        layer.weight._data[...] /= std._data

    return _fit_layers_in_order(net, x, (Linear, Conv2d), unit_variance)


def _fit_layers_in_order(
    net: Module, x: Tensor, kinds: tuple[type, ...], fit: Callable[..., None]
) -> Module:
    """Run the network on a batch, and call fit(layer, *its arguments) for each layer of these kinds
    before its turn."""
    fitted: list[Module] = []

    def visit(layer: Module, *args: Any, **kwargs: Any) -> None:
        # a layer that is used twice is fitted to its first input
        if isinstance(layer, kinds) and layer not in fitted:
            fitted.append(layer)
            fit(layer, *args, **kwargs)

    with no_grad(), observing(), visiting(visit):
        net(x)
    if not fitted:
        names = " or ".join(kind.__name__ for kind in kinds)
        got = f"a {type(net).__name__} that calls no {names}"
        rule = "this fits such layers to their inputs"
        raise ValueError(explain(got, rule, "tp.nn.init.orthogonal_(net)"))
    return net


def fixup_(net: Module, nonlinearity: AnyActivation = "relu") -> Module:
    """He et al.'s weights, but 0 in the last layer of each residual branch, so that every block
    starts as the identity, and in the last layer of the network; the m - 1 other layers of a branch
    are scaled by blocks^(-1 / (2 m - 2)): steps 1 and 2 of Fixup, Zhang et al. (2019).

    >>> branch = tp.nn.Sequential(tp.nn.Linear(4, 4), tp.nn.ReLU(), tp.nn.Linear(4, 4))
    >>> net = tp.nn.init.fixup_(tp.nn.Sequential(tp.nn.Residual(branch), tp.nn.Linear(4, 2)))
    >>> float(net[0](tp.ones(1, 4)).sum().item()), net[1](tp.ones(1, 4))
    (4.0, tensor([[0., 0.]], requires_grad=True))
    """
    for module in net.modules():
        if isinstance(module, (WeightNorm, NormProp)):
            got = f"fixup_ of a {type(module).__name__}"
            rule = "a row of weights that is 0 cannot be normalised"
            hint = "a network of Linear and Conv2d layers, norm='none'"
            raise ValueError(explain(got, rule, hint))
    kaiming_normal_(net, nonlinearity)
    branches = []  # the weights of each residual branch that has any
    for module in net.modules():
        if isinstance(module, Residual):
            branch = list(weights(module.branch))
            if branch:
                branches.append(branch)
    for *others, last in branches:
        for weight in others:
            weight._data[...] *= len(branches) ** (-1.0 / (2 * len(others)))
        last._data[...] = 0.0
    *_, last = weights(net)
    last._data[...] = 0.0
    return net
