"""Convolution with kernels of 1x1: every pixel for itself, so the image is the matrix, and nothing is copied.

Padding adds outputs that are zero and strides leave pixels out: neither costs a multiplication.
"""

from ..backend import Array, array_module
from .windows import Shape, Window, channels_first, channels_last


def _meeting(window: Window, image: Shape) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """The places of the window that lie on the image, and the pixels they meet."""
    ((rows, rows_of_pixels),), ((columns, columns_of_pixels),) = (window.along(a, image[2 + a]) for a in (0, 1))
    return (rows, columns), (rows_of_pixels, columns_of_pixels)


def _spread(matrix: Array, where: tuple[slice, slice], met: tuple[int, int], size: tuple[int, int]) -> Array:
    """The rows of a matrix (N * met, channels) as an image (N, channels, *size) that is zero elsewhere."""
    channels = matrix.shape[1]
    part = matrix.reshape(-1, *met, channels)
    if met == size:
        return channels_first(part)
    out = array_module(matrix).zeros((part.shape[0], *size, channels), matrix.dtype)
    out[:, where[0], where[1]] = part
    return channels_first(out)


def _length(s: slice) -> int:
    return len(range(s.start, s.stop, s.step or 1))


def _pixels(x: Array, where: tuple[slice, slice]) -> Array:
    """x (N, C, H, W) -> (N * H * W, C), of the pixels that are meant; a view if these are all."""
    return channels_last(x)[:, where[0], where[1]].reshape(-1, x.shape[1])


def convolve(x: Array, w: Array, window: Window) -> Array:
    places, pixels = _meeting(window, x.shape)
    out = _pixels(x, pixels) @ w.reshape(w.shape[:2]).T
    return _spread(out, places, (_length(places[0]), _length(places[1])), window.output(x.shape))


def image_gradient(g: Array, w: Array, window: Window, image: Shape) -> Array:
    places, pixels = _meeting(window, image)
    out = _pixels(g, places) @ w.reshape(w.shape[:2])
    return _spread(out, pixels, (_length(places[0]), _length(places[1])), (image[2], image[3]))


def kernel_gradient(x: Array, g: Array, window: Window, kernel: Shape) -> Array:
    places, pixels = _meeting(window, x.shape)
    return (_pixels(g, places).T @ _pixels(x, pixels)).reshape(kernel)
