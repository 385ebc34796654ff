"""NormProp with measured moments, and the door through which a layer measures fixed samples.

The paper's layer divides w.x by |w|. That is its standard deviation if the inputs have variance 1
and no correlations, which images do not have. The layers here measure the mean m(w) and the
standard deviation s(w) of w.x instead, on the inputs that a fixed set of samples brought to the
layer when it was refreshed:

    (1/c1) [activation(gamma (w.x - m(w)) / s(w) + beta) - c2]

m and s are functions of w, so the gradient passes through them, but not through the inputs that
were kept. No output depends on other samples of its batch. The nearest relative is Virtual Batch
Normalization (Salimans et al., 2016), which passes a reference batch through the whole network in
every step, and adds the present sample to it.
"""

from typing import Any

from .. import functional as F
from ..engine.arrays import array_module
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..functional.normalization import per_channel
from ..functional.normprop import normalized_activation
from .module import Module, observing, visiting
from .normprop import NormProp, NormPropConv2d, NormPropLinear

EPS = 1e-5  # added to the variance, as in BatchNorm


def refresh(net: Module, x: Any) -> None:
    """Let all layers of a network that measure fixed samples do so: the network runs on x, and each
    layer's `refresh` is called with the layer's input before its turn. A run does this every
    `refresh` steps.

    >>> net = tp.nn.Sequential(tp.nn.MeasuredLinear(3, 4), tp.nn.MeasuredLinear(4, 2))
    >>> tp.nn.refresh(net, tp.randn(50, 3))
    >>> net[1].kept.shape
    (50, 4)
    """

    def visit(layer: Module, *args: Any, **kwargs: Any) -> None:
        layer.refresh(*args, **kwargs)

    with no_grad(), observing(), visiting(visit):
        net(x if isinstance(x, Tensor) else Tensor(x))


def has_refresh(net: Module) -> bool:
    """Whether any layer of a network measures fixed samples."""
    return any(type(layer).refresh is not Module.refresh for layer in net.modules())


class Measured(NormProp):
    """What the two layers share. Before it is refreshed for the first time, such a layer computes
    what the paper's does."""

    kept: Tensor  # the inputs that the fixed samples brought here
    resized_by_state = ("kept",)

    def refresh(self, x: Tensor) -> None:
        """Keep these inputs, and measure w.x on them from now on."""
        if len(x) < 2:
            got = f"refresh of a {type(self).__name__} with {len(x)} samples"
            raise ValueError(explain(got, "one sample has no spread", "50 samples"))
        if self.kept.shape == x.shape:
            self.kept._data[...] = x._data  # where a recorded step looks for them
        else:
            self.kept = Tensor(x._data.astype(self.weight.dtype))  # a copy

    @property
    def is_measured(self) -> bool:
        return len(self.kept) > 0

    @property
    def jacobian_factor(self) -> float | None:
        """That of the paper's layer until it is refreshed; then it depends on the samples."""
        return None if self.is_measured else super().jacobian_factor

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the variance of w.x for each unit, over the inputs that were kept and over
        positions: differentiable with respect to w."""
        sums = self.weighted_sum(self.kept, self.weight)
        is_linear = self.weight.ndim == 2
        all_but_units = tuple(range(sums.ndim - 1)) if is_linear else (0, 2, 3)
        return F.mean(sums, all_but_units), F.var(sums, all_but_units)

    def affine(self) -> tuple[Tensor, Tensor]:
        """The scaled rows and the shift of u = rows.x + shift."""
        mean, variance = self.moments()
        scale = self.gamma * F.rsqrt(variance + EPS)
        rows = self.weight * per_channel(scale, self.weight.ndim)
        return rows, self.beta - scale * mean

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_measured:
            return super().forward(x)
        rows, shift = self.affine()
        c1, c2 = self.constants()
        u = self.weighted_sum(x, rows)
        return normalized_activation(u, shift, c1, c2, self.activate, self.weight.ndim)

    def propagate(self, state: Any) -> Any:
        return super().propagate(state)  # with the pre-activation below

    def pre_activation(self, output: Any, x: Tensor) -> Tensor:
        if not self.is_measured:
            return super().pre_activation(output, x)
        rows, shift = self.affine()
        return self.weighted_sum(x, rows) + self.per_unit(shift)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {len(self.kept)} samples kept"


class MeasuredLinear(Measured, NormPropLinear):
    """A fully connected NormProp layer with measured moments.

    >>> layer, x = tp.nn.MeasuredLinear(3, 2, activation="identity"), tp.randn(1000, 3) * 5.0 + 1.0
    >>> tp.nn.refresh(layer, x)
    >>> abs(layer(x).std().item() - layer.gamma.data[0].item()) < 0.01
    True
    """

    def __init__(self, in_features: int, out_features: int, *args: Any, **kwargs: Any):
        super().__init__(in_features, out_features, *args, **kwargs)
        self.kept = _no_samples(self.weight, in_features)


class MeasuredConv2d(Measured, NormPropConv2d):
    """A convolutional NormProp layer with measured moments.

    >>> layer, x = tp.nn.MeasuredConv2d(3, 4, 3, padding=1), tp.randn(50, 3, 8, 8)
    >>> tp.nn.refresh(layer, x)
    >>> layer(x[:2]).shape
    (2, 4, 8, 8)
    """

    def __init__(self, in_channels: int, out_channels: int, *args: Any, **kwargs: Any):
        super().__init__(in_channels, out_channels, *args, **kwargs)
        self.kept = _no_samples(self.weight, in_channels, 1, 1)


def _no_samples(like: Tensor, *shape: int) -> Tensor:
    return Tensor(array_module(like._data).zeros((0, *shape), like.dtype))
