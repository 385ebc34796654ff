"""Layers whose weights are normalised in every forward pass: wrappers of a Linear or Conv2d."""

from typing import Any

from .. import functional as F
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
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
            got, rule = (
                f"{type(self).__name__} of a {type(layer).__name__}",
                "it wraps a layer that has a weight",
            )
            raise TypeError(explain(got, rule, "a Linear or a Conv2d"))
        self.layer, self.scale = (
            layer,
            parameter(1.0 if scale is None else scale, len(layer.weight)),
        )
        if (self.scale.backend, self.scale.dtype) != (layer.weight.backend, layer.weight.dtype):
            self.to(layer.weight.backend, layer.weight.dtype)
        if scale is None:
            self.scale.data[...] = F.norm(layer.weight, tuple(range(1, layer.weight.ndim))).data

    @property
    def weight(self) -> Tensor:
        """What the layer computes with."""
        return F.weight_norm(self.layer.weight, self.scale)

    @property
    def bias(self) -> Tensor | None:
        """That of the layer."""
        return self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.weighted_sum(x, self.weight)

    def initialize(self, x: Tensor) -> Tensor:
        """Set scale and bias so that each unit's output on this batch has mean 0 and variance 1,
        and return the output: the data-dependent initialisation of section 3. For all layers of a
        network, `tp.nn.init.data_dependent_`.

        >>> layer = tp.nn.WeightNorm(tp.nn.Linear(1, 1))
        >>> out = layer.initialize(tp.tensor([[1.0], [3.0]]))
        >>> format(out.mean() ** 2, ".4f"), format(out.std(), ".4f")
        ('0.0000', '1.0000')
        """
        if self.layer.bias is None:
            got = f"initialize of a {type(self.layer).__name__} without a bias"
            raise ValueError(explain(got, "the bias is what makes the mean 0", "bias=True"))
        with no_grad():
            u = self(x)
            axes = tuple(range(u.ndim - 1)) if isinstance(self.layer, Linear) else (0, 2, 3)
            mean, std = F.mean(u, axes), F.std(u, axes)
            # rounding may keep that of a constant from being 0
            if not (std.numpy() > 1e-6 * abs(mean.numpy())).all():
                got = f"initialize with an input of shape {x.shape} for which some unit is constant"
                raise ValueError(
                    explain(
                        got, "its variance cannot become 1", "a larger batch, of different samples"
                    )
                )
            self.scale.data[...] /= std.data
            self.layer.bias.data[...] = ((self.layer.bias - mean) / std).data
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

    shown = "activation="

    def __init__(self, layer: Linear | Conv2d, activation: str = "relu", scale: Any = 1.0):
        super().__init__(layer, scale)
        self.activation = activation
        self.factor = 1.0 / standard_moments(activation).std

    @property
    def weight(self) -> Tensor:
        return F.weight_norm(self.layer.weight, self.scale, self.factor, centered=True)
