"""Fully connected networks of each normaliser, and what is known of them in the limit of a large
width."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from .. import functional as F
from .. import moments, nn
from ..engine.arrays import HostArray
from ..engine.backward import grad
from ..engine.errors import explain
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, as_activation, squashed
from ..moments.hermite import hermite
from ..nn.normprop import MIN_RELATIVE_C1
from . import gains

# deep networks ask for the same moments again and again
gaussian = lru_cache(maxsize=4096)(moments.gaussian)
GROUP = 8  # units in a group of GroupNorm
SQUASH = 0.5  # alpha of DyT and Derf
DEGREES = 60.0  # between two inputs
# and between others
COSINES = np.append(math.cos(math.radians(DEGREES)), np.linspace(-1.0, 1.0, 21))
TERMS = 100  # of Mehler's series, which leave less than 1e-4 of the variance
TRACY_WIDOM = -1.2065335745820  # the mean of their law for real matrices
LARGEST_SHIFT = 0.3  # relative, of the edge; beyond it the first order is not worth showing

NORMS = {
    "glorot": "no normaliser, weights of Glorot and Bengio (2010)",
    "he": "no normaliser, weights of He et al. (2015)",
    "orthogonal": "no normaliser, orthogonal weights of He's scale (Saxe et al., 2014)",
    "selu": "SELU, self-normalising (Klambauer et al., 2017)",
    "batch": "BatchNorm before the activation (Ioffe and Szegedy, 2015)",
    "layer": "LayerNorm before the activation (Ba et al., 2016)",
    "layer-after": "LayerNorm behind the activation",
    "rms": "RMSNorm before the activation (Zhang and Sennrich, 2019)",
    "group": f"GroupNorm before the activation, {GROUP} units to a group (Wu and He, 2018)",
    "weight": "WeightNorm, rows of length 1 (Salimans and Kingma, 2016)",
    "ws": "scaled weight standardisation (Brock et al., 2021)",
    "dyt": "dynamic tanh before the activation (Zhu et al., 2025)",
    "derf": "the same with erf (Chen et al., 2025)",
    "normprop": "NormProp as in the paper: gamma = 1/1.21 for ReLU (Arpit et al., 2016)",
    "normprop-exact": "NormProp in exact mode: gamma = 1, and beta = 1 for rectifiers",
}
INSTRUMENTS = {
    "signal": "Signal: standard deviation of a unit over inputs",
    "gradient": "Gradient, relative to the last layer",
    "spectrum": "Largest singular value of the Jacobian so far",
    "correlation": f"Correlation of two inputs at an angle of {DEGREES:.0f}\N{DEGREE SIGN}",
}
BEFORE: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm,
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "group": lambda n: nn.GroupNorm(n // GROUP, n),
}
SQUASHES: dict[str, tuple[Callable[..., nn.Module], Callable[..., Tensor]]] = {
    "dyt": (nn.DyT, F.tanh),
    "derf": (nn.Derf, F.erf),
}


class Canonical(nn.Module):
    """The part of a layer behind its weighted sum u: (s(u + beta) - c2) / c1, where only NormProp
    has c1 and c2.

    A normaliser's beta is added here, so that u has no mean.
    """

    def __init__(self, activation: Activation, beta: float, c1: float, c2: float):
        self.activation, self.beta, self.c1, self.c2 = activation, beta, c1, c2

    def forward(self, u: Tensor) -> Tensor:
        return (self.activation(u + self.beta) - self.c2) / self.c1


@dataclass(frozen=True)
class Law:
    """A wide layer z -> gamma N(W (s(z + beta) - shift)), W random weights of variance square / n,
    N a normaliser.

    None stands for what LayerNorm and weight standardisation take from the data: the mean of s as
    shift, one over its variance as square."""

    function: Activation
    square: float | None
    shift: float | None = 0.0
    beta: float = 0.0
    # by what N divides: "rms", "std" after the mean of the batch is removed, or nothing
    divide: str = ""
    gamma: float = 1.0  # behind N; of layers without statistics, it is a part of square
    start: float = 1.0  # the mean square of the first z

    def layer(self, state: HostArray) -> tuple[HostArray, float]:
        """From the mean square of z and its mean products for pairs of inputs to those of the next
        z, before N, and the gain of the squared gradient on the way."""
        std = math.sqrt(state[0])
        m = gaussian(self.function, self.beta, std)
        products = self.covariances(np.clip(state[1:] / state[0], -1.0, 1.0), std, m.std**2)
        left = 0.0 if self.shift is None else (m.mean - self.shift) ** 2
        square = 1.0 / m.std**2 if self.square is None else self.square
        return square * (np.append(m.std**2, products) + left), square * m.slope2

    def covariances(self, rho: HostArray, std: float, variance: float) -> HostArray:
        """Cov(s(U), s(V)): a closed form, or Mehler's series, whose last two terms get what is
        left."""
        if self.function.dual is not None:
            one = np.full_like(rho, self.beta), np.full_like(rho, std)
            return moments.dual(self.function, rho, *one).covariance
        squares = (
            hermite(
                lambda u: self.function(Tensor(u)).data, np.array(self.beta), np.array(std), TERMS
            )
            ** 2
        )
        squares[-2:] += max(variance - squares.sum(), 0.0) / 2.0
        return rho * np.polynomial.polynomial.polyval(rho, squares)

    def normalized(self, state: HostArray) -> tuple[HostArray, float]:
        """gamma N, and what it divides the squared values by."""
        if not self.divide:
            return state, 1.0
        if self.divide == "std":
            state = state - state[1]
        square = state[0] / self.gamma**2
        return state / square, square


@dataclass(frozen=True)
class Stack:
    """Fully connected layers, or residual blocks, of one width and one normaliser."""

    norm: str
    activation: AnyActivation
    depth: int
    width: int
    batch: int
    residual: bool
    # scale and shift of a normaliser that has them: one number for all units, or None
    gamma: float | None = None
    beta: float | None = None  # for what its layers start with

    def __post_init__(self) -> None:
        known = "normprop" in self.norm or self.norm in BEFORE
        if (self.gamma is not None and not known) or (
            self.beta is not None and (not known or self.norm == "rms")
        ):
            got, rule = (
                f"{self.norm} with gamma={self.gamma}, beta={self.beta}",
                "it has no such parameter",
            )
            raise ValueError(explain(got, rule, "gamma=None, beta=None"))

    @property
    def layers(self) -> HostArray:
        """Their numbers: from 1, or from 0 with residual blocks, where 0 is the input."""
        return np.arange(0 if self.residual else 1, self.depth + 1)

    @property
    def scaled(self) -> bool:
        """Whether residual blocks divide by the standard deviation of their input that theory
        predicts."""
        return self.norm in ("ws", "normprop", "normprop-exact")

    @cached_property
    def function(self) -> Activation:
        return as_activation("selu" if self.norm == "selu" else self.activation)

    @cached_property
    def affine(self) -> tuple[float, float]:
        """gamma and beta."""
        gamma, beta = 1.0, 0.0
        if "normprop" in self.norm:
            layer = nn.NormPropLinear(
                1, 1, self.function, mode="exact" if self.norm == "normprop-exact" else "paper"
            )
            gamma, beta = layer.gamma.item(), layer.beta.item()
        return gamma if self.gamma is None else self.gamma, beta if self.beta is None else self.beta

    @cached_property
    def constants(self) -> tuple[float, float]:
        """c1 and c2; in a residual block of NormProp gamma is behind the activation."""
        if "normprop" not in self.norm:
            return 1.0, 0.0
        if self.norm == "normprop":
            m = gaussian(self.function)
            return m.std, m.mean
        std = 1.0 if self.residual else self.affine[0]
        m = gaussian(self.function, self.affine[1], std)
        return max(m.std, MIN_RELATIVE_C1 * gaussian(self.function, 0.0, std).std), m.mean

    def network(self) -> nn.Sequential:
        """Random weights; cut in front of each activation, or into an identity and residual
        blocks."""
        layers: list[nn.Module] = [nn.Identity()] if self.residual else []
        for i in range(self.depth):
            before: list[Any] = [BEFORE[self.norm](self.width)] if self.norm in BEFORE else []
            for normalizer in before:
                normalizer.weight.data[...] = self.affine[0]
            behind = [nn.LayerNorm(self.width)] if self.norm == "layer-after" else []
            activation: nn.Module = Canonical(self.function, self.affine[1], *self.constants)
            if self.norm in SQUASHES:  # without statistics, part of the activation
                activation = nn.Sequential(SQUASHES[self.norm][0](self.width, SQUASH), activation)
            if self.residual:
                branch = nn.Sequential(*before, activation, *behind, self.linear(self.function))
                beta = math.sqrt(self.states[i, 0]) if self.scaled else 1.0
                layers.append(nn.Residual(branch, beta=beta))
            elif i:
                layers.append(
                    nn.Sequential(activation, *behind, self.linear(self.function), *before)
                )
            else:
                layers.append(nn.Sequential(self.linear("identity"), *before))
        return nn.Sequential(*layers)

    def linear(self, source: AnyActivation) -> nn.Module:
        """A square layer for inputs that come from this activation."""
        n = self.width
        layer = nn.Linear(n, n, bias=False)
        nn.init.kaiming_normal_(layer, "identity")
        if "normprop" in self.norm:
            return nn.init.kaiming_normal_(
                nn.NormPropLinear(n, n, "identity", gamma=self.affine[0]), "identity"
            )
        if self.norm == "orthogonal":
            return nn.init.orthogonal_(layer, nn.init.gain(source))
        if self.norm == "weight":
            return nn.WeightNorm(layer, 1.0)
        if self.norm == "ws":
            return nn.ScaledWS(layer, source)
        return (
            layer
            if self.norm in ("glorot", "layer-after")
            else nn.init.kaiming_normal_(layer, source)
        )

    @cached_property
    def law(self) -> Law:
        function, (gamma, beta) = self.function, self.affine
        m = gaussian(function)
        he, start = 1.0 / (m.std**2 + m.mean**2), 1.0 if self.residual else gamma**2
        if self.norm in SQUASHES:
            return Law(squashed(function, SQUASHES[self.norm][1], SQUASH), he)
        if self.norm in ("glorot", "weight"):
            return Law(function, 1.0)
        if self.norm == "layer-after":
            return Law(function, None, None)
        if self.norm == "ws":
            return Law(function, 1.0 / m.std**2, None)
        if "normprop" in self.norm:
            c1, c2 = self.constants
            return Law(function, (gamma / c1) ** 2, c2, beta, start=start)
        divide = {"batch": "std"}.get(self.norm, "rms" if self.norm in BEFORE else "")
        return Law(function, he, beta=beta, divide=divide, start=start, gamma=gamma)

    @cached_property
    def _theory(self) -> tuple[HostArray, HostArray]:
        law = self.law
        inside = replace(law, divide="rms") if self.scaled else law
        states, factors = [law.start * np.append([1.0, 0.0], COSINES)], []
        for _ in range(self.depth - (not self.residual)):
            if self.residual:
                arriving, square = inside.normalized(states[-1])
                added, gain = law.layer(arriving)
                states.append(states[-1] + added)
                factors.append(1.0 + gain / square)
            else:
                after, gain = law.layer(states[-1])
                state, square = law.normalized(after)
                states.append(state)
                factors.append(gain / square)
        return np.array(states), np.array(factors)

    @property
    def states(self) -> HostArray:
        """For each layer, in the limit of a large width: the mean square of z, in front of the
        activation (or of h, between residual blocks), the mean product for unrelated inputs, and
        those for inputs with COSINES between them."""
        return self._theory[0]

    @cached_property
    def factors(self) -> HostArray:
        """By how much the squared gradient grows from each layer to the one before, with what is
        known of finite sizes and batches: for gamma = 1 and beta = 0."""
        limits = self._theory[1]
        if self.norm not in BEFORE or self.affine != (1.0, 0.0):
            return limits
        if self.norm == "batch":
            gain = gains.batch_norm_gain(self.batch, self.function)
        else:
            group = GROUP if self.norm == "group" else self.width
            gain = gains.norm_gain(self.width, self.function, group, center=self.norm != "rms")
        if self.residual:  # W is behind N, and independent of it
            return (
                1.0
                + (limits - 1.0)
                * gain
                * self.width
                / (self.width - 1)
                / self.law.layer(np.ones(1))[1]
            )
        return np.full(len(limits), gain)

    def predicted(self, instrument: str) -> HostArray | None:
        """The curve of theory for one instrument: in the limit of a large width, and singular
        values to the next order. There is none where a small batch or a small group matters in a
        way that is not known, as for the singular values behind BatchNorm, whose samples share one
        Jacobian, nor for those of residual networks."""
        square, unrelated, pair = self.states.T[:3]
        coupled = self.norm in ("batch", "group")
        if instrument == "spectrum":
            return None if coupled or self.residual else self.largest()
        if instrument == "correlation":
            return None if coupled else pair / square
        if instrument == "signal":  # BatchNorm divides by the size of the batch, not by one less
            size = (
                self.batch / (self.batch - 1) if self.norm == "batch" and not self.residual else 1.0
            )
            return None if self.norm == "group" else np.sqrt((square - unrelated) * size)
        growth = np.append(np.cumprod(self.factors[::-1])[::-1], 1.0)
        if self.norm == "batch" and self.residual and self.affine == (1.0, 0.0):
            of = gains.batch_norm_residual_gain
            growth = np.array(
                [of(self.depth, self.batch, self.function, i) for i in range(self.depth + 1)]
            )
        return np.sqrt(growth)

    def largest(self) -> HostArray:
        """The largest singular value of the Jacobian of the layers so far.

        W and D = diag s'(z) are asymptotically free, so the S-transforms of W W^T, which is 1 / (1
        + m) for a Gaussian W and 1 for an orthogonal one, and of D^2 multiply. With psi(t) = E t
        d^2 / (1 - t d^2), that of D^2 is (1 + m) / m psi^-1(m). In the limit of a large width n,
        the square of the largest singular value is the minimum of z(m) = (1 + m) / (m S(m)) over m
        > 0. There the density of the squares ends as (A / pi) sqrt(z - x), with A = sqrt(2 / z'') /
        z, and the last of n values is, on average, TRACY_WIDOM (n A)^(-2/3) away from its end: with
        f'' the second derivative of log z, a fraction of TRACY_WIDOM (f'' / (2 n^2))^(1/3)."""
        # 0, where rectifiers have their kink, is between two of them
        z = np.linspace(-9.0, 9.0, 1000)
        weights = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
        below = -np.expm1(-np.geomspace(1e-5, 35.0, 400))  # of the largest t
        m = np.geomspace(1e-4, 1e4, 800)
        free = np.zeros_like(m) if self.norm == "orthogonal" else np.log1p(m)  # -log S of W W^T
        logs = [np.log1p(m) - np.log(m) + free + math.log(self.law.start)]
        done: dict[bytes, HostArray] = {}
        for square, factor in zip(self.states[:, 0], self.factors, strict=False):
            u = Tensor(self.law.beta + math.sqrt(square) * z, requires_grad=True)
            d2 = grad(self.law.function(u).sum(), u)[0].data ** 2
            key = d2.tobytes()
            if key not in done:
                slopes, where = np.unique(d2, return_inverse=True)  # rectifiers have only two
                t = below / slopes[-1]
                td2 = np.outer(t, slopes)
                psi = td2 / (1.0 - td2) @ np.bincount(where, weights)
                inverse = np.interp(np.log(m), np.log(psi), np.log(t))
                done[key] = np.log(m / (1.0 + m)) - inverse - math.log(weights @ d2)
            logs.append(logs[-1] + done[key] + free + math.log(factor))
        every = np.array(logs)
        best = every.argmin(axis=1)
        near = np.clip(best, 10, len(m) - 11)[:, None] + np.arange(-10, 11)
        # steps of log m are equal, so one grid does for all
        nearby = np.take_along_axis(every, near, axis=1).T
        # m^2 f'' / 2, as f' = 0; none at an end, of an atom
        bend = np.polyfit(np.log(m[:21]), nearby, 2)[0]
        shift = TRACY_WIDOM * np.cbrt(np.maximum(bend, 0.0) / (m[best] * self.width) ** 2)
        shift[abs(shift) > LARGEST_SHIFT] = np.nan  # the layers are too narrow for a first order
        return np.exp(0.5 * (every.min(axis=1) + np.log1p(shift)))
