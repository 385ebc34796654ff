"""The embedded data set: colored images of ten shapes, drawn by arithmetic.

Everything is computed with integers from the raw output of a PCG64 generator, which NumPy keeps the
same in all versions, so the bytes are the same on every machine. A pixel is 16 units wide. In the
coordinates of a shape, u to the right and v down, its radius is 1024. Every shape is its own mirror
image: flips keep the class.

A light shape on a darker background varies in position, size, tilt, width, colors, textures and
noise, and there are dots around it."""

from collections.abc import Callable
from functools import cache
from itertools import product
from math import prod

import numpy as np

from ..engine.arrays import HostArray
from .sources import Samples

SIDE = 32  # pixels
PIXEL = 16  # units
UNIT = 1024  # the radius of a shape in its own coordinates
CHUNK = 250  # images drawn together: few enough for the cache
PIXELS: HostArray = np.arange(SIDE, dtype=np.int32)
SAMPLES = (-4, 4)  # where a pixel is sampled, from its center, in x and in y
DOTS = 2  # on each background
CELL = 8  # pixels between the random points that make clouds
TURN = 256  # directions
TILT = 28  # how far a shape may lean to either side: 39 degrees
ANGLES: HostArray = np.arange(TURN) * (2 * np.pi / TURN)
# Libraries differ in the last bit of a cosine; no entry is so near a tie that this could change its
# rounding.
COSINE: HostArray = np.rint(np.cos(ANGLES) * (1 << 14)).astype(np.int32)
SINE: HostArray = np.roll(COSINE, TURN // 4)


# Each takes the coordinates of points and says which of them are inside the shape.


def _disc(u: HostArray, v: HostArray) -> HostArray:
    return u * u + v * v <= 880**2


def _ring(u: HostArray, v: HostArray) -> HostArray:
    inner, outer = 560**2, 950**2
    middle = (outer + inner) // 2
    return abs(u * u + v * v - middle) <= (outer - inner) // 2


def _square(u: HostArray, v: HostArray) -> HostArray:
    return np.maximum(abs(u), abs(v)) <= 780


def _triangle(u: HostArray, v: HostArray) -> HostArray:
    above_base = v <= 520
    between_sides = 887 * abs(u) - 512 * v <= 520 * UNIT
    return above_base & between_sides


def _star(u: HostArray, v: HostArray) -> HostArray:
    """On the inner side of at least four of the five lines of a pentagram."""
    inner_sides = np.zeros(u.shape, np.int8)
    for i in range(5):
        direction = round(i * TURN / 5 + TURN / 4) % TURN
        distance = u * (COSINE[direction] >> 4) + v * (SINE[direction] >> 4)
        inner_sides += distance <= 360 * UNIT
    return inner_sides >= 4


def _cross(u: HostArray, v: HostArray) -> HostArray:
    in_arms = np.minimum(abs(u), abs(v)) <= 290
    in_square = np.maximum(abs(u), abs(v)) <= 930
    return in_arms & in_square


def _crescent(u: HostArray, v: HostArray) -> HostArray:
    in_disc = u * u + v * v <= 960**2
    outside_other_disc = u * u + (v + 480) ** 2 > 800**2
    return in_disc & outside_other_disc


def _heart(u: HostArray, v: HostArray) -> HostArray:
    in_diamond = abs(u) + abs(v - 190) <= 740
    in_discs = (abs(u) - 370) ** 2 + (v + 180) ** 2 <= 523**2
    return in_diamond | in_discs


def _arrow(u: HostArray, v: HostArray) -> HostArray:
    in_head = 10 * abs(u) <= 9 * (v + 960)
    in_shaft = (v <= 900) & (abs(u) <= 290)
    return np.where(v <= 0, in_head, in_shaft)


def _hourglass(u: HostArray, v: HostArray) -> HostArray:
    return (abs(v) <= 800) & (10 * abs(u) <= 8 * abs(v) + 800)


SHAPES: dict[str, Callable[[HostArray, HostArray], HostArray]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "crescent": _crescent,
    "heart": _heart,
    "arrow": _arrow,
    "hourglass": _hourglass,
}
CLASSES = tuple(SHAPES)


def _per_pixel(values: HostArray) -> HostArray:
    return values[..., None, None]  # (N, ...) -> (N, ..., 1, 1)


class Dice:
    """Integers from the raw bits of a generator."""

    def __init__(self, seed: int):
        self.bits = np.random.PCG64(seed)

    def bytes(self, *shape: int) -> HostArray:
        count = prod(shape)
        words = self.bits.random_raw(-(-count // 8)).astype("<u8")  # 8 bytes each, rounded up
        return words.view(np.uint8)[:count].reshape(shape)

    def between(self, low: int, high: int, *shape: int) -> HostArray:
        """Integers from low up to, but not including, high."""
        words = self.bytes(*shape, 4).view("<u4")[..., 0]  # (..., 4) -> (...)
        draws = (words >> 8).astype(np.int64)  # 24 bits
        integers = low + ((draws * (high - low)) >> 24)
        return integers.astype(np.int32)


def _coverage(dice: Dice, labels: HostArray) -> HostArray:
    """How many of the 4 sampled points of each pixel are inside the shape, (N, SIDE, SIDE)."""
    n = len(labels)
    radius = dice.between(9 * PIXEL, 15 * PIXEL, n)
    room = SIDE * PIXEL // 2 - radius * 15 // 16
    center = SIDE * PIXEL // 2 + (dice.between(-UNIT, UNIT + 1, 2, n) * room) // UNIT
    width = dice.between(208, 257, n)  # of 256
    tilt = dice.between(-TILT, TILT + 1, n) % TURN
    along = COSINE[tilt] * UNIT // radius
    across = SINE[tilt] * UNIT // radius
    wide_along = along * 256 // width
    wide_across = across * 256 // width
    middles = PIXELS * PIXEL + PIXEL // 2
    covered = np.zeros((n, SIDE, SIDE), np.int32)
    for sample_x, sample_y in product(SAMPLES, SAMPLES):
        x = (middles + sample_x) - _per_pixel(center[0])  # (N, 1, SIDE)
        y = (middles + sample_y)[:, None] - _per_pixel(center[1])  # (N, SIDE, 1)
        u = (_per_pixel(wide_along) * x + _per_pixel(wide_across) * y) >> 14
        v = (_per_pixel(along) * y - _per_pixel(across) * x) >> 14
        for label, is_inside in enumerate(SHAPES.values()):
            has_shape = labels == label
            covered[has_shape] += is_inside(u[has_shape], v[has_shape])
    return covered


def _patterns(dice: Dice, n: int) -> HostArray:
    """How much of its second color each pixel of a texture has, of 256; (N, SIDE, SIDE)."""
    x, y = PIXELS, PIXELS[:, None]
    kind = dice.between(0, 5, n)
    turn = dice.between(0, TURN, n)
    period = dice.between(4 * PIXEL, 11 * PIXEL, n)
    cosine = _per_pixel(COSINE[turn] // period)
    sine = _per_pixel(SINE[turn] // period)
    along = cosine * x + sine * y
    across = cosine * y - sine * x
    plain = np.zeros_like(along)
    stripes = abs((along & 1023) - 512) >> 1
    checks = (((along ^ across) >> 9) & 1) * 256
    slope = _per_pixel(COSINE[turn]) * (x - SIDE // 2) + _per_pixel(SINE[turn]) * (y - SIDE // 2)
    shade = 128 + (5 * slope >> 14)
    clouds = _clouds(dice, n)
    return np.choose(_per_pixel(kind), [plain, stripes, checks, shade, clouds])


def _clouds(dice: Dice, n: int) -> HostArray:
    """Bilinear interpolation between random points; (N, SIDE, SIDE)."""
    points = dice.bytes(n, SIDE // CELL + 1, SIDE // CELL + 1).astype(np.int32)
    x = PIXELS % CELL
    left = points[:, :, :-1].repeat(CELL, axis=2)
    right = points[:, :, 1:].repeat(CELL, axis=2)
    rows = left * (CELL - x) + right * x  # (N, SIDE / CELL + 1, SIDE)
    y = x[:, None]
    above = rows[:, :-1].repeat(CELL, axis=1)
    below = rows[:, 1:].repeat(CELL, axis=1)
    return (above * (CELL - y) + below * y) // CELL**2


def _painted(dice: Dice, first: HostArray) -> HostArray:
    """Textures (N, 3, SIDE, SIDE) between a color and another one near it."""
    second = np.clip(first + dice.between(-40, 41, *first.shape), 0, 255)
    fraction = _patterns(dice, len(first))[:, None]  # (N, SIDE, SIDE) -> (N, 1, SIDE, SIDE)
    change = (_per_pixel(second - first) * fraction) >> 8
    return _per_pixel(first) + change


def _add_dots(dice: Dice, images: HostArray) -> None:
    n = len(images)
    for _ in range(DOTS):
        x = _per_pixel(dice.between(0, 4 * SIDE, n))  # in quarters of a pixel, as the radius
        y = _per_pixel(dice.between(0, 4 * SIDE, n))
        radius = _per_pixel(dice.between(2, 9, n))
        color = _per_pixel(dice.between(20, 236, n, 3))
        squared_distance = (4 * PIXELS - x) ** 2 + (4 * PIXELS[:, None] - y) ** 2
        is_dot = squared_distance <= radius**2  # (N, SIDE, SIDE)
        np.copyto(images, color, where=is_dot[:, None])


def _images(dice: Dice, labels: HostArray) -> HostArray:
    """A background of the darkest of five random colors, and on it a shape of the lightest one."""
    n = len(labels)
    covered = _coverage(dice, labels)[:, None]
    colors = dice.between(10, 246, 5, n, 3)
    light = colors.sum(axis=-1)  # (5, N, 3) -> (5, N)
    every = np.arange(n)
    darkest = colors[light.argmin(axis=0), every]
    lightest = colors[light.argmax(axis=0), every]
    background = _painted(dice, darkest)
    _add_dots(dice, background)
    shape = _painted(dice, lightest)
    images = background + (((shape - background) * covered) >> 2)
    strength = dice.between(4, 32, n)[:, None, None, None]
    noise = dice.bytes(2, *images.shape).astype(np.int32)
    images += ((noise[0] + noise[1] - 255) * strength) >> 8
    return np.clip(images, 0, 255).astype(np.uint8)


@cache
def draw(count: int, seed: int = 0) -> Samples:
    """Images (N, 3, 32, 32) and their labels, with all classes equally often. Copy the arrays
    before you edit them.

    >>> images, labels = draw(20)
    >>> images.shape, images.dtype, [CLASSES[label] for label in labels[:3]]
    ((20, 3, 32, 32), dtype('uint8'), ['ring', 'triangle', 'triangle'])
    """
    dice = Dice(seed)
    order = np.argsort(dice.bits.random_raw(count), kind="stable")
    labels = (order % len(CLASSES)).astype(np.int64)
    chunks = []
    for start in range(0, count, CHUNK):
        chunks.append(_images(dice, labels[start : start + CHUNK]))
    return np.concatenate(chunks), labels
