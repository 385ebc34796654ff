import math
from functools import partial

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_close, assert_explained, leaf
from tinyprop import functional as F
from tinyprop import nn


def scaled(x, weight, bias):
    return x * weight.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)


def normalized(apply, factor=1.0, **options):
    """A layer with normalised weights as a function of its parameters."""
    return lambda x, scale, weight, bias: apply(
        x, F.weight_norm(weight, scale, factor, **options), bias
    )


STANDARDIZED = normalized(F.conv2d, math.sqrt(2 / (1 - 1 / math.pi)), centered=True)
# a layer for images (3, 4, 5, 6), and the same as a function of these and of the layer's parameters
LAYERS = {
    "Linear": (partial(nn.Linear, 6, 3), F.linear),
    "Linear, no bias": (partial(nn.Linear, 6, 3, bias=False), F.linear),
    "Conv2d": (
        partial(nn.Conv2d, 4, 3, (3, 2), 2, (1, 0)),
        partial(F.conv2d, stride=2, padding=(1, 0)),
    ),
    "Conv2d, groups": (
        partial(nn.Conv2d, 4, 6, 2, bias=False, groups=2),
        partial(F.conv2d, groups=2),
    ),
    "Conv2d, dilation": (partial(nn.Conv2d, 4, 3, 2, dilation=2), partial(F.conv2d, dilation=2)),
    "MaxPool2d": (partial(nn.MaxPool2d, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1)),
    "AvgPool2d": (
        partial(nn.AvgPool2d, 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    "GlobalAvgPool2d": (nn.GlobalAvgPool2d, lambda x: F.mean(x, (2, 3), keepdims=True)),
    "Flatten": (nn.Flatten, lambda x: x.reshape(3, 4 * 5 * 6)),
    **{
        kind.__name__: (kind, getattr(F, kind.__name__.lower()))
        for kind in (
            nn.ReLU,
            nn.Tanh,
            nn.Sigmoid,
            nn.Softplus,
            nn.SELU,
            nn.GELU,
            nn.SiLU,
            nn.Hardtanh,
        )
    },
    "Identity": (nn.Identity, lambda x: 1.0 * x),
    "Activation": (partial(nn.Activation, "sin"), F.sin),
    "LeakyReLU": (partial(nn.LeakyReLU, a=0.2), lambda x: F.leaky_relu(x, 0.2)),
    "ELU": (partial(nn.ELU, alpha=2.0), lambda x: F.elu(x, 2.0)),
    "PReLU": (nn.PReLU, F.prelu),
    "PReLU, by channel": (partial(nn.PReLU, 4), F.prelu),
    "LayerNorm": (
        partial(nn.LayerNorm, (4, 5, 6)),
        lambda x, *affine: F.layer_norm(x, (4, 5, 6), *affine),
    ),
    "LayerNorm, shared": (
        partial(nn.LayerNorm, (4, None, None)),
        lambda x, *affine: F.group_norm(x, 1, *affine),
    ),
    "LayerNorm, last axis": (
        partial(nn.LayerNorm, 6),
        lambda x, *affine: F.layer_norm(x, 6, *affine),
    ),
    "RMSNorm": (partial(nn.RMSNorm, (5, 6)), lambda x, weight: F.rms_norm(x, (5, 6), weight)),
    "GroupNorm": (partial(nn.GroupNorm, 2, 4), lambda x, *affine: F.group_norm(x, 2, *affine)),
    "InstanceNorm": (partial(nn.GroupNorm, 4, 4), lambda x, *affine: F.group_norm(x, 4, *affine)),
    "BatchNorm": (
        partial(nn.BatchNorm, 4),
        lambda x, *affine: F.batch_norm(x, tp.zeros(4), tp.ones(4), *affine, training=True),
    ),
    "DyT": (
        partial(nn.DyT, 4),
        lambda x, alpha, weight, bias: scaled(F.tanh(alpha * x), weight, bias),
    ),
    "Derf": (
        partial(nn.Derf, 4),
        lambda x, alpha, weight, bias, shift: scaled(F.erf(alpha * x + shift), weight, bias),
    ),
    "WeightNorm": (lambda: nn.WeightNorm(nn.Conv2d(4, 3, 2)), normalized(F.conv2d)),
    "WeightNorm, linear": (lambda: nn.WeightNorm(nn.Linear(6, 3)), normalized(F.linear)),
    "ScaledWS": (lambda: nn.ScaledWS(nn.Conv2d(4, 3, 2)), STANDARDIZED),
}
PARAMETERS = {"weight", "bias", "a", "alpha", "shift", "scale", "layer.weight", "layer.bias"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_function(name, backend, rng):
    """So are its gradients. test_opinfo.py holds the functions against PyTorch's."""
    make, function = LAYERS[name]
    with tp.use_backend(backend):
        layer, (x, v) = make().to(dtype=np.float64), rng.normal(size=(2, 3, 4, 5, 6))
        for p in layer.parameters():
            p.data[...] += tp.tensor(rng.uniform(-0.3, 0.3, p.shape)).data
        assert {n for n, _ in layer.named_parameters()} <= PARAMETERS
        leaves = [leaf(x, backend), *layer.parameters()]
        results = layer(leaves[0]), function(*leaves)
        assert_close(results[0], results[1].numpy())
        gradients = (
            tp.grad(y, leaves, tp.tensor(v.reshape(-1)[: y.size].reshape(y.shape))) for y in results
        )
        for found, expected in zip(*gradients, strict=True):
            assert_close(found, expected.numpy())


def test_what_no_layer_can_be_made_of_is_explained():
    assert_explained(ValueError, lambda: nn.Conv2d(3, 4, 2, groups=2), "Conv2d(3, 4, groups=2)")
    assert_explained(ValueError, lambda: nn.Activation("step"), "'step'", "relu, prelu")


def test_wrong_shapes_get_a_hint_that_helps():
    """Channels last, no batch axis, no Flatten: the three mistakes everybody makes; here behind
    normalised weights."""
    images, conv, linear = (
        tp.ones(2, 8, 8, 3),
        nn.NormPropConv2d(3, 4, 3),
        nn.NormPropLinear(192, 2),
    )
    assert_explained(tp.ShapeError, lambda: conv(images), "(2, 8, 8, 3)", "transpose(0, 3, 1, 2)")
    assert_explained(tp.ShapeError, lambda: conv(tp.ones(3, 8, 8)), "batch axis")
    assert_explained(tp.ShapeError, lambda: linear(images), "Flatten")


def test_dropout_follows_its_mode(backend):
    tp.manual_seed(0)
    x, layer = tp.tensor(np.ones(100, np.float32), backend=backend), nn.Dropout(0.2)
    assert nn.Dropout().p == 0.5
    assert set(np.unique(layer(x).numpy())) == {np.float32(0.0), np.float32(1.25)}
    assert layer.eval()(x) is x
    for p in (1.0, -0.1, float("nan")):
        assert_explained(ValueError, lambda p=p: nn.Dropout(p), f"Dropout(p={p})", "probability")
