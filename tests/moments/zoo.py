"""Functions that a user might bring, and an integration of their moments that is independent of
the package: it is told where each function bends, and uses tanh-sinh quadrature between these
places."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

SETTINGS = ((0.0, 1.0), (0.7, 0.4), (-1.3, 2.5))


@dataclass(frozen=True)
class Entry:
    """A function, the places where it is not smooth, and a stable form for the reference."""

    function: Callable[..., Any]
    breaks: Any = ()
    exact: Callable[..., Any] | None = None
    settings: Any = SETTINGS
    piece: float = 0.5  # the length of a reference piece along which it is smooth
    width: float = 1.0  # of its narrowest feature


def around(place, width, count=12):
    """Places to integrate between, for a feature of this width."""
    return place + width * np.linspace(-count, count, 2 * count + 1)


def reference(entry: Entry, mean: float, std: float) -> tuple[float, float, float]:
    """Mean, standard deviation and E s'^2."""
    f = entry.exact or entry.function
    step = min(entry.piece, 0.5 * std)
    low, high = mean - 36.0 * std, mean + 36.0 * std
    count = math.ceil((high - low) / step)
    edges = np.concatenate([np.linspace(low, high, count + 1), np.asarray(entry.breaks, float)])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    left, length = edges[:-1, None], np.diff(edges)[:, None]
    t = np.arange(-56, 57) / 17.0
    near = 1.0 / (1.0 + np.exp(np.pi * np.sinh(abs(t))))  # the distance from the nearer end
    weight = 0.5 * np.pi * np.cosh(t) / np.cosh(0.5 * np.pi * np.sinh(t)) ** 2 / 2.0 / 17.0
    u = np.where(t < 0, left + length * near, left + length - length * near)
    u = np.clip(u, np.nextafter(left, np.inf), np.nextafter(left + length, -np.inf))
    with np.errstate(all="ignore"):
        value = np.asarray(f(u), float)
        gap = np.minimum(1e-4 * min(step, entry.width), 0.01 * length * near)
        gap = np.maximum(gap, 1e-300)
        slope = (np.asarray(f(u + gap), float) - np.asarray(f(u - gap), float)) / (2.0 * gap)
    z = (u - mean) / std
    mass = length * weight * np.exp(-0.5 * z * z) / (std * math.sqrt(2.0 * math.pi))
    counts = mass > 0
    value, slope, mass = value[counts], slope[counts], mass[counts]
    out_mean = float(mass @ value)
    out_std = math.sqrt(mass @ (value - out_mean) ** 2)
    return out_mean, out_std, float(mass @ slope**2)


def sigmoid(u):
    return np.where(u > 0, 1.0 / (1.0 + np.exp(-abs(u))), np.exp(-abs(u)) / (1.0 + np.exp(-abs(u))))


def softplus(u):
    return np.maximum(u, 0.0) + np.log1p(np.exp(-abs(u)))


def copied(u):
    v = u.copy()
    v[v < 0] *= 0.1
    return v


def scaled(u, a, b):
    return a * np.tanh(b * u)


class Squash:
    def __init__(self, power):
        self.power = power

    def __call__(self, u):
        return u / (1.0 + np.abs(u) ** self.power) ** (1.0 / self.power)


TABLE_AT = np.array([-3.0, -1.1, -0.2, 0.35, 0.9, 2.4])
TABLE = np.array([0.0, -0.7, 0.3, 0.1, 1.5, 1.2])
STEPS = np.array([1.0, -2.0, 0.5, 3.0, 0.0, -1.0, 2.0])
WAVES = np.arange(-120.0, 121.0)
LEVELS = np.arctanh((np.arange(-4, 4) + 0.5) / 4.0)
LEARNT = tp.tensor(0.7, requires_grad=True)

SMOOTH = {
    "mish": Entry(lambda u: u * np.tanh(softplus(u))),
    "squareplus": Entry(lambda u: 0.5 * (u + np.sqrt(u * u + 4.0))),
    "snake": Entry(lambda u: u + np.sin(2.0 * u) ** 2 / 2.0),
    "mixture": Entry(lambda u: 0.3 * sigmoid(3.0 * u - 1.0) + 0.7 * sigmoid(0.5 * u + 2.0)),
    "rational": Entry(lambda u: (u**3 - u) / (1.0 + u**4)),
    "bell": Entry(lambda u: np.exp(-u * u)),
    "ricker": Entry(lambda u: (1.0 - u * u) * np.exp(-0.5 * u * u)),
    "sinc": Entry(np.sinc),
    "log cosh": Entry(lambda u: softplus(2.0 * u) - u - math.log(2.0)),
    "bent identity": Entry(lambda u: 0.5 * (np.sqrt(u * u + 1.0) - 1.0) + u),
    "arctan": Entry(np.arctan),
    "isru": Entry(lambda u: u / np.sqrt(1.0 + 3.0 * u * u)),
    "tanhexp": Entry(lambda u: u * np.tanh(np.exp(np.minimum(u, 5.0))), breaks=(5.0,)),
    "cubic": Entry(lambda u: u**3 - 3.0 * u),
    "chebyshev of tanh": Entry(lambda u: np.cos(8.0 * np.arccos(np.tanh(u)))),
    "lognormal": Entry(np.exp),
    "cosh": Entry(lambda u: np.cosh(0.8 * u)),
    "beats": Entry(lambda u: np.cos(40.0 * u) * np.tanh(u), piece=0.05),
    "chirp": Entry(lambda u: np.sin(4.0 * u * u), piece=0.01, settings=SETTINGS[:2]),
    "growing wave": Entry(lambda u: np.exp(0.03 * u * u) * np.sin(3.0 * u)),
    "ninth power": Entry(lambda u: u**9),
    "weierstrass": Entry(lambda u: sum(0.5**k * np.cos(3.0**k * u) for k in range(6)), piece=0.01),
    "narrow resonance": Entry(
        lambda u: 1.0 / (1e-6 + (u - 0.3) ** 2),
        breaks=np.concatenate([around(0.3, w, 6) for w in (1e-3, 1e-2, 1e-1)]),
        width=1e-3,
    ),
    "naive softplus": Entry(lambda u: np.log(1.0 + np.exp(u)), exact=softplus),
    "offset": Entry(lambda u: 1e6 + np.tanh(u)),
    "tiny": Entry(lambda u: 1e-140 * np.arctan(u)),
    "parameters": Entry(functools.partial(scaled, a=3.0, b=0.2)),
    "object": Entry(Squash(4.0)),
    "one by one": Entry(np.vectorize(math.erf)),
    "tensors": Entry(lambda u: u.tanh() * F.sigmoid(u), exact=lambda u: np.tanh(u) * sigmoid(u)),
    "captured tensor": Entry(
        lambda u: F.softplus(LEARNT * u), exact=lambda u: softplus(float(LEARNT.numpy()) * u)
    ),
    "spike on a line": Entry(
        lambda u: u + 5.0 * np.exp(-0.5 * ((u - 0.6180339) / 2e-4) ** 2),
        breaks=around(0.6180339, 2e-4, 40),
        width=2e-4,
    ),
    "pulse train": Entry(lambda u: np.exp(20.0 * (np.cos(6.0 * u) - 1.0)), piece=0.05),
    "steep sigmoid": Entry(
        lambda u: sigmoid(1e5 * (u - 0.25)),
        breaks=np.concatenate([around(0.25, w, 12) for w in (1e-5, 4e-5)]),
        width=1e-5,
    ),
    "infinitely smooth bump": Entry(
        lambda u: np.where(abs(u) < 1, np.exp(-1.0 / np.maximum(1.0 - u * u, 1e-300)), 0.0),
        breaks=(-1.0, 1.0),
        piece=0.05,
    ),
}

BENT = {
    "softsign": Entry(lambda u: u / (1.0 + abs(u)), (0.0,)),
    "penalised tanh": Entry(lambda u: np.where(u > 0, np.tanh(u), 0.25 * np.tanh(u)), (0.0,)),
    "elish": Entry(lambda u: np.where(u > 0, u, np.expm1(np.minimum(u, 0))) * sigmoid(u), (0.0,)),
    "hard swish": Entry(lambda u: u * np.clip(u + 3.0, 0.0, 6.0) / 6.0, (-3.0, 3.0)),
    "hard sigmoid": Entry(lambda u: np.clip(0.2 * u + 0.5, 0.0, 1.0), (-2.5, 2.5)),
    "relu6": Entry(lambda u: np.clip(u, 0.0, 6.0), (0.0, 6.0)),
    "triangular wave": Entry(lambda u: abs(u % 2.0 - 1.0), WAVES),
    "soft shrink": Entry(lambda u: np.sign(u) * np.maximum(abs(u) - 0.5, 0.0), (-0.5, 0.0, 0.5)),
    "nested": Entry(lambda u: abs(abs(abs(u) - 1.0) - 0.5), (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)),
    "tightly nested": Entry(lambda u: abs(abs(u - 0.3) - 1e-4), (0.2999, 0.3, 0.3001)),
    "lookup": Entry(lambda u: np.interp(u, TABLE_AT, TABLE), TABLE_AT),
    "clipped exp": Entry(lambda u: np.minimum(np.exp(u), 3.0), (math.log(3.0),)),
    "maximum of two": Entry(lambda u: np.maximum(u, -(u**3)), (0.0,)),
    "smoothstep": Entry(lambda u: np.clip(u, 0, 1) ** 2 * (3 - 2 * np.clip(u, 0, 1)), (0.0, 1.0)),
    "own copy": Entry(copied, (0.0,)),
    "gated": Entry(lambda u: u * (u > 0), (0.0,)),
    "power 1.5": Entry(lambda u: abs(u - 0.2) ** 1.5, (0.2,)),
    "log1p": Entry(lambda u: np.log1p(abs(u)), (0.0,)),
    "branches": Entry(np.vectorize(lambda x: x if x > 0 else 0.1 * x), (0.0,)),
    "tensors with a kink": Entry(
        lambda u: (u - 0.4).relu() - 0.1 * u, (0.4,), lambda u: np.maximum(u - 0.4, 0) - 0.1 * u
    ),
}

JUMPING = {  # slope2 is infinite
    "sawtooth": Entry(lambda u: u % 1.0, WAVES),
    "quantised tanh": Entry(lambda u: np.round(4.0 * np.tanh(u)) / 4.0, LEVELS),
    "quantised": Entry(
        lambda u: np.round(8.0 * u) / 8.0, (np.arange(-200, 200) + 0.5) / 8.0, settings=SETTINGS[:2]
    ),
    "hard shrink": Entry(lambda u: np.where(abs(u) > 0.5, u, 0.0), (-0.5, 0.5)),
    "signs": Entry(lambda u: np.sign(u - 1.0) + np.sign(u + 1.0), (-1.0, 1.0)),
    "table of steps": Entry(lambda u: STEPS[np.searchsorted(TABLE_AT, u)], TABLE_AT),
    "side conditions": Entry(lambda u: np.where((u > -0.5) & (u < 0.25), u**2, -u), (-0.5, 0.25)),
    "narrow pulse": Entry(lambda u: (u > 0.1) & (u < 0.102), (0.1, 0.102)),
    "integers": Entry(lambda u: 2 * np.sign(u - 0.3).astype(int), (0.3,)),
    "huge step": Entry(lambda u: 1e150 * (u > 0.123), (0.123,)),
    "rare": Entry(lambda u: (u > 4.0) * 1.0, (4.0,), settings=((0.0, 1.0), (-1.3, 2.5))),
    "very rare": Entry(lambda u: np.where(u > 7.5, u, 0.0), (7.5,), settings=((0.0, 1.0),)),
}

ROUGH = {  # slope2 is infinite, or not known to 1e-6: nan
    "u log u": Entry(lambda u: u * np.log(abs(u)), (0.0,)),
    "cancellation": Entry(
        lambda u: (1.0 - np.cos(u)) / u**2,
        breaks=(0.0,),
        exact=lambda u: 2.0 * (np.sin(0.5 * u) / u) ** 2,
        settings=SETTINGS[:1],
    ),
    "cube root": Entry(np.cbrt, (0.0,)),
    "fourth root": Entry(lambda u: abs(u - 0.1) ** 0.25, (0.1,)),
    "arcsin": Entry(lambda u: np.arcsin(np.clip(0.5 * u, -1, 1)), (-2.0, 2.0)),
    "root of relu": Entry(lambda u: np.sqrt(np.maximum(u, 0.0)), (0.0,)),
    "mild pole": Entry(lambda u: abs(u) ** -0.1, (0.0,)),
    "log of distance": Entry(lambda u: np.log(abs(u + 0.5)), (-0.5,)),
    "float32": Entry(
        lambda u: np.arctan(u.astype(np.float32)), exact=np.arctan, settings=SETTINGS[:2]
    ),
}

ELSEWHERE = {  # defined on a part of the axis, which holds all that matters
    "root from -9": Entry(
        lambda u: np.sqrt(u + 9.0),
        exact=lambda u: np.sqrt(np.maximum(u + 9.0, 0)),
        settings=((0.0, 1.0),),
    ),
    "log around 20": Entry(
        lambda u: np.log(u), exact=lambda u: np.log(np.maximum(u, 0.1)), settings=((20.0, 1.5),)
    ),
    "overflow at 710": Entry(
        np.vectorize(lambda x: math.log(math.cosh(x))),
        exact=lambda u: softplus(2.0 * u) - u - math.log(2.0),
        settings=((0.0, 30.0),),
    ),
    "far away": Entry(lambda u: np.maximum(u - 1000.0, 0.0), (1000.0,), settings=((1000.2, 0.5),)),
    "small scale": Entry(
        lambda u: np.tanh(1e6 * u), exact=lambda u: np.tanh(1e6 * u), settings=((1e-6, 2e-6),)
    ),
    "large scale": Entry(
        lambda u: np.tanh(1e-6 * u),
        exact=lambda u: np.tanh(1e-6 * u),
        settings=((1e6, 2e6),),
        piece=1e9,
    ),
}

RIGHT = {**SMOOTH, **BENT, **JUMPING, **ROUGH, **ELSEWHERE}


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, u):
        self.calls += 1
        return u + self.calls


def doubled_in_place(u):
    u *= 2.0
    return u


def rectified_in_place(u):
    u[u < 0] = 0.0
    return u


noise = np.random.default_rng(0)

REFUSED = {  # what is wrong with it, and words of the message
    "minus the mean": (lambda u: u - u.mean(), "by itself"),
    "standardised": (lambda u: (u - u.mean()) / u.std(), "by itself"),
    "largest is 1": (lambda u: u / abs(u).max(), "by itself"),
    "rolled": (lambda u: np.roll(u, 1), "by itself"),
    "differences": (lambda u: np.diff(u, prepend=0.0), "by itself"),
    "gradient": (lambda u: np.gradient(u), "by itself"),
    "ranks": (lambda u: np.argsort(np.argsort(u)), "by itself"),
    "sorted downwards": (lambda u: -np.sort(-u), "by itself"),
    "running maximum": (lambda u: np.maximum.accumulate(u), "by itself"),
    "times its length": (lambda u: u * len(u), "by itself"),
    "every other": (lambda u: u * (-1.0) ** np.arange(u.size).reshape(u.shape), "by itself"),
    "logits": (lambda u: u - np.log(np.exp(u).sum()), "by itself"),
    "fixed noise": (lambda u: u + np.random.default_rng(0).standard_normal(u.shape), "by itself"),
    "dot product": (lambda u: u @ u, "by itself"),
    "tensor mean": (lambda u: F.relu(u) - F.relu(u).mean(), "by itself"),
    "dropout": (lambda u: u * (noise.random(u.shape) > 0.5), "whenever it is called"),
    "memory": (Counter(), "whenever it is called"),
    "doubles in place": (doubled_in_place, "in place"),
    "rectifies in place": (rectified_in_place, "in place"),
    "complex root": (lambda u: np.sqrt(u + 0j), "real numbers"),
    "a new axis": (lambda u: u[None], "by itself"),
    "one too few": (lambda u: u[:-1], "by itself"),
    "nothing": (lambda u: None, "returned"),
    "text": (lambda u: "tanh", "returned"),
    "raises": (lambda u: u.no_such_method(), "no_such_method"),
    "log": (np.log, "at u ="),
    "arctanh": (np.arctanh, "at u ="),
    "pole": (lambda u: 1.0 / (u - 0.5), "near u = 0.5"),
    "tangent": (np.tan, "near u ="),
    "pole of the second moment": (lambda u: abs(u - 0.1) ** -0.5, "near u = 0.1"),
    "gauss upside down": (lambda u: np.exp(u * u), "finite"),
    "just infinite": (lambda u: np.exp(0.25 * u * u), "finite"),
    "infinite to the right": (lambda u: np.where(u > 0, np.exp(0.3 * u * u), u), "at u = 3"),
    "infinite to the left": (lambda u: np.where(u < 0, np.exp(0.3 * u * u), u), "at u = -3"),
    "grows beyond": (lambda u: np.exp(np.exp(abs(u))), "finite"),
    "offset 1e14": (lambda u: 1e14 + np.tanh(u), "float64"),
    "noise of rounding": (lambda u: np.sin(1e12 * u), "near u ="),
}

# These have moments, and are refused all the same: what float64 or the number of values allows does
# not reach them.
FALSE_REFUSALS = {
    "nearly infinite": lambda u: np.exp(0.2475 * u * u),
    "pole of power 0.45": lambda u: abs(u - 0.1) ** -0.45,
    "a million waves": lambda u: np.sin(1e6 * u),
    "a million steps": lambda u: np.floor(1e5 * u) * 1e-5 + (np.floor(1e5 * u) % 2),
}
