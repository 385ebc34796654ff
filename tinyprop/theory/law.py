"""Networks with random weights: the law of their layers, for given samples."""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.windows import Window
from ..nn.module import observing
from .field import Field, Linear, Pointwise
from .propagate import Mixture, Propagated, layers_of, linear_map, walk

VALUES = 2048  # pairs of a sample and a position that are treated together
SAMPLES = 1024  # of a channel, for max pooling, and of a Gaussian input


@dataclass(frozen=True)
class Law(Mixture):
    """A channel of a wide layer: a Gaussian process over samples and positions, the same for all
    channels.

    Let S(p, q) be the mean over channels of x(p) x(q), for positions p, q of two samples. Random
    weights w of mean 0 make

        E u(p) u(q) = |w|^2 (mean of S(p + a, q + a) over the shifts a of the window),

    and by the central limit theorem u is Gaussian where many channels add up. An activation s makes
    S the mean of s(u(p)) s(u(q)), its dual. So S after any number of layers follows from that of
    the samples, whatever their law."""

    # There is one field; its "channels" are samples. H and W are 1 for vectors, and all pairs have
    # a correlation.
    width: int = 1  # channels of the last layer with weights
    held: tuple[Field, ...] = ()  # the inputs of residual branches

    @classmethod
    def start(cls, samples: HostArray) -> "Law":
        """From samples (N, C, H, W)."""
        mean, channels = samples.mean(axis=1), samples.shape[1]
        flat = samples.transpose(0, 2, 3, 1).reshape(-1, channels)
        return cls(
            (Field.of(mean, flat @ flat.T / channels - np.outer(mean, mean)),), gaussian=False
        )

    @property
    def field(self) -> Field:
        return self.fields[0]

    def of(self, mean: Any, covariance: HostArray, **changes: Any) -> "Law":
        return replace(self, fields=(Field.of(np.asarray(mean), covariance),), **changes)

    def bent(self, function: Pointwise) -> "Law":
        """With the mean parameters of all channels."""
        return replace(self, pending=function.each(lambda x: float(np.mean(x))))

    def scaled(self, factor: Any, shift: Any = 0.0) -> "Law":
        return replace(
            self, fields=(self.field.scaled(np.sqrt(np.mean(np.square(factor))), np.mean(shift)),)
        )

    def linear(self, weights: Linear) -> "Law":
        mean, shape = self.field.mean, self.field.mean.shape
        square = self.field.covariance().reshape(shape * 2) + np.multiply.outer(mean, mean).astype(
            self.field.rho.dtype
        )
        # Linear sees all positions, behind Flatten
        window = weights.window or Window.of(shape[1:], 1, 0)
        places = window.output((1, 1, *shape[1:]))
        total, level = (
            np.zeros((shape[0], *places) * 2, square.dtype),
            np.zeros((shape[0], *places)),
        )
        for (i, a), (j, b) in product(window.along(0, shape[1]), window.along(1, shape[2])):
            total[:, i, j, :, i, j] += square[:, a, b, :, a, b]
            level[:, i, j] += mean[:, a, b]
        size, inputs = math.prod(window.kernel), weights.weight[0].size
        total = total.reshape(level.size, level.size) / size
        if weights.centered and weights.groups > 1:
            got, rule = (
                "ScaledWS of a convolution in groups",
                "random rows are centred over all channels",
            )
            raise TypeError(explain(got, rule, "weights='given'"))
        if weights.centered:  # rows that add up to 0 see deviations from the mean of the patch
            total = total - np.outer(level, level) / size**2
            # samples have a mean of their own
            total *= inputs / (inputs - 1) if self.exact else 1.0
        length = (weights.weight**2).sum() / len(weights.weight)
        bias = np.broadcast_to(weights.bias, len(weights.weight))
        error = self.error + 1.0 / (inputs if self.exact else weights.weight.shape[1])
        return self.of(
            np.full(level.shape, bias.mean()),
            length * total + bias.var(),
            error=error,
            width=len(bias),
        )

    def max_pool(self, window: Window) -> "Law":
        """From samples of a channel; a little more variance, as rounding may make the covariance
        indefinite."""
        size = self.field.mean.size
        covariance = self.field.covariance().astype("float64").reshape(size, size)
        root = np.linalg.cholesky(covariance + 1e-6 * covariance.trace() * np.eye(size))
        z = new_generator(0).standard_normal((SAMPLES // 2, size))
        u = (np.concatenate([z, -z]) @ root.T).reshape(-1, *self.field.mean.shape) + self.field.mean
        values = u if self.pending is None else self.pending.value(u)
        pooled = F.max_pool2d(Tensor(values), window.kernel, window.stride, window.padding).numpy()
        mean, error = pooled.mean(axis=0), self.error + math.sqrt(2.0 / SAMPLES)
        rest = (pooled - mean).reshape(SAMPLES, -1)
        return self.of(mean, rest.T @ rest / SAMPLES, exact=False, error=error, pending=None)

    def flat(self) -> "Law":
        return self

    def batch_normalized(self, eps: float) -> Mixture:
        """All samples here are the batch: one group."""
        return super().normalized(1, True, eps)

    def normalized(self, groups: int, center: bool, eps: float) -> "Law":
        """The mean over many channels and the mean square are the same in all groups."""
        mean = self.field.mean - (
            self.field.mean.mean(axis=(1, 2), keepdims=True) if center else 0.0
        )
        square = (self.field.variance + mean**2).mean(axis=(1, 2)) + eps
        field, error = (
            replace(self.field, mean=mean).scaled(square**-0.5),
            self.error + groups / self.width,
        )
        return replace(self, fields=(field,), exact=False, error=error)

    def split(self) -> "Law":
        return replace(self, held=(*self.held, self.field))

    def exchanged(self, before: Mixture) -> "Law":
        return replace(self, fields=self.held[-1:], held=(*self.held[:-1], self.field))

    def joined(self, before: Mixture, alpha: float) -> "Law":
        """Random weights make the results of a branch uncorrelated with its input."""
        *held, branch = self.held
        covariance = self.field.covariance() + alpha**2 * branch.covariance()
        return self.of(
            self.field.mean + alpha * branch.mean, covariance[:, :, 0, 0], held=tuple(held)
        )

    def squares(self) -> HostArray:
        """Over positions, E u^2, and E u(p) u(q) for a sample with itself and for two different
        ones."""
        field = self.applied().fields[0]
        pairs, count = (
            field.covariance()[:, :, 0, 0] + np.outer(field.mean, field.mean),
            len(field.mean),
        )
        blocks = pairs.reshape(count, field.mean[0].size, count, -1).mean(axis=(1, 3))
        other = (blocks.sum() - blocks.trace()) / max(1, count * (count - 1))
        return np.array([pairs.trace() / len(pairs), blocks.trace() / count, other])


def law(net: nn.Module, given: HostArray | tuple[HostArray, HostArray]) -> list[Propagated]:
    """The records of `propagate`, for samples or a Gaussian, which is represented by samples of
    it."""
    if sampled := isinstance(given, tuple):
        mean, covariance = given
        given = new_generator(0).multivariate_normal(
            mean.ravel(), covariance, SAMPLES, method="eigh"
        )
        given = given.reshape(-1, *mean.shape)
    layers, x, first, records = layers_of(net), Tensor(given), 0, []
    with no_grad(), observing():  # what is in front of the first weights is applied to the samples
        while first < len(layers) and not any(map(linear_map, layers[first].modules())):
            x = layers[first](x)
            units = np.moveaxis(x.numpy(), 1, -1).reshape(-1, x.shape[1]).astype("float64")
            moments = (
                np.sqrt([(units.mean(axis=0) ** 2).mean()]),
                np.array([units.var(axis=0).mean()]),
            )
            records.append(
                Propagated(f"{first} {type(layers[first]).__name__}", *moments, not sampled, 0.0)
            )
            first += 1
    samples = x.numpy() if x.ndim == 4 else x.numpy().astype("float64")[:, :, None, None]
    blocks = np.array_split(samples, -(-len(samples) // max(2, VALUES // samples[0, 0].size)))
    n, sizes = len(samples), [len(block) for block in blocks]
    for states in zip(
        *(walk(layers[first:], Law.start(block), first=first) for block in blocks), strict=True
    ):
        square, same, other = np.average(
            [state.squares() for _, state in states], axis=0, weights=sizes
        )
        of_mean = max(same / n + (1.0 - 1.0 / n) * other, 0.0)
        name, state = states[0]
        exact = state.exact and state.pending is None and not sampled
        error = (0.0 if exact else state.bound + state.error) + (
            math.sqrt(2.0 / n) if sampled else 0.0
        )
        records.append(
            Propagated(name, np.sqrt([of_mean]), np.array([square - of_mean]), exact, error)
        )
    return records
