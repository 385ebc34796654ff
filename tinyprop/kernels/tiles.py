"""Winograd (Toom-Cook) convolution: fewer multiplications for filters of 3x3 to 5x5, on both
backends.

Toom-Cook multiplies polynomials by their values at n points: inv(V) @ ((V @ a) * (V @ b)), with
powers of the points in V. Convolving n pixels with a filter a is the transpose of this map of b.
Along one axis (Lavin and Gray, 2015, call the matrices A.T, B.T and G):

    outputs = output_matrix @ ((input_matrix @ pixels) * (filter_matrix @ filter))

In two dimensions each matrix is applied along both axes, and the sum over channels turns * into one
matrix product for each point. A tile of 4x4 outputs of a 5x5 filter takes 64 multiplications
instead of 400. All steps are linear, so the gradients use the transposed matrices.

Every output of a tile depends on all pixels of the tile, beyond its own window: they cancel,
but their rounding errors stay. On ordinary data these are 5e-6 of the result in float32, where the
plain product has 3e-7; but one large pixel would spoil the outputs beside it, and an infinite one
would turn them into NaN. So a tile is only used if it is even: if none of its windows, as a vector,
is shorter than a 16th of it. Then every result is within 1e-5 |window| |filter| of the exact
one. The outputs of the other tiles are computed by the plain product, so that infinity reaches
exactly the windows that contain it, and a window of zeros gives exactly 0. The same holds for the
gradients, with g in place of x, and for filters with an outlier."""

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
from . import cuda
from .evenness import (
    STEP,
    Compared,
    add_filter_gradient,
    add_input_gradient,
    by_plain_product,
    convolve_uneven,
    either,
    has_even_filters,
    too_many,
    uneven_tiles,
)
from .pointwise import blocks, pairwise_sum, part

# For each size of filter the outputs of a tile along an axis, and the points, to which infinity is
# added. Fractions of small numbers, large and small in balance, lose the fewest digits.
TILES = {
    3: (STEP, (0, 1, -1, 0.5, -2)),
    4: (STEP, (0, 1, -1, 2, -0.5, 0.5)),
    5: (STEP, (0, 1, -1, 2, -2, 0.5, -0.5)),
}
# Where tiles are faster on the host, for each size of filter, as measured.
LEAST_WEIGHTS = {3: 288, 4: 128, 5: 96}  # C * O
LEAST_PRODUCTS = {3: 2**20, 4: 2**18, 5: 2**18}  # C * O times the pixels of all outputs
LEAST_CHANNELS = 4  # the first layer has fewer, and needs no gradient with respect to its images
DEVICE_CHANNELS = {3: 32, 4: 16, 5: 16}  # on a device, of the input and of the output

# What is transformed at once stays in the cache, and BLAS multiplies such small matrices without
# copying them first: so many tiles, or more if they have few channels.
TILES_AT_ONCE = 32
ELEMENTS_AT_ONCE = 2**12  # of each point
WEIGHTS_AT_ONCE = 2**18  # of filters
# C * O up to which both gradients of a block are computed while the transform of its g is in the
# cache; for larger filters, products over all tiles at once are faster
WEIGHTS_BY_BLOCK = 2**12


@lru_cache(256)
def pays(window: Window, image: Shape, filters: Shape, on_device: bool = False) -> bool:
    """Whether tiles are faster: with enough channels, and enough outputs, which fill the tiles."""
    k = window.kernel[0]
    if window.kernel not in ((3, 3), (4, 4), (5, 5)) or max(window.padding) >= k:
        return False
    if window.stride != (1, 1) or window.dilation != (1, 1):
        return False
    rows, columns = window.output(image)
    tiles = -(-rows // 4) * -(-columns // 4)
    fraction_filled = rows * columns / (tiles * 16)
    if fraction_filled <= 0.7:
        return False
    o, c = filters[:2]
    outputs = image[0] * rows * columns
    if on_device:
        return min(c, o) >= DEVICE_CHANNELS[k] and outputs >= 96
    enough_channels = min(c, o) >= LEAST_CHANNELS and c * o >= LEAST_WEIGHTS[k]
    return enough_channels and outputs * c * o >= LEAST_PRODUCTS[k]


def applies(op: Convolution, *arrays: Array) -> bool:
    """Whether this convolution is done by tiles: not if it would have to round less."""
    if op.exact:
        return False
    for array in arrays:
        if array.dtype != float32:
            return False
    return pays(op.window, op.image, op.filters, is_device_array(arrays[0]))


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
        self.window = window  # of the pixels of an output
        ph, pw = window.padding
        self.turned = Window((k, k), (1, 1), (k - 1 - ph, k - 1 - pw))  # of the outputs of a pixel

    def empty(self, images: Array) -> Array:
        """Memory for the transform of images."""
        shape = self.size**2, len(images) * self.each, images.shape[3]
        return array_module(images).empty(shape, images.dtype)

    def blocks(self, images: Array) -> list[tuple[slice, slice]]:
        """Blocks of tiles that are transformed at once: which images, and which of all tiles."""
        most = max(TILES_AT_ONCE, ELEMENTS_AT_ONCE // images.shape[3])
        parts = blocks(images, most, self.each)
        return [(part, slice(part.start * self.each, part.stop * self.each)) for part in parts]

    def uneven(
        self, name: str, images: Array, w: Array | None = None, for_filters: bool = False
    ) -> Array | None:
        """Which tiles of the images this transform must not use: (N, down, across); None if it may
        use all. On a device, it must not use any if filters w are given that are not even.

        An output has a window of pixels. So has a weight: the pixels that it meets. This counts if
        the gradient with respect to the filters will use the transform, `for_filters`."""
        inputs, outputs = self.windows["input"], self.windows["output"]
        tiles, results = (inputs, outputs) if name == "input" else (outputs, inputs)
        windows = self.window if name == "input" else self.turned
        n, h, width, c = images.shape
        shape = n, c, h, width
        compared = [Compared(windows, windows.output(shape), results)]
        weights = Window((self.k, self.k), (STEP, STEP), (0, 0))
        if is_device_array(images):
            if for_filters:  # the pixels of the tile that a weight meets
                down, across = tiles.output(shape)
                places = STEP * (down - 1) + self.k, STEP * (across - 1) + self.k
                met = Window((STEP, STEP), (1, 1), self.window.padding)
                compared.append(Compared(met, places, weights, adds_up=True))
            return cuda.uneven_tiles(images, tiles, compared, w)
        if for_filters:  # all pixels that a weight meets, in all tiles
            met = Window(self.window.output(shape), (1, 1), self.window.padding)
            compared.append(Compared(met, (self.k, self.k), weights, adds_up=True))
        return uneven_tiles(images, tiles, compared)

    def to_points(self, name: str, images: Array, out: Array, uneven: Array | None = None) -> Array:
        """out = matrix @ tile @ matrix.T for each tile of the images, and 0 for uneven tiles"""
        on_device = is_device_array(images)
        matrix = _matrix(self.k, name, on_device)
        tiles = self.windows[name.removesuffix(".T")]
        if on_device:
            cuda.map_tiles(matrix, images, tiles, out, back=False, uneven=uneven)
            return out
        pixels = tiles.unfold(images)  # (N, down, across, size, size, C)
        n, down, across, size, _, c = pixels.shape
        with np.errstate(over="ignore", invalid="ignore"):  # only uneven tiles can overflow
            # no copy if C is last in memory
            rows = matrix @ pixels.reshape(n, down, across, size, size * c)
            np.matmul(matrix, rows.reshape(-1, len(matrix), size, c), out=_by_tile(out))
        if uneven is not None:
            out[:, uneven.reshape(-1)] = 0
        return out

    def from_points(self, name: str, transformed: Array, out: Array) -> None:
        """tile of out = matrix @ (points of the tile) @ matrix.T, for tiles that do not overlap"""
        on_device = is_device_array(out)
        matrix = _matrix(self.k, name, on_device)
        tiles = self.windows[name.removesuffix(".T")]
        if on_device:
            cuda.map_tiles(matrix, out, tiles, transformed, back=True)
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
        del columns  # a step holds the most memory here
        # (N, pixels down, across * C)
        rows = _overlap_add(matrix @ strips.reshape(n, down, self.size, -1), self.step)
        padded = rows.reshape(n, rows.shape[1], -1, c)
        ph, pw = tiles.padding
        out[...] = padded[:, ph : ph + h, pw : pw + w]

    def filters(self, w: Array) -> Array:
        """w (A, B, k, k) -> (points, A, B)"""
        out = array_module(w).empty((self.size**2, *w.shape[:2]), w.dtype)
        filters = channels_last(w)

        def transform(some: slice) -> None:
            self.to_points("filter", filters[some], out[:, some])

        for_each(transform, blocks(w, WEIGHTS_AT_ONCE))
        return out


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


def _convolve(
    tiling: Tiling,
    x: Array,
    w: Array,
    uneven: Array | None,
    out: Array,
    saved: Array | None = None,
    is_gradient: bool = False,
) -> None:
    """Convolve x with w into `out`; the input transform is written to `saved` if there is one."""
    filters = tiling.filters(w.transpose(1, 0, 2, 3))  # (points, C, O)
    pixels = channels_last(x)
    outputs = channels_last(out)
    # on the host nothing overrides `product`, and looking for it takes a while for every block
    multiply = product if is_device_array(x) else np.matmul

    def convolve_block(block: tuple[slice, slice]) -> None:
        images, tiles = block
        memory = tiling.empty(pixels[images]) if saved is None else saved[:, tiles]
        points = tiling.to_points("input", pixels[images], memory, _part(uneven, images))
        products = multiply(points, filters)  # (points, tiles, C) @ (points, C, O)
        tiling.from_points("output", products, outputs[images])

    for_each(convolve_block, tiling.blocks(pixels))
    if is_device_array(x):
        cuda.convolve_uneven(x, w, tiling.window, uneven, out, not is_gradient)


def _part(uneven: Array | None, images: slice) -> Array | None:
    return None if uneven is None else part(uneven, images)


# What is known of a convolution: the transforms "input" of x and "output.T" of g; "uneven input"
# and "uneven output.T", which tiles are 0 there; "products" of both transforms, added over tiles.
Known = dict[str, Any]


def _uneven(
    tiling: Tiling,
    name: str,
    x: Array,
    known: Known,
    w: Array | None = None,
    for_filters: bool = False,
) -> Array | None:
    """Which tiles of images x (N, C, H, W) are uneven, as it is known or becomes so."""
    key = f"uneven {name}"
    if key not in known:
        known[key] = tiling.uneven(name, channels_last(x), w, for_filters)
    return known[key]


@override(Convolve.forward)
def convolve(op: Convolve, x: Array, w: Array) -> Any:
    """columns(x) @ filter_matrix(w), by tiles. 1.55 > 1.08 ms for 48 filters of 5x5 on 16 images of
    24x16x16, on the host; the transform of x is kept for the gradient."""
    known = op.cache if op.recorded else {}
    out = convolve_even(op, x, w, known)
    if out is NotImplemented or is_device_array(x):
        return out
    uneven = known["uneven input"]
    convolve_uneven(op, x, w, uneven, out)
    return out


def convolve_even(op: Convolve, x: Array, w: Array, known: Known) -> Any:
    """The convolution, on the host without the outputs of uneven tiles. Save the input transform
    for the gradient with respect to w."""
    if not applies(op, x, w):
        return NotImplemented
    tiling = tiling_of(op.window, x.shape)
    uneven = _uneven(tiling, "input", x, known, w, for_filters=op.recorded)
    on_host = not is_device_array(x)
    if on_host and (too_many(uneven) or not has_even_filters(w)):
        return NotImplemented
    out = empty_image((len(x), len(w), *op.window.output(x.shape)), x, w)
    saved = None
    if op.recorded:
        saved = known["input"] = tiling.empty(channels_last(x))
    _convolve(tiling, x, w, uneven, out, saved)
    return out


@override(Convolve.backward)
def convolve_gradients(op: Convolve, g: Array, x: Array, w: Array) -> Any:
    """The transposes of the convolution with respect to x and w, by tiles: g is transformed once
    for both. 2.3 > 1.4 ms for 48 filters of 5x5 on 16 images of 24x16x16, on the host."""
    if not applies(op, g, x, w):
        return NotImplemented
    # g may change before the next pass, so its transform does not go to op.cache
    known = dict(op.cache)
    wants_both = None not in (op.parents or (None,))
    by_block = wants_both and math.prod(w.shape[:2]) <= WEIGHTS_BY_BLOCK

    def of_x() -> Array:
        g_x = input_gradient(op, g, w, known, with_products=by_block)
        return by_plain_product(InputGradient, op, g, w) if g_x is NotImplemented else g_x

    def of_w() -> Array:
        g_w = filter_gradient(op, x, g, known)
        return by_plain_product(FilterGradient, op, x, g) if g_w is NotImplemented else g_w

    return of_x, of_w


@override(InputGradient.forward)
def input_gradient(
    op: Convolution,
    g: Array,
    w: Array,
    known: Known | None = None,
    with_products: bool = False,
) -> Any:
    """The transpose of the convolution with respect to x. `known` contains the transform of g, or
    gets it; see `input_gradient_even`. As an override it is used in gradients of gradients: a step
    with a gradient penalty, at full width with 8 images, takes 0.95 of its time."""
    known = {} if known is None else known
    out = input_gradient_even(op, g, w, known, with_products)
    if out is NotImplemented or is_device_array(g):
        return out
    uneven = known["uneven output.T"]
    add_input_gradient(op, g, w, uneven, out)
    return out


def input_gradient_even(
    op: Convolution, g: Array, w: Array, known: Known, with_products: bool = False
) -> Any:
    """The gradient, on the host without what the outputs in uneven tiles add to it. `known` gets
    the transform of g or, `with_products`, what the gradient with respect to w needs of it: that
    takes less memory."""
    if not applies(op, g, w):
        return NotImplemented
    tiling = tiling_of(op.window, op.image)
    if is_device_array(g):
        # tiles that overlap are better read than added up: convolve with the filters turned round
        out = empty_image((len(g), *op.image[1:]), g, w)
        turned = tiling_of(tiling.turned, g.shape)
        filters = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        uneven = turned.uneven("input", channels_last(g), filters)
        _convolve(turned, g, filters, uneven, out, is_gradient=True)
        return out
    uneven = _uneven(tiling, "output.T", g, known)
    has_used_filters = "input" in known  # forward has: they are even
    if too_many(uneven) or not (has_used_filters or has_even_filters(w)):
        return NotImplemented
    out = empty_image((len(g), *op.image[1:]), g, w)
    filters = tiling.filters(w)  # (points, O, C)
    outputs = channels_last(g)
    pixels = channels_last(out)
    is_new = "output.T" not in known
    inputs = known.get("input") if with_products and is_new else None
    if is_new and inputs is None:
        known["output.T"] = tiling.empty(outputs)
    transformed = known.get("output.T")
    parts: dict[int, HostArray] = {}  # of the products, by the start of their block

    def differentiate_block(block: tuple[slice, slice]) -> None:
        images, tiles = block
        some = outputs[images]
        points = tiling.empty(some) if transformed is None else transformed[:, tiles]
        if is_new:  # here, as the block is then in the cache
            tiling.to_points("output.T", some, points, _part(uneven, images))
        if inputs is not None:
            parts[tiles.start] = inputs[:, tiles].transpose(0, 2, 1) @ points
        products = points @ filters
        del points  # a step holds the most memory here
        tiling.input_adjoint(products, pixels[images])

    every = tiling.blocks(outputs)
    for_each(differentiate_block, every)
    if inputs is not None:
        known["products"] = pairwise_sum([parts[tiles.start] for _, tiles in every])
    return out


@override(FilterGradient.forward)
def filter_gradient(op: Convolution, x: Array, g: Array, known: Known | None = None) -> Any:
    """The transpose of the convolution with respect to w. `known` contains the transforms of x and
    g, or gets them. As an override it gains what `input_gradient` does."""
    known = {} if known is None else known
    out = filter_gradient_even(op, x, g, known)
    if out is NotImplemented:
        return out
    uneven_x, uneven_g = known["uneven input"], known["uneven output.T"]
    if is_device_array(x):
        cuda.add_filter_gradient(x, g, op.window, uneven_x, uneven_g, out)
        return out
    uneven = either(uneven_x, uneven_g)
    add_filter_gradient(op, x, g, uneven, out)
    return out


def filter_gradient_even(op: Convolution, x: Array, g: Array, known: Known) -> Any:
    """The gradient without what tiles add to it that are uneven in x or in g."""
    if not applies(op, x, g):
        return NotImplemented
    xp = array_module(x)
    tiling = tiling_of(op.window, op.image)
    uneven_x = _uneven(tiling, "input", x, known, for_filters=True)
    uneven_g = _uneven(tiling, "output.T", g, known)
    if not is_device_array(x) and too_many(either(uneven_x, uneven_g)):
        return NotImplemented
    products = known.get("products")  # (points, C, O)
    if products is None:
        inputs = _transform(tiling, "input", x, known)  # (points, tiles, C)
        outputs = _transform(tiling, "output.T", g, known)  # (points, tiles, O)
        products = _stacked_product(inputs.transpose(0, 2, 1), outputs)
    o, c, k, _ = op.filters
    # (C, k, k, O); NumPy writes where O is last in memory
    if is_device_array(x):
        out = xp.empty((o, c, k, k), float32).transpose(1, 2, 3, 0)
    else:
        out = np.empty((c, k, k, o), float32)
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


def _transform(tiling: Tiling, name: str, x: Array, known: Known) -> Array:
    """The transform of images x (N, C, H, W) that is known by this name, or becomes so."""
    if name not in known:
        pixels = channels_last(x)
        uneven = _uneven(tiling, name, x, known)
        transformed = known[name] = tiling.empty(pixels)

        def transform_block(block: tuple[slice, slice]) -> None:
            images, tiles = block
            tiling.to_points(name, pixels[images], transformed[:, tiles], _part(uneven, images))

        for_each(transform_block, tiling.blocks(pixels))
    return known[name]
