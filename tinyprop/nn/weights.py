"""Layers whose weights are normalised in every forward pass: wrappers of a Linear or Conv2d."""

from typing import Any

from .. import functional as F
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.sums import total
from ..engine.tensor import Tensor
from ..functional.activation import AnyActivation, as_activation
from .declare import Rows
from .layers import Conv2d, Linear, parameter
from .module import Module
from .normprop import standard_moments


class WeightNorm(Module):
    """A Linear or Conv2d with rows scale[i] v[i] / |v[i]|, where v is its weight: Salimans and
    Kingma (2016).

    At first the scale is the length of each row, so that the layer computes what it did; or the
    number given.

    >>> layer = tp.nn.WeightNorm(tp.nn.Linear(3, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['scale', 'layer.weight', 'layer.bias']
    """

    def __init__(self, layer: Linear | Conv2d, scale: Any = None):
        if not isinstance(layer, (Linear, Conv2d)):
            got = f"{type(self).__name__} of a {type(layer).__name__}"
            raise TypeError(
                explain(got, "it wraps a layer that has a weight", "a Linear or a Conv2d")
            )
        v = layer.weight
        units = len(v)
        self.layer = layer
        self.keeps_lengths = scale is None
        self.scale = parameter(1.0 if scale is None else scale, units)
        if (self.scale.backend, self.scale.dtype) != (v.backend, v.dtype):
            self.to(v.backend, v.dtype)
        if scale is None:
            inputs = tuple(range(1, v.ndim))
            self.scale.data[...] = F.norm(v, inputs).data  # (units, ...) -> (units,)

    @property
    def rows(self) -> Rows:
        return Rows() if self.keeps_lengths else Rows(square=self.mean_square_scale)

    @property
    def mean_square_scale(self) -> float:
        squares = self.scale._data.astype("float64") ** 2
        return float(total(squares, divisor=len(squares)))

    @property
    def weight(self) -> Tensor:
        """What the layer computes with."""
        return F.weight_norm(self.layer.weight, self.scale)

    @property
    def bias(self) -> Tensor | None:
        """The bias of the wrapped layer."""
        return self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.weighted_sum(x, self.weight)

    def pre_activation(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def initialize(self, x: Tensor) -> Tensor:
        """Set scale and bias so that each unit's output on this batch has mean 0 and variance 1,
        and return the output: the data-dependent initialisation of section 3. For all layers of a
        network, `tp.nn.init.data_dependent_`.

        >>> layer = tp.nn.WeightNorm(tp.nn.Linear(1, 1))
        >>> out = layer.initialize(tp.tensor([[1.0], [3.0]]))
        >>> format(out.mean() ** 2, ".4f"), format(out.std(), ".4f")
        ('0.0000', '1.0000')
        """
        bias = self.layer.bias
        if bias is None:
            got = f"initialize of a {type(self.layer).__name__} without a bias"
            raise ValueError(explain(got, "the bias is what makes the mean 0", "bias=True"))
        with no_grad():
            u = self(x)
            is_linear = isinstance(self.layer, Linear)
            all_but_units = tuple(range(u.ndim - 1)) if is_linear else (0, 2, 3)
            mean = F.mean(u, all_but_units)
            std = F.std(u, all_but_units)
            # because of rounding, the std of a constant is not always 0
            varies = std.numpy() > 1e-6 * abs(mean.numpy())
            if not varies.all():
                got = f"initialize with an input of shape {x.shape} for which some unit is constant"
                hint = "a larger batch, of different samples"
                raise ValueError(explain(got, "its variance cannot become 1", hint))
            self.scale.data[...] /= std.data
            bias.data[...] = ((bias - mean) / std).data
            return self(x)


class ScaledWS(WeightNorm):
    """A Linear or Conv2d with rows of sum 0 and length scale[i]/c1: scaled weight standardisation,
    Brock et al. (2021).

    c1^2 is the variance of the activation that the layer's input has gone through, for N(0, 1):
    1/c1 is 1.712858550450 for ReLU, and 1 for "identity", which is for data. If the input is that
    activation of uncorrelated N(0, 1), then so is the output before its own activation, for any
    weights: of mean 0, as a row has sum 0, and of variance 1.

    >>> layer = tp.nn.ScaledWS(tp.nn.Linear(50, 2))
    >>> row = layer.weight[0]
    >>> format((row**2).sum() ** 0.5, ".4f"), format(abs(row.sum()), ".4f")
    ('1.7129', '0.0000')
    """

    def __init__(
        self, layer: Linear | Conv2d, activation: AnyActivation = "relu", scale: Any = 1.0
    ):
        super().__init__(layer, scale)
        self.activation = as_activation(activation)
        self.factor = 1.0 / standard_moments(self.activation).std

    @property
    def rows(self) -> Rows:
        return Rows(square=self.mean_square_scale * self.factor**2, center=True)

    @property
    def weight(self) -> Tensor:
        return F.weight_norm(self.layer.weight, self.scale, self.factor, centered=True)

    def extra_repr(self) -> str:
        return f"activation={self.activation.name!r}"
