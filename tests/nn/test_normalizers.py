"""Normalisers of a stranger's file, by the door that ours use: build, training, ranks, the command
line, compare; and what is refused."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, few_images
from tests.parallel.rank_program import on_threads
from tinyprop import nn
from tinyprop.cli import main
from tinyprop.engine.loading import fingerprint, from_file
from tinyprop.instruments import compare
from tinyprop.nn.declare import can_be_split, declared
from tinyprop.theory.stacks import COSINES, Stack
from tinyprop.train import Config, Ranks, Run, TrainingStep, network

PLAIN = "C(6,3,1,1)-P(2,2,0,max)-C(8,3,1,1)-C(4,1,1,0)-P(4,4,0,avg)"
RESIDUAL = "C(6,3,1,1)-R(C(6,3,1,1)-C(6,3,1,1))-R(C(8,3,2,1))-C(4,1,1,0)-P(4,4,0,avg)"

FILE = '''
"""Three normalisers that tinyprop has never heard of."""
import tinyprop as tp
from tinyprop import functional as F, nn


class LargestOne(nn.Module):
    """Divide each sample by its largest absolute value."""

    per_sample = True

    def forward(self, x):
        places = tuple(range(1, x.ndim))
        return x / (F.max(abs(x), places, keepdims=True) + 1e-3)


class Centered(nn.Module):
    """Remove the mean of each channel: of the batch, or, in evaluation, a running estimate."""

    sums_over_batch = True

    def __init__(self, channels):
        self.mean = tp.zeros(channels)

    def forward(self, x):
        shape = (1, -1, *[1] * (x.ndim - 2))
        if not self.training:
            return x - self.mean.reshape(shape)
        places = (0, *range(2, x.ndim))
        count = nn.over_batch(x.size // x.shape[1])
        mean = nn.over_batch(F.sum(x, places)) / count
        self.mean.data[...] = 0.9 * self.mean.data + 0.1 * mean.data
        return x - mean.reshape(shape)


class UnitRows(nn.Module):
    """The wrapped layer, with rows of length 2."""

    per_sample = True

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x):
        rows = self.layer.weight
        length = F.norm(rows, tuple(range(1, rows.ndim)), keepdims=True)
        return self.layer.weighted_sum(x, 2.0 * rows / length)


class Whole(nn.Module):
    """A layer that makes everything itself: half of the activation."""

    per_sample = True

    def __init__(self, inputs, outputs, *window, activation, gamma=0.5):
        self.layer = nn.Conv2d(inputs, outputs, *window) if window else nn.Linear(inputs, outputs)
        self.activation = nn.Activation(activation)
        self.gamma = gamma

    def forward(self, x):
        return self.gamma * self.activation(self.layer(x))


largest = nn.Normalizer("largest", before=lambda channels: LargestOne(), note="by the largest")
centered = nn.Normalizer("centered", before=Centered, bias=False)
rows = nn.Normalizer("rows", weights=UnitRows, unit_input=True, init="lecun")
whole = nn.Normalizer("whole", layer=Whole)
'''
NAMES = ("largest", "centered", "rows", "whole")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "mine.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def mine(path):
    """The normalisers of the file, by name."""
    return {name: from_file(f"{path}:{name}") for name in NAMES}


@pytest.fixture
def registered(mine):
    """They are in the table during a test."""
    for entry in mine.values():
        nn.normalizers.register(entry)
    yield mine
    for name in mine:
        nn.normalizers.unregister(name)


def images(rng, count=6):
    return rng.normal(size=(count, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, count)


@pytest.mark.parametrize("spec", [PLAIN, RESIDUAL])
@pytest.mark.parametrize("name", NAMES)
def test_build_and_train(name, spec, path, rng, backend):
    x, labels = images(rng)
    tp.manual_seed(0)
    with tp.use_backend(backend):
        net = nn.build(spec, norm=f"{path}:{name}", activation="tanh")
        x = tp.tensor(x, backend=backend)
        step = TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
        start = {key: p.numpy().copy() for key, p in net.named_parameters()}
        losses = [float(step(x, labels)) for _ in range(20)]
    assert losses[-1] < 0.95 * losses[0]
    for key, p in net.named_parameters():
        assert (p.numpy() != start[key]).any(), key


def test_what_a_record_says_is_what_is_built(mine):
    net = nn.build(RESIDUAL, norm=mine["largest"])
    kinds = [type(layer).__name__ for layer in net[1].branch]
    assert kinds == ["LargestOne", "Activation", "Conv2d", *["LargestOne", "Activation", "Conv2d"]]
    assert nn.build(PLAIN, norm=mine["centered"])[0].bias is None, "bias=False"
    net = nn.build(RESIDUAL, norm=mine["rows"])
    assert [block.beta**2 for block in net if isinstance(block, nn.Residual)] == pytest.approx(
        [1.0, 2.0]
    ), "unit_input: blocks keep count of the variance"
    net = nn.build(PLAIN, norm=mine["whole"])
    kinds = [type(layer).__name__ for layer in net]
    assert kinds == ["Whole", "MaxPool2d", "Whole", "Conv2d", "AvgPool2d", "Flatten"]
    assert nn.build(PLAIN, norm=mine["whole"], gamma=0.7)[0].gamma == 0.7
    elu = nn.Normalizer("elu", activation="elu", init="orthogonal")
    net = nn.build("C(3,1,1,0)-C(2,1,1,0)", norm=elu)
    rows = net[0].weight.numpy().reshape(3, 3)
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-6)
    assert net[1].extra_repr() == "'elu'"


def test_a_function_of_the_number_of_channels(rng):
    net = nn.build(PLAIN, norm=lambda channels: nn.GroupNorm(2, channels))
    assert [type(layer).__name__ for layer in net][:3] == ["Conv2d", "GroupNorm", "Activation"]
    assert nn.as_normalizer(nn.BatchNorm).name == "BatchNorm"


@pytest.mark.parametrize("name", [n for n in nn.normalizers if n != "instance"])
def test_ours_take_vectors_and_images(name, rng):
    """A normaliser of vectors is that of images of one place."""
    entry = nn.normalizers[name]
    for make in (entry.before, entry.after):
        if make is None:
            continue
        x = tp.tensor(rng.normal(size=(5, 8)).astype(np.float32))
        module = make(8)
        for p in module.parameters():
            p.data[...] = rng.normal(size=p.shape)
        of_images = module(x.reshape(5, 8, 1, 1)).reshape(5, 8)
        np.testing.assert_allclose(module(x).numpy(), of_images.numpy(), atol=1e-6)


def test_vectors_of_a_layer_norm_for_images_have_gradients(rng):
    layer = nn.LayerNorm((4, None, None))
    x = tp.tensor(rng.normal(size=(3, 4)), requires_grad=True)
    layer.to(dtype="float64")

    def function(x, weight, bias):
        layer.weight, layer.bias = weight, bias
        return layer(x)

    tp.check_gradients(function, x, layer.weight, layer.bias)


# -- ranks


def test_sums_over_the_batch_are_those_of_all_ranks(mine):
    """A declared stranger trains on ranks as on one process."""

    def weights(ranks):
        tp.manual_seed(0)
        net = nn.build(PLAIN, norm=mine["centered"]).to(dtype="float64")
        step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=1, ranks=ranks)
        rng = np.random.default_rng(0)
        for count in (5, 2, 7):
            x, labels = images(rng, count)
            step(x.astype("float64"), labels)
        return {name: value.copy() for name, value in net.state_dict().items()}

    alone = weights(Ranks())
    for state in on_threads(3, weights):
        for name, value in alone.items():
            np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-12, err_msg=name)


def test_without_a_declaration_ranks_refuse(mine):
    class Other(type(mine["centered"].before(3))):
        def forward(self, x):
            return x - x.mean(axis=0)

    assert can_be_split(mine["centered"].before(3))
    assert not can_be_split(Other(3)), "the declaration was for another forward"
    net = nn.build(PLAIN, norm=Other)

    def step(ranks):
        return TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), ranks=ranks)

    words = "Other may look across the batch", "per_sample = True", "tp.nn.over_batch"
    assert_explained(ValueError, lambda: on_threads(2, step), "2 ranks", *words)


def test_a_declaration_is_for_the_code_of_its_class():
    class Renamed(nn.BatchNorm):
        def __init__(self, channels):
            super().__init__(channels, eps=1e-3)

    class Changed(nn.WeightNorm):
        @property
        def weight(self):
            return super().weight * 2.0

    assert declared(Renamed(3), "statistics") == nn.Statistics("batch")
    assert declared(Changed(nn.Linear(2, 2)), "rows") is None
    assert declared(nn.Linear(2, 2), "rows") == nn.Rows()


# -- runs


TINY = {"data": "shapes", "width": 0.04, "train_size": 40, "batch_size": 20, "threads": 1}


@pytest.mark.parametrize("name", ["largest", "centered", "rows", "whole"])
def test_the_command_line_takes_a_file(name, path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)
    options = "--data shapes --width 0.04 --epochs 1 --train-size 40 --test-size 20"
    with few_images(40, 20):
        words = [*options.split(), "--norm", f"{path}:{name}", "--out", str(tmp_path / "run")]
        assert main(["train", *words]) == 0
    stated = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stated["norm"] == f"{path.resolve()}:{name}#{fingerprint(path)}"


def test_a_config_is_text(path, registered):
    """Where it is defined, and a fingerprint of the file."""
    for given, name in (
        (f"{path}:rows", "rows"),
        ("largest", "largest"),
        (registered["largest"], "largest"),
        (from_file(f"{path}:Centered"), "Centered"),
    ):
        config = Config(norm=given)
        assert config.norm == f"{path.resolve()}:{name}#{fingerprint(path)}"
        assert Config(**json.loads(json.dumps(asdict(config)))) == config
    nowhere = nn.Normalizer("nowhere", before=nn.BatchNorm)
    words = "norm 'nowhere'", "at the top level of no file", "tp.nn.normalizers.register"
    assert_explained(ValueError, lambda: Config(norm=nowhere), *words)
    nn.normalizers.register(nowhere)
    try:
        assert Config(norm=nowhere).norm.startswith(f"{__file__}:nowhere#"), "it registered it"
    finally:
        nn.normalizers.unregister("nowhere")


def test_a_run_is_not_continued_with_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tinyprop.report.plots.save", lambda *_: None)
    path = tmp_path / "own.py"
    path.write_text(FILE)
    config = Config(**TINY, norm=f"{path}:largest", epochs=1)
    with few_images(40, 20):
        assert Run(config, tmp_path / "run").run()
        assert Run(config, tmp_path / "run").run(resume=True)
        path.write_text(FILE.replace("1e-3", "1e-2"))
        words = "own.py, whose content has changed", "as it was recorded"
        assert_explained(ValueError, lambda: Run(config, tmp_path / "run"), *words)
        changed = Run(Config(**TINY, norm=f"{path}:largest", epochs=1), tmp_path / "run")
        assert_explained(tp.StateError, lambda: changed.run(resume=True), "norm = ", "own.py")


def test_options_of_a_config_reach_the_layers():
    x = np.zeros((2, 3, 32, 32), np.uint8)
    net = network(Config(width=0.05, mode="exact", gamma=0.5, beta=0.25), x, 10)
    layer = net[1]
    assert (layer.mode, layer.gamma.data[0], layer.beta.data[0]) == ("exact", 0.5, 0.25)
    assert network(Config(width=0.05, norm="normprop-exact"), x, 10)[1].mode == "exact"
    refused = Config(width=0.05, norm="batch", mode="exact")
    assert_explained(ValueError, lambda: network(refused, x, 10), "mode='exact'", "'batch'")


# -- compare


def test_compare_shows_the_measurement_alone(mine, path, tmp_path, capsys):
    for name in ("largest", "centered"):
        for residual in (False, True):
            stack = Stack(mine[name], "relu", 3, 16, 8, residual)
            curves = compare.curves(stack, networks=2, seed=0)
            for curve in curves.values():
                assert curve.theory is None
                assert all(math.isfinite(point.mean) for point in curve.points)
            assert_explained(ValueError, lambda stack=stack: stack.states, "theory", name)
            assert (
                f"in the forward of {name.title().replace('Largest', 'LargestOne')}" in stack.reason
            )
    options = "--depth 3 --width 16 --batch 8 --networks 2"
    words = [*options.split(), "--norms", f"{path}:largest", f"{path}:whole/orthogonal", "none/he"]
    assert main(["compare", *words, "--out", str(tmp_path / "page.png")]) == 0
    said = capsys.readouterr().out
    for label in ("largest ", "whole/orthogonal ", "none/he "):
        assert f"\n{label}" in said
    assert said.count("No theory for") == 1
    assert "No theory for largest:\ngot:  max of a State, in the forward of LargestOne" in said


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("init", ["glorot", "he", "orthogonal"])
def test_theory_runs_a_whole_layer(mine, init, residual):
    """Half of ReLU, of weights whose rows have length 1 ("identity" is in front of each): it keeps
    an eighth of the mean square, and of the squared gradient."""
    stack = Stack(mine["whole"], "relu", 3, 16, 8, residual, init=init)
    assert stack.reason == ""
    factor = 1.125 if residual else 0.125
    # the branch is correlated with h only by the random weights, which have no mean
    np.testing.assert_allclose(stack.theory.gains, factor, rtol=1e-12)
    angle = math.acos(COSINES[0])
    kernel = (math.sin(angle) + (math.pi - angle) * COSINES[0]) / (2.0 * math.pi)
    first = stack.theory.states[1] if residual else stack.theory.states[0]
    assert first.square == pytest.approx(factor, rel=1e-12)
    pair = 0.25 * kernel + (COSINES[0] if residual else 0.0)
    assert first.products[0] == pytest.approx(pair, rel=1e-12)
    assert stack.predicted("spectrum") is None, "its slopes are inside"


def test_theory_runs_a_wrapper_of_weights(mine):
    """Rows of length 2, whatever was drawn."""
    theory = Stack(mine["rows"], "relu", 3, 16, 8, False).theory
    np.testing.assert_allclose([state.square for state in theory.states], [4.0, 8.0, 16.0])
    np.testing.assert_allclose(theory.gains, 2.0)


@pytest.mark.parametrize("weights", ["given", "random"])
def test_propagate_runs_a_whole_layer(mine, weights):
    net = nn.build("F(64)-F(64)", 8, norm=mine["whole"], activation="relu")
    records = tp.propagate(net, np.zeros(8), np.eye(8), weights=weights)
    names = [record.layer for record in records]
    assert names == ["0.layer Linear", "0.activation Activation", "0 Whole", "1 Linear"]
    before, _, after, _ = (record.mean**2 + record.variance for record in records)
    assert after.mean() == pytest.approx(0.125 * before.mean(), rel=1e-12)


class Standardized(nn.Module):
    """LayerNorm by a stranger, who says what it does."""

    per_sample = True
    statistics = nn.Statistics(over="sample")

    def __init__(self, channels):
        self.channels = channels

    def forward(self, x):
        mean = x.mean(axis=1, keepdims=True)
        return (x - mean) / tp.functional.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + 1e-5)


class Softsign(nn.Module):
    """A function of each value, in the place of a normaliser."""

    per_sample = True
    elementwise = True

    def forward(self, x):
        return x / (1.0 + abs(x))


def test_theory_goes_by_what_modules_declare():
    mine = nn.Normalizer("mine", before=Standardized)
    for residual in (False, True):
        shape = ("relu", 4, 32, 16, residual)
        for instrument in ("signal", "gradient", "spectrum", "correlation"):
            expected = Stack("layer", *shape).predicted(instrument)
            found = Stack(mine, *shape).predicted(instrument)
            if expected is None:
                assert found is None
            else:
                # what it declares does not say its eps of 1e-5
                np.testing.assert_allclose(found, expected, rtol=4e-5)


def test_a_function_in_the_place_of_a_normaliser():
    """The weights have the gain of both functions, so the mean square stays 1. The tolerance is 5
    times the standard deviation over 40 networks."""
    entry = nn.Normalizer("softsign", before=lambda channels: Softsign())
    stack = Stack(entry, "relu", 4, 64, 32, False)
    np.testing.assert_allclose(stack.states[:, 0], 1.0, rtol=1e-9)
    tp.manual_seed(0)
    squares = []
    for _ in range(40):
        out = stack.network()(tp.randn(32, 64))
        squares.append((out.data**2).mean())
    error = np.std(squares, ddof=1) / math.sqrt(40)
    assert abs(np.mean(squares) - 1.0) < 5 * error + 4 / 64


def test_looking_at_a_layer_draws_nothing():
    """A network of a seed is the same, whatever theory was asked before."""
    first, second = (Stack("ws", "relu", 2, 8, 8, residual=True) for _ in range(2))
    first.predicted("signal")
    outputs = []
    for stack in (first, second):
        tp.manual_seed(1)
        outputs.append(stack.network()(tp.ones(1, 8)).numpy())
    np.testing.assert_array_equal(*outputs)


def test_propagate_refuses_by_name(mine):
    net = nn.Sequential(nn.Linear(4, 4), mine["largest"].before(4))
    assert_explained(TypeError, lambda: tp.propagate(net, np.zeros(4), np.eye(4)), "LargestOne")


# -- what is refused


def test_the_table(registered):
    entry = registered["largest"]
    assert nn.normalizers["largest"] is entry
    assert_explained(ValueError, lambda: nn.normalizers.register(entry), "'largest'", "force=True")
    nn.normalizers.register(entry, force=True)
    assert_explained(KeyError, lambda: nn.normalizers["largets"], "'largets'", "'largest'")
    assert_explained(TypeError, lambda: nn.normalizers.register(LookupError), "Normalizer")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ""}, ("its first argument is a name",)),
        ({"before": nn.ReLU()}, ()),
        ({"before": 3}, ("before=3", "before is a function")),
        ({"layer": nn.NormPropLinear, "after": nn.BatchNorm}, ("layer= and other parts",)),
        ({"init": "xavier"}, ("init='xavier'", "glorot, he")),
    ],
)
def test_a_record_that_makes_no_sense(arguments, words):
    def make():
        entry = nn.Normalizer(**{"name": "odd"} | arguments)
        return nn.build(PLAIN, norm=entry)

    assert_explained((TypeError, ValueError), make, *words)


class Pooled(nn.Module):
    def forward(self, x):
        return x[:, :, ::2]


@pytest.mark.parametrize("part", ["before", "after"])
def test_a_module_that_is_none_or_changes_the_shape(part):
    def built(function):
        return lambda: nn.build(PLAIN, norm=nn.Normalizer("odd", **{part: function}))

    words = "'odd'", f"whose {part}= returned", "it returns a Module"
    assert_explained(TypeError, built(lambda channels: tp.functional.relu), *words)
    words = "'odd'", f"{part}= maps (2, 6, 3, 3) to (2, 6, 2, 3)", "keeps the shape"
    assert_explained(tp.ShapeError, built(lambda channels: Pooled()), *words)


def test_weights_and_layer_return_modules():
    for part in ("weights", "layer"):
        entry = nn.Normalizer("odd", **{part: lambda *args, **kwargs: None})
        words = "'odd'", f"{part}= returned None"
        assert_explained(TypeError, lambda entry=entry: nn.build(PLAIN, norm=entry), *words)


@pytest.mark.parametrize("norm", [3, None, nn.BatchNorm(3), ["batch"]])
def test_what_is_no_normaliser(norm):
    assert_explained(TypeError, lambda: nn.build(PLAIN, norm=norm), "norm=", "norm='batch'")


@pytest.mark.parametrize("option", [{"mode": "exact"}, {"gamma": 1.0}, {"beta": 0.5}])
@pytest.mark.parametrize("norm", ["batch", "ws", "none"])
def test_options_that_a_normaliser_does_not_take(norm, option):
    ((name, value),) = option.items()
    words = f"{name}={value!r}", repr(norm), f"have no {name}"
    assert_explained(ValueError, lambda: nn.build(PLAIN, norm=norm, **option), *words)


def test_the_old_name_of_the_table_warns():
    with pytest.warns(DeprecationWarning, match=r"list\(tp\.nn\.normalizers\)"):
        assert tuple(nn.normalizers) == nn.NORMS
