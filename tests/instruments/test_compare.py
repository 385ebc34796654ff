"""Theory against random networks for every normaliser, theory against numbers derived elsewhere,
and the command."""

import math
import subprocess
import sys

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import FULL, quick_only
from tinyprop import nn, theory
from tinyprop.cli import main
from tinyprop.engine.threads import blas_threads
from tinyprop.instruments import compare, figures, probes
from tinyprop.report.estimate import Estimate
from tinyprop.theory.stacks import INSTRUMENTS, Stack

CHI = math.pi / (math.pi - 1)
# gradients of ReLU networks, at every width
EXACT = ("none/glorot", "none/he", "none/orthogonal", "weight", "normprop")
# all that take vectors
NETWORKS = ["none/glorot", "none/he", "none/orthogonal", "batch/he"]
NETWORKS += [name for name in nn.normalizers if name not in ("none", "instance")]


def stack(norm, depth=6, residual=False, activation="relu", width=128, batch=32):
    name, init = compare.split_init(norm)
    return Stack(name, activation, depth, width, batch, residual, init=init)


def assert_measured(stack, networks):
    """Each point within 5 standard errors of theory, and of what a width of n leaves open where
    theory is a limit: a relative error of 1/n in each of L layers."""
    with blas_threads(1):
        curves = compare.curves(stack, networks, seed=100)
    for name, curve in curves.items():
        if curve.theory is None:
            continue
        for i, point in zip(curve.at - curve.layers[0], curve.points, strict=True):
            theory = curve.theory[i]
            rest = stack.depth / stack.width
            if (
                name == "gradient"
                and stack.label in EXACT
                and stack.activation == "relu"
                and not stack.residual
            ):
                rest = 0.0
            assert abs(point.mean - theory) < 5 * point.standard_error + rest * theory + 1e-6, (
                name,
                i,
            )
    return curves


@pytest.mark.parametrize(
    "norm", quick_only(["none/he", "normprop-exact"], ["none/he", "batch", "normprop-exact"])
)
def test_theory_and_measurement(norm):
    assert_measured(stack(norm, depth=4, width=64, batch=8), 8)


# see `make full`
PAIRS = [("relu", False), ("tanh", True), *([("relu", True), ("tanh", False)] if FULL else [])]


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "residual"), PAIRS)
@pytest.mark.parametrize("norm", NETWORKS)
def test_theory_and_measurement_of_every_network(norm, activation, residual, monkeypatch):
    # for BatchNorm, whose spectrum has no theory
    monkeypatch.setattr(probes, "ROUNDS", 1)
    width = 256 if norm == "group" else 128  # groups of 8: gradients of smaller ones scatter widely
    network = stack(norm, residual=residual, activation=activation, width=width)
    curves = assert_measured(network, 16)
    assert curves["gradient"].theory is not None


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("norm", "gamma", "beta"),
    [
        ("batch", 0.7, 0.5),
        ("layer", 1.5, -0.3),
        ("rms", 0.6, None),
        ("normprop", 1.0, 0.4),
        ("normprop-exact", 0.6, 0.5),
    ],
)
def test_scale_and_shift(norm, gamma, beta, residual, monkeypatch):
    monkeypatch.setattr(probes, "ROUNDS", 1)
    shape = ("tanh" if norm == "layer" else "relu", 5, 128, 200, residual)
    assert_measured(Stack(norm, *shape, gamma, beta), 8)


@pytest.mark.parametrize(("norm", "mode"), [("normprop", "paper"), ("normprop-exact", "exact")])
@pytest.mark.parametrize("beta", [0.3, -3.0])  # the latter where c1 has its floor
def test_a_stack_has_the_constants_of_a_layer(norm, mode, beta):
    layer = nn.NormPropLinear(1, 1, "gelu", gamma=0.7, mode=mode)
    layer.beta.data[...] = beta
    expected = [float(np.ravel(getattr(c, "data", c))[0]) for c in layer.constants()]
    assert Stack(norm, "gelu", 2, 8, 8, False, 0.7, beta).constants == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize(
    ("room", "unused"),
    [
        ("instruments.compare", {"matplotlib", "tqdm", "threadpoolctl"}),
        ("report.plots", {"tinyprop.theory"}),
        ("train", {"tinyprop.theory"}),
    ],
)
def test_what_is_not_used_is_not_loaded(room, unused):
    """Measuring needs NumPy alone, as in a browser; only what compares with theory loads it."""
    program = f"import sys, tinyprop.{room}; print(*sorted({unused} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_what_theory_cannot_say_is_left_out(tmp_path, capsys):
    """Of narrow and deep networks: the largest singular value to first order, and the angle behind
    a dead layer."""
    spectrum = stack("none/he", 40, width=64).predicted("spectrum")
    known = np.isfinite(spectrum)
    assert known[:5].all()
    assert not known[-1]
    assert (np.diff(spectrum[known]) > 0).all(), "it grows with the depth"
    options = "--width 8 --depth 12 --networks 2 --norms none/he --out"
    assert main(["compare", *options.split(), f"{tmp_path}/f.png"]) == 0
    assert "no value" in capsys.readouterr().out


class Beside(nn.Module):
    """Divides by a number that it computes beside the graph."""

    per_sample = True

    def __init__(self, size):
        self.size = size

    def forward(self, x):
        return x / self.size(x)


BESIDE = {
    ".numpy": lambda x: float(np.abs(x.numpy()).max()),
    ".data": lambda x: float(abs(x.data).max()),
    ".detach": lambda x: x.detach().max().item(),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_normaliser_that_leaves_the_graph_is_measured_alone(name):
    entry = nn.Normalizer("beside", before=lambda channels: Beside(BESIDE[name]))
    network = Stack(entry, "relu", 3, 16, 8, False)
    for curve in compare.curves(network, networks=2, seed=0).values():
        assert curve.theory is None
        assert all(math.isfinite(point.mean) for point in curve.points)
    assert f"got:  {name} of a State, in the forward of Beside" in network.reason


MINE = """
import numpy as np
import tinyprop as tp

def detached(u):
    return tp.tensor(np.tanh(u.data))

class Detached(tp.nn.Module):
    def forward(self, x):
        return tp.tensor(x.data)

def normalizer(channels):
    return Detached()
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--activation", "{}:detached"], "detached, "),
        (["--norms", "{}:normalizer"], "normalizer with relu, through which no gradient passes"),
    ],
)
def test_what_no_gradient_passes_through_is_refused(options, words, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    small = "--depth 3 --width 16 --batch 8 --networks 2 --norms none/he"
    given = [option.format(path) for option in options]
    assert main(["compare", *small.split(), *given, "--out", f"{tmp_path}/f.png"]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert all(f"{part}:" in said for part in ("got", "rule", "try"))


class Twice(nn.Module):
    """A layer twice, which does not say that it treats each sample by itself."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x):
        return 2.0 * self.layer(x)


def test_the_spectrum_of_one_sample_is_not_shown_beside_that_of_a_batch():
    class PerSample(Twice):
        per_sample = True

    plain = stack("none/he", 3, width=16, batch=8).predicted("spectrum")
    shown = []
    for change in (Twice, PerSample):
        entry = nn.Normalizer("twice", weights=change)
        network = Stack(entry, "relu", 3, 16, 8, False)
        shown.append(compare.curves(network, networks=2, seed=0)["spectrum"].theory)
    assert shown[0] is None
    np.testing.assert_allclose(shown[1], 2.0 ** np.arange(1, 4) * plain)


def test_no_scale_without_a_normalizer():
    for norm, gamma, beta in (("none", 0.5, None), ("ws", None, 0.5), ("rms", None, 0.5)):
        with pytest.raises(ValueError, match="no such parameter"):
            Stack(norm, "relu", 2, 8, 8, False, gamma, beta)


def test_theory_has_the_numbers_that_were_derived_elsewhere():
    normprop = stack("normprop", depth=9).states
    # for gamma = 1/1.21
    np.testing.assert_allclose(normprop[-1, 0] - normprop[-1, 1], 0.065866, atol=1e-3)
    tanh = stack("none/glorot", depth=11, activation="tanh")
    assert tanh.states[-1, 0] == pytest.approx(0.052200082787, abs=1e-11)
    assert math.prod(tanh.factors) == pytest.approx(0.0713697291, abs=1e-9)
    assert stack("none/he", depth=10).states[-1, 1] == pytest.approx(0.854809, abs=1e-6)
    selu = stack("selu", depth=3)
    np.testing.assert_allclose(selu.states[-1, :2], [1.0, 0.0], atol=1e-9)
    assert selu.factors == pytest.approx([1.071574992456] * 2, abs=1e-11)
    assert stack("layer-after/glorot").factors == pytest.approx([CHI] * 5, rel=5e-5)
    gains = {"ws": 26.738860905, "layer": 11.0, "none/he": 2.0**10}
    for norm, gain in gains.items():
        wide = stack(norm, depth=10, residual=True, width=10**6)
        assert wide.predicted("gradient")[0] ** 2 == pytest.approx(gain, rel=2e-5)
    assert stack("layer", 1, residual=True, width=8).factors == pytest.approx(
        [1 + (8 - 2) / (8 - 3)], rel=2e-5
    )
    batch = stack("batch/he", depth=10, residual=True).predicted("signal")
    assert batch[-1] ** 2 == pytest.approx(1 + 10 * (1 - 1 / math.pi), rel=1e-5)
    batch = stack("batch", batch=8).predicted("signal")
    np.testing.assert_allclose(batch, math.sqrt(8 / 7), rtol=2e-5)  # with an eps
    for norm, shape in {"derf": "erf", "dyt": "tanh"}.items():
        squashed = stack(f"{norm}/glorot", depth=1, residual=True)
        mean_square, gain = theory.gains.tanh_residual(1, shape=shape)  # for twice the square
        assert squashed.states[-1, 0] - 1 == pytest.approx((mean_square - 1) / 2, abs=1e-8)
        assert squashed.factors[0] - 1 == pytest.approx((gain - 1) / 2, abs=1e-8)
        kept = stack(norm, depth=3).states[:, 0]
        np.testing.assert_allclose(kept, 1.0, err_msg="the weights have the gain of both functions")
        signal = stack(norm, depth=20).predicted("signal")
        assert signal[-1] < 0.3 * signal[0], "but the mean that ReLU makes stays"


def test_the_largest_singular_value_of_rectifiers_has_a_closed_form():
    """The least (1 + m)^2 (1 + 2m)^L / m for Gaussian weights in L + 1 layers, and L^L /
    (L-1)^(L-1) for orthogonal. One Gaussian layer of width n loses 2^(4/3) 1.2065 n^(-2/3) of its 4
    (Johnstone, 2001)."""
    networks = [stack(norm, depth=31, width=10**12) for norm in ("none/he", "none/orthogonal")]
    gaussian, orthogonal = (network.predicted("spectrum") for network in networks)
    edge = stack("none/he", width=100).predicted("spectrum")[0] ** 2
    assert 4 - edge == pytest.approx(1.2065 * 2 ** (4 / 3) * 100 ** (-2 / 3), rel=1e-2)
    m = np.geomspace(1e-3, 10, 100_000)
    for layers in (0, 1, 5, 30):
        least = ((1 + m) ** 2 * (1 + 2 * m) ** layers / m).min()
        assert gaussian[layers] == pytest.approx(math.sqrt(least), rel=1e-3)
    for layers in (3, 5, 30):
        assert orthogonal[layers] ** 2 == pytest.approx(
            layers**layers / (layers - 1) ** (layers - 1), rel=1e-3
        )


@pytest.mark.parametrize("norm", ["normprop", "normprop-exact"])
def test_networks_of_normprop_are_made_of_its_layers(norm, rng):
    """They are cut in front of the activation; otherwise they are nn.NormPropLinear."""
    network = stack(norm, depth=3, width=16).network()
    layers = []
    for part in network:
        layer = nn.NormPropLinear(16, 16, mode="exact" if norm == "normprop-exact" else "paper")
        layer.weight.data = list(part.modules())[-1].weight.data
        layers.append(layer)
    x = tp.tensor(rng.normal(size=(5, 16)).astype(np.float32))
    activation = list(network[-1].modules())[1]
    np.testing.assert_allclose(
        activation(network(x)).numpy(), nn.Sequential(*layers)(x).numpy(), atol=1e-5
    )


def test_the_error_of_a_root():
    assert compare.root(Estimate(4.0, 0.4, 10)) == Estimate(2.0, pytest.approx(0.1), 10)


SMALL = [
    "compare",
    "--norms",
    "none/he",
    "batch",
    "none/he",
    "--depth",
    "3",
    "--width",
    "16",
    "--batch",
    "8",
    "--networks",
    "3",
]


def drawn(out, seed):
    """The bytes of the page that the command draws."""
    assert main([*SMALL, "--residual", "--seed", seed, "--out", str(out)]) == 0
    return out.read_bytes()


@pytest.mark.slow
def test_the_command_draws_a_page(tmp_path, capsys):
    out = tmp_path / "new" / "page.png"
    assert drawn(out, "0")[:4] == b"\x89PNG"
    said = capsys.readouterr().out
    assert said.count("\nbatch ") == said.count("\nnone/he ") == 1
    assert said.endswith(f"{out}\n")


@pytest.mark.slow
def test_the_same_seed_draws_the_same_page(tmp_path):
    same, again, other = (drawn(tmp_path / f"{i}.png", seed) for i, seed in enumerate("001"))
    assert same == again != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--norms", "batch", "--batch", "3"], "more than 3"),
        (["--norms", "instance"], "one value has no spread"),
        (["--norms", *NETWORKS], "colors"),
    ],
)
def test_nonsense_is_refused(arguments, words, capsys):
    assert main(["compare", *arguments]) == 1
    assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "--norms", "layr"])
    assert "'layer'" in capsys.readouterr().err


def test_each_instrument_has_a_figure():
    found = compare.compare(
        [stack("none/he", 3, width=16), stack("group", 3, width=16)], networks=2, seed=0
    )
    for name, curves in found.items():
        (axes,) = figures.instrument(name, curves).axes
        he = next(line for line in axes.lines if line.get_label() == "none/he")
        np.testing.assert_array_equal(he.get_ydata(), curves["none/he"].theory)
        assert len(axes.containers) == 2, "points with error bars"
    words = figures.describe_comparison(found)
    assert words.count("none/he") == len(INSTRUMENTS)
    last = found["signal"]["group"].points[-1].mean
    assert f"Layer 3: none/he {found['signal']['none/he'].points[-1].mean:.3g}, " in words
    assert f", group {last:.3g}." in words
    page = figures.comparison(found, "three layers")
    assert [axes.get_title(loc="left") for axes in page.axes] == list(INSTRUMENTS.values())
