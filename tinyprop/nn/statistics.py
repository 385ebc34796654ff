"""Normalisers of activations: by statistics of a batch, a sample or a group of channels, and two
that take none."""

from types import MappingProxyType

from .. import functional as F
from ..engine.tensor import Tensor
from ..functional.normalization import per_channel
from .declare import Statistics
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

    sums_over_batch = True
    statistics = Statistics(over="batch")
    torch_names = MappingProxyType({"num_batches_tracked": ""})

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)
        self.running_mean = parameter(0.0, num_features).detach()
        self.running_var = parameter(1.0, num_features).detach()

    def forward(self, x: Tensor) -> Tensor:
        mean = self.running_mean
        var = self.running_var
        if is_observing():  # batch_norm moves the estimates in place: let it move copies
            mean = Tensor(mean._data.copy())
            var = Tensor(var._data.copy())
        return F.batch_norm(
            x, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps
        )

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class RMSNorm(Module):
    """Divide each sample by its root mean square over its last axes, of these lengths: Zhang and
    Sennrich (2019).

    There is one weight for each value. None is an axis of any length whose places share a weight:
    (C, None, None) are images of C channels and any size, with one weight for each channel, or
    vectors (N, C), which have no places. See `tp.functional.rms_norm` for eps.

    >>> layer = tp.nn.RMSNorm((3, None, None))
    >>> layer(tp.ones(2, 3, 8, 8)).shape, layer(tp.ones(2, 3)).shape, layer.weight.shape
    ((2, 3, 8, 8), (2, 3), (3, 1, 1))
    """

    statistics = Statistics(over="sample", center=False)

    def __init__(self, normalized_shape: int | tuple[int | None, ...], eps: float = 1e-5):
        if not isinstance(normalized_shape, tuple):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.weight = parameter(1.0, *(length or 1 for length in normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        lengths = self.lengths(x)
        return F.rms_norm(x, lengths, self.for_axes(self.weight, lengths), self.eps)

    def lengths(self, x: Tensor) -> tuple[int, ...]:
        """The lengths of the normalised axes of this input: its own where the layer has None."""
        shape = self.normalized_shape
        any_size = all(length is None for length in shape[1:])
        if any_size and x.ndim == 2 < len(shape):
            shape = shape[:1]  # vectors
        count = len(shape)
        enough_axes = x.ndim >= count  # with fewer, the function refuses the input
        pairs = zip(shape, x.shape[-count:], strict=enough_axes)
        return tuple(length or present for length, present in pairs)

    def for_axes(self, values: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Weight or bias, without the axes of places if the input is vectors."""
        is_per_channel = values.size == len(values)
        if is_per_channel and values.ndim > len(lengths):
            return values.reshape(-1)  # (C, 1, 1) -> (C,)
        return values

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class LayerNorm(RMSNorm):
    """Normalise each sample over its last axes, of these lengths: Ba et al. (2016). None is as in
    `RMSNorm`, so that LayerNorm((C, None, None)) computes what GroupNorm(1, C) does.

    >>> tp.nn.LayerNorm(2, eps=0.0)(tp.tensor([[1.0, 3.0], [10.0, 10.5]]))
    tensor([[-1.,  1.],
            [-1.,  1.]], requires_grad=True)
    """

    statistics = Statistics(over="sample")

    def __init__(self, normalized_shape: int | tuple[int | None, ...], eps: float = 1e-5):
        super().__init__(normalized_shape, eps)
        self.bias = parameter(0.0, *self.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        lengths = self.lengths(x)
        weight = self.for_axes(self.weight, lengths)
        bias = self.for_axes(self.bias, lengths)
        return F.layer_norm(x, lengths, weight, bias, self.eps)


class GroupNorm(Module):
    """Normalise each sample over each group of channels (axis 1) and all positions: Wu and He
    (2018).

    GroupNorm(C, C), one channel to a group, is InstanceNorm (Ulyanov et al., 2016).

    >>> tp.nn.GroupNorm(2, 4, eps=0.0)(tp.tensor([[1.0, 3.0, 10.0, 20.0]]))
    tensor([[-1.,  1., -1.,  1.]], requires_grad=True)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5):
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = parameter(1.0, num_channels)
        self.bias = parameter(0.0, num_channels)

    @property
    def statistics(self) -> Statistics:
        if self.num_groups == 1:
            return Statistics(over="sample")
        return Statistics(over="sample", group=self.num_channels // self.num_groups)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class DyT(Module):
    """Dynamic tanh: weight * tanh(alpha x) + bias, in place of a normaliser (Zhu et al., 2025).
    There is one alpha, and a weight and bias for each feature (axis 1). Each value is squashed by
    itself: no statistics are taken.

    >>> tp.nn.DyT(1)(tp.tensor([[0.0], [100.0]]))
    tensor([[0.],
            [1.]], requires_grad=True)
    """

    elementwise = True

    def __init__(self, num_features: int, alpha: float = 0.5):
        self.num_features = num_features
        self.alpha = parameter(alpha, 1)
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)

    def forward(self, x: Tensor) -> Tensor:
        # (C,) -> (C, 1, 1) for images
        weight = per_channel(self.weight, x.ndim - 1)
        bias = per_channel(self.bias, x.ndim - 1)
        return self.squash(x) * weight + bias

    def squash(self, x: Tensor) -> Tensor:
        """The function that keeps values bounded, before weight and bias."""
        return F.tanh(self.alpha * x)

    def extra_repr(self) -> str:
        return str(self.num_features)


class Derf(DyT):
    """weight * erf(alpha x + shift) + bias, in place of a normaliser (Chen et al., 2025): DyT with
    another function. There is one shift, which starts at 0.

    >>> tp.nn.Derf(1)(tp.tensor([[0.0], [100.0]]))
    tensor([[0.],
            [1.]], requires_grad=True)
    """

    elementwise = True

    def __init__(self, num_features: int, alpha: float = 0.5):
        super().__init__(num_features, alpha)
        self.shift = parameter(0.0, 1)

    def squash(self, x: Tensor) -> Tensor:
        return F.erf(self.alpha * x + self.shift)
