"""Convolution with large filters by Fourier transforms, on the host: along both axes a product for each frequency.

A correlation is the product of the image's transform with the conjugate of the filter's, as long as the transform is
no shorter than the padded image: what wraps around then falls outside of the outputs. For each frequency the sum over
channels is one matrix product, and its gradients are the same products with other factors. It rounds no more than the
plain product does.
"""

from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..engine.overrides import override
from ..functional.convolution import Convolution, Convolve, FilterGradient, InputGradient
from ..functional.windows import Pair, Shape, channels_first, channels_last

LEAST = 7  # rows and columns of a filter from which on it is faster, as measured


def pays(op: Convolution) -> bool:
    (o, c, kh, kw), plain = op.filters, op.groups == 1 and op.window.stride == (1, 1) and op.window.dilation == (1, 1)
    return plain and min(kh, kw) >= LEAST and min(o, c) >= 16


def _lengths(op: Convolution) -> Pair:
    """The lengths of the transform: at least those of the padded image, and products of small primes."""
    (_, _, h, w), (ph, pw) = op.image, op.window.padding
    return _smooth(h + 2 * ph), _smooth(w + 2 * pw)


def _smooth(length: int) -> int:
    """The next number without a prime factor above 7."""
    rest = length
    for prime in (2, 3, 5, 7):
        while rest % prime == 0:
            rest //= prime
    return length if rest == 1 else _smooth(length + 1)


def _transformed(images: HostArray, op: Convolution, corner: Pair = (0, 0)) -> HostArray:
    """Images (N, C, H, W), moved by `corner` -> (frequencies, N, C)"""
    n, c, h, w = images.shape
    height, width = _lengths(op)
    if corner != (0, 0):
        room = np.zeros((n, height, width, c), images.dtype)
        room[:, corner[0] : corner[0] + h, corner[1] : corner[1] + w] = channels_last(images)
    else:
        room = channels_last(images)
    found = np.fft.rfft2(room, (height, width), axes=(1, 2))  # (N, height, width / 2 + 1, C)
    return np.ascontiguousarray(found.reshape(n, -1, c).transpose(1, 0, 2))


def _back(products: HostArray, op: Convolution, corner: Pair, size: Shape) -> HostArray:
    """(frequencies, N, C) -> the part of `size` at `corner` of the images (N, C, height, width)"""
    (height, width), (_, n, c), (top, left), (h, w) = _lengths(op), products.shape, corner, size
    spectrum = products.transpose(1, 0, 2).reshape(n, height, width // 2 + 1, c)
    images = np.fft.irfft2(spectrum, (height, width), axes=(1, 2))
    return channels_first(np.ascontiguousarray(images[:, top : top + h, left : left + w]))


@override(Convolve.forward, on="numpy")
def convolve(op: Convolve, x: HostArray, w: HostArray) -> Any:
    if not pays(op):
        return NotImplemented
    filters = _transformed(w, op).conj().transpose(0, 2, 1)  # (frequencies, C, O)
    pixels = _transformed(x, op, op.window.padding)
    if op.recorded:
        op.cache["pixels"] = pixels
    return _back(pixels @ filters, op, (0, 0), op.window.output(x.shape))


@override(Convolve.backward, on="numpy")
def gradients(op: Convolve, g: HostArray, x: HostArray, w: HostArray) -> Any:
    """Transform g once for both gradients."""
    if not pays(op):
        return NotImplemented
    pixels, outputs = op.cache.get("pixels"), _transformed(g, op)
    return lambda: input_gradient(op, g, w, outputs), lambda: filter_gradient(op, x, g, pixels, outputs)


@override(InputGradient.forward, on="numpy")
def input_gradient(op: Convolution, g: HostArray, w: HostArray, outputs: HostArray | None = None) -> Any:
    if not pays(op):
        return NotImplemented
    outputs = _transformed(g, op) if outputs is None else outputs  # (frequencies, N, O)
    return _back(outputs @ _transformed(w, op), op, op.window.padding, op.image[2:])


@override(FilterGradient.forward, on="numpy")
def filter_gradient(
    op: Convolution, x: HostArray, g: HostArray, pixels: HostArray | None = None, outputs: HostArray | None = None
) -> Any:
    if not pays(op):
        return NotImplemented
    pixels = _transformed(x, op, op.window.padding) if pixels is None else pixels
    outputs = _transformed(g, op) if outputs is None else outputs
    product = outputs.conj().transpose(0, 2, 1) @ pixels  # (frequencies, O, C)
    return np.ascontiguousarray(_back(product, op, (0, 0), op.filters[2:]))
