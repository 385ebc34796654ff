"""Normalisation by the statistics of a mini-batch, the baseline: Ioffe and Szegedy (2015)."""

from .. import functional as F
from ..engine.tensor import Tensor
from .layers import parameter
from .module import Module, is_observing


class BatchNorm(Module):
    """Normalise each feature (axis 1) over the batch, and over positions if there are any: Ioffe and Szegedy (2015).

    When training, use the statistics of the mini-batch; otherwise, running estimates of them.

    >>> tp.nn.BatchNorm(1, eps=0.0)(tp.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]], requires_grad=True)
    """

    shown = "num_features eps= momentum="
    whole_batch = True

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)
        self.running_mean = parameter(0.0, num_features).detach()
        self.running_var = parameter(1.0, num_features).detach()

    def forward(self, x: Tensor) -> Tensor:
        statistics = self.running_mean, self.running_var
        if is_observing():
            statistics = Tensor(self.running_mean._data.copy()), Tensor(self.running_var._data.copy())
        return F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)
