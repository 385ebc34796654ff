"""Layers that normalise by the closed forms of Normalization Propagation."""

from typing import Any

from .. import functional as F
from .. import moments
from ..engine.errors import explain
from ..engine.tensor import Tensor
from .layers import ACTIVATIONS, Size, glorot, kernel_shape, parameter
from .module import Module

HOMOGENEOUS = ("relu", "prelu", "leaky_relu", "abs", "identity")  # s(c x) = c s(x) for c > 0: a scale passes through
RECTIFIERS = ("relu", "prelu", "leaky_relu", "elu", "gelu", "silu", "softplus")
LEAST_SPREAD = 0.1
START_OF_A = 0.25  # the slope that a PReLU starts with, as in He et al. (2015)


class NormProp(Module):
    """What the two NormProp layers share: (1/c1) [s(gamma w.x / |w| + beta) - c2], section 4.3 of the paper.

    `mode="paper"` takes c1 and c2 from N(0, 1), so the output is normalised at gamma = 1, beta = 0 only. There gamma
    starts at "jacobian", one over the Jacobian factor of the activation (1/1.2112 for ReLU), and beta at 0.

    `mode="exact"` takes them from N(beta, gamma^2), and the output stays normalised whatever is learnt. There gamma
    starts at 1, and beta at 1 for a rectifier, where a deep network keeps its scale forwards and nearly backwards.
    As beta / gamma falls, a unit is rarely on, c1 tends to 0, and the gain 1/c1 would amplify the few samples left
    without bound. So c1 is never taken smaller than LEAST_SPREAD times its value at beta = 0: beyond that the output
    keeps its mean of 0, its variance falls below 1, and the unit fades instead of taking over.
    """

    def __init__(self, weight: Tensor, activation: str, gamma: Any, mode: str):
        if activation not in ACTIVATIONS:
            rule = f"it is one of {', '.join(ACTIVATIONS)}"
            raise ValueError(explain(f"activation {activation!r}", rule, "activation='relu'"))
        if mode not in ("paper", "exact"):
            raise ValueError(explain(f"mode={mode!r}", "it is 'paper' or 'exact'", "mode='paper'"))
        units = weight.shape[0]
        self.activation, self.mode = activation, mode
        self.standard = moments.gaussian(activation, **({"a": START_OF_A} if activation == "prelu" else {}))  # N(0, 1)
        self.weight = weight
        if isinstance(gamma, str):
            if gamma != "jacobian":
                raise ValueError(explain(f"gamma={gamma!r}", "it is 'jacobian', a number or an array", "gamma=1.0"))
            gamma = 1.0 if mode == "exact" else 1.0 / self.standard.jacobian_factor
        self.gamma = parameter(gamma, units)
        self.beta = parameter(1.0 if mode == "exact" and activation in RECTIFIERS else 0.0, units)
        if activation == "prelu":
            self.a = parameter(START_OF_A, units)

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """The linear map of the layer, with other weights than its own."""
        raise NotImplementedError

    def rectified_sum(self, x: Tensor, weight: Tensor, bias: Tensor, shift: Any) -> Tensor:
        """max(weighted sum + bias, 0) - shift."""
        return F.relu(self.weighted_sum(x, weight) + bias) - shift

    def per_unit(self, t: Any) -> Any:
        """A tensor of one number for each unit, ready to broadcast against the output; numbers as they are."""
        return t.reshape(-1, *[1] * (self.weight.ndim - 2)) if isinstance(t, Tensor) else t  # (O,) -> (O, 1, 1)

    def constants(self) -> tuple[Any, Any]:
        """c1 and c2: numbers, or tensors of one for each unit, differentiable in what is learnt."""
        params = {"a": self.a} if self.activation == "prelu" else {}
        if self.mode == "paper":
            m = moments.gaussian(self.activation, **params) if params else self.standard
            return m.std, m.mean
        spread = abs(self.gamma)
        m = moments.gaussian(self.activation, self.beta, spread, **params)
        least = LEAST_SPREAD * moments.gaussian(self.activation, 0.0, spread, **params).std
        return F.maximum(m.std, least), m.mean

    def forward(self, x: Tensor) -> Tensor:
        c1, c2 = self.constants()
        through = self.activation in HOMOGENEOUS  # then 1/c1 goes into weights and bias, not over every element
        weight = F.weight_norm(self.weight, self.gamma / c1 if through else self.gamma)
        if not through:
            u = self.weighted_sum(x, weight) + self.per_unit(self.beta)
            return (self.activate(u) - self.per_unit(c2)) / self.per_unit(c1)
        bias, shift = self.per_unit(self.beta / c1), self.per_unit(c2 / c1)
        if self.activation == "relu":
            return self.rectified_sum(x, weight, bias, shift)
        return self.activate(self.weighted_sum(x, weight) + bias) - shift

    def activate(self, u: Tensor) -> Tensor:
        s = ACTIVATIONS[self.activation]
        return s(u, self.a) if self.activation == "prelu" else s(u)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, activation={self.activation!r}, mode={self.mode!r})"


class NormPropLinear(NormProp):
    """A fully connected layer whose output is normalised if its input is.

    >>> layer = tp.nn.NormPropLinear(3, 2)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'gamma', 'beta']
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: str = "relu",
        gamma: Any = "jacobian",
        mode: str = "paper",
    ):
        super().__init__(glorot(out_features, in_features), activation, gamma, mode)

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


class NormPropConv2d(NormProp):
    """A convolutional layer whose output is normalised if its input is.

    >>> tp.nn.NormPropConv2d(3, 8, 5, padding=2)(tp.tensor([[[[1.0] * 4] * 4] * 3])).shape
    (1, 8, 4, 4)
    """

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
        super().__init__(glorot(*kernel_shape(out_channels, in_channels, kernel_size)), activation, gamma, mode)
        self.stride, self.padding = stride, padding

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, self.stride, self.padding)
