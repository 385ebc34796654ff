"""Winograd (Toom-Cook) convolution: fewer multiplications for filters of 3x3 and 5x5, on both backends.

Toom-Cook multiplies polynomials: evaluate both at n points, multiply the values, and interpolate the n coefficients of
the product. With powers of the points in V, one column for each coefficient, the product of a and b is
inv(V) @ ((V @ a) * (V @ b)). Convolving n pixels with a filter a is the transpose of this map of b. So only the filter
is evaluated at the points; the pixels go through the transposed interpolation, and what becomes the outputs through the
transposed evaluation. Along one axis (Lavin and Gray, 2015, call the matrices A.T, B.T and G):

    outputs = output_matrix @ ((input_matrix @ pixels) * (filter_matrix @ filter))

In two dimensions each matrix is applied along the rows and along the columns, and the sum over channels turns * into
one matrix product for each point. A tile of 4x4 outputs of a 5x5 filter takes 64 multiplications instead of 400. All
steps are linear, so the gradients use the transposed matrices. The price is rounding: about 5e-6 of the result in
float32, where a plain matrix product has 3e-7.
"""

import math
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from ..engine.arrays import Array, HostArray, array_module, float32, float64, host_array, is_device_array, strided_view
from ..engine.overrides import override
from ..functional.convolution import Convolution, Convolve, FilterGradient, InputGradient
from ..functional.windows import Shape, Window, channels_last, empty_image
from .cuda import map_tiles

# For each size of filter the outputs of a tile along an axis, and the points, to which infinity is added. Fractions of
# small numbers, large and small in balance, lose the fewest digits.
TILES = {3: (4, (0, 1, -1, 0.5, -2)), 5: (4, (0, 1, -1, 2, -2, 0.5, -0.5))}

# This many tiles stay in the cache from the first step to the last, and BLAS multiplies such small matrices without
# copying them first.
TILES_AT_ONCE = 32


def pays(window: Window, image: Shape, filters: Shape) -> bool:
    """Whether tiles are faster, as measured: with enough channels, and enough outputs, which fill the tiles."""
    if window.kernel not in ((3, 3), (5, 5)) or window.stride != (1, 1) or window.dilation != (1, 1):
        return False
    channels, (rows, columns) = min(filters[:2]), window.output(image)
    filled = rows * columns / (-(-rows // 4) * -(-columns // 4) * 16)
    enough = channels >= (32 if window.kernel == (3, 3) else 16) and image[0] * rows * columns >= 96
    return enough and filled > 0.7 and max(window.padding) < window.kernel[0]


def _applies(op: Convolution, *arrays: Array) -> bool:
    rounded = op.groups == 1 and not op.exact and all(a.dtype == float32 for a in arrays)
    return rounded and pays(op.window, op.image, op.filters)


@cache
def matrices(k: int) -> dict[str, HostArray]:
    """The matrices along one axis for filters of k x k: "input", "filter", "output", and transposed: "input.T" ..."""
    step, points = TILES[k]

    def powers(count: int) -> HostArray:
        at_infinity = [0] * (count - 1) + [1]  # the value at infinity is the leading coefficient
        return host_array([[p**i for i in range(count)] for p in points] + [at_infinity], float64)

    interpolation = array_module(powers(1)).linalg.inv(powers(step + k - 1))
    found = {"input": interpolation.T, "filter": powers(k), "output": powers(step).T}
    return found | {f"{name}.T": matrix.T for name, matrix in found.items()}


@cache
def _matrix(k: int, name: str, on_device: bool) -> Any:
    """A matrix in float32, contiguous for BLAS; or as options that define it for the CUDA compiler."""
    rows = matrices(k)[name].tolist()
    numbers = ",".join("{" + ",".join(map(repr, row)) + "}" for row in rows)
    options = f"-DTARGET={len(rows)}", f"-DSOURCE={len(rows[0])}", f"-DMATRIX={{{numbers}}}"
    return options if on_device else host_array(rows, float32)


class Grid(NamedTuple):
    """Tiles (down, across) of each image, which start `step` pixels apart, the first one at the pixel `first`."""

    down: int
    across: int
    step: int
    first: tuple[int, int] = (0, 0)

    def covered(self, images: Array, size: int) -> Shape:
        """The shape (N, H, W, C) of images that contain all pixels of tiles of size x size."""
        height, width = (self.step * (count - 1) + size for count in (self.down, self.across))
        return len(images), height, width, images.shape[3]

    def tiles(self, images: Array, size: int) -> Array:
        """images (N, H, W, C), as large as that -> (N, down, across, size, size * C), a view if C is last in memory"""
        (n, _, _, c), (to_n, to_h, to_w, to_c), step = images.shape, images.strides, self.step
        strides = to_n, step * to_h, step * to_w, to_h, to_w, to_c
        view = strided_view(images, (n, self.down, self.across, size, size, c), strides)
        return view.reshape(n, self.down, self.across, size, size * c)

    def blocks(self, images: Array) -> list[tuple[slice, slice]]:
        """Blocks of about TILES_AT_ONCE tiles: which images, and which of all tiles. On a device all are one block."""
        n, each = len(images), self.down * self.across
        count = 1 if is_device_array(images) else max(1, min(n, round(n * each / TILES_AT_ONCE)))
        return [(slice(a, b), slice(a * each, b * each)) for a, b in pairwise(n * i // count for i in range(count + 1))]


FILTERS = Grid(1, 1, 0)  # filters (A, k, k, B) are images of one tile


def _grid(window: Window, image: Shape) -> Grid:
    """The tiles of the outputs; those of the inputs start in the padding."""
    step, (rows, columns) = TILES[window.kernel[0]][0], window.output(image)
    return Grid(-(-rows // step), -(-columns // step), step)


def _by_tile(transformed: Array) -> Array:
    """(points, tiles, C) -> (tiles, points down, points across, C), a view"""
    size = math.isqrt(len(transformed))
    return transformed.reshape(size, size, *transformed.shape[1:]).transpose(2, 0, 1, 3)


def _empty(k: int, images: Array, grid: Grid) -> Array:
    """Memory for a transform of images (N, H, W, C): (points, tiles, C)"""
    shape = (TILES[k][0] + k - 1) ** 2, len(images) * grid.down * grid.across, images.shape[3]
    return array_module(images).empty(shape, images.dtype)


def _to_points(k: int, name: str, images: Array, grid: Grid, out: Array) -> Array:
    """out (points, tiles, C) = matrix @ tile @ matrix.T, for the tiles of images (N, H, W, C)"""
    matrix = _matrix(k, name, is_device_array(images))
    if is_device_array(images):
        map_tiles(matrix, images, out, *grid, back=False)
        return out
    size, (_, h, w, c), (top, left) = matrix.shape[1], images.shape, grid.first
    covered = grid.covered(images, size)
    if covered != images.shape:
        padded = array_module(images).zeros(covered, images.dtype)
        padded[:, -top : h - top, -left : w - left] = images
        images = padded
    rows = (matrix @ grid.tiles(images, size)).reshape(-1, len(matrix), size, c)
    array_module(out).matmul(matrix, rows, out=_by_tile(out))
    return out


def _from_points(k: int, name: str, transformed: Array, grid: Grid, out: Array) -> None:
    """tile = matrix @ (points of the tile) @ matrix.T, for the tiles, which do not overlap, of out (N, H, W, C)"""
    matrix = _matrix(k, name, is_device_array(out))
    if is_device_array(out):
        return map_tiles(matrix, out, transformed, *grid, back=True)
    xp, size, (_, h, w, c) = array_module(out), len(matrix), out.shape
    covered = grid.covered(out, size)
    whole = out if covered == out.shape else xp.empty(covered, out.dtype)
    tiles = grid.tiles(whole, size)
    columns = (matrix @ _by_tile(transformed)).reshape(*tiles.shape[:3], -1, size * c)
    xp.matmul(matrix, columns, out=tiles)
    if whole is not out:
        out[...] = whole[:, :h, :w]


def _input_adjoint(k: int, transformed: Array, grid: Grid, padding: tuple[int, int], out: Array) -> None:
    """The transpose of the input transform, on the host: (points, tiles, C) -> out (N, H, W, C)"""
    matrix, (_, h, w, c), (ph, pw) = _matrix(k, "input.T", False), out.shape, padding
    columns = matrix @ _by_tile(transformed)
    columns = columns.reshape(-1, grid.down, grid.across, *columns.shape[1:]).transpose(0, 1, 3, 2, 4, 5)
    strips = _overlap_add(columns, grid.step)  # (N, down, points down, pixels across, C)
    rows = _overlap_add(
        matrix @ strips.reshape(*strips.shape[:3], -1), grid.step
    )  # (N, pixels down, pixels across * C)
    out[...] = rows.reshape(*rows.shape[:2], -1, c)[:, ph : ph + h, pw : pw + w]


def _overlap_add(tiles: Array, step: int) -> Array:
    """(..., count, size, M) -> (..., pixels, M): tiles that are `step` apart, added up where they overlap"""
    *before, count, size, m = tiles.shape
    out = array_module(tiles).empty((*before, count + (size - 1) // step, step, m), tiles.dtype)
    out[..., :count, :, :] = tiles[..., :step, :]
    out[..., count:, :, :] = 0
    for i in range(step, size, step):  # these parts of the tiles do not overlap
        part = tiles[..., i : i + step, :]
        out[..., i // step : i // step + count, : part.shape[-2], :] += part
    return out.reshape(*before, -1, m)


def _filter_transform(w: Array) -> Array:
    """w (A, B, k, k) -> (points, A, B)"""
    k, filters = w.shape[3], channels_last(w)
    return _to_points(k, "filter", filters, FILTERS, _empty(k, filters, FILTERS))


def _convolve(window: Window, x: Array, w: Array, kept: Array | None) -> Array:
    """The convolution of x and w; the input transform is written to `kept` if there is one."""
    k, (ph, pw), grid = window.kernel[0], window.padding, _grid(window, x.shape)
    filters = _filter_transform(w.transpose(1, 0, 2, 3))  # (points, C, O)
    out = empty_image((len(x), len(w), *window.output(x.shape)), x, w)
    pixels, outputs, inputs = channels_last(x), channels_last(out), grid._replace(first=(-ph, -pw))
    for images, tiles in grid.blocks(x):
        room = _empty(k, pixels[images], grid) if kept is None else kept[:, tiles]
        products = _to_points(k, "input", pixels[images], inputs, room) @ filters
        _from_points(k, "output", products, grid, outputs[images])
    return out


def _input_gradient(op: Convolution, g: Array, w: Array, shared: list[Array]) -> Array:
    """The gradient with respect to x. `shared` has the transform of g, or gets it."""
    k, (ph, pw) = op.window.kernel[0], op.window.padding
    if is_device_array(g):  # tiles that overlap are better read than added up: convolve with the filters turned round
        turned = Window(op.window.kernel, (1, 1), (k - 1 - ph, k - 1 - pw))
        return _convolve(turned, g, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), None)
    grid, out = _grid(op.window, op.image), empty_image(op.image, g, w)
    filters, outputs, pixels = _filter_transform(w), channels_last(g), channels_last(out)  # filters (points, O, C)
    transformed = shared[0] if shared else _empty(k, outputs, grid)
    for images, tiles in grid.blocks(g):
        if not shared:
            _to_points(k, "output.T", outputs[images], grid, transformed[:, tiles])
        _input_adjoint(k, transformed[:, tiles] @ filters, grid, op.window.padding, pixels[images])
    shared[:] = [transformed]
    return out


def _filter_gradient(op: Convolution, x: Array, g: Array, kept: Array | None, shared: list[Array]) -> Array:
    """The gradient with respect to w. `kept` is the input transform of x, if it is known."""
    (o, c, k, _), (ph, pw), grid = op.filters, op.window.padding, _grid(op.window, op.image)
    inputs = _by_blocks(k, "input", x, grid._replace(first=(-ph, -pw))) if kept is None else kept
    shared[:] = shared or [_by_blocks(k, "output.T", g, grid)]
    products = inputs.transpose(0, 2, 1) @ shared[0]  # (points, C, O)
    xp = array_module(products)
    filters = xp.empty((o, c, k, k), float32).transpose(1, 2, 3, 0)  # (C, k, k, O)
    filters = filters if is_device_array(filters) else xp.empty((c, k, k, o), float32)  # NumPy needs O last in memory
    _from_points(k, "filter.T", products, FILTERS, filters)
    return xp.ascontiguousarray(filters.transpose(3, 0, 1, 2))


def _by_blocks(k: int, name: str, x: Array, grid: Grid) -> Array:
    """The transform of images (N, C, H, W)."""
    pixels = channels_last(x)
    out = _empty(k, pixels, grid)
    for images, tiles in grid.blocks(x):
        _to_points(k, name, pixels[images], grid, out[:, tiles])
    return out


@override(Convolve.forward)
def convolve(op: Convolve, x: Array, w: Array) -> Array:
    """Keep the input transform for the gradient with respect to w."""
    if not _applies(op, x, w):
        return NotImplemented
    if op.recorded:
        op.cache["input"] = _empty(w.shape[3], channels_last(x), _grid(op.window, x.shape))
    return _convolve(op.window, x, w, op.cache.get("input"))


@override(Convolve.backward)
def convolve_gradients(op: Convolve, g: Array, x: Array, w: Array) -> Any:
    """Transform g once for both gradients."""
    if not _applies(op, g, x, w):
        return NotImplemented
    kept, shared = op.cache.get("input"), list[Array]()
    return lambda: _input_gradient(op, g, w, shared), lambda: _filter_gradient(op, x, g, kept, shared)


@override(InputGradient.forward)
def input_gradient(op: InputGradient, g: Array, w: Array) -> Array:
    return _input_gradient(op, g, w, []) if _applies(op, g, w) else NotImplemented


@override(FilterGradient.forward)
def filter_gradient(op: FilterGradient, x: Array, g: Array) -> Array:
    return _filter_gradient(op, x, g, None, []) if _applies(op, x, g) else NotImplemented
