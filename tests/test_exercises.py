"""The exercises of the course: each checker accepts what is right, and says of each usual mistake what is wrong."""

import itertools
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F

COURSE = Path(__file__).parent.parent / "tutorials"
sys.path.append(str(COURSE))

import checks  # noqa: E402
import exercises  # noqa: E402

C1, C2, CHI = exercises.C1, exercises.C2, exercises.CHI


def preorder(value):
    return [value, *(v for source in value.inputs for v in preorder(source))]


def recursive(value, order=None):
    order = [] if order is None else order
    if value not in order:
        for source in value.inputs:
            recursive(source, order)
        order.append(value)
    return order


def results_first(value):
    order, stack, seen = [], [value], set()
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            order.append(value)
            stack += value.inputs
    return order


def softsign(backward):
    """The op of exercise 1.4 with this backward."""
    return type("Softsign", (tp.Op,), {"forward": lambda self, x: x / (1 + abs(x)), "backward": backward})


def slope(x):
    return 1 / (1 + abs(x)) ** 2


def overflowing(z, labels):
    with np.errstate(all="ignore"):
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return (p - np.eye(z.shape[1])[labels]) / len(z)


def normal(x, axes, eps=0.0, ddof=0):
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True, ddof=ddof) + eps)


def rows(w):
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def layer(x, w, gamma, beta):
    return (np.maximum(gamma * (x @ w.T) + beta, 0) - C2) / C1


def conv(x, w, stride=1, padding=0):
    return exercises.convolved(x, np.ascontiguousarray(w), stride, padding)


def turned(w):
    return w[:, :, ::-1, ::-1].swapaxes(0, 1)


def heavy_batch_norm(x):
    return (x - F.mean(x, axis=0)) / F.sqrt(F.var(x, axis=0) + 1e-5)


def along(v, g, gradient):
    unit = v / np.linalg.norm(v)
    return (gradient - gradient @ unit * unit), gradient @ unit


WRONG = {  # exercise: wrong answers, and a part of what is said of each
    "1.1": [
        (math.tanh, "first factor only"),
        (lambda x: x * (1 - math.tanh(x) ** 2), "the factor x has a slope"),
        (lambda x: 1 - math.tanh(x) ** 2, "not the product of the slopes"),
        (lambda x: 2 * x, "central difference"),
    ],
    "1.2": [
        (lambda a, b: a / b, "return 3 things"),
        (lambda a, b: (a * b, 1 / b, -a / b**2), "the value of"),
        (lambda a, b: (a / b, 1.0, -a / b**2), "is not 1"),
        (lambda a, b: (a / b, b, -a / b**2), "with respect to a is wrong"),
        (lambda a, b: (a / b, 1 / b, a / b**2), "wrong sign"),
        (lambda a, b: (a / b, 1 / b, -1 / b**2), "must grow with a"),
    ],
    "1.3": [
        (preorder, "listed twice"),
        (recursive, "calls itself too often"),
        (results_first, "comes after a value"),
        (lambda value: [value], "lists 1 values"),
    ],
    "1.4": [
        (softsign(lambda self, g, x: g), "as it is"),
        (softsign(lambda self, g, x: slope(x)), "slope alone"),
        (softsign(lambda self, g, x: g / (1 + abs(x))), "central difference"),
        (softsign(lambda self, g, x: g * tp.tensor(slope(x.data))), "with tensors"),
        (softsign(lambda self, g, x: g.data), "it stops with"),
        (type("Bare", (), {}), "subclass of tp.Op"),
    ],
    "2.1": [
        (lambda a, b, g: (a.T @ g, g @ b.T), "swapped"),
        (lambda a, b, g: (-(g @ b.T), a.T @ g), "respect to A does not agree"),
        (lambda a, b, g: (g @ b.T, -(a.T @ g)), "respect to B does not agree"),
        (lambda a, b, g: (g @ b, a.T @ g), "it stops with ValueError"),
    ],
    "2.2": [
        (lambda z, y: exercises.softmax(z), "these are the probabilities"),
        (lambda z, y: exercises.softmax(z) - np.eye(z.shape[1])[y], "their mean"),
        (lambda z, y: (np.eye(z.shape[1])[y] - exercises.softmax(z)) / len(z), "the sign is wrong"),
        (overflowing, "overflow"),
        (lambda z, y: z / len(z), "central differences"),
    ],
    "2.3": [
        (lambda w, v, g, r, m: (w - r * g, m * v + g), "moved by the gradient"),
        (lambda w, v, g, r, m: (w - r * v, m * v + g), "old velocity"),
        (lambda w, v, g, r, m: (w + r * (m * v + g), m * v + g), "uphill"),
        (lambda w, v, g, r, m: (w + m * v - g, m * v - g), "minus sign"),
        (lambda w, v, g, r, m: (w - m * v - r * g, m * v + r * g), "the rate multiplies the velocity"),
        (lambda w, v, g, r, m: (w, v), "momentum times the old one"),
    ],
    "2.4": [
        (lambda x, s, g: (g * s, g * x), "summed backwards"),
        (lambda x, s, g: (g * s, (g * x).mean(axis=0)), "do not average"),
        (lambda x, s, g: (g * s, g.sum(axis=0)), "an added row"),
        (lambda x, s, g: (g, (g * x).sum(axis=0)), "times the other factor"),
    ],
    "3.1": [
        (lambda n, a: 2 / (n * (1 + a * a)), "that is the variance"),
        (lambda n, a: math.sqrt(1 / n), "without activation"),
        (lambda n, a: math.sqrt(2 / n), "lets a part through"),
        (lambda n, a: n, "does not stay the same"),
    ],
    "3.2": [
        (lambda n, m: math.sqrt(2 / (n + m)), "the bound is larger"),
        (lambda n, m: math.sqrt(3 / n), "forwards only"),
        (lambda n, m: 6 / (n + m), "the variance is not"),
    ],
    "3.3": [
        (lambda c, layer: c * (c / 2) ** (layer - 1), "take its root"),
        (lambda c, layer: math.sqrt((c / 2) ** layer), "count the ReLUs"),
        (lambda c, layer: 0.5**layer, "in layer 1"),
    ],
    "3.4": [
        (lambda s: 1 / s(np.random.default_rng(1).standard_normal(10**5)).std(), "the mean counts, too"),
        (lambda s: np.sqrt((s(np.random.default_rng(1).standard_normal(10**5)) ** 2).mean()), "upside down"),
        (lambda s: 1.0, "for ReLU it is 1.414"),
    ],
    "4.1": [
        (lambda x, eps: normal(x, 0, eps), "places of a channel together"),
        (lambda x, eps: normal(x, (1, 2, 3), eps), "that is LayerNorm"),
        (lambda x, eps: normal(x, (0, 1, 2, 3), eps), "each channel needs its own"),
        (lambda x, eps: normal(x, (0, 2, 3), eps, ddof=1), "not one less"),
        (lambda x, eps: normal(x, (0, 2, 3)), "eps is missing"),
        (
            lambda x, eps: (x - x.mean(axis=(0, 2, 3), keepdims=True)) / (x.std(axis=(0, 2, 3), keepdims=True) + eps),
            "under the root",
        ),
        (lambda x, eps: x, "mean 0 and variance 1"),
    ],
    "4.2": [
        (lambda x, g: g / x.std(), "two terms are missing"),
        (lambda x, g: (g - g.mean()) / x.std(), "standard deviation depends on x"),
        (lambda x, g: (g - normal(x, 0) * (g * normal(x, 0)).mean()) / x.std(), "the mean depends on x"),
        (lambda x, g: g - g.mean() - normal(x, 0) * (g * normal(x, 0)).mean(), "divide by the standard"),
        (lambda x, g: (g - g.mean() - x * (g * x).mean()) / x.std(), "not x itself"),
        (lambda x, g: g, "central differences"),
    ],
    "4.3": [
        (lambda means, m: exercises_running(means, 1 - m), "weight of the new batch"),
        (lambda means, m: means.mean(), "plain average"),
        (lambda means, m: means[-1], "another one"),
    ],
    "4.4": [(math.sqrt, "nearly"), (lambda b: math.inf, "not finite"), (lambda b: 1.0, "in a batch of 5")],
    "5.1": [
        (lambda a: ((1 + a) * C2, tp.moments.gaussian("prelu", a=a).std), "makes the mean smaller"),
        (lambda a: ((1 - a) * C2, (1 + a * a) / 2 - ((1 - a) * C2) ** 2), "that is the variance"),
        (lambda a: ((1 - a) * C2, math.sqrt((1 + a * a) / 2)), "subtract the squared mean"),
        (lambda a: (0.0, 1.0), "the mean is 0.3989"),
    ],
    "5.2": [
        (lambda e: (1.5 / C1**4 - 1) / 4 / e**2, "about the mean, not about 0"),
        (lambda e: 4.4076 / 4 / e, "square it"),
        (lambda e: 4.4076 / e**2, "half the relative error"),
        (lambda e: 0.5 / e**2, "kurtosis 3"),
        (lambda e: 7.0, "it takes"),
    ],
    "5.3": [
        (lambda mu: max(mu, 0.0), "ReLU of the mean"),
        (lambda mu: mu + C2, "ReLU is not a line"),
        (lambda mu: mu * 0.5 * math.erfc(-mu / math.sqrt(2)), "z phi(z) is missing"),
        (lambda mu: 3.0, "for mu = 1.0 it is"),
    ],
    "5.4": [
        ((math.sqrt(256 / 255) - 1.0002083778381348) * math.sqrt(2**19), "the sign"),
        (0.0002083778381348 * math.sqrt(2**19), "distance from 1"),
        (1 - 1.0002083778381348, "divide it by the standard error"),
        (17.0, "another number"),
        ("many", "a number or an array"),
    ],
    "6.1": [
        (layer, "divided by their length"),
        (lambda x, w, g, b: layer(x, rows(w), 1.0, 0.0) * g + b, "inside the activation"),
        (lambda x, w, g, b: layer(x, rows(w), g, b / np.linalg.norm(w, axis=1)), "after the division"),
        (lambda x, w, g, b: layer(x, w / np.linalg.norm(w), g, b), "axis=1"),
        (lambda x, w, g, b: np.maximum(g * (x @ rows(w).T) + b, 0), "subtract c2"),
        (lambda x, w, g, b: x @ w.T, "not the paper's equation"),
    ],
    "6.2": [
        (lambda beta: (beta / C1, C2 / C1), "subtracted inside the max"),
        (lambda beta: (beta - C2, C2 / C1), "divided by c1, too"),
        (lambda beta: ((beta - C2) / C1, C2), "divide it by c1"),
        (lambda beta: (1.0, 1.0), "not the layer's output"),
    ],
    "6.3": [
        (lambda w, g, r: w - r * g, "orthogonal"),
        (lambda w, g, r: w * w + (r * g) ** 2, "squared length"),
        (lambda w, g, r: w, "does get longer"),
        (lambda w, g, r: 9.0, "another length"),
    ],
    "6.4": [
        (lambda e: 3 * 2.4076 / e - 2, "round up"),
        (lambda e: math.floor(3 * 2.4076 / e - 2), "rounded down"),
        (lambda e: 1, "another width"),
    ],
    "7.1": [
        (lambda m, n: (0.0, (1 + math.sqrt(m / n)) / C1), "half of the units"),
        (lambda m, n: (0.0, 1 + math.sqrt(m / 2 / n)), "length 1/c1, not 1"),
        (lambda m, n: (0.0, (1 + math.sqrt(m / 2 / n)) * C1), "divided by c1"),
        (lambda m, n: ((1 - math.sqrt(m / 2 / n)) / C1, (1 + math.sqrt(m / 2 / n)) / C1), "never negative"),
        (lambda m, n: (0.0, (1 + math.sqrt(m / 2 / n)) / C1), "the smallest is"),
    ],
    "7.2": [
        (lambda depth, gamma: (gamma * CHI) ** depth, "gamma multiplies J"),
        (lambda depth, gamma: (gamma**2 * math.sqrt(CHI)) ** depth, "root of the gain"),
        (lambda depth, gamma: depth * gamma**2 * CHI, "gains of layers multiply"),
        (lambda depth, gamma: 1.0, "for 1 layers"),
    ],
    "7.3": [
        (lambda rho: (math.pi - math.acos(rho)) / (2 * math.pi * C1**2), "is rho, not 1"),
        (lambda rho: rho * (math.pi - math.acos(rho)) / (2 * math.pi), "each of the two rows"),
        (lambda rho: rho / C1**2, "both units must be on"),
        (lambda rho: 0.0, "for rho = 0.5"),
    ],
    "7.4": [
        (lambda m, n: 0.5, "many more units"),
        (lambda m, n: min(m / 2, n) / min(m, n), "which is not 0"),
        (lambda m, n: 1 - m / 2 / min(m, n), "not negative"),
    ],
    "8.1": [
        (lambda q, g: (g / C1) ** 2 * (q / 2 - 2 * C2**2 * q + C2**2), "root of q"),
        (lambda q, g: (g / C1) ** 2 * (q / 2 + C2**2), "mixed term"),
        (lambda q, g: g**2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2), "divide by c1^2"),
        (lambda q, g: g / C1**2 * (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2), "gamma multiplies u"),
        (lambda q, g: (g / C1) ** 2 * q / 2, "without subtracting"),
    ],
    "8.2": [
        (lambda gamma: 1 / (1 + math.sqrt((math.pi - 1) * (1 / gamma**2 - 1))), "the root of q"),
        (lambda gamma: 1 / (1 - math.sqrt((math.pi - 1) * (1 / gamma**2 - 1))) ** 2, "larger solution"),
        (lambda gamma: gamma, "settles at"),
    ],
    "8.3": [
        (lambda a: (np.arange(len(a)) * a**2).sum(), "divide by its variance"),
        (lambda a: (np.arange(len(a)) * a**2).sum() / (a**2).sum(), "a_0 is the mean"),
        (lambda a: (np.arange(len(a)) * a).sum() / a[1:].sum(), "squares of the coefficients"),
        (lambda a: 1.0, "not the mean degree"),
    ],
    "8.4": [(lambda depth: 1.0, "for 9 layers")],
    "9.1": [
        (lambda x, groups, eps: normal(x, (1, 2, 3), eps), "that is LayerNorm"),
        (lambda x, groups, eps: normal(x, (2, 3), eps), "that is InstanceNorm"),
        (
            lambda x, groups, eps: normal(x.reshape(len(x), groups, -1), (0, 2), eps).reshape(x.shape),
            "the samples have been taken together",
        ),
        (
            lambda x, groups, eps: normal(x.reshape(3, -1, groups, 8), (1, 3), eps).reshape(x.shape),
            "neighbouring channels",
        ),
        (lambda x, groups, eps: normal(x.reshape(len(x), groups, -1), 2).reshape(x.shape), "eps is missing"),
        (lambda x, groups, eps: x, "mean 0 and variance 1"),
    ],
    "9.2": [
        (lambda w: rows(w) / C1, "do not sum to 0"),
        (lambda w: rows(w - w.mean(axis=1, keepdims=True)), "must be 1/c1: ReLU"),
        (lambda w: rows(w - w.mean(axis=1, keepdims=True)) * C1, "not c1"),
        (lambda w: rows(w - w.mean(axis=0)) / C1, "not of each column"),
        (lambda w: rows(w) / C1 - (rows(w) / C1).mean(axis=1, keepdims=True), "mean first"),
        (lambda w: w, "sum 0 and length"),
    ],
    "9.3": [
        (lambda v, g, d: (g / np.linalg.norm(v) * along(v, g, d)[0], v @ d), "divide v by its length"),
        (lambda v, g, d: (g / np.linalg.norm(v) * d, along(v, g, d)[1]), "must vanish"),
        (along, "g / |v| is missing"),
        (lambda v, g, d: (g * along(v, g, d)[0], along(v, g, d)[1]), "turns more slowly"),
        (lambda v, g, d: (d, 5.0), "respect to g does not agree"),
    ],
    "9.4": [
        (lambda alpha, v: tp.moments.gaussian("tanh", 0.0, alpha * v**0.5).std, "root mean square"),
        (lambda alpha, v: tp.moments.gaussian("tanh", 0.0, alpha * v).std ** 2, "standard deviation of sqrt(v)"),
        (lambda alpha, v: 1.0, "for alpha = 0.5"),
    ],
    "10.1": [
        (lambda p, q, n: abs(p - q) / math.sqrt(p * (1 - p) / n), "both errors are uncertain"),
        (lambda p, q, n: abs(p - q) / (math.sqrt(p * (1 - p) / n) + math.sqrt(q * (1 - q) / n)), "variances add"),
        (lambda p, q, n: abs(p - q), "divide it"),
        (lambda p, q, n: (p - q) ** 2 * n / (p * (1 - p) + q * (1 - q)), "the root"),
        (lambda p, q, n: 3.0, "standard errors"),
    ],
    "10.2": [
        (lambda e: (e.mean(), e.std(ddof=1)), "of one run"),
        (lambda e: (e.mean(), e.std() / math.sqrt(len(e))), "one less"),
        (lambda e: (np.median(e), e.std(ddof=1) / math.sqrt(len(e))), "mean is"),
        (lambda e: (e.mean(), 0.0), "the standard error is"),
    ],
    "10.3": [
        (lambda runs: min(r["test"] for r in runs if r["test"] is not None), "test images"),
        (lambda runs: min(runs, key=lambda r: r["valid"] or 0)["rate"], "diverged"),
        (lambda runs: min((r for r in runs if r["valid"]), key=lambda r: r["valid"])["rate"], "mean over seeds"),
        (lambda runs: min((r for r in runs if r["test"]), key=lambda r: r["test"])["rate"], "test images"),
    ],
    "E1.1": [
        (lambda x, w, s, p: conv(x, w), "ignores stride 2 and padding 1"),
        (lambda x, w, s, p: conv(x, w, 1, p), "ignores the stride"),
        (lambda x, w, s, p: conv(x, w, s), "padding"),
        (lambda x, w, s, p: conv(x, w[:, :, ::-1, ::-1], s, p), "the filter is turned"),
        (lambda x, w, s, p: 2 * conv(x, w, s, p), "F.conv2d gives"),
    ],
    "E1.2": [
        (lambda g, w: conv(g, w.swapaxes(0, 1), 1, 2), "by 180 degrees"),
        (lambda g, w: conv(g, turned(w)), "pad the gradient"),
        (lambda g, w: 2 * conv(g, turned(w), 1, 2), "central differences"),
    ],
    "E1.3": [
        (lambda m, k: (m + k - 1) ** 2, "per tile"),
        (lambda m, k: (m + k - 1) / m, "along one axis"),
        (lambda m, k: k * k, "without the transforms"),
        (lambda m, k: 1.0, "for 2 x 2 outputs"),
    ],
    "E2.1": [
        (lambda s: (1.0, 1.0), "the mean of tanh"),
        (lambda s: moments_of(s, lambda mean, square: square - mean**2), "that is the variance"),
        (lambda s: moments_of(s, lambda mean, square: math.sqrt(square)), "root mean square"),
        (lambda s: moments_of(s, lambda mean, square: 0.1), "the standard deviation of tanh"),
    ],
    "E2.2": [
        (lambda depth, delta: 1.102 / delta**2, "for one layer"),
        (lambda depth, delta: depth * 1.102 / delta**2, "does not average out"),
        (lambda depth, delta: 1.0, "samples"),
    ],
    "E2.3": [
        (lambda a: (a + (1 - a) / math.pi) / 2, "divide by c1"),
        (lambda a: (a - (1 - a) / math.pi) / math.sqrt(2 * (1 + a * a - (1 - a) ** 2 / math.pi)), "is -2 (1 - a)"),
        (lambda a: 0.0, "for a = 0.0"),
    ],
    "E3.1": [
        (heavy_batch_norm, "ops on whole batches"),
        (lambda x: x - F.mean(x, axis=0) + 0 * x, "variance 1"),
        (lambda x: x.numpy(), "return a tensor"),
    ],
    "E3.2": [
        (lambda net: [("numpy", "float32")], "return a set"),
        (lambda net: {("numpy", "float64")}, "for a new network"),
        (lambda net: {(p.backend, str(p.dtype)) for p in list(net.parameters())[:1]}, "misses parameters"),
    ],
    "E4.1": [
        (lambda samples, ranks: [samples // ranks] * ranks, "are used"),
        (lambda samples, ranks: [samples / ranks] * ranks, "whole number"),
        (lambda samples, ranks: [samples] + [0] * (ranks - 1), "two more than another"),
        (lambda samples, ranks: exercises_shares(samples, ranks)[::-1], "the last ranks have none"),
        (lambda samples, ranks: samples, "shape"),
    ],
    "E4.2": [
        ((1.0, 2.0, 3.0), "both sums are 6"),
        ((1, 10**16, -(10**16)), "floating-point"),
        ((1.0, 2.0), "return 3 things"),
        ((1e308, 1e308, -math.inf), "not finite"),
    ],
    "E4.3": [
        (lambda compute, send: exercises_ranks(compute, send, 1), "travel twice"),
        (lambda compute, send: exercises_ranks(compute, send, 2) - 1, "still the shorter"),
        (lambda compute, send: 1, "it is 8"),
    ],
    "E3.3": [
        (lambda x: x + tp.tensor(np.ones(x.shape)), "float64"),
        (lambda x: x, "no noise"),
        (lambda x: 1.0, "return a tensor"),
        (lambda x: tp.tensor(np.ones(x.shape, np.float16)), "not float32"),
    ],
}


def exercises_running(means, momentum):
    running = 0.0
    for mean in means:
        running = (1 - momentum) * running + momentum * mean
    return running


def exercises_shares(samples, ranks):
    ends = [math.ceil(samples * r / ranks) for r in range(ranks + 1)]
    return [b - a for a, b in itertools.pairwise(ends)]


def exercises_ranks(compute, send, trips):
    n = 1
    while 0.05 * math.log2(n) + trips * (n - 1) / n * send <= compute / n:
        n += 1
    return n


def moments_of(s, spread):
    z, weights = np.polynomial.legendre.leggauss(160)
    bell = 9 * weights * np.exp(-40.5 * z * z) / math.sqrt(2 * math.pi)
    mean = bell @ s(9 * z)
    return mean, spread(mean, bell @ s(9 * z) ** 2)


CASES = [(number, answer, says) for number, cases in WRONG.items() for answer, says in cases]


@pytest.mark.parametrize(("number", "answer", "says"), CASES, ids=[f"{n}: {says}" for n, _, says in CASES])
def test_a_mistake_is_recognised(number, answer, says):
    wrong = checks.verdict(number, answer)
    assert wrong is not None, "accepted"
    assert says in wrong


def test_every_exercise_has_hints_wrong_answers_and_a_hole():
    assert set(WRONG) == set(checks.EXERCISES)
    lessons = {path.stem.split("_")[0].lstrip("0"): path.read_text() for path in COURSE.glob("[0-9E][0-9]_*.py")}
    for number, exercise in checks.EXERCISES.items():
        assert len(exercise.hints) >= 2, number
        assert f'check("{number}", ' in lessons[number.split(".")[0]]
    for lesson, text in lessons.items():
        numbers = re.findall(r'check\("([^"]+)", ', text)
        assert len(numbers) >= 3
        assert numbers == [f"{lesson}.{i}" for i in range(1, len(numbers) + 1)]
        assert "predict(" in text
        assert "reveal(" in text


@pytest.mark.parametrize("number", checks.EXERCISES)
def test_a_hole_is_recognised(number):
    assert "fill in the hole" in checks.verdict(number, ...)
    if number not in ("1.4", "5.4", "E4.2"):
        assert "fill in" in checks.verdict(number, lambda *args, **named: None)
        assert "it stops with ZeroDivisionError" in checks.verdict(number, lambda *args, **named: 1 / 0)


def test_check_says_what_to_do(capsys):
    checks.check("2.1", lambda a, b, g: (g @ b.T, a.T @ g))
    checks.check("2.1", lambda a, b, g: (a.T @ g, g @ b.T))
    assert capsys.readouterr().out == (
        '2.1 is right\n2.1 not yet: the two gradients are swapped. For help: hint("2.1")\n'
    )


def test_an_answer_cannot_spoil_what_it_is_checked_with():
    def careless(a, b, g):
        a *= 0
        return g @ b.T, a.T @ g

    assert "respect to B" in checks.verdict("2.1", careless)


def test_hints_come_one_by_one(capsys, monkeypatch):
    monkeypatch.setattr(checks, "_hints_given", {})
    for _ in range(3):
        checks.hint("2.1")
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("hint 1 of 2: The gradient with respect to A has the shape")
    assert second.startswith("hint 2 of 2: dL/dA_ik")
    assert "solution" in last


def test_a_prediction_is_locked_once_the_answer_is_seen(capsys, monkeypatch):
    monkeypatch.setattr(checks, "_guesses", {})
    monkeypatch.setattr(checks, "_revealed", set())
    checks.predict("height")
    checks.predict("height", 3.0)
    checks.reveal("height", 2.0)
    checks.predict("height", 2.0)
    checks.reveal("height", 2.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("Put a number behind the question")
    assert lines[1] == "height: 3"
    assert lines[2] == lines[4] == "height: 2; you said 3, 1.5 times the answer"
    assert lines[3] == "height: you have seen the answer; your guess stays 3.0"


@pytest.mark.parametrize(("guess", "answer", "says"), [(None, 2.0, ": 2"), (1.0, 0.0, "off by +1"), (-1.0, 2.0, "-3")])
def test_a_prediction_is_compared(guess, answer, says, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_guesses", {"q": guess})
    monkeypatch.setattr(checks, "_revealed", set())
    checks.reveal("q", answer)
    assert says in capsys.readouterr().out
