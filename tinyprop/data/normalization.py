"""Data normalisation, section 4.1 of the paper: the first layer of a network, saved with it.

Each feature of a sample (each pixel of each channel) gets mean 0 and standard deviation 1. A feature that does not
change becomes 0.
"""

from typing import Any, Self

from .. import functional as F
from ..engine.arrays import Array, float64, is_array, to_backend
from ..engine.errors import ShapeError
from ..engine.tensor import Tensor
from ..nn.layers import parameter
from ..nn.module import Module

CHUNK = 1000  # samples whose statistics are computed together
CONSTANT = 1e-12  # a variance below this part of the squared mean is rounding


def _spread(mean: Any, var: Any) -> Any:
    """The standard deviation, or 1 where a feature does not change."""
    return F.sqrt(F.where(var > CONSTANT * mean * mean, var, 1.0))


class Normalizer(Module):
    """The mean and standard deviation of each feature of samples of a shape."""

    def __init__(self, shape: tuple[int, ...]):
        self.mean = parameter(0.0, *shape).detach()
        self.std = parameter(1.0, *shape).detach()

    def as_floats(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.mean.shape:
            raise ShapeError(
                f"a batch of shape {x.shape}",
                f"this network takes samples of shape {self.mean.shape}: a batch is (N, {str(self.mean.shape)[1:]}",
                "reshape the batch, or make the normaliser for this shape",
            )
        return x if x.dtype.kind == "f" else x.astype(self.mean.dtype)


class GlobalNormalizer(Normalizer):
    """Statistics of the whole training set, computed once by `fit`.

    >>> layer = tp.data.GlobalNormalizer((2,)).fit(tp.tensor([[0.0, 5.0], [2.0, 5.0]]).data)
    >>> layer(tp.tensor([[0.0, 5.0]]))
    tensor([[-1.,  0.]])
    """

    def fit(self, samples: Array) -> Self:
        """Measure samples (N, ...); they are read in chunks, and never copied as a whole."""
        if not is_array(samples) or samples.shape[1:] != self.mean.shape or not len(samples):
            raise ShapeError(
                f"samples of shape {getattr(samples, 'shape', type(samples).__name__)}",
                f"an array (N, {str(self.mean.shape)[1:]} with N >= 1",
                "GlobalNormalizer(images.shape[1:]).fit(images)",
            )
        count, mean, squares = 0, 0.0, 0.0
        for start in range(0, len(samples), CHUNK):  # merged as in Chan, Golub and LeVeque (1979)
            chunk = samples[start : start + CHUNK].astype(float64)
            chunk_mean = chunk.mean(axis=0)
            delta, total = chunk_mean - mean, count + len(chunk)
            squares = squares + ((chunk - chunk_mean) ** 2).sum(axis=0) + delta**2 * (count * len(chunk) / total)
            mean = mean + delta * (len(chunk) / total)
            count = total
        std = _spread(Tensor(mean), Tensor(squares / count)).data
        for buffer, values in ((self.mean, mean), (self.std, std)):
            buffer.data[...] = to_backend(values, buffer.backend)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return (self.as_floats(x) - self.mean) / self.std


class BatchNormalizer(Normalizer):
    """Statistics of each mini-batch when training, and a running estimate of them otherwise.

    >>> tp.data.BatchNormalizer((1,))(tp.tensor([[0.0], [4.0]]))
    tensor([[-1.],
            [ 1.]])
    """

    whole_batch = True

    def __init__(self, shape: tuple[int, ...], momentum: float = 0.1):
        super().__init__(shape)
        self.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        x = self.as_floats(x)
        if not self.training:
            return (x - self.mean) / self.std
        if len(x) < 2:
            raise ShapeError(
                "a training batch of 1 sample for batch data normalisation",
                "one sample has no spread: each feature would become 0/0",
                "GlobalNormalizer, as the paper does for batch size 1; or a larger batch",
            )
        change = x - x[:1]  # exactly 0 for a feature that does not change, however large it is
        mean = F.mean(change, axis=0)
        std = _spread(mean, F.var(change, axis=0))
        unbiased = std.data * (len(x) / (len(x) - 1)) ** 0.5
        for running, now in ((self.mean, mean.data + x.data[0]), (self.std, unbiased)):
            running.data += self.momentum * (now - running.data)
        return (change - mean) / std
