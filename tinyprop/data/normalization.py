"""Data normalisation, section 4.1 of the paper: the first layer of a network, saved with it.

Each feature (each pixel of each channel) gets mean 0 and standard deviation 1; a constant feature
becomes 0."""

from typing import Any, Self

from .. import functional as F
from ..engine.arrays import Array, array_module, float64, is_array, to_backend
from ..engine.errors import ShapeError, StateError, explain
from ..engine.tensor import Tensor
from ..engine.threads import add_up, is_first_part, is_first_thread, over_batch
from ..nn.layers import parameter
from ..nn.module import Module, is_observing

CHUNK = 1000  # samples whose statistics are computed together
CONSTANT = 1e-12  # a variance below this fraction of the squared mean is rounding


def _spread(mean: Any, var: Any) -> Any:
    """The standard deviation, or 1 for a constant feature."""
    return F.sqrt(F.where(var > CONSTANT * mean * mean, var, 1.0))


class Normalizer(Module):
    """The mean and standard deviation of each feature, for samples of one shape."""

    def __init__(self, shape: tuple[int, ...], std: float):
        self.mean = parameter(0.0, *shape).detach()
        self.std = parameter(std, *shape).detach()

    def extra_repr(self) -> str:
        return str(self.mean.shape)

    def as_floats(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.mean.shape:
            rule = f"a batch is (N, {str(self.mean.shape)[1:]} for this normalizer"
            raise ShapeError(
                f"a batch of shape {x.shape}",
                rule,
                "reshape it, or make a normalizer for its shape",
            )
        return x if x.dtype.kind == "f" else x.astype(self.mean.dtype)


class GlobalNormalizer(Normalizer):
    """Statistics of the whole training set, computed once by `fit`.

    >>> layer = tp.data.GlobalNormalizer((2,))
    >>> layer.fit(tp.tensor([[0.0, 5.0], [2.0, 5.0]]).data)
    GlobalNormalizer((2,))
    >>> layer(tp.tensor([[0.0, 5.0]]))
    tensor([[-1.,  0.]])
    """

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape, std=0.0)  # which no fit or saved state gives
        self._fitted = False

    @property
    def fitted(self) -> bool:
        """Whether `fit` was called or a fitted state loaded. A yes is remembered, so that a device
        is asked once."""
        if not self._fitted and self.std._data.all():
            self._fitted = True
        return self._fitted

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.fitted else ", not fitted")

    def fit(self, samples: Array) -> Self:
        """Measure samples (N, ...). They are read in chunks and never copied as a whole."""
        if not is_array(samples) or samples.shape[1:] != self.mean.shape or not len(samples):
            got = f"samples of shape {getattr(samples, 'shape', type(samples).__name__)}"
            rule = f"an array (N, {str(self.mean.shape)[1:]} with N >= 1"
            raise ShapeError(got, rule, "GlobalNormalizer(images.shape[1:]).fit(images)")
        count, mean, squares = 0, 0.0, 0.0
        for start in range(0, len(samples), CHUNK):  # merged as in Chan, Golub and LeVeque (1979)
            chunk = samples[start : start + CHUNK].astype(float64)
            chunk_mean = chunk.mean(axis=0)
            delta, total = chunk_mean - mean, count + len(chunk)
            squares = (
                squares
                + ((chunk - chunk_mean) ** 2).sum(axis=0)
                + delta**2 * (count * len(chunk) / total)
            )
            mean = mean + delta * (len(chunk) / total)
            count = total
        var, rounding = squares / count, (count * 2e-16 * mean) ** 2
        if array_module(var).any((var > rounding) & (var <= CONSTANT * mean**2)):
            rule = "float32 cannot hold the differences of values that are a million times larger"
            raise ValueError(
                explain(
                    "a feature whose spread is tiny beside its mean",
                    rule,
                    "subtract its mean first",
                )
            )
        std = _spread(Tensor(mean), Tensor(var)).data
        for buffer, values in ((self.mean, mean), (self.std, std)):
            buffer.data[...] = to_backend(values, buffer.backend)
        self._fitted = True
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.as_floats(x)
        if not self.fitted:
            rule, hint = (
                "it needs the statistics of the training images",
                "fit(images), or load a saved state",
            )
            raise StateError("a batch for a GlobalNormalizer that was never fitted", rule, hint)
        return (x - self.mean) / self.std


class BatchNormalizer(Normalizer):
    """Statistics of each mini-batch in training, and a running estimate of them otherwise.

    >>> tp.data.BatchNormalizer((1,))(tp.tensor([[0.0], [4.0]]))
    tensor([[-1.],
            [ 1.]])
    """

    sums_over_batch = True

    def __init__(self, shape: tuple[int, ...], momentum: float = 0.1):
        super().__init__(shape, std=1.0)
        self.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        x = self.as_floats(x)
        if not self.training:
            return (x - self.mean) / self.std
        count = add_up(len(x))
        if count < 2:
            rule = "one sample has no standard deviation: each feature would become 0/0"
            hint = "GlobalNormalizer, as the paper does for batch size 1; or a larger batch"
            raise ShapeError("a training batch of 1 sample for a BatchNormalizer", rule, hint)
        first = over_batch(F.sum(x[: int(is_first_part())], axis=0))
        change = x - first  # exactly 0 for a constant feature, however large
        mean = over_batch(F.sum(change, axis=0)) / count
        std = _spread(mean, over_batch(F.sum((change - mean) ** 2, axis=0)) / count)
        if is_first_thread() and not is_observing():
            unbiased = std.data * (count / (count - 1)) ** 0.5
            for running, now in ((self.mean, mean.data + first.data), (self.std, unbiased)):
                running.data += self.momentum * (now - running.data)
        return (change - mean) / std
