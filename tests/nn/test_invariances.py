"""The laws of layers whose weights are normalised, or followed by a normaliser."""

import numpy as np
import pytest
from hypothesis import given

import tinyprop as tp
from tests.helpers import assert_close, rngs
from tinyprop import nn


def linear():
    return nn.Linear(6, 4, bias=False)


def conv():
    return nn.Conv2d(2, 4, 2, bias=False)


UNSCALED = {  # of each row, or of all of the weight
    "normprop": ("row", lambda: nn.NormPropLinear(6, 4)),
    "normprop, exact": ("row", lambda: nn.NormPropLinear(6, 4, mode="exact")),
    "normprop, convolution": ("row", lambda: nn.NormPropConv2d(2, 4, 2)),
    "normprop, exact convolution": ("row", lambda: nn.NormPropConv2d(2, 4, 2, mode="exact")),
    "weight norm": ("row", lambda: nn.WeightNorm(nn.Linear(6, 4))),
    "weight norm, convolution": ("row", lambda: nn.WeightNorm(nn.Conv2d(2, 4, 2))),
    "ws": ("row", lambda: nn.ScaledWS(nn.Linear(6, 4))),
    "ws, convolution": ("row", lambda: nn.ScaledWS(nn.Conv2d(2, 4, 2))),
    "batch": ("row", lambda: nn.Sequential(linear(), nn.BatchNorm(4, eps=0.0))),
    "batch, convolution": ("row", lambda: nn.Sequential(conv(), nn.BatchNorm(4, eps=0.0))),
    "instance, convolution": ("row", lambda: nn.Sequential(conv(), nn.GroupNorm(4, 4, eps=0.0))),
    "layer": ("all", lambda: nn.Sequential(linear(), nn.LayerNorm(4, eps=0.0))),
    "rms": ("all", lambda: nn.Sequential(linear(), nn.RMSNorm(4, eps=0.0))),
}
# the axis along which a sum makes no difference, either
SHIFTED = {"ws": 1, "ws, convolution": 1, "layer": 0}


@pytest.mark.parametrize("name", UNSCALED)
@given(rng=rngs())
def test_the_scale_of_normalized_weights_makes_no_difference(name, backend, rng):
    """Nor does what is added to each row by weight standardisation (a number), or to all rows by
    LayerNorm (a row). So the gradient is orthogonal to it; and if the weights grow by a factor, it
    shrinks by it."""
    which, make = UNSCALED[name]
    net = make().to(dtype=np.float64)
    for p in net.parameters():
        p.data[...] = rng.uniform(0.5, 1.5, p.shape) * rng.choice([-1, 1], p.shape)
    (weight,) = nn.init.weights(net.to(backend))
    x = tp.tensor(rng.normal(size=(5, 2, 3, 3) if weight.ndim == 4 else (5, 6)), backend=backend)
    cotangent = tp.tensor(rng.normal(size=net(x).shape), backend=backend)

    def outcome(values):
        weight.data[...] = tp.tensor(values.reshape(weight.shape), backend=backend).data
        out = net(x)
        return out.numpy(), tp.grad(out, [weight], cotangent)[0].numpy().reshape(4, -1)

    w = rng.normal(size=weight.shape).reshape(4, -1)
    out, g = outcome(w)
    along, size = w * g, abs(w * g).max()
    assert abs(along.sum(axis=1) if which == "row" else along.sum()).max() < 1e-10 * size + 1e-13
    scale = rng.uniform(0.3, 3.0, (4, 1) if which == "row" else (1, 1))
    scaled, g_scaled = outcome(scale * w)
    assert_close(scaled, out, 1e-9)
    assert_close(scale * g_scaled, g, 1e-9)
    for axis, shift in enumerate((w[:1], w[:, :1])):
        unseen = SHIFTED.get(name) == axis
        if "normprop" not in name:  # whose units may all be off
            assert (abs(outcome(w + shift)[0] - out).max() < 1e-8 * abs(out).max()) == unseen
            assert (abs(g.sum(axis=axis)).max() < 1e-10 * abs(g).max()) == unseen
