"""Convolution with filters of 1x1, on both backends: the image itself is the matrix, and nothing is
copied. Padding adds outputs that are zero, and strides leave pixels out; neither costs a
multiplication."""

from functools import reduce
from operator import add
from typing import Any

from ..engine.arrays import Array, is_host_array
from ..engine.overrides import override
from ..functional.convolution import Convolution, Convolve
from ..functional.linear import product
from ..functional.windows import channels_last, empty_image

OUTPUTS_AT_ONCE = 2**18  # elements of the output, 1 MB in float32

Part = tuple[slice, slice]  # rows and columns of an image
ALL = slice(None), slice(None)


def blocks(x: Array, most: int, each: int | None = None) -> list[slice]:
    """Cut x along its first axis into equal blocks of about `most` elements, which stay in the
    cache. Other arrays may have more elements than x has: `each` for every x[i]. A device takes all
    at once."""
    n, size = len(x), x.size if each is None else len(x) * each
    count = max(1, min(n, round(size / most))) if is_host_array(x) else 1
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def part(x: Array, block: slice) -> Array:
    """A block of x; x itself if it is all of it, since on a device a view takes the host a
    while."""
    return x if block.stop - block.start == len(x) else x[block]


def _meeting(op: Convolution) -> tuple[Part, Part] | None:
    """The places where the window is on the image, and the pixels that it meets there; None if it
    is not 1x1."""
    if op.window.kernel != (1, 1) or op.groups != 1:
        return None
    if op.window.stride == (1, 1) and op.window.padding == (0, 0):
        return ALL, ALL
    ((rows, pixel_rows),) = op.window.along(0, op.image[2])
    ((across, pixel_columns),) = op.window.along(1, op.image[3])
    return (rows, across), (pixel_rows, pixel_columns)


def _pixels(x: Array, which: Part) -> Array:
    """(N, H, W, C) -> (N * pixels of the part, C): a view if these are all, and the memory
    contiguous"""
    return (x if which is ALL else x[:, which[0], which[1]]).reshape(-1, x.shape[3])


def _multiply(pixels: Array, matrix: Array, which: Part, out: Array) -> None:
    """pixels (N * pixels of the part, C) @ matrix (C, O) -> the part of out (N, H, W, O), which is
    zero elsewhere"""
    inside = out if which is ALL else out[:, which[0], which[1]]
    if inside.shape == out.shape:
        product(pixels, matrix, out=out.reshape(-1, out.shape[3]))
    else:
        out[...] = 0
        inside[...] = product(pixels, matrix).reshape(inside.shape)


@override(Convolve.forward)
def pointwise(op: Convolve, x: Array, w: Array) -> Any:
    if (meeting := _meeting(op)) is None:
        return NotImplemented
    (places, pixels), matrix = meeting, w.reshape(w.shape[:2]).T
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    images, outputs = channels_last(x), channels_last(out)
    for block in blocks(out, OUTPUTS_AT_ONCE):
        met = _pixels(part(images, block), pixels)
        _multiply(met, matrix, places, part(outputs, block))
        # then these are copies, and fewer than there are pixels
        if op.recorded and op.window.stride != (1, 1):
            op.cache.setdefault("met", {})[block.start] = met
    return out


@override(Convolve.backward)
def pointwise_gradients(op: Convolve, g: Array, x: Array, w: Array) -> Any:
    """Both gradients of a block of images, or the one that is wanted, while its g is in the
    cache."""
    if (meeting := _meeting(op)) is None:
        return NotImplemented
    (places, pixels), saved = meeting, op.cache.get("met", {}) if op.window.stride != (1, 1) else {}
    of_x, of_w = (parent is not None for parent in op.parents or (True, True))
    g_x, parts = empty_image(x.shape, g, w) if of_x else None, []
    images, gradients, matrix = channels_last(x), channels_last(g), w.reshape(w.shape[:2])
    result = None if g_x is None else channels_last(g_x)
    for block in blocks(g, OUTPUTS_AT_ONCE):
        rows = _pixels(part(gradients, block), places)
        if result is not None:
            _multiply(rows, matrix, pixels, part(result, block))
        if of_w:
            met = saved.get(block.start)
            parts.append(
                product(rows.T, _pixels(part(images, block), pixels) if met is None else met)
            )
    return g_x, reduce(add, parts).reshape(w.shape) if of_w else None
