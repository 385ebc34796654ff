"""The moments of any function of a Gaussian number: right, with an error that covers, or refused.

The function is called on the nodes of panels (panels.py), once for all elements. Means and standard
deviations enter through the Gaussian density at the nodes. The panels of a function are kept, and
serve as long as the error, which is computed anew each time, stays small."""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import functional as F
from ..engine.arrays import Array, HostArray, array_module, to_backend, to_numpy
from ..engine.errors import explain
from ..engine.tensor import Tensor
from .panels import (
    BULK,
    EPS,
    NODES,
    Cell,
    NotFinite,
    Panels,
    alike,
    checked_again,
    choose,
    slope_matrix,
)
from .pointwise import Pointwise
from .quadrature import FARTHEST, root

MOST_ERROR = 1e-6  # a larger error is a refusal
GOOD_ERROR = 1e-11  # panels that were made for other means or parameters serve up to this error
NARROW = 1e-8  # a std relative to the mean, below which float64 cannot resolve a function
DRIFT = 0.1  # how far values may move before the function counts as another one
MOST_CELLS = 64
NO_TAIL = 1e-30  # of the variance
LEAST_DECAY = 12.0  # the power of 1/z with which the integrand of a second moment falls

_kept: "weakref.WeakKeyDictionary[Any, dict[Any, Panels]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Found:
    """Mean, std, slope2 = E s'^2 and its root, slope, which is a number even where slope2 overflows
    or vanishes. `error` is that of the mean in standard deviations, and of the std relative to
    itself, `slope_error` that of slope2 relative to itself."""

    mean: Tensor
    std: Tensor
    slope2: Tensor
    slope: Tensor
    error: Tensor
    slope_error: Tensor


def of_function(
    function: Callable[..., Any],
    kinks: Sequence[float],
    mean: Tensor,
    std: Tensor,
    params: dict[str, Tensor],
    tensors_first: bool = True,
) -> Found:
    """The moments of function(U, **params) for U ~ N(mean, std^2), element by element.

    All tensors are float64 and of one shape, or, for a parameter, a single number. The results are
    differentiable in mean and std to any order, and in the parameters, given or captured by the
    function, where the function is; but not in the place of a jump, and in the place of a kink only
    mean and std are, to first order. `kinks` are places where the function or its slope jumps;
    others are found."""
    shape, count = mean.shape, mean.size
    columns = {
        name: p.reshape(count, 1) if p.size == count and count > 1 else p.reshape(())
        for name, p in params.items()
        if count
    }
    if not count:
        nothing = 0.0 * mean
        return Found(mean, std, nothing, nothing, nothing.detach(), nothing.detach())
    mean, std = mean.reshape(count), std.reshape(count)
    at, width = to_numpy(mean.data), to_numpy(std.data)
    _check_range(at, width)
    # narrower ones follow the line through the mean
    least = NARROW * np.where(width > 0.0, abs(at), 1.0 + abs(at))
    wide = np.maximum(width, least)
    pieces = alike(at, wide, wide > width)
    call = Pointwise(function, columns, mean.backend, tensors_first)
    call.check(float((at - BULK * wide).min()), float((at + BULK * wide).max()))
    places = np.concatenate([piece for _, piece in pieces])
    found = []
    for cell, piece in pieces:
        alone = len(piece) == count
        part = {k: p if alone or not p.ndim else p[piece] for k, p in columns.items()}
        own = Pointwise(function, part, mean.backend, tensors_first)
        own_mean, own_std = (mean, std) if alone else (mean[piece], std[piece])
        found.append(_of_cell(own, kinks, own_mean, own_std, wide[piece], cell))
    fields = []
    for name in Found.__annotations__:
        parts = [getattr(f, name) for f in found]
        joined = parts[0] if len(parts) == 1 else F.concatenate(parts)[np.argsort(places)]
        fields.append(joined.reshape(*shape))
    return Found(*fields)


def _check_range(mean: HostArray, std: HostArray) -> None:
    if not (np.isfinite(mean) & np.isfinite(std) & (std >= 0)).all():
        got = f"a smallest std of {std.min()}, means from {mean.min()} to {mean.max()}"
        raise ValueError(explain(got, "both are finite, and std >= 0", "std=abs(...)"))


def _of_cell(
    call: Pointwise, kinks: Sequence[float], mean: Tensor, std: Tensor, wide: HostArray, cell: Cell
) -> Found:
    """The moments for elements that share panels: known ones, or, where these no longer serve, new
    ones."""
    at = to_numpy(mean.data)
    narrow = cell[-1]
    # a narrow std stays a part of the wide one, which is a constant
    width = Tensor(to_backend(wide, mean.backend)) if narrow else std
    store = _panels_of(call.function)
    key = (*cell, call.backend, tuple(kinks))
    panels = store.get(key)
    if panels is not None and wide.min() >= panels.shortest_std:
        values = call(panels.nodes)
        panels = _same_function(panels, values, call)
        if panels is not None:
            moments = _Moments(panels, values, mean, width)
            allowed = max(GOOD_ERROR, 4.0 * panels.error)
            if moments.trouble is None and float(moments.error.max()) <= allowed:
                return _checked(moments.found(std, call if narrow else None), at, std)
    panels = _new_panels(call, kinks, at, wide)
    moments = _Moments(panels, call(panels.nodes), mean, width)
    _refuse(moments, panels, at, wide)
    if len(store) >= MOST_CELLS:
        store.clear()
    store[key] = replace(panels, error=float(moments.error.max()))
    return _checked(moments.found(std, call if narrow else None), at, std)


def _panels_of(function: Callable[..., Any]) -> dict[Any, Panels]:
    try:
        return _kept.setdefault(function, {})
    except TypeError:  # no weak reference, or no hash: nothing is kept
        return {}


def _same_function(panels: Panels, values: Tensor, call: Pointwise) -> Panels | None:
    """The panels as they are, checked again if the function has changed a little, or None if it is
    another one."""
    now = (to_numpy(values.data) - panels.center) / panels.unit
    now = np.broadcast_to(now, (1, len(panels.nodes))) if not now.ndim else np.atleast_2d(now)
    if now.shape != panels.values.shape or not (abs(now - panels.values) <= DRIFT).all():
        return None
    return panels if (now == panels.values).all() else checked_again(panels, call.on_host, now)


def _new_panels(call: Pointwise, kinks: Sequence[float], mean: HostArray, std: HostArray) -> Panels:
    rows = len(call.on_host(mean[:1]))
    try:
        return choose(call.on_host, mean, std, kinks, rows, call.resolution())
    except NotFinite as error:
        distance = abs(error.place - mean) / std
        i = int(distance.argmin())
        got = (
            f"a function that is {error.value} at u = {error.place:.6g}, {distance[i]:.1f} "
            f"standard deviations from the mean of N({mean[i]:.6g}, {std[i]:.6g}^2)"
        )
        rule = f"it must be finite within {BULK:.0f} standard deviations of each mean"
        hint = "clip u to where the function is defined, or a smaller std"
        raise ValueError(explain(got, rule, hint)) from None


class _Moments:
    """Sums over the nodes, and what is wrong with them."""

    def __init__(self, panels: Panels, values: Tensor, mean: Tensor, std: Tensor):
        self.panels = panels
        self.mean, self.std = mean, std
        backend = mean.backend
        nodes = to_backend(panels.nodes, backend)
        self.weights = to_backend(panels.weights, backend)
        if not values.ndim:
            values = F.broadcast_to(values, (len(panels.nodes),))
        rows = values.reshape(-1, len(panels.nodes))
        g = (rows - panels.center) * (1.0 / panels.unit)  # (rows, nodes)
        column = mean.reshape(-1, 1)
        self.z = (nodes - column) / std.reshape(-1, 1)  # (elements, nodes)
        self.density = F.exp(-0.5 * self.z * self.z)
        self.shift = self._sum(self.density, g)
        self.deviations = g - self.shift.reshape(-1, 1)
        squares = self.density * self.deviations * self.deviations
        self.variance = squares @ self.weights / std
        lengths = to_backend(np.repeat(panels.lengths, NODES), backend)
        panelled = g.reshape(-1, NODES)
        middle = panelled[:, NODES // 2].reshape(-1, 1)
        slopes = ((panelled - middle) @ slope_matrix(backend).T).reshape(*g.shape) / lengths
        self.slope2 = self._sum(self.density, slopes * slopes)
        with np.errstate(all="ignore"):
            self._find_errors(g.data, squares.data, self.density.data * slopes.data**2)

    def _sum(self, density: Tensor, values: Tensor) -> Tensor:
        """The expectation of one row of values for all elements, or of one for each."""
        if len(values) == 1:
            total = density @ (values.reshape(-1) * self.weights)
        else:
            total = (density * values) @ self.weights
        return total / self.std

    def _find_errors(self, g: Array, squares: Array, slope_squares: Array) -> None:
        panels = self.panels
        xp = array_module(g)
        std, variance = self.std.data, xp.maximum(self.variance.data, 1e-300)
        out_std = xp.sqrt(variance)
        density = self.density.data
        misfit = panels.misfit
        weight = to_backend(misfit, self.mean.backend) * self.weights
        deviation = (density * abs(self.deviations.data)) @ weight / std
        first = density @ weight / std
        second = (
            2.0 * deviation
            + density @ (to_backend(misfit**2, self.mean.backend) * self.weights) / std
        )
        slope_cuts = 0.0 * std
        if panels.cuts.size:
            cuts = to_backend(panels.cuts, self.mean.backend)
            z = (cuts - self.mean.data[:, None]) / std[:, None]
            at_cuts = xp.exp(-0.5 * z * z) / std[:, None]
            missing = at_cuts @ to_backend(panels.cut_misfits.T.copy(), self.mean.backend)
            first = first + missing[:, 0]
            second = second + missing[:, 1] + 2.0 * abs(self.shift.data) * missing[:, 0]
            slope_cuts = missing[:, 2]
        size = abs(self.shift.data + panels.center / panels.unit) / out_std
        constant = ~(variance > 1e-300)
        error = first / out_std + second / (2.0 * variance) + 8.0 * EPS * (2.0 + size)
        tail, slope_tail = self._tails(squares, slope_squares, variance)
        error = error + tail
        self.error = xp.where(constant, xp.where(first > 0.0, xp.inf, 0.0), error)
        slopes = density @ (to_backend(panels.slope_misfit, self.mean.backend) * self.weights) / std
        slope2 = self.slope2.data
        slopes = slopes + slope_cuts + slope_tail
        self.slope_error = slopes / xp.where(slope2 > 0.0, slope2, 1.0) + 1e-13
        self.jumps = xp.zeros(std.shape, bool)
        if panels.jumps.size:
            places = to_backend(panels.jumps, self.mean.backend)
            z = abs(places - self.mean.data[:, None]) / std[:, None]
            self.jumps = (z < FARTHEST).any(axis=1)

    def _tails(self, squares: Array, slope_squares: Array, variance: Array) -> tuple[Array, Array]:
        """What may lie beyond the last panels: of the variance, relative to it, and of E s'^2."""
        xp = array_module(squares)
        self.trouble: tuple[float, int] | None = None  # a place where too much does, and an element
        tail, slope_tail = 0.0 * variance, 0.0 * variance
        last, first = squares[:, -NODES:].max(axis=1), squares[:, :NODES].max(axis=1)
        for side, outermost in ((1.0, last), (-1.0, first)):
            matters = outermost > NO_TAIL * variance
            if not bool(matters.any()):
                continue
            z = side * self.z.data
            edge = z.max(axis=1)
            depth = edge[:, None] - z
            near, inner = depth < 1.0, (depth > 2.0) & (depth < 3.0)
            height = xp.where(near, squares, 0.0).max(axis=1)
            inner_height = xp.where(inner, squares, 0.0).max(axis=1)
            slope_height = xp.where(near, slope_squares, 0.0).max(axis=1)
            decay = (xp.log(inner_height) - xp.log(height)) / 2.0  # -d ln D / dz
            beyond = 2.0 * height / decay / variance
            bad = matters & ~((edge * decay >= LEAST_DECAY) & (beyond < 0.5 * MOST_ERROR))
            if bool(bad.any()):
                i = int(bad.argmax())
                place = float(self.mean.data[i] + side * edge[i] * self.std.data[i])
                self.trouble = (place, i)
            tail = tail + xp.where(matters, beyond, 0.0)
            slope_tail = slope_tail + xp.where(matters, 4.0 * slope_height / decay, 0.0)
        return tail, slope_tail

    def found(self, std: Tensor, narrow: Pointwise | None) -> Found:
        """The results, in the function's own units, for these standard deviations."""
        unit, center = self.panels.unit, self.panels.center
        out_mean = center + unit * self.shift
        out_std = unit * root(self.variance)
        xp = array_module(self.error)
        error = Tensor(self.error)
        slope = F.where(self.slope_error > MOST_ERROR, math.nan, unit * root(self.slope2))
        slope = F.where(self.jumps, math.inf, slope)
        with np.errstate(over="ignore"):
            slope2 = slope * slope
        lost = (
            xp.isfinite(slope.data)
            & (slope.data > 0.0)
            & ~((slope2.data > 1e-290) & (slope2.data < 1e290))
        )
        slope_error = Tensor(xp.where(self.jumps, 0.0, xp.where(lost, xp.inf, self.slope_error)))
        if narrow is None:
            return Found(out_mean, out_std, slope2, slope, error, slope_error)
        part = std / self.std
        values = narrow.on_host(to_numpy(self.mean.data))
        here = values[0] if len(values) == 1 else np.diagonal(values)
        shift = out_mean.detach() - to_backend(here, self.mean.backend)
        weights = self.density.data * self.weights
        deviations, z = self.deviations.data, self.z.data
        line = (weights * deviations * z).sum(axis=1) / (weights * z * z).sum(axis=1)
        bend = (weights * (deviations - line[:, None] * z) ** 2).sum(axis=1) / self.std.data
        size = xp.maximum(self.variance.data, 1e-300)
        off_line = xp.sqrt(bend / size) + abs(shift.data) / (unit * xp.sqrt(size))
        error = Tensor(xp.where(std.data > 0.0, self.error + off_line, 0.0))
        out_mean = out_mean - shift * (1.0 - part)
        return Found(out_mean, out_std * part, slope2, slope, error, slope_error)


def _refuse(moments: _Moments, panels: Panels, mean: HostArray, std: HostArray) -> None:
    if moments.trouble is not None:
        place, i = moments.trouble
        got = (
            f"a function whose square, times the density of N({mean[i]:.6g}, {std[i]:.6g}^2), "
            f"does not vanish: it is still large, or hardly falls, at u = {place:.6g}"
        )
        rule = "the second moment must be finite, and float64 must reach far enough to see it"
        raise ValueError(explain(got, rule, "a smaller std, or a function that grows more slowly"))
    error = to_numpy(moments.error)
    bad = ~(error <= MOST_ERROR)
    if not bad.any():
        return
    i = int(np.where(np.isnan(error), np.inf, error).argmax())
    z = (panels.nodes - mean[i]) / std[i]
    loss = panels.misfit * panels.weights * np.exp(-0.5 * z * z)
    place = panels.nodes[int(np.nanargmax(loss))]
    size = f"{error[i]:.1e}" if np.isfinite(error[i]) else "an unknown number of"
    got = (
        f"a function whose moments over N({mean[i]:.6g}, {std[i]:.6g}^2) are uncertain by "
        f"{size} standard deviations, most of it near u = {place:.6g}"
    )
    rule = f"the error must be below {MOST_ERROR}; that takes float64, no pole and no noise"
    hint = "look at the function near that u, or tp.moments.simulate"
    raise ValueError(explain(got, rule, hint))


def _checked(found: Found, mean: HostArray, std: Tensor) -> Found:
    """The same, if a narrow Gaussian has met a function that is a line along it."""
    bad = ~(to_numpy(found.error.data) <= MOST_ERROR)
    if not bad.any():
        return found
    i = int(bad.argmax())
    width = to_numpy(std.data)
    got = f"std = {width[i]:.3g} at mean = {mean[i]:.6g}, where the function is not a line"
    rule = f"below {NARROW} of the mean, float64 cannot resolve a function"
    raise ValueError(explain(got, rule, "lambda v: f(mean + v) with a mean of 0"))
