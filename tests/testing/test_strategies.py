"""The public strategies draw what they promise, and the checks hold for whatever they draw."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import run_python
from tinyprop import nn
from tinyprop.testing import check_layer, check_moments, strategies


@given(x=strategies.tensors(kinks=(-1.0, 0.5), dtype="float64", requires_grad=True))
def test_tensors_keep_away_from_kinks(x):
    values = x.numpy()
    assert x.requires_grad
    assert (abs(values) <= 3.2).all()
    for kink in (-1.0, 0.5):
        assert (abs(values - kink) >= 0.05 - 1e-12).all()
    assert len(np.unique(values)) == values.size


@given(drawn=st.data())
def test_tensors_have_the_shape_that_is_asked_for(drawn):
    assert drawn.draw(strategies.tensors((2, 3))).shape == (2, 3)
    x = drawn.draw(strategies.tensors(strategies.shapes(2, 2), low=0.0, high=1.0))
    assert x.ndim == 2
    assert x.dtype == np.float32
    assert ((x.numpy() > 0) & (x.numpy() < 1)).all()


def test_every_layer_can_be_drawn():
    """Every class of tp.nn that makes a layer of one input is among them, or is a subclass of one
    that is."""
    drawn = set()
    for kind in strategies.LAYERS:

        @settings(max_examples=10, database=None)
        @given(layer_and_batch=strategies.layers([kind]))
        def draw(layer_and_batch):
            drawn.add(type(layer_and_batch[0]))

        draw()
    kinds = [getattr(nn, name) for name in nn.__all__]
    layers = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, nn.Module)}
    containers = {nn.Module, nn.ModuleList, nn.Sequential}
    missing = [
        kind.__name__
        for kind in layers - containers
        if not any(issubclass(kind, each) for each in drawn)
    ]
    assert missing == []


@settings(max_examples=max(2, settings().max_examples // 2))
@given(drawn=strategies.layers())
def test_layers_are_sound(drawn):
    check_layer(*drawn, order=1)


@given(drawn=strategies.networks())
def test_networks_take_their_images(drawn):
    net, images = drawn
    out = net.eval()(images)
    assert out.shape == (3, 4)
    assert np.isfinite(out.numpy()).all()


@given(spec=strategies.specs(), plain=strategies.specs(dense=False, residual=False))
def test_specs_are_built(spec, plain):
    x = tp.ones(2, 3, 8, 8)
    for each in (spec, plain):
        assert nn.build(each, norm="none", size=(8, 8))(x).shape == (2, 4)
    assert "F" not in plain
    assert "R" not in plain


@pytest.mark.slow
@settings(max_examples=5)
@given(activation=strategies.activations())
def test_activations_are_sound(activation):
    check_moments(activation, samples=1024)


WITHOUT = """
import sys
sys.modules["hypothesis"] = None  # as if it were not installed
import tinyprop as tp
tp.testing.check_gradients(lambda x: x * x, tp.tensor([1.0, 2.0]))
tp.testing.check_layer(tp.nn.ReLU(), tp.randn(3, 2))
assert "tinyprop.testing.strategies" not in sys.modules
try:
    tp.testing.strategies
except ImportError as error:
    print(error)
"""


def test_only_strategies_need_hypothesis():
    done = run_python(WITHOUT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["got", "rule", "try"]
    assert "pip install 'tinyprop[testing]'" in done.stdout
