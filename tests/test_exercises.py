"""The exercises of the course: each checker accepts what is right, and says of each usual mistake
what is wrong."""

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
    return type(
        "Softsign", (tp.Op,), {"forward": lambda self, x: x / (1 + abs(x)), "backward": backward}
    )


def slope(x):
    return 1 / (1 + abs(x)) ** 2


def overflowing(z, labels):
    with np.errstate(all="ignore"):
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return (p - np.eye(z.shape[1])[labels]) / len(z)


def heavy_batch_norm(x):
    return (x - F.mean(x, axis=0)) / F.sqrt(F.var(x, axis=0) + 1e-5)


def even_shares(samples, ranks):
    ends = [math.ceil(samples * r / ranks) for r in range(ranks + 1)]
    return [b - a for a, b in itertools.pairwise(ends)]


def moments_of(s, spread):
    z, weights = np.polynomial.legendre.leggauss(160)
    bell = 9 * weights * np.exp(-40.5 * z * z) / math.sqrt(2 * math.pi)
    mean = bell @ s(9 * z)
    return mean, spread(mean, bell @ s(9 * z) ** 2)


WRONG = {  # answers that are no formulas, and a part of what is said of each
    "1.3": [
        (preorder, "listed twice"),
        (recursive, "calls itself too often"),
        (results_first, "comes after a value"),
        (lambda value: [value], "lists 1 values"),
        (lambda value: [type(value)() for _ in range(5)], "not in the graph"),
        (lambda value: {value}, "return a list"),
    ],
    "1.4": [
        (softsign(lambda self, g, x: g), "as it is"),
        (softsign(lambda self, g, x: slope(x)), "slope alone"),
        (softsign(lambda self, g, x: g / (1 + abs(x))), "central difference"),
        (softsign(lambda self, g, x: g * tp.tensor(slope(x.data))), "with tensors"),
        (softsign(lambda self, g, x: g.data), "it stops with"),
        (type("Bare", (), {}), "subclass of tp.Op"),
    ],
    "2.2": [
        (lambda z, y: exercises.softmax(z), "these are the probabilities"),
        (lambda z, y: exercises.softmax(z) - np.eye(z.shape[1])[y], "their mean"),
        (lambda z, y: (np.eye(z.shape[1])[y] - exercises.softmax(z)) / len(z), "the sign is wrong"),
        (overflowing, "overflow"),
        (lambda z, y: z / len(z), "central differences"),
    ],
    "3.4": [
        (
            lambda s: 1 / s(np.random.default_rng(1).standard_normal(10**5)).std(),
            "the mean counts, too",
        ),
        (
            lambda s: np.sqrt((s(np.random.default_rng(1).standard_normal(10**5)) ** 2).mean()),
            "upside down",
        ),
        (lambda s: 1.0, "for ReLU it is 1.414"),
    ],
    "10.3": [
        (lambda runs: min(r["test"] for r in runs if r["test"] is not None), "test images"),
        (lambda runs: min(runs, key=lambda r: r["valid"] or 0)["rate"], "diverged"),
        (
            lambda runs: min((r for r in runs if r["valid"]), key=lambda r: r["valid"])["rate"],
            "mean over seeds",
        ),
        (
            lambda runs: min((r for r in runs if r["test"]), key=lambda r: r["test"])["rate"],
            "test images",
        ),
    ],
    "E2.1": [
        (lambda s: (1.0, 1.0), "the mean of tanh"),
        (lambda s: moments_of(s, lambda mean, square: square - mean**2), "that is the variance"),
        (lambda s: moments_of(s, lambda mean, square: math.sqrt(square)), "root mean square"),
        (lambda s: moments_of(s, lambda mean, square: 0.1), "the standard deviation of tanh"),
    ],
    "E3.1": [
        (heavy_batch_norm, "ops on whole batches"),
        (lambda x: x - F.mean(x, axis=0) + 0 * x, "variance 1"),
        (lambda x: x.numpy(), "return a tensor"),
    ],
    "E3.2": [
        (lambda net: [("numpy", "float32")], "return a set"),
        (lambda net: {("numpy", "float64")}, "for a new network"),
        (
            lambda net: {(p.backend, str(p.dtype)) for p in list(net.parameters())[:1]},
            "misses parameters",
        ),
    ],
    "E3.3": [
        (lambda x: x + tp.tensor(np.ones(x.shape)), "float64"),
        (lambda x: x, "no noise"),
        (lambda x: x + 1, "the same number is added everywhere"),
        (lambda x: 1.0, "return a tensor"),
        (lambda x: tp.tensor(np.ones(x.shape, np.float16)), "not float32"),
    ],
    "E4.1": [
        (lambda samples, ranks: [samples // ranks] * ranks, "are used"),
        (lambda samples, ranks: [samples / ranks] * ranks, "whole number"),
        (lambda samples, ranks: [samples] + [0] * (ranks - 1), "two more than another"),
        (lambda samples, ranks: even_shares(samples, ranks)[::-1], "the last ranks have none"),
        (lambda samples, ranks: samples, "shape"),
    ],
    "E4.2": [
        ((1.0, 2.0, 3.0), "both sums are 6"),
        ((1, 10**16, -(10**16)), "floating-point"),
        ((1.0, 2.0), "return 3 things"),
        ((1e308, 1e308, -math.inf), "not finite"),
    ],
    "1.2": [(lambda a, b: a / b, "return 3 things: the value")],
    "2.1": [(lambda a, b, g: (g @ b, a.T @ g), "it stops with ValueError")],
    "4.4": [(lambda b: math.inf, "not finite")],
    "5.4": [("many", "a number or an array")],
    "9.3": [
        (lambda v, g, d: (v, np.ones(3)), "does not agree"),
        (lambda v, g, d: (1.0, 2.0), "it has shape (), not (5,)"),
    ],
}


PROJECTS = ("1.5", "2.5", "2.6", "6.5", "6.6")  # tests/test_projects.py has their mistakes
CASES = [(number, answer, says) for number, cases in WRONG.items() for answer, says in cases]


@pytest.mark.parametrize(
    ("number", "answer", "says"), CASES, ids=[f"{n}: {says}" for n, _, says in CASES]
)
def test_a_mistake_is_recognised(number, answer, says):
    wrong = checks.verdict(number, answer)
    assert wrong is not None, "accepted"
    assert says in wrong


def answer(number, place=None, expression=None):
    """What exercises.toml says is right; in one place, this expression instead."""
    entry = exercises.FORMULAS[number]
    expressions = [part["answer"] for part in entry.get("part", [entry])]
    if place is not None:
        expressions[place] = expression

    def function(*arguments):
        names = exercises.named(entry, arguments)
        values = [exercises.value(expression, names) for expression in expressions]
        return values if "part" in entry else values[0]

    return function if "of" in entry else function()


PARTS = [
    (number, i, part)
    for number, e in exercises.FORMULAS.items()
    for i, part in enumerate(e.get("part", [e]))
]


@pytest.mark.parametrize(
    ("number", "place", "part"), PARTS, ids=[f"{number} {i}" for number, i, _ in PARTS]
)
def test_each_mistake_in_a_formula_has_its_own_sentence(number, place, part):
    """No mistake passes as right, or as another one."""
    assert checks.verdict(number, answer(number)) is None
    for expression, sentence in part.get("mistakes", {}).items():
        assert checks.verdict(number, answer(number, place, expression)) == sentence, expression
    otherwise = re.sub(r"\\{.*?\\}", ".+", re.escape(part["otherwise"]))
    assert re.fullmatch(
        otherwise, checks.verdict(number, answer(number, place, f"3 * ({part['answer']}) + 17"))
    )


FUNCTIONS = [number for number, entry in exercises.FORMULAS.items() if "of" in entry]


@pytest.mark.parametrize("number", FUNCTIONS)
def test_a_right_answer_is_right_for_all_fresh_numbers(number):
    for seed in range(25):
        assert checks.verdict(number, answer(number), seed) is None


@pytest.mark.parametrize("number", FUNCTIONS)
def test_answers_to_the_numbers_of_the_lesson_are_not_enough(number):
    """A table of what is right there: the last of them stands for all others."""
    known = {}

    def table(*arguments):
        key = repr(arguments)
        if checks.fresh.get() is None:
            known[key] = answer(number)(*arguments)
        return known.get(key, list(known.values())[-1])

    wrong = checks.verdict(number, table, seed=0)
    assert wrong is not None
    assert wrong.startswith("it is right for the numbers of the lesson, but not for others: ")


ODD = [3.5, "text", [1, [2]], {"a": 1}, 1j, object(), int, lambda *a: {}, lambda *a: 1j, lambda: 0]


@pytest.mark.parametrize("number", checks.EXERCISES)
def test_an_odd_answer_gets_words(number):
    for odd in ODD:
        assert isinstance(checks.verdict(number, odd), str), odd


def test_a_number_for_a_function_and_an_unknown_exercise_get_words(capsys):
    assert "the answer is the function, not float" in checks.verdict("3.1", 0.5)
    checks.check("3.9", abs)
    checks.hint("11.1")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "there is no exercise 3.9; lesson 3 has 3.1, 3.2, 3.3, 3.4"
    assert second == "there is no exercise 11.1; see the lesson's text"


def test_every_exercise_has_hints_a_hole_and_mistakes():
    tested = set(WRONG) | set(exercises.FORMULAS) | set(PROJECTS)
    assert tested == set(checks.EXERCISES)
    lessons = {
        path.stem.split("_")[0].lstrip("0"): path.read_text()
        for path in COURSE.glob("[0-9E][0-9]*_*.py")
    }
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
    if number not in ("1.4", "1.5", "2.5", "2.6", "5.4", "6.5", "E4.2"):
        assert "fill in" in checks.verdict(number, lambda *args, **named: None)
        assert "it stops with ZeroDivisionError" in checks.verdict(
            number, lambda *args, **named: 1 / 0
        )


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
    assert lines[0].endswith("Put a number after the question")
    assert lines[1] == "height: 3"
    assert lines[2] == lines[4] == "height: 2; you said 3, 1.5 times the answer"
    assert lines[3] == "height: you have seen the answer; your guess stays 3.0"


@pytest.mark.parametrize(
    ("guess", "answer", "says"), [(None, 2.0, ": 2"), (1.0, 0.0, "off by +1"), (-1.0, 2.0, "-3")]
)
def test_a_prediction_is_compared(guess, answer, says, capsys, monkeypatch):
    monkeypatch.setattr(checks, "_guesses", {"q": guess})
    monkeypatch.setattr(checks, "_revealed", set())
    checks.reveal("q", answer)
    assert says in capsys.readouterr().out


def test_a_page_hears_of_answers_and_locks_those_to_predictions(monkeypatch, capsys):
    heard = []
    monkeypatch.setattr(checks, "listeners", [lambda *event: heard.append(event)])
    monkeypatch.setattr(checks, "locked", True)
    checks.check("E4.2", (1.0, 2.0, 3.0))
    checks.check("E4.2", (1e16, -1e16, 1.0))
    assert heard[0][:2] == ("check", "E4.2")
    assert "both sums" in heard[0][2]
    assert heard[1] == ("check", "E4.2", None)
    question = "a question of this test"
    checks.predict(question)
    checks.reveal(question, 4321.0)
    assert "4.32e+03" not in capsys.readouterr().out
    checks.predict(question, 4000.0)
    checks.predict(question)  # a cell that runs again does not forget the guess
    checks.reveal(question, 4321.0)
    assert "4.32e+03; you said 4000" in capsys.readouterr().out
    assert ("reveal", question, 4321.0) in heard
