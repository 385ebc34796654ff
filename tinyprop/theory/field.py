"""Fields: the mean and the covariance of all values of a layer, and what linear maps and
activations do to them, and to what they have in common with other layers."""

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

Shape = tuple[int, ...]


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
    def positions(self) -> tuple[int, int]:
        """Of a cell, down and across."""
        return positions(self.rho)

    @property
    def cell_std(self) -> HostArray:
        """The standard deviation of each cell, whose variance is the mean of its positions'."""
        return np.sqrt(self.by_cell(self.variance))

    def by_cell(self, x: HostArray) -> HostArray:
        """The mean of values in each cell."""
        return x.reshape(len(self.rho), -1).mean(axis=1)

    def covariance(self) -> HostArray:
        """For each two cells and each offset."""
        return self.rho * outer(self.cell_std, self.rho)

    def with_itself(self) -> "Correlation":
        return Correlation(self.rho, self.mean.shape, self.mean.shape)

    def with_offsets(self) -> "Field":
        """The same with correlations by offset, averaged over all pairs of positions."""
        return replace(self, rho=self.with_itself().by_offset().rho)

    def per_value(self, x: Any) -> HostArray:
        """A number, one value per channel, or one for each value, as an array like the mean."""
        return np.broadcast_to(per_channel(x, self.mean.ndim), self.mean.shape)


@dataclass(frozen=True)
class Correlation:
    """The correlations of the values of one layer (rows) with those of another (columns): for each
    two values, or, for images by offset, for each two channels and each offset."""

    rho: HostArray  # (cells, cells, 2H - 1, 2W - 1), or (values, values, 1, 1)
    rows: Shape  # of the values of a sample
    columns: Shape

    @property
    def whole(self) -> bool:
        return self.rho.shape[:2] == (math.prod(self.rows), math.prod(self.columns))

    def flipped(self) -> "Correlation":
        """The other layer first."""
        rho = self.rho.swapaxes(0, 1)[:, :, ::-1, ::-1]
        return Correlation(rho, self.columns, self.rows)

    def times(self, x: HostArray) -> "Correlation":
        """Columns times these factors."""
        factors = fitted_to(x, self.rho.shape[1]).astype(self.rho.dtype)
        return replace(self, rho=self.rho * factors[:, None, None])

    def clipped(self) -> "Correlation":
        return replace(self, rho=np.clip(self.rho, -1.0, 1.0))

    def by_offset(self) -> "Correlation":
        """Averaged over all pairs of positions with the same offset."""
        if not self.whole:
            return self
        check_one_size(self.rows, self.columns)
        c, h, w = self.rows
        d = self.columns[0]
        place = offsets(h, w).ravel()
        size = (2 * h - 1) * (2 * w - 1)
        blocks = self.rho.reshape(c, h * w, d, h * w)
        sums = [np.bincount(place, blocks[i, :, j].ravel(), size) for i, j in np.ndindex(c, d)]
        means = np.array(sums) / np.bincount(place, minlength=size)
        rho = means.reshape(c, d, 2 * h - 1, 2 * w - 1).astype("float32")
        return replace(self, rho=rho)

    def in_full(self) -> "Correlation":
        """For each two values."""
        if self.whole:
            return self
        c, d = self.rho.shape[:2]
        count = math.prod(positions(self.rho))
        # (cells, cells, P, P)
        rho = self.rho.reshape(c, d, -1)[:, :, offsets(*positions(self.rho))]
        rho = rho.transpose(0, 2, 1, 3).reshape(c * count, d * count, 1, 1)
        return replace(self, rho=rho)

    def as_vectors(self) -> "Correlation":
        """With columns that were flattened."""
        return replace(self.in_full(), columns=(math.prod(self.columns),))


class Step:
    """What a rule does to the correlations with the values of any other layer."""

    is_linear = True  # or independent noise: then it holds whatever the other layer is

    def __call__(self, before: Correlation) -> Correlation:
        raise NotImplementedError


@dataclass(frozen=True)
class Factors(Step):
    """Every correlation times a factor of the value."""

    factors: HostArray

    def __call__(self, before: Correlation) -> Correlation:
        return before.times(self.factors)


class Flat(Step):
    """Images become vectors."""

    def __call__(self, before: Correlation) -> Correlation:
        return before.as_vectors()


@dataclass(frozen=True)
class Centered(Step):
    """Every value minus the mean of its group of channels, over positions too."""

    groups: int
    std: HostArray  # of each cell, before
    new_std: HostArray  # and after

    def __call__(self, before: Correlation) -> Correlation:
        covariance = before.times(self.std)
        size = math.prod(positions(before.rho))
        with_mean = np.tensordot(covariance.rho, pairs(before.rho) / size**2, 2)
        means = group_means(with_mean.T, self.groups).T.astype(before.rho.dtype)
        rest = replace(covariance, rho=covariance.rho - means[:, :, None, None])
        return rest.times(1.0 / self.new_std).clipped()


@dataclass(frozen=True)
class Bent(Step):
    """An activation: its first Hermite coefficient, which is E[s'] std / new std, times the
    correlation with any other Gaussian value (Stein's lemma). Two activations have all coefficients
    in common."""

    is_linear = False
    coefficients: HostArray  # (DEGREES, cells), whose squares add up to 1
    variance: HostArray  # of the cells
    rest: HostArray  # what is beyond these degrees

    def __call__(self, before: Correlation) -> Correlation:
        return before.times(self.coefficients[0])

    def left_out(self, factor: Any = 1.0) -> float:
        """The fraction of the variance of all values, times these factors, that is beyond the
        degrees of the series."""
        square = np.ravel(factor) ** 2
        weights = fitted_to(square, len(self.rest)) if square.size > 1 else square
        total = float((weights * self.variance).mean())
        return float((weights * self.rest).mean()) / max(total, 1e-300)

    def with_other(self, other: "Bent", before: Correlation) -> Correlation:
        """The correlations of this activation (rows) with another, by Mehler's series, from those
        of their inputs."""
        rho = np.zeros_like(before.rho)
        power = np.ones_like(before.rho)
        rows, columns = before.rho.shape[:2]
        for own, others in zip(self.coefficients, other.coefficients, strict=True):
            power = power * before.rho
            products = np.outer(fitted_to(own, rows), fitted_to(others, columns))
            rho += products.astype(rho.dtype)[:, :, None, None] * power
        return replace(before, rho=rho)


class Opaque(Step):
    """A maximum, of which propagate does not know what it has in common with other layers."""

    is_linear = False

    def __call__(self, before: Correlation) -> Correlation:
        got = "MaxPool2d in a branch whose result is added to another"
        rule = "propagate does not know what it has in common with its input"
        raise TypeError(explain(got, rule, "pool in front of the block"))


Made = tuple[Field, Step]


def scaled(field: Field, factor: Any, shift: Any = 0.0) -> Made:
    """factor * x + shift; both have the shape of the mean, or one value per channel."""
    factor = field.per_value(factor)
    shift = field.per_value(shift)
    signs = np.sign(factor)
    rho = field.rho
    if (signs != 1.0).any():
        rho = rho * outer(field.by_cell(signs), rho)
    result = Field(factor * field.mean + shift, factor**2 * field.variance, rho)
    return result, Factors(signs)


def dropped(field: Field, p: float) -> Made:
    """With dropout: each value is multiplied by 0 or 1 / (1 - p)."""
    total = field.variance + p / (1.0 - p) * (field.variance + field.mean**2)
    share = field.by_cell(np.sqrt(field.variance / nonzero(total) ** 2))
    rho = field.rho * outer(share, field.rho)
    each = np.arange(len(rho))
    h, w = field.positions
    rho[each, each, h - 1, w - 1] = 1.0
    return Field(field.mean, total, rho), Factors(share)


def flat(field: Field) -> Made:
    """As a vector."""
    rho = field.with_itself().in_full().rho
    return Field(field.mean.ravel(), field.variance.ravel(), rho), Flat()


def centered(field: Field, groups: int) -> Made:
    """Every value minus the mean of its group of channels, over positions too."""
    size = field.mean.size // len(field.rho)  # of a cell

    def of_values(x: HostArray) -> HostArray:
        return np.repeat(x, size).reshape(field.mean.shape)

    covariance = field.covariance()
    with_mean = group_means(np.tensordot(covariance, pairs(field.rho) / size**2, 2), groups).T
    change = group_means(with_mean, groups) - with_mean - with_mean.T
    mean = field.mean - of_values(group_means(field.by_cell(field.mean), groups))
    variance = np.maximum(field.variance + of_values(np.diagonal(change)), 0.0)
    rho, new_std = normalized(covariance + change[:, :, None, None])
    return Field(mean, variance, rho), Centered(groups, field.cell_std, new_std)


def group_means(x: HostArray, groups: int) -> HostArray:
    """Each row replaced by the mean over its group of rows."""
    parts = x.reshape(groups, -1, *x.shape[1:])
    return np.repeat(parts.mean(axis=1), parts.shape[1], axis=0)


def group_factors(field: Field, groups: int, eps: float) -> HostArray:
    """For each channel, one over the root of the expected mean square of its group."""
    channels = len(field.mean)
    squares = (field.variance + field.mean**2).reshape(groups, -1).mean(axis=1)
    return np.repeat((squares + eps) ** -0.5, channels // groups)


@dataclass(frozen=True)
class Added(Step):
    """The sum of several layers: unlike other steps, it takes a correlation with each of them, or
    None for 0."""

    stds: tuple[HostArray, ...]  # of the cells of each
    new_std: HostArray  # of each cell of the sum

    def of(self, parts: "list[Correlation | None]") -> Correlation | None:
        covariances = [
            part.times(std) for part, std in zip(parts, self.stds, strict=True) if part is not None
        ]
        if not covariances:
            return None
        if not all(part.whole for part in covariances):
            covariances = [part.by_offset() for part in covariances]
        total = covariances[0]
        for part in covariances[1:]:
            total = replace(total, rho=total.rho + part.rho)
        return total.times(1.0 / self.new_std)


def added(first: Field, second: Field, common: Correlation | None) -> tuple[Field, Added]:
    """The sum of two fields with these correlations; None stands for 0."""
    mean = first.mean + second.mean
    is_whole = first.whole and second.whole and (common is None or common.whole)
    if not is_whole:
        first = first.with_offsets()
        second = second.with_offsets()
    stds = np.outer(first.cell_std, second.cell_std)
    covariance = first.covariance() + second.covariance()
    if is_whole:
        if common is not None:
            cross = common.rho * stds[:, :, None, None].astype(common.rho.dtype)
            covariance = covariance + cross + cross.swapaxes(0, 1)
        matrix = covariance[:, :, 0, 0]
        np.fill_diagonal(matrix, np.maximum(matrix.diagonal(), 0.0))  # against rounding
        result = Field.of(mean, matrix)
        new_std = nonzero(result.variance)
    else:
        variance = first.variance + second.variance
        if common is not None:
            common = common.by_offset()
            rho = common.rho * stds[:, :, None, None].astype(common.rho.dtype)
            cross = replace(common, rho=rho)
            covariance = covariance + cross.rho + cross.flipped().rho
            h, w = positions(common.rho)
            same_place = np.diagonal(common.rho[:, :, h - 1, w - 1])
            of_values = per_channel(same_place, mean.ndim)
            variance = variance + 2.0 * np.sqrt(first.variance * second.variance) * of_values
        rho, new_std = normalized(covariance)
        result = Field(mean, np.maximum(variance, 0.0), rho)
    return result, Added((first.cell_std, second.cell_std), new_std.ravel())


def per_channel(x: Any, ndim: int) -> Any:
    """(C,) -> (C, 1, 1), to go with (C, H, W); numbers and whole maps stay as they are."""
    x = np.asarray(x, "float64")
    if x.ndim == 0:
        return float(x)
    if x.ndim == 1 and x.size > 1:
        return x.reshape(-1, *[1] * (ndim - 1))
    return x


def fitted_to(x: HostArray, cells: int) -> HostArray:
    """One number for each cell, from one for each value, or for each channel."""
    flat_x = np.ravel(x)
    if len(flat_x) >= cells:
        return flat_x.reshape(cells, -1).mean(axis=1)
    return np.repeat(flat_x, cells // len(flat_x))


def nonzero(variance: HostArray) -> HostArray:
    """Standard deviations, to divide by: 1 for a constant, whose covariances are 0."""
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def outer(x: HostArray, like: HostArray) -> HostArray:
    """x_i x_j, to go with correlations."""
    return (x[:, None] * x).astype(like.dtype)[:, :, None, None]


def normalized(covariance: HostArray) -> tuple[HostArray, HostArray]:
    """Correlations from covariances, for each two cells and each offset; and the standard
    deviations by which these were divided."""
    _, _, h, w = covariance.shape
    std = nonzero(np.diagonal(covariance[:, :, h // 2, w // 2]))
    return np.clip(covariance / outer(std, covariance), -1.0, 1.0), std


def positions(rho: HostArray) -> tuple[int, int]:
    """Of a cell, down and across, for correlations by offset."""
    return rho.shape[2] // 2 + 1, rho.shape[3] // 2 + 1


def pairs(rho: HostArray) -> HostArray:
    """How many pairs of positions there are for each offset."""
    rows, columns = (n - abs(np.arange(1.0 - n, n)) for n in positions(rho))
    return np.outer(rows, columns)


def offsets(h: int, w: int) -> HostArray:
    """The offset q - p of two positions of an image, as an index: (H W, H W)."""
    rows, columns = (np.arange(n) - np.arange(n)[:, None] + n - 1 for n in (h, w))
    return (rows[:, None, :, None] * (2 * w - 1) + columns[None, :, None, :]).reshape(h * w, h * w)


def check_one_size(first: Shape, second: Shape) -> None:
    """Refuse to compare two large images by offset that have not the same positions."""
    if len(first) == len(second) == 3 and first[1:] == second[1:]:
        return
    got = f"values {first} and {second}, of which one is computed from the other, in a sum"
    rule = f"with more than {WHOLE} values, propagate compares images of one size inside a branch"
    raise TypeError(explain(got, rule, "stride 1 and padding (kernel_size - 1) / 2 in the branch"))


@dataclass(frozen=True)
class Mapped(Step):
    """A linear map."""

    map: "Linear"
    std: HostArray  # of the values before
    new_std: HostArray  # of the cells after
    columns: Shape
    whole: bool  # whether the values after are cells of their own

    def __call__(self, before: Correlation) -> Correlation:
        if before.whole and self.whole:
            covariance = before.times(self.std).rho
            rows = covariance.reshape(-1, *before.columns)
            rho = self.map.of(rows).reshape(len(rows), -1, 1, 1)
            after = replace(before, rho=rho, columns=self.columns)
        else:
            before = before.by_offset()
            covariance = before.times(np.sqrt((self.std**2).mean(axis=(1, 2)))).rho
            rho = self.map.beside(covariance, self.columns)
            after = replace(before, rho=rho, columns=self.columns)
        return after.times(1.0 / self.new_std).clipped()


@dataclass(frozen=True)
class Linear:
    """x (..., units) @ weight.T + bias, or the convolution of images with filters (O, C, kh,
    kw)."""

    weight: HostArray
    bias: Any = 0.0
    window: Window | None = None

    def of(self, batch: HostArray, weight: HostArray | None = None) -> HostArray:
        """Without the bias."""
        x = Tensor(batch)
        w = Tensor((self.weight if weight is None else weight).astype(batch.dtype))
        window = self.window
        if window is None:
            return to_numpy(F.linear(x, w).data)
        out = F.conv2d(x, w, None, window.stride, window.padding, window.dilation)
        return to_numpy(out.data)

    def __call__(self, field: Field) -> Made:
        mean = self.of(field.mean[None])[0]
        whole = field.whole and (mean.ndim == 1 or mean.size <= WHOLE)
        if whole:
            # (values before, ...)
            half = self.of(field.covariance().reshape(-1, *field.mean.shape))
            other_half = np.ascontiguousarray(half.reshape(len(half), -1).T)
            both = self.of(other_half.reshape(-1, *field.mean.shape))
            result = Field.of(mean, both.reshape(mean.size, mean.size))
            new_std = nonzero(result.variance).ravel()
        else:
            variance = self.variances(field, mean.shape)
            rho, new_std = self.correlations(field, mean.shape)
            result = Field(mean, variance, rho)
        result = replace(result, mean=mean + per_channel(self.bias, mean.ndim))
        return result, Mapped(self, np.sqrt(field.variance), new_std, mean.shape, whole)

    def variances(self, field: Field, shape: Shape) -> HostArray:
        """w^T C w, with C the covariance of the patch at each position; it is 0 on the padding.

        Patches of a large field have the correlations of their offsets, and standard deviations of
        their own if the filters are 1x1, otherwise those averaged over all patches with the same
        padding."""
        assert self.window is not None
        std = np.sqrt(field.variance)
        o, c, kh, kw = self.weight.shape
        filters = self.weight.reshape(o, -1)
        index = patches(self.window, std.shape)
        spread = np.append(std, 0.0)[index]  # (positions, patch)
        kinds = np.arange(len(index))
        if field.whole:
            between: Iterable[HostArray] = (field.rho[np.ix_(i, i)][..., 0, 0] for i in index)
        else:
            rho = field.rho[:, :, *self.taps(*std.shape[1:])]
            between = repeat(rho.transpose(0, 2, 1, 3).reshape(c * kh * kw, -1))
            if kh * kw > 1:
                _, kinds = np.unique(index[:, : kh * kw] >= 0, axis=0, return_inverse=True)
                spread = np.stack([spread[kinds == k].mean(axis=0) for k in range(kinds.max() + 1)])
        variances = []
        for patch_std, patch_rho in zip(spread, between, strict=False):
            x = filters * patch_std
            variances.append((x @ patch_rho * x).sum(axis=1))
        return np.array(variances)[kinds].T.reshape(shape)

    def taps(self, h: int, w: int) -> tuple[HostArray, HostArray]:
        """For two elements of the kernel, where their offset is in correlations of images (H,
        W)."""
        assert self.window is not None
        i, j = (
            d * x.ravel()
            for d, x in zip(self.window.dilation, np.indices(self.window.kernel), strict=True)
        )
        return i - i[:, None] + h - 1, j - j[:, None] + w - 1

    def correlations(self, field: Field, shape: Shape) -> tuple[HostArray, HostArray]:
        """W S W^T at each frequency, where S is the transform of the covariances; padding is left
        out of account. Also the standard deviations by which the result was divided."""
        covariance = field.with_offsets().covariance()
        return normalized(self._filtered(covariance, shape, both_sides=True))

    def beside(self, covariance: HostArray, shape: Shape) -> HostArray:
        """S W^T at each frequency: the covariances of another image with the result, from those
        with the image before."""
        window = self.window
        assert window is not None
        same = tuple(window.extent(axis) - 1 for axis in (0, 1))
        if window.stride != (1, 1) or tuple(2 * p for p in window.padding) != same:
            got = f"{window} in a residual branch"
            rule = (
                f"with more than {WHOLE} values, propagate compares images of one size inside a "
                "branch"
            )
            raise TypeError(explain(got, rule, "stride 1 and padding (kernel_size - 1) / 2"))
        return self._filtered(covariance, shape, both_sides=False)

    def _filtered(self, before: HostArray, shape: Shape, both_sides: bool) -> HostArray:
        """Covariances by offset, filtered on the side of columns, or on both."""
        assert self.window is not None
        size = positions(before)
        # the largest offset
        last = [s * (n - 1) for s, n in zip(self.window.stride, shape[1:], strict=True)]
        ends = [self.window.extent(axis) - 1 for axis in (0, 1)]
        margin = [e + max(0, m - n + 1) for e, m, n in zip(ends, last, size, strict=True)]
        # beyond the image
        before = np.pad(before, [(0, 0), (0, 0), *((m, m) for m in margin)], mode="edge")
        filters = np.zeros((*self.weight.shape[:2], *(e + 1 for e in ends)), "float32")
        filters[:, :, :: self.window.dilation[0], :: self.window.dilation[1]] = self.weight
        spectrum = _spectrum(before, before.shape[2:])
        of_filters = _spectrum(filters, before.shape[2:])
        if both_sides:
            product = of_filters @ spectrum
        else:
            center = np.zeros((1, 1, *(e + 1 for e in ends)), "float32")
            center[0, 0, ends[0] // 2, ends[1] // 2] = 1.0
            product = _spectrum(center, before.shape[2:]) * spectrum
        product = product @ of_filters.conj().swapaxes(-1, -2)
        after = np.fft.irfft2(product.transpose(2, 3, 0, 1), before.shape[2:]).astype("float32")
        center_offset = [n - 1 + m for n, m in zip(size, margin, strict=True)]
        i, j = (
            slice(c - m, c + m + 1, s)
            for c, m, s in zip(center_offset, last, self.window.stride, strict=True)
        )
        return after[:, :, i, j]


def _spectrum(x: HostArray, shape: Shape) -> HostArray:
    """The Fourier transform of images (C, D, H, W), by frequency: (..., C, D)."""
    return np.fft.rfft2(x, shape).transpose(2, 3, 0, 1).astype("complex64")


def patches(window: Window, shape: Shape) -> HostArray:
    """Where the values of each patch are in an image (C, H, W): (positions, C kh kw), with -1 on
    the padding."""
    index = np.arange(math.prod(shape)).reshape(shape)
    # (rows, columns, kh, kw, C)
    views = window.unfold(index.transpose(1, 2, 0)[None], -1)[0]
    return views.transpose(0, 1, 4, 2, 3).reshape(views.shape[0] * views.shape[1], -1)


@dataclass(frozen=True)
class Pointwise:
    """The function factor * s(u) + shift of every value; the parameters of s, the factor and the
    shift are numbers, or one value per channel."""

    activation: Activation
    params: dict[str, Any]
    factor: Any = 1.0
    shift: Any = 0.0

    def each(self, change: Callable[[Any], Any]) -> "Pointwise":
        """With all numbers changed."""
        params = {name: change(x) for name, x in self.params.items()}
        return Pointwise(self.activation, params, change(self.factor), change(self.shift))

    def equals(self, other: "Pointwise") -> bool:
        """Whether it is the same function."""
        if self.activation != other.activation or self.params.keys() != other.params.keys():
            return False
        return all(np.array_equal(x, other.params[name]) for name, x in self.params.items())

    def scaled(self, factor: Any, shift: Any) -> "Pointwise":
        """factor * this + shift."""
        moved = factor * np.asarray(self.shift) + shift
        return replace(self, factor=factor * np.asarray(self.factor), shift=moved)

    @property
    def differs(self) -> bool:
        """Whether it is another function for each channel."""
        return any(np.ndim(x) for x in (self.factor, self.shift, *self.params.values()))

    def of_tensor(self, u: Tensor) -> Tensor:
        """Of values whose function is the same."""
        return self.activation(u, **self.params) * self.factor + self.shift

    def of_channel(self, k: int) -> "Pointwise":
        return self.each(lambda x: x[k] if np.size(x) > 1 else x)

    def value(self, u: HostArray) -> HostArray:
        """Of values (C, ...)."""
        this = self.each(lambda x: per_channel(x, u.ndim))
        values = this.activation(Tensor(u), **this.params).data
        return np.asarray(this.factor * values + this.shift)

    def moments(self, mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
        """Mean and variance of its values."""
        this = self.each(lambda x: per_channel(x, mean.ndim))
        found = moments.gaussian(this.activation, mean, np.sqrt(variance), **this.params)
        return this.factor * found.mean + this.shift, (this.factor * found.std) ** 2

    def series(self, field: Field) -> Bent:
        """The Hermite series. What the first degrees leave of the variance is given to the last
        two."""
        mean = field.mean
        variance = field.variance
        if not field.whole:
            mean = mean.mean(axis=(1, 2))
            variance = variance.mean(axis=(1, 2))
        a = hermite(self.value, mean, np.sqrt(variance), DEGREES, self.activation.kinks)
        full = self.moments(mean, variance)[1]
        rest = np.maximum(full - (a**2).sum(axis=0), 0.0)
        last = (a[-2:] ** 2).sum(axis=0)
        a[-2:] *= np.where(last > 0, np.sqrt(1.0 + rest / np.maximum(last, 1e-300)), 1.0)
        coefficients = (a / nonzero((a**2).sum(axis=0))).reshape(DEGREES, -1)
        return Bent(coefficients, full.ravel(), rest.ravel())

    def __call__(self, field: Field) -> Made:
        """The field of its values, with Mehler's series as their covariances."""
        mean, variance = self.moments(field.mean, field.variance)
        step = self.series(field)
        rho = step.with_other(step, field.with_itself()).rho
        return Field(mean, variance, rho), step


def max_pool(field: Field, function: Pointwise, window: Window) -> Field:
    """The largest value of each window, sampled with the correlations of each channel.

    Two windows correlate as the averages of their values do, weighted by how often each is the
    largest: exactly so, by Stein's lemma, between a maximum of Gaussian values and another
    Gaussian."""
    c, h, w = field.mean.shape
    index = patches(window, (c, h, w)).reshape(-1, c, math.prod(window.kernel))
    mean = np.append(field.mean, -np.inf)[index]
    std = np.append(np.sqrt(field.variance), 0.0)[index]
    rho = field.with_offsets().rho
    wins = np.zeros((c, c, mean.shape[2]))
    pool = Linear(wins.reshape(c, c, *window.kernel), window=window)
    pooled_mean = np.zeros((c, len(mean)))
    pooled_variance = np.zeros((c, len(mean)))
    for k in range(c):
        own = function.of_channel(k)
        between = rho[k, k][pool.taps(h, w)].astype("float64")
        found = largest(own.value, mean[:, k], std[:, k], between)
        pooled_mean[k], pooled_variance[k], wins[k, k] = found
    shape = c, *window.output((1, c, h, w))
    activated, _ = function(field)
    correlations, _ = pool.correlations(activated, shape)
    return Field(pooled_mean.reshape(shape), pooled_variance.reshape(shape), correlations)
