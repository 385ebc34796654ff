"""Normalisation by the statistics of a mini-batch, the baseline: Ioffe and Szegedy (2015)."""

from .. import functional as F
from ..engine.tensor import Tensor
from .layers import parameter
from .module import Module


class BatchNorm(Module):
    """Normalise each feature (axis 1) over the batch, and over places if there are any: Ioffe and Szegedy (2015).

    When training, by the statistics of the mini-batch; otherwise by a running estimate of them.

    >>> tp.nn.BatchNorm(1, eps=0.0)(tp.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]], requires_grad=True)
    """

    whole_batch = True

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        self.eps, self.momentum = eps, momentum
        self.weight = parameter(1.0, num_features)
        self.bias = parameter(0.0, num_features)
        self.running_mean = parameter(0.0, num_features).detach()
        self.running_var = parameter(1.0, num_features).detach()

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
