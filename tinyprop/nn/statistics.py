"""Normalisers of activations: by statistics of a batch, a sample or a group of channels, and two
that take none."""

from .. import functional as F
from ..engine.tensor import Tensor
from ..functional.normalization import per_channel
from .layers import parameter
from .module import Module, is_observing


class BatchNorm(Module):
    """Normalise each feature (axis 1) over the batch, and over positions if there are any: Ioffe
    and Szegedy (2015).

    When training, use the statistics of the mini-batch; otherwise, running estimates of them.

    >>> tp.nn.BatchNorm(1, eps=0.0)(tp.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]], requires_grad=True)
    """

    shown = "num_features eps= momentum="
    sums_over_batch = True

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)
        self.running_mean = parameter(0.0, num_features).detach()
        self.running_var = parameter(1.0, num_features).detach()

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        if is_observing():
            statistics = (
                Tensor(self.running_mean._data.copy()),
                Tensor(self.running_var._data.copy()),
            )
        return F.batch_norm(
            x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps
        )


class RMSNorm(Module):
    """Divide each sample by its root mean square over its last axes, of these lengths: Zhang and
    Sennrich (2019).

    There is one weight for each value. None is an axis of any length whose places share a weight:
    (C, None, None) are images of C channels and any size, with one weight for each channel. See
    `tp.functional.rms_norm` for eps.

    >>> layer = tp.nn.RMSNorm((3, None, None))
    >>> layer(tp.ones(2, 3, 8, 8)).shape, layer.weight.shape
    ((2, 3, 8, 8), (3, 1, 1))
    """

    shown = "normalized_shape eps="

    def __init__(self, normalized_shape: int | tuple[int | None, ...], eps: float = 1e-5):
        shape = normalized_shape if isinstance(normalized_shape, tuple) else (normalized_shape,)
        self.normalized_shape, self.eps = shape, eps
        self.weight = parameter(1.0, *(n or 1 for n in shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.lengths(x), self.weight, self.eps)

    def lengths(self, x: Tensor) -> tuple[int, ...]:
        """The normalised axes of this input."""
        shape = self.normalized_shape
        return tuple(
            n or m for n, m in zip(shape, x.shape[-len(shape) :], strict=x.ndim >= len(shape))
        )


class LayerNorm(RMSNorm):
    """Normalise each sample over its last axes, of these lengths: Ba et al. (2016). None is as in
    `RMSNorm`, so that LayerNorm((C, None, None)) computes what GroupNorm(1, C) does.

    >>> tp.nn.LayerNorm(2, eps=0.0)(tp.tensor([[1.0, 3.0], [10.0, 10.5]]))
    tensor([[-1.,  1.],
            [-1.,  1.]], requires_grad=True)
    """

    def __init__(self, normalized_shape: int | tuple[int | None, ...], eps: float = 1e-5):
        super().__init__(normalized_shape, eps)
        self.bias = parameter(0.0, *self.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.lengths(x), self.weight, self.bias, self.eps)


class GroupNorm(Module):
    """Normalise each sample over each group of channels (axis 1) and all positions: Wu and He
    (2018).

    GroupNorm(C, C), one channel to a group, is InstanceNorm (Ulyanov et al., 2016).

    >>> tp.nn.GroupNorm(2, 4, eps=0.0)(tp.tensor([[1.0, 3.0, 10.0, 20.0]]))
    tensor([[-1.,  1., -1.,  1.]], requires_grad=True)
    """

    shown = "num_groups num_channels eps="

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5):
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = parameter(1.0, num_channels)
        self.bias = parameter(0.0, num_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class DyT(Module):
    """Dynamic tanh: weight * tanh(alpha x) + bias, in place of a normaliser (Zhu et al., 2025).
    There is one alpha, and a weight and bias for each feature (axis 1). Each value is squashed by
    itself: no statistics are taken.

    >>> tp.nn.DyT(1)(tp.tensor([[0.0], [100.0]]))
    tensor([[0.],
            [1.]], requires_grad=True)
    """

    shown = "num_features"

    def __init__(self, num_features: int, alpha: float = 0.5):
        self.num_features = num_features
        self.alpha = parameter(alpha, 1)
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)

    def forward(self, x: Tensor) -> Tensor:
        # (C,) -> (C, 1, 1) for images
        weight, bias = (per_channel(p, x.ndim - 1) for p in (self.weight, self.bias))
        return self.squash(x) * weight + bias

    def squash(self, x: Tensor) -> Tensor:
        return F.tanh(self.alpha * x)


class Derf(DyT):
    """weight * erf(alpha x + shift) + bias, in place of a normaliser (Chen et al., 2025): DyT with
    another function. There is one shift, which starts at 0.

    >>> tp.nn.Derf(1)(tp.tensor([[0.0], [100.0]]))
    tensor([[0.],
            [1.]], requires_grad=True)
    """

    def __init__(self, num_features: int, alpha: float = 0.5):
        super().__init__(num_features, alpha)
        self.shift = parameter(0.0, 1)

    def squash(self, x: Tensor) -> Tensor:
        return F.erf(self.alpha * x + self.shift)
