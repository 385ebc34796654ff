"""Fields: the mean and the covariance of all values of a layer, and what linear maps and
activations do to them, and to what they have in common with other layers."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..functional.windows import Window
from ..moments.hermite import hermite, largest
from ..moments.many import ManyUnits, covariances
from ..moments.sphere import between_spheres, on_sphere

# Of groups of values that are divided by norms of their own: pairs of groups, and the cubes of
# their sizes, up to which products are computed. Each pair takes 10 ms or more.
MOST_PAIRS = 128
MOST_WORK = 1 << 22
WHOLE = 4096  # values whose correlations may be stored for each pair
DEGREES = 12  # of Hermite polynomials, where covariances are not needed to rounding
BLOCK = 1024  # units whose moments are computed at a time
FAR = 13.0  # standard deviations within which kinks matter
CROSSING_POINTS = 521  # of a grid that shows them: a twentieth of a standard deviation apart
BISECTIONS = 60

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
    bound: float = 0.0  # of the error of series in rho

    @property
    def whole(self) -> bool:
        return self.rho.shape[:2] == (math.prod(self.rows), math.prod(self.columns))

    def flipped(self) -> "Correlation":
        """The other layer first."""
        rho = self.rho.swapaxes(0, 1)[:, :, ::-1, ::-1]
        return replace(self, rho=rho, rows=self.columns, columns=self.rows)

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
    coefficients: HostArray  # (degrees, cells), whose squares add up to 1
    std: HostArray  # of the cells
    bound: float = math.inf  # of the error of all covariances, in units of both deviations
    units: ManyUnits | None = None  # with which all covariances are known to rounding

    def __call__(self, before: Correlation) -> Correlation:
        return before.times(self.coefficients[0])

    def with_other(self, other: "Bent", before: Correlation) -> Correlation:
        """The correlations of this activation (rows) with another, from those of their inputs: to
        rounding, or by the first degrees of Mehler's series."""
        if self.units is not None and other.units is not None and before.whole:
            inputs = before.rho[:, :, 0, 0].astype("float64")
            variances = self.std**2, other.std**2
            found, bound = covariances(self.units, other.units, inputs, variances)
            rho = found / np.outer(nonzero(variances[0]), nonzero(variances[1]))
            return replace(before, rho=rho[:, :, None, None], bound=bound)
        rows, columns = before.rho.shape[:2]
        own = _by_cells(self.coefficients, rows).astype(before.rho.dtype)
        others = _by_cells(other.coefficients, columns).astype(before.rho.dtype)
        rho = np.zeros_like(before.rho)
        power = np.ones_like(before.rho)
        for a, b in zip(own[:DEGREES], others[:DEGREES], strict=True):
            power = power * before.rho
            rho += np.outer(a, b)[:, :, None, None] * power
        return replace(before, rho=rho, bound=math.inf)


def _by_cells(coefficients: HostArray, cells: int) -> HostArray:
    return np.stack([fitted_to(row, cells) for row in coefficients])


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
class Divided(Step):
    """Every sample divided by the root mean square of each group of values: the mean Jacobian
    times the covariance with any other Gaussian value (Stein's lemma)."""

    is_linear = False
    jacobian: HostArray  # (values, values), 0 between groups
    std: HostArray  # of the values before
    new_std: HostArray

    def __call__(self, before: Correlation) -> Correlation:
        covariance = before.in_full().times(self.std)
        rho = covariance.rho[:, :, 0, 0] @ self.jacobian.T / self.new_std
        return replace(covariance, rho=rho[:, :, None, None]).clipped()


def divided(field: Field, groups: int, eps: float) -> Made:
    """Each group of values of a sample divided by its root mean square: the moments of a Gaussian
    sample. Of many or large groups, two correlate as their mean Jacobians say, which is an
    approximation."""
    size = field.mean.size
    covariance = field.covariance()[:, :, 0, 0]
    mean = np.zeros(size)
    jacobian = np.zeros((size, size))
    within = []
    for some in np.split(np.arange(size), groups):
        found = on_sphere(field.mean.ravel()[some], covariance[np.ix_(some, some)], eps)
        mean[some] = found.mean
        jacobian[np.ix_(some, some)] = found.jacobian
        within.append((some, found.covariance))
    after = jacobian @ covariance @ jacobian.T
    for i, (some, own) in enumerate(within):
        after[np.ix_(some, some)] = own
        for others, _ in within[:i] if are_few(groups, size) else []:
            both = np.concatenate([some, others])
            product = between_spheres(
                field.mean.ravel()[both], covariance[np.ix_(both, both)], len(some), eps
            )
            common = product - np.outer(mean[some], mean[others])
            after[np.ix_(some, others)] = common
            after[np.ix_(others, some)] = common.T
    result = Field.of(mean.reshape(field.mean.shape), after)
    stds = np.sqrt(field.variance).ravel(), nonzero(result.variance).ravel()
    return result, Divided(jacobian, *stds)


def are_few(groups: int, size: int) -> bool:
    """Whether the products of values of two groups are computed, which takes up to a second."""
    pairs_of_groups = groups * (groups - 1) // 2
    return pairs_of_groups <= MOST_PAIRS and pairs_of_groups * (size / groups) ** 3 <= MOST_WORK


@dataclass(frozen=True)
class Added(Step):
    """The sum of several layers: unlike other steps, it takes a correlation with each of them, or
    None for 0."""

    stds: tuple[HostArray, ...]  # of the cells of each
    new_std: HostArray  # of each cell of the sum
    bound: float  # of the error of what they have in common
    growth: float  # by how much the sum multiplies such errors

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
    bound = 0.0 if common is None else common.bound
    largest = (np.sqrt(first.variance) + np.sqrt(second.variance)) ** 2
    growth = float((largest / nonzero(result.variance) ** 2).max(initial=1.0))
    return result, Added((first.cell_std, second.cell_std), new_std.ravel(), bound, growth)


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

    def growth(self, before: Field, after: Field) -> float:
        """By how much it multiplies the error of covariances, which weights may add up while the
        covariances cancel: (|w| std)^2, relative to the variance."""
        largest = self.of(np.sqrt(before.variance)[None], abs(self.weight))[0] ** 2
        return float((largest / nonzero(after.variance) ** 2).max(initial=1.0))

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


class ValueMoments(NamedTuple):
    """Of a function of each value."""

    mean: HostArray
    variance: HostArray
    error: float  # of the worst, relative to its second moment


@dataclass(frozen=True)
class Pointwise:
    """The function factor * s(u) + shift of every value; the parameters of s, the factor and the
    shift are numbers, or one value per channel. Or it is that function of another one, `inner`:
    pointwise layers in a row are one function of the values in front of the first."""

    activation: Activation
    params: dict[str, Any]
    factor: Any = 1.0
    shift: Any = 0.0
    inner: "Pointwise | None" = None

    def each(self, change: Callable[[Any], Any]) -> "Pointwise":
        """With all numbers changed."""
        params = {name: change(x) for name, x in self.params.items()}
        inner = None if self.inner is None else self.inner.each(change)
        return Pointwise(self.activation, params, change(self.factor), change(self.shift), inner)

    def equals(self, other: "Pointwise") -> bool:
        """Whether it is the same function, up to factor and shift."""
        if self.activation != other.activation or self.params.keys() != other.params.keys():
            return False
        if not all(np.array_equal(x, other.params[name]) for name, x in self.params.items()):
            return False
        if self.inner is None or other.inner is None:
            return self.inner is other.inner
        is_scaled_alike = np.array_equal(self.inner.factor, other.inner.factor)
        is_shifted_alike = np.array_equal(self.inner.shift, other.inner.shift)
        return is_scaled_alike and is_shifted_alike and self.inner.equals(other.inner)

    def scaled(self, factor: Any, shift: Any) -> "Pointwise":
        """factor * this + shift."""
        moved = factor * np.asarray(self.shift) + shift
        return replace(self, factor=factor * np.asarray(self.factor), shift=moved)

    @property
    def unscaled(self) -> "Pointwise":
        """Without its factor and shift."""
        return replace(self, factor=1.0, shift=0.0)

    @property
    def differs(self) -> bool:
        """Whether it is another function for each channel."""
        own = any(np.ndim(x) for x in (self.factor, self.shift, *self.params.values()))
        return own or (self.inner is not None and self.inner.differs)

    @property
    def kinks(self) -> tuple[float, ...]:
        """Of the function that comes first."""
        return self.activation.kinks if self.inner is None else self.inner.kinks

    def of_tensor(self, u: Tensor) -> Tensor:
        """Of values whose function is the same."""
        if self.inner is not None:
            u = self.inner.of_tensor(u)
        return self.activation(u, **self.params) * self.factor + self.shift

    def of_channel(self, k: int) -> "Pointwise":
        return self.each(lambda x: x[k] if np.size(x) > 1 else x)

    def of_array(self, u: HostArray) -> HostArray:
        """Of values to which all numbers of the function broadcast."""
        if self.inner is not None:
            u = self.inner.of_array(u)
        values = to_numpy(self.activation(Tensor(u), **self.params).data)
        return np.asarray(self.factor * values + self.shift)

    def value(self, u: HostArray) -> HostArray:
        """Of values (C, ...)."""
        return self.each(lambda x: per_channel(x, u.ndim)).of_array(u)

    def moments(self, mean: HostArray, variance: HostArray) -> ValueMoments:
        """Mean and variance of its values."""
        if self.inner is None:
            this = self.each(lambda x: per_channel(x, mean.ndim))
            known = moments.gaussian(this.activation, mean, np.sqrt(variance), **this.params)
            is_closed = this.activation.moments is not None
            error = 0.0 if is_closed else float(np.max(known.error, initial=0.0))
            found = ValueMoments(known.mean, known.std**2, error)
        else:
            found = self._moments_of_units(mean, variance)
        factor = per_channel(self.factor, mean.ndim)
        shift = per_channel(self.shift, mean.ndim)
        return ValueMoments(factor * found.mean + shift, factor**2 * found.variance, found.error)

    def _moments_of_units(self, mean: HostArray, variance: HostArray) -> ValueMoments:
        units = self.units(mean, variance)
        sums = []
        for start in range(0, len(units), BLOCK):
            some = np.arange(start, min(start + BLOCK, len(units)))
            sums.append(units.take(some).sums)
        out_mean, out_variance, error = (
            np.concatenate([getattr(part, name) for part in sums])
            for name in ("mean", "variance", "error")
        )
        shape = mean.shape
        return ValueMoments(
            out_mean.reshape(shape), out_variance.reshape(shape), float(error.max())
        )

    def units(self, mean: HostArray, variance: HostArray) -> ManyUnits:
        """Without factor and shift, as a function of each value by itself."""
        shape = mean.shape

        def of_values(x: Any) -> Any:
            if np.size(x) == 1 or (np.ravel(x) == np.ravel(x)[0]).all():
                return float(np.ravel(x)[0])
            return np.broadcast_to(per_channel(x, len(shape)), shape).ravel()

        flat = self.unscaled.each(of_values)

        def function(u: HostArray, numbers: HostArray) -> HostArray:
            return flat.each(lambda x: x[numbers, None] if np.ndim(x) else x).of_array(u)

        mean = mean.ravel()
        std = np.sqrt(variance).ravel()
        record = flat.activation if self.inner is None else None
        kinks = flat.places(mean, std)
        return ManyUnits(function, np.arange(len(mean)), kinks, mean, std, record, flat.params)

    def places(self, mean: HostArray, std: HostArray) -> HostArray:
        """Where the function or its slope jumps, of each value: its kinks, and where the inner
        function reaches them."""
        own = np.broadcast_to(
            np.asarray(self.activation.kinks), (len(mean), len(self.activation.kinks))
        )
        if self.inner is None:
            return own
        inner = self.inner
        found = [inner.places(mean, std)]
        for kink in self.activation.kinks:
            found.append(_crossings(inner, kink, mean, std))
        return np.concatenate(found, axis=1)

    def series(self, field: Field) -> Bent:
        """The first degrees of the Hermite series. What they leave of the variance is given to the
        last two."""
        mean = field.mean
        variance = field.variance
        if not field.whole:
            mean = mean.mean(axis=(1, 2))
            variance = variance.mean(axis=(1, 2))
        a = hermite(self.value, mean, np.sqrt(variance), DEGREES, self.kinks)
        full = self.moments(mean, variance).variance
        rest = np.maximum(full - (a**2).sum(axis=0), 0.0)
        last = (a[-2:] ** 2).sum(axis=0)
        a[-2:] *= np.where(last > 0, np.sqrt(1.0 + rest / np.maximum(last, 1e-300)), 1.0)
        coefficients = (a / nonzero((a**2).sum(axis=0))).reshape(DEGREES, -1)
        return Bent(coefficients, np.sqrt(full).ravel())

    def whole_series(self, field: Field, variance: HostArray) -> Bent:
        """With all that is needed for covariances to rounding."""
        units = self.units(field.mean, field.variance)
        variance = variance.ravel()
        return Bent(units.short_series / nonzero(variance), np.sqrt(variance), units=units)

    def __call__(self, field: Field, precise: bool = False) -> Made:
        """The field of its values, without factor and shift: with their covariances to rounding,
        or, which is faster, by the first degrees of Mehler's series."""
        found = self.unscaled.moments(field.mean, field.variance)
        if precise and field.whole:
            step = self.whole_series(field, found.variance)
        else:
            step = self.unscaled.series(field)
        correlation = step.with_other(step, field.with_itself())
        bound = correlation.bound + found.error
        return Field(found.mean, found.variance, correlation.rho), replace(step, bound=bound)


def _crossings(function: Pointwise, value: float, mean: HostArray, std: HostArray) -> HostArray:
    """Where a function has a value, for each of the units, as far as a grid shows: (units, most
    crossings of one), filled up with places that are far away."""
    z = np.linspace(-FAR, FAR, CROSSING_POINTS)
    everyone = np.arange(len(mean))

    def above(u: HostArray, which: HostArray) -> HostArray:
        own = function.each(lambda x: x[which, None] if np.ndim(x) else x)
        return own.of_array(u) >= value

    signs = above(mean[:, None] + std[:, None] * z, everyone)
    unit, left = np.nonzero(signs[:, 1:] != signs[:, :-1])
    low = mean[unit] + std[unit] * z[left]
    high = mean[unit] + std[unit] * z[left + 1]
    is_above = signs[unit, left]
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        is_left = above(middle[:, None], unit)[:, 0] == is_above
        low = np.where(is_left, middle, low)
        high = np.where(is_left, high, middle)
    counts = np.bincount(unit, minlength=len(mean))
    found = np.repeat((mean - FAR * std)[:, None], counts.max(initial=0), axis=1)
    position = np.arange(len(unit)) - np.repeat(np.cumsum(counts) - counts, counts)
    found[unit, position] = 0.5 * (low + high)
    return found


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
    activated, _ = scaled(activated, function.factor, function.shift)
    correlations, _ = pool.correlations(activated, shape)
    return Field(pooled_mean.reshape(shape), pooled_variance.reshape(shape), correlations)
