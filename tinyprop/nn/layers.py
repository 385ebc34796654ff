"""Plain layers: linear, convolution, pooling, activations, dropout."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module, default_backend, float32, host_array, to_backend
from ..engine.errors import ShapeError, explain
from ..engine.random import generator
from ..engine.tensor import Tensor
from ..functional.activation import Activation as ActivationRecord
from ..functional.activation import AnyActivation
from ..functional.windows import pair
from .declare import Rows
from .module import Module
from .own import trainable_activation

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

    rows = Rows()

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

    rows = Rows()

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


class GlobalAvgPool2d(Module):
    """The mean of each channel over all positions: (N, C, H, W) to (N, C, 1, 1).

    >>> tp.nn.GlobalAvgPool2d()(tp.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
    2.5
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, x.shape[2:])


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


class Activation(Module):
    """A function of each element: a name of `tp.activations`, a `tp.Activation`, or a function of
    tensors. Most of ours have a class of their own, as nn.ReLU.

    The parameters of an activation are trained, from the values given or else from those of its
    record: one for all elements, or with `num_parameters` one for each channel. Its other options
    stay fixed.

    >>> tp.nn.Sequential(tp.nn.Activation("sin"), tp.nn.ELU(alpha=0.5))(tp.tensor([0.0]))
    tensor([0.])
    >>> tp.nn.Activation(lambda u: u * F.tanh(u))(tp.tensor([1.0]))
    tensor([0.7615942])
    >>> layer = tp.nn.Activation("prelu", num_parameters=3)
    >>> [(name, p.shape) for name, p in layer.named_parameters()]
    [('a', (3,))]
    """

    def __init__(self, activation: AnyActivation, num_parameters: int = 1, **params: Any):
        self.activation = trainable_activation(activation)
        self.activation.check_names(params)
        self.num_parameters = num_parameters
        self.learnable = add_parameters(self, self.activation, num_parameters, params)
        self.params = {key: x for key, x in params.items() if key not in self.learnable}

    def forward(self, x: Tensor) -> Tensor:
        if not self.learnable:
            return self.activation.function(x, **self.params)
        params = {name: _by_channel(p, x) for name, p in self.activation_parameters.items()}
        return self.activation.function(x, **self.params, **params)

    @property
    def activation_parameters(self) -> dict[str, Tensor]:
        """What is learnt, by the names of the activation."""
        return {name: getattr(self, key) for name, key in self.learnable.items()}

    def propagate(self, state: Any) -> Any:
        return state.apply(self.activation, **self.params, **self.activation_parameters)

    def extra_repr(self) -> str:
        parts = [f"{key}={value}" for key, value in self.params.items()]
        if type(self) is Activation:  # the others are called as their function
            parts.insert(0, repr(self.activation.name))
        if self.learnable and self.num_parameters != 1:
            parts.append(f"num_parameters={self.num_parameters}")
        return ", ".join(parts)


def add_parameters(
    layer: Module, activation: ActivationRecord, count: int, starts: Mapping[str, Any]
) -> dict[str, str]:
    """Give a layer the learnable parameters of its activation, `count` of each, and return the
    attribute that each is. It has the parameter's name, unless the layer has such an attribute
    already, as NormProp has a beta."""
    attributes = {}
    for name, start in activation.parameters.items():
        attribute = f"activation_{name}" if hasattr(layer, name) else name
        setattr(layer, attribute, parameter(starts.get(name, start), count))
        attributes[name] = attribute
    return attributes


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value for all elements of x, or one per channel (axis 1), shaped to broadcast."""
    if values.size == 1:
        return values.reshape(())
    positions = max(x.ndim - 2, 0)
    return values.reshape(-1, *[1] * positions)  # (C,) -> (C, 1, 1) for images


class ReLU(Activation):
    """max(x, 0)."""

    def __init__(self) -> None:
        super().__init__("relu")


class Tanh(Activation):
    """The hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__("tanh")


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__("sigmoid")


class Softplus(Activation):
    """log(1 + exp(x)), a smooth ReLU."""

    def __init__(self) -> None:
        super().__init__("softplus")


class SELU(Activation):
    """ELU, scaled so that its output has mean 0 and variance 1 for N(0, 1) input."""

    def __init__(self) -> None:
        super().__init__("selu")


class GELU(Activation):
    """x Phi(x), with Phi the distribution function of N(0, 1)."""

    def __init__(self) -> None:
        super().__init__("gelu")


class SiLU(Activation):
    """x sigmoid(x)."""

    def __init__(self) -> None:
        super().__init__("silu")


class Hardtanh(Activation):
    """x limited to the interval from -1 to 1."""

    def __init__(self) -> None:
        super().__init__("hardtanh")


class Identity(Activation):
    """x itself."""

    def __init__(self) -> None:
        super().__init__("identity")


class LeakyReLU(Activation):
    """x where positive, a x elsewhere, with a fixed slope a."""

    def __init__(self, a: float = 0.01):
        super().__init__("leaky_relu", a=a)


class ELU(Activation):
    """x where positive, alpha (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0):
        super().__init__("elu", alpha=alpha)


class PReLU(Activation):
    """x where positive, a x elsewhere, with learnable slopes: one for all channels, or one per
    channel.

    >>> tp.nn.PReLU()(tp.tensor([-1.0, 2.0]))
    tensor([-0.25,  2.  ], requires_grad=True)
    """

    a: Tensor
    torch_names = MappingProxyType({"weight": "a"})

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        super().__init__("prelu", num_parameters, a=init)

    def extra_repr(self) -> str:
        return str(self.num_parameters)
