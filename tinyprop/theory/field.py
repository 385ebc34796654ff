"""What theory knows of the values of a layer: their means, their variances, their correlations.

For one sample, a layer has many values: one for each unit, or one for each channel and position of
an image. Over random inputs they are random numbers, and theory treats them as jointly Gaussian, as
weighted sums of many inputs nearly are. A Gaussian vector is known once its mean and its covariance
are known. That is a `Field`: the mean and the variance of each value, and the correlation of each
two.

Each layer turns one field into another, and each file beside this one has the rules of one kind:

- steps.py: factors and shifts, dropout, flattening, sums of branches.
- linear.py: linear layers and convolutions. With weights w, the variance of w.x is w^T C w.
- pointwise.py: activations. Covariances follow from Hermite series.
- norms.py: normalisers of samples.
- pool.py: max pooling.
- weights.py: random weights in place of given ones.

When two branches are added, their variances do not say enough: Var(a + b) = Var a + Var b + 2
Cov(a, b). So each rule also says what becomes of the correlations between the values that it
changes and the values of any other layer: a `Correlation` (origin.py looks for them).

**Two ways to store correlations.** Let a "cell" be what has rows and columns in the table of
correlations.

- *Whole*: up to `WHOLE` values, every value is a cell of its own: rho[i, j, 0, 0].
- *By offset*: an image of 64 channels and 32 x 32 positions has 65,536 values, whose covariance
  matrix would take 34 GB. There, cells are channels, and two positions correlate by how far apart
  they are, wherever they are in the image (the image is taken as stationary). rho[i, j, H - 1 + y,
  W - 1 + x] is the correlation of channel i at some position and channel j at another one, y rows
  below it and x columns to the right.

Fields also serve random weights (wide.py): there, cells are samples and positions, as all channels
are alike.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.errors import explain

WHOLE = 4096  # values of a field that has a correlation for each two of them

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """A Gaussian that stands for the values of a layer.

    >>> field = Field.of(np.array([1.0, 2.0]), np.array([[4.0, 3.0], [3.0, 9.0]]))
    >>> field.variance, field.rho[:, :, 0, 0]
    (array([4., 9.]), array([[1. , 0.5],
           [0.5, 1. ]]))
    """

    mean: HostArray  # (C, H, W), or (units,)
    variance: HostArray  # as the mean
    rho: HostArray  # (cells, cells, 2H - 1, 2W - 1), or (values, values, 1, 1)

    @classmethod
    def of(cls, mean: HostArray, covariance: HostArray) -> "Field":
        """From the covariance matrix of all values."""
        diagonal = np.diagonal(covariance).astype("float64")
        variance = np.maximum(diagonal, 0.0).reshape(mean.shape)  # against rounding
        std = safe_std(variance).ravel().astype(covariance.dtype)
        rho = covariance / (std[:, None] * std)
        return cls(mean, variance, rho[:, :, None, None])

    @property
    def whole(self) -> bool:
        """Whether every value is a cell of its own."""
        return len(self.rho) == self.mean.size

    @property
    def cell_std(self) -> HostArray:
        """The standard deviation of each cell, whose variance is the mean of its positions'."""
        return np.sqrt(self.by_cell(self.variance))

    def by_cell(self, x: HostArray) -> HostArray:
        """The mean of values in each cell."""
        return x.reshape(len(self.rho), -1).mean(axis=1)

    def covariance(self) -> HostArray:
        """For each two cells and each offset."""
        return self.rho * products(self.cell_std, self.rho)

    def with_itself(self) -> "Correlation":
        """The correlations of the values with themselves."""
        return Correlation(self.rho, self.mean.shape, self.mean.shape)

    def with_offsets(self) -> "Field":
        """The same with correlations by offset, averaged over all pairs of positions."""
        return replace(self, rho=self.with_itself().by_offset().rho)

    def per_value(self, x: Any) -> HostArray:
        """A number, one value per channel, or one for each value, as an array like the mean."""
        return np.broadcast_to(per_channel(x, self.mean.ndim), self.mean.shape)


@dataclass(frozen=True)
class Correlation:
    """The correlations of the values of one layer (rows) with those of another (columns).

    They are stored whole, for each two values; or, for images by offset, for each two channels and
    each offset.
    """

    rho: HostArray  # (cells, cells, 2H - 1, 2W - 1), or (values, values, 1, 1)
    rows: Shape  # of the values of a sample
    columns: Shape
    bound: float = 0.0  # of the error of series in rho

    @property
    def whole(self) -> bool:
        """Whether there is a correlation for each two values."""
        values = math.prod(self.rows), math.prod(self.columns)
        return self.rho.shape[:2] == values

    def flipped(self) -> "Correlation":
        """With rows and columns exchanged, so that offsets point the other way."""
        rho = self.rho.swapaxes(0, 1)[:, :, ::-1, ::-1]
        return replace(self, rho=rho, rows=self.columns, columns=self.rows)

    def times(self, x: HostArray) -> "Correlation":
        """Columns times these factors."""
        factors = per_cell(x, self.rho.shape[1]).astype(self.rho.dtype)
        return replace(self, rho=self.rho * factors[:, None, None])

    def clipped(self) -> "Correlation":
        """Between -1 and 1, which rounding may have passed."""
        return replace(self, rho=np.clip(self.rho, -1.0, 1.0))

    def by_offset(self) -> "Correlation":
        """Averaged over all pairs of positions with the same offset."""
        if not self.whole:
            return self
        check_one_size(self.rows, self.columns)
        c, h, w = self.rows
        d = self.columns[0]
        offsets = offset_index(h, w).ravel()
        count = (2 * h - 1) * (2 * w - 1)
        # (c * h * w, d * h * w) -> (c, h * w, d, h * w)
        blocks = self.rho.reshape(c, h * w, d, h * w)
        sums = np.empty((c, d, count))
        for i, j in np.ndindex(c, d):
            sums[i, j] = np.bincount(offsets, blocks[i, :, j].ravel(), count)
        means = sums / np.bincount(offsets, minlength=count)
        rho = means.reshape(c, d, 2 * h - 1, 2 * w - 1)
        return replace(self, rho=rho.astype("float32"))

    def in_full(self) -> "Correlation":
        """With a correlation for each two values."""
        if self.whole:
            return self
        c, d = self.rho.shape[:2]
        h, w = image_size(self.rho)
        by_offset = self.rho.reshape(c, d, -1)
        # (c, d, h * w, h * w) -> (c, h * w, d, h * w)
        of_pairs = by_offset[:, :, offset_index(h, w)].transpose(0, 2, 1, 3)
        return replace(self, rho=of_pairs.reshape(c * h * w, d * h * w, 1, 1))

    def as_vectors(self) -> "Correlation":
        """With columns that were flattened."""
        return replace(self.in_full(), columns=(math.prod(self.columns),))


def is_stored_whole(size: int) -> bool:
    """Whether a field of this size stores the correlation of each pair of its values."""
    return size <= WHOLE


def check_one_size(first: Shape, second: Shape) -> None:
    """Refuse to compare two large images by offset unless they have the same positions."""
    are_images = len(first) == len(second) == 3
    if are_images and first[1:] == second[1:]:
        return
    got = f"values {first} and {second}, of which one is computed from the other, in a sum"
    raise other_size(got)


def other_size(got: str) -> TypeError:
    """The refusal of a branch that changes the size of a large image."""
    rule = f"with more than {WHOLE} values, propagate compares images of one size inside a branch"
    hint = "stride 1 and padding (kernel_size - 1) / 2 in the branch"
    return TypeError(explain(got, rule, hint))


# Arrays of numbers per channel, per cell and per value


def per_channel(x: Any, ndim: int) -> Any:
    """(C,) -> (C, 1, 1), to go with (C, H, W); numbers and whole images stay as they are."""
    x = np.asarray(x, "float64")
    if x.ndim == 0:
        return float(x)
    if x.ndim == 1 and x.size > 1:
        return x.reshape(-1, *[1] * (ndim - 1))
    return x


def per_cell(x: HostArray, cells: int) -> HostArray:
    """One number for each cell: the mean of those of its values, or that of its channel.

    >>> per_cell(np.array([1.0, 3.0, 5.0, 5.0]), 2), per_cell(np.array([1.0, 2.0]), 4)
    (array([2., 5.]), array([1., 1., 2., 2.]))
    """
    numbers = np.ravel(x)
    if len(numbers) >= cells:
        return numbers.reshape(cells, -1).mean(axis=1)
    return np.repeat(numbers, cells // len(numbers))


def safe_std(variance: HostArray) -> HostArray:
    """Standard deviations to divide by: 1 for a constant, whose covariances are 0."""
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def products(x: HostArray, like: HostArray) -> HostArray:
    """x_i x_j for each two cells, to go with correlations like these."""
    of_cells = x[:, None] * x
    return of_cells.astype(like.dtype)[:, :, None, None]


# Offsets between the positions of an image


def normalized(covariance: HostArray) -> tuple[HostArray, HostArray]:
    """Correlations from covariances by offset, and the standard deviations they were divided by."""
    _, _, h, w = covariance.shape
    at_one_place = covariance[:, :, h // 2, w // 2]
    std = safe_std(np.diagonal(at_one_place))
    rho = covariance / products(std, covariance)
    return np.clip(rho, -1.0, 1.0), std


def image_size(rho: HostArray) -> tuple[int, int]:
    """H and W of the images whose offsets these correlations are for."""
    return rho.shape[2] // 2 + 1, rho.shape[3] // 2 + 1


def offset_index(h: int, w: int) -> HostArray:
    """For each two positions of an image, the number of their offset: (h * w, h * w).

    >>> offset_index(1, 3)
    array([[2, 3, 4],
           [1, 2, 3],
           [0, 1, 2]])
    """
    down = _differences(h)
    across = _differences(w)
    # (h, 1, h, 1) and (1, w, 1, w) -> (h, w, h, w)
    index = down[:, None, :, None] * (2 * w - 1) + across[None, :, None, :]
    return index.reshape(h * w, h * w)


def _differences(n: int) -> HostArray:
    """j - i for each two of n places, from 0 on."""
    place = np.arange(n)
    return place - place[:, None] + n - 1


def count_pairs(rho: HostArray) -> HostArray:
    """How many pairs of positions have each offset."""
    h, w = image_size(rho)
    rows = h - abs(np.arange(1.0 - h, h))
    columns = w - abs(np.arange(1.0 - w, w))
    return np.outer(rows, columns)
