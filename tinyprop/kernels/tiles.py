"""Winograd (Toom-Cook) convolution: fewer multiplications for filters of 3x3 to 5x5, on both
backends.

Toom-Cook multiplies polynomials by their values at n points: inv(V) @ ((V @ a) * (V @ b)), with
powers of the points in V. Convolving n pixels with a filter a is the transpose of this map of b.
Along one axis (Lavin and Gray, 2015, call the matrices A.T, B.T and G):

    outputs = output_matrix @ ((input_matrix @ pixels) * (filter_matrix @ filter))

In two dimensions each matrix is applied along both axes, and the sum over channels turns * into one
matrix product for each point. A tile of 4x4 outputs of a 5x5 filter takes 64 multiplications
instead of 400. All steps are linear, so the gradients use the transposed matrices. The rounding
error is 5e-6 of the result in float32, not 3e-7."""

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, float32, is_device_array
from ..engine.overrides import override
from ..engine.threads import for_each
from ..functional.convolution import Convolution, Convolve, FilterGradient, InputGradient
from ..functional.linear import product
from ..functional.windows import Shape, Window, channels_last, empty_image
from .cuda import map_tiles
from .pointwise import blocks

# For each size of filter the outputs of a tile along an axis, and the points, to which infinity is
# added. Fractions of small numbers, large and small in balance, lose the fewest digits.
TILES = {
    3: (4, (0, 1, -1, 0.5, -2)),
    4: (4, (0, 1, -1, 2, -0.5, 0.5)),
    5: (4, (0, 1, -1, 2, -2, 0.5, -0.5)),
}
# these stay in the cache, and BLAS multiplies such small matrices without copying them first
TILES_AT_ONCE = 32


@lru_cache(256)
def pays(window: Window, image: Shape, filters: Shape, least: int | None = None) -> bool:
    """Whether tiles are faster, as measured: with enough channels, and enough outputs, which fill
    the tiles."""
    k = window.kernel[0]
    if window.kernel not in ((3, 3), (4, 4), (5, 5)) or max(window.padding) >= k:
        return False
    if window.stride != (1, 1) or window.dilation != (1, 1):
        return False
    rows, columns = window.output(image)
    tiles = -(-rows // 4) * -(-columns // 4)
    fraction_filled = rows * columns / (tiles * 16)
    enough_channels = min(filters[:2]) >= (least or (32 if k == 3 else 16))
    enough_outputs = image[0] * rows * columns >= 96
    return enough_channels and enough_outputs and fraction_filled > 0.7


def applies(op: Convolution, *arrays: Array) -> bool:
    """Whether this convolution is done by tiles: not if it would have to round less."""
    if op.exact:
        return False
    for array in arrays:
        if array.dtype != float32:
            return False
    return pays(op.window, op.image, op.filters, op.cache.get("least channels"))


@cache
def matrices(k: int) -> dict[str, HostArray]:
    """The matrices along one axis for filters of k x k, and their transposes: "input", "input.T",
    "filter", ..."""
    step, points = TILES[k]

    def powers(count: int) -> HostArray:
        rows = [[float(p) ** i for i in range(count)] for p in points]
        at_infinity = [0.0] * (count - 1) + [1.0]  # the value there is the leading coefficient
        return np.array([*rows, at_infinity])

    found = {
        "input": np.linalg.inv(powers(step + k - 1)).T,
        "filter": powers(k),
        "output": powers(step).T,
    }
    return found | {f"{name}.T": matrix.T for name, matrix in found.items()}


@cache
def _matrix(k: int, name: str, on_device: bool) -> Any:
    """A matrix in float32, contiguous for BLAS; or as options that define it for the CUDA
    compiler."""
    rows = matrices(k)[name].tolist()
    if not on_device:
        return np.array(rows, float32)
    numbers = ",".join("{" + ",".join(map(repr, row)) + "}" for row in rows)
    return f"-DTARGET={len(rows)}", f"-DSOURCE={len(rows[0])}", f"-DMATRIX={{{numbers}}}"


class Tiling:
    """The tiles of a convolution and its transforms. Images are (N, H, W, C) here, transforms
    (points, tiles, C)."""

    def __init__(self, window: Window, image: Shape):
        k = window.kernel[0]
        step, points = TILES[k]
        size = len(points) + 1
        self.k = k
        self.step = step  # outputs of a tile along an axis
        self.size = size  # pixels, and points, of a tile along an axis
        self.windows = {  # tiles are windows, which overlap only in the input; a filter is one tile
            "input": Window((size, size), (step, step), window.padding, ceil=True),
            "output": Window((step, step), (step, step), (0, 0), ceil=True),
            "filter": Window((k, k), (k, k), (0, 0)),
        }
        self.each = math.prod(self.windows["input"].output(image))  # tiles of an image

    def empty(self, images: Array) -> Array:
        """Memory for the transform of images."""
        shape = self.size**2, len(images) * self.each, images.shape[3]
        return array_module(images).empty(shape, images.dtype)

    def blocks(self, images: Array) -> list[tuple[slice, slice]]:
        """Blocks of about TILES_AT_ONCE tiles: which images, and which of all tiles."""
        parts = blocks(images, TILES_AT_ONCE, self.each)
        return [(part, slice(part.start * self.each, part.stop * self.each)) for part in parts]

    def to_points(self, name: str, images: Array, out: Array) -> Array:
        """out = matrix @ tile @ matrix.T for each tile of the images"""
        on_device = is_device_array(images)
        matrix = _matrix(self.k, name, on_device)
        tiles = self.windows[name.removesuffix(".T")]
        if on_device:
            map_tiles(matrix, images, tiles, out, back=False)
            return out
        pixels = tiles.unfold(images)  # (N, down, across, size, size, C)
        n, down, across, size, _, c = pixels.shape
        # no copy if C is last in memory
        rows = matrix @ pixels.reshape(n, down, across, size, size * c)
        np.matmul(matrix, rows.reshape(-1, len(matrix), size, c), out=_by_tile(out))
        return out

    def from_points(self, name: str, transformed: Array, out: Array) -> None:
        """tile of out = matrix @ (points of the tile) @ matrix.T, for tiles that do not overlap"""
        on_device = is_device_array(out)
        matrix = _matrix(self.k, name, on_device)
        tiles = self.windows[name.removesuffix(".T")]
        if on_device:
            map_tiles(matrix, out, tiles, transformed, back=True)
            return
        n, h, w, c = out.shape
        size = len(matrix)
        down, across = tiles.output((n, c, h, w))
        even = (down * size, across * size) == (h, w)
        whole = out if even else np.empty((n, down * size, across * size, c), out.dtype)
        columns = (matrix @ _by_tile(transformed)).reshape(n, down, across, -1, size * c)
        # (N, down * size, across * size, C) -> (N, down, across, size, size * C), a view
        pixels = whole.reshape(n, down, size, across, size * c).transpose(0, 1, 3, 2, 4)
        np.matmul(matrix, columns, out=pixels)
        if not even:
            out[...] = whole[:, :h, :w]

    def input_adjoint(self, transformed: HostArray, out: HostArray) -> None:
        """The transpose of the input transform, to images `out`."""
        matrix = _matrix(self.k, "input.T", False)
        tiles = self.windows["input"]
        n, h, w, c = out.shape
        down, across = tiles.output((n, c, h, w))
        columns = matrix @ _by_tile(transformed)  # (tiles, size, size, C)
        columns = columns.reshape(n, down, across, self.size, self.size, c)
        # (N, down, points, pixels across, C)
        strips = _overlap_add(columns.transpose(0, 1, 3, 2, 4, 5), self.step)
        # (N, pixels down, across * C)
        rows = _overlap_add(matrix @ strips.reshape(n, down, self.size, -1), self.step)
        padded = rows.reshape(n, rows.shape[1], -1, c)
        ph, pw = tiles.padding
        out[...] = padded[:, ph : ph + h, pw : pw + w]

    def filters(self, w: Array) -> Array:
        """w (A, B, k, k) -> (points, A, B)"""
        out = array_module(w).empty((self.size**2, *w.shape[:2]), w.dtype)
        return self.to_points("filter", channels_last(w), out)


def _by_tile(transformed: Array) -> Array:
    """(points, tiles, C) -> (tiles, points down, points across, C), a view"""
    points, tiles, c = transformed.shape
    size = math.isqrt(points)
    return transformed.reshape(size, size, tiles, c).transpose(2, 0, 1, 3)


def _overlap_add(tiles: HostArray, step: int) -> HostArray:
    """(..., count, size, M) -> (..., pixels, M): tiles that are `step` apart, added up where they
    overlap"""
    *before, count, size, m = tiles.shape
    out = np.empty((*before, count + (size - 1) // step, step, m), tiles.dtype)
    out[..., :count, :, :] = tiles[..., :step, :]
    out[..., count:, :, :] = 0
    for i in range(step, size, step):  # these parts of the tiles do not overlap
        part = tiles[..., i : i + step, :]
        out[..., i // step : i // step + count, : part.shape[-2], :] += part
    return out.reshape(*before, -1, m)


tiling_of = lru_cache(256)(Tiling)


def _convolve(tiling: Tiling, x: Array, w: Array, out: Array, saved: Array | None = None) -> Array:
    """Convolve x with w into `out`; the input transform is written to `saved` if there is one."""
    filters = tiling.filters(w.transpose(1, 0, 2, 3))  # (points, C, O)
    pixels = channels_last(x)
    outputs = channels_last(out)
    # on the host nothing overrides `product`, and looking for it takes a while for every block
    multiply = product if is_device_array(x) else np.matmul

    def convolve_block(block: tuple[slice, slice]) -> None:
        images, tiles = block
        memory = tiling.empty(pixels[images]) if saved is None else saved[:, tiles]
        points = tiling.to_points("input", pixels[images], memory)
        products = multiply(points, filters)  # (points, tiles, C) @ (points, C, O)
        tiling.from_points("output", products, outputs[images])

    for_each(convolve_block, tiling.blocks(x))
    return out


@override(Convolve.forward)
def convolve(op: Convolve, x: Array, w: Array) -> Array:
    """Save the input transform for the gradient with respect to w."""
    if not applies(op, x, w):
        return NotImplemented
    tiling = tiling_of(op.window, x.shape)
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    saved = None
    if op.recorded:
        saved = op.cache["input"] = tiling.empty(channels_last(x))
    return _convolve(tiling, x, w, out, saved)


@override(Convolve.backward)
def convolve_gradients(op: Convolve, g: Array, x: Array, w: Array) -> Any:
    """Transform g once for both gradients."""
    if not applies(op, g, x, w):
        return NotImplemented
    # g may change before the next pass, so its transform does not go to op.cache
    known = dict(op.cache)
    return lambda: input_gradient(op, g, w, known), lambda: filter_gradient(op, x, g, known)


@override(InputGradient.forward)
def input_gradient(
    op: Convolution, g: Array, w: Array, known: dict[str, Array] | None = None
) -> Array:
    """`known` contains the transform of g, or gets it."""
    if not applies(op, g, w):
        return NotImplemented
    out = empty_image((len(g), *op.image[1:]), g, w)
    if is_device_array(g):
        # tiles that overlap are better read than added up: convolve with the filters turned round
        k, (ph, pw) = op.filters[2], op.window.padding
        turned = Window(op.window.kernel, (1, 1), (k - 1 - ph, k - 1 - pw))
        filters = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        return _convolve(tiling_of(turned, g.shape), g, filters, out)
    tiling = tiling_of(op.window, op.image)
    filters = tiling.filters(w)  # (points, O, C)
    outputs = channels_last(g)
    pixels = channels_last(out)
    known = {} if known is None else known
    is_new = "output.T" not in known
    if is_new:
        known["output.T"] = tiling.empty(outputs)
    transformed = known["output.T"]

    def differentiate_block(block: tuple[slice, slice]) -> None:
        images, tiles = block
        if is_new:  # here, as the block is then in the cache
            tiling.to_points("output.T", outputs[images], transformed[:, tiles])
        tiling.input_adjoint(transformed[:, tiles] @ filters, pixels[images])

    for_each(differentiate_block, tiling.blocks(g))
    return out


@override(FilterGradient.forward)
def filter_gradient(
    op: Convolution, x: Array, g: Array, known: dict[str, Array] | None = None
) -> Array:
    """`known` contains the transforms of x and g, or gets them."""
    if not applies(op, x, g):
        return NotImplemented
    xp = array_module(x)
    tiling = tiling_of(op.window, op.image)
    known = {} if known is None else known
    inputs = _transform(tiling, "input", x, known)  # (points, tiles, C)
    outputs = _transform(tiling, "output.T", g, known)  # (points, tiles, O)
    o, c, k, _ = op.filters
    # (C, k, k, O); NumPy writes where O is last in memory
    if is_device_array(x):
        out = xp.empty((o, c, k, k), float32).transpose(1, 2, 3, 0)
    else:
        out = np.empty((c, k, k, o), float32)
    products = _stacked_product(inputs.transpose(0, 2, 1), outputs)
    tiling.from_points("filter.T", products, out)
    return xp.ascontiguousarray(out.transpose(3, 0, 1, 2))


def _stacked_product(x: Array, y: Array) -> Array:
    """x @ y for stacks of matrices (points, M, K) and (points, K, N); on the host, threads share
    the points."""
    if is_device_array(x):
        return product(x, y)
    out = np.empty((len(x), x.shape[1], y.shape[2]), x.dtype)

    def multiply(point: int) -> None:
        np.matmul(x[point], y[point], out=out[point])

    for_each(multiply, range(len(x)))
    return out


def _transform(tiling: Tiling, name: str, x: Array, known: dict[str, Array]) -> Array:
    """The transform of images x (N, C, H, W) that is known by this name, or becomes so."""
    if name not in known:
        pixels = channels_last(x)
        transformed = known[name] = tiling.empty(pixels)

        def transform_block(block: tuple[slice, slice]) -> None:
            images, tiles = block
            tiling.to_points(name, pixels[images], transformed[:, tiles])

        for_each(transform_block, tiling.blocks(pixels))
    return known[name]
