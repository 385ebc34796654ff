"""Convolution with large filters by Fourier transforms, on the host: a product for each frequency.

A correlation is the product of the image's transform with the conjugate of the filter's, as long as
the transform is as long as the padded image: what wraps around then falls outside of the outputs.
At each frequency the sum over channels is one matrix product, with real and imaginary parts side by
side; its gradients are the same product with other factors. Images are so small that the
transforms, too, are fastest as matrix products, which cost nothing for padding, and compute only
what is wanted of an inverse. It rounds as little as the plain product, for images as a whole:
beside a pixel that is far larger than all others, these lose their last digits everywhere."""

from functools import cache
from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..functional.convolution import Convolution, Convolve
from ..functional.windows import Pair, Shape, channels_first, channels_last

LEAST = 6  # rows and columns of a filter from which on it is faster, as measured
MOST = 2**23  # frequencies times filters times channels: more would take too much memory


def pays(op: Convolution) -> bool:
    (o, c, kh, kw), plain = (
        op.filters,
        op.groups == 1 and op.window.stride == (1, 1) and op.window.dilation == (1, 1),
    )
    plain = plain and not op.exact
    height, _, across = _lengths(op)
    return plain and min(kh, kw) >= LEAST and height * across * o * c <= MOST


def _lengths(op: Convolution) -> tuple[int, int, int]:
    """Of the transform down and across, those of the padded image; and the number of frequencies
    across: as the images are real, half of them follow from the others."""
    (_, _, h, w), (ph, pw) = op.image, op.window.padding
    return h + 2 * ph, w + 2 * pw, (w + 2 * pw) // 2 + 1


@cache
def _matrices(length: int, start: int, size: int, dtype: np.dtype[Any]) -> list[HostArray]:
    """The transform of the elements from `start` on, `size` of them, and its inverse: across, then
    down.

    Across, real numbers turn into (real or imaginary, frequency); down, (row, real or imaginary)
    into (frequency, real or imaginary)."""
    angle = 2 * np.pi / length * np.outer(np.arange(length), np.arange(start, start + size))
    cos, sin = np.cos(angle), np.sin(angle)  # (frequencies, elements)
    down = np.array([[cos, sin], [-sin, cos]]).transpose(2, 0, 3, 1).reshape(2 * length, 2 * size)
    half = length // 2 + 1
    across = np.stack([cos[:half], -sin[:half]])  # (2, half, elements)
    twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == length), 1.0, 2.0)[:, None]
    back = (across * twice).reshape(2 * half, size).T / length
    found = across.reshape(2 * half, size), down, back, down.T / length
    return [np.ascontiguousarray(matrix, dtype) for matrix in found]


def _transformed(images: HostArray, op: Convolution, corner: Pair = (0, 0)) -> HostArray:
    """Images (N, C, H, W), moved by `corner` -> (frequencies, N, real or imaginary * C)"""
    (n, c, h, w), (height, width, half) = images.shape, _lengths(op)
    across, _, _, _ = _matrices(width, corner[1], w, images.dtype)
    _, down, _, _ = _matrices(height, corner[0], h, images.dtype)
    rows = across @ channels_last(images)  # (N, H, 2 * half, C)
    found = down @ rows.reshape(n, h * 2, half * c)  # (N, height * 2, half * C)
    return (
        found.reshape(n, height, 2, half, c)
        .transpose(1, 3, 0, 2, 4)
        .reshape(height * half, n, 2 * c)
    )


def _back(products: HostArray, op: Convolution, corner: Pair, size: Shape) -> HostArray:
    """(frequencies, N, real or imaginary * C) -> the part of `size` at `corner` of the images, (N,
    C, *size)"""
    (_, n, c), (height, width, half), (h, w) = products.shape, _lengths(op), size
    _, _, across, _ = _matrices(width, corner[1], w, products.dtype)
    _, _, _, down = _matrices(height, corner[0], h, products.dtype)
    found = products.reshape(height, half, n, 2, c // 2).transpose(2, 0, 3, 1, 4)
    rows = (down @ found.reshape(n, height * 2, half * (c // 2))).reshape(n, h, 2 * half, c // 2)
    return channels_first(across @ rows)


def _filters(w: HostArray, op: Convolution) -> HostArray:
    """(O, C, kh, kw) -> (frequencies, 2 * O, 2 * C): multiplication by complex numbers, as matrices
    of real ones"""
    o, c = w.shape[:2]
    found = _transformed(w, op).reshape(-1, o, 2, c)
    out = np.empty((len(found), 2, o, 2, c), w.dtype)
    out[:, 0] = found
    np.negative(found[:, :, 1], out=out[:, 1, :, 0])
    out[:, 1, :, 1] = found[:, :, 0]
    return out.reshape(-1, 2 * o, 2 * c)


@override(Convolve.forward, on="numpy")
def convolve(op: Convolve, x: HostArray, w: HostArray) -> Any:
    if not pays(op) or x.dtype.char not in "fd" or w.dtype.char not in "fd":
        return NotImplemented
    filters, pixels = _filters(w, op), _transformed(x, op, op.window.padding)
    if op.recorded:
        op.cache["transforms"] = filters, pixels
    return _back(pixels @ filters.transpose(0, 2, 1), op, (0, 0), op.window.output(x.shape))


@override(Convolve.backward, on="numpy")
def gradients(op: Convolve, g: HostArray, x: HostArray, w: HostArray) -> Any:
    """Transform g once for both gradients."""
    if "transforms" not in op.cache:
        return NotImplemented
    (filters, pixels), outputs, (o, c) = op.cache["transforms"], _transformed(g, op), op.filters[:2]

    def of_w() -> HostArray:
        products = (outputs.transpose(0, 2, 1) @ pixels).reshape(-1, 2, o, 2, c)
        sums = np.empty((len(products), o, 2, c), products.dtype)  # pixels times conjugate outputs
        np.add(products[:, 0, :, 0], products[:, 1, :, 1], out=sums[:, :, 0])
        np.subtract(products[:, 0, :, 1], products[:, 1, :, 0], out=sums[:, :, 1])
        return np.ascontiguousarray(_back(sums.reshape(-1, o, 2 * c), op, (0, 0), op.filters[2:]))

    return lambda: _back(outputs @ filters, op, op.window.padding, op.image[2:]), of_w
