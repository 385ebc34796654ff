"""tp.examine names planted faults and their layers, finds none in sound networks, and is a page."""

import dataclasses
import re

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tests.instruments.planted import HE, PLANTS, SOUND, dense, residual, vectors
from tinyprop import nn
from tinyprop.cli import main
from tinyprop.instruments import faults
from tinyprop.instruments.calls import calls_of


def faults_of(net, x):
    """The faults alone, without theory, which takes seconds."""
    calls = calls_of(tp.observe(net, x))
    with np.errstate(all="ignore"):
        return faults.find_faults(faults.Case(x, calls, has_labels=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PLANTS)
def test_planted_faults_are_named_with_their_layer(name, seed):
    """The seeds are fixed. With seeds that the thresholds were not chosen on, 200 to 249, the first
    fault was wrong in 3 of 1300 networks (one by a rule that was changed then), and no fault was
    found in 800 sound ones."""
    plant = PLANTS[name]
    tp.manual_seed(seed)
    with np.errstate(all="ignore"):
        first, *others = faults_of(plant.make(), plant.data(seed))
    assert (first.kind, first.layer) == (plant.kind, plant.layer), first
    assert {fault.kind for fault in others} <= set(plant.follows)
    for sentence in (first.sentence, first.remedy):
        assert not sentence[0].islower()
        assert sentence.endswith(".")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SOUND)
def test_sound_networks_have_none(name, seed):
    make, data = SOUND[name]
    tp.manual_seed(seed)
    assert faults_of(make(), data(seed)) == []


def test_a_layer_behind_dead_units_is_not_blamed():
    """Its units are equal, all 0, because no input of theirs varies."""
    tp.manual_seed(0)
    net = tp.nn.Sequential(tp.nn.Linear(20, 32), tp.nn.ReLU(), tp.nn.Linear(32, 10))
    net[0].bias.data[...] = -9.0
    assert [fault.kind for fault in faults_of(net, tp.randn(256, 20).numpy())] == ["dead units"]


def test_the_sentence_of_unscaled_residuals():
    plant = PLANTS["unscaled residuals"]
    tp.manual_seed(0)
    (fault,) = faults_of(plant.make(), plant.data(0))
    assert fault.sentence == ("The variance doubles in every block: the branch has no normaliser.")
    assert "1/sqrt(depth), here 0.41" in fault.remedy


def sound():
    tp.manual_seed(0)
    return dense(HE, depth=3)


def test_theory_stands_beside_measurement():
    net, x = sound(), vectors(0)
    labels = np.arange(len(x)) % 10
    found = tp.examine(net, x, labels)
    assert [layer.layer for layer in found.layers][:3] == ["0 Linear", "1 Activation", "2 Linear"]
    assert found.theory == ""
    assert found.faults == ()
    for layer in found.layers:
        seen, theory = layer.measured, layer.predicted
        assert abs(seen.variance / theory.variance - 1.0) < 0.1
        assert abs(seen.correlation - theory.correlation) < 0.05
        assert 0.7 < seen.gradient / theory.gradient < 1.4
    signals = tp.nn.signals(net, x, labels)
    for layer, signal in zip(found.layers, signals, strict=True):
        assert layer.measured.gradient == pytest.approx(signal.gradient_std, rel=1e-5)
        assert layer.measured.mean**2 == pytest.approx(signal.unit_mean_square, rel=1e-4)
        assert layer.dead == signal.dead


def test_correlations_are_those_of_pairs():
    x = vectors(0, count=6)
    (layer,) = tp.examine(nn.Sequential(nn.Identity()), x).layers
    products = x.astype("float64") @ x.T
    of_pairs = products[~np.eye(6, dtype=bool)].mean()
    assert layer.measured.correlation == pytest.approx(of_pairs / np.diag(products).mean())


def test_the_gradient_has_theory_in_residual_networks_and_convolutions():
    tp.manual_seed(1)
    labels = np.arange(256) % 10
    branch = lambda: nn.Sequential(nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64))  # noqa: E731
    found = tp.examine(residual(branch, depth=4), vectors(1), labels)
    for layer in found.layers:
        assert 0.6 < layer.measured.gradient / layer.predicted.gradient < 1.6, layer
    net = nn.build("C(16,3,1,1)-P(2,2,0,max)-C(16,3,1,1)-C(10,1,1,0)-P(4,4,0,avg)", norm="batch")
    images = np.random.default_rng(0).normal(size=(64, 3, 8, 8)).astype("float32")
    for layer in tp.examine(net, images, labels[:64]).layers:
        assert 0.5 < layer.measured.gradient / layer.predicted.gradient < 2.0, layer


class Sorted(nn.Module):
    """A layer without a rule."""

    def forward(self, x):
        return tp.from_numpy(np.sort(x.numpy(), axis=1))


def test_where_theory_has_no_rule_it_says_so():
    net = nn.Sequential(nn.Linear(64, 8), Sorted(), nn.Linear(8, 2))
    found = tp.examine(net, vectors(0))
    assert "Sorted" in found.theory
    assert "no prediction" in found.text()
    assert [layer.predicted for layer in found.layers] == [None] * 3
    assert found.layers[2].measured.variance > 0


def test_the_first_layer_where_theory_and_measurement_part():
    """Two units that are not Gaussian, and not independent: their product rule fails."""
    tp.manual_seed(0)
    x = np.random.default_rng(0).choice([-4.0, 0.0, 4.0], p=[0.02, 0.96, 0.02], size=(256, 64))
    found = tp.examine(nn.Sequential(nn.Identity(), nn.Tanh(), nn.Linear(64, 4)), x)
    assert found.first_parted == "1 Tanh"
    assert "part first at 1 Tanh" in found.text()


AGREE = "agree, within the errors, in every layer"
UNTOLD = "Whether theory and measurement agree cannot be told at"


class Squared(nn.Module):
    """Its values have tails that no sample of this size knows."""

    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(50, 50) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x) ** 2
        return self.layers[-1](x)


class Infinite(nn.Module):
    def __init__(self):
        self.first = nn.Linear(64, 4)

    def forward(self, x):
        return self.first(x) * float("inf")


def test_theory_and_measurement_agree_only_where_they_do():
    assert AGREE in tp.examine(sound(), vectors(0)).text()
    tp.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(256, 50)).astype("float32")
    for net, inputs, layer in (
        (Squared(), x, "layers.3 Linear"),
        (Infinite(), vectors(0), "Infinite"),
        (nn.Sequential(nn.Linear(64, 4)), vectors(0)[:4], "0 Linear"),
    ):
        found = tp.examine(net, inputs)
        assert found.first_parted is None
        assert found.undecided[-1] == layer
        assert AGREE not in found.text()
        assert f"{UNTOLD} {', '.join(found.undecided)}:" in found.text()
        assert UNTOLD in found.html()


def test_the_network_stays_as_it_is():
    net = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm(8), nn.Dropout(0.5))
    before = net.state_dict()
    tp.examine(net, vectors(0))
    assert all(np.array_equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training


def test_an_examination_is_frozen():
    found = tp.examine(sound(), vectors(0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "other"


def test_a_page_needs_nothing_else_and_escapes_names():
    shown = type("<script>", (nn.Linear,), {})(64, 4)
    shown.weight.data[...] = 0.1
    found = tp.examine(nn.Sequential(shown), vectors(0), np.arange(256) % 4)
    page = found.html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "equal units" in page
    assert not re.search(r"\b(src|href)\s*=|url\(|@import|http", page)
    assert page.count("<svg") == page.count("</svg>") >= 6
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "<html" not in found._repr_html_()


def test_wrong_inputs_are_refused():
    assert_explained(tp.ShapeError, lambda: tp.examine(sound(), vectors(0)[:1]), "two samples")
    assert_explained(TypeError, lambda: tp.examine(len, vectors(0)), "a Module")


# The command

OURS = """
import tinyprop as tp

class Net(tp.nn.Module):
    def __init__(self):
        self.first = tp.nn.Linear(20, 30)
        self.second = tp.nn.Linear(30, 5)
    def forward(self, x):
        return self.second(tp.functional.tanh(self.first(x)))

def images():
    return tp.nn.build("C(4,3,1,1)-C(5,1,1,0)-P(8,8,0,avg)", norm="batch")

def needs(argument):
    return None

number = 3
"""

THEIRS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Sigmoid(), torch.nn.Linear(30, 5))
with torch.no_grad():
    net[0].weight.mul_(100.0)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_net.py"
    path.write_text(OURS)
    return path


def test_a_network_of_a_file(file, capsys):
    page = file.parent / "pages" / "page.html"
    assert main(["examine", f"{file}:Net", "--out", str(page)]) == 0
    said = capsys.readouterr().out
    assert "No known fault" in said
    assert str(page) in said
    assert "first Linear" in page.read_text()
    assert main(["examine", f"{file}:images", "--shape", "3,8,8", "--out", str(page)]) == 0
    assert "0 Conv2d" in page.read_text()


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("my_net.py:images", [], "--shape 3,32,32"),
        ("my_net.py:Net", ["--shape", "7"], "linear of x (2, 7)"),
        ("my_net.py:needs", [], "without arguments"),
        ("my_net.py:number", [], "is a int"),
        ("my_net.py:Nothing", [], "Nothing"),
        ("none.py:Net", [], "none.py"),
        ("", [], "no checkpoint"),
    ],
)
def test_refusals(file, target, options, words, capsys):
    assert main(["examine", str(file.parent / target), *options]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert all(f"{part}:" in said for part in ("got", "rule", "try"))


@pytest.mark.slow
def test_a_module_of_pytorch(tmp_path, capsys):
    pytest.importorskip("torch")
    path = tmp_path / "their_net.py"
    path.write_text(THEIRS)
    assert main(["examine", f"{path}:net", "--out", str(tmp_path / "page.html")]) == 0
    assert "saturated activation, at 1 Sigmoid" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run(tmp_path, capsys):
    config = tp.train.Config(
        data="shapes", width=0.04, epochs=1, train_size=100, test_size=60, threads=1
    )
    assert tp.train.Run(config, tmp_path / "run").run()
    out = tmp_path / "page.html"
    options = ["--inputs", "60", "--components", "2", "--out", str(out)]
    assert main(["examine", str(tmp_path / "run"), *options]) == 0
    said = capsys.readouterr().out
    assert "Theory and measurement" in said  # what certify printed
    assert "11 Conv2d" in said
    assert out.exists()
