"""Convolution as one product of matrices: each place of the window becomes a row of pixels, each kernel a column.

Works for every geometry and dtype, at the price of a copy of the image for each element of the kernel.
"""

from ..engine.arrays import Array, array_module
from .windows import Finish, Shape, Window, blocks, channels_last

ELEMENTS_AT_ONCE = 2**19  # so many elements (2 MB in float32) are made and used while they are in the cache


def _rows(x: Array, window: Window) -> Array:
    """x (N, H, W, C) -> (N * places, kh * kw * C). One copy."""
    views = window.views(window.padded(x))
    n, rows, columns, kh, kw, c = views.shape
    return views.reshape(n * rows * columns, kh * kw * c)


def _matrix(w: Array) -> Array:
    """w (O, C, kh, kw) -> (kh * kw * C, O)"""
    return w.transpose(2, 3, 1, 0).reshape(-1, w.shape[0])


def _elements(window: Window, image: Shape, channels: int) -> int:
    """Of the rows of one image and of its output."""
    rows, columns = window.output(image)
    return rows * columns * (window.kernel[0] * window.kernel[1] * image[1] + channels)


def convolve(x: Array, w: Array, window: Window, out: Array, finish: Finish | None = None) -> None:
    matrix, elements = _matrix(w), _elements(window, x.shape, w.shape[0])
    x, outputs = channels_last(x), channels_last(out)
    for images in blocks(x, elements, ELEMENTS_AT_ONCE):
        array_module(x).matmul(_rows(x[images], window), matrix, out=outputs[images].reshape(-1, w.shape[0]))
        if finish is not None:
            finish(out[images])


def image_gradient(g: Array, w: Array, window: Window, out: Array) -> None:
    (_, c, h, width), (o, _, kh, kw), matrix = out.shape, w.shape, _matrix(w)
    elements = _elements(window, out.shape, o)
    if window.stride == (1, 1) and g.shape[2:] == out.shape[2:] and o <= 4 * c:
        # As large an output as input: the gradient is the convolution of g with the kernels turned round, and
        # fetching pixels to a row is cheaper than sending them back (unless g has many more channels).
        return convolve(g, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), window, out)
    g, out = channels_last(g), channels_last(out)
    for images in blocks(g, elements, ELEMENTS_AT_ONCE):
        out[images] = 0
        rows = g[images].reshape(-1, o) @ matrix.T  # (N * places, kh * kw * C)
        parts = rows.reshape(-1, *g.shape[1:3], kh, kw, c)
        for i, (rows_met, rows_of_pixels) in enumerate(window.along(0, h)):
            for j, (columns_met, columns_of_pixels) in enumerate(window.along(1, width)):
                out[images, rows_of_pixels, columns_of_pixels] += parts[:, rows_met, columns_met, i, j]


def kernel_gradient(x: Array, g: Array, window: Window, kernel: Shape) -> Array:
    o, c, kh, kw = kernel
    elements = _elements(window, x.shape, o)
    x, g, xp = channels_last(x), channels_last(g), array_module(x)
    matrix = xp.zeros((kh * kw * c, o), xp.result_type(x, g))
    for images in blocks(x, elements, ELEMENTS_AT_ONCE):
        matrix += _rows(x[images], window).T @ g[images].reshape(-1, o)
    return matrix.reshape(kh, kw, c, o).transpose(3, 2, 0, 1)
