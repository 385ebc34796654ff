"""Plain layers: linear, convolution, pooling, activations, dropout."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module, default_backend, float32, from_host, generator, host_array, to_backend
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from .module import Module

Size = int | tuple[int, int]


def parameter(values: Any, *shape: int) -> Tensor:
    """A trainable float32 tensor of a shape, filled with a number or with an array of that shape."""
    host = host_array(values, float32)
    if host.shape not in ((), shape):
        raise ShapeError(f"initial values of shape {host.shape}", f"a number, or shape {shape}", "one value per unit")
    spread = array_module(host).broadcast_to(host, shape).copy()
    return Tensor(to_backend(spread, default_backend()), requires_grad=True)


def glorot(*shape: int) -> Tensor:
    """Weights of shape (outputs, inputs, ...), uniform as in Glorot and Bengio (2010): the paper's section 4.2."""
    bound = math.sqrt(6.0 / ((shape[0] + shape[1]) * math.prod(shape[2:])))
    return parameter(generator().uniform(-bound, bound, shape), *shape)


def kernel_shape(out_channels: int, in_channels: int, kernel_size: Size) -> tuple[int, ...]:
    return (out_channels, in_channels, *(kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)))


class Linear(Module):
    """x (..., in_features) to (..., out_features): x @ weight.T + bias.

    >>> tp.nn.Linear(3, 2)(tp.tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        self.weight = glorot(out_features, in_features)
        self.bias = parameter(0.0, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Conv2d(Module):
    """x (N, in_channels, H, W) convolved with kernels: see `tp.functional.conv2d`.

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
    ):
        self.stride, self.padding = stride, padding
        self.weight = glorot(*kernel_shape(out_channels, in_channels, kernel_size))
        self.bias = parameter(0.0, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class MaxPool2d(Module):
    """The largest element of each window.

    >>> tp.nn.MaxPool2d(2)(tp.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
    4.0
    """

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0):
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(Module):
    """The mean of each window.

    >>> tp.nn.AvgPool2d(2)(tp.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).item()
    2.5
    """

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, count_include_pad: bool = True
    ):
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.count_include_pad)


class Flatten(Module):
    """(N, ...) to (N, everything else).

    >>> tp.nn.Flatten()(tp.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[1., 2., 3., 4.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], math.prod(x.shape[1:]))


class Dropout(Module):
    """When training, each element is 0 with probability p, and the others are scaled by 1 / (1 - p).

    >>> tp.nn.Dropout(0.5).eval()(tp.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """

    whole_batch = True  # the masks come from one generator, in order

    def __init__(self, p: float = 0.5):
        if not 0 <= p < 1:
            raise ValueError(f"Dropout(p={p}): a probability of dropping is at least 0 and less than 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = generator().random(x.shape, float32) >= self.p
        return x * from_host(kept.astype(x.dtype) / (1.0 - self.p), like=x.data)


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
    """A function of each element, by its name in `tp.functional`: nn.ReLU() is Activation("relu").

    >>> tp.nn.Activation("elu", alpha=0.5)(tp.tensor([1.0]))
    tensor([1.])
    """

    def __init__(self, name: str, **params: float):
        if name not in ACTIVATIONS:
            raise ValueError(explain(f"activation {name!r}", f"it is one of {', '.join(ACTIVATIONS)}", "'relu'"))
        self.function, self.params = name, params

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.function](x, **self.params)

    def __repr__(self) -> str:
        return f"Activation({', '.join([repr(self.function), *(f'{k}={v}' for k, v in self.params.items())])})"


ReLU, LeakyReLU, Tanh, Sigmoid, Softplus = (
    partial(Activation, name) for name in ("relu", "leaky_relu", "tanh", "sigmoid", "softplus")
)
ELU, SELU, GELU, SiLU, Hardtanh, Identity = (
    partial(Activation, name) for name in ("elu", "selu", "gelu", "silu", "hardtanh", "identity")
)


class PReLU(Module):
    """x where positive, a x elsewhere, with learnable slopes: one, or one for each channel.

    >>> tp.nn.PReLU()(tp.tensor([-1.0, 2.0]))
    tensor([-0.25,  2.  ], requires_grad=True)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.a = parameter(init, num_parameters)

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.a)
