"""What matplotlib's compiled module of paths does, as far as its SVG backend needs it.

A path is turned into a list of parts first: a part begins with a MOVETO, and no point in it is
infinite or NaN."""

from itertools import pairwise

import numpy as np

STOP, MOVETO, LINETO, CURVE3, CURVE4, CLOSEPOLY = 0, 1, 2, 3, 4, 79
POINTS = {MOVETO: 1, LINETO: 1, CURVE3: 2, CURVE4: 3, CLOSEPOLY: 1}
# a point that is nearer than this to the line through its neighbours is not seen
TOLERANCE = 1 / 9
STEPS = 16  # lines that a curve is replaced by


def affine_transform(points, trans):
    points, matrix = np.asarray(points, float), _matrix(trans)
    return points @ matrix[:2, :2].T + matrix[:2, 2]


def _matrix(trans):
    if trans is None:
        return np.eye(3)
    return np.asarray(trans.get_matrix() if hasattr(trans, "get_matrix") else trans, float)


def count_bboxes_overlapping_bbox(bbox, bboxes):
    boxes = np.array([np.asarray(box).reshape(-1) for box in bboxes]).reshape(-1, 2, 2)
    low, high = np.sort(np.asarray(bbox).reshape(2, 2), axis=0)
    apart = (boxes.max(axis=1) <= low) | (boxes.min(axis=1) >= high)
    return int((~apart.any(axis=1)).sum())


def is_sorted_and_has_non_nan(array):
    finite = np.asarray(array)[~np.isnan(array)]
    return bool(len(finite) and (np.diff(finite) >= 0).all())


def _codes(path):
    if path.codes is not None:
        return np.asarray(path.codes)
    codes = np.full(len(path.vertices), LINETO, np.uint8)
    codes[:1] = MOVETO
    return codes


def _segments(path, trans):
    """(code, points) of each segment. One with a point that is not finite is left out, and the next
    begins a new part."""
    points, codes = affine_transform(np.asarray(path.vertices, float), trans), _codes(path)
    finite = np.isfinite(points).all(axis=1)
    place, broken, start = 0, False, None
    while place < len(codes) and codes[place] != STOP:
        code = int(codes[place])
        stop = place + POINTS[code]
        if code == CLOSEPOLY:
            if not broken:
                yield code, points[:0]
            elif start is not None:  # the closing line of what has lost a part
                yield LINETO, start[None]
        elif not finite[place:stop].all():
            broken = True
            if finite[stop - 1]:  # where the next segment begins
                yield MOVETO, points[stop - 1 : stop]
                broken = "moved"
        else:
            if code == MOVETO:
                start, broken = points[place], False
            elif broken is True:
                code, place = MOVETO, stop - 1
                broken = "moved"
            yield code, points[place:stop]
        place = stop


def _shown(path, trans, clip):
    """The parts of a path that has lines only, cut at gaps and at the border of a rectangle."""
    points = affine_transform(np.asarray(path.vertices, float), trans)
    gaps = np.flatnonzero(~np.isfinite(points).all(axis=1))
    for i, part in enumerate(np.split(points, gaps)):
        part = part if i == 0 else part[1:]
        if not len(part):
            continue
        if clip is None:
            yield part
        else:
            x0, y0, x1, y1 = clip
            low, high = np.array([x0 - 1, y0 - 1]), np.array([x1 + 1, y1 + 1])
            yield from _clipped(part, low, high)


def _clipped(points, low, high):
    """The parts of a line of points within a rectangle."""
    if ((points >= low) & (points <= high)).all():
        return [points]
    found = []
    for a, b in pairwise(points):
        inside = _segment_inside(a, b, low, high)
        if inside is None:
            continue
        start, end = inside
        if not found or not np.array_equal(found[-1][-1], start):
            found.append([start])
        found[-1].append(end)
    return [np.array(part) for part in found]


def _segment_inside(a, b, low, high):
    """The part of a segment within a rectangle, by Liang and Barsky."""
    step, first, last = b - a, 0.0, 1.0
    for i in range(2):
        for distance, speed in ((a[i] - low[i], step[i]), (high[i] - a[i], -step[i])):
            if speed == 0:
                if distance < 0:
                    return None
            elif speed > 0:
                first = max(first, -distance / speed)
            else:
                last = min(last, -distance / speed)
    if first > last:
        return None
    return (a if first == 0 else a + first * step), (b if last == 1 else a + last * step)


def _simplified(points):
    """Without points that nobody sees. Never two neighbours at once: errors would add up."""
    while len(points) > 2:
        before, here, after = points[:-2], points[1:-1], points[2:]
        chord = after - before
        length = np.hypot(*chord.T)
        offset = here - before
        across = np.abs(chord[:, 0] * offset[:, 1] - chord[:, 1] * offset[:, 0])
        along = (chord * offset).sum(axis=1)
        between = (along >= 0) & (along <= length**2)
        dropped = between & (across <= TOLERANCE / 4 * length)
        dropped[1:] &= ~dropped[:-1]
        if not dropped.any():
            break
        points = points[np.concatenate([[True], ~dropped, [True]])]
    return points


def _number(value, precision):
    text = f"{value:.{precision}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def convert_to_string(path, trans, cliprect, simplify, sketch, precision, codes, postfix):
    """The path as data of an SVG file. `codes` are the letters of the five commands."""
    move, line, quadratic, cubic, close = (code.decode() for code in codes)
    letters = {MOVETO: move, LINETO: line, CURVE3: quadratic, CURVE4: cubic, CLOSEPOLY: close}
    simplify = path.should_simplify if simplify is None else simplify
    out = []

    def write(code, points):
        numbers = "".join(f"{_number(x, precision)} " for x in points.reshape(-1))
        if postfix:
            out.append(f"{numbers}{letters[code]}\n")
        else:
            out.append(f"{letters[code]} {numbers}\n" if numbers else f"{letters[code]}\n")

    if path.codes is None:
        for part in _shown(path, trans, cliprect):
            for i, point in enumerate(_simplified(part) if simplify else part):
                write(LINETO if i else MOVETO, point)
    else:
        for code, points in _segments(path, trans):
            write(code, points)
    return "".join(out).encode()


def cleanup_path(path, trans, remove_nans, clip, snap, stroke_width, simplify, curves, sketch):
    """Vertices and codes, ended by STOP."""
    if path.codes is None:
        parts = list(_shown(path, trans, clip))
        points = np.concatenate([*parts, np.empty((0, 2))])
        codes = np.full(len(points), LINETO)
        starts = np.cumsum([0, *map(len, parts)])[:-1]
        codes[starts[: len(parts)]] = MOVETO
    else:
        found = list(_segments(path, trans))
        if not curves:
            found = list(_straight(found))
        codes = [code for code, points in found for _ in range(max(len(points), 1))]
        points = [part if len(part) else np.zeros((1, 2)) for _, part in found]
        points = np.concatenate([*points, np.empty((0, 2))])
    points = np.concatenate([points, [[0.0, 0.0]]])
    return points, np.concatenate([codes, [STOP]]).astype(np.uint8)


def _straight(segments):
    """Lines in place of curves."""
    here, t = np.zeros(2), np.linspace(0, 1, STEPS + 1)[1:, None]
    for code, points in segments:
        if code == CURVE3:
            a, b = points
            points = (1 - t) ** 2 * here + 2 * t * (1 - t) * a + t**2 * b
        elif code == CURVE4:
            a, b, c = points
            s = 1 - t
            points = s**3 * here + 3 * s * s * t * a + 3 * s * t * t * b + t**3 * c
        if code in (CURVE3, CURVE4):
            for point in points:
                yield LINETO, point[None]
        else:
            yield code, points
        if len(points):
            here = points[-1]


def _polygons(path, trans=None):
    """The points of each part of a path, and whether it is closed."""
    parts, closed = [], []
    for code, points in _straight(_segments(path, trans)):
        if code == CLOSEPOLY:
            if parts:
                closed[-1] = True
        elif code == MOVETO or not parts:
            parts.append([*points])
            closed.append(False)
        else:
            parts[-1] += [*points]
    return [(np.array(part), shut) for part, shut in zip(parts, closed, strict=True)]


def convert_path_to_polygons(path, trans, width, height, closed_only):
    found = []
    for points, closed in _polygons(path, trans):
        if closed or closed_only:
            if len(points) < 3:
                continue
            if not np.array_equal(points[0], points[-1]):
                points = np.concatenate([points, points[:1]])
        found.append(points)
    return found


def get_path_collection_extents(master_transform, paths, transforms, offsets, offset_transform):
    """The box around all paths at all offsets, and the smallest positive x and y."""
    offsets = affine_transform(np.asarray(offsets, float).reshape(-1, 2), offset_transform)
    master, count = _matrix(master_transform), max(len(paths), len(offsets))
    found = []
    for i in range(count):
        path = paths[i % len(paths)]
        own = np.asarray(transforms[i % len(transforms)]) if len(transforms) else np.eye(3)
        points = np.asarray(path.vertices, float)[_codes(path) != CLOSEPOLY]
        found.append(affine_transform(points, master @ own) + offsets[i % len(offsets)])
    points = np.concatenate(found)
    points = points[np.isfinite(points).all(axis=1)]
    smallest = np.where(points > 0, points, np.inf).min(axis=0, initial=np.inf)
    if not len(points):
        return np.array([np.inf, np.inf, -np.inf, -np.inf]), smallest
    return np.concatenate([points.min(axis=0), points.max(axis=0)]), smallest


# -- what lies in what


def _inside(points, polygons):
    """Which points are in a polygon, by the even-odd rule."""
    x, y = np.asarray(points, float).reshape(-1, 2).T[:, :, None]
    odd = np.zeros(len(x), bool)
    for polygon, _ in polygons:
        (x0, y0), (x1, y1) = polygon.T, np.roll(polygon, -1, axis=0).T
        crosses = (y0 > y) != (y1 > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = x < (x1 - x0) * (y - y0) / (y1 - y0) + x0
        odd ^= (crosses & left).sum(axis=1) % 2 == 1
    return odd


def points_in_path(points, radius, path, trans):
    return _inside(points, _polygons(path, trans))


def point_in_path(x, y, radius, path, trans):
    return bool(_inside([[x, y]], _polygons(path, trans))[0])


def path_in_path(a, trans_a, b, trans_b):
    points = affine_transform(np.asarray(b.vertices, float), trans_b)
    return bool(_inside(points, _polygons(a, trans_a)).all())


def _cross(a, b):
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def path_intersects_path(a, b, filled=False):
    for one, _ in _polygons(a):
        for other, _ in _polygons(b):
            p, step = one[:-1, None], np.diff(one, axis=0)[:, None]
            q, other_step = other[None, :-1], np.diff(other, axis=0)[None]
            area = _cross(step, other_step)
            with np.errstate(divide="ignore", invalid="ignore"):
                t = _cross(q - p, other_step) / area
                s = _cross(q - p, step) / area
            if ((area != 0) & (t >= 0) & (t <= 1) & (s >= 0) & (s <= 1)).any():
                return True
    return bool(filled) and (path_in_path(a, None, b, None) or path_in_path(b, None, a, None))


def path_intersects_rectangle(path, x0, y0, x1, y1, filled=False):
    low, high = np.array([min(x0, x1), min(y0, y1)]), np.array([max(x0, x1), max(y0, y1)])
    polygons = _polygons(path)
    for points, closed in polygons:
        points = np.concatenate([points, points[:1]]) if closed else points
        if ((points >= low) & (points <= high)).all(axis=1).any():
            return True
        beside = (np.maximum(points[:-1], points[1:]) < low) | (
            np.minimum(points[:-1], points[1:]) > high
        )
        for i in np.flatnonzero(~beside.any(axis=1)):
            if _segment_inside(points[i], points[i + 1], low, high) is not None:
                return True
    return bool(filled) and bool(_inside([(low + high) / 2], polygons)[0])


def clip_path_to_rect(path, rect, inside):
    """The polygons of a path within a rectangle, or without, by Sutherland and Hodgman."""
    (x0, y0), (x1, y1) = np.sort(np.asarray(rect).reshape(2, 2), axis=0)
    sign = 1.0 if inside else -1.0
    borders = [(0, x0, sign), (0, x1, -sign), (1, y0, sign), (1, y1, -sign)]
    found = []
    for points, _ in _polygons(path):
        for axis, border, side in borders:
            points = _half(points, axis, border, side)
        if len(points):
            found.append(np.concatenate([points, points[:1]]))
    return found


def _half(points, axis, border, side):
    """A polygon on one side of a line."""
    kept = []
    heights = side * (points[:, axis] - border) if len(points) else []
    for i, height in enumerate(heights):
        if (heights[i - 1] > 0) != (height > 0):
            part = heights[i - 1] / (heights[i - 1] - height)
            kept.append(points[i - 1] + part * (points[i] - points[i - 1]))
        if height > 0:
            kept.append(points[i])
    return np.array(kept).reshape(-1, 2)
