"""What the laboratory computes in the page, without a browser: formulas, questions and training."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.theory.stacks import Stack

LAB = Path(__file__).parent.parent / "docs" / "lab"
sys.path.append(str(LAB))

import formula  # noqa: E402
import jobs  # noqa: E402
import lab  # noqa: E402
import training  # noqa: E402

COURSE = json.loads((LAB / "course.json").read_text())
FIRST = {"norm": "normprop", "activation": "relu", "depth": 20, "width": 100, "batch": 64}
FIRST |= {"gamma": None, "beta": None, "residual": False}
OUTCOMES = {
    "depth": "falls",
    "gamma": "grows",
    "batch": "grows",
    "relu": "falls",
    "width": "same",
    "residual": "falls",
}


@pytest.mark.parametrize(
    ("text", "function", "kinks"),
    [
        ("x * sigmoid(x)", lambda x: x / (1.0 + np.exp(-x)), ()),
        ("max(x - 1, 0) + 2", lambda x: np.maximum(x - 1.0, 0.0) + 2.0, (1.0,)),
        ("abs(x + 0.5)**2", lambda x: (x + 0.5) ** 2, (-0.5,)),
        ("clip(x^2, 1, 4)", lambda x: np.clip(x * x, 1.0, 4.0), (-2.0, -1.0, 1.0, 2.0)),
        ("-sin(pi * x) / 2", lambda x: -0.5 * np.sin(np.pi * x), ()),
    ],
)
def test_a_formula_is_its_function(text, function, kinks):
    x = np.linspace(-3.0, 3.0, 41)
    own = formula.activation(text)
    np.testing.assert_allclose(own(tp.tensor(x)).numpy(), function(x), rtol=1e-12, atol=1e-12)
    assert own.kinks == kinks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Type a formula"),
        ("x +", "cannot read"),
        ("sigmod(x)", "Did you mean sigmoid"),
        ("y", "I do not know 'y'"),
        ("max(x)", "max takes 2 arguments, but here it has 1"),
        ("log(x)", "no finite value at x = -8"),
        ("1 / x", "no finite value at x = 0"),
        ("sin(3)", "does not contain x"),
        ("0 * x", "the same value everywhere"),
        ("x**x", "A power is a number"),
        ("x**(9**9**9)", "A power is a number"),
        ("__import__('os').system('ls')", "I do not"),
        ("x.data", "I do not understand 'x.data'"),
        ("[x][0]", "I do not understand"),
        ("(lambda: x)()", "I do not understand"),
        ("x" * 201, "more than 200 characters"),
    ],
)
def test_what_is_wrong_with_a_formula_is_said_in_words(text, words):
    with pytest.raises(formula.FormulaError, match=words.replace("(", r"\(")):
        formula.activation(text)


@pytest.mark.parametrize(
    ("text", "gamma", "words"),
    [
        ("abs(x + 0.5)**2", 1.15, "grow beyond what a computer can hold"),
        ("max(x - 1, 0) + 2", 0.3, "got: a function whose moments over N"),
    ],
)
def test_a_network_without_numbers_is_refused_in_words(text, gamma, words):
    stack = {**FIRST, "activation": {"formula": text}, "gamma": gamma}
    job = jobs.theory({"stack": stack, "layer": 20})
    name, answer = json.loads(jobs.step(job, None))
    assert name == "error"
    assert words in answer["text"]


def theory(part):
    setting = {**FIRST, **part}
    name, _, init = setting.pop("norm").partition("/")
    if text := setting.pop("formula", None):
        setting["activation"] = formula.activation(text)
    return lab.theory(Stack(norm=name, init=init or None, **setting), setting["depth"])


def measured(numbers, name):
    """As in questions.js."""
    if name == "correlation":
        return numbers["correlation"][np.isclose(numbers["cosines"], 0.5)].item()
    return numbers["signal"][-1] if name == "signal" else numbers["gradient"][0]


@pytest.mark.parametrize("question", COURSE["questions"], ids=lambda each: each["id"])
def test_a_question_has_the_answer_that_its_reason_explains(question):
    before, after = (
        measured(theory(question[when]), question["measure"]) for when in ("before", "after")
    )
    ratio = after / before
    outcome = "grows" if ratio > 1.25 else "falls" if ratio < 0.8 else "same"
    assert outcome == OUTCOMES[question["id"]]


def test_examples_show_what_their_notes_say():
    faded = theory(COURSE["presets"][-1]["setting"])
    assert 1e-7 < faded["signal"][-1] < 1e-5
    (unit,) = [p["setting"] for p in COURSE["presets"] if p["setting"].get("gamma") == 1]
    gradient = theory(unit)["gradient"]
    assert gradient[0] == pytest.approx(1.2112**19, rel=1e-3)
    for preset in COURSE["presets"]:
        assert preset["note"]
        theory(preset["setting"])


def test_a_band_holds_each_of_its_networks():
    stack = Stack("normprop", "relu", 4, 16, 8, False)
    panels = dict(lab.panels(stack, layer=4, seed=3, networks=3))
    curves = [lab.one_more(stack, seed) for seed in (4, 5)]
    curves.append({"signal": panels["network"]["signal"]})
    band = panels["band"]
    assert band["networks"] == 3
    signals = [curve["signal"] for curve in curves]
    np.testing.assert_array_equal(band["signal lowest"], np.min(signals, axis=0))
    np.testing.assert_array_equal(band["signal highest"], np.max(signals, axis=0))


@pytest.mark.parametrize("norm", ["batch", "normprop", "layer"])
def test_only_batch_norm_knows_the_difference_between_train_and_eval(norm, monkeypatch):
    monkeypatch.setattr(training, "STEPS", 60)
    monkeypatch.setattr(training, "FRAME", 0.0)
    job = training.train(norm, None, "relu", "circle", batch=8, rate=0.03, seed=0)
    answers = {}
    for name, numbers in job:
        answers[name] = numbers
        if name == "finished":
            break
    train = answers["finished"]
    _, evaluated = job.send({"mode": "eval"})
    _, again = job.send({"mode": "train"})
    assert (train["map"] == again["map"]).all()
    assert (train["map"] == evaluated["map"]).all() == (norm != "batch")
    assert train["eval"][-1] < train["eval"][0]
    assert len(train["map"]) == training.SIDE**2
