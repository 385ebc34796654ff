"""Which tiles are even enough for Winograd convolution (tiles.py), and the plain product for the
others.

The energy of a vector is the sum of its squares. A result of a tile is rounded in proportion to the
whole tile, though it depends on its own window only. So a tile is even if no window in it has much
less energy than the tile. Infinity and NaN have no energy to compare: their tiles are not even."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..engine.arrays import Array, HostArray, backend_of, float32
from ..engine.overrides import run
from ..engine.threads import for_each, map_each
from ..functional.convolution import Convolution, filter_matrix
from ..functional.windows import Pair, Window, channels_last
from .pointwise import blocks

STEP = 4  # outputs of a tile along an axis
MOST_ENERGY = 256.0  # of a tile, relative to each of its windows
MOST_SQUARE = 1024.0  # of a weight, relative to the mean square of all
LEAST, MOST = 1e-36, 1e30  # energies whose products neither underflow nor overflow
MOST_UNEVEN = 0.25  # of all tiles; if there are more, the plain product computes everything
PIXELS_AT_ONCE = 2**18  # elements of images whose energy is summed


class Compared(NamedTuple):
    """What the energy of a tile is compared with: a window of pixels for each of its results."""

    windows: Window
    places: Pair  # of these windows, down and across; the last may hang over the image
    results: Window  # the results of a tile are a window of all results
    # whether a result adds up what it has in all tiles, as the gradient of a weight does
    adds_up: bool = False


def uneven_tiles(
    images: HostArray, tiles: Window, compared: Sequence[Compared]
) -> HostArray | None:
    """Which tiles of images (N, H, W, C) are not even: (N, down, across), or None if all are."""
    n, h, w, c = images.shape
    energies = _energies(images)
    uneven = None
    with np.errstate(over="ignore", invalid="ignore"):
        of_tiles = _window_sums(tiles, tiles.output((n, c, h, w)), energies)
        for windows, places, results, adds_up in compared:
            of_windows = _window_sums(windows, places, energies)
            compare = _compared_with_mean if adds_up else _compared
            uneven = either(uneven, compare(of_tiles, of_windows, results))
    return uneven


def _compared(of_tiles: HostArray, of_windows: HostArray, results: Window) -> HostArray | None:
    """Which tiles have much more energy than one of their windows; None if none has."""
    # images without much contrast need no comparison tile by tile
    largest = of_tiles.max(axis=(1, 2))
    least = of_windows.min(axis=(1, 2))
    (others,) = np.nonzero(~_is_even(largest, least))
    if not len(others):
        return None
    least = _window_minima(results, of_windows[others])
    uneven = np.zeros(of_tiles.shape, bool)
    uneven[others] = ~_is_even(of_tiles[others], least)
    return uneven if uneven.any() else None


def _compared_with_mean(
    of_tiles: HostArray, of_windows: HostArray, results: Window
) -> HostArray | None:
    """Which tiles have much more energy than a result has in a tile on average; None if none has.
    Images that are not finite are left to the other comparison."""
    finite = np.isfinite(of_tiles.sum(axis=(1, 2), dtype="float64"))
    if not finite.any():
        return None
    _, down, across = of_tiles.shape
    tiles = np.count_nonzero(finite) * down * across
    least = of_windows[finite].sum(axis=0, dtype="float64").min() / tiles
    uneven = finite[:, None, None] & ~_is_even(of_tiles, least)
    return uneven if uneven.any() else None


def _is_even(tile: HostArray, window: HostArray) -> HostArray:
    """By the energies of a tile and of its least window; NaN is not even."""
    return (window >= LEAST) & (tile <= np.minimum(MOST_ENERGY * window, MOST))


def _energies(images: HostArray) -> HostArray:
    """The energy of each pixel: (N, H, W, C) -> (N, H, W)"""
    out = np.empty(images.shape[:3], images.dtype)
    c = images.shape[3]

    def add_up(block: slice) -> None:
        pixels = images[block].reshape(-1, c)
        np.einsum("ij,ij->i", pixels, pixels, out=out[block].reshape(-1))

    for_each(add_up, blocks(images, PIXELS_AT_ONCE))
    return out


def _window_sums(window: Window, places: Pair, pixels: HostArray) -> HostArray:
    """(N, H, W) -> (N, *places). If a pixel is not finite, all sums of its image are NaN."""
    n, h, w = pixels.shape
    across = pixels.reshape(n * h, w) @ membership(window, 1, w, places[1])
    return np.matmul(membership(window, 0, h, places[0]).T, across.reshape(n, h, -1))


def _window_minima(window: Window, values: HostArray) -> HostArray:
    """(N, H, W) -> (N, rows, columns), along one axis after the other"""
    for axis in (0, 1):
        before = (slice(None),) * (1 + axis)
        offsets = window.along(axis, values.shape[1 + axis])
        shape = list(values.shape)
        shape[1 + axis] = max(places.stop for places, _ in offsets)
        least = np.full(shape, np.inf, values.dtype)
        for places, pixels in offsets:
            part = least[(*before, places)]
            np.minimum(part, values[(*before, pixels)], out=part)
        values = least
    return values


@lru_cache(256)
def membership(window: Window, axis: int, size: int, places: int) -> HostArray:
    """1 where a pixel along this axis is in the window at a place, 0 elsewhere: (pixels, places)"""
    first = np.arange(places) * window.stride[axis] - window.padding[axis]
    pixels = np.arange(size)[:, None]
    is_inside = (first <= pixels) & (pixels < first + window.kernel[axis])
    return is_inside.astype(float32)


def has_even_filters(w: HostArray) -> bool:
    """Whether no weight is much larger than the others. Zeros are even."""
    weights = w.ravel(order="K")  # in the order of memory: no copy
    largest = float(max(weights.max(), -weights.min())) ** 2
    if not largest <= MOST:  # NaN is not even
        return False
    mean = float(np.dot(weights, weights)) / weights.size
    return largest <= MOST_SQUARE * mean + LEAST


def too_many(uneven: HostArray | None) -> bool:
    return uneven is not None and float(uneven.mean()) > MOST_UNEVEN


def either(one: HostArray | None, other: HostArray | None) -> HostArray | None:
    """The tiles that are uneven in one array or in the other."""
    if one is None:
        return other
    return one if other is None else one | other


# -- the plain product, for all tiles or for some


def by_plain_product(kind: type[Convolution], op: Convolution, *arrays: Array) -> Array:
    """Convolve, InputGradient or FilterGradient with the geometry of op, without tiles."""
    exact = kind(op.window, op.image, op.filters, exact=True)
    return run(kind.forward, backend_of(arrays[0]), exact, *arrays)


def _places(op: Convolution, uneven: HostArray) -> HostArray:
    """The outputs of these tiles: (N, down, across) -> (N, rows, columns)"""
    rows, columns = op.window.output(op.image)
    return uneven.repeat(STEP, axis=1).repeat(STEP, axis=2)[:, :rows, :columns]


def _images(places: HostArray) -> Sequence[int]:
    """Those that have any of these places."""
    return np.flatnonzero(places.any(axis=(1, 2))).tolist()


def _columns_at(op: Convolution, x: HostArray, image: int, places: HostArray) -> HostArray:
    """im2col at some places (rows, columns) of an image: (places, kh * kw * C)"""
    windows = op.window.unfold(channels_last(x)[image : image + 1])[0]
    chosen = windows[places]  # (places, kh, kw, C)
    return chosen.reshape(len(chosen), -1)


def convolve_uneven(
    op: Convolution, x: HostArray, w: HostArray, uneven: HostArray | None, out: HostArray
) -> None:
    """Write the outputs of uneven tiles."""
    if uneven is None:
        return
    places = _places(op, uneven)
    matrix = filter_matrix(w)
    outputs = channels_last(out)

    def convolve(image: int) -> None:
        here = places[image]
        outputs[image, here] = _columns_at(op, x, image, here) @ matrix

    for_each(convolve, _images(places))


def add_input_gradient(
    op: Convolution, g: HostArray, w: HostArray, uneven: HostArray | None, out: HostArray
) -> None:
    """Add what the outputs in uneven tiles pass on to the pixels."""
    if uneven is None:
        return
    places = _places(op, uneven)
    matrix = filter_matrix(w).T
    _, c, h, width = op.image
    outputs = channels_last(g)
    shape = *places.shape[1:], *op.window.kernel, c

    def scatter(image: int) -> None:
        here = places[image]
        elements = np.zeros(shape, out.dtype)
        elements[here] = (outputs[image, here] @ matrix).reshape(-1, *shape[2:])
        out[image] += op.window.scatter(elements[None], (1, c, h, width))[0]

    for_each(scatter, _images(places))


def add_filter_gradient(
    op: Convolution, x: HostArray, g: HostArray, uneven: HostArray | None, out: HostArray
) -> None:
    """Add what the outputs in uneven tiles contribute, in the order of the images."""
    if uneven is None:
        return
    places = _places(op, uneven)
    o, c, kh, kw = op.filters
    outputs = channels_last(g)

    def of_image(image: int) -> HostArray:
        here = places[image]
        return _columns_at(op, x, image, here).T @ outputs[image, here]  # (kh * kw * C, O)

    for matrix in map_each(of_image, _images(places)):
        out += matrix.reshape(kh, kw, c, o).transpose(3, 2, 0, 1)
