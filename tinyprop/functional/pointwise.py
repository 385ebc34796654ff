"""Convolution with kernels of 1x1: every pixel for itself, so the image is the matrix, and nothing is copied.

Padding only adds outputs that are zero, and strides leave pixels out: neither costs a multiplication.
"""

from ..backend import Array, array_module
from .windows import Finish, Shape, Window, blocks, channels_first, channels_last

ELEMENTS_AT_ONCE = 2**18  # of the output, 1 MB in float32

Part = tuple[slice, slice]  # rows and columns of an image


def _meeting(window: Window, image: Shape) -> tuple[Part, Part]:
    """The places where the window is on the image, and the pixels it meets there."""
    ((rows, pixel_rows),) = window.along(0, image[2])
    ((columns, pixel_columns),) = window.along(1, image[3])
    return (rows, columns), (pixel_rows, pixel_columns)


def _pixels(x: Array, part: Part) -> Array:
    """x (N, C, H, W) -> (N * pixels of the part, C): a view if the part is the whole and its memory channels-last."""
    return channels_last(x)[:, part[0], part[1]].reshape(-1, x.shape[1])


def _image(pixels: Array, part: Part, size: Shape) -> Array:
    """The transpose of _pixels: (N * pixels of the part, C) -> (N, C, H, W), zero outside of the part."""
    n, h, w, c = (size[0], *size[2:], pixels.shape[1])
    if pixels.shape[0] == n * h * w:
        return channels_first(pixels.reshape(n, h, w, c))
    out = array_module(pixels).zeros((n, h, w, c), pixels.dtype)
    inside = out[:, part[0], part[1]]
    inside[...] = pixels.reshape(inside.shape)
    return channels_first(out)


def convolve(x: Array, w: Array, window: Window, finish: Finish | None = None) -> Array:
    (places, pixels), (o, c, *_), xp = _meeting(window, x.shape), w.shape, array_module(x)
    rows, columns = window.output(x.shape)
    out = xp.empty((x.shape[0], rows, columns, o), xp.result_type(x, w))
    whole = out[:, places[0], places[1]].shape == out.shape
    for images in blocks(x, rows * columns * o, ELEMENTS_AT_ONCE):
        outputs = out[images].reshape(-1, o) if whole else None
        outputs = xp.matmul(_pixels(x[images], pixels), w.reshape(o, c).T, out=outputs)
        if not whole:
            out[images] = 0
            out[images, places[0], places[1]] = outputs.reshape(out[images, places[0], places[1]].shape)
        if finish is not None:
            finish(out[images])
    return channels_first(out)


def image_gradient(g: Array, w: Array, window: Window, image: Shape) -> Array:
    places, pixels = _meeting(window, image)
    o, c, *_ = w.shape
    return _image(_pixels(g, places) @ w.reshape(o, c), pixels, image)


def kernel_gradient(x: Array, g: Array, window: Window, kernel: Shape) -> Array:
    places, pixels = _meeting(window, x.shape)
    return (_pixels(g, places).T @ _pixels(x, pixels)).reshape(kernel)
