"""The embedded data set: coloured pictures of ten shapes, drawn by arithmetic.

Everything is computed with integers from the raw output of a PCG64 generator, which NumPy keeps the same in all its
versions; so the bytes are the same on every machine. A pixel is 16 units wide; for the shapes themselves, in their own
coordinates u (to the right) and v (down), the radius is 1024. Each is its own mirror image: flips keep the class.

A light shape on a darker ground varies in place, size, lean, width, colours, textures and grain, and dots are strewn
about. A linear classifier gets two of five pictures right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ..engine.arrays import HostArray

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

SIDE, PIXEL, UNIT = 32, 16, 1024
CHUNK = 250  # pictures drawn together: few enough for the cache
SAMPLES = (-4, 4)  # where a pixel is sampled, from its middle, in x and in y
DOTS = 2  # strewn over each background
CELL = 8  # pixels between the random points that make clouds
TURN = 256  # directions
TILT = 28  # how far a shape may lean to either side: 39 degrees
# Libraries differ in the last bit of a cosine; no entry is so near a tie that this could change its rounding.
COSINE: Integers = np.rint(np.cos(np.arange(TURN) * (2 * np.pi / TURN)) * (1 << 14)).astype(np.int32)
SINE: Integers = np.roll(COSINE, TURN // 4)


def _star(u: Integers, v: Integers) -> HostArray:
    """Within at least four of the five lines that make up a pentagram."""
    within = np.zeros(u.shape, np.int8)
    for i in range(5):
        direction = round(i * TURN / 5 + TURN / 4) % TURN
        within += (u * (COSINE[direction] >> 4) + v * (SINE[direction] >> 4)) <= 360 * UNIT
    return within >= 4


def _heart(u: Integers, v: Integers) -> HostArray:
    """A square on its corner and a disc on each of its upper sides."""
    u = abs(u)
    return (u + abs(v - 190) <= 740) | ((u - 370) ** 2 + (v + 180) ** 2 <= 523**2)


def _arrow(u: Integers, v: Integers) -> HostArray:
    u = abs(u)
    return ((v <= 0) & (10 * u <= 9 * (v + 960))) | ((v > 0) & (v <= 900) & (u <= 290))


SHAPES: dict[str, Callable[[Integers, Integers], HostArray]] = {
    "disc": lambda u, v: u * u + v * v <= 880**2,
    "ring": lambda u, v: abs(u * u + v * v - (950**2 + 560**2) // 2) <= (950**2 - 560**2) // 2,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) <= 780,
    "triangle": lambda u, v: (v <= 520) & (887 * abs(u) - 512 * v <= 520 * UNIT),
    "star": _star,
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) <= 290) & (np.maximum(abs(u), abs(v)) <= 930),
    "crescent": lambda u, v: (u * u + v * v <= 960**2) & (u * u + (v + 480) ** 2 > 800**2),
    "heart": _heart,
    "arrow": _arrow,
    "hourglass": lambda u, v: (abs(v) <= 800) & (10 * abs(u) <= 8 * abs(v) + 800),
}
CLASSES = tuple(SHAPES)


class Dice:
    """Whole numbers from the raw bits of a generator."""

    def __init__(self, seed: int):
        self.bits = np.random.PCG64(seed)

    def bytes(self, *shape: int) -> HostArray:
        count = prod(shape)
        return self.bits.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count].reshape(shape)

    def between(self, low: int, high: int, *shape: int) -> Integers:
        """Numbers from low up to, not including, high."""
        draws = self.bytes(*shape, 4).view("<u4")[..., 0] >> 8
        return (low + ((draws.astype(np.int64) * (high - low)) >> 24)).astype(np.int32)


def _per_pixel(values: Integers) -> Integers:
    """(N, ...) -> (N, ..., 1, 1)"""
    return values[..., None, None]


def _figures(dice: Dice, labels: HostArray) -> Integers:
    """How many of its 4 sampled points each pixel has inside the shape, (N, SIDE, SIDE)."""
    n = len(labels)
    radius = dice.between(9 * PIXEL, 15 * PIXEL, n)
    room = SIDE * PIXEL // 2 - radius * 15 // 16
    center = SIDE * PIXEL // 2 + (dice.between(-UNIT, UNIT + 1, 2, n) * room) // UNIT
    width = dice.between(208, 257, n)  # of 256
    turn = dice.between(-TILT, TILT + 1, n) % TURN
    along, across = (table[turn] * UNIT // radius for table in (COSINE, SINE))
    wide_along, wide_across = (step * 256 // width for step in (along, across))
    middles = np.arange(SIDE, dtype=np.int32) * PIXEL + PIXEL // 2
    covered = np.zeros((n, SIDE, SIDE), np.int32)
    for sample_x in SAMPLES:
        for sample_y in SAMPLES:
            x = (middles + sample_x)[None, None, :] - _per_pixel(center[0])
            y = (middles + sample_y)[None, :, None] - _per_pixel(center[1])
            u = (_per_pixel(wide_along) * x + _per_pixel(wide_across) * y) >> 14
            v = (_per_pixel(along) * y - _per_pixel(across) * x) >> 14
            for label, shape in enumerate(SHAPES.values()):
                mine = labels == label
                covered[mine] += shape(u[mine], v[mine])
    return covered


def _patterns(dice: Dice, n: int) -> Integers:
    """How much of its second colour each pixel of a texture has, of 256; (N, SIDE, SIDE)."""
    x = np.arange(SIDE, dtype=np.int32)[None, None, :]
    y = np.arange(SIDE, dtype=np.int32)[None, :, None]
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


def _painted(dice: Dice, first: Integers) -> Integers:
    """Textures (N, 3, SIDE, SIDE) that go from a colour to another one near it."""
    second = np.clip(first + dice.between(-40, 41, *first.shape), 0, 255)
    return _per_pixel(first) + ((_per_pixel(second - first) * _patterns(dice, len(first))[:, None]) >> 8)


def _strew_dots(dice: Dice, pictures: Integers) -> None:
    n = len(pictures)
    at = np.arange(SIDE, dtype=np.int32) * 4
    for _ in range(DOTS):
        x, y, radius = dice.between(0, 4 * SIDE, n), dice.between(0, 4 * SIDE, n), dice.between(2, 9, n)
        color = _per_pixel(dice.between(20, 236, n, 3))
        distance2 = (at[None, None, :] - _per_pixel(x)) ** 2 + (at[None, :, None] - _per_pixel(y)) ** 2
        np.copyto(pictures, color, where=(distance2 <= _per_pixel(radius**2))[:, None])


def _colors(dice: Dice, n: int) -> tuple[Integers, Integers]:
    """A colour for the ground and one for the shape, (N, 3) each: the darkest and the lightest of a few."""
    colors = dice.between(10, 246, 5, n, 3)
    light = colors.sum(axis=-1)
    darkest, lightest = (i[None, :, None] for i in (light.argmin(axis=0), light.argmax(axis=0)))
    return np.take_along_axis(colors, darkest, 0)[0], np.take_along_axis(colors, lightest, 0)[0]


def _pictures(dice: Dice, labels: HostArray) -> HostArray:
    n = len(labels)
    covered = _figures(dice, labels)[:, None]
    dark, light = _colors(dice, n)
    ground = _painted(dice, dark)
    _strew_dots(dice, ground)
    pictures = ground + (((_painted(dice, light) - ground) * covered) >> 2)
    grain = dice.between(4, 32, n)[:, None, None, None]
    noise = dice.bytes(2, *pictures.shape).astype(np.int32)
    pictures += ((noise[0] + noise[1] - 255) * grain) >> 8
    return np.clip(pictures, 0, 255).astype(np.uint8)


def draw(count: int, seed: int = 0) -> tuple[HostArray, HostArray]:
    """Pictures (N, 3, 32, 32) and their labels, all classes equally often; another seed gives other pictures.

    >>> images, labels = draw(20)
    >>> images.shape, images.dtype, [CLASSES[label] for label in labels[:3]]
    ((20, 3, 32, 32), dtype('uint8'), ['ring', 'triangle', 'triangle'])
    """
    dice = Dice(seed)
    labels = (np.argsort(dice.bits.random_raw(count), kind="stable") % len(CLASSES)).astype(np.int64)
    chunks = [_pictures(dice, labels[start : start + CHUNK]) for start in range(0, count, CHUNK)]
    return np.concatenate(chunks), labels


@dataclass(frozen=True)
class Drawing:
    """One of the two files of the data set."""

    file: str
    count: int
    seed: int
    md5: str

    def draw(self) -> tuple[HostArray, HostArray]:
        return draw(self.count, self.seed)


DRAWINGS = {
    "train": Drawing("shapes-train-1.bin", 10_000, 1, "413b95849e8d5b61bcf9d883cdbfb714"),
    "test": Drawing("shapes-test-1.bin", 2_000, 2, "3c42e46791fed717d3ed835fc9d58f60"),
}
