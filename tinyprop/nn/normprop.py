"""Layers that normalise by the closed forms of Normalization Propagation."""

from functools import lru_cache
from typing import Any

from .. import functional as F
from .. import moments
from ..engine.errors import explain
from ..engine.overrides import overridable
from ..engine.tensor import Tensor
from ..functional.activations import PReLU
from ..functional.windows import pair
from .layers import ACTIVATIONS, Size, check_activation, glorot, parameter
from .module import Module

RECTIFIERS = ("relu", "prelu", "leaky_relu", "elu", "gelu", "silu", "softplus")
MIN_RELATIVE_C1 = 0.1
PRELU_START = 0.25  # the slope that a PReLU starts with, as in He et al. (2015)


@overridable
def equation(x: Tensor, layer: "NormProp", c1: Any, c2: Any) -> Tensor:
    """Section 4.3 of the paper: (1/c1) [s(gamma w.x / |w| + beta) - c2]."""
    u = layer.weighted_sum(x, F.weight_norm(layer.weight, layer.gamma)) + layer.per_unit(layer.beta)
    return (layer.activate(u) - layer.per_unit(c2)) / layer.per_unit(c1)


def standard_moments(activation: Any) -> moments.Moments:
    """Of this activation of N(0, 1): a name, with the slope that a PReLU starts with, or a function
    of tensors."""
    if callable(activation):
        return moments.gaussian(lambda u: activation(Tensor(u)), kinks=(0.0,))
    return _moments_by_name(activation)


@lru_cache
def _moments_by_name(activation: str) -> moments.Moments:
    check_activation(activation)
    return moments.gaussian(activation, **({"a": PRELU_START} if activation == "prelu" else {}))


class NormProp(Module):
    """What the two NormProp layers share: `equation`, its parameters, and its constants c1 and c2.

    `mode="paper"` takes c1 and c2 from N(0, 1), so the output is normalised at gamma = 1, beta = 0
    only. There gamma starts at "jacobian", one over the Jacobian factor of the activation (1/1.2112
    for ReLU), and beta at 0.

    `mode="exact"` takes them from N(beta, gamma^2), so the output stays normalised whatever is
    learnt. There gamma starts at 1, and beta at 1 for a rectifier, where a deep network keeps its
    scale forwards and nearly backwards. As beta / gamma falls, c1 tends to 0, and 1/c1 would
    amplify the few samples left without bound. So c1 is at least MIN_RELATIVE_C1 times its value at
    beta = 0: below that the mean stays 0, the variance falls, the unit fades out."""

    def __init__(self, weight: Tensor, activation: str, gamma: Any, mode: str):
        if mode not in ("paper", "exact"):
            raise ValueError(explain(f"mode={mode!r}", "it is 'paper' or 'exact'", "mode='paper'"))
        self.activation, self.mode, self.standard = activation, mode, standard_moments(activation)
        self.weight, units = weight, weight.shape[0]
        if isinstance(gamma, str):
            if gamma != "jacobian":
                raise ValueError(
                    explain(
                        f"gamma={gamma!r}", "it is 'jacobian', a number or an array", "gamma=1.0"
                    )
                )
            gamma = 1.0 if mode == "exact" else 1.0 / self.standard.jacobian_factor
        self.gamma = parameter(gamma, units)
        self.beta = parameter(1.0 if mode == "exact" and activation in RECTIFIERS else 0.0, units)
        if activation == "prelu":
            self.a = parameter(PRELU_START, units)

    def forward(self, x: Tensor) -> Tensor:
        return equation(x, self, *self.constants())

    def constants(self) -> tuple[Any, Any]:
        """c1 and c2: numbers, or tensors with one value per unit, differentiable with respect to
        the parameters."""
        params = {"a": self.a} if self.activation == "prelu" else {}
        if self.mode == "paper":
            m = moments.gaussian(self.activation, **params) if params else self.standard
            return m.std, m.mean
        std = abs(self.gamma)
        m = moments.gaussian(self.activation, self.beta, std, **params)
        least = MIN_RELATIVE_C1 * moments.gaussian(self.activation, 0.0, std, **params).std
        return F.maximum(m.std, least), m.mean

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """The linear map of the layer, with these weights instead of its own."""
        raise NotImplementedError

    def activate(self, u: Tensor) -> Tensor:
        return (
            PReLU()(u, self.per_unit(self.a))
            if self.activation == "prelu"
            else ACTIVATIONS[self.activation](u)
        )

    def per_unit(self, t: Any) -> Any:
        """One value per unit, shaped to broadcast against the output; a number stays a number."""
        # (O,) -> (O, 1, 1)
        return t.reshape(-1, *[1] * (self.weight.ndim - 2)) if isinstance(t, Tensor) else t


class NormPropLinear(NormProp):
    """A fully connected layer whose output is normalised if its input is.

    >>> layer = tp.nn.NormPropLinear(3, 2)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'gamma', 'beta']
    """

    shown = "in_features out_features activation= mode="

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: str = "relu",
        gamma: Any = "jacobian",
        mode: str = "paper",
    ):
        super().__init__(glorot(out_features, in_features), activation, gamma, mode)
        self.in_features, self.out_features = in_features, out_features

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


class NormPropConv2d(NormProp):
    """A convolutional layer whose output is normalised if its input is.

    >>> tp.nn.NormPropConv2d(3, 8, 5, padding=2)(tp.tensor([[[[1.0] * 4] * 4] * 3])).shape
    (1, 8, 4, 4)
    """

    shown = "in_channels out_channels kernel_size stride= padding= activation= mode="

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        activation: str = "relu",
        gamma: Any = "jacobian",
        mode: str = "paper",
    ):
        weight = glorot(out_channels, in_channels, *pair(kernel_size, "kernel_size", 1))
        super().__init__(weight, activation, gamma, mode)
        self.in_channels, self.out_channels, self.kernel_size = (
            in_channels,
            out_channels,
            kernel_size,
        )
        self.stride, self.padding = stride, padding

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, self.stride, self.padding)
