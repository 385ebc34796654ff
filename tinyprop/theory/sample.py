"""The check sample: inputs of the law that `propagate` was given, and how much each layer of the
network itself varies for them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, from_host, to_numpy
from ..engine.graph import no_grad
from ..engine.random import generator, new_generator
from ..engine.tensor import Tensor
from ..nn.module import observing, visiting
from ..nn.observation import CallNames, knows_pre_activation

COUNT = 256  # inputs of a check sample
# Unlike any seed that weights are drawn with: else weights and samples were the same numbers.
SEED = 4_231_087
# What may be added to the variances of a covariance matrix, relative to them: the least that makes
# it positive definite in floating point.
SLACKS = (0.0, 1e-12, 1e-6)
STANDARD_ERRORS = 5.0  # beyond which a difference is no chance
SMALL = 0.05  # a relative difference that is not worth a word
VAGUE = 1.0 / 6.0  # relative standard error of a sample that can decide nothing


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Inside the block, the generator of the thread starts from a fixed seed; after it, it goes on
    as if nothing had been drawn."""
    random = generator()
    before = random.bit_generator.state
    random.bit_generator.state = new_generator(SEED).bit_generator.state
    try:
        yield
    finally:
        random.bit_generator.state = before


@dataclass(frozen=True)
class Measured:
    """What one call of a layer made of a check sample."""

    variance: HostArray  # of each unit or channel, over samples and positions
    standard_error: float  # of the mean of the variance over units

    @classmethod
    def of(cls, values: HostArray, is_drawn: bool) -> "Measured":
        """From (samples, units, positions): the squares are independent between samples, not
        between units and positions. A sample that was drawn stands for a law, so its mean varies,
        too."""
        count = len(values)
        deviations = values - values.mean(axis=(0, 2), keepdims=True)
        squares = deviations**2
        variance = squares.mean(axis=(0, 2))
        if is_drawn:
            variance = variance + (deviations.mean(axis=2) ** 2).sum(axis=0) / (count * (count - 1))
        by_sample = squares.mean(axis=(1, 2))
        return cls(variance, float(by_sample.std(ddof=1)) / math.sqrt(count))

    def error_of(self, variance: HostArray) -> float:
        """The relative difference from a mean variance, plus two standard errors."""
        mean = float(self.variance.mean())
        difference = abs(float(variance.mean()) - mean)
        if mean == 0.0:
            return math.inf if difference else 0.0
        return (difference + 2.0 * self.standard_error) / mean

    def decides(self, variance: HostArray) -> bool:
        """Whether it can tell if it agrees with a mean variance: it is finite and precise enough. A
        sample that does not vary says nothing of inputs that are rare."""
        mean = float(self.variance.mean())
        expected = float(variance.mean())
        if not all(map(math.isfinite, (mean, expected, self.standard_error))):
            return False
        return self.standard_error < VAGUE * mean or mean == expected == 0.0

    def contradicts(self, variance: HostArray) -> bool:
        """Whether a mean variance differs by more than a little, and more than chance allows."""
        if not self.decides(variance):
            return False
        mean = float(self.variance.mean())
        difference = abs(float(variance.mean()) - mean)
        return difference > STANDARD_ERRORS * self.standard_error + SMALL * mean


class CheckSample:
    """Runs the network once on a batch, and measures each call of a layer."""

    def __init__(self, net: nn.Module, batch: HostArray, is_drawn: bool):
        self.is_drawn = is_drawn
        self.names = CallNames(net)
        self.calls: dict[str, list[Measured | None]] = {}
        with own_random_numbers(), no_grad(), observing(), visiting(self._visit):
            net(Tensor(_at_home(batch, net)))

    def next(self, name: str) -> Measured | None:
        """Of the next call of this name; None if the forward makes no such call, or if its result
        is no tensor."""
        calls = self.calls.get(name)
        return calls.pop(0) if calls else None

    def _visit(self, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = self.names.next(layer)

        def after_call(out: Any) -> None:
            values = out
            if knows_pre_activation(type(layer)):
                values = layer.pre_activation(out, *args, **kwargs)
            self.calls.setdefault(name, []).append(self._measured(values))

        return after_call

    def _measured(self, values: Any) -> Measured | None:
        if not isinstance(values, Tensor) or values.ndim < 2 or len(values) < 2:
            return None
        array = to_numpy(values.data).astype("float64")
        # (N, C, H, W) -> (N, C, H * W)
        return Measured.of(array.reshape(*array.shape[:2], -1), self.is_drawn)


def _at_home(batch: HostArray, net: nn.Module) -> Any:
    """With the dtype of the network's parameters, if it has fractions, and where these are."""
    for parameter in net.parameters():
        array = parameter.data
        if batch.dtype.kind == "f":
            batch = batch.astype(array.dtype)
        return from_host(batch, like=array)
    return batch


def sample_of_gaussian(mean: HostArray, covariance: HostArray, count: int = COUNT) -> HostArray:
    """So many samples of a Gaussian law."""
    z = new_generator(SEED).standard_normal((count, mean.size))
    flat = mean.ravel() + z @ root_of(covariance).T
    return flat.reshape(-1, *mean.shape)


def root_of(covariance: HostArray) -> HostArray:
    """A matrix R with R R^T = covariance, but for rounding."""
    variance = np.diagonal(covariance)
    std = np.sqrt(np.where(variance > 0.0, variance, 1.0))
    rho = covariance / np.outer(std, std)
    for slack in SLACKS:
        try:
            root = np.linalg.cholesky(rho + slack * np.eye(len(rho)))
        except np.linalg.LinAlgError:
            continue
        return root * np.where(variance > 0.0, std, 0.0)[:, None]
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def sample_of_data(data: HostArray) -> HostArray:
    """So many of the samples, or all of them."""
    if len(data) <= COUNT:
        return data
    return data[new_generator(SEED).permutation(len(data))[:COUNT]]
