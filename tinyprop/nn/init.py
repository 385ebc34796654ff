"""Initial weights. Each function draws the weights of a tensor (outputs, inputs, ...), or of every Linear, Conv2d and
NormProp layer in a module, in place, and returns what it was given; the names are PyTorch's where it has one.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from .. import functional as F
from ..engine.arrays import HostArray, from_host
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.guard import check_editable
from ..engine.tensor import Tensor
from ..random import generator
from .layers import Conv2d, Linear, glorot_values
from .module import Module, observing
from .normalization import NormProp, standard_moments
from .residual import Residual
from .weights import WeightNorm

Target = TypeVar("Target", Tensor, Module)


def weights(target: Tensor | Module) -> Iterator[Tensor]:
    """The tensor itself, or the weights of the layers in a module, in order."""
    if isinstance(target, Tensor):
        yield target
    else:
        for module in target.modules():
            if isinstance(module, (Linear, Conv2d, NormProp)):
                yield module.weight


def _fill(target: Target, values: Callable[[tuple[int, ...], int], HostArray]) -> Target:
    """Set each weight to the values for its shape and its number of inputs."""
    for weight in weights(target):
        if weight.ndim < 2:
            raise ShapeError(f"initial values for {weight.shape}", "a weight is (outputs, inputs, ...)", "a matrix")
        check_editable(weight, "the weight")
        weight._data[...] = from_host(values(weight.shape, math.prod(weight.shape[1:])), weight._data)
    return target


def gain(activation: str) -> float:
    """1/sqrt(E s(Z)^2): the length of rows that keeps the mean square of pre-activations, sqrt(2) for ReLU, 1 for SELU.
    (PyTorch's calculate_gain has other numbers for tanh and SELU, 5/3 and 3/4.)

    >>> round(tp.nn.init.gain("relu") ** 2, 12), round(tp.nn.init.gain("selu"), 12)
    (2.0, 1.0)
    """
    m = standard_moments(activation)
    return float(1.0 / math.sqrt(m.std**2 + m.mean**2))


def xavier_uniform_(target: Target, gain: float = 1.0) -> Target:
    """Uniform, of variance 2 gain^2 / (inputs + outputs): Glorot and Bengio (2010), which new layers start with.

    >>> layer = tp.nn.init.xavier_uniform_(tp.nn.Linear(3, 3), gain=2.0)
    >>> bool((layer.weight.abs() <= 2).data.all())
    True
    """
    return _fill(target, lambda shape, inputs: glorot_values(shape, gain))


def kaiming_normal_(target: Target, nonlinearity: str = "relu") -> Target:
    """Gaussian, with a standard deviation of gain(nonlinearity) / sqrt(inputs): He et al. (2015), for any activation.

    >>> tp.nn.init.kaiming_normal_(tp.nn.Linear(200, 100)).weight.std().item() < 0.11
    True
    """
    std = gain(nonlinearity)
    return _fill(target, lambda shape, inputs: generator().normal(0.0, std / math.sqrt(inputs), shape))


def lecun_normal_(target: Target) -> Target:
    """Gaussian, of variance 1 / inputs: LeCun et al. (1998), and what SELU needs (Klambauer et al., 2017).

    >>> tp.nn.init.lecun_normal_(tp.nn.Sequential(tp.nn.Linear(3, 3), tp.nn.SELU()))[1]
    SELU()
    """
    return kaiming_normal_(target, "identity")


def orthogonal_(target: Target, gain: float = 1.0) -> Target:
    """Orthogonal rows of length `gain`, or orthogonal columns if these are fewer, uniformly distributed: Saxe et al.
    (2014). The inputs of a filter count as one axis.

    >>> w = tp.nn.init.orthogonal_(tp.zeros(2, 3), gain=2.0)
    >>> format((w @ w.T).sum(), ".3f")
    '8.000'
    """

    def values(shape: tuple[int, ...], inputs: int) -> HostArray:
        normal = generator().normal(size=(max(shape[0], inputs), min(shape[0], inputs)))
        q, r = np.linalg.qr(normal)
        q = q * np.sign(np.diag(r))  # otherwise the signs are those of the algorithm
        return gain * (q if shape[0] >= inputs else q.T).reshape(shape)

    return _fill(target, values)


def data_dependent_(net: Module, x: Tensor) -> Module:
    """Initialise each `WeightNorm` on what this batch becomes when it arrives there: Salimans and Kingma (2016),
    section 3.

    >>> net = tp.nn.Sequential(*(tp.nn.WeightNorm(tp.nn.Linear(4, 4)) for _ in range(3)))
    >>> out = tp.nn.init.data_dependent_(net, tp.randn(50, 4))(tp.randn(50, 4))
    """
    _as_it_arrives(net, x, WeightNorm, lambda layer, arriving: layer.initialize(arriving))
    return net


def lsuv_(net: Module, x: Tensor) -> Module:
    """Orthogonal weights, each layer's scaled so that its output has variance 1 on this batch: layer-sequential
    unit-variance initialisation, Mishkin and Matas (2016). Biases become 0, so that one step is enough.

    >>> net = tp.nn.init.lsuv_(tp.nn.Sequential(tp.nn.Linear(4, 4), tp.nn.ReLU(), tp.nn.Linear(4, 4)), tp.randn(9, 4))
    """

    def unit_variance(layer: Any, arriving: Tensor) -> None:
        orthogonal_(layer)
        if layer.bias is not None:
            layer.bias._data[...] = 0.0
        std = F.std(type(layer).forward(layer, arriving))
        if not std.item() > 0:
            got = f"lsuv_ with a batch that is constant behind a {type(layer).__name__}"
            raise ValueError(explain(got, "its variance cannot become 1", "a larger batch, of different samples"))
        layer.weight._data[...] /= std._data

    _as_it_arrives(net, x, (Linear, Conv2d), unit_variance)
    return net


def _as_it_arrives(net: Module, x: Tensor, kinds: Any, fit: Callable[[Any, Tensor], Any]) -> None:
    """Run the network on a batch, and call fit(layer, its input) for each layer of these kinds before its turn."""
    layers = [module for module in net.modules() if isinstance(module, kinds)]
    fitted: list[Module] = []

    def watched(layer: Module) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if layer not in fitted:  # a layer that is used twice is fitted to its first input
                fitted.append(layer)
                fit(layer, x)
            return type(layer).forward(layer, x)

        return forward

    try:
        for layer in layers:
            vars(layer)["forward"] = watched(layer)
        with no_grad(), observing():
            net(x)
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
    if not fitted:
        rule = f"it sets layers of type {' or '.join(kind.__name__ for kind in np.atleast_1d(kinds))}"
        raise ValueError(explain(f"a {type(net).__name__} without such layers", rule, "tp.nn.init.orthogonal_(net)"))


def fixup_(net: Module, nonlinearity: str = "relu") -> Module:
    """He et al.'s weights, but 0 in the last layer of each residual branch, so that every block starts as the identity,
    and in the last layer of the network; the m - 1 other layers of a branch are scaled by blocks^(-1 / (2 m - 2)):
    steps 1 and 2 of Fixup, Zhang et al. (2019).

    >>> branch = tp.nn.Sequential(tp.nn.Linear(4, 4), tp.nn.ReLU(), tp.nn.Linear(4, 4))
    >>> net = tp.nn.init.fixup_(tp.nn.Sequential(tp.nn.Residual(branch), tp.nn.Linear(4, 2)))
    >>> float(net[0](tp.ones(1, 4)).sum().item()), net[1](tp.ones(1, 4))
    (4.0, tensor([[0., 0.]], requires_grad=True))
    """
    if free := [module for module in net.modules() if isinstance(module, (WeightNorm, NormProp))]:
        got, rule = f"fixup_ of a {type(free[0]).__name__}", "a row of weights that is 0 cannot be normalised"
        raise ValueError(explain(got, rule, "a network of Linear and Conv2d layers, norm='none'"))
    kaiming_normal_(net, nonlinearity)
    blocks = [module for module in net.modules() if isinstance(module, Residual)]
    for block in blocks:
        *others, last = weights(block.branch)
        for weight in others:
            weight._data[...] *= len(blocks) ** (-1.0 / (2 * len(others)))
        last._data[...] = 0.0
    *_, last = weights(net)
    last._data[...] = 0.0
    return net
