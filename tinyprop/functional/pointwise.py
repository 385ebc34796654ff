"""Convolution with kernels of 1x1: every pixel for itself, so the image is the matrix, and nothing is copied.

Padding only adds outputs that are zero, and strides leave pixels out: neither costs a multiplication.
"""

import math

from ..engine.arrays import Array, array_module
from .windows import Finish, Shape, Window, blocks, channels_last

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


def _multiply(pixels: Array, matrix: Array, part: Part, out: Array) -> None:
    """pixels (N * pixels of the part, C) @ matrix (C, O) -> the part of out (N, O, H, W); elsewhere it is zero"""
    out = channels_last(out)
    inside = out[:, part[0], part[1]]
    if inside.shape == out.shape:
        array_module(out).matmul(pixels, matrix, out=out.reshape(-1, out.shape[3]))
    else:
        out[...] = 0
        inside[...] = (pixels @ matrix).reshape(inside.shape)


def convolve(x: Array, w: Array, window: Window, out: Array, finish: Finish | None = None) -> None:
    places, pixels = _meeting(window, x.shape)
    for images in blocks(x, math.prod(out.shape[1:]), ELEMENTS_AT_ONCE):
        _multiply(_pixels(x[images], pixels), w[:, :, 0, 0].T, places, out[images])
        if finish is not None:
            finish(out[images])


def image_gradient(g: Array, w: Array, window: Window, out: Array) -> None:
    places, pixels = _meeting(window, out.shape)
    _multiply(_pixels(g, places), w[:, :, 0, 0], pixels, out)


def kernel_gradient(x: Array, g: Array, window: Window, kernel: Shape) -> Array:
    places, pixels = _meeting(window, x.shape)
    return (_pixels(g, places).T @ _pixels(x, pixels)).reshape(kernel)
