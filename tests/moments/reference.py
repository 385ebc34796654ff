"""Moments of activations to 40 digits, by other ways than tinyprop's: closed forms as E s^2 - (E
s)^2, which is safe with digits to spare, and the trapezoidal rule, whose error is exp(-2 pi d / h)
for a strip of half-width d.

Call it under `mp.workdps(DIGITS)`."""

import mpmath as mp

from tinyprop.functional.activations import SELU_ALPHA, SELU_SCALE

DIGITS = 60


def cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def pdf(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def above(m, s, k=0):
    """E[1], E[U], E[U^2], each where U > k."""
    t = (m - k) / s
    zeroth, first = cdf(t), m * cdf(t) + s * pdf(t)
    return zeroth, first, (m * m + s * s) * cdf(t) + s * (m + k) * pdf(t)


def prelu(m, s, a):
    p0, p1, p2 = above(m, s)
    mean = a * m + (1 - a) * p1
    return mean, a**2 * (m * m + s * s) + (1 - a**2) * p2 - mean**2, a**2 + (1 - a**2) * p0


@mp.workdps(700)  # beside the 1 of a saturated unit its small moments need digits
def hardtanh(m, s):
    (a0, a1, a2), (b0, b1, b2) = above(m, s, -1), above(m, s, 1)
    mean = a1 - b1 + b0 - (1 - a0)
    return mean, a2 - b2 + b0 + (1 - a0) - mean**2, a0 - b0


@mp.workdps(300)
def elu(m, s, alpha):
    def below(c):  # E[exp(c U)] where U < 0
        return mp.exp(c * m + c * c * s * s / 2) * cdf(-m / s - c * s)

    p0, p1, p2 = above(m, s)
    mean = p1 + alpha * (below(1) - below(0))
    square = p2 + alpha**2 * (below(2) - 2 * below(1) + below(0))
    return mean, square - mean**2, p0 + alpha**2 * below(2)


def selu(m, s):
    scale = mp.mpf(SELU_SCALE)
    mean, variance, slope2 = elu(m, s, mp.mpf(SELU_ALPHA))
    return scale * mean, scale**2 * variance, scale**2 * slope2


def sin(m, s):
    v = s * s
    mean = mp.exp(-v / 2) * mp.sin(m)
    double = mp.exp(-2 * v) * mp.cos(2 * m)
    return mean, (1 - double) / 2 - mean**2, (1 + double) / 2


def trapezoid(value, slope, m, s, *, pole=None, width=0):
    """For a function with its nearest pole at i * pole; or, without one, that grows like exp(width
    y^2) along iy."""
    step = 2 * mp.pi * pole / s / 100 if pole else mp.pi * mp.sqrt(2 / (1 + 4 * width * s * s)) / 10
    step = min(step, mp.mpf(1) / 4)
    last = int((15 + min(2 * s * (1 + abs(m)), abs(m) / s)) / step) + 1
    points = [(mp.exp(-((k * step) ** 2) / 2), m + s * k * step) for k in range(-last, last + 1)]
    values = [(weight, value(u)) for weight, u in points]
    total = sum(weight for weight, _ in points)
    mean = sum(weight * y for weight, y in values) / total
    variance = sum(weight * (y - mean) ** 2 for weight, y in values) / total
    return mean, variance, sum(weight * slope(u) ** 2 for weight, u in points) / total


def gelu(m, s):
    return trapezoid(lambda u: u * cdf(u), lambda u: cdf(u) + u * pdf(u), m, s, width=mp.mpf(1) / 2)


def erf(m, s):
    mean, variance, slope2 = trapezoid(
        lambda u: mp.erfc(-u), lambda u: 2 / mp.sqrt(mp.pi) * mp.exp(-u * u), -abs(m), s, width=1
    )
    return mp.sign(m) * (1 - mean), variance, slope2


def logistic(u):
    return 1 / (1 + mp.exp(-u))


def sigmoid(m, s):
    mean, variance, slope2 = trapezoid(
        logistic, lambda u: logistic(u) * logistic(-u), -abs(m), s, pole=mp.pi
    )
    return mean if m <= 0 else 1 - mean, variance, slope2


def tanh(m, s):
    mean, variance, slope2 = sigmoid(2 * m, 2 * s)
    return 2 * mean - 1, 4 * variance, 16 * slope2


def softplus(m, s):
    return trapezoid(lambda u: mp.log1p(mp.exp(u)), logistic, m, s, pole=mp.pi)


def silu(m, s):
    return trapezoid(
        lambda u: u * logistic(u), lambda u: logistic(u) * (1 + u * logistic(-u)), m, s, pole=mp.pi
    )


def reference(name, mean, std, **params):
    """Mean, standard deviation, E[s'^2] and the Jacobian factor, as mpmath numbers."""
    if name in ("relu", "abs", "identity"):
        name, params = "prelu", {"a": {"relu": 0, "abs": -1, "identity": 1}[name]}
    rule = prelu if name == "leaky_relu" else globals()[name]
    m, s = mp.mpf(mean), mp.mpf(std)
    out, variance, slope2 = rule(m, s, *(mp.mpf(p) for p in params.values()))
    return out, mp.sqrt(variance), slope2, s * mp.sqrt(slope2 / variance)
