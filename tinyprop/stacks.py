"""Fully connected networks of each normaliser, and what is known of them in the limit of a large width."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import functional as F
from . import moments, nn
from .engine.arrays import HostArray
from .engine.backward import grad
from .engine.tensor import Tensor
from .nn.layers import ACTIVATIONS
from .theory import gains

GROUP = 8  # units in a group of GroupNorm
SQUASH = 0.5  # alpha of DyT and Derf
DEGREES = 60.0  # between two inputs

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
    """The part of a NormProp layer behind its weighted sum u: (s(u + beta) - c2) / c1."""

    def __init__(self, activation: str, beta: float):
        m = moments.gaussian(activation, beta)
        self.activation, self.beta, self.c1, self.c2 = activation, beta, m.std, m.mean

    def forward(self, u: Tensor) -> Tensor:
        return (ACTIVATIONS[self.activation](u + self.beta) - self.c2) / self.c1


@dataclass(frozen=True)
class Law:
    """A wide layer z -> N(W (s(z + beta) - shift)) of random weights of variance square / n, and N a normaliser.

    None stands for what LayerNorm and weight standardisation take from the data: the mean of s as shift, one over its
    variance as square.
    """

    function: Any
    square: float | None
    shift: float | None = 0.0
    beta: float = 0.0
    divide: str = ""  # by what N divides: "rms", "std" after the mean of the batch is removed, or nothing
    start: float = 1.0  # the mean square of the first z

    def layer(self, state: HostArray) -> tuple[HostArray, float]:
        """From the mean square of z and its mean products for pairs of inputs to those of the next z, before N, and
        the gain of the squared gradient on the way.
        """
        bends = {} if isinstance(self.function, str) else {"kinks": (0.0,)}
        std = math.sqrt(state[0])
        m = moments.gaussian(self.function, self.beta, std, **bends)
        products = [m.std**2]
        for rho in np.clip(state[1:] / state[0], -1.0, 1.0):
            products.append(moments.dual(self.function, rho, self.beta, std, **bends).covariance)
        left = 0.0 if self.shift is None else (m.mean - self.shift) ** 2
        square = 1.0 / m.std**2 if self.square is None else self.square
        return square * (np.array(products) + left), square * m.slope2

    def normalized(self, state: HostArray) -> tuple[HostArray, float]:
        """N, and what it divides the squared values by."""
        if self.divide == "std":
            state = state - state[1]
        return (state / state[0], state[0]) if self.divide else (state, 1.0)


@dataclass(frozen=True)
class Stack:
    """Fully connected layers, or residual blocks, of one width and one normaliser."""

    norm: str
    activation: str
    depth: int
    width: int
    batch: int
    residual: bool

    @property
    def layers(self) -> HostArray:
        """Their numbers: from 1, or from 0 with residual blocks, where 0 is the input."""
        return np.arange(0 if self.residual else 1, self.depth + 1)

    @property
    def scaled(self) -> bool:
        """Whether residual blocks divide by the standard deviation of their input that theory predicts."""
        return self.norm in ("ws", "normprop", "normprop-exact")

    @property
    def function(self) -> str:
        return "selu" if self.norm == "selu" else self.activation

    @cached_property
    def normprop(self) -> tuple[float, float]:
        """gamma and beta that a NormProp layer starts with."""
        mode = "exact" if self.norm == "normprop-exact" else "paper"
        layer = nn.NormPropLinear(1, 1, self.function, mode=mode)
        return layer.gamma.item(), layer.beta.item()

    def network(self) -> nn.Sequential:
        """Random weights; cut in front of each activation, or into an identity and residual blocks."""
        layers: list[nn.Module] = [nn.Identity()] if self.residual else []
        for i in range(self.depth):
            before = [BEFORE[self.norm](self.width)] if self.norm in BEFORE else []
            behind = [nn.LayerNorm(self.width)] if self.norm == "layer-after" else []
            activation: nn.Module = nn.Activation(self.function)
            if "normprop" in self.norm:
                activation = Canonical(self.function, self.normprop[1])
            elif self.norm in SQUASHES:  # without statistics, part of the activation
                activation = nn.Sequential(SQUASHES[self.norm][0](self.width, SQUASH), activation)
            if self.residual:
                branch = nn.Sequential(*before, activation, *behind, self.linear(self.function))
                beta = math.sqrt(self.states[i, 0]) if self.scaled else 1.0
                layers.append(nn.Residual(branch, beta=beta))
            elif i:
                layers.append(nn.Sequential(activation, *behind, self.linear(self.function), *before))
            else:
                layers.append(nn.Sequential(self.linear("identity"), *before))
        return nn.Sequential(*layers)

    def linear(self, source: str) -> nn.Module:
        """A square layer for inputs that come from this activation."""
        n = self.width
        layer = nn.Linear(n, n, bias=False)
        nn.init.kaiming_normal_(layer, "identity")
        if "normprop" in self.norm:
            return nn.init.kaiming_normal_(nn.NormPropLinear(n, n, "identity", gamma=self.normprop[0]), "identity")
        if self.norm == "orthogonal":
            return nn.init.orthogonal_(layer, nn.init.gain(source))
        if self.norm == "weight":
            return nn.WeightNorm(layer, 1.0)
        if self.norm == "ws":
            return nn.ScaledWS(layer, source)
        return layer if self.norm in ("glorot", "layer-after") else nn.init.kaiming_normal_(layer, source)

    @cached_property
    def law(self) -> Law:
        function, gamma, beta = self.function, 1.0, 0.0
        if "normprop" in self.norm:
            gamma, beta = self.normprop
        m = moments.gaussian(function, beta)
        he, canonical = 1.0 / (m.std**2 + m.mean**2), (gamma / m.std) ** 2
        if self.norm in SQUASHES:
            s, squash = ACTIVATIONS[function], SQUASHES[self.norm][1]
            return Law(lambda u: s(squash(SQUASH * u)), he)
        if self.norm in ("glorot", "weight"):
            return Law(function, 1.0)
        if self.norm == "layer-after":
            return Law(function, None, None)
        if self.norm == "ws":
            return Law(function, canonical, None)
        if "normprop" in self.norm:
            return Law(function, canonical, m.mean, beta, start=1.0 if self.residual else gamma**2)
        return Law(function, he, divide={"batch": "std"}.get(self.norm, "rms" if self.norm in BEFORE else ""))

    @cached_property
    def _theory(self) -> tuple[HostArray, HostArray]:
        law = self.law
        inside = replace(law, divide="rms") if self.scaled else law
        states, factors = [law.start * np.array([1.0, 0.0, math.cos(math.radians(DEGREES))])], []
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
        """For each layer, in the limit of a large width: the mean square of z, in front of the activation (or of h,
        between residual blocks), the mean product for unrelated inputs, and that for inputs at an angle of DEGREES.
        """
        return self._theory[0]

    @cached_property
    def factors(self) -> HostArray:
        """By how much the squared gradient grows from each layer to the one before, with what is known of finite sizes
        and batches.
        """
        known = {
            "batch": lambda: gains.batch_norm_gain(self.batch, self.function),
            "layer": lambda: gains.layer_norm_gain(self.width, self.function),
            "rms": lambda: gains.rms_norm_gain(self.width, self.function),
            "group": lambda: gains.group_norm_gain(self.width, GROUP, self.function),
        }
        limits = self._theory[1]
        if self.norm not in known:
            return limits
        gain = known[self.norm]()
        if self.residual:  # W is behind N, and independent of it
            return 1.0 + (limits - 1.0) * gain * self.width / (self.width - 1) / self.law.layer(np.ones(1))[1]
        return np.full(len(limits), gain)

    def predicted(self) -> dict[str, HostArray | None]:
        """The curves of theory, one for each instrument: in the limit of a large width, and none where a small batch or
        a small group matters in a way that is not known, nor for the singular values of residual networks.
        """
        square, unrelated, pair = self.states.T
        variance, growth = square - unrelated, np.append(np.cumprod(self.factors[::-1])[::-1], 1.0)
        if self.norm == "batch" and not self.residual:
            variance = variance * self.batch / (self.batch - 1)  # BatchNorm divides by the size of the batch
        elif self.norm == "batch":
            of = gains.batch_norm_residual_gain
            growth = np.array([of(self.depth, self.batch, self.function, i) for i in range(self.depth + 1)])
        coupled = self.norm in ("batch", "group")
        return {
            "signal": None if self.norm == "group" else np.sqrt(variance),
            "gradient": np.sqrt(growth),
            "spectrum": None if coupled or self.residual else self.largest(),
            "correlation": None if coupled else pair / square,
        }

    def largest(self) -> HostArray:
        """The largest singular value of the Jacobian of the layers so far, in the limit of a large width.

        W and D = diag s'(z) are asymptotically free, so the S-transforms of W W^T, which is 1 / (1 + m) for a Gaussian
        W and 1 for an orthogonal one, and of D^2 multiply. With psi(t) = E t d^2 / (1 - t d^2), that of D^2 is (1 + m)
        / m psi^-1(m). The square of the largest singular value is the minimum of (1 + m) / (m S(m)) over m > 0.
        """
        z = np.linspace(-9.0, 9.0, 3000)  # 0, where rectifiers have their kink, is between two of them
        weights = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
        below = -np.expm1(-np.geomspace(1e-5, 35.0, 400))  # of the largest t
        m = np.geomspace(1e-4, 1e4, 800)
        free = np.zeros_like(m) if self.norm == "orthogonal" else np.log1p(m)  # -log S of W W^T
        logs = [np.log1p(m) - np.log(m) + free + math.log(self.law.start)]
        done: dict[float, HostArray] = {}
        for square, factor in zip(self.states[:, 0], self.factors, strict=False):
            key = round(float(square), 9)
            if key not in done:
                u = Tensor(self.law.beta + math.sqrt(square) * z, requires_grad=True)
                function = self.law.function
                value = (ACTIVATIONS[function] if isinstance(function, str) else function)(u)
                d2 = grad(value.sum(), u)[0].data ** 2
                t = below / d2.max()
                psi = (weights * (t[:, None] * d2 / (1.0 - t[:, None] * d2))).sum(axis=1)
                inverse = np.interp(np.log(m), np.log(psi), np.log(t))
                done[key] = np.log(m / (1.0 + m)) - inverse - math.log(weights @ d2)
            logs.append(logs[-1] + done[key] + free + math.log(factor))
        return np.exp(0.5 * np.min(logs, axis=1))
