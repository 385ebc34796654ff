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

SIDE, PIXEL, UNIT = 32, 16, 1024
CHUNK = 250  # images drawn together: few enough for the cache
PIXELS: HostArray = np.arange(SIDE, dtype=np.int32)
SAMPLES = (-4, 4)  # where a pixel is sampled, from its center, in x and in y
DOTS = 2  # on each background
CELL = 8  # pixels between the random points that make clouds
TURN = 256  # directions
TILT = 28  # how far a shape may lean to either side: 39 degrees
# Libraries differ in the last bit of a cosine; no entry is so near a tie that this could change its
# rounding.
COSINE: HostArray = np.rint(np.cos(np.arange(TURN) * (2 * np.pi / TURN)) * (1 << 14)).astype(
    np.int32
)
SINE: HostArray = np.roll(COSINE, TURN // 4)


def _star(u: HostArray, v: HostArray) -> HostArray:
    """On the inner side of at least four of the five lines of a pentagram."""
    inner = np.zeros(u.shape, np.int8)
    for i in range(5):
        direction = round(i * TURN / 5 + TURN / 4) % TURN
        inner += (u * (COSINE[direction] >> 4) + v * (SINE[direction] >> 4)) <= 360 * UNIT
    return inner >= 4


SHAPES: dict[str, Callable[[HostArray, HostArray], HostArray]] = {
    "disc": lambda u, v: u * u + v * v <= 880**2,
    "ring": lambda u, v: abs(u * u + v * v - (950**2 + 560**2) // 2) <= (950**2 - 560**2) // 2,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) <= 780,
    "triangle": lambda u, v: (v <= 520) & (887 * abs(u) - 512 * v <= 520 * UNIT),
    "star": _star,
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) <= 290) & (np.maximum(abs(u), abs(v)) <= 930),
    "crescent": lambda u, v: (u * u + v * v <= 960**2) & (u * u + (v + 480) ** 2 > 800**2),
    "heart": lambda u, v: (
        (abs(u) + abs(v - 190) <= 740) | ((abs(u) - 370) ** 2 + (v + 180) ** 2 <= 523**2)
    ),
    "arrow": lambda u, v: np.where(
        v <= 0, 10 * abs(u) <= 9 * (v + 960), (v <= 900) & (abs(u) <= 290)
    ),
    "hourglass": lambda u, v: (abs(v) <= 800) & (10 * abs(u) <= 8 * abs(v) + 800),
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
        return (
            self.bits.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count].reshape(shape)
        )

    def between(self, low: int, high: int, *shape: int) -> HostArray:
        """Integers from low up to, but not including, high."""
        draws = self.bytes(*shape, 4).view("<u4")[..., 0] >> 8
        return (low + ((draws.astype(np.int64) * (high - low)) >> 24)).astype(np.int32)


def _coverage(dice: Dice, labels: HostArray) -> HostArray:
    """How many of the 4 sampled points of each pixel are inside the shape, (N, SIDE, SIDE)."""
    n = len(labels)
    radius = dice.between(9 * PIXEL, 15 * PIXEL, n)
    room = SIDE * PIXEL // 2 - radius * 15 // 16
    center = SIDE * PIXEL // 2 + (dice.between(-UNIT, UNIT + 1, 2, n) * room) // UNIT
    width = dice.between(208, 257, n)  # of 256
    tilt = dice.between(-TILT, TILT + 1, n) % TURN
    along, across = (table[tilt] * UNIT // radius for table in (COSINE, SINE))
    wide_along, wide_across = (step * 256 // width for step in (along, across))
    covered = np.zeros((n, SIDE, SIDE), np.int32)
    for sample_x, sample_y in product(SAMPLES, SAMPLES):
        x = (PIXELS * PIXEL + PIXEL // 2 + sample_x) - _per_pixel(center[0])
        y = (PIXELS * PIXEL + PIXEL // 2 + sample_y)[:, None] - _per_pixel(center[1])
        u = (_per_pixel(wide_along) * x + _per_pixel(wide_across) * y) >> 14
        v = (_per_pixel(along) * y - _per_pixel(across) * x) >> 14
        for label, inside in enumerate(SHAPES.values()):
            mine = labels == label
            covered[mine] += inside(u[mine], v[mine])
    return covered


def _patterns(dice: Dice, n: int) -> HostArray:
    """How much of its second color each pixel of a texture has, of 256; (N, SIDE, SIDE)."""
    x, y = PIXELS, PIXELS[:, None]
    kind, turn = dice.between(0, 5, n), dice.between(0, TURN, n)
    period = dice.between(4 * PIXEL, 11 * PIXEL, n)
    cosine, sine = (_per_pixel(table[turn] // period) for table in (COSINE, SINE))
    along, across = cosine * x + sine * y, cosine * y - sine * x
    plain = np.zeros_like(along)
    stripes = abs((along & 1023) - 512) >> 1
    checks = (((along ^ across) >> 9) & 1) * 256
    slope = _per_pixel(COSINE[turn]) * (x - SIDE // 2) + _per_pixel(SINE[turn]) * (y - SIDE // 2)
    shade = 128 + (5 * slope >> 14)
    points = dice.bytes(n, SIDE // CELL + 1, SIDE // CELL + 1).astype(np.int32)
    left, right = points[:, :, :-1].repeat(CELL, 2), points[:, :, 1:].repeat(CELL, 2)
    rows = left * (CELL - x % CELL) + right * (x % CELL)
    above, below = rows[:, :-1].repeat(CELL, 1), rows[:, 1:].repeat(CELL, 1)
    clouds = (above * (CELL - y % CELL) + below * (y % CELL)) // CELL**2
    return np.choose(_per_pixel(kind), [plain, stripes, checks, shade, clouds])


def _painted(dice: Dice, first: HostArray) -> HostArray:
    """Textures (N, 3, SIDE, SIDE) between a color and another one near it."""
    second = np.clip(first + dice.between(-40, 41, *first.shape), 0, 255)
    return _per_pixel(first) + (
        (_per_pixel(second - first) * _patterns(dice, len(first))[:, None]) >> 8
    )


def _add_dots(dice: Dice, images: HostArray) -> None:
    n = len(images)
    for _ in range(DOTS):
        x, y, radius = (
            dice.between(0, 4 * SIDE, n),
            dice.between(0, 4 * SIDE, n),
            dice.between(2, 9, n),
        )
        color = _per_pixel(dice.between(20, 236, n, 3))
        distance2 = (4 * PIXELS - _per_pixel(x)) ** 2 + (4 * PIXELS[:, None] - _per_pixel(y)) ** 2
        np.copyto(images, color, where=(distance2 <= _per_pixel(radius**2))[:, None])


def _images(dice: Dice, labels: HostArray) -> HostArray:
    """A background of the darkest of five random colors, and on it a shape of the lightest one."""
    n = len(labels)
    covered = _coverage(dice, labels)[:, None]
    colors = dice.between(10, 246, 5, n, 3)
    light, every = colors.sum(axis=-1), np.arange(n)
    background = _painted(dice, colors[light.argmin(axis=0), every])
    _add_dots(dice, background)
    shape = _painted(dice, colors[light.argmax(axis=0), every])
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
    labels = (np.argsort(dice.bits.random_raw(count), kind="stable") % len(CLASSES)).astype(
        np.int64
    )
    chunks = [_images(dice, labels[start : start + CHUNK]) for start in range(0, count, CHUNK)]
    return np.concatenate(chunks), labels
