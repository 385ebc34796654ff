"""A stranger's single file adds an activation with two kinks and a learnable parameter. Everything
takes it: as an outsider would use it, through public names only."""

import copy
import json
import math
import pickle
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained, few_images, run_python
from tinyprop.cli import main
from tinyprop.functional.activation import as_activation
from tinyprop.functional.normprop import NormalizedReLU

FILE = '''
"""A line between -1 and 2, and another one outside, whose slope is learnt."""

import tinyprop as tp
import tinyprop.functional as F


def leaky_clip(u, slope):
    inside = F.clip(u, -1.0, 2.0)
    return inside + slope * (u - inside)


mine = tp.Activation(leaky_clip, kinks=(-1.0, 2.0), parameters={"slope": 0.2})
tp.activations.register(mine, force=True)


def plain(u):
    """Without parameters, and without a record."""
    return u * F.sigmoid(1.5 * u)


# a parameter with the name of one that NormProp has already
swish = tp.Activation(lambda u, beta: u * F.sigmoid(beta * u), "swish", parameters={"beta": 1.0})
'''
NETWORK = "C(6,3,1,1)-P(2,2,0,max)-R(C(6,3,1,1))-C(4,1,1,0)-P(4,4,0,avg)"
MODES = ("paper", "exact")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "stranger.py"
    path.write_text(FILE)
    yield path
    if "leaky_clip" in tp.activations:
        tp.activations.unregister("leaky_clip")


@pytest.fixture(scope="module")
def mine(path):
    return as_activation(f"{path}:mine")


@pytest.fixture(params=["name", "record", "file"])
def way(request, mine, path):
    """Each way to say which activation."""
    return {"name": "leaky_clip", "record": mine, "file": f"{path}:mine"}[request.param]


def by_hand(u, slope):
    inside = np.clip(u, -1.0, 2.0)
    return inside + slope * (u - inside)


def expectation(values, mean=0.0, std=1.0, kinks=(-1.0, 2.0)):
    """E values(U), by Gauss-Legendre between the kinks."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    places = np.clip((np.array(kinks) - mean) / std, -12.0, 12.0)
    total = 0.0
    for low, high in pairwise(np.unique([*np.linspace(-12.0, 12.0, 25), *places])):
        z = 0.5 * (low + high) + 0.5 * (high - low) * nodes
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        total += 0.5 * (high - low) * (weights * density) @ values(mean + std * z)
    return total


# Moments.


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "std", "slope"), [(0.0, 1.0, 0.2), (0.7, 2.0, -0.3)])
def test_moments_dual_and_simulation_agree(way, mean, std, slope):
    found = tp.moments.gaussian(way, mean, std, slope=slope)
    center = expectation(lambda u: by_hand(u, slope), mean, std)
    variance = expectation(lambda u: (by_hand(u, slope) - center) ** 2, mean, std)
    assert found.mean == pytest.approx(center, abs=1e-10)
    assert found.std == pytest.approx(math.sqrt(variance), rel=1e-10)
    same = tp.moments.dual(way, 1.0, mean, std, slope=slope)
    assert same.covariance == pytest.approx(variance, rel=1e-8)
    # 5 standard errors: wrong once in 1.7 million
    sampled = tp.moments.simulate(way, mean, std, samples=200_000, slope=slope)
    assert abs(sampled.mean - center) < 5 * sampled.mean_error
    assert abs(sampled.std - found.std) < 5 * sampled.std_error


@pytest.mark.slow
def test_the_dual_is_an_expectation_of_conditional_means(mine):
    rho, rest = 0.6, 0.8  # rest^2 = 1 - rho^2

    def inner(x):
        return np.array([expectation(lambda v: by_hand(v, 0.2), rho * z, rest) for z in x])

    product = expectation(lambda u: by_hand(u, 0.2) * inner(u))
    assert tp.moments.dual(mine, rho).product == pytest.approx(product, abs=1e-7)


def test_moments_have_gradients_with_respect_to_the_parameter(mine):
    def mean_and_std(mean, std, slope):
        found = tp.moments.gaussian(mine, mean, std, slope=slope)
        return found.mean + 2.0 * found.std

    points = [np.array(x) for x in ([0.3, -0.4], [0.8, 1.5], [0.2, 0.5])]
    tp.check_gradients(mean_and_std, *points)


# Layers.


def layer_of(kind, activation, mode, units=3):
    if kind == "linear":
        return tp.nn.NormPropLinear(4, units, activation, mode=mode)
    return tp.nn.NormPropConv2d(2, units, 2, activation=activation, mode=mode)


def input_of(kind, rng, n=3):
    return rng.normal(size=(n, 4) if kind == "linear" else (n, 2, 3, 3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_normprop_computes_the_papers_equation(way, kind, mode, backend, rng):
    layer = layer_of(kind, way, mode).to(dtype="float64")
    layer.slope.data[...] = [0.1, 0.3, -0.5]
    layer.gamma.data[...] = [0.5, 1.0, -2.0]
    layer.beta.data[...] = [0.0, 0.7, -0.4]
    x = input_of(kind, rng)
    identity = layer_of(kind, "identity", "paper").to(dtype="float64")
    identity.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "slope"})
    u = identity(tp.tensor(x)).numpy()  # gamma w.x / |w| + beta
    expected = np.empty_like(u)
    for i, (gamma, beta, slope) in enumerate(
        zip(layer.gamma.numpy(), layer.beta.numpy(), layer.slope.numpy(), strict=True)
    ):
        mean, std = (beta, abs(gamma)) if mode == "exact" else (0.0, 1.0)
        m = tp.moments.gaussian(way, mean, std, slope=slope)
        expected[:, i] = (by_hand(u[:, i], slope) - m.mean) / m.std
    found = layer.to(backend)(tp.tensor(x, backend=backend))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mine", "plain", "swish"])
def test_the_output_of_normprop_is_normalised(path, name, mode):
    """In exact mode at any gamma and beta, in paper mode at gamma = 1 and beta = 0."""
    layer = tp.nn.NormPropLinear(1, 1, f"{path}:{name}", gamma=1.0, mode=mode).to(dtype="float64")
    settings = [(1.0, 0.0)] if mode == "paper" else [(1.0, 0.0), (0.4, 1.3), (-1.7, -0.8)]
    for gamma, beta in settings:
        layer.gamma.data[...], layer.beta.data[...] = gamma, beta

        def out(z):
            return layer(tp.tensor(z[:, None] * 1.0)).numpy()[:, 0]

        kinks = [(kink - beta) / (gamma * np.sign(layer.weight.item())) for kink in (-1.0, 2.0)]
        assert expectation(out, kinks=kinks) == pytest.approx(0.0, abs=1e-9)
        assert expectation(lambda z: out(z) ** 2, kinks=kinks) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["linear", pytest.param("conv", marks=pytest.mark.slow)])
def test_gradients_flow_through_the_constants(mine, kind, mode, plain, rng):
    layer = layer_of(kind, mine, mode, units=2).to(dtype="float64")
    layer.slope.data[...] = [0.1, 0.4]
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["weight", "gamma", "beta", "slope"]

    def f(x, *parameters):
        for name, p in zip(names, parameters, strict=True):
            setattr(layer, name, p)
        return layer(x)

    x = input_of(kind, rng, n=2)
    parameters = [p.data for p in layer.parameters()]
    if plain:
        with tp.plain():
            tp.check_gradients(f, x, *parameters, tolerance=1e-5)
    else:
        tp.check_gradients(f, x, *parameters, tolerance=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_training_moves_the_parameter_and_keeps_the_output_normalised(mine, kind, mode, rng):
    tp.manual_seed(0)
    layer = layer_of(kind, mine, mode)
    net = tp.nn.Sequential(layer, tp.nn.Flatten())
    optimizer = tp.optim.SGD(net.parameters(), lr=0.1)
    step = tp.train.TrainingStep(net, optimizer, threads=1)
    x = tp.tensor(input_of(kind, rng, n=12).astype("float32"))
    before = layer.slope.numpy().copy()
    losses = [step(x, [0, 1, 2] * 4) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert (abs(layer.slope.numpy() - before) > 1e-4).all()
    c1, c2 = layer.constants()
    for i in range(3):
        mean, std = (
            (layer.beta.numpy()[i], abs(layer.gamma.numpy()[i])) if mode == "exact" else (0, 1)
        )
        m = tp.moments.gaussian(mine, float(mean), float(std), slope=float(layer.slope.numpy()[i]))
        assert float(c1.numpy()[i]) == pytest.approx(m.std, rel=1e-5)
        assert float(c2.numpy()[i]) == pytest.approx(m.mean, abs=1e-5)


def test_a_replay_of_a_step_would_not_repeat_what_the_function_does(mine):
    """So a step with it is a CUDA graph only if that is asked for."""

    def stranger(layer):
        net = tp.nn.Sequential(layer)
        return tp.train.TrainingStep(net, tp.optim.SGD(layer.parameters(), 0.1)).stranger()

    assert "leaky_clip" in stranger(tp.nn.NormPropLinear(2, 2, mine))
    assert stranger(tp.nn.NormPropLinear(2, 2, "prelu")) is None
    assert stranger(tp.nn.Activation("prelu")) is None


@pytest.mark.parametrize("mode", MODES)
def test_kinks_need_not_be_declared(mode):
    def bent(u):
        return abs(u - 0.7) + 0.5 * tp.functional.relu(u + 1.3)

    layer, declared = (
        tp.nn.NormPropLinear(3, 2, activation, mode=mode)
        for activation in (bent, tp.Activation(bent, kinks=(-1.3, 0.7)))
    )
    declared.load_state_dict(layer.state_dict())
    x = tp.tensor([[0.3, -0.4, 0.9]])
    np.testing.assert_allclose(layer(x).numpy(), declared(x).numpy(), atol=1e-6)


def test_a_function_may_use_tensors_of_its_own(backend):
    """Wherever they are, and whichever backend is the default."""
    scale = tp.tensor([1.5], backend=backend)

    def scaled(u):
        return u * tp.functional.tanh(scale.astype(u.dtype) * u)

    with tp.use_backend(backend):
        found = tp.nn.Activation(scaled)(tp.ones(1, 3)).numpy()
    np.testing.assert_allclose(found, math.tanh(1.5), rtol=1e-6)


def test_a_parameter_may_have_the_name_of_another_one(path):
    layer = tp.nn.NormPropLinear(3, 2, f"{path}:swish", mode="exact")
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["weight", "gamma", "beta", "activation_beta"]
    assert list(layer.activation_parameters) == ["beta"]
    out = layer(tp.ones(1, 3))
    assert all(
        g.data.any() for g in tp.grad(out, list(layer.parameters()), tp.tensor([[1.0, -2.0]]))
    )


@pytest.mark.parametrize("norm", tp.nn.normalizers)
def test_networks_of_every_norm(way, norm, rng):
    tp.manual_seed(1)
    net = tp.nn.build(NETWORK, norm=norm, activation=way)
    x = tp.tensor(rng.normal(size=(4, 3, 8, 8)).astype("float32"))
    out = net(x)
    assert out.shape == (4, 4)
    slopes = {name: p for name, p in net.named_parameters() if name.endswith("slope")}
    assert bool(slopes) == (norm != "selu")  # SELU is the activation of that one
    assert {p.shape for p in slopes.values()} <= {(6,)}
    state = net.state_dict()
    tp.manual_seed(2)
    other = tp.nn.build(NETWORK, norm=norm, activation=way)
    assert (other(x).numpy() != out.numpy()).any()
    other.load_state_dict(state)
    for same in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        same.eval()
        np.testing.assert_array_equal(same(x).numpy(), net.eval()(x).numpy())


def test_the_layer_owns_the_parameter(way, rng):
    layer = tp.nn.Activation(way, num_parameters=3, slope=0.5)
    assert [(name, p.shape) for name, p in layer.named_parameters()] == [("slope", (3,))]
    layer.slope.data[...] = [0.1, 0.2, 0.3]
    u = 3.0 * rng.normal(size=(2, 3, 4, 4))
    expected = by_hand(u, np.array([0.1, 0.2, 0.3])[:, None, None])
    np.testing.assert_allclose(layer(tp.tensor(u)).numpy(), expected, atol=1e-6)
    assert repr(layer) == "Activation('leaky_clip', num_parameters=3)"


# Around layers.


def test_gains_are_those_of_the_second_moment(way):
    square = expectation(lambda u: by_hand(u, 0.2) ** 2)
    assert tp.nn.init.gain(way) == pytest.approx(square**-0.5, rel=1e-9)
    tp.manual_seed(0)
    layer = tp.nn.init.kaiming_normal_(tp.nn.Linear(400, 300), way)
    # the error of a standard deviation of 120,000 numbers is 0.2 %: 5 of them
    assert layer.weight.std().item() * 20.0 == pytest.approx(square**-0.5, rel=0.01)
    variance = square - expectation(lambda u: by_hand(u, 0.2)) ** 2
    scaled = tp.nn.ScaledWS(tp.nn.Linear(50, 2), way)
    assert scaled.factor == pytest.approx(variance**-0.5, rel=1e-9)


@pytest.mark.slow
def test_designs(path):
    points = {point.name: point for point in tp.design(20, f"{path}:mine")}
    assert {"he", "normprop"} <= points.keys()
    square = expectation(lambda u: by_hand(u, 0.2) ** 2)
    assert points["he"].c1 == pytest.approx(math.sqrt(square), rel=1e-9)
    assert points["normprop"].c_map(0.0) == pytest.approx(0.0, abs=1e-9)


def test_propagate_agrees_with_samples(way, rng):
    """Two layers for Gaussian input: exact, but for a series of the covariances that is cut."""
    tp.manual_seed(3)
    net = tp.nn.Sequential(tp.nn.Linear(6, 8), tp.nn.Activation(way, 8), tp.nn.Linear(8, 2))
    net[1].slope.data[...] = np.linspace(-0.5, 0.8, 8)
    net[0].weight.data[...] *= 2.0
    *_, last = tp.propagate(net, np.zeros(6), np.eye(6))
    with tp.no_grad():
        out = net(tp.tensor(rng.normal(size=(200_000, 6)))).numpy()
    error = out.std(axis=0) / math.sqrt(len(out))
    assert (abs(out.mean(axis=0) - last.mean) < 5 * error).all()
    # 5 standard errors of a variance of nearly Gaussian numbers are 1.6 %
    np.testing.assert_allclose(out.var(axis=0), last.variance, rtol=0.016 + last.error)


# The command line, and runs.


@pytest.mark.slow
def test_compare_takes_a_file(path, tmp_path, capsys):
    small = ["--depth", "3", "--width", "16", "--batch", "8", "--networks", "2"]
    norms = ["none/he", "layer", "ws", "dyt", "normprop", "normprop-exact"]
    command = ["compare", "--activation", f"{path}:mine", *small, "--norms", *norms]
    assert main([*command, "--out", str(tmp_path / "figure.png")]) == 0
    assert all(norm in capsys.readouterr().out for norm in norms[:1])
    assert (tmp_path / "figure.png").exists()


def test_a_config_records_where_the_activation_is(path, way):
    config = tp.train.Config(activation=way)
    assert config.activation.startswith(f"{path.resolve()}:mine#")
    again = tp.train.Config(**json.loads(json.dumps(asdict(config))))
    assert again == config
    assert replace(config, activation="tanh").activation == "tanh"
    images = np.zeros((4, 3, 32, 32), "float32")
    net = tp.train.network(replace(config, width=0.05), images, 10)
    assert any(name.endswith("slope") for name, _ in net.named_parameters())


def test_a_plain_function_of_a_file_is_recorded_too(path):
    config = tp.train.Config(activation=f"{path}:plain")
    assert config.activation.startswith(f"{path.resolve()}:plain#")


def test_a_config_refuses_what_no_file_defines():
    with pytest.raises(ValueError, match=r"at the top level of no file[\s\S]*save it in a file"):
        tp.train.Config(activation=lambda u: u * u)


QUICK = "--data shapes --width 0.05 --epochs 1 --batch-size 10 --train-size 20 --test-size 10"


def test_training_from_the_command_line(path, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(FILE)
    out = tmp_path / "run"
    command = ["train", *QUICK.split(), "--activation", f"{own}:mine", "--out", str(out)]
    with few_images(20, 10):
        assert main(command) == 0
        config = json.loads((out / "config.json").read_text())
        assert config["activation"].startswith(f"{own.resolve()}:mine#")
        assert main([*command, "--resume"]) == 0
        own.write_text(FILE + "\n# changed")
        assert main([*command, "--resume"]) == 2
        assert "own.py" in capsys.readouterr().err
        with pytest.raises(ValueError, match="content has changed"):
            tp.train.network(tp.train.Config(**config_of(config)), np.zeros((1, 3, 32, 32)), 10)
        own.unlink()
        with pytest.raises(SystemExit):
            main([*command, "--resume"])
        assert "there is none of this name" in capsys.readouterr().err
        with pytest.raises(FileNotFoundError, match="there is none of this name"):
            tp.train.network(tp.train.Config(**config_of(config)), np.zeros((1, 3, 32, 32)), 10)


def config_of(stated):
    """The settings in a config.json, which also has versions."""
    names = asdict(tp.train.Config())
    return {name: stated[name] for name in names}


def test_other_processes_import_the_file(path, mine, tmp_path):
    """As a worker that is spawned: it has imported nothing but tinyprop."""
    layer = tp.nn.NormPropLinear(3, 2, mine)
    (tmp_path / "layer.pickle").write_bytes(pickle.dumps(layer))
    program = f"""
import pickle, pathlib, tinyprop as tp
layer = pickle.loads(pathlib.Path({str(tmp_path / "layer.pickle")!r}).read_bytes())
print(layer.activation, "leaky_clip" in tp.activations, layer(tp.ones(1, 3)).shape)
"""
    done = run_python(program)
    assert done.stdout == "Activation('leaky_clip', slope=0.2) True (1, 2)\n", done.stderr


# What is refused.


def test_a_name_that_exists_is_refused_and_a_cell_may_run_twice():
    def swish3(u):
        return u * tp.functional.sigmoid(3.0 * u)

    tp.activations.register(tp.Activation(swish3))
    try:
        assert_explained(
            ValueError, lambda: tp.activations.register(tp.Activation(swish3)), "force=True"
        )
        tp.activations.register(tp.Activation(swish3), force=True)
        assert tp.nn.Activation("swish3")(tp.tensor([0.0])).item() == 0.0
    finally:
        tp.activations.unregister("swish3")
    assert_explained(ValueError, lambda: tp.nn.Activation("swish3"), "'swish3'")


TAKES_AN_ACTIVATION = [
    tp.nn.Activation,
    lambda activation: tp.nn.NormPropLinear(3, 2, activation),
    lambda activation: tp.nn.NormPropConv2d(3, 2, 1, activation=activation, mode="exact"),
    lambda activation: tp.nn.build(NETWORK, norm="batch", activation=activation),
    tp.nn.init.gain,
    lambda activation: tp.design(5, activation),
]
BAD = [
    (lambda u: u.sum(), tp.ShapeError, ["keeps the shape"]),
    (lambda u: u[:1], tp.ShapeError, ["keeps the shape"]),
    (lambda u: u - u.mean(), ValueError, ["depends on the others"]),
    (lambda u: u / abs(u).max(), ValueError, ["depends on the others"]),
    (lambda u: tp.tensor(np.sort(u.numpy())), ValueError, ["depends on the others"]),
    (
        lambda u: u * tp.tensor(np.random.default_rng().normal(size=u.shape).astype("f")),
        ValueError,
        ["on chance"],
    ),
    (lambda u: u.astype("float64"), TypeError, ["float32 to float64"]),
    (lambda u: u.numpy(), TypeError, ["returns a ndarray"]),
    (lambda u: None, TypeError, ["returns a NoneType"]),
    (tp.functional.log, ValueError, ["which is nan"]),
    (lambda u, a: u * a, TypeError, ["needs a value for 'a'"]),
    (tp.nn.ReLU(), TypeError, ["not a layer"]),
    (tp.nn.ReLU, TypeError, ["not a layer"]),
    ("leaky_relo", ValueError, ["'leaky_relu'"]),
    (3, ValueError, ["one of relu"]),
]


@pytest.mark.parametrize("take", TAKES_AN_ACTIVATION)
@pytest.mark.parametrize(("bad", "error", "words"), BAD)
def test_what_is_no_activation_is_refused_in_words(take, bad, error, words):
    if take is tp.nn.init.gain and isinstance(bad, tp.nn.Module):
        return  # it also takes a layer, as it is
    with np.errstate(all="ignore"):
        assert_explained(error, lambda: take(bad), *words)


RECORDS = [
    ({"function": 3}, TypeError, ["3 as an activation"]),
    ({"name": "my swish"}, ValueError, ["'my swish'"]),
    ({"name": 3}, ValueError, ["named 3"]),
    ({"kinks": (0.0, math.inf)}, ValueError, ["inf"]),
    ({"kinks": "0"}, ValueError, ["kinks='0'"]),
    ({"kinks": 3.0}, ValueError, ["kinks=3.0"]),
    ({"parameters": {"scale": "large"}}, ValueError, ["'large'"]),
    ({"parameters": {"scale": math.nan}}, ValueError, ["nan"]),
    ({"parameters": {"scale": True}}, ValueError, ["True"]),
    ({"parameters": ["scale"]}, TypeError, ["['scale']"]),
    ({"parameters": {"size": 1.0}}, TypeError, ["'size'", "it has scale"]),
    ({"moments": 3}, TypeError, ["mean, std"]),
    ({"dual": 3}, TypeError, ["rho, means, stds"]),
]


@pytest.mark.parametrize(("wrong", "error", "words"), RECORDS)
def test_a_record_refuses_wrong_fields(wrong, error, words):
    def scaled(u, scale=1.0):
        return scale * u

    fields = {"function": scaled, "parameters": {"scale": 1.0}} | wrong
    assert_explained(error, lambda: tp.Activation(**fields), *words)


def test_a_constant_cannot_be_normalised():
    assert_explained(
        ValueError, lambda: tp.nn.NormPropLinear(2, 2, lambda u: 0.0 * u + 1.0), "is constant"
    )


# The record itself.


def test_a_record_is_a_value():
    def cube(u):
        return u * u * u

    one, other = tp.Activation(cube), tp.Activation(cube)
    assert one == other
    assert hash(one) == hash(other)
    assert one != tp.Activation(cube, kinks=(0.0,))
    assert copy.deepcopy(one) is one
    assert copy.copy(one) is one
    with pytest.raises(AttributeError):
        one.name = "other"
    with pytest.raises(TypeError):
        tp.activations["prelu"].parameters["a"] = 1.0
    assert pickle.loads(pickle.dumps(tp.activations["gelu"])) is tp.activations["gelu"]
    assert repr(tp.activations["prelu"]) == "Activation('prelu', a=0.25)"


def test_a_function_that_follows_something_else_is_not_remembered():
    """The moments of a plain function are computed when a layer is made."""
    factor = [1.0]

    def scaled(u):
        return factor[0] * u

    before = tp.nn.init.gain(scaled)
    factor[0] = 2.0
    assert tp.nn.init.gain(scaled) == pytest.approx(before / 2.0)


def test_relu_keeps_its_fast_path(monkeypatch):
    """One op after the weighted sum, whichever way it was asked for."""
    calls = []
    original = NormalizedReLU.forward

    def counted(op, *arrays):
        calls.append(op)
        return original(op, *arrays)

    monkeypatch.setattr(NormalizedReLU, "forward", counted)
    with tp.plain():
        for relu in ("relu", tp.functional.relu, tp.activations["relu"]):
            tp.nn.NormPropLinear(3, 2, relu)(tp.ones(1, 3))
    assert len(calls) == 3
