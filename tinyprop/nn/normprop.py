"""Layers that normalise by the closed forms of Normalization Propagation."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from .. import functional as F
from .. import moments
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activations import PReLU
from ..functional.windows import pair
from .layers import ACTIVATIONS, Size, check_activation, glorot, parameter
from .module import Module

WeightedSum = Callable[[Tensor, Tensor], Tensor]

RECTIFIERS = ("relu", "prelu", "leaky_relu", "elu", "gelu", "silu", "softplus")
MIN_RELATIVE_C1 = 0.1
PRELU_START = 0.25  # the slope that a PReLU starts with, as in He et al. (2015)


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
    """What the two NormProp layers share: the paper's equation, its parameters, and its constants
    c1 and c2.

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
        """Section 4.3 of the paper: (1/c1) [s(gamma w.x / |w| + beta) - c2]."""
        c1, c2 = self.constants()
        return F.normprop(
            x, self.weight, self.gamma, self.beta, c1, c2, self.weighted_sum, self.activate
        )

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

    @property
    def weighted_sum(self) -> WeightedSum:
        """The linear map of the layer, as a function of its input and of weights. A subclass may
        have a method of this name instead: `def weighted_sum(self, x, weight)`."""
        raise NotImplementedError

    @property
    def activate(self) -> Callable[[Tensor], Tensor]:
        """The activation. A subclass may have a method of this name: `def activate(self, u)`."""
        if self.activation == "prelu":
            return lambda u: PReLU()(u, self.per_unit(self.a))
        return ACTIVATIONS[self.activation]

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

    @property
    def weighted_sum(self) -> WeightedSum:
        return F.linear


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

    @property
    def weighted_sum(self) -> WeightedSum:
        return partial(F.conv2d, stride=self.stride, padding=self.padding)
