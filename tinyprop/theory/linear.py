"""The rules of linear layers and convolutions.

The sums u = W x + b have the mean W E x + b and the covariance W C W^T, with C that of the values
x. How it is computed depends on how the correlations are stored (field.py):

- *Whole*: W is applied to the rows of C, and then to the columns, by the layer's own forward, so
  any window, stride and padding is right.
- *By offset*: a convolution of a stationary image makes another one. The transform of its
  covariances is W S W^H at each frequency, with S that of the covariances before, and W that of the
  filters. That leaves the padding out of account, so variances are computed beside it, patch by
  patch: w^T C w, with C the covariance of the values in a patch, and 0 on the padding.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import HostArray, to_numpy
from ..engine.tensor import Tensor
from ..functional.windows import Window
from .field import (
    Correlation,
    Field,
    Shape,
    image_size,
    is_stored_whole,
    normalized,
    other_size,
    per_channel,
    safe_std,
)
from .steps import Made, Step


@dataclass(frozen=True)
class Mapped(Step):
    """A linear map of the columns of correlations."""

    map: "Linear"
    std: HostArray  # of the values before
    new_std: HostArray  # of the cells after
    columns: Shape
    whole: bool  # whether the values after are cells of their own

    def __call__(self, before: Correlation) -> Correlation:
        if before.whole and self.whole:
            covariance = before.times(self.std).rho
            rows = self.map.of(covariance.reshape(-1, *before.columns))
            mapped = rows.reshape(len(rows), -1, 1, 1)
        else:
            before = before.by_offset()
            variance_of_channel = (self.std**2).mean(axis=(1, 2))
            covariance = before.times(np.sqrt(variance_of_channel)).rho
            mapped = self.map.beside(covariance, self.columns)
        after = replace(before, rho=mapped, columns=self.columns)
        return after.times(1.0 / self.new_std).clipped()


@dataclass(frozen=True)
class Linear:
    """x (..., units) @ weight.T + bias, or the convolution of images with filters (O, C, kh, kw).

    >>> field = Field.of(np.array([1.0, 2.0]), np.array([[4.0, 3.0], [3.0, 9.0]]))
    >>> after, _ = Linear(np.array([[1.0, -1.0]]), bias=0.5)(field)
    >>> after.mean, after.variance
    (array([-0.5]), array([7.]))
    """

    weight: HostArray
    bias: Any = 0.0
    window: Window | None = None  # of a convolution

    def of(self, batch: HostArray, weight: HostArray | None = None) -> HostArray:
        """The map of a batch, without the bias."""
        x = Tensor(batch)
        w = Tensor((self.weight if weight is None else weight).astype(batch.dtype))
        window = self.window
        if window is None:
            return to_numpy(F.linear(x, w).data)
        out = F.conv2d(x, w, None, window.stride, window.padding, window.dilation)
        return to_numpy(out.data)

    def __call__(self, field: Field) -> Made:
        mean = self.of(field.mean[None])[0]
        shape = mean.shape
        is_whole = field.whole and (mean.ndim == 1 or is_stored_whole(mean.size))
        if is_whole:
            result = Field.of(mean, self._whole_covariance(field, mean.size))
            new_std = safe_std(result.variance).ravel()
        else:
            rho, new_std = self.correlations(field, shape)
            result = Field(mean, self.variances(field, shape), rho)
        result = replace(result, mean=mean + per_channel(self.bias, mean.ndim))
        std = np.sqrt(field.variance)
        return result, Mapped(self, std, new_std, shape, is_whole)

    def growth(self, before: Field, after: Field) -> float:
        """By how much it multiplies the error of covariances, which weights may add up while the
        covariances cancel: (|w| std)^2, relative to the variance."""
        std = np.sqrt(before.variance)
        largest = self.of(std[None], abs(self.weight))[0] ** 2
        return float((largest / safe_std(after.variance) ** 2).max(initial=1.0))

    # Whole

    def _whole_covariance(self, field: Field, outputs: int) -> HostArray:
        """W C W^T, one side after the other: a row of C is a sample for the forward."""
        image = field.mean.shape
        one_side = self.of(field.covariance().reshape(-1, *image))  # (values before, ...)
        turned = np.ascontiguousarray(one_side.reshape(len(one_side), -1).T)
        both_sides = self.of(turned.reshape(-1, *image))
        return both_sides.reshape(outputs, outputs)

    # By offset: variances

    def variances(self, field: Field, shape: Shape) -> HostArray:
        """w^T C w at each position, with C the covariance of the values in its patch, and 0 on the
        padding."""
        assert self.window is not None
        image = field.mean.shape
        std = np.append(np.sqrt(field.variance), 0.0)
        places = patches(self.window, image)  # (positions, patch)
        patch_std = std[places]  # -1, the padding, finds the 0
        if field.whole:
            by_position = self._variances_of_patches(field.rho[:, :, 0, 0], places, patch_std)
        else:
            by_position = self._variances_by_offset(field.rho, places, patch_std, image)
        return np.maximum(by_position.T.reshape(shape), 0.0)  # against rounding

    def _variances_of_patches(
        self, rho: HostArray, places: HostArray, patch_std: HostArray
    ) -> HostArray:
        """For each position, from the correlations of all values: (positions, outputs)."""
        filters = self.weight.reshape(len(self.weight), -1)
        variances = []
        for patch, std in zip(places, patch_std, strict=True):
            own_rho = rho[np.ix_(patch, patch)]
            x = filters * std
            variances.append((x @ own_rho * x).sum(axis=1))
        return np.array(variances)

    def _variances_by_offset(
        self, rho: HostArray, places: HostArray, patch_std: HostArray, image: Shape
    ) -> HostArray:
        """The same from correlations by offset, which are those of any patch. Standard deviations
        are each patch's own if the filters are 1x1; otherwise, patches with the same elements on
        the padding share the average of theirs."""
        assert self.window is not None
        outputs, channels, kh, kw = self.weight.shape
        filters = self.weight.reshape(outputs, -1)
        # (C, C, patch, patch) -> (C, patch, C, patch)
        taps = kernel_offsets(self.window, *image[1:])
        of_patch = rho[:, :, *taps].transpose(0, 2, 1, 3)
        patch_rho = of_patch.reshape(channels * kh * kw, -1)
        kinds = np.arange(len(places))  # which of the standard deviations a position has
        if kh * kw > 1:
            is_inside = places[:, : kh * kw] >= 0
            _, kinds = np.unique(is_inside, axis=0, return_inverse=True)
            kinds = kinds.ravel()
            averages = [patch_std[kinds == k].mean(axis=0) for k in range(kinds.max() + 1)]
            patch_std = np.stack(averages)
        variances = []
        for std in patch_std:
            x = filters * std
            variances.append((x @ patch_rho * x).sum(axis=1))
        return np.array(variances)[kinds]

    # By offset: correlations

    def correlations(self, field: Field, shape: Shape) -> tuple[HostArray, HostArray]:
        """Those of the result, and the standard deviations by which they were divided."""
        covariance = field.with_offsets().covariance()
        return normalized(self._filtered(covariance, shape, both_sides=True))

    def beside(self, covariance: HostArray, shape: Shape) -> HostArray:
        """The covariances of another image with the result, from those with the image before."""
        window = self.window
        assert window is not None
        lost = tuple(window.extent(axis) - 1 for axis in (0, 1))
        gained = tuple(2 * pixels for pixels in window.padding)
        if window.stride != (1, 1) or gained != lost:
            raise other_size(f"{window} in a residual branch")
        return self._filtered(covariance, shape, both_sides=False)

    def _filtered(self, before: HostArray, shape: Shape, both_sides: bool) -> HostArray:
        """Covariances by offset, filtered on the side of columns, or on both: S W^H or W S W^H at
        each frequency."""
        assert self.window is not None
        window = self.window
        rows = OffsetAxis.of(window, 0, before, shape)
        columns = OffsetAxis.of(window, 1, before, shape)
        around = [(rows.margin, rows.margin), (columns.margin, columns.margin)]
        before = np.pad(before, [(0, 0), (0, 0), *around], mode="edge")
        grid = before.shape[2:]

        extent = window.extent(0), window.extent(1)
        down, across = window.dilation
        filters = np.zeros((*self.weight.shape[:2], *extent), "float32")
        filters[:, :, ::down, ::across] = self.weight
        of_filters = _spectrum(filters, grid)
        if both_sides:
            left = of_filters @ _spectrum(before, grid)
        else:
            pixel = np.zeros((1, 1, *extent), "float32")  # a filter that changes nothing
            pixel[0, 0, (extent[0] - 1) // 2, (extent[1] - 1) // 2] = 1.0
            left = _spectrum(pixel, grid) * _spectrum(before, grid)
        product = left @ of_filters.conj().swapaxes(-1, -2)

        # (..., C, D) -> (C, D, ...)
        after = np.fft.irfft2(product.transpose(2, 3, 0, 1), grid).astype("float32")
        return after[:, :, rows.kept, columns.kept]


@dataclass(frozen=True)
class OffsetAxis:
    """Offsets along one axis of an image, which a convolution reads and leaves."""

    margin: int  # offsets beyond the image, which are taken for those at its edge
    kept: slice  # the offsets between two places of the window

    @classmethod
    def of(cls, window: Window, axis: int, before: HostArray, shape: Shape) -> "OffsetAxis":
        """For covariances by offset, and the shape (O, H, W) of the result."""
        size = image_size(before)[axis]
        stride = window.stride[axis]
        largest = stride * (shape[1 + axis] - 1)  # between two places, in pixels
        margin = window.extent(axis) - 1 + max(0, largest - size + 1)
        zero = size - 1 + margin  # where the offset 0 is
        return cls(margin, slice(zero - largest, zero + largest + 1, stride))


def _spectrum(x: HostArray, grid: Shape) -> HostArray:
    """The Fourier transform of images (C, D, H, W), by frequency: (..., C, D)."""
    transform = np.fft.rfft2(x, grid)
    return transform.transpose(2, 3, 0, 1).astype("complex64")


def patches(window: Window, shape: Shape) -> HostArray:
    """Where the values of each patch are in an image (C, H, W): (positions, C * kh * kw), with -1
    on the padding.

    >>> patches(Window.of(2, 2, 0), (1, 2, 4))
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """
    index = np.arange(math.prod(shape)).reshape(shape)
    channels_last = index.transpose(1, 2, 0)
    views = window.unfold(channels_last[None], -1)[0]  # (rows, columns, kh, kw, C)
    rows, columns = views.shape[:2]
    # -> (rows, columns, C, kh, kw) -> (positions, C * kh * kw)
    return views.transpose(0, 1, 4, 2, 3).reshape(rows * columns, -1)


def kernel_offsets(window: Window, h: int, w: int) -> tuple[HostArray, HostArray]:
    """For each two elements of a kernel, where their offset is in correlations of images (H, W):
    rows and columns, both (patch, patch).

    >>> kernel_offsets(Window.of((1, 2), 1, 0), 1, 3)
    (array([[0, 0],
           [0, 0]]), array([[2, 3],
           [1, 2]]))
    """
    down, across = window.dilation
    rows, columns = np.indices(window.kernel)
    i = down * rows.ravel()
    j = across * columns.ravel()
    zero_row = h - 1
    zero_column = w - 1
    return i - i[:, None] + zero_row, j - j[:, None] + zero_column
