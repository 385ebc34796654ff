"""Convolution with strides: the phases of an image, and of a filter, become channels, and stride 1
is left.

With stride s, a pixel's position modulo s decides which elements of a filter it ever meets. So s *
s small images, each with every s-th pixel down and across, convolved with s * s small filters and
added up, are the convolution; and filters of size k at stride s become filters of size ceil(k / s)
at stride 1, to which tiles apply."""

from typing import Any

import numpy as np

from ..engine.arrays import HostArray, float32
from ..engine.overrides import override
from ..functional.convolution import Convolve, FilterGradient, InputGradient
from ..functional.windows import Pair, Shape, Window, channels_first, channels_last
from . import tiles
from .evenness import (
    add_filter_gradient,
    add_input_gradient,
    by_plain_product,
    convolve_uneven,
    either,
)


def _small(op: Convolve) -> Convolve | None:
    """The same convolution in phases, if it has any."""
    s, t = op.window.stride
    if s != t or s == 1 or op.window.dilation != (1, 1):
        return None
    if min(op.filters[:2]) < tiles.LEAST_CHANNELS:
        return None
    n = op.image[0]
    o, c, kh, kw = op.filters
    kernel = -(-kh // s), -(-kw // s)  # ceil(k / s)
    rows, columns = op.window.output(op.image)
    image = n, c * s * s, rows + kernel[0] - 1, columns + kernel[1] - 1
    filters = o, c * s * s, *kernel
    return Convolve(Window(kernel, (1, 1), (0, 0)), image, filters, op.exact)


def _split(x: HostArray, corner: Pair, size: Shape, s: int) -> HostArray:
    """Images (N, C, H, W) from `corner` on, zeros beyond their edges -> their phases (N, s * s * C,
    *size)"""
    n, c, h, w = x.shape
    top, left = corner
    rows, columns = size
    padded = np.zeros((n, rows * s, columns * s, c), x.dtype)
    inside = channels_last(x)[:, : rows * s - top, : columns * s - left]
    padded[:, top : top + h, left : left + w] = inside
    # (N, rows * s, columns * s, C) -> (N, rows, columns, s, s, C)
    phases = padded.reshape(n, rows, s, columns, s, c).transpose(0, 1, 3, 2, 4, 5)
    return channels_first(phases.reshape(n, rows, columns, s * s * c))


def _join(phases: HostArray, corner: Pair, size: Shape, s: int) -> HostArray:
    """The transpose of `_split`: phases (N, s * s * C, rows, columns) -> (N, C, *size)"""
    n, channels, rows, columns = phases.shape
    c = channels // (s * s)
    top, left = corner
    h, w = size
    # (N, rows, columns, s, s, C) -> (N, rows * s, columns * s, C)
    elements = channels_last(phases).reshape(n, rows, columns, s, s, c)
    padded = elements.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows * s, columns * s, c)
    images = padded[:, top : top + h, left : left + w]
    # pixels that no window meets
    missing = h - images.shape[1], w - images.shape[2]
    if any(missing):
        images = np.pad(images, [(0, 0), (0, missing[0]), (0, missing[1]), (0, 0)])
    return channels_first(images)


@override(Convolve.forward, on="numpy")
def phased(op: Convolve, x: HostArray, w: HostArray) -> Any:
    """The convolution, by tiles of phases. It gains by what it keeps for the gradient: a step with
    two convolutions of 5x5 with stride 2, 32 and 64 filters, takes 0.83 of its time."""
    small = _small(op)
    if small is None or not tiles.applies(small, x, w):
        return NotImplemented
    small.recorded = op.recorded
    s = op.window.stride[0]
    pixels = _split(x, op.window.padding, small.image[2:], s)
    filters = _split(w, (0, 0), small.window.kernel, s)
    out = tiles.convolve_even(small, pixels, filters, small.cache)
    if out is NotImplemented:
        return NotImplemented
    # by op: small filters may have zeros, which meet infinite pixels that those of op do not meet
    uneven = small.cache["uneven input"]
    convolve_uneven(op, x, w, uneven, out)
    if op.recorded:
        op.cache["small"] = small, filters
    return out


@override(Convolve.backward, on="numpy")
def phased_gradients(op: Convolve, g: HostArray, x: HostArray, w: HostArray) -> Any:
    """Both transposes of the convolution, by tiles of phases. 1.7 > 1.2 ms for 64 filters of 5x5 on
    16 images of 32x16x16."""
    if "small" not in op.cache or g.dtype != float32:
        return NotImplemented
    small, filters = op.cache["small"]
    s = op.window.stride[0]
    known = dict(small.cache)

    def of_x() -> HostArray:
        phases = tiles.input_gradient_even(small, g, filters, known)
        if phases is NotImplemented:
            return by_plain_product(InputGradient, op, g, w)
        g_x = _join(phases, op.window.padding, x.shape[2:], s)
        uneven = known["uneven output.T"]
        add_input_gradient(op, g, w, uneven, g_x)
        return g_x

    def of_w() -> HostArray:
        # it needs the shape of the pixels only: it has saved their transform
        phases = tiles.filter_gradient_even(small, x, g, known)
        if phases is NotImplemented:
            return by_plain_product(FilterGradient, op, x, g)
        g_w = np.ascontiguousarray(_join(phases, (0, 0), w.shape[2:], s))
        uneven = either(known["uneven input"], known["uneven output.T"])
        add_filter_gradient(op, x, g, uneven, g_w)
        return g_w

    return of_x, of_w
