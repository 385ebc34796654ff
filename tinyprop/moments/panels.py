"""Panels on which a user's function is a polynomial, found by bisection.

A panel is good if the polynomial through the function's values at its Gauss-Legendre nodes agrees
with the function at check points, which lie between the nodes: 2048 to a standard deviation, so
that a spike of width 1e-4 standard deviations is seen, and more next to the ends of the panel,
because bisection likes to end where functions bend. Otherwise it is cut in two. Kinks and jumps
end up in panels too short to matter. They then become edges, and the smooth pieces between them
need few panels.

Panels lie on the axis of u itself, not of standard deviations from a mean. So one set serves all
means and standard deviations in a range, the function is called once for all of them, and mean and
standard deviation enter through the Gaussian density only, which has derivatives of any order."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import numpy as np

from ..engine.arrays import Array, HostArray, float64, to_backend
from .quadrature import FARTHEST, gauss_legendre

Values: TypeAlias = Callable[[HostArray], HostArray]  # (...) -> (rows, ...)
Cell: TypeAlias = tuple[int, float, bool]  # of Gaussians that are alike

NODES = 16
LENGTH = 2.0  # of the longest panel, in standard deviations: the density is a polynomial along it
BULK = 8.0  # standard deviations, beyond which 1e-15 of the mass lies
CHECKS = 2048  # check points to a standard deviation, in the bulk
TAIL_CHECKS = 64  # to a panel, in the tails
FEWEST_CHECKS = 16  # to a panel, however short
MARGIN = 1.25  # by how much standard deviations may change before panels are chosen anew

TOLERANCE = 1e-14  # of a panel's part in mean and std, relative to the std
SLOPE_TOLERANCE = 1e-11  # of its part in E s'^2, relative to var / std_in^2
DEEPEST = 48  # bisections
DEEPEST_FOR_SLOPES = 36  # a jump would be cut for its slope without end
MOST_VALUES = 1_500_000
MOST_WEIGHTS = 1 << 22  # densities at nodes that are held at a time
KINK = 20  # bisections after which a panel is taken for the place of a kink
ROUNDS = 3
TRIVIAL = 1e-34  # the part of the variance that panels at the ends have to contribute to be kept
HUGE = 1e140  # a value beyond which the density is too small for any finite second moment
EPS = float(np.finfo(float64).eps)


class NotFinite(ValueError):
    """The function is not finite at `place`."""

    def __init__(self, place: float, value: float):
        self.place = place
        self.value = value


def alike(mean: HostArray, std: HostArray, narrow: HostArray) -> list[tuple[Cell, HostArray]]:
    """The elements, sorted into cells that panels can serve: standard deviations within a factor
    of 4, means within 8 of the largest of these."""
    power = np.floor(0.5 * np.log2(std) + 0.5)
    position = np.round(mean / (16.0 * 4.0**power))
    keys = np.stack([power, position, narrow], axis=1)
    cells, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    most = MOST_WEIGHTS // 1024
    pieces = []
    for i, (p, q, is_narrow) in enumerate(cells.tolist()):
        members = np.flatnonzero(which == i)
        for start in range(0, len(members), most):
            pieces.append(((int(p), q, bool(is_narrow)), members[start : start + most]))
    return pieces


@dataclass(frozen=True)
class Leaves:
    """Panels that are not cut further, and how well a polynomial fits there."""

    starts: HostArray  # (panels,), as are lengths and depths
    lengths: HostArray
    depths: HostArray
    values: HostArray  # at the nodes: (rows, panels, nodes)
    misfits: HostArray  # the largest at the check points of any row: (panels,)

    def sorted(self, keep: HostArray | None = None) -> "Leaves":
        order = np.argsort(self.starts)
        if keep is not None:
            order = order[keep[order]]
        return Leaves(
            self.starts[order],
            self.lengths[order],
            self.depths[order],
            self.values[:, order],
            self.misfits[order],
        )

    @staticmethod
    def joined(parts: "Sequence[Leaves]") -> "Leaves":
        return Leaves(
            np.concatenate([p.starts for p in parts]),
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([p.depths for p in parts]),
            np.concatenate([p.values for p in parts], axis=1),
            np.concatenate([p.misfits for p in parts]),
        )


@dataclass(frozen=True)
class Samples:
    """Gaussians that panels are chosen for, each with the row of values that belongs to it, and
    rough moments of the function, in its units."""

    mean: HostArray
    std: HostArray
    row: HostArray
    out_mean: HostArray
    out_std: HostArray


@dataclass(frozen=True)
class Panels:
    """Nodes and weights for a function and a range of means and standard deviations.

    `misfit` bounds the difference between function and polynomials, `slope_misfit` that of the
    squared slopes, both at each node. At `cuts`, which lie between panels, the function was seen
    to have a kink or a jump, where `cut_misfits` times the density may be missing from the sums of
    the function, its square, and its slope's square. At `jumps`
    the polynomials of two neighbours do not meet, so that E s'^2 is infinite."""

    nodes: HostArray
    weights: HostArray
    starts: HostArray
    lengths: HostArray
    values: HostArray
    misfit: HostArray
    slope_misfit: HostArray
    cuts: HostArray
    cut_misfits: HostArray
    jumps: HostArray
    center: float
    unit: float
    shortest_std: float
    error: float = 0.0  # the largest that moments had when the panels were made

    @property
    def count(self) -> int:
        return len(self.lengths)


@cache
def node_rule() -> tuple[HostArray, HostArray]:
    return gauss_legendre(NODES)


@cache
def _to_legendre() -> HostArray:
    """The matrix from values at the nodes to Legendre coefficients."""
    nodes, weights = node_rule()
    at_nodes = np.polynomial.legendre.legvander(2.0 * nodes - 1.0, NODES - 1)
    matrix: HostArray = (2.0 * np.arange(NODES) + 1.0)[:, None] * at_nodes.T * weights
    return matrix


@cache
def slope_matrix(backend: str) -> Array:
    """The matrix from values at the nodes of [0, 1] to slopes there."""
    nodes, _ = node_rule()
    identity = np.eye(NODES)
    slopes = np.polynomial.legendre.legder(identity)  # (NODES - 1, NODES)
    at_nodes = np.polynomial.legendre.legvander(2.0 * nodes - 1.0, NODES - 2)
    return to_backend(2.0 * at_nodes @ slopes @ _to_legendre(), backend)


@cache
def _check_points(count: int) -> tuple[HostArray, HostArray]:
    """Check points in [0, 1], unevenly spaced so that no period hides, with more near both ends;
    and the matrix from values at the nodes to those of the polynomial there."""
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    i = np.arange(count)
    inner = (i + 0.5 + 0.3 * ((i * golden) % 1.0 - 0.5)) / count
    ends = 0.25 ** np.arange(3.0, 13.0 if count > FEWEST_CHECKS else 6.0)
    points = np.concatenate([inner, ends, 1.0 - ends])
    at_points = np.polynomial.legendre.legvander(2.0 * points - 1.0, NODES - 1)
    return points, at_points @ _to_legendre()


def checked_again(panels: Panels, function: Values, values: HostArray) -> Panels:
    """The same panels for a function that has changed a little since they were chosen, such as one
    with a parameter that is being learnt: with its values, and its misfit at a few points."""
    checks, to_checks = _check_points(TAIL_CHECKS)
    points = panels.starts[:, None] + panels.lengths[:, None] * checks
    at_checks = (function(points) - panels.center) / panels.unit
    at_nodes = values.reshape(len(values), -1, NODES)
    middle = at_nodes[..., NODES // 2, None]
    fitted = middle + (at_nodes - middle) @ to_checks.T
    misfits = np.maximum(panels.misfit[::NODES], abs(fitted - at_checks).max(axis=(0, 2)))
    slopes = _steepness(at_nodes, panels.lengths)
    return replace(
        panels,
        values=values,
        misfit=np.repeat(misfits, NODES),
        slope_misfit=np.repeat(_slope_misfits(misfits, slopes, panels.lengths), NODES),
    )


def _steepness(values: HostArray, lengths: HostArray) -> HostArray:
    """The largest slope in each panel: (rows, panels, nodes) -> (panels,)."""
    slopes = (values - values[..., NODES // 2, None]) @ slope_matrix("numpy").T
    largest: HostArray = abs(slopes).max(axis=(0, 2)) / lengths
    return largest


def _slope_misfits(misfits: HostArray, slopes: HostArray, lengths: HostArray) -> HostArray:
    """How far squared slopes may be off."""
    difference = 4.0 * misfits / lengths
    return difference * (2.0 * slopes + difference)


def choose(
    function: Values,
    mean: HostArray,
    std: HostArray,
    kinks: Sequence[float],
    rows: int,
    resolution: float,
) -> Panels:
    """Panels for N(mean, std^2), element by element, and a margin around that range."""
    search = _Search(function, mean, std, rows, resolution)
    cuts = np.empty(0)
    cut_misfits = np.empty((3, 0))  # in the function, in its square and in that of its slope
    for _ in range(ROUNDS):
        leaves = search.run([*kinks, *cuts])
        bottom = _bottoms(leaves)
        places = leaves.starts[bottom] + 0.5 * leaves.lengths[bottom]
        new = [i for i, place in enumerate(places) if _is_new(place, cuts, search.shortest)]
        if not new:
            break
        cuts = np.concatenate([cuts, places[new]])
        misfits, slopes = leaves.misfits[bottom], _steepness(leaves.values, leaves.lengths)[bottom]
        size = abs(leaves.values).max(axis=(0, 2))[bottom]
        parts = np.stack([misfits, misfits * (2.0 * size + misfits), slopes * slopes])
        cut_misfits = np.concatenate(
            [cut_misfits, (parts * leaves.lengths[bottom])[:, new]], axis=1
        )
    return search.panels(search.trimmed(leaves), cuts, cut_misfits)


def _is_new(place: float, cuts: HostArray, std: float) -> bool:
    return not cuts.size or float(np.abs(cuts - place).min()) > 1e-9 * std + 1e3 * EPS * abs(place)


def _bottoms(leaves: Leaves) -> HostArray:
    """Among leaves in sorted order, those that bisection went into: shorter than both sides."""
    depth = leaves.depths
    longer_left = np.concatenate([[True], depth[1:] > depth[:-1]])
    not_shorter_right = np.concatenate([depth[:-1] >= depth[1:], [True]])
    return np.flatnonzero((depth >= KINK) & longer_left & not_shorter_right)


class _Search:
    """The bisection for one function and one range."""

    def __init__(
        self, function: Values, mean: HostArray, std: HostArray, rows: int, resolution: float
    ):
        self.function = function
        self.rows = rows
        self.resolution = resolution
        self.shortest = float(std.min())
        self.bulk = float((mean - BULK * std).min()), float((mean + BULK * std).max())
        far = FARTHEST * std
        self.ends = float((mean - far).min()), float((mean + far).max())
        self.mean, self.std, self.row = _representatives(mean, std, rows)
        self.center, self.unit = self._scale(mean, std)
        self.count = 0

    def _scale(self, mean: HostArray, std: HostArray) -> tuple[float, float]:
        """A middle and a size of the function's values, so that their squares neither overflow nor
        vanish."""
        low, high = self.bulk
        count = max(513, min(20_000, math.ceil(32.0 * (high - low) / self.shortest)))
        points = low + (high - low) * (np.arange(count) + 0.5) / count
        values = self._finite(points)[1]
        self._refuse_not_finite(values, points)
        near = (points > (mean - 2.5 * std).min()) & (points < (mean + 2.5 * std).max())
        center = float(np.median(values[:, near]))
        outside = np.maximum(mean.min() - points, points - mean.max()) / std.max()
        unit = float((abs(values - center) * np.exp(-0.25 * np.maximum(outside, 0.0) ** 2)).max())
        return center, unit if 0.0 < unit < math.inf else 1.0

    def _finite(self, points: HostArray) -> tuple[HostArray, HostArray]:
        """Points and values there, with a step aside where the function has a value at the next
        number only: log|u| at 0."""
        values = self.function(points)
        bad = ~np.isfinite(values).all(axis=0)
        if bad.any():
            step = 16.0 * EPS * np.maximum(abs(points[bad]), 1e-3 * self.shortest)
            points = points.copy()
            points[bad] += step
            values = values.copy()
            values[:, bad] = self.function(points[bad])
        return points, values

    def _refuse_not_finite(self, values: HostArray, points: HostArray) -> None:
        bad = ~np.isfinite(values).all(axis=0)
        if bad.any():
            i = int(np.argmax(bad.ravel()))
            column = values.reshape(len(values), -1)[:, i]
            raise NotFinite(float(points.ravel()[i]), float(column[~np.isfinite(column)][0]))

    def run(self, kinks: Sequence[float]) -> Leaves:
        longest = LENGTH * self.shortest / MARGIN
        checks = math.ceil(CHECKS * longest / self.shortest)
        bulk = _edges(*self.bulk, kinks, longest)
        batches = [_Batch(bulk[:-1], np.diff(bulk), checks)]
        self._measure(batches[0], finite=True)
        for side, (low, high) in enumerate(
            ((self.ends[0], self.bulk[0]), (self.bulk[1], self.ends[1]))
        ):
            edges = _edges(low, high, kinks, longest)
            tail = _Batch(edges[:-1], np.diff(edges), TAIL_CHECKS)
            if self._keep_finite(tail, towards_left=side == 0):
                batches.append(tail)
        samples = self._rough_moments(batches)
        self.samples = samples
        self.count = 0
        return Leaves.joined([leaf for b in batches for leaf in self._bisect(b, samples)]).sorted()

    def _keep_finite(self, tail: "_Batch", towards_left: bool) -> bool:
        """Measure the panels of a tail, and keep those up to the first that the function has no
        number for. Whether any are left."""
        try:
            self._measure(tail)
        except Exception:  # the function may raise anything: math.exp, for one, an OverflowError
            return False
        with np.errstate(invalid="ignore"):
            good = (tail.highest < HUGE) & (tail.lowest > -HUGE) & (tail.misfits < HUGE)
        if towards_left:
            keep = np.flip(np.logical_and.accumulate(np.flip(good)))
        else:
            keep = np.logical_and.accumulate(good)
        tail.keep(keep)
        return bool(keep.any())

    def _measure(self, batch: "_Batch", finite: bool = False) -> None:
        """Values at nodes, and their misfit at check points, in blocks that fit into memory."""
        nodes, _ = node_rule()
        checks, to_checks = _check_points(batch.checks)
        positions = np.concatenate([nodes, checks])
        block = max(1, (1 << 20) // (len(positions) * self.rows))
        parts = []
        for i in range(0, len(batch.starts), block):
            points = (
                batch.starts[i : i + block, None] + batch.lengths[i : i + block, None] * positions
            )
            points, raw = self._finite(points)
            self.count += math.ceil(points.size * math.sqrt(self.rows))
            if finite:
                self._refuse_not_finite(raw, points)
            with np.errstate(all="ignore"):
                values = (raw - self.center) / self.unit
                at_nodes, at_checks = values[..., :NODES], values[..., NODES:]
                middle = at_nodes[
                    ..., NODES // 2, None
                ]  # the rest is small, and so is its rounding
                fitted = (at_nodes - middle) @ to_checks.T
                differences = abs(fitted - (at_checks - middle))
                slopes = (at_nodes - middle) @ slope_matrix("numpy").T
                lengths = batch.lengths[i : i + block]
                steepness = abs(slopes).max(axis=(0, 2)) / lengths
                highest, lowest = values.max(axis=(0, 2)), values.min(axis=(0, 2))
                # rounding of the values, and of the points where the function is steep
                size = (abs(raw).max(axis=(0, 2)) + abs(self.center)) / self.unit
                place = abs(points).max(axis=1)
                noise = 16.0 * self.resolution * size
                noise += 32.0 * EPS * place * (highest - lowest) / lengths
            some = slice(0, batch.checks, max(1, batch.checks // TAIL_CHECKS))
            parts.append(
                (
                    at_nodes,
                    differences.max(axis=(0, 2)),
                    noise,
                    steepness,
                    highest,
                    lowest,
                    at_checks[..., some],
                    checks[some],
                )
            )
        batch.values = np.concatenate([p[0] for p in parts], axis=1)
        batch.misfits = np.concatenate([p[1] for p in parts])
        batch.noise = np.concatenate([p[2] for p in parts])
        batch.steepness = np.concatenate([p[3] for p in parts])
        batch.highest = np.concatenate([p[4] for p in parts])
        batch.lowest = np.concatenate([p[5] for p in parts])
        batch.some_values = np.concatenate([p[6] for p in parts], axis=1)
        batch.some_checks = parts[0][7]

    def _rough_moments(self, batches: "list[_Batch]") -> Samples:
        """Means and standard deviations from values at check points, to set the scale of errors."""
        points, values, widths = [], [], []
        for b in batches:
            u = b.starts[:, None] + b.lengths[:, None] * b.some_checks
            points.append(u.ravel())
            values.append(b.some_values.reshape(len(b.some_values), -1))
            widths.append(np.repeat(b.lengths / len(b.some_checks), len(b.some_checks)))
        u, width = np.concatenate(points), np.concatenate(widths)
        value = np.concatenate(values, axis=1)
        out_mean, out_std = np.zeros(len(self.mean)), np.zeros(len(self.mean))
        with np.errstate(all="ignore"):
            for i, (m, s, row) in enumerate(zip(self.mean, self.std, self.row, strict=True)):
                z = (u - m) / s
                half = np.exp(-0.25 * z * z)  # a value alone may overflow when it is squared
                weight = width / (width @ (half * half))
                out_mean[i] = weight @ (half * (half * value[row]))
                out_std[i] = math.sqrt(weight @ (half * (value[row] - out_mean[i])) ** 2)
        good = np.isfinite(out_std)
        return Samples(
            self.mean[good],
            self.std[good],
            self.row[good],
            out_mean[good],
            np.maximum(out_std[good], 1e-140),
        )

    def _bisect(self, batch: "_Batch", samples: Samples) -> list[Leaves]:
        leaves = []
        while len(batch.starts):
            value_loss, slope_loss = self._losses(batch, samples)
            poor = value_loss > TOLERANCE
            if batch.depth < DEEPEST_FOR_SLOPES:
                poor |= slope_loss > SLOPE_TOLERANCE
            place = np.maximum(abs(batch.starts), abs(batch.starts + batch.lengths))
            cut = poor & (batch.lengths > 256.0 * EPS * place)
            if batch.depth == DEEPEST or self.count > MOST_VALUES:
                cut[:] = False
            leaves.append(batch.leaves(~cut))
            batch = batch.halves(cut)
            if len(batch.starts):
                self._measure(batch)
                with np.errstate(all="ignore"):
                    # a pole: the misfit counts as large, and the panel goes on being cut
                    batch.misfits = np.nan_to_num(batch.misfits, nan=HUGE, posinf=HUGE)
        return leaves

    def _losses(self, batch: "_Batch", samples: Samples) -> tuple[HostArray, HostArray]:
        """The largest part that a misfit has in mean or std, and in E s'^2, of any sample."""
        if not len(samples.mean):
            return np.zeros(len(batch.starts)), np.zeros(len(batch.starts))
        m, s = samples.mean[:, None], samples.std[:, None]
        out_mean, out_std = samples.out_mean[:, None], samples.out_std[:, None]
        nearest = np.clip(m, batch.starts, batch.starts + batch.lengths)
        density = np.exp(-0.5 * ((nearest - m) / s) ** 2) / (s * math.sqrt(2.0 * math.pi))
        misfit = np.maximum(batch.misfits - batch.noise, 0.0)
        with np.errstate(all="ignore"):
            mass = density * batch.lengths
            farthest = np.maximum(batch.highest - out_mean, out_mean - batch.lowest)
            relative = misfit / out_std
            value = mass * relative * (1.0 + farthest / out_std)
            slope = 4.0 * relative / batch.lengths * s
            steepness = 2.0 * batch.steepness / out_std * s
            slopes = mass * slope * (steepness + slope)
        return np.nan_to_num(value.max(axis=0)), np.nan_to_num(slopes.max(axis=0))

    def trimmed(self, leaves: Leaves) -> Leaves:
        """Without the panels at both ends that contribute nothing for any sample."""
        m, s = self.samples.mean[:, None], self.samples.std[:, None]
        out_mean, out_std = self.samples.out_mean[:, None], self.samples.out_std[:, None]
        ends = leaves.starts + leaves.lengths
        nearest = np.clip(m, leaves.starts, ends)
        z = (nearest - m) / s
        with np.errstate(all="ignore"):
            high = (leaves.values.max(axis=(0, 2)) + leaves.misfits - out_mean) / out_std
            low = (out_mean - leaves.values.min(axis=(0, 2)) + leaves.misfits) / out_std
            size = np.exp(-0.25 * z * z) * np.maximum(high, low)
            part = (size * size * leaves.lengths / s).max(axis=0, initial=0.0)
        # all numbers but 0 have a deviation from the mean, so that the tails of a constant go, too
        inside = (leaves.starts < self.bulk[1]) & (ends > self.bulk[0])
        counts = np.flatnonzero((part > TRIVIAL) | inside | ~np.isfinite(part))
        keep = np.zeros(len(leaves.starts), bool)
        keep[counts[0] : counts[-1] + 1] = True
        return leaves.sorted(keep)

    def _jumps(self, leaves: Leaves, slopes: HostArray) -> HostArray:
        """The edges between panels where the polynomials of both sides do not meet, if the function
        jumps there indeed."""
        ends = np.polynomial.legendre.legvander(np.array([-1.0, 1.0]), NODES - 1) @ _to_legendre()
        middle = leaves.values[..., NODES // 2, None]
        at_ends = middle + (leaves.values - middle) @ ends.T  # (rows, panels, 2)
        gaps = abs(at_ends[:, 1:, 0] - at_ends[:, :-1, 1]).max(axis=0)
        size = abs(leaves.values).max(axis=(0, 2)) + abs(self.center) / self.unit
        places = abs(leaves.starts) + leaves.lengths
        rounding = 64.0 * self.resolution * size + 1024.0 * EPS * places * slopes
        tolerance = 16.0 * leaves.misfits + rounding
        seen = np.flatnonzero(gaps > tolerance[1:] + tolerance[:-1])
        half = 0.5 * np.minimum(leaves.lengths[:-1], leaves.lengths[1:])[seen]
        edges = leaves.starts[1:][seen]
        return edges[self._difference_across(edges, half) > 0.25 * gaps[seen]]

    def _difference_across(self, places: HostArray, half: HostArray) -> HostArray:
        """How much the function changes between two points near each place that are as close
        together as float64 allows: bisection, into the half with the larger change."""
        left, right = places - half, places + half
        if not len(places):
            return np.empty(0)
        at_left, at_right = self.function(left), self.function(right)  # (rows, places)
        for _ in range(64):
            middle = 0.5 * (left + right)
            value = self.function(middle)
            go_left = abs(value - at_left).max(axis=0) > abs(at_right - value).max(axis=0)
            wide = right - left > 4.0 * EPS * abs(middle)
            go_right = ~go_left & wide
            go_left &= wide
            right, at_right = np.where(go_left, middle, right), np.where(go_left, value, at_right)
            left, at_left = np.where(go_right, middle, left), np.where(go_right, value, at_left)
        difference: HostArray = abs(at_right - at_left).max(axis=0) / self.unit
        return difference

    def panels(self, leaves: Leaves, cuts: HostArray, cut_misfits: HostArray) -> Panels:
        nodes, weights = node_rule()
        slopes = _steepness(leaves.values, leaves.lengths)
        slope_misfit = _slope_misfits(leaves.misfits, slopes, leaves.lengths)
        points = leaves.starts[:, None] + leaves.lengths[:, None] * nodes
        points, _ = self._finite(points)
        return Panels(
            nodes=points.ravel(),
            weights=(leaves.lengths[:, None] * weights / math.sqrt(2.0 * math.pi)).ravel(),
            starts=leaves.starts,
            lengths=leaves.lengths,
            values=leaves.values.reshape(len(leaves.values), -1),
            misfit=np.repeat(leaves.misfits, NODES),
            slope_misfit=np.repeat(slope_misfit, NODES),
            cuts=cuts,
            cut_misfits=cut_misfits,
            jumps=self._jumps(leaves, slopes),
            center=self.center,
            unit=self.unit,
            shortest_std=self.shortest / MARGIN * (1.0 - 1e-9),
        )


class _Batch:
    """Panels after the same number of bisections, with what is known of each."""

    values: HostArray  # (rows, panels, nodes)
    misfits: HostArray  # (panels,), as are the following
    noise: HostArray
    steepness: HostArray
    highest: HostArray
    lowest: HostArray
    some_values: HostArray  # (rows, panels, some checks)
    some_checks: HostArray

    def __init__(self, starts: HostArray, lengths: HostArray, checks: int, depth: int = 0):
        self.starts = starts
        self.lengths = lengths
        self.checks = checks
        self.depth = depth

    def keep(self, which: HostArray) -> None:
        for name in ("starts", "lengths", "misfits", "noise", "steepness", "highest", "lowest"):
            setattr(self, name, getattr(self, name)[which])
        self.values = self.values[:, which]
        self.some_values = self.some_values[:, which]

    def leaves(self, which: HostArray) -> Leaves:
        return Leaves(
            self.starts[which],
            self.lengths[which],
            np.full(int(which.sum()), self.depth),
            self.values[:, which],
            self.misfits[which],
        )

    def halves(self, which: HostArray) -> "_Batch":
        half = 0.5 * self.lengths[which]
        starts = self.starts[which]
        return _Batch(
            np.concatenate([starts, starts + half]),
            np.concatenate([half, half]),
            max(FEWEST_CHECKS, self.checks // 2),
            self.depth + 1,
        )


def _edges(low: float, high: float, kinks: Sequence[float], longest: float) -> HostArray:
    """Equal panels between any two kinks, none of them too long."""
    breaks = np.unique([low, *(k for k in kinks if low < k < high), high])
    counts = np.maximum(1, np.ceil(np.diff(breaks) / longest).astype(int))
    pieces = [
        np.linspace(a, b, n, endpoint=False)
        for a, b, n in zip(breaks[:-1], breaks[1:], counts, strict=True)
    ]
    return np.concatenate([*pieces, [high]])


def _representatives(
    mean: HostArray, std: HostArray, rows: int
) -> tuple[HostArray, HostArray, HostArray]:
    """A few Gaussians that stand for all: every element if each has values of its own, or else
    some of them, and the corners of their range with a margin."""
    if rows > 1:
        return (
            np.concatenate([mean, mean]),
            np.concatenate([std, MARGIN * std]),
            np.tile(np.arange(rows), 2),
        )
    some = np.unique(np.linspace(0, len(mean) - 1, 16).astype(int))
    by_mean, by_std = np.argsort(mean)[some], np.argsort(std)[some]
    chosen = np.unique(np.concatenate([by_mean, by_std]))
    short, long = std.min() / MARGIN, std.max() * MARGIN
    corners = [(m, s) for m in {mean.min(), mean.max()} for s in (short, long)]
    return (
        np.concatenate([mean[chosen], [m for m, _ in corners]]),
        np.concatenate([std[chosen], [s for _, s in corners]]),
        np.zeros(len(chosen) + len(corners), int),
    )
