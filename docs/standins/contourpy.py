"""Contour lines and bands of a function on a grid, as matplotlib asks contourpy for them.

Each cell of the grid that a level crosses is a polygon. Its sides are kept as pairs of keys, so
that sides which two cells share cancel exactly, and what is left are the borders of a band."""

from enum import Enum

import numpy as np

__version__ = "1.3.0"
MOVETO, LINETO, CLOSEPOLY = 1, 2, 79


class LineType(Enum):
    SeparateCode = 103


class FillType(Enum):
    OuterCode = 202


def contour_generator(x, y, z, **options):
    return ContourGenerator(x, y, z)


class ContourGenerator:
    def __init__(self, x, y, z):
        self.z = np.ma.filled(np.ma.asarray(z, float), np.nan)  # (rows, columns)
        if np.ndim(x) == 1:
            x, y = np.meshgrid(x, y)
        self.places = np.stack([x, y], axis=-1).astype(float)  # (rows, columns, 2)

    def lines(self, level):
        following, before = {}, {}
        for polygon in self._polygons(self._cells(level, np.inf)):
            points = self._crossed(polygon, level, np.inf)
            cuts = [i for i, key in enumerate(points) if key[-1] == "low"]
            # a level enters and leaves a polygon through neighbours in this list
            for i in cuts:
                after = points[(i + 1) % len(points)]
                if after[-1] == "low" and _leaves(points, i):
                    following[points[i]] = after
                    before[after] = points[i]
        return self._drawn(_chains(following, before), level, np.inf)

    def filled(self, low, high):
        sides = set()
        for polygon in self._polygons(self._cells(low, high)):
            points = self._crossed(polygon, low, high)
            for side in zip(points, points[1:] + points[:1], strict=True):
                if side[::-1] in sides:
                    sides.remove(side[::-1])
                else:
                    sides.add(side)
        for side in self._borders_of_whole_cells(low, high):
            if side[::-1] in sides:
                sides.remove(side[::-1])
            else:
                sides.add(side)
        points, codes = self._drawn(_loops(sides), low, high)
        if not points:
            return [], []
        return [np.concatenate(points)], [np.concatenate(codes)]

    create_contour, create_filled_contour = lines, filled

    # -- cells

    def _where(self, low, high):
        """-1 below a band, 0 within, 1 above; NaN where nothing is known."""
        where = np.where(self.z > high, 1.0, np.where(self.z > low, 0.0, -1.0))
        return np.where(np.isnan(self.z), np.nan, where)

    def _cells(self, low, high):
        """The cells with a corner inside of a band and one outside, or on both of its sides."""
        where = self._where(low, high)
        corners = np.stack([where[:-1, :-1], where[:-1, 1:], where[1:, 1:], where[1:, :-1]])
        return np.argwhere(corners.min(axis=0) != corners.max(axis=0))  # NaN is not NaN: see next

    def _polygons(self, cells):
        """The corners of each cell; four triangles if its diagonals lie on different sides."""
        for row, column in cells.tolist():
            corners = [(row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column)]
            values = [self.z[corner] for corner in corners]
            if np.isnan(values).any():
                continue
            a, b, c, d = values
            if min(a, c) > max(b, d) or max(a, c) < min(b, d):
                middle = (row + 0.5, column + 0.5)
                for first, second in zip(corners, corners[1:] + corners[:1], strict=True):
                    yield [first, second, middle]
            else:
                yield corners

    def _value(self, corner):
        row, column = int(corner[0]), int(corner[1])
        if row == corner[0]:
            return self.z[row, column]
        return self.z[row : row + 2, column : column + 2].mean()

    def _place(self, corner):
        row, column = int(corner[0]), int(corner[1])
        if row == corner[0]:
            return self.places[row, column]
        return self.places[row : row + 2, column : column + 2].mean(axis=(0, 1))

    def _crossed(self, polygon, low, high):
        """The corners of a polygon within a band, and the points where its sides enter or leave.
        A key is (corner,) or (corner, other corner, "low" or "high")."""
        found = []
        for first, second in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            a, b = self._value(first), self._value(second)
            if low < a <= high:
                found.append((first,))
            side = (min(first, second), max(first, second))
            cuts = []
            if (a > low) != (b > low):
                cuts.append((*side, "low"))
            if (a > high) != (b > high):
                cuts.append((*side, "high"))
            found += cuts if a < b else cuts[::-1]
        return found

    def _borders_of_whole_cells(self, low, high):
        """The sides of cells that are wholly within a band, but those between two such cells."""
        inside = self._where(low, high) == 0
        whole = inside[:-1, :-1] & inside[:-1, 1:] & inside[1:, 1:] & inside[1:, :-1]
        padded = np.pad(whole, 1)
        sides = (
            ((0, 1), padded[:-2, 1:-1], (0, 0), (0, 1)),
            ((1, 2), padded[1:-1, 2:], (0, 1), (1, 1)),
            ((2, 3), padded[2:, 1:-1], (1, 1), (1, 0)),
            ((3, 0), padded[1:-1, :-2], (1, 0), (0, 0)),
        )
        for _, neighbor, first, second in sides:
            for row, column in np.argwhere(whole & ~neighbor).tolist():
                yield (
                    ((row + first[0], column + first[1]),),
                    ((row + second[0], column + second[1]),),
                )

    # -- points

    def _point(self, key, low, high):
        if len(key) == 1:
            return self._place(key[0])
        first, second, which = key
        a, b = self._value(first), self._value(second)
        part = ((low if which == "low" else high) - a) / (b - a)
        return self._place(first) + part * (self._place(second) - self._place(first))

    def _drawn(self, chains, low, high):
        points, codes = [], []
        for chain in chains:
            points.append(np.array([self._point(key, low, high) for key in chain]))
            code = np.full(len(chain), LINETO, np.uint8)
            code[0] = MOVETO
            if chain[0] == chain[-1]:
                code[-1] = CLOSEPOLY
            codes.append(code)
        return points, codes


def _leaves(points, place):
    """Whether what is above a level ends at this cut and begins again at the next one."""
    return len(points[place - 1]) == 1 or points[place - 1][-1] != "low" or len(points) == 2


def _chains(following, before):
    """Lines from segments: first those with ends, then closed ones."""
    starts = [key for key in following if key not in before]
    found, used = [], set()
    for start in [*starts, *following]:
        if start in used:
            continue
        chain = [start]
        while (key := chain[-1]) in following and key not in used:
            used.add(key)
            chain.append(following[key])
        found.append(chain)
    return found


def _loops(sides):
    """Closed lines from sides, of which several may begin at one point."""
    following = {}
    for first, second in sorted(sides):
        following.setdefault(first, []).append(second)
    found = []
    for start in following:
        while following[start]:
            loop = [start]
            while following[loop[-1]]:
                loop.append(following[loop[-1]].pop())
                if loop[-1] == start:
                    break
            found.append(loop)
    return found
