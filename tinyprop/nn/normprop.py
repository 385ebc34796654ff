"""The layers of Normalization Propagation (Arpit et al., 2016), which need no statistics of data.

If the input x has mean 0, variance 1 and uncorrelated elements, then w.x / |w| has mean 0 and
variance 1, too, for any weights w. It is a sum of many terms, so it is close to N(0, 1). An
activation s of N(0, 1) has a mean c2 and a standard deviation c1 that are known in advance. A layer
subtracts c2 and divides by c1, and its output is normalised again, ready for the next layer.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from .. import functional as F
from .. import moments
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, as_activation
from ..functional.windows import pair
from .layers import Size, add_parameters, glorot, parameter
from .module import Module
from .own import trainable_activation

WeightedSum = Callable[[Tensor, Tensor], Tensor]

MIN_RELATIVE_C1 = 0.1


class NormProp(Module):
    """What the two NormProp layers share: the paper's equation, its parameters, and its constants
    c1 and c2. There is one row of weights, one gamma and one beta for each unit, and one of each
    parameter of the activation; c1 and c2 follow these as they are learnt.

    `mode="paper"` takes c1 and c2 from N(0, 1), so the output is normalised at gamma = 1, beta = 0
    only. There gamma starts at "jacobian", one over the Jacobian factor of the activation (1/1.2112
    for ReLU), and beta at 0.

    `mode="exact"` takes them from N(beta, gamma^2), so the output stays normalised whatever is
    learnt. There gamma starts at 1, and beta at 1 for a rectifier, where a deep network keeps its
    scale forwards and nearly backwards. As beta / gamma falls, c1 tends to 0, and 1/c1 would
    amplify the few samples left without bound. So c1 is at least MIN_RELATIVE_C1 times its value at
    beta = 0: below that, the mean stays 0, but the variance falls, and the unit fades out."""

    def __init__(self, weight: Tensor, activation: AnyActivation, gamma: Any, mode: str):
        if mode not in ("paper", "exact"):
            raise ValueError(explain(f"mode={mode!r}", "it is 'paper' or 'exact'", "mode='paper'"))
        units = len(weight)
        self.activation = trainable_activation(activation)
        self.mode = mode
        self.standard = standard_moments(self.activation)
        if not self.standard.std > 0:
            got = f"NormProp with {self.activation.name}, whose output is constant"
            rule = "the output is divided by its standard deviation"
            raise ValueError(explain(got, rule, "an activation that varies between -3 and 3"))
        self.weight = weight
        self.gamma = parameter(self._initial_gamma(gamma), units)
        self.beta = parameter(self._initial_beta(), units)
        self.learnable = add_parameters(self, self.activation, units, {})

    def forward(self, x: Tensor) -> Tensor:
        """Section 4.3 of the paper: (1/c1) [s(gamma w.x / |w| + beta) - c2]."""
        c1, c2 = self.constants()
        return F.normprop(
            x,
            self.weight,
            self.gamma,
            self.beta,
            c1,
            c2,
            weighted_sum=self.weighted_sum,
            activation=self.activate,
        )

    def propagate(self, state: Any) -> Any:
        c1, c2 = self.constants()
        u: Any = self.pre_activation(None, state)
        if type(self).activate is NormProp.activate:
            activated = u.apply(self.activation, **self.activation_parameters)
        else:
            activated = u.apply(self.activate)
        return (activated - self.per_unit(c2)) / self.per_unit(c1)

    def pre_activation(self, output: Any, x: Tensor) -> Tensor:
        """gamma w.x / |w| + beta, which the activation gets."""
        rows = F.weight_norm(self.weight, self.gamma)
        return self.weighted_sum(x, rows) + self.per_unit(self.beta)

    def constants(self) -> tuple[Any, Any]:
        """c1 and c2, the standard deviation and the mean of the activation's output: numbers, or
        tensors with one value per unit, differentiable with respect to the parameters."""
        if self.mode == "exact":
            return self._exact_constants()
        standard = self.standard
        if self.learnable:  # they change in training
            standard = moments.gaussian(self.activation, **self.activation_parameters)
        return standard.std, standard.mean

    def _exact_constants(self) -> tuple[Tensor, Tensor]:
        """c1(gamma, beta) and c2(gamma, beta), for pre-activations N(beta, gamma^2)."""
        params = self.activation_parameters
        std = abs(self.gamma)
        shifted = moments.gaussian(self.activation, self.beta, std, **params)
        centered = moments.gaussian(self.activation, 0.0, std, **params)
        c1 = F.maximum(shifted.std, MIN_RELATIVE_C1 * centered.std)
        c2 = shifted.mean
        return c1, c2

    @property
    def jacobian_factor(self) -> float | None:
        """The root mean square, over units, of the length of the gradient of one output with
        respect to the input, if this is normalised: gamma sqrt(E s'^2) / c1. `tp.testing` compares
        it with simulations.

        >>> round(tp.nn.NormPropLinear(3, 2, gamma=1.0).jacobian_factor, 6)
        1.211174
        """
        with no_grad():
            gamma = self.gamma.astype("float64")
            u = moments.gaussian(
                self.activation,
                self.beta.astype("float64"),
                abs(gamma),
                **self.activation_parameters,
            )
            c1, _ = self.constants()
            square = F.mean(gamma * gamma * u.slope2 / (c1 * c1))
            return math.sqrt(square.item())

    @property
    def weighted_sum(self) -> WeightedSum:
        """The linear map of the layer, as a function of its input and of weights. A subclass may
        have a method of this name instead: `def weighted_sum(self, x, weight)`."""
        raise NotImplementedError

    @property
    def activate(self) -> Callable[[Tensor], Tensor]:
        """The activation. A subclass may have a method of this name: `def activate(self, u)`."""
        if not self.learnable:
            return self.activation.function
        return self._activate_with_parameters

    def _activate_with_parameters(self, u: Tensor) -> Tensor:
        positions = self.weight.ndim - 2
        samples = u.ndim - positions - 1
        shape = (*[1] * samples, -1, *[1] * positions)  # (units,) -> (1, units, 1, 1) for images
        params = {name: p.reshape(shape) for name, p in self.activation_parameters.items()}
        return self.activation.function(u, **params)

    @property
    def activation_parameters(self) -> dict[str, Tensor]:
        """What is learnt of the activation, one value per unit, by its own names."""
        return {name: getattr(self, key) for name, key in self.learnable.items()}

    def per_unit(self, values: Any) -> Any:
        """One value per unit, shaped to broadcast against the output; a number stays a number."""
        if not isinstance(values, Tensor):
            return values
        positions = self.weight.ndim - 2
        return values.reshape(-1, *[1] * positions)  # (units,) -> (units, 1, 1) for images

    def _initial_gamma(self, gamma: Any) -> Any:
        """The gamma that was asked for: a number, an array, or what "jacobian" stands for."""
        if not isinstance(gamma, str):
            return gamma
        if gamma != "jacobian":
            rule = "it is 'jacobian', a number or an array"
            raise ValueError(explain(f"gamma={gamma!r}", rule, "gamma=1.0"))
        if self.mode == "exact":
            return 1.0
        factor = self.standard.jacobian_factor
        if not 0 < factor < math.inf:
            got = f"gamma='jacobian' with the activation {self.activation.name}"
            rule = f"its Jacobian factor is {factor}: the mean square of its slope is not known"
            raise ValueError(explain(got, rule, "gamma=1.0"))
        return 1.0 / factor

    def _initial_beta(self) -> float:
        if self.mode == "exact" and self.activation.rectifier:
            return 1.0
        return 0.0


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
        activation: AnyActivation = "relu",
        gamma: Any = "jacobian",
        mode: str = "paper",
    ):
        super().__init__(glorot(out_features, in_features), activation, gamma, mode)
        self.in_features = in_features
        self.out_features = out_features

    @property
    def weighted_sum(self) -> WeightedSum:
        return F.linear

    def extra_repr(self) -> str:
        shape = f"{self.in_features}, {self.out_features}"
        return f"{shape}, activation={self.activation.name!r}, mode={self.mode!r}"


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
        activation: AnyActivation = "relu",
        gamma: Any = "jacobian",
        mode: str = "paper",
    ):
        height, width = pair(kernel_size, "kernel_size", 1)
        weight = glorot(out_channels, in_channels, height, width)
        super().__init__(weight, activation, gamma, mode)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    @property
    def weighted_sum(self) -> WeightedSum:
        return partial(F.conv2d, stride=self.stride, padding=self.padding)

    def extra_repr(self) -> str:
        shape = f"{self.in_channels}, {self.out_channels}, {self.kernel_size}"
        window = f"stride={self.stride}, padding={self.padding}"
        return f"{shape}, {window}, activation={self.activation.name!r}, mode={self.mode!r}"


def standard_moments(activation: AnyActivation | Module) -> moments.Moments:
    """The moments of s(Z), Z ~ N(0, 1), for an activation s with the parameters that it starts
    with, or for a layer with those that it has."""
    if isinstance(activation, Module):
        return moments.gaussian(activation)
    record = as_activation(activation)
    if record.moments is None:  # a function may depend on something that changes
        return moments.gaussian(record)
    return _known_moments(record)


@lru_cache
def _known_moments(activation: Activation) -> moments.Moments:
    return moments.gaussian(activation)
