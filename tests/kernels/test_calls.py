"""How much Python one layer runs. Counts do not depend on the machine, as times do."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn

from ..conftest import needs_overrides

PACKAGE = Path(tp.__file__).parent


@pytest.fixture
def layer_and_images():
    """The second 5x5 layer of the paper's network at width 0.25, and 8 images."""
    net = nn.build(nn.NIN, norm="normprop", width=0.25)
    convolutions = [m for m in net.modules() if isinstance(m, nn.NormPropConv2d)]
    layer = [c for c in convolutions if c.weight.shape[2:] == (5, 5)][1]
    shape = 8, layer.in_channels, 16, 16
    images = np.random.default_rng(0).standard_normal(shape).astype("float32")
    return layer, tp.tensor(images, requires_grad=True)


def calls_of(layer, images):
    """How often Python functions of each file are called in a forward pass that is recorded."""
    calls = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    layer(images)  # what is computed once and remembered
    sys.setprofile(count)
    try:
        out = layer(images)
    finally:
        sys.setprofile(None)
    assert out.node.recorded
    return calls


@needs_overrides
def test_calls_of_a_layer(layer_and_images):
    assert 100 < calls_of(*layer_and_images).total() <= 300


def test_calls_and_files_of_a_layer_in_plain_mode(layer_and_images):
    with tp.plain():
        calls = calls_of(*layer_and_images)
    assert 50 < calls.total() <= 125
    files = {Path(name).relative_to(PACKAGE) for name in calls if str(PACKAGE) in name}
    # the engine is read once for all layers
    of_the_layer = {file for file in files if file.parts[0] != "engine"}
    assert Path("functional/convolution.py") in of_the_layer
    assert not {file for file in of_the_layer if file.parts[0] == "kernels"}
    assert len(of_the_layer) <= 8


def test_geometry_is_computed_once(layer_and_images):
    from tinyprop.functional.windows import placement

    layer, images = layer_and_images
    layer(images)
    before = placement.cache_info().misses
    layer(images)
    assert placement.cache_info().misses == before
    assert placement.cache_info().hits > 0
