"""Fields: the mean and the covariance of all values of a layer, and what linear maps and activations do to them.

A field of at most `WHOLE` values has its whole covariance. A larger one, an image, has a mean and a variance for each
value, and correlations that depend on both channels and on the offset between two positions, not on the positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.arrays import HostArray, to_numpy
from ..engine.tensor import Tensor
from ..moments.quadrature import gauss_legendre
from ..windows import Window

WHOLE = 4096  # values whose covariance may be stored as a matrix
SMALL = 1024  # values for which that is faster than by offsets
DEGREES = 12  # of Hermite polynomials
SAMPLES = 512  # quasi-random samples of a pooling window


@dataclass(frozen=True)
class Field:
    """One of the Gaussians that stand for the values of a layer."""

    mean: HostArray  # (C, H, W), or (units,)
    variance: HostArray
    whole: HostArray | None  # the covariance of all values, flattened; without it, the next one:
    offsets: HostArray | None = None  # covariances (C, C, 2H - 1, 2W - 1), averaged over positions; offset 0 is central

    def correlations(self) -> HostArray:
        """(C, C, 2H - 1, 2W - 1), averaged over positions."""
        if self.offsets is None:
            return _averaged(self)
        return _normalized(self.offsets, np.einsum("iiab->iab", self.offsets)[:, *self.center()])

    def covariances(self) -> HostArray:
        """(C, C, 2H - 1, 2W - 1), averaged over positions."""
        return _spread(self.correlations(), self.variance) if self.offsets is None else self.offsets

    def center(self) -> tuple[int, int]:
        """Where the offset 0 is."""
        return self.mean.shape[1] - 1, self.mean.shape[2] - 1

    def scaled(self, factor: HostArray, shift: HostArray) -> "Field":
        """factor * x + shift; both have the shape of the mean, or one value per channel."""
        factor, shift = (_per_channel(x, self.mean.ndim) for x in (factor, shift))
        whole, offsets = self.whole, self.offsets
        if whole is not None:
            flat = np.broadcast_to(factor, self.mean.shape).ravel().astype(whole.dtype)
            whole = whole * flat[:, None] * flat
        if offsets is not None:
            flat = factor.ravel().astype(offsets.dtype)
            offsets = offsets * (flat[:, None] * flat)[:, :, None, None]
        return Field(factor * self.mean + shift, factor**2 * self.variance, whole, offsets)

    def flat(self) -> "Field":
        """As a vector, with a matrix."""
        whole = _matrix(self.variance, self.correlations()) if self.whole is None else self.whole
        return Field(self.mean.ravel(), self.variance.ravel(), whole)

    def noisy(self, variance: HostArray) -> "Field":
        """Plus independent noise of this variance."""
        if self.whole is not None:
            return replace(self, variance=self.variance + variance, whole=self.whole + np.diag(variance.ravel()))
        offsets, each = self.covariances().copy(), np.arange(len(variance))
        offsets[each, each, *self.center()] += variance.mean(axis=(1, 2))
        return Field(self.mean, self.variance + variance, None, offsets)


def with_variance(mean: HostArray, variance: HostArray, correlations: HostArray) -> Field:
    """The field with this mean and variance, and these correlations at each offset; as a matrix if it is small."""
    if mean.size > SMALL:
        return Field(mean, variance, None, _spread(correlations, variance))
    return Field(mean, variance, _matrix(variance, correlations))


def _spread(correlations: HostArray, variance: HostArray) -> HostArray:
    """Covariances at each offset, with the mean variance of each channel."""
    std = np.sqrt(variance.mean(axis=(1, 2)))
    return correlations * (std[:, None] * std)[:, :, None, None].astype(correlations.dtype)


def _normalized(covariances: HostArray, variance: HostArray) -> HostArray:
    """Correlations at each offset, given the variance of each channel."""
    std = _roots(variance)
    return np.clip(covariances / (std[:, None] * std)[:, :, None, None].astype(covariances.dtype), -1.0, 1.0)


def _matrix(variance: HostArray, correlations: HostArray) -> HostArray:
    """The covariance of all values, with these correlations at each offset."""
    h, w = variance.shape[1:]
    rows, columns = (np.arange(n) - np.arange(n)[:, None] + n - 1 for n in (h, w))  # q - p, from 0
    whole = correlations[:, :, rows[:, None, :, None], columns[None, :, None, :]]  # (C, C, H, W, H, W)
    std = np.sqrt(variance).ravel()
    matrix = whole.transpose(0, 2, 3, 1, 4, 5).reshape(std.size, std.size) * (std[:, None] * std)
    np.fill_diagonal(matrix, variance.ravel())
    return matrix


def _averaged(field: Field) -> HostArray:
    """The correlations of a matrix, averaged over all pairs of positions with the same offset."""
    c, h, w = field.mean.shape
    rows, columns = (np.arange(n) - np.arange(n)[:, None] + n - 1 for n in (h, w))
    place = (rows[:, None, :, None] * (2 * w - 1) + columns[None, :, None, :]).ravel()  # of p, q -> that of q - p
    size = (2 * h - 1) * (2 * w - 1)
    count = np.bincount(place, minlength=size)
    assert field.whole is not None
    std = _roots(field.variance).reshape(c, h * w)
    blocks = field.whole.reshape(c, h * w, c, h * w)
    sums = [
        [np.bincount(place, (blocks[i, :, j] / np.outer(std[i], std[j])).ravel(), size) for j in range(c)]
        for i in range(c)
    ]
    return (np.array(sums) / count).reshape(c, c, 2 * h - 1, 2 * w - 1).astype("float32")


# Linear maps.


@dataclass(frozen=True)
class Linear:
    """A linear map of vectors or of images; for images also as filters (O, C, kh, kw) and their window."""

    apply: Callable[[Tensor, Tensor], Tensor]  # of a batch, with weights
    weight: HostArray
    bias: HostArray | float = 0.0
    window: Window | None = None
    groups: int = 1

    def of(self, batch: HostArray, weight: HostArray | None = None) -> HostArray:
        weight = self.weight if weight is None else weight
        return to_numpy(self.apply(Tensor(batch), Tensor(weight.astype(batch.dtype))).data)

    def __call__(self, field: Field) -> Field:
        mean = self.of(field.mean[None])[0]
        if field.whole is not None and (mean.ndim == 1 or mean.size <= WHOLE):
            half = self.of(field.whole.reshape(-1, *field.mean.shape))  # (n, ...)
            whole = self.of(np.ascontiguousarray(half.reshape(len(half), -1).T).reshape(-1, *field.mean.shape))
            whole = whole.reshape(mean.size, mean.size)
            result = Field(mean, np.diag(whole).reshape(mean.shape).astype("float64"), whole)
        else:
            result = with_variance(mean, self.variances(field, mean.shape), self.correlations(field, mean.shape))
        return replace(result, mean=result.mean + _per_channel(self.bias, mean.ndim))

    def concentration(self, field: Field) -> float:
        """The sum of the squared shares that single inputs have in a unit's variance: 1 / (their effective number).

        By the central limit theorem, it is the rate at which units deviate from Gaussian ones.
        """
        share, square = (self.of(field.variance[None] ** k, self.weight ** (2 * k)) for k in (1, 2))
        return float(np.mean(square / np.maximum(share**2, 1e-300)))

    def dense(self) -> HostArray:
        """The filters without groups: (O, C, kh, kw)."""
        o, c, kh, kw = self.weight.shape
        dense = np.zeros((self.groups, o // self.groups, self.groups, c, kh, kw))
        for g, filters in enumerate(self.weight.reshape(self.groups, -1, c, kh, kw)):
            dense[g, :, g] = filters
        return dense.reshape(o, self.groups * c, kh, kw)

    def variances(self, field: Field, shape: tuple[int, ...]) -> HostArray:
        """w^T C w, with C the covariance of the patch at each position; it is 0 on the padding.

        Patches of a large field have the correlations of their offsets, and standard deviations of their own if the
        filters are 1x1, otherwise those averaged over all patches with the same padding.
        """
        assert self.window is not None
        filters, std = self.dense(), np.sqrt(field.variance)
        o, c, kh, kw = filters.shape
        index = _patches(self.window, np.arange(1.0, std.size + 1).reshape(std.shape)).astype(int) - 1  # -1: padding
        index = index.reshape(len(index), -1)
        flat = filters.reshape(o, -1)
        if field.whole is not None:
            inside = index >= 0
            found = [
                ((x := flat * i) @ field.whole[np.ix_(p, p)] * x).sum(1) for p, i in zip(index, inside, strict=True)
            ]
            return np.array(found).T.reshape(shape)
        correlations = field.correlations()
        h, w = std.shape[1:]
        down, across = (self.window.dilation[i] * np.arange(k) for i, k in enumerate((kh, kw)))
        rows, columns = down - down[:, None] + h - 1, across - across[:, None] + w - 1
        patch = correlations[:, :, rows[:, None, :, None], columns[None, :, None, :]]  # (C, C, kh, kw, kh, kw)
        patch = patch.transpose(0, 2, 3, 1, 4, 5).reshape(c * kh * kw, -1).astype("float64")
        spread = np.append(std.ravel(), 0.0)[index]  # (positions, patch)
        kinds = np.arange(len(index))
        if kh * kw > 1:
            _, kinds = np.unique(index[:, : kh * kw] >= 0, axis=0, return_inverse=True)
            spread = np.stack([spread[kinds == k].mean(axis=0) for k in range(kinds.max() + 1)])
        found = [((x := flat * s) @ patch * x).sum(axis=1) for s in spread]
        return np.array(found)[kinds].T.reshape(shape)

    def correlations(self, field: Field, shape: tuple[int, ...]) -> HostArray:
        """W S W^T at each frequency, where S is the transform of the covariances; padding is left out of account."""
        assert self.window is not None
        before, filters, (h, w) = field.covariances(), self.dense(), field.mean.shape[1:]
        steps = [(s * np.arange(1 - n, n)) for s, n in zip(self.window.stride, shape[1:], strict=True)]
        reach = [d * (k - 1) for d, k in zip(self.window.dilation, filters.shape[2:], strict=True)]
        before = np.pad(before, [(0, 0), (0, 0), *((r, r) for r in reach)], mode="edge")  # beyond the image
        size = before.shape[2:]
        spaced = np.zeros((*filters.shape[:2], *(r + 1 for r in reach)), "float32")
        spaced[:, :, :: self.window.dilation[0], :: self.window.dilation[1]] = filters
        s, f = (np.fft.rfft2(x, size).transpose(2, 3, 0, 1).astype("complex64") for x in (before, spaced))
        product = f @ s @ f.conj().swapaxes(-1, -2)
        after = np.fft.irfft2(product.transpose(2, 3, 0, 1), size).astype("float32")
        i, j = (offset + n - 1 + r for offset, n, r in zip(steps, (h, w), reach, strict=True))
        after = after[:, :, i[:, None], j]
        return _normalized(after, np.einsum("iiab->iab", after)[:, shape[1] - 1, shape[2] - 1])


def _patches(window: Window, image: HostArray) -> HostArray:
    """(C, H, W) -> (positions, C, kh, kw), with 0 on the padding."""
    views = window.views(window.padded(image.transpose(1, 2, 0)[None]))[0]  # (rows, columns, kh, kw, C)
    rows, columns, kh, kw, c = views.shape
    return views.transpose(0, 1, 4, 2, 3).reshape(rows * columns, c, kh, kw)


# Activations.


@dataclass(frozen=True)
class Pointwise:
    """The function (s(u) - c2) / c1 of every value; parameters, c1 and c2 are numbers, or one value per channel."""

    name: str
    params: dict[str, Any]
    c1: Any = 1.0
    c2: Any = 0.0

    def value(self, u: HostArray, channel: int | None = None) -> HostArray:
        """Of values (C, ...), or of any of one channel."""

        def own(x: Any) -> Any:
            return _per_channel(x, u.ndim) if channel is None or not np.ndim(x) else float(x[channel])

        s = (
            u
            if self.name == "identity"
            else getattr(F, self.name)(Tensor(u), **{k: own(v) for k, v in self.params.items()}).data
        )
        return (s - own(self.c2)) / own(self.c1)

    def moments(self, mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
        """Mean and variance of its values."""
        params = {k: _per_channel(v, mean.ndim) for k, v in self.params.items()}
        found = moments.gaussian(self.name, mean, np.sqrt(variance), **params)
        c1, c2 = (_per_channel(x, mean.ndim) for x in (self.c1, self.c2))
        return (found.mean - c2) / c1, (found.std / c1) ** 2

    def hermite(self, mean: HostArray, variance: HostArray, full: HostArray) -> tuple[HostArray, float]:
        """Coefficients (DEGREES, C, ...) whose squares add up to the variance `full`, and how much of it they lacked.

        Cov(s(U), s(V)) = sum a_k b_k rho^k (Mehler). What the first degrees leave is given to the last two.
        """
        kinks = (-1.0, 0.0, 1.0) if self.name == "hardtanh" else (0.0,)
        std = np.sqrt(variance)[..., None]
        edges = np.broadcast_to(np.linspace(-8.0, 8.0, 17), (*mean.shape, 17))
        breaks = [np.clip((k - mean[..., None]) / np.maximum(std, 1e-12), -8.0, 8.0) for k in kinks]
        edges = np.sort(np.concatenate([edges, *breaks], axis=-1), axis=-1)
        nodes, weights = gauss_legendre(8)
        lengths = np.diff(edges)[..., None]
        z = (edges[..., :-1, None] + lengths * nodes).reshape(*mean.shape, -1)
        density = (lengths * weights).reshape(z.shape) * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        values = density * self.value(mean[..., None] + std * z)
        before, here, found = np.zeros_like(z), np.ones_like(z), []
        for k in range(1, DEGREES + 1):
            before, here = here, (z * here - math.sqrt(k - 1.0) * before) / math.sqrt(k)
            found.append((values * here).sum(axis=-1))
        a = np.array(found)
        rest = np.maximum(full - (a**2).sum(axis=0), 0.0)
        last = (a[-2:] ** 2).sum(axis=0)
        a[-2:] *= np.where(last > 0, np.sqrt(1.0 + rest / np.maximum(last, 1e-300)), 1.0)
        return a, float(rest.mean() / max(full.mean(), 1e-300))

    def __call__(self, field: Field) -> tuple[Field, float]:
        """The field of its values, and a bound of the relative error of covariances."""
        mean, variance = self.moments(field.mean, field.variance)
        if field.whole is not None:
            a, error = self.hermite(field.mean, field.variance, variance)
            flat = a.reshape(DEGREES, -1)
            std = _roots(field.variance).ravel()
            whole = _series(field.whole / (std[:, None] * std), flat)
            np.fill_diagonal(whole, variance.ravel())
            return Field(mean, variance, whole), error
        centre, spread = field.mean.mean(axis=(1, 2)), field.variance.mean(axis=(1, 2))
        a, error = self.hermite(centre, spread, self.moments(centre, spread)[1])
        series = _series(field.correlations(), a[:, :, None, None])
        std = _roots((a**2).sum(axis=0))
        correlations = series / (std[:, None] * std)[:, :, None, None].astype(series.dtype)
        return with_variance(mean, variance, correlations), error


def _series(rho: HostArray, a: HostArray) -> HostArray:
    """sum a_k(i) a_k(j) rho(i, j)^k"""
    power, total = rho.copy(), np.zeros_like(rho)
    for coefficients in a.astype(rho.dtype):
        total += coefficients[:, None] * coefficients * power
        power *= rho
    return total


# Max pooling.


@cache
def normal_points(dimensions: int) -> HostArray:
    """Quasi-random samples of N(0, 1), which have exactly its mean and covariance: an additive recurrence."""
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    uniform = (0.5 + np.outer(np.arange(1, SAMPLES // 2 + 1), steps)) % 1.0
    z = np.vectorize(NormalDist().inv_cdf)(np.clip(uniform, 1e-9, 1.0 - 1e-9))
    z = np.concatenate([z, -z])
    return np.linalg.solve(np.linalg.cholesky(z.T @ z / SAMPLES), z.T).T


def max_pool(field: Field, pointwise: Pointwise | None, window: Window) -> Field:
    """The largest value of each window, sampled with the correlations of each channel.

    Two windows correlate as the averages of their values do, weighted by how often each is the largest: exactly so,
    by Stein's lemma, between a maximum of Gaussian values and another Gaussian.
    """
    (c, _, _), (kh, kw) = field.mean.shape, window.kernel
    rows, columns = window.output((1, *field.mean.shape))
    inside = _patches(window, np.ones_like(field.mean))[:, 0].reshape(rows * columns, -1) > 0
    mean, std = (_patches(window, x).reshape(rows * columns, c, -1) for x in (field.mean, np.sqrt(field.variance)))
    correlations = field.correlations()
    h, w = field.mean.shape[1:]
    i, j = (x.ravel() for x in np.mgrid[:kh, :kw])
    z = normal_points(kh * kw)
    out_mean, out_variance, wins = np.zeros((c, rows * columns)), np.zeros((c, rows * columns)), np.zeros((c, kh * kw))
    for k in range(c):
        matrix = correlations[k, k][i - i[:, None] + h - 1, j - j[:, None] + w - 1].astype("float64")
        values, vectors = np.linalg.eigh(matrix)
        y = (z * np.sqrt(np.maximum(values, 0.0))) @ vectors.T  # (samples, window)
        best = np.full((rows * columns, SAMPLES), -np.inf)
        first, largest = np.zeros(best.shape, int), best.copy()
        for e in range(kh * kw):
            u = np.where(inside[:, e, None], mean[:, k, e, None] + std[:, k, e, None] * y[:, e], -np.inf)
            value = u
            if pointwise is not None:
                value = np.where(inside[:, e, None], pointwise.value(np.where(np.isinf(u), 0.0, u), k), -np.inf)
            wider = (value > largest) | ((value == largest) & (u > best))
            best, largest, first = np.where(wider, u, best), np.where(wider, value, largest), np.where(wider, e, first)
        out_mean[k], out_variance[k] = largest.mean(axis=1), largest.var(axis=1)
        wins[k] = np.bincount(first.ravel(), minlength=kh * kw) / first.size
    shape = c, rows, columns
    before = field if pointwise is None else pointwise(field)[0]
    weights = Linear(lambda x, _: x, wins.reshape(c, 1, kh, kw), 0.0, window, c)
    after = weights.correlations(before, shape)
    return with_variance(out_mean.reshape(shape), out_variance.reshape(shape), after)


def _per_channel(x: Any, ndim: int) -> Any:
    """(C,) -> (C, 1, 1), to go with (C, H, W); numbers and whole maps stay as they are."""
    x = np.asarray(x, "float64")
    return x.reshape(-1, *[1] * (ndim - 1)) if x.ndim == 1 and x.size > 1 else x if x.ndim else float(x)


def _roots(variance: HostArray) -> HostArray:
    """Standard deviations, to divide by: 1 for a constant, whose covariances are 0."""
    return np.sqrt(np.where(variance > 0, variance, 1.0))
