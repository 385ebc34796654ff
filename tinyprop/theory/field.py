"""Fields: the mean and the covariance of all values of a layer, and what linear maps and
activations do to them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..functional.windows import Window
from ..moments.hermite import hermite, largest

WHOLE = 4096  # values whose correlations may be stored for each pair
DEGREES = 12  # of Hermite polynomials


@dataclass(frozen=True)
class Field:
    """One of the Gaussians that stand for the values of a layer.

    There is a correlation for each two cells and each offset between them. At most `WHOLE` values
    are cells of their own, with no other offset than 0. In an image of more, the cells are its
    channels, and two positions correlate by their offset, wherever they are."""

    mean: HostArray  # (C, H, W), or (units,)
    variance: HostArray
    # (cells, cells, 2H - 1, 2W - 1), or (values, values, 1, 1), with the offset 0 in the center
    rho: HostArray
    held: int = 0  # leading channels that belong to the input of a residual branch

    @classmethod
    def of(cls, mean: HostArray, covariance: HostArray) -> "Field":
        """From the covariance matrix of all values."""
        variance = np.diagonal(covariance).astype("float64").reshape(mean.shape)
        std = nonzero(variance).ravel().astype(covariance.dtype)
        return cls(mean, variance, (covariance / (std[:, None] * std))[:, :, None, None])

    @property
    def whole(self) -> bool:
        return len(self.rho) == self.mean.size

    @property
    def live(self) -> tuple[HostArray, HostArray]:
        """Mean and variance without the channels that are held."""
        return self.mean[self.held :], self.variance[self.held :]

    @property
    def positions(self) -> tuple[int, int]:
        """Of a cell, down and across."""
        return self.rho.shape[2] // 2 + 1, self.rho.shape[3] // 2 + 1

    def pairs(self) -> HostArray:
        """How many pairs of positions there are for each offset."""
        rows, columns = (n - abs(np.arange(1.0 - n, n)) for n in self.positions)
        return np.outer(rows, columns)

    def by_cell(self, x: HostArray) -> HostArray:
        """The mean of values in each cell."""
        return x.reshape(len(self.rho), -1).mean(axis=1)

    def covariance(self) -> HostArray:
        """For each two cells and each offset."""
        return self.rho * outer(np.sqrt(self.by_cell(self.variance)), self.rho)

    def by_offset(self) -> HostArray:
        """Correlations (C, C, 2H - 1, 2W - 1), averaged over all pairs of positions with the same
        offset."""
        if not self.whole:
            return self.rho
        c, h, w = self.mean.shape
        place, size = offsets(h, w).ravel(), (2 * h - 1) * (2 * w - 1)
        blocks = self.rho.reshape(c, h * w, c, h * w)
        sums = [np.bincount(place, blocks[i, :, j].ravel(), size) for i, j in np.ndindex(c, c)]
        found = np.array(sums) / np.bincount(place, minlength=size)
        return found.reshape(c, c, 2 * h - 1, 2 * w - 1).astype("float32")

    def take(self, channels: HostArray, held: int) -> "Field":
        """These channels, some of them perhaps twice."""
        cells = np.arange(len(self.rho)).reshape(len(self.mean), -1)[channels].ravel()
        return Field(
            self.mean[channels], self.variance[channels], self.rho[np.ix_(cells, cells)], held
        )

    def scaled(self, factor: Any, shift: Any = 0.0) -> "Field":
        """factor * x + shift; both have the shape of the mean, or one value per channel."""
        factor, shift = self.padded(factor, 1.0), self.padded(shift, 0.0)
        rho = self.rho * outer(self.by_cell(np.sign(factor)), self.rho)
        return Field(factor * self.mean + shift, factor**2 * self.variance, rho, self.held)

    def dropped(self, p: float) -> "Field":
        """With dropout: each value is multiplied by 0 or 1 / (1 - p)."""
        total = self.variance + self.padded(p / (1.0 - p), 0.0) * (self.variance + self.mean**2)
        rho = self.rho * outer(self.by_cell(np.sqrt(self.variance / nonzero(total) ** 2)), self.rho)
        each, (h, w) = np.arange(len(rho)), self.positions
        rho[each, each, h - 1, w - 1] = 1.0
        return replace(self, variance=total, rho=rho)

    def centered(self, groups: int) -> "Field":
        """Every value minus the mean of its group of channels, over positions too."""
        size = self.mean.size // len(self.rho)  # of a cell
        held = self.held * self.mean[0].size // size

        def averaged(x: HostArray) -> HostArray:
            """The mean over each group of cells; 0 for what is held."""
            parts = x[held:].reshape(groups, -1, *x.shape[1:])
            means = np.repeat(parts.mean(axis=1), parts.shape[1], axis=0)
            return np.concatenate([np.zeros_like(x[:held]), means])

        def of_values(x: HostArray) -> HostArray:
            return np.repeat(x, size).reshape(self.mean.shape)

        covariance = self.covariance()
        with_mean = averaged(np.tensordot(covariance, self.pairs() / size**2, 2)).T
        change = averaged(with_mean) - with_mean - with_mean.T
        mean = self.mean - of_values(averaged(self.by_cell(self.mean)))
        variance = np.maximum(self.variance + of_values(np.diagonal(change)), 0.0)
        return Field(mean, variance, normalized(covariance + change[:, :, None, None]), self.held)

    def mean_square(self) -> tuple[float, float]:
        """The expected mean square of all values, and its relative variance if they are
        Gaussian."""
        covariance, size = self.covariance(), float((self.variance + self.mean**2).sum())
        products = 2.0 * covariance**2 + 4.0 * covariance * outer(
            self.by_cell(self.mean), covariance
        )
        return size / self.mean.size, float((products * self.pairs()).sum()) / max(size**2, 1e-300)

    def normalized(self, groups: int, center: bool, eps: float) -> tuple["Field", float]:
        """Every group of channels divided by the root of its expected mean square: an error of O(1
        / its size)."""
        field = self.centered(groups) if center else self
        channels = np.arange(self.held, len(self.mean)).reshape(groups, -1)
        sizes, errors = zip(*(field.take(some, 0).mean_square() for some in channels), strict=True)
        return field.scaled(np.repeat((np.array(sizes) + eps) ** -0.5, channels.shape[1])), max(
            errors
        )

    def flat(self) -> "Field":
        """As a vector."""
        cells, size = len(self.rho), self.mean.size
        # (cells, cells, P, P)
        rho = self.rho.reshape(cells, cells, -1)[:, :, offsets(*self.positions)]
        rho = rho.transpose(0, 2, 1, 3).reshape(size, size, 1, 1)
        return Field(
            self.mean.ravel(), self.variance.ravel(), rho, self.held * size // len(self.mean)
        )

    def padded(self, x: Any, value: float) -> HostArray:
        """x, one per channel or value, with a shape like the mean; `value` in the channels that are
        held."""
        x = np.broadcast_to(per_channel(x, self.mean.ndim), self.live[0].shape)
        return np.concatenate([np.full((self.held, *x.shape[1:]), value), x])


def per_channel(x: Any, ndim: int) -> Any:
    """(C,) -> (C, 1, 1), to go with (C, H, W); numbers and whole maps stay as they are."""
    x = np.asarray(x, "float64")
    return (
        x.reshape(-1, *[1] * (ndim - 1))
        if x.ndim == 1 and x.size > 1
        else x
        if x.ndim
        else float(x)
    )


def nonzero(variance: HostArray) -> HostArray:
    """Standard deviations, to divide by: 1 for a constant, whose covariances are 0."""
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def outer(x: HostArray, like: HostArray) -> HostArray:
    """x_i x_j, to go with correlations."""
    return (x[:, None] * x).astype(like.dtype)[:, :, None, None]


def normalized(covariance: HostArray) -> HostArray:
    """Correlations from covariances, for each two cells and each offset."""
    _, _, h, w = covariance.shape
    std = nonzero(np.diagonal(covariance[:, :, h // 2, w // 2]))
    return np.clip(covariance / outer(std, covariance), -1.0, 1.0)


def offsets(h: int, w: int) -> HostArray:
    """The offset q - p of two positions of an image, as an index: (H W, H W)."""
    rows, columns = (np.arange(n) - np.arange(n)[:, None] + n - 1 for n in (h, w))
    return (rows[:, None, :, None] * (2 * w - 1) + columns[None, :, None, :]).reshape(h * w, h * w)


@dataclass(frozen=True)
class Linear:
    """x (..., units) @ weight.T + bias, or the convolution of images with filters (O, C, kh,
    kw)."""

    weight: HostArray
    bias: Any = 0.0
    window: Window | None = None
    centered: bool = False  # whether rows add up to 0, for random weights
    groups: int = 1

    def of(self, batch: HostArray, weight: HostArray | None = None) -> HostArray:
        """Without the bias."""
        x, w = (
            Tensor(batch),
            Tensor((self.weight if weight is None else weight).astype(batch.dtype)),
        )
        if self.window is None:
            return to_numpy(F.linear(x, w).data)
        return to_numpy(
            F.conv2d(x, w, None, self.window.stride, self.window.padding, self.window.dilation).data
        )

    def __call__(self, field: Field) -> Field:
        this = self.beside(field.held) if field.held else self
        mean = this.of(field.mean[None])[0]
        if field.whole and (mean.ndim == 1 or mean.size <= WHOLE):
            # (values before, ...)
            half = this.of(field.covariance().reshape(-1, *field.mean.shape))
            both = this.of(
                np.ascontiguousarray(half.reshape(len(half), -1).T).reshape(-1, *field.mean.shape)
            )
            result = Field.of(mean, both.reshape(mean.size, mean.size))
        else:
            result = Field(
                mean, this.variances(field, mean.shape), this.correlations(field, mean.shape)
            )
        return replace(result, mean=mean + per_channel(this.bias, mean.ndim), held=field.held)

    def beside(self, held: int) -> "Linear":
        """The same map, with some channels in front that it only copies."""
        (o, c, *kernel), window = self.weight.shape, self.window
        if window is not None:
            same = tuple(d * (k - 1) for d, k in zip(window.dilation, kernel, strict=True))
            if window.stride != (1, 1) or tuple(2 * p for p in window.padding) != same:
                got, rule = (
                    f"{window} in a residual branch",
                    "propagate compares images of one size inside a branch",
                )
                raise TypeError(explain(got, rule, "stride 1 and padding (kernel_size - 1) / 2"))
        weight, each = np.zeros((held + o, held + c, *kernel)), np.arange(held)
        weight[held:, held:] = self.weight
        weight[(each, each, *(k // 2 for k in kernel))] = 1.0
        bias = np.concatenate([np.zeros(held), np.broadcast_to(self.bias, o)])
        return replace(self, weight=weight, bias=bias)

    def concentration(self, variance: HostArray) -> float:
        """The sum of the squared shares that single inputs have in a unit's variance: 1 / (their
        effective number).

        By the central limit theorem, it is the rate at which units deviate from Gaussian ones.
        """
        share, square = (self.of(variance[None] ** k, self.weight ** (2 * k)) for k in (1, 2))
        return float(np.mean(square / np.maximum(share**2, 1e-300)))

    def variances(self, field: Field, shape: tuple[int, ...]) -> HostArray:
        """w^T C w, with C the covariance of the patch at each position; it is 0 on the padding.

        Patches of a large field have the correlations of their offsets, and standard deviations of
        their own if the filters are 1x1, otherwise those averaged over all patches with the same
        padding."""
        assert self.window is not None
        std, (o, c, kh, kw) = np.sqrt(field.variance), self.weight.shape
        flat, index = self.weight.reshape(o, -1), patches(self.window, std.shape)
        spread, kinds = np.append(std, 0.0)[index], np.arange(len(index))  # (positions, patch)
        if field.whole:
            pairs: Iterable[HostArray] = (field.rho[np.ix_(i, i)][..., 0, 0] for i in index)
        else:
            rho = (
                field.rho[:, :, *self.taps(*std.shape[1:])]
                .transpose(0, 2, 1, 3)
                .reshape(c * kh * kw, -1)
            )
            pairs = repeat(rho)
            if kh * kw > 1:
                _, kinds = np.unique(index[:, : kh * kw] >= 0, axis=0, return_inverse=True)
                spread = np.stack([spread[kinds == k].mean(axis=0) for k in range(kinds.max() + 1)])
        found = [
            ((x := flat * s) @ rho * x).sum(axis=1) for s, rho in zip(spread, pairs, strict=False)
        ]
        return np.array(found)[kinds].T.reshape(shape)

    def taps(self, h: int, w: int) -> tuple[HostArray, HostArray]:
        """For two elements of the kernel, where their offset is in correlations of images (H,
        W)."""
        assert self.window is not None
        i, j = (
            d * x.ravel()
            for d, x in zip(self.window.dilation, np.indices(self.window.kernel), strict=True)
        )
        return i - i[:, None] + h - 1, j - j[:, None] + w - 1

    def correlations(self, field: Field, shape: tuple[int, ...]) -> HostArray:
        """W S W^T at each frequency, where S is the transform of the covariances; padding is left
        out of account."""
        assert self.window is not None
        before, size = replace(field, rho=field.by_offset()).covariance(), field.mean.shape[1:]
        # the largest offset
        last = [s * (n - 1) for s, n in zip(self.window.stride, shape[1:], strict=True)]
        ends = [self.window.extent(axis) - 1 for axis in (0, 1)]
        margin = [e + max(0, m - n + 1) for e, m, n in zip(ends, last, size, strict=True)]
        # beyond the image
        before = np.pad(before, [(0, 0), (0, 0), *((m, m) for m in margin)], mode="edge")
        filters = np.zeros((*self.weight.shape[:2], *(e + 1 for e in ends)), "float32")
        filters[:, :, :: self.window.dilation[0], :: self.window.dilation[1]] = self.weight
        s, f = (
            np.fft.rfft2(x, before.shape[2:]).transpose(2, 3, 0, 1).astype("complex64")
            for x in (before, filters)
        )
        product = f @ s @ f.conj().swapaxes(-1, -2)
        after = np.fft.irfft2(product.transpose(2, 3, 0, 1), before.shape[2:]).astype("float32")
        center = [n - 1 + m for n, m in zip(size, margin, strict=True)]
        i, j = (
            slice(c - m, c + m + 1, s)
            for c, m, s in zip(center, last, self.window.stride, strict=True)
        )
        return normalized(after[:, :, i, j])


def patches(window: Window, shape: tuple[int, ...]) -> HostArray:
    """Where the values of each patch are in an image (C, H, W): (positions, C kh kw), with -1 on
    the padding."""
    index = np.arange(math.prod(shape)).reshape(shape)
    # (rows, columns, kh, kw, C)
    views = window.unfold(index.transpose(1, 2, 0)[None], -1)[0]
    return views.transpose(0, 1, 4, 2, 3).reshape(views.shape[0] * views.shape[1], -1)


@dataclass(frozen=True)
class Pointwise:
    """The function (s(u) - c2) / c1 of every value; parameters, c1 and c2 are numbers, or one value
    per channel."""

    activation: Activation
    params: dict[str, Any]
    c1: Any = 1.0
    c2: Any = 0.0

    def each(self, change: Callable[[Any], Any]) -> "Pointwise":
        """With all numbers changed."""
        params = {name: change(x) for name, x in self.params.items()}
        return Pointwise(self.activation, params, change(self.c1), change(self.c2))

    def of_channel(self, k: int) -> "Pointwise":
        return self.each(lambda x: x[k] if np.size(x) > 1 else x)

    def value(self, u: HostArray) -> HostArray:
        """Of values (C, ...)."""
        this = self.each(lambda x: per_channel(x, u.ndim))
        return (self.activation(Tensor(u), **this.params).data - this.c2) / this.c1

    def moments(self, mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
        """Mean and variance of its values."""
        this = self.each(lambda x: per_channel(x, mean.ndim))
        found = moments.gaussian(self.activation, mean, np.sqrt(variance), **this.params)
        return (found.mean - this.c2) / this.c1, (found.std / this.c1) ** 2

    def __call__(self, field: Field) -> tuple[Field, float]:
        """The field of its values, and a bound of the relative error of covariances.

        Covariances are Mehler's series; what the first degrees leave of the variance is given to
        the last two."""
        mean, variance = self.moments(*field.live)
        m, v = field.live if field.whole else (x.mean(axis=(1, 2)) for x in field.live)
        a, full = hermite(self.value, m, np.sqrt(v), DEGREES), self.moments(m, v)[1]
        rest, last = np.maximum(full - (a**2).sum(axis=0), 0.0), (a[-2:] ** 2).sum(axis=0)
        a[-2:] *= np.where(last > 0, np.sqrt(1.0 + rest / np.maximum(last, 1e-300)), 1.0)
        a = (a / nonzero((a**2).sum(axis=0))).reshape(DEGREES, -1)
        # of channels that are held
        first = np.eye(DEGREES)[:, :1].repeat((len(field.rho) - a.shape[1]), axis=1)
        rho, power = np.zeros_like(field.rho), field.rho.copy()
        for coefficients in np.concatenate([first, a], axis=1):
            rho += outer(coefficients, rho) * power
            power *= field.rho
        mean, variance = (
            np.concatenate([x[: field.held], y])
            for x, y in ((field.mean, mean), (field.variance, variance))
        )
        return Field(mean, variance, rho, field.held), float(rest.mean() / max(full.mean(), 1e-300))


def max_pool(field: Field, function: Pointwise, window: Window) -> Field:
    """The largest value of each window, sampled with the correlations of each channel.

    Two windows correlate as the averages of their values do, weighted by how often each is the
    largest: exactly so, by Stein's lemma, between a maximum of Gaussian values and another
    Gaussian."""
    c, h, w = field.mean.shape
    index = patches(window, (c, h, w)).reshape(-1, c, math.prod(window.kernel))
    mean, std = (
        np.append(field.mean, -np.inf)[index],
        np.append(np.sqrt(field.variance), 0.0)[index],
    )
    wins, rho = np.zeros((c, c, mean.shape[2])), field.by_offset()
    pool, found = (
        Linear(wins.reshape(c, c, *window.kernel), window=window),
        np.zeros((2, c, len(mean))),
    )
    for k in range(c):
        own, pairs = function.of_channel(k), rho[k, k][pool.taps(h, w)].astype("float64")
        found[0, k], found[1, k], wins[k, k] = largest(own.value, mean[:, k], std[:, k], pairs)
    shape = c, *window.output((1, c, h, w))
    return Field(
        found[0].reshape(shape),
        found[1].reshape(shape),
        pool.correlations(function(field)[0], shape),
    )
