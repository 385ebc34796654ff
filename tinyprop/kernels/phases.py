"""Convolution with strides: the phases of an image, and of a filter, become channels, and stride 1
is left.

With stride s, a pixel's position modulo s decides which elements of a filter it ever meets. So s *
s small images, each with every s-th pixel down and across, convolved with s * s small filters and
added up, are the convolution; and filters of size k at stride s become filters of size ceil(k / s)
at stride 1, to which tiles apply."""

from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..functional.convolution import Convolve
from ..functional.windows import Pair, Shape, Window, channels_first, channels_last
from . import tiles

LEAST_CHANNELS = 8  # for tiles to be faster, as measured: im2col with strides is slow


def _small(op: Convolve) -> Convolve | None:
    """The same convolution in phases, if it has any."""
    window, (o, c, kh, kw), (s, t) = op.window, op.filters, op.window.stride
    if s != t or s == 1 or window.dilation != (1, 1):
        return None
    places, kernel = window.output(op.image), (-(-kh // s), -(-kw // s))
    image = (op.image[0], c * s * s, places[0] + kernel[0] - 1, places[1] + kernel[1] - 1)
    small = Convolve(
        Window(kernel, (1, 1), (0, 0)), op.groups, image, (o, c * s * s, *kernel), op.exact
    )
    small.cache["least channels"] = LEAST_CHANNELS
    return small


def _split(x: HostArray, corner: Pair, size: Shape, s: int) -> HostArray:
    """Images (N, C, H, W) from `corner` on, zeros beyond their edges -> their phases (N, s * s * C,
    *size)"""
    (n, c, h, w), (top, left), (rows, across) = x.shape, corner, size
    out = np.zeros((n, rows * s, across * s, c), x.dtype)
    part = channels_last(x)[:, : rows * s - top, : across * s - left]
    out[:, top : top + h, left : left + w] = part
    phases = out.reshape(n, rows, s, across, s, c).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(phases.reshape(n, rows, across, s * s * c))


def _join(phases: HostArray, corner: Pair, size: Shape, s: int) -> HostArray:
    """The transpose of `_split`: phases (N, s * s * C, rows, columns) -> (N, C, *size)"""
    (n, c, rows, across), (top, left), (h, w) = phases.shape, corner, size
    images = (
        channels_last(phases)
        .reshape(n, rows, across, s, s, c // (s * s))
        .transpose(0, 1, 3, 2, 4, 5)
    )
    images = images.reshape(n, rows * s, across * s, -1)[:, top : top + h, left : left + w]
    # pixels that no window meets
    missing = [(0, 0), (0, h - images.shape[1]), (0, w - images.shape[2]), (0, 0)]
    return channels_first(np.pad(images, missing) if any(map(sum, missing)) else images)


@override(Convolve.forward, on="numpy")
def phased(op: Convolve, x: HostArray, w: HostArray) -> Any:
    small, s = _small(op), op.window.stride[0]
    if small is None or not tiles.applies(small, x, w):
        return NotImplemented
    small.recorded = op.recorded
    pixels = _split(x, op.window.padding, small.image[2:], s)
    filters = _split(w, (0, 0), small.window.kernel, s)
    out = tiles.convolve(small, pixels, filters)
    if op.recorded:
        op.cache["small"] = small, filters
    return out


@override(Convolve.backward, on="numpy")
def phased_gradients(op: Convolve, g: HostArray, x: HostArray, w: HostArray) -> Any:
    if "small" not in op.cache:
        return NotImplemented
    (small, filters), s = op.cache["small"], op.window.stride[0]
    # of the pixels it has saved what it needs
    of_x, of_w = tiles.convolve_gradients(small, g, x, filters)
    return (
        lambda: _join(of_x(), op.window.padding, x.shape[2:], s),
        lambda: np.ascontiguousarray(_join(of_w(), (0, 0), w.shape[2:], s)),
    )
