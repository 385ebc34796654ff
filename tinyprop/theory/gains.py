"""The mean-square gain of the gradient, E |J|_F^2 / n, in layers of random weights, for each
normaliser.

Layers are square, of width n, with Gaussian weights, and J is the Jacobian of one, or of a whole
network. A normaliser that removes the mean which the activation s makes has the gain chi = E s'^2 /
Var s in the limit of large layers (and batches): see `Design`.

This limit is the recursion of wide.py. What is here is not in it: finite batches and groups, whose
values are points on a sphere, exactly; and closed forms of the recursion for residual blocks."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..engine.arrays import HostArray
from ..engine.backward import grad
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, as_activation
from ..moments.quadrature import gauss_legendre
from ..nn.normprop import standard_moments
from .pointwise import Pointwise
from .wide import Wide

PANELS = 6
NODES = 16
SHORTER_PANELS = 10  # each a quarter of the one before, next to a kink


def norm_gain(
    n: int, activation: AnyActivation = "relu", group: int | None = None, center: bool = True
) -> float:
    """A normaliser of samples before the activation, for an input of the mean square E s^2: RMSNorm
    without `center`, LayerNorm with it, GroupNorm in groups of so many of the n units. (LayerNorm
    behind the activation has chi.)

    The values y of a group are uniform on the sphere of mean square 1 in k dimensions, k their
    number or, without their mean, one fewer. Let D = diag s'(y), and P remove the direction y, and
    the mean. With u = W x of length |u|, the gradient of x is that of y times sqrt(k) / |u| W^T P
    D, with E k / |u|^2 = k / (k - 2) / E s^2, and as P u = 0, W^T P has the gain (n - 1) / n. For
    ReLU it is (n - 1) / n (k - 1) / (k - 2).

    >>> [round(norm_gain(64, center=center), 12) for center in (False, True)]
    [1.000252016129, 1.000512295082]
    >>> round(norm_gain(32, group=8), 4)
    1.1625
    """
    values = group or n
    k = values - center
    on = _sphere(k, values, as_activation(activation))
    through = k * on.dd - on.ddyy  # E tr(D P D)
    return (n - 1) / (n * (k - 2)) * through / on.ss


def batch_norm_gain(batch: int, activation: AnyActivation = "relu") -> float:
    """BatchNorm before the activation, in the limit of wide layers, for every batch (Yang et al.,
    2019).

    The values y of a unit are uniform on a sphere. The gradients of the samples arrive with the
    covariance G = 1 - 11^T / batch, and P removes the mean and the direction y: E tr(D G D P), per
    sample and over the variance of s(y).

    >>> [round(batch_norm_gain(batch), 9) for batch in (8, 64)]
    [1.788189977, 1.493062938]
    """
    on = _sphere(batch - 1, batch, as_activation(activation))
    variance = on.ss - on.st
    return batch / ((batch - 3) * (batch - 1)) * _centered_trace(on, batch) / variance


def residual_gain(depth: int, alpha: float, g: float) -> float:
    """Blocks h + alpha f(h / beta), beta^2 the variance 1 + alpha^2 (number of blocks before) of h,
    in which the branch f has unit variance and the gain g.

    >>> factor = math.pi / (math.pi - 1)
    >>> round(residual_gain(10, 1.0, factor), 9), round(residual_gain(10, 1.0, 1.0), 9)
    (26.738860905, 11.0)
    """
    return math.prod(1.0 + g / (1.0 / alpha**2 + block) for block in range(depth))


def batch_norm_residual_gain(
    depth: int,
    batch: int | None = None,
    activation: AnyActivation = "relu",
    first: int = 0,
    square: float | None = None,
) -> float:
    """Blocks h + W s(BatchNorm(h)), E |W s|^2 = E |x|^2: in the limit of wide layers, and of large
    batches for None. The blocks before number `first` are left out. For a batch, W may have another
    variance, `square` / n.

    Beside the branch, the gradient keeps its mean over the batch, which is not multiplied but leaks
    into the rest.

    >>> round(batch_norm_residual_gain(20), 9)
    42.932861813
    """
    if batch is None:
        m = standard_moments(activation)
        chi = m.jacobian_factor**2
        lost = m.mean**2 / (m.std**2 + m.mean**2)
        alpha = math.sqrt(1.0 - lost)
        return residual_gain(depth, alpha, chi) / residual_gain(first, alpha, chi)
    on = _sphere(batch - 1, batch, as_activation(activation))
    of_rest = _centered_trace(on, batch)
    of_mean = _leaking_trace(on, batch)
    if square is None:
        square = 1.0 / on.ss
    # the squared gradient: of its mean over the batch, and of the rest
    mean = 1.0
    rest = batch - 1.0
    for block in reversed(range(first, depth)):
        variance = 1.0 + block * square * (on.ss - on.st)
        gain = square * batch / ((batch - 3) * variance)
        rest += gain * (of_rest * rest / (batch - 1) + of_mean * mean)
    return (rest + mean) / batch


def tanh_residual(depth: int, alpha: float = 0.5, shape: str = "tanh") -> tuple[float, float]:
    """Mean square of h and gain of the gradient after blocks h + W relu(t(alpha h)), Var W = 2 / n,
    with t tanh (DyT) or erf (Derf), for inputs of unit variance.

    >>> [round(x, 6) for x in tanh_residual(12) + tanh_residual(12, shape="erf")]
    [4.460409, 5.065843, 5.463428, 6.710321]
    """
    h = Wide.at([])
    gain = 1.0
    for _ in range(depth):
        # t is odd: ReLU and weights of variance 2 / n leave its mean square as it is
        branch = h.scale(alpha).apply(shape).weighted(1.0)
        h = h.add(branch)
        gain *= h.gain
        h = h.restarted()
    return h.square, gain


class Expectations(NamedTuple):
    """Of products of s = s(y), t = s(z), d = s'(y) and e = s'(z), where y and z are two of the
    values that a norm leaves: points on a sphere."""

    ss: float
    st: float
    dd: float
    de: float
    ddyy: float
    dyez: float


def _centered_trace(on: Expectations, batch: int) -> float:
    """E tr(D G D P) for G and P of `batch_norm_gain`, from (D G D)_ij = s'(y_i) s'(y_j) G_ij."""
    through = (batch - 2) * on.dd + (on.dd + (batch - 1) * on.de) / batch  # E tr(D G D G)
    along_y = (batch - 1) / batch * (on.ddyy - on.dyez)  # E y^T D G D y / batch
    return through - along_y


def _leaking_trace(on: Expectations, batch: int) -> float:
    """E tr(D 11^T D P) / batch: what becomes of the mean of the gradients over the batch."""
    through = (1 - 1 / batch) * (on.dd - on.de)
    along_y = (on.ddyy + (batch - 1) * on.dyez) / batch
    return through - along_y


def _sphere(dimensions: int, values: int, activation: Activation) -> Expectations:
    """`_on_sphere`, which is kept while the activation stays the same."""
    return _on_sphere(dimensions, values, activation, Pointwise(activation, {}).key(0.0, 1.0))


@lru_cache(maxsize=256)
def _on_sphere(dimensions: int, values: int, activation: Activation, key: bytes) -> Expectations:
    """The expectations over two of `values` numbers whose mean square is 1, and which are uniform
    on that sphere. It has `dimensions`: as many as there are values or, if their mean is 0, one
    fewer.

    y and z are the coordinates of a point along two directions. In polar coordinates (sin r,
    angle) of the plane of these, the density is sin(r) cos(r)^(dimensions - 3)."""
    if dimensions <= 2:
        got = f"the gain behind a norm of {values} values"
        rule = f"the mean square is finite in > 2 dimensions; they have {dimensions}"
        raise ValueError(explain(got, rule, "a norm of 8 values"))
    radius = math.sqrt(dimensions)
    between = math.acos(0.0 if dimensions == values else -1.0 / dimensions)  # y and z
    kinks = np.unique([0.0, *activation.kinks])
    last = min(0.5 * math.pi, 12.0 / radius)
    r, r_weights = _panels(_circles(kinks, radius, between, last))
    angle, angle_weights = _panels(_arcs(r, kinks, radius, between))
    density = r_weights * np.sin(r) * np.cos(r) ** (dimensions - 3)
    weight = density[:, None] * angle_weights

    def at_angle(start: float) -> tuple[HostArray, HostArray, HostArray]:
        """A value, its activation, and the slope."""
        at = Tensor(radius * np.sin(r)[:, None] * np.cos(angle - start), requires_grad=True)
        value = activation(at)
        (slope,) = grad(value.sum(), at)
        return at.data, value.data, slope.data

    def mean(product: HostArray) -> float:
        return float((weight * product).sum() / weight.sum())

    y, s, d = at_angle(0.0)
    z, t, e = at_angle(between)
    return Expectations(
        ss=mean(s * s),
        st=mean(s * t),
        dd=mean(d * d),
        de=mean(d * e),
        ddyy=mean((d * y) ** 2),
        dyez=mean(d * y * e * z),
    )


def _arcs(r: HostArray, kinks: HostArray, radius: float, between: float) -> HostArray:
    """Edges of panels on each circle (r, edges): the angles at which y or z is at a kink, and
    PANELS - 1 equal parts between two of them."""
    turns = np.arccos(np.clip(kinks / (radius * np.sin(r[:, None])), -1.0, 1.0))  # (r, kinks)
    crossings = [start + sign * turns for start in (0.0, between) for sign in (-1.0, 1.0)]
    edges = np.sort(np.mod(np.concatenate(crossings, axis=1), 2.0 * math.pi), axis=1)
    edges = np.concatenate([edges, edges[:, :1] + 2.0 * math.pi], axis=1)
    parts = np.linspace(0.0, 1.0, PANELS)[:-1]
    finer = edges[:, :-1, None] + np.diff(edges)[:, :, None] * parts  # (r, arcs, parts)
    return np.concatenate([finer.reshape(len(r), -1), edges[:, -1:]], axis=1)


def _circles(kinks: HostArray, radius: float, between: float, last: float) -> HostArray:
    """Edges of panels for the radii r, between which the integral over a circle is smooth.

    A circle that just reaches a kink changes it like a square root, hence shorter and shorter
    panels from there on. And it bends at the circle on which y is at one kink and z at another."""
    kinks = kinks[kinks != 0.0]
    y, z = np.meshgrid(kinks, kinks)
    corners = np.sqrt(y * y + z * z - 2.0 * y * z * math.cos(between)) / math.sin(between)
    edges = [
        np.linspace(0.0, last, PANELS + 1),
        np.arcsin(np.minimum(corners.ravel() / radius, 1.0)),
    ]
    for reached in np.arcsin(np.minimum(abs(kinks) / radius, 1.0)):
        edges.append(reached + last * 0.25 ** np.arange(SHORTER_PANELS))
        edges.append([reached])
    every = np.unique(np.concatenate(edges))
    return np.append(every[every < last], last)


def _panels(edges: HostArray) -> tuple[HostArray, HostArray]:
    """Gauss-Legendre nodes and weights between neighbouring edges: (..., edges) -> (..., nodes)."""
    nodes, weights = gauss_legendre(NODES)
    lengths = np.diff(edges)[..., None]
    places = edges[..., :-1, None] + lengths * nodes
    shape = (*edges.shape[:-1], -1)
    return places.reshape(shape), (lengths * weights).reshape(shape)
