"""The page "Bring your own": its files and commands work outside of the package, as a reader who
copies them would use them."""

import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tests.parallel.test_ranks import ENVIRONMENT
from tinyprop.engine.loading import from_file

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "own.md").read_text()
CHECKS = (DOCS / "checks.md").read_text()
FILES = sorted(path.name for path in (DOCS / "own").glob("*.py"))
COMMANDS = re.findall(r"^tinyprop (.*)$", PAGE, re.M)
SMALLER = {
    "compare": "--depth 3 --width 16 --batch 8 --networks 2 --out figure.png",
    "verify": "--samples 20000",
    "train": "--width 0.04 --train-size 20 --test-size 10 --batch-size 10 --out run",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with copies of the files, and nothing else."""
    folder = tmp_path_factory.mktemp("reader")
    for name in FILES:
        shutil.copy(DOCS / "own" / name, folder)
    yield folder
    # what the files registered, if a test of this process has loaded them
    for table, name in (
        (tp.activations, "leaky_clip"),
        (tp.nn.normalizers, "sphere"),
        (tp.nn.normalizers, "centered"),
    ):
        if name in table:
            table.unregister(name)


@pytest.fixture(scope="module")
def own(folder):
    """What the files define, by name."""
    names = {"activation": "mine", "normalizer": "Sphere", "layer": "Circular", "network": "Net"}
    return {name: from_file(f"{folder}/{file}.py:{name}") for file, name in names.items()}


def python(folder, *words):
    """A process that is started there; warnings are errors."""
    command = [sys.executable, "-W", "error", *words]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_shows_each_file():
    assert re.findall(r"literalinclude\} own/(.*)", PAGE + CHECKS) == [
        "activation.py",
        "normalizer.py",
        "layer.py",
        "network.py",
        "data.py",
        "claims.py",
        "checked.py",
    ]
    assert len(FILES) == 7


PRINTED = {
    "activation.py": ["variance 1.00", "it learns weight, gamma, beta, slope"],
    "claims.py": ["SNN1", "approximate", "Alpha dropout keeps mean 0 and variance 1. holds"],
    "normalizer.py": ["(4, 10)", "1.branch.0.gain, 2.gain"],
    "layer.py": ["0 Circular predicted", "1 Linear   predicted"],
    "data.py": [
        "<spirals train: 360 vectors of 2 float32, 2 classes; 40 of 400 held out for valid>",
        "<one spiral test: 80 vectors of 2 float32, 2 classes; 80 of 400 drawn with seed 3>",
    ],
    "network.py": [
        "branches.1 Linear      variance",
        "correctly",
        "Net                    gradient",
    ],
    "checked.py": ["Right passes every check.", "NormProp: mean"],
}


@pytest.mark.parametrize("name", FILES)
def test_each_file_runs(folder, name):
    said = python(folder, name)
    for words in PRINTED[name]:
        assert words in said


def test_the_page_of_checks_shows_what_is_found(folder):
    """Each of the three mistakes, in the words of the page up to the numbers."""

    def without_numbers(text):
        return re.sub(r"[-+]?\d[\d.e-]*", "0", text)

    shown = re.search(r"```text\n(.*?)```", CHECKS, re.S).group(1)
    assert shown.count("got:  ") == 3
    said = without_numbers(python(folder, "checked.py"))
    for paragraph in without_numbers(shown).strip().split("\n\n"):
        assert paragraph in said


def test_the_page_of_checks_names_each_check():
    for name in tp.testing.layer.CHECKS:
        assert f"`{name}`" in CHECKS
    for name in tp.testing.__all__:
        if name.startswith("check_"):
            assert f"`{name}(" in CHECKS
    for name in tp.testing.strategies.__all__:
        assert f"`{name}`" in CHECKS
    (program,) = re.findall(r"```python\n(.*?)```", CHECKS, re.S)
    names = {}
    exec(program, names)
    names["test_my_layer"]()
    names["test_networks"]()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(folder, command):
    words = shlex.split(command)
    said = python(folder, "-m", "tinyprop", *words, *SMALLER[words[0]].split())
    assert said
    for name in re.findall(r"normalizer\.py:(\w+)", command):
        assert name in said or (folder / "run" / "config.json").exists()


def test_the_page_names_every_field():
    for record in (tp.Activation, tp.nn.Normalizer):
        for field in record.__dataclass_fields__:
            assert f"`{field}`" in PAGE or f"`{field}=" in PAGE, field
    for declared in ("per_sample", "sums_over_batch", "elementwise", "statistics", "rows"):
        assert f"| `{declared} = " in PAGE
    for method in tp.theory.State.__abstractmethods__ - {"shape"}:
        assert f"`{method}`" in PAGE, method


# -- what the issue asks of a stranger's activation and normaliser


def sampled(net, x, mean, covariance):
    """Predictions and measurements of each layer with weights, for 200,000 samples."""
    records = tp.propagate(net, mean, covariance)
    with tp.no_grad():
        seen = [each for each in tp.observe(net, x) if each.pre_activation is not None]
    predicted = [r for r in records if r.layer in {each.name for each in seen}]
    return list(zip(predicted, seen, strict=True))


def networks(own):
    tp.manual_seed(4)
    circular, width = own["Circular"], 60
    return {
        "layer": tp.nn.Sequential(circular(8, 3), tp.nn.Linear(8, 3)),
        "activation": tp.nn.Sequential(
            tp.nn.Linear(8, 20), tp.nn.Activation(own["mine"], 20), tp.nn.Linear(20, 3)
        ),
        "normprop": tp.nn.Sequential(
            tp.nn.NormPropLinear(8, 20, own["mine"], mode="exact"), tp.nn.Linear(20, 3)
        ),
        "normalizer": tp.nn.Sequential(
            tp.nn.Linear(8, width), own["Sphere"](width), tp.nn.ReLU(), tp.nn.Linear(width, 3)
        ),
        "network": own["Net"](8, width, 3),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer", "activation", "normprop", "normalizer", "network"])
def test_propagate_agrees_with_samples(own, name, rng):
    """200,000 samples: means and variances that are exact are within 6 standard errors and the
    stated error. By chance, one of at most 100 numbers misses with a probability below 1e-6. Where
    later layers are taken to be Gaussian, the stated error is an estimate: it covers the average of
    the units."""
    net = networks(own)[name].to(dtype="float64")
    mean = np.linspace(-0.5, 0.5, 8)
    root = np.eye(8) + 0.2 * rng.normal(size=(8, 8))
    x = mean + rng.normal(size=(200_000, 8)) @ root.T
    pairs = sampled(net, tp.tensor(x), mean, root @ root.T)
    assert len(pairs) >= 2
    for record, each in pairs:
        u = each.pre_activation.numpy()
        squares = (u - u.mean(axis=0)) ** 2
        of_mean, of_variance = (6.0 * z.std(axis=0) / math.sqrt(len(u)) for z in (u, squares))
        off = abs(record.mean - u.mean(axis=0)), abs(record.variance - squares.mean(axis=0))
        allowed = (
            of_mean + record.error * np.sqrt(record.variance),
            of_variance + record.error * record.variance,
        )
        for distance, bound in zip(off, allowed, strict=True):
            if record.exact:
                assert (distance <= bound).all(), record.layer
            else:
                assert distance.mean() <= bound.mean(), record.layer
        assert record.error < 0.5


def test_a_normaliser_of_the_batch_is_left_alone_by_observers(folder, rng):
    layer = from_file(f"{folder}/normalizer.py:Centered")(3)
    x = tp.tensor(rng.normal(size=(8, 3, 2, 2)) + 1.0)
    tp.observe(layer, x)
    assert not layer.mean.data.any()
    out = layer(x).numpy()
    np.testing.assert_allclose(out.mean(axis=(0, 2, 3)), 0.0, atol=1e-12)
    np.testing.assert_allclose(layer.mean.numpy(), 0.1 * x.numpy().mean(axis=(0, 2, 3)), rtol=1e-5)


def test_refresh_measures_the_input_of_the_layer(own, rng):
    net = tp.nn.Sequential(tp.nn.Linear(5, 8), own["Circular"](8, 3))
    x = tp.tensor(rng.normal(size=(50, 5)).astype("float32"))
    tp.nn.refresh(net, x)
    np.testing.assert_allclose(net[1].center.numpy(), net[0](x).numpy().mean(axis=0), atol=1e-6)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.center"]


def test_a_parameter_that_is_made_inside_forward_is_refused():
    class Late(tp.nn.Module):
        def forward(self, x):
            self.weight = tp.tensor([2.0], requires_grad=True)
            return self.weight * x

    assert_explained(
        (tp.GradientError, tp.StateError), lambda: Late()(tp.ones(2)), "weight", "__init__"
    )
