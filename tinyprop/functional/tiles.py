"""Convolution with fewer multiplications: small tiles of the image, multiplied as polynomials (Cook-Toom, Winograd).

A polynomial of degree below n is known from its values at n points, and where polynomials are multiplied, their
values are. So 4 outputs of a kernel of 5 need 8 multiplications instead of 20, and a tile of 4 x 4 outputs 64
instead of 400. For correlation along one axis, with * element by element:

    outputs = write @ ((read @ pixels) * (weigh @ kernel))

In two dimensions each matrix is applied along the rows and along the columns, and the sum over the channels turns *
into one matrix product for each point. All steps are linear, so the gradients use the transposed matrices.
The price is rounding: about 5e-6 of the result in float32, where plain convolution has 3e-7.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.arrays import Array, array_module, contiguous, float64, from_host, host_array
from ..kernels import device
from .windows import Finish, Shape, Window, blocks, channels_last

# For each size of kernel the outputs of a tile along an axis, and the points, to which infinity is added. Fractions
# of small numbers, large and small in balance, lose the fewest digits.
TILES = {3: (4, (0, 1, -1, 0.5, -2)), 5: (4, (0, 1, -1, 2, -2, 0.5, -0.5))}

# So many tiles stay in the cache from the first step to the last, and BLAS libraries multiply small matrices without
# copying them first.
TILES_AT_ONCE = 32


@dataclass(frozen=True)
class Tiling:
    """Tiles of size x size pixels, `step` apart, each of which gives step x step outputs."""

    step: int
    size: int
    read: Array  # (size points, size pixels): along an axis, as the other two
    weigh: Array  # (size points, kernel)
    write: Array  # (step outputs, size points)
    on_host: tuple[Array, Array, Array]  # the three in double precision, which go into the code of a device


def one_axis(step: int, points: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """The matrices read, weigh and write for tiles of `step` outputs, from the points of interpolation.

    With powers of the points in V, the values of a polynomial are V @ coefficients; its value at infinity is the
    leading coefficient. The product of a and b is inv(V) @ ((V @ a) * (V @ b)), each V with as many columns as
    there are coefficients. Correlation with a is the transpose of multiplication by a.
    """
    size = len(points) + 1

    def values(coefficients: int) -> Array:
        at_infinity = [0] * (coefficients - 1) + [1]
        return host_array([[p**i for i in range(coefficients)] for p in points] + [at_infinity], float64)

    v = values(size)
    return array_module(v).linalg.inv(v).T, values(size + 1 - step), values(step).T


_tilings: dict[tuple[int, str], Tiling] = {}  # made once for each device


def _tiling(kernel: Shape, like: Array) -> Tiling:
    key = kernel[-1], str(like.device)
    if key not in _tilings:
        step, points = TILES[kernel[-1]]
        matrices = one_axis(step, points)
        read, weigh, write = (from_host(contiguous(m), like, like.dtype) for m in matrices)
        _tilings[key] = Tiling(step, len(points) + 1, read, weigh, write, matrices)
    return _tilings[key]


def _by_tile(values: Array) -> Array:
    """(points, tiles, C) -> (tiles, points down, points across, C), a view: maps go by tile, products by point."""
    points, tiles, c = values.shape
    size = math.isqrt(points)
    return values.reshape(size, size, tiles, c).transpose(2, 0, 1, 3)


def _to_values(matrix: Array, tiles: Array, values: Array) -> None:
    """tiles (..., pixels down, pixels across, C) -> (points, tiles, C), into `values`, by a matrix (points, pixels)"""
    xp, (*count, down, across, c) = array_module(tiles), tiles.shape
    matrix = xp.ascontiguousarray(matrix)  # BLAS libraries are slow with small matrices that are transposed
    rows = matrix @ tiles.reshape(*count, down, across * c)  # no copy if pixels are neighbours in memory
    xp.matmul(matrix, rows.reshape(-1, matrix.shape[0], across, c), out=_by_tile(values))


def _overlay(tiles: Array, step: int) -> Array:
    """(..., count, size, M) -> (..., pixels, M): tiles that are `step` apart, added up where they overlap"""
    *before, count, size, m = tiles.shape
    out = array_module(tiles).empty((*before, count + (size - 1) // step, step, m), tiles.dtype)
    out[..., :count, :, :] = tiles[..., :step, :]
    out[..., count:, :, :] = 0
    for i in range(step, size, step):  # these parts of the tiles do not overlap
        part = tiles[..., i : i + step, :]
        out[..., i // step : i // step + count, : part.shape[-2], :] += part
    return out.reshape(*before, -1, m)


class _Grid:
    """The tiles that cover the output of an image (N, C, H, W), and the way between images and values at points."""

    def __init__(self, window: Window, image: Shape, tiling: Tiling):
        self.padding, self.tiling = window.padding, tiling
        self.rows, self.columns = window.output(image)
        step, overlap = tiling.step, tiling.size - tiling.step
        self.down, self.across = -(-self.rows // step), -(-self.columns // step)  # tiles along each axis
        self.height, self.width = self.down * step + overlap, self.across * step + overlap  # of the padded image
        self.exact = (self.down * step, self.across * step) == (self.rows, self.columns)
        self.tiles = Window((tiling.size, tiling.size), (step, step), (0, 0))

    def blocks(self, x: Array) -> list[tuple[slice, slice]]:
        """The batch in blocks: which images, and which of all tiles."""
        each = self.down * self.across
        return [(i, slice(i.start * each, i.stop * each)) for i in blocks(x, each, TILES_AT_ONCE)]

    def values(self, x: Array) -> Array:
        """An array (points, tiles, C), not filled yet, for the values of images x (N, ..., C)."""
        return array_module(x).empty((self.tiling.size**2, x.shape[0] * self.down * self.across, x.shape[3]), x.dtype)

    def inside(self, padded: Array, h: int, w: int) -> Array:
        """The part of the padded image where the image is."""
        (ph, pw) = self.padding
        return padded[:, ph : ph + h, pw : pw + w]

    def values_on_device(self, x: Array, matrix: Array, first: tuple[int, int], values: Array) -> None:
        """x (N, H, W, C) -> values, from tiles that start at this pixel, by a matrix (points, pixels) along an axis"""
        n, c = x.shape[0], x.shape[3]
        tiles = device.Patches.of_images(x, self.tiling.step, first)
        points = device.Patches.of_values(values, self.down, self.across, self.tiling.size)
        device.map_tiles(matrix, tiles, points, (n, self.down, self.across, c))

    def read_image(self, x: Array, values: Array) -> None:
        """x (N, H, W, C) -> (points, tiles, C), into `values`"""
        if device.runs(x):
            first = (-self.padding[0], -self.padding[1])
            return self.values_on_device(x, self.tiling.on_host[0], first, values)
        n, h, w, c = x.shape
        padded = array_module(x).zeros((n, self.height, self.width, c), x.dtype)
        self.inside(padded, h, w)[...] = x
        _to_values(self.tiling.read, self.tiles.views(padded), values)

    def image_of_values(self, values: Array, h: int, w: int) -> Array:
        """The transpose of read_image: (points, tiles, C) -> (N, H, W, C)"""
        step, size, c = self.tiling.step, self.tiling.size, values.shape[2]
        matrix = array_module(values).ascontiguousarray(self.tiling.read.T)
        in_columns = (matrix @ _by_tile(values)).reshape(-1, self.down, self.across, size, size, c)
        strips = _overlay(in_columns.transpose(0, 1, 3, 2, 4, 5), step)  # (N, down, points down, pixels across, C)
        n, across = strips.shape[0], strips.shape[3]
        rows = matrix @ strips.reshape(n, self.down, size, across * c)
        return self.inside(_overlay(rows, step).reshape(n, -1, across, c), h, w)

    def read_output(self, g: Array, values: Array) -> None:
        """g (N, rows, columns, O) -> (points, tiles, O), into `values`"""
        if device.runs(g):
            return self.values_on_device(g, self.tiling.on_host[2].T, (0, 0), values)
        n, rows, columns, o = g.shape
        step = self.tiling.step
        if not self.exact:
            whole = array_module(g).zeros((n, self.down * step, self.across * step, o), g.dtype)
            whole[:, :rows, :columns] = g
            g = whole
        tiles = g.reshape(n, self.down, step, self.across, step, o).transpose(0, 1, 3, 2, 4, 5)
        _to_values(self.tiling.write.T, tiles, values)

    def write_output(self, values: Array, out: Array) -> None:
        """The transpose of read_output: (points, tiles, O) -> (N, rows, columns, O), into `out`"""
        step, (n, rows, columns, o) = self.tiling.step, out.shape
        if device.runs(values):
            points = device.Patches.of_values(values, self.down, self.across, self.tiling.size)
            tiles = device.Patches.of_images(out, step)
            device.map_tiles(self.tiling.on_host[2], points, tiles, (n, self.down, self.across, o))
            return
        xp, size = array_module(out), self.tiling.size
        whole = out if self.exact else xp.empty((n, self.down * step, self.across * step, o), out.dtype)
        tiles = whole.reshape(n, self.down, step, self.across, step * o).transpose(0, 1, 3, 2, 4)
        in_columns = (self.tiling.write @ _by_tile(values)).reshape(n, self.down, self.across, size, step * o)
        xp.matmul(self.tiling.write, in_columns, out=tiles)
        if not self.exact:
            out[...] = whole[:, :rows, :columns]


def _values_of_kernel(w: Array, tiling: Tiling) -> Array:
    """w (A, B, k, k) -> (points, A, B)"""
    a, b, *_ = w.shape
    xp = array_module(w)
    values = xp.empty((tiling.size**2, a, b), w.dtype)
    if device.runs(w):
        points = device.Patches.of_values(values, 1, 1, tiling.size)
        device.map_tiles(tiling.on_host[1], device.Patches.of_kernels(w), points, (a, 1, 1, b))
        return values
    _to_values(tiling.weigh, w.transpose(0, 2, 3, 1), values)
    return values


def _kernel_of_values(values: Array, tiling: Tiling, k: int) -> Array:
    """The transpose of _values_of_kernel: (points, A, B) -> (A, B, k, k)"""
    _, a, b = values.shape
    if device.runs(values):
        out = array_module(values).empty((b, a, k, k), values.dtype).transpose(1, 0, 2, 3)
        points = device.Patches.of_values(values, 1, 1, tiling.size)
        device.map_tiles(tiling.on_host[1].T, points, device.Patches.of_kernels(out), (a, 1, 1, b))
        return out
    matrix = array_module(values).ascontiguousarray(tiling.weigh.T)
    in_columns = (matrix @ _by_tile(values)).reshape(a, tiling.size, k * b)
    return (matrix @ in_columns).reshape(a, k, k, b).transpose(0, 3, 1, 2)


class Tiles:
    """The three products for one image and its kernels, which share the values that they have in common.

    The values of the image are kept from `convolve` for `kernel_gradient` if there will be one, and those of the
    output's gradient from `image_gradient`; both only for the very array that they were computed from.
    """

    def __init__(self, keep: bool):
        self.keep = keep
        self.of_image: tuple[Array, Array] | None = None
        self.of_output: tuple[Array, Array] | None = None

    def for_one_pass(self) -> "Tiles":
        """For the gradients of one backward pass: nobody vouches that g still holds the same in the next."""
        other = Tiles(keep=False)
        other.of_image = self.of_image
        return other

    def convolve(self, x: Array, w: Array, window: Window, out: Array, finish: Finish | None = None) -> None:
        tiling = _tiling(w.shape, x)
        grid = _Grid(window, x.shape, tiling)
        kernels = _values_of_kernel(w.transpose(1, 0, 2, 3), tiling)  # (points, C, O)
        pixels, outputs = channels_last(x), channels_last(out)
        every = grid.values(pixels) if self.keep else None
        for images, tiles in grid.blocks(x):
            values = grid.values(pixels[images]) if every is None else every[:, tiles]
            grid.read_image(pixels[images], values)
            grid.write_output(values @ kernels, outputs[images])
            if finish is not None:
                finish(out[images])
        self.of_image = None if every is None else (x, every)

    def image_gradient(self, g: Array, w: Array, window: Window, out: Array) -> None:
        (kh, kw), (ph, pw) = window.kernel, window.padding
        if device.runs(g) and ph < kh and pw < kw:  # tiles that overlap are better read than written
            turned = Window(window.kernel, (1, 1), (kh - 1 - ph, kw - 1 - pw))
            return Tiles(keep=False).convolve(g, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), turned, out)
        tiling = _tiling(w.shape, g)
        grid = _Grid(window, out.shape, tiling)
        kernels = _values_of_kernel(w, tiling)  # (points, O, C)
        outputs, pixels = channels_last(g), channels_last(out)
        values = grid.values(outputs)
        self.of_output = g, values
        for images, tiles in grid.blocks(g):
            grid.read_output(outputs[images], values[:, tiles])
            pixels[images] = grid.image_of_values(values[:, tiles] @ kernels, *out.shape[2:])

    def kernel_gradient(self, x: Array, g: Array, window: Window, kernel: Shape) -> Array:
        tiling = _tiling(kernel, x)
        grid = _Grid(window, x.shape, tiling)
        pixels = _values(self.of_image, x, grid, grid.read_image)  # (points, tiles, C)
        outputs = _values(self.of_output, g, grid, grid.read_output)  # (points, tiles, O)
        kernels = _kernel_of_values(pixels.transpose(0, 2, 1) @ outputs, tiling, kernel[3])  # (C, O, k, k)
        return array_module(x).ascontiguousarray(kernels.transpose(1, 0, 2, 3))  # as the weights are


def _values(known: tuple[Array, Array] | None, x: Array, grid: _Grid, read: Callable[[Array, Array], None]) -> Array:
    """The values of images x (N, C, H, W): those known, if they are of x."""
    if known and known[0] is x:
        return known[1]
    pixels = channels_last(x)
    values = grid.values(pixels)
    for images, tiles in grid.blocks(x):
        read(pixels[images], values[:, tiles])
    return values
