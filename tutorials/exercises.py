"""The checkers of all exercises. Each tests properties of an answer, and knows the usual mistakes.

Where the answer is a formula, exercises.toml says what is right, which mistakes are usual, and what
to say of them."""

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import given
import tinyprop as tp
import tinyprop.functional as F
from checks import NotYet, draws, exercise, expect, fresh, numbers, pieces, right
from given import Node

C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
CHI = math.pi / (math.pi - 1)
FORMULAS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


# What the expressions of exercises.toml may use


def between(low, high):
    """A fresh number, with three digits after the point."""
    return round(float(fresh.get().uniform(low, high)), 3)


def whole(low, high):
    """A fresh whole number from low to high."""
    return int(fresh.get().integers(low, high, endpoint=True))


def usual(lesson, new, *bounds):
    """The lesson's number; where numbers are fresh, `between` or `whole` of these bounds."""
    return lesson if fresh.get() is None else new(*bounds)


def normal(x, axes, eps=0.0, ddof=0):
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(
        x.var(axis=axes, keepdims=True, ddof=ddof) + eps
    )


def in_groups(x, groups, eps, axes=2):
    return normal(x.reshape(len(x), groups, -1), axes, eps).reshape(x.shape)


def running_mean(means, momentum):
    running = 0.0
    for mean in means:
        running = (1 - momentum) * running + momentum * mean
    return running


def unit_rows(w):
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def normalized_relu(u):
    return (np.maximum(u, 0) - C2) / C1


def convolved(x, w, stride=1, padding=0):
    return F.conv2d(tp.tensor(x), tp.tensor(w), None, stride, padding).numpy()


def turned(w):
    return w[:, :, ::-1, ::-1]


def image_gradient(g, w):
    (n, _, rows, columns), (_, channels, k, _) = g.shape, w.shape
    image = tp.zeros(
        n, channels, rows + k - 1, columns + k - 1, requires_grad=True, dtype="float64"
    )
    return tp.grad(F.conv2d(image, tp.tensor(w)), [image], g)[0].numpy()


def shift_for_gain(gain):
    """The mean of a normal variable at which ReLU's mean-square gain has this value."""
    low, high = 0.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        if tp.moments.gaussian("relu", middle, 1.0).jacobian_factor ** 2 > gain:
            low = middle
        else:
            high = middle
    return low


def too_many_ranks(compute, send, trips):
    n = 1
    while 0.05 * math.log2(n) + trips * (n - 1) / n * send <= compute / n:
        n += 1
    return n


def size_after(depth, epsilon, power=2):
    """Of a ReLU network whose c1 has this relative error: lesson 8's recursion."""
    q = 1.0
    for _ in range(depth):
        q = (q / 2 - 2 * C2**2 * math.sqrt(q) + C2**2) / C1**2 / (1 + epsilon) ** power
    return math.sqrt(q)


def correlation_after(rho, depth, gain=2.0):
    """Of two inputs in a ReLU network with He's weights."""
    for _ in range(depth):
        both_on = (math.pi - math.acos(rho)) / (2 * math.pi)
        rho = min(gain * (math.sqrt(1 - rho * rho) / (2 * math.pi) + rho * both_on), 1.0)
    return rho


FUNCTIONS = (
    np.sqrt,
    np.tanh,
    np.arccos,
    np.floor,
    np.maximum,
    np.arange,
    np.array,
    np.linalg.norm,
    math.erfc,
)
FUNCTIONS += (
    tp.moments.gaussian,
    draws,
    normal,
    in_groups,
    running_mean,
    unit_rows,
    normalized_relu,
)
FUNCTIONS += (between, whole, convolved, turned, image_gradient, shift_for_gain, too_many_ranks)
FUNCTIONS += (size_after, correlation_after)
NAMES = {f.__name__: f for f in FUNCTIONS}
NAMES |= {"pi": math.pi, "e": math.e, "C1": C1, "C2": C2, "CHI": CHI}
FRESH_CASES = 3  # how often the numbers of a check are drawn


def value(expression: str, names: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"):  # some mistakes divide by 0
        return eval(expression, NAMES | names)


def named(entry: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """The arguments of an exercise by name, and its abbreviations."""
    names = dict(zip(entry["of"].split(", "), arguments, strict=True)) if "of" in entry else {}
    for name, expression in entry.get("where", {}).items():
        names[name] = value(expression, names)
    return names


def formula(entry: dict[str, Any]) -> Any:
    """The checker of an exercise in exercises.toml."""
    parts = entry.get("part", [entry])

    def check(answer):
        cases = entry.get("cases", [""])
        if fresh.get() is not None:
            cases = [entry["fresh"]] * FRESH_CASES if "fresh" in entry else cases
        for case in cases:
            check_case(answer, value(f"[{case}]", {}))

    def check_case(answer, arguments):
        names = named(entry, arguments)
        got = answer(*arguments) if "of" in entry else answer
        found = pieces(got, len(parts), entry["returns"]) if "part" in entry else (got,)
        for part, one in zip(parts, found, strict=True):
            wanted = value(part["answer"], names)
            mistakes = [
                (value(wrong, names), why) for wrong, why in part.get("mistakes", {}).items()
            ]
            otherwise = part["otherwise"].format(**names, wanted=wanted)
            right(one, wanted, otherwise, *mistakes, relative=entry.get("relative", 1e-6))

    return check


for number, entry in FORMULAS.items():
    exercise(number, *entry["hints"], function="of" in entry)(formula(entry))


# Exercises that need more than a formula


@exercise(
    "1.3",
    (
        "Put a value on the stack twice: once to look at its inputs, and once more, below them, to "
        "list it."
    ),
    "Stack pairs (value, inputs_done). Pop one: if its inputs are done, append it to the list; "
    "otherwise, if you have "
    "not seen it, push (value, True), then (input, False) for each input.",
)
def inputs_first_by_a_loop(f):
    a = Node()
    b, c = Node(a), Node(a)
    d = Node(b, c, a)
    result = Node(d, d, c)
    found = in_order(f, [a, b, c, d, result])
    expect(
        len(found) == 5, f"it lists {len(found)} values of a graph that has 5, the result included"
    )
    first = Node()
    chain = [first]
    for _ in range(10_000):
        chain.append(Node(chain[-1], first))
    expect(len(in_order(f, chain)) == 10_001, "it loses values of a long chain")


def in_order(f, graph):
    """What is found of a graph whose result comes last: values of it, each once, inputs first."""
    inputs = {id(value): value.inputs for value in graph}
    found = f(graph[-1])
    expect(isinstance(found, (list, tuple)), "return a list of values")
    found = list(found)
    expect(all(id(value) in inputs for value in found), "it lists what is not in the graph")
    places = {id(value): place for place, value in enumerate(found)}
    expect(
        len(places) == len(found),
        "a value that is used twice is listed twice: remember what you have seen",
    )
    for value in found:
        late = [
            source for source in inputs[id(value)] if places.get(id(source), -1) > places[id(value)]
        ]
        expect(not late, "an input comes after a value that is computed from it")
    return found


@exercise(
    "1.4",
    "By the chain rule, backward returns g times the slope.",
    "g / (1 + abs(x)) ** 2; abs, +, ** and / work on tensors.",
    function=False,  # a class
    again=True,
)
def softsign(op):
    expect(
        isinstance(op, type) and issubclass(op, tp.Op),
        "the answer is the class, a subclass of tp.Op",
    )
    places = np.array([-1.3, -0.4, 0.3, 1.7])
    if fresh.get() is not None:
        places = places * between(0.5, 3)
    x = tp.tensor(places, requires_grad=True, dtype="float64")
    g = draws(4)
    try:
        out = op()(x)
        (found,) = tp.grad(out, [x], g, retain_graph=True)
    except (TypeError, tp.GradientError) as error:
        raise NotYet(f"it stops with: {error}") from error
    slope = 1 / (1 + abs(x.data)) ** 2
    right(out, x.data / (1 + abs(x.data)), "forward does not compute x / (1 + |x|)")
    right(
        found,
        g * slope,
        "backward does not agree with a central difference",
        (g, "backward hands the gradient on as it is: multiply it by the slope"),
        (slope, "backward returns the slope alone: multiply it by the gradient g that arrives"),
    )
    try:
        tp.check_gradients(lambda x: op()(x), x)
    except Exception:
        raise NotYet(
            "the slope is right, but its own slope is not: compute with tensors, not with x.data"
        ) from None


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@exercise(
    "2.2",
    "What you said, minus what is true, and the loss is a mean over n rows.",
    (
        "Compute p = softmax of each row after subtracting its largest logit, subtract 1 at the "
        "label, divide by n."
    ),
)
def cross_entropy_gradient(f):
    z, labels = 2 * draws(6, 4), np.array([0, 3, 1, 1, 2, 0])
    p = softmax(z)
    wanted, probabilities = (
        (p - np.eye(4)[labels]) / 6,
        "these are the probabilities: subtract 1 at the right class",
    )
    right(
        f(z, labels),
        wanted,
        "it does not agree with central differences",
        (p, probabilities),
        (p / 6, probabilities),
        (6 * wanted, "that is the gradient of the sum of the losses; the loss is their mean"),
        (-wanted, "the sign is wrong: a larger logit of the right class makes the loss smaller"),
    )
    with np.errstate(all="ignore"):
        try:
            large = numbers(f(1000 * z, labels), z.shape)
        except NotYet:
            raise NotYet(
                "logits of 1,000 overflow: subtract the largest logit of each row first"
            ) from None
    right(large, (softmax(1000 * z) - np.eye(4)[labels]) / 6, "it is wrong for logits of 1,000")


@exercise(
    "3.4",
    (
        "What counts for the next layer is the mean square of s(Z), Z standard normal, not its "
        "variance."
    ),
    "g = 1 / sqrt(mean of s(z)**2) for many normal z.",
)
def gain(f):
    a = usual(2, between, 1.5, 3)
    b = usual(1, between, 0.7, 1.5)
    cases = {
        "ReLU": (lambda z: np.maximum(z, 0), 0.5, 0.5 - C2**2),
        "the absolute value": (abs, 1.0, 1 - 2 / math.pi),
        f"{a} z + {b}": (lambda z: a * z + b, a * a + b * b, a * a),
    }
    for name, (s, square, variance) in cases.items():
        right(
            f(s),
            square**-0.5,
            f"for {name} it is {square**-0.5:.3f}",
            (
                variance**-0.5,
                f"for {name} you divide by the standard deviation; the mean counts, too",
            ),
            (square**0.5, f"for {name} it is upside down: a faint activation needs large weights"),
            relative=0.02,
        )


@exercise(
    "10.3",
    (
        "Group the runs by their rate, average the validation error of each group, and take the "
        "smallest."
    ),
    "A run that diverged has None: count it as an error of 0.9, which is chance.",
)
def best_rate(f):
    """A rate that is best by one lucky run, one that is best on test images, one that diverges, and
    the right one."""
    scale = usual(1, between, 1.1, 3)
    table = {
        0.3 * scale: (None, 0.1, None),
        0.1 * scale: (0.2, 0.6, 0.6),
        0.03 * scale: (0.3, 0.3, 0.35),
        0.01 * scale: (0.5, 0.5, 0.45),
    }
    runs = [
        {"rate": r, "seed": i, "valid": v, "test": v}
        for r, vs in table.items()
        for i, v in enumerate(vs)
    ]
    runs = [run | {"test": 0.05} if run["rate"] == 0.01 * scale else run for run in runs]
    got = f([dict(run) for run in runs])
    expect(
        not (isinstance(got, float) and got in (0.05, 0.01 * scale)),
        "the test images are for the end: use validation",
    )
    right(
        got,
        0.03 * scale,
        "it is another rate",
        (0.5, "return the rate, not its error"),
        (
            0.3 * scale,
            "at this rate most runs diverged: they count as errors of 0.9 in the mean over seeds",
        ),
        (0.1 * scale, "compare the mean over seeds, not the best run"),
    )


@exercise(
    "E2.1",
    (
        "np.polynomial.legendre.leggauss(n) gives points and weights on [-1, 1]; stretch both to "
        "[-9, 9]."
    ),
    (
        "weights * 9 * exp(-z^2/2) / sqrt(2 pi), z = 9 * points; variance = mean of the square "
        "minus "
        "the squared mean."
    ),
)
def constants(f):
    shift = usual(1, between, 0.5, 2)
    cases = {
        "tanh": (np.tanh, 0.0, tp.moments.gaussian("tanh").std),
        "z^2": (np.square, 1.0, math.sqrt(2.0)),
        f"sin(z) + {shift}": (
            lambda z: np.sin(z) + shift,
            shift,
            math.sqrt((1 - math.exp(-2)) / 2),
        ),
    }
    for name, (s, want_mean, want_std) in cases.items():
        mean, std = pieces(f(s), 2, "the mean and the standard deviation")
        expect(
            abs(float(numbers(mean, ())) - want_mean) < 1e-10,
            f"the mean of {name} is {want_mean:.10f}",
        )
        right(
            std,
            want_std,
            f"the standard deviation of {name} is {want_std:.10f}",
            (want_std**2, "that is the variance"),
            (
                math.hypot(want_mean, want_std),
                "that is the root mean square: subtract the squared mean",
            ),
            relative=1e-9,
        )


@exercise(
    "E3.1",
    (
        "F.var is one op on the batch, and so is x - mean; multiply that by one over the root of "
        "the small array var + eps instead of dividing."
    ),
    "d = x - F.mean(x, axis=0); return d * (1 / F.sqrt(F.var(x, axis=0) + 1e-5)).",
)
def lean_batch_norm(f):
    data = draws(200, 20).astype(np.float32)
    sizes, call = [], tp.Op.__call__
    x = tp.tensor(data, requires_grad=True)
    tp.Op.__call__ = given.watches(call, sizes)
    try:
        out = f(x)
        expect(isinstance(out, tp.Tensor), "return a tensor")
        tp.grad(out, [x], draws(200, 20, seed=1).astype(np.float32))
    finally:
        tp.Op.__call__ = call
    wanted = (data - data.mean(axis=0)) / np.sqrt(data.var(axis=0) + 1e-5)
    right(out, wanted, "a unit does not have mean 0 and variance 1 over the batch", relative=1e-3)
    count = sum(size >= data.size for size in sizes)
    expect(
        count <= 8, f"it takes {count} ops on whole batches, forwards and backwards; 8 are enough"
    )


@exercise(
    "E3.2",
    "p.backend and p.dtype, for p in net.parameters().",
    "{(p.backend, str(p.dtype)) for p in ...}.",
)
def where_is(f):
    net = tp.nn.Sequential(tp.nn.Linear(2, 3), tp.nn.BatchNorm(3))
    backend = net[0].weight.backend
    first = f(net)
    expect(isinstance(first, set), "return a set of pairs")
    expect(
        set(first) == {(backend, "float32")},
        f"for a new network it is {{({backend!r}, 'float32')}}, not {first}",
    )
    net[1].to(dtype="float64")
    both = {(backend, "float32"), (backend, "float64")}
    expect(
        set(f(net)) == both,
        "it misses parameters: one layer of this network is float64, the other float32",
    )


@exercise(
    "E3.3",
    "NumPy's generators draw float64 unless told otherwise.",
    "standard_normal(x.shape, np.float32).",
)
def add_noise(f):
    x = tp.zeros(3, 4)
    out = f(x)
    expect(isinstance(out, tp.Tensor) and out.shape == x.shape, "return a tensor of the shape of x")
    expect(out.data.any(), "there is no noise")
    expect(str(out.dtype) != "float64", "the noise is float64, and so is the result")
    expect(str(out.dtype) == "float32", f"the result is {out.dtype}, not float32")
    expect(out.data.std() > 0, "the same number is added everywhere: draw one for each element")


@exercise(
    "E4.1",
    "Let rank r begin where rank r - 1 ended.",
    "Rank r has the samples from ceil(samples * r / ranks) to ceil(samples * (r + 1) / ranks).",
)
def shares(f):
    many = usual(24, whole, 30, 90)
    few = usual(4, whole, 5, 9)
    for samples, ranks in ((many, few), (few - 1, few), (2 * few + 2, few), (7, 2)):
        got = numbers(f(samples, ranks), (ranks,))
        expect(
            got.sum() == samples, f"of {samples} samples on {ranks} ranks, {got.sum():.0f} are used"
        )
        expect(
            got.min() >= 0 and (got == got.round()).all(), "a share is a whole number of samples"
        )
        expect(
            got.max() - got.min() <= 1,
            f"{samples} samples on {ranks} ranks: some rank has two more than another",
        )
        expect(
            samples >= ranks or (np.diff(got) <= 0).all(),
            "with fewer samples than ranks, the last ranks have none",
        )


@exercise("E4.2", "A very large number swallows a small one.", "1e16 + 1 is 1e16.", function=False)
def three_numbers(answer):
    parts = pieces(answer, 3, "a, b and c")
    expect(all(isinstance(x, float) for x in parts), "take floating-point numbers, such as 1.0")
    a, b, c = numbers(parts, (3,)).tolist()
    expect((a + b) + c != a + (b + c), f"both sums are {a + b + c:g}")


import projects  # noqa: E402, F401  (registers those of the projects, as the last of their lessons)
