"""Every verdict, turned all ways by invented points: a claim that no data can refute is none."""

import re

import pytest

from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.beyond import STARTS
from tinyprop.experiments.scales import SCALES
from tinyprop.experiments.statistics import rounded

HIGH, LOW, EVEN, WIDE = (80.0, 80.5, 81.0), (20.0, 20.5, 21.0), (50.0, 50.1, 49.9), (5.0, 95.0, 50.0)
LOST, SOME_HIGH, SOME_LOW = (None, None, None), (80.0, 80.5, None), (20.0, 20.5, None)


def steady(value):
    return {"accuracy": [value] * 3}


def falling(value):
    """An accuracy whose spread and fall both grow as the value falls."""
    return {"accuracy": [100.0, value, value]}


def inputs(value):
    """Mean inputs of units that move farther from 0 as the value falls."""
    readings = [f"{reading}_{what}" for reading in ("activated", "arriving") for what in ("chosen", "size")]
    quantiles = {f"{reading}_q{q}": 0.0 for reading in ("activated", "arriving") for q in (5, 25, 50, 75, 95)}
    layers = [
        {"epoch": epoch, "layer": layer, **dict.fromkeys(readings, mean), **quantiles}
        for epoch, mean in ((1, 0.0), (2, 100.0 - value))
        for layer in range(1, 10)
    ]
    return {"accuracy": [50.0] * 2, "layers": layers}


def runs(values, make=steady):
    """A run for each seed; None is one that diverged in its first epoch."""
    return [
        {"seed": seed, "diverged": None, "train_loss": [1.0], **make(value)}
        if value is not None
        else {"seed": seed, "diverged": {"epoch": 1}, "accuracy": [], "train_loss": [], "layers": []}
        for seed, value in enumerate(values)
    ]


def judge(name, points, measured=None):
    """The findings of an experiment; settings that are not given have an accuracy of 50 %, as `points[""]` may change.

    If a run diverged, the words have to say so, and a picture has to be possible.
    """
    experiment = EXPERIMENTS[name]
    settings = list(experiment.settings(SCALES["laptop"]))
    data = {
        "settings": dict.fromkeys(settings),
        "images": {label: {"train": 10} for label in settings},
        "not_run": {},
        "points": {label: points.get(label, points.get("", runs(EVEN))) for label in settings},
        "measured": measured or {},
    }
    data = rounded(data)
    data["summary"] = rounded(experiment.summarise(data))
    if any(run["diverged"] for some in data["points"].values() for run in some):
        assert re.search("diverged", experiment.tell(data))
        assert not re.search(r"\bnan\b|None|\{", experiment.tell(data))
        assert experiment.draw(data).axes
    return [finding.supported for finding in experiment.findings(data)]


def start(forward, backward):
    """Signals of two layers, for as many seeds as there are factors."""
    return [{"std": [1.0, f], "gradient_std": [b, 1.0]} for f, b in zip(forward, backward, strict=True)]


KEPT = {label: start((1.0, 1.1), (1.0, 1.1)) for label in STARTS}
SIDES = [  # experiment, number of the finding, who is to be better than whom, and what a higher value makes better
    *(("covariate-shift", i, "NormProp", "BatchNorm", inputs) for i in range(6)),
    *(("convergence", i, "NormProp", "BatchNorm", falling) for i in (0, 1)),
    *(("convergence", i, "NormProp", "BatchNorm", steady) for i in (2, 3)),
    ("batch-size", 2, "NormProp, batch 1", "NormProp, batch 250", steady),
    ("results", 0, "NormProp, CIFAR-10", "BatchNorm, CIFAR-10", steady),
    ("results", 1, "BatchNorm, CIFAR-10 with flips", "NormProp, CIFAR-10 with flips", steady),
    ("results", 4, "NormProp, SVHN", "BatchNorm, SVHN", steady),
    ("jacobian-factor", 2, "gamma = 1/1.21", "gamma = 1", steady),
    ("optimizers", 0, "momentum 0.9", "RMSProp", steady),
    ("optimizers", 1, "RMSProp", "SGD", steady),
    ("optimizers", 2, "momentum 0.9", "SGD", steady),
    ("dropout", 0, "NormProp, without", "NormProp, with dropout", steady),
    ("dropout", 1, "BatchNorm, without", "BatchNorm, with dropout", steady),
]
BETTER = [
    (HIGH, LOW, True),
    (LOW, HIGH, False),
    (WIDE, EVEN, None),
    (HIGH, LOST, True),
    (LOST, HIGH, False),
    (LOST, LOST, None),
    (SOME_HIGH, LOW, None),
    (HIGH, SOME_LOW, None),
    (LOST, SOME_HIGH, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "finding", "ours", "theirs", "make"), SIDES)
@pytest.mark.parametrize(("high", "low", "verdict"), BETTER)
def test_one_is_better_than_the_other(name, finding, ours, theirs, make, high, low, verdict):
    def of(side, values):
        labels = EXPERIMENTS[name].settings(SCALES["laptop"])
        return {label: runs(values, make) for label in labels if label == side or label.startswith(f"{side}, rate")}

    points = {"": runs(EVEN, make), **of(ours, high), **of(theirs, low)}
    assert judge(name, points, KEPT)[finding] is verdict


ALIKE = [
    ((50.0, 50.1, 49.9), True),
    ((50.5, 50.61, 50.4), True),  # a difference that is clear, but too small to matter
    ((53.0, 53.1, 52.9), False),
    ((47.0, 47.1, 46.9), False),
    ((51.0, 53.0, 52.0), None),
    (WIDE, None),
    (LOST, False),
    ((50.0, 50.1, None), None),
    ((53.0, 53.1, None), None),
]


@pytest.mark.parametrize(("values", "verdict"), ALIKE)
@pytest.mark.parametrize(
    ("name", "finding", "label"),
    [("data-normalization", 0, f"global, batches of {size}") for size in (50, 100)]
    + [("batch-size", 1, f"NormProp, batch {size}") for size in (1, 10, 100, 250)],
)
def test_both_are_alike(name, finding, label, values, verdict):
    assert judge(name, {label: runs(values)})[finding] is verdict


CHANCE = [
    ((11.0, 11.1, 11.2), True),
    ((10.0, 10.0, 10.0), False),
    ((9.0, 9.1, 9.2), False),
    ((9.0, 11.0, 10.0), None),
    (LOST, False),
    (SOME_HIGH, None),
]


@pytest.mark.parametrize(("values", "verdict"), CHANCE)
@pytest.mark.parametrize(("name", "label"), [("batch-size", "NormProp, batch 1"), ("activations", "tanh")])
def test_it_trains(name, label, values, verdict):
    assert judge(name, {label: runs(values)})[0] is verdict


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [((0.9, 1.1, 1.3), True), ((3.0, 3.1, 3.2), False), ((0.1, 0.11, 0.12), False), ((0.6, 2.0, 1.0), None)],
)
def test_signals_are_kept(factors, verdict):
    base, same = "gamma = 1/1.21", (1.0, 1.1, 1.0)
    assert judge("jacobian-factor", {}, KEPT | {base: start(same, factors)})[:2] == [verdict, True]
    assert judge("jacobian-factor", {}, KEPT | {base: start(factors, same)})[:2] == [True, verdict]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.9, True), (1.1, False), (None, None)])
def test_it_is_faster(seconds, verdict):
    ours = [seconds] * 6 if seconds else [0.9, 1.1] * 3
    measured = {"seconds": {"NormProp": ours, "BatchNorm": [1.0] * 6}, "where": "an abacus", "batch": 1, "width": 1.0}
    assert judge("speed", {}, measured) == [verdict]


def test_the_confidence_that_is_told_is_the_one_that_is_reached():
    speed = EXPERIMENTS["speed"]
    for rounds, told in ((5, "93.8 %"), (6, "96.9 %"), (15, "96.5 %")):
        seconds = {"NormProp": [0.5] * rounds, "BatchNorm": [1.0] * rounds}
        data = {"measured": {"seconds": seconds, "where": "an abacus"}}
        data["summary"] = speed.summarise(data)
        (finding,) = speed.findings(data)
        assert f"({told}: 0.500 to 0.500), on an abacus" in finding.ours
        assert "GPU" not in finding.claim


def test_every_finding_is_turned():
    tested = {(name, i) for name, i, *_ in SIDES} | {("results", 2), ("results", 3)}  # as the others of that table
    tested |= {("data-normalization", 0), ("batch-size", 0), ("batch-size", 1), ("activations", 0), ("speed", 0)}
    tested |= {("jacobian-factor", 0), ("jacobian-factor", 1)}
    measured = KEPT | {"seconds": {"NormProp": [1.0], "BatchNorm": [1.0]}, "where": "here", "batch": 1, "width": 1.0}
    for name in EXPERIMENTS:
        own = {k: v for k, v in measured.items() if (k in KEPT) == (name == "jacobian-factor")}
        points = {"": runs(EVEN, inputs)} if name == "covariate-shift" else {}
        assert {i for n, i in tested if n == name} == set(range(len(judge(name, points, own)))), name
