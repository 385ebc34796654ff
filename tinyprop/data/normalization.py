"""Data normalisation, section 4.1 of the paper: the first layer of a network, saved with it.

Each feature (each pixel of each channel) gets mean 0 and standard deviation 1; a constant feature
becomes 0."""

from typing import Any, Self

from .. import functional as F
from ..engine.arrays import Array, array_module, float64, is_array, to_backend
from ..engine.batch import add_up, is_first_part, over_batch
from ..engine.errors import ShapeError, StateError, explain
from ..engine.sums import at_least_float32
from ..engine.tensor import Tensor
from ..functional.arithmetic import as_float
from ..functional.reductions import moments
from ..nn.layers import parameter
from ..nn.module import Module, is_observing

CHUNK = 1000  # samples whose statistics are computed together
CONSTANT = 1e-12  # a variance below this fraction of the squared mean is rounding


def _standard_deviation(mean: Tensor, var: Tensor) -> Tensor:
    """The square root of the variance, or 1 for a constant feature."""
    varies = var > CONSTANT * mean * mean
    return F.sqrt(F.where(varies, var, 1.0))


def _batch_shape(shape: tuple[int, ...]) -> str:
    """As (N, 3, 32, 32) for samples of shape (3, 32, 32)."""
    return f"(N, {str(shape)[1:]}"


class Normalizer(Module):
    """The mean and standard deviation of each feature, for samples of one shape."""

    def __init__(self, shape: tuple[int, ...], std: float):
        self.mean = parameter(0.0, *shape).detach()
        self.std = parameter(std, *shape).detach()

    def extra_repr(self) -> str:
        return str(self.mean.shape)

    def as_floats(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.mean.shape:
            rule = f"a batch is {_batch_shape(self.mean.shape)} for this normalizer"
            hint = "reshape it, or make a normalizer for its shape"
            raise ShapeError(f"a batch of shape {x.shape}", rule, hint)
        return as_float(x)


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

    def fit(self, samples: Array, per_channel: bool = False) -> Self:
        """Measure samples (N, ...). They are read in chunks and never copied as a whole. With
        `per_channel`, all pixels of a channel (N, C, H, W) have one mean and one deviation."""
        fits = is_array(samples) and samples.shape[1:] == self.mean.shape
        if not fits or len(samples) == 0:
            got = f"samples of shape {getattr(samples, 'shape', type(samples).__name__)}"
            rule = f"an array {_batch_shape(self.mean.shape)} with N >= 1"
            raise ShapeError(got, rule, "GlobalNormalizer(images.shape[1:]).fit(images)")
        if per_channel and samples.ndim != 4:
            got, rule = f"per_channel=True for samples of shape {samples.shape[1:]}", "(C, H, W)"
            raise ShapeError(got, f"samples with channels have shape {rule}", "per_channel=False")
        mean, var = _mean_and_variance(samples)
        if per_channel:
            mean, var = _over_pixels(mean, var)
        std = _standard_deviation(Tensor(mean), Tensor(var)).data
        for buffer, values in ((self.mean, mean), (self.std, std)):
            buffer.data[...] = to_backend(values, buffer.backend)
        self._fitted = True
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.as_floats(x)
        self._check_fitted()
        return (x - self.mean) / self.std

    def propagate(self, state: Any) -> Any:
        self._check_fitted()
        return (state - self.mean) / self.std

    def _check_fitted(self) -> None:
        if not self.fitted:
            raise StateError(
                "a batch for a GlobalNormalizer that was never fitted",
                "it needs the statistics of the training images",
                "fit(images), or load a saved state",
            )


def _mean_and_variance(samples: Array) -> tuple[Array, Array]:
    """Of each feature, in float64. Chunks are merged as in Chan, Golub and LeVeque (1979)."""
    count: int = 0
    mean: Array = 0.0
    squares: Array = 0.0  # sums of squared deviations from the mean
    for start in range(0, len(samples), CHUNK):
        chunk = samples[start : start + CHUNK].astype(float64)
        total = count + len(chunk)
        chunk_mean, chunk_var = (m[0] for m in moments(chunk, (0,), len(chunk)))
        delta = chunk_mean - mean
        squares = squares + chunk_var * len(chunk) + delta**2 * (count * len(chunk) / total)
        mean = mean + delta * (len(chunk) / total)
        count = total
    var = squares / count
    rounding = (count * 2e-16 * mean) ** 2
    varies = var > rounding
    is_lost_in_float32 = var <= CONSTANT * mean**2
    if array_module(var).any(varies & is_lost_in_float32):
        raise ValueError(
            explain(
                "a feature whose standard deviation is tiny beside its mean",
                "float32 cannot hold the differences of values that are a million times larger",
                "subtract its mean first",
            )
        )
    return mean, var


def _over_pixels(mean: Array, var: Array) -> tuple[Array, Array]:
    """The mean and variance of each channel, at every pixel, from those of the pixels."""
    _, height, width = mean.shape
    of_channel, between_pixels = moments(mean, (1, 2), height * width)  # (C, H, W) -> (C, 1, 1)
    within_pixels, _ = moments(var, (1, 2), height * width)
    total = within_pixels + between_pixels
    xp = array_module(mean)
    return xp.broadcast_to(of_channel, mean.shape), xp.broadcast_to(total, var.shape)


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

    def propagate(self, state: Any) -> Any:
        if self.training:
            return state.normalize_batch(each_value=True)
        return (state - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        x = self.as_floats(x)
        if not self.training:
            return (x - self.mean) / self.std
        count = add_up(len(x))
        if count < 2:
            raise ShapeError(
                "a training batch of 1 sample for a BatchNormalizer",
                "one sample has no standard deviation: each feature would become 0/0",
                "GlobalNormalizer, as the paper does for batch size 1; or a larger batch",
            )
        dtype = x.dtype
        x = at_least_float32(x)
        own_first = x[:1] if is_first_part() else x[:0]  # only one part has the first sample
        first = over_batch(F.sum(own_first, axis=0))
        shifted = x - first  # exactly 0 for a constant feature, however large
        mean = over_batch(F.sum(shifted, axis=0)) / count
        var = over_batch(F.sum((shifted - mean) ** 2, axis=0)) / count
        std = _standard_deviation(mean, var)
        if not is_observing():
            unbiased = std.data * (count / (count - 1)) ** 0.5
            for running, now in ((self.mean, mean.data + first.data), (self.std, unbiased)):
                running.data += self.momentum * (now - running.data)
        out = (shifted - mean) / std
        return out if out.dtype == dtype else out.astype(dtype)
