"""Every recipe: which points it asks for, and what it makes of them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tinyprop.experiments import EXPERIMENTS, points
from tinyprop.experiments.command import without_doubles
from tinyprop.experiments.points import Store, key
from tinyprop.experiments.recipe import compare, curves, gather, points_words
from tinyprop.experiments.report import comparison, gallery
from tinyprop.experiments.scales import SCALES

NAMES = list(EXPERIMENTS)


def configs(name, scale):
    return [c for many in EXPERIMENTS[name].configs(SCALES[scale], "numpy").values() for c in many]


class Invented(Store):
    """Results that no run produced, the same each time, to test what is made of results."""

    def result(self, config):
        random = np.random.default_rng(int(key(config)[-8:], 16))
        better = {"normprop": 8.0, "batch": 2.0, "none": 0.0}[config.norm]
        epochs = range(1, config.epochs + 1)
        lost = config.lr == 0.5 or (config.lr == 0.15 and config.seed == 0)
        return {
            "versions": {"tinyprop": str(config.seed)},
            "images": {"train": 250, "test": 100},
            "diverged": {"epoch": 1, "step": 2, "what": "a loss of nan"} if lost else None,
            "history": []
            if lost
            else [
                {
                    "epoch": e,
                    "lr": config.lr,
                    "train_loss": 2.0 / e,
                    "test_loss": 2.1 / e,
                    "test_error": 0.5 - 0.01 * (better + e + random.uniform(-0.3, 0.3)),
                }
                for e in epochs
            ],
            "layers": [
                {
                    "epoch": e,
                    "layer": layer,
                    **points.input_means("arriving", means, 0),
                    **points.input_means("activated", means, 0),
                }
                for e in epochs
                for layer in range(1, 10)
                for means in [random.normal(0.1 if config.norm == "normprop" else 0.4, 0.01, 20)]
            ],
        }


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    store = Invented(tmp_path_factory.mktemp("store"))
    return {name: gather(EXPERIMENTS[name], SCALES["tiny"], store, "numpy", {}) for name in NAMES}


def test_the_ten_experiments_of_the_issue_are_there():
    assert sorted(NAMES) == sorted(
        ["data-normalization", "covariate-shift", "convergence", "batch-size", "results", "speed", "jacobian-factor",
         "optimizers", "dropout", "activations"]
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_points_are_well_formed(name, scale):
    found = configs(name, scale)
    assert len({key(c) for c in found}) == len(found), "each setting and seed once"
    assert all(c.threads == 1 for c in found), "results must not depend on the number of jobs"
    assert len(SCALES[scale].seeds) >= (2 if scale == "tiny" else 3)
    sets = {"tiny": {"shapes"}, "laptop": {"cifar10", "cifar100", "svhn"}, "paper": {"cifar10", "cifar100", "svhn"}}
    assert {c.data for c in found} <= sets[scale]


def test_experiments_share_their_points():
    base = key(SCALES["laptop"].protocol)
    assert sum(base in {key(c) for c in configs(name, "laptop")} for name in NAMES) >= 7


def test_a_laptop_is_not_overburdened():
    """About 20 seconds for an epoch on a core: none takes more than 30 minutes on two."""
    epochs = {
        name: sum(c.epochs for c in without_doubles(configs(name, "laptop")) if c.data != "svhn") for name in NAMES
    }
    together = without_doubles([c for name in NAMES for c in configs(name, "laptop") if c.data != "svhn"])
    assert max(epochs.values()) <= 120
    assert sum(c.epochs for c in together) <= 400


def test_a_point_that_two_ask_for_gets_the_longer_training():
    config = SCALES["tiny"].protocol
    assert without_doubles([replace(config, epochs=e) for e in (2, 5, 3)]) == [replace(config, epochs=5)]


def test_the_papers_protocol():
    paper = SCALES["paper"]
    assert (paper.protocol.width, paper.protocol.halve_every, paper.protocol.data_norm) == (1.0, 10, "batch")
    tables = {c.data: c for c in configs("results", "paper")}
    assert (tables["cifar10"].epochs, tables["cifar10"].halve_every, tables["cifar10"].lr) == (200, 25, 0.05)
    assert (tables["svhn"].epochs, tables["svhn"].batch_size, tables["svhn"].lr) == (25, 100, 0.08)
    rates = {c.batch_size: c.lr for c in configs("data-normalization", "paper")}
    assert rates == {50: 0.05, 100: 0.08}
    assert {c.lr for c in configs("covariate-shift", "paper") if c.norm == "none"} == {0.0001}


@pytest.mark.parametrize("name", NAMES)
def test_data_are_plain_and_pictures_show_every_series(name, invented):
    data = invented[name]
    assert json.loads(json.dumps(data)) == data, "what is read back is what was made"
    if data["points"]:
        assert [v for v in data["versions"] if len(v) == 1] == [{"tinyprop": "0"}, {"tinyprop": "1"}]
    text = json.dumps(data)
    assert "images_per_second" not in text
    assert "/tmp" not in text
    figure = EXPERIMENTS[name].draw(data)
    drawn = {artist.get_label() for axes in figure.axes for artist in [*axes.containers, *axes.lines]}
    expected = {
        "data-normalization": {"global", "by batch"},
        "covariate-shift": {f"layer {i}" for i in range(2, 10)},
        "convergence": {"NormProp", "BatchNorm", "difference"},
        "batch-size": {"batch 1", "batch 10", "batch 50", "batch 100", "batch 250", "NormProp", "BatchNorm"},
        "results": {"NormProp", "BatchNorm"},
        "speed": {"NormProp", "BatchNorm", "ratio"},
        "jacobian-factor": {"gamma = 1/1.21", "gamma = 1", "exact, beta = 0", "exact, beta = gamma"},
        "optimizers": {"SGD", "momentum 0.9", "RMSProp"},
        "dropout": {"without", "with dropout"},
        "activations": {"relu", "prelu", "tanh", "elu", "gelu"},
    }
    assert expected[name] <= drawn
    for axes in figure.axes:
        assert axes.has_data()
        (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        for bars in axes.containers:
            for x, y in bars.lines[0].get_xydata():
                assert left <= x <= right, "in view"
                assert low <= y <= high, "in view"
        assert axes.get_title(loc="left") or name == "covariate-shift"


def verdicts(words):
    return re.findall("not supported|supported|cannot tell", words)


@pytest.mark.parametrize("name", NAMES)
def test_words_follow_from_the_data(name, invented):
    experiment, data = EXPERIMENTS[name], invented[name]
    words = experiment.tell(data)
    assert words
    assert not re.search(r"\bnan\b|None|\{", words)
    found = [finding.verdict for finding in experiment.findings(data)]
    some = {"covariate-shift": found[::3], "convergence": found[:2], "results": ["cannot tell"]}
    assert verdicts(words) == some.get(name, found)


def test_runs_that_diverged_are_counted_and_never_chosen(invented):
    data = invented["optimizers"]
    assert data["summary"]["curves"]["SGD, rate 0.5"]["diverged"] == 2
    assert data["summary"]["best"]["SGD"] == "SGD, rate 0.05"
    assert data["points"]["SGD, rate 0.5"][0]["diverged"]["what"] == "a loss of nan"


def test_a_seed_that_diverged_on_one_side_is_compared_on_neither():
    def run(seed, *accuracy):
        return {"seed": seed, "accuracy": accuracy, "diverged": None if len(accuracy) == 2 else {"epoch": 2}}

    data = {"points": {"a": [run(0, 10.0, 20.0), run(1, 30.0)], "b": [run(0, 11.0, 15.0), run(1, 9.0, 7.0)]}}
    found = compare(data, "a", "b")
    assert (found["mean"], found["runs"], found["diverged"]) == (5.0, 1, [1, 0])
    assert points_words(found) == "+5.0 points (diverged: 1 and 0)"
    assert [point["mean"] for point in curves(data)["a"]["accuracy"]] == [10.0, 20.0]
    assert curves(data)["a"]["diverged"] == 1


def test_data_sets_that_are_not_here_are_told(tmp_path):
    missing = {"svhn": "neither here nor to be downloaded"}
    experiment = EXPERIMENTS["results"]
    data = gather(experiment, SCALES["laptop"], Invented(tmp_path), "numpy", missing)
    assert list(data["not_run"]) == ["NormProp, SVHN", "BatchNorm, SVHN"]
    words = experiment.tell(data)
    assert "Not run, as the data are not here: SVHN." in words
    found = ["supported", "not supported", "supported", "supported", "cannot tell"]
    assert [f.verdict for f in experiment.findings(data)] == found
    assert verdicts(words.partition("|")[2]) == found
    assert [row.split(" | ")[1] for row in words.splitlines()[-5:]] == ["250"] * 4 + ["-"]
    assert "not run: no data" in [text.get_text() for text in experiment.draw(data).axes[0].texts]


def test_the_gallery_and_the_comparison_are_made_from_the_data(invented, tmp_path):
    for name, data in invented.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    page, claims = gallery(tmp_path), comparison(tmp_path, tmp_path / "REPRODUCTION.md")
    for name in NAMES:
        assert f"({name}.png)" in page
        assert f"`tinyprop reproduce {name} --scale tiny`" in page
        assert f"`tinyprop reproduce {name} --scale tiny`" in claims
    every = [f for name, data in invented.items() for f in EXPERIMENTS[name].findings(data)]
    counted = re.search(r"in the paper: (\d+) supported, (\d+) not supported, (\d+) cannot tell\.", claims).groups()
    assert sum(map(int, counted)) == sum(f.paper != "not in the paper" for f in every) < len(every)
