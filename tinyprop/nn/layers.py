"""Plain layers: linear, convolution, pooling, activations, dropout."""

import math
from collections.abc import Callable
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module, default_backend, float32, host_array, to_backend
from ..engine.errors import ShapeError, explain
from ..engine.random import generator
from ..engine.tensor import Tensor
from ..functional.windows import pair
from .module import Module

Size = int | tuple[int, int]


def parameter(values: Any, *shape: int) -> Tensor:
    """A trainable float32 tensor of this shape, filled with a number or with an array of this
    shape."""
    host = host_array(values, float32)
    if host.shape not in ((), shape):
        got = f"initial values of shape {host.shape}"
        rule = f"a number, or an array of shape {shape}"
        raise ShapeError(got, rule, "one value per unit")
    filled = array_module(host).broadcast_to(host, shape).copy()
    return Tensor(to_backend(filled, default_backend()), requires_grad=True)


def glorot(*shape: int) -> Tensor:
    """Uniform weights of shape (outputs, inputs, ...), as in Glorot and Bengio (2010): the paper's
    section 4.2."""
    outputs, inputs, *filter_size = shape
    fan_in_and_fan_out = (outputs + inputs) * math.prod(filter_size)
    bound = math.sqrt(6.0 / fan_in_and_fan_out)
    return parameter(generator().uniform(-bound, bound, shape), *shape)


class Linear(Module):
    """x (..., in_features) to (..., out_features): x @ weight.T + bias.

    >>> tp.nn.Linear(3, 2)(tp.tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        self.in_features = in_features
        self.out_features = out_features
        self.weight = glorot(out_features, in_features)
        self.bias = parameter(0.0, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.weighted_sum(x, self.weight)

    def pre_activation(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """What the layer computes, with these weights instead of its own."""
        return F.linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_features}, {self.out_features}"
        if self.bias is None:
            text += ", bias=False"
        return text


class Conv2d(Module):
    """Images x (N, in_channels, H, W) convolved with filters: see `tp.functional.conv2d`.

    >>> tp.nn.Conv2d(3, 8, kernel_size=5, padding=2)(tp.tensor([[[[1.0] * 6] * 6] * 3])).shape
    (1, 8, 6, 6)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        bias: bool = True,
        dilation: Size = 1,
        groups: int = 1,
    ):
        if groups < 1 or in_channels % groups != 0 or out_channels % groups != 0:
            got = f"Conv2d({in_channels}, {out_channels}, groups={groups})"
            rule = "groups divides the channels of input and output"
            raise ValueError(explain(got, rule, "groups=1"))
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        height, width = pair(kernel_size, "kernel_size", 1)
        self.weight = glorot(out_channels, in_channels // groups, height, width)
        self.bias = parameter(0.0, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.weighted_sum(x, self.weight)

    def pre_activation(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """What the layer computes, with these weights instead of its own."""
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, {self.kernel_size}"
        text += f", stride={self.stride}, padding={self.padding}"
        if self.dilation != 1:
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text


class MaxPool2d(Module):
    """The largest element of each window.

    >>> tp.nn.MaxPool2d(2)(tp.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
    4.0
    """

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0):
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        return _window_repr(self)


class AvgPool2d(Module):
    """The mean of each window.

    >>> tp.nn.AvgPool2d(2)(tp.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
    2.5
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        count_include_pad: bool = True,
    ):
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, count_include_pad=self.count_include_pad
        )

    def extra_repr(self) -> str:
        text = _window_repr(self)
        if not self.count_include_pad:
            text += ", count_include_pad=False"
        return text


def _window_repr(layer: MaxPool2d | AvgPool2d) -> str:
    """The window of a pooling layer, without what has its default."""
    text = str(layer.kernel_size)
    if layer.stride is not None:
        text += f", stride={layer.stride}"
    if layer.padding != 0:
        text += f", padding={layer.padding}"
    return text


class Flatten(Module):
    """(N, ...) to (N, everything else).

    >>> tp.nn.Flatten()(tp.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[1., 2., 3., 4.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, start_axis=1)


class Dropout(Module):
    """When training, set each element to 0 with probability p, and scale the others by 1 / (1 - p).

    >>> tp.nn.Dropout(0.5).eval()(tp.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """

    draws_for_batch = True

    def __init__(self, p: float = 0.5):
        if not 0 <= p < 1:
            rule = "p is the probability that an element is dropped: at least 0 and less than 1"
            raise ValueError(explain(f"Dropout(p={p})", rule, "Dropout(0.5)"))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return str(self.p)


ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "prelu": F.prelu,
    "leaky_relu": F.leaky_relu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardtanh": F.hardtanh,
    "sin": F.sin,
    "erf": F.erf,
    "abs": F.abs,
    "identity": lambda x: x,
}


class Activation(Module):
    """A function of each element, by its name in `tp.functional`. Most have a class of their own,
    as nn.ReLU.

    >>> tp.nn.Sequential(tp.nn.Activation("sin"), tp.nn.ELU(alpha=0.5))(tp.tensor([0.0]))
    tensor([0.])
    """

    def __init__(self, name: str, **params: float):
        check_activation(name)
        self.function = name
        self.params = params

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.function](x, **self.params)

    def propagate(self, state: Any) -> Any:
        return state.apply(self.function, **self.params)

    def extra_repr(self) -> str:
        parts = [f"{key}={value}" for key, value in self.params.items()]
        if type(self) is Activation:  # the others are called as their function
            parts.insert(0, repr(self.function))
        return ", ".join(parts)


def check_activation(name: str) -> None:
    """Refuse a name that is not in the table of activations."""
    if name not in ACTIVATIONS:
        rule = f"it is one of {', '.join(ACTIVATIONS)}"
        raise ValueError(explain(f"activation {name!r}", rule, "'relu'"))


class Fixed(Activation):
    """An activation without parameters. Its function has the name of its class, or of the class it
    is derived from, in lower case."""

    def __init__(self) -> None:
        for kind in type(self).__mro__:
            name = kind.__name__.lower()
            if name in ACTIVATIONS:
                break
        super().__init__(name)


class ReLU(Fixed):
    """max(x, 0)."""


class Tanh(Fixed):
    """The hyperbolic tangent."""


class Sigmoid(Fixed):
    """1 / (1 + exp(-x))."""


class Softplus(Fixed):
    """log(1 + exp(x)), a smooth ReLU."""


class SELU(Fixed):
    """ELU, scaled so that its output has mean 0 and variance 1 for N(0, 1) input."""


class GELU(Fixed):
    """x Phi(x), with Phi the distribution function of N(0, 1)."""


class SiLU(Fixed):
    """x sigmoid(x)."""


class Hardtanh(Fixed):
    """x limited to the interval from -1 to 1."""


class Identity(Fixed):
    """x itself."""


class LeakyReLU(Activation):
    """x where positive, a x elsewhere, with a fixed slope a."""

    def __init__(self, a: float = 0.01):
        super().__init__("leaky_relu", a=a)


class ELU(Activation):
    """x where positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0):
        super().__init__("elu", alpha=alpha)


class PReLU(Module):
    """x where positive, a x elsewhere, with learnable slopes: one for all channels, or one per
    channel.

    >>> tp.nn.PReLU()(tp.tensor([-1.0, 2.0]))
    tensor([-0.25,  2.  ], requires_grad=True)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = num_parameters
        self.a = parameter(init, num_parameters)

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.a)

    def extra_repr(self) -> str:
        return str(self.num_parameters)
